"""Peers that do not keep to the protocol, with certificates that are right: each attack is refused,
named and counted; nothing else changes, and the run goes on.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from federations import Federation, Hand, digest, laid, read_incidents
from sordino.base.errors import RemoteProtocolError, StudyError
from sordino.base.logs import log_to
from sordino.base.message import Contribution, Gradient, Statistics, decode, encode
from sordino.core import records
from sordino.network import frames
from sordino.network.frames import Ask, FromSite, Say
from sordino.network.kit import RUN
from sordino.network.server import serve
from sordino.network.server_session import AT_ONCE, MOST_BAD
from sordino.network.status import INCIDENTS, Incidents, Listeners
from sordino.network.transport import Lost, Stranger

from .conftest import Makes


@pytest.fixture
def attacked(federate: Makes) -> Federation:
    """A federation that waits for its sites, of which site-2 will attack."""
    found = federate("synchronous")
    found.start("server")
    found.until(lambda: found.net.listens)
    return found


def greeted(found: Federation) -> tuple[list[Hand], list[Ask]]:
    """All sites by hand, and what they are asked."""
    hands = [Hand(found, name) for name in found.names]
    for hand in hands:
        hand.hello()
    return hands, [hand.get(Ask) for hand in hands]


def reasons(found: Federation) -> str:
    """What the server said that it refused of site-2."""
    return "; ".join(why for who, why in found.net.refused if who == "site-2")


def logged(found: Federation) -> set[tuple[str, str]]:
    """What the server's log says that site-2 did: what, and the detail."""
    return {
        (each.what, each.detail) for each in read_incidents(found.server) if each.site == "site-2"
    }


def nan(ask: Ask, hand: Hand) -> FromSite:
    weights = decode(ask.body, dimension=21).weights * np.nan  # type: ignore[union-attr]
    return Say(ask.number, encode(hand.reply(ask, weights=weights)))


def infinite(ask: Ask, hand: Hand) -> FromSite:
    told = Statistics(float("inf"), 0, 0, 0, 0, 0)
    return Say(ask.number, encode(hand.reply(ask, statistics=told)))


USELESS: dict[str, tuple[Callable[[Ask, Hand], FromSite], str, str]] = {
    "for another client": (
        lambda ask, hand: Say(ask.number, encode(hand.reply(ask, client=0))),
        "speaks for client 0",
        "for another",
    ),
    "of another round": (
        lambda ask, hand: Say(ask.number, encode(hand.reply(ask, round=2))),
        "its message of 2",
        "another task",
    ),
    "NaN": (nan, "not finite", "not finite"),
    "infinite statistics": (infinite, "energy is not finite", "not finite"),
    "too short": (
        lambda ask, hand: Say(ask.number, encode(hand.reply(ask, weights=np.zeros(3, np.float32)))),
        "has 3 numbers",
        "wrong shape",
    ),
    "a task": (lambda ask, hand: Say(ask.number, ask.body), "does not send Train", "no answer"),
    "garbage": (lambda ask, hand: Say(ask.number, b"\x00\x01"), "could not be read", "unreadable"),
    "another kind of answer": (
        lambda ask, hand: Say(
            ask.number, encode(Gradient(2, ask.number, 0, np.zeros(21, np.float32)))
        ),
        "not what it was asked for",
        "another answer",
    ),
    "an update for the aggregator": (
        lambda ask, hand: Say(
            ask.number, encode(Contribution(2, ask.number, 2, np.zeros(21, np.float32), True))
        ),
        "not what it was asked for",
        "another answer",
    ),
    "other steps": (
        lambda ask, hand: Say(ask.number, encode(hand.reply(ask, steps=1))),
        "not what it was asked for",
        "another answer",
    ),
}


