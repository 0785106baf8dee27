"""A site whose shares fail in secure sums again and again: it is left out after a stated number of
failures. A site that is only slow comes back. Frames that come twice, or late, do no harm.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from federations import Federation, read_incidents
from memory import MemoryLine, Net
from sordino.core.kernel import Kernel
from sordino.mechanisms.secure.messages import Shares, Unopened, decode, encode
from sordino.mechanisms.secure.secrets import SEALED
from sordino.network import frames, server, sums
from sordino.network.storage import Journal
from sordino.privacy import Ledger
from sordino.regimes.synchronous.records import SynchronousRound

from .conftest import Makes
from .test_kills import Fate, Record, _torn_input
from .test_sums import FOUR, Seen

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

HOSTILE, ROUNDS = "site-3", 12
Changes = Callable[[frames.Stepped], frames.Stepped | None]


class Expected(dict[str, BaseException]):
    """Failures of parties, but for the hostile site's."""

    def __setitem__(self, name: str, error: BaseException) -> None:
        if name != HOSTILE:
            super().__setitem__(name, error)


def hostile(patch: pytest.MonkeyPatch, found: Federation, changes: Changes) -> list[int]:
    """Have site-3 say other steps than it should, or none; the rounds of all that it says."""
    send, said, found.failed = MemoryLine.send, list[int](), Expected()

    def sends(own: MemoryLine, frame: bytes) -> None:
        step = frames.to_server(frame)
        if own._name == HOSTILE and isinstance(step, frames.Stepped) and step.body:
            said.append(step.number)
            changed = changes(step)
            if changed is None:
                return
            frame = frames.encode(changed)
        send(own, frame)

    patch.setattr(MemoryLine, "send", sends)
    patch.setattr(server, "FAREWELL", 0.2)
    return said


def _shares(change: Callable[[Shares], Shares]) -> Changes:
    def changes(step: frames.Stepped) -> frames.Stepped:
        found = decode(step.body)
        if not isinstance(found, Shares):
            return step
        return msgspec.structs.replace(step, body=encode(change(found)))

    return changes


def _sealed(found: Shares) -> Shares:
    return msgspec.structs.replace(found, sealed=(bytes(SEALED),) * len(found.sealed))


def _prints(found: Shares) -> Shares:
    return msgspec.structs.replace(found, prints=found.prints[::-1])


def _short(found: Shares) -> Shares:
    return msgspec.structs.replace(found, sealed=found.sealed[1:])


def _signed(step: frames.Stepped) -> frames.Stepped:
    body = step.body[:-1] + bytes([step.body[-1] ^ 1]) if step.phase == 0 else step.body
    return msgspec.structs.replace(step, body=body)


LIES = {
    "shares that do not open": _shares(_sealed),
    "shares that are not as dealt": _shares(_prints),
    "too few shares": _shares(_short),
    "keys that are not signed": _signed,
}


def served(found: Federation) -> list[SynchronousRound]:
    return [row for row in found.rows["server"] if isinstance(row, SynchronousRound)]


