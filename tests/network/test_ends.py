"""Runs whose sites refuse: they end, say who refused and why, and leave whole folders."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import federations
from federations import Federation, Hand, read_incidents
from sordino.base.errors import BudgetExceeded, CutShort
from sordino.base.logs import log_to
from sordino.base.message import Labels, Passive, decode, encode
from sordino.core import records
from sordino.core.run import reading
from sordino.core.run.verify import verify
from sordino.live.federation import NAME, read
from sordino.network import frames
from sordino.network.frames import cut_short
from sordino.network.kit import Agreed
from sordino.network.server import serve
from sordino.network.server_session import Heard, ServerSession
from sordino.network.site import JoinOptions
from sordino.network.status import Incidents, Listeners, Reporter, conclude
from sordino.network.storage import JOURNAL
from sordino.network.transport import Event, Mailbox
from sordino.privacy import Gaussian, Ledger, LedgerSession, PoissonSampled, accountant
from sordino.privacy.chain import BEGIN
from sordino.privacy.reserve import reserve
from sordino.report.page import render

from .conftest import Makes

LIMITS = {
    "synchronous": 2.5,
    "asynchronous": 9.0,
    "client": 15.0,
    "shared": 2.5,
    "shared-client": 15.0,
}


def hands(found: Federation) -> list[Hand]:
    """All sites by hand, greeted."""
    made = [Hand(found, name) for name in found.names]
    for hand in made:
        hand.hello()
    return made


def whole(found: Federation) -> str:
    """Why the run ended: everybody's folder says the same, and holds the same model."""
    assert set(found.done) == {"server", *found.names}
    (why,) = {each.why for each in found.done.values()}
    for name in found.done:
        about = reading.load(found.folder(name)).about
        assert about.status == "done"
    assert (
        len({(found.folder(each) / "model.safetensors").read_bytes() for each in found.done}) == 1
    )
    assert not (found.server / "journal.bin").exists()
    return why


def test_frames_that_cannot_be_read_end_connections_and_no_run(federate: Makes) -> None:
    """A broker may pass them on: who has got one connects again, and is asked again."""
    found = federate("synchronous")
    send, cut = found.net.send, set[str]()

    def sends(site: str, frame: bytes) -> None:
        if site not in cut and isinstance(frames.to_site(frame), frames.Ask):
            cut.add(site)
            frame = frame[:-1]
        send(site, frame)

    with mock.patch.object(found.net, "send", sends):
        found.start()
        found.wait()
    assert cut == set(found.names)
    assert not cut_short(whole(found))
    for name in found.names:
        assert [each.what for each in read_incidents(found.folder(name))] == ["unreadable"]


@pytest.mark.parametrize(
    ("minimum", "name"),
    [(1, "synchronous"), (2, "asynchronous"), (1, "client"), (2, "shared-client")],
)
def test_a_run_ends_when_too_few_sites_are_left_that_have_not_refused(
    name: str, minimum: int, federate: Makes
) -> None:
    more = ["budget.updates=2000", "privacy.epsilon=1e4"]
    if name != "asynchronous":
        more = ["budget.rounds=200"]
    limited = ("site-0", "site-1", "site-2")[minimum - 1 :]
    limits = dict.fromkeys(limited, LIMITS[name])
    found = federate(name, more, limits, minimum=minimum)
    found.start()
    found.wait()
    why = whole(found)
    assert cut_short(why)
    if name.startswith("shared"):  # a sum needs all three
        assert "of 3 sites are left, and 3 must take part" in why
        return
    assert f"{minimum - 1} of 3 sites are left, and {minimum} must take part" in why
    for each in limited:  # where nobody may know who takes part, the status alone names sites
        assert (f"{each}: " in why) == (name not in ("client", "shared-client"))
        index = found.names.index(each)
        assert "budget" in found.kernels[-1].session.sites[index].out
    for each in limited:
        assert 0 < found.done[each].spent <= limits[each]


def ended_by_a_site(found: Federation, *, answers: bool = True) -> None:
    """It answers once, or never, and refuses what it is asked then."""
    found.start("server", "site-0", "site-1")
    found.until(lambda: found.net.listens)
    hand = Hand(found, "site-2")
    hand.hello()
    if answers:
        hand.answer(hand.get(frames.Ask))
    hand.send(frames.Refuse(hand.get(frames.Ask).number, "I have seen enough"))
    found.wait()


