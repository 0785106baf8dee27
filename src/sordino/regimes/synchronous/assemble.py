"""The objects of a study in rounds: its clients, its rules, and what a round is charged for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import msgspec
import numpy as np

from sordino.clients.assemble import STEP, Assembly
from sordino.clients.world import HorizontalWorld, PassWorld, training
from sordino.core.effect import Book, Effects, Request
from sordino.core.prepared import ELSEWHERE
from sordino.core.run.environment import charge_key_prefix
from sordino.core.world import ChargeRequest, Charges, Paid
from sordino.mechanisms.gaussian import learns
from sordino.mechanisms.shared import SharedNoise
from sordino.privacy import LedgerSession, Permits
from sordino.regimes.synchronous.aggregate import PrivateSum, SharedSum
from sordino.regimes.synchronous.method import Terms
from sordino.regimes.synchronous.methods import ClientLevel
from sordino.regimes.synchronous.protocol import Synchronous
from sordino.regimes.synchronous.records import Sum
from sordino.regimes.synchronous.records import Synchronous as Facts
from sordino.regimes.synchronous.regime import charged_per_round, rule, scales, scheduled, weights
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.training import local
from sordino.training.client import Client, PlainClient, PrivateClient
from sordino.training.passes import Blocks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundWorld(HorizontalWorld[Any]):
    """A simulation in which a round is charged to all clients at once, whoever takes part.

    One unit stands for all, or each client has its own.

    Attributes:
        life: of this process, where it draws noise anew that rounds of whole clients are charged
            for; else empty.
        blocks: of clients that take part in turn: they say who is charged for a round or its pass,
            under one key, whichever of its rounds asks first.
    """

    why: str = "a round"
    life: str = ""
    blocks: Blocks | None = None

    @property
    def charges_everybody(self) -> bool:
        """Each round is charged to all clients."""
        return True

    def requests(self, state: Any, effects: Effects, paid: Paid) -> Charges:
        """Return the round, charged to all."""
        return [one for each in effects if isinstance(each, Book) for one in self._round(each)]

    def site_requests(self, site: int, task: Request, permits: Permits) -> Charges:
        """Return the whole round, under its key.

        A round that this process has not booked itself, another one may have answered, and
        forgotten that: with noise that is drawn anew, what is computed now is another release.
        """
        asked = training(task)
        (event, _), *_ = self.clients[site].price(asked)
        booked = {permit.key for permit in permits if permit.new}
        return [
            replace(each, charge=replace(each.charge, key=each.charge.key + self.life))
            for each in self.round_requests(site, Book(asked.round, event))
            if each.charge.key not in booked
        ]

    def round_requests(self, site: int, effect: Book) -> Charges:
        """Return the round, charged to a site's own unit; nothing where it is not its turn."""
        unit = self.units[site]
        return [each for each in self._round(effect) if each.charge.unit == unit]

    def _round(self, effect: Book) -> list[ChargeRequest]:
        number, key = effect.number, f"round {effect.number}"
        sites: Sequence[int] = range(len(self.units))
        if (blocks := self.blocks) is not None:
            sites, number = blocks.charged(number, sites), blocks.number(number)
            key = key if blocks.apart else f"pass {number}"
        if sites and self.units[sites[0]] == self.units[sites[-1]]:  # one for all of them
            charge = self.charge(self.units[sites[0]], effect.fact, 1, number, key)
            everybody = len(sites) == len(self.units)
            return [ChargeRequest(None if everybody else tuple(sites), charge, self.budget)]
        return [
            ChargeRequest(
                (site,),
                self.charge(unit := self.units[site], effect.fact, 1, number, f"{key}/{unit}"),
                self.budget,
            )
            for site in sites
        ]


