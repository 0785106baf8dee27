"""The objects of a study whose clients have examples of their own: its price, its ledger, its
clients, and the simulation that plays them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic

from sordino.base.entropy import Seeded
from sordino.clients.pricing import Trial, remedy
from sordino.clients.records import Horizontal
from sordino.clients.regime import HorizontalRegime
from sordino.clients.setup import SharedSetup, horizontal
from sordino.clients.simulation import (
    Rules,
    Simulation,
    round_trips,
)
from sordino.clients.study import H, SampledMethod, for_dimension
from sordino.core import regimes
from sordino.core.latency import Churn
from sordino.core.prepared import PreparedRun, budget, open_ledgers
from sordino.core.run.environment import charge_key_prefix
from sordino.data import Dataset
from sordino.privacy import LedgerSession
from sordino.privacy.records import Records
from sordino.training.dpsgd import PlainClient, PrivateClient


class Assembly(Generic[H]):
    """The objects of a calibrated study, made one after another.

    A regime whose clients are others, or are charged otherwise, has a subclass.

    Attributes:
        regime, study, setup, folder, run: of the run.
        parts: the clients' data, until it has become their tensors.
        plan: the study's price.
        noise: the mechanism; None without one.
        entropy: where batches and noise are drawn from.
        units: ledger unit of each client.
        budgets: what each client may spend in all.
        paid, usual: a charge in the singular, and what helps where none can be paid for.
        continuous: whether tasks follow each other without a moment at which nobody works.
    """

    paid: ClassVar[str] = "local step"
    continuous: ClassVar[bool] = False
    usual: ClassVar[str] = "Raise noise_multiplier or lower sampling_rate"

    def __init__(
        self,
        regime: HorizontalRegime[H],
        study: H,
        setup: SharedSetup,
        parts: list[Dataset],
        folder: Path,
        run: str,
    ) -> None:
        flat, sizes = setup.kernels.flat, setup.sizes
        self.regime, self.study, self.setup = regime, study, setup
        self.parts, self.folder, self.run = parts, folder, run
        self.plan, self.noise = regime.price(for_dimension(study, flat.dim), sizes, flat.dim), None
        if study.privacy.unit != "none" and regime.bounded(study):
            trial = Trial.of(setup.kernels, setup.validation)
            self.noise = regime.mechanism(study, sizes, trial)
            self.plan = regime.announced(self.plan, study, self.noise, sizes)
        self.entropy = setup.entropy(study, run, folder)
        self.units, self.prints = self.named()
        self.budgets = [budget(study, epsilon) for epsilon in study.epsilons[: len(sizes)]]

    def named(self) -> tuple[list[str], dict[str, str]]:
        """Return each client's unit in the ledger, and the fingerprint of each unit's data."""
        units = [f"client:{i}" for i in range(len(self.setup.fingerprints))]
        return units, dict(zip(units, self.setup.fingerprints, strict=True))

    def clients(self) -> Sequence[Any]:
        """Return the clients, private ones where there is noise, and empty ``parts``."""
        method, found = self.study.method, list[Any]()
        assert isinstance(method, SampledMethod)
        rates = self.regime.rates(self.study, self.setup.sizes)
        self.parts.reverse()
        while self.parts:
            index = len(found)
            given: dict[str, Any] = {
                "index": index,
                "unit": self.units[index],
                "examples": self.setup.examples(self.parts.pop()),
                "sampling_rate": rates[index],
                "learning_rate": method.learning_rate,
                "optimizer": method.optimizer,
                "kernels": self.setup.kernels,
                "entropy": self.entropy,
            }
            found.append(
                PlainClient(**given)
                if self.noise is None
                else PrivateClient(**given, mechanism=self.noise)
            )
        return found

    def records(self) -> Sequence[Records]:
        """Return who is in each client's data, as the ledger asks."""
        return self.setup.records

    def affordable(self, clients: Sequence[Any], ledgers: LedgerSession) -> tuple[int, ...] | None:
        """Return the charges that each client can still pay for; None without a limit."""
        steps = self.plan.steps
        if steps is None:
            return None
        if ledgers.prices is None or self.study.form == "paper":
            return (steps,) * len(dict.fromkeys(self.units))
        asked = self.regime.schedule(self.study, self.setup.sizes)
        alone = (
            self.study.data.person is None
            and len(set(self.budgets)) == 1
            and len(set(ledgers.names.values())) == len(ledgers.names)
        )
        left: Mapping[str, int | None] = asked.affordable_in(ledgers, alone=alone)
        each = [left.get(unit) for unit in dict.fromkeys(self.units)]
        return tuple(steps if most is None else most for most in each)

    def rules(self, clients: Sequence[Any], pays: tuple[int, ...] | None) -> Rules[Any]:
        """Return the rules of clients that can pay for so many charges each."""
        return self.regime.protocol(self.study, self.setup.sizes, pays)

    def played(self, rules: Any) -> Callable[..., Simulation[Any]]:
        """Return the kind of the simulation, which says what is charged for tasks."""
        return Simulation

    def affordable_steps(self, pays: tuple[int, ...] | None) -> list[int] | None:
        """Return what a record of the run keeps of what clients can pay for."""
        return None if pays is None else list(pays)

    def trips(self) -> Any:
        """Return the virtual time that answers take."""
        world = self.study.world
        churn = Churn(dropout=world.dropout, rejoin=world.rejoin)
        return round_trips(world.latency, churn, Seeded(self.study.seed))

    @property
    def clip(self) -> float:
        """C, or S, of the first round."""
        return self.study.privacy.clip

    @property
    def key_prefix(self) -> str:
        """The beginning of the keys of all charges."""
        return self.setup.charge_key_prefix(self.study, self.run)

    def facts(self) -> Horizontal:
        """Return what the run's record says of its regime."""
        kind = regimes.facts(self.regime.name)
        assert issubclass(kind, Horizontal)
        return horizontal(kind, self.study, self.setup, self.plan, self.units, self.clip)

    def built(self, affordable_steps: Sequence[int] | None) -> PreparedRun:
        """Return everything that a run needs.

        Args:
            affordable_steps: what clients could pay for when the run began, if it has begun before.
        """
        study, setup = self.study, self.setup
        clients = self.clients()
        ledgers = open_ledgers(
            study,
            self.folder,
            self.run,
            setup.units(self.prints),
            setup.shaping,
            self.records(),
            labels=setup.labels(self.units),
            public=setup.published(study),
        )
        tested = setup.evaluation(study, ledgers, self.entropy, charge_key_prefix(study, self.run))
        pays = (
            self.affordable(clients, ledgers)
            if affordable_steps is None
            else tuple(affordable_steps)
        )
        rules = self.rules(clients, pays)
        simulation = self.played(rules)(
            regime=rules,
            clients=clients,
            units=self.units,
            ledgers=ledgers,
            budget=budget(study, study.privacy.epsilon),
            budgets=self.budgets,
            affordable_steps=self.affordable_steps(pays),
            trips=self.trips(),
            evaluate=setup.measured(tested),
            stride=study.stride,
            method=study.method.name,
            charge_key_prefix=self.key_prefix,
            continuous=self.continuous,
        )
        return setup.built(
            study,
            self.plan,
            simulation,
            simulation.first(setup.first()),
            facts=self.facts(),
            paid="round" if study.privacy.unit == "client" else self.paid,
            remedy=remedy(study, self.usual),
            evaluation=tested,
        )