def test_of_a_literal_form_that_was_ended_the_whole_plan_counts(federate: Makes) -> None:
    """At its true price, though no budget is enforced there."""
    form = 'privacy.mechanism={kind="haar", form="paper"}'
    found = federate("synchronous", [form], minimum=3)
    ended_by_a_site(found, answers=False)
    for site in ("site-0", "site-1"):
        with Ledger.open(found.folder(site) / "ledger.sqlite", readonly=True) as ledger:
            ((event, _),) = ledger.spent(unit := next(iter(ledger.units())))
            missing = sum(each.count for each in reserve(ledger) if each.unit == unit)
            assert sum(n for _, n in ledger.spent(unit)) + missing == 16
            price = accountant("rdp").epsilon([(event, 16)], 1e-3)
        counted = verify(found.folder(site) / "ledger.sqlite").epsilon
        assert counted == pytest.approx(price, rel=1e-6)


@pytest.mark.parametrize("name", ["synchronous", "asynchronous"])
def test_who_may_have_been_ended_by_looking_states_the_budget(name: str, federate: Makes) -> None:
    """Other sites and the server see releases: what was spent when one of them ended the run was
    stated as a bound (true delta up to nine times the stated one).
    """
    found = federate(name, minimum=3)
    ended_by_a_site(found)
    # two steps in eight rounds; an edge may be asked for all updates, and lose as many
    whole_plan = {"synchronous": 16, "asynchronous": 48}[name]
    event = PoissonSampled(0.2, Gaussian(1.0))
    for each, outcome in found.done.items():
        folder, ends = found.folder(each), reading.load(found.folder(each))
        verdict = verify(folder)
        assert not verdict.problems
        assert outcome.spent < outcome.epsilon == ends.guaranteed == verdict.epsilon == 50.0
        assert ends.chosen
        price = accountant("rdp").epsilon([(event, whole_plan)], 1e-3)
        counted = verify(folder / "ledger.sqlite").epsilon
        assert outcome.spent < price
        assert counted == pytest.approx(price if outcome.spent else 0.0, rel=1e-6)


@pytest.mark.parametrize(("name", "early"), [("synchronous", False), ("asynchronous", True)])
def test_a_run_that_did_all_that_was_planned_states_what_it_spent(
    name: str, early: bool, federate: Makes
) -> None:
    """No plan says how many of the updates are one edge's."""
    found = federate(name)
    found.start()
    found.wait()
    for outcome in found.done.values():
        assert outcome.epsilon == (50.0 if early else outcome.spent)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("synchronous", ['privacy.mechanism={kind="haar", form="paper"}']),
        ("asynchronous", ['privacy.sampling="passes"']),
        ("asynchronous", ['privacy.sampling="passes"', 'privacy.correlation="blt"']),
    ],
)
def test_a_site_charges_what_it_has_planned(name: str, changes: list[str], federate: Makes) -> None:
    """A literal form planned what it claims, and a ledger of the data refused what it charged."""
    found = federate(name, changes)
    found.start()
    found.wait()
    for site in found.names:
        with Ledger.open(found.folder(site) / "ledger.sqlite", readonly=True) as ledger:
            (run,) = (note.name for note in ledger.notes(BEGIN))
            planned, charged = ledger.planned(run), ledger.charged_by(run)
        assert charged.keys() == planned.keys() == {f"client:{found.names.index(site)}"}
        assert all(charged[unit] <= planned[unit] for unit in planned)
        if name == "synchronous":
            assert charged == planned


def test_a_site_whose_budget_pays_for_nothing_does_not_begin(federate: Makes) -> None:
    """It refused the first task, which ended the run for all the others."""
    found = federate("synchronous", limits={"site-0": 0.01})
    found.start("server", "site-0")
    found.threads["site-0"].join(30)
    assert "does not pay for a single local step" in str(found.failed["site-0"])
    assert not found.folder("site-0").exists()
    found.limits.clear()
    found.start("site-0", "site-1", "site-2")
    del found.failed["site-0"]
    found.wait()
    assert found.done["server"].rounds == 8


