"""Verdicts follow from intervals over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats  # type: ignore[import-untyped]
import torch

from sordino.extend.runs import Basis
from sordino_papers.cells import Place
from sordino_papers.checks import CHECKS
from sordino_papers.entry import Axis, Claim, Entry, Published, Series, Shown
from sordino_papers.measures import SHORT, Along, Measure, Until, chosen
from sordino_papers.results import Results, judged
from sordino_papers.rules import RULES, Asked, Pair, Rule
from sordino_papers.tables import statistics
from sordino_papers.verdicts import Comparison, Evidence, Judged, Need, judge, share

LOW, HIGH, SAME = (0.5, 0.51, 0.49), (0.7, 0.71, 0.7), (0.5, 0.511, 0.491)
NUMBERS: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("low", "1"): LOW,
    ("low", "2"): SAME,
    ("high", "1"): HIGH,
    ("high", "2"): (0.8, 0.81, 0.82),
    ("wide", "1"): (0.4, 0.8, 0.6),
    ("wide", "2"): (0.9, 0.5, 0.5),
    ("one", "1"): (0.5,),
    ("one", "2"): (0.5,),
}
SERIES = tuple(Series(key, f"the {key} one") for key in ("low", "high", "wide", "one", "a", "b"))


def evidence(measure: Measure = SHORT["accuracy"]) -> Evidence:
    entry = Entry(
        name="e", paper="mapa", item="Fig. 1", title="t", study="s",
        shown=(Shown(measure), Shown(measure, minus="low")), series=SERIES,
        x=Axis("edges (a note)", ()),
        published=(
            Published(40.0, "low", "1"), Published(65.0, "high", "1"),
            Published(9.0, "high", "2", shown=1),
        ),
    )  # fmt: skip
    grid: Any = SimpleNamespace(entry=entry, panels=[""], points_of=lambda _: ["1", "2"])

    def values(place: Place) -> Mapping[int, Any]:
        found = dict(enumerate(NUMBERS[place.series, place.point]))
        if not measure.curved:
            return found
        return {seed: ((1.0, value), (2.0, value + 1)) for seed, value in found.items()}

    return Evidence(grid, "sound", measure, values)


def said(told: dict[str, object], measure: Measure = SHORT["accuracy"]) -> str:
    rule: Rule = chosen(told, RULES)
    return judge(rule, evidence(measure)).said


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"better": "high", "than": ["low"]}, "holds"),
        ({"better": "low", "than": ["high"], "x": ["1"]}, "does not hold"),
        ({"better": "wide", "than": ["low"]}, "cannot be told"),
        ({"better": "high", "than": ["one"]}, "cannot be told"),  # one seed
        ({"better": "high", "than": ["low", "wide"], "x": ["1"]}, "cannot be told"),
        ({"better": "high", "than": ["low"], "times": 1.3}, "holds"),
        ({"better": "high", "than": ["low"], "times": 2.0}, "does not hold"),
        ({"better": "high", "than": ["low"], "over": "mean"}, "holds"),
        ({"no_worse": "low", "than": ["high"], "margin": 0.5}, "holds"),
        ({"no_worse": "low", "than": ["high"], "margin": 0.1}, "does not hold"),
        ({"equal": "high", "to": ["low"], "margin": 0.1, "x": ["1"]}, "does not hold"),
        ({"equal": "low", "to": ["low"], "margin": 0.01}, "holds"),
        ({"rises": ["high"]}, "holds"),
        ({"rises": ["low"]}, "cannot be told"),
        ({"falls": ["high"]}, "does not hold"),
        ({"flat": ["low"], "margin": 0.05}, "holds"),
        ({"flat": ["high"], "margin": 0.05}, "does not hold"),
        ({"within": ["high"], "low": 0.6, "high": 0.9}, "holds"),
        ({"within": ["low"], "low": 0.6}, "does not hold"),
        ({"peaks": ["high"], "at": ["2"]}, "holds"),
        ({"peaks": ["low"], "at": ["2"]}, "cannot be told"),
        ({"wins": ["high"], "among": ["low", "high", "wide"]}, "cannot be told"),
    ],
)
def test_rules(rule: dict[str, object], expected: str) -> None:
    assert said(rule) == expected


def test_less_is_better_where_a_measure_falls() -> None:
    assert said({"better": "low", "than": ["high"]}, SHORT["error"]) == "holds"
    assert said({"better": "low", "than": ["high"], "times": 1.3}, SHORT["error"]) == "holds"


def test_curves_are_judged_by_their_ends() -> None:
    curve = Along("tau")
    assert said({"rises": ["low"]}, curve) == "holds"
    assert said({"within": ["low"], "low": 1.4, "high": 1.6}, curve) == "holds"


def test_a_peak_without_runs_cannot_be_told() -> None:
    rule: Rule = chosen({"peaks": ["high"], "at": ["2"]}, RULES)
    of = evidence()
    grid: Any = SimpleNamespace(**{**vars(of.grid), "panels": ["", "failed"]})

    def values(place: Place) -> Mapping[int, Any]:
        return {} if place.panel else of.values(place)

    assert judge(rule, of).said == "holds"
    found = judge(rule, Evidence(grid, "sound", of.measure, values))
    assert found.said == "cannot be told"


def test_a_claim_of_which_nothing_is_run_says_so() -> None:
    (told,) = statistics(Judged("sound", "not run", ()))
    assert told.startswith("nothing that it speaks of is run")


def test_an_equality_is_no_advantage() -> None:
    found = judge(chosen({"better": "low", "than": ["low"]}, RULES), evidence())
    assert found.said == "does not hold"
    assert {each.mean for each in found.comparisons} == {0.0}
    rule: Rule = chosen({"better": "low", "than": ["low"]}, RULES)
    tied = judge(rule, evidence(Until(0.7)))  # at the same row of the log
    assert tied.said == "cannot be told"


def test_what_a_comparison_says_is_what_is_true() -> None:
    """A fall is worded as a fall, beside the paper's size."""
    rule: Rule = chosen({"better": "low", "than": ["high"]}, RULES)
    told = statistics(judge(rule, evidence(SHORT["error"])))
    between = "error, the low one minus the high one, edges = 1"
    assert told[0].startswith(f"{between}: -20.3 points [-21.8, -18.9], asked below 0, ")
    assert told[0].endswith("paper -25 points, n = 3")
    gained: Rule = chosen({"better": "high", "than": ["low"], "x": ["2"]}, RULES)
    assert "paper 9 points" in statistics(judge(gained, evidence()))[0]
    ratio: Rule = chosen({"better": "low", "than": ["high"], "times": 1.3, "x": ["1"]}, RULES)
    (told_ratio,) = statistics(judge(ratio, evidence(SHORT["error"])))
    assert told_ratio.startswith("error, the low one over the high one, edges = 1: 0.711 times [")
    assert "asked below 0.769, paper" not in told_ratio
    falls: Rule = chosen({"falls": ["low"]}, RULES)
    (change,) = statistics(judge(falls, evidence(Along("tau"))))[:1]
    assert (
        change
        == "tau, the low one: last quarter minus first, edges = 1: 1 [1, 1], asked below 0, n = 3"
    )


