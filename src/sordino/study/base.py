"""What every study is, whatever its regime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, model_validator

from sordino.method import Method
from sordino.privacy import fixed_order
from sordino.section import Section
from sordino.study.sections import Data, Execution, Model, Promise, World


class Study(Section):
    """A complete study. Each regime has a kind of its own, with the keys that it understands."""

    elsewhere: ClassVar[Mapping[str, str]] = {}  # keys of other regimes, and what to say here instead

    name: str = Field(min_length=1, max_length=200)
    seed: int = 0
    data: Data
    model: Model
    method: Method
    privacy: Promise
    world: World = World()
    execution: Execution = Execution()

    @model_validator(mode="after")
    def _promises_what_it_can(self) -> Study:
        unit, name = self.privacy.unit, self.method.name
        if unit not in self.method.about.units:
            if unit == "none":
                raise ValueError(
                    f"method '{name}' adds noise, so privacy.unit must be 'sample'; for no privacy use method {self.without()}"
                )
            if not self.method.private:
                raise ValueError(
                    f"method '{name}' adds no noise and promises nothing: set privacy.unit = 'none', or use method {self.within()}"
                )
            kept = "single examples" if "sample" in self.method.about.units else "whole clients"
            wanted = " or ".join(f"'{known}'" for known in self.method.about.units)
            raise ValueError(f"method '{name}' protects {kept}: privacy.unit must be {wanted}; got '{unit}'")
        if self.method.adapts_noise and self.form == "sound" and fixed_order(self.privacy.accountant) is None:
            raise ValueError(
                f"privacy.accountant '{self.privacy.accountant}' has no bound for noise chosen along the way, as method '{name}' does:"
                " fix a Rényi order in advance, for example 'rdp@8'"
            )
        if self.privacy.mechanism.sized and (self.method.adapts_noise or not getattr(self.method, "aggregated", True)):
            raise ValueError(
                f"method '{name}' in this form reckons with Gaussian noise,"
                f" and privacy.mechanism '{self.privacy.mechanism.kind}' has another price: leave the mechanism out"
            )
        if (refusal := self.privacy.mechanism.refused(unit, bool(self.data.validation))) is not None:
            raise ValueError(refusal)
        return self

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
    def horizon(self) -> int:
        """How many rounds or updates there will be, at most."""
        raise NotImplementedError

    @property
    def stride(self) -> int:
        """Rounds, or updates, between two evaluations."""
        return self.execution.evaluate_every or 1

    @property
    def checkpoint_stride(self) -> int:
        """Rounds, or updates, between two checkpoints."""
        return self.execution.checkpoint_every

    @property
    def form(self) -> str:
        """ "sound", or "paper" for a paper's literal form, of the method or of the mechanism."""
        forms = {getattr(part, "form", "sound") for part in (self.method, self.privacy.mechanism)}
        return "paper" if "paper" in forms else "sound"
