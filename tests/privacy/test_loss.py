"""Bounds on the privacy loss against exact integrals, a lower bound, and where arithmetic gets
thin.
"""

import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from sordino.privacy import Gaussian, NonPrivate, PoissonSampled, Repeated, accountant, loss, renyi
from sordino.privacy.accounting import flatten
from sordino.privacy.event import Composed, Nothing, Pure
from sordino.privacy.pure import Kind, Steps

Floats = NDArray[np.float64]


def history(*parts: tuple[float, float, int]) -> Steps:
    """Gaussian steps: (q, sigma, how often)."""
    return tuple((Kind(q, sigma), count) for q, sigma, count in parts)


def exact_gaussian(mu: float, epsilon: float) -> float:
    with mpmath.workdps(80):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))


@pytest.mark.parametrize("mu", [1e-4, 0.03, 0.5, 3.0, 40.0])
def test_the_closed_form_is_exact_and_never_too_small(mu: float) -> None:
    for z in (-3.0, 0.0, 2.0, 5.0, 9.0):
        epsilon = mu * mu / 2 + z * mu
        if epsilon >= 0.0:
            exact, ours = exact_gaussian(mu, epsilon), float(loss.gaussian_delta(mu, epsilon))
            assert exact <= ours <= exact * (1 + 1e-9) + 3e-15


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12, 1e-30, 1e-200])
def test_unsampled_steps_are_priced_exactly_at_any_delta(delta: float) -> None:
    ours = loss.epsilon(history((1.0, 3.0, 4), (1.0, 7.0, 10)), delta)
    mu = math.sqrt(4 / 9 + 10 / 49)
    assert exact_gaussian(mu, ours) <= delta < exact_gaussian(mu, ours * (1 - 1e-6))


# --- one and two sampled steps by quadrature, in both directions ---------------------------------
# With the record: P = (1 - q) N(0, s^2) + q N(1, s^2); without: Q = N(0, s^2).


def one_step(q: float, s: float, epsilon: Floats, *, with_record: bool) -> Floats:
    """The hockey-stick divergence of P from Q (or of Q from P) at any real epsilon, in closed
    form.
    """

    def phi(x: Floats) -> Floats:
        return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])

    def p_above(t: Floats) -> Floats:
        return (1 - q) * phi(-t / s) + q * phi((1 - t) / s)

    if with_record:  # P beats e^epsilon Q above t, everywhere if e^epsilon <= 1 - q
        inside = (np.exp(epsilon) - 1 + q) / q
        t = np.where(inside > 0, s * s * np.log(np.maximum(inside, 1e-300)) + 0.5, -1e9)
        return np.asarray(p_above(t) - np.exp(epsilon) * phi(-t / s))
    # Q beats e^epsilon P below t, nowhere if e^-epsilon <= 1 - q
    inside = (np.exp(-epsilon) - 1 + q) / q
    t = np.where(inside > 0, s * s * np.log(np.maximum(inside, 1e-300)) + 0.5, -1e9)
    return np.asarray(phi(t / s) - np.exp(epsilon) * (1 - p_above(t)))


def two_steps(q: float, s: float, epsilon: float, *, with_record: bool) -> float:
    """E over the first step's answer of the second step's divergence at what is left of epsilon."""
    z = np.linspace(-12 * s, 1 + 12 * s, 8001)
    base, shifted = np.exp(-z * z / (2 * s * s)), np.exp(-((z - 1) ** 2) / (2 * s * s))
    mixed = (1 - q) * base + q * shifted
    ratio = np.log1p(q * np.expm1((2 * z - 1) / (2 * s * s)))
    density, spent = (mixed, ratio) if with_record else (base, -ratio)
    return float(
        np.trapezoid(density * one_step(q, s, epsilon - spent, with_record=with_record), z)
        / (s * math.sqrt(2 * math.pi))
    )


@pytest.mark.parametrize(("q", "s"), [(0.015, 1.1), (0.2, 0.7), (0.5, 3.0), (0.9, 0.4)])
@pytest.mark.parametrize("steps", [1, 2])
def test_sampled_steps_against_quadrature(q: float, s: float, steps: int) -> None:
    for epsilon in (0.05, 0.5, 2.0):
        if steps == 1:
            sides = [
                float(one_step(q, s, np.array([epsilon]), with_record=side)[0])
                for side in (True, False)
            ]
        else:
            sides = [two_steps(q, s, epsilon, with_record=side) for side in (True, False)]
        ours = loss.delta(history((q, s, steps)), epsilon)
        assert max(sides) * (1 - 1e-9) <= ours <= max(sides) * 1.005 + 1e-12


