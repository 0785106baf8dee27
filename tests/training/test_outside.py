"""Nothing that a record holds ends a run: what cannot be computed adds nothing, without a trace."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino.errors import StudyError
from sordino.training import models
from sordino.training.flat import Flat
from sordino.training.kernels import Examples
from sordino.training.loss import Loss, cross_entropy, multiclass_hinge
from sordino.training.perexample import ClippedSum, FlatBound, Layers

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
        assert float(moved.norm()) <= 1.0
