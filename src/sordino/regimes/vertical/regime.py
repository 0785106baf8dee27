"""Studies of events with features at parties: dynamic local regret, OGD and SLR."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.core.method import Method
from sordino.core.plan import Plan
from sordino.core.prepared import PreparedRun
from sordino.core.regimes import Regime
from sordino.core.statements import Paragraph
from sordino.data.stream import DIVISIONS, DRIFTS, STREAMS
from sordino.regimes.vertical import contract, narrate, plan
from sordino.regimes.vertical.method import ACTIVATIONS
from sordino.regimes.vertical.promise import resting_on
from sordino.regimes.vertical.study import VerticalStudy
from sordino.regimes.vertical.template import TEMPLATE

if TYPE_CHECKING:
    from sordino.core.network import NetworkRegime


class VerticalRegime(Regime[VerticalStudy]):
    """Parties with different features of the same entities learn from events, one after another."""

    name = "vertical"
    study = VerticalStudy
    budget = "events"
    template = TEMPLATE
    tables = (ACTIVATIONS, DIVISIONS, STREAMS, DRIFTS)
    others = "entities"
    plain = (
        "No privacy guarantee: embeddings, labels and updates are used without noise, and "
        "epsilon is infinite."
    )

    def calibrated(self, study: VerticalStudy) -> VerticalStudy:
        """See :class:`~sordino.core.regimes.Regime`."""
        return plan.calibrate(study)

    def plan(self, study: VerticalStudy) -> tuple[Plan, tuple[int, ...]]:
        """See :class:`~sordino.core.regimes.Regime`."""
        from sordino.regimes.vertical.outline import plan as price

        return price(study), ()

    def build(
        self, study: VerticalStudy, folder: Path, run: str, payable: Sequence[int] | None
    ) -> PreparedRun:
        """See :class:`~sordino.core.regimes.Regime`."""
        from sordino.regimes.vertical import assemble  # a plan does not wait for what trains

        return assemble.build(plan.calibrate(study), folder, run, payable)

    def told(self, study: VerticalStudy, plan: Plan) -> Sequence[Paragraph]:
        """See :class:`~sordino.core.regimes.Regime`."""
        return narrate.told(study, plan)

    def check(self, method: Method) -> None:
        """Look at its window."""
        contract.check(method)

    @property
    def network(self) -> NetworkRegime:
        """See :class:`~sordino.core.regimes.Regime`: every site is a party, and one has labels."""
        from sordino.regimes.vertical.network import VerticalNetwork

        return VerticalNetwork()

    def assumptions(self, study: VerticalStudy) -> list[str]:
        """See :class:`~sordino.core.regimes.Regime`."""
        return resting_on(study)


REGIME = VerticalRegime()
