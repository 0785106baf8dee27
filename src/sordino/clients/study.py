"""Studies in which every client has examples of its own, and all train one model."""

from __future__ import annotations

import math
from typing import TypeVar

from pydantic import Field, SerializeAsAny, model_validator

from sordino.core.method import Method
from sordino.core.study.base import Model, NoisyPrivacySpec, Study, World
from sordino.core.study.data import Data
from sordino.privacy import fixed_order
from sordino.privacy.rounding import epsilon_text
from sordino.training.optimizer import Optimizer, Sgd


class SampledPromise(NoisyPrivacySpec):
    """A promise kept by Poisson sampling: every example is in a batch with this probability."""

    sampling_rate: float = Field(
        ge=1e-12,
        le=1,
        description='q, the probability that an example (or a client, with unit "client") is in '
        "a batch",
    )


class HorizontalStudy(Study):
    """A study whose clients have examples of their own."""

    data: Data
    model: Model
    privacy: NoisyPrivacySpec
    world: World = World()

    @model_validator(mode="after")
    def _has_noise_that_fits(self) -> HorizontalStudy:
        name = self.method.name
        if (
            self.method.adapts_noise
            and self.form == "sound"
            and fixed_order(self.privacy.accountant) is None
        ):
            raise ValueError(
                f"privacy.accountant '{self.privacy.accountant}' has no bound for noise chosen "
                f"along the way, as method '{name}' does: fix a Rényi order in advance, for "
                "example 'rdp@8'"
            )
        if self.privacy.mechanism.sized and (
            self.method.adapts_noise or not self.method.aggregated
        ):
            raise ValueError(
                f"method '{name}' in this form reckons with Gaussian noise, and privacy.mechanism "
                f"'{self.privacy.mechanism.kind}' has another price: leave the mechanism out"
            )
        self._learns_what_labels_are()
        self._can_be_measured()
        if (
            refusal := self.privacy.mechanism.refused(self.privacy.unit, bool(self.data.validation))
        ) is not None:
            raise ValueError(refusal)
        return self

    def _learns_what_labels_are(self) -> None:
        """Refuse a model for classes where labels are numbers, and the reverse."""
        name, number = self.model.name, self.data.span is not None
        if number and name in ("logistic", "svm"):
            raise ValueError(
                f"model.name = '{name}' is for classes, and labels are numbers: use 'linear', one "
                "linear layer with squared loss, or 'mlp'"
            )
        if not number and name == "linear":
            raise ValueError(
                "model.name = 'linear' is for labels that are numbers: use 'logistic' for classes, "
                "or set data.target = 'number' with data.label_range"
            )

    def _can_be_measured(self) -> None:
        """Refuse a test set that pays for evaluations where its rows have no price of their own."""
        own, most = self.privacy.evaluation_epsilon, self.privacy.epsilon
        if self.data.testing != "private share":
            if own is not None:
                raise ValueError(
                    "privacy.evaluation_epsilon is what the rows of data.test = 'private "
                    "share' pay: ask for that, or leave it out"
                )
            return
        if self.privacy.unit != "sample" or self.form != "sound":
            why = (
                f"privacy.unit is '{self.privacy.unit}'"
                if self.privacy.unit != "sample"
                else "the paper's literal form is not private"
            )
            raise ValueError(
                "data.test = 'private share' releases counts of single rows at the price of a row, "
                f"and {why}: use test = 'none', 'file' or 'public share'"
            )
        if most is None or math.isinf(own if own is not None else most):
            raise ValueError(
                "data.test = 'private share' needs a finite privacy.epsilon, or "
                "privacy.evaluation_epsilon"
            )
        if own is not None and own > most:
            raise ValueError(
                f"privacy.evaluation_epsilon must not pass epsilon = {epsilon_text(most)}; got "
                f"{epsilon_text(own)}: the promise is for every row, whether it trains or tests"
            )

    @property
    def pooled(self) -> bool:
        """All data lies in one place."""
        return False

    @property
    def given_epsilons(self) -> tuple[float, ...] | None:
        """``privacy.epsilons``: of each client, where they differ."""
        return None

    @property
    def given_multipliers(self) -> tuple[float, ...] | None:
        """``privacy.noise_multipliers``: of each client, where they differ."""
        return None

    @property
    def stalest(self) -> int | None:
        """tau_max, the most updates that an answer may be behind, where there is such a bound."""
        return None

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The most that each client may spend; infinite where nothing is promised."""
        given = self.given_epsilons
        return (self.privacy.epsilon or math.inf,) * self.data.clients if given is None else given

    @property
    def multipliers(self) -> tuple[float, ...]:
        """sigma of each client; none where noise is still to be calibrated."""
        if (given := self.given_multipliers) is not None:
            return given
        sigma = self.privacy.noise_multiplier
        return () if sigma is None else (sigma,) * self.data.clients

    @property
    def noise_follows_size(self) -> bool:
        """The noise of a step weighs less the more examples there are."""
        return False

    @property
    def hides_sizes(self) -> bool:
        """It is private how many examples a client has."""
        return False

    @property
    def of_persons(self) -> bool:
        """Promises are about persons, who may have several rows."""
        return self.data.person is not None and self.privacy.unit == "sample"

    @property
    def pays_to_test(self) -> bool:
        """Models are measured on private rows, which pay for it."""
        return self.data.testing == "private share"

    @property
    def form(self) -> str:
        """ "sound", or "paper" for a paper's literal form, of the method or of the mechanism."""
        forms = {getattr(part, "form", "sound") for part in (self.method, self.privacy.mechanism)}
        return "paper" if "paper" in forms else "sound"


H = TypeVar("H", bound=HorizontalStudy)


class SampledMethod(Method):
    """A method whose clients take local steps of DP-SGD, each charged by itself.

    Attributes:
        learning_rate: eta.
        optimizer: of the local steps, on noisy gradients.
    """

    learning_rate: float = Field(0.1, gt=0, allow_inf_nan=False)
    optimizer: SerializeAsAny[Optimizer] = Sgd()


class SampledStudy(HorizontalStudy):
    """A study of such a method; ``horizon`` is left to its subclass."""

    method: SerializeAsAny[SampledMethod]
    privacy: SampledPromise

    @model_validator(mode="after")
    def _of_examples(self) -> SampledStudy:
        if self.privacy.unit == "client":
            raise ValueError("privacy.unit must be 'sample' or 'none': examples are protected")
        if self.world.latency.on_arrival:
            raise ValueError(
                f"world.latency.kind '{self.world.latency.kind}' is for methods that work on "
                "arrival"
            )
        return self


def for_dimension(study: H, dimension: int) -> H:
    """Return the study, its mechanism for d numbers where its price depends on d."""
    noise = study.privacy.mechanism
    if study.privacy.unit == "none" or not noise.sized:
        return study
    return study.model_copy(
        update={
            "privacy": study.privacy.model_copy(
                update={"mechanism": noise.for_dimension(dimension)}
            )
        }
    )
