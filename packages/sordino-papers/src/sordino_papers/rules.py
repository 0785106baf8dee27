"""Rules for claims of a paper that runs can answer: one class for each kind.

The first field of a class is the key that selects it in a file of the catalogue. Each says which
comparisons decide it, as means over seeds; :mod:`.verdicts` judges these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from sordino_papers.schema import Part

if TYPE_CHECKING:
    from sordino_papers.verdicts import Asked

Numbers: TypeAlias = Mapping[int, float]
"""By seed."""
Level: TypeAlias = float | tuple[float, float]
"""A number that a mean must be above; or the range that it must be in."""


class Pair(NamedTuple):
    """Numbers, one for each seed, whose mean is compared with a level."""

    what: str
    values: Sequence[float]
    level: Level


class Rule(Part, frozen=True, kw_only=True):
    """A rule; ``panel`` and ``x`` restrict it to some panels and points, all where left out."""

    panel: tuple[str, ...] = ()
    x: tuple[str, ...] = ()

    def pairs(self, asked: Asked) -> Iterator[Pair]:
        """Yield the comparisons that must all hold."""
        raise NotImplementedError

    def named(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the series, panels and points that it names."""
        for i, key in enumerate(self.__struct_fields__):
            value = getattr(self, key)
            if i == 0 or key in ("than", "to", "among"):
                yield "series", (value,) if isinstance(value, str) else value
            elif key in ("panel", "x", "at"):
                yield "panel" if key == "panel" else "x", value


class Versus(Rule, frozen=True, kw_only=True):
    """One series against others, in each panel and point, or in the mean over them."""

    over: Literal["each", "mean"] = "each"

    def differences(
        self, asked: Asked, one: str, others: Sequence[str], level: Level, *, ratio: bool = False
    ) -> Iterator[Pair]:
        """Yield paired differences in favour of ``one``; of logarithms for a ratio."""
        places = asked.places(self)
        for other in others:
            found = [self._ahead(asked, place, (one, other), ratio) for place in places]
            what = f"{one} {'over' if ratio else 'minus'} {other}"
            if self.over == "each":
                for (panel, point), each in zip(places, found, strict=True):
                    yield Pair(asked.words(panel, what, point), list(each.values()), level)
                continue
            seeds = set.intersection(*map(set, found)) if found else set()
            means = [mean([each[seed] for each in found]) for seed in sorted(seeds)]
            yield Pair(f"{what}, mean over {len(found)}", means, level)

    @staticmethod
    def _ahead(
        asked: Asked, place: tuple[str, str], pair: tuple[str, str], ratio: bool
    ) -> dict[int, float]:
        first, second = (asked.numbers(place[0], series, place[1]) for series in pair)
        if ratio:
            first, second = (
                {seed: math.log(value) for seed, value in each.items() if value > 0}
                for each in (first, second)
            )
        return minus(first, second, asked.sign)


class Better(Versus, frozen=True):
    """``better = "a", than = ["b", "c"]``: a is better than each, by more than ``by``.

    ``times`` asks for a ratio instead: a number that is at least so many times as good.
    """

    better: str
    than: tuple[str, ...]
    by: float = 0.0
    times: float | None = None

    def pairs(self, asked: Asked) -> Iterator[Pair]:
        level, ratio = self.by, self.times is not None
        if self.times is not None:
            level = math.log(self.times)
        return self.differences(asked, self.better, self.than, level, ratio=ratio)


class NoWorse(Versus, frozen=True):
    """``no_worse = "a", than = [...], margin = 0.01``: a is at most so much worse than each."""

    no_worse: str
    than: tuple[str, ...]
    margin: float

    def pairs(self, asked: Asked) -> Iterator[Pair]:
        return self.differences(asked, self.no_worse, self.than, -self.margin)


class Equal(Versus, frozen=True):
    """``equal = "a", to = [...], margin = 0.01``: a differs from each by less than the margin."""

    equal: str
    to: tuple[str, ...]
    margin: float

    def pairs(self, asked: Asked) -> Iterator[Pair]:
        return self.differences(asked, self.equal, self.to, (-self.margin, self.margin))


