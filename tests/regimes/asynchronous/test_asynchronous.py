"""The rules of arrivals: what counts, what is dropped, who leaves; and that no order of arrival
breaks them.
"""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.base.message import Compute, Gradient
from sordino.core.effect import Arrived, Begin, Closed, Finish, Joined, Lapsed, Left, Log, Send
from sordino.regimes.asynchronous.method import Asgd, EdgeTerms, Mapa, Stage
from sordino.regimes.asynchronous.protocol import Asynchronous, State
from sordino.regimes.asynchronous.records import AsynchronousRound

D = 3
ONE = np.ones(D, np.float32)


def regime(edges: int = 3, updates: int = 20, **changed: object) -> Asynchronous:
    method = Asgd()
    terms = EdgeTerms(
        dimension=D,
        edges=edges,
        batch=12.0,
        clip=math.inf,
        noise=0.0,
        staleness=edges,
        updates=updates,
    )
    rules = Asynchronous(
        method=method,
        terms=terms,
        schedule=method.stages(terms),
        budget=None,
        every=5,
        noise=(0.0,) * edges,
    )
    return replace(rules, **changed)  # type: ignore[arg-type]


def begun(rules: Asynchronous) -> State:
    state = rules.start(np.zeros(D, np.float32))
    rules.step(state, Begin())
    return state


def sent(effects: Any) -> list[tuple[int, Compute]]:
    return [
        (effect.site, effect.message)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, Compute)
    ]


def step(rules: Asynchronous, state: State, event: Any) -> Any:
    return rules.step(state, event)[1]


def answer(state: State, edge: int, gradient: np.ndarray = ONE) -> Arrived:
    held = state.tasks[edge]
    return Arrived(Gradient(client=edge, task=held.task, version=held.version, gradient=gradient))


def kinds(effects: object) -> list[str]:
    return [effect.row.kind for effect in effects if isinstance(effect, Log)]  # type: ignore[attr-defined]


def test_an_update_follows_the_equation_and_only_the_sender_is_answered() -> None:
    rules = regime()
    state = begun(rules)
    effects = step(rules, state, answer(state, 1))
    gamma = rules.method.rate(rules.terms, rules.schedule[0], 1)
    assert state.weights == pytest.approx(-gamma * ONE)
    tasks = sent(effects)
    assert [(edge, task.version, task.task) for edge, task in tasks] == [(1, 1, 2)]
    assert tasks[0][1].weights is state.weights  # shared, not copied
    assert state.tasks[0].version == 0


def test_staleness_is_counted_in_updates_and_bounded() -> None:
    rules = regime(edges=3, updates=50)
    rules = replace(rules, terms=replace(rules.terms, staleness=2))
    state = begun(rules)
    for _ in range(3):
        step(rules, state, answer(state, 0))
    before = state.weights
    effects = step(rules, state, answer(state, 1))  # three updates behind, two are allowed
    assert kinds(effects) == ["stale"]
    assert state.weights is before
    assert state.since.stale == 1
    assert state.tasks[1].version == 3  # it gets the present model, and a task of its own
    assert state.since.staleness == {0: 3}


def test_a_staleness_weight_shrinks_what_is_behind() -> None:
    rules = regime(exponent=0.5)
    state = begun(rules)
    for _ in range(3):
        step(rules, state, answer(state, 0, np.zeros(D, np.float32)))
    step(rules, state, answer(state, 1))
    gamma = rules.method.rate(rules.terms, rules.schedule[0], 4)
    assert state.weights == pytest.approx(-gamma * ONE / 2.0)  # tau = 3


def test_a_buffer_makes_one_update_of_several_gradients() -> None:
    rules = regime(buffer=3)
    state = begun(rules)
    for edge, size in ((0, 1.0), (1, 2.0), (2, 6.0)):
        assert state.version == 0
        step(rules, state, answer(state, edge, np.float32(size) * ONE))
    assert state.version == 1
    assert state.weights == pytest.approx(
        -rules.method.rate(rules.terms, rules.schedule[0], 1) * 3.0 * ONE
    )


def test_an_edge_that_has_spent_its_budget_leaves_and_learning_goes_on() -> None:
    rules = regime(edges=2, updates=100, budget=(2, 4))
    state = begun(rules)
    said: list[str] = []
    while state.ended is None:
        for edge in list(state.tasks):
            said += kinds(step(rules, state, answer(state, edge)))
    assert state.given == [2, 4]
    assert said.count("left") == 2
    assert state.version == 6
    assert "every edge has spent" in state.ended


def test_nobody_can_pay_for_anything_ends_at_once() -> None:
    rules = regime(edges=2, budget=(0, 0))
    state = rules.start(np.zeros(D, np.float32))
    _, effects = rules.step(state, Begin())
    assert state.ended is not None
    assert any(isinstance(effect, Finish) for effect in effects)


def test_the_run_halts_after_t_updates_with_a_last_row() -> None:
    rules = regime(edges=1, updates=7)
    state = begun(rules)
    rows: list[AsynchronousRound] = []
    while state.ended is None:
        effects = step(rules, state, answer(state, 0))
        rows += [
            effect.row
            for effect in effects
            if isinstance(effect, Log) and isinstance(effect.row, AsynchronousRound)
        ]
        assert sum(isinstance(effect, Closed) for effect in effects) == len(
            [e for e in effects if isinstance(e, Log) and isinstance(e.row, AsynchronousRound)]
        )
    assert [row.round for row in rows] == [5, 7]
    assert rows[0].histogram == ((0, 5),)
    assert step(rules, state, Arrived(Gradient(client=0, task=8, version=7, gradient=ONE))) == ()