def test_a_site_that_another_run_holds_back_does_not_begin_and_names_it(
    federate: Makes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others can pay, so it began; its refusal of the first task ended the run for all."""
    usual = federations._opened

    def kept(options: JoinOptions) -> Any:
        return usual(replace(options, ledger=tmp_path / "kept" / options.data.stem))

    monkeypatch.setattr(federations, "_opened", kept)
    first = federate("synchronous", ["privacy.epsilon=4.71"])
    first.start("site-0")  # its server never comes
    first.until(lambda: (first.folder("site-0") / "run.json").exists())
    run = str(reading.load(first.folder("site-0")).about.run)
    second = federate("synchronous", ["name=second", "privacy.epsilon=20"])
    second.start("site-0")
    second.threads["site-0"].join(30)
    assert f"decide when they end: {run}. Finish it" in str(second.failed["site-0"])
    second.failed.clear()


def test_a_site_plans_no_more_than_its_budget_pays_for(federate: Makes) -> None:
    """Others count its plan in full, and would count more than was promised."""
    found = federate("synchronous", ["privacy.epsilon=2.0"])
    found.start()
    found.wait()
    folder = found.folder("site-0")
    about = reading.load(folder).about
    (pays, *_) = records.known(about.affordable_steps) or (None,)
    with Ledger.open(folder / "ledger.sqlite", readonly=True) as ledger:
        (planned,) = ledger.planned(str(about.run)).values()
    assert planned.total() == pays
    assert 2 * (records.number(about.R_s) or 0) > planned.total() > 0


def test_a_round_with_a_deadline_waits_for_nobody_who_has_refused(federate: Makes) -> None:
    found = federate("synchronous", ["participation.deadline=600.0"], minimum=2)
    found.start("server")
    found.until(lambda: found.net.listens)
    sites = hands(found)
    asks = [hand.get(frames.Ask) for hand in sites]
    for hand, ask in zip(sites[:2], asks, strict=False):
        hand.answer(ask)
    sites[2].send(frames.Refuse(1, "not with me"))
    kernel = found.kernels[-1]
    found.until(lambda: kernel.state.number == 2, seconds=5.0)
    assert kernel.state.waiting == {0, 1}  # nor is it asked again
    log = [each for each in found.rows["server"] if isinstance(each, records.Declined)]
    assert [(each.client, each.why) for each in log] == [(2, "not with me")]


def test_a_secret_round_lasts_until_its_deadline_whoever_refuses(federate: Makes) -> None:
    changes = ["participation.deadline=1.0", "privacy.sampling_rate=1.0"]
    found = federate("client", changes, minimum=2)
    found.start("server")
    found.until(lambda: found.net.listens)
    sites = hands(found)
    (number,) = {hand.get(frames.Book).number for hand in sites}
    for hand in sites:
        hand.send(frames.Booked(number))
    for hand in sites:
        ask = hand.get(frames.Ask)
        if hand is sites[2]:
            hand.send(frames.Refuse(ask.number, "no"))
        else:
            hand.answer(ask)
    kernel = found.kernels[-1]
    found.until(lambda: kernel.session.sites[2].out)
    found.until(lambda: not kernel.state.waiting)
    assert (kernel.state.number, kernel.state.open) == (1, True)
    found.until(lambda: kernel.state.number == 2)


def test_edges_are_too_few_at_once_when_one_leaves_for_good(federate: Makes) -> None:
    found = federate("asynchronous", ["budget.updates=2000", "privacy.epsilon=1e4"], minimum=3)
    found.start("server", "site-0", "site-1")
    found.until(lambda: found.net.listens)
    hand = Hand(found, "site-2")
    hand.hello()
    ask = hand.get(frames.Ask)
    hand.send(frames.Refuse(ask.number, "no"))
    bye = hand.get(frames.Bye)
    assert "2 of 3 sites are left, and 3 must take part. site-2: no" in bye.why
    hand.send(frames.Done())
    found.wait()
    assert found.done["server"].why == bye.why


def test_edges_end_when_one_has_refused_and_the_others_have_spent_their_budgets(
    federate: Makes,
) -> None:
    found = federate("asynchronous", ["budget.updates=2000", "privacy.epsilon=15"], minimum=1)
    found.start("server", "site-0", "site-1")
    found.until(lambda: found.net.listens)
    hand = Hand(found, "site-2")
    hand.hello()
    ask = hand.get(frames.Ask)
    hand.send(frames.Refuse(ask.number, "no"))
    bye = hand.get(frames.Bye)
    for part in ("no site can be asked any more", "its budget is spent", "site-2: no"):
        assert part in bye.why
    hand.send(frames.Done())
    found.wait()
    assert found.done["server"].why == bye.why


def said(index: int, turn: Any) -> Any:
    """What a site says to a turn, if it has no features."""
    return Labels(turn.event, (3,)) if index == 2 else Passive(index, turn.event)


def played(sites: Sequence[Hand], events: int) -> list[Any]:
    """Answer the turns of so many events; the first turns after these."""
    turns: list[Any] = [None] * len(sites)
    for number in range(1, events + 2):
        for i, hand in enumerate(sites):
            while True:
                ask = hand.get(frames.Ask)
                turns[i] = decode(ask.body, dimension=0)
                if not turns[i].asked:
                    break
            if number <= events:
                hand.send(frames.Say(ask.number, encode(said(i, turns[i]))))
    return turns


def test_events_end_without_labels_and_what_was_played_is_counted(federate: Makes) -> None:
    vertical = federate("events", scripted=False, minimum=1)
    vertical.start("server")
    vertical.until(lambda: vertical.net.listens)
    sites = hands(vertical)
    turns = played(sites, 3)
    sites[2].send(frames.Refuse(turns[2].number, "no more labels"))
    for hand in sites:
        why = hand.get(frames.Bye).why
        hand.send(frames.Done())
    vertical.wait()
    assert cut_short(why)
    assert "nothing goes on without labels-2. labels-2: no more labels" in why
    assert vertical.done["server"].rounds == 3


def test_a_site_is_not_asked_again_for_a_final_model_that_cannot_be_used(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = federate("synchronous")
    from sordino.network import server

    real = server._bye

    def broken(moment: Any, hands_out: bool) -> frames.Bye:
        bye = real(moment, hands_out)
        return frames.Bye(bye.why, np.full(len(bye.model) // 4, np.nan, "<f4").tobytes())

    monkeypatch.setattr(server, "_bye", broken)
    found.start()
    found.wait()
    for name in found.names:
        assert (name, "the end: the final model holds numbers that are not finite") in (
            found.net.refused
        )
        assert cut_short(found.done[name].why)
        assert "not finite" in found.done[name].why
        assert reading.load(found.folder(name)).about.status == "done"


@pytest.mark.usefixtures("brief")
def test_who_is_away_is_waited_for_and_the_status_says_so(federate: Makes) -> None:
    found = federate("synchronous", minimum=2)
    words: list[str] = []
    found.told = Reporter(
        found.server, Agreed(found.laid.server), Incidents(found.server), log_to(words.append)
    )
    told = "waiting for 1 more site; away: site-1, site-2"
    found.start("server", "site-0")
    found.until(lambda: told in words and (found.server / NAME).exists())
    found.until(lambda: read(found.server).waiting == told)
    assert sorted(words) == ["site-0 is there", told]
    found.start("site-2")
    found.wait()
    assert found.done["server"].rounds == 8


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("answered", [7, 8], ids=["before its last answer", "after it"])
@pytest.mark.parametrize(
    "last", ["budget.rounds=8", "privacy.epsilon=4.70585"], ids=["of the rounds", "of the budget"]
)
def test_after_the_last_round_nobody_is_waited_for(
    federate: Makes, answered: int, last: str
) -> None:
    """Who was needed for a further round, and went away in the last one, kept the run from its
    end.
    """
    found = federate("synchronous", ["budget.rounds=30", last], minimum=3, scripted=False)
    found.start("server", "site-0", "site-1")
    found.until(lambda: found.net.listens)
    hand = Hand(found, "site-2")
    hand.hello()
    for _ in range(answered):
        hand.answer(hand.get(frames.Ask))
    hand.get(frames.Ask if answered < 8 else frames.Bye)
    hand.line.close()
    found.wait(30.0, "server", "site-0", "site-1")
    assert found.done["server"].why == found.done["site-0"].why
    assert "budget is used up" in found.done["server"].why
    assert found.done["server"].rounds == 8


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("name", ["asynchronous", "client", "client-in-turn"])
def test_each_site_shows_what_its_own_answers_cost(federate: Makes, name: str) -> None:
    """Rounds that are charged to everybody, too: who never came has released nothing."""
    found = federate(name, minimum=2)
    found.told = Reporter(
        found.server, Agreed(found.laid.server), Incidents(found.server), log_to(lambda text: None)
    )
    found.start("server", "site-0", "site-2")
    found.wait()
    conclude(found.server, 8, found.done["server"].spent, "over")
    spent = {each.name: each.epsilon for each in read(found.server).sites}
    assert spent["site-1"] == 0.0
    assert isinstance(spent["site-0"], float)
    assert 0.0 < spent["site-0"] <= found.done["server"].spent
    site = reading.load(found.folder("site-0"))
    assert site.rounds  # its own page has something to draw
    assert "No round is closed yet" not in render(site)


def test_a_server_that_waits_tells_so_without_an_input(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sordino.network import kernel, server

    monkeypatch.setattr(kernel, "TICK", 0.01)
    ticks: list[Any] = []
    made = server.prepare_server

    def prepare(options: server.ServerOptions) -> Any:
        return made(replace(options, reports=ticks.append))

    monkeypatch.setattr("federations.prepare_server", prepare)
    found = federate("synchronous", minimum=2)
    found.start("server")
    found.until(lambda: len(ticks) > 3)
    assert ticks[-1].waiting == 2


class Nothing:
    """A hub that goes nowhere."""

    def send(self, site: str, frame: bytes) -> None: ...

    def drop(self, site: str, why: str) -> None: ...

    def close(self) -> None: ...


def test_a_certificate_that_is_revoked_counts_its_site_out_when_it_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If it is the one that the site was admitted with last: a thief has the one before."""
    now, mailbox = [100.0], Mailbox()
    get = mailbox.get
    monkeypatch.setattr(mailbox, "get", lambda seconds: get(0.0))  # by the clock below

    def clock() -> float:
        now[0] += 1e-3
        return now[0]

    courier = ServerSession(
        Nothing(),
        mailbox,
        SimpleNamespace(  # type: ignore[arg-type]
            agreement=SimpleNamespace(names=("north", "south"), patience=5.0), digest="agreed"
        ),
        dimension=3,
        run="run",
        clock=clock,
    )

    def hello(site: str, connection: int) -> None:
        greeting = frames.encode(frames.Hello(frames.VERSION, "agreed", "code", 0))
        mailbox.put(Event("open", site, connection, b"2"))
        mailbox.put(Event("frame", site, connection, greeting))

    def heard(*events: tuple[str, str, int, bytes], later: float = 0.0) -> Heard | None:
        for event in events:
            mailbox.put(Event(*event))  # type: ignore[arg-type]
        now[0] += later
        return courier.next(now[0] + 0.05)

    revoked = b"its certificate is revoked"
    hello("north", 1)
    assert heard() == Heard("up", 0, b"2")
    # north is there; the server has just begun, and south, which it does not know, may come
    assert heard(("barred", "north", 0, b"2"), ("barred", "south", 0, b"1")) is None
    assert heard(later=5.0) == Heard("refused", 1, revoked)
    courier.barred(1, "its certificate is revoked")
    assert heard(("closed", "north", 1, b""), ("barred", "north", 0, b"2")) is None
    assert courier.sites[0].there
    hello("south", 3)
    assert heard() == Heard("up", 1, b"2")
    assert heard(later=5.0) == Heard("refused", 0, revoked)
    courier.barred(0, "its certificate is revoked")
    assert heard(("closed", "south", 3, b""), ("barred", "south", 0, b"1")) is None
    assert heard(later=5.0) == Heard("down", 1)
    assert heard(("barred", "south", 0, b"1")) is None
    courier.admitted(1, b"3")  # as the journal says of a server that is started again
    assert heard(("barred", "south", 0, b"2")) is None
    assert heard(("barred", "south", 0, b"3")) == Heard("refused", 1, revoked)


@pytest.mark.parametrize(
    ("why", "early"),
    [
        ("the run was stopped: 1 of 3 sites are left, and 2 must take part. site-1: no", True),
        ("the round budget is used up: 8 of 8 rounds", False),
    ],
)
def test_a_command_of_a_run_that_was_cut_short_fails_with_its_reason(
    why: str, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sordino.cli import network, run

    monkeypatch.setattr(run, "concluded", lambda outcome, told: None)
    outcome: Any = SimpleNamespace(why=why)
    with pytest.raises(CutShort, match="site-1: no") if early else nullcontext():
        network._conclude(outcome, False)


def test_no_journal_is_left_when_the_servers_own_budget_is_spent(
    federate: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold updates without noise, and this run goes no further."""
    found = federate("client", ["budget.rounds=20"], scripted=False)
    true, spent = LedgerSession.charge, list[Any]()

    def charge(self: LedgerSession, *given: Any) -> Any:
        if any(self is each for each in spent):
            raise BudgetExceeded("spent elsewhere")
        return true(self, *given)

    def told(kernel: Any) -> None:
        if kernel.state.number >= 2 and not spent:
            spent.append(kernel.world.ledgers)

    monkeypatch.setattr(LedgerSession, "charge", charge)
    found.told = told
    found.start()
    found.wait(30)
    assert {each.why for each in found.done.values()} == {
        "the privacy filter lets no further round pass: spent elsewhere"
    }
    assert not (found.server / JOURNAL).exists()
    (found.server / JOURNAL).write_bytes(b"left by a kill")
    shown = Listeners(
        row=lambda row: None, begin=lambda going: None, log=log_to(lambda words: None)
    )
    serve(found.laid.server, shown, way=lambda *given: found.net)
    assert not (found.server / JOURNAL).exists()
