r"""The simulator of edges that come and go: a heap of arrivals, a virtual clock, and budgets reserved in blocks.

A task is given, and its answer is due when its edge's delay has passed; the gradient is computed
then, at the model that was sent, unless it has become too stale to be applied. Edges that hold the
same model share it. Everything that is drawn (batch, noise, delay, absence) is numbered by edge and
task, so the same study gives the same run whatever the host does, and a run that was killed gives
the same end.

Charging every gradient by itself would cost more than the gradient. An edge *reserves* a block of
tasks in one durable entry before the first of them, an eighth of its share; whoever is about
to run out reserves in the same transaction. What is left of the last block when the run ends is booked
and not used: over-counted, never under-counted.

A run that goes on in another environment reserves again what it had reserved: ``lineage`` is part of
every key.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sordino.engine import records
from sordino.errors import BudgetExceeded
from sordino.learning.edge import Edge
from sordino.message import Compute, Vector
from sordino.privacy import Budget, Charge, NonPrivate, Receipt, Vault
from sordino.regime.asynchronous import Asynchronous, Effects, Since, State
from sordino.regime.effect import Closed, Finish, Joined, Lapsed, Left, Log, Received, Task
from sordino.runtime.latency import Delays
from sordino.runtime.watch import Packed, Watcher, bound

SHARES = 8  # blocks that an edge's expected share of the updates is reserved in
LEAST = 4  # tasks in a block: an entry of its own for each would cost as much as the gradient

Flight = tuple[float, int, int, int]
"""When, in which order among equals, which edge, and the task that is answered; 0 for an edge that comes back."""

Block = tuple[int, int]
"""Number of the first task, and how many."""


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """A simulation between two arrivals. It shares the state, which goes on changing: pack it at once.

    Attributes:
        state: of the regime.
        time: virtual seconds.
        flights: arrivals to come.
        blocks: of each edge, first task and length of the blocks that it has reserved and not worked off.
        count: flights so far.
        epsilon: highest so far, over all edges.
    """

    state: State
    time: float = 0.0
    flights: tuple[Flight, ...] = ()
    blocks: tuple[tuple[Block, ...], ...] = ()
    count: int = 0
    epsilon: float = 0.0

    @property
    def number(self) -> int:
        """Updates done."""
        return self.state.version

    @property
    def steps(self) -> int:
        """Tasks of the edge that was given most."""
        return max(self.state.given)

    @property
    def model(self) -> Vector:
        """x_avg."""
        return self.state.average

    @property
    def ended(self) -> str | None:
        """Why the run is over, or None."""
        return self.state.ended

    def pack(self) -> Packed:
        """See :class:`sordino.runtime.watch.Moment`. A model that several edges hold is kept once."""
        state = self.state
        vectors: dict[str, Vector] = {"weights": state.weights, "average": state.average}
        vectors |= {f"version.{task.version}": task.weights for task in state.tasks.values()}
        if state.buffer[0] is not None:
            vectors["buffer"] = state.buffer[0]
        rest = _Rest(
            time=self.time,
            epsilon=bound(self.epsilon),
            flights=list(self.flights),
            blocks=list(self.blocks),
            count=self.count,
            version=state.version,
            given=state.given,
            tasks=[(edge, task.task, task.version, task.clip) for edge, task in state.tasks.items()],
            gone=sorted(state.gone),
            buffered=state.buffer[1],
            staleness=sorted(state.since.staleness.items()),
            stale=state.since.stale,
            dropped=state.since.dropped,
            squares=state.since.squares,
            ended=state.ended,
        )
        return Packed(vectors, msgspec.json.encode(rest))


class _Rest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a moment is no vector."""

    time: float
    epsilon: float | str
    flights: list[Flight]
    blocks: list[tuple[Block, ...]]
    count: int
    version: int
    given: list[int]
    tasks: list[tuple[int, int, int, float | None]]
    gone: list[int]
    buffered: int
    staleness: list[tuple[int, int]]
    stale: int
    dropped: int
    squares: float
    ended: str | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """An asynchronous federation on one machine.

    Attributes:
        regime: the rules.
        edges: in the order of their numbers.
        vault: where charges go; ``units`` names each edge in it.
        budget: what any edge may spend in all; ``budgets`` what each may.
        units: ledger unit of each edge.
        delays: of the virtual world.
        evaluate: of a model, the numbers for a row.
        method: the method's name, for the ledger.
        lineage: run and environment, part of every charge's key.
    """

    regime: Asynchronous
    edges: Sequence[Edge]
    vault: Vault
    budget: Budget
    budgets: Sequence[Budget]
    units: Sequence[str]
    delays: Delays
    evaluate: Callable[[Vector], Mapping[str, float]]
    method: str
    lineage: str

    @property
    def payable(self) -> list[int] | None:
        """Updates that each edge can pay for, or no limit."""
        return None if self.regime.budget is None else list(self.regime.budget)

    @property
    def clip(self) -> float:
        """G of the first stage."""
        return self.regime.schedule[0].clip

    @property
    def block(self) -> int:
        """Tasks that are reserved at once."""
        share = math.ceil(self.regime.terms.updates * self.regime.buffer / self.regime.terms.edges)
        return max(math.ceil(share / SHARES), min(LEAST, share))

    def first(self, weights: Vector) -> Moment:
        """Before the first task."""
        return Moment(self.regime.start(weights), blocks=((),) * len(self.edges))

    def unpack(self, packed: Packed) -> Moment:
        """See :class:`sordino.runtime.watch.Play`."""
        rest, vectors = msgspec.json.decode(packed.rest, type=_Rest), packed.vectors
        tasks = {
            edge: Compute(task=task, version=version, weights=vectors[f"version.{version}"], clip=clip)
            for edge, task, version, clip in rest.tasks
        }
        state = State(
            weights=vectors["weights"],
            average=vectors["average"],
            given=rest.given,
            stage=self.regime.stage(rest.version),
            version=rest.version,
            tasks=tasks,
            gone=set(rest.gone),
            buffer=(vectors.get("buffer"), rest.buffered),
            since=Since(Counter(dict(rest.staleness)), rest.stale, rest.dropped, rest.squares),
            ended=rest.ended,
        )
        return Moment(state, rest.time, tuple(rest.flights), tuple(rest.blocks), rest.count, float(rest.epsilon))

    def run(self, moment: Moment, watcher: Watcher) -> Moment:
        """Play from ``moment`` to the end of the run.

        Raises:
            BudgetExceeded: if somebody else spent this data's budget meanwhile. What was
                released until then is saved.
        """
        play = _Play(self, moment, watcher)
        play.open()
        while play.flights and play.state.ended is None:
            play.next()
        return play.moment()


