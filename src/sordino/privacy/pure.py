r"""Steps of a flattened history; and pure ones, composed: exactly what can be learned from them.

A pair of answers within e^epsilon of each other is a function of randomised response (Kairouz, Oh
and Viswanath 2015, theorem 3.4): a bit that is 1 with probability e^epsilon / (1 + e^epsilon) with
the record, and with probability 1 / (1 + e^epsilon) without. So nothing is worse than that bit, and
on a Poisson sample of rate q nothing is worse than the bit on a sample (the function does not ask
who was drawn). Its loss, with the record against without, takes two values:

    up    =  log(1 + q (e^epsilon - 1)),        the amplified epsilon, at a 1;
    -down =  log(1 - q (1 - e^-epsilon)),       at a 0;     down = up = epsilon if q = 1.

k steps lie on a line: K ones cost K up - (k - K) down, and K is binomial under either side. Hence

    delta(x) = sum_j P(K = j) (1 - e^(x - loss_j))_+ ,

the larger of both directions, is exact, with no grid: the optimal composition of Kairouz, Oh and
Viswanath if q = 1, and less than that of the amplified epsilon if q < 1. No delta at all is needed
from k up on: basic composition.

Beside other kinds of steps the k-fold loss is put on a grid once, by connecting the dots: an atom
between two points is divided among them so that both sides keep their mass. Whoever cannot tell the
parts apart is back at the atom, so the parts tell no less.

>>> step = Kind(0.001, epsilon=0.1)
>>> round(most(step, 15_000), 2)  # by basic composition
1.58
>>> f"{delta(step, 15_000, 0.036):.1g}"  # the delta that a smaller epsilon takes
'5e-06'

References: Kairouz, Oh and Viswanath 2015, The Composition Theorem for Differential Privacy; Zhu,
Dong and Wang 2022, Optimal accounting of differential privacy via characteristic function, theorem
11 (sampling).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_MOST_TERMS = 4e6
_LEAST = 1e-18  # probability that is put to infinity, or up to the lowest loss, when a grid is made
_MARGIN = 1e-9  # relative, for rounding in the probabilities, which was seen to reach 6e-11
_SLACK = 1e-15  # for rounding in a loss, relative to the largest


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """One step of a flattened history: a Gaussian and a pure release of one Poisson sample.

    It is what all releases from one sample come to; equal kinds compose k-fold. Accountants work on
    these, and no longer on events: a history is a sorted tuple of kinds of steps and how often each
    was taken.

    >>> Kind(0.015, sigma=1.1) < Kind(0.015, sigma=2.0) < Kind(1.0, epsilon=0.5)
    True

    Attributes:
        rate: q in (0, 1]; 1 means not sampled.
        sigma: noise multiplier of the Gaussian; infinite where there is none.
        epsilon: of the pure release; 0 where there is none.
        rows: how many rows fall away together, each in the sample by itself. More than one only of
            a Gaussian that is sampled: of other releases :attr:`together` is priced.
    """

    rate: float
    sigma: float = math.inf
    epsilon: float = 0.0
    rows: int = 1

    @property
    def gaussian(self) -> bool:
        """Tell whether there is nothing but a Gaussian."""
        return self.epsilon == 0.0

    @property
    def pure(self) -> bool:
        """Tell whether there is nothing but a pure release."""
        return math.isinf(self.sigma)

    @property
    def together(self) -> Kind:
        """A step of one row that costs no less: a row that is drawn where any is, and moves the
        release as far as all of them (docs/mathematics.md, "k records of one person in one set").
        """
        if self.rows == 1:
            return self
        met = 1.0 if self.rate == 1.0 else -math.expm1(self.rows * math.log1p(-self.rate))
        sigma = self.sigma / self.rows
        return Kind(
            priced_rate(min(1.0, met * (1.0 + 1e-12))),
            sigma if sigma * self.rows <= self.sigma else math.nextafter(sigma, 0.0),
            math.nextafter(self.epsilon * self.rows, math.inf) if self.epsilon else 0.0,
        )


Steps = tuple[tuple[Kind, int], ...]  # each kind once, sorted


def priced_rate(rate: float) -> float:
    """A sampling rate that floating point can work with, never lower: a larger sample costs more.

    >>> priced_rate(0.25), priced_rate(5e-324), priced_rate(1 - 2**-53)
    (0.25, 1e-12, 1.0)
    """
    return 1.0 if rate > 1.0 - 1e-12 else max(rate, 1e-12)


def losses(kind: Kind) -> tuple[float, float]:
    """(up, down) of one step."""
    q, x = kind.rate, kind.epsilon
    if q == 1.0:
        return x, x
    up = math.log1p(q * math.expm1(x)) if x < 30.0 else x + math.log(q + (1.0 - q) * math.exp(-x))
    return up, -math.log1p(q * math.expm1(-x))


def most(kind: Kind, count: int) -> float:
    """The largest loss of ``count`` steps: with it as epsilon, delta is 0."""
    return count * losses(kind)[0]


def variance(kind: Kind) -> float:
    """Of the loss of one step, with the record."""
    chance = _chance(kind, with_record=True)
    return chance * (1.0 - chance) * sum(losses(kind)) ** 2


def span(kind: Kind, count: int) -> float:
    """About how far apart the losses of ``count`` steps lie, but for what is hardly reached."""
    chance = _chance(kind, with_record=True)
    return sum(losses(kind)) * min(count, 20.0 * math.sqrt(count * chance * (1.0 - chance)) + 90.0)


def delta(kind: Kind, count: int, epsilon: float) -> float:
    """delta of ``count`` steps at ``epsilon``; 1 where there are too many to add up."""
    import numpy as np

    if epsilon >= most(kind, count):
        return 0.0
    found = 0.0
    for with_record in (True, False):
        composed = _composed(kind, count, with_record)
        if composed is None:
            return 1.0
        loss, mass = composed
        found = max(found, float(mass @ -np.expm1(-np.maximum(loss - epsilon, 0.0))))
    return min(1.0, found)


def on_grid(
    kind: Kind, count: int, grid: float, *, with_record: bool
) -> tuple[int, Any, float] | None:
    """The loss of ``count`` steps on multiples of ``grid``: lowest, probabilities, infinity's."""
    import numpy as np

    composed = _composed(kind, count, with_record)
    if composed is None:
        return None
    loss, mass = composed if with_record else (composed[0][::-1], composed[1][::-1])  # rising
    first = int(np.searchsorted(np.cumsum(mass), _LEAST))
    last = len(mass) - int(np.searchsorted(np.cumsum(mass[::-1]), _LEAST))
    infinite = float(mass[last:].sum())
    kept = mass[first:last].copy()
    kept[0] += mass[:first].sum()
    cell = np.floor(loss[first:last] / grid)
    share = np.clip(np.expm1(cell * grid - loss[first:last]) / math.expm1(-grid), 0.0, 1.0)
    lowest = int(cell[0])
    place = (cell - lowest).astype(np.int64)
    length = int(place[-1]) + 2
    found = np.bincount(place, kept * (1.0 - share), length) + np.bincount(
        place + 1, kept * share, length
    )
    return lowest, found, infinite


