r"""A convolution as walks of register tiles over images in place.

With images (n, H, W, C), padded, and a kernel of k_h x k_w, a window of the image is k_h runs
of k_w C consecutive numbers, one image row apart. So

    forward       out[p, :]  = bias + sum_k a[p + k] w[k, :]          (product)
    by weights    G_i[k, :]  = sum_p a_i[p + k] g_i[p, :]             (outer)
    by the input  product again: the inputs at distance s from each other (s the stride)
                  see the same part of the kernel. For each of the s x s phases it is a
                  convolution of g, bordered with zeros, with every s-th row and column of
                  the kernel, turned round.

Weights are packed once a call into (channels / width, K, width), the order in which tiles
read them. Shapes below: images (n, H, W, C) padded, outputs (n, H', W', O), weights (O, k_h, k_w,
C), gradients of examples (n, K, O) with K = k_h k_w C. All float32, contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.native import compiled
from sordino.training.jit import tile

Array = NDArray[np.float32]
Pair = tuple[int, int]
Run = Callable[..., Any]


def block(length: int, cap: int) -> int:
    """The size of blocks, none above ``cap``, that cover ``length`` most evenly.

    >>> block(14, 16), block(32, 14), block(13, 6)
    (14, 11, 5)
    """
    return max(1, -(-length // max(1, -(-length // cap))))


def cover(length: int, size: int) -> tuple[int, int]:
    """How many blocks of ``size``, and how many one smaller, make up ``length``.

    ``length`` is one that ``size`` was made for by :func:`block`, or one less.

    >>> cover(32, 11), cover(31, 11), cover(13, 5), cover(0, 1)
    ((2, 1), (1, 2), (1, 2), (0, 0))
    """
    blocks = -(-length // size)
    smaller = blocks * size - length
    return blocks - smaller, smaller


@dataclass(frozen=True, slots=True)
class Shape:
    """One convolution without dilation and groups.

    Attributes:
        image: height and width with padding.
        channels: C of the input.
        outputs: O.
        kernel, stride: rows and columns.
    """

    image: Pair
    channels: int
    outputs: int
    kernel: Pair
    stride: Pair

    @property
    def positions(self) -> Pair:
        """H', W'."""
        (h, w), (a, b), (s, t) = self.image, self.kernel, self.stride
        return (h - a) // s + 1, (w - b) // t + 1

    @property
    def patch(self) -> int:
        """K."""
        return self.kernel[0] * self.kernel[1] * self.channels


def fits(channels: int) -> bool:
    """Whether tiles can write this many channels."""
    return tile.lanes(channels) is not None


def _tile(channels: int, rows: int) -> tuple[int, int, int]:
    """R, V and L of the tiles that best cover ``rows`` rows of this many channels."""
    size = tile.lanes(channels)
    if size is None:
        raise ValueError(f"{channels} channels are no multiple of 8")
    vectors, budget = tile.vectors(channels // size), tile.registers(size)
    return block(rows, max(1, min(16, budget // vectors - (vectors - 1)))), vectors, size


@cache
def _walk(large: int, small: int, vectors: int, size: int) -> Run:
    """``out = bias + windows times weights`` along the rows of walks, listed where made."""
    big, little = tile.product(large, vectors, size), tile.product(small, vectors, size)
    width = vectors * size

    def run(
        a: Array, a_example: int, weights: Array, bias: Array, out: Array, o_example: int, n: int,
        blocks: int, walks: Any,
    ) -> None:  # fmt: skip
        for example in range(n):
            for walk in range(len(walks)):
                (
                    a_at, a_row, a_step, runs, length, pitch, w_at, o_at, o_row, o_step, rows, bigs,
                    littles,
                ) = walks[walk]  # fmt: skip
                for block in range(blocks):
                    w_block, column = w_at + block * runs * length * width, block * width
                    for row in range(rows):
                        here = example * a_example + a_at + row * a_row
                        there = example * o_example + o_at + row * o_row + column
                        for _ in range(bigs):
                            big(
                                a, here, a_step, runs, length, pitch, weights, w_block, bias,
                                column, out, there, o_step,
                            )  # fmt: skip
                            here, there = here + large * a_step, there + large * o_step
                        for _ in range(littles):
                            little(
                                a, here, a_step, runs, length, pitch, weights, w_block, bias,
                                column, out, there, o_step,
                            )  # fmt: skip
                            here, there = here + small * a_step, there + small * o_step

    return compiled(run)


@cache
def _collect(large: int, small: int, vectors: int, size: int) -> Run:
    """Gradients by every group's weights, and squared norms: float32 in a tile, else float64."""
    big, little = tile.outer(large, vectors, size), tile.outer(small, vectors, size)
    width = vectors * size

    def run(
        a: Array, g: Array, out: Array, squared: Array, groups: int, each: int,
        sizes: tuple[int, ...],
    ) -> None:  # fmt: skip
        a_example, a_row, a_step, high, wide, outputs, runs, length, pitch, bigs, littles = sizes
        g_example = high * wide * outputs
        for group in range(groups):
            image, slope, total = group * each * a_example, group * each * g_example, 0.0
            for column in range(0, outputs, width):
                there = group * runs * length * outputs + column
                for part in range(runs):
                    here = image + part * pitch
                    for _ in range(bigs):
                        total += np.float64(big(
                            a, here, a_example, a_row, a_step, g, slope + column, g_example,
                            outputs, each, high, wide, out, there, outputs,
                        ))  # fmt: skip
                        here, there = here + large, there + large * outputs
                    for _ in range(littles):
                        total += np.float64(little(
                            a, here, a_example, a_row, a_step, g, slope + column, g_example,
                            outputs, each, high, wide, out, there, outputs,
                        ))  # fmt: skip
                        here, there = here + small, there + small * outputs
            squared[group] = total

    return compiled(run)


