"""What regimes share in which every client has examples of its own, and all train one model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import torch

from sordino.data import Dataset
from sordino.engine import regimes
from sordino.engine.built import Built
from sordino.engine.plan import Plan
from sordino.engine.regime import Regime
from sordino.federation.balance import left
from sordino.federation.division import Federation, federation, model, tensors
from sordino.federation.promise import resting_on, testing
from sordino.federation.setup import SharedSetup
from sordino.federation.study import HorizontalStudy, for_dimension
from sordino.mechanism import Bounded
from sordino.privacy import Budget, Event
from sordino.training.flat import Flat
from sordino.training.kernels import ModelKernels
from sordino.training.loss import loss_for
from sordino.training.perexample import ClippedSum, MeanGradient, path_of

H = TypeVar("H", bound=HorizontalStudy)

Tensors = tuple[torch.Tensor, torch.Tensor]
Spending = tuple[tuple[Event, int], ...]

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
        """The same study with its noise filled in, if it was left out, for clients of these
        sizes.
        """

    @abstractmethod
    def price(self, study: H, sizes: Sequence[int], dimension: int) -> Plan:
        """The plan of a study over clients of these sizes and a model of this dimension."""

    @abstractmethod
    def mechanism(
        self, study: H, sizes: Sequence[int], kernels: ModelKernels, public: Tensors
    ) -> Bounded:
        """The mechanism that a calibrated study begins with; ``public`` are its validation
        examples.
        """

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
    ) -> Built:
        """See :meth:`~sordino.engine.regime.Regime.build`; ``parts`` is emptied on the way, so that
        the pixels are kept once.
        """

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
        """So many charges of a client that draws with this rate, where one release at ``sigma`` is
        ``true``.
        """

    def epsilons(self, study: H) -> tuple[float, ...]:
        """What each client may spend."""
        return (study.privacy.epsilon or 0.0,) * study.data.clients

    def steps(
        self, study: H, sizes: Sequence[int], client: int, own: Budget, before: Spending
    ) -> int | None:
        """Charges that a client can still pay for after what it has spent; None without a limit."""
        return own.remaining_steps(
            self.event(study, sizes, client, study.privacy.noise_multiplier or 0.0), before
        )

    def bounded(self, study: H) -> bool:
        """Whether what clients send goes through the mechanism; a paper's literal form may have
        none.
        """
        return True

    def scheduled(self, study: H) -> bool:
        """Whether charges differ along a public schedule."""
        return False

    def whole(self, study: H) -> bool:
        """Whether whole clients are protected by noise on their sum."""
        return False

    def sized(self, study: H, divided: Federation | None = None) -> H:
        """The same study with its model's size told to a mechanism whose price depends on it; its
        data, where it is loaded already.
        """
        if study.privacy.unit == "none" or not study.privacy.mechanism.sized:
            return study
        test = (divided or federation(study)).test
        return for_dimension(study, Flat(model(study, test.shape, len(test.classes))).dim)

    def calibrated(self, study: H) -> H:
        """See :class:`~sordino.engine.regime.Regime`."""
        return self.calibrate(self.sized(study), ())

    def plan(self, study: H) -> tuple[Plan, tuple[int, ...]]:
        """See :class:`~sordino.engine.regime.Regime`."""
        divided = federation(study)
        flat = Flat(model(study, divided.test.shape, len(divided.test.classes)))
        priced, loss = (
            self.price(for_dimension(study, flat.dim), divided.sizes, flat.dim),
            loss_for(study.model.name),
        )
        if study.privacy.unit == "none":
            return priced, divided.sizes
        if study.privacy.unit == "sample":
            path = path_of(flat, divided.test.shape, loss)
            priced = replace(priced, gradients=f"{path.name} ({path.why}): {path.cost}")
        kernels, public = (
            ModelKernels(flat, ClippedSum(flat, loss), MeanGradient(flat, loss)),
            tensors(divided.validation, torch.device("cpu")),
        )
        full = self.calibrate(for_dimension(study, flat.dim), divided.sizes)
        if self.bounded(full):
            priced = self.announced(
                priced, full, self.mechanism(full, divided.sizes, kernels, public), divided.sizes
            )
        priced = replace(priced, warnings=(*priced.warnings, *_of_persons(full, divided)))
        return left(self, full, divided, priced), divided.sizes

    def build(self, study: H, folder: Path, run: str, payable: Sequence[int] | None) -> Built:
        """See :class:`~sordino.engine.regime.Regime`."""
        divided = federation(study)
        full = self.calibrate(self.sized(study, divided), divided.sizes)
        setup, parts = SharedSetup.of(full, divided), list(divided.parts)
        del divided  # each part is let go of when it has become a client's tensors
        return self.assemble(full, setup, parts, folder, run, payable)

    def assumptions(self, study: H) -> list[str]:
        """See :class:`~sordino.engine.regime.Regime`."""
        return resting_on(study)

    def remarks(self, study: H) -> list[str]:
        """What is said of the test set before a run, where its rows are a user's own."""
        if study.data.testing == "published":
            return []
        return [testing(study) + (f" {MEASURE}" if study.data.testing == "none" else "")]


def of(study: H) -> HorizontalRegime[H]:
    """The regime of a study whose clients have examples of their own."""
    found = regimes.of(study)
    assert isinstance(found, HorizontalRegime)
    return found


def _of_persons(study: HorizontalStudy, divided: Federation) -> list[str]:
    """What a plan, which counts examples by themselves, cannot say of persons with several."""
    if study.data.person is None or study.privacy.unit != "sample":
        return []
    whose = np.concatenate([part.words[:, 2] for part in divided.parts if part.words is not None])
    most = int(np.unique(whose, return_counts=True)[1].max(initial=0))
    if most <= 1:
        return []
    return [
        f"data.person: one person has up to {most} examples, which share one budget, at all "
        "clients together. This plan counts"
        " examples by themselves: such a person's budget is spent sooner, and the run then "
        "ends sooner. Raise noise_multiplier"
    ]
