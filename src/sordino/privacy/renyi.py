r"""Rényi differential privacy: divergences of a step at many orders, added up, and two conversions.

Of the sampled Gaussian, :func:`sampled_divergence` has the divergences (Mironov, Talwar and
Zhang 2019); of the plain one they are alpha / (2 sigma^2). A pure release is at worst a bit of
randomised response (:mod:`sordino.privacy.pure`). Seen on a sample, the bit multiplies the odds
that the record was drawn by e^epsilon or e^-epsilon, and what else the sample released is then seen
at that other rate. With r the bit's likelihood ratio, P_0 its probability without the record and
q_b the rate after it,

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

**One Gaussian step on a Poisson sample** (:func:`sampled_divergence`). With sampling rate q, noise
multiplier sigma and order alpha, (alpha - 1) D_alpha is the logarithm of A_alpha = E_{z ~ N(0,
sigma^2)} [(1 - q + q e^((2z - 1) / (2 sigma^2)))^alpha] (Mironov, Talwar and Zhang 2019, section
3.3). Of whole orders it is a sum of alpha + 1 terms; of others two series, of the integral below
z_0 = sigma^2 log(1/q - 1) + 1/2 and of that above it, which end where the terms fall and are below
e^-30 of the sum.

All terms are formed at once; they are added up one after another, in the order and by the
functions of dp-accounting, whose numbers these are to the last bit.

>>> round(sampled_divergence(0.015, 1.1, 8.0), 4), round(sampled_divergence(0.015, 1.1, 2.5), 6)
(0.0014, 0.000367)

**Several rows of one person** (:func:`rows_divergence`). The loss at standard noise z, l(z), rises
and is convex, and its slope is at most k/sigma. The exponent is log E e^(alpha l(z)) with the rows
against without, and log E e^(-(alpha-1) l(z)) the other way round; the larger one counts. Between
the points of a grid, l is at most its chord and at least its tangent, and beyond the last point at
most a line of the largest slope: the normal integrals of these are closed, and bounds, whatever the
grid.
"""

from __future__ import annotations

import math
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any

import numpy as np

from sordino.privacy import pure
from sordino.privacy.grid import Mixture, functions
from sordino.privacy.pure import Kind, Steps

_BLOCK = 128  # terms of a series that are formed at once
_MOST = 1000  # terms of a series
_INTEGRAL = 1e-11  # for rounding in an integral over many cells
_SMALL = 30.0  # a term below the sum over e^30 ends a series


def sampled_divergence(rate: float, sigma: float, order: float) -> float:
    """D_alpha for 0 < ``rate`` < 1 and ``order`` > 1; infinite where the series do not end."""
    whole = order.is_integer()
    total = _whole(rate, sigma, int(order)) if whole else _series(rate, sigma, order)
    return total / (order - 1.0)


_BULK, _CELLS, _RARE = 9.0, 2048, 1024  # points on both sides of 0, and in the rest


def rows_divergence(kind: Kind, order: float) -> float:
    """A bound on D_alpha of one Gaussian step on a sample for several rows, both directions."""
    z, loss, slope, middle, tangent, rises = _points(kind.rate, kind.sigma, kind.rows)
    first, last, none = z[:1], z[-1:], np.zeros(1)
    low, high = np.array([-math.inf]), np.array([math.inf])
    steepest = np.array([kind.rows / kind.sigma])
    least = np.array([kind.rows * math.log1p(-kind.rate)])
    chord = (loss[1:] - loss[:-1]) / (z[1:] - z[:-1])
    up, down = order, 1.0 - order
    exponents = [
        [
            _normal_integral(up, low, first, loss[:1], none, first),
            _normal_integral(up, z[:-1], z[1:], loss[:-1], chord, z[:-1]),
            _normal_integral(up, last, high, loss[-1:], steepest, last),
        ],
        [
            _normal_integral(down, low, first, least, none, first),
            _normal_integral(down, z[:-1], z[1:], tangent, rises, middle),
            _normal_integral(down, last, high, loss[-1:], slope[-1:], last),
        ],
    ]
    whole = max(0.0, *(_log_sum(a, _log_sum(b, c)) for a, b, c in exponents))
    return (whole * (1.0 + _INTEGRAL) + _INTEGRAL) / (order - 1.0)


