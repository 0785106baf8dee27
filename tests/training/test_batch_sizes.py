"""One record is drawn or not: the others of a Poisson batch of n or n + 1 keep their bits.

A library may round a row in another way where a matrix has another number of rows, and near the
limit of float32 another rounding is another gradient: something, or nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pytest
import torch
from structures import CLASSES, STRUCTURES
from test_sensitivity import Batch
from torch import Tensor, nn

from sordino.mechanisms.gaussian import Gaussian
from sordino.mechanisms.haar.gaussian import HaarGaussian
from sordino.mechanisms.kinds import HaarNoise, NoiseRequest
from sordino.training import models
from sordino.training.client import bound_of
from sordino.training.flat import Flat
from sordino.training.loss import Loss, cross_entropy, loss_for
from sordino.training.perexample.clipping import FlatBound, Layers
from sordino.training.perexample.sums import ClippedSum, Examples

ALLOWED = 1.0 + 2.0**-20
IMAGE = (1, 28, 28)
BUILT_IN: dict[str, tuple[int, ...]] = {
    "logistic": IMAGE,
    "svm": IMAGE,
    "mlp": IMAGE,
    "cnn": IMAGE,
    "cnn-small": IMAGE,
    "cifar-cnn": (3, 32, 32),
}
SLOW = ("sorted by length",)


class Own(nn.Sequential):
    """A module that nobody knows."""


def tanh() -> nn.Module:
    return Own(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, CLASSES))


OWN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "own, tanh": (tanh, (24,)),
    "plain, tanh": (lambda: nn.Sequential(*tanh()), (24,)),  # type: ignore[misc]
    "own, relu": (lambda: Own(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, CLASSES)), (24,)),
    "own, images": (
        lambda: Own(nn.Conv2d(2, 5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(60, CLASSES)),
        (2, 6, 5),
    ),
    "plain, images": (
        lambda: nn.Sequential(nn.Conv2d(2, 5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(60, CLASSES)),
        (2, 6, 5),
    ),
}


# the largest at night: the other convolutions go the same way
SIZES = [
    pytest.param(name, marks=[pytest.mark.nightly] if name == "cifar-cnn" else [])
    for name in BUILT_IN
]


def made(name: str, n: int, seed: int) -> tuple[Flat, Loss, Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    if name in STRUCTURES:
        batch = Batch.of(name, "random", "random", n, seed)
        return batch.flat, cross_entropy, batch.x, batch.y
    if name in BUILT_IN:
        classes, loss = 10, loss_for(name)
        module: nn.Module = models.build(name, BUILT_IN[name], classes, rng)
    else:
        torch.manual_seed(seed)
        classes, loss = CLASSES, cross_entropy
        module = OWN[name][0]()
    shape = BUILT_IN[name] if name in BUILT_IN else OWN[name][1]
    x = torch.from_numpy(rng.standard_normal((n, *shape)).astype(np.float32))
    return Flat(module), loss, x, torch.from_numpy(rng.integers(0, classes, n))


def summed(kernel: ClippedSum, x: Tensor, y: Tensor, dim: int, clip: float = 1.0) -> Tensor:
    out = torch.empty(dim, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel(x, y, FlatBound(clip), out)
    return out


@pytest.mark.parametrize(
    "name",
    [
        *SIZES,
        *OWN,
        *(
            pytest.param(name, marks=pytest.mark.nightly if number % 2 else ())
            for number, name in enumerate(STRUCTURES)
            if name not in SLOW
        ),
    ],
)
def test_an_example_has_the_same_gradient_whatever_the_size_of_its_batch(name: str) -> None:
    most = 3 if name == "cifar-cnn" else 40
    flat, loss, x, y = made(name, most, 7)
    kernel = ClippedSum(flat, loss)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = kernel.rows(x, y)
        assert torch.isfinite(rows).all()
        assert rows.any()
        whole = rows.numpy().tobytes()
        wide = 4 * flat.dim * (2 if flat.weights.dtype == torch.float64 else 1)
        for n in (1, 5, 32, 33):
            for start in (0, most - n):
                if start >= 0 and start + n <= most:
                    part = kernel.rows(x[start : start + n], y[start : start + n])
                    assert part.numpy().tobytes() == whole[start * wide : (start + n) * wide]


def near_the_limit(name: str, seed: int, times: int) -> Iterator[tuple[Flat, Tensor, Tensor]]:
    """Models in which the first example's gradient is just not left out, or just left out: it is
    the longest, the others add something.
    """
    flat, loss, x, y = made(name, 9, seed)
    kernel, rng = ClippedSum(flat, loss), np.random.default_rng(seed)
    last = flat.layout[-2].flat(flat.weights)
    own = last.double()
    last.mul_(1e10)
    order = torch.linalg.vector_norm(kernel.rows(x, y), dim=1).argsort(descending=True)
    x, y = x[order].contiguous(), y[order]

    def left_out(scale: float) -> bool:
        last.copy_(own * scale)
        return not float(summed(kernel, x[:1], y[:1], flat.dim).norm()) > 0.0

    low, high = 1e10, 1e30
    if left_out(low) or not left_out(high):
        return
    while high > low * (1 + 1e-8):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if left_out(middle) else (middle, high)
    for _ in range(times):
        last.copy_(own * low * (1 + 1e-7 * torch.from_numpy(rng.standard_normal(len(own)))))
        yield flat, x, y


@pytest.mark.parametrize("name", ["mlp", "own, tanh", "plain, tanh", "own, images"])
def test_no_other_example_comes_or_goes_with_one_that_does(name: str) -> None:
    """An own MLP with Tanh, a batch of one against two: 1.62 C."""
    found = False
    for seed in range(2):
        for flat, x, y in near_the_limit(name, seed, 4):
            kernel, before = ClippedSum(flat, cross_entropy), torch.zeros(())
            for n in (1, 2, 3):
                after = summed(kernel, x[:n], y[:n], flat.dim)
                found = found or float(after.norm()) > 0.0
                assert n == 1 or float((after - before).norm()) <= ALLOWED
                before = after
    assert found  # a search that finds nothing but zeros proves nothing


@pytest.mark.parametrize("name", [*SIZES, "own, tanh", "tokens", "sequence, Gram", "group norm"])
def test_one_more_example_moves_a_sum_no_further_than_the_clip(name: str) -> None:
    most = 3 if name == "cifar-cnn" else 41
    flat, loss, x, y = made(name, most, 11)
    rng = np.random.default_rng(3)
    for n, clip in ((0, 1.0), (1, 1e-3), (2, 1.0), (7, 1.0), (31, 1e-3), (32, 1.0), (40, 1.0)):
        if n < most:
            where = int(rng.integers(n + 1))  # it comes in between, and all after it move on
            others = [i for i in range(n + 1) if i != where]
            for bound in (FlatBound(clip), Layers(clip)):
                with_it, without = (torch.empty(flat.dim, dtype=torch.float64) for _ in range(2))
                kernel = ClippedSum(flat, loss)
                kernel(x[: n + 1], y[: n + 1], bound, with_it)
                kernel(x[others], y[others], bound, without)
                assert 0.0 < float((with_it - without).norm()) <= clip * ALLOWED


@pytest.mark.parametrize("name", ["logistic", "mlp", "own, tanh"])
def test_large_batches_keep_their_parts_when_one_record_more_is_drawn(name: str) -> None:
    """Gradients in one direction, so that roundings add up, and parts that are cut by index."""
    flat, loss, x, y = made(name, 2000, 5)
    store = Examples(x[:1] * torch.linspace(1, 2, 2000).view(-1, *[1] * (x.ndim - 1)), y)
    kernel, rng = ClippedSum(flat, loss), np.random.default_rng(0)
    drawn = np.flatnonzero(rng.random(2000) < 0.3)
    with_it, without = (torch.empty(flat.dim, dtype=torch.float64) for _ in range(2))
    kernel.of(store, torch.from_numpy(drawn), 1e-2, with_it)
    for gone in (0, len(drawn) // 2, len(drawn) - 1):
        kernel.of(store, torch.from_numpy(np.delete(drawn, gone)), 1e-2, without)
        assert float((with_it - without).norm()) <= 1e-2


@pytest.mark.parametrize("name", ["logistic", "svm"])
def test_a_norm_is_the_same_whatever_the_size_of_its_batch(name: str) -> None:
    """By the path that reads examples in place."""
    flat, loss, x, y = made(name, 70, 7)
    kernel, out = ClippedSum(flat, loss), torch.empty(flat.dim, dtype=torch.float64)
    whole = kernel(x, y, 1.0, out)
    for n in range(1, 41):
        part = kernel(x[70 - n :], y[70 - n :], 1.0, out)
        assert torch.equal(part.norms, whole.norms[70 - n :])
        assert torch.equal(part.loss, whole.loss[70 - n :])


@pytest.mark.parametrize("threads", [1, 3])
def test_no_place_in_a_batch_is_another_rounding(threads: int) -> None:
    """Rows of ten numbers begin at addresses of two kinds, and threads cut an example in two: all
    examples after one that comes moved by their places, 18.7 C where nothing else held them.
    """
    held = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for width, act in ((10, nn.ReLU()), (1025, nn.Softplus())):
            torch.manual_seed(0)
            flat = Flat(nn.Sequential(nn.Linear(30, width), act, nn.Linear(width, 2)))
            x, y = torch.randn(60, 30), torch.arange(60) % 2
            kernel = ClippedSum(flat, cross_entropy)
            whole = kernel.rows(x, y)
            for start in (1, 2, 3, 7):
                assert torch.equal(kernel.rows(x[start:], y[start:]), whole[start:])
    finally:
        torch.set_num_threads(held)


@pytest.mark.parametrize("act", [nn.Softplus(), nn.Sigmoid(), nn.Mish()])
@pytest.mark.parametrize("own", [False, True])
def test_no_place_falls_behind_the_last_whole_vector(act: nn.Module, own: bool) -> None:
    """One number of an example: of 56 rows, torch rounded the last 24 in another way, and a
    threshold made 3.6 C of it.
    """
    torch.manual_seed(0)
    layers = nn.Linear(6, 1), act, nn.Linear(1, 3)
    flat = Flat(Own(*layers) if own else nn.Sequential(*layers))
    x, y = 4 * torch.randn(300, 6), torch.arange(300) % 3
    kernel = ClippedSum(flat, cross_entropy)
    whole = kernel.rows(x, y)
    for start in (1, 5, 17, 24, 31):
        assert torch.equal(kernel.rows(x[start:], y[start:]), whole[start:])


@pytest.mark.parametrize("clipping", [None, "per-level"])
@pytest.mark.parametrize("sizes", [(50_000, 2), (700, 30, 9), (64,) * 9], ids=str)
def test_haars_norm_of_a_row_does_not_depend_on_its_place(
    sizes: tuple[int, ...], clipping: Literal["per-level"] | None
) -> None:
    """A product of several rows adds up the last ones in another order: 32 C for norms of 1e19."""
    asked = NoiseRequest(unit="sample", clip=1.0, noise_multiplier=1.0, parameters=sizes)
    mechanism = HaarNoise(clipping=clipping).make(asked)
    assert isinstance(mechanism, HaarGaussian)
    for row in torch.randn(20, sum(sizes), dtype=torch.float64):
        alone = mechanism.norms(row.unsqueeze(0))
        for rows in (2, 3, 6, 12, 14, 16):
            found = mechanism.norms(row.expand(rows, -1).contiguous())
            assert bool((found == alone).all()), rows


@dataclass(frozen=True, kw_only=True)
class Product(Gaussian):
    """A norm by a product of all rows that it sees."""

    measure: Literal["own"] = "own"  # type: ignore[assignment]
    margin: float = 0.99
    sizes: list[int] = field(default_factory=list)

    def norms(self, rows: Tensor) -> Tensor:
        self.sizes.append(len(rows))
        return (rows.double().square() @ torch.ones(rows.shape[1], dtype=torch.float64)).sqrt()


class Levels(Product):
    def shortened_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        norms = self.norms(rows)
        return rows.double() * (0.9 * self.clip / norms).clamp_max(1.0)[:, None], norms


@pytest.mark.parametrize("kind", [Product, Levels])
def test_an_own_mechanism_sees_one_row_at_a_time(kind: type[Product]) -> None:
    mechanism = kind(clip=1.0, noise_multiplier=1.0)
    flat = Flat(nn.Linear(7, 3))
    out = torch.empty(flat.dim, dtype=torch.float64)
    x, y = torch.randn(1, 7).expand(40, -1), torch.zeros(40, dtype=torch.int64)
    found = ClippedSum(flat, cross_entropy)(x, y, bound_of(mechanism), out, expected=40.0)
    assert set(mechanism.sizes) == {1}
    assert bool((found.norms == found.norms[0]).all())
    assert float(out.norm()) == pytest.approx(40 * min(1.0, float(found.norms[0])), rel=0.11)
