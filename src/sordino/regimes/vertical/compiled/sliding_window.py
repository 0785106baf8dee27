"""A window of gradients moved on by one event, and its step, in one pass over parameters.

The calls of a library would go over them five times, and an event of a small model costs little
more than that. Shapes: everything (k,), float32. Squares are added up in float32 over 1024 numbers,
in float64 from there on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino.native import compiled

STRETCH = 1024


@compiled(fastmath={"reassoc", "contract"})
def learned(
    total: Any, gone: Any, fresh: Any, weights: Any, keep: float, drop: float, step: float
) -> float:
    """S <- keep S + fresh - drop gone; w <- w - step S; ||S||^2."""
    alpha, beta, eta, square = np.float32(keep), np.float32(drop), np.float32(step), 0.0
    for start in range(0, total.size, STRETCH):
        part = np.float32(0)
        for i in range(start, min(start + STRETCH, total.size)):
            value = alpha * total[i] + fresh[i] - beta * gone[i]
            total[i] = value
            weights[i] -= eta * value
            part += value * value
        square += np.float64(part)
    return square


@compiled(fastmath={"reassoc", "contract"})
def passed(total: Any, gone: Any, keep: float, drop: float) -> float:
    """The same without a gradient, and no step follows: S <- keep S - drop gone; ||S||^2."""
    alpha, beta, square = np.float32(keep), np.float32(drop), 0.0
    for start in range(0, total.size, STRETCH):
        part = np.float32(0)
        for i in range(start, min(start + STRETCH, total.size)):
            value = alpha * total[i] - beta * gone[i]
            total[i] = value
            part += value * value
        square += np.float64(part)
    return square
