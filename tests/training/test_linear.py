"""One linear layer in one compiled call: against the plan's path and against float64, on stores of
bytes and of floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.base.errors import StudyError
from sordino.training.flat import Flat
from sordino.training.loss import Loss, cross_entropy, multiclass_hinge, squares
from sordino.training.perexample import loops
from sordino.training.perexample.clipping import MARGIN, FlatBound, Layers, Measured
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient, Single

N = 230
Double = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A layer, what it learns from and by which loss."""

    shape: tuple[int, ...]
    classes: int
    loss: Loss = cross_entropy
    bytes: bool = True
    bias: bool = True

    def __str__(self) -> str:
        kind = "hinge" if self.loss is multiclass_hinge else "entropy"
        what = "bytes" if self.bytes else "floats"
        return (
            f"{math.prod(self.shape)}-{self.classes} {kind} {what}{'' if self.bias else ' no bias'}"
        )


CASES = [
    Case((1,), 2),
    Case((5,), 3, bytes=False),
    Case((1, 2, 4), 4, multiclass_hinge),
    Case((12,), 5, bias=False),
    Case((3, 7), 7, multiclass_hinge, bytes=False),
    Case((32,), 8, bias=False),
    Case((6, 8), 9, bytes=False),
    Case((1, 28, 28), 10),
    Case((100,), 11, multiclass_hinge, bias=False),
    Case((1100,), 12, bytes=False, bias=False),  # squares of two blocks
    Case((40,), 27),
]
BYTES, FLOATS = Case((12,), 5), Case((6, 8), 9, bytes=False)
HINGE = Case((3, 7), 7, multiclass_hinge, bytes=False)


def built(case: Case, weights: float = 0.3) -> Flat:
    features = math.prod(case.shape)
    flat = Flat(nn.Sequential(nn.Flatten(), nn.Linear(features, case.classes, bias=case.bias)))
    rng = np.random.default_rng(features)
    flat.load(
        torch.from_numpy(
            (weights * rng.standard_normal(flat.dim) / features**0.5).astype(np.float32)
        )
    )
    return flat


def stored(case: Case, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (N, *case.shape)).astype(np.uint8)
    x = raw if case.bytes else rng.standard_normal(raw.shape).astype(np.float32)
    return Examples(torch.from_numpy(x), torch.from_numpy(rng.integers(0, case.classes, N)))


def in_float64(case: Case, flat: Flat, examples: Examples, chosen: Tensor) -> tuple[Double, Double]:
    """Losses (b,) and gradients (b, d)."""
    x = examples.x[chosen].flatten(1).double().numpy()
    x, y = (x - 127.5) / 127.5 if case.bytes else x, examples.y[chosen].numpy()
    w = flat.weights.double().numpy()
    features = x.shape[1]
    scores = x @ w[: case.classes * features].reshape(case.classes, features).T
    if case.bias:
        scores = scores + w[case.classes * features :]
    here = np.arange(len(y))
    if case.loss is cross_entropy:
        e = np.exp(scores - scores.max(1, keepdims=True))
        slopes = e / e.sum(1, keepdims=True)
        losses = -np.log(slopes[here, y])
        slopes[here, y] -= 1
    else:
        others = scores.copy()
        others[here, y] = -np.inf
        losses = np.maximum(0, 1 + others.max(1) - scores[here, y])
        slopes = np.zeros_like(scores)
        slopes[here, others.argmax(1)], slopes[here, y] = 1, -1
        slopes *= losses[:, None] > 0
    rows = [
        (slopes[:, :, None] * x[:, None, :]).reshape(len(y), case.classes * features),
        *([slopes] if case.bias else []),
    ]
    return losses, np.concatenate(rows, 1)


def batch(size: int, seed: int) -> Tensor:
    # with repeats, in any order
    return torch.from_numpy(np.random.default_rng(seed).integers(0, N, size))


def room(flat: Flat) -> Tensor:
    """For a clipped sum."""
    return torch.full((flat.dim,), torch.nan, dtype=torch.float64)


def by_layers(flat: Flat, loss: Loss) -> ClippedSum:
    """The same sum by the path of plain sequences."""
    kernel = ClippedSum(flat, loss)
    kernel._paths._single = None
    return kernel


def in_place(*kernels: ClippedSum | MeanGradient) -> bool:
    """Whether they have the compiled path."""
    return all(kernel._paths._single is not None for kernel in kernels)


