r"""Drifts of a stream's distribution: each kind is a class, the ``data.drift`` table of a study.

======== =====================================================================================
none     nothing changes
classes  after each ``every`` events new class probabilities p_k, each U(0, 1) and then normalised
gradual  the same draws, but the probabilities move in a straight line from one to the next:
         p(t) = (1 - w) p_k + w p_{k+1},  k = floor(t / every),  w = t / every - k
swap     two classes, drawn at random, change their labels after each ``every`` events;
         swaps add up
features each of :data:`BLOCKS` slices of the features gets a gain and an offset, x' = a x + b
======== =====================================================================================

``classes`` and ``gradual`` say which class event t has. Of a data set in memory
(:mod:`sordino.data.stream.opening`) an example of that class is drawn then, and a class without
examples has probability 0; of a file (:class:`~sordino.data.stream.table.TableStream`) the next row
of that class is shown, each row once (:class:`ByClass`). The last two change what a stream gives,
whatever stream it is (:class:`Swapped`, :class:`Shifted`).

**Features.** Change k has ln a ~ U(-strength, strength) and b ~ U(-strength, strength), independent
for each slice; change 0 is none (a = 1, b = 0). Change k + 1 follows on change k each ``every``
events: at once (``sudden``), or in a straight line over them. Gains are positive, and so is
everything between two positive gains: no change loses information.

A drift of your own is a class with a registration, or ``kind = "package.module:Class"`` in a study
(docs/own-tables.md).

Wang, Wang, Gu, Ling 2025 let the class probabilities change after each 50 events.

>>> ClassDrift(every=2).probabilities(seed=0, classes=3, start=1, stop=4).round(2)
array([[0.44, 0.11, 0.45],
       [0.56, 0.35, 0.09],
       [0.56, 0.35, 0.09]])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.random import Generator
from pydantic import Field

from sordino.base.entropy import Seeded
from sordino.base.errors import DataError, StudyError
from sordino.base.registry import AtLeastOne, Registry, Section
from sordino.data.dataset import Double, Indices
from sordino.data.stream.piece import BLOCK, DerivedStream, Piece, Stream, blocks, joined, multiples

BLOCKS = 8
"""Slices of the features that change each by itself."""


class Drift(Section):
    """A change of a stream: the ``data.drift`` table of a study, whose name alone will do."""

    by_class: ClassVar[bool] = False  # whether it draws examples by their class
    relabels: ClassVar[bool] = False  # whether an entity's label changes

    kind: str

    def applied(self, stream: Stream, seed: int) -> Stream:
        """``stream``, changing as this says; ``seed`` addresses what is drawn.

        Raises:
            StudyError: if this stream cannot change so.
        """
        raise NotImplementedError

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """The events in [start, stop) at which the distribution changes abruptly, in order."""
        return ()


DRIFTS = Registry(base=Drift, noun="drift", place="data.drift", needs=("applied",))


@DRIFTS.register
class NoDrift(Drift):
    """The world stays as it is."""

    kind: Literal["none"] = "none"

    def applied(self, stream: Stream, seed: int) -> Stream:
        """The stream itself."""
        return stream


class Sampling(Drift):
    """Says which class an event has; the stream's own seed addresses what is drawn.

    Attributes:
        every: events between two changes
    """

    by_class: ClassVar[bool] = True

    every: AtLeastOne = 50

    def probabilities(self, seed: int, classes: int, start: int, stop: int) -> Double:
        """Of the events ``start`` to ``stop``, (stop - start, classes); rows sum to 1."""
        raise NotImplementedError

    def applied(self, stream: Stream, seed: int) -> Stream:
        """The same examples, drawn by class."""
        if not isinstance(stream, Drawn):
            raise StudyError(
                f"{stream.name}: the drift {self.kind!r} draws an example of a wanted class for "
                "each event, but this stream comes in a given order (its labels or features "
                "change already, or it is of a class without 'drifting'); give this drift before "
                "others, or use the drifts 'swap' and 'features'"
            )
        return stream.drifting(self)


@runtime_checkable
class Drawn(Protocol):
    """A stream that can draw an example of a wanted class."""

    def drifting(self, drift: Sampling) -> Stream:
        """The same examples, their classes drawn by ``drift``."""


@DRIFTS.register
class ClassDrift(Sampling):
    """New probabilities of the classes after each ``every`` events, at once."""

    kind: Literal["classes"] = "classes"

    def probabilities(self, seed: int, classes: int, start: int, stop: int) -> Double:
        numbers = np.arange(start, stop) // self.every
        first, last = start // self.every, (stop - 1) // self.every
        return _drawn(seed, classes, first, last + 1)[numbers - first]

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        return multiples(self.every, start, stop)


@DRIFTS.register
class GradualDrift(Sampling):
    """Class probabilities on the straight line from one draw to the next, ``every`` events long."""

    kind: Literal["gradual"] = "gradual"

    def probabilities(self, seed: int, classes: int, start: int, stop: int) -> Double:
        events = np.arange(start, stop)
        numbers, share = events // self.every, ((events % self.every) / self.every)[:, None]
        first, last = start // self.every, (stop - 1) // self.every
        drawn = _drawn(seed, classes, first, last + 2)
        return np.asarray((1 - share) * drawn[numbers - first] + share * drawn[numbers - first + 1])


@DRIFTS.register
class SwapDrift(Drift):
    """Two random classes change labels, after each ``every`` events.

    Attributes:
        every: events between two changes
    """

    relabels: ClassVar[bool] = True

    kind: Literal["swap"] = "swap"
    every: AtLeastOne

    def applied(self, stream: Stream, seed: int) -> Stream:
        """The same examples with other labels."""
        return Swapped(stream, self, seed)

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        return multiples(self.every, start, stop)


@DRIFTS.register
class FeatureDrift(Drift):
    """A gain and an offset for each slice of the features.

    Attributes:
        every: events that a change lasts, or takes.
        strength: largest |ln a|, and largest |b| in the units of the model's input.
        sudden: whether a change is there at once; else it grows in a straight line over ``every``
            events.
    """

    kind: Literal["features"] = "features"
    every: AtLeastOne
    strength: float = Field(0.5, ge=0, le=20)
    sudden: bool = False

    def applied(self, stream: Stream, seed: int) -> Stream:
        """The same examples with other features."""
        return Shifted(stream, self, seed)

    def lines(self, seed: int, events: Sequence[int]) -> Double:
        """(gain, offset) of each event and slice, (2, events, BLOCKS)."""
        number, into = np.divmod(np.asarray(events, dtype=np.int64), self.every)
        # A sudden change is the end of the line that leads to it, and change 1 is there from event
        # 0 on.
        share = np.ones(len(number)) if self.sudden else into / self.every
        first, last = int(number.min()), int(number.max())
        source = Seeded(seed).stream("stream", "feature changes")
        drawn = np.zeros((2, last - first + 2, BLOCKS))
        for k in range(max(first, 1), last + 2):
            drawn[:, k - first] = self.strength * source.at(k).uniform(-1, 1, (2, BLOCKS))
        drawn[0] = np.exp(drawn[0])
        share = share[:, None]
        return np.asarray(
            (1 - share) * drawn[:, number - first] + share * drawn[:, number - first + 1]
        )

    @staticmethod
    def slices(features: int) -> list[slice]:
        """Return each block's features; where blocks are more than features, some are empty."""
        edges = -(-np.arange(BLOCKS + 1) * features // BLOCKS)
        return [slice(int(first), int(last)) for first, last in pairwise(edges)]

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """None where changes are gradual."""
        return multiples(self.every, start, stop) if self.sudden else ()


def _drawn(seed: int, classes: int, first: int, last: int) -> Double:
    """Probabilities number ``first`` to ``last``, (last - first, classes)."""
    source = Seeded(seed).stream("stream", "class probabilities")
    weights = np.stack([source.at(k).random(classes) for k in range(first, last)])
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


class Swapped(DerivedStream):
    """Labels that change places after each ``every`` events.

    >>> from sordino.data import load
    >>> from sordino.data.stream.opening import Replayed
    >>> stream = Swapped(Replayed(load("digits").train, seed=0), SwapDrift(every=4), seed=0)
    >>> Replayed(load("digits").train, seed=0).read(0, 8).y, stream.read(0, 8).y
    (array([4, 9, 1, 1, 7, 2, 1, 6]), array([4, 9, 1, 1, 7, 2, 1, 3]))
    """

    def __init__(self, stream: Stream, drift: SwapDrift, seed: int) -> None:
        super().__init__(stream, drift.changes)
        if len(stream.classes) < 2:
            raise StudyError(f"{stream.name}: the drift 'swap' needs two classes, there is one")
        self._every = drift.every
        self._done, self._mapping = 0, np.arange(len(stream.classes))
        self._source = Seeded(seed).stream("stream", "label swaps")

    def read(self, start: int, count: int) -> Piece:
        piece = self.stream.read(start, count)
        swaps = np.arange(start, start + len(piece)) // self._every
        y = piece.y.copy()
        firsts = np.flatnonzero(np.diff(swaps, prepend=-1))
        for first, last in zip(firsts, [*firsts[1:], len(y)], strict=False):
            y[first:last] = self._after(int(swaps[first]))[y[first:last]]
        return Piece(piece.x, y, piece.entity)

    def _after(self, swaps: int) -> Indices:
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


class Shifted(DerivedStream):
    """Features with a moving gain and offset; see :class:`FeatureDrift`."""

    def __init__(self, stream: Stream, drift: FeatureDrift, seed: int) -> None:
        super().__init__(stream, drift.changes)
        self.drift, self.seed = drift, seed

    def read(self, start: int, count: int) -> Piece:
        piece = self.stream.read(start, count)
        if not len(piece):
            return piece
        x = np.empty_like(piece.x)
        gain, offset = self.drift.lines(self.seed, range(start, start + len(x))).astype(np.float32)
        for block, part in enumerate(self.drift.slices(x.shape[1])):
            np.multiply(piece.x[:, part], gain[:, block, None], out=x[:, part])
            x[:, part] += offset[:, block, None]
        return Piece(x, piece.y, piece.entity)


def classes_drawn(rng: Generator, wanted: Double) -> Indices:
    """A class for each event (n,), with probabilities in proportion to ``wanted`` (n, classes)."""
    edges = np.cumsum(wanted, axis=1)
    # The last edge is the sum itself, so that a draw beyond it, which rounding could make, is
    # impossible.
    drawn = rng.random(len(wanted))[:, None] * edges[:, -1:]
    return np.asarray(np.minimum((edges <= drawn).sum(axis=1), wanted.shape[1] - 1))


MOST = 1 << 26
"""Numbers of rows that wait, at most (256 MiB)."""
AT_ONCE = 2000
"""Rows read at once."""


class ByClass(DerivedStream):
    """Rows of another stream, in a given order as those of a file, their classes drawn by a drift.

    Each event draws its class from the probabilities of the drift, and shows the next row of this
    class that no event has shown: rows of a class keep their order, and no row comes twice. Rows
    that come before their turn wait in memory. The stream ends at the first event whose class has
    no row left.

    >>> import numpy as np
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

    def __init__(self, stream: Stream, seed: int, drift: Sampling) -> None:
        super().__init__(stream, drift.changes)
        self.seed, self.drift = seed, drift
        self._features = int(np.prod(stream.shape))
        self._entities = stream.read(0, 0).entity is not None
        self._begin()

    @property
    def length(self) -> int | None:
        """Unknown: it ends where a class has no row left."""
        return None

    def read(self, start: int, count: int) -> Piece:
        """Return the examples from ``start`` on.

        Raises:
            DataError: if too many rows wait for those of another class.
        """
        if start < self._event:
            self._begin()
        while self._event < start:
            if not len(self._next(min(BLOCK, start - self._event))):
                return self._next(0)
        return self._next(count)

    def _begin(self) -> None:
        """Before the first event, and the first row."""
        self._event = self._row = 0
        self._ended = False
        self._waiting: list[deque[Piece]] = [deque() for _ in self.classes]

    def _next(self, count: int) -> Piece:
        """The next events; fewer where a class has no row left."""
        y = self._drawn(self._event, count)
        for label in range(len(self.classes)):
            place = np.flatnonzero(y == label)
            if not self._fetch(label, len(place)):
                y = y[: place[self._count(label)]]
        x, entity = np.empty((len(y), self._features), np.float32), np.empty(len(y), np.int64)
        for label in range(len(self.classes)):
            place = np.flatnonzero(y == label)
            piece = self._take(label, len(place))
            x[place] = piece.x
            if piece.entity is not None:
                entity[place] = piece.entity
        self._event += len(y)
        return Piece(x, y, entity if self._entities else None)

    def _drawn(self, start: int, count: int) -> Indices:
        """The classes of these events."""
        source, many = Seeded(self.seed), len(self.classes)
        parts = [np.empty(0, np.int64)]
        for block, first, last in blocks(start, count):
            shares = self.drift.probabilities(self.seed, many, block * BLOCK, block * BLOCK + BLOCK)
            parts.append(classes_drawn(source.at("stream", "rows", block), shares)[first:last])
        return np.concatenate(parts)

    def _count(self, label: int) -> int:
        """The number of rows of a class that wait."""
        return sum(map(len, self._waiting[label]))

    def _fetch(self, label: int, count: int) -> bool:
        """Read on until ``count`` rows of a class wait; False if there are fewer."""
        while self._count(label) < count and not self._ended:
            piece = self.stream.read(self._row, AT_ONCE)
            self._row += len(piece)
            self._ended = len(piece) < AT_ONCE
            for each, waiting in enumerate(self._waiting):
                if len(at := np.flatnonzero(piece.y == each)):
                    waiting.append(piece.take(at))
            rows = sum(map(self._count, range(len(self.classes))))
            if rows * self._features > MOST:
                raise DataError(
                    f"{self.name}: {rows} rows wait for more of class "
                    f"{self.classes[label]!r}, which hardly comes up to row {self._row}: shuffle "
                    "the rows of the file, or leave this class out of the classes"
                )
        return self._count(label) >= count

    def _take(self, label: int, count: int) -> Piece:
        """The first rows of a class that wait."""
        waiting, taken = self._waiting[label], list[Piece]()
        while count:
            piece = waiting.popleft()
            if len(piece) > count:
                waiting.appendleft(piece.take(slice(count, None)))
                piece = piece.take(slice(count))
            taken.append(piece)
            count -= len(piece)
        return joined(taken, self._features, entities=self._entities)