class RoundsAssembly(Assembly[SynchronousStudy]):
    """The objects of a calibrated study in rounds."""

    @cached_property
    def sums(self) -> SharedNoise | None:
        """The rule of the grids of sums, where clients share the noise."""
        if self.noise is None or not self.study.shared:
            return None
        return rule(self.study, self.sizes, self.kernels.flat.dim)

    def named(self) -> tuple[list[str], dict[str, str]]:
        """Return each client's unit in the ledger, and the fingerprint of each unit's data.

        Where whole clients are protected, every round charges all of them alike, or between sites
        all of a block: in a ledger of the run they share one unit. In one that knows records each
        has its own, so that who joins or leaves resets nobody's budget.
        """
        if not self.study.aggregated or self.data_records or self.mine is not None:
            return super().named()
        count = len(self.prints)
        units = ["clients"] * count
        if self.blocks is not None and self.blocks.apart:
            units = [f"block:{i % self.blocks.batches}" for i in range(count)]
        whole = self.prints.joined()
        if self.remote and all(each.startswith(ELSEWHERE) for each in self.prints):
            whole = f"elsewhere/{whole}"  # else it is a rehearsal, whose rows are here
        return units, dict.fromkeys(units, whole)

    @property
    def key_prefix(self) -> str:
        """The beginning of the keys of all charges.

        A round of whole clients is one release of the aggregator, in whatever life it is booked.
        """
        whole = self.study.aggregated
        return charge_key_prefix(self.study, self.run) if whole else super().key_prefix

    @property
    def blocks(self) -> Blocks | None:
        """Whole clients that take part in turn; None where they are drawn."""
        batches = self.study.batches
        if batches is None or not self.study.aggregated:
            return None
        return Blocks(batches, apart=self.remote)

    @property
    def clip(self) -> float:
        """C, or S, of the first round."""
        return math.inf if self.noise is None else self.noise.clip

    def affordable(self, ledgers: LedgerSession) -> tuple[int, ...] | None:
        """Return the charges that each client can still pay for; None without a limit.

        A paper's literal form keeps to the R_c it would have if its raw constants cost nothing.
        Nobody could pay the price of noisy models.
        """
        if isinstance(self.study.method, ClientLevel) and not self.study.aggregated:
            return None
        return super().affordable(ledgers)

    def affordable_steps(self, pays: tuple[int, ...] | None) -> list[int] | None:
        """Return the charges of each client, or the rounds of all, where rounds are charged."""
        return None if pays is None else [min(pays)] if self.study.aggregated else list(pays)

    def rules(self, clients: Sequence[Any], pays: tuple[int, ...] | None) -> Synchronous:
        """Return the rules of clients that can pay for so many charges each."""
        study, fixed, noise, sizes = self.study, self.sums, self.noise, self.sizes
        privacy, aggregator, affordable_rounds = study.privacy, None, None
        promised = privacy.epsilon if study.form == "sound" else None
        terms = Terms(
            dimension=self.kernels.flat.dim,
            sizes=sizes,
            weights=weights(study, sizes),
            sampling_rate=privacy.sampling_rate,
            learning_rate=study.method.learning_rate,
            clip=self.clip,
            noise=0.0 if noise is None else noise.vector_multiplier,
            rounds=study.budget.rounds,
            steps=None if pays is None or study.aggregated else min(pays),
            sigma=privacy.noise_multiplier or 0.0 if privacy.unit != "none" else 0.0,
            scales=scales(study),
            epsilon=math.inf if promised is None else promised,
            delta=privacy.delta or 0.0,
            accountant=privacy.accountant,
        )
        apart = self.blocks is not None and self.blocks.apart
        if study.aggregated and fixed is None and noise is not None:
            aggregator = PrivateSum(
                mechanism=noise,
                shares=tuple(study.shares(sizes)),
                units=tuple(self.units if apart else dict.fromkeys(self.units)),
                sampling_rate=privacy.sampling_rate,
                blocks=self.blocks,
                counted=study.counts_clients,
                entropy=self.entropy,
            )
        if pays is not None and (study.aggregated or scheduled(study)):
            # rounds are charged, or differ
            affordable_rounds = min(pays) // (charged_per_round(study) or 1)
        return Synchronous(
            method=study.method,
            terms=terms,
            budget=None if study.aggregated or pays is None else np.array(pays, np.int64),
            affordable_rounds=affordable_rounds,
            aggregator=aggregator,
            adder=None if fixed is None else SharedSum.of(study, sizes, terms.weights, fixed),
            learner=noise if learns(noise) else None,
            entropy=self.entropy,
            cohort=study.participation.cohort,
            deadline=study.participation.deadline,
            ordered=study.batches is not None and self.blocks is None,
        )

    def played(self, rules: Synchronous) -> Callable[..., HorizontalWorld[Any]]:
        """Return the kind of the simulation, in which each task is charged, or rounds are."""
        if rules.ordered and self.noise is not None:
            return PassWorld
        if self.blocks is not None:
            why = "a round" if self.blocks.apart else "a pass"
            return partial(RoundWorld, why=why, blocks=self.blocks)
        if rules.adder is None:
            return RoundWorld if rules.together else HorizontalWorld
        if not rules.together:
            return partial(HorizontalWorld, why=rules.adder.condition)
        return partial(RoundWorld, why=rules.adder.condition, life=self.life)

    def work(self, client: int, task: Request) -> float:
        """Return how much work a task is; local steps of whole clients have batches of one size."""
        method = self.study.method
        if not isinstance(method, ClientLevel):
            return super().work(client, task)
        return training(task).steps * (min(method.batch, self.sizes[client]) + STEP)

    def facts(self) -> Facts:
        """Return what the run's record says, with the grid of a shared sum."""
        found, grid, study = super().facts(), self.plan.shared, self.study
        assert isinstance(found, Facts)
        if grid is None:
            return found
        told = msgspec.convert(grid, Sum, from_attributes=True)
        told = msgspec.structs.replace(told, honest=study.honest, fewest=study.fewest)
        return msgspec.structs.replace(found, shared=told)

    def clients(self) -> Sequence[Any]:
        """Return the clients. What a user's model does with batches of their sizes is recorded now:
        a model that failed on one in a round would tell who was drawn.
        """
        found, method, mean = super().clients(), self.study.method, self.kernels.mean
        here = self.mine is not None or not self.remote
        if here and isinstance(method, ClientLevel) and not mean.known:
            own = range(len(self.sizes)) if self.mine is None else (self.mine,)
            if there := [i for i in own if self.sizes[i]]:
                sizes = {min(method.batch, self.sizes[i]) for i in there}
                mean.prepare(found[there[0]].examples, sizes)
        return found

    def client(self, index: int, common: dict[str, Any]) -> Client:
        """Return a client, by what is protected and whose noise does it."""
        method, noise, sums = self.study.method, self.noise, self.sums
        if noise is not None and sums is not None:
            weight = self.study.contribution_weights(self.sizes)[index]
            common["mechanism"] = noise
            common["part"] = local.Part(
                client=index, rule=sums, weight=weight, entropy=self.entropy
            )
            if not isinstance(method, ClientLevel):
                return local.SummedClient(**common)
        common |= {"learning_rate": method.learning_rate, "optimizer": method.optimizer}
        common["proximal"] = method.mu or 0.0
        if noise is None:
            return PlainClient(**common)
        if not isinstance(method, ClientLevel):
            each = self.study.privacy.noise_multipliers
            scaled = noise if each is None else noise.scaled(noise.clip, each[index])
            return PrivateClient(**common, mechanism=scaled, realised=method.realised)
        clip = self.study.privacy.clip if self.paper else None
        common |= {"batch": method.batch, "gradient_clip": clip}
        if not method.aggregated:
            del common["sampling_rate"]
            return local.NoisyModelClient(**common, noise_multiplier=noise.noise_multiplier)
        if sums is None:
            return local.LocalClient(**common, mechanism=noise, blocks=self.blocks)
        # in one process nobody is watched
        return local.SummedLocalClient(**common, watched=self.mine is not None)
