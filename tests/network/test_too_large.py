"""Finite answers that no model can take: refused and named as their sender's, and the run ends with
those who are honest.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from federations import Federation, Hand, read_incidents
from sordino.base.errors import RemoteProtocolError
from sordino.base.message import (
    Derivative,
    Embedding,
    Raw,
    Statistics,
    Turn,
    Update,
    decode,
    encode,
)
from sordino.core.world import ServerSide
from sordino.network import frames
from sordino.network.server_session import refuse_reply
from sordino.network.transport import Lost
from sordino.training.plausible import LONGEST

from .conftest import Makes
from .test_events_between_sites import ends as ends

pytestmark = pytest.mark.usefixtures("brief")
RAW = Raw(1e200, 1.0, np.zeros(21, np.float32))
LARGE = 1.5e19  # of one number: its square is finite in float32
PARTS = {"synchronous": "weights", "asynchronous": "gradient", "client": "delta"}


def large(ask: frames.Ask, hand: Hand, name: str) -> bytes:
    """An answer that is as large as a frame carries."""
    if name == "events":
        turn = decode(ask.body, dimension=1)
        assert isinstance(turn, Turn)
        values = np.full(4, 3e38, "<f4").tobytes()
        return encode(Embedding(hand.index, turn.event, not turn.asked, 32, values))
    vector = np.zeros(21, np.float32)
    vector[3] = LARGE
    return encode(hand.reply(ask, **{PARTS[name]: vector}))


def attack(found: Federation, name: str, who: int) -> None:
    """Answer whatever a site is asked with that."""
    hand = Hand(found, found.names[who])
    hand.hello()
    with suppress(queue.Empty, Lost):
        while (frame := hand.line.get()) is not None:
            if isinstance(frame, frames.Book):
                hand.send(frames.Booked(frame.number))
            if isinstance(frame, frames.Ask):
                hand.send(frames.Say(frame.number, large(frame, hand, name)))


@pytest.mark.parametrize("name", [*PARTS, "events"])
def test_whoever_sends_what_no_model_takes_is_named_and_nobody_else(
    name: str, federate: Makes
) -> None:
    given: dict[str, Any] = {} if name == "events" else {"minimum": 2}
    found = federate(name, **(given or {"minimum": 1}))
    who = 1 if name == "events" else 2
    others = [each for each in found.names if each != found.names[who]]
    found.start("server")
    found.until(lambda: found.net.listens)
    threading.Thread(target=attack, args=(found, name, who), daemon=True).start()
    found.until(lambda: found.kernels and found.kernels[-1].session.sites[who].seen)
    found.start(*others)
    found.wait(60.0, "server", *others)
    log = read_incidents(found.server)
    assert {each.site for each in log if each.what == "too large"} == {found.names[who]}
    kernel = found.kernels[-1]
    sites = kernel.session.sites
    assert not [own.out for own in sites if own.out and own is not sites[who]]
    assert sites[who].out.startswith("its answer cannot be used: its ")
    model: Any = kernel.moment().model
    assert np.isfinite(np.dot(model, model))
    assert "stopped" not in found.done["server"].why


HUGE = Statistics(*[1e308] * 6)
NUMBERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "ali": ('name="ali-dpfl"', {"statistics": HUGE}, "energy"),
    "als on paper": ('name="als-dpfl",form="paper"', {"raw": RAW}, "beta"),
}
SAID: list[tuple[dict[str, Any], str]] = [
    ({"statistics": Statistics(1, 1, 1e300, 1, 1, 1)}, "change"),
    ({"statistics": HUGE}, "energy"),
    ({"statistics": Statistics(1, 1, 1, 1, 1, 1, loss=-1e300)}, "loss"),
    ({"raw": RAW}, "beta"),
]


class Bounded(ServerSide[Any]):
    """A federation whose model takes vectors of the greatest length that is taken anywhere."""

    most = LONGEST


@pytest.mark.parametrize(("told", "name"), SAID)
def test_each_number_is_held_against_what_a_model_takes(told: dict[str, Any], name: str) -> None:
    update = Update(2, 1, 8, np.zeros(21, np.float32), **told)
    with pytest.raises(RemoteProtocolError, match=f"its {name} is "):
        refuse_reply(2, 1, update, Bounded())


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_that_no_such_vectors_give_are_refused(case: str, federate: Makes) -> None:
    method, told, name = NUMBERS[case]
    changes = [f"method={{{method},learning_rate=0.1}}", "budget={rounds=3,steps=8}"]
    found = federate("synchronous", changes, minimum=2)
    found.start("server")
    found.until(lambda: found.net.listens)
    hand = Hand(found, "site-2")
    hand.hello()
    found.until(lambda: found.kernels and found.kernels[-1].session.sites[2].there)
    found.start(*found.names[:2])
    hand.answer(hand.get(frames.Ask), **told, first=np.zeros(21, np.float32))
    found.wait(60.0, "server", *found.names[:2])
    log = read_incidents(found.server)
    assert {each.site for each in log if each.what == "too large"} == {"site-2"}
    assert f"its {name} is " in found.kernels[-1].session.sites[2].out
    assert "stopped" not in found.done["server"].why


def test_a_party_learns_from_no_derivative_that_its_model_cannot_take(ends: Any) -> None:
    party = ends.party
    for event in (1, 2, 3):
        slope = Derivative(0, event - 1, 32, np.full(4, 3e38, "<f4").tobytes())
        turn = Turn(event, derivative=slope if event > 1 else None)
        assert party.objection(0, turn) is None
        party.apply_derivative(0, turn)
        before = party.model_of(0, np.zeros(0, np.float32))
        party.answer(
            0,
            turn.number,
            turn,
            party.ledgers.charge(
                [request.charge for request in party.site_requests(0, turn, ())], party.budget
            ),
        )
        assert np.isfinite(before).all()
    assert [why for _, why in party.faults()] != []
