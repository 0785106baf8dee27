"""Every mechanism in two worlds: what it claims, what the ledger books, and what can be shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sordino.audit import worlds
from sordino.audit.bounds import Scores, gaussian_mu, two_worlds
from sordino.audit.intervals import Interval
from sordino.base.entropy import Seeded
from sordino.base.message import Train
from sordino.mechanisms.gaussian import Single as SingleRow
from sordino.mechanisms.kinds import GaussianNoise, HaarNoise, KNormNoise, Noise, NoiseRequest
from sordino.mechanisms.response import RandomisedResponse
from sordino.privacy import Event, Gaussian, NonPrivate, Pure, accountant
from sordino.training.client import Examples, ModelKernels
from sordino.training.dpsgd import RAW_CONSTANTS, measure_raw
from sordino.training.flat import Flat
from sordino.training.loss import loss_for
from sordino.training.perexample import ClippedSum, MeanGradient

DELTA = 1e-5
CLIP = 0.7
LONG = 2**14
"""Numbers of a vector that has one record on each."""
FEW = 500
"""Releases of what is not private: more would show nothing more."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The number of releases in each world.

    Attributes:
        cheap: where thousands are made at once.
        dear: where each is made by itself.
    """

    cheap: int = 400_000
    dear: int = 4_000

    @classmethod
    def full(cls) -> Effort:
        """For the documentation: minutes."""
        return cls(4_000_000, 60_000)


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A mechanism at one setting.

    Attributes:
        name: in words.
        sound: whether its claim is meant to hold; papers' literal forms are not.
        unit: whose presence is asked about.
        claimed: what its author says of one release.
        booked: what the ledger keeps of one release.
        draw: its releases in both worlds.
        cheap: whether many releases are made at once.
    """

    name: str
    sound: bool
    unit: str
    claimed: Event
    booked: Event
    draw: worlds.Draw
    cheap: bool


def sigma_of(epsilon: float) -> float:
    """Noise multiplier of an unsampled Gaussian release that costs epsilon at DELTA."""
    # a little more, so that rounding never shows a larger epsilon
    return (1.0 + 1e-9) / gaussian_mu(epsilon, DELTA)


def subject(name: str, noise: Noise, sigma: float, dimension: int, *, cheap: bool) -> Subject:
    """A registered mechanism on a sum of ``dimension`` numbers, made as a study makes it."""
    sized = noise.for_dimension(dimension)
    made = sized.made(
        NoiseRequest(
            unit="sample",
            clip=CLIP,
            noise_multiplier=sigma,
            parameters=(dimension,),
            counted=name.endswith("count"),
        )
    )
    return Subject(
        name,
        noise.form == "sound",
        "sample",
        sized.event(sigma),
        made.event(),
        worlds.releases(made),
        cheap,
    )


def subjects() -> list[Subject]:
    """All mechanisms, sound ones first."""
    two = sigma_of(2.0)
    found = [
        subject(f"gaussian, ε = {e:g}", GaussianNoise(), sigma_of(e), 1, cheap=True)
        for e in (1.0, 2.0, 4.0, 8.0)
    ]
    found.append(subject("gaussian with a count", GaussianNoise(), two, 1, cheap=False))
    found += [
        subject(f"haar, {weights}", HaarNoise(weights=weights), two, LONG, cheap=True)
        for weights in ("uniform", "paper", "learned")
    ]
    pure = math.sqrt(3.0) / 2.0  # epsilon 2 in two dimensions
    found.append(subject("k-norm, d = 2", KNormNoise(), pure, 2, cheap=False))
    found += [_shared(two, 2), _rows(two), _labels(2, 2.0), _labels(10, 2.0)]
    found += [
        subject("haar, as printed", HaarNoise(form="paper"), two, 16, cheap=False),
        subject("exponential norm, d = 8", KNormNoise(form="paper"), 1.0, 8, cheap=False),
        _raw(two),
    ]
    return found


