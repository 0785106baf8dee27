r"""Asynchronous methods: a public schedule of clipping bounds and learning rates.

Edges send a noisy gradient whenever they are ready; the server applies each at once,

    x_{t+1} = x_t - gamma_t g~,        t = 1, 2, ..., T

and answers only its sender (Li et al. 2022, section 3.2). How stale gradients may be is bounded
by tau_max, which learning rates must heed. A method says for every t which bound G_s clips the
examples' gradients and which gamma_t the server uses. Both follow from public constants alone,
so they are known before the run, cost no privacy, and can be planned with.

Symbols: K edges, b expected batch, d dimension, T updates, tau_max bound of staleness, z noise
multiplier, G clip, L smoothness, s deviation of single gradients, f(x_1) - f* the gap to close.

The methods of Li et al. 2022, and their baselines.

**Without privacy**: centralised, and asynchronous (Table II).

    csgd    1 / gamma_t = L + sqrt(t + 1) s / (R sqrt b)
    asgd    1 / gamma_t = L (tau_max + 1)^2 + sqrt(t + 1) s / (R sqrt b)

``csgd`` has all data in one place and no staleness: what could be had without a federation.

>>> terms = EdgeTerms(
...     dimension=7850, edges=5, batch=12, clip=math.inf, noise=0.0, staleness=5, updates=15_000
... )
>>> [round(1 / each.rate(terms, each.stages(terms)[0], 1), 2) for each in (Csgd(), Asgd())]
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
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import ClassVar, Literal, cast

from pydantic import Field

from sordino.base.errors import StudyError
from sordino.base.registry import BelowOne, NotNegative, Positive
from sordino.core.method import METHODS, About, ContractBroken, Method, register

LITERAL_BOUND = 4.0
LONGEST = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeTerms:
    """Public facts, known before the first update.

    Attributes:
        dimension: d.
        edges: K.
        batch: b, the expected batch and the divisor of every gradient.
        clip: G, of one example's gradient in the first stage; infinite without privacy.
        noise: z, the largest noise multiplier of any edge; 0 without privacy.
        staleness: tau_max, in updates.
        updates: T.
    """

    dimension: int
    edges: int
    batch: float
    clip: float
    noise: float
    staleness: int
    updates: int


@dataclass(frozen=True, slots=True)
class Constants:
    """L, s, R and f(x_1) - f*: public guesses at the problem, never estimates from raw data."""

    smoothness: float
    deviation: float
    radius: float
    gap: float


SOUND = Constants(smoothness=1.0, deviation=1.0, radius=1.0, gap=math.log(10.0))
# of the authors' code and section 7.3.2
PAPER = Constants(smoothness=10.0, deviation=30.0, radius=50.0, gap=50.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stretch of updates with one clipping bound.

    Attributes:
        number: s, from 1.
        start: updates before it.
        length: T_s updates; the last stage of a schedule may be cut short by T.
        clip: G_s; infinite without privacy.
        rate: gamma where it is constant in the stage, or None where it falls with t.
        variance: Delta_b, of one noisy gradient (squared units of a gradient).
        slowing: P, by which the noise lengthens the stage; 1 where noise does not matter.
    """

    number: int
    start: int
    length: int
    clip: float
    rate: float | None
    variance: float
    slowing: float = 1.0

    @property
    def end(self) -> int:
        """Updates until it is over."""
        return self.start + self.length


class AsynchronousMethod(Method):
    """A method that applies gradients as they arrive.

    Attributes:
        batch: b, the expected batch of an edge, in examples.
        regularisation: lambda of (lambda/2) ||x||^2, added to every gradient after its noise.
        smoothness, deviation, radius, gap: L, s, R and f(x_1) - f*; left out, those of the form.
        average: decay of the averaged global models, in [0, 1); post-processing, costs no privacy.
    """

    about: ClassVar[About]
    needs: ClassVar[tuple[str, ...]] = ("stages",)

    batch: Positive = 12.0
    regularisation: NotNegative = 1e-4
    average: BelowOne = 0.0
    smoothness: Positive | None = None
    deviation: NotNegative | None = None
    radius: Positive | None = None
    gap: Positive | None = None

    @property
    def pooled(self) -> bool:
        """All data lies in one place, as for the centralised baseline."""
        return False

    @property
    def literal(self) -> bool:
        """The paper's own form was asked for."""
        return getattr(self, "form", "sound") == "paper"

    @property
    def constants(self) -> Constants:
        """The public guesses, each as given or by the form's default."""
        own = {each.name: getattr(self, each.name) for each in fields(Constants)}
        given = {name: value for name, value in own.items() if value is not None}
        return replace(PAPER if self.literal else SOUND, **given)

    def stages(self, terms: EdgeTerms) -> tuple[Stage, ...]:
        """The schedule, from the first update to at least the T-th."""
        raise NotImplementedError

    def planned(self, terms: EdgeTerms) -> tuple[Stage, ...]:
        """Return the stages, without gaps, from the first update to the last.

        Raises:
            StudyError: if what :meth:`stages` gives is no such schedule.
        """
        given: object = self.stages(terms)
        wanted = "its stages (Stage), one after another without a gap, up to the last update"
        if not isinstance(given, tuple | list) or not all(
            isinstance(each, Stage) for each in given
        ):
            raise METHODS.wrong(self, "stages", given, wanted)
        end, found = 0, list[Stage]()
        for stage in given:
            if stage.start != end or stage.length < 1:
                raise METHODS.wrong(self, "stages", given, wanted)
            if not isinstance(stage.clip, Real):
                raise METHODS.wrong(self, "clip of stages", stage.clip, "a number")
            if end < terms.updates and not isinstance(
                rate := cast(object, self.rate(terms, stage, end + 1)), Real
            ):
                raise METHODS.wrong(self, "rate", rate, "a number")
            end = stage.end
            found.append(
                Stage(  # NumPy's numbers are none for JSON
                    number=int(stage.number),
                    start=int(stage.start),
                    length=int(stage.length),
                    clip=float(stage.clip),
                    rate=None if stage.rate is None else float(stage.rate),
                    variance=float(stage.variance),
                    slowing=float(stage.slowing),
                )
            )
        if end < terms.updates:
            raise METHODS.wrong(self, "stages", given, wanted)
        return tuple(found)

    def rate(self, terms: EdgeTerms, stage: Stage, number: int) -> float:
        """gamma_t of update t = ``number``, from 1, which falls into ``stage``."""
        if stage.rate is None:
            raise METHODS.wrong(
                self, "rate of stages", None, "a number, or the class a method rate of its own"
            )
        return stage.rate


