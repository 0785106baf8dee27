"""Regimes in which a client's every charge is one step of DP-SGD on a Poisson sample of its
examples, at one noise multiplier: what is left to say of such a regime is who works when.

A regime of this kind is a :class:`SampledRegime` with a protocol, ``start`` and ``wanted``;
docs/own-regime.md shows one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, TypeVar

from pydantic import Field, SerializeAsAny, model_validator

from sordino.base.entropy import Entropy, Seeded
from sordino.clients import pricing
from sordino.clients.facts import horizontal
from sordino.clients.mechanism import Trial, as_good, in_words
from sordino.clients.records import Horizontal
from sordino.clients.regime import HorizontalRegime
from sordino.clients.setup import SharedSetup
from sordino.clients.simulation import Clients, Protocol, Simulation, TrainingMoment
from sordino.clients.study import HorizontalStudy, SampledPromise, for_dimension
from sordino.core import regimes
from sordino.core.latency import Churn
from sordino.core.method import Method
from sordino.core.plan import Plan
from sordino.core.prepared import PreparedRun, budget, open_ledgers
from sordino.core.run.environment import charge_key_prefix, protective
from sordino.core.statements import Paragraph
from sordino.data import Dataset
from sordino.mechanisms import Bounded, NoiseRequest
from sordino.privacy import Event, PoissonSampled, accountant
from sordino.training.client import Client, Examples, ModelKernels
from sordino.training.dpsgd import PlainClient, PrivateClient
from sordino.training.optimizer import Optimizer, Sgd


class SampledMethod(Method):
    """A method whose clients take local steps.

    Attributes:
        learning_rate: eta.
        optimizer: of the local steps, on noisy gradients.
    """

    learning_rate: float = Field(0.1, gt=0, allow_inf_nan=False)
    optimizer: SerializeAsAny[Optimizer] = Sgd()


class SampledStudy(HorizontalStudy):
    """A study of such a regime; ``horizon`` is left to its subclass."""

    method: SerializeAsAny[SampledMethod]
    privacy: SampledPromise

    @model_validator(mode="after")
    def _of_examples(self) -> SampledStudy:
        if self.privacy.unit == "client":
            raise ValueError("privacy.unit must be 'sample' or 'none': examples are protected")
        if self.world.latency.on_arrival:
            raise ValueError(
                f"world.latency.kind '{self.world.latency.kind}' is for methods that work on "
                "arrival"
            )
        return self


P = TypeVar("P", bound=SampledStudy)


class SampledRegime(HorizontalRegime[P]):
    """See the module."""

    @abstractmethod
    def wanted(self, study: P) -> int:
        """Steps of the client that takes most."""

    @abstractmethod
    def protocol(self, study: P, sizes: Sequence[int], payable: tuple[int, ...] | None) -> Protocol:
        """The rules, for clients of these sizes that can pay for so many steps (None: no limit)."""

    def rates(self, study: P, sizes: Sequence[int]) -> tuple[float, ...]:
        """See :class:`HorizontalRegime`."""
        return (study.privacy.sampling_rate,) * len(sizes)

    def event(self, study: P, sizes: Sequence[int], client: int, sigma: float) -> Event:
        """See :class:`HorizontalRegime`."""
        return pricing.step(study, sigma)

    def spending(
        self, study: P, true: Event, sigma: float, rate: float, charges: int
    ) -> Sequence[tuple[Event, int]]:
        """See :class:`HorizontalRegime`."""
        return [(PoissonSampled(sampling_rate=rate, event=true), charges)]

    def calibrate(self, study: P, sizes: Sequence[int]) -> P:
        """See :class:`HorizontalRegime`."""
        return pricing.calibrate(study, self.wanted(study))

    def price(self, study: P, sizes: Sequence[int], dimension: int) -> Plan:
        """See :class:`HorizontalRegime`."""
        return pricing.price(study, sizes, dimension, self.wanted(study))

    def told(self, study: P, plan: Plan) -> Sequence[Paragraph]:
        """See :class:`~sordino.core.regimes.Regime`."""
        return pricing.told(study, plan, regimes.vocabulary(self.name))

    def mechanism(self, study: P, sizes: Sequence[int], trial: Trial) -> Bounded:
        """See :class:`HorizontalRegime`."""
        privacy = study.privacy
        return privacy.mechanism.made(
            NoiseRequest(
                unit=privacy.unit,
                clip=privacy.clip,
                noise_multiplier=privacy.noise_multiplier or 0.0,
                parameters=trial.parameters,
                energies=trial.energies if study.data.validation else None,
            )
        )

    def announced(self, priced: Plan, study: P, noise: Bounded, sizes: Sequence[int]) -> Plan:
        """See :class:`HorizontalRegime`."""
        privacy, true, sigma = study.privacy, noise.event(), priced.noise_multiplier
        if (
            as_good(true, privacy.mechanism.event(sigma))
            or priced.used is None
            or privacy.delta is None
        ):
            return priced
        spent = self.spending(study, true, sigma, privacy.sampling_rate, priced.used)
        return priced.exposed(
            "privacy.mechanism.form",
            accountant(privacy.accountant).epsilon(spent, privacy.delta),
            in_words(true),
        )

    def assemble(
        self,
        study: P,
        setup: SharedSetup,
        parts: list[Dataset],
        folder: Path,
        run: str,
        payable: Sequence[int] | None,
    ) -> PreparedRun:
        """See :class:`HorizontalRegime`."""
        privacy, sizes, kernels = study.privacy, setup.sizes, setup.kernels
        full = for_dimension(study, kernels.flat.dim)
        priced, noise = self.price(full, sizes, kernels.flat.dim), None
        if privacy.unit != "none":
            noise = self.mechanism(study, sizes, Trial.of(kernels, setup.validation))
            priced = self.announced(priced, study, noise, sizes)
        own, line = protective(study, run, setup.shaping, folder), charge_key_prefix(study, run)
        units = tuple(f"client:{i}" for i in range(len(sizes)))
        prints = setup.units(dict(zip(units, setup.fingerprints, strict=True)))
        ledgers = open_ledgers(
            study,
            folder,
            run,
            prints,
            setup.shaping,
            setup.records,
            labels=setup.labels(units),
            public=setup.published(study),
        )
        tested = setup.evaluation(study, ledgers, own, line)
        most = budget(study, privacy.epsilon)
        pays = (
            pricing.payable(
                priced, ledgers, units, pricing.step(full, priced.noise_multiplier), most
            )
            if payable is None
            else tuple(payable)
        )
        simulation = Simulation(
            regime=self.protocol(study, sizes, pays),
            given=Clients(
                clients=self.clients(study, setup, parts, units, noise, own),
                units=units,
                pays=pays,
                clip=privacy.clip,
                latency=study.world.latency,
                churn=Churn(dropout=study.world.dropout, rejoin=study.world.rejoin),
                entropy=Seeded(study.seed),
                evaluate=setup.measured(tested),
                stride=study.stride,
                method=study.method.name,
                charge_key_prefix=line,
            ),
            ledgers=ledgers,
            budget=most,
        )
        kind = regimes.facts(self.name)
        assert issubclass(kind, Horizontal)
        return setup.built(
            study,
            priced,
            simulation,
            TrainingMoment(simulation.regime.start(setup.first())),
            facts=horizontal(kind, study, setup, priced, simulation),
            paid="local step",
            remedy="Raise noise_multiplier or lower sampling_rate",
            evaluation=tested,
        )

    def clients(
        self,
        study: P,
        setup: SharedSetup,
        parts: list[Dataset],
        units: Sequence[str],
        noise: Bounded | None,
        entropy: Entropy,
    ) -> tuple[Client, ...]:
        """The clients, private ones where there is noise; ``parts`` is emptied on the way."""
        found: list[Client] = []
        parts.reverse()
        while parts:
            shared = _Shared(
                index=len(found),
                unit=units[len(found)],
                examples=setup.examples(parts.pop()),
                sampling_rate=study.privacy.sampling_rate,
                learning_rate=study.method.learning_rate,
                optimizer=study.method.optimizer,
                kernels=setup.kernels,
                entropy=entropy,
            )
            found.append(
                PlainClient(**shared) if noise is None else PrivateClient(**shared, mechanism=noise)
            )
        return tuple(found)


class _Shared(TypedDict):
    """What every client has."""

    index: int
    unit: str
    examples: Examples
    sampling_rate: float
    learning_rate: float
    optimizer: Optimizer
    kernels: ModelKernels
    entropy: Entropy
