r"""One linear layer and its loss in one call: scores, slopes, norms, clipped sum of gradients.

With rows a_i of a store, weights w (classes, features) and bias b,

    s_i = w a_i + b,      g_i = dl/ds_i,      |G_i|^2 = |g_i|^2 (|a_i|^2 + 1),
    out = sum_i c_i g_i a_i^T,  sum_i c_i g_i,      c_i = min(1, s C / |G_i|)

(without a bias, no 1). At twelve examples of 784 numbers the arithmetic takes five microseconds,
and every call of a library one: so it is one call. A batch is worked off a few examples at a time,
which are still in the cache when their gradients are added up.

Rounding. A row's square is summed in float32 over no more than 64 numbers a lane, in float64 from
there on: it is off by at most 68 x 2^-24 of itself, and by 2^-126 for each square that may vanish,
which is added. Norm and quotient are float64. No more than 96 examples are added up in float32,
these parts in float64. So the proof of :mod:`sordino.training.perexample.clipping` holds.

An example whose norm is not finite is left out of the sum, not multiplied by zero. Without privacy
it stays in.

Shapes: store (n features,), uint8 or float32; labels (n,) and chosen (b,), int64; weights and out
(d,), the latter float64 for the clipped sum; norms, losses (b,).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino import native
from sordino.training.jit import tile
from sordino.training.jit.conv import block, cover
from sordino.training.jit.losses import Run, compiled, slopes
from sordino.training.jit.rows import dots, spread

Array = NDArray[np.float32]
Store = NDArray[np.float32] | NDArray[np.uint8]
Index = NDArray[np.int64]

FEW = 32  # examples at a time: their bytes, or most of their floats, stay in the first two caches
MOST = 13  # classes in a tile
STRETCH = 64  # vectors that are summed up in float32
# times FEW examples are added up in float32: less than the 112 of
# sordino.training.perexample.clipping
TURNS = 3
VANISHING = 2.0**-126  # what a square may be off by where it is denormal
LONGEST = 1e19  # longer gradients contribute nothing
NO_EXAMPLE, NO_CLASS = -1, -2  # in place of a count: an index, a label that does not exist


@dataclass(frozen=True, slots=True)
class Layer:
    """One linear layer in a vector of parameters (d,).

    Attributes:
        classes, features: shape of its weight.
        weight: offset of the weight.
        bias: offset of the bias, or None.
    """

    classes: int
    features: int
    weight: int
    bias: int | None


@dataclass(frozen=True, slots=True)
class _Tiling:
    """How classes and features are cut into tiles.

    Attributes:
        classes: all of them.
        rows: R, how many a tile takes; some take one less.
        size: L.
        rest: features after the last whole vector.
    """

    classes: int
    rows: int
    size: int
    rest: int

    @property
    def fewer(self) -> int:
        """Rows of the smaller tiles."""
        return max(self.rows - 1, 1)

    @staticmethod
    def of(layer: Layer) -> _Tiling:
        """The best on this machine: two examples, or two vectors, at once fill the registers."""
        size = 1 << (min(layer.features, tile.widest()).bit_length() - 1)
        rows = block(layer.classes, min(MOST, (tile.registers(size) - 2) // 2))
        return _Tiling(layer.classes, rows, size, layer.features % size)


@cache
def _forward(cut: _Tiling) -> Run:
    """Scores and squares of pairs of examples, added to what is there."""
    classes, high, low, size = cut.classes, cut.rows, cut.fewer, cut.size
    larger, smaller = cover(classes, high)
    many, fewer = dots(2, high, size, cut.rest), dots(2, low, size, cut.rest)

    def run(
        x: Any, places: Any, n: int, features: int, w: Any, w_at: int, scores: Any, squares: Any
    ) -> None:
        vectors = features // size
        for start in range(0, vectors, STRETCH):
            length = min(STRETCH, vectors - start)
            last, feature = start + length == vectors, start * size
            for i in range(0, n, 2):
                for b in range(larger):
                    at = b * high
                    many(
                        x, places, i, w, w_at + at * features, feature, length, features, last,
                        scores, at, classes, squares,
                    )  # fmt: skip
                if smaller:  # a constant: what is never called is never compiled
                    for b in range(smaller):
                        at = larger * high + b * low
                        fewer(
                            x, places, i, w, w_at + at * features, feature, length, features, last,
                            scores, at, classes, squares,
                        )  # fmt: skip

    return compiled(run)


@cache
def _backward(cut: _Tiling) -> Run:
    """The sum of rows times slopes, added to what is there."""
    classes, high, low = cut.classes, cut.rows, cut.fewer
    larger, smaller = cover(classes, high)
    many, fewer = _walk(high, cut.size, cut.rest), _walk(low, cut.size, cut.rest)

    def run(x: Any, places: Any, n: int, features: int, slopes: Any, out: Any, out_at: int) -> None:
        for b in range(larger):
            at = b * high
            many(x, places, n, features, slopes, at, classes, out, out_at + at * features)
        if smaller:
            for b in range(smaller):
                at = larger * high + b * low
                fewer(x, places, n, features, slopes, at, classes, out, out_at + at * features)

    return compiled(run)


@cache
def _walk(rows: int, size: int, rest: int) -> Run:
    """So many rows of the gradient, over all features."""
    wide, narrow, tail = spread(rows, 2, size), spread(rows, 1, size), spread(rows, 1, size, rest)

    def run(
        x: Any, places: Any, n: int, features: int, slopes: Any, at: int, classes: int, out: Any,
        out_at: int,
    ) -> None:  # fmt: skip
        feature = 0
        while feature + 2 * size <= features:
            wide(x, places, n, slopes, at, classes, feature, out, out_at, features)
            feature += 2 * size
        if feature + size <= features:
            narrow(x, places, n, slopes, at, classes, feature, out, out_at, features)
        if rest:
            tail(x, places, n, slopes, at, classes, features - size, out, out_at, features)

    return compiled(run)


@cache
def _found(classes: int) -> Run:
    def run(y: Any, chosen: Any, features: int, places: Any, labels: Any, there: Any) -> int:
        """Where the chosen rows begin, their labels, the first class for what is none, and which
        are one; zero, or what is wrong with them.
        """
        wrong = 0
        for i in range(chosen.size):
            which = chosen[i]
            if which < 0 or which >= y.size:
                return NO_EXAMPLE
            places[i], labels[i] = which * features, y[which]
            there[i] = labels[i] >= 0 and labels[i] < classes
            if not there[i]:
                labels[i], wrong = 0, NO_CLASS
        # the last of an odd number has itself for a partner
        places[chosen.size] = places[chosen.size - 1]
        return wrong

    return compiled(run)


@cache
def _scores(classes: int) -> Run:
    def run(scores: Any, n: int, pixel: Any, w: Any, b_at: int) -> None:
        """Products with bytes become scores; ``b_at`` is negative where there is no bias."""
        for i in range(n):
            for c in range(classes):
                at = i * classes + c
                scores[at] = scores[at] * pixel + (w[b_at + c] if b_at >= 0 else np.float32(0))

    return compiled(run)


@cache
def _measured(classes: int) -> Run:
    def run(slopes: Any, square: float, biased: bool) -> float:
        """|G| of one example, from its slopes and the square of its row."""
        slope = 0.0
        for c in range(classes):
            slope += np.float64(slopes[c]) ** 2
        return math.sqrt(slope * (square + (1.0 if biased else 0.0)))

    return compiled(run)


@cache
def _sum(cut: _Tiling, hinge: bool) -> Run:
    classes, forward, slopes_of = cut.classes, _forward(cut), slopes(hinge)
    backward = _backward(cut)
    found, biased_scores, measured = _found(classes), _scores(classes), _measured(classes)

    def run(
        x: Any, scale: float, y: Any, chosen: Any, features: int, w: Any, w_at: int, b_at: int,
        private: bool, clip: float, room: float, out: Any, total: Any, norms: Any, losses: Any,
    ) -> int:  # fmt: skip
        biased, over, count = b_at >= 0, 0, chosen.size
        few = max(min(FEW, count), 1)
        places, labels = np.empty(few + 1, np.int64), np.empty(few, np.int64)
        there = np.empty(few, np.bool_)
        scores, squares = np.empty((few + 1) * classes, np.float32), np.empty(few + 1)
        pixel, bound = np.float32(scale), np.float32(clip)
        out[:] = 0
        if private and not count:
            total[:] = 0.0
        for first in range(0, count, few):
            n = min(few, count - first)
            wrong = found(y, chosen[first : first + n], features, places, labels, there)
            # with privacy an example whose label is no class is left out: an error would tell of it
            if wrong == NO_EXAMPLE or (wrong == NO_CLASS and not private):
                return int(wrong)
            scores[:] = 0
            squares[:] = 0
            forward(x, places, n, features, w, w_at, scores, squares)
            biased_scores(scores, n, pixel, w, b_at)
            here = losses[first : first + n]
            slopes_of(scores, n, classes, labels, here)
            kept: Any = np.int64(0)  # not a constant, or all below is compiled twice
            for i in range(n):
                norm = measured(
                    scores[i * classes : (i + 1) * classes],
                    (squares[i] + features * VANISHING) * scale * scale,
                    biased,
                )
                seen = np.float32(norm)
                finite = there[i] and norm <= LONGEST
                if not there[i]:
                    here[i] = np.float32(np.nan)
                norms[first + i] = seen if finite else np.float32(np.inf)
                # left out, so that zero times infinity never arises; the others stay as they are
                if private and not finite:
                    over += 1
                    continue
                over += 1 if seen > bound else 0
                factor = np.float32(min(room / norm, 1.0) if private else 1.0 / count)
                places[kept] = places[i]
                for c in range(classes):
                    value = factor * scores[i * classes + c]
                    if biased:
                        out[b_at + c] += value
                    scores[kept * classes + c] = value * pixel
                kept += 1
            backward(x, places, kept, features, scores, out, w_at)
            turn, last = first // few, first + few >= count
            if private and (turn % TURNS == TURNS - 1 or last):
                moved(out, total, turn < TURNS, last)
        return over

    return compiled(run)


def _moved(part: Any, total: Any, fresh: bool, last: bool) -> None:
    """What float32 has added up goes into ``total``, which is overwritten if ``fresh``."""
    if fresh:
        for k in range(len(part)):
            total[k] = part[k]
    else:
        for k in range(len(part)):
            total[k] += part[k]
    if not last:
        part[:] = 0


moved: Run = native.compiled(_moved)


class LinearSum:
    """See the module's docstring; ``hinge`` or cross entropy is the loss."""

    def __init__(self, layer: Layer, hinge: bool) -> None:
        self._layer, self._bias = layer, -1 if layer.bias is None else layer.bias
        self._run = _sum(_Tiling.of(layer), hinge)
        self._part = np.empty(0, np.float32)
        self._none = np.empty(0)

    def clipped(
        self, x: Store, scale: float, y: Index, chosen: Index, weights: Array, clip: float,
        margin: float, out: NDArray[np.float64], norms: Array, losses: Array,
    ) -> int:  # fmt: skip
        """The clipped sum over ``chosen`` into ``out``; how many norms were above ``clip``."""
        layer, room = self._layer, clip * margin
        if self._part.size != out.size:
            self._part = np.empty(out.size, np.float32)
        over: int = self._run(
            x, scale, y, chosen, layer.features, weights, layer.weight, self._bias, True, clip,
            room, self._part, out, norms, losses
        )  # fmt: skip
        return _exists(over)

    def mean(
        self, x: Store, scale: float, y: Index, chosen: Index, weights: Array, out: Array,
        norms: Array, losses: Array,
    ) -> None:  # fmt: skip
        """The mean gradient over the ``chosen`` rows, at least one, into ``out``."""
        layer, none = self._layer, math.inf
        _exists(
            self._run(
                x, scale, y, chosen, layer.features, weights, layer.weight, self._bias, False, none,
                none, out, self._none, norms, losses
            )
        )  # fmt: skip


def _exists(count: int) -> int:
    if count == NO_EXAMPLE:
        raise IndexError("an index of the batch lies outside of the examples")
    if count == NO_CLASS:
        raise IndexError("a label of the batch lies outside of the model's classes")
    return count
