"""Frames made from valid ones, in both directions and every regime: the run comes to the same
model, no ledger changes by a frame that is refused, memory stays, and nothing is executed.

250 for each regime and direction; 12 500 in the nightly command: 100 000 in all.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from federations import laid
from mutations import memory, mutated, nothing_executed
from sordino.base.errors import RemoteProtocolError, StudyError
from sordino.base.logs import log_to
from sordino.base.message import (
    Compute,
    Contribution,
    Derivative,
    Embedding,
    Gradient,
    Labels,
    Passive,
    Raw,
    Reply,
    Statistics,
    Task,
    Train,
    Turn,
    Update,
    decode,
    encode,
)
from sordino.clients.network import divided
from sordino.clients.regime import of
from sordino.core.effect import Arrived, Begin, Joined, Left, Send
from sordino.core.run.environment import sources
from sordino.core.world import KernelSnapshot, ServerSide
from sordino.network import demo, frames
from sordino.network import site as sites
from sordino.network.demo import DemoFederation
from sordino.network.kernel import KernelOptions, LiveKernel
from sordino.network.kit import Agreed
from sordino.network.server import ServerOptions, prepare_server
from sordino.network.server_session import ServerSession, refuse_reply
from sordino.network.site import JoinOptions, prepare_site
from sordino.network.site_session import SiteMoment, SiteSession
from sordino.network.storage import AnswerStore, Journal
from sordino.network.transport import Event, Lost, Mailbox
from sordino.privacy.event import Gaussian
from sordino.privacy.event import encode as written
from sordino.regimes.vertical.federation import VerticalServer

from .test_events_between_sites import ENTITY, read

REGIMES = ("synchronous", "client", "asynchronous", "vertical")
COUNTS = [250, pytest.param(12_500, marks=pytest.mark.nightly)]
GROWTH = 8 << 20
"""Bytes by which the second half of the frames may let the process grow."""


def small(folder: Path, regime: str) -> DemoFederation:
    """Kits of a small study."""
    if regime != "vertical":
        return laid(folder, regime)
    return demo.lay_out(read(folder, [ENTITY]), folder / "vertical", scripted=True)


class Blind:
    """A watcher that keeps nothing."""

    saved = 0

    def hurry(self) -> None: ...

    def row(self, row: Any) -> None: ...

    def due(self, number: int, ended: str | None) -> bool:
        return True

    def save(self, moment: Any) -> None: ...


class Feeder(Mailbox):
    """Both ends of a transport: sites that answer as they are asked, and between their answers
    frames that nobody sends by himself.

    Attributes:
        left: mutated frames that are still to come; ``portion`` between two answers.
        fuzzed: whether the last event was one.
    """

    def __init__(self, agreed: Agreed, count: int, seed: int) -> None:
        super().__init__()
        self.agreed, self.names = agreed, agreed.agreement.names
        self.left, self.portion, self._now = count, max(1, count // 12), 0
        self.dice, self.fuzzed, self.now = random.Random(seed), False, 0.0
        self.connections = [0] * len(self.names)
        self._first: deque[Event] = deque()
        self._answers: deque[Event] = deque()
        self._asked: set[tuple[int, int]] = set()
        self.valid: list[list[bytes]] = [[self.hello()] for _ in self.names]
        self.sizes: list[int] = []
        self.grown: list[int] = []
        for site in range(len(self.names)):
            self._connect(site)

    def hello(self) -> bytes:
        said = frames.Hello(frames.VERSION, self.agreed.digest, sources(), 0, 0)
        return frames.encode(said)

    def _connect(self, site: int) -> None:
        if self.connections[site]:
            self._first.append(Event("closed", self.names[site], self.connections[site]))
        self.connections[site] += 1
        for kind, frame in (("open", b""), ("frame", self.hello())):
            self._first.append(self._event(site, frame, kind))

    def _event(self, site: int, frame: bytes, kind: Any = "frame") -> Event:
        return Event(kind, self.names[site], self.connections[site], frame)

    def get(self, seconds: float | None) -> Event | None:
        self.fuzzed = False
        if self._first:
            return self._first.popleft()
        if self._answers:
            if self.left and self._now < self.portion:
                return self._fuzz()
            self._now = 0
            event = self._answers.popleft()
            return self._event(self.names.index(event.site), event.frame)
        self.now += seconds or 0.0
        return None

    def _fuzz(self) -> Event:
        self.fuzzed, self.left, self._now = True, self.left - 1, self._now + 1
        if self.left % 1000 == 0:
            self.grown.append(memory())
        site = self.dice.randrange(len(self.names))
        return self._event(site, mutated(self.valid[site], self.dice))

    def send(self, site: str, frame: bytes) -> None:
        said, index = frames.to_site(frame), self.names.index(site)
        answer: frames.FromSite
        match said:
            case frames.Ask(number, body) if (index, number) not in self._asked:
                self._asked.add((index, number))
                task = decode(body, dimension=self.dimension)
                answer = frames.Say(number, encode(self.reply(index, task)))
            case frames.Book(number, _) if (index, -number) not in self._asked:
                self._asked.add((index, -number))
                answer = frames.Booked(number)
            case _:
                return
        encoded = frames.encode(answer)
        self._answers.append(self._event(index, encoded))
        self.valid[index] = [
            self.hello(), encoded, encoded, encoded, frame, frames.encode(frames.Done()),
            frames.encode(frames.Refuse(number, "why")), frames.encode(frames.Booked(number)),
            frames.encode(frames.Welcome("run")), frames.encode(frames.Bye("why", b"")),
            frames.encode(frames.Reject("why")),
        ]  # fmt: skip

    dimension = 0

    def reply(self, site: int, task: Any) -> Reply:
        """An answer without content."""
        match task:
            case Compute(task=number, version=version, weights=weights):
                return Gradient(site, number, version, 0.1 * np.sign(weights + 0.5))
            case Train(round=number, steps=steps, weights=weights):
                if self.agreed.study.privacy.unit == "client":
                    return Contribution(site, number, steps, 0 * weights + 0.01, True)
                told = Statistics(0.5, 0.25, 0.125, 0.25, 0.1, 0.1)
                return Update(site, number, steps, weights + np.float32(0.25), told)
            case Turn(event=event, over=over, asked=asked):
                if site == len(self.sizes) and not over:
                    return Labels(event, (event % 10,))
                if over or ((event + site) % 2 and not asked):
                    return Passive(site, event)
                values = np.full(self.sizes[site], 0.1 * site, "<f4").tobytes()
                return Embedding(site, event, not asked, 32, values)
        raise AssertionError(task)

    def drop(self, site: str, why: str) -> None:
        self._connect(self.names.index(site))

    def close(self) -> None: ...


class Guarded(ServerSession):
    """A courier whose kernel does not hear what came of mutated frames; each is looked at here."""

    feeder: Feeder
    kernel: Any
    passed: int = 0

    def next(self, until: float | None) -> Any:
        while True:
            heard = super().next(until)
            if heard is None or not self.feeder.fuzzed:
                return heard
            self.passed += 1
            self._judge(*heard[:4])

    def _judge(self, kind: str, site: int, body: bytes, number: int) -> None:
        """What passes is an answer to what was asked, by who was asked, of the agreed size."""
        own = self.sites[site]
        asked = None if own.ask is None else own.ask.number
        if kind != "message":
            assert kind in ("refused", "booked")
            assert number in (0, asked, *own.books)
            return
        said = decode(body, dimension=self.feeder.dimension)
        assert isinstance(said, Reply)
        assert number == asked
        world, state = self.kernel.world, self.kernel.state
        if isinstance(said, Embedding | Labels | Passive):
            assert world.objection_to_reply(site, number, said) is None
            return
        assert said.client == site
        if isinstance(said, Update | Contribution):
            whole_round(world, deepcopy(state), [said])
        else:
            world.step(deepcopy(state), Arrived(said))  # whatever it holds, no step fails


def whole_round(world: Any, state: Any, answers: Sequence[Reply]) -> Any:
    """The state after these answers, the close of their round and the begin of the next one, kept
    and read back: whatever they hold, nothing fails.
    """
    sites = range(len(world.units))
    for said in answers:
        state, _ = world.step(state, Arrived(said))
    for event in (*(Left(i, final=True) for i in sites), *(Joined(i) for i in sites)):
        state, _ = world.step(state, event)
    world.faults()  # which the kernel hears of otherwise
    packed = KernelSnapshot.initial(state).pack()
    assert world.unpack(packed).pack().rest == packed.rest
    world.step(state, Begin())
    return state


METHODS = {
    "ali": "",
    "ali by equation 9": ',tau_rule="eq9",batch_bound="min"',
    "ali on paper": ',form="paper"',
    "als": "",
    "als on paper": ',form="paper"',
    "adap": "",
}
EDGES = (0.0, 5e-324, 1e-308, 1e-200, 1e-160, 1.0, 3.0, 1e16, 1e154, 1e200, 1e308, 1.79e308)
"""Numbers of float64 whose squares, quotients and sums are at its edges; with either sign."""


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_numbers_at_the_edges_of_float64_take_whole_rounds(
    name: str, limited: bool, tmp_path: Path
) -> None:
    dice = random.Random(7)
    method = f'method={{name="{name.split()[0]}-dpfl",learning_rate=0.1{METHODS[name]}}}'
    accountant = f'privacy.accountant="{"rdp@8" if name == "adap" else "rdp"}"'
    found = laid(tmp_path, "synchronous", [method, "budget={rounds=6,steps=20}", accountant])
    agreed = Agreed(found.server)
    study: Any = agreed.study
    made = of(study).assembled(study, divided(agreed.agreement, study), tmp_path, "run", None)
    world: Any = made.simulation

    def number() -> float:
        return dice.choice(EDGES) * dice.choice((1.0, -1.0))

    def said(site: int, task: Train) -> Update:
        vector = np.full_like(task.weights, dice.choice((0.0, 1e-30, 1e7, -2e7)))
        told = Statistics(*(number() for _ in range(8)))
        raw = Raw(number(), number(), vector) if task.probe is not None else None
        return Update(site, task.round, task.steps, task.weights + vector, told, vector, raw)

    for _ in range(15):
        state = made.first.state  # type: ignore[attr-defined]
        while state.ended is None and state.number < 6:
            state, effects = world.step(state, Begin())
            sent = []
            for effect in effects:
                if isinstance(effect, Send) and isinstance(effect.message, Train):
                    answer = said(effect.site, effect.message)
                    with suppress(RemoteProtocolError):
                        bounds = world if limited else ServerSide()
                        refuse_reply(effect.site, state.number, answer, bounds)
                        sent.append(answer)
            state = whole_round(world, state, sent) if state.ended is None else state
    world.ledgers.close()


def served(found: DemoFederation, folder: Path, count: int) -> tuple[Any, Guarded, list[Any]]:
    """The last state of a run of the server, the courier, and what stands in its ledger."""
    folder.mkdir()
    agreed, nobody = Agreed(found.server), None
    options = ServerOptions(agreed=agreed, opens=nobody)  # type: ignore[arg-type]
    made = prepare_server(options)(agreed.study, folder, "run", None)
    serving: Any = made.simulation
    serving.unpack(made.first.pack())  # what reads a moment is made when one is first read
    world: Any = serving.inner
    moment = world.resumed(made.first)
    feeder = Feeder(agreed, count, seed=count)
    feeder.dimension = moment.model.size
    feeder.sizes = list(world.player.rules.sizes) if isinstance(world, VerticalServer) else []
    courier = Guarded(
        feeder,
        feeder,
        agreed,
        dimension=moment.model.size,
        run="run",
        world=world,
        clock=lambda: feeder.now,
    )
    kernel: LiveKernel[Any] = LiveKernel(
        world,
        moment,
        Blind(),
        KernelOptions(session=courier, journal=Journal(folder), clock=lambda: feeder.now),
    )
    courier.feeder, courier.kernel = feeder, kernel
    try:
        last = kernel.run()
        entries = [(e.unit, e.round, e.count) for e in serving.ledgers.ledger.entries()]
        return last, courier, entries
    finally:
        serving.ledgers.close()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("regime", REGIMES)
def test_frames_of_sites_that_were_changed_leave_the_run_as_it_is(
    regime: str, count: int, tmp_path: Path
) -> None:
    found = small(tmp_path, regime)
    quiet, _, booked = served(found, tmp_path / "quiet", 0)
    with nothing_executed():
        last, courier, entries = served(found, tmp_path / "loud", count)
    assert courier.feeder.left == 0
    assert last.model.tobytes() == quiet.model.tobytes()
    assert entries == booked
    refused = sum(
        (own.refused for own in courier.sites), start=courier.sites[0].refused.__class__()
    )
    assert refused.total() > count // 2
    assert len(refused) > 10
    assert all(why.isprintable() for why in refused)
    grown = courier.feeder.grown
    assert grown[-1] - grown[len(grown) // 2] < GROWTH


@contextmanager
def opened(found: DemoFederation, folder: Path, index: int) -> Iterator[SiteSession]:
    """A site's desk."""
    kit, data = found.sites[index]
    _, index, study, own = sites.opened(JoinOptions(kit=kit, data=data))
    folder.mkdir()
    nobody: Any = None
    build = prepare_site(
        agreed=Agreed(kit), index=index, own=own, connects=nobody, log=log_to(lambda text: None)
    )
    built = build(study, folder, "run", None)
    site: Any = built.simulation
    assert isinstance(built.first, SiteMoment)
    outbox = AnswerStore(folder, durable=site.inner.remembers)
    desk = SiteSession(site, built.first, Blind(), outbox)
    try:
        list(desk.said(frames.encode(frames.Welcome("run"))))
        yield desk
    finally:
        desk.close()
        outbox.close()
        site.ledgers.close()


