"""Random words for noise: 64 bits each, many at once.

A generator of a simulation hands out one word in two nanoseconds, which is as long as the noise
itself takes. So its words seed 32 generators of the same kind (SFC64, Doty-Humphrey 2018) that run
side by side in the processor's vectors: half a nanosecond a word. Each of the 32 has a state of 192
bits of its own.

A cryptographic generator (``base.keystream.KeyStream``) hands out its own words, in bulk:
they are used as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_FEW = 128  # fewer words than this cost less than seeding
_MIXING = 12  # rounds of SFC64 between seeding and use, as its author has it


def random_words(count: int, rng: np.random.Generator) -> Words:
    """Independent uniform words (count,) from this generator."""
    bits: Any = rng.bit_generator
    if count < _FEW or hasattr(bits, "key_stream"):
        raw: Words = bits.random_raw(count)
        return raw
    from sordino.mechanisms.kernels.sfc64 import LANES, fill  # loads numba

    state = np.empty((4, LANES), np.uint64)
    state[:3] = bits.random_raw(3 * LANES).reshape(3, LANES)
    state[3] = 1
    blocks = -(-count // LANES) + _MIXING
    out = np.empty(blocks * LANES, np.uint64)
    fill(state, out)
    return out[_MIXING * LANES :][:count]