@lru_cache(maxsize=64)
def _points(rate: float, sigma: float, rows: int) -> tuple[Any, ...]:
    """Standard noise (n,), the loss there and its slope; the middle between two of them (n - 1,),
    the loss there and its slope. Beyond the last, all rows are drawn but for 1e-9.
    """
    most = (rows - 0.5) / sigma + sigma * (math.log(rows * (1.0 - rate) / rate) + 21.0)
    bulk = np.linspace(-_BULK, _BULK, _CELLS + 1)
    rare = np.geomspace(_BULK, max(most, 2.0 * _BULK), _RARE + 1)[1:]
    z, pair = np.concatenate([bulk, rare]), Mixture(rate, sigma, rows)
    middle = 0.5 * (z[1:] + z[:-1])
    found = [z]
    for at in (z, middle):
        loss, rises = pair.loss(at * sigma)
        found += [*([at] if at is middle else []), loss, rises * sigma]
    return tuple(found)


def _normal_integral(factor: float, low: Any, high: Any, loss: Any, slope: Any, at: Any) -> float:
    """log of the integral over the normal density of e^(factor (loss + slope (z - at))), in cells
    from ``low`` to ``high`` (n,).
    """
    log_ndtr = functions().log_ndtr
    tilt = factor * slope
    a, b = low - tilt, high - tilt  # the density is that of a normal one around ``tilt``
    upper = a > 0.0
    near, far = np.where(upper, -a, b), np.where(upper, -b, a)
    mass = log_ndtr(near) + np.log1p(-np.exp(log_ndtr(far) - log_ndtr(near)))
    terms = factor * (loss - slope * at) + 0.5 * tilt * tilt + mass
    top = float(terms.max())
    return top + math.log(float(np.exp(terms - top).sum()))


def _log_choose(order: float, i: Any) -> Any:
    """log of the absolute binomial coefficients of ``order`` over ``i`` (n,)."""
    gammaln = functions().gammaln
    return gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)


def _whole(rate: float, sigma: float, order: int) -> float:
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


CLASSIC_ORDERS = tuple(float(order) for order in (*range(2, 64), 128, 256, 512))
ORDERS = tuple(
    float(order)
    for order in (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024, 2048)
)

# added to each computed divergence: where it is tiny, rounding may have made it zero or less
_ROUNDING = 1e-14
# for each step: what rounding in its divergences may hide of their rise with the order
_SLACK = 1e-9


@lru_cache(maxsize=1024)  # an audit asks for many deltas of the same steps
def divergences(steps: Steps, orders: tuple[float, ...]) -> tuple[float, ...]:
    """The Rényi divergence of all steps together, at each order."""
    total = [0.0] * len(orders)
    for kind, count in steps:
        for i, order in enumerate(orders):
            total[i] += count * _one(kind, order)
    return tuple(total)


@lru_cache(maxsize=16_384)
def _one(kind: Kind, order: float) -> float:
    """Of one step at one order; infinite where it cannot be computed."""
    if kind.rows > 1:
        return rows_divergence(kind, order)
    if kind.gaussian:
        return _gaussian(kind.rate, kind.sigma, order)
    up, down = pure.losses(kind)
    normal = math.log1p(math.exp(-kind.epsilon))
    # (log P_0, log r, rate) after a 1 and after a 0
    bits = (
        (-kind.epsilon - normal, up, min(1.0, kind.rate * math.exp(kind.epsilon - up))),
        (-normal, -down, min(1.0, kind.rate * math.exp(down - kind.epsilon))),
    )
    rest = [_gaussian(rate, kind.sigma, order) for _, _, rate in bits]
    terms = [
        p + order * r + (order - 1.0) * value for (p, r, _), value in zip(bits, rest, strict=True)
    ]
    top, whole = max(terms), math.inf
    if math.isfinite(top):
        whole = top + math.log(math.fsum(math.exp(term - top) for term in terms))
    return min(max(whole / (order - 1.0), 0.0) * (1.0 + _ROUNDING) + _ROUNDING, up + rest[0])