@pytest.mark.parametrize("attack", USELESS)
def test_an_answer_that_cannot_be_used_is_named_and_the_round_closes_without_it(
    attack: str, attacked: Federation
) -> None:
    hands, asks = greeted(attacked)
    made, named, what = USELESS[attack]
    kernel = attacked.kernels[-1]
    weights = kernel.state.weights
    hands[2].send(made(asks[2], hands[2]))
    attacked.until(lambda: 2 not in kernel.state.waiting)
    assert kernel.state.answers == ()
    assert kernel.state.number == 1
    assert named in reasons(attacked)
    assert any(kind == what and named in detail for kind, detail in logged(attacked))
    for hand, ask in zip(hands[:2], asks[:2], strict=True):
        hand.answer(ask)
    attacked.until(lambda: not kernel.state.open)
    assert np.array_equal(kernel.state.weights, weights)  # both sent what they were given
    log = [row for row in attacked.rows["server"] if isinstance(row, records.OfClient)]
    assert any(row.client == 2 for row in log)


HARMLESS: dict[str, tuple[Callable[[Ask, Hand], FromSite | bytes], str, str]] = {
    "garbage": (lambda ask, hand: b"\xc1garbage", "could not be read", "unreadable"),
    "nothing": (lambda ask, hand: b"", "could not be read", "unreadable"),
    "an unknown field": (
        lambda ask, hand: msgspec.msgpack.encode({"kind": "done", "more": "\x1b[2J" * 999}),
        "could not be read",
        "unreadable",
    ),
    "a frame of the server": (
        lambda ask, hand: frames.encode(frames.Welcome("run")),
        "could not be read",
        "unreadable",
    ),
    "a second greeting": (
        lambda ask, hand: frames.Hello(frames.VERSION, hand.agreed.digest, "", 0),
        "greets twice",
        "greeting",
    ),
    "to a task never asked": (
        lambda ask, hand: Say(7, encode(hand.reply(ask, round=7))),
        "nobody waits for",
        "unasked",
    ),
    "a refusal of nothing": (lambda ask, hand: frames.Refuse(5, "no"), "not asked", "unasked"),
    "a long reason": (
        lambda ask, hand: frames.Refuse(1, "x" * 3000),
        "a reason of 3000",
        "unreadable",
    ),
    "a booking never asked": (lambda ask, hand: frames.Booked(3), "a booking of", "unasked"),
    "the end": (lambda ask, hand: frames.Done(), "not ended", "unasked"),
}


@pytest.mark.parametrize("attack", HARMLESS)
def test_what_does_not_fit_is_counted_and_changes_nothing(
    attack: str, attacked: Federation
) -> None:
    hands, asks = greeted(attacked)
    made, named, what = HARMLESS[attack]
    kernel = attacked.kernels[-1]
    before = digest(kernel.state)
    hands[2].send(made(asks[2], hands[2]))
    attacked.until(lambda: named in reasons(attacked))
    assert any(kind == what and named in detail for kind, detail in logged(attacked))
    assert reasons(attacked).isprintable()
    assert digest(kernel.state) == before
    for hand, ask in zip(hands, asks, strict=True):
        hand.answer(ask)
    attacked.until(lambda: kernel.state.number == 2)
    hands[2].answer(asks[2])  # replayed
    attacked.until(lambda: ("replayed", "an answer that nobody waits for") in logged(attacked))
    hands[2].answer(hands[2].get(Ask))
    hands[2].answer(asks[2])
    attacked.until(lambda: ("stale", "an answer that nobody waits for") in logged(attacked))
    assert kernel.session.sites[2].refused.total() >= 1


@pytest.mark.parametrize(
    ("other", "named", "what"),
    [
        ({"version": 2}, "version 2", "another version"),
        ({"agreement": "0" * 64}, "agreed to something else", "another study"),
    ],
)
def test_who_agreed_to_something_else_is_told_so(
    other: dict[str, Any], named: str, what: str, attacked: Federation
) -> None:
    hand = Hand(attacked, "site-2")
    hand.hello(**other)
    assert named in hand.get(frames.Reject).why
    assert named in reasons(attacked)
    assert any(kind == what and named in detail for kind, detail in logged(attacked))
    hand.send(Say(1, b""))
    attacked.until(lambda: "before its greeting" in reasons(attacked))
    with suppress(Lost):  # it is ended before the last of them
        for _ in range(MOST_BAD):
            hand.hello(**other)
    assert hand.ended()
    assert ("greeting", "it speaks before its greeting") in logged(attacked)
    assert ("cut off", "too many frames that were refused") in logged(attacked)


