"""What a driver over a network rests on: a regime stepped through its journal again stands where it
stood, and words are bytes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from cases import METHODS, MORE, study_of
from sordino.base.errors import LocalProtocolError
from sordino.base.message import Train
from sordino.core import regimes as builder
from sordino.core.effect import Arrived, Closed, Finish, Log, Send, Wake
from sordino.core.kernel import Kernel
from sordino.core.records import Round, Row
from sordino.core.world import Absence, ChargeRequest, KernelSnapshot
from sordino.privacy import Budget
from sordino.regimes.asynchronous.protocol import Asynchronous
from sordino.regimes.synchronous.protocol import Synchronous
from sordino.regimes.vertical.protocol import EventRules

CASES = {**METHODS, **MORE}


class Watch:
    def row(self, row: Row) -> None: ...

    def due(self, number: int, ended: str | None) -> bool:
        return True

    def save(self, moment: Any) -> None: ...


def told(state: Any) -> Any:
    """A state, to be compared: numbers for vectors."""
    if isinstance(state, np.ndarray):
        return state.tolist()
    if isinstance(state, dict):
        return {key: told(value) for key, value in state.items()}
    if isinstance(state, list | tuple | set | frozenset):
        return [
            told(each) for each in (state if isinstance(state, list | tuple) else sorted(state))
        ]
    if hasattr(state, "__slots__") and not hasattr(state, "__struct_fields__"):
        return {name: told(getattr(state, name)) for name in state.__slots__}
    if hasattr(state, "__struct_fields__"):
        return {name: told(getattr(state, name)) for name in state.__struct_fields__}
    return state


@pytest.mark.parametrize(
    ("name", "regime"),
    [
        ("dp-sgd/shards, late", Synchronous),
        ("ali-dpfl", Synchronous),
        ("dp-fedavg", Synchronous),
        ("mapa/mlp, late", Asynchronous),
        ("slr/deformed", EventRules),
        ("dlr/entity", EventRules),
    ],
)
def test_a_regime_stepped_through_its_journal_stands_where_it_stood(
    name: str, regime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal: list[Any] = []
    seen: list[Any] = []
    first: list[Any] = []
    step = regime.step

    def steps(self: Any, state: Any, event: Any) -> Any:
        first.extend([] if first else [self, copy.deepcopy(state)])
        journal.append(event)
        state, effects = step(self, state, event)
        seen.append((told(state), told(list(effects))))
        return state, effects

    with monkeypatch.context() as patch:
        patch.setattr(regime, "step", steps)
        built = builder.build(study_of(CASES[name], tmp_path), tmp_path, "run")
        built.simulation.run(built.first, Watch())
        built.simulation.ledgers.close()
    rules, state = first
    assert len(journal) > 5
    for event, expected in zip(journal, seen, strict=True):
        state, effects = rules.step(state, event)
        assert (told(state), told(list(effects))) == expected


def test_what_no_regime_knows_changes_nothing(tmp_path: Path) -> None:
    built = builder.build(study_of(METHODS["dp-sgd"], tmp_path), tmp_path, "run")
    rules = built.simulation.regime  # type: ignore[attr-defined]
    state = built.first.state  # type: ignore[attr-defined]
    from sordino.base.message import Labels
    from sordino.core.effect import Booked, Lapsed, Learned, Left, Woke

    for event in (Arrived(Labels(1, (0,))), Booked(()), Learned(1), Left(77), Woke("x")):
        assert rules.step(state, event) == (state, ())
    assert rules.step(state, Lapsed(0, 7))[0] is state
    built.simulation.ledgers.close()


@dataclass(frozen=True)
class At:
    """The state of :class:`Scripted`: rounds that are closed, and why it has ended."""

    number: int = 0
    ended: str | None = None


class Tested(Round, frozen=True, kw_only=True, tag="tested"):
    """A row of a round whose model was tested for a price."""

    test_epsilon: float = 0.0


class Scripted:
    """A world that asks three sites, of which one is away for seconds and one for rounds."""

    trips: ClassVar[dict[int, Any]] = {0: 2.0, 1: Absence(seconds=3.0), 2: Absence(until=2)}

    def __init__(self) -> None:
        self.seen: list[tuple[float, str]] = []
        self.kernel: Any = None
        self.regime = self

    def step(self, state: At, event: Any) -> tuple[At, tuple[Any, ...]]:
        name = f"{type(event).__name__} {getattr(event, 'site', getattr(event, 'tag', ''))}"
        self.seen.append((self.kernel.time, name.strip()))
        closed = state.number + 1
        done = (Log(Tested(round=closed)), Closed(closed))
        if name.startswith("Begin"):
            asked = [
                tuple(
                    Send(i, Train(round=1, steps=1, weights=np.zeros(1, np.float32)))
                    for i in range(3)
                ),
                (Wake(1.0, "second"), Wake(0.0, "first")),
                (Finish("done"),),
            ][state.number]
            return (replace(state, ended="done") if state.number == 2 else state), asked
        if name.startswith("Arrived") or name == "Woke second":
            return At(closed), done
        return state, ()

    def asked(self, state: At) -> dict[int, Any]:
        return {}

    def trip(self, site: int, task: Any) -> Any:
        return self.trips[site]

    def answer(self, site: int, number: int, *about: Any) -> Any:
        return SimpleNamespace(site=site, number=number)

    def expects(self, state: At, site: int, number: int) -> bool:
        return (site, number) == (0, 1)

    def measured(self, state: At, number: int) -> dict[str, float]:
        return {"test_epsilon": 0.25} if number == 2 else {}

    def visible_row(self, row: Any) -> Any:
        return row

    def requests(self, *about: Any) -> tuple[Any, ...]:
        return ()

    reissued = unused_permits = requests

    def memories(self) -> dict[str, Any]:
        return {}


def test_the_clock_the_order_of_equal_times_and_what_is_saved() -> None:
    """Who vanished for seconds is back when they are over, who vanished for rounds when they are;
    of equal times, what was asked for first comes first.
    """
    rows: list[Any] = []
    saved: list[Any] = []
    world: Any = Scripted()
    watch = SimpleNamespace(row=rows.append, save=saved.append, due=lambda *_: True)
    world.kernel = Kernel(world, KernelSnapshot.initial(At()), watch)
    world.kernel.run()
    assert world.seen == [
        (0.0, "Begin"), (0.0, "Left 1"), (0.0, "Left 2"),
        (2.0, "Arrived"),
        (2.0, "Joined 2"), (2.0, "Begin"), (2.0, "Woke first"), (3.0, "Joined 1"),
        (3.0, "Woke second"),
        (3.0, "Begin"),
    ]  # fmt: skip
    assert [(row.round, row.time, row.epsilon) for row in rows] == [(1, 2.0, 0.0), (2, 3.0, 0.25)]
    assert [(each.state.number, each.time, each.epsilon) for each in saved] == [
        (1, 2.0, 0.0),
        (2, 3.0, 0.25),
        (2, 3.0, 0.25),
    ]
    first = saved[0]
    assert (first.flights, first.away, first.count) == (((3.0, 2, 1, 0, ""),), {2: 2}, 2)
    assert saved[-1].flights == ()


def test_a_row_shows_the_highest_epsilon_of_what_was_booked_until_it() -> None:
    """Of each unit up to its last entry, and no less than in the row before; what does not count
    is not asked for.
    """
    rows: list[Any] = []
    asked: list[Any] = []
    world: Any = Scripted()
    watch: Any = SimpleNamespace(row=rows.append, save=print, due=lambda *_: False)
    world.kernel = kernel = Kernel(world, KernelSnapshot.initial(At()), watch)
    one, other = Budget(1.0, 1e-5), Budget(2.0, 1e-5)
    prices = {("a", 7): 0.25, ("b", 6): 0.125, ("a", 9): 0.0625}

    def each(units: Any) -> Any:
        asked.append([*units])
        return [[unit] for unit in asked[-1]]

    world.ledgers = SimpleNamespace(charge=lambda charges, budget: charges, each=each)
    world.price = lambda unit, spent, budget: prices[spent]

    def book(*booked: tuple[str, int, Any, Budget, bool]) -> None:
        requests = []
        for unit, seq, sites, budget, counts in booked:
            charge: Any = SimpleNamespace(unit=unit, seq=seq)
            requests.append(ChargeRequest(sites, charge, budget, counts))
        kernel.book(requests)

    book(("a", 7, (0, 2), one, True), ("a", 5, None, one, True), ("b", 6, (1,), other, True))
    assert [permit.seq for permit in kernel.permits(0)] == [5, 7]
    assert [permit.seq for permit in kernel.permits(1)] == [5, 6]
    kernel.close(1, Tested(round=1))
    book(("a", 9, (0,), one, True), ("c", 10, (0,), one, False))
    kernel.close(2, Tested(round=2))
    kernel.close(3, Tested(round=3))
    assert asked == [[("a", 7), ("b", 6)], [("a", 9)]]
    assert [row.epsilon for row in rows] == [0.25, 0.25, 0.25]
    assert kernel._priced({"b": (6, other)}) == 0.125


def test_a_task_that_rises_above_no_earlier_one_is_refused_and_a_run_without_any_is_over() -> None:
    world: Any = Scripted()
    watch: Any = SimpleNamespace(row=print, save=print, due=lambda *_: False)
    world.kernel = kernel = Kernel(world, KernelSnapshot.initial(At()), watch)
    task = Train(round=1, steps=1, weights=np.zeros(1, np.float32))
    kernel.dispatch(0, task)
    with pytest.raises(LocalProtocolError, match="asked for round 1 after round 1"):
        kernel.dispatch(0, task)
    world.step = lambda state, event: (state, ())
    idle = Kernel(world, KernelSnapshot.initial(At()), watch)
    assert idle.run().state == At()
