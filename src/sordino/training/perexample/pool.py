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

from sordino.training.perexample.workspace import Workspace


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """An int for both axes, or both as they are."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def supported(layer: nn.MaxPool2d) -> bool:
    """Whether :class:`MaxPool` covers this layer: small windows, no padding, no dilation."""
    plain = (
        pair(layer.padding) == (0, 0)
        and pair(layer.dilation) == (1, 1)
        and not layer.ceil_mode
        and not layer.return_indices
    )
    return plain and 1 < max(pair(layer.kernel_size)) <= 4


class _Axis:
    """A maximum over windows along one axis of (n, H, W, channels).

    Forward, ahead_s is 1 where slice s is larger than all before it, else 0. Backward, with g_s
    what is left for the slices up to s, slice s gets g_s ahead_s and g_{s-1} = g_s - g_s ahead_s.
    """

    def __init__(self, axis: int, window: int, stride: int, space: Workspace) -> None:
        self.axis, self.window, self.stride, self._space = axis, window, stride, space
        self._ahead: list[Tensor] = []
        self._shape: tuple[int, ...] = ()

    def _slice(self, x: Tensor, shift: int, count: int) -> Tensor:
        stop = shift + (count - 1) * self.stride + 1
        return (
            x[:, shift : stop : self.stride]
            if self.axis == 1
            else x[:, :, shift : stop : self.stride]
        )

    def forward(self, x: Tensor) -> Tensor:
        self._shape, self._ahead = tuple(x.shape), []
        count = (x.shape[self.axis] - self.window) // self.stride + 1
        best = self._slice(x, 0, count)
        shape = tuple(best.shape)
        for shift in range(1, self.window):
            part = self._slice(x, shift, count)
            self._ahead.append(
                torch.gt(part, best, out=self._space.take(f"ahead{self.axis}.{shift}", shape))
            )
            best = torch.maximum(best, part, out=self._space.take(f"max{self.axis}.{shift}", shape))
        return best

    def backward(self, g: Tensor) -> Tensor:
        total = self._space.take(f"grad{self.axis}", self._shape)
        count = g.shape[self.axis]
        if self.stride != 1 and (self.window, self._shape[self.axis]) != (
            self.stride,
            count * self.stride,
        ):
            total.zero_()  # the slices do not reach everywhere, or overlap
        elif self.stride == 1 and self.window > 1:
            total.narrow(self.axis, count, self.window - 1).zero_()
        left = [g]
        for shift in range(self.window - 1, 0, -1):
            rest = (
                self._slice(total, 0, count)
                if shift == 1
                else self._space.take(f"left{self.axis}.{shift}", tuple(g.shape))
            )
            left.append(
                torch.addcmul(left[-1], left[-1], self._ahead[shift - 1], value=-1, out=rest)
            )
        if self.window == 1:
            self._slice(total, 0, count).copy_(g)
        for shift, (part, ahead) in enumerate(zip(left[-2::-1], self._ahead, strict=True), 1):
            place = self._slice(total, shift, count)
            if self.stride >= self.window:
                # windows that do not overlap: nobody else writes here
                torch.mul(part, ahead, out=place)
            else:
                place.addcmul_(part, ahead)
        return total


class MaxPool:
    """See the module's docstring. Holds what the backward pass needs until the next forward."""

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
