"""Clients: what each must do, what those of one process share, and how a batch is drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from sordino.base.entropy import Contents, drawable, raw
from sordino.base.message import Answer, Compute, Train
from sordino.mechanisms.gaussian import Bounded, Learning
from sordino.privacy import Event, Permits, Price, covers_one
from sordino.training import plausible
from sordino.training.flat import Flat
from sordino.training.passes import Passes, place_of, steps_of
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

# measured: 12 000 at 0.001 take 8 against 28 microseconds; 60 at any rate, 6 against 4
GAPS_FROM, GAPS_ABOVE, GAPS_BELOW = 1500, 2.0**-30, 0.1
GAPS_OFF = 2.0**-44

WIDEST = 1e6
"""The largest number of a model that a client computes with."""


class Client(Protocol):
    """Somebody with data who can be asked to train."""

    @property
    def index(self) -> int:
        """Which client, from 0."""

    def price(self, task: Train) -> Price:
        """Return what an answer to this task releases, as events and counts; booked before it."""

    def answer(self, task: Train, permits: Permits) -> Answer:
        """Do the work. ``permits`` prove that ``price(task)`` is in the ledger."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelKernels:
    """The model that clients of one process share, one after another.

    Attributes:
        flat: the module with its parameters in one vector.
        clipped: kernel for the sum of clipped per-example gradients.
        mean: kernel for the plain mean gradient.
    """

    flat: Flat
    clipped: ClippedSum
    mean: MeanGradient


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingClient:
    """A client that computes on Poisson samples of its examples, or on batches in a public order.

    Attributes:
        index: which client, from 0.
        unit: whose data it holds, in the ledger.
        examples: its data.
        sampling_rate: q of the Poisson batches, or one over the batches of a pass.
        kernels: the shared model and kernels.
        passes: the order of batches; None where they are drawn.
    """

    index: int
    unit: str
    examples: Examples
    sampling_rate: float
    kernels: ModelKernels
    passes: Passes | None = None

    @property
    def expected_batch(self) -> float:
        """q n, in examples; the divisor of every sum."""
        return self.sampling_rate * len(self.examples)

    def met(self, times: int) -> float:
        """Return the most examples in so many batches; of drawn ones, but for half a CHANCE."""
        if self.passes is not None:
            return times * self.passes.most(len(self.examples))
        return plausible.drawn(len(self.examples), self.sampling_rate, times, plausible.CHANCE / 2)

    def chosen(self, rng: Generator) -> Tensor:
        """Indices of a batch that is drawn."""
        return poisson(len(self.examples), self.sampling_rate, rng)

    def released(
        self, mechanism: Bounded, total: Tensor, excess: float, rng: Generator, place: int
    ) -> tuple[Tensor, float | None]:
        """The noisy sum (d,) of a batch, and its noisy count if there is one.

        Args:
            place: of the step in an order of batches.
        """
        if self.passes is None:
            return mechanism.release_counted(total, excess, rng)
        return self.passes.release(mechanism, total, excess, rng, place)

    def shown(self, permits: Permits, task: Train | Compute, event: Event) -> None:
        """Refuse unless permits cover the passes that a task's steps are in, each as this event;
        then take the steps.

        Raises:
            LocalProtocolError: if they do not, or a step was taken before; nothing may be computed
                then.
        """
        assert self.passes is not None
        first, steps = place_of(task), steps_of(task)
        for number in self.passes.numbers(first, steps):
            permit = next((p for p in permits if p.event == event and p.holds(number)), None)
            covers_one(self.unit, permit, event, number)
        self.passes.begin(first, steps)


def received(weights: NDArray[np.float32], like: Tensor) -> Tensor:
    """A model that was sent (d,), as it is computed with, where ``like`` lies: no number beyond
    :data:`WIDEST`, near which scores and gradients of any example could overflow. A public rule:
    the model was sent in the clear. NaN stays, and adds nothing.
    """
    return torch.from_numpy(weights).to(like).clamp(-WIDEST, WIDEST)


def agreed(mechanism: Bounded, task: Train) -> Bounded:
    """Return a mechanism with the shape, clip and noise of a task, where a public schedule sets
    them; its own where the task says neither.
    """
    if isinstance(mechanism, Learning):
        mechanism = mechanism.shaped(task.shape)
    if task.clip is None or task.noise_multiplier is None:
        return mechanism
    return mechanism.scaled(task.clip, task.noise_multiplier)


def hidden(task: Train | Compute, total: Tensor, *beside: float | str | None) -> Contents:
    """A raw sum (d,) and the raw numbers that are released with it, as bytes, with all that the
    task says of their release: the noise is drawn over these (``base.entropy.over``).

    The task's vectors are left out: they show in the sum, or do not change what is released.
    """
    parts = msgspec.structs.astuple(task)
    terms = [part for part in parts if not isinstance(part, np.ndarray)]
    return raw(total.detach().cpu().numpy()), repr((terms, beside)).encode()


def poisson(count: int, rate: float, rng: Generator) -> Tensor:
    """Indices (b,) of a Poisson sample, ascending: each of ``count`` with probability ``rate``.

    From one chosen index to the next it is a geometric number of places. Drawing these takes one
    number for each index chosen, not for each there is; it pays where few of many are.

    The price rises with the rate, so no index is chosen more often than that, to the last bit:
    numbers of 53 bits are compared with a :func:`drawable` rate, and gaps are of a rate that is
    lower by more than an exponential number of as many bits can be off.
    """
    if count > GAPS_FROM and GAPS_ABOVE < rate < GAPS_BELOW:
        return torch.from_numpy(_by_gaps(count, rate - GAPS_OFF, rng))
    return torch.from_numpy(np.flatnonzero(rng.random(count) < drawable(rate)))


def _by_gaps(count: int, rate: float, rng: Generator) -> NDArray[np.int64]:
    enough = int(count * rate + 4.0 * math.sqrt(count * rate)) + 8
    parts: list[NDArray[np.int64]] = []
    start = 0
    while True:
        places = rng.geometric(rate, enough)
        # Longer gaps end the sample all the same, and their sum must not wrap (the longest is 2^63
        # - 1). And numpy rounds an exponential number up to a gap: where that number is zero, once
        # in 2^53, it gives 0.
        np.maximum(np.minimum(places, count + 1, out=places), 1, out=places)
        places[0] += start - 1
        np.add.accumulate(places, out=places)
        if places[-1] >= count:
            places = places[: places.searchsorted(count)]
            return np.concatenate([*parts, places]) if parts else places
        parts.append(places)
        start = int(places[-1]) + 1
