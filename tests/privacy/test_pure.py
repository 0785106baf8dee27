"""Pure releases: against the optimal composition theorem, brute force, quadrature and another
library.
"""

import itertools
import math
import time

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountants import gaussian_delta
from sordino.privacy import (
    NAMES,
    Chosen,
    Composed,
    Event,
    Gaussian,
    PoissonSampled,
    Pure,
    Repeated,
    accountant,
    loss,
    most_steps,
    pure,
    renyi,
)
from sordino.privacy import noise_multiplier as calibrated
from sordino.privacy.accounting import Spent
from sordino.privacy.pure import Kind

DELTA = 1e-5


def sampled(rate: float, *events: Event) -> PoissonSampled:
    return PoissonSampled(
        sampling_rate=rate, event=events[0] if len(events) == 1 else Composed(events=events)
    )


def amplified(rate: float, epsilon: float) -> float:
    """log(1 + q (e^epsilon - 1))."""
    return math.log1p(rate * math.expm1(epsilon))


def optimal(epsilon: float, count: int, i: int) -> float:
    """Kairouz, Oh and Viswanath 2015, theorem 3.3: delta of ``count`` pure releases at (count - 2
    i) epsilon.
    """
    with mpmath.workdps(60):
        e, k = mpmath.mpf(epsilon), count
        terms = (
            mpmath.binomial(k, j) * (mpmath.exp((k - j) * e) - mpmath.exp((k - 2 * i + j) * e))
            for j in range(i)
        )
        return float(mpmath.fsum(terms) / (1 + mpmath.exp(e)) ** k)


@pytest.mark.parametrize(
    ("epsilon", "count"), [(0.1, 1), (0.1, 40), (1e-4, 3000), (1.2, 300), (3.0, 25), (30.0, 5)]
)
def test_unsampled_releases_cost_what_the_optimal_composition_theorem_says(
    epsilon: float, count: int
) -> None:
    kind = Kind(1.0, epsilon=epsilon)
    for i in {0, 1, 2, count // 4, count // 3, count // 2} & set(range(count // 2 + 1)):
        exact = optimal(epsilon, count, i)
        ours = pure.delta(kind, count, (count - 2 * i) * epsilon)
        assert exact * (1 - 1e-12) <= ours <= exact * (1 + 3e-9) + 1e-11 * epsilon * count
    assert pure.delta(kind, count, count * epsilon) == 0.0


# --- the table of soundness.md, section 3(d): true K-norm noise at eps0 = 0.1, n = 12 000, b = 12,
# delta = 1e-5 -----
# Its batches are drawn without replacement and its neighbours differ by replacing one: q = b/n, and
# eps' = log(1 + q (e^eps0 - 1)), composed as unsampled releases of eps'. Ours are Poisson samples
# of rate q under add or remove, where the same eps' holds, and where the sampled bit itself is
# composed, which is less.


@pytest.mark.parametrize(
    ("epsilon", "count", "basic", "best", "amplified_basic", "amplified_best"),
    [
        (0.1, 15_000, 1500, 126, 1.58, 0.036),
        (0.1, 3000, 300, 37.5, 0.32, 0.015),
        (1.2, 3000, 3600, 2165, 6.95, 0.44),
    ],
)
def test_the_table_of_compositions(
    epsilon: float,
    count: int,
    basic: float,
    best: float,
    amplified_basic: float,
    amplified_best: float,
) -> None:
    q = 12 / 12_000
    less = amplified(q, epsilon)
    price = accountant("pld").epsilon
    assert pure.most(Kind(1.0, epsilon=epsilon), count) == pytest.approx(basic)
    assert price([(Pure(epsilon=epsilon), count)], DELTA) == pytest.approx(best, rel=5e-3)
    assert pure.most(Kind(q, epsilon=epsilon), count) == pytest.approx(amplified_basic, rel=2e-2)
    theirs = price([(Pure(epsilon=less), count)], DELTA)
    assert theirs == pytest.approx(amplified_best, rel=3e-2)
    ours = price([(sampled(q, Pure(epsilon=epsilon)), count)], DELTA)
    assert 0.5 * theirs < ours < theirs


def brute(rate: float, epsilon: float, count: int, x: float) -> float:
    """delta at x over all outcomes of ``count`` sampled bits, in both directions."""
    with mpmath.workdps(40):
        one = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        without = (one, 1 - one)
        q = mpmath.mpf(rate)
        drawn = ((1 - q) * one + q * (1 - one), (1 - q) * (1 - one) + q * one)
        sides = [
            [
                mpmath.fprod(side[b] for b in bits)
                for bits in itertools.product((0, 1), repeat=count)
            ]
            for side in (drawn, without)
        ]
        return float(
            max(
                mpmath.fsum(max(a - mpmath.exp(x) * b, 0) for a, b in zip(*pair, strict=True))
                for pair in (sides, sides[::-1])
            )
        )


@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.7, 1.0])
@pytest.mark.parametrize(("epsilon", "count"), [(0.1, 3), (1.0, 8), (6.0, 5)])
def test_sampled_releases_cost_what_all_outcomes_add_up_to(
    rate: float, epsilon: float, count: int
) -> None:
    kind = Kind(rate, epsilon=epsilon)
    for part in (0.0, 0.03, 0.3, 0.8):
        x = part * pure.most(kind, count)
        exact = brute(rate, epsilon, count, x)
        assert exact <= pure.delta(kind, count, x) <= exact * (1 + 3e-9) + 1e-12


