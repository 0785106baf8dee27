"""Studies whose gradients are applied as they arrive: MAPA, AUDP, and their baselines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.clients.division import examples, federation
from sordino.clients.mechanism import Trial
from sordino.clients.promise import BATCHES, resting_on
from sordino.clients.regime import HorizontalRegime
from sordino.core.method import Method
from sordino.core.plan import Plan, step_event
from sordino.core.prepared import PreparedRun
from sordino.core.statements import Paragraph
from sordino.data import Dataset
from sordino.privacy import Budget, Event, PoissonSampled
from sordino.privacy.records import Burden
from sordino.regimes.asynchronous import contract, mechanism, narrate, plan
from sordino.regimes.asynchronous import methods as _methods  # noqa: F401  (registers them)
from sordino.regimes.asynchronous.study import AsynchronousStudy
from sordino.regimes.asynchronous.template import TEMPLATE

if TYPE_CHECKING:
    from sordino.clients.setup import SharedSetup
    from sordino.mechanisms import Bounded

OF_EDGES = (
    "The sizes of the edges' data sets are public: with the expected batch b they set the "
    "sampling rates b / n_k.",
    "It is public when and how often an edge answers. This is assumed to be independent of "
    "its data.",
    BATCHES,
)


class AsynchronousRegime(HorizontalRegime[AsynchronousStudy]):
    """Edges send gradients when they are ready, and the server applies each as it arrives."""

    name = "asynchronous"
    study = AsynchronousStudy
    budget = "updates"
    template = TEMPLATE
    charged = "gradients"

    def calibrate(self, study: AsynchronousStudy, sizes: Sequence[int]) -> AsynchronousStudy:
        """See :class:`HorizontalRegime`."""
        return plan.calibrate(study, sizes)

    def calibrated(self, study: AsynchronousStudy) -> AsynchronousStudy:
        """See :class:`~sordino.core.regimes.Regime`: sampling rates follow from examples."""
        return plan.calibrate(self.sized(study), federation(examples(study)).sizes)

    def price(self, study: AsynchronousStudy, sizes: Sequence[int], dimension: int) -> Plan:
        """See :class:`HorizontalRegime`."""
        return plan.price(study, sizes, dimension)

    def mechanism(self, study: AsynchronousStudy, sizes: Sequence[int], trial: Trial) -> Bounded:
        """See :class:`HorizontalRegime`."""
        return mechanism.edge_mechanism(study, trial)

    def announced(
        self, priced: Plan, study: AsynchronousStudy, noise: Bounded, sizes: Sequence[int]
    ) -> Plan:
        """See :class:`HorizontalRegime`."""
        return mechanism.announced(priced, study, noise, sizes)

    def assemble(
        self,
        study: AsynchronousStudy,
        setup: SharedSetup,
        parts: list[Dataset],
        folder: Path,
        run: str,
        payable: Sequence[int] | None,
    ) -> PreparedRun:
        """See :class:`HorizontalRegime`."""
        from sordino.regimes.asynchronous import assemble  # a plan does not wait for what trains

        return assemble.build(study, setup, parts, folder, run, payable)

    def rates(self, study: AsynchronousStudy, sizes: Sequence[int]) -> tuple[float, ...]:
        """See :class:`HorizontalRegime`."""
        return plan.rates(study.method.batch, sizes)

    def wanted(self, study: AsynchronousStudy) -> int:
        """See :class:`HorizontalRegime`."""
        return plan.planned(study)

    def event(
        self, study: AsynchronousStudy, sizes: Sequence[int], client: int, sigma: float
    ) -> Event:
        """See :class:`HorizontalRegime`."""
        return step_event(self.rates(study, sizes)[client], sigma, study.privacy.mechanism)

    def steps(
        self,
        study: AsynchronousStudy,
        sizes: Sequence[int],
        own: Budget,
        burden: Burden,
    ) -> int | None:
        """See :class:`HorizontalRegime`."""
        sigmas = plan.multipliers(study)
        event = burden.of(lambda client: self.event(study, sizes, client, sigmas[client]))
        return own.remaining_steps(event, burden.spent)

    def epsilons(self, study: AsynchronousStudy) -> tuple[float, ...]:
        """See :class:`HorizontalRegime`."""
        return plan.epsilons(study)

    def spending(
        self, study: AsynchronousStudy, true: Event, sigma: float, rate: float, charges: int
    ) -> Sequence[tuple[Event, int]]:
        """See :class:`HorizontalRegime`."""
        return [(PoissonSampled(sampling_rate=rate, event=true), charges)]

    def bounded(self, study: AsynchronousStudy) -> bool:
        """See :class:`HorizontalRegime`."""
        return not study.method.literal

    def check(self, method: Method) -> None:
        """Walk through its schedule."""
        contract.check(method)

    def told(self, study: AsynchronousStudy, plan: Plan) -> Sequence[Paragraph]:
        """See :class:`~sordino.core.regimes.Regime`."""
        return narrate.told(study, plan)

    def assumptions(self, study: AsynchronousStudy) -> list[str]:
        """See :class:`~sordino.core.regimes.Regime`."""
        return resting_on(study, OF_EDGES)


REGIME = AsynchronousRegime()
