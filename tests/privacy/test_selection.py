"""The price of the best of a random number of runs: against its exact value, against Papernot and
Steinke's theorems written down independently, and against a price that was not paid.
"""

import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats  # type: ignore[import-untyped]

from accountants import check_accountant
from sordino.base.errors import LedgerError, StudyError
from sordino.privacy import (
    Budget,
    Gaussian,
    PoissonSampled,
    Repeated,
    Selected,
    accountant,
    decode,
    encode,
    noise_multiplier,
)
from sordino.privacy.event import NegativeBinomial, Poisson, Trials
from sordino.privacy.parts import expected, law, missed, name_of, number, ratio
from sordino.privacy.records.group import grouped

DELTA = 1e-5
STEP = PoissonSampled(sampling_rate=0.15, event=Gaussian(noise_multiplier=6.0))
LAWS = [law("geometric", 10.0), law("logarithmic", 10.0), law("poisson", 8.0)]


def slope(drawn: Trials, x: Any) -> Any:
    """f', the derivative of the generating function, of each law as its paper has it."""
    if isinstance(drawn, Poisson):
        return drawn.mean * np.exp(drawn.mean * (x - 1.0))
    eta, gamma = drawn.eta, drawn.gamma
    if eta == 0.0:
        return (1 - gamma) / ((1 - (1 - gamma) * x) * math.log(1 / gamma))
    return eta * (1 - gamma) * (1 - (1 - gamma) * x) ** (-eta - 1) / (gamma**-eta - 1)


def exact_delta(drawn: Trials, sigma: float, epsilon: float) -> float:
    """delta of the best of K noisy scores: N(1, sigma) with the record, N(0, sigma) without."""
    y = np.linspace(-12 * sigma, 1 + 12 * sigma, 400_001)
    found = []
    for one, other in ((1.0, 0.0), (0.0, 1.0)):
        density = [
            slope(drawn, stats.norm.cdf(y, mean, sigma)) * stats.norm.pdf(y, mean, sigma)
            for mean in (one, other)
        ]
        found.append(
            integrate.simpson(np.maximum(density[0] - math.exp(epsilon) * density[1], 0.0), x=y)
        )
    return float(max(found))


