"""A budget refuses what passes it, in words that help, and promises nothing impossible."""

import math

import pytest

from sordino.base.errors import BudgetExceeded, StudyError
from sordino.privacy import Budget, Gaussian, NonPrivate, PoissonSampled, accountant
from sordino.privacy.budget import left_out
from sordino.privacy.event import Nothing

STEP = PoissonSampled(sampling_rate=0.015, event=Gaussian(noise_multiplier=1.1))


@pytest.mark.parametrize("epsilon", [-1.0, math.nan])
def test_an_impossible_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(StudyError, match="epsilon must be a number from 0, or infinite"):
        Budget(epsilon=epsilon, delta=1e-5)
    assert Budget(epsilon=0.0, delta=1e-5).remaining_steps(STEP, ()) == 0


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_an_impossible_delta_is_refused(delta: float) -> None:
    with pytest.raises(StudyError, match="delta must lie between 0 and 1"):
        Budget(epsilon=1.0, delta=delta)


def test_an_unknown_accountant_is_refused_at_once() -> None:
    with pytest.raises(StudyError, match="did you mean 'rdp-classic'"):
        Budget(epsilon=1.0, delta=1e-5, accountant="rdp-clasic")


@pytest.mark.parametrize(
    ("accountant", "steps"), [("pld", 716), ("rdp", 553), ("rdp-classic", 314)]
)
def test_the_last_step_fits_and_the_next_is_refused(accountant: str, steps: int) -> None:
    budget = Budget(epsilon=2.0, delta=1e-5, accountant=accountant)
    assert budget.remaining_steps(STEP, ()) == steps
    assert budget.remaining_steps(STEP, [(STEP, 200)]) == steps - 200
    assert budget.remaining_steps(STEP, [(STEP, steps + 1)]) == 0
    assert budget.check("client:3", [(STEP, steps)]) <= 2.0
    with pytest.raises(
        BudgetExceeded,
        match=r"client:3: this release would bring epsilon to 2\.\d+, over the budget of 2.* "
        r"\(delta 1e-05, ",
    ):
        budget.check("client:3", [(STEP, steps + 1)])


def test_a_refusal_never_says_that_a_number_is_over_itself() -> None:
    budget = Budget(epsilon=2.0, delta=1e-5, accountant="rdp-classic")
    at = budget.check("client:0", [(STEP, 314)])
    hair = Budget(epsilon=at * (1 - 1e-9), delta=1e-5, accountant="rdp-classic")
    with pytest.raises(BudgetExceeded) as refused:
        hair.check("client:0", [(STEP, 314)])
    shown, limit = (
        str(refused.value)
        .split("epsilon to ")[1]
        .split(" (delta")[0]
        .split(", over the budget of ")
    )
    assert shown != limit


def test_without_a_promise_nothing_is_refused_and_with_one_no_bound_is() -> None:
    free, tight = Budget(math.inf, 1e-5), Budget(1e9, 1e-5)
    raw = [(NonPrivate(reason="raw curvature"), 1)]
    assert free.remaining_steps(STEP, raw) is None
    assert free.check("client:0", raw) == math.inf
    with pytest.raises(BudgetExceeded, match="No bound is known"):
        tight.check("client:0", raw)
    assert tight.remaining_steps(STEP, raw) == 0


def test_a_budget_under_the_classic_accountant_is_not_admitted_by_a_better_one() -> None:
    # rdp: within 2.0; rdp-classic: 314 steps
    spent = [(PoissonSampled(sampling_rate=0.015, event=Gaussian(noise_multiplier=1.1)), 400)]
    Budget(epsilon=2.0, delta=1e-5, accountant="rdp").admit("client:0", spent)
    with pytest.raises(BudgetExceeded):
        Budget(epsilon=2.0, delta=1e-5, accountant="rdp-classic").admit("client:0", spent)


@pytest.mark.parametrize("name", ["rdp", "pld"])
def test_what_is_exactly_spent_is_within_the_budget(name: str) -> None:
    spent = accountant(name).epsilon([(STEP, 9)], 1e-5)
    assert Budget(epsilon=spent, delta=1e-5, accountant=name).check("a", [(STEP, 9)]) == spent
    assert Budget(epsilon=spent, delta=1e-5, accountant=name).remaining_steps(STEP, []) == 9
    below = Budget(epsilon=math.nextafter(spent, 0.0), delta=1e-5, accountant=name)
    with pytest.raises(BudgetExceeded):
        below.check("a", [(STEP, 9)])


def test_what_costs_nothing_happens_a_thousand_million_times_and_no_more() -> None:
    budget = Budget(epsilon=1.0, delta=1e-5, accountant="rdp")
    assert budget.remaining_steps(Nothing(), []) == 10**9


def test_a_delta_that_is_finer_than_the_proof_is_said_with_what_is_proved() -> None:
    assert left_out(1e-5, 1.0, numbers=1e6) == ()
    (said,) = left_out(1e-5, 1.0, numbers=0.0, more=1e-5)
    added = 1e-5 * (1.0 + math.e)
    assert f"may add {added:.2g} at epsilon = 1" in said
    assert f"What is proved is delta = {1e-5 + added:.3g} (" in said
    (said,) = left_out(0.5, 1.0, numbers=0.0, more=0.4)
    assert "What is proved is no delta below 1 (" in said
    for promise in ((1e-5, math.inf), (None, 1.0), (1e-5, None)):
        assert left_out(*promise, numbers=0.0, more=1.0) == ()
