"""Clipped sums against a loop over examples in float64, against Opacus, and by brute force.

Everything is compared within one dtype: a ReLU or a pool that decides differently in float32 and
float64 would look like an error of the kernel on a rare batch.
"""

import copy
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from sordino.training import models
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy, loss_for
from sordino.training.perexample.clipping import MARGIN
from sordino.training.perexample.plan import compiled
from sordino.training.perexample.sums import ClippedSum, MeanGradient, Paths

N, CLASSES = 7, 4


class Residual(nn.Module):
    """Branches: no sequence, but known layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.norm, self.head = nn.GroupNorm(2, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu_(self.first(x))
        return self.head((h + F.relu(self.norm(self.second(h)))).mean((2, 3)))  # type: ignore[no-any-return]


def twice() -> nn.Module:
    """One layer in two places."""
    layer = nn.Linear(12, 12)
    module = nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(12, CLASSES))
    models.check_private(module, (12,))  # which leaves it as it is
    assert len(list(module.parameters())) == 4
    return module


class Aliased(nn.Module):
    """A buffer that is a parameter, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(12, 12), nn.Linear(12, CLASSES)
        self.register_buffer("same", self.inner.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x) @ self.same))  # type: ignore[no-any-return]


class Tied(nn.Module):
    """One weight, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(12, 12), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(torch.tanh(self.inner(x.flatten(1))))))  # type: ignore[no-any-return]


class Own(nn.Module):
    """A parameter of its own, in no layer that anybody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.linspace(0.5, 2.0, 12)), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1) * self.scale.square())  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A GRU over the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 5)
        for step in x.flatten(1).reshape(len(x), 3, 4).unbind(1):
            state = self.cell(step, state)
        return self.head(state)  # type: ignore[no-any-return]


class Words(nn.Module):
    """Tokens, with repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(9, 6, padding_idx=0), nn.LayerNorm(6)
        self.mix, self.head = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.norm(self.table(x)))).mean(1))  # type: ignore[no-any-return]


class Summed(nn.Module):
    """A layer without parameters whose gradient autograd expands instead of copying."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)


class Chain(nn.Sequential):
    """A sequence that the plan does not know, since a subclass may do anything: hooks take it."""


def sequence(*layers: nn.Module) -> Callable[[], nn.Module]:
    """Layers as given, and a linear head of the size that they turn out to need."""
    return lambda: nn.Sequential(*copy.deepcopy(layers), nn.Flatten(), nn.LazyLinear(CLASSES))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    # name: module, shape of an example, whether the explicit plan takes it
    "linear": (lambda: nn.Linear(5, CLASSES), (5,), True),
    "linear without bias": (sequence(nn.Linear(5, 8, bias=False), nn.Tanh()), (5,), True),
    "sequence, formed": (sequence(nn.Linear(3, 2), nn.ReLU(), nn.Tanh()), (20, 3), True),
    "sequence, Gram": (sequence(nn.Linear(30, 40), nn.ReLU(), nn.Tanh()), (2, 30), True),
    "conv": (sequence(nn.Conv2d(2, 5, 3), nn.ReLU()), (2, 7, 6), True),
    "conv, stride, padding, no bias": (
        sequence(nn.Conv2d(2, 5, (4, 3), stride=(2, 1), padding=(1, 2), bias=False), nn.Tanh()),
        (2, 7, 6),
        True,
    ),
    "conv, dilation, same": (
        sequence(nn.Conv2d(2, 5, 3, padding="same", dilation=2), nn.Sigmoid()),
        (2, 7, 6),
        True,
    ),
    "conv, Gram": (sequence(nn.Conv2d(30, 40, 3), nn.ReLU()), (30, 4, 3), True),
    "conv, Gram, hooked": (
        lambda: Chain(nn.Conv2d(30, 40, 3), nn.Flatten(), nn.Linear(80, CLASSES)),
        (30, 4, 3),
        False,
    ),
    "summed positions": (sequence(nn.Linear(5, 8), nn.ReLU(), Summed()), (4, 5), False),
    "conv, two of them": (
        sequence(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.ReLU()),
        (1, 9, 9),
        True,
    ),
    "max pool, overlapping": (
        sequence(nn.Conv2d(1, 4, 3), nn.MaxPool2d(3, 1), nn.Conv2d(4, 3, 2)),
        (1, 8, 8),
        True,
    ),
    "max pool, gaps": (
        sequence(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2, 3), nn.Conv2d(4, 3, 2)),
        (1, 11, 10),
        True,
    ),
    "max pool, stride and overlap": (
        sequence(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Tanh()),
        (1, 10, 11),
        True,
    ),
    "max pool, halves with a rest": (
        sequence(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d((2, 1)), nn.Tanh()),
        (1, 9, 9),
        True,
    ),
    "rectified input": (
        sequence(nn.ReLU(), nn.MaxPool2d(1, 2), nn.ReLU(), nn.Conv2d(1, 4, 3), nn.ReLU()),
        (1, 9, 9),
        True,
    ),
    "conv, same, even": (sequence(nn.Conv2d(2, 5, 2, padding="same"), nn.ReLU()), (2, 5, 5), False),
    "conv, columns apart": (
        sequence(nn.Conv2d(1, 5, (3, 2), stride=2, dilation=(1, 3), padding=1), nn.Tanh()),
        (1, 8, 9),
        True,
    ),
    "average pool": (
        sequence(nn.Conv2d(1, 4, 3), nn.AvgPool2d(2), nn.ReLU(inplace=True)),
        (1, 8, 8),
        True,
    ),
    "group norm": (sequence(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU()), (1, 6, 6), True),
    "layer norm": (sequence(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU()), (6,), True),
    "grouped conv": (sequence(nn.Conv2d(4, 4, 3, groups=2), nn.ReLU()), (4, 5, 5), False),
    "conv 1d": (sequence(nn.Conv1d(2, 4, 3), nn.ReLU()), (2, 9), False),
    "prelu": (sequence(nn.Linear(6, 8), nn.PReLU(8)), (6,), False),
    "residual": (Residual, (2, 5, 5), False),
    "tied weights": (Tied, (12,), False),
    "one layer twice": (twice, (12,), False),
    "a buffer that is a parameter": (Aliased, (12,), False),
    "own parameter": (Own, (12,), False),
    "recurrent": (Recurrent, (12,), False),
    "embedding": (Words, (6,), False),
    "embedding in a sequence": (
        lambda: nn.Sequential(
            nn.Embedding(9, 6, padding_idx=0),
            nn.LayerNorm(6),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(36, CLASSES),
        ),
        (6,),
        True,
    ),
}


