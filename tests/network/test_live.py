"""Runs between live sites, in memory: they end, whoever goes, comes, waits or refuses."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from federations import STUDIES, Federation, Hand
from sordino.base.logs import log_to
from sordino.core import records
from sordino.core.records import Row
from sordino.core.run import reading
from sordino.core.run.verify import verify
from sordino.live.federation import read as status
from sordino.network import frames, kernel, proof
from sordino.network.kit import Agreed
from sordino.network.status import Incidents, Reporter, conclude
from sordino.network.storage import OUTBOX as NAMES
from sordino.network.storage import AnswerStore
from sordino.report.page import render

from .conftest import Makes, some

OWN = {
    "synchronous": "Everything that this site sends is (epsilon = ",
    "correlated": "Everything that this site sends is (epsilon = ",
    "passes": "Everything that this site sends is (epsilon = ",
    "asynchronous": "Everything that this site sends is (epsilon = ",
    "edges in passes": "Everything that this site sends is (epsilon = ",
    "shared": "Every opened sum that this site has a part in is (epsilon = ",
    "shared-client": "Every opened sum that this site has a part in is (epsilon = ",
    "client": "Everything that the aggregator publishes of this site's updates is (epsilon = ",
}
OWN["client-in-turn"] = OWN["client"]


WHOLE = ("client", "client-in-turn", "shared", "shared-client")
"""Where the server's promise is about sums."""


def rows(found: Federation, kind: type[Row]) -> list[Any]:
    """Rows of the server's log."""
    return [row for row in found.rows.get("server", []) if isinstance(row, kind)]


@pytest.mark.parametrize("name", STUDIES)
def test_a_live_run_ends_with_one_model_everywhere(name: str, federate: Makes) -> None:
    found = federate(name)
    found.start()
    found.wait()
    assert set(found.done) == {"server", *found.names}
    models = {(found.folder(each) / "model.safetensors").read_bytes() for each in found.done}
    assert len(models) == 1
    assert not (found.server / "journal.bin").exists()
    assert not found.net.refused
    for each in found.done:  # how long a round took tells of batches, whose sizes are secret
        folder = found.folder(each)
        assert '"time"' not in (folder / "rounds.jsonl").read_text()
        assert isinstance(json.loads((folder / "run.json").read_text())["result"]["seconds"], int)
    for each in found.names:  # it knows of no releases but its own
        promised = str(reading.load(found.folder(each)).about.guarantee)
        assert promised.startswith(OWN[name])
        assert "will be" not in promised
    assert "the clients send" in str(reading.load(found.server).about.guarantee) or name in WHOLE


@pytest.mark.parametrize("name", ["synchronous", "client"])
def test_a_server_whose_sites_have_the_rows_holds_no_digest_of_them(
    name: str, federate: Makes
) -> None:
    found = federate(name, ["budget.rounds=2"], scripted=False)
    found.start()
    found.wait()
    verdict = verify(found.server)
    assert not verdict.problems
    assert not [each for each in verdict.remarks if "digests of private rows" in each]


def test_no_folder_says_how_often_a_site_was_drawn(federate: Makes) -> None:
    """Amplification by sampling rests on that secret: all that follows from it is looked at in the
    folders of the sites, which are alike, and in that of the server.
    """
    found = federate("client", ["privacy.sampling_rate=0.5"])
    found.told = Reporter(
        found.server, Agreed(found.laid.server), Incidents(found.server), log_to(list[str]().append)
    )
    found.start()
    found.wait()
    conclude(found.server, 8, 1.0, "over")
    told = []
    for i, (kit, _) in enumerate(found.laid.sites):
        folder = found.folder(kit.name)
        path = proof.write(kit, folder, Agreed(kit), i, found.done[kit.name])
        stated = json.loads(json.loads(path.read_text())["statement"])
        assert stated.pop("answers") is None
        assert "digest" not in stated
        outbox = AnswerStore(folder)
        outbox.close()
        header = [(folder / name).read_bytes()[:16] for name in NAMES]
        about = reading.load(folder)
        rounds = [(row.round, row.steps) for row in about.rounds]
        assert rounds == [(number, 2 * number) for number in range(1, 9)]
        assert (about.result.rounds, about.result.steps) == (8, 16)
        assert not (folder / "incidents.jsonl").exists()
        kept = msgspec.structs.replace(outbox.progress, due=(8, b""))
        told.append([kept, [each[:12] for each in header], (folder / "rounds.jsonl").read_bytes()])
    assert told[0] == told[1] == told[2]
    seen = status(found.server)
    assert seen.journal is None  # each answer makes it longer
    for site in seen.sites:
        assert (site.received, site.sent, site.asked, site.quiet) == (0, 0, None, None)
        assert site.answers is None


