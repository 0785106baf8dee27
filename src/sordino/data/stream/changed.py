"""Drift on a stream that exists already: labels that change places, features that change their scale, classes drawn anew.

:func:`drifting` is the one door. A drift of the classes has to choose examples, which only a stream of a data set in
memory can do; the other two change what comes, from any stream.

>>> from sordino.data import load
>>> from sordino.data.stream.replay import Replayed
>>> stream = drifting(Replayed(load("digits").train, seed=0), SwapDrift(at=(3,)), seed=0)
>>> Replayed(load("digits").train, seed=0).read(0, 8).y, stream.read(0, 8).y, stream.changes(0, 8)
(array([4, 9, 1, 1, 7, 2, 1, 6]), array([4, 9, 1, 1, 7, 2, 1, 3]), (3,))
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sordino.data.stream.drift import ClassDrift, Drift, FeatureDrift, GradualDrift, Sampling, Stationary, SwapDrift
from sordino.data.stream.piece import Piece, Stream
from sordino.entropy import Seeded
from sordino.errors import StudyError


@runtime_checkable
class Drawn(Protocol):
    """A stream that can draw an example of a wanted class."""

    def drifting(self, drift: Sampling) -> Stream:
        """The same examples, their classes drawn by ``drift``."""
        ...


def drifting(stream: Stream, drift: Drift, seed: int) -> Stream:
    """``stream``, changing as ``drift`` says; class drift is addressed by the stream's own seed, the others by ``seed``.

    Raises:
        StudyError: if the drift is of the classes, and the stream comes in a given order.
    """
    match drift:
        case Stationary():
            return stream
        case ClassDrift() | GradualDrift():
            if not isinstance(stream, Drawn):
                raise StudyError(
                    f"{stream.name}: the drift {drift.kind!r} draws an example of a wanted class for each event, but this stream comes in "
                    "a given order (a file, or labels and features that change already); use a data set that fits in memory, give this "
                    "drift before others, or use the drifts 'swap' and 'features'"
                )
            return stream.drifting(drift)
        case SwapDrift():
            return Swapped(stream, drift, seed)
        case FeatureDrift():
            return Shifted(stream, drift, seed)


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
    """Labels that change places; see :class:`~sordino.data.stream.drift.SwapDrift`."""

    def __init__(self, stream: Stream, drift: SwapDrift, seed: int) -> None:
        super().__init__(stream, seed)
        if len(stream.classes) < 2:
            raise StudyError(f"{stream.name}: the drift 'swap' needs two classes, there is one")
        self.drift = drift
        self._done, self._mapping = 0, np.arange(len(stream.classes))
        self._source = Seeded(seed).stream("stream", "label swaps")

    def read(self, start: int, count: int) -> Piece:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        piece = self.stream.read(start, count)
        swaps = self.drift.swaps(np.arange(start, start + len(piece)))
        y = piece.y.copy()
        firsts = np.flatnonzero(np.diff(swaps, prepend=-1))
        for first, last in zip(firsts, [*firsts[1:], len(y)], strict=False):
            y[first:last] = self._after(int(swaps[first]))[y[first:last]]
        return Piece(piece.x, y, piece.entity)

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        return tuple(sorted({*self.stream.changes(start, stop), *self.drift.changes(start, stop)}))

    def _after(self, swaps: int) -> NDArray[np.int64]:
        """Label of each class after so many swaps. Going on is quick; going back starts again, some microseconds a swap."""
        if swaps < self._done:
            self._done, self._mapping = 0, np.arange(len(self.classes))
        for number in range(self._done, swaps):
            rng = self._source.at(number)
            one = int(rng.integers(len(self.classes)))
            other = (one + 1 + int(rng.integers(len(self.classes) - 1))) % len(self.classes)
            # The labels one and other change places, whatever classes wear them by now.
            self._mapping = np.where(self._mapping == one, other, np.where(self._mapping == other, one, self._mapping))
        self._done = swaps
        return self._mapping


class Shifted(_Changed):
    """Features with a gain and an offset that move; see :class:`~sordino.data.stream.drift.FeatureDrift`."""

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
