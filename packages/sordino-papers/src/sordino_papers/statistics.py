"""Intervals over few seeds, and what a claim may conclude from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from sordino.extend.runs import CONFIDENCE, at_least, at_most, student

Said = Literal["holds", "does not hold", "cannot be told"]


class Interval(NamedTuple):
    """Of a mean, at the confidence that was asked for; infinite for fewer than two values."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float], comparisons: int = 1) -> Interval:
    """Student's interval for the mean, with Bonferroni's correction for so many comparisons.

    Values that are all equal, as counts may be, have an interval of length 0.

    >>> interval([1.0, 2.0, 3.0]).low < 0 < interval([2.0, 2.1, 1.9]).low
    True
    >>> interval([0.5])
    Interval(mean=0.5, low=-inf, high=inf)
    """
    mean = math.fsum(values) / len(values) if values else math.nan
    if len(values) < 2 or not math.isfinite(mean):
        return Interval(mean, -math.inf, math.inf)
    each = 1 - (1 - CONFIDENCE) / comparisons  # so that all hold together
    return Interval(mean, *(student(values, each) or (mean, mean)))


def share(successes: int, cases: int) -> Interval:
    """Clopper and Pearson's interval for a share.

    >>> round(share(9, 10).low, 3)
    0.555
    """
    if not cases:
        return Interval(math.nan, -math.inf, math.inf)
    tail = (1 - CONFIDENCE) / 2
    bounds = at_least(successes, cases, tail), at_most(successes, cases, tail)
    return Interval(successes / cases, *bounds)


def compared(found: Interval, level: float | tuple[float, float]) -> Said:
    """Test a mean: whether it is above a level, or within a range, ends included."""
    if isinstance(level, tuple):
        low, high = level
        holds, fails = low <= found.low and found.high <= high, found.high < low or found.low > high
    else:
        holds, fails = found.low > level, found.high <= level
    return "holds" if holds else "does not hold" if fails else "cannot be told"


def together(said: Sequence[Said]) -> Said:
    """Combine verdicts: all must hold; nothing can be told of none.

    >>> together(["holds", "does not hold", "cannot be told"]), together([])
    ('does not hold', 'cannot be told')
    """
    if "does not hold" in said:
        return "does not hold"
    return "holds" if said and set(said) == {"holds"} else "cannot be told"