@pytest.mark.parametrize(
    ("rate", "epsilon"), [(1.0, 0.7), (0.3, 0.7), (0.01, 5.0), (1e-3, 88.6), (0.5, 900.0)]
)
@pytest.mark.parametrize("order", [1.1, 2.0, 8.0, 512.0])
def test_renyi_divergence_is_that_of_the_bit_in_the_larger_direction(
    rate: float, epsilon: float, order: float
) -> None:
    with mpmath.workdps(1000):
        q, one = mpmath.mpf(rate), 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        without = (one, 1 - one)
        drawn = ((1 - q) * one + q * (1 - one), (1 - q) * (1 - one) + q * one)
        a, b = (
            mpmath.log(
                mpmath.fsum(
                    x**order * y ** (1 - mpmath.mpf(order)) for x, y in zip(p, r, strict=True)
                )
            )
            / (order - 1)
            for p, r in ((drawn, without), (without, drawn))
        )
        assert b <= a * (1 + mpmath.mpf(10) ** -30)
        exact = float(a)
    ours = renyi.divergences(((Kind(rate, epsilon=epsilon), 1),), (order,))[0]
    assert exact * (1 - 1e-12) <= ours <= exact * (1 + 1e-9) + 3e-14
    if rate == 1.0:
        closed = math.log(
            (math.exp(order * epsilon) + math.exp((1 - order) * epsilon)) / (1 + math.exp(epsilon))
        ) / (order - 1)
        assert ours == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize("order", [2, 5])
@pytest.mark.parametrize(("rate", "sigma", "epsilon"), [(0.05, 1.4, 0.5), (0.3, 3.0, 2.0)])
def test_a_gaussian_and_a_pure_release_of_one_sample_against_quadrature(
    order: int, rate: float, sigma: float, epsilon: float
) -> None:
    with mpmath.workdps(30):
        s, q = mpmath.mpf(sigma), mpmath.mpf(rate)
        bits = [
            (1 / (1 + mpmath.exp(epsilon)), mpmath.mpf(epsilon)),
            (1 / (1 + mpmath.exp(-epsilon)), -mpmath.mpf(epsilon)),
        ]

        def moment(power: int) -> mpmath.mpf:
            """E without the record of (the sampled likelihood ratio) to a power."""
            return mpmath.fsum(
                p
                * mpmath.quad(
                    lambda z: (
                        mpmath.npdf(z, 0, s)
                        * (1 - q + q * mpmath.exp(told + (2 * z - 1) / (2 * s**2))) ** power  # noqa: B023
                    ),
                    [-20 * s, 0, order, order + 20 * s],
                )
                for p, told in bits
            )

        forth, back = (
            float(mpmath.log(moment(power)) / (order - 1)) for power in (order, 1 - order)
        )
    assert back <= forth
    (found,) = renyi.divergences(((Kind(rate, sigma, epsilon), 1),), (float(order),))
    assert found == pytest.approx(forth, rel=1e-9)


