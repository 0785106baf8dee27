"""Shared noise: what a sum of rounded Gaussians is, what a record moves, what an adversary can tell
from an opened sum, and when a modulus is too small.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]
from torch import Tensor, from_numpy

from shared_noise import Floats, noise, opened
from sordino.audit.bounds import gaussian_epsilon, two_worlds
from sordino.base.entropy import Entropy, Seeded, System
from sordino.mechanisms.contract import ContractBroken, check_noise
from sordino.mechanisms.shared import LOG_BETA, Rounding, SharedGrid, departure, moved

# 1. What the sum of rounded Gaussians is.


def rounded_normal(deviation: float, reach: int) -> Floats:
    """P(round(s Z) = k) for k from -reach to reach."""
    k = np.arange(-reach, reach + 1)
    above = stats.norm.sf((np.abs(k) - 0.5) / deviation) - stats.norm.sf(
        (np.abs(k) + 0.5) / deviation
    )
    found: Floats = np.where(k == 0, 1.0 - 2.0 * stats.norm.sf(0.5 / deviation), above)
    return found


def smoothed(deviation: float, boxes: int, reach: int) -> Floats:
    """(phi_S * box^boxes)(k): by quadrature of its characteristic function.

    The trapezoid rule on a whole line is exact for it, up to what lies beyond 12 / S.
    """
    t = np.linspace(-12.0 / deviation, 12.0 / deviation, 20_001)
    transform = np.exp(-0.5 * (deviation * t) ** 2) * np.sinc(t / (2.0 * math.pi)) ** boxes
    k = np.arange(-reach, reach + 1)
    found: Floats = (np.cos(np.outer(k, t)) @ transform) * (t[1] - t[0]) / (2.0 * math.pi)
    return found


@pytest.mark.parametrize("honest", [2, 3, 5, 9])
@pytest.mark.parametrize("deviation", [0.5, 0.7, 1.0])
def test_a_sum_of_rounded_gaussians_is_what_is_claimed(deviation: float, honest: int) -> None:
    """round(N + U_2 + ... + U_H) has the density (phi * box^H) at whole numbers, and the sum is
    within 1 +- e of it at each of them; one box fewer, or more, is not.
    """
    reach = 40
    one = rounded_normal(deviation, reach)
    true = one
    for _ in range(honest - 1):
        true = np.convolve(true, one)
    middle, near = len(true) // 2, int(4.0 * deviation * math.sqrt(honest))
    true = true[middle - near : middle + near + 1]
    whole = deviation * math.sqrt(honest)
    e = departure(deviation, honest)

    def off(boxes: int) -> float:
        return float(np.abs(true / smoothed(whole, boxes, near) - 1.0).max())

    assert off(honest) <= e
    if deviation == 1.0:  # where e is small enough to tell them apart
        assert min(off(honest - 1), off(honest + 1)) > 3.0 * e


def test_the_bound_is_not_far_from_the_truth() -> None:
    """At s = 0.5 a sum of two departs by nearly as much as the bound allows: it is no loose one."""
    one = rounded_normal(0.5, 40)
    true = np.convolve(one, one)[80 - 2 : 80 + 3]
    off = np.abs(true / smoothed(0.5 * math.sqrt(2.0), 2, 2) - 1.0).max()
    assert 0.2 * departure(0.5, 2) < off <= departure(0.5, 2)


def test_what_is_left_out_of_delta_is_nothing() -> None:
    assert departure(4.0, 10**6) < 1e-62
    worst = departure(4.0, 10**6) * 10**8 * 10**6  # d numbers in T releases
    assert worst < 1e-47
    assert 10**6 * math.exp(LOG_BETA) * (1.0 + math.exp(8.0)) < 2.0**-68


def test_parts_of_the_noise_have_the_sampler_s_distribution() -> None:
    """Whole numbers near zero come as often as they should, at a small s_i."""
    grid = SharedGrid(1.0, 4.0, (1.0,), 32, "nearest", 1.0, 1.0, -40.0)
    drawn = grid.drawn(400_000, np.random.default_rng(0))
    expected = rounded_normal(4.0, 14) * drawn.size
    counted = np.array([(drawn == k).sum() for k in range(-14, 15)])
    inside = expected > 20
    assert (
        stats.chisquare(
            np.append(counted[inside], drawn.size - counted[inside].sum()),
            np.append(expected[inside], drawn.size - expected[inside].sum()),
        ).pvalue
        > 1e-6
    )


def hockey_stick(one: Floats, other: Floats, epsilon: float) -> float:
    """delta(epsilon) of two distributions on the same places."""
    return float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum())


@pytest.mark.parametrize("rate", [0.2, 1.0])
@pytest.mark.parametrize(("deviation", "honest", "shift"), [(1.0, 4, 2), (2.0, 3, 3), (4.0, 2, 4)])
def test_no_sum_costs_more_than_the_gaussian_that_is_booked(
    rate: float, deviation: float, honest: int, shift: int
) -> None:
    """delta(epsilon) of sums with a record and without, number by number, in both directions, and
    sampled: never above that of the continuous pair; with one part of the noise less it is.
    """
    wide, one = 400, rounded_normal(deviation, 100)
    grid = np.linspace(-60.0, 60.0, 400_001)
    whole = deviation * math.sqrt(honest)
    there, gone = stats.norm.pdf(grid, shift, whole), stats.norm.pdf(grid, 0.0, whole)
    mixed = ((1.0 - rate) * gone + rate * there) * (grid[1] - grid[0])
    gone = gone * (grid[1] - grid[0])

    def exact(parts: int) -> tuple[Floats, Floats]:
        found = one
        for _ in range(parts - 1):
            found = np.convolve(found, one)
        without = np.pad(found, wide)
        return (1.0 - rate) * without + rate * np.roll(without, shift), without

    slack = 1.0 + 2.0 * departure(deviation, honest)
    for epsilon in (0.05, 0.2, 0.5, 1.0):
        pairs = ((mixed, gone), (gone, mixed))
        with_it, without = exact(honest)
        found = [hockey_stick(*pair, epsilon) for pair in ((with_it, without), (without, with_it))]
        most = [hockey_stick(*pair, epsilon) for pair in pairs]
        for seen, bound in zip(found, most, strict=True):
            assert seen <= bound * slack + 1e-6 * slack + (slack - 1.0) * math.exp(epsilon)
        fewer, alone = exact(honest - 1)
        assert hockey_stick(fewer, alone, epsilon) > most[0] * 1.01


# 2. What a record moves.


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 400), st.floats(0.0, 30.0))
def test_a_record_moves_no_more_than_is_booked(seed: int, d: int, length: float) -> None:
    """Both roundings, as the machine computes them, at random places and at the worst ones: where a
    number is a hair from the middle between two steps, or from a whole one.
    """
    rng = np.random.default_rng(seed)
    a = rng.normal(size=d) * 10.0 ** rng.integers(-3, 6)
    if seed % 2:
        a = np.round(a) + rng.choice([0.0, 0.5], d) + rng.choice([-1, 1], d) * 2.0**-30
    difference = rng.normal(size=d) * rng.choice([0.0, 1.0], d, p=[0.3, 0.7])
    if seed % 3 == 0:
        difference = np.where(a - np.rint(a) < 0, 1.0, -1.0) * 2.0**-29  # across the middle
    norm = np.linalg.norm(difference)
    b = a + (difference * length / norm if norm > length else difference)
    exact = float(np.linalg.norm(b - a)) * (1.0 + 1e-12)
    slack = math.sqrt(d) * 1e6 * 2.0**-51
    kinds: tuple[Rounding, ...] = ("nearest", "stochastic")
    for rounding in kinds:
        grid = SharedGrid(1.0, 4.0, (1e6,), 32, rounding, 1.0, 1.0, -40.0)
        left, right = (grid.rounded(v, 1e6, np.random.default_rng(seed)) for v in (a, b))
        change = float(np.linalg.norm(left - right))
        assert change <= bounds(exact, d)[rounding] + slack


def bounds(length: float, d: int) -> dict[str, float]:
    """Both bounds, written down once more."""
    root, t = math.sqrt(d), math.sqrt(-2.0 * LOG_BETA)
    return {
        "nearest": length + root,
        "stochastic": math.sqrt(length**2 + d / 4.0 + t * (length + root / 2.0)),
    }


def test_the_smaller_bound_counts() -> None:
    for length, d in itertools.product([0.1, 3.0, 1e5], [1, 10, 1000, 10**6]):
        told, rounding = moved(length, d)
        assert told == pytest.approx(min(bounds(length, d).values()))
        assert told == pytest.approx(bounds(length, d)[rounding])


def test_nearest_rounding_reaches_its_bound() -> None:
    """One that is any smaller would be broken."""
    a, d = 0.5 - 2.0**-40, 64
    grid = SharedGrid(1.0, 4.0, (10.0,), 32, "nearest", 1.0, 1.0, -40.0)
    low, high = (grid.rounded(np.full(d, x), 10.0, np.random.default_rng(0)) for x in (a, 1 - a))
    assert np.linalg.norm(high - low) == pytest.approx(bounds(0.0, d)["nearest"])


@pytest.mark.parametrize("fraction", [0.5, 0.1, 0.9, 0.3])
@pytest.mark.parametrize("length", [0.5, 4.0, 25.0])
def test_the_tail_of_stochastic_rounding(length: float, fraction: float) -> None:
    """Its square exceeds the bound for a larger beta no more often than that, in any direction;
    without the spread it does so most of the time.
    """
    d, times, beta = 30, 20_000, 0.01
    rng = np.random.default_rng(1)
    for direction in (np.ones(d), rng.normal(size=d), np.eye(d)[0]):
        b = np.floor(10.0 * rng.normal(size=d)) + fraction
        a = b + length * direction / np.linalg.norm(direction)
        u = rng.random((times, d))
        squares = ((np.floor(a + u) - np.floor(b + u)) ** 2).sum(1)
        mean = length**2 + d / 4.0
        spread = math.sqrt(-2.0 * math.log(beta)) * (length + math.sqrt(d) / 2.0)
        assert (squares > mean + spread).mean() <= beta
        if length < 1.0:
            assert (squares > length**2).mean() > beta


def test_clamping_brings_vectors_closer() -> None:
    rng = np.random.default_rng(0)
    grid = SharedGrid(0.25, 4.0, (8.0,), 32, "nearest", 1.0, 1.0, -40.0)
    a, b = rng.normal(size=(2, 500)) * 5.0
    left, right = (grid.rounded(v, 8.0, rng) for v in (a, b))
    assert np.abs(left).max() <= 8
    assert np.abs(left - right).max() <= np.abs(a - b).max() / 0.25 + 1
    odd = grid.rounded(np.array([np.nan, np.inf, -np.inf, 1e300]), 8.0, rng)
    assert odd.tolist() == [0, 8, -8, 8]


# 3. The noise of an opened sum has the scale that is booked.


@pytest.mark.parametrize("entropy", [Seeded(3), System(bytes(range(32)))])
@pytest.mark.parametrize("bits", [18, 32, 63])
def test_the_sum_s_noise_is_what_is_booked(entropy: Entropy, bits: int) -> None:
    d, sigma, clip = 20_000, 1.3, 0.7
    grid = noise(dimension=d, bits=bits, most=(2.0,) * 5).grid(clip, sigma)

    def draw(rng: np.random.Generator) -> Tensor:
        own = Seeded(int(rng.integers(2**62)))
        return from_numpy(opened(grid, [np.zeros(d)] * 5, own))

    check_noise(draw, sigma, clip * grid.growth)
    with pytest.raises(ContractBroken):  # a part of the noise less
        check_noise(lambda rng: draw(rng) * math.sqrt(4 / 5), sigma, clip * grid.growth)


def test_with_more_contributions_there_is_more_noise_and_never_less() -> None:
    assert noise(honest=1).honest == 1
    few, all_of_them = (noise(dimension=9000, honest=h).grid(1.0, 1.0) for h in (3, 5))
    assert few.deviation * few.step > all_of_them.deviation * all_of_them.step
    spread = [opened(few, [np.zeros(9000)] * count, Seeded(1)).std() for count in (3, 5)]
    assert spread[0] == pytest.approx(few.growth, rel=0.05)
    assert spread[1] == pytest.approx(few.growth * math.sqrt(5 / 3), rel=0.05)


def test_rounding_of_products_is_in_what_is_booked() -> None:
    """Each number of two vectors is off by 2^-53 of R twice: see _made."""
    rule, sigma, clip = noise(), 1.3, 0.7
    grid = rule.grid(clip, sigma)
    off = math.sqrt(rule.dimension) * max(grid.reach) * 2.0**-51
    assert grid.moved >= moved(clip / grid.step + off, rule.dimension)[0]
    assert grid.deviation > sigma * grid.moved / math.sqrt(rule.honest) * (1.0 + 2.0**-49)


# 4. What an adversary can tell.


def told_apart(grid: SharedGrid, honest: int, trials: int, delta: float) -> float:
    """Lower bound (99.9 %) of epsilon: one client's record is there, or contributes nothing.

    Every number of the vectors is a release of its own, of a record that moves one number by C.
    """
    zero, own = np.zeros(trials), np.ones(trials)
    without = opened(grid, [zero] * honest, Seeded(1))
    with_it = opened(grid, [own, *[zero] * (honest - 1)], Seeded(2))
    return two_worlds(with_it, without, "any", delta, 1e-3)


@pytest.mark.parametrize("bits", [16, 32])
def test_two_worlds_are_told_apart_no_better_than_is_booked(bits: int) -> None:
    sigma, delta, trials, h = 1.0, 1e-2, 300_000, 2
    grid = noise(most=(1.0,) * h, dimension=1, honest=h, bits=bits).grid(1.0, sigma)
    price = gaussian_epsilon(1.0 / sigma, delta)
    assert 0.8 * price < told_apart(grid, h, trials, delta) <= price
    half = noise(most=(1.0,) * h, dimension=1, honest=h, bits=bits).grid(1.0, sigma / 2.0)
    assert told_apart(half, h, trials, delta) > price
    # noise for one honest client fewer than is booked
    few = noise(most=(1.0,) * 3, dimension=1, honest=3, bits=bits).grid(1.0, sigma)
    assert told_apart(few, 2, trials, delta) > price
