r"""Convolutions: unfold once, one batched product, one matrix-vector product.

A convolution is a linear layer applied to P = height' x width' patches of length
K = kernel x channels that share one weight matrix W (O, K): with patches A_i (P, K) and
output gradients g_i (P, O),

    y_i = A_i W^T + b          forward, one product for the whole batch
    G_i = g_i^T A_i            O P K multiply-adds each, as much as the forward pass
    |G_i|^2 = sum of its squares,      sum_i c_i G_i = c^T [G_1; ...; G_n]
    da_i = fold(g_i W)

The patches are copied once, by a strided view of the padded channels-last image, and
serve the forward pass and the gradient. Where O K is much larger than P the Gram form
(see :mod:`sordino.learning.perexample.gram`) is cheaper. Counting decides.

Shapes: images (n, H, W, channels), patches (n, P, K) with K in order (row, column,
channel), which is the flat vector's order of a weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino.learning.flat import Flat, Slot
from sordino.learning.perexample.gram import cheaper, squared_norms
from sordino.learning.perexample.workspace import Workspace

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of one convolution on images of one size (height, width, channels)."""

    image: tuple[int, int, int]
    kernel: Pair
    stride: Pair
    before: Pair
    after: Pair
    dilation: Pair
    channels: int

    @property
    def padded(self) -> Pair:
        """Height and width with padding on both sides."""
        return self.image[0] + self.before[0] + self.after[0], self.image[1] + self.before[1] + self.after[1]

    @property
    def positions(self) -> Pair:
        """Height and width of the output."""
        height, width = (
            (p - d * (k - 1) - 1) // s + 1 for p, d, k, s in zip(self.padded, self.dilation, self.kernel, self.stride, strict=True)
        )
        return height, width

    @property
    def patch(self) -> int:
        """K, numbers in a patch."""
        return self.kernel[0] * self.kernel[1] * self.image[2]