def test_of_one_sample_costs_more_than_of_two_and_less_than_without_sampling() -> None:
    gauss, coin = Gaussian(noise_multiplier=1.4), Pure(epsilon=0.5)
    for name in (*NAMES, "rdp@8"):
        price = accountant(name).epsilon
        together = price([(sampled(0.05, gauss, coin), 100)], DELTA)
        assert price([(sampled(0.05, gauss), 100), (sampled(0.05, coin), 100)], DELTA) < together
        assert together < price([(gauss, 100), (coin, 100)], DELTA)


@pytest.mark.parametrize("rate", [0.02, 1.0])
@pytest.mark.parametrize(("epsilon", "count"), [(0.1, 900), (0.8, 60), (4.0, 7)])
def test_on_a_grid_it_costs_a_hair_more_than_exactly(
    rate: float, epsilon: float, count: int
) -> None:
    """Beside a Gaussian so wide that it costs next to nothing, the grid must show the exact
    price.
    """
    kind, wide = Kind(rate, epsilon=epsilon), Kind(0.5, sigma=1e4)
    alone = loss.epsilon(((kind, count),), DELTA)
    assert (
        alone * (1 - 1e-9)
        <= loss.epsilon(tuple(sorted(((kind, count), (wide, 1)))), DELTA)
        <= alone * 1.01 + 2e-3
    )
    for part in (0.5, 0.9):
        exact = loss.delta(((kind, count),), alone * part)
        assert (
            exact * (1 - 1e-9)
            <= loss.delta(tuple(sorted(((kind, count), (wide, 1)))), alone * part)
            <= exact * 1.05 + 1e-9
        )


def test_a_mix_lies_above_an_optimistic_estimate_and_near_it() -> None:
    """Unsampled Gaussian and bits: delta by quadrature over the bits, in closed form given them."""
    sigma, epsilon, count = 5.0, 0.05, 100
    ours = accountant("pld").epsilon(
        [(Gaussian(noise_multiplier=sigma), 1), (Pure(epsilon=epsilon), count)], DELTA
    )
    one = 1 / (1 + math.exp(-epsilon))

    def exact(x: float) -> float:
        found = 0.0
        for ones in range(count + 1):
            told = (2 * ones - count) * epsilon
            weight = math.comb(count, ones) * one**ones * (1 - one) ** (count - ones)
            left = x - told  # of either sign: gaussian_delta holds for both
            found += weight * gaussian_delta(sigma, left)
        return found

    assert exact(ours) <= DELTA < exact(ours * 0.98)


def test_dp_accountings_distribution_agrees() -> None:
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    epsilon, count = 0.25, 80  # a multiple of the grid: nothing is rounded
    theirs = pld.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, 0.0), 0.125
    ).self_compose(count)
    ours = accountant("pld")
    assert ours.epsilon([(Pure(epsilon=epsilon), count)], DELTA) == pytest.approx(
        theirs.get_epsilon_for_delta(DELTA), rel=1e-6
    )
    for x in (1.0, 5.0, 9.0):
        assert ours.delta([(Pure(epsilon=epsilon), count)], x) == pytest.approx(
            theirs.get_delta_for_epsilon(x), rel=1e-6
        )
    both = theirs.compose(
        pld.from_gaussian_mechanism(
            2.0, sampling_prob=0.1, value_discretization_interval=0.125
        ).self_compose(50)
    )
    mixed = ours.epsilon(
        [(Pure(epsilon=epsilon), count), (sampled(0.1, Gaussian(noise_multiplier=2.0)), 50)], DELTA
    )
    # whose grid is coarser
    assert 0.97 * both.get_epsilon_for_delta(DELTA) < mixed <= both.get_epsilon_for_delta(DELTA)


