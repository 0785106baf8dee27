"""A stored data set as a stream: epoch after epoch, each in an order of its own.

Without drift, event t shows row pi_e(t mod n), where pi_e is a random permutation that belongs to
epoch e = floor(t / n). With a drift of the classes, each event draws a row of the wanted class,
with replacement.

Repeated rows are the same person's: ``entity`` is the row's number, or the data set's own
``client`` where it says whose each row is.

>>> from sordino.data import load
>>> stream = Replayed(load("digits").train, seed=0)
>>> stream.read(1430, 20).x.shape, stream.length
((20, 64), None)
>>> (stream.read(1430, 20).x[5:] == stream.read(1435, 15).x).all()
np.True_
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sordino.base.entropy import Seeded
from sordino.data.dataset import Dataset, scaled
from sordino.data.stream.draws import Draws, refuse_empty
from sordino.data.stream.drift import Sampling
from sordino.data.stream.piece import Piece, blocks, check_length, room


class Replayed:
    """Rows of a data set in random order.

    Attributes:
        dataset: the rows.
        seed: of the order.
        length: examples in all; None: epoch after epoch without end. ``k * len(dataset)`` is k
            epochs.
        drift: of the classes.
    """

    columns: tuple[str, ...] | None = None

    def __init__(
        self,
        dataset: Dataset,
        seed: int,
        *,
        length: int | None = None,
        drift: Sampling | None = None,
    ) -> None:
        refuse_empty(dataset)
        check_length(length, dataset.name)
        self.dataset, self.seed, self.length, self.drift = dataset, seed, length, drift
        self.name, self.shape, self.classes = dataset.name, dataset.shape, dataset.classes
        self._draws = Draws(dataset, seed, self.drift)
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def read(self, start: int, count: int) -> Piece:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        count = room(start, count, self.length)
        rows = self._permuted(start, count) if self.drift is None else self._drawn(start, count)
        data = self.dataset
        # Fancy indexing has copied; scaled copies pixels once more and leaves floats alone.
        x = scaled(data.x[rows]).reshape(count, math.prod(self.shape))
        return Piece(x, data.y[rows], rows if data.client is None else data.client[rows])

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        return () if self.drift is None else self.drift.changes(start, stop)

    def drifting(self, drift: Sampling) -> Replayed:
        """The same rows, their classes drawn by ``drift``."""
        return Replayed(self.dataset, self.seed, length=self.length, drift=drift)

    def _drawn(self, start: int, count: int) -> NDArray[np.int64]:
        parts = [
            self._draws.block(block)[first:last] for block, first, last in blocks(start, count)
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _permuted(self, start: int, count: int) -> NDArray[np.int64]:
        rows, done, n = np.empty(count, np.int64), 0, len(self.dataset)
        while done < count:
            epoch, at = divmod(start + done, n)
            if epoch != self._epoch:
                self._order = Seeded(self.seed).at("stream", "epoch", epoch).permutation(n)
                self._epoch = epoch
            step = min(n - at, count - done)
            rows[done : done + step] = self._order[at : at + step]
            done += step
        return rows
