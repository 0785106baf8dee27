"""Events between real sites: the same model and the same ledgers as in one process, and what a
server and a site refuse.
"""

from __future__ import annotations

import datetime as dt
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from federations import Hand
from sordino.base.errors import BudgetExceeded, DataError, StudyError
from sordino.base.logs import log_to
from sordino.base.message import Derivative, Embedding, Labels, Passive, Turn, Update
from sordino.core import study as studies
from sordino.core.effect import Arrived, Begin
from sordino.core.run import reading, session
from sordino.network import demo, frames
from sordino.network import kit as kits
from sordino.network.kit import Agreed
from sordino.network.server import ServerOptions, prepare_server
from sordino.network.site import JoinOptions, prepare_site, promised
from sordino.network.transport import Event, Lost, Mailbox
from sordino.privacy import Budget, Ledger
from sordino.regimes.vertical.stream import source

from .conftest import Makes

STUDY = """
name = "between sites"
[data]
name = "digits"
parties = 2
stream = "replay"
[model]
name = "mlp"
embedding = 4
hidden = 8
[method]
name = "dlr"
learning_rate = 0.05
length = 3
activation = { kind = "random", p = 0.5 }
[privacy]
unit = "none"
[budget]
events = 24
[execution]
path = "messages"
evaluate_every = 8
"""
ENTITY = (
    'privacy={unit="entity",epsilon=64.0,delta=1e-6,label_epsilon=4.0,embedding={clip=1.0},'
    'updates="noisy"}'
)
NOW = dt.datetime.now(dt.UTC)
LABEL = 'privacy={unit="label",epsilon=3.0,delta=1e-6}'


@dataclass
class Memory:
    """A transport between threads.

    Attributes:
        ready: sites that have built all they need, and wait for the server.
    """

    mailbox: Mailbox | None = None
    lines: dict[str, queue.SimpleQueue[bytes | None]] = field(default_factory=dict)
    count: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    ready: set[str] = field(default_factory=set)

    def opens(self, limit: int, mailbox: Mailbox) -> Memory:
        self.mailbox = mailbox
        return self

    def send(self, site: str, frame: bytes) -> None:
        if site in self.lines:
            self.lines[site].put(frame)

    def drop(self, site: str, why: str) -> None:
        self.lines[site].put(None)

    def close(self) -> None:
        for line in self.lines.values():
            line.put(None)

    def connects(self, site: str) -> Callable[[int], Line]:
        def connect(limit: int) -> Line:
            self.ready.add(site)
            if self.mailbox is None:
                raise Lost("nobody listens yet")
            with self.lock:
                self.count += 1
                number = self.count
            self.lines[site] = queue.SimpleQueue()
            self.mailbox.put(Event("open", site, number))
            return Line(self, site, number, self.lines[site])

        return connect


@dataclass
class Line:
    """A site's end of it."""

    hub: Memory
    site: str
    number: int
    heard: queue.SimpleQueue[bytes | None]

    def send(self, frame: bytes) -> None:
        assert self.hub.mailbox is not None
        self.hub.mailbox.put(Event("frame", self.site, self.number, frame))

    def frames(self) -> Iterator[bytes]:
        while (found := self.heard.get()) is not None:
            yield found
        raise Lost("closed")

    def close(self) -> None:
        assert self.hub.mailbox is not None
        self.hub.mailbox.put(Event("closed", self.site, self.number))


def read(folder: Path, changes: Sequence[str] = ()) -> Any:
    path = folder / "study.toml"
    path.write_text(STUDY)
    return studies.read(path, list(changes))


def nothing(*_: object) -> None:
    pass


def joins(laid: demo.DemoFederation, index: int, connects: Any) -> tuple[Any, Any, Path]:
    kit, data = laid.sites[index]
    agreed = Agreed(kit)
    part = agreed.network
    study = part.limited(index, None, None)
    own = part.read(data, index, study)
    made = prepare_site(agreed=agreed, index=index, own=own, connects=connects, log=log_to(nothing))
    return study, made, kit / "run"


