r"""The asynchronous methods of Li et al. 2022, and their baselines.

**Without privacy**: centralised, and asynchronous (Table II).

    csgd    1 / gamma_t = L + sqrt(t + 1) s / (R sqrt b)
    asgd    1 / gamma_t = L (tau_max + 1)^2 + sqrt(t + 1) s / (R sqrt b)

``csgd`` has all data in one place and no staleness: what could be had without a federation.

>>> terms = EdgeTerms(
...     dimension=7850, edges=5, batch=12, clip=math.inf, noise=0.0, staleness=5, updates=15_000
... )
>>> [round(1 / method.gamma(terms, 1), 2) for method in (Csgd(), Asgd())]
[1.41, 36.41]

**AUDP**: asynchronous updates with one clipping bound (section 5).

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

**MAPA**: clipping bound, noise and learning rate fall in stages (Algorithm 1).

Stage s with bound G_s, where DS_s = 2 G_s / b:

    P     = max( 8 Delta_b / ((tau_max + 1) b^2 DS_s^2 theta^2), 1 )           (Eq. 16, Table II)
    gamma = 1 / (2 P L (tau_max + 1))
    T_s   = 4 P^2 L (tau_max + 1)^2 (f(x_1) - f*) / Delta_b                    (Eq. 15)
    DS_{s+1} = theta DS_s .

After T_s updates the mean squared gradient is bounded by what the next bound lets through, so
clipping need not bite. In the sound form the noise multiplier z is the same in every stage, so
that an edge's ledger is one homogeneous subsampled Gaussian; noise falls as G_s does. The first
bound is ``privacy.clip``; the paper's form takes it from Theorem 3, Eq. (12), or from ``bound``.

>>> terms = EdgeTerms(
...     dimension=7850, edges=5, batch=12, clip=1.0, noise=1.0, staleness=5, updates=15_000
... )
>>> [(round(stage.slowing), stage.length) for stage in Mapa().stages(terms)]
[(73, 32183)]
>>> [stage.length for stage in Mapa().stages(replace(terms, batch=120))[:3]]
[600, 2293, 7820]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from sordino.core.method import register
from sordino.regimes.asynchronous.method import (
    About,
    AsynchronousMethod,
    EdgeTerms,
    Noisy,
    Stage,
)

LITERAL_BOUND = 4.0
LONGEST = 2**53


def _whole_run(terms: EdgeTerms, clip: float, variance: float) -> Stage:
    """Return one stage, as long as the run, whose rate falls with t."""
    length = terms.updates
    return Stage(number=1, start=0, length=length, clip=clip, rate=None, variance=variance)


class Plain(AsynchronousMethod):
    """One stage, no clipping, no noise, and a rate that falls with the root of t."""

    def stages(self, terms: EdgeTerms) -> tuple[Stage, ...]:
        """One, as long as the run."""
        return (_whole_run(terms, math.inf, self.constants.deviation**2 / terms.batch),)

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
        return (_whole_run(terms, clip, self.variance(terms, clip)),)

    def rate(self, terms: EdgeTerms, stage: Stage, number: int) -> float:
        """gamma_t of Eq. (10)."""
        return 1.0 / (
            self.constants.smoothness * (terms.staleness + 1.0)
            + math.sqrt((stage.variance + 1.0) * number)
        )


@register
class Mapa(Noisy):
    """MAPA.

    Attributes:
        theta: by how much the bound falls from stage to stage, in (0, 1).
        failure: delta of Eq. (12), for the paper's form only.
    """

    about: ClassVar[About] = About(
        regime="asynchronous",
        paper="Li, Yang, Ren and Zhao 2022",
        does="noisy gradients applied as they arrive; clip and rate fall in stages",
        forms={"sound": True, "paper": False},
    )
    name: Literal["mapa"] = "mapa"
    theta: float = Field(0.5, gt=0, lt=1)
    failure: float = Field(1e-3, gt=0, lt=1)

    def stages(self, terms: EdgeTerms) -> tuple[Stage, ...]:
        """As many as T updates begin."""
        found: list[Stage] = []
        clip, start = self._first(terms), 0
        while start < terms.updates:
            found.append(self._stage(terms, len(found) + 1, start, clip))
            start, clip = found[-1].end, self.theta * clip
        return tuple(found)

    def _first(self, terms: EdgeTerms) -> float:
        if not self.literal:
            return terms.clip
        # b DS_0 / 2, Eq. (12) with equality
        return self.bound or self.constants.deviation / math.sqrt(
            1.0 - math.sqrt(1.0 - self.failure)
        )

    def _stage(self, terms: EdgeTerms, number: int, start: int, clip: float) -> Stage:
        c, stale, variance = self.constants, terms.staleness + 1.0, self.variance(terms, clip)
        # b DS = 2 G
        slowing = max(8.0 * variance / (stale * (2.0 * clip) ** 2 * self.theta**2), 1.0)
        length = 4.0 * slowing**2 * c.smoothness * stale**2 * c.gap / variance
        rate = 1.0 / (2.0 * slowing * c.smoothness * stale)
        return Stage(
            number=number,
            start=start,
            length=max(math.ceil(min(length, LONGEST)), 1),
            clip=clip,
            rate=rate,
            variance=variance,
            slowing=slowing,
        )


def feasible(method: Mapa, terms: EdgeTerms) -> tuple[float | None, float | None]:
    """The next larger batch, and the next smaller z, that end the first stage within T; or None.

    The length of the first stage falls with b and grows with z where noise slows it (P > 1), and
    the other way round, slowly, where it does not. Both are sought from the present values, by
    factors of 2^(1/8); that more noise may end the stage, too, is no advice.
    """

    def fits(changed: EdgeTerms) -> bool:
        return method.stages(replace(changed, updates=1))[0].length <= terms.updates

    def sought(value: float, factor: float, changed: Callable[[float], EdgeTerms]) -> float | None:
        for _ in range(160):
            value *= factor
            if fits(changed(value)):
                return value
        return None

    batch = sought(terms.batch, 2.0**0.125, lambda value: replace(terms, batch=value))
    return batch, sought(terms.noise, 2.0**-0.125, lambda value: replace(terms, noise=value))
