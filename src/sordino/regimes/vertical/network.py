"""Events message by message: the server's side and a site's, on a network or in one process.

Theory of operation
-------------------
*Roles.* M sites are parties, each with features of its own
and a half of the network; one more site, the last, has the labels. The server has neither: it keeps
its half of the network, and the rules of an event (:mod:`~sordino.regimes.vertical.protocol`). All
go through the same stream by themselves: which row an event shows follows from the study's seed and
the agreed number of rows, who is active from the seed, whose budget is spent from the appearances
that everybody counts alike.

*Turns.* Queries and derivatives travel in turns, because only the last task of a site is sent again
after a lost connection:

    server -> every site       :  Turn(t), with the derivative of t - 1 for who was active then
    active party -> server     :  Embedding(t);   a passive one: Passive(t);   the labels: Labels(t)
    server -> passive parties  :  Turn(t, asked)
    passive party -> server    :  Embedding(t)
    server                     :  learns, and opens event t + 1

A party makes its embedding of t at its first turn of t, active or not, and sends these bytes
however often it is asked: noise is drawn once. It learns from the derivative of t - 1 before that.
A site that finds that the server went on without it passes the events it missed: a window of
examples goes on, and nothing is released. At the end of the stream a last turn (``over``) brings
the last derivatives; a site says that it is passive, and so that it has them.

*Charges.* Everybody books a block of events before its first turn: the server what all sites
together release (an upper bound), each site what it releases itself, and what an entity releases at
all sites together. An embedding, a step and an answer about a label refuse to be made without the
permits for them.

*Who does not answer.* A site that is away says nothing, and is given up as soon as it would be
queried. One that is there and silent is given up when the server's patience ends. What an answer
that comes later says is dropped. Whatever is dropped or stood in shows in the log.

*One process.* :class:`Messages` plays the same server model, and the same parties, and passes their
turns from hand to hand. Nothing waits there: a party that is silent in the study's world makes its
embedding (its window goes on, and its noise is drawn), which counts as dropped. Derivatives are
learned from at once, so that the regret of an event can be summed over all halves; a server of a
network knows its own part alone. The kernel charges the block before (:mod:`~.run`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.base.entropy import Entropy
from sordino.base.errors import LocalProtocolError, RemoteProtocolError
from sordino.base.message import (
    Derivative,
    Embedding,
    Labels,
    Passive,
    Query,
    Turn,
    Vector,
    numbers,
)
from sordino.core.effect import (
    Arrived,
    Begin,
    BlockPlayed,
    Effect,
    Event,
    EventBlock,
    Joined,
    Lapsed,
    Learn,
    Learned,
    Left,
    Refused,
    Request,
    Said,
    Send,
    Skip,
    Stop,
    Wake,
    Woke,
)
from sordino.core.world import ChargeRequest, ServerSide, SiteSide
from sordino.mechanisms.gaussian import Single
from sordino.privacy import Allowance, Budget, LedgerSession, Permit, accountant
from sordino.privacy.accounting import Spent
from sordino.regimes.vertical.blocks import Block, State, counted
from sordino.regimes.vertical.engine import (
    Arrays,
    Mask,
    Played,
    RequiredCharges,
    Weights,
    below,
)
from sordino.regimes.vertical.halves import Party, Server
from sordino.regimes.vertical.models import Split, half_settings, make_party, rates
from sordino.regimes.vertical.protocol import State as EventState
from sordino.regimes.vertical.protocol import Vertical
from sordino.regimes.vertical.run import Events, Play
from sordino.regimes.vertical.study import VerticalStudy
from sordino.training.plausible import CHANCE, LONGEST, ROUNDING, Length, length

LEAVE = "leave"
"""Tag of the alarm after which a server waits for no site to have its last derivative."""


@dataclass(slots=True, eq=False)
class Results:
    """Results of the events of a block so far, one entry for each."""

    active: list[tuple[int, ...]] = field(default_factory=list)
    absent: list[tuple[int, ...]] = field(default_factory=list)
    learned: list[bool] = field(default_factory=list)
    labels: list[tuple[int, ...]] = field(default_factory=list)
    predictions: list[NDArray[np.int64]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    regret: list[float] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))

    def played(self) -> Played:
        """Return them as arrays."""
        return Played(
            np.concatenate([np.zeros(0, np.int64), *self.predictions]),
            np.array(self.losses),
            np.array(self.regret),
            np.array(self.learned, bool),
            np.array(self.dropped, np.int64),
            self.seconds,
        )


def _mask(rows: Sequence[tuple[int, ...]], parties: int) -> Mask:
    """Return (n, M) from the numbers in each row."""
    found = np.zeros((len(rows), parties), bool)
    for i, row in enumerate(rows):
        found[i, list(row)] = True
    return found


class ServerModel:
    """The server between two events: its half of the network, its rules, and what it owes to sites.

    Attributes:
        rules: of the order of messages.
        server: its half.
        classes: number of classes, and ``noise`` on embeddings: what answers are checked by.
        state: of the rules.
        due: derivatives of the last event, which travel with the next turn, by party.
        away: sites that are not there.
        results: of the open block.
        faults: parties whose embeddings were taken and could not be learned from, and why.
    """

    def __init__(
        self, rules: Vertical, server: Server, classes: int = 0, noise: Single | None = None
    ) -> None:
        self.rules, self.server, self.classes, self.noise = rules, server, classes, noise
        self.state: EventState = rules.start()
        self.due: dict[int, Derivative] = {}
        self.away: set[int] = set()
        self.results, self._dropped = Results(), 0
        self.faults: list[tuple[int, str]] = []

    def begin(self) -> None:
        """Begin a block."""
        self.results, self._dropped = Results(), self.state.dropped

    def open(self, *, over: bool = False) -> list[Effect]:
        """Return the next event's turn, for everybody; who is away is passive in it."""
        event, due = self.state.closed + 1, self.due
        self.due = {}
        found: list[Effect] = [
            Send(site, Turn(event, False, due.get(site), over))
            for site in range(self.rules.parties + 1)
        ]
        if not over:
            for site in sorted(self.away - {self.rules.parties}):
                found += self.step(Arrived(Passive(site, event)))
        return found

    def step(self, event: Event) -> list[Effect]:
        """Return what the rules of events ask for, as it travels: queries are turns, and
        derivatives wait for the next one.
        """
        found: list[Effect] = []
        given_up: list[int] = []
        for effect in self.rules.step(self.state, event)[1]:
            match effect:
                case Send(party, Query(number)):
                    found.append(Send(party, Turn(number, True)))
                    given_up += [party] if party in self.away else []
                case Send(party, Derivative() as derivative):
                    self.due[party] = derivative
                case _:
                    found.append(effect)
        for party in given_up:
            found += self.step(Left(party))
        if isinstance(event, Learned):
            self.results.regret.append(self.server.square(self.state.closed))
            self.results.dropped.append(self.state.dropped - self._dropped)
            self._dropped = self.state.dropped
        return found

    def learn(self, effect: Learn | Skip) -> Learned:
        """Learn from an event, or only see its labels."""
        results, made = self.results, None
        labels = torch.tensor(effect.labels)
        results.labels.append(effect.labels)
        results.absent.append(effect.absent)
        results.active.append(effect.active)
        begun = time.perf_counter()
        if isinstance(effect, Skip):
            self.server.see(labels)
        else:
            try:
                made = self.server.learn(effect.number, effect.embeddings, labels, effect.active)
            except RemoteProtocolError as refusal:
                self._blame(effect, str(refusal))
            results.seconds[2] += time.perf_counter() - begun
        results.learned.append(made is not None)
        if made is None:
            results.predictions.append(np.zeros(len(effect.labels), np.int64))
            results.losses.append(0.0)
            return Learned(effect.number, ())
        results.predictions.append(made.predictions)
        results.losses.append(made.loss)
        return Learned(effect.number, tuple((each.party, each) for each in made.derivatives))

    def _blame(self, effect: Learn, why: str) -> None:
        """Name the largest embedding of an event that cannot be learned from; it stands in for no
        later one.
        """
        lengths = [length(values.astype(np.float64)) for values in effect.embeddings]
        party = int(np.argmax(lengths))
        self.state.last[party] = np.zeros_like(self.state.last[party])
        text = f"its embedding of event {effect.number} has the length {lengths[party]:.3g}"
        self.faults.append((party, f"{text}, and the server would take {why}"))

    def run(
        self, x: NDArray[np.float32], y: NDArray[np.int64], active: Mask, silent: Mask,
        paid: Allowance,
    ) -> Played:  # fmt: skip
        """Refuse: events of a network come from its sites."""
        raise TypeError("the events of a network are played by its sites")

    def weights(self) -> Weights:
        """Return the flat weights of "server"."""
        return {"server": self.server.flat.weights.cpu().numpy().copy()}

    def pack(self) -> Arrays:
        """Return everything that a later :meth:`unpack` needs."""
        found: Arrays = {f"server.{name}": value for name, value in self.server.pack().items()}
        found |= {f"last.{m}": values for m, values in enumerate(self.state.last)}
        found |= {f"due.{m}": np.frombuffer(each.values, np.uint8) for m, each in self.due.items()}
        found["counts"] = np.array([self.state.closed, self.state.dropped])
        if self.away:
            found["away"] = np.array(sorted(self.away), np.int64)
        return found

    def unpack(self, kept: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that :meth:`pack` returned."""
        closed, dropped = (int(value) for value in kept["counts"])
        self.server.unpack(below("server.", kept))
        last = [kept[f"last.{m}"].copy() for m in range(self.rules.parties)]
        self.state = EventState(last, closed=closed, dropped=dropped)
        self.away = {int(site) for site in kept.get("away", ())}
        self.due = {
            m: Derivative(m, closed, self.server.settings.bits, kept[f"due.{m}"].tobytes())
            for m in range(self.rules.parties)
            if f"due.{m}" in kept
        }


class Messages:
    """A server and its parties in one process, which hand every message over.

    ``required`` are the charges of an appearance of an entity.
    """

    def __init__(
        self,
        server: ServerModel,
        parties: Sequence[Party],
        columns: Sequence[slice],
        required: RequiredCharges,
    ) -> None:
        self.server, self.parties = server, tuple(parties)
        self.columns, self.required = tuple(columns), required

    @staticmethod
    def of(
        study: VerticalStudy, split: Split, noise: Entropy, required: RequiredCharges
    ) -> Messages:
        """Return the halves of a study, with noise drawn from ``noise``."""
        server, parties = split.halves()
        rules = Vertical(split.numbers, study.world.missing, study.method.resends)
        model = ServerModel(rules, Server(server, half_settings(study), rates(study).server))
        made = [make_party(study, split, m, noise, module) for m, module in enumerate(parties)]
        return Messages(model, made, split.columns, required)

    def run(
        self,
        x: NDArray[np.float32],
        y: NDArray[np.int64],
        active: Mask,
        silent: Mask,
        paid: Allowance,
    ) -> Played:
        """Play n events, as :class:`~sordino.regimes.vertical.engine.Engine` says."""
        for unit, event in self.required:
            paid.covers(unit, event)
        n, batch = len(active), self.server.server.settings.batch
        features, labels = torch.from_numpy(x).view(n, batch, -1), y.reshape(n, batch)
        self.server.begin()
        for i in range(n):
            self._play(features[i], tuple(labels[i].tolist()), active[i], silent[i], paid)
        return self.server.results.played()

    def _play(
        self,
        features: torch.Tensor,
        labels: tuple[int, ...],
        active: Mask,
        silent: Mask,
        paid: Allowance,
    ) -> None:
        """Play an event: features (b, f), labels (b,), parties (M,)."""
        server, results = self.server, self.server.results
        waiting = deque(server.open())
        while waiting:
            match waiting.popleft():
                case Send(site, Turn() as turn) if site == len(self.parties):
                    waiting += server.step(Arrived(Labels(turn.event, labels)))
                case Send(site, Turn() as turn):
                    begun = time.perf_counter()
                    said = self.parties[site].answer(
                        turn, features[:, self.columns[site]], bool(active[site]), paid
                    )
                    results.seconds[0] += time.perf_counter() - begun
                    if turn.asked and silent[site]:
                        waiting += server.step(Left(site))  # and the answer comes too late
                    waiting += server.step(Arrived(said))
                case Learn() | Skip() as effect:
                    waiting += server.step(server.learn(effect))
        begun, event = time.perf_counter(), server.state.closed
        for party in self.parties:
            if (derivative := server.due.pop(party.index, None)) is not None:
                try:
                    party.learn(derivative)
                except RemoteProtocolError:  # not finite: nothing has been learned
                    results.dropped[-1] += 1
        results.seconds[1] += time.perf_counter() - begun
        results.regret[-1] += sum(party.square(event) for party in self.parties)

    def weights(self) -> Weights:
        """Return flat weights of "server", "party0", "party1" and so on."""
        found = self.server.weights()
        for m, party in enumerate(self.parties):
            found[f"party{m}"] = party.flat.weights.cpu().numpy().copy()
        return found

    def pack(self) -> Arrays:
        """Return everything that a later :meth:`unpack` needs."""
        found = self.server.pack()
        for m, party in enumerate(self.parties):
            found |= {f"party{m}.{name}": value for name, value in party.pack().items()}
        return found

    def unpack(self, kept: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state that :meth:`pack` returned."""
        self.server.unpack(kept)
        for m, party in enumerate(self.parties):
            party.unpack(below(f"party{m}.", kept))


class VerticalServer(Play, ServerSide[State]):
    """One call of a server's run over a network, as the kernel asks for it.

    To the kernel there is one state, that of the stream; a block of it is no task of an engine
    here, but a row of events.
    """

    hands_out = False
    continuous = True

    def __init__(self, events: Events, state: State) -> None:
        super().__init__(events, state)
        assert isinstance(self.engine, ServerModel)
        self.model: ServerModel = self.engine
        self.model.server.most = LONGEST
        self.widest = max(self.model.rules.sizes)
        self._task = EventBlock(1, 0)
        self._silent: Mask = np.zeros((0, 0), bool)
        self._unbooked: Sequence[ChargeRequest] = ()
        self._asked: dict[int, int] = {}
        self._leaving: set[int] | None = None

    @property
    def budget(self) -> Budget:
        """The budget of what is promised."""
        return self.events.budget

    def step(self, state: State, event: Event) -> tuple[State, Sequence[Effect]]:
        """Return what the rules of the stream say, and within a block those of events."""
        match event:
            case Arrived(message):
                self._answered(message)
            case Stop() if state.ended is None:
                return state, [*self._cut_short(), *super().step(state, event)[1]]
            case Begin():
                return state, self._in_turns(super().step(state, event)[1])
            case Joined(site):
                self.model.away.discard(site)
                return state, ()
            case Left(site):
                self.model.away.add(site)
            case Lapsed():
                self.model.state.dropped += 1  # an answer that comes too late
                return state, ()
            case Refused():
                return state, ()
        if state.ended is not None:
            return state, ()
        if self._leaving is not None:
            return state, self._left(event, self._leaving)
        found = self._noted(self.model.step(event))
        if isinstance(event, Learned):
            over = len(self.model.results.learned) == self._block.used.sum()
            found += self._over() if over else self._noted(self.model.open())
        return state, found

    @property
    def _block(self) -> Block:
        assert self.block is not None
        return self.block

    def _answered(self, message: Said) -> None:
        """Note that a site answers a turn once, whether its answer can be used or not."""
        match message:
            case Embedding(party=site, event=event) | Passive(party=site, event=event):
                pass
            case Labels(event=event):
                site = self.model.rules.parties
            case _:
                return
        if self._asked.get(site, 0) // 2 == event:
            del self._asked[site]

    def _noted(self, effects: Iterable[Effect]) -> list[Effect]:
        """Note the turns that sites are sent."""
        found = list(effects)
        for effect in found:
            if isinstance(effect, Send) and isinstance(effect.message, Turn):
                self._asked[effect.site] = effect.message.number
        return found

    def _in_turns(self, effects: Sequence[Effect]) -> list[Effect]:
        """Return what the rules of the stream ask for, blocks turn by turn."""
        found: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, EventBlock):
                found += self._begun(effect.message)
            else:
                found.append(effect)
        return found

    def _begun(self, task: EventBlock) -> list[Effect]:
        """Read a block, and open its first event."""
        self._task = task
        self.block, self._unbooked = self.read(self.state, task)
        self.model.begin()
        n, events = len(self.block.used), self.events
        silent = events.activity.silent(self.block.start, n, events.block)
        self._silent = silent[self.block.used]
        return self._noted(self.model.open()) if self.block.used.any() else self._over()

    def _over(self) -> list[Effect]:
        """Close a block. The last one is closed when everybody has the last derivative."""
        n, model = len(self._block.used), self.model
        if self.state.position + n < self.events.events and n == self._task.count:
            return self._played()
        self._leaving = set(range(model.rules.parties + 1)) - model.away
        last = self._noted(model.open(over=True))
        return [*last, Wake(model.rules.patience, LEAVE)] if self._leaving else self._played()

    def _left(self, event: Event, leaving: set[int]) -> list[Effect]:
        match event:
            case Arrived(Passive(site, _)) | Left(site):
                leaving.discard(site)
            case Woke(tag) if tag == LEAVE:
                leaving.clear()
        if leaving:
            return []
        self._leaving = None
        return self._played()

    def _played(self) -> list[Effect]:
        """Count the block, and go on."""
        return self._in_turns(super().step(self.state, Arrived(self._counted(self._block)))[1])

    def _cut_short(self) -> list[Effect]:
        """Count the events of the open block that are over: no more of them will come."""
        over = len(self.model.results.learned)
        if not over or self._task.number != self.state.position + 1:
            return []
        stop = int(np.flatnonzero(self._block.used)[over - 1]) + 1
        return self.rules.count(self.state, self._counted(self._block.until(stop)))

    def _counted(self, block: Block) -> BlockPlayed:
        """Return what came of a block."""
        results, parties, n = self.model.results, self.model.rules.parties, len(block.used)
        if not n:
            return BlockPlayed(self._task.number, 0, ())
        active, absent = _mask(results.active, parties), _mask(results.absent, parties)
        labels = np.array(results.labels, np.int64).reshape(-1)
        events = self.events
        tallies = counted(
            block, results.played(), active, absent, labels, events.sizes, events.every
        )
        return BlockPlayed(self._task.number, n, tuple(tallies))

    def requests(
        self, state: State, effects: Sequence[Effect], paid: Mapping[int, Sequence[Permit]]
    ) -> Sequence[ChargeRequest]:
        """Return the charges of a block, before its first turn is sent."""
        found, self._unbooked = self._unbooked, ()
        return found

    def learn(self, effect: Learn | Skip) -> Learned:
        """Let the server learn, or only see the labels."""
        return self.model.learn(effect)

    def faults(self) -> Sequence[tuple[int, str]]:
        """Return parties whose embeddings could not be learned from, each once."""
        found, self.model.faults = self.model.faults, []
        return found

    def latest(self, state: State, site: int) -> int:
        """Return the number of the query of the open event."""
        return 2 * (self.model.state.closed + 1) + 1

    def indispensable(self, site: int) -> bool:
        """Return whether a site holds the labels: nothing goes on without them."""
        return site == self.model.rules.parties

    def expects(self, state: State, site: int, number: int) -> bool:
        """Return whether this is what the site was asked last, and has not answered."""
        return self._asked.get(site) == number

    def trip(self, site: int, task: Request) -> float:
        """Return how long an answer takes by the simulator's clock: an event takes a second or so,
        and a party that is to be silent answers too late.
        """
        rules = self.model.rules
        if not isinstance(task, Turn) or not task.asked:
            return 2.0 * (rules.wait + rules.patience)
        late = self._silent[len(self.model.results.learned), site]
        return 1.5 * rules.patience if late else 0.0

    def reach(self, site: int, task: Request | None, said: Said) -> Length | None:
        """Return the length of an embedding with noise, and how long noise lets it be."""
        noise = self.model.noise
        if noise is None or not isinstance(said, Embedding):
            return None
        try:
            values = numbers(said, self.model.rules.sizes[site])
        except RemoteProtocolError:  # the rules drop it
            return None
        most = noise.within(self.model.server.settings.rows, len(values), CHANCE)
        return Length(length(values), most * (1.0 + ROUNDING))  # which 16 bits stay within

    def unfit(self, site: int, number: int, said: Said) -> str | None:
        """Return why an answer is refused: it is another's, of another event, or of another size.
        What is not finite is for the rules to drop.
        """
        event, parties, settings = number // 2, self.model.rules.parties, self.model.server.settings
        if not isinstance(said, Embedding | Labels | Passive):
            return f"no site of this study sends {type(said).__name__}"
        if said.event != event:
            return f"its frame is of event {event}, its message of {said.event}"
        if isinstance(said, Labels):
            if site != parties:
                return "it does not hold the labels"
            if len(said.values) != settings.batch:
                return f"{len(said.values)} labels; an event has {settings.batch}"
            if not all(0 <= value < self.model.classes for value in said.values):
                return f"labels that are no numbers from 0 to {self.model.classes - 1}"
            return None
        if said.party != site:
            return f"it speaks for site {said.party} and is site {site}"
        if isinstance(said, Passive):
            return None
        if site == parties:
            return "who holds the labels has no embedding"
        size = self.model.rules.sizes[site] * settings.bits // 8
        if said.bits != settings.bits or len(said.values) != size:
            return (
                f"an embedding of {len(said.values)} bytes at {said.bits} bits a number; agreed "
                f"are {size} at {settings.bits}"
            )
        return None


