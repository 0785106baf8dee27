"""Accountants against golden numbers, closed forms, quadrature and another library."""

import math
import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountants import ContractBroken, check_accountant, gaussian_delta
from sordino.base.errors import StudyError
from sordino.privacy import (
    NAMES,
    Chosen,
    Gaussian,
    PoissonSampled,
    accountant,
    decode,
    encode,
    epsilon_after,
    most_steps,
    noise_multiplier,
)
from sordino.privacy.accounting import Spent
from sordino.privacy.pure import Kind
from sordino.privacy.renyi import divergences

GOLDEN = tomllib.loads((Path(__file__).parent.parent / "golden" / "steps.toml").read_text())
STEP = PoissonSampled(
    sampling_rate=GOLDEN["sampling_rate"],
    event=Gaussian(noise_multiplier=GOLDEN["noise_multiplier"]),
)


@pytest.mark.parametrize("name", NAMES)
def test_keeps_the_contract(name: str) -> None:
    check_accountant(accountant(name))


@pytest.mark.parametrize("factor", [0.9, 1.0])
def test_the_contract_sees_an_accountant_that_is_too_kind(factor: float) -> None:
    @dataclass(frozen=True)
    class Kind:
        name: str = "kind"
        bound: str = "none"

        def delta(self, spent: Spent, epsilon: float) -> float:
            return accountant("pld").delta(spent, epsilon)

        def epsilon(self, spent: Spent, delta: float, *, quick: bool = False) -> float:
            return factor * accountant("pld").epsilon(spent, delta)

    if factor < 1.0:
        with pytest.raises(ContractBroken):
            check_accountant(Kind())
    else:
        check_accountant(Kind())


@pytest.mark.parametrize("name", NAMES)
def test_golden_table(name: str) -> None:
    for epsilon, steps in zip(GOLDEN["epsilon"], GOLDEN["steps"][name], strict=True):
        assert most_steps(STEP, epsilon=epsilon, delta=GOLDEN["delta"], accountant=name) == steps
        at, beyond = (
            accountant(name).epsilon([(STEP, n)], GOLDEN["delta"]) for n in (steps, steps + 1)
        )
        assert at <= epsilon < beyond


def test_the_papers_printed_steps_overshoot_their_own_accountant() -> None:
    spent = [accountant("rdp-classic").epsilon([(STEP, n)], 1e-5) for n in GOLDEN["printed"]]
    assert [round(value, 4) for value in spent] == [
        1.5504,
        1.7551,
        2.0050,
        2.5024,
        2.7562,
        3.2554,
        3.8063,
        5.2332,
    ]


@pytest.mark.parametrize(("sigma", "count"), [(0.8, 1), (2.0, 10), (10.0, 300)])
def test_pld_is_tight_where_the_truth_is_known(sigma: float, count: int) -> None:
    shown = accountant("pld").epsilon([(Gaussian(noise_multiplier=sigma), count)], 1e-5)
    whole = sigma / math.sqrt(count)
    assert gaussian_delta(whole, shown) <= 1e-5 < gaussian_delta(whole, shown * 0.995)


@pytest.mark.parametrize("order", [2, 5, 17])
@pytest.mark.parametrize(("rate", "sigma"), [(0.015, 1.1), (0.2, 2.0)])
def test_renyi_divergence_against_quadrature(order: int, rate: float, sigma: float) -> None:
    """E_{z ~ N(0, sigma^2)} [((1 - q) + q exp((2z - 1) / (2 sigma^2)))^alpha], by mpmath."""
    with mpmath.workdps(30):
        s, q = mpmath.mpf(sigma), mpmath.mpf(rate)
        moment = mpmath.quad(
            lambda z: (
                mpmath.npdf(z, 0, s) * ((1 - q) + q * mpmath.exp((2 * z - 1) / (2 * s**2))) ** order
            ),
            [-20 * s, 0, order, order + 20 * s],
        )
        exact = float(mpmath.log(moment) / (order - 1))
    assert divergences(((Kind(rate, sigma), 1),), (float(order),))[0] == pytest.approx(
        exact, rel=1e-9
    )


def test_opacus_agrees() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant, RDPAccountant

        rdp, prv = RDPAccountant(), PRVAccountant()
        for ledger in (rdp, prv):
            ledger.history = [(1.1, 0.015, 317)]
        theirs = {"rdp": rdp.get_epsilon(1e-5), "pld": prv.get_epsilon(1e-5)}
    for name, value in theirs.items():
        assert accountant(name).epsilon([(STEP, 317)], 1e-5) == pytest.approx(value, rel=0.01)


@pytest.mark.parametrize("count", [1, 50, 700])
def test_the_quick_bound_is_no_lower_than_the_fine_one(count: int) -> None:
    fine, quick = (accountant("pld").epsilon([(STEP, count)], 1e-5, quick=q) for q in (False, True))
    assert fine < quick <= 1.01 * fine
    assert accountant("pld").epsilon([(STEP, count)], 1e-5) == fine


@given(
    q=st.floats(0.005, 0.3),
    steps=st.integers(1, 3000),
    epsilon=st.floats(0.2, 10.0),
    delta=st.sampled_from([1e-3, 1e-5, 1e-7]),
)
@settings(max_examples=6, deadline=None)
def test_calibrated_noise_is_on_the_safe_side_and_not_wasteful(
    q: float, steps: int, epsilon: float, delta: float
) -> None:
    sigma = noise_multiplier(
        sampling_rate=q, steps=steps, epsilon=epsilon, delta=delta, accountant="rdp"
    )

    def spent(value: float) -> float:
        return accountant("rdp").epsilon(
            [(PoissonSampled(sampling_rate=q, event=Gaussian(noise_multiplier=value)), steps)],
            delta,
        )

    assert spent(sigma) <= epsilon
    assert spent(round(sigma - 1e-4, 4)) > epsilon


