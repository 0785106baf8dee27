"""The round protocol: pure, order-independent, deaf to duplicates and strangers, never
overdrawn.
"""

import math
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Statistics, Update
from sordino.core.effect import (
    Arrived,
    Closed,
    Effect,
    Event,
    Finish,
    Joined,
    Log,
    Send,
    Wake,
    Woke,
)
from sordino.regimes.synchronous.aggregate import State
from sordino.regimes.synchronous.method import Choice, ServerOptimizer, Terms
from sordino.regimes.synchronous.methods import AliDpfl, DpSgd
from sordino.regimes.synchronous.protocol import Synchronous
from sordino.regimes.synchronous.records import SynchronousRound

SIZES = (100, 200, 300, 400)


def rules(
    *, tau: int = 2, rounds: int = 5, steps: int | None = None, **options: Any
) -> Synchronous:
    terms = Terms(
        dimension=3,
        sizes=SIZES,
        weights=tuple(n / sum(SIZES) for n in SIZES),
        sampling_rate=0.1,
        learning_rate=0.5,
        clip=1.0,
        noise=1.0,
        rounds=rounds,
        steps=steps,
    )
    method = options.pop("method", DpSgd(tau=tau))
    budget = None if steps is None else np.full(len(SIZES), steps)
    return Synchronous(method=method, terms=terms, budget=budget, entropy=Seeded(0), **options)


def sends(effects: Any) -> list[Any]:
    return [e for e in effects if isinstance(e, Send)]


def reply(send: Any, value: float = 1.0) -> Arrived:
    weights = send.message.weights + np.float32(value * (send.site + 1))
    return Arrived(
        Update(
            client=send.site, round=send.message.round, steps=send.message.steps, weights=weights
        )
    )


def play(rule: Synchronous, order: Any = lambda x: x) -> tuple[State, list[Effect]]:
    """Answer everything at once, in the given order, until the run ends."""
    state = rule.start(np.zeros(3, np.float32))
    seen: list[Effect] = []
    while state.ended is None:
        state, effects = rule.begin(state)
        seen += effects
        for send in order(sends(effects)):
            state, more = rule.step(state, reply(send))
            seen += more
    return state, seen


def test_average_is_weighted_by_data_size() -> None:
    state, _ = play(rules(rounds=1))
    mean = sum(n * (i + 1) for i, n in enumerate(SIZES)) / sum(SIZES)
    assert state.weights == pytest.approx(np.full(3, mean))


def test_momentum_and_average_follow_their_formulas() -> None:
    state, _ = play(rules(rounds=3, method=DpSgd(tau=2, momentum=0.5, average=0.9)))
    step = sum(n * (i + 1) for i, n in enumerate(SIZES)) / sum(SIZES)
    w, v, average = 0.0, 0.0, 0.0
    for k in range(3):
        v = 0.5 * v + step
        w += v
        average = w if k == 0 else 0.9 * average + 0.1 * w
    assert state.weights[0] == pytest.approx(w)
    assert state.average[0] == pytest.approx(average, rel=1e-6)


@pytest.mark.parametrize("kind", ["adagrad", "adam", "yogi"])
def test_adaptive_steps_of_the_server_follow_their_formulas(kind: str) -> None:
    """Reddi et al. 2021, algorithm 2, in plain numbers; every client answers w + its number."""
    server = ServerOptimizer.model_validate({"kind": kind, "rate": 0.5, "decay": 0.9, "floor": 0.1})
    state, _ = play(rules(rounds=5, method=DpSgd(tau=2, momentum=0.5, server=server)))
    change = sum(n * (i + 1) for i, n in enumerate(SIZES)) / sum(SIZES)
    w, m, s = 0.0, 0.0, 0.01
    for _ in range(5):
        m = 0.5 * m + 0.5 * change
        s = {
            "adagrad": s + change**2,
            "adam": 0.9 * s + 0.1 * change**2,
            "yogi": s - 0.1 * change**2 * math.copysign(1.0, s - change**2),
        }[kind]
        w += 0.5 * m / (math.sqrt(s) + 0.1)
    assert state.weights == pytest.approx(np.full(3, w), rel=1e-5)


def test_an_adaptive_step_of_the_server_is_that_of_torch() -> None:
    """AdaGrad without momentum, with torch's own as the twin."""
    server = ServerOptimizer(kind="adagrad", rate=0.3, floor=1e-2)
    state, _ = play(rules(rounds=4, method=DpSgd(tau=2, server=server)))
    weights = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    twin = torch.optim.Adagrad([weights], lr=0.3, initial_accumulator_value=1e-4, eps=1e-2)
    for _ in range(4):
        change = sum(n * (i + 1) for i, n in enumerate(SIZES)) / sum(SIZES)
        weights.grad = torch.full((3,), -change, dtype=torch.float64)
        twin.step()
    assert state.weights == pytest.approx(weights.detach().numpy(), rel=1e-5)


