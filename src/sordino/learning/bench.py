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
    """One client's data on the device: ``x`` (n, ...) and labels ``y`` (n,).

    Pixels stay bytes until a batch is taken: a quarter of the memory, and of what a batch has to fetch.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the examples with these indices (b,), as model input."""
        return model_input(self.x.index_select(0, chosen)), self.y.index_select(0, chosen)


def model_input(x: Tensor) -> Tensor:
    """Bytes as pixels in [-1, 1], to the bit as :func:`sordino.data.scaled` has them; everything else as it is.

    >>> model_input(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([-1.0000, -0.6000,  1.0000])
    """
    return x.to(torch.float32).sub_(127.5).div_(127.5) if x.dtype == torch.uint8 else x


def poisson(count: int, rate: float, rng: np.random.Generator) -> Tensor:
    """Indices of a Poisson sample: each of ``count`` independently with probability ``rate``."""
    return torch.from_numpy(np.flatnonzero(rng.random(count) < rate))
