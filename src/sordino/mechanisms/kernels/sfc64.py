"""Generators of the kind SFC64 (Doty-Humphrey 2018), side by side in the processor's vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino.base.compiled import compiled

LANES = 32


@compiled(error_model="numpy")
def fill(state: Any, out: Any) -> None:
    """``out`` (32 k,) from 32 states (4, 32) of SFC64, one word of each in turn."""
    a, b, c, counter = state[0], state[1], state[2], state[3]
    for start in range(0, out.size, LANES):
        place = out[start : start + LANES]
        for i in range(LANES):
            word = a[i] + b[i] + counter[i]
            counter[i] = counter[i] + np.uint64(1)
            a[i] = b[i] ^ (b[i] >> np.uint64(11))
            b[i] = c[i] + (c[i] << np.uint64(3))
            c[i] = ((c[i] << np.uint64(24)) | (c[i] >> np.uint64(40))) + word
            place[i] = word
