"""Squared loss, against its closed form and autograd."""

from __future__ import annotations

import numpy as np
import torch

from sordino.training.flat import Flat
from sordino.training.loss import loss_for, squares
from sordino.training.perexample.sums import ClippedSum, MeanGradient

RNG = np.random.default_rng(0)


def rows(n: int = 60, k: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.from_numpy(RNG.normal(size=(n, k)).astype(np.float32))
    return x, torch.from_numpy(RNG.normal(size=n).astype(np.float32))


def test_the_slope_is_that_of_autograd() -> None:
    scores, labels = torch.randn(7, 1, requires_grad=True), torch.randn(7)
    losses, slopes = squares.slope(scores.detach(), labels)
    expected = (scores[:, 0] - labels) ** 2 / 2
    torch.testing.assert_close(losses, expected.detach())
    torch.testing.assert_close(slopes, torch.autograd.grad(expected.sum(), scores)[0])
    torch.testing.assert_close(squares(scores, labels), losses)


def test_clipped_gradients_are_those_of_least_squares() -> None:
    """g_i = (w x_i + b - y_i) (x_i, 1), clipped to C."""
    x, y = rows()
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 1))
    flat = Flat(module)
    w = flat.weights.numpy().astype(np.float64)
    ones = np.concatenate([x.numpy(), np.ones((len(x), 1))], axis=1).astype(np.float64)
    each = (ones @ w - y.numpy())[:, None] * ones
    norms = np.linalg.norm(each, axis=1)
    out = torch.empty(6, dtype=torch.float64)
    raw = ClippedSum(flat, squares)(x, y, 1.0, out)
    np.testing.assert_allclose(raw.norms, norms, rtol=1e-4)
    np.testing.assert_allclose(
        out.numpy(), (each * np.minimum(1, 1 / norms)[:, None]).sum(0), rtol=1e-2, atol=1e-2
    )


def test_descent_reaches_the_normal_equations() -> None:
    x, y = rows()
    flat = Flat(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 1)))
    mean, out = MeanGradient(flat, squares), torch.empty(6)
    for _ in range(2000):
        mean(x, y, out)
        flat.load(flat.weights - 0.3 * out)
    ones = np.concatenate([x.numpy(), np.ones((len(x), 1))], axis=1)
    best, *_ = np.linalg.lstsq(ones, y.numpy(), rcond=None)
    np.testing.assert_allclose(flat.weights.numpy(), best, atol=1e-4)


def test_numbers_have_squares_whatever_the_model() -> None:
    assert loss_for("mlp", number=True) is squares
    assert loss_for("mlp") is not squares
