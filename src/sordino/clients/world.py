"""Clients that work on tasks: the federation that the kernel plays, whatever the protocol. A
simulation has all of them; over a network the server and each site have one of their own.

Theory of operation. Three things differ between protocols:

* :class:`Rules` say what follows from an event, and what a client holds against a task. They are
  pure: no clock, no files, no noise.
* a class of :class:`HorizontalWorld` says what is charged before a task goes out, and with which
  permits a client works: every task by itself, a pass over a client's rows, a round for everybody
  at once, or blocks of tasks that are reserved.
* ``trips`` say how many virtual seconds an answer takes, or for how long a client vanishes.

All else is the same: clients in the order of their numbers, a unit of the ledger and a budget for
each, an evaluation of the model where one is due. What must hold: no client works without permits
that its booking has given out, and the state has everything that the rules remember, so that a
checkpoint (:meth:`TrainingState.pack`) and the study lead to the same end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from sordino.base.arrays import below
from sordino.base.entropy import Entropy
from sordino.base.errors import RemoteProtocolError
from sordino.base.frozen import Frozen
from sordino.base.message import Answer, Compute, Gradient, Train, Vector
from sordino.base.settings import tune
from sordino.core import records
from sordino.core.effect import Begin, Effects, Event, Overtaken, Request, Said, Send
from sordino.core.kernel import Kernel
from sordino.core.study.base import World as WorldKeys
from sordino.core.world import (
    Absence,
    ChargeRequest,
    Charges,
    EncodedSnapshot,
    Faults,
    KernelSnapshot,
    Paid,
    PermitRange,
    RegimeRules,
    RunListener,
    S,
    ServerSide,
    SiteSide,
    unpacked,
)
from sordino.privacy import Budget, Charge, Entry, LedgerSession, NonPrivate, Permits
from sordino.privacy import Event as Fact
from sordino.training.client import Client
from sordino.training.passes import place_of, steps_of
from sordino.training.plausible import Length, bearable

if TYPE_CHECKING:
    from sordino.clients.assemble import Assembly


class TrainingState(Frozen, kw_only=True, forbid_unknown_fields=True):
    """Where a run stands that trains one model; a regime adds fields of its own, vectors and what
    JSON can hold. Checkpoints keep all of them.

    Attributes:
        number: rounds begun.
        steps: local steps given to each client so far.
        weights: w (d,), the model that is evaluated and handed out; never written to.
        ended: why the run is over, or None.
    """

    number: int
    steps: tuple[int, ...]
    weights: Vector
    ended: str | None = None

    @property
    def taken(self) -> int:
        """Local steps of the client that took most."""
        return max(self.steps)

    @property
    def latest(self) -> int:
        """Local steps of a client's last task, at most."""
        return self.taken

    @property
    def model(self) -> Vector:
        """w."""
        return self.weights

    def pack(self) -> EncodedSnapshot:
        """Return all fields, vectors as vectors and the rest as JSON."""
        names = zip(self.__struct_encode_fields__, self.__struct_fields__, strict=True)
        fields = {kept: getattr(self, name) for kept, name in names}
        vectors = {name: each for name, each in fields.items() if isinstance(each, np.ndarray)}
        rest = {name: each for name, each in fields.items() if name not in vectors}
        return EncodedSnapshot(vectors, msgspec.json.encode(rest, order="deterministic"))


