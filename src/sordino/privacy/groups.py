r"""Group privacy on an accountant's curve: what ``size`` steps of adjacency cost.

If a history is (epsilon, delta(epsilon)) for one step, for all epsilon, it is for k steps

    ( k epsilon,  delta(epsilon) (1 + e^epsilon + ... + e^((k-1) epsilon)) )

(Vadhan 2017, "The complexity of differential privacy", lemma 2.2). Any epsilon gives a bound, so a
search that does not find the best is still right. Parts of different k compose by adding up
epsilons and deltas (Dwork and Roth 2014, theorem 3.16); each part gets an equal share of delta. Or
everything is taken for a group of the largest k: the lower of the two is shown.

The formula needs the curve at deltas far below the one that is asked for; the accountants have it
down to what floats hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from sordino.privacy.event import Event, Grouped

History = Sequence[tuple[Event, int]]

_LEAST = 1e-280  # of a delta: beyond it floats have nothing to say
_ROUNDS = 60


class Curve(Protocol):
    """An accountant, as far as it is needed here."""

    def epsilon(self, spent: History, delta: float, *, quick: bool = False) -> float: ...
    def delta(self, spent: History, epsilon: float) -> float: ...


def parts(history: History) -> dict[int, list[tuple[Event, int]]]:
    """The history by size of group; what is no group has size 1."""
    found: dict[int, list[tuple[Event, int]]] = {}
    for event, count in history:
        size, inside = (event.size, event.event) if isinstance(event, Grouped) else (1, event)
        found.setdefault(size, []).append((inside, count))
    return found


def epsilon(curve: Curve, history: History, delta: float, *, quick: bool = False) -> float:
    """A bound at ``delta`` on a history with groups in it."""
    by_size = parts(history)
    share = delta / len(by_size)
    apart = math.fsum(
        _of_group(curve, spent, size, share, quick=quick) for size, spent in by_size.items()
    )
    if len(by_size) == 1:
        return apart
    together = _of_group(
        curve,
        [one for spent in by_size.values() for one in spent],
        max(by_size),
        delta,
        quick=quick,
    )
    return min(apart, together)


def delta(curve: Curve, history: History, epsilon: float) -> float:
    """A bound on delta at ``epsilon``; everything is taken for a group of the largest size."""
    by_size = parts(history)
    size = max(by_size)
    each = epsilon / size
    found = curve.delta([one for spent in by_size.values() for one in spent], each)
    factor = _factor(each, size)
    return 1.0 if found and math.isinf(factor) else min(1.0, found * factor if found else 0.0)


def _factor(epsilon: float, size: int) -> float:
    try:
        return math.fsum(math.exp(i * epsilon) for i in range(size)) * (1.0 + 1e-12)
    except OverflowError:
        return math.inf


def _of_group(curve: Curve, spent: History, size: int, delta: float, *, quick: bool) -> float:
    if size == 1:
        return curve.epsilon(spent, delta, quick=quick)
    # The smallest epsilon at which one step's delta, times the factor, is within delta: from below,
    # each answer asks for a smaller delta than the one before. It is accepted only where it was
    # checked.
    tried = 0.0
    for _ in range(_ROUNDS):
        wanted = delta / _factor(tried, size)
        if wanted < _LEAST:
            return math.inf
        needed = curve.epsilon(spent, wanted, quick=quick)
        if needed <= tried:
            return size * tried
        if math.isinf(needed):
            return math.inf
        tried = needed * (1.0 + 1e-3)
    return math.inf
