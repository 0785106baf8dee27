"""The price of a study, before anything trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sordino.api import shown
from sordino.api.study import Study
from sordino.core import plan as prices
from sordino.core import regimes
from sordino.privacy.rounding import epsilon_text

if TYPE_CHECKING:
    import pandas
    import polars

    from sordino.api.given import Data


class Plan:
    """What a study costs, and what its budget pays for. Nothing was trained or released for it.

    A notebook shows it as ``sordino plan`` does.
    """

    def __init__(self, study: Study, price: prices.Plan, sizes: tuple[int, ...]) -> None:
        self.study, self._price, self.sizes = study, price, sizes

    @property
    def price(self) -> prices.Plan:
        """All of it, as a typed record."""
        return self._price

    @property
    def epsilon(self) -> float:
        """Of the planned run: a proven upper bound, infinite where there is none."""
        return self._price.epsilon

    @property
    def noise_multiplier(self) -> float:
        """sigma; 0 without privacy."""
        return self._price.noise_multiplier

    @property
    def steps(self) -> int | None:
        """R_c, the most local steps within the budget; None without a limit."""
        return self._price.steps

    @property
    def rounds(self) -> int | None:
        """R_s rounds, or T updates."""
        return self._price.rounds

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to look at before running."""
        from sordino.core.promise import uncovered

        return (*self._price.warnings, *uncovered(self.study.checked))

    def to_polars(self) -> polars.DataFrame:
        """Epsilon after each planned round."""
        import polars

        curve = list(self._price.curve)
        return polars.DataFrame({"round": range(1, len(curve) + 1), "epsilon": curve})

    def to_pandas(self) -> pandas.DataFrame:
        """Epsilon after each planned round."""
        return shown.to_pandas(self.to_polars())

    def __repr__(self) -> str:
        return (
            f"<Plan of {self.study.name!r}: epsilon {epsilon_text(self.epsilon)}, noise multiplier "
            f"{self.noise_multiplier:.4g}>"
        )

    def _repr_html_(self) -> str:
        from sordino.core import regimes

        told = regimes.of(self.study.checked).told(self.study.checked, self._price)
        parts = [shown.sentences([f"warning: {each}" for each in self.warnings])]
        for each in told:
            if isinstance(each, str):
                parts.append(shown.sentences([each]))
            else:
                parts += [shown.sentences([each.title]), shown.table(each.head, each.rows)]
        return shown.page(f"Plan of {self.study.name}", *parts)


def plan(study: Study | Path | str, data: Data | None = None) -> Plan:
    """The privacy price of a study.

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