class Rules(RegimeRules[S]):
    """The rules of a regime whose clients work on tasks; pure."""

    def start(self, weights: Vector) -> S:
        """Return the state before anything happened."""
        raise NotImplementedError

    def unpacked(self, packed: EncodedSnapshot) -> S:
        """Return the state that was packed.

        Raises:
            ValueError: if it cannot be one.
        """
        kind = type(self.start(np.zeros(0, np.float32)))
        kept = msgspec.json.decode(packed.rest) | packed.vectors
        return msgspec.convert(kept, kind, dec_hook=lambda _, vector: vector)

    def over(self, state: S) -> bool:
        """Return whether no task follows."""
        return self.step(state, Begin())[0].ended is not None

    def faults(self, before: S, after: S) -> Faults:
        """Return the clients whose answers could not be used between two states, and why."""
        return ()

    def dearest_task(self, number: int) -> Request | None:
        """Return the dearest task of a round, to be priced; None where releases decide about it."""
        return None

    @property
    def growth(self) -> float:
        """The most that answers of length 1 can lengthen the model in a whole run; 0: not known."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Shared:
    """The facts that processes with clients of one run must have in common.

    Attributes:
        entropy: where clients draw batches and noise from.
        data: digest of all rows; others are in no ledger.
        unit: of the ledger, where one stands for all clients; else empty.
    """

    entropy: Entropy
    data: str
    unit: str = ""

    def units(self, clients: int) -> list[str]:
        """Return the unit of each client."""
        return [self.unit] * clients if self.unit else [f"client:{i}" for i in range(clients)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HorizontalWorld(ServerSide[S], SiteSide[S]):
    """Clients of a federation, on one machine or at the ends of a network.

    Every task is charged to its client by itself, unless a subclass says otherwise.

    Attributes:
        regime: the rules.
        why: what a charge is for.
        task: the kind of task that clients work on.
        clients: in the order of their numbers.
        units: ledger unit of each client.
        ledgers: where charges go.
        budget: what any client may spend in all; ``budgets`` what each may.
        affordable_steps: charges that each client can pay for, or all of them in common;
            None: no limit.
        trips: virtual seconds of an answer, or how its client vanishes, by client and task.
        evaluate: of a model, the numbers for a row; slow.
        stride: rounds between two evaluations.
        method: the method's name, for the ledger.
        charge_key_prefix: run and environment, part of every charge's key.
        continuous: whether tasks follow each other without a moment at which nobody works.
        objects: what its clients were made of, for workers.
        kernel: what plays it.
    """

    regime: Rules[S]
    clients: Sequence[Any]
    units: Sequence[str]
    ledgers: LedgerSession
    budget: Budget
    budgets: Sequence[Budget]
    affordable_steps: list[int] | None
    trips: Callable[[int, Request], float | Absence]
    evaluate: Callable[[Vector], Mapping[str, float]]
    stride: int
    method: str
    charge_key_prefix: str
    continuous: bool = False
    objects: Assembly[Any] | None = None
    kernel: Callable[..., Kernel[Any]] = Kernel
    why: str = "local steps"
    task: ClassVar[type[Train] | type[Compute]] = Train
    _faults: list[tuple[int, str]] = field(default_factory=list, init=False)

    def first(self, weights: Vector) -> KernelSnapshot[S]:
        """Return the moment before the first task, from the initial model (d,)."""
        return KernelSnapshot.initial(self.regime.start(weights))

    def unpack(self, packed: EncodedSnapshot) -> KernelSnapshot[S]:
        """Return the moment that was kept."""
        return unpacked(packed, self.regime.unpacked)

    def run(self, moment: KernelSnapshot[S], watcher: RunListener) -> KernelSnapshot[S]:
        """Play to the end; see :meth:`sordino.core.kernel.Kernel.run`."""
        tune()
        self.remember(moment.memories)
        return self.kernel(self, moment, watcher).run()

    def account(self, site: int) -> tuple[str, Budget]:
        """Return a client's unit and budget."""
        return self.units[site], self.budgets[site]

    # The kernel's questions: see :class:`sordino.core.world.World`.

    def step(self, state: S, event: Event) -> tuple[S, Effects]:
        """Return what follows by the rules, and keep the faults."""
        found, effects = self.regime.step(state, event)
        self._faults.extend(self.regime.faults(state, found))
        return found, effects

    def faults(self) -> Faults:
        """Return answers that the method could not use, each once."""
        found = tuple(self._faults)
        self._faults.clear()
        return found

    def answer(
        self, site: int, number: int, task: Request | None, permits: Permits
    ) -> Answer | Gradient:
        """Let the client work, with all permits of its task."""
        return self.answered(self.clients[site], task, permits)

    @staticmethod
    def answered(client: Any, task: Request | None, permits: Permits) -> Answer | Gradient:
        """Let a client work, in this process or in a worker's."""
        worker: Client = client
        return worker.answer(training(task), permits)

    def trip(self, site: int, task: Request) -> float | Absence:
        """Return the seconds of this client for this task, or how it vanishes."""
        return self.trips(site, task)

    def requests(self, state: S, effects: Effects, paid: Paid) -> Charges:
        """Return the price of each client's task, part by part."""
        sent = (each for each in effects if isinstance(each, Send))
        return [
            one
            for each in sent
            for one in self.site_requests(each.site, each.message, paid.get(each.site, ()))
        ]

    def site_requests(self, site: int, task: Request, permits: Permits) -> Charges:
        """Return the price of a client's task, part by part."""
        asked, unit, budget = training(task), self.units[site], self.budgets[site]
        where = f"round {asked.round}/client {site}"
        return [
            ChargeRequest(
                (site,), self.charge(unit, event, count, asked.round, f"{where}/{part}"), budget
            )
            for part, (event, count) in enumerate(self.clients[site].price(asked))
        ]

    def booked(self, site: int) -> Iterator[Entry]:
        """Yield what the ledger holds of this run and a client's unit, of all lives of it."""
        run = self.charge_key_prefix.partition("/")[0]
        for entry in self.ledgers.ledger.entries(self.ledgers.names[self.units[site]]):
            if entry.key.startswith(f"{run}/"):
                yield entry

    def forgotten_requests(self, site: int, answered: int) -> Charges | None:
        """Return the price of all rounds after those that the ledger holds, as if the site had been
        drawn in each; None where the study does not say what a round costs.
        """
        first = max((each.round for each in self.booked(site)), default=0) + 1
        tasks = [self.regime.dearest_task(number) for number in range(first, answered + 1)]
        known = [task for task in tasks if task is not None]
        if len(known) < len(tasks):
            return None
        return [one for task in known for one in self.site_requests(site, task, ())]

    def charge(
        self, unit: str, event: Fact, count: int, number: int, key: str, why: str = ""
    ) -> Charge:
        """Return a charge of round, or task, ``number``, under its key in this run."""
        return Charge(
            unit=unit,
            event=event,
            count=count,
            why=event.reason if isinstance(event, NonPrivate) else why or self.why,
            method=self.method,
            round=number,
            key=f"{self.charge_key_prefix}/{key}",
        )

    def forgotten(self, state: S) -> int | None:
        """Return the last round in the ledger, if it is later than the state's."""
        booked = max((each.round for each in self.ledgers.ledger.entries()), default=0)
        return booked if booked > state.number else None

    def overtaken(self, site: int, number: int) -> Overtaken:
        """Return the event of rounds that were forgotten; what each has most of are local steps."""
        ledger, names = self.ledgers.ledger, self.ledgers.names
        found = []
        for unit in self.units:
            rounds: dict[int, int] = {}
            for each in ledger.entries(names[unit]):
                if each.round <= number:
                    rounds[each.round] = max(each.count, rounds.get(each.round, 0))
            found.append(sum(rounds.values()))
        return Overtaken(number, steps=tuple(found))

    def length_bound(self, site: int, task: Request | None, said: Said) -> Length | None:
        """Return how long an answer is and may be, as its client says; None where it says
        nothing.
        """
        bound = getattr(self.clients[site], "length_bound", None)
        found: Length | None = bound(task, said) if bound and isinstance(task, self.task) else None
        return found

    @property
    def most(self) -> float:
        """The length from which a vector of an answer is refused."""
        return bearable(self.regime.growth)

    def measured(self, state: S, number: int) -> Mapping[str, Any]:
        """Return the numbers of the model, where they are due or the run is over."""
        due = number % self.stride == 0 or self.regime.over(state)
        return self.evaluate(state.model) if due else {}

    def visible_row(self, row: records.Row) -> records.Row | None:
        """Return the row, or None; no client and no time of a secret cohort are shown."""
        if not self.regime.secret:
            return row
        return (
            None
            if isinstance(row, records.OfClient)
            else msgspec.structs.replace(row, time=msgspec.UNSET)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassWorld(HorizontalWorld[Any]):
    """Clients whose batches come in a public order: a pass is charged before its first step.

    A permit is of one pass, whose number stands in the place of a round's, and covers its steps in
    all rounds (:mod:`sordino.training.passes`). The ledger knows passes, and no rounds: a server
    whose folder lost the end of its journal does not find it there.
    """

    why: str = "a pass"
    in_blocks: ClassVar[bool] = True

    def site_requests(self, site: int, task: Request, permits: Permits) -> Charges:
        """Return the passes that a task's steps are in, and no permit holds.

        Raises:
            RemoteProtocolError: for a task that takes a step again.
        """
        client, first = self.clients[site], place_of(task)
        if (why := client.passes.objection(first)) is not None:
            raise RemoteProtocolError(why)
        return [
            self._pass(site, number)
            for number in client.passes.numbers(first, steps_of(task))
            if not any(each.holds(number) for each in permits)
        ]

    def block_requests(self, site: int, key: str) -> Charges:
        """Return the pass with this key again, if the ledger holds it."""
        found = [self._pass(site, each.round) for each in self.booked(site) if each.key == key]
        return [replace(each, charge=replace(each.charge, key=key)) for each in found]

    def _pass(self, site: int, number: int) -> ChargeRequest:
        event, key = self.clients[site].mechanism.event(), f"client {site}/pass {number}"
        charge = self.charge(self.units[site], event, 1, number, key)
        return ChargeRequest((site,), charge, self.budgets[site])

    def reissued(self, state: Any, blocks: Mapping[int, Sequence[PermitRange]]) -> Charges:
        """Return the passes that clients were in."""
        return [
            self._pass(site, number)
            for site, booked in sorted(blocks.items())
            for number, _ in booked
        ]

    def unused_permits(self, state: Any, site: int, permits: Permits) -> Permits:
        """Return those of the passes that the client's last task, or its next, has steps in."""
        batches, first = self.clients[site].passes.batches, state.steps[site] - state.latest
        return [each for each in permits if each.round * batches > first]

    def needed_permits(self, site: int, number: int, permits: Permits) -> Permits:
        """Return those of the passes that this site has not come to the end of."""
        passes = self.clients[site].passes
        return [each for each in permits if each.round * passes.batches > passes.done]

    def unpack(self, packed: EncodedSnapshot) -> KernelSnapshot[Any]:
        """Return the moment that was kept; refuse it here where clients cannot carry its noise."""
        found = HorizontalWorld.unpack(self, packed)
        self.remember(found.memories)
        return found

    def memories(self) -> Mapping[str, NDArray[Any]]:
        """Return what clients carry along their passes."""
        return {
            f"{site}.{name}": values
            for site, client in enumerate(self.clients)
            for name, values in client.passes.carried().items()
        }

    def remember(self, memories: Mapping[str, NDArray[Any]]) -> None:
        """Have clients carry what they carried when the run was saved."""
        for site, client in enumerate(self.clients):
            client.passes.restore(below(f"{site}.", memories))

    def forgotten(self, state: Any) -> None:
        """Return None: passes have numbers of their own."""

    def forgotten_requests(self, site: int, answered: int) -> Charges | None:
        """Return the passes after those that the ledger holds, as if the site had been drawn in all
        rounds; None where the study does not say how many steps these had.
        """
        if (task := self.regime.dearest_task(answered)) is None:
            return None
        return self.passes_until(site, answered * training(task).steps)

    def passes_until(self, site: int, steps: int) -> list[ChargeRequest]:
        """Return the passes of a client's first steps, after those that the ledger holds."""
        last = -(-steps // self.clients[site].passes.batches)
        before = max((each.round for each in self.booked(site)), default=0)
        return [self._pass(site, number) for number in range(before + 1, last + 1)]


def training(task: Request | None) -> Train:
    """Return a task, as one of training.

    Raises:
        TypeError: if it is another.
    """
    if not isinstance(task, Train):
        raise TypeError(f"a client is asked to train, not {type(task).__name__}")
    return task


def round_trips(world: WorldKeys, entropy: Entropy) -> Callable[[int, Request], float | Absence]:
    """Return trips that are counted in rounds: who vanishes comes back after so many of them."""

    def trip(client: int, task: Request) -> float | Absence:
        asked = training(task)
        if world.dropout:
            rng = entropy.at("churn", client, "round", asked.round)
            if away := world.away(rng):
                return Absence(until=asked.round + away)
        return world.latency.draw(entropy, client, asked.round, asked.steps)

    return trip


def arrival_trips(
    world: WorldKeys, entropy: Entropy, clients: int
) -> Callable[[int, Request], float | Absence]:
    """Return trips in seconds: who vanishes comes back after so many of them.

    They are asked for thousands of times a second.
    """
    seconds, unit = world.latency.tasks(entropy, clients), max(world.latency.typical, 1e-9)
    streams = [entropy.stream("churn", i) for i in range(clients)] if world.dropout else []

    def trip(client: int, task: Request) -> float | Absence:
        away = world.away(streams[client].at(task.number)) if streams else 0
        return Absence(away * unit) if away else seconds(client, task.number)

    return trip
