"""Epsilon as text for people: rounded up, never down, by one function everywhere.

An epsilon is an upper bound, so a text that names a smaller number states a promise that nobody has
proved: 2.0004 shown as "2" is wrong, and 1.9996 shown as "2" is merely coarse. That holds for what
a paper claims as well as for what is proved. Rounding is done on the shortest decimal that stands
for the float, so that 0.1 is shown as 0.1.

>>> [epsilon_text(epsilon) for epsilon in (1.99941, 0.53, 2.0004, float("inf"), None)]
['2', '0.53', '2.001', 'inf', '-']
>>> epsilon_text(0.5314, decimals=3), epsilon_text(0.3, decimals=3), epsilon_text(123456.7)
('0.532', '0.300', '123500')
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal

_LARGEST = 1e15  # whole numbers are written out below it


def epsilon_text(
    value: float | None, digits: int = 4, *, decimals: int | None = None, infinite: str = "inf"
) -> str:
    """Epsilon for people, rounded up.

    Args:
        value: None where there is none, shown as "-".
        digits: significant digits.
        decimals: a fixed number of decimals instead, for numbers that stand below each other.
        infinite: what stands for infinity.
    """
    if value is None:
        return "-"
    if math.isnan(value) or value == math.inf:
        return infinite
    if decimals is not None:
        place = Decimal(1).scaleb(-decimals)
        return f"{Decimal(repr(float(value))).quantize(place, ROUND_CEILING, Context(prec=400)):f}"
    shown = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value)))
    small = shown == 0 or 1e-4 <= abs(shown) < _LARGEST
    return f"{shown.normalize():f}" if small else f"{shown.normalize():e}".replace("E", "e")
