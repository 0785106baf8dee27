"""Gaussian noise that was scaled to a sensitivity which the released quantity does not have."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from sordino.base.errors import StudyError
from sordino.mechanisms.grid import add_gaussian
from sordino.privacy import event


@dataclass(frozen=True, slots=True, kw_only=True)
class Overclaimed:
    """v + N(0, (sigma D)^2 I), where v moves by up to D' = excess D.

    So its true noise multiplier is sigma / excess, and that is what is booked. For papers' literal
    forms.

    Attributes:
        claimed: D, the sensitivity that the noise was scaled to (units of the vector).
        noise_multiplier: sigma, as claimed.
        excess: D' / D, at least 1.
    """

    claimed: float
    noise_multiplier: float
    excess: float

    def __post_init__(self) -> None:
        if not (
            self.claimed > 0
            and self.noise_multiplier > 0
            and self.excess >= 1
            and math.isfinite(self.excess)
        ):
            raise StudyError(
                "a misjudged mechanism needs positive scales and an excess of at least 1; "
                f"got {self}"
            )

    def event(self) -> event.Gaussian:
        """The fact that the ledger keeps of one release."""
        return event.Gaussian(noise_multiplier=self.noise_multiplier / self.excess)

    def release(self, vector: Tensor, rng: np.random.Generator) -> Tensor:
        """The noisy vector (d,), float32, on a public grid; ``vector`` is left as it is."""
        return add_gaussian(
            vector,
            rng,
            clip=self.claimed * self.excess,
            noise_multiplier=self.noise_multiplier / self.excess,
        )