class Noisy(AsynchronousMethod):
    r"""An asynchronous method with noise, in its sound form or in its paper's own.

    The sound form clips every example's gradient to G, divides the noisy sum by the expected
    batch, and so has

        Delta_b = s^2 / b + d z^2 (G / b)^2 .

    The paper draws b examples with replacement (which its Assumption 2 asks for), clips their
    *average* to b DS / 2, which a single example may move by as much, and adds noise whose length
    is exponential with scale DS / eps_k in any dimension: Delta_b = s^2 / b + 2 DS^2 / eps_0^2 with
    eps_0 the least eps_k. That has no finite price.

    Attributes:
        form: "sound", or "paper" for the letter, which is not private.
        iteration_epsilon: eps_k of every edge, what the paper's form claims for each update.
        iteration_epsilons: eps_k of each edge, where they differ; for the paper's form only.
        bound: R = b DS / 2 of the first update in the paper's form; left out, the method's own. The
            sound form's bound is ``privacy.clip``.
        noised: parts that get noise in the paper's form: all, or the first layer alone as in its
            experiments.
    """

    form: Literal["sound", "paper"] = "sound"
    iteration_epsilon: Positive = 0.1
    iteration_epsilons: tuple[Positive, ...] | None = None
    bound: Positive | None = None
    noised: Literal["all", "first-layer"] = "all"

    @property
    def unpriced(self) -> str | None:
        """The reason why a form has no price, or None."""
        if not self.literal:
            return None
        layers = " and the other layers go out raw" if self.noised == "first-layer" else ""
        return (
            "form = 'paper' clips the average of a batch, which one example may move by the whole "
            "bound, and adds noise of exponential length, whose density has a pole in more than "
            f"one dimension{layers}"
        )

    def claims(self, edges: int) -> tuple[float, ...]:
        """eps_k, (edges,): what the paper's form claims for each update of each edge."""
        own = self.iteration_epsilons
        return own if own is not None else (self.iteration_epsilon,) * edges

    def variance(self, terms: EdgeTerms, clip: float) -> float:
        """Delta_b at the clipping bound G, or R = b DS / 2 in the paper's form."""
        s = self.constants.deviation
        if self.literal:
            return (
                s**2 / terms.batch
                + 2.0 * (2.0 * clip / terms.batch / min(self.claims(terms.edges))) ** 2
            )
        return s**2 / terms.batch + terms.dimension * (terms.noise * clip / terms.batch) ** 2


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
        """gamma_t by the table."""
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
        found, start, clip = list[Stage](), 0, terms.clip
        c, stale = self.constants, terms.staleness + 1.0
        if self.literal:  # b DS_0 / 2, Eq. (12) with equality
            clip = self.bound or c.deviation / math.sqrt(1.0 - math.sqrt(1.0 - self.failure))
        while start < terms.updates:
            variance = self.variance(terms, clip)
            # b DS = 2 G
            slowing = max(8.0 * variance / (stale * (2.0 * clip) ** 2 * self.theta**2), 1.0)
            length = 4.0 * slowing**2 * c.smoothness * stale**2 * c.gap / variance
            stage = Stage(
                number=len(found) + 1,
                start=start,
                length=max(math.ceil(min(length, LONGEST)), 1),
                clip=clip,
                rate=1.0 / (2.0 * slowing * c.smoothness * stale),
                variance=variance,
                slowing=slowing,
            )
            found.append(stage)
            start, clip = stage.end, self.theta * clip
        return tuple(found)


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


DIMENSION, CLIENTS = 8, 3


def check(method: Method) -> None:
    """Hold a method against what the regime rests on: walk through its schedule.

    It is public, covers the run without gaps, and is the same whenever it is asked for.

    Raises:
        ContractBroken: naming what does not hold.
    """
    if not isinstance(method, AsynchronousMethod):
        raise ContractBroken(
            f"{method.name}: is no AsynchronousMethod, and its about says asynchronous"
        )
    terms = EdgeTerms(
        dimension=DIMENSION,
        edges=CLIENTS,
        batch=12.0,
        clip=1.0 if method.private else math.inf,
        noise=1.2 if method.private else 0.0,
        staleness=CLIENTS,
        updates=1000,
    )
    try:
        stages = method.planned(terms)
    except StudyError as error:
        raise ContractBroken(str(error)) from error
    if stages != method.planned(terms):
        raise ContractBroken(f"{method.name}: asked twice, its schedule differs")
    for stage in stages:
        if method.private and not 0 < stage.clip < math.inf:
            raise ContractBroken(f"{method.name}: stage {stage.number} has clip {stage.clip}")
        for number in (stage.start + 1, min(stage.end, terms.updates)):
            rate = method.rate(terms, stage, number)
            if not 0 < rate < math.inf or rate != method.rate(terms, stage, number):
                raise ContractBroken(f"{method.name}: update {number} has learning rate {rate}")
