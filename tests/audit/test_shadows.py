"""Shadow runs: what a coin leaves out adds nothing, and a finished run stays finished."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sordino.api.auditing import attacked_runs, shadowed
from sordino.audit.canaries import ABSENT, MembersSum
from sordino.audit.lira import MembersMean, Shadows, observe, observed, shadows
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.clients.study import HorizontalStudy
from sordino.core import study as studies
from sordino.training import models
from sordino.training.flat import Flat
from sordino.training.loss import loss_for
from sordino.training.perexample.clipping import FlatBound
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

STUDY = Path(__file__).parents[2] / "examples/audit/samples.toml"
SHORT = ("budget.rounds=3", "model.name=logistic")


def study(*changes: str) -> HorizontalStudy:
    found = studies.read(STUDY, [*SHORT, *changes])
    assert isinstance(found, HorizontalStudy)
    return found


def test_absent_examples_add_nothing() -> None:
    flat = Flat(models.build("logistic", (1, 4, 4), 3, Seeded(0).at("model")))
    loss, rng = loss_for("logistic"), np.random.default_rng(1)
    x = torch.from_numpy(rng.standard_normal((6, 1, 4, 4)).astype(np.float32))
    y = torch.tensor([0, ABSENT, 2, 1, ABSENT, 0])
    there = torch.tensor([0, 2, 3, 5])
    found, wanted = (torch.empty(flat.dim, dtype=torch.float64) for _ in range(2))
    marked, present = Examples(x, y), Examples(x[there], y[there])
    MembersSum(flat, loss).of(marked, torch.arange(6), FlatBound(0.3), found)
    ClippedSum(flat, loss).of(present, torch.arange(4), FlatBound(0.3), wanted)
    assert torch.equal(found, wanted)
    mean, plain = (torch.empty(flat.dim) for _ in range(2))
    MembersMean(flat, loss).of(marked, torch.arange(6), mean)
    MeanGradient(flat, loss).of(present, torch.arange(4), plain)
    assert torch.equal(mean, plain)
    MembersMean(flat, loss).of(marked, torch.tensor([1, 4]), mean)
    assert not mean.any()


def test_runs_have_halves_and_noise_of_their_own_and_are_made_once(tmp_path: Path) -> None:
    made = shadows(study(), tmp_path)
    coins = [made.coins(run) for run in range(2)]
    assert 0.4 < coins[0].mean() < 0.6
    assert (coins[0] != coins[1]).any()
    for run in range(2):
        observe(made, run)
    seen, epsilon = observed(made, 2)
    assert epsilon == pytest.approx(8.0, rel=0.01)
    assert seen.phi.shape == seen.coins.shape == (2, made.records)
    assert np.isfinite(seen.phi).all()
    assert (seen.phi[0] != seen.phi[1]).all()
    assert sorted(each.name for each in made.folder.iterdir()) == ["run-0000.npz", "run-0001.npz"]
    before = made.file(0).stat().st_mtime_ns
    observe(made, 0)
    assert made.file(0).stat().st_mtime_ns == before
    # the same run again is the same; another study has another folder
    elsewhere = shadows(study(), tmp_path / "again")
    observe(elsewhere, 0)
    assert np.array_equal(observed(elsewhere, 1)[0].phi[0], seen.phi[0])
    assert shadows(study("privacy.clip=2.0"), tmp_path).folder != made.folder


def test_shadow_runs_spend_nothing_of_a_lasting_ledger(tmp_path: Path) -> None:
    made = shadows(study(f"privacy.ledger={tmp_path / 'lasting'}"), tmp_path / "runs")
    observe(made, 0)
    assert not (tmp_path / "lasting").exists()


def test_two_runs_of_one_half_would_share_nothing_but_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coins are part of what noise follows from: with other coins, all noise is another."""
    made = shadows(study(), tmp_path)
    observe(made, 0)
    coins = made.coins(0)
    coins[0] = not coins[0]
    monkeypatch.setattr(Shadows, "coins", lambda self, run: coins)
    other = shadows(study(), tmp_path / "other")
    observe(other, 0)
    far = np.abs(observed(made, 1)[0].phi - observed(other, 1)[0].phi)
    assert np.median(far) > 0.01


def test_records_are_told_where_there_is_no_noise(tmp_path: Path) -> None:
    plain = study(
        'method={ name = "fedavg", learning_rate = 1.0, tau = 40 }',
        'privacy={ unit = "none", sampling_rate = 0.1 }',
        "model.name=mlp",
        "budget.rounds=8",
    )
    seen = shadowed(plain, 8, tmp_path, modules=None)
    found = seen.inferred("online", 0.05)
    row = seen.interval(found, "plain")
    assert found.area > 0.53
    assert found.low_run > 0.0
    assert (row.verdict, row.ledger, row.releases) == ("holds", np.inf, 4 * 1437)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (['method={ name = "dp-fedavg" }', "privacy.unit=client"], "whole clients are protected"),
        (['method={ name = "ali-dpfl", form = "paper", learning_rate = 0.5 }'], "no epsilon is"),
        (["data.name=diabetes", "model.name=mlp"], "how sure a model is of a class"),
    ],
)
def test_studies_without_a_question_are_refused(
    changes: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(StudyError, match=message):
        shadows(study(*changes), tmp_path)


def test_numbers_of_runs_are_bounded() -> None:
    assert [attacked_runs(count) for count in (4, 5, 16)] == [2, 3, 8]
    with pytest.raises(StudyError, match="--shadows must be from 4"):
        attacked_runs(3)