def _chance(kind: Kind, with_record: bool) -> float:
    """Of a 1."""
    one = 1.0 / (1.0 + math.exp(-kind.epsilon))
    zero = one * math.exp(-kind.epsilon)
    return kind.rate * one + (1.0 - kind.rate) * zero if with_record else zero


def _log_odds(kind: Kind, with_record: bool) -> float:
    """Of a 1 against a 0."""
    q, x = kind.rate, kind.epsilon
    if q == 1.0 or not with_record:
        return x if with_record else -x
    return math.log(q + (1.0 - q) * math.exp(-x)) - math.log(q * math.exp(-x) + (1.0 - q))


@lru_cache(maxsize=8)
def _composed(kind: Kind, count: int, with_record: bool) -> tuple[Any, Any] | None:
    """Losses of ``count`` steps by the number of ones, and probabilities; None: too many.

    Numbers of ones that are left out have a probability below 1e-300 (Bernstein's inequality).
    """
    import numpy as np

    chance, odds = _chance(kind, with_record), _log_odds(kind, with_record)
    reach = 40.0 * math.sqrt(count * chance * (1.0 - chance)) + 500.0
    low = max(0, math.floor(count * chance - reach))
    high = min(count, math.ceil(count * chance + reach))
    if high - low > _MOST_TERMS:
        return None
    ones = np.arange(low, high + 1, dtype=np.float64)
    # From one number to the next the binomial's logarithm changes by this; sums start where it is
    # highest.
    change = np.log((count - ones[:-1]) / (ones[:-1] + 1.0)) + odds
    top = int(np.searchsorted(-change, 0.0))  # change falls
    log_mass = np.concatenate(
        (-np.cumsum(change[:top][::-1])[::-1], [0.0], np.cumsum(change[top:]))
    )
    mass = np.exp(log_mass)
    mass *= (1.0 + _MARGIN) / mass.sum()
    up, down = losses(kind)
    loss = ones * up - (count - ones) * down
    return (loss if with_record else -loss) + _SLACK * count * up, mass
