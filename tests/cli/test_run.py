"""``sordino run`` and ``report`` speak the language of the regime."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sordino.cli import app

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
    app(["run", str(ran / "study.toml"), "--out", str(ran / "run"), "--json"], standalone_mode=False)
    said = capfd.readouterr()
    lines = said.err.splitlines()
    assert any(line.startswith("update 10/60  stage 1  clip 1  staleness ") for line in lines)
    assert any(line.startswith("mapa: 60 updates, at most ") and "gradients of one edge, accuracy" in line for line in lines)
    assert not any("round" in line or "local step" in line for line in lines)
    outcome = json.loads(said.out.splitlines()[-1])
    assert (outcome["regime"], outcome["rounds"]) == ("asynchronous", 60)
    about = json.loads((ran / "run" / "run.json").read_text())
    assert (about["batch"], about["staleness"], about["epsilons"]) == (24, 4, [0.5, 1.0, 2.0, 2.0])
    assert any("b / n_k" in text for text in about["assumptions"])
    assert not any("weigh the average" in text for text in about["assumptions"])
    page = (ran / "run" / "report.html").read_text(encoding="utf-8")
    for text in ("asynchronous updates", "tau_max", "0.5 (1 edge), 1 (1 edge), 2 (2 edges)", "Epsilon of each edge"):
        assert text in page
