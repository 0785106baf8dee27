"""What every mechanism must keep, as a function that anybody's mechanism can be held against.

A mechanism that passes has noise of the scale it books: the test accepts the right scale and,
to show that it has power, rejects two thirds and three halves of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sordino.entropy import Seeded

FALSE_ALARM = 1e-9


class ContractBroken(AssertionError):
    """A mechanism that does not do what it books."""


def looks_standard_normal(sample: Tensor) -> bool:
    """Whether a sample (n,) could be N(0, 1): mean, variance and Kolmogorov-Smirnov distance.

    Each of the three raises a false alarm once in 1e9; with n = 20 000 a scale wrong by 10 %
    passes with probability below 1e-12.
    """
    n = sample.numel()
    ordered = np.sort(sample.double().numpy())
    z = 6.1  # two-sided 1e-9
    mean_fits = abs(ordered.mean()) < z / math.sqrt(n)
    variance_fits = abs((ordered**2).mean() - 1.0) < z * math.sqrt(2.0 / n)
    cdf = 0.5 * (1.0 + np.vectorize(math.erf)(ordered / math.sqrt(2.0)))
    distance = max((np.arange(1, n + 1) / n - cdf).max(), (cdf - np.arange(n) / n).max())
    # Massart's bound: P(distance > e) <= 2 exp(-2 n e^2)
    return bool(mean_fits and variance_fits and distance < math.sqrt(math.log(2.0 / FALSE_ALARM) / (2.0 * n)))


def check_noise(draw: Callable[[np.random.Generator], Tensor], booked: float, sensitivity: float) -> None:
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
    if not torch.equal(first, again):
        raise ContractBroken("the same randomness gave two different releases")
    if (first == other).float().mean() > 1e-3:
        raise ContractBroken("different addresses of randomness gave equal noise")
    noise = torch.cat([first, other])
    scale = booked * sensitivity
    if not looks_standard_normal(noise / scale):
        raise ContractBroken(f"the noise is not N(0, {scale:g}^2): its standard deviation is {float(noise.double().std()):g}")
    for wrong in (2.0 / 3.0, 1.5):
        if looks_standard_normal(noise / (scale * wrong)):
            raise ContractBroken(f"the test has no power: it also accepts {wrong:g} of the scale")
