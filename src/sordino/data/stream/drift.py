r"""How a stream's distribution changes: each kind is a class, the ``data.drift`` table of a study.

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
(:class:`~sordino.data.stream.replay.Replayed`, :class:`~sordino.data.stream.deform.Deformed`) an
example of that class is drawn then, and a class without examples has probability 0; of a file
(:class:`~sordino.data.stream.table.TableStream`) the next row of that class is shown, each row once
(:mod:`sordino.data.stream.byclass`). The last two change what a stream gives, whatever stream
it is (:mod:`sordino.data.stream.changed`).

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

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.registry import Registry
from sordino.base.section import Section
from sordino.data.stream.changed import Shifted, Swapped
from sordino.data.stream.piece import Stream, multiples

BLOCKS = 8
"""Slices of the features that change each by itself."""


class Drift(Section):
    """How a stream changes: the ``data.drift`` table of a study, whose name alone will do."""

    by_class: ClassVar[bool] = False  # whether it draws examples by their class
    relabels: ClassVar[bool] = False  # whether an entity's label changes

    kind: str

    def applied(self, stream: Stream, seed: int) -> Stream:
        """``stream``, changing as this says; ``seed`` addresses what is drawn.

        Raises:
            StudyError: if this stream cannot change so.
        """
        raise NotImplementedError


DRIFTS = Registry(
    base=Drift,
    noun="drift",
    key="kind",
    place="data.drift",
    page="docs/own-tables.md",
    needs=("applied",),
)


@DRIFTS.register
class NoDrift(Drift):
    """The world stays as it is."""

    kind: Literal["none"] = "none"

    def applied(self, stream: Stream, seed: int) -> Stream:
        """The stream itself."""
        return stream


class Sampling(Drift):
    """Says which class an event has; the stream's own seed addresses what is drawn."""

    by_class: ClassVar[bool] = True

    every: int = Field(50, ge=1, description="events between two changes")

    def probabilities(self, seed: int, classes: int, start: int, stop: int) -> NDArray[np.float64]:
        """Of the events ``start`` to ``stop``, (stop - start, classes); rows sum to 1."""
        raise NotImplementedError

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`: none, if no change is abrupt."""
        return ()

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
        ...


@DRIFTS.register
class ClassDrift(Sampling):
    """New probabilities of the classes after each ``every`` events, at once."""

    kind: Literal["classes"] = "classes"

    def probabilities(self, seed: int, classes: int, start: int, stop: int) -> NDArray[np.float64]:
        """See :class:`Sampling`."""
        numbers = np.arange(start, stop) // self.every
        first, last = start // self.every, (stop - 1) // self.every
        return _drawn(seed, classes, first, last + 1)[numbers - first]

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        return multiples(self.every, start, stop)


@DRIFTS.register
class GradualDrift(Sampling):
    """Class probabilities on the straight line from one draw to the next, ``every`` events long."""

    kind: Literal["gradual"] = "gradual"

    def probabilities(self, seed: int, classes: int, start: int, stop: int) -> NDArray[np.float64]:
        """See :class:`Sampling`."""
        events = np.arange(start, stop)
        numbers, share = events // self.every, ((events % self.every) / self.every)[:, None]
        first, last = start // self.every, (stop - 1) // self.every
        drawn = _drawn(seed, classes, first, last + 2)
        return np.asarray((1 - share) * drawn[numbers - first] + share * drawn[numbers - first + 1])


@DRIFTS.register
class SwapDrift(Drift):
    """Two random classes change labels, after each ``every`` events."""

    relabels: ClassVar[bool] = True

    kind: Literal["swap"] = "swap"
    every: int = Field(ge=1, description="events between two changes")

    def applied(self, stream: Stream, seed: int) -> Stream:
        """The same examples with other labels."""
        return Swapped(stream, self.every, seed)


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
    every: int = Field(ge=1)
    strength: float = Field(0.5, ge=0, le=20)
    sudden: bool = False

    def applied(self, stream: Stream, seed: int) -> Stream:
        """The same examples with other features."""
        return Shifted(stream, self, seed)

    def lines(self, seed: int, events: Sequence[int]) -> NDArray[np.float64]:
        """(gain, offset) of each event and slice, (2, events, BLOCKS)."""
        number, into = np.divmod(np.asarray(events, dtype=np.int64), self.every)
        # A sudden change is the end of the line that leads to it, and change 1 is there from event
        # 0 on.
        share = np.ones(len(number)) if self.sudden else into / self.every
        first, last = int(number.min()), int(number.max())
        source = Seeded(seed).stream("stream", "feature changes")
        none = np.stack([np.ones(BLOCKS), np.zeros(BLOCKS)])
        drawn = np.stack(
            [self._change(source.at(k)) if k else none for k in range(first, last + 2)], axis=1
        )
        share = share[:, None]
        return np.asarray(
            (1 - share) * drawn[:, number - first] + share * drawn[:, number - first + 1]
        )

    @staticmethod
    def slices(features: int) -> list[slice]:
        """Where each block's features lie; where blocks are more than features, some are empty."""
        edges = -(-np.arange(BLOCKS + 1) * features // BLOCKS)
        return [slice(int(first), int(last)) for first, last in pairwise(edges)]

    def _change(self, rng: np.random.Generator) -> NDArray[np.float64]:
        return np.stack(
            [
                np.exp(self.strength * rng.uniform(-1, 1, BLOCKS)),
                self.strength * rng.uniform(-1, 1, BLOCKS),
            ]
        )

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`: none where changes are gradual."""
        return multiples(self.every, start, stop) if self.sudden else ()


def _drawn(seed: int, classes: int, first: int, last: int) -> NDArray[np.float64]:
    """Probabilities number ``first`` to ``last``, (last - first, classes)."""
    source = Seeded(seed).stream("stream", "class probabilities")
    weights = np.stack([source.at(k).random(classes) for k in range(first, last)])
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