def test_too_many_refused_frames_end_the_connection_and_the_site_may_come_back(
    attacked: Federation,
) -> None:
    hands, asks = greeted(attacked)
    kernel = attacked.kernels[-1]
    for number in range(MOST_BAD):
        hands[2].send(bytes([0xC1, number]))
    assert hands[2].ended()
    again = Hand(attacked, "site-2")
    again.hello()
    ask = again.get(Ask)
    assert ask == asks[2]
    for hand in (*hands[:2], again):
        hand.answer(ask)
    attacked.until(lambda: kernel.state.number == 2)


def test_an_oversized_frame_ends_the_connection(attacked: Federation) -> None:
    hands, _ = greeted(attacked)
    hands[2].send(b"\x00" * (frames.limit(21) + 1))
    assert hands[2].ended()
    assert ("connection", f"a frame of more than {frames.limit(21)} bytes") in logged(attacked)


def test_a_flood_does_not_fill_the_disk(tmp_path: Path) -> None:
    log = Incidents(tmp_path, most=40_000)
    written = sum(log.note("site-2", "unreadable", "the same") for _ in range(3_000))
    assert written == 12  # 1, 2, 4, ... 2048
    assert [each.times for each in read_incidents(tmp_path)] == [2**i for i in range(12)]
    for number in range(20_000):
        log.note(f"somebody-{number % 2_000}", "unreadable", f"{number}\x1b[2J" * 99)
    size = (tmp_path / INCIDENTS).stat().st_size
    assert size < 41_000
    last = read_incidents(tmp_path)[-1]
    assert last.detail == "the log is full"
    assert all(each.detail.isprintable() for each in read_incidents(tmp_path))
    Incidents(tmp_path, most=40_000).note("site-2", "unreadable", "once more")
    assert (tmp_path / INCIDENTS).stat().st_size < size + 200


def test_news_of_a_connection_that_cannot_be_written_end_no_transport(tmp_path: Path) -> None:
    """Each was a traceback of asyncio in the log of a server."""
    log = Incidents(tmp_path / "gone")
    with pytest.raises(StudyError, match="gone"):
        log.note("site-2", "unreadable", "the same")
    log.connection("site-2", "TLS: bad")
    assert log.strangers() == {"site-2: TLS: bad": 1}


def test_a_site_that_refuses_again_and_again_fills_no_journal(attacked: Federation) -> None:
    hands, asks = greeted(attacked)
    own = attacked.kernels[-1].session.sites[2]
    hand = hands[2]
    for _ in range(AT_ONCE + 4):
        hand.send(frames.Refuse(0, "x" * 900))
        attacked.until(lambda: not own.there)
        hand.line.close()
        hand = Hand(attacked, "site-2")
        hand.hello()
        hand.get(frames.Welcome)
        with suppress(AssertionError):
            attacked.until(lambda: own.there, 0.05)
    rows = attacked.rows["server"]
    assert sum(isinstance(row, records.Declined) for row in rows) == AT_ONCE + 1
    attacked.until(lambda: own.there)  # who waits is back
    for each, ask in zip(hands[:2], asks[:2], strict=True):
        each.answer(ask)
    hand.answer(hand.get(Ask))
    attacked.until(lambda: own.barred == 0)


