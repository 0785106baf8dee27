"""Numbers that are bounds, as people read them: never smaller than they are."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal


def rounded_up(value: float, digits: int = 4) -> float:
    """The smallest number of so many significant decimal digits that is not below ``value``.

    >>> rounded_up(1.98341), rounded_up(0.53), rounded_up(math.inf)
    (1.984, 0.53, inf)
    """
    if not math.isfinite(value) or value == 0.0:
        return value
    return float(Context(prec=digits, rounding=ROUND_CEILING).plus(Decimal(repr(float(value)))))


def epsilon_text(value: float) -> str:
    """An epsilon as it is printed: four digits, rounded up.

    >>> epsilon_text(1.99941), epsilon_text(0.5300001), epsilon_text(math.inf)
    ('2', '0.5301', 'inf')
    """
    return f"{rounded_up(value):.4g}"