def test_stages_change_the_clip_that_is_sent() -> None:
    method = Mapa(smoothness=1.0, gap=0.05)
    terms = EdgeTerms(
        dimension=D, edges=1, batch=100.0, clip=1.0, noise=1.0, staleness=0, updates=60
    )
    rules = Asynchronous(
        method=method,
        terms=terms,
        schedule=method.stages(terms),
        budget=None,
        every=100,
        noise=(0.0,),
    )
    state = begun(rules)
    clips = []
    while state.ended is None:
        clips.append(state.tasks[0].clip)
        step(rules, state, answer(state, 0))
    expected = [next(s.clip for s in rules.schedule if number <= s.end) for number in range(1, 61)]
    assert clips == expected
    assert len(set(clips)) > 1


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["answer", "again", "old", "lose", "join", "wrong", "future"]),
        st.integers(0, 3),
    ),
    max_size=120,
)


@settings(max_examples=200, deadline=None)
@given(
    ACTIONS,
    st.lists(st.integers(0, 12), min_size=4, max_size=4),
    st.integers(1, 3),
    st.integers(0, 4),
)
def test_no_order_of_arrivals_drops_and_duplicates_breaks_an_invariant(
    actions: list[tuple[str, int]], budget: list[int], buffer: int, bound: int
) -> None:
    rules = regime(edges=4, updates=25, budget=tuple(budget), buffer=buffer)
    rules = replace(rules, terms=replace(rules.terms, staleness=bound))
    state = rules.start(np.zeros(D, np.float32))
    tasks = sent(rules.step(state, Begin())[1])
    answered: set[tuple[int, int]] = set()
    applied = 0
    for action, edge in actions:
        held, event = state.tasks.get(edge), cast(Any, Joined(edge))
        match action:
            case "answer" if held is not None:
                event = Arrived(Gradient(edge, held.task, held.version, ONE))
            case "again" if answered:
                client, number = sorted(answered)[edge % len(answered)]
                event = Arrived(Gradient(client, number, 0, ONE))
            case "old":
                event = Arrived(Gradient(edge, max(state.given[edge] - 1, 0), 0, ONE))
            case "future":
                event = Arrived(Gradient(edge, state.given[edge] + 1, state.version, ONE))
            case "wrong":
                event = Arrived(Gradient(edge + 4, 1, 0, ONE))
            case "lose":
                event = Left(edge)
        said: Any = event.message if isinstance(event, Arrived) else None
        counts = said is not None and rules.expects(state, said.client, said.task)
        fresh = counts and held is not None and said.version == held.version
        before = state.version * buffer + state.buffer[1]
        effects = step(rules, state, event)
        after = state.version * buffer + state.buffer[1]
        # never twice, never for what was not asked for
        assert after - before in ((0, 1) if fresh else (0,))
        applied += after - before
        if fresh:
            answered.add((said.client, said.task))
        tasks += sent(effects)
        # nobody past its budget
        assert all(given <= most for given, most in zip(state.given, budget, strict=True))
        assert not state.gone & set(state.tasks)
        assert state.version <= 25
    numbers = [(client, task.task) for client, task in tasks]
    assert len(numbers) == len(set(numbers))  # a task is given once
    assert applied <= len(answered)
    for edge in range(4):
        assert sorted(n for client, n in numbers if client == edge) == list(
            range(1, state.given[edge] + 1)
        )


def test_a_lapsed_task_ends_as_its_stale_answer_would_and_no_other_does() -> None:
    rules = regime(edges=3, updates=50)
    rules = replace(rules, terms=replace(rules.terms, staleness=1))
    ends = []
    for lapse in (False, True):
        state = begun(rules)
        assert step(rules, state, Lapsed(1, 1)) == ()  # not stale yet
        for _ in range(2):
            step(rules, state, answer(state, 0))
        assert step(rules, state, Lapsed(1, 2)) == ()  # not its task
        effects = step(rules, state, Lapsed(1, 1) if lapse else answer(state, 1))
        ends.append(
            (
                kinds(effects),
                state.since.stale,
                state.given,
                state.version,
                [task.task for _, task in sent(effects)],
            )
        )
    assert ends[0] == ends[1]


class Numbers(Asgd):
    """Its stages have NumPy's numbers."""

    def stages(self, terms: EdgeTerms) -> tuple[Stage, ...]:
        whole: Any = np.int64(terms.updates)
        one: Any = np.float64(0.5)
        two: Any = np.float32(0.25)
        return (
            Stage(number=1, start=0, length=whole, clip=one, rate=two, variance=two, slowing=one),
        )


def test_numbers_of_an_own_schedule_can_be_kept() -> None:
    """No checkpoint could, so that a run ended after it had charged, and again when resumed."""
    terms = EdgeTerms(
        dimension=D, edges=1, batch=100.0, clip=1.0, noise=1.0, staleness=0, updates=60
    )
    (stage,) = Numbers(name="asgd").planned(terms)
    assert {type(value) for value in astuple(stage)} == {int, float}
    assert (stage.length, stage.clip, stage.rate) == (60, 0.5, 0.25)
