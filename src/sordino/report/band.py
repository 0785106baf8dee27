"""Curves from the rows of runs: one run's, and the mean of several with how far they lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sordino.core.figures import Curve


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
