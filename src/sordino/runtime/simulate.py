r"""The simulator: a heap of events, a virtual clock, and one place where privacy is charged.

``Simulation.run`` carries out what the regime asks for:

* ``Book``  — charge the one ledger of all clients for a round;
* ``Send``  — charge the cohort's tasks in one durable transaction, *then* let each client
  work, and put its answer on the heap at now + latency;
* ``Wake``  — put the alarm on the heap;
* ``Closed`` — evaluate, write the row, save a checkpoint, begin the next round.

A client's work is done when its answer is due, and not at all if the regime would drop the
answer anyway: the charge stands, the arithmetic is saved. A simulated client that drops out
learns of it the same way: charged, never answered.

Killed anywhere, a run resumes from its last checkpoint. Rounds after it are played again
with the same addresses of randomness, so they release the same bytes; the ledger knows
their charges by key and books them once. Where the environment differs (another version of
torch, another device) the bytes may differ, and the charges are booked again: ``lineage``
is part of each key.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sordino.engine import records
from sordino.entropy import Entropy
from sordino.errors import BudgetExceeded
from sordino.learning.client import Client
from sordino.message import Train, Vector
from sordino.privacy import Budget, Charge, NonPrivate, Receipt, Vault
from sordino.regime.effect import Arrived, Book, Closed, Effect, Event, Finish, Joined, Log, Send, Wake, Woke
from sordino.regime.synchronous import State, Synchronous
from sordino.runtime.latency import Churn, Latency
from sordino.runtime.watch import Packed, Watcher, bound


@dataclass(frozen=True, slots=True)
class Due:
    """A task that a client works on; its answer is due at the time it stands at in the heap."""

    client: int
    task: Train
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """A simulation between two rounds.

    Attributes:
        state: of the regime.
        time: virtual seconds.
        away: rounds at which absent clients come back.
        late: answers still on their way, of rounds that are closed: (time, client, round).
        epsilon: highest so far, over all clients.
    """

    state: State
    time: float = 0.0
    away: Mapping[int, int] = field(default_factory=dict)
    late: tuple[tuple[float, int, int], ...] = ()
    epsilon: float = 0.0

    @property
    def number(self) -> int:
        """Rounds begun."""
        return self.state.round

    @property
    def steps(self) -> int:
        """Local steps of the client that took most."""
        return max(self.state.steps)

    @property
    def model(self) -> Vector:
        """w_avg."""
        return self.state.average

    @property
    def ended(self) -> str | None:
        """Why the run is over, or None."""
        return self.state.ended

    def pack(self) -> Packed:
        """See :class:`sordino.runtime.watch.Moment`."""
        state = self.state
        vectors: dict[str, Vector] = {"weights": state.weights, "velocity": state.velocity, "average": state.average}
        vectors |= {f"model.{i}": model for i, model in enumerate(state.models) if model is not None}
        rest = _Rest(
            time=self.time,
            epsilon=bound(self.epsilon),
            away=dict(self.away),
            late=list(self.late),
            round=state.round,
            steps=list(state.steps),
            present=sorted(state.present),
            memory=msgspec.Raw(msgspec.json.encode(state.memory)),
            models=len(state.models) or None,
            note=state.note,
            ended=state.ended,
            seen=state.seen,
        )
        return Packed(vectors, msgspec.json.encode(rest))


class _Rest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a moment is no vector."""

    time: float
    epsilon: float | str
    away: dict[int, int]
    late: list[tuple[float, int, int]]
    round: int
    steps: list[int]
    present: list[int]
    memory: msgspec.Raw
    models: int | None
    note: str | None
    ended: str | None
    seen: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """A synchronous federation on one machine.

    Attributes:
        regime: the rules.
        clients: in the order of their numbers.
        vault: where charges go; ``units`` names each client in it.
        budget: what a client may spend in all.
        units: ledger unit of each client.
        latency, churn: the virtual world.
        entropy: root of its randomness.
        evaluate: of a model, the numbers for a row; slow, so only where ``due`` says so.
        method: the method's name, for the ledger.
        lineage: run and environment, part of every charge's key.
    """

    regime: Synchronous
    clients: Sequence[Client]
    vault: Vault
    budget: Budget
    units: Sequence[str]
    latency: Latency
    churn: Churn
    entropy: Entropy
    evaluate: Callable[[Vector], Mapping[str, float]]
    due: Callable[[int], bool]
    method: str
    lineage: str

    @property
    def payable(self) -> list[int] | None:
        """Steps that each client can pay for, or rounds that all of them can, or no limit."""
        if self.regime.budget is not None:
            return list(self.regime.budget)
        return None if self.regime.payable is None else [self.regime.payable]

    @property
    def clip(self) -> float:
        """C, or S."""
        return self.regime.terms.clip

    def unpack(self, packed: Packed) -> Moment:
        """See :class:`sordino.runtime.watch.Play`."""
        rest, vectors = msgspec.json.decode(packed.rest, type=_Rest), packed.vectors
        remembered: Any = msgspec.json.decode(rest.memory, type=self.regime.method.memory)
        state = State(
            round=rest.round,
            weights=vectors["weights"],
            velocity=vectors["velocity"],
            average=vectors["average"],
            steps=tuple(rest.steps),
            present=frozenset(rest.present),
            memory=remembered,
            models=tuple(vectors.get(f"model.{i}") for i in range(rest.models or 0)),
            note=rest.note,
            ended=rest.ended,
            seen=rest.seen,
        )
        return Moment(state=state, time=rest.time, away=rest.away, late=tuple(rest.late), epsilon=float(rest.epsilon))

    def run(self, moment: Moment, watcher: Watcher) -> Moment:
        """Play from ``moment`` to the end of the run.

        Raises:
            BudgetExceeded: if somebody else spent this data's budget meanwhile. What was
                released until then is saved.
        """
        play = _Play(self, moment, watcher)
        play.open()
        while play.heap or play.closed:
            play.open() if play.closed else play.next()
        return play.moment()


