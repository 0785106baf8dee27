r"""The simulator of online vertical learning: a stream in pieces, charged before being played.

Pieces hold a thousand events and begin at multiples of it, wherever rows of the log and checkpoints
fall: what is drawn (who is active, who does not answer, what noise there is) is numbered by event
or by piece, so that the same study gives the same bits whatever is logged, and a run that was
killed comes to the same end. A checkpoint stands between two pieces. To the kernel, a piece is one
task of an engine: site 0.

Entities that a stream repeats are counted. The ledger books for *an* entity what its k-th
appearance releases, when the first entity appears for the k-th time: that is the price of the one
that appeared most often, and a bound for all. What appears more often than its budget pays for is
not used. A run that goes on where its releases may come out differently (``origin``: another
environment) is counted from nothing again: what was released before stays booked, and what follows
is booked beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from sordino.core import records
from sordino.core.effect import Closed, Effect, Event, Finish, Request, Send, Stretch, Stretched
from sordino.core.kernel import Kernel
from sordino.core.simulation import Block, EncodedSnapshot, RunListener
from sordino.core.world import ChargeRequest, World
from sordino.privacy import Allowance, Budget, Charge, LedgerSession, Permit, accountant
from sordino.privacy import Event as Fact
from sordino.privacy.accounting import Spent
from sordino.regimes.vertical.activity import Activity
from sordino.regimes.vertical.engine import Engine, Mask, Played
from sordino.regimes.vertical.moment import Moment, joined, unpacked
from sordino.regimes.vertical.pieces import Pieces, State
from sordino.regimes.vertical.respond import Respond, remember
from sordino.regimes.vertical.tally import Course, Tally, counted
from sordino.regimes.vertical.traffic import Sizes

PIECE = 1000  # events


class Piece(Protocol):
    """Consecutive examples of a stream."""

    @property
    def x(self) -> NDArray[np.float32]:
        """(n, f), the parties' features side by side."""
        ...

    @property
    def y(self) -> NDArray[np.int64]:
        """(n,)."""
        ...

    @property
    def entity(self) -> NDArray[np.int64] | None:
        """Whose each is (n,), where the stream knows."""
        ...


