"""What regimes share in which every client has examples of its own, and all train one model."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from sordino.base.entropy import Seeded
from sordino.clients.balance import left
from sordino.clients.division import (
    Division,
    Federation,
    examples,
    federation,
    identified,
    loss_of,
    model,
    tensors,
)
from sordino.clients.mechanism import Trial
from sordino.clients.promise import resting_on, testing
from sordino.clients.study import HorizontalStudy, for_dimension
from sordino.core import regimes
from sordino.core.plan import Plan
from sordino.core.prepared import PreparedRun
from sordino.core.regimes import Regime
from sordino.data import Dataset
from sordino.privacy import Budget, Event
from sordino.privacy.records import Burden
from sordino.training.outline import MAPPED, Outline, outline

if TYPE_CHECKING:  # a plan of a built-in model does not wait for torch
    from torch import Tensor

    from sordino.clients.setup import SharedSetup
    from sordino.core.network import NetworkRegime
    from sordino.mechanisms import Bounded
    from sordino.training.client import ModelKernels
    from sordino.training.flat import Flat

H = TypeVar("H", bound=HorizontalStudy)

MEASURE = (
    "For an accuracy set data.test = 'private share' (with noise, at a price), 'public "
    "share' or 'file'."
)


class HorizontalRegime(Regime[H]):
    """A regime whose clients have examples of their own.

    Attributes:
        charged: what a client pays for, in the plural.
    """

    charged: ClassVar[str] = "local steps"

    @abstractmethod
    def calibrate(self, study: H, sizes: Sequence[int]) -> H:
        """The same study with its noise filled in, for clients of these sizes."""

    @abstractmethod
    def price(self, study: H, sizes: Sequence[int], dimension: int) -> Plan:
        """The plan of a study over clients of these sizes and a model of this dimension."""

    @abstractmethod
    def mechanism(self, study: H, sizes: Sequence[int], trial: Trial) -> Bounded:
        """The mechanism that a calibrated study begins with; ``trial`` has public examples."""

    @abstractmethod
    def announced(self, priced: Plan, study: H, noise: Bounded, sizes: Sequence[int]) -> Plan:
        """The plan with what a literal form claims beside what it gives."""

    @abstractmethod
    def assemble(
        self,
        study: H,
        setup: SharedSetup,
        parts: list[Dataset],
        folder: Path,
        run: str,
        payable: Sequence[int] | None,
    ) -> PreparedRun:
        """See :meth:`~sordino.core.regimes.Regime.build`; empties ``parts``, to save memory."""

    @abstractmethod
    def rates(self, study: H, sizes: Sequence[int]) -> tuple[float, ...]:
        """q of every client."""

    @abstractmethod
    def wanted(self, study: H) -> int:
        """Charges of a client that the study asks for, whatever its budget pays for."""

    @abstractmethod
    def event(self, study: H, sizes: Sequence[int], client: int, sigma: float) -> Event:
        """One charge of a client at this noise multiplier."""

    @abstractmethod
    def spending(
        self, study: H, true: Event, sigma: float, rate: float, charges: int
    ) -> Sequence[tuple[Event, int]]:
        """So many charges of a client of this rate, where one release at ``sigma`` is ``true``."""

    def epsilons(self, study: H) -> tuple[float, ...]:
        """What each client may spend."""
        return (study.privacy.epsilon or 0.0,) * study.data.clients

    def steps(self, study: H, sizes: Sequence[int], own: Budget, burden: Burden) -> int | None:
        """Charges that these records can still pay for; None without a limit."""
        sigma = study.privacy.noise_multiplier or 0.0
        event = burden.of(lambda client: self.event(study, sizes, client, sigma))
        return own.remaining_steps(event, burden.spent)

    def bounded(self, study: H) -> bool:
        """Whether the mechanism bounds what clients send; a paper's literal form may have none."""
        return True

    def scheduled(self, study: H) -> bool:
        """Whether charges differ along a public schedule."""
        return False

    def whole(self, study: H) -> bool:
        """Whether whole clients are protected by noise on their sum."""
        return False

    def sized(self, study: H, divided: Federation | None = None) -> H:
        """The same study, its mechanism told the model's size where its price depends on it."""
        if study.privacy.unit == "none" or not study.privacy.mechanism.sized:
            return study
        return for_dimension(
            study,
            _outline(
                study,
                Division.of(study, lambda: federation(examples(study)))
                if divided is None
                else Division.told(divided),
            ).dim,
        )

    def calibrated(self, study: H) -> H:
        """See :class:`~sordino.core.regimes.Regime`."""
        return self.calibrate(self.sized(study), ())

    def plan(self, study: H) -> tuple[Plan, tuple[int, ...]]:
        """See :class:`~sordino.core.regimes.Regime`."""
        whole = functools.cache(lambda: federation(examples(study)))
        told = Division.of(study, whole)
        known, sizes = _outline(study, told), told.sizes
        if study.world.latency.reads:  # whether its file can be used
            study.world.latency.tasks(Seeded(study.seed), len(sizes))
        sized = for_dimension(study, known.dim)
        priced = self.price(sized, sizes, known.dim)
        if (absent := _absent_device(study)) is not None:
            priced = replace(priced, warnings=(*priced.warnings, absent))
        if study.privacy.unit == "none":
            return priced, sizes
        if study.privacy.unit == "sample":
            path = known.path
            priced = replace(priced, gradients=f"{path.name} ({path.why}): {path.cost}")
        full = self.calibrate(sized, sizes)
        if self.bounded(full):
            trial = Trial(known.parameters, lambda: _trained_on(study, federation(study)))
            noise = self.mechanism(full, sizes, trial)
            priced = self.announced(priced, full, noise, sizes)
        if not identified(full):
            return priced, sizes
        return left(self, full, whole(), priced), sizes

    def build(self, study: H, folder: Path, run: str, payable: Sequence[int] | None) -> PreparedRun:
        """See :class:`~sordino.core.regimes.Regime`."""
        return self.assembled(study, federation(study), folder, run, payable)

    def assembled(
        self,
        study: H,
        divided: Federation,
        folder: Path,
        run: str,
        payable: Sequence[int] | None,
        *,
        mine: int | None = None,
    ) -> PreparedRun:
        """The objects of a study over this data; at the site of client ``mine``, or for all."""
        full = self.calibrate(self.sized(study, divided), divided.sizes)
        from sordino.clients.setup import SharedSetup

        setup = replace(SharedSetup.of(full, divided), mine=mine)
        parts = list(divided.parts)
        del divided  # each part is let go of when it has become a client's tensors
        return self.assemble(full, setup, parts, folder, run, payable)

    @property
    def network(self) -> NetworkRegime:
        """See :class:`~sordino.core.regimes.Regime`: every site is a client."""
        from sordino.clients.network import HorizontalNetwork

        return HorizontalNetwork(self)

    def assumptions(self, study: H) -> list[str]:
        """See :class:`~sordino.core.regimes.Regime`."""
        return resting_on(study)

    def remarks(self, study: H) -> list[str]:
        """What is said of the test set before a run, where its rows are a user's own."""
        if study.data.published:
            return []
        return [testing(study) + (f" {MEASURE}" if study.data.testing == "none" else "")]