@pytest.mark.parametrize("name", some("asynchronous", "client", "shared"))
def test_a_run_goes_on_without_a_site_that_vanishes_and_counts_it_in_again(
    name: str, federate: Makes
) -> None:
    # more than anybody does meanwhile: the run must not end before the site is back
    arrivals = name in ("asynchronous", "edges in passes")
    budget = "budget.updates=200000" if arrivals else "budget.rounds=20000"
    sums = ["privacy.honest=3"] if name.startswith("shared") else []
    changes = [budget, "privacy.epsilon=1e6", *sums]
    found = federate(name, changes, minimum=1, clients=4 if sums else 3)
    found.start()
    gone = found.names[1]
    found.until(lambda: found.kernels and found.kernels[-1].session.sites[1].there)
    found.until(lambda: found.kernels[-1].state.number >= 2)
    found.stop(gone)
    found.until(lambda: not found.kernels[-1].session.sites[1].there)
    before = found.kernels[-1].state.number
    found.until(lambda: found.kernels[-1].state.number > before + 2)
    found.start(gone)
    found.until(lambda: found.kernels[-1].session.sites[1].there)
    seen = len(found.answers()[gone])
    found.until(lambda: len(found.answers()[gone]) > seen)
    if not name.startswith("client"):  # where nobody may know who takes part
        assert rows(found, records.Lost)
        assert rows(found, records.Joined)


@pytest.mark.usefixtures("brief")
def test_a_run_waits_until_the_agreed_minimum_is_there(federate: Makes) -> None:
    found = federate("synchronous", minimum=2)
    found.start("server", found.names[0])
    found.until(lambda: found.kernels)
    with pytest.raises(AssertionError, match="did not come"):
        found.until(lambda: found.kernels[-1].state.number, seconds=0.2)
    found.start(found.names[2])
    found.wait()
    assert [row.client for row in rows(found, records.Lost)] == [1]
    assert found.done["server"].rounds == 8


def test_a_site_whose_own_limit_is_reached_is_named_and_the_others_go_on(federate: Makes) -> None:
    found = federate("synchronous", minimum=1, limits={"site-1": 2.2})
    found.start()
    found.wait()
    (declined,) = rows(found, records.Declined)
    assert declined.client == 1
    assert "budget" in declined.why
    assert 0 < len(found.answers()["site-1"]) < 8
    assert found.done["server"].rounds == 8
    assert found.done["site-1"].spent <= 2.2
    assert f"<td>{declined.why}</td>" in render(reading.load(found.server)).replace("&#39;", "'")


def test_a_round_is_not_closed_before_it_is_paid_for_if_its_only_member_leaves(
    federate: Makes,
) -> None:
    """Who was drawn leaves after the round was sent to be booked, and before others have booked."""
    found = federate(
        "client", ["privacy.sampling_rate=0.5", "budget.rounds=200", "privacy.epsilon=1e6"]
    )
    found.start("server")
    found.until(lambda: found.net.listens)
    hands = [Hand(found, name) for name in found.names]
    for hand in hands:
        hand.hello()
    while True:
        (number,) = {hand.get(frames.Book).number for hand in hands}
        kernel = found.kernels[-1]
        if len(drawn := kernel.state.waiting) == 1:
            break
        for hand in hands:
            hand.send(frames.Booked(number))
        for i in drawn:
            hands[i].answer(hands[i].get(frames.Ask))
    (only,) = drawn
    hands[only].line.close()
    found.until(lambda: not kernel.session.sites[only].there)
    assert kernel.state.open
    for i, hand in enumerate(hands):
        if i != only:
            hand.send(frames.Booked(number))
    found.until(lambda: not kernel.state.open and kernel.state.number == number)
    assert not found.failed


def test_a_site_that_never_books_does_not_hold_the_others_up(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "BOOKING", 0.2)
    found = federate("client", ["privacy.sampling_rate=1.0", "budget.rounds=2"])
    found.start("server", *found.names[:2])
    found.until(lambda: found.kernels and len(found.kernels[-1]._there) == 2)
    mute = Hand(found, found.names[2])
    mute.hello()
    for number in (1, 2):
        found.until(lambda number=number: found.kernels[-1].state.number == number)  # type: ignore[misc]
        assert mute.get(frames.Book).number == number
        mute.answer(mute.get(frames.Ask))
    found.until(lambda: found.kernels[-1].state.ended)
    mute.get(frames.Bye)
    mute.send(frames.Done())
    found.wait()
    assert found.done["server"].rounds == 2
    (slow, *_) = [why for who, why in found.net.refused if who == found.names[2]]
    assert slow == "it has not charged round 1 in time"


def test_who_comes_back_during_a_round_is_not_left_out_of_its_booking(federate: Makes) -> None:
    """An answer counts that comes after a late booking of the same round."""
    found = federate(
        "client", ["participation.deadline=30.0", "privacy.sampling_rate=1.0"], minimum=1
    )
    found.start("server")
    found.until(lambda: found.net.listens)
    first, second = Hand(found, found.names[0]), Hand(found, found.names[1])
    first.hello()
    number = first.get(frames.Book).number
    first.send(frames.Booked(number))
    first.get(frames.Ask)
    second.hello()
    second.get(frames.Book)
    second.get(frames.Ask)
    second.send(frames.Booked(number))
    assert found.kernels[-1].session.sites[1].ask is not None
    found.until(lambda: not found.kernels[-1].session.sites[1].books)
    assert found.kernels[-1].session.sites[1].ask is not None


@pytest.mark.usefixtures("brief")
def test_a_connection_without_a_greeting_makes_nobody_present(federate: Makes) -> None:
    found = federate("synchronous", minimum=2)
    found.start()
    found.until(lambda: found.kernels and found.kernels[-1].state.number >= 1)
    found.stop("site-0")
    mute = Hand(found, "site-0")
    found.wait(60, "server")
    assert found.done["server"].rounds == 8
    assert not mute.line.open
