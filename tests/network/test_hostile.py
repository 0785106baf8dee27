"""Peers that do not keep to the protocol, with certificates that are right: each attack is refused,
named and counted; nothing else changes, and the run goes on.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from federations import Federation, Hand, digest, laid, plain
from sordino.engine import records
from sordino.engine.effect import Book
from sordino.errors import RemoteProtocolError
from sordino.message import Compute, Statistics, Train, Update, decode, encode
from sordino.network import frames
from sordino.network import session as network
from sordino.network.agreement import Agreed
from sordino.network.courier import MOST_BAD
from sordino.network.frames import Ask, FromSite, Say
from sordino.network.outbox import Outbox
from sordino.network.site import Desk, Joins, SiteMoment
from sordino.network.transport.base import Lost
from sordino.privacy import encode as written
from sordino.privacy.event import Gaussian

from .conftest import Makes


@pytest.fixture
def attacked(federate: Makes) -> Federation:
    """A federation whose first round is open: two honest sites by hand, and site-2, the
    attacker.
    """
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


def nan(ask: Ask, hand: Hand) -> FromSite:
    weights = decode(ask.body, dimension=21).weights * np.nan  # type: ignore[union-attr]
    return Say(ask.number, encode(hand.reply(ask, weights=weights)))


def infinite(ask: Ask, hand: Hand) -> FromSite:
    told = Statistics(float("inf"), 0, 0, 0, 0, 0)
    return Say(ask.number, encode(hand.reply(ask, statistics=told)))


USELESS: dict[str, tuple[Callable[[Ask, Hand], FromSite], str]] = {
    "for another client": (
        lambda ask, hand: Say(ask.number, encode(hand.reply(ask, client=0))),
        "speaks for client 0",
    ),
    "of another round": (
        lambda ask, hand: Say(ask.number, encode(hand.reply(ask, round=2))),
        "its message of 2",
    ),
    "NaN": (nan, "not finite"),
    "infinite statistics": (infinite, "energy is not finite"),
    "too short": (
        lambda ask, hand: Say(ask.number, encode(hand.reply(ask, weights=np.zeros(3, np.float32)))),
        "has 3 numbers",
    ),
    "a task": (lambda ask, hand: Say(ask.number, ask.body), "does not send Train"),
    "garbage": (lambda ask, hand: Say(ask.number, b"\x00\x01"), "could not be read"),
    "other steps": (
        lambda ask, hand: Say(ask.number, encode(hand.reply(ask, steps=1))),
        "",
    ),
}


@pytest.mark.parametrize("attack", USELESS)
def test_an_answer_that_cannot_be_used_is_named_and_the_round_closes_without_it(
    attack: str, attacked: Federation
) -> None:
    hands, asks = greeted(attacked)
    made, named = USELESS[attack]
    kernel = attacked.kernels[-1]
    weights = kernel.state.weights
    hands[2].send(made(asks[2], hands[2]))
    attacked.until(lambda: 2 not in kernel.state.waiting)
    assert kernel.state.answers == ()
    assert kernel.state.round == 1
    assert named in reasons(attacked)
    for hand, ask in zip(hands[:2], asks[:2], strict=True):
        hand.answer(ask)
    attacked.until(lambda: not kernel.state.open)
    assert np.array_equal(kernel.state.weights, weights)  # both sent what they were given
    log = [row for row in attacked.rows["server"] if isinstance(row, records.OfClient)]
    assert any(row.client == 2 for row in log)


HARMLESS: dict[str, tuple[Callable[[Ask, Hand], FromSite | bytes], str]] = {
    "garbage": (lambda ask, hand: b"\xc1garbage", "could not be read"),
    "nothing": (lambda ask, hand: b"", "could not be read"),
    "an unknown field": (
        lambda ask, hand: msgspec.msgpack.encode({"kind": "done", "more": "\x1b[2J" * 999}),
        "could not be read",
    ),
    "a frame of the server": (
        lambda ask, hand: frames.encode(frames.Welcome("run")),
        "could not be read",
    ),
    "a second greeting": (
        lambda ask, hand: frames.Hello(frames.VERSION, hand.agreed.digest, "", 0),
        "greets twice",
    ),
    "to a task never asked": (
        lambda ask, hand: Say(7, encode(hand.reply(ask, round=7))),
        "nobody waits for",
    ),
    "a refusal of nothing": (lambda ask, hand: frames.Refuse(5, "no"), "not asked"),
    "a long reason": (lambda ask, hand: frames.Refuse(1, "x" * 3000), "a reason of 3000"),
    "a booking never asked": (lambda ask, hand: frames.Booked(3), ""),
    "the end": (lambda ask, hand: frames.Done(), ""),
}


@pytest.mark.parametrize("attack", HARMLESS)
def test_what_does_not_fit_is_counted_and_changes_nothing(
    attack: str, attacked: Federation
) -> None:
    hands, asks = greeted(attacked)
    made, named = HARMLESS[attack]
    kernel = attacked.kernels[-1]
    before = digest(kernel.state)
    hands[2].send(made(asks[2], hands[2]))
    if named:
        attacked.until(lambda: named in reasons(attacked))
    assert reasons(attacked).isprintable()
    assert digest(kernel.state) == before
    for hand, ask in zip(hands, asks, strict=True):
        hand.answer(ask)
    attacked.until(lambda: kernel.state.round)
    hands[2].answer(asks[2])  # replayed
    attacked.until(lambda: "nobody waits for" in reasons(attacked))
    assert kernel.courier.sites[2].refused.total() >= 1


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"version": 2}, "version 2"),
        ({"agreement": "0" * 64}, "agreed to something else"),
        ({"code": "another"}, "another version of this program"),
    ],
)
def test_who_agreed_to_something_else_is_told_so(
    other: dict[str, Any], named: str, attacked: Federation
) -> None:
    hand = Hand(attacked, "site-2")
    hand.hello(**other)
    assert named in hand.get(frames.Reject).why
    assert named in reasons(attacked)
    hand.send(Say(1, b""))
    attacked.until(lambda: "before its greeting" in reasons(attacked))
    for _ in range(MOST_BAD):
        hand.hello(**other)
    assert hand.ended()


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
    attacked.until(lambda: kernel.state.round == 2)


def test_an_oversized_frame_ends_the_connection(attacked: Federation) -> None:
    hands, _ = greeted(attacked)
    hands[2].send(b"\x00" * (frames.limit(21) + 1))
    assert hands[2].ended()


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
    assert digest(replace(state, waiting=state.waiting | {2}, present=state.present | {2})) == (
        before
    )
    for each, ask in zip(hands[:2], asks[:2], strict=True):
        each.answer(ask)
    if 2 in state.waiting:
        again = Hand(found, "site-2")
        again.hello()
        again.answer(asks[2])
    found.until(lambda: kernel.state.round == 2)
    assert not found.failed


def test_two_thousand_mutated_frames_change_nothing(attacked: Federation) -> None:
    fuzzed(attacked, 2_000, seed=1)


@pytest.mark.nightly
def test_a_hundred_thousand_mutated_frames_change_nothing(attacked: Federation) -> None:
    fuzzed(attacked, 100_000, seed=2)


@dataclass
class Kept:
    """A watcher that keeps rows."""

    rows: list[Any]

    def row(self, row: Any) -> None:
        self.rows.append(row)

    def save(self, moment: Any) -> None: ...


def no_line(limit: int) -> Any:
    raise AssertionError("a desk knows no connection")


@dataclass
class Victim:
    """A site's desk without a connection: what a hostile server meets."""

    desk: Desk
    watch: Kept
    dimension: int
    sigma: float

    def said(self, frame: frames.FromServer | bytes) -> list[FromSite]:
        raw = frame if isinstance(frame, bytes) else frames.encode(frame)
        return list(self.desk.said(raw))

    def train(self, number: int = 1, **other: Any) -> Ask:
        own: dict[str, Any] = {
            "round": number,
            "steps": 2,
            "weights": np.zeros(self.dimension, np.float32),
        }
        return Ask(number, encode(Train(**{**own, **other})))

    def entries(self) -> int:
        return sum(1 for _ in self.desk._site.vault.ledger.entries())