def resumed(out: Path, build: Any) -> None:
    """Go on with a run, however often it ends."""
    while True:
        with suppress(Killed):
            session.resume(out, nothing, nothing, build=build)
            return


def play(laid: demo.DemoFederation, *, scripted: bool, breaking: Any = None) -> Memory:
    """The server here, each site in a thread; lines of the first one are ``breaking``, and it is
    started anew then.
    """
    hub, failed = Memory(), []

    def site(index: int) -> None:
        try:
            connects = hub.connects(laid.sites[index][0].name)
            if breaking is not None and index == 0:
                connects = breaking(connects)
            with hub.lock:  # no parser of Python 3.11 is safe between threads
                study, made, out = joins(laid, index, connects)

            def build(*args: Any) -> Any:
                with hub.lock:  # torch draws first weights from one generator for all threads
                    return made(*args)

            try:
                session.begin(study, out, nothing, nothing, build=build)
            except Killed:
                resumed(out, build)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [
        threading.Thread(target=site, args=(i,), daemon=True) for i in range(len(laid.sites))
    ]
    for each in threads:
        each.start()
    while len(hub.ready) < len(threads) and not failed:
        time.sleep(0.01)
    agreed = Agreed(laid.server)
    build = prepare_server(ServerOptions(agreed=agreed, opens=hub.opens, scripted=scripted))
    session.begin(agreed.study, laid.server / "run", nothing, nothing, build=build)
    for each in threads:
        each.join(60)
    assert not failed
    return hub


def entries(folder: Path) -> list[tuple[str, str, int, int]]:
    with Ledger.open(folder / "ledger.sqlite", readonly=True) as found:
        return sorted(
            (each.unit, str(each.event), each.count, each.round) for each in found.entries()
        )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param((), marks=pytest.mark.nightly),
        ('method={name="ogd",learning_rate=0.05,activation={kind="event",threshold=0.3}}', LABEL),
        ('method={name="slr",learning_rate=0.05,length=3,activation="full"}', LABEL),
        (ENTITY,),
        ('world={dropout=0.3,missing="skip",precision=16}', "method.batch=2"),
        ('world={dropout=0.3,missing="zeros"}', LABEL, "privacy.memoised=false"),
    ],
)
def test_sites_come_to_the_model_and_the_ledgers_of_a_simulation(
    changes: tuple[str, ...], tmp_path: Path
) -> None:
    study = read(tmp_path, changes)
    laid = demo.lay_out(study, tmp_path / "federation", scripted=True)
    play(laid, scripted=True)
    alone = tmp_path / "alone"
    session.begin(study, alone, nothing, nothing)
    folders = [laid.server / "run", *(kit / "run" for kit, _ in laid.sites)]
    found: dict[str, Any] = {}
    for folder in folders:
        found |= load_file(folder / "model.safetensors")
    wanted = load_file(alone / "model.safetensors")
    assert {name: value.tobytes() for name, value in found.items()} == {
        name: value.tobytes() for name, value in wanted.items()
    }
    booked = entries(alone)
    assert entries(folders[0]) == booked
    for folder, unit in zip(folders[1:], ("party:0", "party:1", "labels"), strict=True):
        assert entries(folder) == [each for each in booked if each[0] in (unit, "entities")]


class Killed(Exception):
    """A process that ends at once, as far as a thread can."""