@given(st.permutations(range(4)))
@settings(max_examples=24)
def test_order_of_arrival_changes_nothing(order: list[int]) -> None:
    reference, _ = play(rules())
    state, _ = play(rules(), lambda batch: [batch[i] for i in order if i < len(batch)])
    assert state.weights.tobytes() == reference.weights.tobytes()


@given(st.data())
@settings(max_examples=60)
def test_duplicates_strangers_and_stale_answers_are_harmless(data: st.DataObject) -> None:
    """Any junk between the real answers leaves the end as it was, bit for bit."""
    reference, _ = play(rules())
    rule = rules()
    old: list[Event] = []
    state = rule.start(np.zeros(3, np.float32))
    while state.ended is None:
        state, effects = rule.begin(state)
        for send in sends(effects):
            junk: list[Event] = [
                Arrived(
                    Update(client=9, round=state.number, steps=2, weights=np.ones(3, np.float32))
                ),
                Arrived(
                    Update(
                        client=send.site,
                        round=state.number + 1,
                        steps=2,
                        weights=np.ones(3, np.float32),
                    )
                ),
                Arrived(
                    Update(
                        client=send.site,
                        round=state.number,
                        steps=7,
                        weights=np.ones(3, np.float32),
                    )
                ),
                Woke("round 999"),
                Woke("nonsense"),
                Joined(send.site),
                Joined(77),
                *old,
            ]
            for event in data.draw(st.lists(st.sampled_from(junk), max_size=4)):
                before = state
                state, out = rule.step(state, event)
                assert state is before
                assert not [e for e in out if not isinstance(e, Log)]
            state, _ = rule.step(state, reply(send))
            old.append(reply(send))
    assert state.weights.tobytes() == reference.weights.tobytes()


def test_step_is_pure() -> None:
    rule = rules()
    state, effects = rule.begin(rule.start(np.zeros(3, np.float32)))
    event = reply(sends(effects)[0])
    first, second = rule.step(state, event)[0], rule.step(state, event)[0]
    assert first.waiting == second.waiting
    assert state.waiting == frozenset(range(4))
    assert not state.weights.any()


@given(
    tau=st.integers(1, 9),
    steps=st.integers(1, 40),
    rounds=st.integers(1, 12),
    adaptive=st.booleans(),
)
def test_budget_is_never_overdrawn_and_the_last_round_is_cut(
    tau: int, steps: int, rounds: int, adaptive: bool
) -> None:
    method = AliDpfl() if adaptive else DpSgd(tau=tau)
    state, seen = play(rules(method=method, steps=steps, rounds=rounds))
    given_out = [0] * len(SIZES)
    for send in sends(seen):
        given_out[send.site] += send.message.steps
    assert max(given_out) <= steps
    assert list(given_out) == state.steps.tolist()
    assert state.number <= rounds
    if not adaptive:
        assert max(given_out) == min(steps, tau * rounds)
    if adaptive:  # the pace strands nothing
        assert max(given_out) == (min(steps, rounds) if rounds >= steps else steps)
    assert state.ended is not None
    assert [e for e in seen if isinstance(e, Finish)]


def test_deadline_closes_with_who_came_and_gives_up_the_rest_until_heard_from() -> None:
    rule = rules(deadline=10.0)
    state, effects = rule.begin(rule.start(np.zeros(3, np.float32)))
    assert Wake(10.0, "round 1") in effects
    for send in sends(effects)[:2]:
        state, _ = rule.step(state, reply(send))
    state, closed = rule.step(state, Woke("round 1"))
    assert Closed(1) in closed
    row = next(e.row for e in closed if isinstance(e, Log))
    assert isinstance(row, SynchronousRound)
    assert (row.answered, row.missing) == (2, 2)
    assert state.weights == pytest.approx(np.full(3, (100 * 1 + 200 * 2) / 300))
    again, repeated = rule.step(state, Woke("round 1"))
    assert again is state
    assert not repeated
    state, effects = rule.begin(state)
    assert [s.site for s in sends(effects)] == [0, 1]
    late = rule.step(
        state, Arrived(Update(client=3, round=1, steps=2, weights=np.ones(3, np.float32)))
    )
    assert late[0] is state
    state, _ = rule.step(state, Joined(3))
    assert 3 not in state.absent


class Seen(msgspec.Struct, frozen=True):
    """Whether an energy was zero."""

    zero: bool = False


class Dividing(DpSgd):
    """A method that fails on some numbers: it divides by energies, and by their sum."""

    @property
    def fixed_tau(self) -> Any:
        """None, as of a method that chooses."""
        return None

    def fold(self, memory: Any, terms: Terms, answers: Any) -> Any:
        """Divide."""
        energies = [a.statistics.energy for a in answers]
        _ = [1.0 / each for each in energies], 1.0 / (sum(energies) if energies else 1.0)
        return memory


