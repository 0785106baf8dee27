"""Losses of scores, and their slopes, for compiled code.

Shapes: scores (n classes,), float32, become their slopes; labels (n,), int64; losses (n,).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from sordino import native

Run = Callable[..., Any]


def compiled(run: Run) -> Run:
    made: Run = native.compiled(run, error_model="numpy")  # a norm of zero is divided by
    return made


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


shared: Run = compiled(_shared)


def _entropy(scores: Any, n: int, classes: int, labels: Any, losses: Any) -> None:
    """Cross entropy into ``losses``; ``scores`` (n classes,) become its slopes."""
    for i in range(n):
        at = i * classes
        top = scores[at]
        for c in range(1, classes):
            top = max(top, scores[at + c])
        for c in range(classes):
            scores[at + c] -= top
        losses[i] = -scores[at + labels[i]]
    # of all examples at once: vectors are longer than classes are many
    for j in range(n * classes):
        scores[j] = exponential(scores[j])
    for i in range(n):
        at = i * classes
        others, mine = shared(scores[at : at + classes], labels[i])
        losses[i] += np.float32(math.log(others + mine))


def _hinge(scores: Any, n: int, classes: int, labels: Any, losses: Any) -> None:
    """The multi-class hinge likewise: the first of equal rivals counts, NaN beats everything."""
    for i in range(n):
        at, own = i * classes, labels[i]
        rival, which = np.float32(-np.inf), 0
        for c in range(classes):
            value = scores[at + c]
            if c != own and (value > rival or value != value):
                rival, which = value, c
        margin = np.float32(1) + rival - scores[at + own]
        scores[at : at + classes] = 0
        if margin > 0:
            scores[at + which] = 1
            scores[at + own] = -1
        losses[i] = np.float32(0) if margin <= 0 else margin


@cache
def slopes(hinge: bool) -> Run:
    """The compiled loss of a few examples: the multi-class hinge, or cross entropy."""
    return compiled(_hinge if hinge else _entropy)