class Steps(Rule, frozen=True, kw_only=True):
    """A number over the points of ``x``, from the first to the last; with ``steps = "each"``
    between all neighbours. Of a curve, from its first quarter to its last.
    """

    by: float = 0.0
    steps: Literal["ends", "each"] = "ends"

    def changes(self, asked: Asked, names: Sequence[str], way: float) -> Iterator[Pair]:
        """Yield each series' changes, times ``way``."""
        if asked.measure.curved:
            for panel, point in asked.places(self):
                for series in names:
                    last, first = (
                        asked.numbers(panel, series, point, part) for part in ("last", "first")
                    )
                    what = asked.words(panel, f"{series}: last quarter minus first", point)
                    yield Pair(what, list(minus(last, first, way).values()), self.by)
            return
        for panel, points in asked.rows(self):
            ends = list(pairwise(points))
            for series in names:
                for low, high in ends if self.steps == "each" else [(points[0], points[-1])]:
                    found = minus(
                        asked.numbers(panel, series, high), asked.numbers(panel, series, low), way
                    )
                    what = asked.words(panel, f"{series}: {high} against {low}")
                    yield Pair(what, list(found.values()), self.by)


class Rises(Steps, frozen=True):
    """``rises = ["a"]``: the number grows by more than ``by``."""

    rises: tuple[str, ...]

    def pairs(self, asked: Asked) -> Iterator[Pair]:
        return self.changes(asked, self.rises, 1.0)


class Falls(Steps, frozen=True):
    """``falls = ["a"]``: as ``rises``, downwards."""

    falls: tuple[str, ...]

    def pairs(self, asked: Asked) -> Iterator[Pair]:
        return self.changes(asked, self.falls, -1.0)


class Flat(Rule, frozen=True):
    """``flat = ["a"], margin = 0.02``: the number at every point is within the margin of that at
    the first.
    """

    flat: tuple[str, ...]
    margin: float

    def pairs(self, asked: Asked) -> Iterator[Pair]:
        for panel, points in asked.rows(self):
            for series in self.flat:
                first = asked.numbers(panel, series, points[0])
                for point in points[1:]:
                    found = minus(asked.numbers(panel, series, point), first)
                    what = asked.words(panel, f"{series}: {point} minus {points[0]}")
                    yield Pair(what, list(found.values()), (-self.margin, self.margin))


class Within(Rule, frozen=True):
    """``within = ["a"], low = 2, high = 3``: the mean number lies there; either may be left out.

    Of a curve, the mean of its last quarter.
    """

    within: tuple[str, ...]
    low: float | None = None
    high: float | None = None

    def pairs(self, asked: Asked) -> Iterator[Pair]:
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        for panel, point in asked.places(self):
            for series in self.within:
                found = asked.numbers(panel, series, point)
                yield Pair(asked.words(panel, series, point), list(found.values()), (low, high))


class Peaks(Rule, frozen=True):
    """``peaks = ["a"], at = ["2", "3"]``: the best point is among these, better than every other
    by more than ``by``.
    """

    peaks: tuple[str, ...]
    at: tuple[str, ...]
    by: float = 0.0

    def pairs(self, asked: Asked) -> Iterator[Pair]:
        for panel, points in asked.rows(self):
            for series in self.peaks:
                found = {point: asked.numbers(panel, series, point) for point in points}
                among = [point for point in self.at if found.get(point)]
                if not among:  # nothing can be told of a panel without runs, so neither of all
                    what = asked.words(panel, f"{series}: {' or '.join(self.at)}")
                    yield Pair(what, (), self.by)
                    continue
                best = max(among, key=lambda point: asked.sign * mean(list(found[point].values())))
                for point in (each for each in points if each not in self.at):
                    ahead = minus(found[best], found[point], asked.sign)
                    what = asked.words(panel, f"{series}: {best} against {point}")
                    yield Pair(what, list(ahead.values()), self.by)


class Wins(Rule, frozen=True):
    """``wins = ["tau2", "tau3"], among = [...]``: one of these is the best of all in more than
    ``share`` of the cases, where each panel, point and seed is a case; a tie is no win.
    """

    wins: tuple[str, ...]
    among: tuple[str, ...]
    share: float = 0.5

    def won(self, asked: Asked) -> list[bool]:
        """Return of each case whether it is won."""
        found = []
        for panel, point in asked.places(self):
            numbers = {series: asked.numbers(panel, series, point) for series in self.among}
            for seed in sorted(set.intersection(*map(set, numbers.values()))):
                best = max(asked.sign * each[seed] for each in numbers.values())
                ahead = {name for name in numbers if asked.sign * numbers[name][seed] == best}
                found.append(ahead <= set(self.wins))
        return found


RULES: tuple[type[Rule], ...] = (Better, NoWorse, Equal, Rises, Falls, Flat, Within, Peaks, Wins)


def minus(one: Numbers, other: Numbers, way: float = 1.0) -> dict[int, float]:
    """Return the differences, times ``way``, of the seeds that both have."""
    return {seed: way * (one[seed] - other[seed]) for seed in sorted(one.keys() & other.keys())}


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return math.fsum(values) / len(values)
