r"""Windows of events: how shares of pending gradients grow; the averaged gradient's square.

The square of the averaged gradient S_t = (1/W) sum_i alpha^i g_{t-i}: inner products are <g_i, g_j>
= sum over layers of (u_i . u_j)(a_i . a_j), both of which the corrections need as well
(``compiled.deferred.chain``). With n_j = <g_j, g_j> and

    e_j(t) = sum_{j < i <= t} alpha^(t-i) <g_i, g_j> = alpha e_j(t - 1) + <g_t, g_j>,
    W^2 |S_t|^2 = sum_j alpha^(t-j) (alpha^(t-j) n_j + 2 e_j(t)),

where j are the events in the window: all that is newer than j is still in it, so no term ever has
to be taken out again. It costs O(l) an event, and rounding (float64 here, float32 in the dots) does
not add up over more than l events: there is nothing to refresh. Where gradients cancel in their
average, what float32 leaves is some 1e-6 of the squared mean of their norms.
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
    compiled,
)


def _grow(window: int, rate: float, back: Any, event: int, when: Any, due: Any, count: int) -> None:
    """One update: the shares of all events in the window. ``back``: alpha to the l - 1, ..., 0."""
    newest = count - 1
    if event - when[0] == newest:  # one behind another: a loop that becomes vectors
        n = min(count, window)
        shares, powers = due[count - n : count], back[window - n : window]
        for i in range(n):
            shares[i] += rate * powers[i]
        return
    for i in range(newest, -1, -1):
        age = event - when[i]
        if age >= window:
            break
        due[i] += rate * back[window - 1 - age]


def _meet(product: Any, m: Any, s_at: int, r_at: int, when: Any, count: int, oldest: int) -> None:
    """Inner products of one layer's gradients, added where the server has these events."""
    s, r = m[s_at : s_at + count], m[r_at : r_at + count]
    first = when[0] - oldest
    if when[count - 1] - when[0] == count - 1:
        there = product[first : first + count]
        for i in range(count):
            there[i] += np.float64(s[i]) * r[i]
        return
    for i in range(count):
        product[when[i] - oldest] += np.float64(s[i]) * r[i]


def _square(
    window: int, alpha: float, back: Any, product: Any, newer: Any, own: Any, age: int
) -> float:
    """W^2 |S|^2; ``newer``: e of pending events, ``own``: their n, the first of this ``age``."""
    count = age + 1
    newer[age], own[age] = 0, product[age]
    for i in range(age):
        newer[i] = alpha * newer[i] + product[i]
    n = min(count, window)
    powers, e, norms = back[window - n : window], newer[count - n : count], own[count - n : count]
    total = 0.0
    for i in range(n):
        total += powers[i] * (powers[i] * norms[i] + 2 * e[i])
    return total


class Windows(NamedTuple):
    """Compiled, each for one signature."""

    grow: Run
    meet: Run
    square: Run


@cache
def windows() -> Windows:
    """All of them."""
    return Windows(
        compiled(types.void, NUMBER, types.float64, DOUBLES, NUMBER, NUMBERS, DOUBLES, NUMBER)(
            _grow
        ),
        compiled(types.void, DOUBLES, FLOATS, NUMBER, NUMBER, NUMBERS, NUMBER, NUMBER)(_meet),
        compiled(
            types.float64,
            NUMBER,
            types.float64,
            DOUBLES,
            DOUBLES,
            DOUBLES,
            DOUBLES,
            NUMBER,
            sums=True,
        )(_square),
    )