class _Play:
    """The moving parts of one call of ``run``."""

    def __init__(self, world: Arrivals, moment: Moment, watcher: Watcher) -> None:
        self.world, self.watcher = world, watcher
        self.state, self.time, self.count, self.epsilon = moment.state, moment.time, moment.count, moment.epsilon
        self.flights = sorted(moment.flights)  # a sorted list is a heap
        self.blocks = list(moment.blocks)
        self.receipts: list[tuple[Receipt, ...]] = [()] * len(self.blocks)
        self.unpriced: dict[int, int] = {}  # entry of the last charge of each edge that no row has priced yet
        self.prices: dict[Any, float] = {}

    def moment(self) -> Moment:
        return Moment(self.state, self.time, tuple(sorted(self.flights)), tuple(self.blocks), self.count, self.epsilon)

    def open(self) -> None:
        """Begin, or go on: what was reserved before is looked up again."""
        if self.count == 0:
            self.carry_out(self.world.regime.begin(self.state))
            return
        again = [(edge, *block) for edge, blocks in enumerate(self.blocks) for block in blocks]
        self.blocks = [()] * len(self.blocks)
        self.book(again)

    def next(self) -> None:
        self.time, _, edge, task = heapq.heappop(self.flights)
        regime, state = self.world.regime, self.state
        if task == 0:
            self.carry_out(regime.step(state, Joined(edge)))
        elif not regime.expects(state, edge, task):
            return
        elif regime.lapses(state, edge):
            self.carry_out(regime.step(state, Lapsed(edge, task)))
        else:
            receipts = self.receipts[edge]
            receipt = next((found for found in receipts if task < found.round + found.count), None) if len(receipts) != 1 else receipts[0]
            gradient = self.world.edges[edge].answer(state.tasks[edge], receipt)
            self.carry_out(regime.step(state, Received(gradient)))

    def carry_out(self, effects: Effects) -> None:
        if len(effects) == 1 and type(effects[0]) is Task:  # as after nearly every arrival
            self.reserve(effects)
            self.dispatch(effects[0].client, effects[0].task)
            return
        tasks = [effect for effect in effects if type(effect) is Task]
        if tasks:
            self.reserve(tasks)
        closed, row = False, None
        for effect in effects:
            match effect:
                case Task(edge, task):
                    self.dispatch(edge, task)
                case Log(records.Round() as found):
                    row = found
                case Closed() if row is not None:
                    self.price()
                    seen = self.world.evaluate(self.state.average)
                    self.epsilon = max(self.epsilon, seen.get("test_epsilon", 0.0))  # of rows that only test, where these are private
                    self.watcher.row(msgspec.structs.replace(row, epsilon=self.epsilon, time=self.time, **seen))
                    closed = True
                case Log(found):
                    self.watcher.row(msgspec.structs.replace(found, time=self.time))
        if any(type(effect) is Finish for effect in effects):
            self.flights.clear()
            closed = True
        if closed:
            self.watcher.save(self.moment())

    def dispatch(self, edge: int, task: Compute) -> None:
        """Put the answer on its way, or let the edge vanish with the task."""
        self.count += 1
        away = self.world.delays.away(edge, task.task)
        if away:
            heapq.heappush(self.flights, (self.time + away, self.count, edge, 0))
            self.carry_out(self.world.regime.step(self.state, Left(edge)))
            return
        heapq.heappush(self.flights, (self.time + self.world.delays.seconds(edge, task.task), self.count, edge, task.task))

    def reserve(self, tasks: Sequence[Any]) -> None:
        """Book a block for every edge whose task lies outside its own, and for those who are about to run out."""
        short = {effect.client for effect in tasks if effect.task.task > self.last(effect.client)}
        if not short:
            return
        world, given = self.world, self.state.given
        near = world.block // 4
        soon = (edge for edge in self.state.tasks if self.last(edge) - given[edge] <= near)
        payable = world.regime.budget
        short |= {edge for edge in soon if payable is None or self.last(edge) < payable[edge]}
        fresh = []
        for edge in sorted(short):
            booked = self.last(edge)
            left = world.block if world.regime.budget is None else min(world.block, world.regime.budget[edge] - booked)
            fresh.append((edge, booked + 1, left))
        self.book(fresh)

    def last(self, edge: int) -> int:
        """The last task of an edge that is booked."""
        blocks = self.blocks[edge]
        return blocks[-1][0] + blocks[-1][1] - 1 if blocks else 0

    def book(self, fresh: Sequence[tuple[int, int, int]]) -> None:
        """Charge for (edge, first task, how many), durably; one transaction for all who have the same budget.

        Raises:
            BudgetExceeded: after a row in the log.
        """
        world = self.world
        groups: dict[Budget, list[tuple[int, Charge]]] = {}
        for edge, start, length in fresh:
            charge = Charge(
                unit=world.units[edge],
                event=world.edges[edge].price,
                count=length,
                why=price.reason if isinstance(price := world.edges[edge].price, NonPrivate) else "gradients, reserved",
                method=world.method,
                round=start,
                key=f"{world.lineage}/edge {edge}/task {start}",
            )
            groups.setdefault(world.budgets[edge], []).append((edge, charge))
        for budget, charges in groups.items():
            try:
                receipts = world.vault.charge([charge for _, charge in charges], budget)
            except BudgetExceeded as refusal:
                self.watcher.row(records.Refused(round=self.state.version, time=self.time, why=str(refusal)))
                raise
            for (edge, _), receipt in zip(charges, receipts, strict=True):
                held = self.state.tasks.get(edge)
                kept = [r for r in self.receipts[edge] if held is None or held.task < r.round + r.count]
                self.receipts[edge] = (*kept, receipt)
                self.blocks[edge] = tuple((r.round, r.count) for r in self.receipts[edge])
                self.unpriced[edge] = max(receipt.seq, self.unpriced.get(edge, 0))

    def price(self) -> None:
        """The highest epsilon, with what was booked since the last row."""
        for edge, seq in self.unpriced.items():
            unit, budget = self.world.units[edge], self.world.budgets[edge]
            for spent in self.world.vault.histories(unit, seq):
                if (spent, budget) not in self.prices:
                    self.prices[spent, budget] = budget.check(unit, spent)
                self.epsilon = max(self.epsilon, self.prices[spent, budget])
        self.unpriced.clear()
