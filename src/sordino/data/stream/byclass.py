"""A drift of the classes on rows that come in a given order, as those of a file.

Each event draws its class from the probabilities of the drift, and shows the next row of this class
that no event has shown: rows of a class keep their order, and no row comes twice. Rows that come
before their turn wait in memory. The stream ends at the first event whose class has no row left.

>>> import numpy as np
>>> from sordino.data.stream.drift import ClassDrift
>>> from sordino.data.stream.piece import Piece
>>> class Numbers:
...     name, shape, classes, length, columns = "numbers", (1,), ("even", "odd"), None, None
...     def read(self, start, count):
...         rows = np.arange(start, start + count)
...         return Piece(rows[:, None].astype(np.float32), rows % 2)
...     def changes(self, start, stop):
...         return ()
>>> ByClass(Numbers(), 0, ClassDrift(every=4)).read(0, 8).x[:, 0].astype(int).tolist()
[1, 0, 2, 3, 4, 6, 5, 8]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino.base.entropy import Seeded
from sordino.base.errors import DataError
from sordino.data.stream.draws import classes_drawn
from sordino.data.stream.piece import BLOCK, Piece, Stream, blocks, joined, room

if TYPE_CHECKING:
    from sordino.data.stream.drift import Sampling

MOST = 1 << 26
"""Numbers of rows that wait, at most (256 MiB)."""
AT_ONCE = 2000
"""Rows read at once."""


class ByClass:
    """Rows of another stream, their classes drawn by ``drift``; see the module."""

    length: int | None = None

    def __init__(self, stream: Stream, seed: int, drift: Sampling) -> None:
        self.stream, self.seed, self.drift = stream, seed, drift
        self.name, self.shape, self.classes = stream.name, stream.shape, stream.classes
        self.columns = stream.columns
        self._features = int(np.prod(stream.shape))
        self._owned = stream.read(0, 0).entity is not None
        self._begin()

    def read(self, start: int, count: int) -> Piece:
        """See :class:`~sordino.data.stream.piece.Stream`.

        Raises:
            DataError: if too many rows wait for those of another class.
        """
        count = room(start, count, None)
        if start < self._event:
            self._begin()
        while self._event < start:
            if not len(self._next(min(BLOCK, start - self._event))):
                return self._next(0)
        return self._next(count)

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        return self.drift.changes(start, stop)

    def _begin(self) -> None:
        """Before the first event, and the first row."""
        self._event = self._row = 0
        self._ended = False
        self._waiting: list[list[Piece]] = [[] for _ in self.classes]

    def _next(self, count: int) -> Piece:
        """The next events; fewer where a class has no row left."""
        y = self._drawn(self._event, count)
        ranks = _ranks(y, len(self.classes))
        for label in range(len(self.classes)):
            if not self._fetch(label, int((y == label).sum())):
                y = y[: int(np.flatnonzero((y == label) & (ranks >= self._held(label)))[0])]
                ranks = ranks[: len(y)]
        x, owners = np.empty((len(y), self._features), np.float32), np.empty(len(y), np.int64)
        for label in range(len(self.classes)):
            place = np.flatnonzero(y == label)
            piece = self._take(label, len(place))
            x[place] = piece.x
            if piece.entity is not None:
                owners[place] = piece.entity
        self._event += len(y)
        return Piece(x, y, owners if self._owned else None)

    def _drawn(self, start: int, count: int) -> NDArray[np.int64]:
        """The classes of these events."""
        source, many = Seeded(self.seed), len(self.classes)
        parts = [np.empty(0, np.int64)]
        for block, first, last in blocks(start, count):
            shares = self.drift.probabilities(self.seed, many, block * BLOCK, block * BLOCK + BLOCK)
            parts.append(classes_drawn(source.at("stream", "rows", block), shares)[first:last])
        return np.concatenate(parts)

    def _held(self, label: int) -> int:
        return sum(map(len, self._waiting[label]))

    def _fetch(self, label: int, wanted: int) -> bool:
        """Read on until so many rows of a class wait; whether there are so many."""
        while self._held(label) < wanted and not self._ended:
            piece = self.stream.read(self._row, AT_ONCE)
            self._row += len(piece)
            self._ended = len(piece) < AT_ONCE
            for each, held in enumerate(self._waiting):
                if len(at := np.flatnonzero(piece.y == each)):
                    own = None if piece.entity is None else piece.entity[at]
                    held.append(Piece(piece.x[at], piece.y[at], own))
            waiting = sum(map(self._held, range(len(self.classes))))
            if waiting * self._features > MOST:
                raise DataError(
                    f"{self.name}: {waiting} rows wait for more of class "
                    f"{self.classes[label]!r}, which hardly comes up to row {self._row}: shuffle "
                    "the rows of the file, or leave this class out of the classes"
                )
        return self._held(label) >= wanted

    def _take(self, label: int, count: int) -> Piece:
        """The first rows of a class that wait."""
        held, found = self._waiting[label], list[Piece]()
        while count:
            piece = held.pop(0)
            first, rest = _cut(piece, count)
            found.append(first)
            count -= len(first)
            if rest is not None:
                held.insert(0, rest)
        return joined(found, self._features)


def _cut(piece: Piece, count: int) -> tuple[Piece, Piece | None]:
    """The first rows of a piece, and the others if there are any."""
    if len(piece) <= count:
        return piece, None
    parts = (slice(None, count), slice(count, None))
    first, rest = (
        Piece(piece.x[part], piece.y[part], None if piece.entity is None else piece.entity[part])
        for part in parts
    )
    return first, rest


def _ranks(y: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """How many events of the same class come before each one."""
    found = np.empty(len(y), np.int64)
    for label in range(classes):
        place = np.flatnonzero(y == label)
        found[place] = np.arange(len(place))
    return found
