"""``sordino run`` and ``report`` speak the language of the regime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sordino.cli import app
from sordino.comparison import tables
from sordino.comparison.result import collect, recorded
from sordino.comparison.schedule import Side, tasks
from sordino.core import study as studies
from sordino.core.records import simple

STUDY = """
name = "arrivals"
[data]
name = "digits"
clients = 4
[model]
name = "logistic"
[method]
name = "mapa"
batch = 24
[privacy]
unit = "sample"
epsilon = 2.0
epsilons = [0.5, 1.0, 2.0, 2.0]
delta = 1e-3
[budget]
updates = 60
[execution]
evaluate_every = 10
[world]
latency = { kind = "exponential" }
dropout = 0.1
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("arrivals")
    (at / "study.toml").write_text(STUDY)
    return at


def test_a_run_of_arrivals_is_told_in_updates(ran: Path, capfd: pytest.CaptureFixture[str]) -> None:
    watched = ["--track", "tensorboard", "--live"]
    app(
        ["run", str(ran / "study.toml"), "--out", str(ran / "run"), "--json", *watched],
        standalone_mode=False,
    )
    said = capfd.readouterr()
    assert said.err.startswith("Live: http://127.0.0.1:")
    assert "warning: --track" not in said.err
    assert list((ran / "run" / "tracking" / "tensorboard").glob("events.out.*"))
    lines = said.err.splitlines()
    assert any(line.startswith("update 10/60  stage 1  clip 1  staleness ") for line in lines)
    assert any(
        line.startswith("mapa: 60 updates, at most ") and "gradients of one edge, accuracy" in line
        for line in lines
    )
    assert not any("round" in line or "local step" in line for line in lines)
    outcome = json.loads(said.out.splitlines()[-1])
    assert (outcome["regime"], outcome["rounds"]) == ("asynchronous", 60)
    about = json.loads((ran / "run" / "run.json").read_text())
    assert (about["batch"], about["staleness"], about["epsilons"]) == (24, 4, [0.5, 1.0, 2.0, 2.0])
    assert any("b / n_k" in text for text in about["assumptions"])
    assert not any("weight the average" in text for text in about["assumptions"])
    page = (ran / "run" / "report.html").read_text(encoding="utf-8")
    for text in (
        "asynchronous updates",
        "tau_max",
        "0.5 (1 edge), 1 (1 edge), 2 (2 edges)",
        "Epsilon of each edge",
    ):
        assert text in page


EVENTS = """
name = "events"
[data]
name = "digits"
parties = 2
stream = "replay"
[model]
name = "linear"
[method]
name = "{method}"
learning_rate = 0.02
activation = {{ kind = "count", k = 1 }}
[privacy]
unit = "label"
epsilon = 4.0
delta = 1e-5
[budget]
events = 200
[execution]
evaluate_every = 50
path = "messages"
"""


def test_a_run_of_events_is_told_in_events(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study.toml").write_text(EVENTS.format(method="dlr"))
    app(
        ["run", str(tmp_path / "study.toml"), "--out", str(tmp_path / "run"), "--json"],
        standalone_mode=False,
    )
    said = capfd.readouterr()
    lines = said.err.splitlines()
    rows = [line for line in lines if line.startswith("event ")]
    assert [line.split()[1] for line in rows] == ["50/200", "100/200", "150/200", "200/200"]
    assert all(
        "  accumulated 0." in line and "/4.000" in line and "accuracy" not in line for line in rows
    )
    assert any(
        line.startswith("dlr: 200 events, at most ")
        and "activations of one party, accuracy over the stream" in line
        for line in lines
    )
    assert not any(
        "round" in line or "client" in line for line in lines if not line.startswith("warning")
    )
    accumulated = float(rows[-1].split("accumulated ")[1].split()[0])
    assert json.loads(said.out)["accuracy"] == pytest.approx(1 - accumulated, abs=1e-3)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Features are not protected" in page
    assert "DLR-Count" in page


@pytest.mark.usefixtures("painted")
def test_methods_for_events_are_compared_by_their_error_over_the_stream(tmp_path: Path) -> None:
    sides = []
    for method in ("ogd", "slr"):
        path = tmp_path / f"{method}.toml"
        path.write_text(EVENTS.format(method=method))
        study = studies.read(path)
        sides.append(Side(method, method, path, study, study))
    planned = tasks(sides, [0], tmp_path)
    for task in planned:
        app(
            ["run", str(task.side.path), "--out", str(task.folder), "--quiet"],
            standalone_mode=False,
        )
    comparison = collect(tmp_path, "true", planned, {})
    tables.write(comparison)
    found: Any = simple(recorded(comparison))
    assert [study["runs"][0]["activity"] for study in found["studies"]] == [0.5, 0.5]
    less, more = (study["runs"][0]["mebibytes"] for study in found["studies"])
    assert more > 2 * less  # the last ten examples again and again
    first, second = (study["accuracy"]["mean"] for study in found["studies"])
    assert found["differences"][0]["mean"] == pytest.approx(second - first)
    page = (tmp_path / "comparison.html").read_text()
    for shown in (
        "run-time error (%)",
        "OGD-Count",
        "SLR-Count",
        "accuracy over the stream",
        "Messages and activity",
    ):
        assert shown in page, shown