def tasks(regime: str, number: int, dimension: int, size: int, site: int) -> Sequence[Task]:
    """What a server would ask next, and variants of it."""
    weights = np.full(dimension, 0.125, np.float32)
    if regime == "vertical":
        slope = Derivative(site, number - 1, 32, bytes(4 * size))
        turns = [Turn(number), Turn(number, True), Turn(number, over=True)]
        return [*turns, Turn(number, False, slope if number > 1 and site < 2 else None)]
    if regime == "asynchronous":
        return [Compute(task=number, version=0, weights=weights, clip=1.0)]
    agreed: dict[str, Any] = {"clip": 0.3, "noise_multiplier": 1.0} if regime == "client" else {}
    return [
        Train(round=number, steps=2, weights=weights, **agreed),
        Train(round=number, steps=2, weights=weights, clip=1.0, noise_multiplier=0.5),
        Train(round=number, steps=2, weights=weights, probe=weights, wants_first=True),
    ]


def booking(desk: SiteSession, number: int) -> bytes:
    """A round that is charged to everybody, as agreed where there is one."""
    rules: Any = getattr(desk._site.inner, "regime", None)
    event: Any = Gaussian(noise_multiplier=1.0)
    if getattr(rules, "aggregator", None) is not None:
        noise = rules.method.round_noise(rules.method.start(rules.terms), rules.terms, number)
        event = rules.aggregator.event(noise)
    return frames.encode(frames.Book(number, written(event)))


