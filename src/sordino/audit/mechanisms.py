"""Every mechanism in two worlds: what it claims, what the ledger books, and what can be shown.

A record here is a contribution that the mechanism itself has cut to its bound, in the direction
where it is seen best; without it, the mechanism releases zeros, since the adversary of differential
privacy knows all other records and takes them off. The score is the likelihood ratio, or anything
that grows with it. Releases are made by the mechanism's own code, as in a run:

    Gaussian           one record on each number of a long vector: noise is independent there
    counted Gaussian   releases of a vector and a count, which say the same twice
    Haar, sound        one record on each finest wavelet of a long vector
    Haar, per level    releases of a vector with every level at its bound
    Haar, as printed   releases of a constant vector, which is what its noise is smallest for
    K-norm             releases in d dimensions; the ratio of both densities
    shared noise       contributions of H clients on the grid, added modulo 2^bits and opened
    single row         rows one by one, moved from one end of the ball to the other (replace-one)
    labels             answers about one label or about another (replace-one)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from sordino.audit.bounds import Curve, Scores, gaussian_mu, two_worlds
from sordino.audit.intervals import Interval
from sordino.base.entropy import Seeded
from sordino.base.message import Train
from sordino.base.residues import added
from sordino.mechanisms.gaussian import Bounded, CountedGaussian, Single, length
from sordino.mechanisms.gaussian import Gaussian as GaussianSum
from sordino.mechanisms.haar.gaussian import HaarGaussian, LevelGaussian
from sordino.mechanisms.kinds import GaussianNoise, HaarNoise, KNormNoise, Noise, NoiseRequest
from sordino.mechanisms.knorm import ExponentialNorm, KNorm
from sordino.mechanisms.response import RandomisedResponse
from sordino.mechanisms.shared import SharedNoise
from sordino.privacy import Event, Gaussian, NonPrivate, Pure, accountant
from sordino.training.client import ModelKernels
from sordino.training.extra_releases import RAW_CONSTANTS, measure_raw
from sordino.training.flat import Flat
from sordino.training.loss import loss_for
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

DELTA = 1e-5
CLIP = 0.7
LONG = 2**14
"""Numbers of a vector that has one record on each."""
FEW = 500
"""Releases of what is not private: more would show nothing more."""
Draw = Callable[[bool, int, Generator], Scores]
"""Scores (n,) of n independent releases, with the record or without it."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The number of releases in each world.

    Attributes:
        cheap: where thousands are made at once.
        dear: where each is made by itself.
    """

    cheap: int = 400_000
    dear: int = 4_000


FULL = Effort(4_000_000, 60_000)
"""For the documentation: minutes."""


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A mechanism at one setting.

    Attributes:
        name: in words.
        sound: whether its claim is meant to hold; papers' literal forms are not.
        unit: whose presence is asked about.
        claimed: what its author says of one release.
        booked: what the ledger keeps of one release.
        draw: its releases in both
        cheap: whether many releases are made at once.
    """

    name: str
    sound: bool
    unit: str
    claimed: Event
    booked: Event
    draw: Draw
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
        releases(made),
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
    gaussian, row = Gaussian(noise_multiplier=two), Single(clip=CLIP, noise_multiplier=two)
    shared, rows = partial(shared_noise, 2, two), partial(single_rows, row)
    found += [
        Subject("shared noise, 2 clients", True, "sample", gaussian, gaussian, shared, True),
        Subject("single row", True, "entity", row.event(), row.event(), rows, True),
    ]
    for classes in (2, 10):
        made = RandomisedResponse(epsilon=2.0, classes=classes)
        name, cost = f"randomised response, {classes} classes", made.event()
        found.append(Subject(name, True, "label", cost, cost, partial(answers, made), True))
    # ALI's and ALS's printed form: constants of raw data beside a noisy step, as if for free
    raw = NonPrivate(reason=RAW_CONSTANTS)
    return [
        *found,
        subject("haar, as printed", HaarNoise(form="paper"), two, 16, cheap=False),
        subject("exponential norm, d = 8", KNormNoise(form="paper"), 1.0, 8, cheap=False),
        Subject("raw mu beside a step", False, "sample", gaussian, raw, _curvatures, False),
    ]


def _curvatures(there: bool, n: int, rng: Generator) -> Scores:
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
    curve = curve_of(subject.claimed)
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
    )


def _price(event: Event) -> float:
    """epsilon of one release at DELTA; at 0 where none is needed."""
    if isinstance(event, Pure):
        return event.epsilon
    return accountant("pld").epsilon([(event, 1)], DELTA)


def table(chosen: Sequence[Subject], effort: Effort, seed: int, alpha: float) -> list[Interval]:
    """All intervals; together their lower bounds are wrong with probability at most alpha.

    Each gets an equal part of alpha (Bonferroni), whatever they have to do with each other.
    """
    return [audited(one, effort, seed, alpha / len(chosen)) for one in chosen]


# --- releases in two worlds, and their scores


def releases(mechanism: Bounded) -> Draw:
    """Return the releases of a mechanism on sums."""
    match mechanism:
        case CountedGaussian():
            record = canary(mechanism, torch.ones(1)).double()
            vector = float(record) / (mechanism.vector_multiplier * mechanism.clip) ** 2
            counts = 0.5 / mechanism.count_deviation**2
            return _one_by_one(mechanism, record, lambda x, n: float(x) * vector + n * counts)
        case GaussianSum():
            return partial(_side_by_side, mechanism)
        case LevelGaussian():
            return _levels(mechanism)
        case HaarGaussian() if _even(mechanism):
            return _wavelets(mechanism)
        case HaarGaussian():
            d = mechanism.basis.dimension
            record = canary(mechanism, torch.ones(d) / math.sqrt(d)).double()
            return _one_by_one(mechanism, record, lambda noisy, _: float(noisy @ record))
        case KNorm() | ExponentialNorm():
            return _radial(mechanism)
        case _:
            raise TypeError(f"{type(mechanism).__name__}: no audit of this mechanism is known")


