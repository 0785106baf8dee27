"""Random words for noise: 64 bits each, many at once.

A generator of a simulation hands out one word in two nanoseconds, which is as long as the noise
itself takes. So its words seed 32 generators of the same kind (SFC64, Doty-Humphrey 2018) that run
side by side in the processor's vectors: half a nanosecond a word. Each of the 32 has a state of 192
bits of its own.

A cryptographic generator (:class:`sordino.keystream.KeyStream`) hands out its own words, in bulk:
they are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.native import compiled

Words = NDArray[np.uint64]

LANES = 32
_FEW = 128  # fewer words than this cost less than seeding
_MIXING = 12  # rounds of SFC64 between seeding and use, as its author has it


def random_words(count: int, rng: np.random.Generator) -> Words:
    """Independent uniform words (count,) from this generator."""
    bits: Any = rng.bit_generator
    if count < _FEW or hasattr(bits, "key_stream"):
        raw: Words = bits.random_raw(count)
        return raw
    state = np.empty((4, LANES), np.uint64)
    state[:3] = bits.random_raw(3 * LANES).reshape(3, LANES)
    state[3] = 1
    blocks = -(-count // LANES) + _MIXING
    out = np.empty(blocks * LANES, np.uint64)
    _fill(state, out)
    return out[_MIXING * LANES :][:count]


def _lanes(state: Any, out: Any) -> None:
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


_fill: Callable[[Words, Words], None] = compiled(_lanes, error_model="numpy")
