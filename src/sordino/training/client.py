r"""Clients: what each must do, what those of one process share, and how a batch is drawn.

**Local SGD** of one client, private or not, between receiving a model and sending one back. A
private client takes tau steps of DP-SGD (Abadi et al. 2016, algorithm 1) on its own
data. Step j, from weights w:

    batch B_j:   every example independently with probability q (Poisson), or the next one in a
                 public order (sordino.training.passes)
    g~_j  =  ( sum_{s in B_j} clip_C(grad F(w, s))  +  N(0, (sigma_v C)^2 I_d) ) / (q n)
    w     <-  w - eta g~_j               (or another optimizer's step: sordino.training.optimizer)

The divisor is the *expected* batch size q n, or n / b, not the realised one: the realised size
would set the scale of the noise and so show itself, which the accounting does not cover:
n is public, the same whether or not an example contributes (docs/mathematics.md). An empty batch
releases noise like any other.

Nothing leaves :meth:`PrivateClient.answer` but the noisy gradients, in the form of the
weights they lead to and of statistics computed from them; the raw norms and losses that
the kernel returns stay here. And nothing is computed before the ledger has booked it:
``answer`` asks for the permits.

Shapes: weights and gradients ``(d,)``, examples ``(n, ...)``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from sordino.base.entropy import Contents, Entropy, drawable, raw
from sordino.base.errors import LocalProtocolError
from sordino.base.message import Answer, Compute, Statistics, Train, Update
from sordino.mechanisms.gaussian import Bounded, Measuring, Shortening, learns
from sordino.privacy import (
    Chosen,
    Event,
    NonPrivate,
    Permits,
    PoissonSampled,
    Price,
    covers_one,
    covers_round,
)
from sordino.training.extra_releases import ExtraReleases, Wants
from sordino.training.flat import Flat
from sordino.training.optimizer import Optimizer, Steps
from sordino.training.passes import Passes, place_of, steps_of, tokens
from sordino.training.perexample.clipping import Bound, FlatBound, Layers, Measured, Shortened
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient
from sordino.training.plausible import CHANCE, Length, drawn, length, sums

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
        return drawn(len(self.examples), self.sampling_rate, times, CHANCE / 2)

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

    def use_permits(self, permits: Permits, task: Train | Compute, event: Event) -> None:
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
    if learns(mechanism):
        mechanism = mechanism.shaped(task.shape)
    if task.clip is None or task.noise_multiplier is None:
        return mechanism
    if (task.clip, task.noise_multiplier) == (mechanism.clip, mechanism.noise_multiplier):
        return mechanism
    return mechanism.scaled(task.clip, task.noise_multiplier)


def hidden(task: Train | Compute, total: Tensor, *others: float | str | None) -> Contents:
    """A raw sum (d,) and the raw numbers that are released with it, as bytes, with all that the
    task says of their release: the noise is drawn over these (``base.entropy.over``).

    The task's vectors are left out: they show in the sum, or do not change what is released.
    """
    parts = msgspec.structs.astuple(task)
    terms = [part for part in parts if not isinstance(part, np.ndarray)]
    return raw(total.detach().cpu().numpy()), repr((terms, others)).encode()


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


NO_NOISE = "plain gradients without noise"
DRAWN_BATCH = "steps are divided by the batch as it was drawn, so the noise shows its size"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SteppingClient(SamplingClient):
    """A client that takes steps from the model that was sent.

    Attributes:
        learning_rate: eta.
        optimizer: of the local steps.
        entropy: where batches and noise are drawn from, by address.
        proximal: mu, of the proximal term; it pulls each step to the model that was sent.
    """

    learning_rate: float
    optimizer: Optimizer
    entropy: Entropy
    proximal: float = 0.0

    def batches(self, task: Train) -> Iterator[Tensor]:
        """Yield the indices of every step's batch."""
        device = self.kernels.flat.weights.device
        if self.passes is not None:
            first = place_of(task)
            for step in range(first, first + task.steps):
                yield self.passes.batch(step, len(self.examples)).to(device)
            return
        draws = self.entropy.at("client", self.index, "round", task.round, "batches")
        for _ in range(task.steps):
            yield self.chosen(draws).to(device)

    def begun(self) -> Steps:
        """Return steps from the model at hand; a copy of the optimizer keeps nothing."""
        return copy.deepcopy(self.optimizer).begin(self.learning_rate, self.kernels.flat.weights)

    def update(self, task: Train, statistics: Statistics | None = None) -> Update:
        """Return the model at hand as an answer."""
        return Update(
            client=self.index,
            round=task.round,
            steps=task.steps,
            weights=self.kernels.flat.weights.cpu().numpy().copy(),
            statistics=statistics,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivateClient(SteppingClient):
    """DP-SGD on one client's data.

    Attributes:
        mechanism: clip and noise of each step.
        realised: divide by the batch as it was drawn, and let an empty one be, without noise, as a
            paper's literal form may say; NOT private, since the divisor is the data's.
    """

    mechanism: Bounded
    realised: bool = False

    def price(self, task: Train) -> Price:
        """Return what an answer releases; with passes, one event for each that its steps are in."""
        if self.passes is not None:
            passes = self.passes.numbers(place_of(task), task.steps)
            return ((agreed(self.mechanism, task).event(), len(passes)),)
        wants = Wants.of(task)
        noisy = wants.releases(agreed(self.mechanism, task).event(), task.steps)
        return (
            *((self._booked(event, task), count) for event, count in noisy),
            *((event, 1) for event in wants.raw_releases()),
            *([(NonPrivate(reason=DRAWN_BATCH), 1)] if self.realised else []),
        )

    def answer(self, task: Train, permits: Permits) -> Update:
        if self.passes is None:
            covers_round(self.unit, permits, self.price(task), task.round)
        elif (wants := Wants.of(task)).asks_scalar or wants.raw or self.realised:
            raise LocalProtocolError(
                f"round {task.round}: a pass is charged for noisy steps, and the task asks for more"
            )
        else:
            self.use_permits(permits, task, agreed(self.mechanism, task).event())
        extra = ExtraReleases(task, self.kernels, self.examples, self.expected_batch)
        noise = self.entropy.stream("client", self.index, "round", task.round, "noise")
        flat, mechanism = self.kernels.flat, agreed(self.mechanism, task)
        bound = bound_of(mechanism)
        start = received(task.weights, flat.weights)
        flat.load(start)
        total = torch.empty_like(flat.weights, dtype=torch.float64)
        steps = self.begun()
        variance = (mechanism.vector_multiplier * mechanism.clip / self.expected_batch) ** 2
        energy, excess, counted = 0.0, 0.0, False
        first, last, before = start, start, start
        begins = 0 if self.passes is None else place_of(task)
        for step, chosen in enumerate(self.batches(task), 1):
            clipped = self.kernels.clipped.of(
                self.examples, chosen, bound, total, expected=self.expected_batch
            )
            step_excess = clipped.clipped - len(chosen) / 2
            exact = extra.exact(step, clipped)
            kept = tokens(self.passes)
            rng = noise.over(step, hidden(task, total, step_excess, exact, *kept))
            divisor = len(chosen) if self.realised else self.expected_batch
            releases = len(chosen) > 0 or not self.realised
            if releases:
                noisy, more = self.released(mechanism, total, step_excess, rng, begins + step - 1)
                noisy = noisy.div_(divisor).to(flat.weights)
            else:
                noisy, more = torch.zeros_like(flat.weights), None
            extra.release(exact, rng)
            counted, excess = counted or more is not None, excess + (more or 0.0)
            energy += float(noisy @ noisy)
            if step == 1:
                first = noisy
            if step == task.steps:
                last, before = noisy, flat.weights.clone() if step > 1 else start
            if releases:
                if self.proximal:  # of what is known already, so it costs nothing
                    noisy = noisy + self.proximal * (flat.weights - start)
                steps.take(flat.weights, noisy, variance)
        moved = before - start
        statistics = Statistics(
            energy=energy / task.steps,
            first=float(first @ first),
            change=float((last - first).square().sum()),
            moved=float(moved @ moved),
            slope_first=float(first @ moved),
            slope_last=float(last @ moved),
            clipped=0.5 + excess / (task.steps * self.expected_batch) if counted else None,
        )
        return extra.sent(self.update(task, statistics), first)

    def length_bound(self, task: Train, said: object) -> Length | None:
        """Return how far the model moved in an answer to this task, and may have; None where the
        optimizer or the mechanism does not say, and of what is no such answer.
        """
        if not isinstance(said, Update):
            return None
        most = sums(
            agreed(self.mechanism, task), len(task.weights), self.met(task.steps), task.steps
        )
        pull = self.learning_rate * (self.optimizer.gain or math.inf) * self.proximal
        if most is None or self.optimizer.gain is None or pull > 1.0:  # a step could overshoot
            return None
        divisor = 1.0 if self.realised else self.expected_batch
        scale = self.learning_rate * self.optimizer.gain / divisor
        rounding = 2.0**-23 * task.steps * length(task.weights)
        return Length(length(said.weights, task.weights), scale * most + rounding)

    def _booked(self, event: Event, task: Train) -> Event:
        """The event on a Poisson sample, marked where its noise was chosen along the way."""
        sampled = PoissonSampled(sampling_rate=self.sampling_rate, event=event)
        return sampled if task.order is None else Chosen(order=task.order, event=sampled)


def bound_of(mechanism: Bounded) -> Bound:
    """Return the bound of a single example's gradient by a mechanism."""
    match mechanism.measure:
        case "flat":
            return FlatBound(mechanism.clip)
        case "layers":
            return Layers(mechanism.clip)
        case "own" if isinstance(mechanism, Shortening):
            return Shortened.by(mechanism, mechanism.clip)
        case "own":
            assert isinstance(mechanism, Measuring)  # Noise.made refuses another
            return Measured.by(mechanism, mechanism.clip)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlainClient(SteppingClient):
    """SGD without privacy on Poisson batches (McMahan et al. 2017, with expected batch q n)."""

    def price(self, task: Train) -> Price:
        return ((NonPrivate(reason=NO_NOISE), task.steps),)

    def answer(self, task: Train, permits: Permits) -> Update:
        """An empty batch takes no step."""
        covers_round(self.unit, permits, self.price(task), task.round)
        flat = self.kernels.flat
        start = torch.from_numpy(task.weights).to(flat.weights)
        flat.load(start)
        gradient = torch.empty_like(flat.weights)
        steps = self.begun()
        for chosen in self.batches(task):
            if len(chosen):
                self.kernels.mean.of(self.examples, chosen, gradient)
                if self.proximal:
                    gradient.add_(flat.weights - start, alpha=self.proximal)
                steps.take(flat.weights, gradient, 0.0)
        return self.update(task)
