"""The Haar cascade compiled on the machine it runs on, for float32 on a processor.

A block of d numbers is halved again and again: sums to the left, differences to the right,
without any factor until a number is final. An odd length keeps its last number as sum and
as difference, as if a zero stood beside it. Sums alternate between two scratch buffers of
d/2 numbers, which stay in the second cache for vectors of some 100 000 numbers.

``layout`` (blocks, 2), int64: offset and size of every block; ``scale`` (groups,), float32:
what the coefficients of a group are multiplied with. Groups lie block by block, base first,
then coarsest to finest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

Run = Callable[..., Any]

_STRETCH = 2048  # float32 adds up this many squares at most, float64 the rest: constant vectors would else lose digits


def _halve_energy(source: Any, length: int, into: Any) -> float:
    """Pairwise sums of ``source`` to ``into``; the sum of the squared differences."""
    pairs, energy = length // 2, 0.0
    for start in range(0, pairs, _STRETCH):
        many, squares = min(_STRETCH, pairs - start), np.float32(0)
        # slices, so that indices start at zero and cannot be negative: the compiler then uses its widest vectors
        here, there = source[2 * start : 2 * (start + many)], into[start : start + many]
        for i in range(many):
            left, right = here[2 * i], here[2 * i + 1]
            there[i] = left + right
            squares += (left - right) * (left - right)
        energy += np.float64(squares)
    if length % 2:
        last = source[length - 1]
        into[pairs] = last
        energy += np.float64(last * last)
    return energy


# Sums of squares may be taken in any order, and that is all: infinities and NaN must come through.
halve_energy: Run = njit(nogil=True, fastmath={"reassoc", "contract"})(_halve_energy)


def _energies(rows: Any, layout: Any, out: Any) -> None:
    """Squared orthonormal coefficients per group of rows (n, d), to ``out`` (n, groups) in float64."""
    half = (layout[:, 1].max() + 1) // 2
    first, second = np.empty(half, np.float32), np.empty((half + 1) // 2, np.float32)
    for row in range(rows.shape[0]):
        group = 0
        for block in range(layout.shape[0]):
            offset, size = layout[block]
            levels, length = 0, size
            while length > 1:
                levels, length = levels + 1, (length + 1) // 2
            share, length = 1.0, size
            base = rows[row, offset]
            for level in range(1, levels + 1):
                share *= 0.5
                if level == 1:
                    energy = halve_energy(rows[row, offset : offset + size], length, first)
                elif level % 2 == 0:
                    energy = halve_energy(first, length, second)
                else:
                    energy = halve_energy(second, length, first)
                out[row, group + levels + 1 - level] = share * energy
                length = (length + 1) // 2
                base = first[0] if level % 2 else second[0]
            out[row, group] = share * np.float64(base) * np.float64(base)
            group += levels + 1


def _halve(source: Any, length: int, scale: Any, into: Any, details: Any) -> None:
    pairs = length // 2
    for i in range(pairs):
        left, right = source[2 * i], source[2 * i + 1]
        into[i] = left + right
        details[i] = (left - right) * scale
    if length % 2:
        into[pairs] = source[length - 1]
        details[pairs] = source[length - 1] * scale


_halve_fast: Run = njit(nogil=True)(_halve)


def _forward(v: Any, layout: Any, scale: Any, out: Any) -> None:
    """Scaled coefficients of one vector (d,), to ``out`` (coefficients,)."""
    half = (layout[:, 1].max() + 1) // 2
    first, second = np.empty(half, np.float32), np.empty((half + 1) // 2, np.float32)
    at, group = 0, 0
    for block in range(layout.shape[0]):
        offset, size = layout[block]
        levels, length, count = 0, size, 1
        while length > 1:
            levels, length = levels + 1, (length + 1) // 2
            count += length
        base, length, end = v[offset], size, at + count
        for level in range(1, levels + 1):
            end -= (length + 1) // 2
            factor = scale[group + levels + 1 - level]
            if level == 1:
                _halve_fast(v[offset : offset + size], length, factor, first, out[end:])
            elif level % 2 == 0:
                _halve_fast(first, length, factor, second, out[end:])
            else:
                _halve_fast(second, length, factor, first, out[end:])
            length = (length + 1) // 2
            base = first[0] if level % 2 else second[0]
        out[at] = base * scale[group]
        at, group = at + count, group + levels + 1


def _double(source: Any, details: Any, scale: Any, length: int, into: Any) -> None:
    pairs = length // 2
    for i in range(pairs):
        detail = details[i] * scale
        into[2 * i] = source[i] + detail
        into[2 * i + 1] = source[i] - detail
    if length % 2:
        into[length - 1] = source[pairs] + details[pairs] * scale


_double_fast: Run = njit(nogil=True)(_double)


def _inverse(u: Any, layout: Any, scale: Any, out: Any) -> None:
    """The vector (d,) whose means and half differences are the scaled coefficients, to ``out``."""
    half = (layout[:, 1].max() + 1) // 2
    first, second = np.empty(half, np.float32), np.empty((half + 1) // 2, np.float32)
    at, group = 0, 0
    for block in range(layout.shape[0]):
        offset, size = layout[block]
        levels, length = 0, size
        while length > 1:
            levels, length = levels + 1, (length + 1) // 2
        base = u[at] * scale[group]
        at += 1
        if levels == 0:
            out[offset] = base
        elif levels % 2 == 0:
            second[0] = base
        else:
            first[0] = base
        for level in range(levels, 0, -1):
            above = ((size - 1) >> level) + 1
            length = ((size - 1) >> (level - 1)) + 1
            factor = scale[group + levels + 1 - level]
            if level == 1:
                _double_fast(first, u[at:], factor, length, out[offset : offset + size])
            elif level % 2 == 0:
                _double_fast(second, u[at:], factor, length, first)
            else:
                _double_fast(first, u[at:], factor, length, second)
            at += above
        group += levels + 1


energies: Run = njit(nogil=True)(_energies)
forward: Run = njit(nogil=True)(_forward)
inverse: Run = njit(nogil=True)(_inverse)
