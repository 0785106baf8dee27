"""Before anything trains: methods to choose from, and the price of a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sordino.api import shown
from sordino.api.study import Study
from sordino.core import plan as prices
from sordino.core import regimes
from sordino.core.method import known
from sordino.privacy.rounding import epsilon_text

if TYPE_CHECKING:
    import polars

    from sordino.api.given import Data


def methods() -> polars.DataFrame:
    """Every method: its regime, the units it can protect, its forms, what it does, and its paper.

    ``private`` are the forms that keep a promise where ``privacy.unit`` is not "none".

    >>> import sordino as so
    >>> "dp-sgd" in so.methods()["name"]
    True
    """
    return shown.frame(
        [
            {
                "name": name,
                "regime": about.regime,
                "units": list(about.units),
                "private": [form for form, sound in about.forms.items() if sound],
                "not_private": [form for form, sound in about.forms.items() if not sound],
                "about": about.does,
                "paper": about.paper,
            }
            for name, about in sorted((name, kind.about) for name, kind in known().items())
        ]
    )


class Plan(shown.Tabular):
    """The price of a study, and what its budget pays for. Nothing was trained or released for it.

    A notebook shows it as ``sordino plan`` does.

    Attributes:
        study: the study.
        price: all of it, as a typed record.
        sizes: examples of each client, where they are public.
        epsilon: of the planned run: a proven upper bound, infinite where there is none.
        noise_multiplier: sigma; 0 without privacy.
        steps: R_c, the most local steps within the budget; None without a limit.
        rounds: R_s rounds, or T updates.
    """

    def __init__(self, study: Study, price: prices.Plan, sizes: tuple[int, ...]) -> None:
        self.study, self.price, self.sizes = study, price, sizes
        self.epsilon, self.noise_multiplier = price.epsilon, price.noise_multiplier
        self.steps, self.rounds = price.steps, price.rounds

    @property
    def warnings(self) -> tuple[str, ...]:
        """Remarks to read before running."""
        from sordino.core.statements import uncovered

        return (*self.price.warnings, *uncovered(self.study.checked))

    def to_polars(self) -> polars.DataFrame:
        """Epsilon after each planned round."""
        import polars

        curve = list(self.price.curve)
        return polars.DataFrame({"round": range(1, len(curve) + 1), "epsilon": curve})

    def __repr__(self) -> str:
        return (
            f"<Plan of {self.study.name!r}: epsilon {epsilon_text(self.epsilon)}, noise multiplier "
            f"{self.noise_multiplier:.4g}>"
        )

    def _repr_html_(self) -> str:
        told = regimes.of(self.study.checked).told(self.study.checked, self.price)
        parts = [shown.sentences([f"warning: {each}" for each in self.warnings])]
        for each in told:
            if isinstance(each, str):
                parts.append(shown.sentences([each]))
            else:
                parts += [shown.sentences([each.title]), shown.table(each.head, each.rows)]
        return shown.page(f"Plan of {self.study.name}", *parts)


def plan(study: Study | Path | str, data: Data | None = None) -> Plan:
    """The privacy price of a study.

    >>> import sordino as so
    >>> study = so.Study(
    ...     data="digits",
    ...     model="logistic",
    ...     method=so.DpSgd(learning_rate=0.5, tau=1),
    ...     privacy=so.Privacy(unit="sample", epsilon=2.0, delta=1e-3, sampling_rate=0.1),
    ...     budget=so.Budget(rounds=2),
    ... )
    >>> plan = so.plan(study)
    >>> round(plan.epsilon, 2), plan.rounds, plan.to_polars().height
    (2.0, 2, 2)

    Args:
        study: the study, or its file.
        data: data in memory, in place of the study's own; see :meth:`Study.on`.

    Raises:
        StudyError: if it cannot be run.
    """
    asked = study if isinstance(study, Study) else Study.read(study)
    if data is not None:
        asked = asked.on(data)
    return Plan(asked, *regimes.plan(asked.checked))
