"""``kind = "k-norm"``: noise that is priced without any delta."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field

from sordino.base.errors import StudyError
from sordino.mechanisms.gaussian import Bounded
from sordino.mechanisms.knorm import ExponentialNorm, KNorm
from sordino.mechanisms.registry import Noise, NoiseRequest, register
from sordino.privacy import event


@register
class KNormNoise(Noise):
    """Noise of density exp(-epsilon |x| / C): pure privacy; much noise if d is large.

    Pure for each step (Hardt and Talwar 2010).

    ``form = "paper"`` draws its length as MAPA does: NOT private, and booked at what it is.
    ``dimension`` is the model's, filled in when the noise is calibrated.
    """

    simulated: ClassVar[bool] = True
    sized: ClassVar[bool] = True

    kind: Literal["k-norm"] = "k-norm"
    dimension: int | None = Field(
        None, ge=1, description="numbers in a model; filled in when the noise is calibrated"
    )

    def for_dimension(self, dimension: int) -> Self:
        """With d filled in."""
        if self.dimension not in (None, dimension):
            raise StudyError(
                f"privacy.mechanism.dimension is {self.dimension}, but the model has "
                f"{dimension} numbers; leave it out"
            )
        return self.model_copy(update={"dimension": dimension})

    def event(self, noise_multiplier: float) -> event.Event:
        """epsilon_0 of one release; in the paper's form, what it claims."""
        if self.dimension is None:
            raise StudyError(
                "the price of privacy.mechanism 'k-norm' depends on the model's size, which "
                "is not known here"
            )
        priced = KNorm.priced if self.form == "sound" else ExponentialNorm.claimed
        return priced(noise_multiplier, self.dimension)

    def make(self, asked: NoiseRequest) -> Bounded:
        """Noise of the right length, or of the paper's."""
        kind = KNorm if self.form == "sound" else ExponentialNorm
        d = self.for_dimension(asked.dimension).dimension or 0
        return kind(clip=asked.clip, noise_multiplier=asked.noise_multiplier, dimension=d)
