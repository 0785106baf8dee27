r"""The best of a random number of runs: what a private choice among candidates costs.

A base mechanism Q (pick a candidate at random, train it, measure it) is run K times, and only the
best output is released. K has the generating function f(x) = E x^K and is drawn in secret, whatever
the data. Ties are broken at random, so that outputs are ordered completely. With F(y) = Q(at most
y) and Q' and F' on a neighbour, the best has the density f'(F(y)) q(y): its distribution function
is f(F). Hence

    delta_best(epsilon) = int (f'(F) q - e^epsilon f'(F') q')_+
                       <= f'(1) delta_Q(epsilon - L),    L >= log f'(F) / f'(F') everywhere,

since f' rises and f'(1) = E K: a price by the privacy profile of Q (Koskela, Redberg and Wang 2024,
"Privacy profiles for private selection"), where Papernot and Steinke 2022 ("Hyperparameter tuning
with Rényi differential privacy", theorems 2 and 6) have one by Rényi divergences.

With G = 1 - F and G' = 1 - F', a pair of neighbours has for every x >= 0, by the profile in both
directions, G' <= T(G), the least of 1, e^x G + delta_Q(x) and 1 - e^-x (1 - G - delta_Q(x)). So

* truncated negative binomial, f'(x) ~ (1 - (1 - gamma) x)^(-1 - eta), geometric for eta = 1 and
  logarithmic for eta = 0:  L = (1 + eta) max_G log (gamma + (1-gamma) T(G)) / (gamma + (1-gamma)G).
  T is concave and of straight pieces, so the quotient is largest where two pieces meet;
* Poisson, f'(x) = mean e^(mean (x - 1)):  L = mean max_G (T(G) - G) = mean delta_Q(0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

from sordino.privacy.event import Event, Selected
from sordino.privacy.trials import Poisson, Trials, expected

_PROFILE = 24  # points of the base's profile that T is made of
_LOOKED_AT, _FARTHEST = 1e-6, 50.0  # a delta of the base; these epsilons are looked at up to it
_MARGIN = 1e-9  # relative, for rounding in L

History = tuple[tuple[Event, int], ...]


class Curve(Protocol):
    """An accountant, as far as it is needed here; equal names give equal answers."""

    @property
    def name(self) -> str: ...
    def __hash__(self) -> int: ...
    def epsilon(self, spent: History, delta: float, *, quick: bool = False) -> float: ...
    def delta(self, spent: History, epsilon: float) -> float: ...


def epsilon(
    curve: Curve, base: History, trials: Trials, delta: float, *, quick: bool = False
) -> float:
    """A bound at ``delta`` on the best of a random number of runs that cost ``base`` each."""
    if curve.delta(base, 0.0) == 0.0:
        return 0.0
    one = curve.epsilon(base, min(delta / expected(trials), delta), quick=quick)
    return math.inf if math.isinf(one) else one + _ratio(curve, base, trials)


def delta(curve: Curve, base: History, trials: Trials, epsilon: float) -> float:
    """A bound on delta at ``epsilon``; 1 where there is none."""
    whole = curve.delta(base, 0.0)
    if whole == 0.0 or math.isinf(epsilon):
        return whole and curve.delta(base, epsilon)
    least = _ratio(curve, base, trials)
    if epsilon < least:
        return 1.0
    return min(1.0, max(expected(trials), 1.0) * curve.delta(base, epsilon - least))


def among(curve: Curve, history: History, delta: float, *, quick: bool = False) -> float:
    """A bound at ``delta`` on a history with selections in it: each part has its share of delta,
    and epsilons add up (Dwork and Roth 2014, theorem 3.16).
    """
    chosen, rest = _parts(history)
    share = delta / (len(chosen) + bool(rest))
    each = {
        one: epsilon(curve, ((one.event, 1),), one.trials, share, quick=quick) for one in chosen
    }
    others = curve.epsilon(rest, share, quick=quick) if rest else 0.0
    return math.fsum((*(each[one] for one in chosen), others))


def delta_among(curve: Curve, history: History, epsilon: float) -> float:
    """A bound on delta at ``epsilon``, which is divided among the parts by what they cost."""
    chosen, rest = _parts(history)
    costs = [among(curve, ((one, 1),), 1e-6) for one in chosen]
    costs += [curve.epsilon(rest, 1e-6)] if rest else []
    whole = math.fsum(costs)
    if math.isinf(whole) or whole == 0.0:
        return 0.0 if whole == 0.0 else 1.0
    found = [
        delta(curve, ((one.event, 1),), one.trials, epsilon * cost / whole)
        for one, cost in zip(chosen, costs, strict=False)
    ]
    found += [curve.delta(rest, epsilon * costs[-1] / whole)] if rest else []
    return min(1.0, math.fsum(found))


def _parts(history: History) -> tuple[list[Selected], History]:
    """Every selection by itself, and the rest."""
    chosen = [
        event for event, count in history if isinstance(event, Selected) for _ in range(count)
    ]
    return chosen, tuple(one for one in history if not isinstance(one[0], Selected))


Profile = Callable[[float], float]
"""delta of the base at an epsilon from 0: an upper bound, in both directions."""


@lru_cache(maxsize=4096)
def _ratio(curve: Curve, base: History, trials: Trials) -> float:
    """L; the same for every delta, so that epsilon and delta are each other's inverse."""
    upto = min(curve.epsilon(base, _LOOKED_AT, quick=True), _FARTHEST)
    return ratio(trials, lambda x: curve.delta(base, x), upto)


def ratio(trials: Trials, profile: Profile, upto: float) -> float:
    """L, by the base's profile at epsilons from 0 to ``upto``; any of them give a bound."""
    if isinstance(trials, Poisson):
        return trials.mean * profile(0.0) * (1.0 + _MARGIN)
    lines: list[tuple[float, float]] = [(0.0, 1.0)]
    for k in range(_PROFILE + 1):
        x = upto * k / _PROFILE
        delta = min(1.0, profile(x))
        lines += [
            (math.exp(x), delta),
            (math.exp(-x), -math.expm1(-x) + math.exp(-x) * delta),
        ]
    return (1.0 + trials.eta) * _steepest(trials.gamma, lines) * (1.0 + _MARGIN)


def _steepest(gamma: float, lines: Sequence[tuple[float, float]]) -> float:
    """max_G log of the quotient, where T(G) is the lowest of lines (slope, height at 0)."""
    import numpy as np

    slope, height = np.array(lines).T
    with np.errstate(divide="ignore", invalid="ignore"):
        meet: Any = (height[None, :] - height[:, None]) / (slope[:, None] - slope[None, :])
    places = np.unique(
        np.concatenate(([0.0, 1.0], meet[np.isfinite(meet) & (meet > 0.0) & (meet < 1.0)]))
    )
    highest = np.min(slope[:, None] * places + height[:, None], axis=0)
    quotient = (gamma + (1.0 - gamma) * highest) / (gamma + (1.0 - gamma) * places)
    return max(0.0, math.log(float(quotient.max())))