def _gaussian(rate: float, sigma: float, order: float) -> float:
    """Of one Gaussian on a sample."""
    if math.isinf(sigma) or rate == 0.0:
        return 0.0
    if rate == 1.0:
        return order * (0.5 / sigma) / sigma
    value = sampled_divergence(rate, sigma, order)
    # An order whose series does not end is left out, which is sound.
    return max(value, 0.0) + _ROUNDING if math.isfinite(value) else math.inf


def improved_epsilon(steps: Steps, delta: float) -> float:
    """The improved conversion, over fractional orders.

    A divergence does not fall as the order rises: a bound for one order bounds all above it from
    below, and orders that cannot give the least epsilon are not looked at. Only whole orders serve
    for that: of others the series take all terms as positive and give more than the divergence.
    """
    lowest = _at_least(steps)
    if -math.expm1(-lowest) < 2.0 * delta * delta:
        return _of_all_orders(steps, delta)
    added = _conversion(delta)
    slack = _SLACK * (1.0 + sum(count for _, count in steps))
    best = math.inf
    # (bound, at least this divergence, from, to) of orders between two others
    left: list[tuple[float, float, int, int]] = []

    def leave(least: float, low: int, high: int) -> None:
        if high - low > 1:
            heappush(left, (least + min(added[low + 1 : high]), least, low, high))

    leave(lowest, -1, len(ORDERS))
    while left and left[0][0] < best + slack:
        _, least, low, high = heappop(left)
        middle = _between(low, high)
        (value,) = divergences(steps, (ORDERS[middle],))
        best = min(best, _converted(value, ORDERS[middle], delta))
        leave(least, low, middle)
        exact = ORDERS[middle].is_integer() and math.isfinite(value)
        leave(max(least, value) if exact else least, middle, high)
    return max(0.0, best)


def _of_all_orders(steps: Steps, delta: float) -> float:
    """The improved conversion where so little is lost that total variation may be below delta."""
    best = math.inf
    for order, value in zip(ORDERS, divergences(steps, ORDERS), strict=True):
        if -math.expm1(-value) < delta * delta:
            # total variation is at most sqrt(1 - exp(-KL)), and KL at most any divergence here
            return 0.0
        best = min(best, _converted(value, order, delta))
    return max(0.0, best)


def _at_least(steps: Steps) -> float:
    """Return a bound that no divergence here is below: twice the squared total variation of each
    step (Pinsker), which is that of the dearer of its parts.
    """
    return sum(
        2.0 * count * (kind.rate * max(_overlap(kind.sigma), math.tanh(kind.epsilon / 2.0))) ** 2
        for kind, count in steps
    )


def _overlap(sigma: float) -> float:
    """Total variation of two Gaussians 1 apart."""
    return math.erf(0.5 / (math.sqrt(2.0) * sigma))


def _between(low: int, high: int) -> int:
    """A place between two others, of a whole order if there is one."""
    middle = (low + high) // 2
    whole = [place for place in range(low + 1, high) if ORDERS[place].is_integer()]
    return min(whole, key=lambda place: abs(place - middle)) if whole else middle


@lru_cache(maxsize=64)
def _conversion(delta: float) -> tuple[float, ...]:
    """Return the term that the improved conversion adds at each order."""
    return tuple(_converted(0.0, order, delta) for order in ORDERS)


def _converted(value: float, order: float, delta: float) -> float:
    """epsilon at ``delta`` from a divergence of this order."""
    return value + math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0)


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
    return max(0.0, _converted(value, order, delta))


def fixed_delta(steps: Steps, epsilon: float, order: float) -> float:
    """delta at ``epsilon`` by the same conversion."""
    (value,) = divergences(steps, (order,))
    if math.isinf(value):
        return 1.0
    return math.exp(
        min(0.0, (order - 1.0) * (value - epsilon + math.log1p(-1.0 / order)) - math.log(order))
    )
