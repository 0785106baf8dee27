"""Studies in which gradients are applied as they arrive."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from sordino.base.registry import AtLeastOne, NotNegative, Section
from sordino.clients.study import HorizontalStudy, Ordered, OwnEpsilons
from sordino.core.method import METHODS
from sordino.regimes.asynchronous.method import AsynchronousMethod, Noisy


class EdgePrivacy(Ordered, OwnEpsilons):
    """A promise to each edge: its own budget, its own noise.

    ``epsilons`` are the edges' own, where they differ (the paper's epsilon_k); ``epsilon`` bounds
    them all. ``noise_multipliers`` are theirs likewise. The sampling rate of an edge follows from
    ``method.batch``, and so do the batches of its passes.
    """


class Updates(Section):
    """The length of a run: ``updates`` is T, ``tasks`` the gradients to calibrate noise for.

    Attributes:
        updates: T, the most updates of the model
        tasks: gradients of one edge that noise is calibrated for
    """

    updates: AtLeastOne
    tasks: AtLeastOne | None = None


class Arrival(Section):
    """The treatment of gradients that arrive.

    ``staleness`` is tau_max, the most updates that a gradient may be behind (the number of edges
    unless given); staler ones are not applied. A gradient that is tau behind counts (1 +
    tau)^-``staleness_weight``. With a ``buffer`` of M, an update is the mean of M gradients
    (FedBuff, Nguyen et al. 2022).

    Attributes:
        staleness: tau_max, the most updates that a gradient may be behind; older ones are not
            applied; the number of edges unless given
        staleness_weight: a: a gradient that is tau updates behind is weighted by (1 + tau)^-a
        buffer: gradients whose mean is one update (FedBuff)
    """

    staleness: int | None = Field(None, ge=0)
    staleness_weight: NotNegative = 0.0
    buffer: AtLeastOne = 1


class AsynchronousStudy(HorizontalStudy):
    """A study of a method that works on arrival."""

    article: ClassVar[str] = "an"
    kind: ClassVar[str] = "asynchronous"
    without: ClassVar[str] = "'asgd'"
    within: ClassVar[str] = "'audp' or 'mapa'"
    streams: ClassVar[bool] = True
    holder: ClassVar[str] = "edge"
    elsewhere: ClassVar[Mapping[str, str]] = {
        **HorizontalStudy.elsewhere,
        "budget.events": "say budget.updates",
        "privacy.batches": "each edge's follow from method.batch and its examples",
        "privacy.sampling_rate": "each edge's follows from method.batch and its examples",
        "privacy.clipped_fraction": "every gradient would pay for it; leave it out",
        "privacy.noise": "an update that is applied as it arrives is no sum: there is nothing in "
        "which noise could be shared",
        "method.learning_rate": "learning rates follow from the schedule; method.smoothness "
        "scales them",
        "budget.rounds": "say budget.updates",
        "budget.steps": "say budget.tasks, the gradients of an edge",
        "participation.cohort": "whoever is ready sends; leave it out",
        "participation.deadline": "nobody is waited for; participation.staleness bounds how late a "
        "gradient may be",
    }

    method: Annotated[AsynchronousMethod, METHODS]
    privacy: EdgePrivacy
    budget: Updates
    participation: Arrival = Arrival()

    @model_validator(mode="after")
    def _fits_together(self) -> AsynchronousStudy:
        self._literal_fits()
        if self.world.dropout == 1.0:
            raise ValueError("world.dropout = 1: no gradient would ever arrive; it must be below 1")
        if self.privacy.mechanism.learns:
            raise ValueError(
                "privacy.mechanism.weights 'learned' follows the releases of whole rounds, and "
                "there are none on arrival: choose 'uniform', 'paper' or 'optimal'"
            )
        if self.method.pooled and self.world.dropout:
            raise ValueError(
                f"method '{self.method.name}' holds all data in one place, so no edge can "
                "drop out; remove world.dropout"
            )
        return self

    def _literal_fits(self) -> None:
        """Refuse what the paper's form would leave unused, and what only it uses."""
        own = self.method.iteration_epsilons if isinstance(self.method, Noisy) else None
        if own is not None and len(own) != self.data.clients:
            raise ValueError(
                f"method.iteration_epsilons has {len(own)} numbers; data.clients is "
                f"{self.data.clients}: one for each edge"
            )
        if self.method.literal and self.ordered:
            raise ValueError(
                "privacy.sampling 'passes' has no effect with method.form = 'paper', which draws "
                "batches of one size: leave it out"
            )
        if not self.method.literal:
            if own is not None:
                raise ValueError(
                    "method.iteration_epsilons are what the paper's form claims for each update: "
                    "for this form, say privacy.epsilons, which hold for the whole run"
                )
            return
        given = {"epsilons": self.given_epsilons, "noise_multipliers": self.given_multipliers}
        for name, numbers in given.items():
            if numbers is not None:
                raise ValueError(
                    f"privacy.{name} has no effect with method.form = 'paper', whose noise follows "
                    "from what it claims for each update: say method.iteration_epsilons"
                )
        if not self.method.batch.is_integer():
            raise ValueError(
                f"method.batch = {self.method.batch:g}, and method.form = 'paper' draws batches of "
                "one size: it must be a whole number"
            )

    @property
    def pooled(self) -> bool:
        """All data lies in one place."""
        return self.method.pooled

    @property
    def edges(self) -> int:
        """K: one, where all data lies in one place."""
        return 1 if self.method.pooled else self.data.clients

    @property
    def stalest(self) -> int:
        """tau_max."""
        if self.method.pooled:
            return 0
        given = self.participation.staleness
        return self.data.clients if given is None else given

    @property
    def horizon(self) -> int:
        """T."""
        return self.budget.updates


TEMPLATE = (Path(__file__).parent / "template.toml").read_text(encoding="utf-8")
"""A study file to begin with."""
