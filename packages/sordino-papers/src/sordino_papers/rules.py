"""Rules for claims of a paper that runs can answer: one class for each kind.

The first field of a class is the key that selects it in a file of the catalogue. Each says which
comparisons decide it, as means over seeds; :mod:`.verdicts` judges these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from sordino_papers.measures import Part

if TYPE_CHECKING:
    from sordino_papers.verdicts import Evidence

Numbers: TypeAlias = Mapping[int, float]
"""By seed."""


class Asked(NamedTuple):
    """Where a mean must be for a claim: above ``low`` and below ``high``.

    Where both are finite, the claim is one of equivalence, and the ends belong to it.
    """

    low: float = -math.inf
    high: float = math.inf
    closed: bool = False


def around(margin: float) -> Asked:
    """Return the claim that a mean differs from 0 by at most so much."""
    return Asked(-margin, margin, closed=True)


class Pair(NamedTuple):
    """Numbers, one for each seed, whose mean a claim asks to be somewhere.

    Attributes:
        printed: the number that the paper prints in the mean's place.
        ratio: whether they are logarithms of ratios.
        exact: whether there is one number, which no seed changes.
    """

    what: str
    values: Sequence[float]
    asked: Asked
    printed: float | None = None
    ratio: bool = False
    exact: bool = False


class Rule(Part, frozen=True, kw_only=True):
    """A rule; ``panel`` and ``x`` restrict it to some panels and points, all where left out."""

    panel: tuple[str, ...] = ()
    x: tuple[str, ...] = ()

    def pairs(self, evidence: Evidence) -> Iterator[Pair]:
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
        self,
        evidence: Evidence,
        one: str,
        others: Sequence[str],
        asked: Asked,
        *,
        ratio: bool = False,
    ) -> Iterator[Pair]:
        """Yield differences of ``one`` to each other, seed by seed; of logarithms for a ratio."""
        places = evidence.places(self)
        for other in others:
            found = [self._between(evidence, place, (one, other), ratio) for place in places]
            printed = [evidence.gain(panel, one, other, point) for panel, point in places]
            if ratio:
                printed = [None] * len(places)
            names = evidence.name(one), evidence.name(other)
            what = f"{names[0]} {'over' if ratio else 'minus'} {names[1]}"
            if self.over == "each":
                for (panel, point), each, gain in zip(places, found, printed, strict=True):
                    words = evidence.words(panel, what, point)
                    yield Pair(words, list(each.values()), asked, gain, ratio)
                continue
            seeds = set.intersection(*map(set, found)) if found else set()
            means = [mean([each[seed] for each in found]) for seed in sorted(seeds)]
            told = [each for each in printed if each is not None]
            gain = mean(told) if len(told) == len(printed) > 0 else None
            words = evidence.words("", f"{what}, mean over {len(found)}")
            yield Pair(words, means, asked, gain, ratio)

    @staticmethod
    def _between(
        evidence: Evidence, place: tuple[str, str], pair: tuple[str, str], ratio: bool
    ) -> dict[int, float]:
        first, second = (evidence.numbers(place[0], series, place[1]) for series in pair)
        if ratio:
            first, second = (
                {seed: math.log(value) for seed, value in each.items() if value > 0}
                for each in (first, second)
            )
        return minus(first, second)


class Better(Versus, frozen=True):
    """``better = "a", than = ["b", "c"]``: a is better than each.

    ``times`` asks for a ratio instead: a number that is at least so many times as good.
    """

    better: str
    than: tuple[str, ...]
    times: float | None = None

    def pairs(self, evidence: Evidence) -> Iterator[Pair]:
        asked = evidence.ahead(math.log(self.times or 1.0))
        return self.differences(
            evidence, self.better, self.than, asked, ratio=self.times is not None
        )


class NoWorse(Versus, frozen=True):
    """``no_worse = "a", than = [...], margin = 0.01``: a is at most so much worse than each."""

    no_worse: str
    than: tuple[str, ...]
    margin: float

    def pairs(self, evidence: Evidence) -> Iterator[Pair]:
        return self.differences(evidence, self.no_worse, self.than, evidence.ahead(-self.margin))


class Equal(Versus, frozen=True):
    """``equal = "a", to = [...], margin = 0.01``: a differs from each by less than the margin."""

    equal: str
    to: tuple[str, ...]
    margin: float

    def pairs(self, evidence: Evidence) -> Iterator[Pair]:
        return self.differences(evidence, self.equal, self.to, around(self.margin))


class Steps(Rule, frozen=True, kw_only=True):
    """A number over the points of ``x``, from the first to the last; with ``steps = "each"``
    between all neighbours. Of a curve, from its first quarter to its last.
    """

    steps: Literal["ends", "each"] = "ends"

    def changes(self, evidence: Evidence, names: Sequence[str], asked: Asked) -> Iterator[Pair]:
        """Yield each series' changes."""
        if evidence.measure.curved:
            for panel, point in evidence.places(self):
                for series in names:
                    last, first = (
                        evidence.numbers(panel, series, point, part) for part in ("last", "first")
                    )
                    name = f"{evidence.name(series)}: last quarter minus first"
                    what = evidence.words(panel, name, point)
                    yield Pair(what, list(minus(last, first).values()), asked)
            return
        for panel, points in evidence.rows(self):
            ends = list(pairwise(points))
            for series in names:
                for low, high in ends if self.steps == "each" else [(points[0], points[-1])]:
                    yield evidence.step(panel, series, low, high, asked)