class Stream(Protocol):
    """Examples one after another."""

    def read(self, start: int, count: int) -> Piece:
        """The examples from number ``start`` on; fewer than ``count`` only at the end."""
        ...

    def changes(self, start: int, stop: int) -> Sequence[int]:
        """Examples at which the world changed at once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """A vertical federation on one machine.

    Attributes:
        engine: server and parties; made anew for each call of :meth:`run`.
        stream: where examples come from.
        events: T.
        batch: b, examples in an event.
        every: events between two rows of the log.
        activity: who is active, and who does not answer.
        sizes: of messages.
        respond: how labels are told.
        charges: what appearances ``first`` to ``last`` of an entity release: (unit, event, how
            often).
        limit: in how many events an entity takes part at most.
        ledgers, units, budget: the ledger; what is promised is promised to ``units``.
        unlimited: budget of units to which nothing is promised.
        method, lineage: for the ledger.
        origin: what the protected releases depend on; the same one releases the same again.
    """

    engine: Callable[[], Engine]
    stream: Stream
    events: int
    batch: int
    every: int
    activity: Activity
    sizes: Sizes
    respond: Respond
    charges: Callable[[int, int], Sequence[tuple[str, Fact, int]]]
    limit: int | None
    ledgers: LedgerSession
    units: Sequence[str]
    budget: Budget
    unlimited: Budget
    method: str
    lineage: str
    origin: str

    @property
    def payable(self) -> list[int] | None:
        """Appearances that an entity can pay for, or no limit."""
        return None if self.limit is None else [self.limit]

    def first(self) -> Moment:
        """Before the first event."""
        engine, parties = self.engine(), len(self.activity.columns)
        none = Tally.zero(parties), Tally.zero(parties)
        return Moment(State(engine.pack(), joined(engine), *none, origin=self.origin))

    def unpack(self, packed: EncodedSnapshot) -> Moment:
        """See :class:`sordino.core.simulation.Simulation`."""
        return unpacked(packed, self.engine(), self.origin)

    def run(self, moment: Moment, watcher: RunListener[Moment]) -> Moment:
        """See :meth:`sordino.core.kernel.Kernel.run`."""
        state = moment.state.copied()  # a moment may be played from twice
        return Kernel(Play(self, state), replace(moment, state=state), watcher).run()

    def admitted(self, read: Piece, counts: dict[int, int]) -> tuple[Mask, int]:
        """Which events of a piece may be used (n,), and how often whoever appears most in them has
        appeared by then. The appearances are added to ``counts``.
        """
        n, entities = len(read.y) // self.batch, read.entity
        used, most_times = np.ones(n, bool), 1
        if entities is None or not self.units:
            return used, most_times
        for i in range(n):
            group = entities[i * self.batch : (i + 1) * self.batch].tolist()
            times = {e: counts.get(e, 0) + group.count(e) for e in group}
            most = max(times.values())
            if self.limit is not None and most > self.limit:
                used[i] = False
                continue
            counts.update(times)
            most_times = max(most_times, most)
        return used, most_times

    def told(
        self, read: Piece, start: int, used: Mask, paid: Allowance, told: dict[int, int]
    ) -> NDArray[np.int64]:
        """What the server learns of the labels of a piece's used events, which begins at event
        ``start`` (from 0); what was ``told`` of entities is remembered.
        """
        batch, n = self.batch, len(used)
        examples = slice(None) if used.all() else np.repeat(used, batch)
        places = np.arange(start * batch, (start + n) * batch)[examples]
        labels = read.y[: n * batch][examples]
        entities = read.entity[: n * batch][examples] if read.entity is not None else None
        found = self.respond(labels, places if entities is None else entities, places, paid)
        if entities is not None and self.respond.memoised and self.respond.mechanism is not None:
            remember(told, entities, found)
        return found

    def requests_between(
        self, first: int, last: int, number: int, lineage: str
    ) -> Iterator[ChargeRequest]:
        """Appearances ``first`` to ``last`` of an entity, booked at event ``number``."""
        for part, (unit, event, count) in enumerate(self.charges(first, last)):
            charge = Charge(
                unit=unit,
                event=event,
                count=count,
                why="one entity's appearances",
                method=self.method,
                round=number,
                key=f"{lineage}/appearance {first} to {last}/{part}",
            )
            yield ChargeRequest(
                (0,),
                charge,
                self.budget if unit in self.units else self.unlimited,
                unit in self.units,
            )


class Play(World[State]):
    """One call of ``run``, as the kernel asks for it."""

    def __init__(self, world: Events, state: State) -> None:
        self.world, self.state, self.engine, self.ledgers = (
            world,
            state,
            world.engine(),
            world.ledgers,
        )
        self.engine.unpack(state.kept)
        self.rules = Pieces(
            world.events,
            world.every,
            PIECE,
            world.stream.changes,
            world.batch,
            world.respond.accuracy,
        )
        self.read: Piece | None = None
        self.used: Mask = np.zeros(0, bool)
        self.times = 1

    def step(self, state: State, event: Event) -> tuple[State, Sequence[Effect]]:
        """The rules', with the engine as it stands where a moment may be kept."""
        state, effects = self.rules.step(state, event)
        if any(isinstance(effect, Closed | Finish) for effect in effects):
            state.kept, state.model = self.engine.pack(), joined(self.engine)
        return state, effects

    def requests(
        self, state: State, effects: Sequence[Effect], paid: Mapping[int, Sequence[Permit]]
    ) -> Sequence[ChargeRequest]:
        """Read the piece, and book what nobody has released so often before."""
        found: list[ChargeRequest] = []
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Stretch):
                found += self._admit(state, effect.message)
        return found

    def reissued(
        self, state: State, blocks: Mapping[int, Sequence[Block]]
    ) -> Sequence[ChargeRequest]:
        """All that was booked for what this run has counted."""
        return [
            request
            for lineage, number, first, last in state.booked
            for request in self.world.requests_between(first, last, number, lineage)
        ]

    def kept(self, state: State, site: int, permits: Sequence[Permit]) -> Sequence[Permit]:
        """All of them: appearances add up."""
        return permits

    def price(self, unit: str, spent: Spent, budget: Budget) -> float:
        """What a history comes to."""
        return accountant(budget.accountant).epsilon(spent, budget.delta)

    def shown(self, row: records.Row) -> records.Row | None:
        """Without a time; and without a promise, epsilon is infinite."""
        if isinstance(row, records.Round) and not self.world.units:
            row = msgspec.structs.replace(row, epsilon=math.inf)
        return msgspec.structs.replace(row, time=msgspec.UNSET)

    def answer(
        self, site: int, number: int, task: Request | None, permits: Sequence[Permit]
    ) -> Stretched:
        """Play the piece that was read, and count what came of it."""
        if not isinstance(task, Stretch) or self.read is None:
            raise TypeError("an engine is asked for a stretch of events")
        n = len(self.read.y) // self.world.batch
        paid = Allowance(permits, self.times)
        return Stretched(number, n, tuple(self._play(self.read, number - 1, n, paid)) if n else ())

    def _admit(self, state: State, task: Stretch) -> list[ChargeRequest]:
        """Which events may be used, their appearances counted; and what must be booked for them."""
        world, start = self.world, task.number - 1
        self.read = world.stream.read(start * world.batch, task.count * world.batch)
        self.used, self.times = world.admitted(self.read, state.counts)
        booked = state.booked[-1][-1] if state.booked else 0
        if self.times <= booked or not self.used.any():
            return []
        state.booked.append((world.lineage, task.number, booked + 1, self.times))
        return list(world.requests_between(booked + 1, self.times, task.number, world.lineage))

    def _play(
        self, read: Piece, start: int, n: int, paid: Allowance
    ) -> Iterator[tuple[int, Tally]]:
        """Play events, and count them up to each row of the log."""
        world, batch, used = self.world, self.world.batch, self.used
        x, y = read.x[: n * batch], read.y[: n * batch]
        active, silent = world.activity.drawn(x, start, n, PIECE)
        examples = slice(None) if used.all() else np.repeat(used, batch)
        x, y, active, silent = x[examples], y[examples], active[used], silent[used]
        if used.any():
            y = world.told(read, start, used, paid, self.state.told)
        played = self.engine.run(x, y, active, silent, paid) if used.any() else Played.nothing()
        spent = Course(start, used, self.state.whole.events + 1, active, silent, y)
        yield from counted(spent, played, world.sizes, world.every, batch)
