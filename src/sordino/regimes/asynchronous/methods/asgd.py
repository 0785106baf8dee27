r"""Learning without privacy: centralised, and asynchronous (Table II of Li et al. 2022).

    csgd    1 / gamma_t = L + sqrt(t + 1) s / (R sqrt b)
    asgd    1 / gamma_t = L (tau_max + 1)^2 + sqrt(t + 1) s / (R sqrt b)

``csgd`` has all data in one place and no staleness: what could be had without a federation.

>>> terms = EdgeTerms(
...     dimension=7850, edges=5, batch=12, clip=math.inf, noise=0.0, staleness=5, updates=15_000
... )
>>> [round(1 / method.gamma(terms, 1), 2) for method in (Csgd(), Asgd())]
[1.41, 36.41]
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from sordino.core.method import register
from sordino.regimes.asynchronous.method import About, AsynchronousMethod, EdgeTerms, Stage


class Plain(AsynchronousMethod):
    """One stage, no clipping, no noise, and a rate that falls with the root of t."""

    def stages(self, terms: EdgeTerms) -> tuple[Stage, ...]:
        """One, as long as the run."""
        variance = self.constants.deviation**2 / terms.batch
        return (
            Stage(
                number=1, start=0, length=terms.updates, clip=math.inf, rate=None, variance=variance
            ),
        )

    def rate(self, terms: EdgeTerms, stage: Stage, number: int) -> float:
        """gamma_t."""
        return self.gamma(terms, number)

    def gamma(self, terms: EdgeTerms, number: int) -> float:
        """gamma_t by the table; it needs no stage."""
        c = self.constants
        stale = 1.0 if self.pooled else (terms.staleness + 1.0) ** 2
        return 1.0 / (
            c.smoothness * stale
            + math.sqrt(number + 1.0) * c.deviation / (c.radius * math.sqrt(terms.batch))
        )


@register
class Csgd(Plain):
    """Centralised SGD."""

    about: ClassVar[About] = About(
        regime="asynchronous",
        paper="Dekel et al. 2012",
        does="SGD on all data in one place, no privacy",
        forms={"plain": False},
        units=("none",),
    )
    name: Literal["csgd"] = "csgd"

    @property
    def pooled(self) -> bool:
        """Yes."""
        return True


@register
class Asgd(Plain):
    """Asynchronous SGD."""

    about: ClassVar[About] = About(
        regime="asynchronous",
        paper="Feyzmahdavian, Aytekin and Johansson 2016",
        does="gradients applied as they arrive, no privacy",
        forms={"plain": False},
        units=("none",),
    )
    name: Literal["asgd"] = "asgd"