def _padding(layer: nn.Conv2d) -> tuple[Pair, Pair]:
    """Padding before and after each axis; ``same`` puts the odd one after, as torch does."""
    if layer.padding == "valid":
        return (0, 0), (0, 0)
    if layer.padding == "same":
        total = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return (total[0] // 2, total[1] // 2), (total[0] - total[0] // 2, total[1] - total[1] // 2)
    rows, columns = (int(value) for value in layer.padding)
    return (rows, columns), (rows, columns)


def supported(layer: nn.Conv2d) -> bool:
    """Whether :class:`ConvKernel` covers this layer: one group, zero padding."""
    return layer.groups == 1 and layer.padding_mode == "zeros"


def geometry(layer: nn.Conv2d, image: tuple[int, int, int]) -> Geometry:
    """The sizes of ``layer`` on images (height, width, channels)."""
    before, after = _padding(layer)
    return Geometry(image, _pair(layer.kernel_size), _pair(layer.stride), before, after, _pair(layer.dilation), layer.out_channels)


def _pair(value: tuple[int, ...]) -> Pair:
    return int(value[0]), int(value[1])


class ConvKernel:
    """See the module's docstring."""

    def __init__(self, layer: nn.Conv2d, flat: Flat) -> None:
        self._layer = layer
        self._weight: Slot | None = flat.slot(layer.weight)
        self._bias: Slot | None = flat.slot(layer.bias) if layer.bias is not None else None
        self._space = Workspace(flat.weights)
        self._geometry: Geometry | None = None
        self._formed = True
        self._grads = self._bias_grads = self._patches = self._outputs = flat.weights

    def geometry(self, image: tuple[int, int, int]) -> Geometry:
        """Sizes for this image; buffers start anew when the image changes size."""
        if self._geometry is None or self._geometry.image != image:
            self._geometry = geometry(self._layer, image)
            self._space = Workspace(self._space.like)
        return self._geometry

    def unfold(self, x: Tensor) -> Tensor:
        """Patches (n, P, K) of images (n, H, W, channels), in this kernel's buffer."""
        n, height, width, channels = x.shape
        shape = self.geometry((height, width, channels))
        (rows, columns), (top, left) = shape.positions, shape.before
        if shape.padded != (height, width):
            padded = self._space.take("padded", (n, *shape.padded, channels), zero=True)
            padded[:, top : top + height, left : left + width].copy_(x)
            x = padded
        by_image, by_row, by_column, by_channel = x.stride()
        windows = x.as_strided(
            (n, rows, columns, *shape.kernel, channels),
            (
                by_image,
                by_row * shape.stride[0],
                by_column * shape.stride[1],
                by_row * shape.dilation[0],
                by_column * shape.dilation[1],
                by_channel,
            ),
        )
        patches = self._space.take("patches", (n, rows, columns, *shape.kernel, channels))
        patches.copy_(windows)
        return patches.view(n, rows * columns, shape.patch)

    def fold(self, patches: Tensor, shape: Geometry) -> Tensor:
        """The adjoint of :meth:`unfold`: patch gradients (n, P, K) added up into images (n, H, W, channels)."""
        n, (rows, columns), channels = len(patches), shape.positions, shape.image[2]
        images = self._space.take("folded", (n, *shape.padded, channels))
        images.zero_()
        windows = patches.view(n, rows, columns, *shape.kernel, channels)
        for i in range(shape.kernel[0]):
            for j in range(shape.kernel[1]):
                top, left = i * shape.dilation[0], j * shape.dilation[1]
                down = slice(top, top + rows * shape.stride[0], shape.stride[0])
                across = slice(left, left + columns * shape.stride[1], shape.stride[1])
                images[:, down, across] += windows[:, :, :, i, j]
        (top, left), (height, width, _) = shape.before, shape.image
        return images[:, top : top + height, left : left + width]

    def kept(self, positions: int) -> int:
        """Numbers kept per example by :meth:`collect`."""
        outputs, inputs = self._layer.out_channels, self._layer.weight[0].numel()
        return positions * outputs if cheaper(positions, inputs, outputs) else outputs * inputs

    def collect(self, a: Tensor, g: Tensor) -> Tensor:
        """See :class:`Kernel`; ``a`` are images, or patches (n, P, K) already unfolded."""
        patches, g = a if a.ndim == 3 else self.unfold(a), g.flatten(1, 2)
        n, outputs = len(g), g.shape[2]
        self._formed = not cheaper(patches.shape[1], patches.shape[2], outputs)
        if not self._formed:
            self._patches, self._outputs = patches, g
            return squared_norms(patches, g, weight=self._weight is not None, bias=self._bias is not None)
        squared: Tensor | None = None
        if self._weight is not None:
            self._grads = self._space.take("grads", (n, outputs, patches.shape[2]))
            torch.bmm(g.transpose(1, 2), patches, out=self._grads)
            squared = torch.linalg.vector_norm(self._grads.view(n, -1), dim=1).square_()
        if self._bias is not None:
            self._bias_grads = g.sum(1)
            extra = torch.linalg.vector_norm(self._bias_grads, dim=1).square_()
            squared = extra if squared is None else squared.add_(extra)
        return squared if squared is not None else g.new_zeros(n)

    def write(self, factor: Tensor, out: Tensor, fresh: bool) -> None:
        """See :class:`Kernel`."""
        beta = 0.0 if fresh else 1.0
        if not self._formed:
            scaled = self._outputs * factor.view(-1, 1, 1)
            self._add(self._patches, scaled.reshape(-1, scaled.shape[2]), out, fresh)
            return
        for slot, grads in ((self._weight, self._grads), (self._bias, self._bias_grads)):
            if slot is not None:
                place = slot.of(out).view(-1)
                torch.addmv(place, grads.view(len(factor), -1).t(), factor, beta=beta, out=place)

    def plain(self, a: Tensor, g: Tensor, out: Tensor, fresh: bool) -> None:
        """See :class:`Kernel`; ``a`` as for :meth:`collect`."""
        self._add(a if a.ndim == 3 else self.unfold(a), g.flatten(0, 2), out, fresh)

    def _add(self, patches: Tensor, g: Tensor, out: Tensor, fresh: bool) -> None:
        """sum over patches (n, P, K) and rows of g (n P, O) into ``out``."""
        beta = 0.0 if fresh else 1.0
        if self._weight is not None:
            place = self._weight.of(out).view(g.shape[1], -1)
            torch.addmm(place, g.t(), patches.view(-1, patches.shape[2]), beta=beta, out=place)
        if self._bias is not None:
            place = self._bias.of(out)
            if fresh:
                torch.sum(g, 0, out=place)
            else:
                place += g.sum(0)
