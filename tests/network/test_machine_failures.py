"""A party whose machine failed: what it may have answered before, it does not answer again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sordino.message import Turn, encode
from sordino.network import ahead, demo, frames
from sordino.network.desk import FORGOTTEN, Desk
from sordino.network.frames import FromSite
from sordino.network.moment import SiteMoment
from sordino.network.outbox import Outbox
from sordino.network.transport.base import Lost

from .test_events_between_sites import ENTITY, joins, read


class Nobody:
    """Nobody watches."""

    def row(self, row: Any) -> None: ...

    def save(self, moment: Any) -> None: ...


def test_after_its_machine_failed_a_party_answers_nothing_a_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same embeddings' noise under other weights would tell what it hides."""
    (tmp_path / "boot").write_text("first")
    monkeypatch.setattr(ahead, "_BOOT", tmp_path / "boot")
    found = demo.lay_out(read(tmp_path, [ENTITY]), tmp_path / "federation", scripted=False)
    assert isinstance(asked(found, 1), frames.Say)
    again = asked(found, 2)  # killed in between: it goes on
    assert isinstance(again, frames.Say)
    assert asked(found, 2) == again
    (tmp_path / "boot").write_text("second")
    assert asked(found, 2, 3) == frames.Refuse(6, FORGOTTEN)
    assert isinstance(asked(found, 2 + ahead.STEP // 2), frames.Refuse)  # beyond the stream
    assert isinstance(asked(found, *range(1, 3), party=2), frames.Say)  # labels have one answer


def asked(found: demo.Laid, *events: int, party: int = 0) -> FromSite:
    """What a new life of a party says to the last of these events."""
    study, made, out = joins(found, party, None)
    out.mkdir(exist_ok=True)
    built = made(study, out, "run")
    site: Any = built.simulation
    outbox, first = Outbox(out, durable=True), built.first
    assert isinstance(first, SiteMoment)
    desk = Desk(site, first, Nobody(), outbox)
    try:
        list(desk.said(frames.encode(frames.Welcome("run"))))
        for event in events:
            turn = Turn(event)
            said = desk.said(frames.encode(frames.Ask(turn.number, encode(turn))))
            last = next(said)
            if isinstance(last, frames.Refuse):
                with suppress(Lost):
                    next(said, None)
        return last
    finally:
        desk.close()
        outbox.close()
        site.vault.close()
