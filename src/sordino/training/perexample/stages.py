r"""The steps a plan is made of, each with a forward and a backward move written out.

Images are (n, height, width, channels) between stages, so that a convolution's patches,
a pool's slices and a rectifier's vectors are all contiguous in the channels; everything
else is as in torch. A stage keeps what its backward move needs, in buffers that live from
step to step: forward, then backward, and never two batches at once.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from sordino.training.flat import Flat
from sordino.training.perexample.conv import ConvKernel, gradients
from sordino.training.perexample.embedding import EmbeddingKernel
from sordino.training.perexample.kernel import Kernel
from sordino.training.perexample.linear import LinearKernel
from sordino.training.perexample.norm import NormKernel
from sordino.training.perexample.workspace import Workspace


class Stage(Protocol):
    """One step of a plan."""

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        ...

    def backward(self, g: Tensor) -> Tensor:
        """The gradient by the input, from the gradient by the output."""
        ...


class Owner(Stage, Protocol):
    """A stage with trainable parameters: ``kernel.collect(seen, g)`` finds their gradients."""

    @property
    def kernel(self) -> Kernel:
        """The arithmetic of its parameters."""
        ...

    @property
    def last_input(self) -> Tensor:
        """The input of the last forward move."""
        ...


class Relu:
    """max(x, 0), in the input's memory where the stage before does not need it again."""

    def __init__(self, like: Tensor, in_place: bool) -> None:
        self._in_place = in_place
        self._space = Workspace(like)
        self._y = like

    def forward(self, x: Tensor) -> Tensor:
        self._y = (
            x.clamp_min_(0)
            if self._in_place
            else torch.clamp_min(x, 0, out=self._space.take("y", tuple(x.shape)))
        )
        return self._y

    def backward(self, g: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten.threshold_backward.grad_input(g, self._y, 0, grad_input=g)
        return result


class Tanh:
    """tanh x, with derivative 1 - y^2."""

    def __init__(self, like: Tensor) -> None:
        self._space = Workspace(like)
        self._y = like

    def forward(self, x: Tensor) -> Tensor:
        self._y = torch.tanh(x, out=self._space.take("y", tuple(x.shape)))
        return self._y

    def backward(self, g: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten.tanh_backward(g, self._y)
        return result


class Flatten:
    """(n, H, W, channels) or (n, ...) to (n, features) in torch's order (channels, H, W)."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        self._shape = tuple(x.shape)
        return x.permute(0, 3, 1, 2).flatten(1) if x.ndim == 4 else x.flatten(1)

    def backward(self, g: Tensor) -> Tensor:
        if len(self._shape) != 4:
            return g.view(self._shape)
        n, height, width, channels = self._shape
        return g.view(n, channels, height, width).permute(0, 2, 3, 1).contiguous()


class Opaque:
    """A layer without parameters that keeps examples apart, by autograd on that layer alone."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer
        self._seen: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = _logical(x).detach().requires_grad_()
            # A copy if the layer works in place: other stages still need what it would overwrite.
            y = self._layer(x.clone() if getattr(self._layer, "inplace", False) else x)
        self._seen = x, y
        return _physical(y.detach())

    def backward(self, g: Tensor) -> Tensor:
        if self._seen is None:
            raise RuntimeError("backward comes after forward")
        (x, y), self._seen = self._seen, None
        (result,) = torch.autograd.grad(y, x, _logical(g))
        return _physical(result)


def _logical(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x


def _physical(x: Tensor) -> Tensor:
    # in memory of its own: an expanded gradient has none
    return (x.permute(0, 2, 3, 1) if x.ndim == 4 else x).contiguous()


class LinearStage:
    """x W^T + b on the last axis of (n, in) or (n, positions, in)."""

    def __init__(self, layer: nn.Linear, flat: Flat) -> None:
        self._layer = layer
        self.kernel = LinearKernel(layer, flat)
        self._space = Workspace(flat.weights)
        self.last_input = flat.weights

    def forward(self, x: Tensor) -> Tensor:
        self.last_input = x
        rows, layer = x.reshape(-1, x.shape[-1]), self._layer
        y = self._space.take("y", (len(rows), layer.out_features))
        if layer.bias is None:
            torch.mm(rows, layer.weight.t(), out=y)
        else:
            torch.addmm(layer.bias, rows, layer.weight.t(), out=y)
        return y.view(*x.shape[:-1], -1)

    def backward(self, g: Tensor) -> Tensor:
        rows = g.reshape(-1, g.shape[-1])
        into = self._space.take("g", (len(rows), self._layer.in_features))
        return torch.mm(rows, self._layer.weight, out=into).view(self.last_input.shape)


class ConvStage:
    """A convolution of images (n, H, W, channels), by the library."""

    def __init__(self, layer: nn.Conv2d, flat: Flat) -> None:
        self._layer = layer
        self.kernel = ConvKernel(layer, flat)
        self.last_input = flat.weights

    def forward(self, x: Tensor) -> Tensor:
        self.last_input, layer = x, self._layer
        y = torch.conv2d(
            _logical(x), layer.weight, layer.bias, layer.stride, self.kernel.padding, layer.dilation
        )
        return _physical(y)

    def backward(self, g: Tensor) -> Tensor:
        result, _, _ = gradients(
            self.kernel, _logical(self.last_input), _logical(g), (True, False, False)
        )
        if result is None:
            raise RuntimeError("asked for an input gradient, got none")
        return _physical(result)


class EmbeddingStage:
    """Rows (n, positions, width) for tokens (n, positions): a first stage, nothing flows back."""

    def __init__(self, layer: nn.Embedding, flat: Flat) -> None:
        self._layer = layer
        self.kernel = EmbeddingKernel(layer, flat)
        self.last_input = flat.weights

    def forward(self, x: Tensor) -> Tensor:
        there = (x >= 0) & (x < len(self._layer.weight))
        self.last_input = torch.where(there, x, torch.zeros_like(x))
        rows = torch.embedding(self._layer.weight, self.last_input)
        # an example with a token outside of the table has no gradient, so it adds nothing
        return rows.masked_fill_(~there.unsqueeze(-1), torch.nan)

    def backward(self, g: Tensor) -> Tensor:
        raise RuntimeError("tokens have no gradient")


class NormStage:
    """Group or layer normalisation, by autograd; its affine part has a kernel."""

    def __init__(self, layer: nn.GroupNorm | nn.LayerNorm, flat: Flat) -> None:
        self._layer = layer
        self.kernel = NormKernel(layer, flat)
        self._inner = Opaque(layer)
        self.last_input = flat.weights

    def forward(self, x: Tensor) -> Tensor:
        self.last_input = x
        return self._inner.forward(x)

    def backward(self, g: Tensor) -> Tensor:
        return self._inner.backward(g)
