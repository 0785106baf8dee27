"""Studies in rounds: ALS-DPFL, ALI-DPFL, DP-SGD, DP-FedAvg, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.clients.division import examples, federation
from sordino.clients.mechanism import Trial
from sordino.clients.promise import BATCHES, SIZES, resting_on
from sordino.clients.regime import HorizontalRegime
from sordino.core.method import Method
from sordino.core.plan import Plan
from sordino.core.prepared import PreparedRun
from sordino.core.statements import Advice, Paragraph
from sordino.core.world import Summing
from sordino.data import Dataset
from sordino.privacy import Budget, Event
from sordino.privacy.records import Burden
from sordino.regimes.synchronous import (
    contract,
    mechanism,
    narrate,
    personal,
    plan,
    sharing,
)
from sordino.regimes.synchronous import methods as _methods  # noqa: F401  (registers them)
from sordino.regimes.synchronous.study import SynchronousStudy
from sordino.regimes.synchronous.template import TEMPLATE

if TYPE_CHECKING:
    from sordino.clients.setup import SharedSetup
    from sordino.mechanisms import Bounded

OF_CLIENTS = (
    "The aggregator is trusted with single bounded updates, or sees only their sum (secure "
    "aggregation); all else sees the noisy sum.",
    "The members and the size of a cohort are secret; amplification by sampling depends on "
    "this. Checkpoints hold both until the run ends: keep the folder secret until then.",
    "The number of clients and their weights are public and fixed: they form the divisor "
    "of every sum.",
)


class SynchronousRegime(HorizontalRegime[SynchronousStudy]):
    """Clients train on the same model in rounds; the server averages what they send."""

    name = "synchronous"
    study = SynchronousStudy
    budget = "rounds"
    template = TEMPLATE
    charged = "local steps"

    def calibrate(self, study: SynchronousStudy, sizes: Sequence[int]) -> SynchronousStudy:
        """See :class:`HorizontalRegime`."""
        if study.privacy.epsilons is not None:
            return personal.calibrated(study)
        return plan.calibrate(study)

    def price(self, study: SynchronousStudy, sizes: Sequence[int], dimension: int) -> Plan:
        """See :class:`HorizontalRegime`."""
        return personal.price(study, sizes, dimension)

    def mechanism(self, study: SynchronousStudy, sizes: Sequence[int], trial: Trial) -> Bounded:
        """See :class:`HorizontalRegime`."""
        return mechanism.mechanism(study, sizes, trial)

    def announced(
        self, priced: Plan, study: SynchronousStudy, noise: Bounded, sizes: Sequence[int]
    ) -> Plan:
        """See :class:`HorizontalRegime`."""
        return mechanism.announced(priced, study, noise, max(sizes))

    def assemble(
        self,
        study: SynchronousStudy,
        setup: SharedSetup,
        parts: list[Dataset],
        folder: Path,
        run: str,
        payable: Sequence[int] | None,
    ) -> PreparedRun:
        """See :class:`HorizontalRegime`."""
        from sordino.regimes.synchronous import assemble  # a plan does not wait for what trains

        return assemble.build(study, setup, parts, folder, run, payable)

    def rates(self, study: SynchronousStudy, sizes: Sequence[int]) -> tuple[float, ...]:
        """See :class:`HorizontalRegime`."""
        return (study.privacy.sampling_rate,) * len(sizes)

    def wanted(self, study: SynchronousStudy) -> int:
        """See :class:`HorizontalRegime`."""
        steps = plan.planned_steps(study)
        return steps if isinstance(steps, int) else sum(count for _, count in steps)

    def event(
        self, study: SynchronousStudy, sizes: Sequence[int], client: int, sigma: float
    ) -> Event:
        """See :class:`HorizontalRegime`."""
        return plan.step(study, sigma * personal.scale(study, client))

    def epsilons(self, study: SynchronousStudy) -> tuple[float, ...]:
        """See :class:`HorizontalRegime`."""
        return personal.epsilons(study)

    def steps(
        self,
        study: SynchronousStudy,
        sizes: Sequence[int],
        own: Budget,
        burden: Burden,
    ) -> int | None:
        """See :class:`HorizontalRegime`."""
        if not self.scheduled(study):
            return super().steps(study, sizes, own, burden)
        if len(burden.units) == 1 and study.data.person is None:
            return plan.scheduled_steps(study, own.accountant, burden.spent)

        # As the run does: its dearest event stands for all.
        def alike(event: Event) -> Callable[[int], Event]:
            return lambda _: event

        most = [
            own.remaining_steps(burden.of(alike(event)), burden.spent)
            for event, _ in plan.spending(study, self.wanted(study))
        ]
        return min((steps for steps in most if steps is not None), default=None)

    def spending(
        self, study: SynchronousStudy, true: Event, sigma: float, rate: float, charges: int
    ) -> Sequence[tuple[Event, int]]:
        """See :class:`HorizontalRegime`."""
        return plan.spent_by(study, true, sigma, rate, charges)

    def scheduled(self, study: SynchronousStudy) -> bool:
        """See :class:`HorizontalRegime`."""
        return len(plan.schedule(study)) > 1

    def whole(self, study: SynchronousStudy) -> bool:
        """See :class:`HorizontalRegime`."""
        return plan.aggregated(study)

    def told(self, study: SynchronousStudy, plan: Plan) -> Sequence[Paragraph]:
        """See :class:`~sordino.core.regimes.Regime`."""
        return narrate.told(study, plan)

    def advise(self, study: SynchronousStudy, seen: Callable[[int, int], None]) -> Advice:
        """Other sampling rates and tau."""
        sized = self.sized(study)
        cells = plan.advise(sized, federation(examples(sized)).sizes, seen)
        return Advice(cells, narrate.advised(sized, cells))

    def check(self, method: Method) -> None:
        """Play some rounds with made-up releases."""
        contract.check(method)

    def assumptions(self, study: SynchronousStudy) -> list[str]:
        """See :class:`~sordino.core.regimes.Regime`."""
        if sharing.shared(study):
            return resting_on(study, sharing.resting(study, SIZES, BATCHES))
        return resting_on(study, OF_CLIENTS if study.privacy.unit == "client" else (SIZES, BATCHES))

    def released(self, study: SynchronousStudy) -> str | None:
        """See :class:`~sordino.core.regimes.Regime`."""
        return sharing.RELEASED if sharing.shared(study) else None

    def summing(self, study: SynchronousStudy) -> Summing | None:
        """See :class:`~sordino.core.regimes.Regime`."""
        return sharing.summing(study) if sharing.shared(study) else None

    def against(self, study: SynchronousStudy) -> str:
        """See :class:`~sordino.core.regimes.Regime`."""
        return sharing.against(study) if sharing.shared(study) else super().against(study)


REGIME = SynchronousRegime()
