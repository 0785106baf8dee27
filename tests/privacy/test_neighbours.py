"""The relation that is promised, by quadrature and without an accountant: one contribution replaced
by none, sizes public.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats  # type: ignore[import-untyped]

from sordino.core.statements import ADJACENCY
from sordino.privacy import Gaussian, PoissonSampled, accountant
from sordino.privacy.formats import V2

Floats = NDArray[np.float64]
DIRECTIONS = ("with against without", "without against with")


def _pair(x: Floats, q: float, sigma: float) -> tuple[Floats, Floats]:
    without = stats.norm.pdf(x, 0.0, sigma)
    return (1.0 - q) * without + q * stats.norm.pdf(x, 1.0, sigma), without


def _by_quadrature(q: float, sigma: float, epsilon: float) -> list[float]:
    """delta(epsilon) of one step, in both directions."""
    found = []
    for turned in (False, True):

        def excess(x: float, turned: bool = turned) -> float:
            p, n = _pair(np.array(x), q, sigma)
            p, n = (n, p) if turned else (p, n)
            return max(0.0, float(p - math.exp(epsilon) * n))

        # The crossing is where the loss is epsilon: the integrand has a kink there.
        ends = 1.0 + 40.0 * sigma
        odds = (math.exp(-epsilon if turned else epsilon) - (1.0 - q)) / q
        kink = sigma**2 * math.log(odds) + 0.5 if odds > 0 else -ends
        found.append(
            integrate.quad(excess, -ends, ends, points=[kink, 0.0, 1.0], limit=500, epsabs=1e-15)[0]
        )
    return found


@pytest.mark.parametrize(("q", "sigma"), [(0.01, 0.8), (0.1, 1.1), (0.3, 2.0), (0.9, 1.5)])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.5])
def test_one_step_is_the_worse_of_both_directions(q: float, sigma: float, epsilon: float) -> None:
    exact = _by_quadrature(q, sigma, epsilon)
    shown = accountant("pld").delta(
        [(PoissonSampled(sampling_rate=q, event=Gaussian(noise_multiplier=sigma)), 1)], epsilon
    )
    assert shown >= max(exact) * (1 - 1e-6) - 1e-12, "a bound in one direction only"
    assert shown <= max(exact) * 1.02 + 1e-9


def test_the_two_directions_differ() -> None:
    """So that an accountant that knows only one of them would be found out."""
    removed, added = _by_quadrature(0.1, 1.1, 0.5)
    assert removed > 2.0 * added


def test_two_steps_by_quadrature_in_the_plane() -> None:
    q, sigma, epsilon = 0.3, 1.3, 0.4
    x = np.linspace(-9.0 * sigma, 1.0 + 9.0 * sigma, 3001)
    p, n = _pair(x, q, sigma)
    step = (x[1] - x[0]) ** 2
    both = [np.outer(a, a) - math.exp(epsilon) * np.outer(b, b) for a, b in ((p, n), (n, p))]
    exact = max(float(np.maximum(excess, 0.0).sum()) * step for excess in both)
    shown = accountant("pld").delta(
        [(PoissonSampled(sampling_rate=q, event=Gaussian(noise_multiplier=sigma)), 2)], epsilon
    )
    assert exact * (1 - 1e-4) <= shown <= exact * 1.02


def _noisy_mean(
    records: Floats,
    there: Floats,
    rate: float,
    sigma: float,
    divisor: float,
    grid: tuple[Floats, Floats],
) -> Floats:
    """The density of a noisy sum in the plane over a divisor, over all Poisson batches; ``there``
    is 0 for one that adds nothing.
    """
    total = np.zeros(grid[0].shape)
    for drawn in itertools.product((0, 1), repeat=len(records)):
        chance = float(np.prod([rate if bit else 1.0 - rate for bit in drawn]))
        centre = (np.array(drawn) * there) @ records / divisor
        scale = sigma / divisor
        total += (
            chance
            * stats.norm.pdf(grid[0], centre[0], scale)
            * stats.norm.pdf(grid[1], centre[1], scale)
        )
    return total


def _divergence(one: Floats, two: Floats, cell: float, epsilon: float) -> float:
    return max(
        float(np.maximum(a - math.exp(epsilon) * b, 0.0).sum()) * cell
        for a, b in ((one, two), (two, one))
    )


def test_records_in_the_plane_with_public_sizes() -> None:
    """Brute force over all batches of three records: within the bound if n is public, and beyond it
    if the divisor follows n.
    """
    rate, sigma, epsilon = 0.4, 1.2, 0.3
    records = np.array([[1.0, 0.0], [-0.6, 0.8], [0.0, -1.0]])  # unit length: the bound is attained
    axis = np.linspace(-8.0, 8.0, 1201)
    grid, cell = tuple(np.meshgrid(axis, axis, indexing="ij")), (axis[1] - axis[0]) ** 2
    allowed = accountant("pld").delta(
        [(PoissonSampled(sampling_rate=rate, event=Gaussian(noise_multiplier=sigma)), 1)], epsilon
    )
    every, none = np.ones(3), np.array([0.0, 1.0, 1.0])
    divisor = rate * 3
    whole = _noisy_mean(records, every, rate, sigma, divisor, (grid[0], grid[1]))
    without = _noisy_mean(records, none, rate, sigma, divisor, (grid[0], grid[1]))
    removed = _noisy_mean(records, none, rate, sigma, rate * 2, (grid[0], grid[1]))
    assert 0.0 < _divergence(whole, without, cell, epsilon) <= allowed
    assert _divergence(whole, removed, cell, epsilon) > 1.5 * allowed, (
        "a divisor that follows n tells who is there"
    )


def test_the_words_say_this_relation() -> None:
    for unit in ("sample", "client"):
        for said in (ADJACENCY[unit], V2.meta["adjacency"]):
            assert "replaced by none" in said
            assert "public" in said
            assert "added" not in said
            assert "remove" not in said
