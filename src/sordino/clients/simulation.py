"""Clients that train, one task after another, on one machine: what of the kernel's work is the same
for every protocol that sends such tasks.

A task is charged to its client by itself. Who vanishes with a task comes back after so many rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints
from typing import Protocol as Interface

import msgspec
import numpy as np

from sordino.base.entropy import Entropy
from sordino.base.message import Answer, Train, Vector
from sordino.core import simulation as moments
from sordino.core.effect import Begin, Effect, Event, Request, Send
from sordino.core.kernel import Kernel
from sordino.core.latency import Churn, Latency
from sordino.core.simulation import EncodedSnapshot, RunListener
from sordino.core.world import Absence, ChargeRequest, World
from sordino.privacy import Budget, Charge, LedgerSession, NonPrivate, Permit
from sordino.training.client import Client


class TrainingState(msgspec.Struct, frozen=True, kw_only=True):
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


class Protocol(Interface):
    """The rules of a regime whose tasks are of training; pure."""

    def start(self, weights: Vector) -> Any:
        """The :class:`TrainingState` before anything happened."""
        ...

    def step(self, state: Any, event: Event) -> tuple[Any, Sequence[Effect]]:
        """What follows from one event."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TrainingMoment(moments.KernelSnapshot[TrainingState]):
    """A simulation between two rounds."""

    @property
    def steps(self) -> int:
        """Local steps of the client that took most."""
        return max(self.state.steps)

    @property
    def model(self) -> Vector:
        """w."""
        return self.state.weights

    def packed(self) -> EncodedSnapshot:
        """See :class:`sordino.core.simulation.KernelSnapshot`."""
        own = {name: getattr(self.state, name) for name in self.state.__struct_fields__}
        vectors = {name: each for name, each in own.items() if isinstance(each, np.ndarray)}
        rest = {name: each for name, each in own.items() if name not in vectors}
        return EncodedSnapshot(vectors, msgspec.json.encode(rest))


def unpacked(packed: EncodedSnapshot, kind: type[TrainingState]) -> TrainingMoment:
    """The moment that was packed, of this kind of state.

    Raises:
        ValueError: if it cannot be one.
    """
    own, told = moments.unpacked(packed)
    hints = get_type_hints(kind)
    rest: dict[str, Any] = {
        name: msgspec.json.decode(value, type=hints[name])
        for name, value in msgspec.json.decode(own.rest, type=dict[str, msgspec.Raw]).items()
    }
    return TrainingMoment(kind(**(rest | own.vectors)), **told)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clients:
    """The clients of a run, and the world that they live in.

    Attributes:
        clients: in the order of their numbers.
        units: ledger unit of each client.
        pays: steps that each client can pay for; None without a limit.
        clip: C.
        latency, churn: the virtual world.
        entropy: root of its randomness.
        evaluate: of a model, the numbers for a row; slow.
        stride: rounds between two evaluations.
        method: the method's name, for the ledger.
        charge_key_prefix: run and environment, part of every charge's key.
    """

    clients: Sequence[Client]
    units: Sequence[str]
    pays: tuple[int, ...] | None
    clip: float
    latency: Latency
    churn: Churn
    entropy: Entropy
    evaluate: Callable[[Vector], Mapping[str, float]]
    stride: int
    method: str
    charge_key_prefix: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation(World[TrainingState]):
    """A federation on one machine.

    Attributes:
        regime: the rules.
        given: who works, and where.
        ledgers: where charges go.
        budget: what a client may spend in all.
    """

    regime: Protocol
    given: Clients
    ledgers: LedgerSession
    budget: Budget

    @property
    def units(self) -> Sequence[str]:
        """Ledger unit of each client."""
        return self.given.units

    @property
    def payable(self) -> list[int] | None:
        """Steps that each client can pay for; None without a limit."""
        return None if self.given.pays is None else list(self.given.pays)

    @property
    def clip(self) -> float:
        """C."""
        return self.given.clip

    def unpack(self, packed: EncodedSnapshot) -> TrainingMoment:
        """See :class:`sordino.core.simulation.Simulation`."""
        kind = type(self.regime.start(np.zeros(0, np.float32)))
        return unpacked(packed, kind)

    def run(self, moment: TrainingMoment, watcher: RunListener[TrainingMoment]) -> TrainingMoment:
        """See :meth:`sordino.core.kernel.Kernel.run`."""
        return Kernel(self, moment, watcher).run()

    # What the kernel asks: see :class:`sordino.core.world.World`.

    def step(self, state: TrainingState, event: Event) -> tuple[TrainingState, Sequence[Effect]]:
        """The regime's."""
        return self.regime.step(state, event)

    def expects(self, state: TrainingState, site: int, number: int) -> bool:
        """Whether an answer to this round would still be used."""
        return state.ended is None and number == state.number

    def answer(
        self, site: int, number: int, task: Request | None, permits: Sequence[Permit]
    ) -> Answer:
        """Let the client work."""
        return self.given.clients[site].answer(training(task), permits)

    def trip(self, site: int, task: Request) -> float | Absence:
        """Seconds of this client in this round, or how long it is away."""
        return trip(self.given.latency, self.given.churn, self.given.entropy, site, training(task))

    def requests(
        self, state: TrainingState, effects: Sequence[Effect], paid: Mapping[int, Sequence[Permit]]
    ) -> Sequence[ChargeRequest]:
        """Every client the price of its own task."""
        given = self.given
        return [
            ChargeRequest((each.site,), charge, self.budget)
            for each in effects
            if isinstance(each, Send)
            for charge in charges(
                given.clients[each.site],
                given.units[each.site],
                training(each.message),
                given.method,
                given.charge_key_prefix,
            )
        ]

    def measured(self, state: TrainingState, number: int) -> Mapping[str, Any]:
        """What is told of the model, where it is due or the run is over."""
        over = self.regime.step(state, Begin())[0].ended is not None
        due = over or number % self.given.stride == 0
        return self.given.evaluate(state.weights) if due else {}


def training(task: Request | None) -> Train:
    """A task, as one of training.

    Raises:
        TypeError: if it is another.
    """
    if not isinstance(task, Train):
        raise TypeError(f"a client is asked to train, not {type(task).__name__}")
    return task


def trip(
    latency: Latency, churn: Churn, entropy: Entropy, site: int, task: Train
) -> float | Absence:
    """Seconds of a client in a round, or how long it is away."""
    away = churn.away(entropy, site, task.round)
    return (
        Absence(until=task.round + away)
        if away
        else latency.draw(entropy, site, task.round, task.steps)
    )


def charges(
    client: Client,
    unit: str,
    task: Train,
    method: str,
    charge_key_prefix: str,
    why: str = "local steps",
) -> list[Charge]:
    """The price of a client's own task, part by part."""
    return [
        Charge(
            unit=unit,
            event=event,
            count=count,
            why=event.reason if isinstance(event, NonPrivate) else why,
            method=method,
            round=task.round,
            key=f"{charge_key_prefix}/round {task.round}/client {client.index}/{part}",
        )
        for part, (event, count) in enumerate(client.price(task))
    ]