@pytest.mark.parametrize(
    ("q", "s", "steps", "grid"),
    [(0.015, 1.1, 716, 1e-4), (0.06, 2.32, 316, 1e-4), (0.3, 0.35, 5, 1e-3)],
)
def test_composition_lies_just_above_an_optimistic_estimate(
    q: float, s: float, steps: int, grid: float
) -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    low = pld.from_gaussian_mechanism(
        s,
        sampling_prob=q,
        value_discretization_interval=grid,
        pessimistic_estimate=False,
        use_connect_dots=False,
    ).self_compose(steps)
    floor = low.get_epsilon_for_delta(1e-5)
    for quick, slack in ((False, 0.015), (True, 0.02)):
        assert (
            floor
            <= loss.epsilon(history((q, s, steps)), 1e-5, quick=quick)
            <= floor * (1 + slack) + 0.02
        )


@pytest.mark.parametrize(
    ("mu", "count"), [(1.0, 10), (3.0, 1000), (1.0, 4000), (3.0, 10**4), (1.0, 10**6)]
)
def test_rounding_of_the_composition_never_lowers_a_small_delta(mu: float, count: int) -> None:
    """A sampling rate just below 1 goes through the grid and the FFT, and the truth is the closed
    form.
    """
    nearly = history((1.0 - 1e-12, math.sqrt(count) / mu, count))
    for delta in (1e-5, 1e-8, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14):
        shown = loss.epsilon(nearly, delta)
        assert math.isinf(shown) or exact_gaussian(mu, shown) <= delta
    assert exact_gaussian(mu, loss.epsilon(nearly, 1e-5)) > 0.97e-5


def binomial_tail(count: int, q: float, k: int) -> float:
    """P(Bin(count, q) > k), summed term by term."""
    with mpmath.workdps(40):
        rate = mpmath.mpf(q)
        log_first = mpmath.loggamma(count + 1) - mpmath.loggamma(k + 2) - mpmath.loggamma(count - k)
        term = mpmath.exp(
            log_first + (k + 1) * mpmath.log(rate) + (count - k - 1) * mpmath.log(1 - rate)
        )
        total, j = mpmath.mpf(0), k + 1
        while j <= count and (j <= count * q + 1 or term > total * mpmath.mpf(10) ** -15):
            total += term
            term *= mpmath.mpf(count - j) / (j + 1) * rate / (1 - rate)
            j += 1
        return float(total)


