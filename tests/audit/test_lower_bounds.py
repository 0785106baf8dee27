"""Lower bounds of epsilon: against closed forms, and that they are wrong as seldom as they say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from sordino.audit.bounds import (
    Counts,
    OneRun,
    Scores,
    at_least,
    at_most,
    audited,
    chance,
    gaussian_epsilon,
    gaussian_mu,
    of_curve,
    one_run,
    refuted,
    two_worlds,
)
from sordino.base.errors import StudyError
from sordino.mechanisms.response import RandomisedResponse
from sordino.privacy import Gaussian, accountant

NORMAL = NormalDist()

# 1. Bounds of a share.


def test_bounds_of_a_share_are_clopper_and_pearsons() -> None:
    for n, k, alpha in itertools.product((1, 7, 300), (0, 1), (0.05, 1e-3)):
        wanted = 0.0 if k == 0 else stats.beta.ppf(alpha, k, n - k + 1)
        assert at_least(k, n, alpha) == pytest.approx(wanted)
        assert at_most(n - k, n, alpha) == pytest.approx(1.0 - wanted)
    assert at_least(50, 50, 0.05) == pytest.approx(0.05 ** (1 / 50))  # all of them
    # Clopper and Pearson 1934: 3 of 10 at 95 %, two-sided
    assert at_least(3, 10, 0.025) == pytest.approx(0.0667, abs=1e-4)
    assert at_most(3, 10, 0.025) == pytest.approx(0.6525, abs=1e-4)


# 2. From shares to epsilon.


@pytest.mark.parametrize(("mu", "delta"), [(0.1, 1e-5), (1.0, 1e-5), (3.0, 1e-2), (20.0, 1e-8)])
def test_a_gaussians_epsilon_is_the_ledgers(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    booked = accountant("pld").epsilon([(Gaussian(noise_multiplier=1.0 / mu), 1)], delta)
    assert epsilon == pytest.approx(booked, rel=1e-6)
    assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-6)


def test_a_bound_follows_from_the_shares() -> None:
    found = Counts(hits=90, inside=100, alarms=10, outside=100)
    low, high = at_least(90, 100, 0.025), at_most(10, 100, 0.025)
    assert found.bound("pure", 0.5, 0.05) == pytest.approx(math.log(low / high))
    assert found.bound("any", 0.1, 0.05) == pytest.approx(math.log((low - 0.1) / high))
    assert found.mu(0.05) == pytest.approx(stats.norm.ppf(low) - stats.norm.ppf(high))
    nothing = Counts(hits=50, inside=100, alarms=50, outside=100)
    assert nothing.bound("any", 0.0, 0.05) == nothing.bound("gaussian", 0.1, 0.05) == 0.0
    # one who always says "out" is right without a record: the other inequality
    quiet = Counts(hits=10, inside=100, alarms=0, outside=100)
    assert quiet.bound("pure", 0.0, 0.05) > Counts(10, 100, 8, 100).bound("pure", 0.0, 0.05)


def test_a_bound_is_wrong_as_seldom_as_it_says() -> None:
    epsilon, times, wrong, lows = 1.0, 400, 0, []
    mechanism = RandomisedResponse(epsilon=epsilon, classes=2)
    rng = np.random.default_rng(5)
    for _ in range(times):
        inside, outside = (
            (mechanism.respond(np.full(160, there), rng) == 1).astype(np.float64)
            for there in (1, 0)
        )
        lows.append(two_worlds(inside, outside, "pure", 0.0, 0.05))
        wrong += lows[-1] > epsilon
    assert stats.binom.sf(wrong - 1, times, 0.05) > 1e-3
    assert 0.2 < float(np.median(lows)) < epsilon


def test_scores_that_are_none_are_refused() -> None:
    few, some = np.zeros(3), np.zeros(9)
    with pytest.raises(StudyError, match="at least 8 releases"):
        two_worlds(few, some, "any", 1e-5, 0.05)
    with pytest.raises(StudyError, match="not a number"):
        two_worlds(some, some * np.nan, "any", 1e-5, 0.05)


# 3. One run.


def gaussian(mu: float) -> Callable[[float], float]:
    """b of a Gaussian release whose sensitivity is mu deviations."""
    return lambda r: NORMAL.cdf(NORMAL.inv_cdf(r) - mu) if 0.0 < r < 1.0 else r


def against_gaussians(scores: Scores, coins: NDArray[np.bool_], *shares: float) -> OneRun:
    """Bounds at 1e-5 from scores, if releases are Gaussian."""
    return audited(
        scores,
        coins,
        1e-5,
        0.05,
        lambda noise: gaussian(1.0 / noise),
        lambda noise: gaussian_epsilon(1.0 / noise, 1e-5),
        shares,
    )


def test_one_run_agrees_with_closed_forms() -> None:
    for r, alpha in ((10, 0.05), (100, 0.01)):  # all right: p^r = alpha
        p = alpha ** (1.0 / r)
        assert one_run(r, r, r, 0.0, alpha) == pytest.approx(math.log(p / (1.0 - p)), rel=1e-9)
    assert one_run(100, 100, 50, 0.0, 0.05) == 0.0
    assert one_run(100, 0, 0, 0.0, 0.05) == 0.0
    # abstaining from the doubtful half costs nothing where delta is 0
    assert one_run(200, 100, 90, 0.0, 0.05) == one_run(100, 100, 90, 0.0, 0.05)
    assert one_run(200, 100, 90, 1e-4, 0.05) < one_run(100, 100, 90, 1e-4, 0.05)


def test_deltas_part_is_the_theorems_maximum() -> None:
    m, r, v, epsilon, delta = 40, 12, 9, 1.0, 1e-3
    w = stats.binom(r, 1.0 / (1.0 + math.exp(-epsilon)))
    parts = [sum(w.pmf(v - j) for j in range(1, i + 1)) / i for i in range(1, v + 1)]
    wanted = w.sf(v - 1) + 2.0 * m * delta * max(parts)
    assert chance(m, r, v, epsilon, delta) == pytest.approx(wanted)


def test_one_run_is_wrong_as_seldom_as_it_says() -> None:
    """Canaries with Gaussian noise of their own: the curve at the true noise is seldom refuted.

    70 times: a bound that is wrong once in four times is found with a probability of 97 %.
    """
    rng, mu, m, times = np.random.default_rng(6), 1.0, 300, 70
    wrong = 0
    for _ in range(times):
        coins = rng.random(m) < 0.5
        scores = rng.standard_normal(m) + mu * coins
        told = against_gaussians(scores, coins, 0.2)
        wrong += max(told.low_curve, told.low) > gaussian_epsilon(mu, 1e-5)
    assert stats.binom.sf(wrong - 1, times, 0.05) > 1e-3


def test_one_run_has_power_and_a_curve_more_than_a_point() -> None:
    rng, m = np.random.default_rng(7), 4000
    coins = rng.random(m) < 0.5
    epsilon = gaussian_epsilon(1.0, 1e-5)
    told = against_gaussians(rng.standard_normal(m) + coins, coins, 0.02, 0.05, 0.1)
    assert epsilon / 2.5 < told.low_curve <= epsilon
    assert told.low < told.low_curve
    # somebody who guesses by chance shows nothing
    none = against_gaussians(rng.standard_normal(m), coins, 0.02, 0.05, 0.1)
    assert none.low_curve < 0.3


def test_a_curve_of_points_refutes_nothing_that_the_whole_does_not() -> None:
    epsilons = np.linspace(0.0, 8.0, 81)
    spent = [(Gaussian(noise_multiplier=1.0), 1)]
    deltas = np.array([accountant("pld").delta(spent, e) for e in epsilons.tolist()])
    whole, some = gaussian(1.0), of_curve(epsilons, deltas)
    for r in (1e-4, 0.01, 0.3, 0.9):
        assert 0.9 * whole(r) < some(r) <= whole(r) * (1.0 + 1e-6)
    assert [refuted(1000, 100, v, some, 0.05) for v in (75, 90, 97)] == [
        refuted(1000, 100, v, whole, 0.05) for v in (75, 90, 97)
    ]
