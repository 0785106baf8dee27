"""Pictures over a key that studies differ in."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import drawings
from sordino.core.run.reading import Run, load
from sordino.core.statements import Figure
from sordino.report import curves
from sordino.report.curves import EDGES, EPSILON, Goal, Sweep, over_key
from sordino.report.drawing import draw

from .conftest import Maker
from .test_asynchronous import texts

KEPT = Goal("accuracy", 0.75)


def asked_for(sweep: Sweep) -> Figure:
    found = over_key(sweep)
    assert found is not None
    return found


def curve(*accuracies: float) -> list[dict[str, Any]]:
    return [
        {"kind": "round", "round": 10 * i, "accuracy": value, "loss": 1 - value}
        for i, value in enumerate(accuracies, start=1)
    ]


def run(arrive: Maker, at: str, *accuracies: float, **changes: Any) -> Run:
    return load(
        arrive(
            at,
            log=curve(*accuracies),
            result={"accuracy": accuracies[-1], "epsilon": 1.0},
            **changes,
        )
    )


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.01, 1))
def test_a_goal_is_reached_when_it_is_not_lost_again(values: list[float], wanted: float) -> None:
    found = Goal("accuracy", wanted).first((10 * i, value) for i, value in enumerate(values))
    after = [all(value >= wanted for value in values[i:]) for i in range(len(values))]
    assert found == (10.0 * after.index(True) if True in after else None)
    assert Goal("loss", 1 - wanted).first([(0, 1 - wanted), (5, 2.0), (7, 0.0)]) == 7


def test_points_are_means_with_the_lowest_and_the_highest(arrive: Maker) -> None:
    runs = [run(arrive, "a", 0.1, 0.6), run(arrive, "b", 0.2, 0.8)]
    found = curves.spots({2.0: runs}, None)
    assert (found.x, found.spread, found.open) == ((2.0,), ((60,), (80,)), (False,))
    assert found.y == pytest.approx([70])


def test_who_did_not_get_there_counts_with_all_it_did_and_is_marked(arrive: Maker) -> None:
    reached, missed = run(arrive, "a", 0.5, 0.8, 0.8, 0.9), run(arrive, "b", 0.5, 0.8, 0.8, 0.7)
    found = curves.spots({5.0: [reached, missed]}, KEPT)
    assert (found.spread, found.open) == (((20,), (40,)), (True,))
    found = curves.spots({5.0: [reached]}, KEPT)
    assert (found.y, found.open) == ((20,), (False,))
    assert not curves.spots({5.0: []}, KEPT).open


def test_accuracy_over_epsilon_with_a_level_for_what_is_not_private(arrive: Maker) -> None:
    lines = {
        "mapa": {
            x: [run(arrive, f"m{x}{s}", 0.1 * x + 0.01 * s) for s in (0, 1)]
            for x in (0.5, 1.0, 4.0)
        },
        "asgd": {float("inf"): [run(arrive, "free", 0.9)]},
    }
    asked = Sweep(EPSILON, lines)
    said = texts(over_key(asked))
    assert {
        "mapa",
        "asgd (ε = ∞)",
        "0.5",
        "1",
        "4",
        "epsilon that may be spent",
        "accuracy (%)",
    } <= set(said)
    assert asked_for(asked).title == "Final accuracy against epsilon"
    assert "level" in asked_for(asked).caption
    assert over_key(Sweep(EPSILON, {"asgd": lines["asgd"]})) is None


def test_updates_until_a_threshold_over_edges(arrive: Maker) -> None:
    lines = {"mapa": {float(k): [run(arrive, f"m{k}", 0.1, *[0.8] * k)] for k in (2, 5, 100)}}
    asked = Sweep(EDGES, lines, KEPT)
    said = texts(over_key(asked))
    assert {"mapa", "2", "5", "100", "edges", "updates until accuracy ≥ 75 %"} <= set(said)
    assert asked_for(asked).title == "Updates until accuracy ≥ 75 % against the number of edges"


@pytest.mark.parametrize(
    "xs",
    [
        pytest.param((1.0,), marks=pytest.mark.nightly),
        (1.0, 1.0001),
        tuple(float(k) for k in range(1, 60)),
        pytest.param((1e-3, 1e3), marks=pytest.mark.nightly),
    ],
)
def test_any_values_make_a_picture(arrive: Maker, xs: tuple[float, ...]) -> None:
    one = run(arrive, "a", 0.5, 0.8)
    lines = {f"method {i} <&>": {x: [one] for x in xs} for i in range(9)}
    for goal in (None, KEPT, Goal("loss", 0.001)):
        ET.fromstring(draw(asked_for(Sweep(EDGES, lines, goal))))
    assert over_key(Sweep(EDGES, {})) is None


@drawings.anew()
def test_same_bytes(arrive: Maker, tmp_path: Path) -> None:
    lines = {"mapa": {x: [run(arrive, f"m{x}", 0.1 * x)] for x in (1.0, 2.0)}}
    assert draw(asked_for(Sweep(EPSILON, lines))) == draw(asked_for(Sweep(EPSILON, lines)))
