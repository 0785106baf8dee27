"""Nothing that a record holds ends a run: what cannot be computed adds nothing, without a trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cases import METHODS, study_of
from permitted import permits
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Train
from sordino.core import regimes
from sordino.mechanisms.gaussian import CountedGaussian, Gaussian, Single
from sordino.mechanisms.haar.basis import Basis
from sordino.mechanisms.haar.gaussian import HaarGaussian
from sordino.mechanisms.knorm import KNorm
from sordino.regimes.synchronous.method import RoundNoise
from sordino.training import models
from sordino.training.client import ModelKernels, received
from sordino.training.flat import Flat
from sordino.training.local import LocalClient
from sordino.training.loss import Loss, cross_entropy, multiclass_hinge
from sordino.training.optimizer import Sgd
from sordino.training.perexample.clipping import FlatBound, Layers, summable
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

TOKENS, CLASSES = 9, 3


def tokens() -> nn.Module:
    return nn.Sequential(nn.Embedding(TOKENS, 4), nn.Tanh(), nn.Flatten(), nn.Linear(24, CLASSES))


def total(flat: Flat, loss: Loss, x: Tensor, y: Tensor, layers: bool = False) -> Tensor:
    out = torch.empty(flat.dim, dtype=torch.float64)
    bound = Layers(1.0) if layers else FlatBound(1.0)
    ClippedSum(flat, loss).of(Examples(x, y), torch.arange(len(y)), bound, out)
    return out


@pytest.mark.parametrize("token", [TOKENS, -1, 2**40, -(2**62)])
def test_an_example_with_a_token_outside_of_the_table_adds_nothing(token: int) -> None:
    """It ended the run with an IndexError: an oracle, and a kill switch for anybody's record."""
    flat, rng = Flat(tokens()), np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, TOKENS, (5, 6)))
    y = torch.from_numpy(rng.integers(0, CLASSES, 5))
    others = total(flat, cross_entropy, x[:4], y[:4])
    x[4, 3] = token
    for layers in (False, True):
        assert torch.equal(
            total(flat, cross_entropy, x, y, layers),
            total(flat, cross_entropy, x[:4], y[:4], layers),
        )
    assert float(others.norm()) > 0.0


@pytest.mark.parametrize("label", [CLASSES, -1, -100, 2**40])
@pytest.mark.parametrize("loss", [cross_entropy, multiclass_hinge])
@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_an_example_whose_label_is_no_class_adds_nothing(name: str, loss: Loss, label: int) -> None:
    rng = np.random.default_rng(0)
    flat = Flat(models.build(name, (1, 4, 4), CLASSES, rng))
    x = torch.from_numpy(rng.standard_normal((5, 1, 4, 4)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, CLASSES, 5))
    y[4] = label
    assert torch.allclose(
        total(flat, loss, x, y), total(flat, loss, x[:4], y[:4]), rtol=0.0, atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_of_half_precision_is_refused(dtype: torch.dtype) -> None:
    """Clipped in bfloat16, a sum moved by 1.33 C; in float16 by up to 2.38 C."""
    with pytest.raises(StudyError, match=r"float32 and float64 keep the bound.*module\.float"):
        Flat(tokens().to(dtype))


class Mixed(nn.Module):
    """Float32 parameters, bfloat16 inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.second(torch.tanh(self.first(x))).float()  # type: ignore[no-any-return]


def test_a_shorter_type_inside_of_a_model_keeps_the_bound() -> None:
    torch.manual_seed(0)
    flat, rng = Flat(Mixed()), np.random.default_rng(0)
    x = torch.from_numpy(30.0 * rng.standard_normal((9, 6)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, CLASSES, 9))
    for n in range(1, 9):
        moved = total(flat, cross_entropy, x[: n + 1], y[: n + 1]) - total(
            flat, cross_entropy, x[:n], y[:n]
        )
        assert 0.0 < float(moved.norm()) <= 1.0


class Table(nn.Module):
    """Tokens that come as numbers, looked up in a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(TOKENS, 4), nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x.long()).flatten(1))  # type: ignore[no-any-return]


