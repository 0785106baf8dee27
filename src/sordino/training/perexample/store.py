"""Examples where they lie, for paths that gather nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Index = NDArray[np.int64]

BYTE = 1.0 / 127.5  # a byte x is the pixel (x - 127.5) / 127.5


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """All examples as rows of one matrix, in the memory of the tensors they came in.

    Attributes:
        numbers: (n features,), uint8 or float32.
        features: numbers in an example.
        scale: what a number, a byte less 127.5, is multiplied with to be model input.
        labels: (n,).
    """

    numbers: NDArray[np.float32] | NDArray[np.uint8]
    features: int
    scale: float
    labels: Index

    @staticmethod
    def of(x: Tensor, y: Tensor) -> Rows | None:
        """The rows of ``x`` (n, ...) with labels ``y`` (n,), or None if they are no such matrix."""
        here = x.device.type == y.device.type == "cpu" and not x.requires_grad
        if not here or x.dtype not in (torch.uint8, torch.float32) or y.dtype != torch.int64:
            return None
        whole = x.is_contiguous() and y.is_contiguous() and x.ndim > 1 and y.shape == x.shape[:1]
        if not whole or x.numel() == 0:
            return None
        scale = BYTE if x.dtype == torch.uint8 else 1.0
        return Rows(x.view(-1).numpy(), x.numel() // len(x), scale, y.numpy())


@dataclass(frozen=True, slots=True)
class Given:
    """Examples ``x`` (n, ...), as model input, with labels ``y`` (n,)."""

    x: Tensor
    y: Tensor

    @property
    def rows(self) -> Rows | None:
        """See :class:`Store`."""
        return Rows.of(self.x, self.y) if self.x.dtype == torch.float32 else None

    def take(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Store`."""
        if len(chosen) == len(self.y):  # all of them, in order
            return self.x, self.y
        return self.x.index_select(0, chosen), self.y.index_select(0, chosen)


class Store(Protocol):
    """A client's examples."""

    @property
    def rows(self) -> Rows | None:
        """Them as a matrix, if they are one."""
        ...

    def take(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of the examples with these indices (b,), as model input, and their labels."""
        ...
