r"""Modules of one linear layer, by one compiled loop (:mod:`.loops`).

    s_i = w a_i + b,      g_i = dl/ds_i,      |G_i|^2 = |g_i|^2 (|a_i|^2 + 1),
    out = sum_i c_i g_i a_i^T,  sum_i c_i g_i,      c_i = min(1, s C / |G_i|)

(without a bias, no 1). For logistic regression a plan's dozen of library calls, each a microsecond
or more, cost several times the arithmetic (784 features, 10 classes, 12 examples: 155 microseconds
against 30). The loop takes the whole store and the indices of the batch, and reads the examples
where they lie, bytes as bytes.

It serves a flattening followed by one linear layer, all of it trained, in float32 on a processor,
with cross entropy or the multi-class hinge and a flat bound. Everything else goes by the other
paths.

Rounding is that of :mod:`.clipping`: a row's square is summed in float32 over at most 1 024 numbers
and 2^-126 is added for each that may vanish; norm and quotient are float64; at most 96 examples
are added up in float32. An example whose norm is not finite is left out of the sum, not multiplied
by zero. Without privacy it stays in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.training.flat import Flat, Slot
from sordino.training.loss import CrossEntropy, Loss, MulticlassHinge
from sordino.training.perexample.clipping import MARGIN, Clipped
from sordino.training.perexample.plan import plain_layers

BYTES, FLOATS = (np.float32(127.5), np.float32(1 / 127.5)), (np.float32(0), np.float32(1))
"""The number that is subtracted, and the factor of the rest, to give model input."""


class Single:
    """The sums of one linear layer: its weight, its bias if it has one, and the loss."""

    def __init__(self, flat: Flat, weight: Slot, bias: Slot | None, hinge: bool) -> None:
        self.features = weight.shape[1]
        self._dim, self._weight, self._bias, self._hinge = flat.dim, weight, bias, hinge
        self._weights = self._parts(flat.weights)

    @classmethod
    def of(cls, flat: Flat, loss: Loss) -> Single | None:
        """Return the path of this module and loss, if it has one."""
        match plain_layers(flat.module):
            case [nn.Flatten(start_dim=1, end_dim=-1), nn.Linear() as linear]:
                weight = flat.slot(linear.weight)
                bias = flat.slot(linear.bias) if linear.bias is not None else None
            case _:
                return None
        frozen = weight is None or (linear.bias is not None and bias is None)
        here = flat.weights.device.type == "cpu" and flat.weights.dtype == torch.float32
        if weight is None or frozen or not here or 0 in weight.shape:
            return None
        if type(loss) not in (CrossEntropy, MulticlassHinge):
            return None
        return cls(flat, weight, bias, isinstance(loss, MulticlassHinge))

    def reads(self, x: Tensor, y: Tensor) -> bool:
        """Return whether examples ``x`` (n, ...) with labels ``y`` (n,) can be read in place."""
        return (
            x.dtype in (torch.uint8, torch.float32)
            and y.dtype == torch.int64
            and x.device.type == y.device.type == "cpu"
            and x.is_contiguous()
            and y.is_contiguous()
            and x.ndim > 1
            and y.shape == x.shape[:1]
            and x.numel() == len(x) * self.features
            and not x.requires_grad
        )

    def clipped(self, x: Tensor, y: Tensor, chosen: Tensor, clip: float, out: Tensor) -> Clipped:
        """Write the clipped sum over indices ``chosen`` (b,) to ``out`` (d,), float64."""
        norms, losses = self._sum(x, y, chosen, clip * MARGIN, out)
        return Clipped(norms, clip, losses)

    def mean(self, x: Tensor, y: Tensor, chosen: Tensor, out: Tensor) -> Tensor:
        """Write the mean gradient over ``chosen`` (b,), not empty, to ``out`` (d,); the mean loss.

        Raises:
            IndexError: for a label that is no class.
        """
        total = torch.empty(self._dim, dtype=torch.float64)
        _, losses = self._sum(x, y, chosen, None, total)
        out.copy_(total.div_(len(chosen)))
        return losses.mean()

    def steps(self, x: Tensor, y: Tensor, batches: NDArray[np.int64], rate: float) -> None:
        """Take plain steps on ``batches`` (tau, b), not empty; to the bit what :meth:`mean` and
        torch come to. All weights are NaN where a label is no class.
        """
        from sordino.training.perexample import loops

        total = torch.empty(self._dim, dtype=torch.float64)
        norms, losses = np.empty((2, batches.shape[1]), np.float32)
        wrong = loops.steps(
            x.view(len(x), -1).numpy(), *(BYTES if x.dtype == torch.uint8 else FLOATS), y.numpy(),
            batches, *self._weights, self._hinge, np.float32(-rate), *self._parts(total), norms,
            losses,
        )  # fmt: skip
        if wrong:
            for part in self._weights:
                part.fill(np.nan)

    def _sum(
        self, x: Tensor, y: Tensor, chosen: Tensor, room: float | None, out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return norms and losses; without ``room``, s C, nothing is clipped or left out."""
        from sordino.training.perexample import loops

        if out.shape != (self._dim,) or out.dtype != torch.float64 or not out.is_contiguous():
            raise ValueError(f"out must be a vector of {self._dim} numbers of type torch.float64")
        norms, losses = np.empty((2, len(chosen)), np.float32)
        wrong = loops.linear(
            x.view(len(x), -1).numpy(), *(BYTES if x.dtype == torch.uint8 else FLOATS), y.numpy(),
            chosen.contiguous().numpy(), *self._weights, self._hinge, room is not None, room or 0.0,
            *self._parts(out), norms, losses,
        )  # fmt: skip
        if wrong == loops.NO_EXAMPLE:
            raise IndexError("an index of the batch lies outside of the examples")
        if wrong == loops.NO_CLASS and room is None:  # with privacy, an error would tell of it
            raise IndexError("a label of the batch lies outside of the model's classes")
        return torch.from_numpy(norms), torch.from_numpy(losses)

    def _parts(self, vector: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
        """The weight and the bias of a vector (d,), the latter empty where there is none."""
        bias = vector[:0] if self._bias is None else self._bias.of(vector)
        return self._weight.of(vector).numpy(), bias.numpy()