class Choosing(Dividing):
    """The same, which fails when it chooses."""

    memory: ClassVar[type[msgspec.Struct]] = Seen

    def fold(self, memory: Any, terms: Terms, answers: Any) -> Any:
        """Remember."""
        return Seen(any(a.statistics.energy == 0.0 for a in answers))

    def choose(self, memory: Any, terms: Terms, left: Any) -> Choice:
        """Fail on what was remembered."""
        return Choice(int(math.inf) if memory.zero else self.tau)


class Halting(DpSgd):
    """Its tau is fixed, and it ends a run after a round."""

    memory: ClassVar[type[msgspec.Struct]] = Seen

    def fold(self, memory: Any, terms: Terms, answers: Any) -> Any:
        """Remember."""
        return Seen(zero=True)

    def choose(self, memory: Any, terms: Terms, left: Any) -> Choice:
        """End."""
        return Choice(0 if memory.zero else self.tau)


class Louder(Halting):
    """The same, whose noise depends on releases, so that its epsilon is the budget."""

    @property
    def adapts_noise(self) -> bool:
        """It does."""
        return True


def test_a_method_that_fixed_tau_does_not_end_a_run_by_looking() -> None:
    """Epsilon was then what was spent: a number that releases chose, and no bound."""
    rule, state, _ = told(Halting(tau=2), (1.0,) * 4)
    with pytest.raises(StudyError, match=r"'dp-sgd': choose gave .* Choice\(2\), as fixed_"):
        rule.begin(state)
    rule, state, _ = told(Louder(tau=2), (1.0,) * 4)
    assert rule.begin(state)[0].ended == "the method has ended it"


def told(method: Any, energies: tuple[float, ...]) -> tuple[Synchronous, State, list[Any]]:
    """A round whose clients say these energies, and the rows of its log."""
    rule = rules(method=method)
    state, effects = rule.begin(rule.start(np.zeros(3, np.float32)))
    rows: list[Any] = []
    for send, energy in zip(sends(effects), energies, strict=True):
        said: Any = reply(send).message
        statistics = Statistics(energy, 0, 0, 0, 0, 0)
        said = msgspec.structs.replace(said, statistics=statistics)
        state, more = rule.step(state, Arrived(said))
        rows += [effect.row for effect in more if isinstance(effect, Log)]
    return rule, state, rows


@pytest.mark.parametrize("method", [Dividing(tau=2), Choosing(tau=2)])
def test_a_client_whose_numbers_no_method_can_use_is_left_out_and_named(method: Any) -> None:
    rule, state, (dropped, row) = told(method, (1.0, 0.0, 1.0, 1.0))
    assert (dropped.client, row.answered, row.missing) == (1, 3, 1)
    assert "cannot use its numbers" in dropped.why
    assert state.faults == ((1, dropped.why),)
    assert state.weights == pytest.approx(np.full(3, (1 * 100 + 3 * 300 + 4 * 400) / 800))
    assert rule.begin(state)[0].faults == ()


def test_a_round_is_void_whose_numbers_no_method_can_use_together() -> None:
    _, state, (row,) = told(Dividing(tau=2), (1.0, 1.0, -1.0, -1.0))
    assert state.weights.tolist() == [0.0] * 3
    assert state.faults == ()
    assert "cannot use its numbers" in row.note


def test_a_round_that_nobody_answers_leaves_the_model_alone() -> None:
    rule = rules(deadline=1.0, rounds=2)
    state, _ = rule.begin(rule.start(np.ones(3, np.float32)))
    state, _ = rule.step(state, Woke("round 1"))
    assert state.weights.tolist() == [1, 1, 1]
    state, effects = rule.begin(state)
    assert not sends(effects)
    state, _ = rule.step(state, Woke("round 2"))
    state, _ = rule.begin(state)
    assert state.ended is not None


def test_cohorts_are_drawn_evenly_and_by_address() -> None:
    rule = rules(cohort=2, rounds=400)
    _, seen = play(rule)
    counts = np.bincount([s.site for s in sends(seen)], minlength=4)
    # each client is in half of 400 rounds: standard deviation 10
    assert abs(counts - 200).max() < 61
    _, again = play(rule)
    assert [s.site for s in sends(seen)] == [s.site for s in sends(again)]


def test_clients_with_less_budget_leave_and_learning_goes_on() -> None:
    rule = replace(rules(steps=8, rounds=10), budget=np.array([2, 8, 8, 8]))
    state, seen = play(rule)
    assert state.steps.tolist() == [2, 8, 8, 8]
    assert [s.site for s in sends(seen)].count(0) == 1


def test_a_finished_run_stays_finished() -> None:
    rule = rules(rounds=1)
    state, seen = play(rule)
    for event in (Woke("round 1"), reply(sends(seen)[0]), Joined(0)):
        assert rule.step(state, event) == (state, ())
