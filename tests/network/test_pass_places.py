"""A site keeps its place in the order of its batches, whatever a server asks for, and pays again
for a pass where it may take a step of it a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federations import laid
from sordino.base.logs import log_to
from sordino.base.message import Train, TrainInOrder, encode
from sordino.network import frames, storage
from sordino.network.demo import DemoFederation
from sordino.network.kit import Agreed
from sordino.network.site import JoinOptions, opened, prepare_site
from sordino.network.site_session import SiteSession
from sordino.network.storage import OUTBOX, AnswerStore
from sordino.privacy import Gaussian, Ledger


class Nobody:
    saved = 0

    def row(self, row: Any) -> None: ...

    def due(self, number: int, ended: str | None) -> bool:
        return True

    def save(self, moment: Any) -> None: ...


def no_line(limit: int) -> Any:
    raise AssertionError("a site's session knows no connection")


def life(found: DemoFederation, folder: Path, tasks: Sequence[tuple[int, int, int]]) -> list[str]:
    """What a new life of the first site says to tasks: why it refuses, or nothing.

    Args:
        tasks: number, and the first and how many steps of the site's order; 0 steps stand for a
            task that names no place.
    """
    kit, data = found.sites[0]
    _, index, study, own = opened(JoinOptions(kit=kit, data=data))
    build = prepare_site(
        agreed=Agreed(kit), index=index, own=own, connects=no_line, log=log_to(lambda text: None)
    )
    built = build(study, folder, "run", None)
    site, first = built.simulation, built.first
    answers = AnswerStore(folder)
    try:
        session = SiteSession(site, first, Nobody(), answers)  # type: ignore[arg-type]
        list(session.said(frames.encode(frames.Welcome("run"))))
        whys = []
        for number, taken, steps in tasks:
            weights = np.zeros(first.model.size, np.float32)
            task = TrainInOrder(number, steps, weights, taken=taken)
            asked = task if steps else Train(number, 2, weights)
            (said,) = session.said(frames.encode(frames.Ask(number, encode(asked))))
            whys.append(said.why if isinstance(said, frames.Refuse) else "")
        session.close()
        return whys
    finally:
        answers.close()
        site.ledgers.close()


def passes(folder: Path) -> list[int]:
    with Ledger.open(folder / "ledger.sqlite", readonly=True) as ledger:
        entries = list(ledger.entries())
    assert {(each.event, each.count) for each in entries} == {(Gaussian(1.0), 1)}
    assert all(f"pass {each.round}" in each.key for each in entries)
    return [each.round for each in entries]


def test_a_site_refuses_a_step_that_it_has_taken_and_books_nothing(tmp_path: Path) -> None:
    found, folder = laid(tmp_path, "passes", scripted=False), tmp_path / "run"
    folder.mkdir()
    tasks = [(1, 0, 2), (2, 1, 2), (3, 0, 1), (4, 2, 0), (5, -1, 2), (6, 2, 2), (7, 4, 2)]
    good, again, first, unnamed, negative, *rest = life(found, folder, tasks)
    assert [good, *rest] == ["", "", ""]
    for why in (again, first):
        assert "come to step 2: rows would be in a pass twice" in why
    assert "batches come in an order" in unnamed
    assert "begins at step -1" in negative
    assert passes(folder) == [1, 2]  # of three batches each: steps 0 to 5


def test_a_site_that_goes_on_pays_again_for_a_pass_where_a_step_may_be_taken_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, folder = laid(tmp_path, "passes", scripted=False), tmp_path / "run"
    folder.mkdir()
    assert life(found, folder, [(1, 0, 2), (2, 2, 2)]) == ["", ""]
    assert life(found, folder, [(3, 4, 1)]) == [""]  # it goes on in the second pass
    assert passes(folder) == [1, 2]
    for slot in OUTBOX:  # it forgets its answers, and a server asks for the same steps again
        (folder / slot).unlink()
    again = [(3, 4, 1), (4, 5, 1), (5, 5, 1)]
    assert [bool(why) for why in life(found, folder, again)] == [False, False, True]
    assert passes(folder) == [1, 2, 2]
    assert life(found, folder, [(6, 5, 1), (7, 6, 1)]) == ["", ""]  # the first was taken there
    assert passes(folder) == [1, 2, 2, 2, 3]
    monkeypatch.setattr(storage, "MEMORY", tmp_path / "rebooted")  # a start of the machine
    storage.MEMORY.mkdir()
    assert life(found, folder, [(8, 7, 1)]) == [""]
    assert passes(folder) == [1, 2, 2, 2, 3, 3]