def prepared(name: str, dtype: torch.dtype = torch.float64) -> tuple[Flat, Tensor, Tensor]:
    make, shape, _ = CASES[name]
    torch.manual_seed(0)
    module = make()
    rng = np.random.default_rng(1)
    words = isinstance(module, Words) or name.startswith("embedding")
    x = torch.from_numpy(
        rng.integers(0, 9, (N, *shape)) if words else rng.standard_normal((N, *shape))
    )
    x = x if words else x.to(dtype)
    with torch.no_grad():
        module.to(torch.float32)(x if words else x.float())  # lazy layers learn their sizes
    module = module.to(dtype)
    for p in module.parameters():
        p.data = torch.from_numpy(0.4 * rng.standard_normal(p.shape)).to(dtype)
    return Flat(module), x, torch.from_numpy(rng.integers(0, CLASSES, N))


def one_by_one(flat: Flat, x: Tensor, y: Tensor) -> Tensor:
    """Gradients (n, d) by plain autograd, an example at a time, in the documented order."""
    named = dict(flat.module.named_parameters())
    rows = []
    for i in range(len(x)):
        loss = F.cross_entropy(flat.module(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, [named[slot.name] for slot in flat.layout])
        rows.append(
            torch.cat([(g.permute(0, 2, 3, 1) if g.ndim == 4 else g).reshape(-1) for g in grads])
        )
    return torch.stack(rows)


def clipped(rows: Tensor, clip: float) -> Tensor:
    rows = rows.double()
    total: Tensor = (rows * (MARGIN * clip / rows.norm(dim=1)).clamp(max=1.0)[:, None]).sum(0)
    return total


@pytest.mark.filterwarnings("ignore:Lazy modules", "ignore:Using padding='same'")
@pytest.mark.parametrize("name", CASES)
def test_equals_a_loop_over_examples(name: str) -> None:
    flat, x, y = prepared(name)
    rows, untouched = one_by_one(flat, x, y), x.clone()
    # about half are clipped, and none lies on the bound
    clip = 1.01 * float(rows.norm(dim=1).median())
    kernel = ClippedSum(flat, cross_entropy)
    out = torch.full((flat.dim,), torch.nan, dtype=torch.float64)
    # buffers of one batch size serve another
    for part in (slice(0, N), slice(0, 1), slice(2, 5), slice(0, N)):
        seen = kernel(x[part], y[part], clip, out)
        assert torch.allclose(out, clipped(rows[part], clip), rtol=0, atol=1e-5 * float(out.norm()))
        assert torch.allclose(seen.norms, rows[part].norm(dim=1), rtol=1e-5)
        assert seen.clipped == int((rows[part].norm(dim=1) > clip).sum())
    mean = torch.empty_like(flat.weights)
    loss = MeanGradient(flat, cross_entropy)(x, y, mean)
    assert torch.allclose(mean, rows.mean(0), atol=1e-9)
    assert float(loss) == pytest.approx(float(F.cross_entropy(flat.module(x), y).detach()))
    assert torch.equal(x, untouched)


@pytest.mark.filterwarnings("ignore:Lazy modules", "ignore:Using padding='same'")
@pytest.mark.parametrize("name", CASES)
def test_the_fast_plan_takes_what_it_should(name: str) -> None:
    flat, x, _ = prepared(name)
    taken = compiled(flat, tuple(x.shape[1:]), not x.is_floating_point()) is not None
    assert taken == CASES[name][2]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cnn", (1, 28, 28)),
        ("logistic", (1, 8, 8)),
        ("svm", (1, 8, 8)),
        ("mlp", (1, 8, 8)),
        ("cifar-cnn", (3, 16, 16)),
    ],
)
def test_models_equal_a_loop_in_float32(name: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    flat = Flat(models.build(name, shape, CLASSES, rng))
    x = torch.from_numpy(rng.standard_normal((9, *shape)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, CLASSES, 9))
    loss, rows = loss_for(name), []
    named = dict(flat.module.named_parameters())
    for i in range(9):
        grads = torch.autograd.grad(
            loss(flat.module(x[i : i + 1]), y[i : i + 1]).sum(),
            [named[s.name] for s in flat.layout],
        )
        rows.append(
            torch.cat([(g.permute(0, 2, 3, 1) if g.ndim == 4 else g).reshape(-1) for g in grads])
        )
    stacked = torch.stack(rows)
    clip = float(stacked.norm(dim=1).median())
    out = torch.empty(flat.dim, dtype=torch.float64)
    ClippedSum(flat, loss)(
        x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x, y, clip, out
    )
    assert float((out - clipped(stacked, clip)).norm() / out.norm()) < 1e-5


@pytest.mark.parametrize("affine", [True, False])
def test_without_privacy_examples_may_meet(affine: bool) -> None:
    """Batch norm has no per-example gradient, but it has a mean gradient: torch's own."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6, affine=affine, track_running_stats=False)
    flat = Flat(nn.Sequential(nn.Linear(5, 6), norm, nn.ReLU(), nn.Linear(6, CLASSES)))
    x, y, out = torch.randn(N, 5), torch.randint(0, CLASSES, (N,)), torch.empty(flat.dim)
    grads = torch.autograd.grad(F.cross_entropy(flat.module(x), y), list(flat.module.parameters()))
    MeanGradient(flat, cross_entropy)(x, y, out)
    assert torch.allclose(out, torch.cat([g.flatten() for g in grads]), atol=1e-6)


@pytest.mark.parametrize(
    "module",
    [
        lambda: nn.Sequential(nn.Linear(7, 8), nn.ReLU(), Summed(), nn.Linear(8, CLASSES)),
        lambda: nn.Sequential(nn.Conv2d(32, 16, 3), nn.Flatten(), nn.Linear(16 * 30 * 30, CLASSES)),
    ],
    ids=["summed", "patches of one example fill the cache"],
)
def test_a_first_batch_of_one_example_is_as_good_as_any(module: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    flat = Flat(module())
    shape = (4, 7) if isinstance(flat.module[0], nn.Linear) else (32, 32, 32)  # type: ignore[index]
    x, y = torch.randn(N, *shape), torch.randint(0, CLASSES, (N,))
    out = torch.empty(flat.dim, dtype=torch.float64)
    rows, kernel = one_by_one(flat, x, y), ClippedSum(flat, cross_entropy)
    for part in (slice(0, 1), slice(0, 2), slice(0, 5)):
        seen = kernel(x[part], y[part], 1e6, out)
        assert torch.allclose(seen.norms, rows[part].norm(dim=1), rtol=1e-4)
        assert torch.allclose(out, rows[part].double().sum(0), atol=1e-4)


def test_labels_may_be_dense() -> None:
    torch.manual_seed(0)
    flat = Flat(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, CLASSES, 1)))
    x, y = torch.randn(N, 1, 6, 6), torch.randint(0, CLASSES, (N, 4, 4))
    losses, slopes = cross_entropy.slope(scores := flat.module(x).detach(), y)
    leaf = scores.clone().requires_grad_()
    assert torch.allclose(losses, F.cross_entropy(leaf, y, reduction="none").detach())
    (wanted,) = torch.autograd.grad(F.cross_entropy(leaf, y, reduction="sum"), leaf)
    assert torch.allclose(slopes, wanted, atol=1e-6)


def test_micro_batches_give_the_same_sum() -> None:
    from dataclasses import replace

    flat, x, y = prepared("conv, two of them")
    whole = torch.empty(flat.dim, dtype=torch.float64)
    parts = torch.empty(flat.dim, dtype=torch.float64)
    ClippedSum(flat, cross_entropy)(x, y, 0.5, whole)
    kernel = ClippedSum(flat, cross_entropy)
    plan = compiled(flat, tuple(x.shape[1:]))
    assert plan is not None
    kernel._paths._fast[tuple(x.shape[1:]), x.dtype] = replace(plan, most=3)
    kernel(x, y, 0.5, parts)
    assert torch.allclose(whole, parts, atol=1e-12)


def test_empty_batches_and_gradients_that_are_not_finite() -> None:
    flat, x, y = prepared("conv, two of them")
    kernel, out = ClippedSum(flat, cross_entropy), torch.full((flat.dim,), 7.0, dtype=torch.float64)
    seen = kernel(x[:0], y[:0], 1.0, out)
    assert not out.any()
    assert (len(seen.norms), seen.clipped) == (0, 0)
    broken = x.clone()
    broken[2] = torch.nan
    broken[4] = 1e300
    kernel(broken, y, 1.0, out)
    keep = [0, 1, 3, 5, 6]
    assert torch.allclose(out, clipped(one_by_one(flat, x[keep], y[keep]), 1.0), atol=1e-4)
    kernel(broken[2:3], y[2:3], 1.0, out)
    assert not out.any()


@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    clip=st.sampled_from([1e-2, 0.7, 30.0]),
)
@settings(max_examples=30)
def test_one_example_moves_the_sum_by_no_more_than_the_clip(
    seed: int, scale: float, clip: float
) -> None:
    """Sensitivity by brute force, as the machine computes it."""
    rng = np.random.default_rng(seed)
    flat = Flat(models.build("mlp", (1, 8, 8), CLASSES, rng))
    x = torch.from_numpy(scale * rng.standard_normal((6, 1, 8, 8)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, CLASSES, 6))
    kernel, alone = ClippedSum(flat, cross_entropy), torch.empty(flat.dim, dtype=torch.float64)
    for i in range(6):
        kernel(x[i : i + 1], y[i : i + 1], clip, alone)
        assert float(alone.norm()) <= clip
    with_ = torch.empty(flat.dim, dtype=torch.float64)
    without = torch.empty(flat.dim, dtype=torch.float64)
    kernel(x, y, clip, with_)
    kernel(x[1:], y[1:], clip, without)
    assert float((with_ - without).norm()) <= clip


def test_equals_opacus_where_opacus_can_do_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.grad_sample import GradSampleModule

        rng = np.random.default_rng(5)
        flat = Flat(models.build("cnn", (1, 28, 28), 10, rng))
        theirs = GradSampleModule(
            models.build("cnn", (1, 28, 28), 10, np.random.default_rng(5)), loss_reduction="sum"
        )
        x = torch.from_numpy(rng.standard_normal((12, 1, 28, 28)).astype(np.float32))
        y = torch.from_numpy(rng.integers(0, 10, 12))
        F.cross_entropy(theirs(x), y, reduction="sum").backward()  # type: ignore[no-untyped-call]
        samples = [p.grad_sample for p in theirs.parameters()]
    rows = torch.cat(
        [(g.permute(0, 1, 3, 4, 2) if g.ndim == 5 else g).reshape(12, -1) for g in samples], 1
    )
    clip = float(rows.norm(dim=1).median())
    out = torch.empty(flat.dim, dtype=torch.float64)
    ClippedSum(flat, cross_entropy)(x, y, clip, out)
    assert float((out - clipped(rows, clip)).norm() / out.norm()) < 1e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_works_on_a_gpu() -> None:
    rng = np.random.default_rng(0)
    flat = Flat(models.build("cnn", (1, 28, 28), 10, rng).cuda())
    x, y = torch.randn(5, 1, 28, 28).cuda(), torch.randint(0, 10, (5,)).cuda()
    out = torch.empty(flat.dim, dtype=torch.float64, device="cuda")
    ClippedSum(flat, cross_entropy)(x, y, 1.0, out)
    assert float(out.norm()) <= 5.0


def test_inputs_of_another_type_take_a_path_of_their_own() -> None:
    """Truth values that came first had all tokens after them go one by one."""
    paths = Paths(Flat(nn.Sequential(nn.Embedding(9, 4), nn.Flatten())), cross_entropy)
    assert paths.find(torch.zeros(2, 3, dtype=torch.bool)) is None
    assert paths.find(torch.zeros(2, 3, dtype=torch.int64)) is not None