class VerticalSite(SiteSide[Any]):
    """A site's work on a network: that of a party with its features, or of the holder of labels.

    It reads the stream block by block and counts the appearances of entities as the server does.

    Args:
        events: the study's stream as this site has it: its own features, or the labels.
        site: number, from 0; the holder of labels comes last.
        party: its half of the network; None for the labels.
        units: of its ledger, the one first that its limit is about.
        sizes: numbers in an embedding message of each party.
    """

    hands_out = False
    remembers = True

    def __init__(
        self,
        events: Events,
        site: int,
        party: Party | None,
        units: Sequence[str],
        sizes: Sequence[int],
    ) -> None:
        self.events, self.site, self.party = events, site, party
        self.ledgers: LedgerSession = events.ledgers
        self.repeats_noise = party is not None and party.noise.numbered
        self.units = (units[0],) * (len(sizes) + 1)
        self.widest, self._sizes = max(sizes), sizes
        self._own_units = frozenset(units)
        self._counts: dict[int, int] = {}
        self._told: dict[int, int] = {}
        self._booked = 0
        self._requests: list[ChargeRequest] = []
        self._block: Block | None = None
        self._active: Mask = np.zeros(0, bool)
        self._labels: NDArray[np.int64] | None = None
        self._last = 0
        self._said: tuple[int, Embedding | Labels | Passive] | None = None
        self._faults: list[tuple[int, str]] = []
        if party is not None:
            party.most = LONGEST

    @property
    def budget(self) -> Budget:
        """The most that this site spends."""
        promised = self.units[0] in self.events.units
        return self.events.budget if promised else self.events.unlimited

    @property
    def affordable_steps(self) -> list[int] | None:
        """Appearances that an entity can pay for, or no limit."""
        return self.events.affordable_steps

    def objection(self, site: int, task: Request) -> str | None:
        """Return why a task is refused: only the next turns of the agreed stream are taken."""
        if not isinstance(task, Turn):
            return f"no server of this study sends {type(task).__name__}"
        if not 1 <= task.event <= self.events.events + task.over or task.event < self._last:
            return f"event {task.event} after {self._last}; {self.events.events} are agreed"
        if task.asked and (self.party is None or task.over):
            return "nothing of this site is to be queried"
        if (derivative := task.derivative) is not None:
            if self.party is None or derivative.party != site or task.asked:
                return "a derivative that is not for this site"
            bits = self.party.settings.bits
            size = self._sizes[site] * bits // 8
            if derivative.bits != bits or len(derivative.values) != size:
                return f"a derivative of {len(derivative.values)} bytes; agreed are {size}"
            if derivative.event != task.event - 1:
                return f"a derivative of event {derivative.event} with event {task.event}"
        if not task.over and not self._reach(task.event):
            return f"the stream has no event {task.event}"
        party = self.party
        gone = party is not None and task.event <= self._last and task.event != party.sent
        return f"event {task.event} is over" if gone else None

    def _reach(self, event: int) -> bool:
        """Read on to the block that holds an event; return whether there is one."""
        while self._block is None or event > self._block.last:
            block = self._block
            start, first = (0, 1) if block is None else (block.stop, block.last + 1)
            if block is not None:
                self._miss(block, block.last)
            if not self._read(start, first):
                return False
        return event >= self._block.first

    def _read(self, start: int, first: int) -> bool:
        """Read a block, and note its charges; return whether there is one."""
        events = self.events
        if start >= events.events:
            return False
        block = events.read(start, first, self._counts)
        n = len(block.used)
        if not n:
            return False
        x = block.read.x[: n * events.batch]
        active = events.activity.drawn(x, start, n, events.block)[0][block.used]
        if self.party is not None:
            self._active = active[:, self.site]
        self._block, self._labels = block, None
        if block.times > self._booked and block.used.any():
            self._requests += [
                request
                for request in events.requests_between(
                    self._booked + 1, block.times, start + 1, events.charge_key_prefix
                )
                if request.charge.unit in self._own_units
            ]
            self._booked = block.times
        return True

    def _miss(self, block: Block, last: int) -> None:
        """Go past events that were played without this site."""
        for event in range(max(self._last + 1, block.first), last + 1):
            if self.party is not None:
                self.party.miss(self._features(block, event))
        self._last = max(self._last, last)

    def _features(self, block: Block, event: int) -> torch.Tensor:
        """Return the features of an event (b, f)."""
        at, batch = (event - block.first) * block.batch, block.batch
        return torch.from_numpy(block.read.x[block.places[at : at + batch]])

    def site_requests(
        self, site: int, task: Request, permits: Sequence[Permit]
    ) -> Sequence[ChargeRequest]:
        """Return what the blocks so far release, as far as it has not been booked."""
        have = {permit.key for permit in permits}
        return [request for request in self._requests if request.charge.key not in have]

    def held(self, site: int, number: int, permits: Sequence[Permit]) -> Sequence[Permit]:
        """Return all permits: appearances add up."""
        return permits

    def price(self, unit: str, spent: Spent, budget: Budget) -> float:
        """Return the epsilon of a history."""
        return accountant(budget.accountant).epsilon(spent, budget.delta)

    def settle(self, site: int, task: Request) -> None:
        """Learn from the derivative, and close the event before."""
        party, said = self.party, self._said
        if party is None or not isinstance(task, Turn) or task.asked:
            return
        if said is not None and said[0] == task.number:  # this turn came before
            return
        if task.derivative is not None:
            try:
                party.learn(task.derivative)
            except RemoteProtocolError as refusal:  # nothing has been learned
                self._faults.append((site, f"event {task.derivative.event}: {refusal}"))
        if self._last:
            party.square(self._last)

    def faults(self) -> Sequence[tuple[int, str]]:
        """Return derivatives that were not learned from, each once."""
        found, self._faults = self._faults, []
        return found

    def answer(
        self, site: int, number: int, task: Request | None, permits: Sequence[Permit]
    ) -> Embedding | Labels | Passive:
        """Return the labels; an active party's embedding, or one that was asked for; or that there
        is none.
        """
        if not isinstance(task, Turn):
            raise LocalProtocolError("a site of events answers to turns")
        if self._said is None or self._said[0] != number:
            self._said = number, self._answered(task, permits)
        return self._said[1]

    def _answered(self, task: Turn, permits: Sequence[Permit]) -> Embedding | Labels | Passive:
        event, block = task.event, self._block
        if task.over:
            return Passive(self.site, event)
        assert block is not None
        paid = Allowance(permits, block.times)
        if self.party is None:
            if self._labels is None:
                self._labels = self.events.answers(block, paid, self._told)
            at = (event - block.first) * block.batch
            return Labels(event, tuple(self._labels[at : at + block.batch].tolist()))
        if event > self._last:
            self._miss(block, event - 1)
        active = bool(self._active[event - block.first])
        found = self.party.answer(task, self._features(block, event), active, paid)
        self._last = event
        return found

    def carried(self, site: int) -> Mapping[str, NDArray[Any]]:
        """Return the party's half between two events, and the number of the last one."""
        last = {"last": np.array([self._last])}
        return last if self.party is None else {**self.party.pack(), **last}

    def restore(self, site: int, carried: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`carried` returned."""
        if not carried:
            return
        self._last = int(carried["last"][0])
        if self.party is not None:
            self.party.unpack(carried)

    def model_of(self, site: int, given: Vector) -> Vector:
        """Return its own half, which nobody sends it."""
        if self.party is None:
            return np.zeros(0, np.float32)
        found: Vector = self.party.flat.weights.cpu().numpy().copy()
        return found
