r"""Rényi differential privacy: divergences of a step at many orders, added up, and two conversions.

Of the sampled Gaussian, divergences (Mironov, Talwar and Zhang 2019) come from dp-accounting; of
the plain one they are alpha / (2 sigma^2). A pure release is at worst a bit of randomised response
(:mod:`sordino.privacy.pure`). Seen on a sample, the bit multiplies the odds that the record was
drawn by e^epsilon or e^-epsilon, and what else the sample released is then seen at that other rate.
With r the bit's likelihood ratio, P_0 its probability without the record and q_b the rate after it,

    exp((alpha - 1) D_alpha)  =  sum_b P_0(b) r_b^alpha exp((alpha - 1) D_alpha(Gaussian at q_b)),

D_alpha = 0 where there is no Gaussian. This is the direction with the record against without, the
larger one for every pair that some involution exchanges (Mironov, Talwar and Zhang 2019, theorem
5), as minus does a Gaussian and negation a bit. Divergences add under composition. To epsilon:

* improved (Canonne, Kamath and Steinke 2020, proposition 12), the best known;
* classic (Mironov 2017, proposition 3), eps_alpha + log(1/delta)/(alpha - 1) over integer orders,
  as in the ALI-DPFL and ALS-DPFL papers.

Orders and epsilons are dimensionless; natural logarithms.

>>> booked = ((Kind(0.015, 1.1), 100), (Kind(1.0, 2.0), 10))
>>> [round(total, 3) for total in divergences(booked, (2.0, 8.0))]
[2.529, 10.15]
"""

from __future__ import annotations

import math
from functools import lru_cache

from sordino.privacy import pure
from sordino.privacy.step import Kind, Steps

CLASSIC_ORDERS = tuple(float(order) for order in (*range(2, 64), 128, 256, 512))
ORDERS = tuple(
    float(order)
    for order in (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024, 2048)
)

# added to each computed divergence: where it is tiny, rounding may have made it zero or less
_ROUNDING = 1e-14


def divergences(steps: Steps, orders: tuple[float, ...]) -> list[float]:
    """The Rényi divergence of all steps together, at each order."""
    total = [0.0] * len(orders)
    for kind, count in steps:
        for i, value in enumerate(divergence(kind, orders)):
            total[i] += count * value
    return total


@lru_cache(maxsize=64)
def divergence(kind: Kind, orders: tuple[float, ...]) -> tuple[float, ...]:
    """The Rényi divergence of one step at each order; infinite where it cannot be computed."""
    if kind.gaussian:
        return _gaussian(kind.rate, kind.sigma, orders)
    up, down = pure.losses(kind)
    normal = math.log1p(math.exp(-kind.epsilon))
    # (log P_0, log r, rate) after a 1 and after a 0
    bits = (
        (-kind.epsilon - normal, up, min(1.0, kind.rate * math.exp(kind.epsilon - up))),
        (-normal, -down, min(1.0, kind.rate * math.exp(down - kind.epsilon))),
    )
    after = [_gaussian(rate, kind.sigma, orders) for _, _, rate in bits]
    found = []
    for order, *rest in zip(orders, *after, strict=True):
        terms = [
            p + order * r + (order - 1.0) * value
            for (p, r, _), value in zip(bits, rest, strict=True)
        ]
        top = max(terms)
        whole = (
            top + math.log(math.fsum(math.exp(term - top) for term in terms))
            if math.isfinite(top)
            else math.inf
        )
        found.append(
            min(max(whole / (order - 1.0), 0.0) * (1.0 + _ROUNDING) + _ROUNDING, up + rest[0])
        )
    return tuple(found)


@lru_cache(maxsize=64)
def _gaussian(rate: float, sigma: float, orders: tuple[float, ...]) -> tuple[float, ...]:
    """Of one Gaussian on a sample."""
    if math.isinf(sigma) or rate == 0.0:
        return (0.0,) * len(orders)
    if rate == 1.0:
        return tuple(order * (0.5 / sigma) / sigma for order in orders)
    import dp_accounting as dp
    from absl import logging
    from dp_accounting.rdp import RdpAccountant

    ledger, level = RdpAccountant(orders=list(orders)), logging.get_verbosity()
    # an order whose series does not converge is left out, which is sound: not for people's eyes
    logging.set_verbosity(logging.ERROR)
    try:
        ledger.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)))
    finally:
        logging.set_verbosity(level)
    # The divergences have no public name there; a test holds them to an integral by quadrature.
    return tuple(
        max(float(value), 0.0) + _ROUNDING if math.isfinite(value) else math.inf
        for value in ledger._rdp
    )


def improved_epsilon(steps: Steps, delta: float) -> float:
    """The improved conversion, over fractional orders."""
    best = math.inf
    for order, value in zip(ORDERS, divergences(steps, ORDERS), strict=True):
        if -math.expm1(-value) < delta * delta:
            # total variation is at most sqrt(1 - exp(-KL)), and KL at most any divergence here
            return 0.0
        best = min(best, value + math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0))
    return max(0.0, best)


def improved_delta(steps: Steps, epsilon: float) -> float:
    """delta at ``epsilon`` by the same conversion."""
    best = 0.0
    for order, value in zip(ORDERS, divergences(steps, ORDERS), strict=True):
        if math.isfinite(value):
            best = min(
                best, (order - 1.0) * (value - epsilon + math.log1p(-1.0 / order)) - math.log(order)
            )
            best = min(best, 0.5 * math.log(-math.expm1(-value)))
    return math.exp(best)


def classic_epsilon(steps: Steps, delta: float) -> float:
    """The classic conversion, over integer orders."""
    total = divergences(steps, CLASSIC_ORDERS)
    return min(
        value + math.log(1.0 / delta) / (order - 1.0)
        for order, value in zip(CLASSIC_ORDERS, total, strict=True)
    )


def classic_delta(steps: Steps, epsilon: float) -> float:
    """delta at ``epsilon`` by the same conversion."""
    total = divergences(steps, CLASSIC_ORDERS)
    return math.exp(
        min(
            0.0,
            *(
                (order - 1.0) * (value - epsilon)
                for order, value in zip(CLASSIC_ORDERS, total, strict=True)
            ),
        )
    )


def fixed_epsilon(steps: Steps, delta: float, order: float) -> float:
    """The improved conversion at one order, fixed beforehand: it bounds adaptive steps, too."""
    (value,) = divergences(steps, (order,))
    return max(0.0, value + math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0))


def fixed_delta(steps: Steps, epsilon: float, order: float) -> float:
    """delta at ``epsilon`` by the same conversion."""
    (value,) = divergences(steps, (order,))
    if math.isinf(value):
        return 1.0
    return math.exp(
        min(0.0, (order - 1.0) * (value - epsilon + math.log1p(-1.0 / order)) - math.log(order))
    )
