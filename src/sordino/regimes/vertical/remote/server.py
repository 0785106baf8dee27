"""The server's side of events between real sites.

To the kernel there is one state, that of the stream; a piece of it is no task of an engine here,
but a row of events, each played by the rules of :mod:`~sordino.regimes.vertical.protocol`. Queries
and derivatives travel in turns:

    server -> everybody        :  Turn(t), with the derivative of t - 1 for who was active then
    active party -> server     :  Embedding(t);   a passive one: Passive(t);   the labels: Labels(t)
    server -> passive parties  :  Turn(t, asked)
    passive party -> server    :  Embedding(t)

At the end of the stream a last turn brings the last derivatives; a site says that it is passive,
and so that it has them.

What the server's ledger books for a piece is what all sites together release: an upper bound.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from sordino.base.errors import RemoteProtocolError
from sordino.base.message import Derivative, Embedding, Labels, Passive, Query, Turn, numbers
from sordino.core.effect import (
    Arrived,
    Begin,
    Effect,
    Event,
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
    Stretch,
    Stretched,
    Wake,
    Woke,
)
from sordino.core.world import ChargeRequest, ServerSide
from sordino.privacy import Budget, Permit
from sordino.regimes.vertical.engine import Mask, Played
from sordino.regimes.vertical.engines.observed import Observed
from sordino.regimes.vertical.pieces import State
from sordino.regimes.vertical.remote.half import Half
from sordino.regimes.vertical.simulation import PIECE, Events, Play
from sordino.regimes.vertical.tally import Course, counted
from sordino.training.plausible import CHANCE, LONGEST, ROUNDING, Length, length

LEAVE = "leave"


@dataclass(slots=True, eq=False)
class _Seen:
    """What came of the events of a piece so far, one entry for each."""

    active: list[tuple[int, ...]] = field(default_factory=list)
    absent: list[tuple[int, ...]] = field(default_factory=list)
    learned: list[bool] = field(default_factory=list)
    labels: list[tuple[int, ...]] = field(default_factory=list)
    predictions: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    regret: list[float] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def mask(self, rows: Sequence[tuple[int, ...]], parties: int) -> Mask:
        """(n, M)."""
        found = np.zeros((len(rows), parties), bool)
        for i, row in enumerate(rows):
            found[i, list(row)] = True
        return found


class Conducting(Play, ServerSide[State]):
    """One call of a server's run, as the kernel asks for it.

    ``state`` is changed in place.
    """

    hands_out = False
    continuous = True

    def __init__(self, world: Events, state: State) -> None:
        super().__init__(world, state)
        assert isinstance(self.engine, Half)
        self.half: Half = self.engine
        self.half.server.most = LONGEST
        self.widest = max(self.half.rules.sizes)
        self._faults: list[tuple[int, str]] = []
        self._task = Stretch(1, 0)
        self._seen = _Seen()
        self._silent: Mask = np.zeros((0, 0), bool)
        self._dropped = 0
        self._fresh: Sequence[ChargeRequest] = ()
        self._asked: dict[int, int] = {}
        self._leaving: set[int] | None = None

    @property
    def budget(self) -> Budget:
        """What is promised."""
        return self.world.budget

    @property
    def _sites(self) -> range:
        """The parties, and whoever holds the labels."""
        return range(self.half.rules.parties + 1)

    def step(self, state: State, event: Event) -> tuple[State, Sequence[Effect]]:
        """The rules of the stream, and between two of its pieces those of events."""
        match event:
            case Arrived(message):
                self._answered(message)
            case Stop() if state.ended is None:
                return state, [*self._cut_short(), *super().step(state, event)[1]]
            case Begin():
                return state, self._in_turns(super().step(state, event)[1])
            case Joined(site):
                self.half.away.discard(site)
                return state, ()
            case Left(site):
                self.half.away.add(site)
            case Lapsed():
                self.half.state.dropped += 1  # an answer that comes too late
                return state, ()
            case Refused():
                return state, ()
        if state.ended is not None:
            return state, ()
        if self._leaving is not None:
            return state, self._left(event, self._leaving)
        found = self._sent(self.half.rules.step(self.half.state, event)[1])
        if isinstance(event, Learned):
            found += self._closed()
        return state, found

    def _answered(self, message: Said) -> None:
        """A site answers a turn once, whether its answer can be used or not."""
        match message:
            case Embedding(party=site, event=event) | Passive(party=site, event=event):
                pass
            case Labels(event=event):
                site = self.half.rules.parties
            case _:
                return
        if self._asked.get(site, 0) // 2 == event:
            del self._asked[site]

    def _in_turns(self, effects: Sequence[Effect]) -> list[Effect]:
        """What the rules of the stream ask for, pieces turn by turn."""
        found: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Stretch):
                found += self._begun(effect.message)
            else:
                found.append(effect)
        return found

    def _begun(self, task: Stretch) -> list[Effect]:
        """Read a piece, and open its first event."""
        self._task, self._seen, self._fresh = task, _Seen(), self._admit(self.state, task)
        self._dropped = self.half.state.dropped
        self._silent = self.world.activity.silent(task.number - 1, len(self.used), PIECE)[self.used]
        return self._open() if self.used.any() else self._over()

    def _open(self, *, over: bool = False) -> list[Effect]:
        """The next event's turn, for everybody."""
        half, event = self.half, self.half.state.closed + 1
        due, half.due = half.due, {}
        found = self._turns({site: Turn(event, False, due.get(site), over) for site in self._sites})
        if not over:
            for site in sorted(half.away - {half.rules.parties}):
                gone = Arrived(Passive(site, event))
                found += self._sent(half.rules.step(half.state, gone)[1])
        return found

    def _turns(self, turns: Mapping[int, Turn]) -> list[Effect]:
        self._asked |= {site: turn.number for site, turn in turns.items()}
        return [Send(site, turn) for site, turn in turns.items()]

    def _sent(self, effects: Sequence[Effect]) -> list[Effect]:
        """What the rules of events ask for, as it travels; who is away does not answer."""
        half = self.half
        found: list[Effect] = []
        gone: list[int] = []
        for effect in effects:
            match effect:
                case Send(party, Query(number)):
                    found += self._turns({party: Turn(number, True)})
                    gone += [party] if party in half.away else []
                case Send(party, Derivative() as derivative):
                    half.due[party] = derivative
                case _:
                    found.append(effect)
        for party in gone:
            found += self._sent(half.rules.step(half.state, Left(party))[1])
        return found

    def _closed(self) -> list[Effect]:
        """An event is over: the next one, or the end of the piece."""
        seen, dropped = self._seen, self.half.state.dropped
        seen.regret.append(self.half.server.square(self.half.state.closed))
        seen.dropped.append(dropped - self._dropped)
        self._dropped = dropped
        return self._open() if len(seen.learned) < self.used.sum() else self._over()

    def _over(self) -> list[Effect]:
        """A piece is over. The last one is when everybody has the last derivative."""
        n = len(self.used)
        if self.state.position + n < self.world.events and n == self._task.count:
            return self._played()
        self._leaving = set(self._sites) - self.half.away
        last = self._open(over=True)
        return [*last, Wake(self.half.rules.patience, LEAVE)] if self._leaving else self._played()

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
        """Count the piece, and go on."""
        done = self._stretched()
        return self._in_turns(super().step(self.state, Arrived(done))[1])

    def _cut_short(self) -> list[Effect]:
        """Count the events of the open piece that are over: no more of them will come."""
        over = len(self._seen.learned)
        if not over or self._task.number != self.state.position + 1:
            return []
        self.used = self.used[: int(np.flatnonzero(self.used)[over - 1]) + 1]
        return self.rules.count(self.state, self._stretched())

    def _stretched(self) -> Stretched:
        """What came of the open piece."""
        seen, parties, n = self._seen, self.half.rules.parties, len(self.used)
        predictions, labels = (
            np.concatenate([np.zeros(0, np.int64), *map(np.asarray, rows)])
            for rows in (seen.predictions, seen.labels)
        )
        played = Played(
            Observed(
                predictions,
                np.array(seen.losses),
                np.array(seen.regret),
                np.array([0.0, 0.0, seen.seconds]),
            ),
            np.array(seen.learned, bool),
            np.array(seen.dropped, np.int64),
        )
        course = Course(
            self._task.number - 1,
            self.used,
            self.state.whole.events + 1,
            seen.mask(seen.active, parties),
            seen.mask(seen.absent, parties),
            labels,
        )
        tallies = counted(course, played, self.world.sizes, self.world.every, self.world.batch)
        return Stretched(self._task.number, n, tuple(tallies) if n else ())

    def requests(
        self, state: State, effects: Sequence[Effect], paid: Mapping[int, Sequence[Permit]]
    ) -> Sequence[ChargeRequest]:
        """What a piece releases, before its first turn is sent."""
        found, self._fresh = self._fresh, ()
        return found

    def learn(self, effect: Learn | Skip) -> Learned:
        """Let the server learn, or only see the labels."""
        seen, server = self._seen, self.half.server
        labels = torch.tensor(effect.labels)
        seen.labels.append(effect.labels)
        seen.absent.append(effect.absent)
        seen.active.append(effect.active)
        begun, made = time.perf_counter(), None
        if isinstance(effect, Skip):
            server.see(labels)
        else:
            try:
                made = server.learn(effect.number, effect.embeddings, labels, effect.active)
            except RemoteProtocolError as refusal:
                self._blame(effect, str(refusal))
            seen.seconds += time.perf_counter() - begun
        seen.learned.append(made is not None)
        if made is None:
            seen.predictions.append(np.zeros(len(effect.labels), np.int64))
            seen.losses.append(0.0)
            return Learned(effect.number, ())
        seen.predictions.append(made.predictions)
        seen.losses.append(made.loss)
        return Learned(effect.number, tuple((each.party, each) for each in made.derivatives))

    def _blame(self, effect: Learn, why: str) -> None:
        """The server cannot learn from an event: the largest embedding is at fault, and stands in
        for no later one.
        """
        lengths = [length(values.astype(np.float64)) for values in effect.embeddings]
        party = int(np.argmax(lengths))
        self.half.state.last[party] = np.zeros_like(self.half.state.last[party])
        told = f"its embedding of event {effect.number} has the length {lengths[party]:.3g}"
        self._faults.append((party, f"{told}, and the server would take {why}"))

    def faults(self) -> Sequence[tuple[int, str]]:
        """See :class:`~sordino.core.world.World`."""
        found, self._faults = self._faults, []
        return found

    def latest(self, state: State, site: int) -> int:
        """See :class:`~sordino.core.world.World`: the query of the open event."""
        return 2 * (self.half.state.closed + 1) + 1

    def indispensable(self, site: int) -> bool:
        """See :class:`~sordino.core.world.World`: whoever holds the labels."""
        return site == self.half.rules.parties

    def expects(self, state: State, site: int, number: int) -> bool:
        """Whether this is what the site was asked last, and has not answered."""
        return self._asked.get(site) == number

    def trip(self, site: int, task: Request) -> float:
        """By the simulator's clock: an event a second or so, and who is to be silent is too
        late.
        """
        rules = self.half.rules
        if not isinstance(task, Turn) or not task.asked:
            return 2.0 * (rules.wait + rules.patience)
        late = self._silent[len(self._seen.learned), site]
        return 1.5 * rules.patience if late else 0.0

    def reach(self, site: int, task: Request | None, said: Said) -> Length | None:
        """See :class:`~sordino.core.world.World`: of embeddings that are covered with noise."""
        cover, rules = self.half.cover, self.half.rules
        if cover is None or not isinstance(said, Embedding):
            return None
        try:
            values = numbers(said, rules.sizes[site])
        except RemoteProtocolError:  # the rules drop it
            return None
        most = cover.within(self.half.server.plan.rows, len(values), CHANCE)
        return Length(length(values), most * (1.0 + ROUNDING))  # which 16 bits stay within

    def unfit(self, site: int, number: int, said: Said) -> str | None:
        """Why an answer is refused: it is another's, of another event, or of another size. What is
        not finite is for the rules to drop.
        """
        event, parties, plan = number // 2, self.half.rules.parties, self.half.server.plan
        if not isinstance(said, Embedding | Labels | Passive):
            return f"no site of this study sends {type(said).__name__}"
        if said.event != event:
            return f"its frame is of event {event}, its message of {said.event}"
        if isinstance(said, Labels):
            if site != parties:
                return "it does not hold the labels"
            if len(said.values) != plan.batch:
                return f"{len(said.values)} labels; an event has {plan.batch}"
            if not all(0 <= value < self.half.classes for value in said.values):
                return f"labels that are no numbers from 0 to {self.half.classes - 1}"
            return None
        if said.party != site:
            return f"it speaks for site {said.party} and is site {site}"
        if isinstance(said, Passive):
            return None
        if site == parties:
            return "who holds the labels has no embedding"
        size = self.half.rules.sizes[site] * plan.bits // 8
        if said.bits != plan.bits or len(said.values) != size:
            return (
                f"an embedding of {len(said.values)} bytes at {said.bits} bits a number; agreed "
                f"are {size} at {plan.bits}"
            )
        return None