@pytest.mark.parametrize("drawn", LAWS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("sigma", [1.0, 3.0, 8.0])
def test_the_best_of_noisy_scores_stays_below_the_bound_and_above_the_price_of_one(
    drawn: Trials, sigma: float
) -> None:
    base = Gaussian(noise_multiplier=sigma)
    one = accountant("pld").epsilon([(base, 1)], DELTA)
    best = accountant("pld").epsilon([(Selected(base, drawn), 1)], DELTA)
    assert exact_delta(drawn, sigma, best) <= DELTA
    # a selection that pays for one run only breaks that run's promise
    assert exact_delta(drawn, sigma, one) > 2 * DELTA


@pytest.mark.parametrize("drawn", LAWS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_delta_of_the_best_is_an_upper_bound_too(drawn: Trials, epsilon: float) -> None:
    told = accountant("pld").delta([(Selected(Gaussian(3.0), drawn), 1)], epsilon)
    assert exact_delta(drawn, 3.0, epsilon) <= told + 1e-12


def papernot_steinke(drawn: NegativeBinomial, sigma: float, delta: float) -> float:
    """Theorem 2 of Papernot and Steinke 2022 for one Gaussian, to epsilon by Canonne et al. 2020,
    proposition 12.
    """
    orders = np.linspace(1.01, 400, 20_000)
    renyi = orders / (2 * sigma**2)
    eta, gamma = drawn.eta, drawn.gamma
    added = np.min((1 + eta) * ((1 - 1 / orders) * renyi + np.log(1 / gamma) / orders))
    whole = renyi + added + math.log(expected(drawn)) / (orders - 1)
    return float(
        np.min(whole + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1))
    )


@pytest.mark.parametrize("name", ["geometric", "logarithmic"])
@pytest.mark.parametrize("mean", [3.0, 10.0, 50.0])
@pytest.mark.parametrize("sigma", [2.0, 4.0, 10.0])
def test_the_bound_is_below_that_of_papernot_and_steinke(
    name: str, mean: float, sigma: float
) -> None:
    drawn = law(name, mean)
    assert isinstance(drawn, NegativeBinomial)
    ours = accountant("pld").epsilon([(Selected(Gaussian(sigma), drawn), 1)], DELTA)
    assert ours <= papernot_steinke(drawn, sigma, DELTA)


def profile_bound(drawn: NegativeBinomial, sigma: float, delta: float) -> float:
    """The bound of the module's docstring, with the curve T on a dense grid in float64."""

    def profile(x: Any) -> Any:
        return stats.norm.cdf(0.5 / sigma - x * sigma) - np.exp(x) * stats.norm.cdf(
            -0.5 / sigma - x * sigma
        )

    g = np.linspace(0.0, 1.0, 200_001)
    # exactly, for a Gaussian: the best test of level g
    t = stats.norm.cdf(stats.norm.ppf(g) + 1 / sigma)
    ratio = (1 + drawn.eta) * np.max(
        np.log((drawn.gamma + (1 - drawn.gamma) * t) / (drawn.gamma + (1 - drawn.gamma) * g))
    )
    low, high = 0.0, 50.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if profile(middle) <= delta / expected(drawn) else (middle, high)
    return high + float(ratio)


@pytest.mark.parametrize("drawn", LAWS[:2], ids=lambda one: f"eta {one.eta:g}")
@pytest.mark.parametrize("sigma", [1.0, 3.0, 8.0])
def test_the_closed_form(drawn: NegativeBinomial, sigma: float) -> None:
    ours = accountant("pld").epsilon([(Selected(Gaussian(sigma), drawn), 1)], DELTA)
    wanted = profile_bound(drawn, sigma, DELTA)
    assert wanted <= ours <= 1.02 * wanted  # T from 25 points of the profile is above the exact one


@pytest.mark.parametrize("drawn", [*LAWS, NegativeBinomial(-0.5, 0.01), NegativeBinomial(2.0, 0.2)])
def test_the_number_of_trials_has_its_mean_and_its_chance_to_miss_a_candidate(
    drawn: Trials,
) -> None:
    random = np.random.default_rng(3)
    found = np.array(
        [
            number(drawn, random.random(), lambda mean: int(random.poisson(mean)))
            for _ in range(40_000)
        ]
    )
    assert abs(found.mean() - expected(drawn)) < 5 * found.std() / 200
    chance = missed(drawn, 6)
    assert abs(np.mean((5 / 6.0) ** found) - chance) < 0.01
    assert isinstance(drawn, Poisson) or found.min() == 1


@pytest.mark.parametrize(
    "name",
    [pytest.param("pld-best-of-geometric@10", marks=pytest.mark.nightly), "rdp-best-of-poisson@4"],
)
def test_an_accountant_of_selections_keeps_the_contract(name: str) -> None:
    check_accountant(accountant(name))


def test_the_accountant_of_a_run_and_the_event_of_a_ledger_say_the_same() -> None:
    runs = [(STEP, 158)]
    event = Selected(Repeated(STEP, 158), law("geometric", 10.0))
    told = accountant("pld-best-of-geometric@10").epsilon(runs, DELTA)
    assert told == accountant("pld").epsilon([(event, 1)], DELTA)
    assert told > accountant("pld").epsilon(runs, DELTA)
    assert decode(encode(event)) == event


def test_noise_is_calibrated_so_that_the_selection_is_within_epsilon() -> None:
    name = "pld-best-of-geometric@10"
    sigma = noise_multiplier(
        sampling_rate=0.15, steps=158, epsilon=2.0, delta=DELTA, accountant=name
    )
    event = PoissonSampled(sampling_rate=0.15, event=Gaussian(sigma))
    assert 1.99 < accountant(name).epsilon([(event, 158)], DELTA) <= 2.0
    assert Budget(2.0, DELTA, name).remaining_steps(event, []) == 158


def test_beside_other_releases_a_selection_adds_up() -> None:
    event = Selected(Repeated(STEP, 158), law("geometric", 10.0))
    alone, others = ([(event, 1)], [(STEP, 100)])
    for name in ("pld", "rdp"):
        chosen = accountant(name)
        both = chosen.epsilon([*alone, *others], DELTA)
        assert both >= max(chosen.epsilon(alone, DELTA), chosen.epsilon(others, DELTA))
        assert chosen.delta([*alone, *others], both) <= 1.0
        assert chosen.epsilon([(event, 2)], DELTA) > 1.9 * chosen.epsilon(alone, DELTA)


def test_a_group_of_records_is_a_group_in_every_run() -> None:
    event = Selected(Gaussian(4.0), law("geometric", 5.0))
    assert grouped(event, 2) == Selected(Gaussian(2.0), law("geometric", 5.0))


def test_a_selection_among_runs_without_noise_has_no_bound() -> None:
    raw = Selected(Gaussian(0.0), law("geometric", 5.0))
    assert math.isinf(accountant("pld").epsilon([(raw, 1)], DELTA))
    assert accountant("pld").delta([(raw, 1)], 3.0) == 1.0
    assert accountant("pld-best-of-geometric@5").delta([(Gaussian(0.0), 1)], 3.0) == 1.0


def test_a_base_of_which_nothing_is_known_costs_a_little_more_than_the_exact_ratio() -> None:
    for eta, gamma in ((0.0, 0.3), (1.0, 0.2), (-0.5, 0.1)):
        exact = (1.0 + eta) * -math.log(gamma)
        found = ratio(NegativeBinomial(eta, gamma), lambda x: 1.0, 1.0)
        assert exact < found < exact * (1.0 + 1e-8)
    assert 3.0 < ratio(Poisson(3.0), lambda x: 1.0, 1.0) < 3.0 * (1.0 + 1e-8)


@pytest.mark.parametrize(
    ("name", "mean"), [("geometric", 1.0), ("logarithmic", 0.5), ("poisson", 0.0), ("uniform", 3.0)]
)
def test_laws_that_are_none(name: str, mean: float) -> None:
    with pytest.raises(StudyError):
        law(name, mean)


@pytest.mark.parametrize(
    "name", ["pld-best-of-uniform@3", "pld-best-of-geometric@", "x-best-of-geometric@3"]
)
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(StudyError, match="not known"):
        accountant(name)
    assert name_of("pld", "geometric", 3.0) == "pld-best-of-geometric@3"


def test_an_event_with_an_impossible_law_is_refused() -> None:
    event = '{"type":"Selected","event":{"type":"Nothing"},"trials":{"type":"Poisson","mean":-1}}'
    with pytest.raises(LedgerError):
        decode(event)
