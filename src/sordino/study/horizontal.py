"""Studies in which every client has examples of its own, and all train one model."""

from __future__ import annotations

from pydantic import model_validator

from sordino.privacy import fixed_order
from sordino.study.base import Study
from sordino.study.sections import Data, Model, NoisyPromise, World


class HorizontalStudy(Study):
    """What studies in rounds and on arrival share."""

    data: Data
    model: Model
    privacy: NoisyPromise
    world: World = World()

    @model_validator(mode="after")
    def _has_noise_that_fits(self) -> HorizontalStudy:
        name = self.method.name
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
        if (refusal := self.privacy.mechanism.refused(self.privacy.unit, bool(self.data.validation))) is not None:
            raise ValueError(refusal)
        return self

    @property
    def form(self) -> str:
        """ "sound", or "paper" for a paper's literal form, of the method or of the mechanism."""
        forms = {getattr(part, "form", "sound") for part in (self.method, self.privacy.mechanism)}
        return "paper" if "paper" in forms else "sound"