def compare(case: Case, sizes: list[int], seed: int, share: float) -> None:
    flat, examples = built(case), stored(case, seed)
    kernel, slow = ClippedSum(flat, case.loss), by_layers(flat, case.loss)
    mean = MeanGradient(flat, case.loss)
    out, other, plain = room(flat), room(flat), torch.empty(flat.dim)
    for number, size in enumerate(sizes):
        chosen = batch(size, seed + number)
        losses, rows = in_float64(case, flat, examples, chosen)
        norms = np.linalg.norm(rows, axis=1)
        # none lies on the bound
        clip = float(np.quantile(norms, share)) * 1.003 + 1e-6 if size else 1.0
        wanted = (rows * np.minimum(1, clip * MARGIN / np.maximum(norms, 1e-30))[:, None]).sum(0)

        seen = kernel.of(examples, chosen, clip, out)
        old = slow(*examples.take(chosen), clip, other)
        terms = 1 + size**0.5
        assert (
            np.abs(out.numpy() - wanted).max()
            <= 2e-6 * terms * min(clip, norms.max(initial=0)) + 1e-9
        )
        assert torch.allclose(
            out, other, rtol=0, atol=4e-6 * terms * min(clip, norms.max(initial=0)) + 1e-9
        )
        reach = 1e-6 * (
            1
            + np.abs(examples.take(chosen)[0].flatten(1).numpy()).max(initial=0)
            * rows.shape[1] ** 0.5
        )
        assert np.allclose(seen.norms, norms, rtol=1e-5, atol=reach)
        assert torch.allclose(seen.norms, old.norms, rtol=1e-5, atol=reach)
        assert np.allclose(seen.loss, losses, rtol=1e-5, atol=2e-6)
        assert torch.allclose(seen.loss, old.loss, rtol=1e-5, atol=2e-6)
        assert seen.clipped == old.clipped == int((seen.norms > clip).sum())
        assert seen.clip == clip

        average = mean.of(examples, chosen, plain)
        assert np.abs(plain.numpy() - (rows.mean(0) if size else 0)).max() <= 2e-6 * (
            1 + norms.max(initial=0)
        )
        assert float(average) == pytest.approx(losses.mean() if size else 0.0, rel=1e-5, abs=2e-6)
    assert in_place(kernel, mean)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_other_path_and_float64(case: Case) -> None:
    """All clipped, some, none; batches of one, of odd numbers, larger than what is worked off at
    once.
    """
    for share in (0.0, 0.5, 1.0):
        compare(case, [2, 0, 1, 7, 32, 33, 120, 200], 1, share)


@settings(max_examples=40)
@given(
    case=st.sampled_from(CASES),
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=4),
    seed=st.integers(0, 10**6),
    share=st.floats(0, 1),
)
def test_equals_the_other_path_and_float64_on_any_batches(
    case: Case, sizes: list[int], seed: int, share: float
) -> None:
    compare(case, sizes, seed, share)


@pytest.mark.parametrize("case", [FLOATS, HINGE], ids=str)
@pytest.mark.parametrize("worst", [math.nan, math.inf, -math.inf, 1e20, 3e38])
def test_examples_without_a_finite_gradient_are_left_out(case: Case, worst: float) -> None:
    flat, examples = built(case), stored(case)
    examples.x[3, 2, 1], examples.x[40, 0, 0], examples.x[100] = worst, -worst, worst
    kernel, out, other = ClippedSum(flat, case.loss), room(flat), room(flat)
    for chosen in (torch.arange(N), torch.tensor([3, 40, 100]), torch.tensor([5, 3])):
        seen = kernel.of(examples, chosen, 0.7, out)
        keep = torch.tensor(
            [i for i in chosen.tolist() if i not in (3, 40, 100)], dtype=torch.int64
        )
        kept = kernel.of(examples, keep, 0.7, other)
        assert torch.isfinite(out).all()
        assert torch.allclose(out, other, atol=1e-5)
        assert torch.equal(seen.norms.isfinite(), torch.isin(chosen, keep))
        assert seen.clipped == kept.clipped + len(chosen) - len(keep)
        old = by_layers(flat, case.loss)(*examples.take(chosen), 0.7, other)
        assert torch.allclose(out, other, atol=1e-5)
        assert seen.clipped == old.clipped
        assert torch.allclose(seen.loss, old.loss, rtol=1e-5, atol=1e-6, equal_nan=True)
    mean, plain = MeanGradient(flat, case.loss), torch.empty(flat.dim)
    mean.of(examples, torch.tensor([5, 6]), plain)
    assert torch.isfinite(plain).all()
    if math.isnan(worst):  # without a bound there is nothing to protect by leaving it out
        mean.of(examples, torch.tensor([5, 3]), plain)
        assert not torch.isfinite(plain).all()
    assert in_place(kernel, mean)


