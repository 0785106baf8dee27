r"""AUDP: asynchronous updates with one clipping bound (Li et al. 2022, section 5).

    1 / gamma_t = L (tau_max + 1) + sqrt(Delta_b + 1) sqrt t                   (Eq. 10)

with Delta_b the variance of a noisy gradient. The sound form clips single examples to
G = ``privacy.clip``; the paper's takes DS = 8 / b as its authors' code does, so R = b DS / 2 = 4,
unless ``bound`` says another R.

>>> terms = EdgeTerms(
...     dimension=7850, edges=5, batch=120, clip=1.0, noise=1.0, staleness=5, updates=15_000
... )
>>> method = Audp()
>>> round(method.variance(terms, 1.0), 4)
0.5535
>>> round(1 / method.rate(terms, method.stages(terms)[0], 100), 2)
18.46
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from sordino.core.method import register
from sordino.regimes.asynchronous.method import About, EdgeTerms, Noisy, Stage

LITERAL_BOUND = 4.0


@register
class Audp(Noisy):
    """AUDP."""

    about: ClassVar[About] = About(
        regime="asynchronous",
        paper="Li, Yang, Ren and Zhao 2022",
        does="noisy gradients applied as they arrive, one clipping bound",
        forms={"sound": True, "paper": False},
    )
    name: Literal["audp"] = "audp"

    def stages(self, terms: EdgeTerms) -> tuple[Stage, ...]:
        """One, as long as the run."""
        clip = (self.bound or LITERAL_BOUND) if self.literal else terms.clip
        return (
            Stage(
                number=1,
                start=0,
                length=terms.updates,
                clip=clip,
                rate=None,
                variance=self.variance(terms, clip),
            ),
        )

    def rate(self, terms: EdgeTerms, stage: Stage, number: int) -> float:
        """gamma_t of Eq. (10)."""
        return 1.0 / (
            self.constants.smoothness * (terms.staleness + 1.0)
            + math.sqrt((stage.variance + 1.0) * number)
        )
