"""Plans, runs and comparisons from Python are those of the command line."""

from __future__ import annotations

import json
import shutil
import warnings
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from torch.utils.data import Dataset

import sordino as so
from digits import small
from sordino.base.errors import DataError
from sordino.cli import app
from sordino.core.records import Row
from sordino.privacy import Composed, Gaussian, PoissonSampled, epsilon_after

STEP = PoissonSampled(sampling_rate=0.1, event=Gaussian(noise_multiplier=2.0))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_is_that_of_the_command_line(tmp_path: Path) -> None:
    rows: list[Row] = []
    run = so.run(small(), out="mine", on_row=rows.append, progress=False, track=["tensorboard"])
    assert list(Path("mine/tracking/tensorboard").glob("events.out.*"))
    path = small().write(tmp_path / "study.toml")
    app(["run", str(path), "--out", "theirs", "--quiet"], standalone_mode=False)
    mine, theirs = (Path(each) / "model.safetensors" for each in ("mine", "theirs"))
    assert mine.read_bytes() == theirs.read_bytes()
    assert [row.kind for row in rows] == ["round", "round", "end"]
    assert run.done
    assert run.accuracy == so.Run.open("theirs").accuracy
    assert run.epsilon is not None
    assert run.epsilon <= 2.0
    assert run.report.exists()
    assert run.verify().problems == []
    assert run.verify().epsilon == run.spent
    assert so.resume("mine", progress=False).accuracy == run.accuracy


def test_what_a_run_tells(tmp_path: Path) -> None:
    run = so.run(small(), progress=False)
    frame = run.to_polars()
    assert frame["round"].to_list() == [1, 2]
    assert run.spent is not None
    assert run.spent <= frame["epsilon"][-1] <= 2.0  # a quick bound while it runs
    assert run.to_pandas()["round"].tolist() == [1, 2]
    logged = [json.loads(line) for line in (run.folder / "rounds.jsonl").read_text().splitlines()]
    assert frame["accuracy"].to_list() == [row["accuracy"] for row in logged if "accuracy" in row]
    shown = run._repr_html_()
    assert "<svg" in shown
    assert "differential" in shown.lower()
    ledger = run.ledger
    assert ledger.epsilon(1e-3) == pytest.approx(run.spent)
    assert len(ledger.to_polars()) == 6  # three clients, two rounds


def test_a_model_predicts_as_it_was_measured() -> None:
    from sordino import data

    run = so.run(small(), progress=False)
    test = data.load("digits").test
    x = torch.from_numpy(data.scaled(test.x))
    module = run.model(x[0].numpy(), 10)
    right = (module(x).argmax(1).numpy() == test.y).mean()
    assert right == pytest.approx(run.accuracy)
    assert run.metrics is not None
    assert run.metrics.accuracy == pytest.approx(right)
    with pytest.raises(so.StudyError, match="does not fit"):
        run.model(np.zeros(3), 10)


def test_data_in_memory_is_run_on_and_known_by_its_content() -> None:
    names = ["setosa", "versicolor", "virginica"]
    study = small().on(load_iris(), clients=2, test="public share", classes=names)
    assert study.name == "dp-sgd on own data"
    first, second = (so.run(study, out=each, progress=False) for each in ("a", "b"))
    assert first.accuracy == second.accuracy
    assert first.study.table["data"]["label"] == "target"
    assert so.plan(study).epsilon == pytest.approx(2.0, abs=0.01)