def test_a_client_whose_model_fails_on_a_record_adds_nothing() -> None:
    flat, rng = Flat(Table()), np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, TOKENS, (8, 6)).astype(np.float32))
    x[5, 2] = TOKENS
    one = LocalClient(
        index=0,
        unit="client:0",
        examples=Examples(x, torch.from_numpy(rng.integers(0, CLASSES, 8))),
        mechanism=CountedGaussian(clip=1.0, noise_multiplier=1.0),
        sampling_rate=0.5,
        learning_rate=0.1,
        batch=4,
        proximal=0.0,
        optimizer=Sgd(),
        kernels=ModelKernels(
            flat, ClippedSum(flat, cross_entropy), MeanGradient(flat, cross_entropy)
        ),
        entropy=Seeded(5),
    )
    asked = Train(
        round=1, steps=2, weights=np.zeros(flat.dim, np.float32), clip=1.0, noise_multiplier=1.0
    )
    said = one.answer(asked, permits(one.price(asked), 1))
    assert not said.delta.any()
    assert not said.inside


@pytest.mark.parametrize("clip", [1e-30, 1e-13, 1e13, 1e30])
def test_a_bound_for_which_nothing_is_proven_is_refused_wherever_it_is_given(clip: float) -> None:
    basis = Basis.flat(8)
    for make in (
        lambda: Gaussian(clip=clip, noise_multiplier=1.0),
        lambda: CountedGaussian(clip=1.0, noise_multiplier=1.0).scaled(clip, 1.0),
        lambda: KNorm(clip=clip, noise_multiplier=1.0, dimension=8),
        lambda: HaarGaussian.weighted(
            clip=clip, noise_multiplier=1.0, basis=basis, weights=(1.0,) * basis.groups
        ),
        lambda: HaarGaussian.weighted(
            clip=1.0, noise_multiplier=1.0, basis=basis, weights=(1.0 / clip,) * basis.groups
        ),
        lambda: Single(clip=clip, noise_multiplier=1.0),
    ):
        with pytest.raises(StudyError, match=r"must be a number from 1e-12 to 1e\+12"):
            make()


def test_a_schedule_is_checked_to_its_end_when_a_study_is_read(tmp_path: Path) -> None:
    """clip_decay = 1e42 let a record move a sum by 1.98 S in the last rounds."""
    name, method, changes = METHODS["dynamic-dp-sgd"]
    case = (name, method, [*changes, "method.clip_decay=1e42"])
    with pytest.raises(StudyError, match=r"privacy\.clip times 1e-21.*'dynamic-dp-sgd' in round 2"):
        study_of(case, tmp_path)


@pytest.mark.parametrize(("method", "clip"), [("dp-sgd", 1e-12), ("dynamic-dp-sgd", 2e-12)])
def test_a_bound_that_is_too_small_for_a_layer_is_refused_by_the_plan(
    tmp_path: Path, method: str, clip: float
) -> None:
    """The run was refused in its first round, or in a later one."""
    name, told, changes = METHODS[method]
    layers = 'privacy.mechanism={kind="gaussian", clipping="per-layer"}'
    made = [*changes, 'model={name="mlp"}', f"privacy.clip={clip}", layers]
    study = study_of((name, told, made), tmp_path)
    with pytest.raises(StudyError, match=r"\(in a round 1.*\) / sqrt\(4 parameters\) must be"):
        regimes.plan(study)


def test_a_bound_that_follows_releases_stays_where_it_is_proven() -> None:
    assert RoundNoise(1e-30, 1.0).clip == 1e-12
    assert RoundNoise(1e30, 1.0).clip == 1e12


def test_no_number_of_a_model_that_was_sent_is_computed_with_near_the_limit_of_float32() -> None:
    sent = np.array([3e38, -3e38, np.inf, 0.5, -2.0, np.nan], np.float32)
    seen = received(sent, torch.zeros(1)).tolist()
    assert seen[:5] == [1e6, -1e6, 1e6, 0.5, -2.0]


def test_batches_that_may_be_too_large_are_refused_by_their_public_size() -> None:
    summable(2.0**19)
    with pytest.raises(StudyError, match=r"lower privacy\.sampling_rate"):
        summable(2.0**19 + 1.0)
