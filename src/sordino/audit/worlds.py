r"""Releases of every mechanism with and without a record, and how strongly each speaks for it.

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
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.audit.bounds import Curve, Scores
from sordino.base.entropy import Seeded
from sordino.base.residues import added
from sordino.mechanisms.gaussian import Bounded, CountedGaussian, Gaussian, Single
from sordino.mechanisms.haar.gaussian import HaarGaussian, LevelGaussian
from sordino.mechanisms.knorm import ExponentialNorm, KNorm
from sordino.mechanisms.response import RandomisedResponse
from sordino.mechanisms.shared import SharedNoise
from sordino.privacy import event

Draw = Callable[[bool, int, np.random.Generator], Scores]
"""Scores (n,) of n independent releases, with the record or without it."""


def releases(mechanism: Bounded) -> Draw:
    """Return the releases of a mechanism on sums."""
    match mechanism:
        case Gaussian():
            return _side_by_side(mechanism)
        case CountedGaussian():
            return _pairs(mechanism)
        case LevelGaussian():
            return _levels(mechanism)
        case HaarGaussian() if _even(mechanism):
            return _wavelets(mechanism)
        case HaarGaussian():
            return _constants(mechanism)
        case KNorm() | ExponentialNorm():
            return _radial(mechanism)
        case _:
            raise TypeError(f"{type(mechanism).__name__}: no audit of this mechanism is known")


def curve_of(booked: event.Event) -> Curve:
    """Return the trade-off of hits and false alarms of an unsampled release."""
    match booked:
        case event.Gaussian():
            return "gaussian"
        case event.Pure():
            return "pure"
        case _:
            return "any"


def canary(mechanism: Bounded, direction: Tensor) -> Tensor:
    """A contribution (d,) of the largest length that the mechanism lets through there."""
    return mechanism.bounded(direction * (1e3 * mechanism.clip))[0]


def _side_by_side(mechanism: Gaussian) -> Draw:
    def draw(there: bool, n: int, rng: np.random.Generator) -> Scores:
        longest = float(canary(mechanism, torch.ones(1)))
        total = torch.full((n,), longest if there else 0.0, dtype=torch.float64)
        return _numbers(mechanism.release_counted(total, 0.0, rng)[0])

    return draw


def _pairs(mechanism: CountedGaussian) -> Draw:
    longest = float(canary(mechanism, torch.ones(1)))
    vector = longest / (mechanism.vector_multiplier * mechanism.clip) ** 2
    count = 0.5 / mechanism.count_deviation**2

    def draw(there: bool, n: int, rng: np.random.Generator) -> Scores:
        total = torch.full((1,), longest if there else 0.0, dtype=torch.float64)
        found = np.empty(n)
        for i in range(n):
            noisy, more = mechanism.release_counted(total, 0.5 if there else 0.0, rng)
            found[i] = float(noisy) * vector + more * count
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

    def draw(there: bool, n: int, rng: np.random.Generator) -> Scores:
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

    def draw(there: bool, n: int, rng: np.random.Generator) -> Scores:
        total = record if there else torch.zeros_like(record)
        found = [mechanism.release_counted(total, 0.0, rng)[0].double() for _ in range(n)]
        return np.array([float(basis.forward(each, inverse) @ whitened) for each in found])

    return draw


def _constants(mechanism: HaarGaussian) -> Draw:
    d = mechanism.basis.dimension
    record = canary(mechanism, torch.ones(d) / math.sqrt(d)).double()

    def draw(there: bool, n: int, rng: np.random.Generator) -> Scores:
        total = record if there else torch.zeros_like(record)
        return np.array(
            [float(mechanism.release_counted(total, 0.0, rng)[0].double() @ record)
             for _ in range(n)]
        )  # fmt: skip

    return draw


def _radial(mechanism: KNorm | ExponentialNorm) -> Draw:
    d = mechanism.dimension
    record = canary(mechanism, torch.nn.functional.one_hot(torch.tensor(0), d).float())
    steep = (
        KNorm.priced(mechanism.noise_multiplier, d)
        if isinstance(mechanism, KNorm)
        else ExponentialNorm.claimed(mechanism.noise_multiplier, d)
    ).epsilon / mechanism.clip
    power = 0.0 if isinstance(mechanism, KNorm) else d - 1.0

    def draw(there: bool, n: int, rng: np.random.Generator) -> Scores:
        total = record if there else torch.zeros_like(record)
        seen = np.stack([_numbers(mechanism.release_counted(total, 0.0, rng)[0]) for _ in range(n)])
        far = np.linalg.norm(seen, axis=1)
        near = np.linalg.norm(seen - record.numpy(), axis=1)
        # what lies on the grid's point itself has no logarithm
        least = mechanism.step
        ratio: Scores = steep * (far - near) + power * np.log(
            np.maximum(far, least) / np.maximum(near, least)
        )
        return ratio

    return draw


def shared(honest: int, noise_multiplier: float, bits: int = 32) -> Draw:
    """Shared rounded noise: H contributions, one record in the first; one on each number."""
    grid = SharedNoise(most=(1.0,) * honest, dimension=1, honest=honest, rounds=1, bits=bits).grid(
        1.0, noise_multiplier
    )

    def draw(there: bool, n: int, rng: np.random.Generator) -> Scores:
        entropy = Seeded(int(rng.integers(2**63)))
        parts = [
            grid.contribution(
                i,
                np.full(n, 1.0 if there and i == 0 else 0.0),
                entropy.at("noise", i),
                entropy.at("rounding", i),
            )
            for i in range(honest)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = added(total, part, bits)
        return grid.opened(total)

    return draw


def rows(mechanism: Single) -> Draw:
    """A released row whose vector is at one end of the ball, or at the other."""

    def draw(there: bool, n: int, rng: np.random.Generator) -> Scores:
        row = torch.full((n, 1), 1e3 * mechanism.clip if there else -1e3 * mechanism.clip)
        return _numbers(mechanism.release_rows(mechanism.bounded(row), rng)[:, 0])

    return draw


def labels(mechanism: RandomisedResponse) -> Draw:
    """Answers about label 0, or about label 1: whether they say 0, 1 or another."""

    def draw(there: bool, n: int, rng: np.random.Generator) -> Scores:
        own: NDArray[np.int64] = np.full(n, 0 if there else 1, np.int64)
        answers = mechanism.respond(own, rng)
        told: Scores = (answers == 0).astype(np.float64) - (answers == 1)
        return told

    return draw


def _numbers(values: Tensor) -> Scores:
    found: Scores = values.cpu().numpy().astype(np.float64)
    return found
