"""What every study is, whatever its regime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, SerializeAsAny, model_validator

from sordino.base.section import Section
from sordino.core.method import Method
from sordino.core.study.sections import Execution, Promise, Reported
from sordino.core.study.source import Source
from sordino.core.study.tuned import Tuned, changed
from sordino.privacy.trials import named


class Study(Section):
    """A complete study. Each regime has a kind of its own, with the keys that it understands."""

    # keys of other regimes, and what to say here instead
    elsewhere: ClassVar[Mapping[str, str]] = {}
    article: ClassVar[str] = "a"
    kind: ClassVar[str] = ""

    name: str = Field(
        min_length=1,
        max_length=200,
        description="what the study and its runs are called; method and data unless given",
    )
    seed: int = Field(
        0,
        description="what the simulation is drawn from: partition, initial weights and batches; "
        "and the noise, with privacy.entropy = 'seed'",
    )
    data: Source
    method: SerializeAsAny[Method]
    privacy: Promise
    execution: Execution = Execution()
    reported: Reported | None = None
    tuned: Tuned | None = Field(None, description="how constants were chosen; see `sordino tune`")

    @model_validator(mode="after")
    def _is_as_it_was_tuned(self) -> Study:
        if self.tuned is None:
            return self
        told = list(
            changed(self.tuned, self.model_dump(mode="json", by_alias=True, exclude_none=True))
        )
        if told:
            raise ValueError(
                f"tuned: {'; '.join(told)}. Leave out [tuned] where its constants were changed"
            )
        if self.tuned.source == "private" and named(self.privacy.accountant) is None:
            raise ValueError(
                "tuned.source = 'private' needs the accountant of a selection, such as "
                "'pld-best-of-geometric@10': epsilon must include the choice"
            )
        return self

    @model_validator(mode="after")
    def _protects_what_it_can(self) -> Study:
        unit, name = self.privacy.unit, self.method.name
        if unit in self.method.about.units:
            return self
        if unit == "none":
            raise ValueError(
                f"method '{name}' adds noise, so privacy.unit must be 'sample'; for no "
                f"privacy use method {self.without()}"
            )
        if not self.method.private:
            raise ValueError(
                f"method '{name}' adds no noise and gives no guarantee: set privacy.unit = "
                f"'none', or use method {self.within()}"
            )
        kept = "single examples" if "sample" in self.method.about.units else "whole clients"
        wanted = " or ".join(f"'{known}'" for known in self.method.about.units)
        raise ValueError(
            f"method '{name}' protects {kept}: privacy.unit must be {wanted}; got '{unit}'"
        )

    @staticmethod
    def without() -> str:
        """A method of the regime that adds no noise, as named in complaints."""
        return "'fedavg'"

    @staticmethod
    def within() -> str:
        """A method of the regime that keeps a promise, as named in complaints."""
        return "'dp-sgd'"

    @property
    def regime(self) -> str:
        """Its name."""
        return self.method.about.regime

    @property
    def of_persons(self) -> bool:
        """Whether the promise holds for persons with several examples, not single examples."""
        return False

    @property
    def pays_to_test(self) -> bool:
        """Whether models are measured on private rows, at a price."""
        return False

    @property
    def horizon(self) -> int:
        """How many rounds, updates or events there will be, at most."""
        raise NotImplementedError

    @property
    def stride(self) -> int:
        """Rounds, updates or events between two evaluations."""
        return self.execution.evaluate_every or 1

    @property
    def checkpoint_stride(self) -> int:
        """Rounds, updates or events between two checkpoints."""
        return self.execution.checkpoint_every

    @property
    def form(self) -> str:
        """ "sound", or "paper" for a paper's literal form."""
        return getattr(self.method, "form", "sound")