def curve_of(booked: Event) -> Curve:
    """Return the trade-off of hits and false alarms of an unsampled release."""
    if isinstance(booked, Gaussian):
        return "gaussian"
    return "pure" if isinstance(booked, Pure) else "any"


def canary(mechanism: Bounded, direction: Tensor) -> Tensor:
    """A contribution (d,) of the largest length that the mechanism lets through there."""
    return mechanism.bounded(direction * (1e3 * mechanism.clip))[0]


def _side_by_side(mechanism: GaussianSum, there: bool, n: int, rng: Generator) -> Scores:
    longest = float(canary(mechanism, torch.ones(1)))
    total = torch.full((n,), longest if there else 0.0, dtype=torch.float64)
    return _numbers(mechanism.release_counted(total, 0.0, rng)[0])


def _one_by_one(
    mechanism: Bounded, record: Tensor, score: Callable[[Tensor, float], float]
) -> Draw:
    """Releases of a record (d,) or of zeros, with a count of which the record moves 1/2."""

    def draw(there: bool, n: int, rng: Generator) -> Scores:
        total, excess = (record, 0.5) if there else (torch.zeros_like(record), 0.0)
        found = np.empty(n)
        for i in range(n):
            noisy, count = mechanism.release_counted(total, excess, rng)
            found[i] = score(noisy.double(), count or 0.0)
        return found

    return draw


def _even(mechanism: HaarGaussian) -> bool:
    """Return whether noise is even: no direction is seen better than another."""
    spread = [w * s for w, s in zip(mechanism.clip_weights, mechanism.noise, strict=True)]
    return max(spread) - min(spread) < 1e-9 * max(spread)


def _wavelets(mechanism: HaarGaussian) -> Draw:
    basis = mechanism.basis
    # the finest coefficients of the first block, if one wavelet covers two real numbers
    at = basis.levels.index(1)
    start, pairs = sum(basis.lengths[:at]), basis.blocks[0] // 2
    one = torch.zeros(basis.coefficients)
    one[start] = 1.0
    longest = float(basis.forward(canary(mechanism, basis.inverse(one)))[start])

    def draw(there: bool, n: int, rng: Generator) -> Scores:
        parts: list[Scores] = []
        marked = torch.zeros(basis.coefficients, dtype=torch.float64)
        marked[start : start + pairs] = longest if there else 0.0
        total = basis.inverse(marked)
        while sum(map(len, parts)) < n:
            noisy = mechanism.release_counted(total, 0.0, rng)[0]
            parts.append(_numbers(basis.forward(noisy.double())[start : start + pairs]))
        return np.concatenate(parts)[:n]

    return draw


def _levels(mechanism: LevelGaussian) -> Draw:
    basis = mechanism.basis
    full = torch.zeros(basis.coefficients)
    full[np.cumsum([0, *basis.lengths[:-1]])] = 1.0 / min(mechanism.clip_weights)
    record = canary(mechanism, basis.inverse(full)).double()
    # where the noise is standard
    inverse = [1.0 / s for s in mechanism.noise]
    whitened = basis.forward(record, inverse)

    return _one_by_one(
        mechanism, record, lambda noisy, _: float(basis.forward(noisy, inverse) @ whitened)
    )


def _radial(mechanism: KNorm | ExponentialNorm) -> Draw:
    d = mechanism.dimension
    record = canary(mechanism, torch.nn.functional.one_hot(torch.tensor(0), d).float()).double()
    steep = mechanism.claimed(mechanism.noise_multiplier, d).epsilon / mechanism.clip
    power = 0.0 if isinstance(mechanism, KNorm) else d - 1.0

    def ratio(noisy: Tensor, _: float) -> float:
        far, near = length(noisy), length(noisy - record)
        # what lies on the grid's point itself has no logarithm
        least = mechanism.step
        return steep * (far - near) + power * math.log(max(far, least) / max(near, least))

    return _one_by_one(mechanism, record, ratio)


def shared_noise(
    honest: int, noise_multiplier: float, there: bool, n: int, rng: Generator
) -> Scores:
    """Shared rounded noise: H contributions, one record in the first; one on each number."""
    noise = SharedNoise(most=(1.0,) * honest, dimension=1, honest=honest, rounds=1, bits=32)
    grid, entropy = noise.grid(1.0, noise_multiplier), Seeded(int(rng.integers(2**63)))
    parts = [
        grid.contribution(
            i,
            np.full(n, 1.0 if there and i == 0 else 0.0),
            entropy.at("noise", i),
            entropy.at("rounding", i),
        )
        for i in range(honest)
    ]
    return grid.opened(reduce(partial(added, bits=32), parts))


def single_rows(mechanism: Single, there: bool, n: int, rng: Generator) -> Scores:
    """A released row whose vector is at one end of the ball, or at the other."""
    row = torch.full((n, 1), 1e3 * mechanism.clip if there else -1e3 * mechanism.clip)
    return _numbers(mechanism.release_rows(mechanism.bounded(row), rng)[:, 0])


def answers(mechanism: RandomisedResponse, there: bool, n: int, rng: Generator) -> Scores:
    """Answers about label 0, or about label 1: whether they say 0, 1 or another."""
    given = mechanism.respond(np.full(n, 0 if there else 1), rng)
    scores: Scores = (given == 0).astype(np.float64) - (given == 1)
    return scores


def _numbers(values: Tensor) -> Scores:
    return values.cpu().numpy().astype(np.float64)
