"""A DP-SGD step of a module of one's own: the cost of throw-away copies, batch 64, one thread.

The peer is the same step without copies, as if the module could be trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.timing import in_turns
from sordino.entropy import Seeded
from sordino.mechanism import CountedGaussian
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.perexample import ClippedSum

BATCH, REACH = 64, 1.3


class Own(nn.Module):
    """A network in code of its own; where it looks at numbers, vmap cannot follow."""

    def __init__(self, convolves: bool, looks: bool) -> None:
        super().__init__()
        self.convolves, self.looks = convolves, looks
        if convolves:
            self.first, self.second = nn.Conv2d(1, 16, 8, 2, 3), nn.Conv2d(16, 32, 4, 2)
        self.hidden = nn.Linear(512 if convolves else 784, 32 if convolves else 64)
        self.head = nn.Linear(self.hidden.out_features, 10)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        if self.convolves:
            x = F.max_pool2d(F.relu(self.first(x)), 2, 1)
            x = F.max_pool2d(F.relu(self.second(x)), 2, 1)
        h = torch.tanh(self.hidden(x.flatten(1)))
        if self.looks and float(h.detach().sum()) > 1e9:
            h = -h
        return self.head(h)  # type: ignore[no-any-return]


def step(module: nn.Module, x: Tensor, y: Tensor, *, copies: bool) -> Callable[[], None]:
    """Clipped sum, noise, step."""
    flat = Flat(module)
    kernel = ClippedSum(flat, cross_entropy)
    mechanism, rng = CountedGaussian(clip=1.0, noise_multiplier=1.1), Seeded(0).at("bench")
    total = torch.empty(flat.dim, dtype=torch.float64)
    if not copies:
        itself: list[Tensor] = list(module.parameters())
        flat.copy = lambda: (module, itself)  # type: ignore[method-assign]

    def work() -> None:
        seen = kernel(x, y, 1.0, total, expected=BATCH)
        noisy, _ = mechanism.release(total, seen.clipped - BATCH / 2, rng)
        flat.weights.sub_(noisy.div_(BATCH), alpha=0.1)

    return work


def measure() -> list[dict[str, Any]]:
    """One row a module: milliseconds and the ratio of both."""
    rows = []
    x = torch.randn(BATCH, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    y = torch.arange(BATCH) % 10
    for convolves in (False, True):
        for looks in (False, True):
            works = {
                name: step(Own(convolves, looks), x, y, copies=name == "ours")
                for name in ("without copies", "ours")
            }
            taken = in_turns(works, rounds=15, repeat=2)
            ratio = taken["ours"] / taken["without copies"]
            what = f"{'cnn' if convolves else 'mlp'}, {'one by one' if looks else 'vmap'}"
            rows.append(
                {
                    "what": f"DP-SGD step, own {what}, batch {BATCH}: time over no copies",
                    "peer": 1.0,
                    "ours": ratio,
                    "reach": f"<= {REACH}",
                    "met": ratio <= REACH,
                    "detail": {key: round(value, 3) for key, value in taken.items()},
                }
            )
    return rows
