r"""Modules of one linear layer, by one compiled call (:mod:`sordino.training.jit.linear`).

For logistic regression a plan's dozen of library calls, each a microsecond or more, and the batch's
copy as floats cost several times the arithmetic (measured at 784 features and 10 classes, in
microseconds: 12 examples 190 against 15, 120 examples 360 against 68). This path takes the whole
store and the indices of the batch, reads the examples where they lie, bytes as bytes, and needs no
copy and no buffer.

It serves a flattening followed by one linear layer, all of it trained, in float32 on a processor,
with cross entropy or the multi-class hinge and a flat bound. Everything else goes by the other
paths.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.training.flat import Flat
from sordino.training.jit.linear import Layer, LinearSum
from sordino.training.loss import CrossEntropy, Loss, MulticlassHinge
from sordino.training.perexample.clipping import MARGIN, Clipped
from sordino.training.perexample.plan import plain_layers
from sordino.training.perexample.store import Index, Rows
from sordino.training.perexample.tiled import served


def _layer(flat: Flat) -> Layer | None:
    """Where the only layer's parameters lie; None if the module is something else."""
    layers = plain_layers(flat.module)
    if (
        layers is None
        or [type(layer) for layer in layers] != [nn.Flatten, nn.Linear]
        or not served(flat.weights)
    ):
        return None
    flatten, linear = layers
    if (
        not isinstance(flatten, nn.Flatten)
        or not isinstance(linear, nn.Linear)
        or (flatten.start_dim, flatten.end_dim) != (1, -1)
    ):
        return None
    weight = flat.slot(linear.weight)
    bias = flat.slot(linear.bias) if linear.bias is not None else None
    if weight is None or (linear.bias is not None and bias is None) or 0 in weight.shape:
        return None  # a frozen parameter
    return Layer(
        weight.shape[0], weight.shape[1], weight.offset, None if bias is None else bias.offset
    )


class Single:
    """See the module's docstring."""

    def __init__(self, flat: Flat, layer: Layer, hinge: bool) -> None:
        self.features = layer.features
        self._sum = LinearSum(layer, hinge)
        self._weights, self._dim = flat.weights.numpy(), flat.dim
        self._out: Tensor | None = None
        self._into: NDArray[Any] = self._weights

    @staticmethod
    def of(flat: Flat, loss: Loss) -> Single | None:
        """The path of this module and loss, if it has one."""
        if type(loss) not in (CrossEntropy, MulticlassHinge):
            return None
        layer = _layer(flat)
        return None if layer is None else Single(flat, layer, isinstance(loss, MulticlassHinge))

    def clipped(self, rows: Rows, chosen: Index, clip: float, out: Tensor) -> Clipped:
        """The clipped sum over the ``chosen`` rows (b,) into ``out`` (d,), float64."""
        norms, losses = np.empty(chosen.size, np.float32), np.empty(chosen.size, np.float32)
        over = self._sum.clipped(
            rows.numbers, rows.scale, rows.labels, chosen, self._weights, clip, MARGIN,
            self._vector(out, torch.float64), norms, losses,
        )  # fmt: skip
        return Clipped(torch.from_numpy(norms), clip, torch.from_numpy(losses), over)

    def mean(self, rows: Rows, chosen: Index, out: Tensor) -> Tensor:
        """The mean gradient over ``chosen`` (b,), not empty, into ``out`` (d,); the mean loss."""
        norms, losses = np.empty(chosen.size, np.float32), np.empty(chosen.size, np.float32)
        self._sum.mean(
            rows.numbers,
            rows.scale,
            rows.labels,
            chosen,
            self._weights,
            self._vector(out, torch.float32),
            norms,
            losses,
        )
        return torch.from_numpy(losses).mean()

    def _vector(self, out: Tensor, dtype: torch.dtype) -> NDArray[Any]:
        """``out`` as an array; a client's steps all write into the same tensor, so it is kept."""
        if out is not self._out or out.dtype != dtype:
            if (
                out.dtype != dtype
                or out.device.type != "cpu"
                or not out.is_contiguous()
                or out.shape != (self._dim,)
            ):
                raise ValueError(
                    f"out must be a vector of {self._dim} numbers of type {dtype} on a processor"
                )
            self._into, self._out = out.numpy(), out
        return self._into
