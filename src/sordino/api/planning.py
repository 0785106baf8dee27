"""Before anything trains: methods to choose from, the price of a study, how its data is divided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from sordino import privacy
from sordino.api import shown
from sordino.api.study import Study
from sordino.base.errors import StudyError
from sordino.clients.division import examples, federation
from sordino.clients.report import division as figure_of
from sordino.clients.study import HorizontalStudy
from sordino.core import plan as prices
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.files import replace_file
from sordino.core.method import known
from sordino.core.plan import ACCOUNTANTS
from sordino.data.features import FRONT_ENDS
from sordino.mechanisms.kinds import MECHANISMS
from sordino.privacy.rounding import epsilon_text
from sordino.report.drawing import draw

if TYPE_CHECKING:
    import polars

    from sordino.api.given import Data

NOISE = (
    ("own", "each client (or the aggregator) adds all of the noise; every regime"),
    ("shared", "clients add parts of it, and only their sum is opened; rounds, kind gaussian"),
)


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


def mechanisms() -> list[tuple[str, tuple[str, ...], str]]:
    """Return the mechanisms of methods that add noise: kind, forms, description."""
    return [
        (name, get_args(kind.model_fields["form"].annotation), _first_line(kind))
        for name, kind in MECHANISMS.known().items()
    ]


def front_ends() -> list[tuple[str, str]]:
    """Return the kinds of ``data.features``, and their descriptions."""
    return [(name, _first_line(kind)) for name, kind in FRONT_ENDS.known().items()]


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0].rstrip(".")


class Plan(shown.Tabular):
    """The price of a study, and what its budget pays for. Nothing was trained or released for it.

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
        """Remarks to read before running."""
        from sordino.core.statements import uncovered

        return (*self._price.warnings, *uncovered(self.study.checked))

    def to_polars(self) -> polars.DataFrame:
        """Epsilon after each planned round."""
        import polars

        curve = list(self._price.curve)
        return polars.DataFrame({"round": range(1, len(curve) + 1), "epsilon": curve})

    def __repr__(self) -> str:
        return (
            f"<Plan of {self.study.name!r}: epsilon {epsilon_text(self.epsilon)}, noise multiplier "
            f"{self.noise_multiplier:.4g}>"
        )

    def _repr_html_(self) -> str:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrice:
    """The price of steps of the sampled Gaussian mechanism, without a study.

    Attributes:
        noise_multiplier: as given, or calibrated for the steps.
        taken: the steps that are priced; None for any number.
        epsilon: after them.
        most: of each accountant, the most steps within the budget; None without a limit.
    """

    noise_multiplier: float
    taken: int | None
    epsilon: float
    most: Mapping[str, int | None]


def price_steps(
    epsilon: float,
    delta: float,
    rate: float,
    *,
    sigma: float | None = None,
    steps: int | None = None,
    accountant: str = "pld",
    compare: bool = False,
) -> StepPrice:
    """Return what steps cost: those that are given, or as many as the budget pays for.

    Args:
        epsilon: of the budget; infinite for none.
        rate: q of Poisson sampling, in (0, 1].
        sigma: the noise multiplier; calibrated for ``steps`` unless given.
        compare: whether every accountant is asked, not ``accountant`` alone.

    Raises:
        StudyError: if a number is out of its bounds.
    """
    _check(epsilon, delta, rate, sigma, steps)
    privacy.accountant(accountant)  # an unknown name is refused before anything is computed
    if sigma is None:
        assert steps is not None
        if math.isinf(epsilon):
            raise StudyError("--epsilon inf needs no noise; give a finite epsilon to calibrate it")
        sigma = privacy.noise_multiplier(
            sampling_rate=rate, steps=steps, epsilon=epsilon, delta=delta, accountant=accountant
        )
    event = prices.step_event(rate, sigma)
    asked = ACCOUNTANTS if compare else (accountant,)
    most = {name: privacy.Budget(epsilon, delta, name).remaining_steps(event, ()) for name in asked}
    taken = steps if steps is not None else most[accountant]
    spent = (
        math.inf
        if taken is None
        else privacy.epsilon_after(event, [taken], delta=delta, accountant=accountant)[0]
    )
    return StepPrice(noise_multiplier=sigma, taken=taken, epsilon=spent, most=most)


def _check(
    epsilon: float, delta: float, rate: float, sigma: float | None, steps: int | None
) -> None:
    if not epsilon > 0:
        raise StudyError(f"--epsilon must be positive; got {epsilon}")
    if not 0 < delta < 1:
        raise StudyError(
            "--delta must lie between 0 and 1, below one over the number of examples; got "
            f"{delta:g}"
        )
    if not 0 < rate <= 1:
        raise StudyError(f"--sampling-rate must lie in (0, 1]; got {rate:g}")
    if sigma is not None and not (sigma > 0 and math.isfinite(sigma)):
        raise StudyError(
            "--noise-multiplier must be a positive number for a finite epsilon; got "
            f"{sigma:g}. Leave it out and give --steps to calibrate"
        )
    if steps is not None and steps < 1:
        raise StudyError(f"--steps must be at least 1; got {steps}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """Examples of each client.

    Attributes:
        names: of the clients.
        classes: names of the labels.
        counts: examples of each label (columns) at each client (rows); None where labels are
            private, or numbers.
        sizes: examples of each client, where labels are not counted; None where whole clients are
            protected and sizes are private, too.
        why: why labels are not counted.
    """

    names: Sequence[str]
    classes: Sequence[str]
    counts: Sequence[Sequence[int]] | None
    sizes: Sequence[int] | None
    why: str

    def draw(self, path: Path) -> None:
        """Write the figure of the division (SVG).

        Raises:
            StudyError: if the counts are private.
        """
        if self.counts is None:
            raise StudyError(
                "--out draws how many examples of each label a client has, which is private data. "
                "Leave --out out, or, if the data is public, set privacy.unit = 'none' with a "
                "method that adds no noise"
            )
        replace_file(path, draw(figure_of(self.counts, self.classes)).encode())

    def record(self) -> dict[str, object]:
        """Return the division for machines."""
        if self.counts is not None:
            return {"classes": self.classes, "counts": self.counts}
        sizes = None if self.sizes is None else list(self.sizes)
        return {"clients": list(self.names), "sizes": sizes}


def division(path: Path, changes: Sequence[str]) -> Division:
    """Return how a study in a file divides its data.

    Raises:
        StudyError: if its parties have no examples of their own.
    """
    study = studies.read(path, changes)
    if not isinstance(study, HorizontalStudy):
        raise StudyError(
            f"{path}: its parties hold different features of the same entities, and no "
            "examples of their own; see data.parts"
        )
    divided = federation(examples(study))
    private = not study.data.published and study.privacy.unit != "none"
    counted = not private and divided.test.span is None  # numbers are counted nowhere
    hidden = counted or (private and study.hides_sizes)
    return Division(
        names=divided.names or tuple(f"client {i}" for i in range(len(divided.parts))),
        classes=divided.test.classes,
        counts=divided.counts.tolist() if counted else None,
        sizes=None if hidden else divided.sizes,
        why="labels are private and not counted" if private else "labels are numbers",
    )
