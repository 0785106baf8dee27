r"""Chains of linear layers whose last updates are not in their weights yet.

A layer's weights in force are W - sum_j d_j a_j u_j^T: W dense, and for every pending event j its
input a_j (with a 1 behind it, for the bias), the slope u_j of its output, and d_j, how much of this
product is due. So

    forward    z = W^T a - sum_j d_j s_j u_j          s_j = a_j . a
    backward   v = W u - sum_j d_j r_j a_j            r_j = u_j . u

W lies with a row for each input, the bias last. Behind a ReLU about half of the inputs are zero:
their rows are needed neither for z nor, since their slopes are dropped, for v.

Numbers are float32 in one buffer ``m``. A table says with a row for each layer where they are;
pending events are a list of rows (``place``) of the rings of inputs and slopes, the oldest first,
with the numbers d (``due``, float64).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import types

from sordino.regimes.vertical.compiled.deferred.strips import (
    DOUBLES,
    FLOATS,
    NUMBER,
    NUMBERS,
    Run,
    add_rows,
    all_pairs,
    clear,
    compiled,
    dot_rows,
    product,
)
from sordino.regimes.vertical.compiled.half_precision import rounded

# Columns of the table of layers: inputs, outputs, whether a ReLU follows; numbers from row to row
# of inputs and of outputs;
# where weights, the ring of inputs, the ring of slopes and s begin; how many inputs of this event
# are listed, the bias' 1 not counted.
IN, OUT, RELU, A_PITCH, U_PITCH, W_AT, A_AT, U_AT, S_AT, LIVE = range(10)
COLUMNS = 10


class Kernels(NamedTuple):
    """Compiled functions for vectors of one length."""

    receive: Run
    close: Run
    correct: Run
    forward: Run
    backward: Run
    products: Run
    gram: Run
    fold: Run


def _receive(
    m: Any, layer: Any, z_at: int, half: bool, a_at: int, chosen: Any, values_at: int, first: int,
    start: int,
) -> int:  # fmt: skip
    """Outputs of ``layer`` at ``z_at`` become inputs at ``a_at``, listed from ``start`` if not 0.

    Their numbers there count from ``first``. With ``half`` they are rounded on the way, and one
    that becomes zero stays in the list: its slope is not zero. Returns where the list ends.
    """
    width, relu = layer[OUT], layer[RELU] != 0
    z, a = m[z_at : z_at + width], m[a_at : a_at + width]
    if half:
        for k in range(width):
            value = rounded(z[k])
            a[k] = np.float32(0) if relu and value <= 0 else value
    else:
        for k in range(width):
            a[k] = np.float32(0) if relu and z[k] <= 0 else z[k]
    n = start
    for k in range(width):
        chosen[n] = first + k
        m[values_at + n] = a[k]
        n += 0 if relu and z[k] <= 0 else 1
    return n


def _close(m: Any, layer: Any, n: int, chosen: Any, values_at: int) -> None:
    """The bias ends a list of ``n`` inputs."""
    chosen[n] = layer[IN]
    m[values_at + n] = 1
    layer[LIVE] = n


@cache
def _correct(size: int) -> Run:
    add = add_rows(size).call

    def correct(
        m: Any, at: int, pitch: int, place: Any, count: int, due: Any, known_at: int, f_at: int,
        out_at: int,
    ) -> None:  # fmt: skip
        """``out -= sum_j d_j k_j m_j`` with the k that are known, over the rows of a ring."""
        f, known = m[f_at : f_at + count], m[known_at : known_at + count]
        for i in range(count):
            f[i] = -due[i] * known[i]
        add(m.ctypes, at, pitch, pitch // size, place.ctypes, count, m.ctypes, f_at, out_at)

    return compiled(types.void, FLOATS, NUMBER, NUMBER, NUMBERS, NUMBER, DOUBLES, *[NUMBER] * 3)(
        correct
    )


@cache
def _forward(size: int) -> Run:
    empty, add, dot, lazily = clear(), add_rows(size).call, dot_rows(size).call, _correct(size)

    def forward(
        m: Any, layer: Any, row: int, z_at: int, chosen: Any, values_at: int, place: Any,
        count: int, due: Any, f_at: int
    ) -> None:  # fmt: skip
        """z of the input in this row of the ring; s of ``count`` pending events and the next."""
        pitch, wide = layer[A_PITCH], layer[U_PITCH]
        dot(
            m.ctypes, layer[A_AT], pitch, place.ctypes, count + 1, layer[A_AT] + row * pitch,
            pitch // size, layer[S_AT],
        )  # fmt: skip
        empty(m, z_at, wide)
        add(
            m.ctypes, layer[W_AT], wide, wide // size, chosen.ctypes, layer[LIVE] + 1, m.ctypes,
            values_at, z_at,
        )  # fmt: skip
        lazily(m, layer[U_AT], wide, place, count, due, layer[S_AT], f_at, z_at)

    return compiled(
        types.void,
        FLOATS,
        NUMBERS,
        NUMBER,
        NUMBER,
        NUMBERS,
        NUMBER,
        NUMBERS,
        NUMBER,
        DOUBLES,
        NUMBER,
    )(forward)


@cache
def _backward(size: int) -> Run:
    empty, dot, lazily = clear(), dot_rows(size).call, _correct(size)

    def backward(
        m: Any, layer: Any, row: int, r_at: int, v_at: int, f_at: int, chosen: Any, n: int,
        place: Any, count: int, due: Any, out_at: int
    ) -> None:  # fmt: skip
        """v of the listed inputs, one behind another at ``out_at``."""
        pitch, wide = layer[A_PITCH], layer[U_PITCH]
        empty(m, v_at, pitch)
        lazily(m, layer[A_AT], pitch, place, count, due, r_at, f_at, v_at)
        dot(
            m.ctypes, layer[W_AT], wide, chosen.ctypes, n, layer[U_AT] + row * wide, wide // size,
            out_at,
        )  # fmt: skip
        for i in range(n):
            m[out_at + i] += m[v_at + chosen[i]]

    return compiled(
        types.void,
        FLOATS,
        NUMBERS,
        *[NUMBER] * 4,
        NUMBERS,
        NUMBER,
        NUMBERS,
        NUMBER,
        DOUBLES,
        NUMBER,
    )(backward)


@cache
def _products(size: int) -> Run:
    multiply = product(size).call

    def products(
        m: Any, layer: Any, x: Any, x_at: int, x_row: int, z_at: int, rows: int, every: Any
    ) -> None:
        """W^T x of so many inputs, into rows from ``z_at`` on."""
        wide = layer[U_PITCH]
        at = layer[W_AT] + layer[IN] * wide
        bias = m[at : at + wide]
        for b in range(rows):
            z = m[z_at + b * wide : z_at + (b + 1) * wide]
            for k in range(wide):
                z[k] = bias[k]
        multiply(
            m.ctypes, layer[W_AT], wide, wide // size, every.ctypes, layer[IN], x.ctypes, x_at, 1,
            x_row, z_at, wide, rows,
        )  # fmt: skip

    return compiled(types.void, FLOATS, NUMBERS, FLOATS, *[NUMBER] * 4, NUMBERS)(products)


@cache
def _gram(size: int) -> Run:
    pairs = all_pairs(size).call

    def gram(
        m: Any, layer: Any, rows: Any, n: int, place: Any, count: int, out_at: int, out_row: int
    ) -> None:
        """s of n inputs in the ring at once."""
        pairs(
            m.ctypes, layer[A_AT], layer[A_PITCH], layer[A_PITCH] // size, rows.ctypes, n,
            place.ctypes, count, out_at, out_row,
        )  # fmt: skip

    return compiled(types.void, FLOATS, NUMBERS, NUMBERS, NUMBER, NUMBERS, *[NUMBER] * 3)(gram)


@cache
def _fold(size: int) -> Run:
    multiply = product(size).call

    def fold(m: Any, layer: Any, place: Any, count: int, due: Any, scratch: int) -> None:
        """What is due of the first ``count`` pending events goes into the weights."""
        pitch, wide = layer[A_PITCH], layer[U_PITCH]
        for i in range(count):
            factor, at = np.float32(-due[i]), layer[A_AT] + place[i] * pitch
            here, there = m[at : at + pitch], m[scratch + i * pitch : scratch + (i + 1) * pitch]
            for k in range(pitch):
                there[k] = factor * here[k]
        multiply(
            m.ctypes, layer[U_AT], wide, wide // size, place.ctypes, count, m.ctypes, scratch,
            pitch, 1, layer[W_AT], wide, (layer[IN] + 4) // 4 * 4,
        )  # fmt: skip

    return compiled(types.void, FLOATS, NUMBERS, NUMBERS, NUMBER, DOUBLES, NUMBER)(fold)


@cache
def kernels(size: int) -> Kernels:
    """All of them; ``size`` is L."""
    receive = compiled(
        NUMBER, FLOATS, NUMBERS, NUMBER, types.boolean, NUMBER, NUMBERS, *[NUMBER] * 3
    )(_receive)
    close = compiled(types.void, FLOATS, NUMBERS, NUMBER, NUMBERS, NUMBER)(_close)
    return Kernels(
        receive, close, _correct(size), _forward(size), _backward(size), _products(size),
        _gram(size), _fold(size),
    )  # fmt: skip