def of(study: H) -> HorizontalRegime[H]:
    """The regime of a study whose clients have examples of their own."""
    found = regimes.of(study)
    assert isinstance(found, HorizontalRegime)
    return found


def _absent_device(study: HorizontalStudy) -> str | None:
    """Why this machine cannot run a study on its device; None if it can."""
    if study.execution.device in ("auto", "cpu"):
        return None
    from sordino.core.run.environment import absent_device

    return absent_device(study)


def _outline(study: HorizontalStudy, told: Division) -> Outline:
    """The study's model as a plan needs it; a model that is not built in is made and tried."""
    if (known := outline(study.model.name, told.shape, told.classes)) is not None:
        return known
    from sordino.training.perexample import path_of

    flat = _flat(study, told)
    sizes = tuple(slot.size for slot in flat.layout)
    # How gradients are computed is tried out only where it is told.
    tried = study.privacy.unit == "sample"
    path = path_of(flat, told.shape, loss_of(study)) if tried else MAPPED
    return Outline(sizes, path)


def _flat(study: HorizontalStudy, told: Division) -> Flat:
    """The study's model, made."""
    from sordino.training.flat import Flat

    return Flat(model(study, told.shape, told.classes))


def _trained_on(
    study: HorizontalStudy, divided: Federation
) -> tuple[ModelKernels, tuple[Tensor, Tensor]]:
    """Kernels of the study's model, and its validation examples."""
    import torch

    from sordino.training.client import ModelKernels
    from sordino.training.perexample import ClippedSum, MeanGradient

    flat, loss = _flat(study, Division.told(divided)), loss_of(study)
    kernels = ModelKernels(flat, ClippedSum(flat, loss), MeanGradient(flat, loss))
    return kernels, tensors(divided.validation, torch.device("cpu"))
