"""Privacy losses on a grid and Rényi divergences against dp-accounting: the same bits.

The bits of a transform and of an exponential are those of the libraries on one machine; both sides
use the same ones.
"""

from __future__ import annotations

import math
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from scipy import fft, signal  # type: ignore[import-untyped]

from sordino.privacy import grid, renyi
from sordino.privacy.pure import Kind

CASES = [
    (0.015, 1.1, 2.0**-9),
    (0.2, 2.7, 2.0**-6),
    (0.7, 0.6, 2.0**-5),
    (0.001, 0.8, 2.0**-11),
    (0.31, 9.0, 2.0**-10),
    (1.0, 3.0, 2.0**-6),
]


def theirs(rate: float, sigma: float, width: float) -> Any:
    return pld.from_gaussian_mechanism(
        standard_deviation=sigma,
        sampling_prob=rate,
        value_discretization_interval=width,
        pessimistic_estimate=True,
        use_connect_dots=True,
    )


def same(other: Any, ours: grid.Losses) -> None:
    for pmf, side in ((other._pmf_remove, ours.with_record), (other._pmf_add, ours.without)):
        dense = pmf.to_dense_pmf()
        assert (dense._lower_loss, float(dense._infinity_mass)) == (side.lowest, side.infinite)
        np.testing.assert_array_equal(dense._probs, side.masses)


@pytest.mark.parametrize(("rate", "sigma", "width"), CASES)
def test_one_step(rate: float, sigma: float, width: float) -> None:
    same(theirs(rate, sigma, width), grid.gaussian(rate, sigma, width))


@pytest.mark.parametrize(("rate", "sigma", "width"), CASES)
@pytest.mark.parametrize("count", [2, 7, 99, 100, 101, 640])
def test_many_steps_and_others_beside(rate: float, sigma: float, width: float, count: int) -> None:
    one, mine = theirs(rate, sigma, width), grid.gaussian(rate, sigma, width)
    many, ours = one.self_compose(count), mine.power(count)
    same(many, ours)
    same(many.compose(one), ours.compose(mine))
    same(many.self_compose(3), ours.power(3))
    for delta in (1e-9, 1e-5, 0.01, 0.5):
        assert ours.epsilon(delta) == many.get_epsilon_for_delta(delta)
    for epsilon in (0.0, 0.3, 4.0):
        assert ours.delta(epsilon) == float(many.get_delta_for_epsilon(epsilon))


def test_a_delta_that_no_epsilon_reaches_and_one_that_all_reach() -> None:
    losses = grid.gaussian(0.2, 2.7, 2.0**-6).power(10)
    assert losses.epsilon(0.0) == math.inf
    assert losses.epsilon(1.0) == 0.0


def test_all_losses_above_zero() -> None:
    side = grid.Side(0.5, 4, np.array([0.5, 0.25, 0.25]), 0.0)
    dense = dp.pld.pld_pmf.DensePLDPmf(0.5, 4, np.array([0.5, 0.25, 0.25]), 0.0, True)
    for delta in (1e-3, 0.2, 0.6, 0.9):
        assert side.epsilon(delta) == dense.get_epsilon_for_delta(delta)


def test_an_epsilon_between_zero_and_the_first_loss() -> None:
    masses = np.array([0.2, 0.1, 0.3, 0.25, 0.15])
    dense = dp.pld.pld_pmf.DensePLDPmf(0.5, -2, masses, 0.0, True)
    for delta in (0.15, 0.19):
        found = grid.Side(0.5, -2, masses, 0.0).epsilon(delta)
        assert 0.0 < found < 0.5
        assert found == dense.get_epsilon_for_delta(delta)


@pytest.mark.parametrize("length", [1, 2, 17, 97, 1000, 99_991, 123_457])
def test_lengths_are_those_of_scipy(length: int) -> None:
    assert grid._fast_length(length) == fft.next_fast_len(length)
    assert grid._fast_length(length, (2, 3, 5)) == fft.next_fast_len(length, True)


def test_convolution_is_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for n, m in ((1, 5), (7, 1), (40, 333), (1000, 1000)):
        x, y = rng.random(n), rng.random(m)
        np.testing.assert_array_equal(grid._convolved(x, y), signal.fftconvolve(x, y))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("orders", [renyi.ORDERS, renyi.CLASSIC_ORDERS])
@pytest.mark.parametrize(("rate", "sigma"), [(0.015, 1.1), (0.2, 2.7), (0.3, 0.9), (0.001, 0.5)])
def test_divergences(rate: float, sigma: float, orders: tuple[float, ...]) -> None:
    ledger = RdpAccountant(orders=list(orders))
    ledger.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)))
    found = [renyi.sampled_divergence(rate, sigma, order) for order in orders]
    assert found == [float(value) for value in ledger._rdp]


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.03, 0.4])
@pytest.mark.parametrize("count", [1, 40, 3000, 10**6])
@pytest.mark.parametrize(
    "kind", [Kind(0.015, 1.1), Kind(0.2, 2.7), Kind(0.1, 1.0), Kind(1e-4, 20.0), Kind(0.05, 3, 0.1)]
)
def test_no_order_that_is_left_out_gives_less(kind: Kind, count: int, delta: float) -> None:
    steps = ((kind, count),)
    every = renyi.divergences(steps, renyi.ORDERS)
    if any(-math.expm1(-value) < delta * delta for value in every):
        assert renyi.improved_epsilon(steps, delta) == 0.0
        return
    least = min(
        value + math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0)
        for value, order in zip(every, renyi.ORDERS, strict=True)
    )
    assert renyi.improved_epsilon(steps, delta) == max(0.0, least)
