"""ALI-DPFL's choice of tau against the paper's equations, minimised independently."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.base.message import Statistics, Update
from sordino.regimes.synchronous.method import Remaining, Terms
from sordino.regimes.synchronous.methods import AliDpfl, AliMemory

EVEN = Terms(
    dimension=26010,
    sizes=(6000,) * 10,
    weights=(0.1,) * 10,
    sampling_rate=0.015,
    learning_rate=0.5,
    clip=1.0,
    noise=1.1,
    rounds=158,
    steps=317,
)


def bound(tau: float, mu: float, terms: Terms, gamma: float) -> float:
    """G(tau) of Eq. (11) up to the factor L/2 and terms without tau, written out from the paper."""
    n = (
        terms.noise**2
        * terms.clip**2
        * terms.dimension
        / (terms.sampling_rate * terms.sizes[0]) ** 2
    )
    a = (2 + terms.learning_rate * mu) * (terms.clip**2 + n)
    return a * tau + (a + 4 / mu**2 + 3 * terms.clip**2 + 2 * gamma / terms.learning_rate + n) / tau


@given(
    mu=st.floats(0.05, 5), gamma=st.floats(0, 20), eta=st.floats(0.01, 2), clip=st.floats(0.1, 5)
)
def test_optimum_is_where_the_bound_is_smallest(
    mu: float, gamma: float, eta: float, clip: float
) -> None:
    terms = replace(EVEN, learning_rate=eta, clip=clip)
    best = AliDpfl(gamma=gamma).optimum(mu, terms, tau=1)
    here = bound(best, mu, terms, gamma)
    for step in (0.99, 1.01):
        assert bound(best * step, mu, terms, gamma) >= here


@pytest.mark.parametrize(("mu", "tau"), [(0.2, 3.9), (0.5, 2.6), (1.0, 2.3), (2.0, 2.1)])
def test_eq11_lands_where_the_papers_experiments_do(mu: float, tau: float) -> None:
    assert AliDpfl(gamma=10.0).optimum(mu, EVEN, tau=2) == pytest.approx(tau, abs=0.05)


@pytest.mark.parametrize(
    ("steps", "lowest", "at_one"), [(177, 8.5, 19), (317, 10.3, 25), (1585, 17.6, 57)]
)
def test_eq9_cannot_land_at_two_to_five(steps: int, lowest: float, at_one: float) -> None:
    terms = replace(EVEN, steps=steps, rounds=steps)  # so that T = steps
    rule = AliDpfl(gamma=10.0, tau_rule="eq9")
    values = [rule.optimum(0.002 * 1.02**k, terms, tau=1) for k in range(500)]
    assert min(values) == pytest.approx(lowest, abs=0.05)
    assert rule.optimum(1.0, terms, tau=1) == pytest.approx(at_one, abs=0.7)


def test_one_step_a_round_where_rounds_are_plenty() -> None:
    for rounds in (317, 400):
        terms = replace(EVEN, rounds=rounds)
        assert (
            AliDpfl().choose(AliMemory(squared_mu=0.01, tau=1), terms, Remaining(rounds, 317)).tau
            == 1
        )


def test_first_round_takes_two_steps_to_see_curvature() -> None:
    choice = AliDpfl(floor="none").choose(AliMemory(), EVEN, Remaining(158, 317))
    assert choice.tau == 2
    assert choice.note is not None


@given(
    squared=st.one_of(st.none(), st.floats(-1, 100)),
    rounds=st.integers(1, 400),
    steps=st.integers(1, 5000),
    floor=st.sampled_from(["pace", "none"]),
    bound=st.sampled_from(["min", "weighted"]),
)
def test_tau_stays_within_its_clamps(
    squared: float | None, rounds: int, steps: int, floor: Any, bound: Any
) -> None:
    terms = replace(EVEN, rounds=400, steps=5000)
    tau = (
        AliDpfl(floor=floor, batch_bound=bound)
        .choose(AliMemory(squared_mu=squared), terms, Remaining(rounds, steps))
        .tau
    )
    pace = steps / rounds
    assert 1 <= tau <= min(2 * math.ceil(pace), 100)
    if floor == "pace":
        assert tau >= min(pace, 100)


def test_one_tiny_client_pins_the_papers_bound_but_not_the_weighted_one() -> None:
    sizes = (5360, 661, 3109, 204, 484, 9558, 9227, 9923, 5558, 8412)
    terms = replace(EVEN, sizes=sizes, weights=tuple(n / sum(sizes) for n in sizes), clip=0.1)
    assert round(AliDpfl(gamma=0.15, batch_bound="min").optimum(1.09, terms, tau=1)) == 1
    assert AliDpfl(gamma=0.15, batch_bound="weighted").optimum(1.09, terms, tau=1) > 2


def answer(client: int, *, change: float, moved: float, steps: int = 2) -> Update:
    import numpy as np

    seen = Statistics(
        energy=0.0, first=0.0, change=change, moved=moved, slope_first=0.0, slope_last=0.0
    )
    return Update(
        client=client, round=1, steps=steps, weights=np.zeros(1, np.float32), statistics=seen
    )


def test_fold_smooths_and_keeps_the_last_estimate_when_there_is_none() -> None:
    rule = AliDpfl()
    noise = 2 * EVEN.dimension * EVEN.deviation(0) ** 2 + EVEN.clip**2 / EVEN.batch(0)
    memory = rule.fold(
        AliMemory(), EVEN, [answer(i, change=noise + 0.09 * 4.0, moved=4.0) for i in range(10)]
    )
    assert memory.mu == pytest.approx(0.3, rel=1e-6)
    assert rule.fold(memory, EVEN, [answer(0, change=0.0, moved=0.0, steps=1)]).mu == memory.mu
    assert rule.fold(memory, EVEN, []) == memory
    worse = rule.fold(AliMemory(), EVEN, [answer(i, change=0.0, moved=4.0) for i in range(10)])
    assert worse.mu is None  # negative: no estimate, not a small one


def test_paper_form_feeds_its_horizon_back_and_runs_away() -> None:
    """soundness: R_s = 158, R_c = 317, mu = 1 ends with tau* = 25 and 14 rounds used."""
    rule, memory, used = AliDpfl(gamma=10.0, form="paper"), AliMemory(squared_mu=1.0, tau=1), 0
    rounds = 0
    while used < 317:
        tau = min(rule.choose(memory, EVEN, Remaining(158 - rounds, 317 - used)).tau, 317 - used)
        used, rounds, memory = used + tau, rounds + 1, AliMemory(squared_mu=1.0, tau=tau)
    assert rounds == pytest.approx(14, abs=1)


@pytest.mark.parametrize("form", ["sound", "paper"])
def test_no_estimate_overflows(form: Any) -> None:
    rule = AliDpfl(form=form)
    for square in (5e-324, 1e-200, 1e200, 1e308):
        memory = AliMemory(squared_mu=square, tau=2)
        assert 1 <= rule.choose(memory, EVEN, Remaining(158, 317)).tau <= 100
