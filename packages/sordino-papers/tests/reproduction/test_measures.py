"""Measures read from the log of a run what they say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sordino_papers.cells import Place
from sordino_papers.entry import Panel
from sordino_papers.measures import SHORT, Best, Measure, measure_of
from sordino_papers.results import Results


class Row(msgspec.Struct):
    """A row of a log."""

    round: int
    tau: int
    regret_sum: float
    error: float


RUN: Any = SimpleNamespace(
    accuracy=0.75,
    about=SimpleNamespace(result=SimpleNamespace(seconds=7)),
    rounds=[
        Row(t, tau, 3.0 * t**0.75, error)
        for t, tau, error in zip(
            range(1, 9), [8, 1, 5, 2, 2, 3, 2, 2], [9, 9, 9, 9, 1, 3, 1, 3], strict=True
        )
    ],
)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("accuracy", 0.75),
        ("error", 0.25),
        ({"final": "seconds"}, 7.0),
        ({"growth": "regret_sum"}, 0.75),
        ({"column": "error", "take": "spread"}, 1.0),  # of the second half
        ({"column": "tau", "take": "max"}, 8.0),
        ({"total": ["tau", "error"], "divided_by": 5}, 1.0),
        ({"until": 2, "column": "tau", "below": True}, 7.0),  # from there on
        ({"until": 2, "column": "tau", "below": True, "kept": False}, 2.0),
        ({"until": 1, "column": "tau", "below": True, "else_end": True}, 8.0),
    ],
)
def test_numbers(told: str | dict[str, object], expected: float) -> None:
    assert measure_of(told).of(RUN) == pytest.approx(expected)


def test_a_panel_may_have_a_level_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Results, "run", lambda *_: RUN)
    panels = Panel("high", "high", level=9.0), Panel("same", "same")
    grid: Any = SimpleNamespace(
        entry=SimpleNamespace(panel=panels), at=lambda place: SimpleNamespace(seeds=(0,))
    )
    measure = measure_of({"until": 1, "column": "error", "below": True, "kept": False})
    results = Results(grid, Path(), {})
    found = [results.values(measure, Place(each.key, "sound", "a", "")) for each in panels]
    assert found == [{0: 1.0}, {0: 5.0}]


def test_jumps_are_differences_from_row_to_row() -> None:
    jumps = measure_of({"curve": "tau", "jumps": True}).of(RUN)
    assert jumps == ((2, 7), (3, 4), (4, 3), (5, 0), (6, 1), (7, 1), (8, 0))


def test_the_best_is_that_of_the_series_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"a": {0: 0.5, 1: 0.7}, "b": {0: 0.6, 1: 0.6}, "c": {0: 0.9, 1: 0.9}}
    plain = Results.values

    def values(self: Results, measure: Measure, place: Place) -> Any:
        return plain(self, measure, place) if isinstance(measure, Best) else numbers[place.series]

    monkeypatch.setattr(Results, "values", values)
    grid: Any = SimpleNamespace(series=list(numbers))
    results = Results(grid, Path(), {})
    best = Best("accuracy", among=("a", "b"))
    told = {name: results.values(best, Place("", "sound", name, "")) for name in numbers}
    assert told == {"a": {0: 0.0, 1: 1.0}, "b": {0: 1.0, 1: 0.0}, "c": {}}
    everyone = results.values(Best("accuracy"), Place("", "sound", "c", ""))
    assert everyone == {0: 1.0, 1: 1.0}
    assert SHORT["error"].falling