@pytest.mark.parametrize("name", NAMES)
def test_without_any_delta_it_is_basic_composition(name: str) -> None:
    price = accountant(name)
    less = amplified(0.01, 0.5)
    assert price.epsilon([(sampled(0.01, Pure(epsilon=0.5)), 20)], 1e-300) <= 20 * less * (
        1 + 1e-12
    )
    assert price.epsilon(
        [(sampled(0.01, Pure(epsilon=0.5)), 1), (Pure(epsilon=2.0), 3)], 1e-300
    ) <= (6.0 + less) * (1 + 1e-12)
    assert price.delta([(Pure(epsilon=0.5), 20)], 10.0) == 0.0
    noisy = Gaussian(noise_multiplier=3.0)
    mixed = price.epsilon([(noisy, 1), (Pure(epsilon=0.01), 1)], 1e-9)
    assert (
        price.epsilon([(noisy, 1)], 1e-9)
        <= mixed
        <= price.epsilon([(noisy, 1)], 1e-9) + 0.01 + 1e-12
    )


@given(
    rate=st.floats(1e-4, 1.0),
    epsilon=st.floats(1e-3, 20.0),
    count=st.integers(1, 2000),
    delta=st.sampled_from([1e-3, 1e-6, 1e-12]),
)
@settings(max_examples=60, deadline=None)
def test_bounds_are_ordered_and_monotone(
    rate: float, epsilon: float, count: int, delta: float
) -> None:
    step = sampled(rate, Pure(epsilon=epsilon))
    price = accountant("pld").epsilon
    here = price([(step, count)], delta)
    slack = 1 + 1e-9
    assert here <= price([(sampled(rate, Pure(epsilon=epsilon * 1.1)), count)], delta) * slack
    assert (
        here
        <= price([(sampled(min(1.0, rate * 1.1), Pure(epsilon=epsilon)), count)], delta) * slack
    )
    assert here <= price([(step, count + 1)], delta) * slack
    assert here <= price([(step, count)], delta / 10) * slack
    # the sampled bit is less than eps'
    assert here <= price([(Pure(epsilon=amplified(rate, epsilon)), count)], delta) * slack
    assert (
        here
        <= accountant("rdp").epsilon([(step, count)], delta)
        <= accountant("rdp-classic").epsilon([(step, count)], delta) * 1.2 + 0.1
    )
    assert accountant("pld").delta([(step, count)], here) <= delta * (1 + 1e-6)
    assert price([(Repeated(event=step, count=count), 1)], delta) == here


@pytest.mark.parametrize("epsilon", [1e-300, 1e-12, 1e5, 1e99, 1e200, 1e308])
@pytest.mark.parametrize("rate", [1e-12, 0.3, 1.0 - 1e-12, 1.0])
def test_no_epsilon_is_too_small_or_too_large(epsilon: float, rate: float) -> None:
    for name in (*NAMES, "rdp@8"):
        histories: tuple[Spent, ...] = (
            [(sampled(rate, Pure(epsilon=epsilon)), 30)],
            [
                (sampled(rate, Repeated(event=Pure(epsilon=epsilon), count=7)), 30),
                (Gaussian(noise_multiplier=2.0), 3),
            ],
            [(sampled(rate, Gaussian(noise_multiplier=2.0), Pure(epsilon=epsilon)), 3)],
        )
        for spent in histories:
            shown = accountant(name).epsilon(spent, DELTA)
            assert shown >= 0.0
            assert math.isinf(shown) or epsilon < 1e100
            assert 0.0 <= accountant(name).delta(spent, min(shown, 1e300)) <= 1.0


