"""The Haar cascade, compiled: rows of consecutive blocks, each halved until one number is left.

``sizes`` (blocks,), int64; ``scale`` (groups,), of the type of the numbers: what the coefficients
of a group are multiplied with. Groups lie block by block, base first, then coarsest to finest. An
odd length keeps its last number as sum and as difference, as if a zero stood beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino.base.compiled import compiled


@compiled()
def _largest(sizes: Any) -> int:
    # NumPy's own largest number calls a part of the compiler while it runs
    largest = 0
    for size in sizes:
        largest = max(largest, size)
    return largest


@compiled()
def _levels(size: int) -> tuple[int, int]:
    """L, and how many coefficients a block has."""
    levels, count = 0, 1
    while size > 1:
        size = (size + 1) // 2
        levels, count = levels + 1, count + size
    return levels, count


@compiled()
def _halve(here: Any, pairs: int, odd: int, factor: Any, sums: Any, details: Any) -> None:
    # a function of its own, of whose indices the compiler sees that they are not negative: its
    # vectors make it three times as fast
    for i in range(pairs):
        left, right = here[2 * i], here[2 * i + 1]
        sums[i] = left + right
        details[i] = (left - right) * factor
    if odd:
        sums[pairs] = here[2 * pairs]
        details[pairs] = here[2 * pairs] * factor


@compiled()
def forward(rows: Any, sizes: Any, scale: Any, out: Any) -> None:
    """Scaled coefficients of rows (n, d), to ``out`` (n, coefficients)."""
    room = _largest(sizes)
    first, second = np.empty(room, rows.dtype), np.empty(room, rows.dtype)
    for row in range(len(rows)):
        offset, at, group = 0, 0, 0
        for size in sizes:
            levels, count = _levels(size)
            here, sums, spare = rows[row, offset : offset + size], first, second
            length, end = size, at + count
            for level in range(1, levels + 1):
                pairs, odd = length // 2, length % 2
                length, end = pairs + odd, end - pairs - odd
                factor, details = scale[group + levels + 1 - level], out[row, end : end + length]
                _halve(here, pairs, odd, factor, sums, details)
                here, sums, spare = sums, spare, sums
            out[row, at] = here[0] * scale[group]
            offset, at, group = offset + size, at + count, group + levels + 1


@compiled()
def _double(means: Any, details: Any, factor: Any, pairs: int, odd: int, out: Any) -> None:
    for i in range(pairs):
        half = details[i] * factor
        out[2 * i], out[2 * i + 1] = means[i] + half, means[i] - half
    if odd:
        out[2 * pairs] = means[pairs] + details[pairs] * factor


@compiled()
def inverse(rows: Any, sizes: Any, scale: Any, out: Any) -> None:
    """The vectors (n, d) of scaled means and half differences ``rows``, to ``out``."""
    half = (_largest(sizes) + 1) // 2
    first, second = np.empty(half, rows.dtype), np.empty(half, rows.dtype)
    for row in range(len(rows)):
        offset, at, group = 0, 0, 0
        for size in sizes:
            levels, count = _levels(size)
            vector = out[row, offset : offset + size]
            means, spare, start = first if levels else vector, second, at + 1
            means[0] = rows[row, at] * scale[group]
            for level in range(levels, 0, -1):
                length = ((size - 1) >> (level - 1)) + 1
                pairs, odd = length // 2, length % 2
                details = rows[row, start : start + pairs + odd]
                into = vector if level == 1 else spare
                _double(means, details, scale[group + levels + 1 - level], pairs, odd, into)
                means, spare, start = into, means, start + pairs + odd
            offset, at, group = offset + size, at + count, group + levels + 1


# Sums of squares may be taken in any order, and that is all: infinities and NaN must come through.
@compiled(fastmath={"reassoc"})
def _halve_energy(here: Any, pairs: int, odd: int, factor: Any, sums: Any) -> float:
    """:func:`_halve` that keeps of the scaled differences only the sum of their squares."""
    energy = 0.0
    for i in range(pairs):
        left, right = here[2 * i], here[2 * i + 1]
        sums[i] = left + right
        detail = np.float64((left - right) * factor)
        energy += detail * detail
    if odd:
        sums[pairs] = here[2 * pairs]
        detail = np.float64(here[2 * pairs] * factor)
        energy += detail * detail
    return energy


@compiled()
def energies(rows: Any, sizes: Any, scale: Any, out: Any) -> None:
    """Sums of squared coefficients of rows (n, d), to ``out`` (n, groups) in float64."""
    room = _largest(sizes)
    first, second = np.empty(room, rows.dtype), np.empty(room, rows.dtype)
    for row in range(len(rows)):
        offset, group = 0, 0
        for size in sizes:
            levels = _levels(size)[0]
            here, sums, spare = rows[row, offset : offset + size], first, second
            length, end = size, group + levels
            for level in range(levels):
                pairs, odd = length // 2, length % 2
                out[row, end - level] = _halve_energy(here, pairs, odd, scale[end - level], sums)
                here, sums, spare = sums, spare, sums
                length = pairs + odd
            base = np.float64(here[0] * scale[group])
            out[row, group] = base * base
            offset, group = offset + size, end + 1
