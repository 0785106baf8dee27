r"""Parts of a history that stand by themselves: groups of records, and the best of several runs.

Each part has a share of delta, and epsilons add up (Dwork and Roth 2014, theorem 3.16).

**Group privacy** on an accountant's curve: what ``size`` steps of adjacency cost. If a history is
(epsilon, delta(epsilon)) for one step, for all epsilon, it is for k steps

    ( k epsilon,  delta(epsilon) (1 + e^epsilon + ... + e^((k-1) epsilon)) )

(Vadhan 2017, "The complexity of differential privacy", lemma 2.2). Any epsilon gives a bound, so a
search that does not find the best is still right. Parts of different k compose by adding up
epsilons and deltas (Dwork and Roth 2014, theorem 3.16); each part gets an equal share of delta. Or
everything is taken for a group of the largest k: the lower of the two is shown.

The formula needs the curve at deltas far below the one that is asked for; the accountants have it
down to what floats hold.

**The best of a random number of runs**: what a private choice among candidates costs. A base
mechanism Q (pick a candidate at random, train it, measure it) is run K times, and only the best
output is released. K has the generating function f(x) = E x^K and is drawn in secret, whatever
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

>>> law("geometric", 10.0)
NegativeBinomial(eta=1.0, gamma=0.1)
>>> round(expected(law("logarithmic", 10.0)), 6)
10.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sordino.base.errors import StudyError
from sordino.privacy.event import (
    LARGEST_MEAN,
    Event,
    Grouped,
    History,
    NegativeBinomial,
    Poisson,
    Selected,
    Trials,
)

if TYPE_CHECKING:
    from sordino.privacy.accounting import Accountant

_LEAST = 1e-280  # of a delta: beyond it floats have nothing to say
_ROUNDS = 60
_SUMMED = 1 << 16  # terms of a group's factor that are added up one by one
_PROFILE = 24  # points of the base's profile that T is made of
_LOOKED_AT, _FARTHEST = 1e-6, 50.0  # a delta of the base; these epsilons are looked at up to it
_MARGIN = 1e-9  # relative, for rounding in L


def _by_size(history: History) -> dict[int, list[tuple[Event, int]]]:
    """The history by size of group; what is no group has size 1."""
    found: dict[int, list[tuple[Event, int]]] = {}
    for event, count in history:
        size, inside = (event.size, event.event) if isinstance(event, Grouped) else (1, event)
        found.setdefault(size, []).append((inside, count))
    return found


def grouped_epsilon(
    by: Accountant, history: History, delta: float, *, quick: bool = False
) -> float:
    """A bound at ``delta`` on a history with groups in it."""
    by_size = _by_size(history)
    share = delta / len(by_size)
    apart = math.fsum(
        _of_group(by, spent, size, share, quick=quick) for size, spent in by_size.items()
    )
    if len(by_size) == 1:
        return apart
    together = _of_group(
        by, [one for spent in by_size.values() for one in spent], max(by_size), delta, quick=quick
    )
    return min(apart, together)


def grouped_delta(by: Accountant, history: History, epsilon: float) -> float:
    """A bound on delta at ``epsilon``; everything is taken for a group of the largest size."""
    by_size = _by_size(history)
    size = max(by_size)
    each = epsilon / size
    found = by.delta(tuple(one for spent in by_size.values() for one in spent), each)
    factor = _factor(each, size)
    return 1.0 if found and math.isinf(factor) else min(1.0, found * factor if found else 0.0)


def _factor(epsilon: float, size: int) -> float:
    try:
        if size > _SUMMED:  # a ledger of somebody else may name any number
            steps = math.expm1(size * epsilon) / math.expm1(epsilon) if epsilon else float(size)
            return steps * (1.0 + 1e-9)
        return math.fsum(math.exp(i * epsilon) for i in range(size)) * (1.0 + 1e-12)
    except OverflowError:
        return math.inf


def _of_group(
    by: Accountant, spent: Sequence[tuple[Event, int]], size: int, delta: float, *, quick: bool
) -> float:
    if size == 1:
        return by.epsilon(tuple(spent), delta, quick=quick)
    # The smallest epsilon at which one step's delta, times the factor, is within delta: from below,
    # each answer asks for a smaller delta than the one before. It is accepted only where it was
    # checked.
    tried = 0.0
    for _ in range(_ROUNDS):
        wanted = delta / _factor(tried, size)
        if wanted < _LEAST:
            return math.inf
        needed = by.epsilon(tuple(spent), wanted, quick=quick)
        if needed <= tried:
            return size * tried
        if math.isinf(needed):
            return math.inf
        tried = needed * (1.0 + 1e-3)
    return math.inf


def best_epsilon(
    by: Accountant, base: History, trials: Trials, delta: float, *, quick: bool = False
) -> float:
    """A bound at ``delta`` on the best of a random number of runs that cost ``base`` each."""
    if by.delta(base, 0.0) == 0.0:
        return 0.0
    one = by.epsilon(base, min(delta / expected(trials), delta), quick=quick)
    return math.inf if math.isinf(one) else one + _ratio(by, base, trials)


def best_delta(by: Accountant, base: History, trials: Trials, epsilon: float) -> float:
    """A bound on delta at ``epsilon``; 1 where there is none."""
    whole = by.delta(base, 0.0)
    if whole == 0.0 or math.isinf(epsilon):
        return whole and by.delta(base, epsilon)
    least = _ratio(by, base, trials)
    if epsilon < least:
        return 1.0
    return min(1.0, max(expected(trials), 1.0) * by.delta(base, epsilon - least))


def selected_epsilon(
    by: Accountant, history: History, delta: float, *, quick: bool = False
) -> float:
    """A bound at ``delta`` on a history with selections in it: each part has its share of delta,
    and epsilons add up (Dwork and Roth 2014, theorem 3.16).
    """
    chosen, rest = _parts(history)
    share = delta / (len(chosen) + bool(rest))
    each = {
        one: best_epsilon(by, ((one.event, 1),), one.trials, share, quick=quick) for one in chosen
    }
    others = by.epsilon(rest, share, quick=quick) if rest else 0.0
    return math.fsum((*(each[one] for one in chosen), others))


def selected_delta(by: Accountant, history: History, epsilon: float) -> float:
    """A bound on delta at ``epsilon``, which is divided among the parts by what they cost."""
    chosen, rest = _parts(history)
    costs = [selected_epsilon(by, ((one, 1),), 1e-6) for one in chosen]
    costs += [by.epsilon(rest, 1e-6)] if rest else []
    whole = math.fsum(costs)
    if math.isinf(whole) or whole == 0.0:
        return 0.0 if whole == 0.0 else 1.0
    found = [
        best_delta(by, ((one.event, 1),), one.trials, epsilon * cost / whole)
        for one, cost in zip(chosen, costs, strict=False)
    ]
    found += [by.delta(rest, epsilon * costs[-1] / whole)] if rest else []
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
def _ratio(by: Accountant, base: History, trials: Trials) -> float:
    """L; the same for every delta, so that epsilon and delta are each other's inverse."""
    upto = min(by.epsilon(base, _LOOKED_AT, quick=True), _FARTHEST)
    return ratio(trials, lambda x: by.delta(base, x), upto)


