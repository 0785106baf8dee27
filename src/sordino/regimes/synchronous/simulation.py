r"""A synchronous federation on one machine: what of the kernel's work is particular to rounds.

A task is charged to its client by itself; where whole clients are protected, each round is charged
to all of them at once. Who vanishes with a task comes back after so many rounds. Where it is secret
who takes part, no row names a client, and none says a time that shows its speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from sordino.base.entropy import Entropy
from sordino.base.message import Answer, Train, Vector
from sordino.clients.simulation import charges, training, trip
from sordino.core import records
from sordino.core import simulation as moments
from sordino.core.effect import Book, Effect, Event, Overtaken, Request, Said, Send
from sordino.core.kernel import Kernel
from sordino.core.latency import Churn, Latency
from sordino.core.simulation import EncodedSnapshot, RunListener
from sordino.core.world import Absence, ChargeRequest, ServerSide, SiteSide, Summing
from sordino.privacy import Budget, Charge, LedgerSession, Permit
from sordino.regimes.synchronous.agreed import objection, objection_to_round
from sordino.regimes.synchronous.protocol import State, Synchronous
from sordino.training.client import Client
from sordino.training.plausible import Length, bearable


@dataclass(frozen=True, slots=True, eq=False)
class Moment(moments.KernelSnapshot[State]):
    """A simulation between two rounds."""

    @property
    def steps(self) -> int:
        """Local steps of the client that took most."""
        return max(self.state.steps)

    @property
    def model(self) -> Vector:
        """w_avg."""
        return self.state.average

    def packed(self) -> EncodedSnapshot:
        """See :class:`sordino.core.simulation.KernelSnapshot`."""
        state = self.state
        vectors: dict[str, Vector] = {
            "weights": state.weights,
            "velocity": state.velocity,
            "average": state.average,
        }
        vectors |= {
            f"model.{i}": model for i, model in enumerate(state.models) if model is not None
        }
        rest = _Rest(
            round=state.round,
            steps=list(state.steps),
            present=sorted(state.present),
            memory=msgspec.Raw(msgspec.json.encode(state.memory)),
            models=len(state.models) or None,
            note=state.note,
            ended=state.ended,
            seen=state.seen,
        )
        return EncodedSnapshot(vectors, msgspec.json.encode(rest))


class _Rest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a state is no vector."""

    round: int
    steps: list[int]
    present: list[int]
    memory: msgspec.Raw
    models: int | None
    note: str | None
    ended: str | None
    seen: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation(ServerSide[State], SiteSide[State]):
    """A synchronous federation on one machine.

    Attributes:
        regime: the rules.
        clients: in the order of their numbers.
        ledgers: where charges go; ``units`` names each client in it.
        budget: what any client may spend in all; ``budgets`` what each may, where that differs.
        units: ledger unit of each client.
        latency, churn: the virtual world.
        entropy: root of its randomness.
        evaluate: of a model, the numbers for a row; slow, so only where ``due`` says so.
        method: the method's name, for the ledger.
        charge_key_prefix: run and environment, part of every charge's key.
        life: of this process, where it draws noise anew that rounds of whole clients are charged
            for.
    """

    regime: Synchronous
    clients: Sequence[Client]
    ledgers: LedgerSession
    budget: Budget
    units: Sequence[str]
    latency: Latency
    churn: Churn
    entropy: Entropy
    evaluate: Callable[[Vector], Mapping[str, float]]
    due: Callable[[int], bool]
    method: str
    charge_key_prefix: str
    budgets: Sequence[Budget] | None = None
    life: str = ""
    _faults: list[tuple[int, str]] = field(default_factory=list, init=False)

    def budget_of(self, site: int) -> Budget:
        """What a client may spend in all."""
        return self.budget if self.budgets is None else self.budgets[site]

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

    def unpack(self, packed: EncodedSnapshot) -> Moment:
        """See :class:`sordino.core.simulation.Simulation`."""
        own, told = moments.unpacked(packed)
        rest, vectors = msgspec.json.decode(own.rest, type=_Rest), own.vectors
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
        return Moment(state, **told)

    def run(self, moment: Moment, watcher: RunListener[Moment]) -> Moment:
        """See :meth:`sordino.core.kernel.Kernel.run`."""
        return Kernel(self, moment, watcher).run()

    # What the kernel asks: see :class:`sordino.core.world.World`.

    def step(self, state: State, event: Event) -> tuple[State, Sequence[Effect]]:
        """The regime's."""
        found, effects = self.regime.step(state, event)
        if found.faults is not state.faults:
            self._faults.extend(found.faults)
        return found, effects

    def faults(self) -> Sequence[tuple[int, str]]:
        """See :class:`World`: answers that the method could not use."""
        found = tuple(self._faults)
        self._faults.clear()
        return found

    def expects(self, state: State, site: int, number: int) -> bool:
        """Whether the client's answer for this round would still be used."""
        return self.regime.expects(state, site, number)

    def answer(
        self, site: int, number: int, task: Request | None, permits: Sequence[Permit]
    ) -> Answer:
        """Let the client work."""
        return self.clients[site].answer(training(task), permits)

    def trip(self, site: int, task: Request) -> float | Absence:
        """Seconds of this client in this round, or how long it is away."""
        return trip(self.latency, self.churn, self.entropy, site, training(task))

    def requests(
        self, state: State, effects: Sequence[Effect], paid: Mapping[int, Sequence[Permit]]
    ) -> Sequence[ChargeRequest]:
        """The round, charged to all; or every client the price of its own task."""
        found: list[ChargeRequest] = []
        for effect in effects:
            match effect:
                case Book():
                    found += self._round(effect)
                case Send(site, Train() as task) if not self.regime.together:
                    found += self._task(site, task)
        return found

    @property
    def charges_everybody(self) -> bool:
        """See :class:`World`."""
        return self.regime.together

    @property
    def secret(self) -> bool:
        """See :class:`World`."""
        return self.regime.secret

    def steps_by(self, number: int) -> int:
        """See :class:`World`."""
        return number * (self.regime.method.fixed_tau or 1)

    @property
    def summing(self) -> Summing | None:
        """See :class:`World`."""
        return None if self.regime.adder is None else self.regime.adder.summing

    def site_requests(
        self, site: int, task: Request, permits: Sequence[Permit]
    ) -> Sequence[ChargeRequest]:
        """See :class:`World`: where whole clients are protected, the whole round, under its key.

        A round that this process has not booked itself, another one may have answered, and
        forgotten that: with noise that is drawn anew, what is computed now is another release.
        """
        asked = training(task)
        if not self.regime.together:
            return self._task(site, asked)
        (event, _), *_ = self.clients[site].price(asked)
        booked = {permit.key for permit in permits if permit.new}
        return [
            replace(request, charge=replace(request.charge, key=request.charge.key + self.life))
            for request in self.round_requests(site, Book(asked.round, event))
            if request.charge.key not in booked
        ]

    def round_requests(self, site: int, effect: Book) -> Sequence[ChargeRequest]:
        """See :class:`World`."""
        unit = self.units[site]
        return [request for request in self._round(effect) if request.charge.unit == unit]

    def objection_to_round(self, site: int, effect: Book) -> str | None:
        """See :class:`World`."""
        return objection_to_round(self.regime, effect)

    def forgotten(self, state: State) -> int | None:
        """See :class:`World`."""
        booked = max((each.round for each in self.ledgers.ledger.entries()), default=0)
        return booked if booked > state.number else None

    def overtaken(self, site: int, number: int) -> Overtaken:
        """See :class:`World`. What a round has most of are local steps."""
        ledger, names = self.ledgers.ledger, self.ledgers.names
        found = []
        for unit in self.units:
            rounds: dict[int, int] = {}
            for each in ledger.entries(names[unit]):
                if each.round <= number:
                    rounds[each.round] = max(each.count, rounds.get(each.round, 0))
            found.append(sum(rounds.values()))
        return Overtaken(number, steps=tuple(found))

    def reach(self, site: int, task: Request | None, said: Said) -> Length | None:
        """See :class:`World`; as the site's client says."""
        own = getattr(self.clients[site], "reach", None)
        return None if own is None or not isinstance(task, Train) else own(task, said)

    @property
    def most(self) -> float:
        """See :class:`World`. Of models, w' = mean + momentum (w - w_before), whose poles have the
        absolute value sqrt(momentum); of bounded updates of length 1, each round moves the model by
        1/q_c, and by what momentum repeats.
        """
        rules, momentum = self.regime, self.regime.momentum
        if rules.aggregator is None:
            return bearable(float((1.0 - momentum**0.5) ** -2))
        rate = rules.aggregator.sampling_rate
        return bearable(rules.terms.rounds / (rate * (1.0 - momentum)))

    def objection(self, site: int, task: Request) -> str | None:
        """See :class:`World`."""
        if not isinstance(task, Train):
            return f"it asks for {type(task).__name__}, and clients of rounds are asked to train"
        return objection(self.regime, task)

    def measured(self, state: State, number: int) -> Mapping[str, Any]:
        """What is told of the model, where it is due or the run is over."""
        return self.evaluate(state.average) if self.due(number) or self.regime.over(state) else {}

    def shown(self, row: records.Row) -> records.Row | None:
        """The row, or None; no client and no time of a secret cohort are shown."""
        if not self.secret:
            return row
        return (
            None
            if isinstance(row, records.OfClient)
            else msgspec.structs.replace(row, time=msgspec.UNSET)
        )

    def _task(self, site: int, task: Train) -> list[ChargeRequest]:
        """A task, charged to its client."""
        why = "local steps" if self.regime.adder is None else self.regime.adder.condition
        client, unit = self.clients[site], self.units[site]
        own = charges(client, unit, task, self.method, self.charge_key_prefix, why)
        return [ChargeRequest((site,), charge, self.budget_of(site)) for charge in own]

    def _round(self, effect: Book) -> list[ChargeRequest]:
        """All clients at once: one unit that stands for all, or each its own."""
        number, units = effect.number, list(dict.fromkeys(self.units))
        key = f"{self.charge_key_prefix}/round {effect.number}"
        why = "a round" if self.regime.adder is None else self.regime.adder.condition
        found = []
        for unit in units:
            charge = Charge(
                unit=unit,
                event=effect.fact,
                count=1,
                why=why,
                method=self.method,
                round=number,
                key=key if len(units) == 1 else f"{key}/{unit}",
            )
            found.append(
                ChargeRequest(
                    tuple(i for i, own in enumerate(self.units) if own == unit), charge, self.budget
                )
            )
        return found
