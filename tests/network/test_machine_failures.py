"""A party whose machine failed: what it may have answered before, it does not answer again."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.base.errors import BudgetExceeded, LedgerError
from sordino.base.message import Derivative, Embedding, Turn, decode, encode
from sordino.network import demo, frames, storage
from sordino.network.frames import FORGOTTEN, FromSite
from sordino.network.site_session import SiteMoment, SiteSession
from sordino.network.storage import AnswerStore
from sordino.network.transport import Lost
from sordino.privacy.ledger import Ledger

from .test_events_between_sites import ENTITY, joins, read


class Nobody:
    """Nobody watches."""

    saved = 0

    def row(self, row: Any) -> None: ...

    def due(self, number: int, ended: str | None) -> bool:
        return True

    def save(self, moment: Any) -> None: ...


def test_after_its_machine_failed_a_party_answers_nothing_a_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under other weights it would be a second release, for one charge."""
    (tmp_path / "boot").write_text("first")
    monkeypatch.setattr(storage, "_BOOT", tmp_path / "boot")
    found = demo.lay_out(read(tmp_path, [ENTITY]), tmp_path / "federation", scripted=False)
    assert isinstance(asked(found, 1), frames.Say)
    again = asked(found, 2)  # killed in between: it goes on
    assert isinstance(again, frames.Say)
    assert asked(found, 2) == again
    (tmp_path / "boot").write_text("second")
    assert asked(found, 2, 3) == frames.Refuse(6, FORGOTTEN)
    assert isinstance(asked(found, 2 + storage.STEP // 2), frames.Refuse)  # beyond the stream
    assert isinstance(asked(found, *range(1, 3), party=2), frames.Say)  # labels have one answer


def slope(event: int) -> Derivative:
    return Derivative(0, event, 32, np.full(4, 3.0, "<f4").tobytes())


TURNS = (Turn(1), Turn(2, derivative=slope(1)), Turn(3, derivative=slope(2)), Turn(3, True))


def locks(monkeypatch: pytest.MonkeyPatch, times: int, kind: type[Exception] = LedgerError) -> None:
    """Have the ledger refuse so often, as where it is locked by somebody else."""
    true, left = Ledger.charge, [times]

    def charge(self: Ledger, *given: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise kind("database is locked")
        return true(self, *given)

    monkeypatch.setattr(Ledger, "charge", charge)


def test_a_ledger_that_is_locked_changes_no_embedding_under_its_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a party is started again, and while it works."""
    found = demo.lay_out(read(tmp_path, [ENTITY]), tmp_path / "federation", scripted=False)
    locks(monkeypatch, 1)
    with pytest.raises(LedgerError, match="locked"):
        lives(found, TURNS[0])
    first = lives(found, *TURNS)[-1]
    assert isinstance(first, frames.Say)
    assert isinstance(decode(first.body, dimension=1), Embedding)
    locks(monkeypatch, 1)
    with pytest.raises(LedgerError, match="locked"):
        lives(found, TURNS[-1])
    assert lives(found, TURNS[-1]) == [first]


def test_what_the_budget_refused_leaves_no_trace_in_what_is_gone_through_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = demo.lay_out(read(tmp_path, [ENTITY]), tmp_path / "federation", scripted=False)
    locks(monkeypatch, 1, BudgetExceeded)
    refused, *_, first = lives(found, *TURNS)
    assert isinstance(refused, frames.Refuse)
    assert lives(found, TURNS[-1]) == [first]


def asked(found: demo.DemoFederation, *events: int, party: int = 0) -> FromSite:
    """What a new life of a party says to the last of these events."""
    return lives(found, *(Turn(event) for event in events), party=party)[-1]


def lives(found: demo.DemoFederation, *turns: Turn, party: int = 0) -> list[FromSite]:
    """What a new life of a party says to these turns."""
    study, made, out = joins(found, party, None)
    out.mkdir(exist_ok=True)
    note = out / "affordable.json"  # which a run's record keeps
    built = made(study, out, "run", json.loads(note.read_text()) if note.exists() else None)
    site: Any = built.simulation
    note.write_text(json.dumps(site.affordable_steps))
    outbox, first = AnswerStore(out, durable=True), built.first
    assert isinstance(first, SiteMoment)
    desk = None
    try:
        desk = SiteSession(site, first, Nobody(), outbox)
        list(desk.said(frames.encode(frames.Welcome("run"))))
        told = []
        for turn in turns:
            said = desk.said(frames.encode(frames.Ask(turn.number, encode(turn))))
            told.append(next(said))
            if isinstance(told[-1], frames.Refuse):
                with suppress(Lost):
                    next(said, None)
        return told
    finally:
        if desk is not None:
            desk.close()
        outbox.close()
        site.ledgers.close()
