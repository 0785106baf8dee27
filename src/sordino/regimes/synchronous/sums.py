"""What the sums of a study follow from whose noise clients share: public facts alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sordino.core.plan import Plan
from sordino.mechanisms.shared import SharedGrid, SharedNoise
from sordino.privacy.budget import left_out
from sordino.regimes.synchronous import plan
from sordino.regimes.synchronous.method import Terms
from sordino.regimes.synchronous.plan import aggregated, shares
from sordino.regimes.synchronous.shared import SharedSum
from sordino.regimes.synchronous.sharing import bits, fewest, honest, shared
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.training.plausible import drawn

CLAMPED = 2.0**-60
"""Chance that a round's batch of one client is larger than its R_i allows for."""

NOTICEABLE = 1.05
"""What rounding may multiply the noise by before a plan warns."""


def weights(study: SynchronousStudy, sizes: Sequence[int]) -> list[float]:
    """w_i in (0, 1]: what client i multiplies its bounded vector with."""
    if aggregated(study):
        return shares(study, sizes)
    if study.method.weights == "size":
        return [1.0] * len(sizes)
    return [min(sizes) / size for size in sizes]


def rule(study: SynchronousStudy, sizes: Sequence[int], dimension: int) -> SharedNoise:
    """Everything that the grids of a calibrated study follow from; all of it is public.

    A number of a sum of m clipped gradients is at most m C. m is more than a round's batch, but for
    a chance of 2^-60; what would be beyond is clamped, which costs no privacy.

    Raises:
        StudyError: for more honest contributions than clients.
    """
    rate = study.privacy.sampling_rate
    most = [
        weight * (1.0 if aggregated(study) else drawn(size, rate, 1, CLAMPED))
        for weight, size in zip(weights(study, sizes), sizes, strict=True)
    ]
    return SharedNoise(
        most=tuple(most),
        dimension=dimension,
        honest=honest(study),
        rounds=study.budget.rounds,
        bits=bits(study),
    )


def price(study: SynchronousStudy, sizes: Sequence[int], dimension: int) -> Plan:
    """The plan of a study over clients of these sizes and a model of this dimension, with the grid
    of the first round where clients share the noise.

    Raises:
        StudyError: if the modulus is too small.
    """
    priced, privacy = plan.price(study, sizes, dimension), study.privacy
    if not shared(study) or not priced.noise_multiplier:
        return priced
    sigma, rounds = priced.noise_multiplier, study.budget.rounds
    fixed = rule(study, sizes, dimension)
    scales = dict.fromkeys(study.method.scale(number / rounds) for number in range(rounds))
    # every round's, lest a run end where its schedule comes to one that no modulus can hold
    grids = [fixed.grid(privacy.clip * clip, sigma * noise) for clip, noise in scales]
    grid = grids[0]
    # of n parts of the noise, H are booked
    excess = len(sizes) / honest(study)
    batch = sum(plan.shares(study, sizes)) if aggregated(study) else sum(sizes)
    signal = privacy.sampling_rate * batch / (sigma * grid.growth * math.sqrt(excess * dimension))
    numbers = len(sizes) * dimension * fixed.rounds
    more = left_out(
        privacy.delta, privacy.epsilon, numbers=numbers, more=max(map(fixed.unbooked, grids))
    )
    return replace(
        priced,
        signal_to_noise=signal,
        warnings=(*priced.warnings, *_warnings(grids), *more),
        shared=grid,
    )


def _warnings(grids: Sequence[SharedGrid]) -> list[str]:
    grid = max(grids, key=lambda each: each.growth)
    if grid.growth <= NOTICEABLE:
        return []
    return [
        f"a modulus of {grid.bits} bits leaves a grid so coarse that rounding adds "
        f"{100 * (grid.growth - 1):.0f} % to the noise: raise privacy.bits"
    ]


def adder(
    study: SynchronousStudy, sizes: Sequence[int], terms: Terms, fixed: SharedNoise
) -> SharedSum:
    """What the server knows of the sums of a calibrated study."""
    rate = study.privacy.sampling_rate
    if aggregated(study):
        own, scale = tuple(shares(study, sizes)), 1.0 / rate
    else:
        own = terms.weights
        # max_j p_j / n_j
        by_size = study.method.weights == "size"
        largest = 1.0 / sum(sizes) if by_size else 1.0 / (len(sizes) * min(sizes))
        scale = -study.method.learning_rate * largest / rate
    return SharedSum(
        rule=fixed,
        weights=own,
        scale=scale,
        sampling_rate=rate,
        whole=aggregated(study),
        fewest=fewest(study),
    )
