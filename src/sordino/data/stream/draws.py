"""Which row of a data set event t shows: first its class, then a row; addressed by block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sordino.base.entropy import Seeded
from sordino.base.errors import DataError
from sordino.data.dataset import Dataset
from sordino.data.stream.drift import Sampling
from sordino.data.stream.piece import BLOCK


class Draws:
    """Rows with replacement, of the classes that a drift asks for; the last block is kept."""

    __slots__ = ("_at", "_drift", "_grouped", "_present", "_rows", "_seed")

    def __init__(self, dataset: Dataset, seed: int, drift: Sampling | None) -> None:
        counts = np.bincount(dataset.y, minlength=len(dataset.classes))
        self._present = counts > 0
        self._grouped = np.argsort(dataset.y, kind="stable"), np.cumsum(counts) - counts, counts
        self._seed, self._drift = seed, drift
        self._at, self._rows = -1, np.empty(0, np.int64)

    def block(self, number: int) -> NDArray[np.int64]:
        """The rows of block ``number``, (BLOCK,)."""
        if number != self._at:
            self._rows, self._at = self._draw(number), number
        return self._rows

    def _draw(self, number: int) -> NDArray[np.int64]:
        rng = Seeded(self._seed).at("stream", "rows", number)
        rows, firsts, counts = self._grouped
        if self._drift is None:
            return rng.integers(len(rows), size=BLOCK)
        start = number * BLOCK
        wanted = (
            self._drift.probabilities(self._seed, len(self._present), start, start + BLOCK)
            * self._present
        )
        last = int(np.flatnonzero(self._present)[-1])
        labels = np.minimum(classes_drawn(rng, wanted), last)
        return np.asarray(rows[firsts[labels] + rng.integers(counts[labels])])


def classes_drawn(rng: np.random.Generator, wanted: NDArray[np.float64]) -> NDArray[np.int64]:
    """A class for each event (n,), with probabilities in proportion to ``wanted`` (n, classes)."""
    edges = np.cumsum(wanted, axis=1)
    # The last edge is the sum itself, so that a draw beyond it, which rounding could make, is
    # impossible.
    drawn = rng.random(len(wanted))[:, None] * edges[:, -1:]
    return np.asarray(np.minimum((edges <= drawn).sum(axis=1), wanted.shape[1] - 1))


def refuse_empty(dataset: Dataset) -> None:
    """A stream needs at least one example."""
    if not len(dataset):
        raise DataError(
            f"{dataset.name}: a stream needs at least one example, the data set has none"
        )
