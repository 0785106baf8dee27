"""A site that is connected and never answers holds nobody up for ever."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from contextlib import suppress

import pytest

from federations import Federation, Hand, read_incidents
from sordino.base.logs import log_to
from sordino.live import federation
from sordino.network import kernel as kernels
from sordino.network.demo import KITS
from sordino.network.frames import Ask, Book, Booked, Bye, Done
from sordino.network.kernel import AnswerTimeouts
from sordino.network.kit import Agreed
from sordino.network.status import Incidents, Reporter
from sordino.network.transport import Lost

from .conftest import Makes

pytestmark = pytest.mark.usefixtures("brief")


def soon(found: Federation, seconds: float) -> None:
    """Have everybody agree that answers come soon."""
    for path in found.laid.server.parent.glob("*/agreement.toml"):
        assert path.parent.parent.name == KITS
        text = path.read_text()
        assert "answer_within = 21600.0" in text
        path.write_text(text.replace("answer_within = 21600.0", f"answer_within = {seconds}"))


@pytest.mark.parametrize("name", ["synchronous", "asynchronous", "client"])
def test_a_run_goes_on_without_a_site_that_never_answers(name: str, federate: Makes) -> None:
    found = federate(name, ["privacy.epsilon=1e6"], minimum=2)
    soon(found, 0.5)
    found.start("server")
    found.until(lambda: found.net.listens)
    hands = [Hand(found, each) for each in reversed(found.names)]
    for hand in hands:
        hand.hello()
        threading.Thread(target=plays, args=(hand, hand.index < 2), daemon=True).start()
    found.wait(60.0, "server")
    told = [each for each in read_incidents(found.server) if each.what == "mute"]
    assert {each.site for each in told} <= {found.names[2]}
    assert told or name != "synchronous"  # where nobody waits for it, or it is not drawn
    assert all("is not answered within 0.5 s" in each.detail for each in told)
    assert "stopped" not in found.done["server"].why


def plays(hand: Hand, answers: bool) -> None:
    """Book rounds, and answer tasks or none."""
    with suppress(queue.Empty, Lost):
        while (frame := hand.line.get(30.0)) is not None:
            match frame:
                case Book(number):
                    hand.send(Booked(number))
                case Ask() if answers:
                    hand.answer(frame)
                case Bye():
                    hand.send(Done())


def test_a_mute_site_is_cut_off_and_asked_again_when_it_has_come_back(federate: Makes) -> None:
    found = federate("synchronous", minimum=2)
    soon(found, 0.3)
    found.start("server")
    found.until(lambda: found.net.listens)
    first, second, third = (Hand(found, name) for name in found.names)
    third.hello()
    first.hello()
    first.answer(first.get(Ask))
    assert third.get(Ask).number == 1
    assert third.ended()
    kernel = found.kernels[-1]
    found.until(lambda: not kernel.state.open)
    assert kernel.state.absent == {1, 2}
    assert "mute" in {each.what for each in read_incidents(found.server)}
    again = Hand(found, found.names[2])
    again.hello()
    assert again.get(Ask).number == 2
    assert first.get(Ask).number == 2
    second.hello()
    found.until(lambda: 1 not in kernel.state.absent)


def test_the_status_says_who_is_waited_for(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "SLOW", 0.0)
    found = federate("synchronous", minimum=2)
    said: list[str] = []
    # it asks the server's ledger, in the server's thread
    found.told = Reporter(
        found.server, Agreed(found.laid.server), Incidents(found.server), log_to(said.append)
    )
    found.start("server")
    found.until(lambda: found.net.listens)
    hands = [Hand(found, name) for name in found.names]
    for hand in hands:
        hand.hello()
    hands[0].answer(hands[0].get(Ask))

    def waits() -> Sequence[str]:
        waiting = federation.read(found.server).waiting or ""
        return [waiting] if "site-1 (task 1, since " in waiting else []

    found.until(lambda: waits() and "site-0" not in waits()[0])
    assert any("waiting for an answer of" in each for each in said)


def test_one_alarm_is_set_for_a_site() -> None:
    own = AnswerTimeouts(10.0, (1,))
    assert own.asked(0, 2.0) == 12.0
    assert own.asked(0, 5.0) is None
    assert own.asked(1, 5.0) is None
    assert own.looked(0, 12.0) == 15.0
    assert own.looked(0, 15.0) is None
    assert own.asked(0, 16.0) == 26.0
    assert AnswerTimeouts(float("inf"), ()).asked(0, 1.0) is None
