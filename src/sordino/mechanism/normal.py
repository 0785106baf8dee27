r"""Box and Muller's normals compiled on the machine they are drawn on, for float32 on a processor.

Logarithm, sine and cosine are written out as polynomials without branches, so that the
compiler makes one loop of vectors of them (3 microseconds for 7850 numbers; a call of the
C library for each would take 60). With a word of 32 random bits each for u and v:

    log u     = e log 2 + log m, m in [sqrt(1/2), sqrt(2)): exponent and fraction of u,
                then a polynomial in m - 1
    2 pi v    = k pi/2 + t, |t| <= pi/4: the two highest bits of the word after rounding,
                and what is left of it, both exact; then polynomials in t

Constants are those of the Cephes library (Moshier 1989, logf, sinf, cosf). Against float64
the result is off by 5e-8 in the mean and by 1e-6, two units in the last place of a number
near 6, at most; torch's functions, which take a rounded angle, by twice that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

Run = Callable[..., Any]
F, U, I = np.float32, np.uint32, np.int32  # noqa: E741
_TURN = F(2.0 * math.pi * 2.0**-32)
_FAST = {"contract", "nsz"}  # nothing else: fused products only


def _radius(word: Any) -> Any:
    """sqrt(-2 log u), u = word 2^-32 + 1/2 rounded to float32, at least 2^-33; added up in whole numbers, so exact near 0."""
    bits = F(max(F(U(word) ^ U(1 << 31)) * F(2.0**-32), F(2.0**-33))).view(np.int32)
    exponent = I(I(bits - I(0x3F3504F3)) >> I(23))  # of u over sqrt(1/2)
    f = I(bits - I(exponent << I(23))).view(np.float32) - F(1)
    p = F(7.0376836292e-2)
    p = p * f + F(-1.1514610310e-1)
    p = p * f + F(1.1676998740e-1)
    p = p * f + F(-1.2420140846e-1)
    p = p * f + F(1.4249322787e-1)
    p = p * f + F(-1.6668057665e-1)
    p = p * f + F(2.0000714765e-1)
    p = p * f + F(-2.4999993993e-1)
    p = p * f + F(3.3333331174e-1)
    square, e = f * f, F(exponent)
    # log 2 in two parts, the first so short that its multiples are exact
    small = f * square * p + e * F(-2.12194440e-4) - F(0.5) * square
    return math.sqrt(F(-2) * (e * F(0.693359375) + (f + small)))


def _turned(word: Any) -> tuple[Any, Any]:
    """cos and sin of 2 pi v, v = word 2^-32."""
    whole = U(word)
    quarter = U(U(whole + U(1 << 29)) >> U(30))
    t = F(I(whole - U(quarter << U(30)))) * _TURN
    z = t * t
    sine = ((F(-1.9515295891e-4) * z + F(8.3321608736e-3)) * z + F(-1.6666654611e-1)) * z * t + t
    cosine = ((F(2.4433157118e-5) * z + F(-1.3887316255e-3)) * z + F(4.1666645683e-2)) * z * z + (F(1) - F(0.5) * z)
    odd = (quarter & U(1)) != 0
    x, y = (sine, cosine) if odd else (cosine, sine)
    return (-x if (U(quarter + U(1)) & U(2)) != 0 else x), (-y if (quarter & U(2)) != 0 else y)


_radius_fast: Run = njit(nogil=True, error_model="numpy", fastmath=_FAST)(_radius)
_turned_fast: Run = njit(nogil=True, error_model="numpy", fastmath=_FAST)(_turned)


def _fill(words: Any, out: Any) -> None:
    half = words.size // 2
    # slices, so that indices start at zero and cannot be negative: the compiler then uses its widest vectors
    first, second, left, right = words[:half], words[half:], out[:half], out[half:]
    for i in range(right.size):
        radius = _radius_fast(first[i])
        x, y = _turned_fast(second[i])
        left[i] = radius * x
        right[i] = radius * y
    if right.size < half:  # an odd number of them
        left[half - 1] = _radius_fast(first[half - 1]) * _turned_fast(second[half - 1])[0]


fill: Run = njit(nogil=True)(_fill)
"""``fill(words, out)``: the numbers (d,) that random words (d or d + 1,), signed and of 32 bits, stand for; first all u, then all v."""
