"""Compiled loops of correlated noise: one step of a recurrence for every number of a vector.

Both memories do, for each number by itself and in an order that does not depend on values,

    zeta = N - round(f(earlier zetas)),      released = (whole + zeta) step,

where ``whole`` is the sum in steps of the grid, and then take zeta into the memory, held to
+-:data:`HELD`. :mod:`.correlated` proves what follows from that. What is given is ``drawn`` =
(whole + N) step.

All products and sums of a band are exact, so fused ones change no bit.

Shapes: numbers and rows of a banded memory (d,); buffers (2, d).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino.base.compiled import compiled

F = np.float64

HELD = 2.0**31 - 1.0
"""The memory holds each zeta to this, whatever was drawn: so the errors of its sums are bounded."""
REACH = 2.0**51
"""Sums beyond as many steps of the grid are held there, so that float64 counts without gaps."""

# as in draws.py, whose code this may not call: a kept loop is made anew only with its own file
_MIDDLE = F(1.5 * 2.0**52)  # added and taken away again, it rounds to the nearest whole number


@compiled()
def _whole(x: Any) -> Any:
    return (x + _MIDDLE) - _MIDDLE


@compiled()
def _steps(number: Any, per_step: Any) -> Any:
    """The nearest whole number of steps of the grid; what is no number is none."""
    x = number * per_step
    x = x if x == x else F(0)
    return _whole(min(max(x, -F(REACH)), F(REACH)))


@compiled()
def _held(zeta: Any) -> Any:
    return min(max(zeta, -F(HELD)), F(HELD))


@compiled(error_model="numpy", fastmath={"contract"})
def add_row(past: Any, factor: float, row: Any) -> None:
    """Add a row (d,), times its factor, to ``past`` (d,)."""
    for i in range(past.size):
        past[i] += factor * F(row[i])


@compiled(error_model="numpy")
def banded(drawn: Any, past: Any, total: Any, step: float, kept: Any, out: Any) -> None:
    """Release ``total`` (d,) into ``out`` (d,), float32; zeta goes into ``kept`` (d,), int32.

    ``past`` (d,) is f, the sum of earlier rows.
    """
    per_step = F(1.0 / step)
    for i in range(total.size):
        noisy = drawn[i] * per_step - _whole(past[i])
        out[i] = np.float32(noisy * step)
        kept[i] = np.int32(_held(noisy - _steps(total[i], per_step)))


@compiled(error_model="numpy")
def buffered(
    drawn: Any, total: Any, step: float, decays: Any, weights: Any, held: Any, after: Any, out: Any
) -> None:
    """Release ``total`` (d,) into ``out`` (d,), float32; ``after`` (2, d) gets the new buffers.

    f = sum_k weights[k] held[k]; after[k] = decays[k] held[k] + zeta.
    """
    per_step, first, second = F(1.0 / step), decays[0], decays[1]
    light, heavy = weights[0], weights[1]
    a, b, next_a, next_b = held[0], held[1], after[0], after[1]
    for i in range(total.size):
        x, y = a[i], b[i]
        noisy = drawn[i] * per_step - _whole(light * x + heavy * y)
        out[i] = np.float32(noisy * step)
        kept = _held(noisy - _steps(total[i], per_step))
        next_a[i] = first * x + kept
        next_b[i] = second * y + kept


@compiled(error_model="numpy")
def column_of(decays: Any, weights: Any, out: Any) -> None:
    """Fill ``out`` (n,) with 1, then sum_k weights[k] decays[k]^(j - 1)."""
    out[:] = F(0)
    out[0] = F(1)
    for k in range(decays.size):
        power = F(weights[k])
        for j in range(1, out.size):
            out[j] += power
            power *= decays[k]


@compiled(error_model="numpy")
def prefix_error(decays: Any, weights: Any, steps: int) -> float:
    """Mean over t < n of the squared length of row t of A C^-1, A all ones below the diagonal."""
    held, total, found = np.zeros(decays.size), F(0), F(0)
    for t in range(steps):
        zeta = F(1) if t == 0 else F(0)  # so zeta is the next number of the first column of C^-1
        for k in range(decays.size):
            zeta -= weights[k] * held[k]
        for k in range(decays.size):
            held[k] = decays[k] * held[k] + zeta
        total += zeta
        found += total * total * F(steps - t)
    return found / F(steps)
