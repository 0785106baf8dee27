"""Correlated noise at real clients: what a record moves in all, and what noise is drawn over."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from correlations import shift
from permitted import permit
from sordino import privacy
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.message import TrainInOrder
from sordino.core import study as studies
from sordino.mechanisms.correlated import SLACK, CorrelatedGaussian, Correlation, Memory, _grid
from sordino.training import models
from sordino.training.client import ModelKernels, PrivateClient
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.optimizer import Sgd
from sordino.training.passes import Passes
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

SIGMA, N, BATCHES, STEPS = 3.0, 11, 4, 12
Kind = Literal["banded", "blt"]
PERMITS = [permit(privacy.Gaussian(SIGMA), 1, number) for number in range(1, 5)]


def client(x: Any, y: Any, kind: Kind) -> PrivateClient:
    flat = Flat(models.build("logistic", (4,), 3, np.random.default_rng(0)))
    correlation = Correlation(kind=kind, separation=BATCHES, passes=3)
    return PrivateClient(
        index=0,
        unit="client:0",
        optimizer=Sgd(),
        examples=Examples(torch.from_numpy(x), torch.from_numpy(y)),
        mechanism=CorrelatedGaussian(clip=0.5, noise_multiplier=SIGMA, correlation=correlation),
        sampling_rate=1 / BATCHES,
        learning_rate=1e-30,  # so that all worlds have one past
        kernels=ModelKernels(
            flat, ClippedSum(flat, cross_entropy), MeanGradient(flat, cross_entropy)
        ),
        entropy=Seeded(5),
        passes=Passes(BATCHES),
    )


def task(one: PrivateClient, number: int, taken: int, steps: int) -> TrainInOrder:
    weights = np.full(one.kernels.flat.dim, 0.01, np.float32)
    return TrainInOrder(round=number, steps=steps, weights=weights, taken=taken)


def played(x: Any, y: Any, kind: Kind) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Raw sums of all steps (n, d), and what was released, in steps of the grid."""
    sums, released, real = [], [], CorrelatedGaussian.release_after

    def seen(self: Any, total: Any, *rest: Any) -> Any:
        found = real(self, total, *rest)
        grid = _grid(self.correlation, self.clip, self.deviation_multiplier, total.numel())
        sums.append(total.double().numpy().copy())
        released.append(np.rint(found[0].double().numpy() / grid.step))
        return found

    with mock.patch.object(CorrelatedGaussian, "release_after", seen):
        one, taken = client(x, y, kind), 0
        for number, steps in enumerate((3, 1, 5, 3), 1):
            one.answer(task(one, number, taken, steps), PERMITS)
            taken += steps
    return np.array(sums), np.array(released)


def moved(kind: Kind, trials: int) -> float:
    """Most that a record has moved all steps, over what three passes pay for."""
    rng, most = np.random.default_rng(1), 0.0
    for trial in range(trials):
        x, y = rng.normal(size=(N, 4)).astype(np.float32), rng.integers(0, 3, N)
        row = trial % N
        x[row] *= 10.0 ** rng.integers(0, 4)
        absent = x.copy()
        absent[row] = np.nan  # adds nothing
        (one, seen), (other, _) = played(x, y, kind), played(absent, y, kind)
        made: Any = client(x, y, kind).mechanism
        lengths = shift(made, seen, one, other)
        d = one.shape[1]
        grid = _grid(made.correlation, made.clip, made.deviation_multiplier, d)
        root = d**0.5
        paid = 3 * made.correlation.moved(made.clip / grid.step + root, SLACK * root) ** 2
        most = max(most, float((lengths**2).sum()) / paid)
    return most


@pytest.mark.parametrize("kind", ["banded", "blt"])
def test_no_record_moves_more_than_its_passes_pay_for(kind: Kind) -> None:
    assert 0.9 < moved(kind, 22) <= 1.0


@pytest.mark.parametrize("kind", ["banded", "blt"])
def test_an_order_that_is_one_step_off_moves_more(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of each pass begins one batch later: a record comes b - 1 steps after itself."""
    real = Passes.batch
    monkeypatch.setattr(
        Passes, "batch", lambda self, step, count: real(self, step + step // BATCHES, count)
    )
    assert moved(kind, 8) > 1.05


def test_noise_is_drawn_over_the_memory_too() -> None:
    """Equal noise with two memories would show what these differ by: earlier sums."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(N, 4)).astype(np.float32), rng.integers(0, 3, N)

    def drawn(memory: Memory | None) -> NDArray[np.float64]:
        one = client(x, y, "banded")
        assert one.passes is not None
        one.passes.memory = memory
        one.answer(task(one, 9, 4, 1), PERMITS)
        kept = one.passes.memory
        assert kept is not None
        past = np.zeros(kept.rows[0].size)
        if memory is not None:
            column = Correlation(kind="banded", separation=BATCHES, passes=3).column(BATCHES)
            past = sum((c * row for c, row in zip(column[1:], memory.rows, strict=True)), past)
        found: NDArray[np.float64] = kept.rows[0] + np.rint(past)
        return found

    before = client(x, y, "banded")
    before.answer(task(before, 8, 0, 4), PERMITS)
    assert before.passes is not None
    assert np.array_equal(drawn(before.passes.memory), drawn(before.passes.memory))
    assert not np.array_equal(drawn(before.passes.memory), drawn(None))


STUDY = """
name = "correlated"
[data]
name = "digits"
clients = 3
[model]
name = "logistic"
[method]
name = "dp-sgd"
tau = 3
learning_rate = 0.5
[privacy]
unit = "sample"
epsilon = 8.0
delta = 1e-5
sampling = "passes"
batches = 5
correlation = "blt"
[budget]
rounds = 7
"""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            "privacy={unit='sample',epsilon=8.0,delta=1e-5,sampling_rate=0.2,correlation='blt'}",
            "set sampling = 'passes'",
        ),
        ("privacy.mechanism={kind='haar'}", "proved for mechanism 'gaussian'"),
        ("method={name='dynamic-dp-sgd',stages=2,learning_rate=0.5}", "privacy.sampling 'passes'"),
    ],
)
def test_what_has_no_proof_is_refused(change: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    with pytest.raises(StudyError, match=why):
        studies.read(tmp_path / "study.toml", [change])
