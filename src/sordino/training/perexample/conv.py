r"""Convolutions: torch's own forward and backward moves, one batched product for the gradients.

A convolution is a linear layer applied to P = height' x width' patches of length
K = kernel x channels that share one weight matrix W (O, K). With the patches A_i (P, K) of
example i and output gradients g_i (P, O),

    G_i = g_i^T A_i            O P K multiply-adds each, as much as the forward pass
    |G_i|^2 = sum of its squares,      sum_i c_i G_i = c^T [G_1; ...; G_n]

Output and input gradient need no patches: there the library's convolution is as fast as a
product with patches, and it saves folding them back (measured on the small network's
second layer: 0.8 against 1.2 ms). Patches are copied from a strided view of the padded
channels-last image. With few channels a patch consists of short runs, and copying is slow;
then columns are gathered first, in an image (W', H, kernel width x channels) in which every
patch is one contiguous run: 0.40 against 0.65 ms for the first layer. And patches are many
times larger than images: they are made for a few examples at a time and used up at once, while
they are in the cache (a twentieth of the whole step).

Where O K is much larger than P the Gram form (:mod:`sordino.training.perexample.gram`) is
cheaper. Counting decides.

Shapes: images (n, H, W, channels), patches (n, P, K) with K in order (row, column,
channel), which is the flat vector's order of a weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino.training.flat import Flat, Slot
from sordino.training.perexample.clipping import add_rows, kept, squares
from sordino.training.perexample.gram import cheaper, squared_norms, write_products
from sordino.training.perexample.kernel import add_or_set
from sordino.training.perexample.pieces import parts
from sordino.training.perexample.workspace import Workspace

Pair = tuple[int, int]
SHORT = 32  # runs shorter than this many numbers are gathered in two steps
PATCH_BYTES = (
    1_000_000  # patches of as many examples as this are worked off while they are in the cache
)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of one convolution on images of one size (height, width, channels)."""

    image: tuple[int, int, int]
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def padded(self) -> Pair:
        """Height and width with padding on both sides."""
        return self.image[0] + 2 * self.padding[0], self.image[1] + 2 * self.padding[1]

    @property
    def positions(self) -> Pair:
        """Height and width of the output."""
        height, width = (
            (p - d * (k - 1) - 1) // s + 1
            for p, d, k, s in zip(self.padded, self.dilation, self.kernel, self.stride, strict=True)
        )
        return height, width

    @property
    def patch(self) -> int:
        """K, numbers in a patch."""
        return self.kernel[0] * self.kernel[1] * self.image[2]


def _pair(value: tuple[int, ...]) -> Pair:
    return int(value[0]), int(value[1])


