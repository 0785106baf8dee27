r"""How a stream's distribution changes: five kinds, as plain values.

========== ==================================================================================================
stationary nothing changes
classes    after each ``every`` events new class probabilities p_k, each U(0, 1) and then normalised
gradual    the same draws, but the probabilities move in a straight line from one to the next:
           p(t) = (1 - w) p_k + w p_{k+1},  k = floor(t / every),  w = t / every - k
swap       two classes, drawn at random, change their labels; swaps add up
features   each of ``blocks`` slices of the features gets a gain and an offset, x' = a x + b
========== ==================================================================================================

The first two say which class event t has, and an example of that class is drawn then: that needs examples that can be
drawn, hence a data set in memory (:class:`~sordino.data.stream.replay.Replayed`,
:class:`~sordino.data.stream.deform.Deformed`). A class without examples has probability 0. The last two change what a
stream gives, whatever stream it is (:mod:`sordino.data.stream.changed`).

**Features.** Change k has ln a ~ U(-gain, gain) and b ~ U(-offset, offset), independent for each slice; change 0 is none
(a = 1, b = 0). From ``start`` on, change k + 1 follows on change k each ``every`` events: at once, or in a straight line
over them. Gains are positive, and so is everything between two positive gains: no change loses information. With
``once`` there is only the first change, which stays.

Wang, Wang, Gu, Ling 2025 let the class probabilities change after each 50 events.

>>> ClassDrift(every=2).probabilities(seed=0, classes=3, start=1, stop=4).round(2)
array([[0.44, 0.11, 0.45],
       [0.56, 0.35, 0.09],
       [0.56, 0.35, 0.09]])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino.data.stream.piece import SELDOM, multiples
from sordino.entropy import Seeded
from sordino.errors import StudyError


def _positive(every: int, kind: str) -> None:
    if every < 1:
        raise StudyError(f"drift {kind}: every must be at least 1 event, got {every}")


def _drawn(seed: int, classes: int, first: int, last: int) -> NDArray[np.float64]:
    """Probabilities number ``first`` to ``last``, (last - first, classes)."""
    source = Seeded(seed).stream("stream", "class probabilities")
    weights = np.stack([source.at(k).random(classes) for k in range(first, last)])
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@dataclass(frozen=True, slots=True)
class Stationary:
    """Nothing changes."""

    kind: ClassVar[str] = "stationary"


@dataclass(frozen=True, slots=True)
class ClassDrift:
    """New class probabilities after each ``every`` events."""

    kind: ClassVar[str] = "classes"
    every: int = 50

    def __post_init__(self) -> None:
        """At least one event between changes."""
        _positive(self.every, self.kind)

    def probabilities(self, seed: int, classes: int, start: int, stop: int) -> NDArray[np.float64]:
        """Of the events ``start`` to ``stop``, (stop - start, classes); rows sum to 1."""
        numbers = np.arange(start, stop) // self.every
        first, last = start // self.every, (stop - 1) // self.every
        return _drawn(seed, classes, first, last + 1)[numbers - first]

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        return multiples(self.every, start, stop)


@dataclass(frozen=True, slots=True)
class GradualDrift:
    """Class probabilities on the straight line from one draw to the next, each ``every`` events long."""

    kind: ClassVar[str] = "gradual"
    every: int = 50

    def __post_init__(self) -> None:
        """At least one event between draws."""
        _positive(self.every, self.kind)

    def probabilities(self, seed: int, classes: int, start: int, stop: int) -> NDArray[np.float64]:
        """See :meth:`ClassDrift.probabilities`."""
        events = np.arange(start, stop)
        numbers, share = events // self.every, ((events % self.every) / self.every)[:, None]
        first, last = start // self.every, (stop - 1) // self.every
        drawn = _drawn(seed, classes, first, last + 2)
        return np.asarray((1 - share) * drawn[numbers - first] + share * drawn[numbers - first + 1])

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """None: no change is abrupt."""
        return ()


@dataclass(frozen=True, slots=True)
class SwapDrift:
    """Two random classes change labels, after each ``every`` events or at the events ``at`` (one of the two is given)."""

    kind: ClassVar[str] = "swap"
    every: int | None = None
    at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Exactly one way of saying when."""
        if (self.every is None) == (not self.at):
            raise StudyError("drift swap: give either every (a number of events) or at (the events themselves)")
        if self.every is not None:
            _positive(self.every, self.kind)
        if list(self.at) != sorted(set(self.at)) or min(self.at, default=1) < 1:
            raise StudyError(f"drift swap: at must be rising event numbers from 1 on, got {self.at}")

    def swaps(self, events: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many swaps lie behind each of ``events``."""
        return events // self.every if self.every is not None else np.searchsorted(np.asarray(self.at), events, side="right")

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`; swaps at given events are always marked."""
        return multiples(self.every, start, stop) if self.every is not None else tuple(t for t in self.at if start <= t < stop)


@dataclass(frozen=True, slots=True)
class FeatureDrift:
    """A gain and an offset for each slice of the features.

    Attributes:
        every: events that a change lasts, or takes.
        start: the event from which on features change.
        blocks: slices of the features.
        gain: largest |ln a|.
        offset: largest |b|, in the units of the model's input.
        gradual: whether a change grows in a straight line over ``every`` events, or is there at once.
        once: whether there is only one.
    """

    kind: ClassVar[str] = "features"
    every: int = 10_000
    start: int = 0
    blocks: int = 8
    gain: float = 0.5
    offset: float = 0.5
    gradual: bool = True
    once: bool = False

    def __post_init__(self) -> None:
        """Finite, positive, invertible."""
        _positive(self.every, self.kind)
        if self.start < 0 or self.blocks < 1:
            raise StudyError(f"drift features: start must not be negative, blocks at least 1; got {self.start} and {self.blocks}")
        for name, value in (("gain", self.gain), ("offset", self.offset)):
            if not (math.isfinite(value) and 0 <= value <= 20):
                raise StudyError(f"drift features: {name} must lie between 0 and 20, got {value}")

    def lines(self, seed: int, events: Sequence[int]) -> NDArray[np.float64]:
        """(gain, offset) of each event and slice, (2, events, blocks)."""
        since = np.asarray(events, dtype=np.int64) - self.start
        number = np.maximum(since // self.every, -1)
        share = np.where(number >= 0, (since % self.every) / self.every if self.gradual else 1.0, 0.0)
        if self.once:
            number, share = np.minimum(number, 0), np.where(number > 0, 1.0, share)
        number = np.maximum(number, 0)
        first, last = int(number.min()), int(number.max())
        source = Seeded(seed).stream("stream", "feature changes")
        none = np.stack([np.ones(self.blocks), np.zeros(self.blocks)])
        drawn = np.stack([self._change(source.at(k)) if k else none for k in range(first, last + 2)], axis=1)
        share = share[:, None]
        return np.asarray((1 - share) * drawn[:, number - first] + share * drawn[:, number - first + 1])

    def slices(self, features: int) -> list[slice]:
        """Where each block's features lie; where blocks are more than features, some are empty."""
        edges = -(-np.arange(self.blocks + 1) * features // self.blocks)
        return [slice(int(first), int(last)) for first, last in pairwise(edges)]

    def _change(self, rng: np.random.Generator) -> NDArray[np.float64]:
        return np.stack([np.exp(self.gain * rng.uniform(-1, 1, self.blocks)), self.offset * rng.uniform(-1, 1, self.blocks)])

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`: none where changes are gradual."""
        if self.gradual:
            return ()
        first = (self.start,) if start <= self.start < stop and self.start > 0 else ()
        if self.once:
            return first
        later = multiples(self.every, max(start - self.start, 0), stop - self.start)
        return (*(first if self.every >= SELDOM else ()), *(t + self.start for t in later))


Drift = Stationary | ClassDrift | GradualDrift | SwapDrift | FeatureDrift
Sampling = Stationary | ClassDrift | GradualDrift
"""Those that say which class an event has."""
