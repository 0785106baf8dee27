"""Numbers that travel as 16-bit floats: a float32's value after that, by its bits.

A float16 keeps 10 of the 23 bits behind the point. To round to the nearest, ties to even, half a
unit of the last kept bit (less one, if that bit is zero) is added and the rest cut off; a carry
runs into the exponent, as it must. From 65520 on this is infinity. Below 2^-14 the unit stays
2^-24: adding and taking away 1/2, whose own unit that is, rounds there. NaN stays NaN. There are no
branches, so loops over it become vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino import native

_SIGN, _REST = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
# 2^-14, 65520, infinity
_SMALLEST, _OVER, _INFINITE = np.uint32(0x38800000), np.uint32(0x477FF000), np.uint32(0x7F800000)
_HALF_UNIT, _CUT, _ONE = np.uint32(0xFFF), np.uint32(0xFFFFE000), np.uint32(1)
_SHIFT = np.uint32(13)


def _rounded(value: Any) -> Any:
    bits = np.float32(value).view(np.uint32)
    sign, rest = np.uint32(bits & _SIGN), np.uint32(bits & _REST)
    size = rest.view(np.float32)
    small = np.float32(np.float32(size + np.float32(0.5)) - np.float32(0.5)).view(np.uint32)
    normal = np.uint32(
        np.uint32(rest + _HALF_UNIT + np.uint32(np.uint32(rest >> _SHIFT) & _ONE)) & _CUT
    )
    normal = _INFINITE if rest >= _OVER else normal
    result = small if rest < _SMALLEST else normal
    result = rest if rest > _INFINITE else result
    return np.uint32(result | sign).view(np.float32)


rounded: Any = native.compiled(_rounded)
"""``rounded(value)`` of a float32, from compiled code or from Python."""
