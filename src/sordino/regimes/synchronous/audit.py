"""Canaries in a study in rounds: examples of one client, or clients of their own.

Where whole clients are protected, clients are added whose update has length S on one number of the
vector, another for each. A coin decides for each whether it is really there; if not, it adds
nothing and is counted in the divisor, as the ledger's adjacency has it. One run follows, by the
study's own kernel, aggregator and ledger. The adversary sees what the aggregator releases in every
round, and knows what all others have added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from sordino.audit import canaries as examples
from sordino.audit.bounds import Scores
from sordino.audit.intervals import Interval, Row, alone
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Contribution, Train, Vector
from sordino.clients.assemble import model
from sordino.clients.division import federation
from sordino.clients.world import HorizontalWorld
from sordino.core.prepared import PreparedRun
from sordino.privacy import Permits
from sordino.regimes.synchronous.methods import ClientLevel
from sordino.regimes.synchronous.protocol import Synchronous
from sordino.regimes.synchronous.regime import scheduled
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.training.local import LocalClient

MOST = 4000
"""Clients that are planted: each takes part with a vector of its own."""


@dataclass(eq=False)
class Sent:
    """The sum of what canaries have added to a round.

    Attributes:
        places: (m,), the number of the vector that each one's update lies on.
        round: (m,), what each has added on it since the last release.
    """

    places: torch.Tensor
    round: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.round = torch.zeros(len(self.places), dtype=torch.float64)

    def without(self, total: torch.Tensor) -> torch.Tensor:
        """Return what all others have added, and forget the round."""
        others = total[self.places] - self.round
        self.round.zero_()
        return others


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CanaryClient(LocalClient):
    """A client whose update is a canary.

    Attributes:
        canary: which, from 0.
        there: whether it is there.
        sent: where it says what it adds.
    """

    canary: int
    there: bool
    sent: Sent

    def answer(self, task: Train, permits: Permits) -> Contribution:
        """Send the canary, or nothing where it is not there."""
        self.use_permits(task, permits)
        delta: Vector = np.zeros(len(task.weights), np.float32)
        if self.there:
            # shortened by the mechanism itself
            bound, place = self._bound(task), int(self.sent.places[self.canary])
            one = torch.zeros(len(task.weights))
            one[place] = 1e3 * bound.clip
            delta = bound.bounded(one)[0].numpy()
            self.sent.round[self.canary] = float(delta[place])
        return Contribution(
            client=self.index, round=task.round, steps=task.steps, delta=delta, inside=True
        )


def rows(study: SynchronousStudy, canaries: int, name: str) -> Sequence[Row]:
    """Return the rows of one study, with at most so many canaries in a run."""
    seen, last = f"{name}, every release seen", f"{name}, model at the end"
    if study.shared:
        raise StudyError(
            "privacy.noise: --attack canaries plants clients and examples where one adds the noise "
            "alone; set privacy.noise = 'own', and see --attack mechanism for shared noise"
        )
    if study.privacy.unit == "client":
        _refuse(study)
        return [lambda alpha: clients(study, canaries, alpha, seen)]
    examples.refuse(study)
    return [
        lambda alpha: examples.white_box(study, canaries, alpha, seen),
        lambda alpha: examples.black_box(study, canaries, alpha, last),
    ]


def _refuse(study: SynchronousStudy) -> None:
    method = study.method
    if not isinstance(method, ClientLevel) or not study.aggregated or study.form != "sound":
        raise StudyError(
            f"method.name = {method.name!r}: --attack canaries plants clients where an aggregator "
            "covers their sum with noise, as in dp-fedavg"
        )
    if method.weights != "equal" or method.clipping != "fixed" or scheduled(study):
        raise StudyError(
            "method: --attack canaries plants clients of equal weight under one bound; set weights "
            "= 'equal', clipping = 'fixed' and no schedule"
        )
    if study.participation.deadline is not None or study.world.dropout:
        # what the adversary takes off a sum must be what was in it
        raise StudyError(
            "participation.deadline, world.dropout: --attack canaries plants clients whose answers "
            "all arrive; leave both out"
        )


def clients(study: SynchronousStudy, canaries: int, alpha: float, name: str) -> Interval:
    """One run with planted clients, by an adversary who sees every release of the aggregator.

    Raises:
        StudyError: if its noise differs from number to number.
    """
    study = alone(study)
    divided = federation(study)
    own = model(study, divided.test.shape, divided.test.outputs)
    m = min(canaries, MOST, sum(each.numel() for each in own.parameters()))
    coins = Seeded(study.seed).at("audit", "clients", "coins").random(m) < 0.5
    many = study.data.model_copy(update={"clients": len(divided.parts) + m})
    more = study.model_copy(update={"data": many})
    plant = partial(_planted, len(divided.parts), coins)
    one = divided.parts[0].take(np.zeros(1, np.int64))  # nobody looks at what a canary holds
    joined = replace(divided, parts=(*divided.parts, *(one for _ in range(m))), names=())
    return examples.attacked(more, joined, plant, (name, "client", "white box"), alpha)


def _planted(real: int, coins: examples.Coins, built: PreparedRun) -> examples.Planted:
    """Return the run with canaries for the clients from ``real`` on."""
    simulation = built.simulation
    assert isinstance(simulation, HorizontalWorld)
    rules = simulation.regime
    assert isinstance(rules, Synchronous)
    aggregator = rules.aggregator
    assert aggregator is not None
    sent = Sent(torch.arange(len(coins)))
    planted = [
        CanaryClient(**_told(each), canary=i, there=bool(coins[i]), sent=sent)
        for i, each in enumerate(simulation.clients[real:])
    ]
    seen = examples.Watched(aggregator.mechanism, sent.without, sent.places)
    regime = replace(rules, aggregator=replace(aggregator, mechanism=seen))
    everybody = [*simulation.clients[:real], *planted]
    played = replace(simulation, regime=regime, clients=everybody)
    rate, blocks = aggregator.sampling_rate, aggregator.blocks

    def scores(_: Vector) -> Scores:
        if blocks is None:
            return examples.likelihoods(seen.seen, rate)
        return examples.likelihoods_in_order(seen, real, blocks.batches)

    return replace(built, simulation=played), scores, coins


def _told(client: object) -> dict[str, Any]:
    """The fields of a client."""
    assert isinstance(client, LocalClient)
    return {each.name: getattr(client, each.name) for each in fields(client)}


ROWS = rows
