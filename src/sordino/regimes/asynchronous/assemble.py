"""The objects of a study of arrivals: its edges, its rules, and budgets reserved in blocks.

A task is given, and its answer is due when its edge's delay has passed; the gradient is computed
then, at the model that was sent, unless it has become too stale to be applied. Edges that hold the
same model share it. Everything that is drawn (batch, noise, delay, absence) is numbered by edge and
task, so the same study gives the same run whatever the host does, and a run that was killed gives
the same end.

Charging every gradient by itself would cost more than the gradient. An edge *reserves* a block of
tasks in one durable entry before the first of them, an eighth of its share; whoever is about
to run out reserves in the same transaction. What is left of the last block when the run ends is
booked and not used: over-counted, never under-counted.

A run that goes on in another environment reserves again what it had reserved: the run and its
environment are part of every key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import torch

from sordino.base.entropy import Seeded
from sordino.base.message import Compute, Gradient
from sordino.clients.assemble import Assembly
from sordino.clients.simulation import PassSimulation, Simulation, arrival_trips
from sordino.core.effect import Effects, Overtaken, Request, Send
from sordino.core.plan import times
from sordino.core.world import Block, ChargeRequest, Charges, Paid
from sordino.mechanisms.correlated import CorrelatedGaussian
from sordino.privacy import LedgerSession, Permits
from sordino.regimes.asynchronous.edge import Edge, LiteralEdge, PlainEdge, PrivateEdge
from sordino.regimes.asynchronous.method import Noisy
from sordino.regimes.asynchronous.protocol import Asynchronous, State
from sordino.regimes.asynchronous.regime import terms
from sordino.regimes.asynchronous.study import AsynchronousStudy
from sordino.training.passes import place_of
from sordino.training.perexample.general import layers_of

SHARES = 8
"""Blocks that an edge's expected share of the updates is reserved in."""
LEAST = 4
"""Tasks in a block: an entry of its own for each would cost as much as the gradient."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockSimulation(Simulation[State]):
    """A simulation in which an edge reserves blocks of tasks."""

    regime: Asynchronous
    task = Compute
    saves_anytime: ClassVar[bool] = True
    in_blocks: ClassVar[bool] = True

    @property
    def block(self) -> int:
        """Tasks that are reserved at once: a part of an edge's share, if all are equally fast."""
        rules = self.regime
        share = math.ceil(rules.terms.updates * rules.buffer / rules.terms.edges)
        return max(math.ceil(share / SHARES), min(LEAST, share))

    def requests(self, state: State, effects: Effects, paid: Paid) -> Charges:
        """Return a block for every edge whose task lies outside its own, or that runs out soon."""
        short = {
            each.site
            for each in effects
            if type(each) is Send and each.message.number > _last(paid.get(each.site, ()))
        }
        if not short:
            return ()
        near, pays = self.block // 4, self.regime.budget
        booked = {edge: _last(paid.get(edge, ())) for edge in (*short, *state.tasks)}
        soon = (edge for edge in state.tasks if booked[edge] - state.given[edge] <= near)
        short |= {edge for edge in soon if pays is None or booked[edge] < pays[edge]}
        length = {
            edge: self.block if pays is None else min(self.block, pays[edge] - booked[edge])
            for edge in short
        }
        return [self._reserve(edge, booked[edge] + 1, length[edge]) for edge in sorted(short)]

    def site_requests(self, site: int, task: Request, permits: Permits) -> Charges:
        """Return a block that begins with the task, if no permit holds it.

        A site that was killed draws its noise anew, so that the task that it worked on is booked
        again. Where its machine fails, all that it had reserved and not said is lost. Hence it
        reserves one task when it starts, and then one more each time: a life that says n loses
        fewer than sqrt(2 n). In a rehearsal, what was reserved before is found again.
        """
        number = task.number
        if any(each.holds(number) for each in permits):
            return ()
        for entry in () if permits else self.booked(site):  # when it starts
            if (
                entry.key.startswith(f"{self.charge_key_prefix}/")
                and entry.round <= number < entry.round + entry.count
            ):
                return (self._reserve(site, entry.round, entry.count),)
        length = min(permits[-1].count + 1 if permits else 1, self.block)
        if (pays := self.regime.budget) is not None:
            length = max(min(length, pays[site] - number + 1), 1)
        return (self._reserve(site, number, length),)

    def block_requests(self, site: int, key: str) -> Charges:
        """Return the block with this key again, if the ledger holds it."""
        booked = (each for each in self.booked(site) if each.key == key)
        found = [self._reserve(site, each.round, each.count) for each in booked]
        return [replace(each, charge=replace(each.charge, key=key)) for each in found]

    def forgotten_requests(self, site: int, answered: int) -> Charges:
        """Return the tasks after all blocks that the ledger holds."""
        first = max((each.round + each.count for each in self.booked(site)), default=1)
        return [self._reserve(site, first, answered - first + 1)] if first <= answered else []

    @staticmethod
    def answered(client: Any, task: Request | None, permits: Permits) -> Gradient:
        """Let an edge work, with the permit of the block, or the pass, that holds the task."""
        if not isinstance(task, Compute):
            raise TypeError(f"an edge is asked for a gradient, not {type(task).__name__}")
        wanted = task.task
        if client.passes is not None:
            (wanted,) = client.passes.numbers(place_of(task), 1)
        permit = (
            permits[0]
            if len(permits) == 1
            else next((each for each in permits if each.holds(wanted)), None)
        )
        gradient: Gradient = client.answer(task, permit)
        return gradient

    def reissued(self, state: State, blocks: Mapping[int, Sequence[Block]]) -> Charges:
        """Return the blocks that edges had reserved and not worked off."""
        return [
            self._reserve(edge, *block)
            for edge, reserved in sorted(blocks.items())
            for block in reserved
        ]

    def kept(self, state: State, site: int, permits: Permits) -> Permits:
        """Return those of the block that holds the edge's task, and of later ones."""
        first = state.tasks[site].task if site in state.tasks else 0
        return [each for each in permits if first < each.round + each.count]

    def booked_until(self, state: State, site: int, number: int) -> bool:
        """Return whether a block in the ledger holds the task."""
        booked = self.booked(site)
        return any(each.round <= number < each.round + each.count for each in booked)

    def spent(self, state: State) -> Collection[int]:
        """Return the edges that have given all that their budgets pay for."""
        return state.gone

    def forgotten(self, state: State) -> None:
        """Return None: edges' tasks have numbers of their own."""

    def overtaken(self, site: int, number: int) -> Overtaken:
        """Return the event of an edge's tasks that were forgotten."""
        return Overtaken(number, site)

    def _reserve(self, edge: int, first: int, length: int) -> ChargeRequest:
        """Return the charge of tasks ``first`` to ``first + length - 1`` of an edge."""
        assert isinstance(self.objects, ArrivalsAssembly)
        price = self.clients[self.objects.alike[edge]].price
        unit, key = self.units[edge], f"edge {edge}/task {first}"
        charge = self.charge(unit, price, length, first, key, "gradients, reserved")
        return ChargeRequest((edge,), charge, self.budgets[edge])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgePassSimulation(PassSimulation, BlockSimulation):
    """A simulation in which an edge's batches come in a public order: what is reserved is a pass,
    whose gradients are those of tasks k b + 1 to k b + b.
    """

    requests = Simulation.requests

    def kept(self, state: State, site: int, permits: Permits) -> Permits:
        """Return those of the passes that the edge's task, or its next, is in."""
        first = state.tasks[site].task - 1 if site in state.tasks else state.given[site]
        batches = self.clients[site].passes.batches
        return [each for each in permits if each.round * batches > first]

    def forgotten_requests(self, site: int, answered: int) -> Charges:
        """Return the passes after those that the ledger holds."""
        return self.passes_until(site, answered)

    def booked_until(self, state: State, site: int, number: int) -> bool:
        """Return whether the ledger holds the pass that the task is in."""
        (wanted,) = self.clients[site].passes.numbers(number - 1, 1)
        return any(each.round == wanted for each in self.booked(site))


