"""Drift on a stream that exists already: labels change places, features their scale.

Both change what comes, from any stream.

>>> from sordino.data import load
>>> from sordino.data.stream.replay import Replayed
>>> stream = Swapped(Replayed(load("digits").train, seed=0), every=4, seed=0)
>>> Replayed(load("digits").train, seed=0).read(0, 8).y, stream.read(0, 8).y
(array([4, 9, 1, 1, 7, 2, 1, 6]), array([4, 9, 1, 1, 7, 2, 1, 3]))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.data.stream.piece import Piece, Stream, multiples

if TYPE_CHECKING:
    from sordino.data.stream.drift import FeatureDrift


class _Changed:
    """What a changed stream has from the stream below it."""

    def __init__(self, stream: Stream, seed: int) -> None:
        self.stream, self.seed = stream, seed
        self.name, self.shape, self.classes = stream.name, stream.shape, stream.classes
        self.columns = stream.columns

    @property
    def length(self) -> int | None:
        """Of the stream below, as far as it knows."""
        return self.stream.length


class Swapped(_Changed):
    """Labels that change places after each ``every`` events."""

    def __init__(self, stream: Stream, every: int, seed: int) -> None:
        super().__init__(stream, seed)
        if len(stream.classes) < 2:
            raise StudyError(f"{stream.name}: the drift 'swap' needs two classes, there is one")
        self._every = every
        self._done, self._mapping = 0, np.arange(len(stream.classes))
        self._source = Seeded(seed).stream("stream", "label swaps")

    def read(self, start: int, count: int) -> Piece:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        piece = self.stream.read(start, count)
        swaps = np.arange(start, start + len(piece)) // self._every
        y = piece.y.copy()
        firsts = np.flatnonzero(np.diff(swaps, prepend=-1))
        for first, last in zip(firsts, [*firsts[1:], len(y)], strict=False):
            y[first:last] = self._after(int(swaps[first]))[y[first:last]]
        return Piece(piece.x, y, piece.entity)

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        return tuple(
            sorted({*self.stream.changes(start, stop), *multiples(self._every, start, stop)})
        )

    def _after(self, swaps: int) -> NDArray[np.int64]:
        """Label of each class after so many swaps.

        Going on is quick; going back starts again, some microseconds a swap.
        """
        if swaps < self._done:
            self._done, self._mapping = 0, np.arange(len(self.classes))
        for number in range(self._done, swaps):
            rng = self._source.at(number)
            one = int(rng.integers(len(self.classes)))
            other = (one + 1 + int(rng.integers(len(self.classes) - 1))) % len(self.classes)
            # The labels one and other change places, whatever classes wear them by now.
            self._mapping = np.where(
                self._mapping == one, other, np.where(self._mapping == other, one, self._mapping)
            )
        self._done = swaps
        return self._mapping


class Shifted(_Changed):
    """Features with a moving gain and offset; see :class:`.drift.FeatureDrift`."""

    def __init__(self, stream: Stream, drift: FeatureDrift, seed: int) -> None:
        super().__init__(stream, seed)
        self.drift = drift

    def read(self, start: int, count: int) -> Piece:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        piece = self.stream.read(start, count)
        if not len(piece):
            return piece
        x = np.empty_like(piece.x)
        gain, offset = self.drift.lines(self.seed, range(start, start + len(x))).astype(np.float32)
        for block, part in enumerate(self.drift.slices(x.shape[1])):
            np.multiply(piece.x[:, part], gain[:, block, None], out=x[:, part])
            x[:, part] += offset[:, block, None]
        return Piece(x, piece.y, piece.entity)

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        return tuple(sorted({*self.stream.changes(start, stop), *self.drift.changes(start, stop)}))
