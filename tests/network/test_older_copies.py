"""A server's run folder that was put back from an older copy, ledger and all, or whose journal has
lost its end: its sites prove it, and nothing is released again. A site that only says so is not
believed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from federations import Federation
from memory import Killed
from sordino.errors import ResumeError
from sordino.network.frames import Ask
from sordino.network.journal import NAME
from sordino.network.seals import NAME as KEY
from sordino.network.seals import Far, Seals, kept

from .conftest import Makes
from .test_hostile import attacked as attacked
from .test_hostile import greeted

LONG = {
    "synchronous": ["budget.rounds=20"],
    "asynchronous": ["budget.updates=300"],
    "client": ["budget.rounds=20"],
    "events": [],
}
SOME, MORE = 12, 40  # inputs


@pytest.mark.parametrize("what", ["the folder", "the journal"])
@pytest.mark.parametrize("name", LONG)
def test_an_older_copy_of_the_servers_folder_is_noticed_and_repeats_nothing(
    name: str, what: str, federate: Makes, tmp_path: Path
) -> None:
    rare = "execution.checkpoint_every=1000000" if what == "the journal" else None
    changes = [*LONG[name], *([rare] if rare and name != "events" else [])]
    found = federate(name, changes, minimum=3)
    copy, done = tmp_path / "copy", list[int]()

    def told(courier: Any, kernel: Any) -> None:
        if done:
            return
        if kernel.count >= SOME and not copy.exists():
            shutil.copytree(found.server, copy)
        if kernel.count >= MORE and not kernel._again:
            done.append(kernel.count)
            if what == "the folder":
                shutil.rmtree(found.server)
                shutil.copytree(copy, found.server)
            else:
                shutil.copy(copy / NAME, found.server / NAME)
            raise Killed

    found.told = told
    found.start()
    with pytest.raises(ResumeError, match="older"):
        found.wait(40)
    found.failed.clear()


def test_a_site_that_only_says_how_far_it_is_is_not_believed(attacked: Federation) -> None:
    hands, asks = greeted(attacked)
    kernel = attacked.kernels[-1]
    hands[2].line.close()
    hand = type(hands[2])(attacked, attacked.names[2])
    hand.hello(last=7, booked=7, task=(7, bytes(16)), round=(7, b""))
    for each, ask in zip([*hands[:2], hand], [*asks[:2], hand.get(Ask)], strict=True):
        each.answer(ask)
    attacked.until(lambda: kernel.state.round == 2)


def test_seals_are_of_one_site_one_kind_and_one_number(tmp_path: Path) -> None:
    seals = kept(tmp_path, "run")
    assert (tmp_path / KEY).stat().st_mode & 0o777 == 0o600
    seal = seals.of("task", "north", 3)
    assert kept(tmp_path, "run").hold("task", "north", 3, seal)
    assert not seals.hold("round", "north", 3, seal)
    assert not seals.hold("task", "south", 3, seal)
    assert not seals.hold("task", "north", 4, seal)
    assert not Seals(b"another key", "run").hold("task", "north", 3, seal)
    assert not kept(tmp_path, "another").hold("task", "north", 3, seal)
    assert not seals.hold("task", "north", 0, seals.of("task", "north", 0))
    assert Far(1, 2).task == 1
    (tmp_path / KEY).write_bytes(b"short")
    with pytest.raises(ResumeError, match="no key of seals"):
        kept(tmp_path, "run")