@pytest.mark.parametrize(
    "lie",
    [
        "shares that do not open",
        "keys that are not signed",
        *(pytest.param(each, marks=pytest.mark.nightly) for each in list(LIES)[1:3]),
    ],
)
def test_a_site_whose_shares_fail_is_left_out_and_the_others_go_on(
    lie: str, federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    found = federate("shared", [*FOUR, f"budget.rounds={ROUNDS}"], minimum=1, clients=4)
    rounds = hostile(monkeypatch, found, LIES[lie])
    found.start()
    found.wait(60, "server", "site-0", "site-1", "site-2")
    assert len(served(found)) == ROUNDS
    assert len({*rounds}) <= 4  # in the last one it sends keys before it is told
    good = [told for _, told in seen.sums if told.clients == (0, 1, 2)]
    assert len(good) >= ROUNDS - 4
    assert seen.exact() == len([told for _, told in seen.sums if told.clients])
    out = found.kernels[-1].session.sites[3].out
    assert out == "it has failed 3 secure sums, and is left out"
    assert any(each.site == HOSTILE and out in each.detail for each in read_incidents(found.server))


def test_a_server_that_is_killed_then_stands_where_it_stood(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That a site is left out is in the journal."""
    changes = [*FOUR, f"budget.rounds={ROUNDS}", "execution.checkpoint_every=3"]
    found = federate("shared", changes, minimum=1, clients=4)
    with monkeypatch.context() as patch:
        seen, record, fate = Seen(patch), Record(patch), Fate(seed=2, kills=8, every=60)
        hostile(patch, found, LIES["shares that are not as dealt"])
        found.told = record.told
        fate.threatens(patch, Journal, "append", _torn_input)
        fate.threatens(patch, Kernel, "tell")
        fate.threatens(patch, Net, "send")
        found.start()
        found.wait(60, "server", "site-0", "site-1", "site-2")
    assert found.kills["server"] > 4
    assert all(len(states) == 1 for states in record.states.values())
    assert seen.exact() > 3
    assert found.kernels[-1].session.sites[3].out


@pytest.mark.parametrize("honest", [4, 2])
def test_without_it_too_few_are_left_and_the_run_ends_with_the_reason(
    honest: int, federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two honest ones, all shares must open before anybody sends an input."""
    changes = [f"privacy.honest={honest}", "privacy.fewest=4", "privacy.epsilon=1e6"]
    found = federate("shared", [*changes, "budget.rounds=1000"], minimum=1, clients=4)
    hostile(monkeypatch, found, LIES["shares that do not open"])
    found.start()
    found.wait(60, "server", "site-0", "site-1", "site-2")
    assert len(served(found)) < 20
    assert found.done["server"].why == (
        "the run was stopped: 3 of 4 sites are left, and 4 must take part. site-3: it has failed 3 "
        "secure sums, and is left out"
    )


def test_where_nobody_can_tell_who_is_to_blame_people_are_told_of_both(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares that do not open for one site void each sum, where all sites must be in it."""

    def lies(found: Shares) -> Shares:
        return msgspec.structs.replace(found, sealed=(bytes(SEALED), *found.sealed[1:]))

    changes = ["privacy.honest=2", "privacy.fewest=4", "privacy.epsilon=1e6", "budget.rounds=2"]
    found = federate("shared", changes, clients=4)
    hostile(monkeypatch, found, _shares(lies))
    found.start()

    def told(site: str) -> set[str]:
        return {each.what for each in read_incidents(found.server) if each.site == site}

    found.until(lambda: "declined" in told("site-0") and "doubt" in told(HOSTILE))


def test_a_site_that_is_slow_is_left_out_for_a_while_and_comes_back(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deals no shares three times running; the others do not wait for it in every round."""
    monkeypatch.setattr(sums, "STEP", 0.25)
    monkeypatch.setattr(sums, "PAUSE", 4, raising=False)
    seen = Seen(monkeypatch)
    found = federate("shared", [*FOUR, "budget.rounds=2000"], minimum=1, clients=4)
    missed: list[int] = []

    def changes(step: frames.Stepped) -> frames.Stepped | None:
        if step.phase != 1 or len(missed) == 3:
            return step
        missed.append(step.number)
        return None

    hostile(monkeypatch, found, changes)
    found.start()

    def back() -> list[int]:
        last = max([*missed, 0])
        opened = [told for _, told in seen.sums if told.number > last]
        return [told.number for told in opened if told.clients == (0, 1, 2, 3)]

    found.until(lambda: len(missed) == 3 and back(), 30)
    assert min(back()) > missed[2] + 3
    assert found.kernels[-1].session.sites[3].out == ""
    assert any("asked for nothing for 1 s" in each.detail for each in read_incidents(found.server))


def _paused(found: Federation) -> set[str]:
    path = found.server / "incidents.jsonl"
    noted = read_incidents(found.server) if path.exists() else []
    return {each.site for each in noted if "asked for nothing" in each.detail}


def test_a_site_that_makes_each_sum_void_in_good_manners_stops_the_booking(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes every step and declines its task: after three void sums the others wait for it, and
    book no more.
    """
    found = federate("shared", ["budget.rounds=12"], minimum=1, clients=4)
    send, found.failed = MemoryLine.send, Expected()

    def sends(own: MemoryLine, frame: bytes) -> None:
        said = frames.to_server(frame)
        if own._name == HOSTILE and isinstance(said, frames.Say):
            frame = frames.encode(frames.Stepped(said.number, 2, b"", "not now"))
        send(own, frame)

    monkeypatch.setattr(MemoryLine, "send", sends)
    monkeypatch.setattr(server, "FAREWELL", 0.2)
    found.start()
    found.until(lambda: _paused(found) == {HOSTILE})
    time.sleep(0.4)
    rows = [row for row in found.rows["server"] if isinstance(row, SynchronousRound)]
    assert len(rows) <= sums.FAILURES
    with Ledger.open(found.folder("site-0") / "ledger.sqlite", readonly=True) as ledger:
        assert sum(each.count for each in ledger.entries()) <= sums.FAILURES


def test_no_more_sites_than_may_collude_have_another_left_out(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of nine (c = 2) say in each round that site-0's shares fail them, and so make it void:
    they are asked for nothing for a while, and site-0 takes part to the end.
    """
    changes = ["privacy.honest=6", "privacy.fewest=8", "budget.rounds=14", "privacy.epsilon=500"]
    found = federate("shared", changes, minimum=1, clients=9)
    send, found.failed = MemoryLine.send, Expected()

    def sends(own: MemoryLine, frame: bytes) -> None:
        said, index = frames.to_server(frame), int(own._name.removeprefix("site-"))
        if index >= 7 and isinstance(said, frames.Say):
            body = encode(Unopened(index, said.number, (0,)))
            frame = frames.encode(frames.Stepped(said.number, 2, body, "shares do not open"))
        send(own, frame)

    monkeypatch.setattr(MemoryLine, "send", sends)
    monkeypatch.setattr(server, "FAREWELL", 0.2)
    found.start()
    found.until(lambda: _paused(found) == {"site-7", "site-8"})
    assert "shares" not in {each.what for each in read_incidents(found.server)}
    assert found.kernels[-1].session.sites[0].there


def test_frames_that_come_twice_or_again_do_no_harm(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over a broker that keeps and repeats: each frame twice, and old ones in between."""
    seen, dice = Seen(monkeypatch), random.Random(1)
    send, answer = Net.send, MemoryLine.send
    old: dict[Any, list[bytes]] = {}

    def repeated(to: Any, frame: bytes, sends: Callable[[bytes], None]) -> None:
        known = old.setdefault(to, [])
        if not isinstance(_read(frame), frames.Step | frames.Stepped | frames.Ask | frames.Say):
            sends(frame)
            return
        known.append(frame)
        for each in (dice.choice(known), frame, frame, dice.choice(known)):
            sends(each)

    monkeypatch.setattr(
        Net, "send", lambda own, site, frame: repeated(site, frame, lambda f: send(own, site, f))
    )
    monkeypatch.setattr(
        MemoryLine, "send", lambda own, frame: repeated(own, frame, lambda f: answer(own, f))
    )
    found = federate("shared", [*FOUR, "budget.rounds=6"], minimum=4, clients=4)
    found.start()
    found.wait(60)
    assert seen.exact() == 6
    assert {told.clients for _, told in seen.sums} == {(0, 1, 2, 3)}


def _read(frame: bytes) -> Any:
    for reads in (frames.to_site, frames.to_server):
        try:
            return reads(frame)
        except Exception:
            continue
    return None
