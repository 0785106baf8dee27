"""The contract of a mechanism, as functions that test any mechanism.

A mechanism that passes has noise of the scale it books: the test accepts the right scale and,
to show that it has power, rejects two thirds and three halves of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sordino.base.entropy import Seeded
from sordino.base.errors import ContractBroken as ContractBroken

FALSE_ALARM = 1e-9


def looks_standard_normal(sample: Tensor) -> bool:
    """Tell whether a sample (n,) could be N(0, 1): mean, variance and Kolmogorov-Smirnov distance.

    Each of the three raises a false alarm once in 1e9; with n = 20 000 a scale wrong by 10 %
    passes with probability below 1e-12.
    """
    from scipy.stats import kstest  # type: ignore[import-untyped]

    n, numbers = sample.numel(), sample.double().numpy()
    z = 6.1  # two-sided 1e-9
    mean_fits = abs(numbers.mean()) < z / math.sqrt(n)
    variance_fits = abs((numbers**2).mean() - 1.0) < z * math.sqrt(2.0 / n)
    return bool(mean_fits and variance_fits and kstest(numbers, "norm").pvalue > FALSE_ALARM)


def looks_k_norm(sample: Tensor) -> bool:
    """Tell whether a sample (n, d) could have density ~ exp(-||x||): Gamma lengths, uniform
    directions.

    Of directions, the means and the distribution of the first number are looked at, whose square is
    Beta(1/2, (d-1)/2).
    """
    from scipy.stats import beta, gamma, kstest

    rows = sample.double().numpy()
    (n, d), lengths = rows.shape, np.linalg.norm(rows, axis=1)
    directions = rows / lengths[:, None]
    z = 6.1 + 0.2 * math.log(d)  # for the largest of d means
    centred = np.abs(directions.mean(0)).max() < z / math.sqrt(n * d)
    samples = [(lengths, gamma(d))]
    if d > 1:
        samples.append((directions[:, 0] ** 2, beta(0.5, (d - 1) / 2.0)))
    return bool(
        centred and all(kstest(each, law.cdf).pvalue > FALSE_ALARM for each, law in samples)
    )


def check_noise(
    draw: Callable[[np.random.Generator], Tensor], booked: float, sensitivity: float
) -> None:
    """Hold a release's noise against the multiplier that is booked for it.

    Args:
        draw: releases zero data with the given randomness and returns the noise (d,), whitened
            so that every coordinate should have standard deviation ``booked * sensitivity``.
        booked: the noise multiplier in the ledger's event.
        sensitivity: of the whitened release, L2.

    Raises:
        ContractBroken: naming what does not hold.
    """
    entropy = Seeded(20230814)
    first, again, other = (draw(entropy.at(*address)) for address in (("a",), ("a",), ("b",)))
    _hold_randomness(torch.equal(first, again), float((first == other).float().mean()) <= 1e-3)
    noise, scale = torch.cat([first, other]), booked * sensitivity
    deviation = float(noise.double().std())
    wrong = f"is not N(0, {scale:g}^2): its standard deviation is {deviation:g}"
    _hold_scale(noise / scale, looks_standard_normal, wrong)


def check_pure_noise(
    draw: Callable[[np.random.Generator], Tensor],
    booked: float,
    sensitivity: float,
    draws: int = 5000,
) -> None:
    """Hold a release's noise against its booked epsilon, as :func:`check_noise` a Gaussian's.

    Args:
        draw: releases zero data with the given randomness and returns the noise (d,), of density ~
            exp(-booked ||x|| / sensitivity).
        booked: epsilon of the ledger's pure event.
        sensitivity: of the release, L2.
        draws: how many releases are looked at.

    Raises:
        ContractBroken: naming what does not hold.
    """
    entropy = Seeded(20230814)
    noise = torch.stack([draw(entropy.at(number)) for number in range(draws)])
    # in one dimension, a few of thousands meet on the grid
    apart = len(torch.unique(noise, dim=0)) >= 0.98 * draws
    _hold_randomness(torch.equal(noise[0], draw(entropy.at(0))), apart)
    scale = sensitivity / booked
    length = float(torch.linalg.vector_norm(noise.double(), dim=1).mean()) / noise.shape[1]
    wrong = f"has not the density ~ exp(-|x| / {scale:g}): its mean length over d is {length:g}"
    _hold_scale(noise / scale, looks_k_norm, wrong)


def _hold_randomness(same: bool, apart: bool) -> None:
    if not same:
        raise ContractBroken("the same randomness gave two different releases")
    if not apart:
        raise ContractBroken("different addresses of randomness gave equal noise")


def _hold_scale(noise: Tensor, looks_right: Callable[[Tensor], bool], wrong: str) -> None:
    """Hold noise, in units of what is booked, against a distribution, and against other scales."""
    if not looks_right(noise):
        raise ContractBroken(f"the noise {wrong}")
    for factor in (2.0 / 3.0, 1.5):
        if looks_right(noise / factor):
            raise ContractBroken(f"the test has no power: it also accepts {factor:g} of the scale")
