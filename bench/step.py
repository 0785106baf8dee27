"""One DP-SGD step against channels-last plain SGD (the floor) and Opacus, batch 90, one thread."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.timing import in_turns
from sordino.base.entropy import Seeded
from sordino.base.message import Train
from sordino.mechanisms.gaussian import CountedGaussian
from sordino.training import models
from sordino.training.client import hidden
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.perexample.sums import ClippedSum

BATCH, CLIP, SIGMA, ETA = 90, 1.0, 1.1, 0.1
TASK = Train(round=1, steps=1, weights=np.zeros(1, np.float32))
CASES = {
    "cnn": ((1, 28, 28), 1.7, 5.9),
    "logistic": ((1, 28, 28), 1.7, 13.0),
    "mlp": ((1, 28, 28), 1.8, 76.0),
    "cifar-cnn": ((3, 32, 32), 2.2, 4.3),
}


def build(name: str) -> nn.Module:
    """The model, the same weights each time."""
    return models.build(name, CASES[name][0], 10, np.random.default_rng(0))


def floor(name: str, x: Tensor, y: Tensor) -> Any:
    """Plain SGD by torch, channels last."""
    module = build(name).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(module.parameters(), lr=ETA)

    def work() -> None:
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return work


def ours(name: str, x: Tensor, y: Tensor) -> Any:
    """Clipped sum, noise, step: what a client does, the release of the clipped fraction
    included.
    """
    flat = Flat(build(name))
    kernel = ClippedSum(flat, cross_entropy)
    mechanism, draws = CountedGaussian(clip=CLIP, noise_multiplier=SIGMA), Seeded(0).stream("bench")
    total = torch.empty(flat.dim, dtype=torch.float64)

    def work() -> None:
        seen = kernel(x, y, CLIP, total, expected=len(x))
        excess = seen.clipped - len(x) / 2
        rng = draws.over(1, hidden(TASK, total, excess, None))
        noisy, _ = mechanism.release_counted(total, excess, rng)
        flat.weights.sub_(noisy.div_(BATCH), alpha=ETA)

    return work


def opacus(name: str, x: Tensor, y: Tensor) -> Any:
    """Opacus' hooks and optimizer, channels first as it comes."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    module = GradSampleModule(build(name))
    inner = torch.optim.SGD(module.parameters(), lr=ETA)
    optimizer = DPOptimizer(
        inner, noise_multiplier=SIGMA, max_grad_norm=CLIP, expected_batch_size=BATCH
    )
    x = x.contiguous()

    def work() -> None:
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return work


def measure() -> list[dict[str, Any]]:
    """One row a model: milliseconds and ratios to the floor."""
    rows = []
    for name, (shape, reach, peer) in CASES.items():
        rng = np.random.default_rng(1)
        x = torch.from_numpy(rng.standard_normal((BATCH, *shape)).astype(np.float32)).contiguous(
            memory_format=torch.channels_last
        )
        y = torch.from_numpy(rng.integers(0, 10, BATCH))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            works = {
                "floor": floor(name, x, y),
                "ours": ours(name, x, y),
                "opacus": opacus(name, x, y),
            }
            taken = in_turns(
                works,
                rounds=5 if name == "cifar-cnn" else 15,
                repeat=1 if name == "cifar-cnn" else 5,
            )
        rows.append(
            {
                "what": f"DP-SGD step, {name}, batch {BATCH}: time over plain SGD",
                "peer": taken["opacus"] / taken["floor"],
                "ours": taken["ours"] / taken["floor"],
                "reach": f"<= {reach}",
                "met": taken["ours"] / taken["floor"] <= reach,
                "detail": {
                    **{key: round(value, 3) for key, value in taken.items()},
                    "opacus when the target was set": peer,
                },
            }
        )
    return rows