def test_noise_of_a_schedule_is_calibrated_in_multiples() -> None:
    sigma = noise_multiplier(
        sampling_rate=0.1, steps=[(1.0, 60), (0.5, 20)], epsilon=3.0, delta=1e-5, accountant="rdp"
    )

    def spent(sigma: float) -> float:
        noisy = [Gaussian(noise_multiplier=sigma * factor) for factor in (1.0, 0.5)]
        events = [PoissonSampled(sampling_rate=0.1, event=each) for each in noisy]
        return accountant("rdp").epsilon(list(zip(events, (60, 20), strict=True)), 1e-5)

    assert spent(sigma) <= 3.0 < spent(sigma - 1e-4)


@pytest.mark.parametrize(("q", "steps"), [(0.06, 316), (0.015, 716), (1.0, 20)])
def test_calibration_and_most_steps_invert_each_other_under_pld(q: float, steps: int) -> None:
    sigma = noise_multiplier(
        sampling_rate=q, steps=steps, epsilon=2.0, delta=1e-5, accountant="pld"
    )
    event = PoissonSampled(sampling_rate=q, event=Gaussian(noise_multiplier=sigma))
    assert steps <= most_steps(event, epsilon=2.0, delta=1e-5, accountant="pld") <= steps * 1.01 + 1
    less = PoissonSampled(sampling_rate=q, event=Gaussian(noise_multiplier=round(sigma - 1e-4, 4)))
    at, over = (accountant("pld").epsilon([(noisy, steps)], 1e-5) for noisy in (event, less))
    assert at <= 2.0 < over


def test_curve_ends_at_the_fine_bound() -> None:
    curve = epsilon_after(STEP, [1, 100, 716], delta=1e-5, accountant="pld")
    assert list(curve) == sorted(curve)
    assert curve[-1] == accountant("pld").epsilon([(STEP, 716)], 1e-5) <= 2.0


def test_most_steps_at_the_edges() -> None:
    assert (
        most_steps(Gaussian(noise_multiplier=0.1), epsilon=1.0, delta=1e-5, accountant="pld") == 0
    )
    with pytest.raises(StudyError, match="infinite epsilon"):
        most_steps(STEP, epsilon=math.inf, delta=1e-5, accountant="pld")
    with pytest.raises(StudyError, match="did you mean 'pld'"):
        accountant("pdl")
    for delta in (0.0, 1.0, -1.0):
        with pytest.raises(StudyError, match="delta must lie between 0 and 1"):
            accountant("pld").epsilon([(STEP, 1)], delta)


@pytest.mark.parametrize("order", [2.0, 4.5, 8.0, 32.0])
def test_one_order_is_dp_accountings_own_at_that_order(order: float) -> None:
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    sampled = PoissonSampled(sampling_rate=0.05, event=Gaussian(noise_multiplier=1.4))
    spent: Spent = [(sampled, 70), (Gaussian(noise_multiplier=9.0), 3)]
    other = RdpAccountant(orders=[order])
    other.compose(dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(1.4)), 70)
    other.compose(dp.GaussianDpEvent(9.0), 3)
    ours = accountant(f"rdp@{order:g}")
    assert ours.epsilon(spent, 1e-5) == pytest.approx(other.get_epsilon(1e-5), rel=1e-6)
    assert ours.epsilon(spent, 1e-5) >= accountant("rdp").epsilon(spent, 1e-5)
    assert ours.delta(spent, ours.epsilon(spent, 1e-5)) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize("name", ["rdp@1", "rdp@", "rdp@x", "rdp@1025"])
def test_orders_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(StudyError, match="rdp@8"):
        accountant(name)


def test_noise_chosen_along_the_way_is_bounded_by_its_own_order_alone() -> None:
    inside = PoissonSampled(sampling_rate=0.05, event=Gaussian(noise_multiplier=1.4))
    chosen = Chosen(order=8.0, event=inside)
    assert decode(encode(chosen)) == chosen
    own = accountant("rdp@8")
    assert own.epsilon([(chosen, 30), (inside, 5)], 1e-5) == own.epsilon([(inside, 35)], 1e-5)
    for name in (*NAMES, "rdp@6"):
        assert math.isinf(accountant(name).epsilon([(inside, 5), (chosen, 1)], 1e-5))
        assert accountant(name).delta([(chosen, 1)], 2.0) == 1.0
    with pytest.raises(StudyError, match="above 1"):
        Chosen(order=1.0, event=inside)


@pytest.mark.parametrize("name", ["pld", "rdp", "rdp-classic"])
@pytest.mark.parametrize("rate", [5e-324, 1e-310, 1 - 2**-53])
def test_rates_at_the_ends_of_floating_point_have_a_price(name: str, rate: float) -> None:
    sampled = PoissonSampled(rate, Gaussian(5.0))
    nested = PoissonSampled(1e-200, PoissonSampled(1e-200, Gaussian(5.0)))
    other = (Gaussian(20.0), 1)
    priced = accountant(name)
    alone = priced.epsilon([other], 1e-5)
    for event in (sampled, nested):
        found = priced.epsilon([(event, 100), other], 1e-5)
        assert alone <= found < math.inf
    whole = priced.epsilon([(Gaussian(5.0), 100), other], 1e-5)
    assert priced.epsilon([(sampled, 100), other], 1e-5) <= whole
