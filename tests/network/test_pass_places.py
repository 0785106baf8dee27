"""A site keeps its place in the order of its batches, whatever a server asks for, and pays again
for the pass that it was in where it has forgotten its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from federations import laid
from sordino.base.logs import log_to
from sordino.base.message import Train, TrainInOrder, encode
from sordino.network import frames
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


def test_a_site_that_has_forgotten_its_place_pays_for_the_pass_again(tmp_path: Path) -> None:
    """Its answers are put back from an older copy, and a server asks for the same steps again."""
    found, folder = laid(tmp_path, "passes", scripted=False), tmp_path / "run"
    folder.mkdir()
    assert life(found, folder, [(1, 0, 2), (2, 2, 2)]) == ["", ""]
    assert passes(folder) == [1, 2]
    assert life(found, folder, [(3, 4, 2)]) == [""]  # it goes on in the second pass
    assert passes(folder) == [1, 2, 2]
    for slot in OUTBOX:
        (folder / slot).unlink()
    assert life(found, folder, [(1, 0, 2)]) == [""]
    assert passes(folder) == [1, 2, 2, 1]
