"""Intervals over few seeds, and what a claim may conclude from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sordino.extend.runs import CONFIDENCE, at_least, at_most, student

Said = Literal["holds", "does not hold", "cannot be told"]


@dataclass(frozen=True, slots=True)
class Interval:
    """Of a mean: of so many values, at the confidence that was asked for; infinite below two."""

    mean: float
    low: float
    high: float
    count: int


def interval(values: Sequence[float], comparisons: int = 1) -> Interval:
    """Student's interval for the mean, with Bonferroni's correction for so many comparisons.

    Values that are all equal, as counts may be, have an interval of length 0.

    >>> interval([1.0, 2.0, 3.0]).low < 0 < interval([2.0, 2.1, 1.9]).low
    True
    >>> interval([0.5])
    Interval(mean=0.5, low=-inf, high=inf, count=1)
    """
    count = len(values)
    mean = math.fsum(values) / count if count else math.nan
    if count < 2 or not math.isfinite(mean):
        return Interval(mean, -math.inf, math.inf, count)
    found = student(values, _each(comparisons)) or (mean, mean)
    return Interval(mean, *found, count)


def _each(comparisons: int) -> float:
    """The confidence of each, so that all hold together (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / comparisons


def share(successes: int, cases: int, comparisons: int = 1) -> Interval:
    """Clopper and Pearson's interval for a share.

    >>> round(share(9, 10).low, 3)
    0.555
    """
    if not cases:
        return Interval(math.nan, -math.inf, math.inf, 0)
    tail = (1 - _each(comparisons)) / 2
    low, high = at_least(successes, cases, tail), at_most(successes, cases, tail)
    return Interval(successes / cases, low, high, cases)


def above(found: Interval, level: float) -> Said:
    """Test a mean against a level."""
    if found.low > level:
        return "holds"
    return "does not hold" if found.high <= level else "cannot be told"


def between(found: Interval, low: float, high: float) -> Said:
    """Test a mean against a range, ends included."""
    if found.low >= low and found.high <= high:
        return "holds"
    return "does not hold" if found.high < low or found.low > high else "cannot be told"


def together(said: Sequence[Said]) -> Said:
    """Combine verdicts: all must hold; nothing can be told of none.

    >>> together(["holds", "does not hold", "cannot be told"]), together([])
    ('does not hold', 'cannot be told')
    """
    if "does not hold" in said:
        return "does not hold"
    return "holds" if said and set(said) == {"holds"} else "cannot be told"