def fuzzed(found: Federation, count: int, seed: int) -> None:
    """Mutations of valid frames, sent by site-2 over connections that are made anew."""
    hands, asks = greeted(found)
    kernel, dice = found.kernels[-1], random.Random(seed)
    valid = [
        frames.encode(each)
        for each in (
            frames.Hello(frames.VERSION, hands[2].agreed.digest, "x", 0),
            Say(2, encode(hands[2].reply(asks[2], round=2))),
            Say(2**60, b"x" * 50),
            frames.Booked(1),
            frames.Refuse(2, "why"),
            frames.Done(),
        )
    ]
    before, hand, sizes = digest(kernel.state), hands[2], []
    tracemalloc.start()
    for number in range(count):
        frame = bytearray(dice.choice(valid))
        for _ in range(dice.randint(1, 4)):
            frame[dice.randrange(len(frame))] = dice.randrange(256)
        cut = dice.choice([None, None, dice.randrange(len(frame))])
        if not hand.line.open:
            hand = Hand(found, "site-2")
            with suppress(Lost):  # what the last connection sent may end this one, too
                hand.hello()
        with suppress(Lost):  # the connection was ended meanwhile
            hand.send(bytes(frame[:cut]))
        if number in (count // 2, count - 1):
            found.until(lambda: found.net.mailbox_empty)
            found.net.said.clear()
            found.net.told.clear()
            found.kernels[:-1] = []
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[1] - sizes[0] < 300_000
    state = kernel.state
    assert digest(
        msgspec.structs.replace(state, waiting=state.waiting | {2}, absent=state.absent - {2})
    ) == (before)
    again = Hand(found, "site-2")  # if a mutation was a refusal, it takes part from here on again
    again.hello()
    found.until(lambda: kernel.session.sites[2].there and kernel.session.sites[2].greeted)
    for each, ask in zip(hands[:2], asks[:2], strict=True):
        each.answer(ask)
    if 2 in state.waiting:
        again.answer(asks[2])
    found.until(lambda: kernel.state.number == 2)
    assert not found.failed


def test_two_thousand_mutated_frames_change_nothing(attacked: Federation) -> None:
    fuzzed(attacked, 2_000, seed=1)


@pytest.mark.nightly
def test_a_hundred_thousand_mutated_frames_change_nothing(attacked: Federation) -> None:
    fuzzed(attacked, 100_000, seed=2)


def test_a_reason_of_a_peer_controls_no_terminal() -> None:
    bad, good = "\x1b]0;owned\x07\nfine \u202eeman", "?]0;owned? fine ?eman"
    for frame in (frames.Reject(bad), frames.Bye(bad, b"")):
        assert frames.to_site(frames.encode(frame)).why == good  # type: ignore[union-attr]
    refused = frames.to_server(frames.encode(frames.Refuse(1, bad)))
    assert refused == frames.Refuse(1, good)
    with pytest.raises(RemoteProtocolError) as of_frame:
        frames.to_site(msgspec.msgpack.encode({"kind": "welcome", bad: 1}))
    with pytest.raises(RemoteProtocolError) as of_message:
        decode(msgspec.msgpack.encode({"type": "Train", bad: 1}), dimension=1)
    assert good in str(of_frame.value)
    assert good in str(of_message.value)
    assert str(Lost(bad)) == str(Stranger(bad)) == good


@pytest.mark.parametrize("run", ["\x1b[2J", "a run", "", "x" * 65, "run\n"])
def test_a_run_is_named_so_that_people_can_read_it(run: str) -> None:
    with pytest.raises(RemoteProtocolError, match="could not be read"):
        frames.to_site(frames.encode(frames.Welcome(run)))


def test_frames_are_strict() -> None:
    for bad in ("text", b"", b"\xc0", frames.encode(frames.Welcome("run"))):
        with pytest.raises(RemoteProtocolError):
            frames.to_server(bad)
    for bad in ("text", b"", frames.encode(frames.Done())):
        with pytest.raises(RemoteProtocolError):
            frames.to_site(bad)


def test_strangers_stand_in_the_log_and_a_flood_of_them_is_told_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Enough(Exception):
        pass

    unknown, revoked = "TLS: certificate verify failed", "its certificate is revoked"

    def way(limit: int, mailbox: Any, refused: Any, told: Any) -> Any:
        for _ in range(1_000):
            refused("", unknown)
        refused("site-1", revoked)
        raise Enough

    kit, words = laid(tmp_path, "synchronous").server, list[str]()
    shown = Listeners(row=lambda row: None, begin=lambda going: None, log=log_to(words.append))
    with pytest.raises(Enough):
        serve(kit, shown, way=way)
    lines = [(each.site, each.what, each.detail) for each in read_incidents(kit / RUN)]
    assert lines == [("", "connection", unknown)] * 10 + [("site-1", "connection", revoked)]
    assert words.count(f"refused a connection: {unknown}") == 10
    assert words.count(f"refused site-1: {revoked}") == 1
