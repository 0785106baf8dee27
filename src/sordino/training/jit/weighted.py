"""Weighted sums of float32 rows, added up in float64 as the rows are read.

A library would write the rows out in float64 first, which takes four times as long as the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.native import compiled

STRETCH = 2048
"""Numbers of the sum that are worked on while they are in the first cache."""


def _add(rows: Any, weights: Any, total: Any) -> None:
    whole = len(rows) - len(rows) % 4
    for start in range(0, total.size, STRETCH):
        end = min(start + STRETCH, total.size)
        out = total[start:end]
        for i in range(0, whole, 4):  # four rows for each time that the sum is read and written
            a, b, c, d = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            first, second = rows[i, start:end], rows[i + 1, start:end]
            third, fourth = rows[i + 2, start:end], rows[i + 3, start:end]
            for k in range(out.size):
                out[k] = out[k] + a * first[k] + b * second[k] + c * third[k] + d * fourth[k]
        for i in range(whole, len(rows)):
            weight, row = weights[i], rows[i, start:end]
            for k in range(out.size):
                out[k] = out[k] + weight * row[k]


_add_fast: Callable[..., None] = compiled(_add, fastmath={"contract"})


def add(
    rows: NDArray[np.float32], weights: NDArray[np.float64], total: NDArray[np.float64]
) -> None:
    """Add sum_i weights_i rows_i to ``total`` (d,), row after row, of rows (n, d) and weights (n,).

    Products and sums are float64, each rounded once, or a product and its sum together.
    """
    _add_fast(rows, weights, total)