@pytest.fixture
def victim(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Victim]:
    name = getattr(request, "param", "synchronous")
    found = laid(tmp_path, name)
    kit, data = found.sites[0]
    _, index, study, own = network.opened(network.Wish(kit=kit, data=data))
    folder = tmp_path / "run"
    folder.mkdir()
    build = Joins(
        agreed=Agreed(kit), index=index, own=own, connects=no_line, told=lambda words: None
    )
    built = build(study, folder, "run")
    watch, outbox = Kept([]), Outbox(folder)
    moment = built.first
    assert isinstance(moment, SiteMoment)
    site: Any = built.simulation
    desk = Desk(site, moment, watch, outbox)
    made = Victim(desk, watch, moment.model.size, study.privacy.noise_multiplier or 0.0)
    assert made.said(frames.Welcome("run")) == []
    yield made
    outbox.close()
    site.vault.close()


BEYOND: dict[str, dict[str, Any]] = {
    "another clip": {"clip": 9.0, "noise_multiplier": 1.0},
    "less noise": {"clip": 1.0, "noise_multiplier": 0.01},
    "a clip alone": {"clip": 1.0},
    "more steps": {"steps": 3},
    "no steps": {"steps": 0},
    "a probe": {"probe": np.zeros(21, np.float32)},
    "the first gradient": {"wants_first": True},
    "the loss": {"loss_bound": 1.0},
    "an order": {"order": 8.0},
    "a shape": {"shape": (1.0, 2.0)},
    "round 0 of none": {"round": 9, "number": 9},
    "another round": {"round": 2, "number": 1},
    "NaN": {"weights": np.full(21, np.nan, np.float32)},
    "another model": {"weights": np.zeros(4, np.float32)},
}