@pytest.mark.parametrize("case", [BYTES, HINGE], ids=str)
def test_equal_scores_and_huge_ones(case: Case) -> None:
    """Of a model of zeros, all of whose scores are ties, and of one sure of itself, whose
    exponentials are zero.
    """
    for weights in (0.0, 300.0):
        flat, examples, chosen = built(case, weights), stored(case), torch.arange(N)
        out, other = room(flat), room(flat)
        kernel = ClippedSum(flat, case.loss)
        seen = kernel.of(examples, chosen, 1.0, out)
        assert in_place(kernel)
        old = by_layers(flat, case.loss)(*examples.take(chosen), 1.0, other)
        assert torch.allclose(seen.norms, old.norms, rtol=1e-4, atol=1e-4)
        # scores of hundreds, whose differences these are, round in the fifth digit
        assert torch.allclose(seen.loss, old.loss, rtol=1e-5, atol=1e-5 + 1e-5 * weights)
        assert torch.allclose(out, other, atol=1e-4)


@settings(max_examples=30)
@example(
    seed=50137, scale=1.0, clip=0.01
)  # the first pair's gradients are nothing but the rounding of p - 1
@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-3, 1.0, 1e4, 1e17]),
    clip=st.sampled_from([1e-2, 0.7, 30.0]),
)
def test_one_example_moves_the_sum_by_no_more_than_the_clip(
    seed: int, scale: float, clip: float
) -> None:
    """Sensitivity by brute force, as the machine computes it; no row is too short to be seen."""
    flat, examples = built(FLOATS, 30.0), stored(FLOATS, seed)
    examples.x.mul_(scale)
    kernel, with_, without = ClippedSum(flat, cross_entropy), room(flat), room(flat)
    for i in range(6):
        kernel.of(examples, torch.tensor([i]), clip, with_)
        assert float(with_.norm()) <= clip
    kernel.of(examples, torch.arange(6), clip, with_)
    kernel.of(examples, torch.arange(1, 6), clip, without)
    assert float((with_ - without).norm()) <= clip
    assert in_place(kernel)


def test_the_store_and_the_weights_are_read_as_they_are_now() -> None:
    case = Case((1, 28, 28), 10)
    flat, examples, chosen = built(case), stored(case), torch.arange(9)
    kernel, out, other = ClippedSum(flat, case.loss), room(flat), room(flat)
    first = kernel.of(examples, chosen, 1.0, out)
    before = first.norms.clone()
    examples.x[4] = 255
    flat.weights.mul_(2.0)
    kernel.of(examples, chosen, 1.0, out)
    by_layers(flat, case.loss)(*examples.take(chosen), 1.0, other)
    assert torch.allclose(out, other, atol=1e-5)
    assert torch.equal(first.norms, before)  # what was returned before is nobody's buffer


def test_what_is_not_there_is_refused() -> None:
    flat, examples = built(BYTES), stored(BYTES)
    kernel, out = ClippedSum(flat, cross_entropy), room(flat)
    kernel.of(examples, torch.arange(3), 1.0, out)
    for index in (-1, N):
        with pytest.raises(IndexError, match="lies outside of the examples"):
            kernel.of(examples, torch.tensor([0, index]), 1.0, out)
    examples.y[5] = 5
    with pytest.raises(IndexError, match="outside of the model's classes"):
        MeanGradient(flat, cross_entropy).of(
            examples, torch.tensor([0, 5]), torch.empty_like(flat.weights)
        )
    for wrong in (out.new_empty(flat.dim + 1), out.new_empty(2 * flat.dim)[::2]):
        with pytest.raises(ValueError, match=r"a vector of 65 numbers of type torch\.float64"):
            kernel.of(examples, torch.arange(3), 1.0, wrong)
    with pytest.raises(ValueError, match=r"written in float64; got a vector of torch\.float32"):
        kernel.of(examples, torch.arange(3), 1.0, torch.empty(flat.dim))
    with pytest.raises(StudyError, match=r"privacy\.clip"):
        kernel.of(examples, torch.arange(3), 1e13, out)