def ratio(trials: Trials, profile: Profile, upto: float) -> float:
    """L, by the base's profile at epsilons from 0 to ``upto``; any of them give a bound."""
    if isinstance(trials, Poisson):
        return trials.mean * profile(0.0) * (1.0 + _MARGIN)
    lines: list[tuple[float, float]] = [(0.0, 1.0)]
    for k in range(_PROFILE + 1):
        x = upto * k / _PROFILE
        delta = min(1.0, profile(x))
        lines += [(math.exp(x), delta), (math.exp(-x), -math.expm1(-x) + math.exp(-x) * delta)]
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


# --- numbers of runs

LAWS = ("geometric", "logarithmic", "poisson")


def law(name: str, mean: float) -> Trials:
    """The distribution of this name with ``mean`` trials expected.

    Raises:
        StudyError: if there is none.
    """
    if name not in LAWS:
        raise StudyError(f"the number of trials is {', '.join(LAWS)}; got {name!r}")
    if name == "poisson":
        return Poisson(mean=mean)
    if not 1.0 < mean <= LARGEST_MEAN:
        raise StudyError(
            f"a {name} number of trials is at least 1, so its mean must lie in (1, 1e6]; "
            f"got {mean:g}"
        )
    return NegativeBinomial(1.0, 1.0 / mean) if name == "geometric" else _logarithmic(mean)


def _logarithmic(mean: float) -> NegativeBinomial:
    low, high = 1e-12, 1.0 - 1e-12  # gamma by bisection: the mean falls as it rises
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _mean(0.0, middle) > mean else (low, middle)
    return NegativeBinomial(0.0, high)


def _mean(eta: float, gamma: float) -> float:
    if eta == 0.0:
        return (1.0 / gamma - 1.0) / -math.log(gamma)
    return eta * (1.0 - gamma) / (gamma * -math.expm1(eta * math.log(gamma)))


def expected(trials: Trials) -> float:
    """E K."""
    return trials.mean if isinstance(trials, Poisson) else _mean(trials.eta, trials.gamma)


def missed(trials: Trials, candidates: int) -> float:
    """The chance that one candidate of so many, drawn at random in each trial, is never tried."""
    x = 1.0 - 1.0 / candidates
    if isinstance(trials, Poisson):
        return math.exp(-trials.mean / candidates)
    left = 1.0 - (1.0 - trials.gamma) * x
    if trials.eta == 0.0:
        return math.log(left) / math.log(trials.gamma)
    whole = math.expm1(-trials.eta * math.log(trials.gamma))
    return math.expm1(-trials.eta * math.log(left)) / whole


def number(trials: Trials, uniform: float, normal: Callable[[float], int]) -> int:
    """K from one uniform number in [0, 1) by its distribution function, or from ``normal`` (which
    draws a Poisson number of the mean that it is given).
    """
    if isinstance(trials, Poisson):
        return normal(trials.mean)
    chance, k = _first(trials), 1
    below = chance
    while below <= uniform and chance > 0.0:
        chance *= (1.0 - trials.gamma) * (k + trials.eta) / (k + 1)
        k += 1
        below += chance
    return k


def _first(trials: NegativeBinomial) -> float:
    """P(K = 1)."""
    gamma, eta = trials.gamma, trials.eta
    if eta == 0.0:
        return (1.0 - gamma) / -math.log(gamma)
    return eta * (1.0 - gamma) / math.expm1(-eta * math.log(gamma))


OF = "-best-of-"
"""Between the base accountant and the number of trials of which one is released."""


@lru_cache(maxsize=64)
def named(name: str) -> tuple[str, Trials] | None:
    """The base accountant and the number of trials in ``BASE-best-of-LAW@MEAN``; None for others.

    >>> named("pld-best-of-geometric@4")
    ('pld', NegativeBinomial(eta=1.0, gamma=0.25))
    """
    base, of, rest = name.partition(OF)
    kind, at, mean = rest.partition("@")
    if not of or not at or kind not in LAWS:
        return None
    try:
        return base, law(kind, float(mean))
    except ValueError:
        return None


def name_of(base: str, kind: str, mean: float) -> str:
    """The same name, from its parts."""
    return f"{base}{OF}{kind}@{mean:g}"
