"""A dense twin of correlated noise, for tests."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import toeplitz  # type: ignore[import-untyped]
from scipy.special import binom  # type: ignore[import-untyped]

from sordino.mechanisms.correlated import Correlation, _grid

Floats = NDArray[np.float64]


def matrix(correlation: Correlation, steps: int) -> Floats:
    """C, from formulas of its own."""
    column = np.zeros(steps)
    if correlation.kind == "banded":
        j = np.arange(min(correlation.separation, steps))
        column[: j.size] = np.rint(binom(2 * j, j) / 4.0**j * 2**16) / 2**16
    else:
        decays, weights = correlation.buffers
        powers = decays[:, None] ** np.arange(steps - 1)
        column[0], column[1:] = 1.0, (weights[:, None] * powers).sum(0)
    found: Floats = toeplitz(column, np.zeros(steps))
    return found


def shift(mechanism: Any, seen: Floats, one: Floats, other: Floats) -> Floats:
    """How far apart the middles of the noise are at each step (n,), if the past is ``seen``.

    From the loops' own words: whole - round(f(seen - whole)), with f in float64.
    """
    n, d = seen.shape
    grid = _grid(mechanism.correlation, mechanism.clip, mechanism.deviation_multiplier, d)
    column = matrix(mechanism.correlation, n)[:, 0]

    def middles(sums: Floats) -> Floats:
        whole = np.rint(sums / grid.step)
        zeta, found = seen - whole, np.empty((n, d))
        for t in range(n):
            past = sum((column[j] * zeta[t - j] for j in range(1, t + 1)), np.zeros(d))
            found[t] = whole[t] - np.rint(past)
        return found

    moved: Floats = np.linalg.norm(middles(one) - middles(other), axis=1)
    return moved
