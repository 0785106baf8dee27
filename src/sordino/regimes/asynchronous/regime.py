"""Studies whose gradients are applied as they arrive: MAPA, AUDP, and their baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sordino.clients.division import examples, federation
from sordino.clients.promise import BATCHES, resting_on
from sordino.clients.regime import HorizontalRegime
from sordino.core.method import Method
from sordino.core.plan import Plan
from sordino.core.statements import Paragraph
from sordino.regimes.asynchronous import methods as _methods  # noqa: F401  (registers them)
from sordino.regimes.asynchronous import plan, report
from sordino.regimes.asynchronous.method import check
from sordino.regimes.asynchronous.study import TEMPLATE, AsynchronousStudy

if TYPE_CHECKING:
    from sordino.clients.assemble import Assembly

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
    carried = True

    def wanted(self, study: AsynchronousStudy) -> int:
        """Return the gradients of an edge that noise is calibrated for."""
        return plan.planned(study)

    def share(self, study: AsynchronousStudy) -> int:
        """Return the gradients of an edge, if all are equally fast."""
        return plan.share(study)

    def rates(self, study: AsynchronousStudy, sizes: Sequence[int]) -> tuple[float, ...]:
        """Return q of every edge."""
        return plan.rates(study.method.batch, sizes)

    def calibrate(self, study: AsynchronousStudy, sizes: Sequence[int]) -> AsynchronousStudy:
        """Return the study with its noise filled in, for edges of these sizes."""
        return plan.calibrate(study, sizes)

    def calibrated(self, study: AsynchronousStudy) -> AsynchronousStudy:
        """Return the study with its noise filled in: sampling rates follow from examples."""
        return plan.calibrate(self.sized(study), federation(examples(study)).sizes)

    def price(self, study: AsynchronousStudy, sizes: Sequence[int], dimension: int) -> Plan:
        """Return the plan of a study over edges of these sizes and a model of this dimension."""
        return plan.price(study, sizes, dimension)

    @property
    def assembly(self) -> type[Assembly[AsynchronousStudy]]:
        """The maker of a run's objects."""
        from sordino.regimes.asynchronous.assemble import ArrivalsAssembly

        return ArrivalsAssembly

    def bounded(self, study: AsynchronousStudy) -> bool:
        """Return whether a mechanism bounds what edges send; the literal form has none."""
        return not study.method.literal

    def check(self, method: Method) -> None:
        """Hold a method against its contract: walk through its schedule."""
        check(method)

    def told(self, study: AsynchronousStudy, plan: Plan) -> Sequence[Paragraph]:
        """Return a plan, for people."""
        return report.plan_told(study, plan)

    def assumptions(self, study: AsynchronousStudy) -> list[str]:
        """Return what the promise rests on."""
        return resting_on(study, OF_EDGES)


REGIME = AsynchronousRegime()
