"""How far one example moves a clipped sum, as the machine computes it: never further than the clip.

The two runs have the same batch, in which one example is there or is nothing: its features are NaN
(or its label is one that the loss answers with NaN), and such an example adds nothing in its place.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from structures import CLASSES, INPUTS, STRUCTURES, TOKENS, WEIGHTS, inputs, weighted
from torch import Tensor, nn
from torch.nn import functional as F

from sordino.base.errors import StudyError
from sordino.mechanisms.haar.basis import Basis
from sordino.mechanisms.haar.gaussian import HaarGaussian
from sordino.training.flat import Flat
from sordino.training.loss import Loss, cross_entropy
from sordino.training.perexample.clipping import (
    MARGIN,
    TOGETHER,
    Bound,
    FlatBound,
    Layers,
    Measured,
    squares,
)
from sordino.training.perexample.layers import squared_norms
from sordino.training.perexample.plan import compiled, known
from sordino.training.perexample.sums import ClippedSum, path_of

NOBODY = CLASSES
ALLOWED = 1.0 + 2.0**-20
CLIPS = (1e-11, 1e-6, 1e-4, 1e-3, 0.1, 1.0, 1e3)


@dataclass(frozen=True)
class Absent:
    """Cross entropy, and NaN for a label that stands for nobody."""

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        losses = cross_entropy(scores, labels.clamp(max=CLASSES - 1))
        return losses.masked_fill(labels == NOBODY, torch.nan)  # whose gradient is not NaN for all

    plain = __call__

    def known(self, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """See :class:`Loss`."""
        return labels != NOBODY, labels

    def slope(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Loss`."""
        losses, slopes = cross_entropy.slope(scores, labels.clamp(max=CLASSES - 1))
        return losses, torch.where((labels == NOBODY).unsqueeze(1), torch.nan, slopes)


