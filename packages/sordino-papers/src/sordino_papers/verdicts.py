"""Verdicts on claims, by their rules, from intervals over seeds.

A rule becomes comparisons, each of a mean over seeds with where the claim asks it to be. A claim
holds if every one does: each is a test at its own level then, since the claim is shown only if all
are (an intersection-union test: Berger 1982, Technometrics 24, theorem 1). It does not hold if one
is shown to be elsewhere: that is told of the worst of several, so Bonferroni's correction is due.

A claim that two things are as good asks for a mean between two bounds, which stand in the
catalogue: both are tested one-sided at 5 %, so that the interval at 90 % must lie between them
(TOST: Schuirmann 1987, J. Pharmacokinet. Biopharm. 15). A difference that is not found is no
equivalence.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from scipy.stats import norm, t  # type: ignore[import-untyped]

from sordino.extend.runs import CONFIDENCE, at_least, at_most, student
from sordino_papers.cells import Grid, Place
from sordino_papers.measures import Curve, Measure, Until
from sordino_papers.rules import Asked, Numbers, Pair, Rule, Wins, mean, minus

Said = Literal["holds", "does not hold", "cannot be told", "not run"]
SAID: tuple[Said, ...] = ("holds", "does not hold", "cannot be told", "not run")
Values: TypeAlias = Callable[[Place], Mapping[int, float | Curve]]
"""Values of a measure in a cell, by seed."""

TIE = 1e-6  # as much of an interval is the rounding of a mean of zero
LAST = 0.25  # of a curve, that stands for its end
EQUIVALENT = 2 * CONFIDENCE - 1  # the interval of two one-sided tests


# Intervals over few seeds, and what a claim may conclude from them


class Interval(NamedTuple):
    """Of a mean, at the confidence that was asked for; infinite for fewer than two values."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Student's interval for the mean.

    Values that are all equal, as counts may be, have an interval of length 0.

    >>> interval([1.0, 2.0, 3.0]).low < 0 < interval([2.0, 2.1, 1.9]).low
    True
    >>> interval([0.5])
    Interval(mean=0.5, low=-inf, high=inf)
    """
    middle = mean(values) if values else math.nan
    if len(values) < 2 or not math.isfinite(middle):
        return Interval(middle, -math.inf, math.inf)
    return Interval(middle, *(student(values, confidence) or (middle, middle)))


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


def compared(kept: Interval, refuted: Interval, asked: Asked) -> Said:
    """Test a mean.

    Args:
        kept: its interval, which must lie where the claim asks it to be.
        refuted: its interval, corrected for how many are compared, which must lie elsewhere.
    """
    low, high = asked.low, asked.high
    if asked.closed:
        if low <= kept.low and kept.high <= high:
            return "holds"
        return "does not hold" if refuted.high < low or refuted.low > high else "cannot be told"
    if low < kept.low and kept.high < high:
        return "holds"
    return "does not hold" if refuted.high <= low or refuted.low >= high else "cannot be told"


def together(said: Sequence[Said]) -> Said:
    """Combine verdicts: all must hold.

    >>> together(["holds", "does not hold", "cannot be told"]), together([])
    ('does not hold', 'not run')
    """
    if "does not hold" in said:
        return "does not hold"
    return said[0] if len(set(said)) == 1 else "cannot be told" if said else "not run"


# Verdicts


Unit = Literal["points", "%", "times", ""]


class Comparison(msgspec.Struct, frozen=True):
    """One of the comparisons of a rule.

    Attributes:
        what: in words.
        mean, low, high: of the number that is compared, None where there is none; the interval is
            the one that must lie where the claim asks.
        above, below: where the claim asks the mean to be; None where nothing is asked.
        printed: the number of the paper in its place.
        unit: "points" of a share, "%" of cases; "times", where these are logarithms of ratios.
        count: of seeds or cases.
    """

    what: str
    mean: float | None
    low: float | None
    high: float | None
    above: float | None
    below: float | None
    printed: float | None
    unit: Unit
    count: int
    said: Said

    @classmethod
    def of(cls, pair: Pair, comparisons: int, unit: Unit = "") -> Comparison:
        """A mean over seeds, one of so many that are compared."""
        if pair.exact:
            number = Interval(pair.values[0], pair.values[0], pair.values[0])
            return cls.between(pair, number, number, 1)
        near = all(map(math.isfinite, (pair.asked.low, pair.asked.high)))
        confidence = EQUIVALENT if near else CONFIDENCE
        kept = interval(pair.values, confidence)
        refuted = interval(pair.values, 1 - (1 - CONFIDENCE) / comparisons)
        return cls.between(pair, kept, refuted, len(pair.values), unit)

    @classmethod
    def between(
        cls, pair: Pair, kept: Interval, refuted: Interval, count: int, unit: Unit = ""
    ) -> Comparison:
        """Intervals against what is asked; of nothing nothing is run."""
        return cls(
            pair.what,
            _finite(kept.mean),
            _finite(kept.low),
            _finite(kept.high),
            _finite(pair.asked.low),
            _finite(pair.asked.high),
            pair.printed,
            "times" if pair.ratio else unit,
            count,
            compared(kept, refuted, pair.asked) if count else "not run",
        )

    @property
    def untied(self) -> Comparison:
        """As it is, but nothing can be told of a tie: of two that reach a level between the same
        two rows of the log, or of which neither does.
        """
        tied = self.count and (self.mean, self.low, self.high) == (0.0, 0.0, 0.0)
        return msgspec.structs.replace(self, said="cannot be told") if tied else self

    @property
    def margin(self) -> float:
        """The distance of the mean on the claimed side, relative to how wide its interval is."""
        if self.mean is None or self.low is None or self.high is None:
            return -math.inf
        ends = [] if self.above is None else [self.mean - self.above]
        ends += [] if self.below is None else [self.below - self.mean]
        return min(ends, default=0.0) / (self.high - self.low + 1e-12)

    def needed(self, comparisons: int) -> Need:
        """The number that would tell this one of so many."""
        ends = [end for end in (self.above, self.below) if end is not None]
        if self.mean is None or self.low is None or self.high is None or not ends:
            return Need(math.inf, False, self)
        above = math.inf if self.above is None else self.mean - self.above
        below = math.inf if self.below is None else self.below - self.mean
        against, distance = min(above, below) <= 0, abs(min(above, below))
        if distance <= TIE * (self.high - self.low) or self.low == self.high:
            return Need(math.inf, against, self)
        if self.unit == "%":  # Clopper and Pearson's interval, wider than the normal by 1/n
            z = float(norm.ppf((1 + CONFIDENCE) / 2))
            return Need(math.ceil((z / 2 / distance) ** 2 + 1 / distance), against, self)
        level = (1 + (EQUIVALENT if len(ends) == 2 else CONFIDENCE)) / 2
        half = (self.high - self.low) / 2
        deviation = half * math.sqrt(self.count) / float(t.ppf(level, self.count - 1))
        if against:
            level = 1 - (1 - CONFIDENCE) / 2 / comparisons
        seeds = max(math.ceil((float(norm.ppf(level)) * deviation / distance) ** 2), 2)
        while float(t.ppf(level, seeds - 1)) * deviation >= distance * math.sqrt(seeds):
            seeds += 1
        return Need(seeds, against, self)


class Need(NamedTuple):
    """The number of seeds, or cases of a share, that would tell at the mean and deviation found.

    Attributes:
        number: infinite where no number of them would.
        against: whether the claim would not hold then.
        of: the comparison that takes so many.
    """

    number: float
    against: bool
    of: Comparison

    @staticmethod
    def together(needs: Sequence[Need]) -> Need:
        """Of what must all hold: the first that is refuted, or else the last that is shown."""
        against = [each for each in needs if each.against]
        number = operator.attrgetter("number")
        return min(against, key=number) if against else max(needs, key=number)


class Judged(msgspec.Struct, frozen=True):
    """Verdict of the runs of one form on a claim."""

    form: str
    said: Said
    comparisons: tuple[Comparison, ...]

    @property
    def decisive(self) -> Comparison | None:
        """The comparison that is the farthest from the claimed side."""
        run = [each for each in self.comparisons if each.count]
        return min(run, key=lambda each: each.margin, default=None)

    @property
    def needed(self) -> Need | None:
        """The number that would tell; None where something is told."""
        if self.said in ("holds", "does not hold") or not self.comparisons:
            return None
        open_ = [each for each in self.comparisons if each.said != "holds"]
        return Need.together([each.needed(len(self.comparisons)) for each in open_])


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
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

    def printed(self, panel: str, series: str, point: str, minus: str = "") -> float | None:
        """The paper's number there, or its gain over a series; None if it prints none."""
        entry = self.grid.entry
        for each in entry.published:
            shown = entry.shown[each.shown]
            told = each.panel, each.series, each.x, shown.measure, shown.minus
            if told == (panel, series, point, self.measure, minus):
                return each.value / 100 if self.measure.percent else each.value
        return None

    def gain(self, panel: str, one: str, other: str, point: str) -> float | None:
        """The paper's difference between two series; None if it prints none."""
        first, second = (self.printed(panel, series, point) for series in (one, other))
        if first is None or second is None:
            return self.printed(panel, one, point, other)
        return first - second

    def step(self, panel: str, series: str, low: str, high: str, asked: Asked) -> Pair:
        """Change of a series from one point to another."""
        first, last = (self.numbers(panel, series, point) for point in (low, high))
        before, after = (self.printed(panel, series, point) for point in (low, high))
        printed = None if before is None or after is None else after - before
        what = self.change(panel, series, high, low)
        return Pair(what, list(minus(last, first).values()), asked, printed)

    def ahead(self, by: float) -> Asked:
        """Ask a difference to be better by more than so much, whichever way that is."""
        return Asked(high=0.0 - by) if self.measure.falling else Asked(low=by)

    def places(self, rule: Rule) -> list[tuple[str, str]]:
        """The panels and points that a rule speaks of, those that are run."""
        panels = [each for each in self.grid.panels if not rule.panel or each in rule.panel]
        return [
            (panel, point)
            for panel in panels
            for point in self.grid.points_of(panel)
            if not rule.x or point in rule.x
        ]

    def rows(self, rule: Rule) -> Iterator[tuple[str, list[str]]]:
        """Each panel with its points, where there are at least two."""
        rows: dict[str, list[str]] = {}
        for panel, point in self.places(rule):
            rows.setdefault(panel, []).append(point)
        return ((panel, points) for panel, points in rows.items() if len(points) > 1)

    def name(self, series: str) -> str:
        """A series as people read it."""
        return next(each.label for each in self.grid.entry.series if each.key == series)

    def axis(self, point: str) -> str:
        """Of what a point is the number, if it is one."""
        x = self.grid.entry.x
        number = point[:1] in tuple("-0123456789") and "=" not in point
        return x.label.split(" (")[0] if x and number else ""

    def words(self, panel: str, what: str, point: str = "") -> str:
        """A comparison in words: of what, where, between whom."""
        names = {each.key: each.label for each in self.grid.entry.panel}
        shown = [each for each in self.grid.entry.shown if not each.minus]
        titles = {each.measure: each.title.split(" (")[0] for each in shown}
        told = titles.get(self.measure) or self.measure.told
        told = "" if self.measure.told == "accuracy" else told
        point = " = ".join(filter(None, (self.axis(point), point)))
        return ", ".join(filter(None, (told, names.get(panel, ""), what, point)))

    def change(self, panel: str, series: str, one: str, other: str) -> str:
        """A comparison of two points in words."""
        head = ", ".join(filter(None, (self.name(series), self.axis(other))))
        return self.words(panel, f"{head}: {one} minus {other}")

    @property
    def sign(self) -> float:
        """Which way is better."""
        return -1.0 if self.measure.falling else 1.0


def judge(rule: Rule, evidence: Evidence) -> Judged:
    """Return the verdict of the runs of a form on a rule."""
    if isinstance(rule, Wins):
        won = rule.won(evidence)
        best = " or ".join(evidence.name(each) for each in rule.wins)
        what = f"share of {len(won)} cases in which {best} is best"
        found, asked = share(sum(won), len(won)), Asked(low=rule.share)
        pair = Pair(what, [], asked, rule.printed(evidence))
        comparisons = [Comparison.between(pair, found, found, len(won), "%")]
    else:
        pairs = list(rule.pairs(evidence))
        unit: Unit = "points" if evidence.measure.percent else ""
        comparisons = [Comparison.of(each, len(pairs), unit) for each in pairs]
        if isinstance(evidence.measure, Until):
            comparisons = [each.untied for each in comparisons]
    said = together([each.said for each in comparisons])
    return Judged(evidence.form, said, tuple(comparisons))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _end(curve: Curve, part: str) -> float:
    """The mean of the first or last quarter of a curve, at least one point."""
    count = max(int(LAST * len(curve)), 1)
    return mean([y for _, y in (curve[:count] if part == "first" else curve[-count:])])