class Scaled(nn.Linear):
    """A layer that looks like one."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    module[1].bias.requires_grad_(False)
    return module


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    module[1].register_forward_hook(lambda layer, x, y: 2 * y)
    return module


OTHERS: dict[str, tuple[nn.Module, Loss]] = {
    "two layers": (
        nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4)),
        cross_entropy,
    ),
    "double": (nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).double(), cross_entropy),
    "a subclass": (nn.Sequential(nn.Flatten(), Scaled(12, 4)), cross_entropy),
    "a frozen bias": (frozen(), cross_entropy),
    "a hook": (hooked(), cross_entropy),
    "another loss": (nn.Sequential(nn.Flatten(), nn.Linear(12, 1)), squares),
}


@pytest.mark.parametrize("name", OTHERS)
def test_everything_else_takes_the_other_paths(name: str) -> None:
    module, loss = OTHERS[name]
    flat = Flat(module)
    assert Single.of(flat, loss) is None
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((N, 12))).to(flat.weights.dtype)
    examples, chosen = Examples(x, torch.from_numpy(rng.integers(0, 4, N))), torch.arange(30)
    out, other = room(flat), room(flat)
    seen = ClippedSum(flat, loss).of(examples, chosen, 1.0, out)
    old = ClippedSum(flat, loss)(*examples.take(chosen), 1.0, other)
    assert torch.equal(out, other)
    assert torch.equal(seen.norms, old.norms)
    mean, same = torch.empty_like(flat.weights), torch.empty_like(flat.weights)
    MeanGradient(flat, loss).of(examples, chosen, mean)
    MeanGradient(flat, loss)(*examples.take(chosen), same)
    assert torch.equal(mean, same)


def test_other_bounds_stores_and_indices_take_the_other_paths() -> None:
    case = replace(FLOATS, shape=(3, 4, 4))
    flat, examples = built(case), stored(case)
    kernel, out, other = ClippedSum(flat, case.loss), room(flat), room(flat)
    chosen = torch.arange(20)
    kernel(*examples.take(chosen), 1.0, other)
    last = Examples(examples.x.contiguous(memory_format=torch.channels_last), examples.y)
    halves = Examples(examples.x.half().float().double(), examples.y)
    for other_store in (last, halves):
        assert kernel._paths.in_place(other_store, chosen) is None
    kernel.of(last, chosen, 1.0, out)
    assert torch.allclose(out, other, atol=1e-5)
    for indices in (chosen.int(), torch.arange(40)[::2] // 2):
        kernel.of(examples, indices, FlatBound(1.0), out)
        assert torch.allclose(out, other, atol=1e-5)
    for bound in (Layers(1.0), Measured(1.0, lambda rows: rows.norm(dim=1), MARGIN)):
        kernel.of(examples, chosen, bound, out)
        kernel(*examples.take(chosen), bound, other)
        assert torch.equal(out, other)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("d", [1, 7, 2048, 5000])
def test_weighted_rows_are_added_up_in_float64(n: int, d: int) -> None:
    generator = np.random.default_rng(n + d)
    rows = generator.standard_normal((n, d)).astype(np.float32)
    weights, total = generator.random(n), generator.standard_normal(d)
    wanted = total + weights @ rows.astype(np.float64)
    loops.add_rows(rows, weights, total)
    assert np.allclose(total, wanted, rtol=0, atol=1e-13)
    total[:] = 0.0
    for row, weight in zip(rows, weights, strict=True):  # a few rows at a time give the same bits
        loops.add_rows(row[None], np.array([weight]), total)
    whole = np.zeros(d)
    loops.add_rows(rows, weights, whole)
    assert np.array_equal(whole, total)


@pytest.mark.parametrize("k", [1, 31, 1024, 1025, 5000])
def test_squares_are_not_too_small(k: int) -> None:
    """Off by a part in 16 000 at most, also where every square is denormal or vanishes."""
    rows = np.random.default_rng(k).standard_normal((5, k)).astype(np.float32)
    rows[3] *= np.float32(1e-22)
    rows[4] = 0
    exact, found = (rows.astype(np.float64) ** 2).sum(1), np.empty(5)
    loops.squares(rows, found)
    assert (found >= exact * (1 - 2**-14)).all()
    assert (found <= exact * (1 + 2**-14) + k * 2**-125).all()