@dataclass
class Batch:
    """One module on one batch, with and without each of its examples."""

    flat: Flat
    loss: Loss
    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, name: str, kind: str, weights: str, n: int, seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        make, shape = STRUCTURES[name]
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module, tokens = make(), name.startswith("tokens")
            dtype = torch.float64 if name == "float64" else torch.float32
            x = (
                torch.from_numpy(rng.integers(0, TOKENS, (n, *shape)))
                if tokens
                else inputs(kind, shape, n, rng).to(dtype)
            )
            with torch.no_grad():
                module(x[:2].nan_to_num(0.0, 0.0, 0.0) * 0)  # lazy layers learn their sizes
        weighted(module, weights, rng)
        y = torch.from_numpy(rng.integers(0, CLASSES, n))
        return cls(Flat(module), Absent() if tokens else cross_entropy, x, y)

    def without(self, j: int) -> Batch:
        """Example j is nothing, in the same place."""
        x, y = self.x.clone(), self.y.clone()
        if x.is_floating_point():
            x[j] = torch.nan
        else:
            y[j] = NOBODY
        return Batch(self.flat, self.loss, x, y)

    def sum(self, kernel: ClippedSum, bound: Bound) -> Tensor:
        out = torch.full((self.flat.dim,), torch.nan, dtype=torch.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernel(self.x, self.y, bound, out)
        return out


def bounds(
    flat: Flat, clip: float, seed: int
) -> Iterator[tuple[Bound, Basis | None, tuple[float, ...]]]:
    """Every kind of bound, and the norm that it is in."""
    yield FlatBound(clip), None, ()
    yield Layers(clip), None, ()
    basis = Basis.of(slot.size for slot in flat.layout) if seed % 2 else Basis.flat(flat.dim)
    weights = tuple(np.random.default_rng(seed).uniform(0.2, 5.0, basis.groups).tolist())
    mechanism = HaarGaussian.weighted(clip=clip, noise_multiplier=1.0, basis=basis, weights=weights)
    yield Measured.by(mechanism, clip), basis, weights


def length(moved: Tensor, basis: Basis | None, weights: tuple[float, ...]) -> float:
    """In float64, by numpy: what is measured with is not what is measured."""
    if basis is None:
        return float(np.linalg.norm(moved.numpy()))
    u = basis.forward(moved).numpy()
    return float(np.linalg.norm(u * np.repeat(weights, basis.lengths)))


def worst(
    name: str, kind: str, weights: str, seed: int, n: int = 5, which: int = 2
) -> tuple[float, int]:
    """The largest |S - S'| / C over bounds and clips, and how many pairs were looked at."""
    batch, found, pairs = Batch.of(name, kind, weights, n, seed), 0.0, 0
    rng, kernel = np.random.default_rng(seed), ClippedSum(batch.flat, batch.loss)
    for clip in rng.choice(CLIPS, 2, replace=False).tolist():
        for bound, basis, measure in bounds(batch.flat, clip, seed):
            whole = batch.sum(kernel, bound)
            assert torch.isfinite(whole).all()
            for j in rng.choice(n, which, replace=False).tolist():
                moved = whole - batch.without(j).sum(kernel, bound)
                found, pairs = max(found, length(moved, basis, measure) / clip), pairs + 1
    return found, pairs


@pytest.mark.parametrize("name", STRUCTURES)
def test_no_example_moves_a_sum_further_than_the_clip(name: str) -> None:
    number = list(STRUCTURES).index(name)
    # a sixth of the inputs, another for each structure; the nightly search has them all
    kinds = ("random",) if name.startswith("tokens") else INPUTS[number % 6 :: 6]
    found = [
        worst(name, kind, WEIGHTS[(number + at) % len(WEIGHTS)], 1000 * number + at, which=1)
        for at, kind in enumerate(kinds)
    ]
    assert max(ratio for ratio, _ in found) <= ALLOWED


@pytest.mark.nightly
@pytest.mark.parametrize("name", STRUCTURES)
def test_no_example_moves_a_sum_further_than_the_clip_in_a_hundred_thousand_cases(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    number, pairs, largest = list(STRUCTURES).index(name), 0, 0.0
    for at in range(10**6):
        ratio, more = worst(
            name,
            INPUTS[at % len(INPUTS)],
            WEIGHTS[at // len(INPUTS) % len(WEIGHTS)],
            10**7 * (number + 1) + at,
            which=3,
        )
        pairs, largest = pairs + more, max(largest, ratio)
        if pairs * len(STRUCTURES) >= 100_000:
            break
    record_property("pairs", pairs)
    record_property("largest", largest)
    assert largest <= ALLOWED


def test_there_are_forty_structures_on_every_path_and_the_search_reaches_the_clip() -> None:
    """A search that never comes near the bound could not see it broken."""
    assert len(STRUCTURES) >= 40
    paths = set()
    for name in ("logistic", "mlp", "subclass", "sorted by length"):
        batch = Batch.of(name, "random", "random", 2, 0)
        paths.add(path_of(batch.flat, STRUCTURES[name][1], batch.loss).name)
    assert len(paths) == 4
    assert worst("logistic", "random", "random", 1)[0] > 0.99


@pytest.mark.parametrize("width", [192, 4096])
@pytest.mark.parametrize("clip", [1.0, 1e-4])
def test_gradients_of_positions_that_take_each_other_away(width: int, clip: float) -> None:
    """Gram matrices in float32 gave norms that were too small, with the worst weights 1.72 C at a
    width of 192, 3.4 C at 4096.
    """
    torch.manual_seed(0)
    head = nn.Linear(128, CLASSES, bias=False)
    module = nn.Sequential(nn.Linear(width, 64, bias=False), nn.Flatten(), head)
    with torch.no_grad():
        head.weight.normal_(0, 30)
        head.weight[:, 64:] = -head.weight[:, :64]
    x = torch.randn(4, 1, width).repeat(1, 2, 1)
    x[:, 1] *= 1 + 1e-6 * torch.randn(4, width)
    batch = Batch(Flat(module), cross_entropy, 30 * x, torch.tensor([0, 1, 2, 0]))
    kernel = ClippedSum(batch.flat, cross_entropy)
    for bound in (FlatBound(clip), Layers(clip)):
        for j in range(4):
            assert (
                float((batch.sum(kernel, bound) - batch.without(j).sum(kernel, bound)).norm())
                <= clip
            )


@pytest.mark.parametrize(
    "clip", [1e-3, *(pytest.param(c, marks=pytest.mark.nightly) for c in (1e-4, 1e-6)), 1e-12]
)
@pytest.mark.parametrize(
    "name",
    [
        "logistic",
        "linear",
        "mlp",
        "conv, eights",
        "conv, patches",
        "sequence, Gram",
        "group norm",
        "own parameter",
    ],
)
def test_squares_that_vanish_are_not_forgotten(name: str, clip: float) -> None:
    """Squares below 1e-38 vanish in float32: with the worst weights 5.6 C at a clip of 1e-4, 561 C
    at 1e-6.
    """
    batch = Batch.of(name, "random", "random", 4, 3)
    kernel = ClippedSum(batch.flat, cross_entropy)
    for power in np.linspace(-30, -2, 15):
        small = Batch(batch.flat, batch.loss, (batch.x * 10.0**power).to(batch.x.dtype), batch.y)
        whole = small.sum(kernel, FlatBound(clip))
        for j in range(2):
            assert float((whole - small.without(j).sum(kernel, FlatBound(clip))).norm()) <= clip


@pytest.mark.parametrize("clip", [1e-3, pytest.param(1e-4, marks=pytest.mark.nightly), 1e-6])
def test_what_vanishes_in_one_layer_and_comes_back_in_the_next(clip: float) -> None:
    """Inputs whose squares vanish, times slopes that are huge."""
    layers = [
        nn.Linear(6, 8, bias=False),
        nn.Linear(8, 8, bias=False),
        nn.Linear(8, CLASSES, bias=False),
    ]
    rng = np.random.default_rng(0)
    for down, up, out in ((0, 0, 18), (-10, 10, 8), (6, -6, 12)):
        weights = [
            torch.from_numpy(rng.standard_normal(layer.weight.shape)) * 10.0**p
            for layer, p in zip(layers, (down, up, out), strict=True)
        ]
        for layer, weight in zip(layers, weights, strict=True):
            layer.weight = nn.Parameter(weight.float())
        flat = Flat(nn.Sequential(*layers))
        for power in range(18, 27):
            x = torch.from_numpy(10.0**-power * rng.standard_normal((3, 6))).float()
            batch = Batch(flat, cross_entropy, x, torch.tensor([0, 1, 2]))
            kernel = ClippedSum(flat, cross_entropy)
            for bound in (FlatBound(clip), Layers(clip)):
                for j in range(3):
                    assert (
                        float(
                            (batch.sum(kernel, bound) - batch.without(j).sum(kernel, bound)).norm()
                        )
                        <= clip
                    )


def test_modules_that_mix_examples_see_one_at_a_time() -> None:
    """One comparison on the first two examples was trusted for ever: up to 7.6 C by sorting."""
    for seed in range(3):
        batch = Batch.of("sorted by length", "random", "sure", 8, seed)
        kernel = ClippedSum(batch.flat, cross_entropy)
        # harmless first: nothing that is learned here may be trusted later
        batch.sum(kernel, FlatBound(0.1))
        batch.x[2] = 40.0
        whole = batch.sum(kernel, FlatBound(0.1))
        for j in (2, 5):
            gone = Batch(batch.flat, batch.loss, batch.x.clone(), batch.y)
            gone.x[j] = (
                # anything else in its place: at most two clips away, and the others where they were
                0.0
            )
            assert float((whole - gone.sum(kernel, FlatBound(0.1))).norm()) <= 0.2
            assert float((whole - batch.without(j).sum(kernel, FlatBound(0.1))).norm()) <= 0.1


def test_large_batches_of_aligned_gradients() -> None:
    """Roundings that all go one way; 700 examples in several parts."""
    for n in (TOGETHER - 1, TOGETHER, TOGETHER + 1, 700):
        for name in ("logistic", "mlp", "conv, eights", "sequence, Gram, no bias"):
            batch = Batch.of(name, "aligned", "random", n, 5)
            kernel = ClippedSum(batch.flat, cross_entropy)
            whole = batch.sum(kernel, FlatBound(1e-2))
            for j in (0, n // 2, n - 1):
                assert float((whole - batch.without(j).sum(kernel, FlatBound(1e-2))).norm()) <= 1e-2


@pytest.mark.parametrize("k", [1, 10, 1023, 1024, 1025, 5000, 3_000_000])
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e-35])
def test_norms_are_never_too_small(k: int, scale: float) -> None:
    rows = torch.randn(2, k, generator=torch.Generator().manual_seed(k)).mul_(scale)
    rows[1] = scale  # a sum whose terms are all the same loses most
    exact = np.linalg.norm(rows.numpy().astype(np.float64), axis=1)
    seen = squares(rows).sqrt().numpy()
    assert (seen >= exact * (1 - 2.0**-14)).all()
    assert (seen <= exact * (1 + 2.0**-14) + math.sqrt(k) * 2.0**-63).all()


@pytest.mark.parametrize("inner", [3, 192, 4096])
@pytest.mark.parametrize("bias", [False, True])
def test_gram_norms_of_gradients_that_cancel_are_never_too_small(inner: int, bias: bool) -> None:
    """Positions in pairs that take each other away but for a last digit: the squared norm is 10^-16
    of what is added up for it.
    """
    rng = np.random.default_rng(inner)
    a = np.repeat(rng.standard_normal((12, 4, inner)), 2, axis=1).astype(np.float32)
    g = np.repeat(rng.standard_normal((12, 4, 5)), 2, axis=1).astype(np.float32)
    g[:, 1::2] *= -1.0
    # the pairs differ by one unit in the last place
    a[:, ::2, 0] = np.nextafter(a[:, ::2, 0], np.float32(9.0))
    seen = np.sqrt(squared_norms(torch.from_numpy(a), torch.from_numpy(g), bias=bias).numpy())
    wide_a, wide_g = a.astype(np.longdouble), g.astype(np.longdouble)
    parts = [
        np.einsum("npo,npi->noi", wide_g, wide_a).reshape(12, -1),
        *([wide_g.sum(1)] if bias else []),
    ]
    exact = np.sqrt(sum((part**2).sum(1) for part in parts)).astype(np.float64)
    assert (exact > 0).all()
    assert (seen >= exact).all()


class Sorting(nn.Linear):
    """The same as a linear layer, until somebody looks."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sort(0).values)


def _patched(own: nn.Linear) -> nn.Linear:
    own.forward = lambda x: F.linear(x.sort(0).values, own.weight, own.bias)  # type: ignore[method-assign,assignment]
    return own


def _hooked(own: nn.Linear) -> nn.Linear:
    own.register_forward_pre_hook(lambda _, given: (given[0].sort(0).values,))
    return own


def _frozen(own: nn.Linear, *, buffer: bool) -> nn.Linear:
    """With a weight in a place where it may be of any class, whose code torch calls with rows."""
    weight = own.weight.detach()
    del own.weight
    if buffer:
        own.register_buffer("weight", weight)
    else:
        own.weight = weight
    return own


CHANGED = {
    "buffer": lambda: _frozen(nn.Linear(3, 4), buffer=True),
    "attribute": lambda: _frozen(nn.Linear(3, 4), buffer=False),
    "subclass": lambda: Sorting(3, 4),
    "patched": lambda: _patched(nn.Linear(3, 4)),
    "hooked": lambda: _hooked(nn.Linear(3, 4)),
}


@pytest.mark.parametrize("make", CHANGED.values(), ids=CHANGED)
def test_a_layer_that_was_changed_is_not_the_layer_of_its_name(
    make: Callable[[], nn.Module],
) -> None:
    """In a batch it would give each example's gradient to another one; alone an example has nobody
    to change places with.
    """
    assert known(nn.Linear(3, 4))
    assert not known(make())
    flat = Flat(nn.Sequential(make(), nn.Tanh(), nn.Linear(4, CLASSES)))
    assert compiled(flat, (3,)) is None


def test_a_type_that_was_changed_is_not_known_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        nn.Linear, "forward", lambda self, x: F.linear(x.flip(0), self.weight, self.bias)
    )
    assert not known(nn.Linear(3, 4))


def test_what_one_example_does_leaves_the_others_bits_alone() -> None:
    for name in ("mlp", "conv, eights, two", "sequence, formed", "residual", "attention"):
        batch = Batch.of(name, "random", "random", 6, 2)
        kernel, seen = ClippedSum(batch.flat, cross_entropy), []
        for value in (0.0, 1e5, math.inf, math.nan):
            batch.x[2] = value
            out = torch.empty(batch.flat.dim, dtype=torch.float64)
            seen.append(kernel(batch.x, batch.y, 0.1, out).norms[[0, 1, 3, 4, 5]])
        assert all(torch.equal(seen[0], other) for other in seen[1:])


def test_settings_and_batches_that_the_proof_does_not_cover_are_refused() -> None:
    flat, out = Flat(nn.Linear(2, CLASSES)), torch.empty(9, dtype=torch.float64)
    kernel, y = ClippedSum(flat, cross_entropy), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(StudyError, match="at most 1048576"):
        kernel(torch.zeros(2**20 + 1, 2), y.expand(2**20 + 1), 1.0, out)
    settings: list[tuple[Callable[[Any], object], Any, Any, str]] = [
        (torch.set_float32_matmul_precision, "highest", "high", "set_float32_matmul_precision"),
        (partial(torch.set_autocast_enabled, "cpu"), False, True, "torch.autocast is on"),
        (torch.autograd.set_detect_anomaly, False, True, "set_detect_anomaly is on"),
    ]
    for set_to, before, after, words in settings:
        set_to(after)
        try:
            with pytest.raises(StudyError, match=words):
                kernel(torch.zeros(1, 2), y, 1.0, out)
            with pytest.raises(StudyError, match=words):  # before anything is charged
                ClippedSum(flat, cross_entropy)
        finally:
            set_to(before)
    assert MARGIN < 1.0
