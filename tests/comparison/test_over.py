"""What --over and --until may ask for, and what becomes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sordino.base.errors import StudyError
from sordino.comparison import result, tables
from sordino.comparison.result import goal, line, over
from sordino.comparison.schedule import Side
from sordino.core import study as studies
from sordino.core.records import simple
from sordino.core.run.reading import load
from sordino.report.curves import EDGES, EPSILON, Goal, Sweep

STUDY = """
name = "{name}"
[data]
name = "digits"
clients = {clients}
[model]
name = "logistic"
[method]
name = "{method}"
[privacy]
{privacy}
[budget]
updates = 100
"""
PRIVATE = 'unit = "sample"\nepsilon = {}\ndelta = 1e-3\nnoise_multiplier = 2.0'


def side(
    at: Path, name: str, method: str = "mapa", epsilon: float | None = 1.0, clients: int = 5
) -> Side:
    path = at / f"{name}.toml"
    privacy = 'unit = "none"' if epsilon is None else PRIVATE.format(epsilon)
    path.write_text(STUDY.format(name=name, method=method, clients=clients, privacy=privacy))
    study = studies.read(path)
    return Side(name, name, path, study, study)


def member(one: Side, *accuracies: float) -> result.Member:
    runs = {}
    for seed, accuracy in enumerate(accuracies):
        folder = one.path.parent / "runs" / one.slug / f"seed-{seed}"
        folder.mkdir(parents=True)
        private = one.study.privacy.unit != "none"
        about = {
            "status": "done",
            "regime": "asynchronous",
            "unit": one.study.privacy.unit,
            "form": "sound",
            "delta": 1e-3,
        }
        done = {"accuracy": accuracy, "epsilon": one.study.privacy.epsilon if private else "inf"}
        (folder / "run.json").write_text(
            json.dumps({**about, "epsilon_budget": done["epsilon"], "result": done})
        )
        (folder / "study.toml").write_text(studies.write(one.study))
        rows = [
            {
                "kind": "round",
                "round": t,
                "accuracy": accuracy * (t > 20),
                "epsilon": done["epsilon"],
            }
            for t in (20, 40, 60)
        ]
        (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        runs[seed] = load(folder)
    return result.Member(one, runs, {})


def test_nothing_asked_for_is_nothing(tmp_path: Path) -> None:
    assert over(None, None, [side(tmp_path, "a")]) is None


def test_what_differs_can_be_drawn_over(tmp_path: Path) -> None:
    sides = [
        side(tmp_path, "a", epsilon=1.0),
        side(tmp_path, "b", epsilon=2.0),
        side(tmp_path, "c", "asgd", None),
    ]
    assert over(EPSILON, None, sides) == Sweep(EPSILON)
    sides = [side(tmp_path, "a", clients=5), side(tmp_path, "b", clients=50)]
    assert over(EDGES, "0.75", sides) == Sweep(EDGES, goal=Goal("accuracy", 0.75))


@pytest.mark.parametrize(
    ("key", "until", "said"),
    [
        (
            "privacy.delta",
            None,
            "--over must be one of privacy.epsilon, data.clients; got 'privacy.delta'",
        ),
        (None, "0.75", "--until goes with --over data.clients"),
        (EPSILON, "0.75", "--until goes with --over data.clients"),
        (EDGES, None, "for example --until 0.75"),
        (EDGES, "0.75", "the studies do not differ in it"),
        (EDGES, "75", "must be an accuracy such as 0.75 or a loss such as loss=0.5; got '75'"),
        (EPSILON, None, "both have method mapa and privacy.epsilon = 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    tmp_path: Path, key: str | None, until: str | None, said: str
) -> None:
    sides = [side(tmp_path, "a"), side(tmp_path, "b", epsilon=2.0), side(tmp_path, "c")]
    with pytest.raises(StudyError) as refused:
        over(key, until, sides)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "x", "0", "1.5", "nan", "loss=", "loss=0", "loss=inf", "speed=3"]
)
def test_thresholds_that_are_none(text: str) -> None:
    with pytest.raises(StudyError, match="--until must be"):
        goal(text)


@pytest.mark.usefixtures("painted")
def test_the_picture_is_on_the_page_and_its_numbers_in_the_table(tmp_path: Path) -> None:
    members = [
        member(side(tmp_path, "a", epsilon=1.0), 0.5, 0.6),
        member(side(tmp_path, "b", epsilon=4.0), 0.7, 0.8),
        member(side(tmp_path, "c", "asgd", None), 0.9, 0.9),
    ]
    asked = over(EPSILON, None, [each.side for each in members])
    found = result.compared(tmp_path, "true", (0, 1), members, asked)
    told: Any = simple(result.recorded(found)["over"])
    assert [(point["method"], point["value"]) for point in told["points"]] == [
        ("mapa", 1.0),
        ("mapa", 4.0),
        ("asgd", "inf"),
    ]
    assert told["points"][1]["by_seed"] == {"0": 0.7, "1": 0.8}
    tables.write(found)
    page = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    for said in ("Final accuracy against epsilon", "asgd (ε = ∞)", "Over updates", "Over epsilon"):
        assert said in page
    assert page.count("<svg") == 3
    assert "over" not in result.recorded(result.compared(tmp_path, "true", (0, 1), members))


def test_how_long_it_took_is_told_by_seed(tmp_path: Path) -> None:
    members = [
        member(side(tmp_path, "a", clients=2), 0.5, 0.8),
        member(side(tmp_path, "b", clients=20), 0.9, 0.9),
    ]
    asked = over(EDGES, "0.75", [each.side for each in members])
    told: Any = simple(
        result.recorded(result.compared(tmp_path, "true", (0, 1), members, asked))["over"]
    )
    assert [point["by_seed"] for point in told["points"]] == [
        {"0": None, "1": 40.0},
        {"0": 40.0, "1": 40.0},
    ]
    assert told["until"] == {"accuracy": 0.75}


EVENTS = """
name = "{name}"
[data]
name = "digits"
stream = "replay"
[method]
name = "dlr"
activation = "{activation}"
[privacy]
unit = "label"
epsilon = {epsilon}
delta = 1e-5
[budget]
events = 100
"""


def stream(at: Path, name: str, activation: str, epsilon: float) -> Side:
    path = at / f"{name}.toml"
    path.write_text(EVENTS.format(name=name, activation=activation, epsilon=epsilon))
    study = studies.read(path)
    return Side(name, name, path, study, study)


def test_who_is_active_tells_lines_of_events_apart(tmp_path: Path) -> None:
    sides = [
        stream(tmp_path, f"{kind}{epsilon}", kind, epsilon)
        for kind in ("full", "random")
        for epsilon in (1, 3)
    ]
    asked = over(EPSILON, None, sides)  # the same method at the same epsilon, twice
    assert asked is not None
    assert [(line(side.study), result.KEYS[asked.key](side.study)) for side in sides] == [
        ("DLR-Full", 1),
        ("DLR-Full", 3),
        ("DLR-Random", 1),
        ("DLR-Random", 3),
    ]


def test_events_have_no_edges_to_draw_over(tmp_path: Path) -> None:
    sides = [stream(tmp_path, "a", "full", 1), stream(tmp_path, "b", "full", 3)]
    with pytest.raises(StudyError, match=r"a\.toml has no data\.clients"):
        over(EDGES, "0.75", sides)