def _last(permits: Permits) -> int:
    """Return the last task that is booked."""
    return permits[-1].round + permits[-1].count - 1 if permits else 0


class ArrivalsAssembly(Assembly[AsynchronousStudy]):
    """The objects of a calibrated study of arrivals."""

    kind = BlockSimulation
    paid = "gradient"
    usual = "Raise noise_multiplier or lower method.batch"
    continuous = True

    @cached_property
    def scratch(self) -> torch.Tensor:
        """Where raw sums stand for a moment, (d,): shared by all edges."""
        return torch.empty_like(self.kernels.flat.weights, dtype=torch.float64)

    @cached_property
    def sigmas(self) -> Sequence[float]:
        """The noise multiplier of each edge, or what it claims in a literal form."""
        method, study = self.study.method, self.study
        if isinstance(method, Noisy) and method.literal:
            return method.claims(study.edges)
        return study.multipliers or (0.0,) * study.edges

    @cached_property
    def alike(self) -> list[int]:
        """The first edge with as many examples as each, and as much noise: price and noise of a
        gradient are the same.
        """
        found: dict[tuple[int, float], int] = {}
        kinds = zip(self.sizes, self.sigmas, strict=True)
        return [found.setdefault(kind, edge) for edge, kind in enumerate(kinds)]

    def client(self, index: int, common: dict[str, Any]) -> Edge:
        """Return an edge: private, without privacy, or of the paper's own form."""
        method, noise, flat = self.study.method, self.noise, self.kernels.flat
        common["draws"] = common.pop("entropy").stream("edge", index)
        common |= {"regularisation": method.regularisation, "scratch": self.scratch}
        if noise is not None:
            noise = noise.scaled(noise.clip, self.sigmas[index])
            found = self.regime.correlation(self.study, self.sizes, index)
            if found is not None and isinstance(noise, CorrelatedGaussian):
                noise = replace(noise, correlation=found)
            return PrivateEdge(**common, mechanism=noise)
        if self.study.privacy.unit == "none":
            return PlainEdge(**common)
        assert isinstance(method, Noisy)
        # the first layer that has any numbers; its weights and its bias go together
        first = sum(slot.size for slot in layers_of(flat)[0])
        return LiteralEdge(
            **common,
            iteration_epsilon=self.sigmas[index],
            batch_size=int(method.batch),
            noised=first if method.noised == "first-layer" else flat.dim,
            reason=method.unpriced or "",
        )

    def affordable(self, ledgers: LedgerSession) -> tuple[int, ...] | None:
        """Return the updates that each edge can still pay for; None if nothing is promised."""
        if self.study.privacy.unit == "none" or self.study.form == "paper":
            return None
        asked = self.regime.schedule(self.study, self.sizes)
        events = {unit: event for unit, ((event, _),) in asked.stages.items()}
        # a new ledger holds nothing yet, and another site has a ledger of its own
        fresh = self.mine is None and not ledgers.run
        here = {} if fresh else ledgers.remaining(events, asked.budgets)
        free, kinds = cache(asked.for_group(self.study.rows_at_once).affordable), asked.kinds
        left = [
            times(asked.paid(unit), here[unit]) if unit in here else free(kinds[unit])
            for unit in self.units
        ]
        if all(steps is None for steps in left):
            return None
        endless = int(np.iinfo(np.int64).max)
        return tuple(endless if steps is None else min(steps, endless) for steps in left)

    def rules(self, clients: Sequence[Edge], pays: tuple[int, ...] | None) -> Asynchronous:
        """Return the rules of edges that can pay for so many gradients each."""
        study = self.study
        return Asynchronous(
            method=study.method,
            terms=terms(study, self.kernels.flat.dim),
            schedule=self.plan.stages,
            budget=pays,
            exponent=study.participation.staleness_weight,
            buffer=study.participation.buffer,
            every=study.stride,
            noise=tuple(clients[i].noise for i in self.alike),
        )

    def played(self, rules: Asynchronous) -> Callable[..., Simulation[Any]]:
        """Return the kind of the simulation, in which blocks of tasks are charged, or passes."""
        return EdgePassSimulation if self.study.ordered and self.noise is not None else self.kind

    def trips(self) -> Any:
        """Return the virtual time that answers take."""
        return arrival_trips(self.study.world, Seeded(self.study.seed), len(self.sizes))

    @property
    def clip(self) -> float:
        """G of the first stage."""
        stage: float = self.plan.stages[0].clip
        return stage
