"""The parts of an event that are no products: what is done number by number, the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sordino import native
from sordino.regimes.vertical.compiled.clock import nanoseconds
from sordino.regimes.vertical.compiled.half_precision import rounded
from sordino.training.jit.losses import exponential, shared

Run = Callable[..., Any]

NONE = np.float32(-100)  # a score whose exponential is zero


def compiled(run: Run, fastmath: set[str] | None = None) -> Run:
    made: Run = native.compiled(run, error_model="numpy", fastmath=fastmath or {"contract"})
    return made


def _now(stamp: Any) -> float:
    """Seconds; ``stamp`` (2,) int64 is the room that the system writes to."""
    seconds: float = 1e-9 * nanoseconds(stamp)
    return seconds


def _dot(a: Any, b: Any) -> Any:
    total = np.float32(0)
    for i in range(a.size):
        total += a[i] * b[i]
    return total


def _halved(x: Any) -> None:
    """Each number to the nearest 16-bit float, of two the even one; too large ones to infinity."""
    for i in range(x.size):
        x[i] = rounded(x[i])


def _rectified(x: Any) -> None:
    for i in range(x.size):
        x[i] = np.float32(0) if x[i] <= 0 else x[i]


def _masked(slopes: Any, outputs: Any) -> None:
    """Slopes behind a ReLU become those before it."""
    for i in range(slopes.size):
        slopes[i] = np.float32(0) if outputs[i] <= 0 else slopes[i]


def _copied(x: Any, y: Any) -> None:
    """A loop: to assign slices takes seconds to compile, for the message about shapes."""
    for i in range(x.size):
        x[i] = y[i]


def _added(x: Any, y: Any, factor: Any) -> None:
    for i in range(x.size):
        x[i] += factor * y[i]


now, rectified, masked = compiled(_now), compiled(_rectified), compiled(_masked)
halved, copied, added = compiled(_halved), compiled(_copied), compiled(_added)
dot = compiled(_dot, {"contract", "reassoc"})


def _entropy(
    scores: Any, slopes: Any, n: int, classes: int, pitch: int, labels: Any
) -> tuple[int, float]:
    """Slopes of cross entropy; the last row's largest class and loss."""
    best, newest = 0, (n - 1) * pitch
    for c in range(1, classes):
        value = scores[newest + c]
        if value > scores[newest + best] or (
            value != value and scores[newest + best] == scores[newest + best]
        ):
            best = c
    for i in range(n):
        row, out = scores[i * pitch : (i + 1) * pitch], slopes[i * pitch : (i + 1) * pitch]
        top = row[0]
        for c in range(classes):
            top = row[c] if row[c] > top else top
        for c in range(classes):
            out[c] = row[c] - top
        for c in range(classes, pitch):
            out[c] = NONE
    loss = -np.float64(slopes[newest + labels[n - 1]])
    for j in range(n * pitch):
        slopes[j] = exponential(slopes[j])
    for i in range(n):
        others, mine = shared(slopes[i * pitch : i * pitch + classes], labels[i])
        if i == n - 1:
            loss += math.log(np.float64(others) + np.float64(mine))
    return best, loss


entropy = compiled(_entropy)