@pytest.mark.parametrize(
    ("q", "count"), [(0.01, 1000), (0.3, 5), (1e-6, 10**6), (0.5, 10**5), (1e-4, 10**9)]
)
def test_inclusions_never_lose_probability(q: float, count: int) -> None:
    """At every bucket's edge, at least as much lies above as in the binomial."""
    reached, mass = loss._inclusions(q, count)
    assert mass.sum() == pytest.approx(1.0, abs=1e-12)
    assert (mass >= 0.0).all()
    for k in reached[:: max(1, len(reached) // 7)][:-1]:
        exact = binomial_tail(count, q, int(k))
        assert exact - 1e-15 <= mass[reached > k].sum() <= exact * (1 + 1e-5) + 1e-15


def test_hardly_any_noise_has_its_true_price() -> None:
    """Literal forms: the epsilon of the inclusions at delta, by the binomial's own quantile."""
    sigma, q, count, delta = 1.05e-5, 0.01, 1000, 1e-5
    total, reach = 0.0, 0
    while 1.0 - total > delta:
        total += math.comb(count, reach) * q**reach * (1 - q) ** (count - reach)
        reach += 1
    # so many inclusions happen with probability just over delta
    likely = (reach - 1) / (2 * sigma * sigma)
    shown = accountant("pld").epsilon(
        [(PoissonSampled(sampling_rate=q, event=Gaussian(noise_multiplier=sigma)), count)], delta
    )
    assert likely * 0.999 <= shown <= likely * (1 + 2 / reach)
    assert math.isfinite(
        accountant("rdp").epsilon(
            [(PoissonSampled(sampling_rate=q, event=Gaussian(noise_multiplier=sigma)), count)],
            delta,
        )
    )


@pytest.mark.parametrize("q", [0.02, 0.5])
def test_the_two_arithmetics_agree_where_they_meet(q: float) -> None:
    """The grid and the count of inclusions are both upper bounds; at sigma 0.05 they are within a
    few percent.
    """
    grid, counted = (loss.epsilon(history((q, sigma, 20)), 1e-5) for sigma in (0.05, 0.04999))
    assert grid <= counted <= 1.05 * grid


def test_unsampled_steps_with_hardly_any_noise_cost_what_one_gaussian_costs() -> None:
    """Also beside a sampled one, which is drawn with a probability of 1/2."""
    for unsampled in ((1.0, 0.02, 1), (1.0, 0.04, 4)):
        exact = exact_gaussian(50.0, 1250.0)
        assert exact <= loss.delta(history(unsampled), 1250.0) <= 1.001 * exact
        drawn = (exact + exact_gaussian(math.sqrt(2500.0 + 625.0), 1250.0)) / 2
        beside = loss.delta(history(unsampled, (0.5, 0.04, 1)), 1250.0)
        assert drawn <= beside <= 1.001 * drawn


def test_histories_of_both_kinds_cost_more_than_either() -> None:
    harsh, mild = (0.01, 0.01, 10), (0.015, 1.1, 100)
    both = loss.epsilon(history(harsh, mild), 1e-5)
    assert (
        max(loss.epsilon(history(part), 1e-5) for part in (harsh, mild))
        < both
        < 1.2 * loss.epsilon(history(harsh), 1e-5) + 5.0
    )
    # each promises half of delta
    assert both == sum(loss.epsilon(history(part), 0.5e-5) for part in (harsh, mild))
    assert loss.delta(history(harsh, mild), both * 1.1) <= 1e-4


def test_many_nearly_lossless_steps_are_not_priced_by_the_grid() -> None:
    """A grid far wider than the losses would say 0.13; the central limit says about 0.02."""
    shown = accountant("pld").epsilon(
        [(PoissonSampled(sampling_rate=1e-4, event=Gaussian(noise_multiplier=10.0)), 10**6)], 1e-5
    )
    assert 0.02 < shown < 0.04
    assert math.isinf(loss.epsilon(history((1e-4, 10.0, 10**6)), 1e-5))


@pytest.mark.parametrize(("q", "s"), [(1e-9, 100.0), (1e-6, 3.0)])
def test_divergences_below_rounding_are_still_bounds(q: float, s: float) -> None:
    """At order 2 the divergence is log(1 + q^2 (e^(1/s^2) - 1))."""
    exact = math.log1p(q * q * math.expm1(1 / s**2))
    assert exact <= renyi.divergences(((Kind(q, s), 1),), (2.0,))[0] <= exact + 1e-12


def test_flattening() -> None:
    gauss = Gaussian(noise_multiplier=2.0)
    assert flatten(
        [
            (
                PoissonSampled(
                    sampling_rate=0.5, event=PoissonSampled(sampling_rate=0.1, event=gauss)
                ),
                2,
            )
        ]
    ) == history((0.05, 2.0, 2))
    assert flatten(
        [(PoissonSampled(sampling_rate=0.5, event=Repeated(event=gauss, count=4)), 3)]
    ) == history((0.5, 1.0, 3))
    assert flatten(
        [(PoissonSampled(sampling_rate=0.5, event=Composed(events=(Nothing(), gauss))), 3)]
    ) == history((0.5, 2.0, 3))
    assert (
        flatten(
            [
                (
                    PoissonSampled(
                        sampling_rate=0.5, event=Composed(events=(gauss, NonPrivate(reason="raw")))
                    ),
                    1,
                )
            ]
        )
        is None
    )
    assert (
        flatten(
            [
                (PoissonSampled(sampling_rate=0.5, event=Nothing()), 1),
                (Repeated(event=gauss, count=0), 1),
            ]
        )
        == ()
    )
    assert flatten([(NonPrivate(reason="raw"), 1), (gauss, 1)]) is None
    coin = Pure(epsilon=0.3)
    assert flatten([(coin, 2), (Repeated(event=coin, count=3), 1), (Pure(epsilon=0.0), 9)]) == (
        (Kind(1.0, epsilon=0.3), 5),
    )
    both = Composed(events=(Repeated(event=coin, count=2), gauss, Pure(epsilon=0.1)))
    assert flatten([(PoissonSampled(sampling_rate=0.5, event=both), 4)]) == (
        (Kind(0.5, 2.0, 0.7), 4),
    )
    assert flatten([(PoissonSampled(sampling_rate=1.0, event=both), 4)]) == (
        (Kind(1.0, 2.0), 4),
        (Kind(1.0, epsilon=0.7), 4),
    )
    assert (
        flatten(
            [
                (
                    PoissonSampled(
                        sampling_rate=0.5, event=Composed(events=(coin, NonPrivate(reason="raw")))
                    ),
                    1,
                )
            ]
        )
        is None
    )
    assert flatten([(Gaussian(noise_multiplier=1e-300), 1)]) is None
    inside = PoissonSampled(
        sampling_rate=0.5, event=Composed(events=(PoissonSampled(sampling_rate=0.5, event=gauss),))
    )
    with pytest.raises(
        TypeError, match=r"no accountant here can price PoissonSampled.* inside a sample"
    ):
        flatten([(inside, 1)])


def test_the_room_opens_quickly_and_without_its_heavy_libraries() -> None:
    code = (
        "import sys, sordino.privacy; print([m for m in ('dp_accounting', 'scipy', 'numpy', "
        "'torch') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
