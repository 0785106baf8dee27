"""A DP-SGD step of a module of one's own, over torch's own recipe for it, batch 64, one thread.

The peer is what torch's page on per-sample gradients gives: ``vmap(grad)`` over a functional call,
a clip, a sum and Gaussian noise in float32. It trusts the module to keep examples apart and to keep
nothing, and proves no bound in floating point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from bench.timing import in_turns
from sordino.base.entropy import Seeded
from sordino.mechanisms.gaussian import CountedGaussian
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.perexample.sums import ClippedSum

BATCH, REACH, SIGMA = 64, 1.3, 1.1


class Own(nn.Module):
    """A network in code of its own."""

    def __init__(self, convolves: bool) -> None:
        super().__init__()
        self.convolves = convolves
        if convolves:
            self.first, self.second = nn.Conv2d(1, 16, 8, 2, 3), nn.Conv2d(16, 32, 4, 2)
        self.hidden = nn.Linear(512 if convolves else 784, 32 if convolves else 64)
        self.head = nn.Linear(self.hidden.out_features, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of images."""
        if self.convolves:
            x = F.max_pool2d(F.relu(self.first(x)), 2, 1)
            x = F.max_pool2d(F.relu(self.second(x)), 2, 1)
        return self.head(torch.tanh(self.hidden(x.flatten(1))))  # type: ignore[no-any-return]


def ours(module: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """Clipped sum, noise, step."""
    flat = Flat(module)
    kernel = ClippedSum(flat, cross_entropy)
    mechanism, rng = CountedGaussian(clip=1.0, noise_multiplier=SIGMA), Seeded(0).at("bench")
    total = torch.empty(flat.dim, dtype=torch.float64)

    def work() -> None:
        seen = kernel(x, y, 1.0, total, expected=BATCH)
        noisy, _ = mechanism.release_counted(total, seen.clipped - BATCH / 2, rng)
        flat.weights.sub_(noisy.div_(BATCH), alpha=0.1)

    return work


def recipe(module: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """The same step by ``vmap(grad)``."""
    weights = {name: each.detach() for name, each in module.named_parameters()}

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        scores = functional_call(module, weights, (image.unsqueeze(0),))
        return F.cross_entropy(scores, label.unsqueeze(0))

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))

    def work() -> None:
        rows = gradients(weights, x, y)
        norms = sum(each.flatten(1).square().sum(1) for each in rows.values()).sqrt()
        factors = (1.0 / norms).clamp_max(1.0)
        for name, each in rows.items():
            step = torch.tensordot(factors, each, 1)
            weights[name].sub_(step.add_(torch.randn_like(step), alpha=SIGMA), alpha=0.1 / BATCH)

    return work


def measure() -> list[dict[str, Any]]:
    """One row a module: milliseconds and the ratio of both."""
    rows = []
    x = torch.randn(BATCH, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    y = torch.arange(BATCH) % 10
    for convolves in (False, True):
        works = {"vmap(grad)": recipe(Own(convolves), x, y), "ours": ours(Own(convolves), x, y)}
        taken = in_turns(works, rounds=15, repeat=2)
        ratio = taken["ours"] / taken["vmap(grad)"]
        rows.append(
            {
                "what": f"DP-SGD step, own {'cnn' if convolves else 'mlp'}, batch {BATCH}: time "
                "over vmap(grad)",
                "peer": 1.0,
                "ours": ratio,
                "reach": f"<= {REACH}",
                "met": ratio <= REACH,
                "detail": {key: round(value, 3) for key, value in taken.items()},
            }
        )
    return rows
