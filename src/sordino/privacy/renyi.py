r"""Rényi differential privacy: divergences of a step at many orders, added up, and two conversions.

Of the sampled Gaussian, divergences (Mironov, Talwar and Zhang 2019) come from dp-accounting; of
the plain one they are alpha / (2 sigma^2). They add under composition. To epsilon:

* improved (Canonne, Kamath and Steinke 2020, proposition 12), the best known;
* classic (Mironov 2017, proposition 3), eps_alpha + log(1/delta)/(alpha - 1) over integer orders,
  as in the ALI-DPFL and ALS-DPFL papers.

Orders and epsilons are dimensionless; natural logarithms.

>>> [round(total, 3) for total in divergences(((1.0, 2.0, 10), (0.015, 1.1, 100)), (2.0, 8.0))]
[2.529, 10.15]
"""

from __future__ import annotations

import math
from functools import lru_cache

from sordino.privacy.loss import Steps

CLASSIC_ORDERS = tuple(float(order) for order in (*range(2, 64), 128, 256, 512))
ORDERS = tuple(float(order) for order in (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024, 2048))

_ROUNDING = 1e-14  # added to each computed divergence: where it is tiny, rounding may have made it zero or less


def divergences(steps: Steps, orders: tuple[float, ...]) -> list[float]:
    """The Rényi divergence of all steps together, at each order."""
    total = [0.0] * len(orders)
    for rate, sigma, count in steps:
        for i, value in enumerate(divergence(rate, sigma, orders)):
            total[i] += count * value
    return total


@lru_cache(maxsize=64)
def divergence(rate: float, sigma: float, orders: tuple[float, ...]) -> tuple[float, ...]:
    """The Rényi divergence of one step at each order; infinite where it cannot be computed."""
    if rate == 1.0:
        return tuple(order * (0.5 / sigma) / sigma for order in orders)
    import dp_accounting as dp
    from absl import logging
    from dp_accounting.rdp import RdpAccountant

    ledger, level = RdpAccountant(orders=list(orders)), logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # an order whose series does not converge is left out, which is sound: not for people's eyes
    try:
        ledger.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)))
    finally:
        logging.set_verbosity(level)
    # The divergences have no public name there; a test holds them to an integral by quadrature.
    return tuple(max(float(value), 0.0) + _ROUNDING if math.isfinite(value) else math.inf for value in ledger._rdp)


def improved_epsilon(steps: Steps, delta: float) -> float:
    """The improved conversion, over fractional orders."""
    best = math.inf
    for order, value in zip(ORDERS, divergences(steps, ORDERS), strict=True):
        if -math.expm1(-value) < delta * delta:
            return 0.0  # total variation is at most sqrt(1 - exp(-KL)), and KL at most any divergence here
        best = min(best, value + math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0))
    return max(0.0, best)


def improved_delta(steps: Steps, epsilon: float) -> float:
    """delta at ``epsilon`` by the same conversion."""
    best = 0.0
    for order, value in zip(ORDERS, divergences(steps, ORDERS), strict=True):
        if math.isfinite(value):
            best = min(best, (order - 1.0) * (value - epsilon + math.log1p(-1.0 / order)) - math.log(order))
            best = min(best, 0.5 * math.log(-math.expm1(-value)))
    return math.exp(best)


def classic_epsilon(steps: Steps, delta: float) -> float:
    """The classic conversion, over integer orders."""
    total = divergences(steps, CLASSIC_ORDERS)
    return min(value + math.log(1.0 / delta) / (order - 1.0) for order, value in zip(CLASSIC_ORDERS, total, strict=True))


def classic_delta(steps: Steps, epsilon: float) -> float:
    """delta at ``epsilon`` by the same conversion."""
    total = divergences(steps, CLASSIC_ORDERS)
    return math.exp(min(0.0, *((order - 1.0) * (value - epsilon) for order, value in zip(CLASSIC_ORDERS, total, strict=True))))


def fixed_epsilon(steps: Steps, delta: float, order: float) -> float:
    """The improved conversion at one order, chosen before anything was released: a bound for steps chosen adaptively, too."""
    (value,) = divergences(steps, (order,))
    return max(0.0, value + math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0))


def fixed_delta(steps: Steps, epsilon: float, order: float) -> float:
    """delta at ``epsilon`` by the same conversion."""
    (value,) = divergences(steps, (order,))
    if math.isinf(value):
        return 1.0
    return math.exp(min(0.0, (order - 1.0) * (value - epsilon + math.log1p(-1.0 / order)) - math.log(order)))
