"""Verdicts on claims, by their rules, from intervals over seeds.

A rule becomes comparisons; each is a mean over seeds with an interval, corrected for how many there
are. A claim holds if every comparison does, and does not if one is on the other side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import pairwise
from typing import Literal, TypeAlias

import msgspec

from sordino_papers import rules, statistics
from sordino_papers.cells import Grid, Place
from sordino_papers.measures import Curve, Measure
from sordino_papers.rules import Rule
from sordino_papers.statistics import Interval, Said

Verdict = Literal["holds", "does not hold", "cannot be told", "needs unpaid privacy"]
Numbers: TypeAlias = Mapping[int, float]
"""By seed."""
Values: TypeAlias = Callable[[Place], Mapping[int, float | Curve]]
"""Values of a measure in a cell, by seed."""

LAST = 0.25  # of a curve, that stands for its end


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
    level: float | tuple[float, float]
    count: int
    said: Said


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
        named: Sequence[str] = getattr(rule, "x", ())
        points = [each for each in self.grid.points if not named or each in named]
        return [(panel, point) for panel in panels for point in points]

    @property
    def sign(self) -> float:
        """Which way is better."""
        return -1.0 if self.measure.falling else 1.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Numbers by seed whose mean is held against a level, or a range."""

    what: str
    values: tuple[float, ...]
    level: float | tuple[float, float] = 0.0


def judge(rule: Rule, asked: Asked) -> Judged:
    """Return the verdict of the runs of a form on a rule."""
    if isinstance(rule, rules.Wins):
        found = [_won(rule, asked)]
    else:
        pairs = list(compared(rule, asked))
        found = [_comparison(pair, len(pairs)) for pair in pairs]
    return Judged(asked.form, statistics.together([each.said for each in found]), tuple(found))


def _comparison(pair: Pair, many: int) -> Comparison:
    found = statistics.interval(pair.values, many)
    said = (
        statistics.between(found, *pair.level)
        if isinstance(pair.level, tuple)
        else statistics.above(found, pair.level)
    )
    return _told(pair.what, found, pair.level, said if pair.values else "cannot be told")


def _told(what: str, found: Interval, level: float | tuple[float, float], said: Said) -> Comparison:
    mean, low, high = (
        each if math.isfinite(each) else None for each in (found.mean, found.low, found.high)
    )
    return Comparison(what, mean, low, high, level, found.count, said)


@singledispatch
def compared(rule: Rule, asked: Asked) -> Iterator[Pair]:
    """The comparisons of a rule."""
    raise NotImplementedError(type(rule).__name__)


@compared.register
def _(rule: rules.Better, asked: Asked) -> Iterator[Pair]:
    if rule.times is not None:
        level, ratio = math.log(rule.times), True
    else:
        level, ratio = rule.by, False
    for what, values in _differences(rule, rule.better, rule.than, asked, ratio):
        yield Pair(what, values, level)


@compared.register
def _(rule: rules.NoWorse, asked: Asked) -> Iterator[Pair]:
    for what, values in _differences(rule, rule.no_worse, rule.than, asked, False):
        yield Pair(what, values, -rule.margin)


@compared.register
def _(rule: rules.Equal, asked: Asked) -> Iterator[Pair]:
    for what, values in _differences(rule, rule.equal, rule.to, asked, False):
        yield Pair(what, values, (-rule.margin, rule.margin))


@compared.register
def _(rule: rules.Rises, asked: Asked) -> Iterator[Pair]:
    yield from _steps(rule, rule.rises, asked, 1.0)


@compared.register
def _(rule: rules.Falls, asked: Asked) -> Iterator[Pair]:
    yield from _steps(rule, rule.falls, asked, -1.0)


@compared.register
def _(rule: rules.Flat, asked: Asked) -> Iterator[Pair]:
    for panel, points in _rows(rule, asked):
        for series in rule.flat:
            first = asked.numbers(panel, series, points[0])
            for point in points[1:]:
                values = _minus(asked.numbers(panel, series, point), first)
                what = _words(asked, panel, f"{series}: {point} minus {points[0]}")
                yield Pair(what, values, (-rule.margin, rule.margin))


@compared.register
def _(rule: rules.Within, asked: Asked) -> Iterator[Pair]:
    low = -math.inf if rule.low is None else rule.low
    high = math.inf if rule.high is None else rule.high
    for panel, point in asked.places(rule):
        for series in rule.within:
            values = tuple(asked.numbers(panel, series, point).values())
            yield Pair(_words(asked, panel, series, point), values, (low, high))


