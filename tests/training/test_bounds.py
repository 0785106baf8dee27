"""Sums bounded per layer and in norms of one's own, on every path, against gradients taken one
example at a time.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino.base.entropy import Seeded
from sordino.mechanisms.haar.basis import Basis
from sordino.mechanisms.haar.gaussian import HaarGaussian, LevelGaussian, paper
from sordino.training import models
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.perexample import clipping, loops
from sordino.training.perexample.clipping import (
    MARGIN,
    Bound,
    FlatBound,
    Layers,
    Measured,
    Shortened,
)
from sordino.training.perexample.general import layers_of
from sordino.training.perexample.sums import ClippedSum

N = 9


class Branches(nn.Module):
    """Known layers, but no sequence: hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(18 * 18, 12), nn.Linear(18 * 18, 12)
        self.head = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.head(torch.tanh(self.a(x)) * torch.relu(self.b(x)))  # type: ignore[no-any-return]


class Idle(Branches):
    """A layer that was called for nothing."""

    def forward(self, x: Tensor) -> Tensor:
        self.b(x.flatten(1))
        return self.head(torch.tanh(self.a(x.flatten(1))))  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """A parameter in no known layer: example by example."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.linspace(0.5, 2.0, 324)), nn.Linear(324, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1) * self.scale)  # type: ignore[no-any-return]


def module(kind: str) -> nn.Module:
    torch.manual_seed(3)
    match kind:
        case "cnn":
            return models.build("cnn", (1, 18, 18), 10, Seeded(0).at("model"))
        case "patches":
            return nn.Sequential(nn.Conv2d(1, 5, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(320, 10))
        case "gram and norm":
            return nn.Sequential(
                nn.Conv2d(1, 8, 9, 4),
                nn.GroupNorm(2, 8),
                nn.Conv2d(8, 128, 3),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(128, 10),
            )
        case "norms":
            return nn.Sequential(
                nn.Conv2d(1, 8, 3, 2),
                nn.GroupNorm(2, 8),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(512, 16),
                nn.LayerNorm(16),
                nn.Linear(16, 10),
            )
        case "hooks":
            return Branches()
        case _:
            return Scaled()


KINDS = ["cnn", "patches", "norms", "gram and norm", "hooks", "one by one"]


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(N, 1, 18, 18, generator=generator), torch.randint(
        0, 10, (N,), generator=generator
    )


def room(flat: Flat) -> Tensor:
    """For a clipped sum."""
    return torch.full((flat.dim,), torch.nan, dtype=torch.float64)


def alone(flat: Flat, x: Tensor, y: Tensor) -> Tensor:
    """Rows by autograd, one example at a time."""
    rows = []
    for i in range(len(x)):
        loss = torch.nn.functional.cross_entropy(flat.module(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(
            loss, list(flat.module.parameters()), allow_unused=True, materialize_grads=True
        )
        row = torch.empty(flat.dim)
        for slot, grad in zip(flat.layout, grads, strict=True):
            slot.logical(row).copy_(grad)
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_each_examples_own_gradient(kind: str) -> None:
    flat, (x, y) = Flat(module(kind)), data()
    assert torch.allclose(
        ClippedSum(flat, cross_entropy).rows(x, y), alone(flat, x, y), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_bounded_each_by_itself(kind: str) -> None:
    flat, (x, y) = Flat(module(kind)), data()
    rows, layers, out = alone(flat, x, y), layers_of(flat), room(flat)
    norms = torch.stack(
        [torch.cat([slot.flat(row) for slot in layer]).norm() for row in rows for layer in layers]
    ).view(N, -1)
    clip = 1.01 * float(norms.median()) * math.sqrt(len(layers))
    each = clip / math.sqrt(len(layers))
    wanted = torch.zeros(flat.dim, dtype=torch.float64)
    for row, own in zip(rows, norms, strict=True):
        for layer, norm in zip(layers, own, strict=True):
            for slot in layer:
                slot.flat(wanted).add_(
                    slot.flat(row).double(), alpha=min(1.0, MARGIN * each / float(norm))
                )
    seen = ClippedSum(flat, cross_entropy)(x, y, Layers(clip), out)
    assert torch.allclose(out, wanted, rtol=1e-3, atol=1e-4 * clip)
    assert seen.clipped == int((norms > each).any(1).sum())
    assert torch.allclose(seen.norms, norms.amax(1) * math.sqrt(len(layers)), rtol=1e-3)


def by_level(flat: Flat, clip: float) -> LevelGaussian:
    """Levels clipped one by one, with uneven weights."""
    basis = Basis.of(slot.size for slot in flat.layout)
    weights = np.random.default_rng(2).uniform(0.2, 5.0, basis.groups).tolist()
    return LevelGaussian.weighted(clip=clip, noise_multiplier=1.0, basis=basis, weights=weights)


@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_of_ones_own_bounds_the_sum(kind: str) -> None:
    flat, (x, y) = Flat(module(kind)), data()
    rows, out, basis = alone(flat, x, y), room(flat), Basis.flat(flat.dim)
    weights = paper(basis)
    norms = basis.weighted_norms(rows, weights)
    clip = float(norms.median())
    mechanism = HaarGaussian.weighted(clip=clip, noise_multiplier=1.0, basis=basis, weights=weights)
    seen = ClippedSum(flat, cross_entropy)(x, y, Measured.by(mechanism, clip), out)
    wanted = (rows.double() * (clip / norms).clamp_max(1.0).unsqueeze(1)).sum(0)
    assert torch.allclose(out, wanted, rtol=2e-3, atol=2e-3 * float(wanted.abs().max()))
    assert seen.clipped == pytest.approx(int((norms > clip).sum()), abs=1)


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize(
    "name", ["cnn", "logistic", "mlp", pytest.param("cifar-cnn", marks=pytest.mark.nightly)]
)
def test_gradients_formed_layer_by_layer_are_clipped_as_those_of_single_examples(
    name: str, per_layer: bool
) -> None:
    shape = (3, 32, 32) if name == "cifar-cnn" else (1, 28, 28)
    flat = Flat(models.build(name, shape, 10, Seeded(0).at("model")))
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(N, *shape, generator=generator)
    y = torch.randint(0, 10, (N,), generator=generator)
    x[4] = torch.nan
    basis = Basis.of(slot.size for slot in flat.layout) if per_layer else Basis.flat(flat.dim)
    weights = tuple(np.random.default_rng(1).uniform(0.5, 2.0, basis.groups).tolist())
    mechanism = HaarGaussian.weighted(clip=1.0, noise_multiplier=1.0, basis=basis, weights=weights)
    clipped, out = ClippedSum(flat, cross_entropy), room(flat)
    seen = clipped(x, y, Measured.by(mechanism, 1.0), out)
    rows = alone(flat, x, y)
    norms = mechanism.norms(rows).double()
    wanted = rows[norms < math.inf].double().T @ (
        mechanism.margin / norms[norms < math.inf]
    ).clamp_max(1.0)
    assert seen.clipped > 0
    assert math.isinf(float(seen.norms[4]))
    assert torch.allclose(seen.norms.double(), norms, rtol=1e-4)
    assert torch.allclose(out, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_a_layer_that_the_loss_does_not_see_adds_nothing() -> None:
    flat, (x, y) = Flat(Idle()), data()
    basis, out = Basis.flat(flat.dim), room(flat)
    mechanism = HaarGaussian.weighted(
        clip=0.5, noise_multiplier=1.0, basis=basis, weights=paper(basis)
    )
    rows = alone(flat, x, y)
    clipped = ClippedSum(flat, cross_entropy)
    seen = clipped(x, y, Measured.by(mechanism, 0.5), out)
    assert torch.allclose(seen.norms, mechanism.norms(rows), rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bound", ["flat", "layers", "measured", "shortened"])
def test_one_broken_example_does_not_spoil_the_others(kind: str, bound: str) -> None:
    flat, (x, y) = Flat(module(kind)), data()
    x[4] = torch.nan
    mechanism = HaarGaussian.weighted(
        clip=0.5,
        noise_multiplier=1.0,
        basis=Basis.flat(flat.dim),
        weights=(1.0,) * Basis.flat(flat.dim).groups,
    )
    chosen: dict[str, Bound] = {
        "flat": FlatBound(0.5),
        "layers": Layers(0.5),
        "measured": Measured.by(mechanism, 0.5),
        "shortened": Shortened(0.5, by_level(flat, 0.5).shortened_rows),
    }
    whole, rest = room(flat), room(flat)
    keep = [i for i in range(N) if i != 4]
    seen = ClippedSum(flat, cross_entropy)(x, y, chosen[bound], whole)
    ClippedSum(flat, cross_entropy)(x[keep], y[keep], chosen[bound], rest)
    assert torch.isfinite(whole).all()
    assert torch.allclose(whole, rest, rtol=1e-4, atol=1e-5)
    assert math.isinf(float(seen.norms[4]))


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_on_levels_bound_the_sum(kind: str) -> None:
    flat, (x, y) = Flat(module(kind)), data()
    rows, out, wanted = alone(flat, x, y), room(flat), room(flat)
    mechanism = by_level(flat, 0.3)
    clipped = ClippedSum(flat, cross_entropy)
    seen = clipped(x, y, Shortened(0.3, mechanism.shortened_rows), out)
    short, norms = mechanism.shortened_rows(rows)
    assert torch.allclose(out, short.sum(0), rtol=1e-3, atol=1e-3 * float(out.abs().max()))
    assert torch.allclose(seen.norms.double(), norms.double(), rtol=1e-3)
    assert seen.clipped > 0
    for i in range(N):
        keep = [k for k in range(N) if k != i]
        clipped(x[keep], y[keep], Shortened(0.3, mechanism.shortened_rows), wanted)
        assert float(mechanism.norms((out - wanted).unsqueeze(0))) <= 0.3


@pytest.mark.parametrize("bound", ["layers", "measured"])
def test_no_example_moves_the_sum_further_than_the_bound(bound: str) -> None:
    flat, (x, y) = Flat(module("cnn")), data()
    basis = Basis.of(slot.size for slot in flat.layout)
    rng = np.random.default_rng(1)
    mechanism = HaarGaussian.weighted(
        clip=0.3,
        noise_multiplier=1.0,
        basis=basis,
        weights=tuple(float(w) for w in rng.uniform(0.2, 5.0, basis.groups)),
    )
    chosen: Bound = Layers(0.3) if bound == "layers" else Measured.by(mechanism, 0.3)
    total, without = room(flat), room(flat)
    clipped = ClippedSum(flat, cross_entropy)
    clipped(x, y, chosen, total)
    for i in range(N):
        keep = [k for k in range(N) if k != i]
        clipped(x[keep], y[keep], chosen, without)
        moved = total - without
        size = (
            float(moved.norm())
            if bound == "layers"
            else float(basis.weighted_norms(moved.unsqueeze(0), mechanism.clip_weights))
        )
        assert size <= 0.3


def test_compiled_loops_have_the_constants_of_the_proof() -> None:
    for name in ("TOGETHER", "LONGEST", "BLOCK", "VANISHING"):
        assert getattr(loops, name) == getattr(clipping, name), name
    assert np.finfo(np.float32).tiny == clipping.VANISHING
