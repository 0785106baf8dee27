r"""Convolutions and pools by register tiles: a stage and its kernel in one.

A convolution here needs neither patches nor the library: forward, gradient by the input and
the gradients of all examples are walks over the image in place, at 90 to 97 % of what the
processor can multiply (measured on the small network's layers; the library with patches
reached 30 to 60 %). It serves what most networks consist of: float32 on a processor, one
group, no dilation, channels in multiples of eight. Everything else goes by
:mod:`sordino.training.perexample.conv`.

Shapes: images (n, H, W, channels), gradients of examples (n, K, O) with K = rows x columns x
channels of the kernel.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from sordino.training.flat import Flat, Slot
from sordino.training.jit import conv as jit
from sordino.training.jit import pool as jit_pool
from sordino.training.jit.turn import turn
from sordino.training.perexample import conv, pool
from sordino.training.perexample.clipping import VANISHING, add_rows, kept, put, squares
from sordino.training.perexample.gram import cheaper
from sordino.training.perexample.kernel import add_or_set
from sordino.training.perexample.workspace import Workspace


def served(like: Tensor) -> bool:
    """Whether tensors like this one are of the type and in the place that tiles work on."""
    return like.device.type == "cpu" and like.dtype == torch.float32


def convolves(layer: nn.Conv2d, image: tuple[int, int, int], inner: bool) -> bool:
    """Whether :class:`TiledConv` covers this layer on (height, width, channels), and pays.

    ``inner`` says that the gradient by its input will be asked for.
    """
    plain = conv.supported(layer) and layer.dilation == (1, 1)
    if (
        not plain
        or not jit.fits(layer.out_channels)
        or (inner and not jit.fits(layer.kernel_size[1] * layer.in_channels))
    ):
        return False
    shape = _shape(layer, image)
    return min(shape.positions) > 0 and not cheaper(
        shape.positions[0] * shape.positions[1], shape.patch, shape.outputs
    )


def pools(layer: nn.MaxPool2d, channels: int) -> bool:
    """Whether :class:`TiledPool` covers this layer."""
    return pool.supported(layer) and jit.fits(channels)


def _shape(layer: nn.Conv2d, image: tuple[int, int, int]) -> jit.Shape:
    top, left = conv.padding(layer) or (0, 0)
    (rows, columns), (down, across) = layer.kernel_size, layer.stride
    return jit.Shape(
        (image[0] + 2 * top, image[1] + 2 * left),
        image[2],
        layer.out_channels,
        (rows, columns),
        (down, across),
    )


class TiledConv:
    """See the module's docstring. ``seen`` are images with their border of zeros."""

    def __init__(
        self, layer: nn.Conv2d, flat: Flat, image: tuple[int, int, int], inner: bool
    ) -> None:
        weight = flat.slot(layer.weight)
        if weight is None:
            raise ValueError("a frozen weight has no place in the vector")
        self._weight: Slot = weight
        self._bias: Slot | None = flat.slot(layer.bias) if layer.bias is not None else None
        self._image, self._padding = image, conv.padding(layer) or (0, 0)
        self.shape = _shape(layer, image)
        self._forward = jit.Convolution(self.shape)
        self._backward = jit.InputGradient(self.shape, self._padding) if inner else None
        self._weights = weight.flat(flat.weights).numpy()
        self._shift = (
            self._bias.flat(flat.weights).numpy()
            if self._bias
            else np.zeros(layer.out_channels, np.float32)
        )
        self._space = Workspace(flat.weights)
        self._sum = torch.empty(self.shape.patch, layer.out_channels)
        self._grads = self._bias_grads = self.last_input = flat.weights

    @property
    def kernel(self) -> TiledConv:
        """Itself."""
        return self

    @property
    def kept(self) -> int:
        """Numbers per example in this kernel's buffers."""
        return (
            self.shape.patch * self.shape.outputs
            + self.shape.image[0] * self.shape.image[1] * self.shape.channels
        )

    def forward(self, x: Tensor) -> Tensor:
        """See :class:`Stage`."""
        top, left = self._padding
        height, width, channels = self._image
        if self._padding == (0, 0):
            self.last_input = x.contiguous()
        else:
            self.last_input = self._space.take(
                "padded", (len(x), *self.shape.image, channels), zero=True
            )
            self.last_input[:, top : top + height, left : left + width].copy_(x)
        y = self._space.take("y", (len(x), *self.shape.positions, self.shape.outputs))
        self._forward.forward(self.last_input.numpy(), self._weights, self._shift, y.numpy())
        return y

    def backward(self, g: Tensor) -> Tensor:
        """See :class:`Stage`."""
        if self._backward is None:
            raise RuntimeError("nothing before this layer has parameters")
        into = self._space.take("g", (len(g), *self._image))
        self._backward(g.contiguous().numpy(), self._weights, into.numpy())
        return into

    def collect(self, a: Tensor, g: Tensor) -> Tensor:
        """See :class:`Kernel`."""
        g = g.contiguous()
        self._grads = self._space.take("grads", (len(g), self.shape.patch, self.shape.outputs))
        squared = torch.empty(len(g), dtype=torch.float64)
        self._forward.by_example(a.numpy(), g.numpy(), self._grads.numpy(), squared.numpy())
        if self._bias is not None:
            self._bias_grads = g.flatten(1, 2).sum(1)
            squared += squares(self._bias_grads)
        return squared.add_(self.shape.patch * self.shape.outputs * VANISHING)

    def leave(self, keep: Tensor) -> None:
        """See :class:`Kernel`."""
        self._grads = kept(keep, self._grads)
        self._bias_grads = (
            kept(keep, self._bias_grads) if self._bias is not None else self._bias_grads
        )

    def write(self, factor: Tensor, out: Tensor, fresh: bool) -> None:
        """See :class:`Kernel`."""
        rows = self._grads.view(len(factor), -1)
        place = self._weight.flat(out).view(self.shape.outputs, self.shape.patch)
        torch.mv(rows.t(), factor, out=self._sum.view(-1))
        put(place, self._sum.t(), fresh)
        if self._bias is not None:
            add_rows(self._bias.flat(out), self._bias_grads, factor, fresh)

    def form(self, part: slice, rows: Tensor) -> None:
        """See :class:`Kernel`."""
        grads, place = self._grads[part], self._weight.columns(rows)
        if not turn(grads.numpy(), place.numpy()):
            turned = grads.transpose(1, 2)
            place.view(turned.shape).copy_(turned)
        if self._bias is not None:
            self._bias.columns(rows).copy_(self._bias_grads[part])

    def plain(self, a: Tensor, g: Tensor, out: Tensor, fresh: bool) -> None:
        """See :class:`Kernel`."""
        g = g.contiguous()
        self._forward.by_weights(a.numpy(), g.numpy(), self._sum.numpy())
        self._add(out, fresh)
        if self._bias is not None:
            add_or_set(self._bias.flat(out), g.sum((0, 1, 2)), fresh)

    def _add(self, out: Tensor, fresh: bool) -> None:
        add_or_set(
            self._weight.flat(out).view(self.shape.outputs, self.shape.patch), self._sum.t(), fresh
        )


class TiledPool:
    """Max pooling, and the rectifier behind it if there is one."""

    def __init__(
        self, layer: nn.MaxPool2d, like: Tensor, image: tuple[int, int, int], rectified: bool
    ) -> None:
        window = pool.pair(layer.kernel_size)
        stride = pool.pair(layer.stride if layer.stride is not None else layer.kernel_size)
        self._image = image
        self._after = (
            *((size - w) // s + 1 for size, w, s in zip(image[:2], window, stride, strict=True)),
            image[2],
        )
        self._pool = jit_pool.MaxPool(image[2], window, stride, rectified)
        self._space = Workspace(like)
        self._places = Workspace(torch.empty(0, dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        """Largest of each window."""
        shape = len(x), *self._after
        y, places = self._space.take("y", shape), self._places.take("places", shape)
        self._pool.forward(x.contiguous().numpy(), y.numpy(), places.numpy())
        return y

    def backward(self, g: Tensor) -> Tensor:
        """Gradients by the input."""
        into = self._space.take("g", (len(g), *self._image))
        self._pool.backward(
            g.contiguous().numpy(),
            self._places.take("places", tuple(g.shape)).numpy(),
            into.numpy(),
        )
        return into