def shares(generator: np.random.Generator, mean: float, asked: Asked, seeds: int) -> float:
    """How often means of so many normal values are said to be where it is asked."""
    games = 2000
    values = generator.normal(mean, 1.0, (games, seeds)).tolist()
    said = [Comparison.of(Pair("", each, asked), 1).said for each in values]
    return said.count("holds") / games


def test_equivalence_is_wrongly_told_in_five_of_a_hundred_cases_at_most() -> None:
    """At the edge of the bounds a test of 5 % says so in 5 %; between them more often."""
    generator = np.random.default_rng(0)
    asked = Asked(-3.0, 3.0, closed=True)
    wrong = shares(generator, 3.0, asked, 5)
    error = (0.05 * 0.95 / 2000) ** 0.5
    assert abs(wrong - 0.05) < 4 * error
    assert shares(generator, 0.0, asked, 5) > 0.9


@pytest.mark.parametrize(
    ("asked", "confidence"),
    [
        (Asked(low=0.0), 0.95),
        (Asked(-0.02, 0.5, closed=True), 0.9),
        (Asked(high=0.0), 1 - 0.05 / 4),  # it would be refuted, as the worst of four
    ],
)
def test_so_many_seeds_would_tell(asked: Asked, confidence: float) -> None:
    values = [0.1, 0.3, -0.1, 0.02]
    found = Comparison.of(Pair("a minus b", values, asked), 4)
    middle, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    distance = min(abs(middle - end) for end in asked[:2] if np.isfinite(end))
    tail = (1 + confidence) / 2
    enough = next(
        n for n in range(2, 1000) if scipy.stats.t.ppf(tail, n - 1) * deviation / n**0.5 < distance
    )
    assert found.said == "cannot be told"
    need = found.needed(4)
    assert (need.number, need.against) == (enough, asked.low == -np.inf)