class Mixed(Dataset[Any]):
    """Pictures, of which one is in floats: together they would all be floats, and no pixels."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return np.full((1, 4, 4), 9, np.float32 if i == 3 else np.uint8), i % 2


def test_pictures_of_two_types_are_refused() -> None:
    with pytest.raises(DataError, match=r"all be pixels \(uint8\) or none"):
        small().on(Mixed())


def test_a_plan_is_that_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    plan = so.plan(small())
    path = small().write("study.toml")
    app(["plan", str(path), "--json"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    assert plan.noise_multiplier == told["noise_multiplier"]
    assert plan.epsilon == told["epsilon"]
    assert len(plan.to_polars()) == 2
    assert "noise multiplier" in plan._repr_html_()
    assert "epsilon 2" in repr(plan)


@pytest.mark.usefixtures("forked")
def test_a_comparison_varies_keys_and_goes_on_where_it_was() -> None:
    found = so.compare(
        [small()], seeds=1, vary={"privacy.epsilon": [2.0, 1.0]}, out="c", progress=False, workers=2
    )
    frame = found.to_polars()
    assert frame.height == 2
    assert frame["epsilon"].to_list() == pytest.approx([2.0, 1.0], abs=0.01)
    assert found.page.exists()
    assert not found.failures
    assert "<svg" in found._repr_html_()
    before = {path: path.stat().st_mtime_ns for path in Path("c").rglob("model.safetensors")}
    again = so.compare(
        [small()], seeds=1, vary={"privacy.epsilon": [2.0, 1.0]}, out="c", progress=False
    )
    assert again.to_polars().equals(frame)
    assert before == {p: p.stat().st_mtime_ns for p in Path("c").rglob("model.safetensors")}


def test_a_ledger_serves_the_loop_of_another_library() -> None:
    data = so.fingerprint(b"rows")
    with so.Ledger.create("clinic.sqlite", {"clinic": data}) as ledger:
        most = ledger.remaining(STEP, epsilon=1.0, delta=1e-5)
        assert most is not None
        ledger.charge(STEP, count=most - 1, key="model-1", epsilon=1.0, delta=1e-5)
        ledger.charge(STEP, epsilon=1.0, delta=1e-5)
        alone = epsilon_after(STEP, [most], delta=1e-5, accountant="pld")[0]
        assert ledger.epsilon(1e-5) == pytest.approx(alone)
        with pytest.raises(so.BudgetExceeded):
            ledger.charge(STEP, epsilon=1.0, delta=1e-5)
    with so.Ledger.create("clinic.sqlite", {"clinic": data}) as again:  # another day
        with pytest.raises(so.StudyError, match="second release"):  # which draws other noise
            again.charge(STEP, count=most - 1, key="model-1", epsilon=9.0, delta=1e-5)
        assert len(again.entries()) == 2
        again.verify()
        assert "clinic" in again._repr_html_()
    with pytest.raises(so.SordinoError, match="clinic"):
        so.Ledger.create("clinic.sqlite", {"clinic": so.fingerprint(b"other rows")})
    with so.Ledger.open("clinic.sqlite") as read, pytest.raises(so.SordinoError):
        read.charge(STEP, epsilon=10.0, delta=1e-5)
    shutil.copy("clinic.sqlite", "clinic-old.sqlite")  # which has spent less, one day
    with (
        so.Ledger.open(Path.cwd()) as both,
        pytest.raises(so.LedgerError, match="several ledgers keep 'clinic'"),
    ):
        both.epsilon(1e-5, "clinic")


def test_the_loop_of_opacus_pays_and_is_refused_when_nothing_is_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import runpy

    loop = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "opacus_loop.py"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loop["main"](Path("digits.sqlite"), "one")
        with pytest.raises(so.BudgetExceeded):
            loop["main"](Path("digits.sqlite"), "two")
    with so.Ledger.open("digits.sqlite") as ledger:
        steps = sum(entry.count for entry in ledger.entries())
        assert ledger.epsilon(1e-4) <= 3.0
    rate = 1 / 29  # 1 797 examples in batches of 64
    step = PoissonSampled(sampling_rate=rate, event=Gaussian(noise_multiplier=1.0))
    assert epsilon_after(step, [steps], delta=1e-4, accountant="pld")[0] <= 3.0
    assert "accuracy 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("event", "epsilon", "delta"),
    [(None, 1.0, 1e-5), ("gaussian", 1.0, 1e-5), (so.privacy.Gaussian(9.0), "1", 1e-5),
     (so.privacy.Gaussian(9.0), 1.0, None),
     (PoissonSampled(0.1, Composed((PoissonSampled(0.5, Gaussian(9.0)),))), 1.0, 1e-5)],
)  # fmt: skip
def test_a_charge_of_what_is_none_is_told(
    tmp_path: Path, event: Any, epsilon: Any, delta: Any
) -> None:
    with so.Ledger.create(tmp_path / "clinic.sqlite", ["clinic"]) as ledger:
        with pytest.raises(so.StudyError, match=r"is no event|must be a number|has no price"):
            ledger.charge(event, epsilon=epsilon, delta=delta)
        with pytest.raises(so.LedgerError, match="why of a charge must be text"):
            ledger.charge(so.privacy.Gaussian(9.0), epsilon=1.0, delta=1e-5, why="\ud800")
        assert ledger.entries() == []
        ledger.charge(so.privacy.Gaussian(9.0), epsilon=Decimal(1), delta=Decimal("1e-5"))  # type: ignore[arg-type]
