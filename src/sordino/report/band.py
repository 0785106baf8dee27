"""Curves from the rows of runs: one run's, and the mean of several with how far they lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sordino.core.records import Round, at, number

Curve = tuple[list[float], list[float]]
LARGEST = 1e100
"""Numbers beyond it are not drawn: margins of an axis and means of a few of them overflow."""


def points(rows: Sequence[Round], x: str, y: str) -> Curve:
    """The rows that have both numbers, and can be drawn, as two lists.

    >>> rows = [Round(round=1, loss=0.5), Round(round=2), Round(round=3, loss=1e308)]
    >>> points(rows, "round", "loss")
    ([1.0], [0.5])
    """
    pairs = [(number(at(row, x)), number(at(row, y))) for row in rows]
    kept = [
        (a, b)
        for a, b in pairs
        if a is not None and b is not None and abs(a) <= LARGEST and abs(b) <= LARGEST
    ]
    return [a for a, _ in kept], [b for _, b in kept]


def smoothed(values: Sequence[float], last: int) -> list[float]:
    """Each value's mean with those before it, so many at most.

    >>> smoothed([1.0, 0.0, 0.5], 2)
    [1.0, 0.5, 0.25]
    """
    parts = (values[max(0, i - last + 1) : i + 1] for i in range(len(values)))
    return [sum(part) / len(part) for part in parts]


@dataclass(frozen=True, slots=True)
class Band:
    """At each x the mean, the lowest and the highest."""

    xs: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def band(curves: Sequence[Curve]) -> Band:
    """The curves over the stretch that all of them have, straight between their points.

    >>> band([([1, 2, 3], [0.0, 1.0, 2.0]), ([1, 3], [2.0, 4.0])])
    Band(xs=[1.0, 2.0, 3.0], mean=[1.0, 2.0, 3.0], low=[0.0, 1.0, 2.0], high=[2.0, 3.0, 4.0])
    >>> band([([1], [0.5]), ([], [])]).xs
    []
    """
    # of points above each other, the last
    last = [dict(zip(xs, ys, strict=True)) for xs, ys in curves]
    if not last or not all(last):
        return Band([], [], [], [])
    if all(len(points) == 1 for points in last):
        grid = np.array([np.mean([x for points in last for x in points])])
    else:
        start, end = max(min(points) for points in last), min(max(points) for points in last)
        grid = np.array(sorted({float(x) for points in last for x in points if start <= x <= end}))
    values = np.array(
        [np.interp(grid, sorted(points), [points[x] for x in sorted(points)]) for points in last]
    )
    if not len(grid):
        return Band([], [], [], [])
    return Band(
        grid.tolist(), values.mean(0).tolist(), values.min(0).tolist(), values.max(0).tolist()
    )
