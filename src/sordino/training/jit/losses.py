"""Exponentials of scores, for the vertical regime's compiled loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sordino import native

Run = Callable[..., Any]


def _exponential(x: Any) -> Any:
    """exp x for x <= 0: Cody and Waite's reduction, a polynomial of degree 7; 0 below -86."""
    # 1.5 2^23: rounds to a whole number
    shifted = np.float32(x * np.float32(1.4426950408889634) + np.float32(12582912.0))
    power = np.int32(shifted.view(np.int32) << np.int32(23))
    whole = shifted - np.float32(12582912.0)
    r = (x - whole * np.float32(0.693359375)) + whole * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    near_one = np.float32(p * (r * r) + r + np.float32(1))
    value = np.int32(near_one.view(np.int32) + power).view(np.float32)
    return value if x > np.float32(-86.0) else (np.float32(0) if x <= np.float32(-86.0) else x)


exponential: Run = native.compiled(_exponential, fastmath={"contract"})


def _shared(numbers: Any, own: int) -> tuple[Any, Any]:
    """Exponentials of scores (classes,) become the slopes of cross entropy.

    What the other classes' exponentials add up to, and the own.
    """
    mine, others = numbers[own], np.float32(0)
    numbers[own] = 0
    for c in range(numbers.size):
        others += numbers[c]
    share = np.float32(1) / (others + mine)
    for c in range(numbers.size):
        numbers[c] *= share
    numbers[own] = -others * share  # p - 1 without its cancellation
    return others, mine


shared: Run = native.compiled(_shared, error_model="numpy")  # a sum of zero is divided by
