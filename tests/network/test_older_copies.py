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
from sordino.base.errors import ResumeError
from sordino.network import frames
from sordino.network.frames import Ask
from sordino.network.storage import JOURNAL as NAME
from sordino.network.storage import TOKENS as KEY
from sordino.network.storage import ProgressTokens
from sordino.network.storage import load_tokens as kept
from sordino.privacy import Ledger

from .conftest import Makes
from .test_hostile import attacked as attacked
from .test_hostile import greeted

LONG = {
    "synchronous": ["budget.rounds=20"],
    "asynchronous": ["budget.updates=300"],
    "client": ["budget.rounds=20"],
    "client-in-turn": ["budget.rounds=20", "privacy.epsilon=1e6"],
    "shared": ["budget.rounds=20"],
    "shared-client": ["budget.rounds=20"],
    "events": [],
}
SOME, MORE = 12, 40  # inputs


def older(found: Federation, copy: Path, *, whole: bool, more: int = MORE) -> list[int]:
    """Have the server be killed once, and its folder, or its journal alone, be put back as it was;
    how many inputs there had been.
    """
    done: list[int] = []

    def told(kernel: Any) -> None:
        if done:
            return
        if kernel.count >= SOME and not copy.exists():
            shutil.copytree(found.server, copy)
        if kernel.count >= more and not kernel._to_replay:
            done.append(kernel.count)
            if whole:
                shutil.rmtree(found.server)
                shutil.copytree(copy, found.server)
            else:
                shutil.copy(copy / NAME, found.server / NAME)
            raise Killed

    found.told = told
    return done


@pytest.mark.parametrize(
    ("name", "what"),
    [
        *((name, "the folder") for name in ("asynchronous", "shared")),
        *(
            pytest.param(name, "the folder", marks=pytest.mark.nightly)
            for name in ("synchronous", "client", "client-in-turn", "shared-client", "events")
        ),
        ("client-in-turn", ""),
        pytest.param("shared-client", "", marks=pytest.mark.nightly),
        ("events", ""),
    ],
)
def test_an_older_copy_of_the_servers_folder_is_noticed_and_repeats_nothing(
    name: str, what: str, federate: Makes, tmp_path: Path
) -> None:
    rare = [] if what or name == "events" else ["execution.checkpoint_every=1000000"]
    found = federate(name, [*LONG[name], *rare], minimum=3)
    more = 170 if name == "asynchronous" else MORE  # beyond the tasks that the copy has booked
    older(found, tmp_path / "copy", whole=bool(what), more=more)
    found.start()
    with pytest.raises(ResumeError, match="older"):
        found.wait(40)
    found.failed.clear()


@pytest.mark.parametrize(
    "name", ["asynchronous", "shared", pytest.param("synchronous", marks=pytest.mark.nightly)]
)
def test_a_journal_that_lost_its_end_is_gone_past_and_no_task_is_asked_for_again(
    name: str, federate: Makes, tmp_path: Path
) -> None:
    """As after a power failure: the ledger, which waits for the disk, knows more."""
    rare = "execution.checkpoint_every=1000000"
    found = federate(name, [*LONG[name], rare, "privacy.epsilon=1e6"], minimum=3)
    done = older(found, tmp_path / "copy", whole=False)
    found.start()
    found.wait(60)
    assert done
    assert "stopped" not in found.done["server"].why
    said: dict[tuple[str, int], set[bytes]] = {}
    for site, frame in found.net.said:
        one = frames.to_server(frame)
        if isinstance(one, frames.Say):
            said.setdefault((site, one.number), set()).add(one.body)
    assert all(len(bodies) == 1 for bodies in said.values())
    state = found.kernels[-1].state
    asked = [sum(1 for site, _ in said if site == each) for each in found.names]
    tau = 1 if name == "shared" else 2
    given = state.given if name == "asynchronous" else [steps // tau for steps in state.steps]
    for ever, known in zip(asked, given, strict=True):
        assert ever <= known  # no less was counted than a capture shows
    with Ledger.open(found.server / "ledger.sqlite", readonly=True) as ledger:
        for unit, ever in zip(("client:0", "client:1", "client:2"), asked, strict=True):
            entries = list(ledger.entries(unit)) or list(ledger.entries())
            assert sum(each.count for each in entries) >= ever


def test_a_site_that_only_says_how_far_it_is_is_not_believed(attacked: Federation) -> None:
    hands, asks = greeted(attacked)
    kernel = attacked.kernels[-1]
    hands[2].line.close()
    hand = type(hands[2])(attacked, attacked.names[2])
    hand.hello(last=7, booked=7, task=(7, bytes(16)), round=(7, b""))
    for each, ask in zip([*hands[:2], hand], [*asks[:2], hand.get(Ask)], strict=True):
        each.answer(ask)
    attacked.until(lambda: kernel.state.number == 2)


def test_seals_are_of_one_site_one_kind_and_one_number(tmp_path: Path) -> None:
    seals = kept(tmp_path, "run")
    assert (tmp_path / KEY).stat().st_mode & 0o777 == 0o600
    seal = seals.of("task", "north", 3)
    assert kept(tmp_path, "run").verify("task", "north", 3, seal)
    assert not seals.verify("round", "north", 3, seal)
    assert not seals.verify("task", "south", 3, seal)
    assert not seals.verify("task", "north", 4, seal)
    assert not ProgressTokens(b"another key", "run").verify("task", "north", 3, seal)
    assert not kept(tmp_path, "another").verify("task", "north", 3, seal)
    assert not seals.verify("task", "north", 0, seals.of("task", "north", 0))
    (tmp_path / KEY).write_bytes(b"short")
    with pytest.raises(ResumeError, match="no key of seals"):
        kept(tmp_path, "run")
