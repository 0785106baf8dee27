"""Max pooling, with a rectifier at no cost.

max(., 0) after a maximum is a maximum that starts at zero, and its gradient goes to no one
where nothing was above zero. Shapes: images (n, H, W, C) and outputs (n, H', W', C),
float32, contiguous; places (n, H', W', C), uint8.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.native import compiled
from sordino.training.jit import tile
from sordino.training.jit.conv import Array, Pair, Run

Places = NDArray[np.uint8]


@cache
def _walk(window: Pair, size: int, back: bool) -> Run:
    """A tile at every window of images ``x``; results, or gradients (``back``), are ``small``."""
    visit = (tile.returned if back else tile.largest)(*window, size)

    def run(
        x: Array, shape: Any, stride: Pair, small: Array, places: Places, high: int, wide: int,
        floor: float,
    ) -> None:  # fmt: skip
        n, image_high, image_wide, channels = shape
        at = 0
        for example in range(n):
            for row in range(high):
                start = (example * image_high + row * stride[0]) * image_wide * channels
                for column in range(wide):
                    here = start + column * stride[1] * channels
                    for channel in range(0, channels, size):
                        visit(
                            x, here + channel, image_wide * channels, channels, small, at, places,
                            floor,
                        )  # fmt: skip
                        at += size

    return compiled(run)


class MaxPool:
    """Pooling over windows (rows, columns), unpadded; ``rectified``: max(., 0) of it."""

    def __init__(self, channels: int, window: Pair, stride: Pair, rectified: bool) -> None:
        size = tile.lanes(channels)
        if size is None:
            raise ValueError(f"{channels} channels are no multiple of 8")
        self.stride = stride
        self._floor = np.float32(0.0 if rectified else -np.inf)
        self._forward = _walk(window, size, back=False)
        self._backward = _walk(window, size, back=True)

    def forward(self, x: Array, out: Array, places: Places) -> None:
        """Largest of each window into ``out``, and where it was into ``places``."""
        self._forward(
            x.ravel(), x.shape, self.stride, out.ravel(), places.ravel(), *out.shape[1:3],
            self._floor,
        )  # fmt: skip

    def backward(self, g: Array, places: Places, out: Array) -> None:
        """Gradients by the input into ``out`` (n, H, W, C)."""
        out[:] = 0
        self._backward(
            out.ravel(), out.shape, self.stride, g.ravel(), places.ravel(), *g.shape[1:3],
            self._floor,
        )  # fmt: skip