@compared.register
def _(rule: rules.Peaks, asked: Asked) -> Iterator[Pair]:
    for panel, points in _rows(rule, asked):
        for series in rule.peaks:
            found = {point: asked.numbers(panel, series, point) for point in points}
            among = [point for point in rule.at if found.get(point)]
            if not among:  # nothing can be told of a panel without runs, so neither of all
                yield Pair(_words(asked, panel, f"{series}: {' or '.join(rule.at)}"), (), rule.by)
                continue
            best = max(among, key=lambda point: asked.sign * _mean(found[point]))
            for point in points:
                if point not in rule.at:
                    values = _minus(found[best], found[point], asked.sign)
                    what = _words(asked, panel, f"{series}: {best} against {point}")
                    yield Pair(what, values, rule.by)


def _won(rule: rules.Wins, asked: Asked) -> Comparison:
    """Return the share of points at which one of the named is best; a tie is no win."""
    won = cases = 0
    for panel, point in asked.places(rule):
        found = {series: asked.numbers(panel, series, point) for series in rule.among}
        seeds = set.intersection(*(set(each) for each in found.values()))
        for seed in sorted(seeds):
            best = max(asked.sign * found[series][seed] for series in rule.among)
            ahead = {each for each in rule.among if asked.sign * found[each][seed] == best}
            won, cases = won + (ahead <= set(rule.wins)), cases + 1
    found_share = statistics.share(won, cases)
    what = f"share of {cases} cases in which {' or '.join(rule.wins)} is best"
    return _told(what, found_share, rule.share, statistics.above(found_share, rule.share))


def _differences(
    rule: rules.Better | rules.NoWorse | rules.Equal,
    one: str,
    others: Sequence[str],
    asked: Asked,
    ratio: bool,
) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Paired differences in favour of one series; of logarithms where a ratio is asked for."""
    places = asked.places(rule)
    for other in others:
        each = [_paired(asked, panel, point, one, other, ratio) for panel, point in places]
        what = f"{one} {'over' if ratio else 'minus'} {other}"
        if rule.over == "mean":
            seeds = set.intersection(*(set(found) for found in each)) if each else set()
            means = [math.fsum(found[seed] for found in each) / len(each) for seed in sorted(seeds)]
            yield f"{what}, mean over {len(each)}", tuple(means)
            continue
        for (panel, point), found in zip(places, each, strict=True):
            yield _words(asked, panel, what, point), tuple(found.values())


def _paired(
    asked: Asked, panel: str, point: str, one: str, other: str, ratio: bool
) -> dict[int, float]:
    first, second = asked.numbers(panel, one, point), asked.numbers(panel, other, point)
    if ratio:
        first, second = (
            {seed: math.log(value) for seed, value in found.items() if value > 0}
            for found in (first, second)
        )
    return {
        seed: asked.sign * (first[seed] - second[seed])
        for seed in sorted(first.keys() & second.keys())
    }


def _steps(
    rule: rules.Rises | rules.Falls, names: Sequence[str], asked: Asked, way: float
) -> Iterator[Pair]:
    if asked.measure.curved:
        for panel, point in asked.places(rule):
            for series in names:
                last = asked.numbers(panel, series, point)
                first = asked.numbers(panel, series, point, "first")
                what = _words(asked, panel, f"{series}: last quarter minus first", point)
                yield Pair(what, tuple(way * each for each in _minus(last, first)), rule.by)
        return
    for panel, points in _rows(rule, asked):
        ends = list(pairwise(points))
        for series in names:
            for low, high in ends if rule.steps == "each" else [(points[0], points[-1])]:
                found = _minus(
                    asked.numbers(panel, series, high), asked.numbers(panel, series, low), way
                )
                yield Pair(_words(asked, panel, f"{series}: {high} against {low}"), found, rule.by)


def _rows(rule: Rule, asked: Asked) -> Iterator[tuple[str, list[str]]]:
    """Each panel with its points, where there are at least two."""
    rows: dict[str, list[str]] = {}
    for panel, point in asked.places(rule):
        rows.setdefault(panel, []).append(point)
    yield from ((panel, points) for panel, points in rows.items() if len(points) > 1)


def _minus(one: Numbers, other: Numbers, way: float = 1.0) -> tuple[float, ...]:
    return tuple(way * (one[seed] - other[seed]) for seed in sorted(one.keys() & other.keys()))


def _mean(found: Numbers) -> float:
    return math.fsum(found.values()) / len(found)


def _end(curve: Curve, part: str) -> float:
    """The mean of the first or last quarter of a curve, at least one point."""
    count = max(int(LAST * len(curve)), 1)
    kept = curve[:count] if part == "first" else curve[-count:]
    return math.fsum(y for _, y in kept) / len(kept)


def _words(asked: Asked, panel: str, what: str, point: str = "") -> str:
    names = {each.key: each.label for each in asked.grid.entry.panel}
    return ", ".join(filter(None, (names.get(panel, ""), what, point)))
