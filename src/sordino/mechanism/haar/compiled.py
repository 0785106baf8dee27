"""The Haar cascade, compiled: rows of consecutive blocks, each halved until one number is left.

``sizes`` (blocks,), int64; ``scale`` (groups,), of the type of the numbers: what the coefficients
of a group are multiplied with. Groups lie block by block, base first, then coarsest to finest. An
odd length keeps its last number as sum and as difference, as if a zero stood beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

Run = Callable[..., Any]


@njit(nogil=True)
def _levels(size: int) -> tuple[int, int]:
    """L, and how many coefficients a block has."""
    levels, count = 0, 1
    while size > 1:
        size = (size + 1) // 2
        levels, count = levels + 1, count + size
    return levels, count


@njit(nogil=True)
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


def _forward(rows: Any, sizes: Any, scale: Any, out: Any) -> None:
    """Scaled coefficients of rows (n, d), to ``out`` (n, coefficients)."""
    first, second = np.empty(sizes.max(), rows.dtype), np.empty(sizes.max(), rows.dtype)
    for row in range(len(rows)):
        offset, at, group = 0, 0, 0
        for size in sizes:
            levels, count = _levels(size)
            here, sums, spare = rows[row, offset : offset + size], first, second
            length, end = size, at + count
            for level in range(1, levels + 1):
                pairs, odd = length // 2, length % 2
                length, end = pairs + odd, end - pairs - odd
                _halve(
                    here,
                    pairs,
                    odd,
                    scale[group + levels + 1 - level],
                    sums,
                    out[row, end : end + length],
                )
                here, sums, spare = sums, spare, sums
            out[row, at] = here[0] * scale[group]
            offset, at, group = offset + size, at + count, group + levels + 1


def _inverse(rows: Any, sizes: Any, scale: Any, out: Any) -> None:
    """The vectors (n, d) of scaled means and half differences ``rows``, to ``out``."""
    for row in range(len(rows)):
        offset, at, group = 0, 0, 0
        for size in sizes:
            levels, count = _levels(size)
            sums, start = out[row, offset : offset + size], at + 1
            sums[0] = rows[row, at] * scale[group]
            for level in range(levels, 0, -1):
                length = ((size - 1) >> (level - 1)) + 1
                pairs, odd = length // 2, length % 2
                details = rows[row, start : start + pairs + odd]
                factor = scale[group + levels + 1 - level]
                start += pairs + odd
                if odd:
                    sums[2 * pairs] = sums[pairs] + details[pairs] * factor
                for i in range(pairs - 1, -1, -1):
                    mean, half = sums[i], details[i] * factor
                    sums[2 * i], sums[2 * i + 1] = mean + half, mean - half
            offset, at, group = offset + size, at + count, group + levels + 1


forward: Run = njit(nogil=True)(_forward)
inverse: Run = njit(nogil=True)(_inverse)


def _energies(rows: Any, sizes: Any, scale: Any, lengths: Any, out: Any) -> None:
    """Sums of squared coefficients of rows (n, d), to ``out`` (n, groups) in float64.

    A group has so many ``lengths``.
    """
    coefficients = np.empty((1, lengths.sum()), rows.dtype)  # of one row, which stay in the cache
    for row in range(len(rows)):
        forward(rows[row : row + 1], sizes, scale, coefficients)
        at = 0
        for group in range(len(lengths)):
            part, total = coefficients[0, at : at + lengths[group]], 0.0
            for i in range(len(part)):
                total += np.float64(part[i]) * np.float64(part[i])
            out[row, group] = total
            at += lengths[group]


# Sums of squares may be taken in any order, and that is all: infinities and NaN must come through.
energies: Run = njit(nogil=True, fastmath={"reassoc", "contract"})(_energies)