class Rises(Steps, frozen=True):
    """``rises = ["a"]``: the number grows."""

    rises: tuple[str, ...]

    def pairs(self, evidence: Evidence) -> Iterator[Pair]:
        return self.changes(evidence, self.rises, Asked(low=0.0))


class Falls(Steps, frozen=True):
    """``falls = ["a"]``: the number falls."""

    falls: tuple[str, ...]

    def pairs(self, evidence: Evidence) -> Iterator[Pair]:
        return self.changes(evidence, self.falls, Asked(high=0.0))


class Flat(Rule, frozen=True):
    """``flat = ["a"], margin = 0.02``: the number at every point is within the margin of that at
    the first.
    """

    flat: tuple[str, ...]
    margin: float

    def pairs(self, evidence: Evidence) -> Iterator[Pair]:
        for panel, points in evidence.rows(self):
            for series in self.flat:
                for point in points[1:]:
                    yield evidence.step(panel, series, points[0], point, around(self.margin))


class Within(Rule, frozen=True):
    """``within = ["a"], low = 2, high = 3``: the mean number lies there; either may be left out.

    Of a curve, the mean of its last quarter.
    """

    within: tuple[str, ...]
    low: float | None = None
    high: float | None = None

    def pairs(self, evidence: Evidence) -> Iterator[Pair]:
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        for panel, point in evidence.places(self):
            for series in self.within:
                found = evidence.numbers(panel, series, point)
                words = evidence.words(panel, evidence.name(series), point)
                printed = evidence.printed(panel, series, point)
                yield Pair(words, list(found.values()), Asked(low, high, closed=True), printed)


class Peaks(Rule, frozen=True):
    """``peaks = ["a"], at = ["2", "3"]``: the best point is among these, better than every other.

    Of each seed, the point that stands for ``at`` is the best of the other seeds': the seed that is
    compared has no part in the choice, or the best of some noisy numbers would win too often.
    """

    peaks: tuple[str, ...]
    at: tuple[str, ...]

    def pairs(self, evidence: Evidence) -> Iterator[Pair]:
        for panel, points in evidence.rows(self):
            for series in self.peaks:
                found = {point: evidence.numbers(panel, series, point) for point in points}
                among = [point for point in self.at if found.get(point)]
                best = " or ".join(among or self.at)
                picked = self._picked({point: found[point] for point in among}, evidence.sign)
                for point in (each for each in points if each not in self.at):
                    what = evidence.change(panel, series, best, point)
                    ahead = list(minus(picked, found[point]).values())
                    yield Pair(what, ahead, evidence.ahead(0.0))

    @staticmethod
    def _picked(found: Mapping[str, Numbers], sign: float) -> dict[int, float]:
        """Of each seed, its number at the point that is the best over the other seeds."""
        seeds = set.intersection(*map(set, found.values())) if found else set()
        picked = {}
        for seed in seeds:
            others = {
                point: [value for other, value in each.items() if other != seed]
                for point, each in found.items()
            }
            if all(others.values()):
                best = max(others, key=lambda point: sign * mean(others[point]))
                picked[seed] = found[best][seed]
        return picked


class Wins(Rule, frozen=True):
    """``wins = ["tau2", "tau3"], among = [...]``: one of these is the best of all in more than
    ``share`` of the cases, where each panel, point and seed is a case; a tie is no win.
    """

    wins: tuple[str, ...]
    among: tuple[str, ...]
    share: float = 0.5

    def won(self, evidence: Evidence) -> list[bool]:
        """Return of each case whether it is won."""
        found = []
        for panel, point in evidence.places(self):
            numbers = {series: evidence.numbers(panel, series, point) for series in self.among}
            for seed in sorted(set.intersection(*map(set, numbers.values()))):
                found.append(
                    self._wins({name: each[seed] for name, each in numbers.items()}, evidence)
                )
        return found

    def printed(self, evidence: Evidence) -> float | None:
        """Return the share of the paper's columns that are won; None if it prints none."""
        found = []
        for panel, point in evidence.places(self):
            told = {name: evidence.printed(panel, name, point) for name in self.among}
            known = {name: value for name, value in told.items() if value is not None}
            if len(known) == len(told):
                found.append(self._wins(known, evidence))
        return sum(found) / len(found) if found else None

    def _wins(self, numbers: Mapping[str, float], evidence: Evidence) -> bool:
        best = max(evidence.sign * each for each in numbers.values())
        return {name for name, each in numbers.items() if evidence.sign * each == best} <= set(
            self.wins
        )


RULES: tuple[type[Rule], ...] = (Better, NoWorse, Equal, Rises, Falls, Flat, Within, Peaks, Wins)


def minus(one: Numbers, other: Numbers) -> dict[int, float]:
    """Return the differences of the seeds that both have."""
    return {seed: one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())}


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return math.fsum(values) / len(values)
