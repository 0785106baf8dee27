"""A run folder is read at any moment of its life; what is no run folder is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import sordino
from sordino.base.errors import StudyError
from sordino.core.run.reading import load

from .conftest import Maker, rows


def test_finished_run(make: Maker) -> None:
    run = load(make())
    assert (len(run.rounds), run.steps, run.accuracy, run.epsilon, run.budget) == (
        5,
        12,
        0.7313,
        1.987654321,
        2.0,
    )
    assert run.done
    assert run.private
    assert run.damaged is None
    assert run.values("accuracy") == [0.4121, 0.7501, 0.7313]


def test_half_written_last_line(make: Maker) -> None:
    run = load(make(tail='{"kind": "round", "rou'))
    assert len(run.rounds) == 5
    assert run.damaged == "line 7 of rounds.jsonl is half written"


def test_a_damaged_log_is_told_on_the_command_line_and_on_the_page(
    make: Maker, tmp_path: Path
) -> None:
    folder = make(tail='{"kind": "round", "rou')
    done = sordino(tmp_path, "report", str(folder))
    line = "The log ends early: line 7 of rounds.jsonl is half written."
    assert f"warning: {folder}: {line}" in done.stderr
    done = sordino(tmp_path, "report", str(folder), "--out", "both.html")
    assert f"warning: {folder}: {line}" in done.stderr
    assert line in (tmp_path / "both.html").read_text()


def test_damage_in_the_middle_is_not_called_half_written(make: Maker) -> None:
    folder = make()
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join([*lines[:2], "\x00\x00\n", *lines[2:]]))
    run = load(folder)
    assert len(run.rounds) == 2
    assert run.damaged is not None
    assert "line 3" in run.damaged
    assert "left out" in run.damaged


def test_rows_cut_inside_a_letter_are_read(make: Maker) -> None:
    folder = make()
    with (folder / "rounds.jsonl").open("ab") as file:
        file.write('{"note": "é'.encode()[:-1])
    assert len(load(folder).rounds) == 5


def test_unknown_rows_are_kept_apart(make: Maker) -> None:
    run = load(
        make(
            log=[
                *rows(),
                {"kind": "weather", "round": 2},
                {"kind": "late", "round": 1, "client": 0},
            ]
        )
    )
    assert len(run.rounds) == 5
    assert (run.count("weather"), run.count("late"), run.count("lost")) == (1, 1, 0)


def test_running_run_takes_its_numbers_from_the_log(make: Maker) -> None:
    run = load(make(log=rows()[:3], status="running", result=None))
    assert (run.done, run.accuracy, run.steps) == (False, 0.7501, 7)
    assert run.epsilon == pytest.approx(1.2)


@pytest.mark.parametrize(
    "changes",
    [
        {"unit": "none"},
        {"unit": None},
        {"form": "paper"},
        {"form": None},
        {"delta": None},
        {"delta": 1.0},
        {"epsilon_budget": "inf"},
        {"epsilon_budget": 10**400},
        {"epsilon_budget": None},
        {"result": {"epsilon": "inf"}},
    ],
)
def test_whatever_is_not_promised_is_not_private(make: Maker, changes: dict[str, object]) -> None:
    assert not load(make(**changes)).private


@pytest.mark.parametrize("missing", ["run.json", "study.toml"])
def test_no_run_folder(make: Maker, missing: str) -> None:
    folder = make()
    (folder / missing).unlink()
    with pytest.raises(StudyError, match=missing.replace(".", r"\.")):
        load(folder)


def test_epsilon_is_the_highest_that_anything_states(make: Maker) -> None:
    assert load(make("low", result={"epsilon": 0.5})).epsilon == pytest.approx(2.0 - 0.012345679)
    assert load(make("high", result={"epsilon": 1.999})).epsilon == 1.999
    log: list[dict[str, object]] = [
        {"kind": "round", "round": 1, "epsilon": "inf"},
        {"kind": "round", "round": 2, "epsilon": 1.0},
    ]
    assert not load(make("inf", log=log)).private


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("clients", "x"),
        ("clients", ["x"]),
        ("clients", [{"labels": [1, -1]}]),
        ("clients", [{"labels": [1.5]}]),
        ("classes", 3),
        ("warnings", {"a": 1}),
        ("assumptions", "one"),
        ("result", [1]),
        ("ledger", "ab"),
    ],
)
def test_parts_of_another_shape_are_named(make: Maker, key: str, value: object) -> None:
    with pytest.raises(StudyError, match=rf"run\.json: {key}.* must be .*; got .*Restore"):
        load(make(**{key: value}))


def test_no_folder_and_broken_files(make: Maker, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no such run folder"):
        load(tmp_path / "nowhere")
    folder = make()
    (folder / "run.json").write_text("{")
    with pytest.raises(StudyError, match="not JSON"):
        load(folder)
    (folder / "run.json").write_text("[]")
    with pytest.raises(StudyError, match="list where an object belongs"):
        load(folder)
