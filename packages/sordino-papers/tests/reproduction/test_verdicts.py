"""Verdicts follow from intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sordino_papers.cells import Place
from sordino_papers.entry import Entry, Series, Shown
from sordino_papers.measures import SHORT, Along, Measure
from sordino_papers.results import Results, verdict
from sordino_papers.rules import RULES, Rule
from sordino_papers.schema import chosen
from sordino_papers.tables import statistics
from sordino_papers.verdicts import Asked, Judged, judge

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


def asked(measure: Measure = SHORT["accuracy"]) -> Asked:
    entry = Entry(
        name="e", paper="mapa", item="Fig. 1", title="t", study="s",
        shown=(Shown(measure),), series=(Series("low", "low"),),
    )  # fmt: skip
    grid: Any = SimpleNamespace(entry=entry, panels=[""], points=["1", "2"], forms=["sound"])

    def values(place: Place) -> Mapping[int, Any]:
        found = dict(enumerate(NUMBERS[place.series, place.point]))
        if not measure.curved:
            return found
        return {seed: ((1.0, value), (2.0, value + 1)) for seed, value in found.items()}

    return Asked(grid, "sound", measure, values)


def said(told: dict[str, object], measure: Measure = SHORT["accuracy"]) -> str:
    rule: Rule = chosen(told, RULES, "here", "rule")
    return judge(rule, asked(measure)).said


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"better": "high", "than": ["low"]}, "holds"),
        ({"better": "high", "than": ["low"], "by": 0.4}, "does not hold"),
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
        ({"rises": ["low"], "by": 0.1}, "does not hold"),
        ({"falls": ["high"]}, "does not hold"),
        ({"flat": ["low"], "margin": 0.05}, "holds"),
        ({"flat": ["high"], "margin": 0.05}, "does not hold"),
        ({"within": ["high"], "low": 0.6, "high": 0.9}, "holds"),
        ({"within": ["low"], "low": 0.6}, "does not hold"),
        ({"peaks": ["high"], "at": ["2"]}, "holds"),
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
    rule: Rule = chosen({"peaks": ["high"], "at": ["2"]}, RULES, "here", "rule")
    of = asked()
    grid: Any = SimpleNamespace(**{**vars(of.grid), "panels": ["", "failed"]})

    def values(place: Place) -> Mapping[int, Any]:
        return {} if place.panel else of.values(place)

    assert judge(rule, of).said == "holds"
    found = judge(rule, Asked(grid, "sound", of.measure, values))
    assert found.said == "cannot be told"


def test_a_claim_of_which_nothing_is_run_says_so() -> None:
    (told,) = statistics(Judged("sound", "cannot be told", ()), percent=True)
    assert told.startswith("nothing that it speaks of is run")


def test_an_equality_is_no_advantage() -> None:
    found = judge(chosen({"better": "low", "than": ["low"]}, RULES, "here", "rule"), asked())
    assert found.said == "does not hold"
    assert {each.mean for each in found.comparisons} == {0.0}


@pytest.mark.parametrize(
    ("sound", "paper", "unpaid", "expected"),
    [
        ("holds", "does not hold", True, "holds"),
        ("does not hold", "holds", True, "needs unpaid privacy"),
        ("cannot be told", "holds", True, "needs unpaid privacy"),
        ("cannot be told", "holds", False, "cannot be told"),
        ("does not hold", "cannot be told", True, "does not hold"),
    ],
)
def test_a_verdict_names_privacy_that_is_not_paid(
    sound: Any, paper: Any, unpaid: bool, expected: str
) -> None:
    results: Any = SimpleNamespace(unpaid=lambda form, series: unpaid)
    forms = [Judged("sound", sound, ()), Judged("paper", paper, ())]
    assert verdict(results, forms, ["a"]) == expected


def test_only_series_of_the_claim_may_leave_privacy_unpaid() -> None:
    places = [Place("", "paper", series, "") for series in ("paid", "unpaid")]
    found = [SimpleNamespace(place=place) for place in places]
    results = Results(cast(Any, SimpleNamespace(cells=found)), Path(), {})
    prices = {"paid": (2.0, 2.0), "unpaid": (2.0, math.inf)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Results, "epsilons", lambda self, cell: prices[cell.place.series])
        assert not results.unpaid("paper", ["paid"])
        assert results.unpaid("paper", ["paid", "unpaid"])
        assert not results.unpaid("sound", ["unpaid"])
