r"""Convolutions: torch's own forward and backward moves, one batched product for the gradients.

A convolution is a linear layer applied to P = height' x width' patches of length
K = kernel x channels that share one weight matrix W (O, K). With the patches A_i (P, K) of
example i and output gradients g_i (P, O),

    G_i = g_i^T A_i            O P K multiply-adds each, as much as the forward pass
    |G_i|^2 = sum of its squares,      sum_i c_i G_i = c^T [G_1; ...; G_n]

Output and input gradient need no patches: there the library's convolution is as fast as a
product with patches, and it saves folding them back (measured on the small network's
second layer: 0.8 against 1.2 ms). Patches are copied from a strided view of the padded
channels-last image. They are many times larger than images: they are made for a few examples at a
time and used up at once, while they are in the cache (a twentieth of the whole step).

Where O K is much larger than P the Gram form (:mod:`.layers`) is cheaper. Counting decides.

Shapes: images (n, H, W, channels), patches (n, P, K) with K in order (row, column,
channel), which is the flat vector's order of a weight.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sordino.training.flat import Flat
from sordino.training.perexample.clipping import parts, put
from sordino.training.perexample.layers import (
    Collected,
    Products,
    Written,
    channels_first,
    channels_last,
    cheaper,
    place,
)

Pair = tuple[int, int]
PATCH_BYTES = (
    1_000_000  # patches of as many examples as this are worked off while they are in the cache
)


def padding(layer: nn.Conv2d) -> Pair | None:
    """Return rows and columns of zeros on either side; None where ``same`` means an odd number."""
    if not isinstance(layer.padding, str):
        rows, columns = layer.padding
        return rows, columns
    if layer.padding == "valid":
        return 0, 0
    rows, columns = (d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
    return None if rows % 2 or columns % 2 else (rows // 2, columns // 2)


class Convolution:
    """A convolution of images (n, H, W, channels), by the library; see the module's docstring."""

    def __init__(self, layer: nn.Conv2d, flat: Flat) -> None:
        self._layer, self._padding = layer, padding(layer) or (0, 0)
        self._weight = place(flat, layer.weight)
        self._bias = place(flat, layer.bias) if layer.bias is not None else None
        self._patch = layer.weight[0].numel()
        self._x, self._positions = flat.weights, (0, 0)

    @staticmethod
    def supports(layer: nn.Conv2d) -> bool:
        """Return whether this covers a layer: one group, as many zeros before as after."""
        return layer.groups == 1 and layer.padding_mode == "zeros" and padding(layer) is not None

    def forward(self, x: Tensor) -> Tensor:
        self._x, layer = x, self._layer
        images = channels_first(x)
        y = torch.conv2d(
            images, layer.weight, layer.bias, layer.stride, self._padding, layer.dilation
        )
        self._positions = y.shape[2], y.shape[3]
        return channels_last(y)

    def backward(self, g: Tensor) -> Tensor:
        result, _, _ = self._gradients(g, (True, False, False))
        if result is None:
            raise RuntimeError("asked for an input gradient, got none")
        return channels_last(result)

    def collect(self, g: Tensor) -> Collected:
        a, g = self._x, g.flatten(1, 2)
        patch, (n, positions, outputs) = self._patch, g.shape
        if cheaper(positions, patch, outputs):
            return Products.collected(self.unfold(a), g, self._weight, self._bias)
        grads = g.new_empty(n, outputs, patch)
        few = PATCH_BYTES // (positions * patch * g.element_size())
        for some in parts(n, few):
            torch.bmm(g[some].transpose(1, 2), self.unfold(a[some]), out=grads[some])
        return Written.collected((self._weight, grads.view(n, -1)), (self._bias, g.sum(1)))

    def plain(self, g: Tensor, out: Tensor, fresh: bool) -> None:
        """Write the library's own weight gradient, without patches."""
        _, weight, bias = self._gradients(g, (False, True, self._bias is not None))
        for slot, grad in ((self._weight, weight), (self._bias, bias)):
            if slot is not None and grad is not None:
                put(slot.logical(out), grad, fresh)

    @property
    def kept(self) -> int:
        """Numbers per example that are kept of gradients by images like the last input."""
        positions, outputs = math.prod(self._positions), self._layer.out_channels
        gram = cheaper(positions, self._patch, outputs)
        return positions * (self._patch + outputs) if gram else outputs * self._patch

    def unfold(self, x: Tensor) -> Tensor:
        """Return patches (n, P, K) of images (n, H, W, channels)."""
        (rows, columns), (top, left), layer = self._positions, self._padding, self._layer
        if top or left:
            x = F.pad(x, (0, 0, left, left, top, top))
        (n, *_, channels), (by_image, by_row, by_column, by_channel) = x.shape, x.stride()
        (high, wide), (down, across) = layer.kernel_size, layer.stride
        lower, further = layer.dilation
        steps = by_row * down, by_column * across, by_row * lower, by_column * further
        windows = x.as_strided(
            (n, rows, columns, high, wide, channels), (by_image, *steps, by_channel)
        )
        return windows.reshape(n, rows * columns, self._patch)

    def _gradients(
        self, g: Tensor, wanted: tuple[bool, bool, bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the library's gradients by input, weight and bias, as ``wanted``."""
        layer = self._layer
        result: tuple[Tensor | None, Tensor | None, Tensor | None] = (
            torch.ops.aten.convolution_backward(
                channels_first(g),
                channels_first(self._x),
                layer.weight,
                [layer.out_channels],
                layer.stride,
                self._padding,
                layer.dilation,
                False,
                [0, 0],
                1,
                wanted,
            )
        )
        return result
