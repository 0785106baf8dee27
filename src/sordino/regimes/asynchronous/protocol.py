r"""Arrivals: whoever sends a gradient has it applied, and gets the new model back.

One arrival from edge k, with t updates done before it:

    tau     = t - (version that the gradient was taken at)
    g       = gradient, times (1 + tau)^-a with staleness weighting
    x      <- x - gamma_{t+1} g          (with a buffer of M: minus gamma times the mean of M)
    x_avg  <- decay x_avg + (1 - decay) x
    edge k  gets x and the clipping bound of its stage

First in, first out; nobody waits for anybody. Which updates an edge can still pay for is decided
before it gets a task: one that has spent its budget *leaves*, and learning goes on without it.

Rules. An answer counts if it quotes the task that its sender holds; anything else (a second copy,
an answer to a task from before the edge was lost or the server restarted) is *dropped* and changes
nothing. An answer staler than the bound is *stale*: its noise was released and is booked, it is not
applied, and its sender gets the present model. Both show in the log.

The run ends (*halt*) after T updates, or when every edge has left.

:class:`State` is changed in place: a thousand edges would otherwise be copied at every update.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from sordino.base.errors import BudgetExceeded
from sordino.base.frozen import Frozen
from sordino.base.message import Compute, Gradient, Vector
from sordino.clients.world import Rules
from sordino.core import effect, records
from sordino.core.effect import Closed, Effects, Event, Finish, Lapsed, Log, Request, Send
from sordino.core.world import EncodedSnapshot
from sordino.regimes.asynchronous.method import AsynchronousMethod, EdgeTerms, Stage
from sordino.regimes.asynchronous.records import AsynchronousRound

ROOM = 1024.0
"""By how much a rate within a stage may exceed those at its ends."""


@dataclass(slots=True, eq=False)
class Since:
    """The counts since the last row of the log; all of it released.

    Attributes:
        staleness: how many applied gradients had which tau.
        stale: gradients that were too stale to apply.
        dropped: answers that nobody had asked for.
        squares: sum of ||g~||^2 of the applied gradients, less what noise alone would give.
    """

    staleness: Counter[int] = field(default_factory=Counter)
    stale: int = 0
    dropped: int = 0
    squares: float = 0.0


@dataclass(slots=True, eq=False)
class State:
    """Where an asynchronous run stands.

    Attributes:
        version: t, updates done.
        weights: x (d,), never written to: edges share it until they send.
        average: x_avg; the weights themselves where decay is 0.
        stage: of the next update.
        tasks: the task that each edge works on.
        given: tasks that each edge has been given so far.
        gone: edges that have left for good, their budget spent.
        buffer: sum of gradients that wait for an update, and how many; with a buffer of 1 always
            empty.
        since: for the next row of the log.
        ended: why the run is over, or None.
    """

    weights: Vector
    average: Vector
    given: list[int]
    stage: Stage
    version: int = 0
    tasks: dict[int, Compute] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    buffer: tuple[Vector | None, int] = (None, 0)
    since: Since = field(default_factory=Since)
    ended: str | None = None

    @property
    def number(self) -> int:
        """Updates done."""
        return self.version

    @property
    def taken(self) -> int:
        """Tasks of the edge that was given most."""
        return max(self.given)

    @property
    def model(self) -> Vector:
        """x_avg."""
        return self.average

    def pack(self) -> EncodedSnapshot:
        """Return the state as it is kept. A model of several edges is kept once."""
        vectors: dict[str, Vector] = {"weights": self.weights, "average": self.average}
        vectors |= {f"version.{task.version}": task.weights for task in self.tasks.values()}
        if self.buffer[0] is not None:
            vectors["buffer"] = self.buffer[0]
        rest = _Rest(
            version=self.version,
            given=self.given,
            tasks=[(edge, task.task, task.version, task.clip) for edge, task in self.tasks.items()],
            gone=sorted(self.gone),
            buffered=self.buffer[1],
            staleness=sorted(self.since.staleness.items()),
            stale=self.since.stale,
            dropped=self.since.dropped,
            squares=self.since.squares,
            ended=self.ended,
        )
        return EncodedSnapshot(vectors, msgspec.json.encode(rest))


class _Rest(Frozen, forbid_unknown_fields=True):
    """The part of a kept state that is no vector."""

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
class Asynchronous(Rules[State]):
    """The rules of an asynchronous run.

    Attributes:
        method: the schedule.
        terms: public facts; ``terms.updates`` is T, ``terms.staleness`` tau_max.
        schedule: the method's stages.
        budget: updates that each edge can pay for in this run (None: no limit).
        exponent: a of the staleness weight; 0 weighs all alike.
        buffer: M.
        every: updates between two rows of the log.
        noise: expected ||noise||^2 of each edge's gradient at a clip of 1, (K,); what is taken off
            norms.
    """

    method: AsynchronousMethod
    terms: EdgeTerms
    schedule: tuple[Stage, ...]
    budget: tuple[int, ...] | None
    exponent: float = 0.0
    buffer: int = 1
    every: int = 100
    noise: tuple[float, ...] = ()

    @property
    def growth(self) -> float:
        """Length to which gradients of length 1 can bring the model in a run, without its start;
        rates that rise within a stage are looked for at its ends, with room for those between.
        """
        rates = [
            self.method.rate(self.terms, stage, number)
            for stage in self.schedule
            for number in (stage.start + 1, stage.end)
        ]
        return ROOM * self.terms.updates * max(rates)

    def start(self, weights: Vector) -> State:
        """Nobody has been asked yet."""
        return State(
            weights=weights, average=weights, given=[0] * self.terms.edges, stage=self.stage(0)
        )

    def stage(self, version: int) -> Stage:
        """The stage of the update that follows ``version`` updates."""
        return next((stage for stage in self.schedule if version < stage.end), self.schedule[-1])

    def step(self, state: State, event: Event) -> tuple[State, Effects]:
        """Return what follows from one event; change the state in place.

        A finished run stays finished.
        """
        return state, (self._follows(state, event) if state.ended is None else ())

    def _follows(self, state: State, event: Event) -> Effects:
        match event:
            case effect.Arrived(Gradient() as gradient):
                return self._received(state, gradient)
            case Lapsed(edge, task) if self.holds(state, edge, task) and self.lapses(state, edge):
                return self._stale(state, edge)
            case effect.Left(edge) if state.tasks.pop(edge, None) is not None:
                return (Log(records.Lost(round=state.version, client=edge, released=False)),)
            case effect.Joined(edge) if (
                0 <= edge < self.terms.edges and edge not in state.tasks and edge not in state.gone
            ):
                joined = Log(records.Joined(round=state.version, client=edge))
                return (joined, *self._ask(state, edge))
            case effect.Overtaken(number, edge) if number > state.given[edge]:
                state.tasks.pop(edge, None)
                state.given[edge] = number
                return self._ask(state, edge)
            case effect.Begin() if not any(state.given):
                return [each for edge in range(self.terms.edges) for each in self._ask(state, edge)]
            case effect.Stop(why):
                return self._end(state, why)
        return ()

    def unpacked(self, packed: EncodedSnapshot) -> State:
        """Return the state that was packed.

        Raises:
            ValueError: if it cannot be one.
        """
        rest, vectors = msgspec.json.decode(packed.rest, type=_Rest), packed.vectors
        if any(each.shape != vectors["weights"].shape for each in vectors.values()):
            raise ValueError("its vectors have different lengths")
        tasks = {
            edge: Compute(
                task=task, version=version, weights=vectors[f"version.{version}"], clip=clip
            )
            for edge, task, version, clip in rest.tasks
        }
        return State(
            weights=vectors["weights"],
            average=vectors["average"],
            given=rest.given,
            stage=self.stage(rest.version),
            version=rest.version,
            tasks=tasks,
            gone=set(rest.gone),
            buffer=(vectors.get("buffer"), rest.buffered),
            since=Since(Counter(dict(rest.staleness)), rest.stale, rest.dropped, rest.squares),
            ended=rest.ended,
        )

    def over(self, state: State) -> bool:
        """Return whether no task follows."""
        return state.ended is not None

    def asked(self, state: State) -> Mapping[int, Request]:
        """Return the task that each edge works on."""
        return state.tasks

    def latest(self, state: State, client: int) -> int:
        """Return the highest number of a task that this edge was given."""
        return state.given[client]

    def objection(self, client: int, task: Request) -> str | None:
        """Return what a task asks for beyond the study, as far as an edge can tell; or None.

        Raises:
            BudgetExceeded: for a task that its own budget does not pay for, and nothing else.
        """
        if not isinstance(task, Compute):
            return f"it asks for {type(task).__name__}, and edges are asked for gradients"
        # the ledger holds no number above 2^40
        if not (1 <= task.task < 2**39 and 0 <= task.version < self.terms.updates):
            return f"it is task {task.task} after update {task.version} of {self.terms.updates}"
        clip = self.stage(task.version).clip
        if task.clip != _finite(clip):
            return f"its clip is {task.clip}, and that of its stage is {clip}"
        # last: who also asks for something else must not learn for nothing how much is left
        if self.budget is not None and task.task > self.budget[client]:
            raise BudgetExceeded(
                f"task {task.task}: this edge's own budget pays for {self.budget[client]}"
            )
        return None

    def expects(self, state: State, client: int, task: int) -> bool:
        """Return whether an answer of this edge to this task would be applied."""
        return self.holds(state, client, task) and not self.lapses(state, client)

    def holds(self, state: State, client: int, task: int) -> bool:
        """Return whether an answer of this edge to this task would count, stale or not."""
        held = state.tasks.get(client)
        return state.ended is None and held is not None and held.task == task

    def lapses(self, state: State, client: int) -> bool:
        """Return whether this edge's answer to the task that it holds would be too stale by now."""
        return state.version - state.tasks[client].version > self.terms.staleness

    def _received(self, state: State, answer: Gradient) -> Effects:
        held = state.tasks.get(answer.client)
        if (
            held is None
            or held.task != answer.task
            or held.version != answer.version
            or answer.gradient.shape != state.weights.shape
        ):
            state.since.dropped += 1
            row = records.Dropped(
                round=state.version,
                client=answer.client,
                task=answer.task,
                why="repeated, out of date or not asked for",
            )
            return (Log(row),)
        if self.lapses(state, answer.client):
            return self._stale(state, answer.client)
        del state.tasks[answer.client]
        tau = state.version - held.version
        closed = self._apply(state, answer, held, tau)
        if state.version >= self.terms.updates:
            used = f"{state.version} of {self.terms.updates} updates"
            return self._end(state, f"the update budget is used up: {used}")
        # first, so that the row counts its sender among those present
        asked = self._ask(state, answer.client)
        if closed and state.version % self.every == 0 and state.ended is None:
            return (*self._row(state), *asked)
        return asked

    def _stale(self, state: State, edge: int) -> Effects:
        tau = state.version - state.tasks.pop(edge).version
        state.since.stale += 1
        row = records.Stale(round=state.version, client=edge, staleness=tau, released=True)
        return (Log(row), *self._ask(state, edge))

    def _apply(self, state: State, answer: Gradient, held: Compute, tau: int) -> bool:
        """Fold a gradient in; whether it made an update."""
        gradient, since = answer.gradient, state.since
        since.staleness[tau] += 1
        expected = 0.0 if held.clip is None else self.noise[answer.client] * held.clip**2
        since.squares += float(np.dot(gradient, gradient)) - expected
        if self.exponent:
            gradient = gradient * np.float32((1.0 + tau) ** -self.exponent)
        if self.buffer > 1:
            waiting, count = state.buffer
            waiting, count = (gradient if waiting is None else waiting + gradient), count + 1
            if count < self.buffer:
                state.buffer = waiting, count
                return False
            gradient, state.buffer = waiting * np.float32(1.0 / count), (None, 0)
        rate = float(self.method.rate(self.terms, state.stage, state.version + 1))
        before, moved = state.average, gradient * np.float32(-rate)
        moved += state.weights
        state.weights = moved
        state.version += 1
        if state.version >= state.stage.end:
            state.stage = self.stage(state.version)
        state.average, decay = state.weights, self.method.average
        if decay != 0.0 and state.version != 1:
            state.average = np.float32(decay) * before + np.float32(1.0 - decay) * moved
        return True

    def _ask(self, state: State, edge: int) -> Effects:
        """The next task for an edge, or its leave."""
        if self.budget is not None and state.given[edge] >= self.budget[edge]:
            state.gone.add(edge)
            given, why = state.given[edge], "its budget is spent"
            row = Log(records.Left(round=state.version, client=edge, updates=given, why=why))
            if len(state.gone) < self.terms.edges:
                return (row,)
            return (row, *self._end(state, "every edge has spent its privacy budget"))
        state.given[edge] += 1
        state.tasks[edge] = task = Compute(
            task=state.given[edge],
            version=state.version,
            weights=state.weights,
            clip=_finite(state.stage.clip),
        )
        return (Send(edge, task),)

    def _row(self, state: State) -> Effects:
        """The row that closes a stretch of the log, and the moment to save; the next begins."""
        since, stage = state.since, self.stage(max(state.version - 1, 0))
        applied = since.staleness.total()
        behind = sum(tau * n for tau, n in since.staleness.items())
        seen = AsynchronousRound(
            round=state.version,
            steps=max(state.given),
            stage=stage.number,
            clip=_finite(stage.clip),
            rate=float(self.method.rate(self.terms, stage, max(state.version, 1))),
            norm=max(since.squares / applied, 0.0) ** 0.5 if applied else None,
            staleness=behind / applied if applied else None,
            stalest=max(since.staleness, default=None),
            histogram=tuple(sorted(since.staleness.items())),
            stale=since.stale,
            dropped=since.dropped,
            present=len(state.tasks),
            gone=len(state.gone),
        )
        state.since = Since()
        return Log(seen), Closed(state.version)

    def _end(self, state: State, why: str) -> Effects:
        state.ended = why
        return (*self._row(state), Log(records.End(why=why)), Finish(why))


def _finite(clip: float) -> float | None:
    """Return a bound as messages and rows have it: None without one."""
    return None if clip == float("inf") else clip
