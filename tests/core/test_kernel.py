"""What a driver over a network rests on: a regime stepped through its journal again stands where it
stood, and words are bytes.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import METHODS, MORE, study_of
from sordino.base.message import decode, encode
from sordino.core import regimes as builder
from sordino.core.effect import Arrived, Request
from sordino.core.kernel import Kernel
from sordino.core.records import Row
from sordino.privacy import Allowance
from sordino.regimes.asynchronous.protocol import Asynchronous
from sordino.regimes.synchronous.protocol import Synchronous
from sordino.regimes.vertical.messages import Messages, _Exchange
from sordino.regimes.vertical.protocol import Vertical

CASES = {**METHODS, **MORE}


class Watch:
    def row(self, row: Row) -> None: ...

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
        ("slr/deformed", Vertical),
        ("dlr/entity", Vertical),
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


@pytest.mark.parametrize("name", ["slr/deformed", "dlr/entity", "dlr/zeros, batch"])
def test_events_play_the_same_when_every_word_is_bytes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In full: embeddings, labels, queries and derivatives, each encoded and decoded; nothing else
    passes between server and parties.
    """
    random = () if name == "dlr/entity" else ('method.activation={kind="random", p=0.5}',)
    built = builder.build(study_of(CASES[name], tmp_path, random), tmp_path, "run")
    world: Any = built.simulation
    paid = Allowance(
        world.ledgers.charge(
            [request.charge for request in world.requests_between(1, 1, 1, "test")], world.unlimited
        )
    )
    read, batch = world.stream.read(0, 30 * world.batch), world.batch
    active, silent = world.activity.drawn(read.x[: 30 * batch], 0, 30, 1000)
    ends, kinds = [], set()
    for bytes_ in (False, True):
        engine = world.engine()
        assert isinstance(engine, Messages)
        with monkeypatch.context() as patch:
            if bytes_:
                dispatch, answer = Kernel.dispatch, _Exchange.answer

                def dispatches(kernel: Any, site: int, task: Request) -> None:
                    again: Any = decode(encode(task), dimension=0)  # type: ignore[arg-type]
                    kinds.add(type(again).__name__)
                    dispatch(kernel, site, again)  # noqa: B023

                def answers(exchange: Any, *asked: Any) -> Any:
                    found: Any = answer(exchange, *asked)  # noqa: B023
                    again: Any = None if found is None else decode(encode(found), dimension=0)
                    kinds.add(type(again).__name__)
                    return again

                patch.setattr(Kernel, "dispatch", dispatches)
                patch.setattr(_Exchange, "answer", answers)
            played = engine.run(read.x[: 30 * batch], read.y[: 30 * batch], active, silent, paid)
        ends.append(
            (
                told(engine.weights()),
                told(played.seen.predictions),
                told(played.seen.losses),
                told(played.dropped),
            )
        )
    world.ledgers.close()
    assert ends[0] == ends[1]
    assert {"Embedding", "Labels"} <= kinds
    # where all are active, and nobody learns
    assert name == "dlr/entity" or {"Query", "Derivative"} <= kinds


def test_what_no_regime_knows_changes_nothing(tmp_path: Path) -> None:
    built = builder.build(study_of(METHODS["dp-sgd"], tmp_path), tmp_path, "run")
    rules = built.simulation.regime  # type: ignore[attr-defined]
    state = built.first.state  # type: ignore[attr-defined]
    from sordino.base.message import Labels
    from sordino.core.effect import Booked, Lapsed, Learned, Left, Refused, Woke

    for event in (
        Arrived(Labels(1, (0,))),
        Booked(()),
        Learned(1, ()),
        Left(77),
        Woke("x"),
        Refused("no"),
    ):
        assert rules.step(state, event) == (state, ())
    assert rules.step(state, Lapsed(0, 7))[0] is state
    built.simulation.ledgers.close()
