"""A plan knows what the ledgers of its data have left, and its remedies help."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from sordino.base.errors import BudgetExceeded, StudyError
from sordino.cli import app
from sordino.core import regimes as build
from sordino.core import study as studies
from sordino.core.run import session
from sordino.core.study.base import Study

STUDY = """
name = "Again"
[data]
name = "digits"
clients = 2
[model]
name = "logistic"
[method]
name = "METHOD"
learning_rate = 0.5
tau = 1
[privacy]
unit = "UNIT"
epsilon = 4.0
delta = 1e-3
noise_multiplier = 2.0
sampling_rate = 0.2
ledger = "kept"
[budget]
rounds = 6
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(*changes: str, method: str = "dp-sgd", unit: str = "sample") -> Study:
    Path("study.toml").write_text(STUDY.replace("METHOD", method).replace("UNIT", unit))
    return studies.read(Path("study.toml"), list(changes))


def played(study: Study, out: str) -> None:
    session.begin(study, Path(out), lambda row: None, lambda about: None)


def short(study: Study) -> list[str]:
    return [warning for warning in build.plan(study)[0].warnings if "the ledger of" in warning]


def test_a_plan_over_fresh_data_writes_nothing_and_has_all_left() -> None:
    priced, _ = build.plan(read())
    assert not Path("kept").exists()
    assert [each.spent for each in priced.left] == [0.0, 0.0]
    assert {each.steps for each in priced.left} == {priced.steps}
    assert not short(read())


