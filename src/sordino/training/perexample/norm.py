r"""Group and layer normalisation: the affine parameters' gradients by element-wise products.

Both compute y = w * z + b with z the input normalised over one example's own numbers, so
no example meets another. Their gradients are sums over positions p:

    G_i^w = sum_p g_ip * z_ip,        G_i^b = sum_p g_ip

of shape (channels,), small enough to be kept for every example.

Shapes: group norm sees images (n, H, W, channels) or (n, ..., channels); layer norm
sees (n, ..., *normalised) and keeps gradients of shape (n, *normalised).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sordino.training.flat import Flat, Slot
from sordino.training.perexample.clipping import add_rows, kept, squares
from sordino.training.perexample.kernel import add_or_set


class NormKernel:
    """Gradients of an affine normalisation; inputs are normalised here again, which is cheap."""

    def __init__(self, layer: nn.GroupNorm | nn.LayerNorm, flat: Flat) -> None:
        self._layer = layer
        self._weight: Slot | None = flat.slot(layer.weight) if layer.weight is not None else None
        self._bias: Slot | None = flat.slot(layer.bias) if layer.bias is not None else None
        self._weight_grads = self._bias_grads = flat.weights

    def normalise(self, a: Tensor) -> Tensor:
        """z of the equation, without the affine part, in the layout of ``a``."""
        layer = self._layer
        if isinstance(layer, nn.LayerNorm):
            return F.layer_norm(a, layer.normalized_shape, None, None, layer.eps)
        return F.group_norm(a.movedim(-1, 1), layer.num_groups, None, None, layer.eps).movedim(
            1, -1
        )

    def _sums(self, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        kept = len(self._layer.normalized_shape) if isinstance(self._layer, nn.LayerNorm) else 1
        product = g * self.normalise(a)
        if g.ndim - kept == 1:
            return product.flatten(1), g.flatten(1)
        over = tuple(range(1, g.ndim - kept))
        return product.sum(over).flatten(1), g.sum(over).flatten(1)

    def collect(self, a: Tensor, g: Tensor) -> Tensor:
        """See :class:`Kernel`."""
        self._weight_grads, self._bias_grads = self._sums(a, g)
        squared = torch.zeros(len(g), dtype=torch.float64, device=g.device)
        for slot, grads in ((self._weight, self._weight_grads), (self._bias, self._bias_grads)):
            if slot is not None:
                squared += squares(grads)
        return squared

    def write(self, factor: Tensor, out: Tensor, fresh: bool) -> None:
        """See :class:`Kernel`."""
        for slot, grads in ((self._weight, self._weight_grads), (self._bias, self._bias_grads)):
            if slot is not None:
                add_rows(slot.of(out).view(-1), grads, factor, fresh)

    def leave(self, keep: Tensor) -> None:
        """See :class:`Kernel`."""
        self._weight_grads = kept(keep, self._weight_grads)
        self._bias_grads = kept(keep, self._bias_grads)

    def form(self, part: slice, rows: Tensor) -> None:
        """See :class:`Kernel`."""
        for slot, grads in ((self._weight, self._weight_grads), (self._bias, self._bias_grads)):
            if slot is not None:
                slot.columns(rows).copy_(grads[part])

    def plain(self, a: Tensor, g: Tensor, out: Tensor, fresh: bool) -> None:
        """See :class:`Kernel`."""
        for slot, grads in zip((self._weight, self._bias), self._sums(a, g), strict=True):
            if slot is not None:
                add_or_set(slot.of(out).view(-1), grads.sum(0), fresh)
