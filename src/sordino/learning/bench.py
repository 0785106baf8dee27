"""What clients of one process share: the model and its kernels; and how a batch is drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sordino.learning.flat import Flat
from sordino.learning.perexample import ClippedSum, MeanGradient


@dataclass(frozen=True, slots=True, eq=False)
class Workbench:
    """The model that clients of one process share, one after another.

    Attributes:
        flat: the module with its parameters in one vector.
        clipped: kernel for the sum of clipped per-example gradients.
        mean: kernel for the plain mean gradient.
    """

    flat: Flat
    clipped: ClippedSum
    mean: MeanGradient


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """One client's data on the device: ``x`` (n, ...) and labels ``y`` (n,)."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the examples with these indices (b,)."""
        return self.x.index_select(0, chosen), self.y.index_select(0, chosen)


def poisson(count: int, rate: float, rng: np.random.Generator) -> Tensor:
    """Indices of a Poisson sample: each of ``count`` independently with probability ``rate``."""
    return torch.from_numpy(np.flatnonzero(rng.random(count) < rate))
