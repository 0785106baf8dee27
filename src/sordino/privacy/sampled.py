r"""The Rényi divergence of one Gaussian step on a Poisson sample, at one order.

With sampling rate q, noise multiplier sigma and order alpha, (alpha - 1) D_alpha is the logarithm
of A_alpha = E_{z ~ N(0, sigma^2)} [(1 - q + q e^((2z - 1) / (2 sigma^2)))^alpha] (Mironov, Talwar
and Zhang 2019, section 3.3). Of whole orders it is a sum of alpha + 1 terms; of others two series,
of the integral below z_0 = sigma^2 log(1/q - 1) + 1/2 and of that above it, which end where the
terms fall and are below e^-30 of the sum.

All terms are formed at once; they are added up one after another, in the order and by the
functions of dp-accounting, whose numbers these are to the last bit.

>>> round(divergence(0.015, 1.1, 8.0), 4), round(divergence(0.015, 1.1, 2.5), 6)
(0.0014, 0.000367)
"""

from __future__ import annotations

import math
from typing import Any

from sordino.privacy.special import functions

_BLOCK = 128  # terms of a series that are formed at once
_MOST = 1000  # terms of a series
_SMALL = 30.0  # a term below the sum over e^30 ends a series


def divergence(rate: float, sigma: float, order: float) -> float:
    """D_alpha for 0 < ``rate`` < 1 and ``order`` > 1; infinite where the series do not end."""
    whole = order.is_integer()
    total = _whole(rate, sigma, int(order)) if whole else _series(rate, sigma, order)
    return total / (order - 1.0)


def _log_choose(order: float, i: Any) -> Any:
    """log of the absolute binomial coefficients of ``order`` over ``i`` (n,)."""
    gammaln = functions().gammaln
    return gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)


def _whole(rate: float, sigma: float, order: int) -> float:
    import numpy as np

    i = np.arange(order + 1)
    coefficient = _log_choose(order, i) + i * math.log(rate) + (order - i) * math.log1p(-rate)
    total = -math.inf
    for term in (coefficient + (i * i - i) / (2 * sigma**2)).tolist():
        total = _log_sum(total, term)
    return total


def _series(rate: float, sigma: float, order: float) -> float:
    below = above = last_below = last_above = -math.inf
    for start in range(0, _MOST, _BLOCK):
        for one, other in zip(*_terms(rate, sigma, order, start), strict=True):
            below, above = _log_sum(below, one), _log_sum(above, other)
            if one < last_below and other < last_above:
                total = _log_sum(below, above)
                if max(one, other) < total - _SMALL:
                    return total
            last_below, last_above = one, other
    return math.inf


def _terms(rate: float, sigma: float, order: float, start: int) -> tuple[list[float], list[float]]:
    """Logarithms of the next terms of both series."""
    import numpy as np

    log_ndtr = functions().log_ndtr
    i = np.arange(start, min(start + _BLOCK, _MOST))
    j, choose, log_q, log_rest = order - i, _log_choose(order, i), math.log(rate), math.log1p(-rate)
    border, double = sigma**2 * math.log(1 / rate - 1) + 0.5, 2 * sigma**2

    def mass(x: Any) -> Any:
        return math.log(0.5) + (math.log(2) + log_ndtr(-(x / (math.sqrt(2) * sigma)) * 2**0.5))

    below = choose + i * log_q + j * log_rest + (i * i - i) / double + mass(i - border)
    above = choose + j * log_q + i * log_rest + (j * j - j) / double + mass(border - j)
    return below.tolist(), above.tolist()


def _log_sum(x: float, y: float) -> float:
    """log(e^x + e^y)."""
    low, high = (x, y) if x < y else (y, x)
    return high if low == -math.inf else math.log1p(math.exp(low - high)) + high