def standing(desk: SiteSession) -> tuple[Any, ...]:
    """Where a site stands: its ledger, its answers, its log and its own half of a model."""
    ledgers = desk._site.ledgers
    party = getattr(desk._site.inner, "party", None)
    own = b"" if party is None else party.flat.weights.numpy().tobytes()
    return ledgers.head(), desk.answers.progress, desk.moment, own


def _warm() -> None:
    """Learn from a derivative: the first one of a process imports modules."""
    slope = torch.ones(1, requires_grad=True)
    torch.autograd.grad(2.0 * slope, [slope], torch.ones(1))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("regime", REGIMES)
def test_frames_of_a_server_that_were_changed_leave_a_site_as_it_is(
    regime: str, count: int, tmp_path: Path
) -> None:
    found, dice = small(tmp_path, regime), random.Random(count)
    grown: list[int] = []
    released: dict[int, bytes] = {}
    _warm()
    with opened(found, tmp_path / "run", 1) as desk:
        inner: Any = desk._site.inner
        size, site = getattr(inner, "_sizes", (0, 0))[1], desk._site.index
        for step in range(count):
            number = (desk.answers.progress.number // (2 if regime == "vertical" else 1)) + 1
            asks = [
                frames.encode(frames.Ask(task.number, encode(task)))
                for task in tasks(regime, number, desk.dimension, size, site)
            ]
            valid = [
                *asks, *asks, frames.encode(frames.Welcome("run")), frames.encode(frames.Done()),
                booking(desk, number), frames.encode(frames.Bye("over", bytes(4 * desk.dimension))),
                frames.encode(frames.Reject("no")), frames.encode(frames.Say(number, asks[0])),
            ]  # fmt: skip
            frame = mutated(valid, dice)
            if not step % 50:  # as the server would say it: the site stands elsewhere then
                judge(desk, booking(desk, number), released, warm=step < 100)
                frame = asks[0]
            judge(desk, frame, released, warm=step < 100)
            if step % 1000 == 0:
                grown.append(memory())
        grown.append(memory())
        entries = list(desk._site.ledgers.ledger.entries())
    assert grown[-1] - grown[len(grown) // 2] < GROWTH
    assert released
    covered = {e.round + i for e in entries for i in range(e.count)}
    if regime == "vertical":
        assert entries
    else:
        assert set(released) <= covered | ({e.round for e in entries})


def judge(desk: SiteSession, frame: bytes, released: dict[int, bytes], *, warm: bool) -> None:
    """One frame: what is not answered changes nothing, and one number has one answer."""
    before = standing(desk)
    answers: list[frames.FromSite] = []
    try:
        if warm:  # compiled code is loaded by the first steps
            answers += desk.said(frame)
        else:
            with nothing_executed():
                answers += desk.said(frame)
    except (StudyError, Lost):
        pass
    for each in answers:
        if isinstance(each, frames.Say):
            assert released.setdefault(each.number, each.body) == each.body
    if desk.moment.ended:  # a farewell, perhaps with a model that was refused
        desk.moment = before[2]
    if not any(isinstance(each, frames.Say | frames.Booked | frames.Done) for each in answers):
        after = standing(desk)
        assert after[0] == before[0], (answers, frame)
        assert after[2:] == before[2:], (answers, frame)