def test_as_fast_as_it_is_used() -> None:
    pure._composed.cache_clear()
    began = time.perf_counter()
    accountant("pld").epsilon([(sampled(0.00123, Pure(epsilon=0.0987)), 15_000)], 1.23e-5)
    assert time.perf_counter() - began < 1.0


def test_too_many_to_add_up_still_have_a_bound() -> None:
    many = [(sampled(1e-3, Pure(epsilon=0.1)), 10**13)]
    assert loss.delta(((Kind(1e-3, epsilon=0.1), 10**13),), 1e6) == 1.0
    assert (
        accountant("pld").epsilon(many, DELTA) == accountant("rdp").epsilon(many, DELTA) < math.inf
    )


@pytest.mark.parametrize("name", [*NAMES, "rdp@8"])
def test_steps_and_noise_are_found_for_it(name: str) -> None:
    step = sampled(0.01, Pure(epsilon=0.7))
    price = accountant(name).epsilon
    steps = most_steps(step, epsilon=2.0, delta=DELTA, accountant=name)
    assert price([(step, steps)], DELTA) <= 2.0 < price([(step, steps + 1)], DELTA)
    sigma = calibrated(
        sampling_rate=0.01,
        steps=100,
        epsilon=2.0,
        delta=DELTA,
        accountant=name,
        release=lambda s: Pure(epsilon=10.0 / s),
    )
    at, below = (
        price([(sampled(0.01, Pure(epsilon=10.0 / s)), 100)], DELTA) for s in (sigma, sigma - 1e-4)
    )
    assert at <= 2.0 < below


def test_chosen_along_the_way_it_is_bounded_by_its_own_order_alone() -> None:
    inside = sampled(0.05, Pure(epsilon=0.4))
    chosen = Chosen(order=8.0, event=inside)
    own = accountant("rdp@8")
    assert (
        own.epsilon([(chosen, 30), (inside, 5)], DELTA)
        == own.epsilon([(inside, 35)], DELTA)
        < math.inf
    )
    (value,) = renyi.divergences(((Kind(0.05, epsilon=0.4), 1),), (8.0,))
    assert own.epsilon([(chosen, 30)], DELTA) == pytest.approx(
        30 * value + math.log(7 / 8) - math.log(8 * DELTA) / 7
    )
    for name in (*NAMES, "rdp@6"):
        assert math.isinf(accountant(name).epsilon([(chosen, 1)], DELTA))


@pytest.mark.parametrize(
    "kind", [Kind(0.02, epsilon=0.4), Kind(1.0, epsilon=0.4), Kind(0.3, epsilon=6.0)]
)
def test_the_grid_keeps_both_sides_whole(kind: Kind) -> None:
    """Mass is 1 with the record; exp(-loss) makes it that without, of which only what was put
    higher can be missing.
    """
    for side in (True, False):
        found = pure.on_grid(kind, 300, 2.0**-7, with_record=side)
        assert found is not None
        lowest, mass, infinite = found
        points = (lowest + np.arange(len(mass))) * 2.0**-7
        assert (mass >= 0.0).all()
        assert 1.0 <= mass.sum() + infinite <= 1.0 + 2e-9
        assert mass @ np.exp(-points) <= 1.0 + 2e-9
        for x in (0.1, 1.0):
            spread = infinite + float(mass @ -np.expm1(np.minimum(x - points, 0.0)))
            assert spread >= _one_direction(kind, 300, x, side=side) * (1 - 1e-12)


def _one_direction(kind: Kind, count: int, x: float, *, side: bool) -> float:
    composed = pure._composed(kind, count, side)
    assert composed is not None
    losses, mass = composed
    return float(mass @ -np.expm1(np.minimum(x - losses, 0.0)))
