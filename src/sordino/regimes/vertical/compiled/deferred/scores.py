"""What the scores of an event come to: its loss, its slopes, and the class that is predicted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from sordino.regimes.vertical.compiled.deferred.strips import FLOATS, NUMBER, compiled
from sordino.training.jit.losses import exponential, shared


def _entropy(m: Any, z_at: int, classes: int, width: int, label: int, u_at: int) -> float:
    """Cross entropy of the scores at ``z_at``; its slopes go into ``width`` numbers at ``u_at``."""
    top = m[z_at]
    for c in range(1, classes):
        top = max(top, m[z_at + c])
    for c in range(classes):
        m[u_at + c] = m[z_at + c] - top
    own = m[u_at + label]
    for c in range(classes, width):
        m[u_at + c] = np.float32(-np.inf)  # e to this is zero
    for c in range(width):
        m[u_at + c] = exponential(m[u_at + c])
    others, mine = shared(m[u_at : u_at + classes], label)
    return float(math.log(np.float64(others + mine)) - own)


def _predicted(m: Any, z_at: int, classes: int) -> int:
    """The first of the highest scores; NaN is higher than all."""
    best = 0
    for c in range(1, classes):
        top, value = m[z_at + best], m[z_at + c]
        if top == top and not value <= top:
            best = c
    return best


entropy = compiled(types.float64, FLOATS, *[NUMBER] * 5)(_entropy)
predicted = compiled(NUMBER, FLOATS, NUMBER, NUMBER)(_predicted)
