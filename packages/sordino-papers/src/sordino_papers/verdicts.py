"""Verdicts on claims, by their rules, from intervals over seeds.

A rule becomes comparisons; each is a mean over seeds with an interval, corrected for how many there
are. A claim holds if every comparison does, and does not if one is on the other side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from sordino.extend.runs import CONFIDENCE, at_least, at_most, student
from sordino_papers.cells import Grid, Place
from sordino_papers.measures import Curve, Measure
from sordino_papers.rules import Level, Numbers, Pair, Rule, Wins, mean

Said = Literal["holds", "does not hold", "cannot be told"]
Verdict = Literal["holds", "does not hold", "cannot be told", "needs unpaid privacy"]
Values: TypeAlias = Callable[[Place], Mapping[int, float | Curve]]
"""Values of a measure in a cell, by seed."""

LAST = 0.25  # of a curve, that stands for its end


# Intervals over few seeds, and what a claim may conclude from them


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
    middle = mean(values) if values else math.nan
    if len(values) < 2 or not math.isfinite(middle):
        return Interval(middle, -math.inf, math.inf)
    each = 1 - (1 - CONFIDENCE) / comparisons  # so that all hold together
    return Interval(middle, *(student(values, each) or (middle, middle)))


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


# Verdicts


class Comparison(msgspec.Struct, frozen=True):
    """One of the comparisons of a rule.

    Attributes:
        what: in words.
        mean, low, high: of the number that is compared, None where there is none.
        level: what it must be above; or the range that it must be in.
        count: of seeds or cases.
    """

    what: str
    mean: float | None
    low: float | None
    high: float | None
    level: Level
    count: int
    said: Said

    @classmethod
    def of(cls, what: str, found: Interval, level: Level, count: int) -> Comparison:
        """An interval against a level; without numbers nothing can be told."""
        middle, low, high = (each if math.isfinite(each) else None for each in found)
        said = compared(found, level) if count else "cannot be told"
        return cls(what, middle, low, high, level, count, said)


class Judged(msgspec.Struct, frozen=True):
    """Verdict of the runs of one form on a claim."""

    form: str
    said: Said
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Evidence for a rule: the cells of one form, and one measure."""

    grid: Grid
    form: str
    measure: Measure
    values: Values

    def numbers(self, panel: str, series: str, point: str, part: str = "last") -> Numbers:
        """By seed; of a curve, the mean of its first or last quarter."""
        found = self.values(Place(panel, self.form, series, point))
        return {
            seed: _end(value, part) if isinstance(value, tuple) else value
            for seed, value in found.items()
            if not isinstance(value, tuple) or value
        }

    def places(self, rule: Rule) -> list[tuple[str, str]]:
        """The panels and points that a rule speaks of, those that are run."""
        panels = [each for each in self.grid.panels if not rule.panel or each in rule.panel]
        points = [each for each in self.grid.points if not rule.x or each in rule.x]
        return [(panel, point) for panel in panels for point in points]

    def rows(self, rule: Rule) -> Iterator[tuple[str, list[str]]]:
        """Each panel with its points, where there are at least two."""
        rows: dict[str, list[str]] = {}
        for panel, point in self.places(rule):
            rows.setdefault(panel, []).append(point)
        return ((panel, points) for panel, points in rows.items() if len(points) > 1)

    def words(self, panel: str, what: str, point: str = "") -> str:
        """A comparison in words."""
        names = {each.key: each.label for each in self.grid.entry.panel}
        return ", ".join(filter(None, (names.get(panel, ""), what, point)))

    @property
    def sign(self) -> float:
        """Which way is better."""
        return -1.0 if self.measure.falling else 1.0


def judge(rule: Rule, asked: Asked) -> Judged:
    """Return the verdict of the runs of a form on a rule."""
    if isinstance(rule, Wins):
        won = rule.won(asked)
        what = f"share of {len(won)} cases in which {' or '.join(rule.wins)} is best"
        found = [
            Comparison.of(what, share(sum(won), len(won)), rule.share, len(won)),
        ]
    else:
        pairs: list[Pair] = list(rule.pairs(asked))
        found = [
            Comparison.of(
                each.what,
                interval(each.values, len(pairs)),
                each.level,
                len(each.values),
            )
            for each in pairs
        ]
    return Judged(asked.form, together([each.said for each in found]), tuple(found))


def _end(curve: Curve, part: str) -> float:
    """The mean of the first or last quarter of a curve, at least one point."""
    count = max(int(LAST * len(curve)), 1)
    return mean([y for _, y in (curve[:count] if part == "first" else curve[-count:])])