@cache
def _scatter(large: int, small: int, vectors: int, size: int) -> Run:
    """Each output's gradient times its window of weights, added there; the inside is copied out."""
    big = tile.product(large, vectors, size, add=True)
    little = tile.product(small, vectors, size, add=True)
    width = vectors * size

    def run(
        g: Array, weights: Array, image: Array, out: Array, n: int, sizes: tuple[int, ...]
    ) -> None:
        (
            rows, columns, outputs, runs, length, line, down, across, bigs, littles, start, high,
            wide,
        ) = sizes  # fmt: skip
        for example in range(n):
            image[:] = 0
            block = 0
            for part in range(runs):
                for column in range(0, length, width):
                    for row in range(rows):
                        here = (example * rows + row) * columns * outputs
                        there = row * down + part * line + column
                        for _ in range(bigs):
                            big(
                                g, here, outputs, 1, outputs, 0, weights, block, weights, 0, image,
                                there, across,
                            )  # fmt: skip
                            here, there = here + large * outputs, there + large * across
                        for _ in range(littles):
                            little(
                                g, here, outputs, 1, outputs, 0, weights, block, weights, 0, image,
                                there, across,
                            )  # fmt: skip
                            here, there = here + small * outputs, there + small * across
                    block += outputs * width
            for row in range(high):
                here, there = start + row * line, (example * high + row) * wide
                for k in range(wide):
                    out[there + k] = image[here + k]

    return compiled(run)


class Convolution:
    """Forward, and the gradients by the weights.

    Buffers belong to the caller, except for packed weights.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        (high, wide), (rows, columns), channels = shape.image, shape.positions, shape.channels
        line, step, length = wide * channels, shape.stride[1] * channels, shape.kernel[1] * channels
        self._image, self._each = high * line, rows * columns * shape.outputs
        large, vectors, size = _tile(shape.outputs, columns)
        self._walk, width = _walk(large, max(1, large - 1), vectors, size), vectors * size
        self._blocks = shape.outputs // width
        self._walks = np.array(
            [[0, shape.stride[0] * line, step, shape.kernel[0], length, line, 0,
              0, columns * shape.outputs, shape.outputs, rows, *cover(columns, large)]],
            dtype=np.int64,
        )  # fmt: skip
        places = np.arange(shape.patch * shape.outputs).reshape(self._blocks, width, shape.patch)
        self._order = places.transpose(0, 2, 1).ravel()
        self._packed = np.empty(self._order.size, np.float32)
        large, vectors, size = _tile(shape.outputs, length)
        self._collect = _collect(large, max(1, large - 1), vectors, size)
        self._sizes = (
            self._image, shape.stride[0] * line, step, rows, columns, shape.outputs,
            shape.kernel[0], length, line, *cover(length, large)
        )  # fmt: skip

    def forward(self, x: Array, weight: Array, bias: Array, out: Array) -> None:
        """Outputs into ``out`` (n, H', W', O)."""
        np.take(weight, self._order, out=self._packed, mode="clip")
        self._walk(
            x.ravel(), self._image, self._packed, bias, out.ravel(), self._each, len(x),
            self._blocks, self._walks,
        )  # fmt: skip

    def by_example(self, x: Array, g: Array, grads: Array, squared: NDArray[np.float64]) -> None:
        """G_i into ``grads`` (n, K, O) and |G_i|^2 into ``squared`` (n,)."""
        self._collect(x.ravel(), g.ravel(), grads.ravel(), squared, len(x), 1, self._sizes)

    def by_weights(self, x: Array, g: Array, grad: Array) -> None:
        """The sum of all G_i into ``grad`` (K, O)."""
        self._collect(x.ravel(), g.ravel(), grad.ravel(), np.empty(1), 1, len(x), self._sizes)


class InputGradient:
    """The gradient by a convolution's input, whose image has ``padding`` zeros on each side."""

    def __init__(self, shape: Shape, padding: Pair) -> None:
        (high, wide), (rows, columns), channels = shape.image, shape.positions, shape.channels
        line, length = wide * channels, shape.kernel[1] * channels
        large, vectors, size = _tile(length, columns)
        width = vectors * size
        self._scatter = _scatter(large, max(1, large - 1), vectors, size)
        places = np.arange(shape.patch * shape.outputs).reshape(
            shape.outputs, shape.patch // width, width
        )
        self._order = places.transpose(1, 0, 2).ravel()
        self._packed = np.empty(self._order.size, np.float32)
        self._image = np.empty(high * line, np.float32)
        self._sizes = (
            rows, columns, shape.outputs, shape.kernel[0], length, line, shape.stride[0] * line,
            shape.stride[1] * channels, *cover(columns, large),
            padding[0] * line + padding[1] * channels, high - 2 * padding[0],
            (wide - 2 * padding[1]) * channels,
        )  # fmt: skip

    def __call__(self, g: Array, weight: Array, out: Array) -> None:
        """The gradient by images without padding into ``out`` (n, H, W, C)."""
        np.take(weight, self._order, out=self._packed, mode="clip")
        self._scatter(g.ravel(), self._packed, self._image, out.ravel(), len(g), self._sizes)
