"""One step of a flattened history: what all releases from one sample come to.

Accountants work on these, and no longer on events: a history is a sorted tuple of kinds of steps
and how often each was taken.

>>> Kind(0.015, sigma=1.1) < Kind(0.015, sigma=2.0) < Kind(1.0, epsilon=0.5)
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """A Gaussian and a pure release of one Poisson sample; equal kinds compose k-fold.

    Attributes:
        rate: q in (0, 1]; 1 means not sampled.
        sigma: noise multiplier of the Gaussian; infinite where there is none.
        epsilon: of the pure release; 0 where there is none.
    """

    rate: float
    sigma: float = math.inf
    epsilon: float = 0.0

    @property
    def gaussian(self) -> bool:
        """Tell whether there is nothing but a Gaussian."""
        return self.epsilon == 0.0

    @property
    def pure(self) -> bool:
        """Tell whether there is nothing but a pure release."""
        return math.isinf(self.sigma)


Steps = tuple[tuple[Kind, int], ...]  # each kind once, sorted


def priced_rate(rate: float) -> float:
    """A sampling rate that floating point can work with, never lower: a larger sample costs more.

    >>> priced_rate(0.25), priced_rate(5e-324), priced_rate(1 - 2**-53)
    (0.25, 1e-12, 1.0)
    """
    return 1.0 if rate > 1.0 - 1e-12 else max(rate, 1e-12)
