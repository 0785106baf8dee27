r"""Edges that come and go, on one machine, and budgets reserved in blocks.

A task is given, and its answer is due when its edge's delay has passed; the gradient is computed
then, at the model that was sent, unless it has become too stale to be applied. Edges that hold the
same model share it. Everything that is drawn (batch, noise, delay, absence) is numbered by edge and
task, so the same study gives the same run whatever the host does, and a run that was killed gives
the same end.

Charging every gradient by itself would cost more than the gradient. An edge *reserves* a block of
tasks in one durable entry before the first of them, an eighth of its share; whoever is about
to run out reserves in the same transaction. What is left of the last block when the run ends is
booked and not used: over-counted, never under-counted.

A run that goes on in another environment reserves again what it had reserved:
``charge_key_prefix`` is part of every key.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sordino.base.message import Compute, Gradient, Vector
from sordino.core import simulation as moments
from sordino.core.effect import Effect, Event, Request, Said, Send
from sordino.core.kernel import Kernel
from sordino.core.latency import Delays
from sordino.core.simulation import Block, EncodedSnapshot, RunListener
from sordino.core.world import Absence, ChargeRequest, ServerSide, SiteSide
from sordino.privacy import Budget, Charge, LedgerSession, NonPrivate, Permit
from sordino.regimes.asynchronous.edge import Edge
from sordino.regimes.asynchronous.protocol import Asynchronous, Since, State
from sordino.training.plausible import Length, bearable

SHARES = 8  # blocks that an edge's expected share of the updates is reserved in
LEAST = 4  # tasks in a block: an entry of its own for each would cost as much as the gradient


@dataclass(frozen=True, slots=True, eq=False)
class Moment(moments.KernelSnapshot[State]):
    """A simulation between two arrivals.

    It shares the state, which goes on changing: pack it at once.
    """

    @property
    def steps(self) -> int:
        """Tasks of the edge that was given most."""
        return max(self.state.given)

    @property
    def model(self) -> Vector:
        """x_avg."""
        return self.state.average

    def packed(self) -> EncodedSnapshot:
        """Encode the state; a model of several edges is kept once."""
        state = self.state
        vectors: dict[str, Vector] = {"weights": state.weights, "average": state.average}
        vectors |= {f"version.{task.version}": task.weights for task in state.tasks.values()}
        if state.buffer[0] is not None:
            vectors["buffer"] = state.buffer[0]
        rest = _Rest(
            version=state.version,
            given=state.given,
            tasks=[
                (edge, task.task, task.version, task.clip) for edge, task in state.tasks.items()
            ],
            gone=sorted(state.gone),
            buffered=state.buffer[1],
            staleness=sorted(state.since.staleness.items()),
            stale=state.since.stale,
            dropped=state.since.dropped,
            squares=state.since.squares,
            ended=state.ended,
        )
        return EncodedSnapshot(vectors, msgspec.json.encode(rest))


class _Rest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a state is no vector."""

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
class Arrivals(ServerSide[State], SiteSide[State]):
    """An asynchronous federation on one machine.

    Attributes:
        regime: the rules.
        edges: in the order of their numbers.
        ledgers: where charges go; ``units`` names each edge in it.
        budget: what any edge may spend in all; ``budgets`` what each may.
        units: ledger unit of each edge.
        delays: of the virtual world.
        evaluate: of a model, the numbers for a row.
        method: the method's name, for the ledger.
        charge_key_prefix: run and environment, part of every charge's key.
    """

    continuous = True

    regime: Asynchronous
    edges: Sequence[Edge]
    ledgers: LedgerSession
    budget: Budget
    budgets: Sequence[Budget]
    units: Sequence[str]
    delays: Delays
    evaluate: Callable[[Vector], Mapping[str, float]]
    method: str
    charge_key_prefix: str

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
        return Moment(self.regime.start(weights))

    def unpack(self, packed: EncodedSnapshot) -> Moment:
        """See :class:`sordino.core.simulation.Simulation`."""
        own, told = moments.unpacked(packed)
        rest, vectors = msgspec.json.decode(own.rest, type=_Rest), own.vectors
        tasks = {
            edge: Compute(
                task=task, version=version, weights=vectors[f"version.{version}"], clip=clip
            )
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
        return Moment(state, **told)

    def run(self, moment: Moment, watcher: RunListener[Moment]) -> Moment:
        """See :meth:`sordino.core.kernel.Kernel.run`."""
        return Kernel(self, moment, watcher).run()

    # What the kernel asks: see :class:`sordino.core.world.World`.

    def step(self, state: State, event: Event) -> tuple[State, Sequence[Effect]]:
        """The regime's."""
        return self.regime.step(state, event)

    def expects(self, state: State, site: int, number: int) -> bool:
        """Whether the edge's answer to this task would be applied."""
        return self.regime.expects(state, site, number) and not self.regime.lapses(state, site)

    def asked(self, state: State) -> Mapping[int, Request]:
        """The task that each edge works on."""
        return state.tasks

    def answer(
        self, site: int, number: int, task: Request | None, permits: Sequence[Permit]
    ) -> Gradient:
        """Let the edge work, with the permit of the block that holds the task."""
        if not isinstance(task, Compute):
            raise TypeError(f"an edge is asked for a gradient, not {type(task).__name__}")
        permit = (
            permits[0]
            if len(permits) == 1
            else next((each for each in permits if each.holds(task.task)), None)
        )
        return self.edges[site].answer(task, permit)

    def trip(self, site: int, task: Request) -> float | Absence:
        """Seconds of this edge for this task, or for how long it vanishes."""
        away = self.delays.away(site, task.number)
        return Absence(away) if away else self.delays.seconds(site, task.number)

    def requests(
        self, state: State, effects: Sequence[Effect], paid: Mapping[int, Sequence[Permit]]
    ) -> Sequence[ChargeRequest]:
        """A block for every edge whose task lies outside its own, or that is about to run out."""
        short = {
            each.site
            for each in effects
            if type(each) is Send and each.message.number > _last(paid.get(each.site, ()))
        }
        if not short:
            return ()
        near, payable = self.block // 4, self.regime.budget
        booked = {edge: _last(paid.get(edge, ())) for edge in (*short, *state.tasks)}
        soon = (edge for edge in state.tasks if booked[edge] - state.given[edge] <= near)
        short |= {edge for edge in soon if payable is None or booked[edge] < payable[edge]}
        return [
            self._reserve(
                edge,
                booked[edge] + 1,
                self.block if payable is None else min(self.block, payable[edge] - booked[edge]),
            )
            for edge in sorted(short)
        ]

    def site_requests(
        self, site: int, task: Request, permits: Sequence[Permit]
    ) -> Sequence[ChargeRequest]:
        """See :class:`World`: the block that holds the task, with the same ends whatever the edge
        remembers, so that a restart books none twice.
        """
        number = task.number
        if any(each.holds(number) for each in permits):
            return ()
        first = (number - 1) // self.block * self.block + 1
        payable = self.regime.budget
        length = self.block if payable is None else min(self.block, payable[site] - first + 1)
        return (self._reserve(site, first, length),)

    def latest(self, state: State, site: int) -> int:
        """See :class:`World`."""
        return state.given[site]

    def booked_until(self, state: State, site: int, number: int) -> bool:
        """See :class:`World`."""
        unit = self.ledgers.names[self.units[site]]
        entries = self.ledgers.ledger.entries(unit)
        return any(each.round <= number < each.round + each.count for each in entries)

    def reach(self, site: int, task: Request | None, said: Said) -> Length | None:
        """See :class:`World`; as the edge says."""
        own = getattr(self.edges[site], "reach", None)
        return None if own is None or not isinstance(task, Compute) else own(task, said)

    @property
    def most(self) -> float:
        """See :class:`World`."""
        return bearable(self.regime.growth)

    def objection(self, site: int, task: Request) -> str | None:
        """See :class:`World`."""
        if not isinstance(task, Compute):
            return f"it asks for {type(task).__name__}, and edges are asked for gradients"
        most = None if self.regime.budget is None else self.regime.budget[site]
        if most is not None and task.task > most:
            return f"it is task {task.task}, and this edge's budget pays for {most}"
        return self.regime.objection(task)

    def reissued(
        self, state: State, blocks: Mapping[int, Sequence[Block]]
    ) -> Sequence[ChargeRequest]:
        """The blocks that edges had reserved and not worked off."""
        return [
            self._reserve(edge, *block) for edge, own in sorted(blocks.items()) for block in own
        ]

    def kept(self, state: State, site: int, permits: Sequence[Permit]) -> Sequence[Permit]:
        """Those of the block that holds the edge's task, and of later ones."""
        held = state.tasks.get(site)
        return (
            permits
            if held is None
            else [each for each in permits if held.task < each.round + each.count]
        )

    def measured(self, state: State, number: int) -> Mapping[str, Any]:
        """What is told of the model."""
        return self.evaluate(state.average)

    def _reserve(self, edge: int, first: int, length: int) -> ChargeRequest:
        """Tasks ``first`` to ``first + length - 1`` of an edge."""
        price = self.edges[edge].price
        charge = Charge(
            unit=self.units[edge],
            event=price,
            count=length,
            why=price.reason if isinstance(price, NonPrivate) else "gradients, reserved",
            method=self.method,
            round=first,
            key=f"{self.charge_key_prefix}/edge {edge}/task {first}",
        )
        return ChargeRequest((edge,), charge, self.budgets[edge])


def _last(permits: Sequence[Permit]) -> int:
    """The last task that is booked."""
    return permits[-1].round + permits[-1].count - 1 if permits else 0