def test_a_plan_refuses_a_file_where_a_folder_of_ledgers_belongs(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    with pytest.raises(StudyError, match=r"privacy\.ledger: .*/kept: this is a file"):
        build.plan(read())


@pytest.mark.parametrize(("method", "unit"), [("dp-sgd", "sample"), ("dp-fedavg", "client")])
def test_what_was_spent_is_counted_and_the_remedy_helps(method: str, unit: str) -> None:
    played(read("privacy.noise_multiplier=0.9", method=method, unit=unit), "first")
    held = {path.name: path.read_bytes() for path in Path("kept").glob("*.sqlite")}
    priced, _ = build.plan(read("budget.rounds=60", method=method, unit=unit))
    spent = json.loads(Path("first/run.json").read_text())["result"]["epsilon"]
    assert max(each.spent for each in priced.left) == pytest.approx(spent)
    dear = "privacy.noise_multiplier=0.7"
    (said,) = short(read(dear, "budget.rounds=60", method=method, unit=unit))
    assert "pays for" in said
    raised = re.search(r"noise_multiplier from 0\.7 to ([0-9.]+)", said)
    assert raised is not None
    assert not short(
        read(f"privacy.noise_multiplier={raised[1]}", "budget.rounds=60", method=method, unit=unit)
    )
    fewer = re.search(r"at most (\d+)", said)
    if fewer is not None:  # not where what is left pays for nothing
        assert not short(read(dear, f"budget.rounds={fewer[1]}", method=method, unit=unit))
    assert {path.name: path.read_bytes() for path in Path("kept").glob("*.sqlite")} == held, (
        "a plan writes nothing"
    )


def test_data_that_was_used_raw_has_nothing_left_and_no_remedy_but_other_data() -> None:
    played(
        read(
            'method={name="fedavg", learning_rate=0.5}',
            'privacy={unit="none", sampling_rate=0.2, ledger="kept"}',
        ),
        "raw",
    )
    priced, _ = build.plan(read())
    assert all(math.isinf(each.spent) for each in priced.left)
    (said,) = short(read())
    assert "without a bound" in said
    assert "use other data" in said


def test_a_budget_that_is_all_spent_is_said_so() -> None:
    played(read("privacy.noise_multiplier=0.8"), "first")
    (said,) = short(read("privacy.epsilon=0.5"))
    assert "which is all of 0.5" in said


def test_arrivals_too(capsys: pytest.CaptureFixture[str]) -> None:
    told = (
        'method={name="audp", batch=40}',
        'privacy={unit="sample", epsilon=4.0, delta=1e-3, noise_multiplier=2.0, ledger="kept"}',
        "budget={updates=20}",
    )
    played(read(*told), "first")
    priced, _ = build.plan(read(*told))
    assert all(0.0 < each.spent < 4.0 for each in priced.left)
    app(
        ["plan", "study.toml", *(part for change in told for part in ("--set", change))],
        standalone_mode=False,
    )
    assert "still pays for" in capsys.readouterr().out


class StopError(Exception):
    """Where a run was stopped."""


def stopped(study: Study, out: str) -> None:
    def row(_: object) -> None:
        raise StopError

    with pytest.raises(StopError):
        session.begin(study, Path(out), row, lambda about: None)


def test_what_a_run_that_has_not_ended_was_promised_limits_the_plan_as_it_limits_the_run() -> None:
    stopped(read("privacy.epsilon=2"), "open")
    study = read("budget.rounds=60", "privacy.noise_multiplier=1.5")
    priced, _ = build.plan(study)
    assert priced.steps is not None
    steps = {each.steps for each in priced.left}
    assert max(filter(None, steps)) < min(priced.steps, 60)
    played(study, "second")
    done = json.loads(Path("second/run.json").read_text())
    assert done["payable"] == [each.steps for each in priced.left]
    assert done["result"]["epsilon"] == pytest.approx(max(each.total for each in priced.left))


def test_a_plan_says_where_a_run_would_be_refused_beside_one_that_chooses() -> None:
    stopped(read('method={name="ali-dpfl", learning_rate=0.5}'), "open")
    study = read("privacy.epsilon=20")
    (said,) = (each for each in build.plan(study)[0].warnings if "would be refused" in each)
    assert "chooses by what it releases" in said
    with pytest.raises(BudgetExceeded, match="may still spend counts"):
        played(study, "second")


@pytest.mark.parametrize(
    "changes",
    [
        ["privacy.epsilon=8"],
        ['method={name="dynamic-dp-sgd", learning_rate=0.5, tau=1}'],
        ["privacy.epsilons=[5.0, 3.0]", "privacy.epsilon=5"],
        ['data={file="rows.npz", classes=["0", "1"], clients=2, test="private share"}'],
    ],
    ids=["same", "schedule", "personal", "tested"],
)
def test_a_plan_says_what_the_run_will_state(changes: list[str]) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 5)).astype(np.float32)
    np.savez("rows.npz", x=rows, y=rng.integers(0, 2, 400))
    first = changes if changes[0].startswith("data") else []
    played(read("budget.rounds=3", *first), "first")
    given = 'privacy={unit="sample", epsilon=4.0, delta=1e-3, sampling_rate=0.2, ledger="kept"}'
    study = read(given, "budget.rounds=3", *changes)
    (said,) = (each for each in build.plan(study)[0].warnings if "it will state" in each)
    played(study, "second")
    stated = json.loads(Path("second/run.json").read_text())["result"]["epsilon"]
    told = re.search(r"state epsilon ([0-9.]+)", said)
    assert told is not None
    assert float(told[1]) == pytest.approx(stated, rel=2e-3)


def test_a_plan_of_a_method_that_chooses_says_that_it_will_state_its_budget() -> None:
    played(read(), "first")
    priced, _ = build.plan(read('method={name="ali-dpfl", learning_rate=0.5}'))
    assert any("it will state its whole budget" in warning for warning in priced.warnings)


EVENTS = """
name = "Again"
[data]
name = "digits"
parties = 2
stream = {kind = "replay"}
[model]
[method]
name = "ogd"
[privacy]
unit = "label"
epsilon = 4.0
label_epsilon = 1.5
delta = 1e-3
memoised = false
ledger = "kept"
[budget]
events = 200
"""


def test_events_too(capsys: pytest.CaptureFixture[str]) -> None:
    Path("study.toml").write_text(EVENTS)
    study = studies.read(Path("study.toml"), ["privacy.appearances=1"])
    for number in (1, 2):
        (left,) = build.plan(study)[0].left
        assert 1.49 * number < left.total <= 1.5 * number  # at delta = 1e-3
        played(study, str(number))
        stated = json.loads(Path(f"{number}/run.json").read_text())["result"]["epsilon"]
        assert left.total == pytest.approx(stated)
    app(["plan", "study.toml"], standalone_mode=False)
    assert "pays for 0 of" in capsys.readouterr().err