def padding(layer: nn.Conv2d) -> Pair | None:
    """Rows and columns of zeros on either side; None where ``same`` means an odd number of them."""
    if not isinstance(layer.padding, str):
        return _pair(layer.padding)
    if layer.padding == "valid":
        return 0, 0
    rows, columns = (d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
    return None if rows % 2 or columns % 2 else (rows // 2, columns // 2)


def supported(layer: nn.Conv2d) -> bool:
    """Whether :class:`ConvKernel` covers this layer: one group, as many zeros before as after."""
    return layer.groups == 1 and layer.padding_mode == "zeros" and padding(layer) is not None


class ConvKernel:
    """See the module's docstring."""

    def __init__(self, layer: nn.Conv2d, flat: Flat) -> None:
        self.layer = layer
        self.padding = padding(layer) or (0, 0)
        self._weight: Slot | None = flat.slot(layer.weight)
        self._bias: Slot | None = flat.slot(layer.bias) if layer.bias is not None else None
        self._space = Workspace(flat.weights)
        self._geometry: Geometry | None = None
        self._formed = True
        self._grads = self._bias_grads = self._patches = self._outputs = flat.weights

    def geometry(self, image: tuple[int, int, int]) -> Geometry:
        """Sizes for this image; buffers start anew when the image changes size."""
        if self._geometry is None or self._geometry.image != image:
            layer = self.layer
            self._geometry = Geometry(
                image,
                _pair(layer.kernel_size),
                _pair(layer.stride),
                self.padding,
                _pair(layer.dilation),
            )
            self._space = Workspace(self._space.like)
        return self._geometry

    def unfold(self, x: Tensor) -> Tensor:
        """Patches (n, P, K) of images (n, H, W, channels), in this kernel's buffer."""
        n, height, width, channels = x.shape
        shape = self.geometry((height, width, channels))
        (rows, columns), (top, left), (high, wide) = shape.positions, shape.padding, shape.kernel
        if shape.padded != (height, width):
            padded = self._space.take("padded", (n, *shape.padded, channels), zero=True)
            padded[:, top : top + height, left : left + width].copy_(x)
            x = padded
        by_image, by_row, by_column, by_channel = x.stride()
        down, across = by_row * shape.stride[0], by_column * shape.stride[1]
        if wide * channels < SHORT and shape.dilation[0] == 1:
            run = wide * channels
            gathered = self._space.take("gathered", (n, columns, shape.padded[0], wide, channels))
            gathered.copy_(
                x.as_strided(
                    gathered.shape,
                    (by_image, across, by_row, by_column * shape.dilation[1], by_channel),
                )
            )
            whole, line = columns * shape.padded[0] * run, shape.padded[0] * run
            windows = gathered.as_strided(
                (n, rows, columns, high * run), (whole, shape.stride[0] * run, line, 1)
            )
        else:
            steps = (
                by_image,
                down,
                across,
                by_row * shape.dilation[0],
                by_column * shape.dilation[1],
                by_channel,
            )
            windows = x.as_strided((n, rows, columns, high, wide, channels), steps)
        patches = self._space.take("patches", tuple(windows.shape))
        patches.copy_(windows)
        return patches.view(n, rows * columns, shape.patch)

    def kept(self, image: tuple[int, int, int]) -> int:
        """Numbers per example in this kernel's buffers, for images (height, width, channels)."""
        shape = self.geometry(image)
        positions = shape.positions[0] * shape.positions[1]
        outputs = self.layer.out_channels
        gram = cheaper(positions, shape.patch, outputs)
        return positions * (shape.patch + outputs) if gram else outputs * shape.patch

    def collect(self, a: Tensor, g: Tensor) -> Tensor:
        """See :class:`Kernel`; ``a`` are images."""
        shape, g = self.geometry((a.shape[1], a.shape[2], a.shape[3])), g.flatten(1, 2)
        n, positions, outputs = g.shape
        self._formed = not cheaper(positions, shape.patch, outputs)
        if not self._formed:
            self._patches, self._outputs = self.unfold(a), g
            return squared_norms(
                self._patches, g, weight=self._weight is not None, bias=self._bias is not None
            )
        squared = torch.zeros(n, dtype=torch.float64, device=g.device)
        if self._weight is not None:
            self._grads = self._space.take("grads", (n, outputs, shape.patch))
            few = PATCH_BYTES // (positions * shape.patch * g.element_size())
            for some in parts(n, few):
                torch.bmm(g[some].transpose(1, 2), self.unfold(a[some]), out=self._grads[some])
            squared += squares(self._grads.view(n, -1))
        if self._bias is not None:
            self._bias_grads = g.sum(1)
            squared += squares(self._bias_grads)
        return squared

    def leave(self, keep: Tensor) -> None:
        """See :class:`Kernel`."""
        if not self._formed:
            self._patches, self._outputs = kept(keep, self._patches), kept(keep, self._outputs)
            return
        self._grads = kept(keep, self._grads) if self._weight is not None else self._grads
        self._bias_grads = (
            kept(keep, self._bias_grads) if self._bias is not None else self._bias_grads
        )

    def write(self, factor: Tensor, out: Tensor, fresh: bool) -> None:
        """See :class:`Kernel`."""
        if not self._formed:
            weight = (
                self._weight.flat(out).view(self._outputs.shape[2], -1)
                if self._weight is not None
                else None
            )
            bias = self._bias.flat(out) if self._bias is not None else None
            write_products(self._patches, self._outputs, factor, weight, bias, fresh)
            return
        for slot, grads in ((self._weight, self._grads), (self._bias, self._bias_grads)):
            if slot is not None:
                add_rows(slot.flat(out), grads.view(len(factor), -1), factor, fresh)

    def form(self, part: slice, rows: Tensor) -> None:
        """See :class:`Kernel`."""
        if self._formed:
            weight, bias = self._grads[part], self._bias_grads[part]
        else:
            g = self._outputs[part]
            weight, bias = torch.bmm(g.transpose(1, 2), self._patches[part]), g.sum(1)
        for slot, grads in ((self._weight, weight), (self._bias, bias)):
            if slot is not None:
                slot.columns(rows).copy_(grads.flatten(1))

    def plain(self, a: Tensor, g: Tensor, out: Tensor, fresh: bool) -> None:
        """See :class:`Kernel`; ``a`` are images. The library's own weight gradient, no patches."""
        wanted = (False, self._weight is not None, self._bias is not None)
        _, weight, bias = gradients(self, a.permute(0, 3, 1, 2), g.permute(0, 3, 1, 2), wanted)
        for slot, grad in ((self._weight, weight), (self._bias, bias)):
            if slot is not None and grad is not None:
                add_or_set(slot.logical(out), grad, fresh)


def gradients(
    kernel: ConvKernel, x: Tensor, g: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The library's gradients by input, weight and bias, as ``wanted``, of (n, channels, H, W)."""
    layer = kernel.layer
    result: tuple[Tensor | None, Tensor | None, Tensor | None] = (
        torch.ops.aten.convolution_backward(
            g,
            x,
            layer.weight,
            [layer.out_channels],
            layer.stride,
            kernel.padding,
            layer.dilation,
            False,
            [0, 0],
            1,
            wanted,
        )
    )
    return result