class _Play:
    """The moving parts of one call of ``run``."""

    def __init__(self, world: Simulation, moment: Moment, watcher: Watcher) -> None:
        self.world, self.watcher = world, watcher
        self.state, self.time, self.epsilon = moment.state, moment.time, moment.epsilon
        self.away = dict(moment.away)
        self.heap: list[tuple[float, int, Due | Wake | tuple[int, int]]] = []
        self.count, self.closed = 0, False
        for time, client, round_number in moment.late:
            self.push(time, (client, round_number))

    def push(self, time: float, item: Due | Wake | tuple[int, int]) -> None:
        self.count += 1  # first in, first out among equal times
        heapq.heappush(self.heap, (time, self.count, item))

    def moment(self) -> Moment:
        late = tuple(self.pending())
        return Moment(state=self.state, time=self.time, away=dict(self.away), late=late, epsilon=self.epsilon)

    def write(self, row: records.Row) -> None:
        """A row for the log; where it is secret who takes part, none that names a client, and no time that shows its speed."""
        if self.world.regime.secret:
            if isinstance(row, records.OfClient):
                return
            row = msgspec.structs.replace(row, time=msgspec.UNSET)
        self.watcher.row(row)

    def pending(self) -> Iterator[tuple[float, int, int]]:
        for time, _, item in sorted(self.heap, key=lambda entry: entry[:2]):
            if isinstance(item, Due):
                yield time, item.client, item.task.round
            elif isinstance(item, tuple):
                yield time, *item

    def open(self) -> None:
        """Let those come back whose time it is, then open the next round."""
        self.closed = False
        for client, back in sorted(self.away.items()):
            if back <= self.state.round + 1:
                del self.away[client]
                self.tell(Joined(client))
        before = self.state
        self.state, effects = self.world.regime.begin(before)
        try:
            self.carry_out(effects)
        except BudgetExceeded as refusal:
            if not self.world.regime.method.adapts_noise:
                raise
            # The ledger is the filter: it held more than this run's own spending, which is all that the method knows.
            self.state, effects = self.world.regime.end(before, f"the privacy filter lets no further round pass: {refusal}")
            self.carry_out(effects)

    def tell(self, event: Event) -> None:
        self.state, effects = self.world.regime.step(self.state, event)
        self.carry_out(effects)

    def next(self) -> None:
        self.time, _, item = heapq.heappop(self.heap)
        match item:
            case Wake(_, tag):
                self.tell(Woke(tag))
            case Due(client, task, receipts) if self.world.regime.expects(self.state, client, task.round):
                self.tell(Arrived(self.world.clients[client].answer(task, receipts)))
            case Due(client, task, _):
                self.late(client, task.round)
            case (client, round_number):
                self.late(client, round_number)

    def late(self, client: int, round_number: int) -> None:
        if self.state.ended is None:
            self.write(records.Late(round=round_number, client=client, released=True, time=self.time))
            self.tell(Joined(client))  # heard from again

    def carry_out(self, effects: Sequence[Effect]) -> None:
        sends = [effect for effect in effects if isinstance(effect, Send)]
        booked = [effect for effect in effects if isinstance(effect, Book)]
        self.dispatch(sends, self.book(booked[0]) if booked else None)
        closed, log = None, None
        for effect in effects:
            match effect:
                case Wake(after, _):
                    self.push(self.time + after, effect)
                case Log(records.Round() as row):
                    log = row
                case Log(row):
                    self.write(msgspec.structs.replace(row, time=self.time))
                case Closed(number):
                    closed = number
                case Finish() | Send() | Book():
                    pass
        if any(isinstance(effect, Finish) for effect in effects):
            self.heap.clear()
            self.watcher.save(self.moment())
        if closed is not None and log is not None:
            wanted = self.world.due(closed) or self.world.regime.over(self.state)
            seen = self.world.evaluate(self.state.average) if wanted else {}
            self.epsilon = max(self.epsilon, seen.get("test_epsilon", 0.0))  # of rows that only test, where these are private
            self.write(msgspec.structs.replace(log, epsilon=self.epsilon, time=self.time, **seen))
            self.watcher.save(self.moment())
            self.closed = True  # the loop opens the next: many empty rounds in a row must not pile up calls

    def book(self, effect: Book) -> dict[str, tuple[Receipt, ...]]:
        """Charge all clients at once: one unit that stands for all, or each its own."""
        world, number = self.world, effect.round
        units, key = list(dict.fromkeys(world.units)), f"{world.lineage}/round {number}"
        receipts = self.charge(
            [
                Charge(
                    unit=unit,
                    event=effect.fact,
                    count=1,
                    why="a round",
                    method=world.method,
                    round=number,
                    key=key if len(units) == 1 else f"{key}/{unit}",
                )
                for unit in units
            ]
        )
        for unit, receipt in zip(units, receipts, strict=True):
            self.spend(unit, (receipt,))
        return {receipt.unit: (receipt,) for receipt in receipts}

    def dispatch(self, sends: Sequence[Send], booked: dict[str, tuple[Receipt, ...]] | None) -> None:
        """Charge each client that has not been charged with the round, durably, then put each on its way."""
        paid = self.charge_each(sends) if booked is None else {send.client: booked[self.world.units[send.client]] for send in sends}
        world = self.world
        for send in sends:
            away = world.churn.away(world.entropy, send.client, send.task.round)
            if away:
                self.away[send.client] = send.task.round + away
                self.write(records.Lost(round=send.task.round, client=send.client, released=False, time=self.time))
                continue
            wait = world.latency.draw(world.entropy, send.client, send.task.round, send.task.steps)
            self.push(self.time + wait, Due(send.client, send.task, paid[send.client]))

    def charge_each(self, sends: Sequence[Send]) -> dict[int, tuple[Receipt, ...]]:
        """Charge every client with the price of its own task, in one transaction."""
        world = self.world
        charges, owners = [], []
        for send in sends:
            for part, (event, count) in enumerate(world.clients[send.client].price(send.task)):
                owners.append(send.client)
                charges.append(
                    Charge(
                        unit=world.units[send.client],
                        event=event,
                        count=count,
                        why=event.reason if isinstance(event, NonPrivate) else "local steps",
                        method=world.method,
                        round=send.task.round,
                        key=f"{world.lineage}/round {send.task.round}/client {send.client}/{part}",
                    )
                )
        paid: dict[int, list[Receipt]] = {}
        for owner, receipt in zip(owners, self.charge(charges), strict=True):
            paid.setdefault(owner, []).append(receipt)
        for owner, receipts in paid.items():
            self.spend(world.units[owner], receipts)
        return {owner: tuple(receipts) for owner, receipts in paid.items()}

    def charge(self, charges: Sequence[Charge]) -> tuple[Receipt, ...]:
        """Receipts, or a row in the log and the refusal."""
        if not charges:
            return ()
        try:
            return self.world.vault.charge(charges, self.world.budget)
        except BudgetExceeded as refusal:
            self.write(records.Refused(round=self.state.round, time=self.time, why=str(refusal)))
            raise

    def spend(self, unit: str, receipts: Sequence[Receipt]) -> None:
        """Remember the highest epsilon, as of this round: a run that is being replayed has booked later rounds already."""
        until = max(receipt.seq for receipt in receipts)
        self.epsilon = max(self.epsilon, self.world.vault.check(unit, self.world.budget, until))
