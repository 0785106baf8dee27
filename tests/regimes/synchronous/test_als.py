"""ALS-DPFL's traversal against a direct minimisation of Eq. (13)."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.regimes.synchronous.method import Remaining, Terms
from sordino.regimes.synchronous.methods import AlsDpfl, AlsMemory

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


def criterion(tau: int, memory: AlsMemory, rule: AlsDpfl, terms: Terms, left: Remaining) -> float:
    """G(tau) from the paper's formulas, constants dropped; infinite where its conditions fail."""
    assert memory.beta is not None
    assert memory.rho is not None
    assert memory.xi is not None
    assert left.steps is not None
    batch = terms.sampling_rate * terms.sizes[0]
    delta = memory.xi + 2 * math.sqrt(terms.dimension) * terms.noise * terms.clip / batch
    eta, beta = terms.learning_rate, memory.beta
    h = delta / beta * ((eta * beta + 1) ** tau - 1) - eta * delta * tau
    margin = eta * rule.phi - memory.rho * h / (tau * rule.lambda_**2)
    if margin <= 0 or eta * beta > 1:
        return math.inf
    return 1 / (min(left.rounds * tau, left.steps) * margin)


@given(
    beta=st.floats(0.01, 1.9),
    rho=st.floats(0.001, 3),
    xi=st.floats(0, 3),
    last=st.integers(1, 60),
    rounds=st.integers(1, 158),
    steps=st.integers(1, 316),
    phi=st.floats(0.5, 50),
)
def test_traverses_to_the_smallest_value(
    beta: float, rho: float, xi: float, last: int, rounds: int, steps: int, phi: float
) -> None:
    rule, left = AlsDpfl(phi=phi), Remaining(rounds, steps)
    memory = AlsMemory(squared_beta=beta**2, rho=rho, squared_xi=xi**2, tau=last)
    values = {
        tau: criterion(tau, memory, rule, EVEN, left)
        for tau in range(2, max(min(2 * last, 100), 2) + 1)
    }
    choice = rule.choose(memory, EVEN, left)
    if min(values.values()) == math.inf:
        assert choice.note is not None
        assert choice.tau == max(round(steps / rounds), 1)
    else:
        assert values[choice.tau] == pytest.approx(min(values.values()), rel=1e-9)


def test_gap_vanishes_at_one_step_and_grows() -> None:
    rule = AlsDpfl()
    gaps = [rule.gap(tau, beta=0.3, xi=0.5, terms=EVEN) for tau in range(1, 20)]
    assert gaps[0] == pytest.approx(0.0, abs=1e-12)
    assert all(a < b for a, b in itertools.pairwise(gaps))


def test_papers_picture_all_ones_where_rounds_are_plenty_two_to_three_where_they_are_half() -> None:
    rule = AlsDpfl()
    memory = AlsMemory(squared_beta=0.09, rho=0.13, squared_xi=0.25, tau=1)
    for rounds in (317, 634):
        assert rule.choose(memory, replace(EVEN, rounds=rounds), Remaining(rounds, 317)).tau == 1
    taus, used = [], 0
    for k in range(158):
        if used >= 317:
            break
        tau = min(rule.choose(memory, EVEN, Remaining(158 - k, 317 - used)).tau, 317 - used)
        taus.append(tau)
        used, memory = (
            used + tau,
            AlsMemory(memory.squared_beta, memory.rho, memory.squared_xi, tau),
        )
    assert used == 317
    assert set(taus[3:-3]) <= {2, 3}


@pytest.mark.parametrize("form", ["sound", "paper"])
def test_no_estimate_overflows(form: Any) -> None:
    rule, left = AlsDpfl(form=form), Remaining(158, 317)
    for beta in (1e4, 1e100, 1e154):
        memory = AlsMemory(squared_beta=beta**2, rho=1e178, squared_xi=1e16, tau=60)
        assert 1 <= rule.choose(memory, EVEN, left).tau <= 100


def test_says_so_when_the_bound_says_nothing() -> None:
    hopeless = AlsMemory(squared_beta=0.09, rho=1e6, squared_xi=1.0, tau=4)
    choice = AlsDpfl().choose(
        AlsMemory(squared_beta=16.0, rho=0.1, squared_xi=0.0, tau=2), EVEN, Remaining(100, 300)
    )
    assert choice.tau == 3
    assert choice.note is not None
    assert "conditions hold for no tau" in choice.note
    # h(1) = 0: one step is always admissible by the bound, but two are the fewest that are
    # considered
    assert AlsDpfl().choose(hopeless, EVEN, Remaining(100, 300)).tau == 3


def test_the_papers_form_keeps_what_is_printed() -> None:
    """Eq. (11) has B under both terms of its last part: h(1) = 6.05 in Table 1's setting."""
    rule = AlsDpfl(form="paper")
    batch, noise = 90.0, 2 * math.sqrt(26010) * 1.1
    first = (0.5 + noise / batch) * 0.5
    printed = first + 0.5 * (0.5 + noise) / batch
    assert rule.gap(1, beta=0.3, xi=0.5, terms=EVEN) == pytest.approx(printed)
    # T is of the whole run: how much is left does not matter
    memory = AlsMemory(squared_beta=0.09, rho=0.13, squared_xi=0.25, tau=4)
    assert len({rule.choose(memory, EVEN, Remaining(left, 2 * left)) for left in (1, 50, 158)}) == 1
    # where its conditions fail, the smallest value of Eq. (13) is taken all the same
    hopeless = rule.choose(
        AlsMemory(squared_beta=16.0, rho=0.1, squared_xi=0.0, tau=2), EVEN, Remaining(100, 300)
    )
    assert hopeless.note is not None
    assert hopeless.note.endswith("its smallest value all the same")
