r"""The objects of a study of arrivals: its edges, its rules, and budgets reserved in blocks.

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

**An edge's work**: one gradient at the model it was sent, with its own noise (Li et al. 2022,
Algorithm 1, edge side).

    B       every example independently with probability q = b / n (Poisson), or the next batch of
            a public order (sordino.training.passes)
    g~      = ( sum_{i in B} clip_G(grad F(x, i)) + N(0, (z G)^2 I_d) ) / b + lambda x

b is the *expected* batch q n, never the drawn one: an empty batch releases noise like any other.
lambda x is the gradient of the regulariser; x is known to everybody, so it costs nothing. Batches
and noise are numbered by the edge's tasks: played again after a restart, a task releases the same
bytes.

Nothing is computed before it is paid for: an edge is handed the permit of a block of tasks, and
refuses a task outside of it.

Shapes: weights and gradients (d,), examples (n, ...).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import torch

from sordino import privacy
from sordino.base.entropy import Numbered, Seeded
from sordino.base.errors import LocalProtocolError
from sordino.base.message import Compute, Gradient, Vector
from sordino.clients.assemble import Assembly
from sordino.clients.world import HorizontalWorld, PassWorld, arrival_trips
from sordino.core.effect import Effects, Overtaken, Request, Send
from sordino.core.plan import times
from sordino.core.world import ChargeRequest, Charges, Paid, PermitRange
from sordino.mechanisms.correlated import CorrelatedGaussian
from sordino.mechanisms.gaussian import LARGEST, SMALLEST, Bounded, length
from sordino.mechanisms.knorm import exponential_norm
from sordino.privacy import Event, NonPrivate, Permit, Permits, covers_one
from sordino.regimes.asynchronous.method import Noisy
from sordino.regimes.asynchronous.protocol import Asynchronous, State
from sordino.regimes.asynchronous.regime import terms
from sordino.regimes.asynchronous.study import AsynchronousStudy
from sordino.training import plausible
from sordino.training.client import NO_NOISE, SamplingClient, bound_of, hidden, received
from sordino.training.passes import place_of, tokens
from sordino.training.perexample.general import layers_of

SHARES = 8
"""Blocks that an edge's expected share of the updates is reserved in."""
LEAST = 4
"""Tasks in a block: an entry of its own for each would cost as much as the gradient."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edge(SamplingClient):
    """Somebody with data who can be asked for a gradient: a subclass ``answer``s a task, with the
    permit of a block of tasks that the ledger has charged, this one among them. It says its
    ``price``, the release of one gradient, the same for every task, and its ``noise``, at a clip of
    1: E ||noise||^2 in one gradient.

    Attributes:
        regularisation: lambda.
        draws: numbered by the edge's tasks: the batch of each, and its noise, by what that hides.
        scratch: (d,) in float64, shared by the edges of one process: raw sums stand here for a
            moment.
    """

    regularisation: float
    draws: Numbered
    scratch: torch.Tensor

    def batch(self, task: Compute) -> torch.Tensor:
        """The indices of a task's batch; the model has the task's weights."""
        weights = self.kernels.flat.weights
        weights.copy_(received(task.weights, weights))
        if self.passes is None:
            chosen = self.chosen(self.draws.at(task.task))
        else:
            chosen = self.passes.batch(place_of(task), len(self.examples))
        return chosen if weights.device.type == "cpu" else chosen.to(weights.device)

    def mean(self, task: Compute) -> torch.Tensor:
        """The mean gradient (d,) of a task's batch, without any bound."""
        mean = torch.empty_like(self.kernels.flat.weights)
        self.kernels.mean.of(self.examples, self.batch(task), mean)
        return mean

    def noise_over(self, task: Compute, total: torch.Tensor) -> np.random.Generator:
        """The generator of the noise that hides this raw vector (d,)."""
        return self.draws.over(task.task, hidden(task, total, *tokens(self.passes)))

    def answered(self, task: Compute, gradient: torch.Tensor, share: float = 1.0) -> Gradient:
        """The message, its vector times ``share``, regularised; NumPy's calls cost a third."""
        found: Vector = (
            gradient.numpy() if gradient.device.type == "cpu" else gradient.cpu().numpy()
        )
        if share != 1.0:
            found *= share
        if self.regularisation:
            found += self.regularisation * task.weights
        return Gradient(client=self.index, task=task.task, version=task.version, gradient=found)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlainEdge(Edge):
    """Without privacy: the mean gradient of the batch."""

    @property
    def price(self) -> Event:
        """The release of one gradient: without a bound, as later promises must know."""
        return NonPrivate(reason=NO_NOISE)

    @property
    def noise(self) -> float:
        """None."""
        return 0.0

    def answer(self, task: Compute, permit: Permit | None) -> Gradient:
        """Return the gradient of a task, with the permit that covers it."""
        covers_one(self.unit, permit, self.price, task.task)
        return self.answered(task, self.mean(task))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivateEdge(Edge):
    """The sound form.

    Attributes:
        mechanism: clip and noise of the first stage; later ones scale its clip.
    """

    mechanism: Bounded

    @property
    def price(self) -> Event:
        """The release of one gradient: one homogeneous subsampled release, whatever the stage; or
        that of a pass, of which an example is in one gradient.
        """
        event = self.mechanism.event()
        if self.passes is not None:
            return event
        return privacy.PoissonSampled(sampling_rate=self.sampling_rate, event=event)

    @property
    def noise(self) -> float:
        """d (z / b)^2."""
        return self.kernels.flat.dim * (self.mechanism.vector_multiplier / self.expected_batch) ** 2

    def answer(self, task: Compute, permit: Permit | None) -> Gradient:
        """Return the noisy gradient of a task, with the permit that covers it."""
        if self.passes is None:
            covers_one(self.unit, permit, self.price, task.task)
        else:
            self.use_permits([] if permit is None else [permit], task, self.price)
        # any other will do: the noise grows with it
        if task.clip is None or not SMALLEST <= task.clip <= LARGEST:
            raise LocalProtocolError(
                f"task {task.task}: the clip must be a number from {SMALLEST:g} to {LARGEST:g}; "
                f"got {task.clip}"
            )
        mechanism = self.mechanism.scaled(task.clip, self.mechanism.noise_multiplier)
        batch, share = self.batch(task), self.expected_batch
        self.kernels.clipped.of(
            self.examples, batch, bound_of(mechanism), self.scratch, expected=share
        )
        rng = self.noise_over(task, self.scratch)
        noisy, _ = self.released(mechanism, self.scratch, 0.0, rng, place_of(task))
        return self.answered(task, noisy, 1.0 / share)

    def length_bound(self, task: Compute, said: object) -> plausible.Length | None:
        """Length of a gradient, and its bound; None of what is no gradient, and where the mechanism
        does not say.
        """
        if task.clip is None or not isinstance(said, Gradient):
            return None
        mechanism = self.mechanism.scaled(task.clip, self.mechanism.noise_multiplier)
        most = plausible.sums(mechanism, len(task.weights), self.met(1), 1)
        if most is None:
            return None
        pull = self.regularisation * plausible.length(task.weights) * (1.0 + plausible.ROUNDING)
        most = most / self.expected_batch + pull
        return plausible.Length(plausible.length(said.gradient), most)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LiteralEdge(Edge):
    """The paper's own form: NOT private.

    Attributes:
        iteration_epsilon: eps_k, what it claims for each gradient.
        batch_size: b, the examples of every batch.
        noised: numbers of the flat vector that get noise, from the start: d, or those of the first
            layer.
        reason: why there is no price, for the ledger.
    """

    iteration_epsilon: float
    batch_size: int
    noised: int
    reason: str

    @property
    def price(self) -> Event:
        """The release of one gradient, which has no bound."""
        return NonPrivate(reason=self.reason)

    @property
    def noise(self) -> float:
        """2 DS^2 / eps_k^2 with DS = 2 / b."""
        return 2.0 * (2.0 / self.batch_size / self.iteration_epsilon) ** 2

    def chosen(self, rng: np.random.Generator) -> torch.Tensor:
        """Indices (b,) of a batch, with replacement, so that its examples are independent."""
        return torch.from_numpy(rng.integers(0, len(self.examples), self.batch_size))

    def answer(self, task: Compute, permit: Permit | None) -> Gradient:
        """Return the average clipped to R = b DS / 2, plus a direction of exponential length."""
        covers_one(self.unit, permit, self.price, task.task)
        if task.clip is None:
            raise LocalProtocolError(f"task {task.task} has no clip")
        mean = self.mean(task)
        mean.mul_(min(1.0, task.clip / max(length(mean), 1e-30)))
        scale = 2.0 * task.clip / self.batch_size / self.iteration_epsilon
        noise = exponential_norm(self.noised, scale, self.noise_over(task, mean))
        mean[: self.noised].add_(noise.to(mean))
        return self.answered(task, mean)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockWorld(HorizontalWorld[State]):
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

    def reissued(self, state: State, blocks: Mapping[int, Sequence[PermitRange]]) -> Charges:
        """Return the blocks that edges had reserved and not worked off."""
        return [
            self._reserve(edge, *block)
            for edge, reserved in sorted(blocks.items())
            for block in reserved
        ]

    def unused_permits(self, state: State, site: int, permits: Permits) -> Permits:
        """Return those of the block that holds the edge's task, and of later ones."""
        first = state.tasks[site].task if site in state.tasks else 0
        return [each for each in permits if first < each.round + each.count]

    def booked_until(self, state: State, site: int, number: int) -> bool:
        """Return whether a block in the ledger holds the task."""
        booked = self.booked(site)
        return any(each.round <= number < each.round + each.count for each in booked)

    def exhausted_sites(self, state: State) -> Collection[int]:
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
        price = self.clients[self.objects.first_of_kind[edge]].price
        unit, key = self.units[edge], f"edge {edge}/task {first}"
        charge = self.charge(unit, price, length, first, key, "gradients, reserved")
        return ChargeRequest((edge,), charge, self.budgets[edge])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgePassWorld(PassWorld, BlockWorld):
    """A simulation in which an edge's batches come in a public order: what is reserved is a pass,
    whose gradients are those of tasks k b + 1 to k b + b.
    """

    requests = HorizontalWorld.requests

    def unused_permits(self, state: State, site: int, permits: Permits) -> Permits:
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

    kind = BlockWorld
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
    def first_of_kind(self) -> list[int]:
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

    def affordable(self, ledgers: privacy.LedgerSession) -> tuple[int, ...] | None:
        """Return the updates that each edge can still pay for; None if nothing is promised."""
        if self.study.privacy.unit == "none" or self.paper:
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

    def rules(self, clients: Sequence[Any], pays: tuple[int, ...] | None) -> Asynchronous:
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
            noise=tuple(clients[i].noise for i in self.first_of_kind),
        )

    def played(self, rules: Asynchronous) -> Callable[..., HorizontalWorld[Any]]:
        """Return the kind of the simulation, in which blocks of tasks are charged, or passes."""
        return EdgePassWorld if self.study.ordered and self.noise is not None else self.kind

    def trips(self) -> Any:
        """Return the virtual time that answers take."""
        return arrival_trips(self.study.world, Seeded(self.study.seed), len(self.sizes))

    @property
    def clip(self) -> float:
        """G of the first stage."""
        stage: float = self.plan.stages[0].clip
        return stage