def _shared(sigma: float, honest: int) -> Subject:
    booked = Gaussian(noise_multiplier=sigma)
    draw = worlds.shared(honest, sigma)
    return Subject(f"shared noise, {honest} clients", True, "sample", booked, booked, draw, True)


def _rows(sigma: float) -> Subject:
    made = SingleRow(clip=CLIP, noise_multiplier=sigma)
    draw = worlds.rows(made)
    return Subject("single row", True, "entity", made.event(), made.event(), draw, True)


def _labels(classes: int, epsilon: float) -> Subject:
    made = RandomisedResponse(epsilon=epsilon, classes=classes)
    name, draw = f"randomised response, {classes} classes", worlds.labels(made)
    return Subject(name, True, "label", made.event(), made.event(), draw, True)


def _raw(sigma: float) -> Subject:
    """ALI's and ALS's printed form: constants of raw data beside a noisy step, as if for free."""
    claimed = Gaussian(noise_multiplier=sigma)
    booked = NonPrivate(reason=RAW_CONSTANTS)
    return Subject("raw mu beside a step", False, "sample", claimed, booked, _curvatures, False)


def _curvatures(there: bool, n: int, rng: np.random.Generator) -> Scores:
    """Return whether the sent curvature differs from that of the other records."""
    module = torch.nn.Linear(4, 2, bias=False)
    flat, loss = Flat(module), loss_for("logistic")
    kernels = ModelKernels(flat, ClippedSum(flat, loss), MeanGradient(flat, loss))
    found = np.empty(n)
    for i in range(n):
        x = torch.from_numpy(rng.standard_normal((8, 4)).astype(np.float32))
        y = torch.from_numpy(rng.integers(0, 2, 8))
        near, far = (rng.standard_normal(flat.dim).astype(np.float32) for _ in range(2))
        task = Train(round=1, steps=1, weights=near, probe=far)
        others = x.clone()
        others[0] = 0.0  # pulls on nothing
        sent = measure_raw(kernels, Examples(x if there else others, y), task)
        found[i] = abs(sent.beta - measure_raw(kernels, Examples(others, y), task).beta)
    return found


def audited(subject: Subject, effort: Effort, seed: int, alpha: float) -> Interval:
    """One mechanism's interval; its lower bounds are wrong with probability at most alpha.

    There are two of them, each with half of alpha: the verdict looks at both.
    """
    few = FEW if not subject.sound else effort.dear
    n = effort.cheap if subject.cheap else few
    entropy = Seeded(seed)
    inside, outside = (
        subject.draw(there, n, entropy.at("audit", "mechanism", subject.name, int(there)))
        for there in (True, False)
    )
    curve = worlds.curve_of(subject.claimed)
    return Interval(
        name=subject.name,
        unit=subject.unit,
        sound=subject.sound,
        how="two worlds",
        low=two_worlds(inside, outside, curve, DELTA, alpha / 2.0),
        plain=two_worlds(inside, outside, "pure" if curve == "pure" else "any", DELTA, alpha / 2.0),
        claimed=_price(subject.claimed),
        ledger=_price(subject.booked),
        releases=2 * n,
        delta=0.0 if isinstance(subject.claimed, Pure) else DELTA,
        binding=True,
    )


def _price(event: Event) -> float:
    """epsilon of one release at DELTA; at 0 where none is needed."""
    if isinstance(event, Pure):
        return event.epsilon
    return accountant("pld").epsilon([(event, 1)], DELTA)


def table(
    chosen: Sequence[Subject],
    effort: Effort,
    seed: int,
    alpha: float,
    seen: Callable[[Interval], None] = lambda one: None,
) -> list[Interval]:
    """All intervals; together their lower bounds are wrong with probability at most alpha.

    Each gets an equal part of alpha (Bonferroni), whatever they have to do with each other.
    """
    found = []
    for one in chosen:
        found.append(audited(one, effort, seed, alpha / len(chosen)))
        seen(found[-1])
    return found
