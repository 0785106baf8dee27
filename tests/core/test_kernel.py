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
from sordino.core import regimes as builder
from sordino.core.effect import Arrived
from sordino.core.records import Row
from sordino.regimes.asynchronous.protocol import Asynchronous
from sordino.regimes.synchronous.protocol import Synchronous
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
