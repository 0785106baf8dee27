"""``kind = "gaussian"``: the same noise on every number."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from sordino.base.errors import StudyError
from sordino.mechanisms.gaussian import Bounded, CountedGaussian, Gaussian
from sordino.mechanisms.registry import Noise, NoiseRequest, register


@register
class GaussianNoise(Noise):
    """The same noise on every number; clipped as a whole or per layer.

    ``clipping`` bounds the whole gradient, or each layer by itself (C over the root of their
    number).
    """

    counts: ClassVar[bool] = True

    kind: Literal["gaussian"] = "gaussian"
    form: Literal["sound"] = Field("sound", description="Gaussian noise has a sound form only")
    clipping: Literal["flat", "per-layer"] = Field(
        "flat", description="what is clipped: the whole gradient, or each layer by itself"
    )

    def refused(self, unit: str, public: bool) -> str | None:
        """Layers are bounded in gradients only."""
        if self.clipping == "per-layer" and unit == "client":
            return (
                "privacy.mechanism.clipping 'per-layer' is for gradients of single examples; "
                "unit 'client' has one bound"
            )
        return None

    def make(self, asked: NoiseRequest) -> Bounded:
        """A Gaussian, with a count beside it if one is wanted."""
        measure: Literal["flat", "layers"] = "layers" if self.clipping == "per-layer" else "flat"
        sigma, deviation = asked.noise_multiplier, asked.count_deviation
        if not asked.counted:
            return Gaussian(clip=asked.clip, noise_multiplier=sigma, measure=measure)
        if deviation is None:
            return CountedGaussian(clip=asked.clip, noise_multiplier=sigma, measure=measure)
        share = (sigma / (2.0 * deviation)) ** 2
        if share >= 1.0:
            raise StudyError(
                f"noise of {deviation:g} clients on the count (method.count_noise) leaves nothing "
                f"of noise_multiplier = {sigma:g} for the updates; it must be above {sigma / 2.0:g}"
            )
        return CountedGaussian(
            clip=asked.clip, noise_multiplier=sigma, share=share, measure=measure
        )