def test_a_site_that_is_started_anew_stands_where_it_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Party 0 ends after some frames, three times, with a checkpoint behind it; then it goes on,
    and nobody is charged for an appearance twice.
    """
    slr = 'method={name="slr",learning_rate=0.05,length=3}'
    monkeypatch.setattr("sordino.regimes.vertical.run.BLOCK", 4)  # else all is one block
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "ten.npz", x=rng.random((10, 6), np.float32), y=np.arange(10) % 2)
    data = f"data={{file='{tmp_path / 'ten.npz'}', parties=2, classes=['0', '1']}}"
    often = "execution.evaluate_every=4", "execution.checkpoint_every=1"
    spent = "privacy.appearances=3", "privacy.epsilon=900.0"
    study = read(tmp_path, [data, slr, ENTITY, *spent, *often])
    laid = demo.lay_out(study, tmp_path / "federation", scripted=True)
    ends = [9, 8, 11]

    def breaking(connect: Callable[[int], Line]) -> Callable[[int], Line]:
        def connected(limit: int) -> Line:
            line = connect(limit)
            if ends:
                most, whole = ends.pop(0), line.frames

                def frames_() -> Iterator[bytes]:
                    for count, each in enumerate(whole(), start=1):
                        if count > most:
                            raise Killed
                        yield each

                line.frames = frames_  # type: ignore[method-assign]
            return line

        return connected

    play(laid, scripted=True, breaking=breaking)
    assert not ends
    session.begin(study, tmp_path / "alone", nothing, nothing)
    wanted = load_file(tmp_path / "alone" / "model.safetensors")
    for who, folder in (("party0", laid.sites[0][0]), ("server", laid.server)):
        for name, value in load_file(folder / "run" / "model.safetensors").items():
            assert name.startswith(who)
            assert (value == wanted[name]).all(), name
    booked = entries(tmp_path / "alone")
    assert len({each[-1] for each in booked}) == 3  # a range for each appearance
    for folder, own in ((laid.server, "server"), (laid.sites[0][0], "party:0")):
        units = {"entities", own} if own != "server" else {each[0] for each in booked}
        assert entries(folder / "run") == [each for each in booked if each[0] in units]


def test_a_run_in_the_order_of_arrival_ends_and_books_as_planned(tmp_path: Path) -> None:
    study = read(tmp_path, [ENTITY])
    laid = demo.lay_out(study, tmp_path / "federation", scripted=False)
    play(laid, scripted=False)
    assert (laid.server / "run" / "status.json").exists() is False  # nobody asked for one
    folders = [laid.server / "run", *(kit / "run" for kit, _ in laid.sites)]
    booked = entries(folders[0])
    assert {each[0] for each in booked} == {"labels", "entities", "party:0", "party:1"}
    for folder, unit in zip(folders[1:], ("party:0", "party:1", "labels"), strict=True):
        assert entries(folder) == [each for each in booked if each[0] in (unit, "entities")]


def test_sites_state_what_was_spent_where_appearances_end_before_events(tmp_path: Path) -> None:
    """They saw fewer events than the stream has, took that for an early end, and stated the budget;
    the server stated what was spent.
    """
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "ten.npz", x=rng.random((10, 6), np.float32), y=np.arange(10) % 2)
    data = f"data={{file='{tmp_path / 'ten.npz'}', parties=2, classes=['0', '1']}}"
    study = read(tmp_path, [data, ENTITY, "privacy.appearances=2", "privacy.epsilon=900.0"])
    laid = demo.lay_out(study, tmp_path / "federation", scripted=False)
    play(laid, scripted=False)
    folders = [laid.server / "run", *(kit / "run" for kit, _ in laid.sites)]
    found = [reading.load(folder) for folder in folders]
    assert len({each.guaranteed for each in found}) == 1
    assert found[0].guaranteed == pytest.approx(found[0].spent)
    assert (found[0].guaranteed or 0.0) < 900.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (['data.stream={kind="deformed",size=8}'], "data.stream = 'deformed'"),
        (['data.drift={kind="classes",every=50}'], "data.drift = 'classes'"),
        ([LABEL, "privacy.ledger=somewhere"], "privacy.ledger"),
    ],
)
def test_streams_that_need_whole_examples_are_refused(
    changes: list[str], message: str, tmp_path: Path
) -> None:
    agreement = Agreed(demo.lay_out(read(tmp_path), tmp_path / "of", scripted=False).server)
    with pytest.raises(StudyError, match=message):
        kits.write(agreement.agreement, read(tmp_path, changes), tmp_path / "kits", NOW)
    assert not (tmp_path / "kits").exists()


@pytest.mark.parametrize(
    "changes",
    [
        ['data.stream={kind="deformed",size=9}', 'data.drift={kind="classes",every=5}'],
        ['data.stream={kind="deformed",size=8}', LABEL],
        ['data.drift={kind="swap",every=5}'],
    ],
)
def test_a_demo_draws_what_is_made_up_for_its_sites(changes: list[str], tmp_path: Path) -> None:
    study = read(tmp_path, changes)
    laid = demo.lay_out(study, tmp_path / "federation", scripted=False)
    stream, *_ = source(study, known=False)
    piece, agreed = stream.read(0, 24), Agreed(laid.server)
    assert agreed.agreement.sizes == (24,) * 3
    assert (laid.server / "study.toml").read_text().count('"file"') == 1
    found = [agreed.network.read(data, i, agreed.study) for i, (_, data) in enumerate(laid.sites)]
    assert np.array_equal(np.concatenate([each.x for each in found[:2]], axis=1), piece.x)
    assert np.array_equal(found[2].y, piece.y)


def test_a_demo_draws_no_rows_that_come_again_under_a_promise(tmp_path: Path) -> None:
    study = read(tmp_path, ['data.drift={kind="features",every=5}', LABEL])
    with pytest.raises(StudyError, match=r"data\.drift = 'features'"):
        demo.lay_out(study, tmp_path / "federation", scripted=False)
    assert not (tmp_path / "federation").exists()


def test_a_demo_of_drawn_events_runs_to_its_end(tmp_path: Path) -> None:
    study = read(tmp_path, ['data.stream={kind="deformed",size=9}', LABEL])
    laid = demo.lay_out(study, tmp_path / "federation", scripted=False)
    play(laid, scripted=False)
    assert {each[0] for each in entries(laid.server / "run")} >= {"labels"}


def test_a_file_of_other_rows_or_columns_is_refused(tmp_path: Path) -> None:
    laid = demo.lay_out(read(tmp_path), tmp_path / "federation", scripted=False)
    agreed = Agreed(laid.server)
    part, path = agreed.network, tmp_path / "own.npz"

    def own(index: int, **arrays: Any) -> Any:
        np.savez(path, **arrays)
        return part.read(path, index, agreed.study)

    n = agreed.agreement.sizes[0]
    assert own(0, x=np.zeros((n, 32), np.float32)).shape == (32,)
    for index, arrays, message in (
        (0, {"x": np.zeros((n, 31), np.float32)}, "31 columns"),
        (0, {"x": np.zeros((n - 1, 32), np.float32)}, f"{n - 1} rows"),
        (0, {"x": np.full((n, 32), np.nan, np.float32)}, "finite"),
        (0, {"y": np.zeros(n)}, "no array 'x'"),
        (2, {"y": np.full(n, "eleven")}, "'eleven' is none of the agreed"),
        (2, {"x": np.zeros((n, 32), np.float32)}, "no 'y'"),
    ):
        with pytest.raises(DataError, match=message):
            own(index, **arrays)


@dataclass
class Ends:
    """A party's work, that of who holds the labels, and the server's, over one study."""

    party: Any
    labels: Any
    server: Any


@pytest.fixture
def ends(tmp_path: Path) -> Ends:
    """As they are before the first event."""
    laid = demo.lay_out(read(tmp_path), tmp_path / "federation", scripted=True)
    worlds = []
    for index in (0, 2):
        study, made, out = joins(laid, index, None)
        out.mkdir()
        site: Any = made(study, out, "run", None).simulation
        worlds.append(site.inner)
    agreed = Agreed(laid.server)
    part = agreed.network
    (laid.server / "run").mkdir()
    served = part.server(laid.server / "run", "run", None, None)
    world: Any = served.simulation
    world.resumed(served.first)
    return Ends(worlds[0], worlds[1], world)


def embedding(party: int, event: int, numbers: int = 4, bits: int = 32) -> Embedding:
    return Embedding(party, event, True, bits, bytes(numbers * bits // 8))


def test_a_server_refuses_what_a_site_may_not_say(ends: Ends) -> None:
    for site, said, why in (
        (0, embedding(0, 1), None),
        (0, Passive(0, 1), None),
        (2, Labels(1, (3,)), None),
        (0, embedding(1, 1), "speaks for site 1"),
        (0, Passive(2, 1), "speaks for site 2"),
        (0, embedding(0, 2), "its message of 2"),
        (0, embedding(0, 1, 5), "20 bytes"),
        (0, embedding(0, 1, 8, 16), "at 16 bits"),
        (0, Labels(1, (3,)), "does not hold the labels"),
        (2, Labels(1, (3, 3)), "2 labels"),
        (2, Labels(1, (10,)), "0 to 9"),
        (2, Labels(1, (-1,)), "0 to 9"),
        (2, embedding(2, 1), "no embedding"),
        (0, Update(0, 1, 1, np.zeros(1, np.float32)), "sends Update"),
    ):
        found = ends.server.objection_to_reply(site, 2, said)
        assert (found is None) if why is None else why in (found or "to nothing"), (said, found)


def test_a_site_that_has_answered_stays_even_if_the_rules_drop_its_answer(ends: Ends) -> None:
    world = ends.server
    world.step(world.state, Begin())
    assert world.expects(world.state, 0, 2)
    broken = Embedding(0, 1, True, 32, np.full(4, np.nan, "<f4").tobytes())
    world.step(world.state, Arrived(broken))
    assert world.player.state.dropped == 1
    assert [world.expects(world.state, site, 2) for site in range(3)] == [False, True, True]
    assert not world.player.away


def test_a_broker_carries_the_largest_frame_of_events(tmp_path: Path) -> None:
    laid = demo.lay_out(read(tmp_path), tmp_path / "out", scripted=False, transport="mqtt")
    told = (laid.server.parent / "broker" / "mosquitto.conf").read_text()
    most = int(told.partition("max_packet_size ")[2].split()[0])
    agreed = Agreed(laid.server)
    assert most > frames.limit(agreed.network.widest())


def test_a_site_refuses_turns_beyond_the_agreed_stream(ends: Ends) -> None:
    slope = Derivative(0, 1, 32, bytes(16))
    for world, site, task, why in (
        (ends.party, 0, Turn(1), None),
        (ends.party, 0, Turn(0), "event 0"),
        (ends.party, 0, Turn(26), "24 are agreed"),
        (ends.party, 0, Turn(25), "24 are agreed"),
        (ends.party, 0, Turn(25, over=True), None),
        (ends.party, 0, Turn(2, derivative=Derivative(1, 1, 32, bytes(16))), "not for this site"),
        (ends.party, 0, Turn(2, derivative=Derivative(0, 1, 32, bytes(12))), "12 bytes"),
        (ends.party, 0, Turn(3, derivative=slope), "of event 1 with event 3"),
        (ends.party, 0, Turn(2, True, slope), "not for this site"),
        (ends.labels, 2, Turn(1, True), "nothing of this site"),
        (ends.labels, 2, Turn(2, derivative=slope), "not for this site"),
        (ends.party, 0, Update(0, 1, 1, np.zeros(1, np.float32)), "sends Update"),
    ):
        found = world.objection(site, task)
        assert (found is None) if why is None else why in (found or "to nothing"), (task, found)


def test_a_site_books_before_it_speaks_and_what_it_missed_is_over(ends: Ends) -> None:
    world = ends.party
    for event, asked in ((1, False), (1, True), (5, True)):
        task = Turn(event, asked)
        assert world.objection(0, task) is None
        requests = world.site_requests(0, task, ())
        assert {request.charge.unit for request in requests} == {"party:0", "entities"}
        permits = world.ledgers.charge([request.charge for request in requests], world.budget)
        assert world.site_requests(0, task, permits) == []
        said = world.answer(0, task.number, task, permits)
        assert said is world.answer(0, task.number, task, permits)
        assert said.event == event
        assert isinstance(said, Embedding) or not asked
    for event in (1, 4):
        assert world.objection(0, Turn(event)) is not None


def test_a_site_keeps_its_own_limit(tmp_path: Path) -> None:
    """One that pays for no block of events does not begin: whoever holds the labels would end the
    run for all.
    """
    laid = demo.lay_out(read(tmp_path, [ENTITY]), tmp_path / "federation", scripted=True)
    part = Agreed(laid.sites[0][0]).network
    own = part.read(laid.sites[0][1], 0, part.study)
    with pytest.raises(BudgetExceeded, match="own limit, epsilon = 10, does not pay"):
        part.site(0, own, part.limited(0, None, 10.0), tmp_path, "run", None)
    found: Any = part.site(0, own, part.limited(0, None, 64.0), tmp_path, "run", None).simulation
    assert found.budget.epsilon == 64.0
    assert found.regime.objection(0, Turn(1)) is None
    counted = [each.charge for each in found.site_requests(0, Turn(1), ()) if each.in_epsilon]
    assert {each.unit for each in counted} == {"entities"}
    with pytest.raises(BudgetExceeded):
        found.ledgers.charge(2 * counted, Budget(10.0, 1e-6))


def test_before_it_joins_a_site_is_told_what_is_not_protected(tmp_path: Path) -> None:
    laid = demo.lay_out(read(tmp_path, [LABEL]), tmp_path / "federation", scripted=True)
    told = [
        "\n".join(promised(JoinOptions(kit=kit, data=data)))
        for kit, data in (laid.sites[0], laid.sites[2])
    ]
    assert "epsilon is infinite for what this site has: embeddings are sent without" in told[0]
    assert "at most epsilon 3 at" in told[1]
    assert "by randomised response" in told[1]
    left = "What is left pays for all 1 appearances of each row that the study plans at epsilon 3"
    assert left in told[1]
    assert "What is left" not in told[0]
    kit, data = laid.sites[2]
    low = "\n".join(promised(JoinOptions(kit=kit, data=data, limit=0.5)))
    assert "pays for none of the 1 appearances of each row" in low
    promises = []
    for index in (0, 2):
        study, made, out = joins(laid, index, None)
        out.mkdir()
        built = made(study, out, "run", None)
        promises.append(str(session.describe(built, "run").guarantee))
        built.simulation.ledgers.close()
    assert promises[0].startswith("No privacy guarantee for what this site has: embeddings")
    assert promises[1].startswith("Everything that this site sends will be (epsilon = 3,")
    agreed = Agreed(laid.server)
    with pytest.raises(StudyError, match="no limit holds"):
        agreed.network.limited(0, None, 1.0)
    with pytest.raises(StudyError, match="--ledger"):
        agreed.network.limited(2, tmp_path, None)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(
    ("why", "ended"),
    [(frames.FORGOTTEN, "all 120 events were played"), ("I will not", "of 3 sites are left")],
)
def test_a_party_whose_machine_was_started_anew_is_away_for_some_events(
    federate: Makes, why: str, ended: str
) -> None:
    """It counted as out, and where all are needed the stream ended for everybody."""
    found = federate("events", [ENTITY, "budget.events=120"], scripted=False, minimum=3)
    away, *others = found.names
    found.start("server", *others)
    found.until(lambda: found.net.listens)
    hand = Hand(found, away)
    hand.hello()
    hand.send(frames.Refuse(hand.get(frames.Ask).number, why))
    found.wait(60.0, "server", *others)
    assert {ended in each.why for each in found.done.values()} == {True}