def test_what_would_tell_a_claim_of_several_comparisons() -> None:
    """The first that is refuted, or the last that is shown; a tie tells nothing."""
    ahead, behind = Asked(low=0.0), Asked(high=0.0)
    near, far = ([0.1, 0.3, -0.1, 0.02], [0.1, 0.3, -0.1, 0.1])
    one, other = (Comparison.of(Pair("a", each, ahead), 2).needed(2) for each in (near, far))
    assert one.number > other.number
    assert Need.together([one, other]) == one
    one, other = (Comparison.of(Pair("a", each, behind), 2).needed(2) for each in (near, far))
    assert Need.together([one, other]) == other
    tied = Comparison.of(Pair("a", [0.0, 0.0, 0.0], ahead), 2).untied
    assert tied.said == "cannot be told"
    assert Need.together([tied.needed(2), other]) == other
    assert Need.together([tied.needed(2), Comparison.of(Pair("a", near, ahead), 2).needed(2)]) == (
        np.inf, True, tied
    )  # fmt: skip
    rounded = Comparison.of(Pair("a", [0.1, 0.2, -0.3], ahead), 2).needed(2)
    assert rounded.number == np.inf
    cases = share(14, 36)
    enough = next(n for n in range(36, 200) if share(round(n * 14 / 36), n).high < 0.5)
    of = Comparison.between(Pair("wins", [], Asked(low=0.5)), cases, cases, 36, "%")
    assert abs(of.needed(1).number - enough) <= 5


def test_a_peak_is_not_found_in_noise() -> None:
    """The best of nine equal points, picked on the seeds that are tested, would win far too often:
    picked on the others it is ahead of the tenth in 2.5 % of the cases.
    """
    generator = np.random.default_rng(1)
    points = [str(i) for i in range(10)]
    rule: Rule = chosen({"peaks": ["a"], "at": points[:9]}, RULES)
    entry = evidence().grid.entry
    grid: Any = SimpleNamespace(entry=entry, panels=[""], points_of=lambda _: points)
    found = 0
    for _ in range(400):
        rows = generator.normal(size=(10, 4))

        def values(place: Place, rows: Any = rows) -> Mapping[int, Any]:
            return dict(enumerate(rows[int(place.point)].tolist()))

        of = Evidence(grid, "sound", SHORT["accuracy"], values)
        found += judge(rule, of).said == "holds"
    assert found <= 22  # 400 cases at 2.5 %: more in one of ten thousand


@pytest.mark.parametrize(
    ("sound", "paper", "expected"),
    [
        ("high", "high", "holds"),
        ("high", "wide", "cannot be told"),
        ("low", "high", "does not hold"),
        ("high", "low", "does not hold"),
    ],
)
def test_a_claim_holds_if_it_holds_in_both_forms(sound: str, paper: str, expected: str) -> None:
    """``a`` is another of the known series in each form."""
    named = {"sound": sound, "paper": paper}
    places = [Place("", form, "a", "1") for form in named]
    grid: Any = SimpleNamespace(
        scale="quick",
        entry=evidence().grid.entry, panels=[""], points_of=lambda _: ["1"],
        forms=list(named), data={},
        cells=[SimpleNamespace(place=place) for place in places],
    )  # fmt: skip

    def values(self: Results, measure: Measure, place: Place) -> Mapping[int, Any]:
        name = named[place.form]
        other = "high" if name == "low" else "low"
        return dict(enumerate(NUMBERS[name if place.series == "a" else other, "1"]))

    rule: Rule = chosen({"better": "a", "than": ["b"]}, RULES)
    claim = Claim("a is better", "Section 1", rule, SHORT["accuracy"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Results, "values", values)
        found = judged(Results(grid, Path(), {}), claim)
    assert found.verdict == expected
    assert [found.sound, found.paper].count("holds") == [sound, paper].count("high")


def test_statements_that_need_no_run() -> None:
    said = {
        name: {Comparison.of(each, len(pairs)).said for each in pairs}
        for name, check in CHECKS.items()
        for pairs in [check()]
    }
    assert said == {
        "ali-iterations": {"holds"},
        "haar-example": {"holds"},
        "haar-bound": {"holds"},
        "haar-equality": {"does not hold"},
        "haar-density": {"does not hold"},
        "mapa-sensitivity": {"does not hold"},
        "mapa-theorem-1": {"does not hold"},
        "mapa-theorem-2": {"holds"},
        "mapa-theorem-4": {"holds"},
    }
    variances = [each.values[0] for each in CHECKS["haar-bound"]()]
    exact = [1 / m**2 + (1 - 1 / m**2) / 3 for m in (8, 1024)]  # 1/m^2 + the sum of 4^-l
    assert variances == pytest.approx(exact)
    basis = Basis.flat(8)  # a gradient of norm 1 moves W H by so much at most
    halves = [2.0 ** (-0.5 * (level or 3)) for level in basis.levels]
    moved = basis.forward(torch.eye(8), halves) * torch.tensor([8.0, 8, 4, 4, 2, 2, 2, 2])
    costs = float(torch.linalg.matrix_norm(moved, 2)) ** 2
    assert CHECKS["haar-density"]()[0].values[0] == pytest.approx(exact[0] * costs)