@pytest.mark.parametrize("attack", BEYOND)
def test_a_site_refuses_what_was_not_agreed_and_books_nothing(attack: str, victim: Victim) -> None:
    other = dict(BEYOND[attack])
    number = other.pop("number", 1)
    body = victim.train(**{"number": number, **other}).body
    (answer,) = victim.said(Ask(number, body))
    assert isinstance(answer, frames.Refuse)
    assert answer.why
    assert [row.why for row in victim.watch.rows] == [answer.why]
    assert victim.entries() == 0
    (good,) = victim.said(victim.train())
    assert isinstance(good, Say)


def test_a_site_says_the_same_again_and_nothing_else_under_one_number(victim: Victim) -> None:
    (first,) = victim.said(victim.train())
    booked = victim.entries()
    (again,) = victim.said(victim.train())
    assert again == first
    (refusal,) = victim.said(victim.train(weights=np.ones(21, np.float32)))
    assert isinstance(refusal, frames.Refuse)
    assert "second task" in refusal.why
    assert victim.entries() == booked
    assert isinstance(victim.said(victim.train(3))[0], Say)
    assert victim.said(victim.train(2)) == []  # of the past


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        frames.encode(frames.Done()),
        frames.encode(frames.Bye("over", b"\x00" * 7)),
        frames.encode(frames.Bye("over", np.full(21, np.inf, "<f4").tobytes())),
        frames.encode(Ask(1, b"")),
        frames.encode(Ask(1, encode(Compute(1, 0, np.zeros(21, np.float32))))),
        frames.encode(Ask(1, encode(Update(0, 1, 2, np.zeros(21, np.float32))))),
        frames.encode(frames.Book(1, written(Gaussian(1.0)))),
        frames.encode(frames.Book(1, "no event")),
        frames.encode(frames.Book(-1, "{}")),
    ],
)
def test_a_site_refuses_frames_that_make_no_sense(frame: bytes, victim: Victim) -> None:
    (answer,) = victim.said(frame)
    assert isinstance(answer, frames.Refuse)
    assert victim.desk.moment.ended is None
    assert victim.entries() == 0


@pytest.mark.parametrize("victim", ["client"], indirect=True)
def test_a_site_books_no_round_but_the_agreed_one(victim: Victim) -> None:
    world = victim.desk._world
    regime: Any = world.regime  # type: ignore[attr-defined]
    noise = regime.method.round_noise(regime.method.start(regime.terms), regime.terms, 1)
    event = regime.aggregator.event(noise)
    for wrong in (
        frames.Book(1, written(Gaussian(9.0))),
        frames.Book(99, written(event)),
        frames.Book(0, written(event)),
    ):
        assert isinstance(victim.said(wrong)[0], frames.Refuse)
    assert victim.entries() == 0
    for _ in range(2):
        assert victim.said(frames.Book(1, written(event))) == [frames.Booked(1)]
    assert victim.entries() == 1
    assert world.objection_to_round(0, Book(1, event)) is None


@pytest.mark.parametrize("victim", ["synchronous", "asynchronous", "client"], indirect=True)
def test_mutated_frames_of_a_server_release_nothing_unbooked(victim: Victim) -> None:
    dice, asked = random.Random(3), victim.desk._world
    weights = np.zeros(victim.dimension, np.float32)
    unit = type(asked).__name__
    task = Compute(1, 0, weights) if unit == "Arrivals" else Train(1, 2, weights)
    valid = [
        frames.encode(each)
        for each in (
            Ask(1, encode(task)),
            frames.Book(1, written(Gaussian(1.0))),
            frames.Bye("over", weights.tobytes()[:-1]),
        )
    ]
    sent: set[int] = set()
    for _ in range(1_000):
        frame = bytearray(dice.choice(valid))
        for _ in range(dice.randint(1, 3)):
            frame[dice.randrange(len(frame))] = dice.randrange(256)
        for answer in victim.said(bytes(frame)):
            assert isinstance(answer, frames.Refuse | Say | frames.Booked)
            if isinstance(answer, Say):
                sent.add(answer.number)
    assert victim.entries() >= len(sent) / (1 if unit != "Arrivals" else 30)
    assert len(victim.watch.rows) <= 1_100
    assert plain(victim.desk.moment.ended) is None


def test_frames_are_strict() -> None:
    for bad in ("text", b"", b"\xc0", frames.encode(frames.Welcome("run"))):
        with pytest.raises(RemoteProtocolError):
            frames.to_server(bad)
    for bad in ("text", b"", frames.encode(frames.Done())):
        with pytest.raises(RemoteProtocolError):
            frames.to_site(bad)
