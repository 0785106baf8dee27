r"""Gaussian mechanisms: on a sum of clipped vectors, with a count beside it, and on a single
vector.

Every example contributes a vector v_i with ||v_i|| <= C. The release is

    sum_i v_i + z,     z ~ N(0, (sigma C)^2 I_d),

whose price under zero-out adjacency (one contribution is replaced by none) is that of a Gaussian
with noise multiplier sigma, before sampling (Dwork and Roth 2014, appendix A; sampling is booked
by :class:`~sordino.privacy.event.PoissonSampled` around it). Sum and noise are whole
numbers on a public grid, so that this holds for what a computer releases (:mod:`.grid`).

:class:`CountedGaussian` releases one number more, how many of the examples were
clipped, and pays for it inside the same sigma. Each example adds b_i - 1/2 with b_i in
{0, 1} (Andrew et al. 2021, section 2.2), so the count has sensitivity 1/2, and the pair

    ( sum_i v_i / (sigma_v C),   2 sum_i (b_i - 1/2) / sigma_b )   + N(0, I_{d+1})

has sensitivity sqrt(sigma_v^-2 + sigma_b^-2), which is 1/sigma by the choice
sigma_b = sigma / sqrt(share), sigma_v = sigma / sqrt(1 - share). With the default
share 1/400 the gradient carries 0.125 % more noise, and the report may show the
clipped fraction, which would otherwise be raw data.

>>> CountedGaussian(clip=1.0, noise_multiplier=1.1).vector_multiplier
1.1013...
>>> CountedGaussian(clip=1.0, noise_multiplier=1.1).event()
Gaussian(noise_multiplier=1.1)

**One bounded vector by itself** (:class:`Single`), before anybody adds anything to it. A row with
the vector v releases

    v min(1, s C / ||v||)  +  N(0, (2 z C)^2 I_d),        s = 1 - 2^-18.

The adjacency is replace-one: the entity's row is replaced by another, whose vector lies in the same
ball, at most 2C away. So the noise is z times as wide as the largest distance, and the price is
that of a Gaussian with noise multiplier z (Dwork and Roth 2014, appendix A); of n releases about
one row, ``Repeated(event, n)``, also where each depends on those before. The accountants' sampling
is for a contribution replaced by none: :class:`~sordino.privacy.event.PoissonSampled` must not be
put around it.

s leaves room for float32, as for sums: norms are added up in float64; a
factor, a product and the noise's scale are each off by 2^-24 at most, and 2^-18 is 64 of these.
That holds while no factor is denormal, so C lies in [1e-12, 1e12], and a vector longer than 1e19,
like one that is not finite, has no direction that could be kept: it becomes zero, which is in the
ball. What is released are whole numbers on a public grid, so that no digit of them shows what was
hidden (:mod:`.grid`).

Shapes: vectors (d,), rows (n, d), float32; C in their units, z dimensionless.

>>> mechanism = Single(clip=0.5, noise_multiplier=3.0)
>>> mechanism.event(), mechanism.deviation
(Gaussian(noise_multiplier=3.0), 3.0)
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeGuard, runtime_checkable

from sordino.base.errors import StudyError, passing_over
from sordino.base.registry import foreign
from sordino.privacy import event

if TYPE_CHECKING:  # whoever only prices a release does not wait for torch
    from numpy.random import Generator
    from torch import Tensor

LONGEST = 1e19
"""Norms above it have a square that float32 does not hold."""

SMALLEST, LARGEST = 1e-12, 1e12
"""Bounds C within which nothing vanishes or overflows in float32 that the proofs rest on."""

COUNT_SHARE = 1.0 / 400.0
COUNT_SENSITIVITY = 0.5
"""An example adds 1/2 or -1/2 to the excess, or nothing."""
SHRINK = 1.0 - 2.0**-18
"""Room for the rounding of a quotient and a product in float32, of a norm in float64.

Sums of many vectors need more, see :mod:`sordino.training.perexample.clipping`.
"""


Measure = Literal["flat", "layers", "own"]


class Bounded(Protocol):
    """A mechanism on a sum of contributions, each of them bounded in the mechanism's own norm."""

    @property
    def clip(self) -> float:
        """C."""

    @property
    def measure(self) -> Measure:
        """The norm in which contributions are bounded; "own" is that of :class:`Measuring`."""

    @property
    def noise_multiplier(self) -> float:
        """sigma, as asked for."""

    @property
    def vector_multiplier(self) -> float:
        """Root mean square of the noise on one number of the vector, in units of C."""

    def event(self) -> event.Event:
        """The fact that the ledger keeps of one release, before sampling."""

    def scaled(self, clip: float, noise_multiplier: float) -> Bounded:
        """The same mechanism with another C and sigma."""

    def bounded(self, vector: Tensor) -> tuple[Tensor, bool]:
        """A contribution (d,) shortened to the bound, and whether it was within it already."""

    def release_counted(
        self, total: Tensor, excess: float, rng: Generator
    ) -> tuple[Tensor, float | None]:
        """The noisy sum, and a noisy count if the mechanism releases one."""


@runtime_checkable
class Measuring(Protocol):
    """A mechanism with a norm of its own. The program's own takes each of several rows through the
    same operations, whatever its place; any other gets one row at a time.
    """

    @property
    def margin(self) -> float:
        """Return the factor of C that leaves room for rounding in this norm."""

    def norms(self, rows: Tensor) -> Tensor:
        """Norms (n,) of contributions (n, d); infinite where a row is not finite."""


@runtime_checkable
class Shortening(Protocol):
    """A mechanism that bounds several parts of a contribution, each by itself."""

    def shortened_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Contributions (n, d) within the bound, float64, and their norms (n,) before.

        What is not finite comes back as zeros, with an infinite norm.
        """


class Learning(Protocol):
    """A mechanism whose shape follows what was released before, and whose price does not."""

    def observed(self, seen: tuple[float, ...], moved: Tensor, unit: float) -> tuple[float, ...]:
        """Return what is known after one release more.

        Args:
            seen: what was known when it was made; empty before the first.
            moved: a released vector (d,), in any fixed multiple of the sum.
            unit: deviation in ``moved`` of noise that had deviation 1 in the sum.
        """

    def shaped(self, seen: tuple[float, ...]) -> Bounded:
        """The mechanism for the next release."""

    def scaled(self, clip: float, noise_multiplier: float) -> Self: ...


def learns(mechanism: object) -> TypeGuard[Learning]:
    """Tell whether a mechanism is :class:`Learning`; asked of every task, so it must be quick."""
    return hasattr(mechanism, "observed") and hasattr(mechanism, "shaped")


@runtime_checkable
class Tailed(Protocol):
    """A mechanism that says how long a vector may be that it has bounded and covered with noise."""

    @property
    def longest(self) -> float:
        """Euclidean length that no contribution exceeds."""

    def noise_within(self, dimension: int, times: int, chance: float) -> float:
        """Euclidean length that the sum of the noises of so many releases of (d,) exceeds with at
        most this probability.
        """


def normal_within(deviation: float, widest: float, dimension: int, chance: float) -> float:
    """Length that a Gaussian vector (d,) exceeds with at most this probability.

    sqrt(E ||x||^2) + widest sqrt(2 ln(1/chance)), by concentration of Lipschitz functions
    (Boucheron, Lugosi, Massart 2013, theorem 5.6), where ||x|| is at most its root mean square on
    average, and moves by ``widest`` with a unit of a standard normal.

    Args:
        deviation: root mean square of a number.
        widest: largest deviation in any direction.
    """
    return deviation * math.sqrt(dimension) + widest * math.sqrt(2.0 * math.log(1.0 / chance))


def shortened(
    vector: Tensor, norm: float, clip: float, margin: float = SHRINK
) -> tuple[Tensor, bool]:
    """``vector`` times min(1, C / norm), rounding included, and whether norm was within C.

    Zeros where norm is not finite, or above 1e19.

    There the factor may be denormal, and a product with it be longer than C; a batch's kernels
    cannot square it either.
    """
    if not norm <= LONGEST:
        return vector.new_zeros(vector.shape), False
    return (vector if norm <= clip * margin else vector * (clip * margin / norm)), norm <= clip


def within(mechanism: Bounded, vector: Tensor) -> tuple[Tensor, bool]:
    """A contribution (d,) as a mechanism bounds it, and whether it was within; zeros, not within,
    where one of somebody's own fails on it, or gives what is not finite: an error would tell of
    the contribution, and with a NaN the sum loses those of all others.
    """
    with passing_over() if foreign(mechanism) else nullcontext():
        found, inside = mechanism.bounded(vector)
        if not foreign(mechanism) or bool(found.isfinite().all()):
            return found.reshape(vector.shape), bool(inside)
    return vector.new_zeros(vector.shape), False


def length(vector: Tensor) -> float:
    """||vector||, added up in float64: float32 loses more than SHRINK leaves room for."""
    import torch

    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def checked_clip(clip: float, place: str = "privacy.clip") -> float:
    """C itself, if it is one for which the bound of contributions is proven.

    Raises:
        StudyError: if it is not, naming its place.
    """
    if not SMALLEST <= clip <= LARGEST:
        raise StudyError(
            f"{place} must be a number from {SMALLEST:g} to {LARGEST:g}, where float32 keeps "
            f"the bound; got {clip}: choose one in between, or rescale the data"
        )
    return clip


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A mechanism of a bound and of noise in its units.

    Attributes:
        clip: C, the bound of one contribution (units of the vector).
        noise_multiplier: sigma, dimensionless.
    """

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        checked_clip(self.clip)
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise StudyError(
                f"noise_multiplier must be a positive number; got {self.noise_multiplier}. For no "
                "privacy, set privacy.unit = 'none'"
            )

    def scaled(self, clip: float, noise_multiplier: float) -> Self:
        return replace(self, clip=clip, noise_multiplier=noise_multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Euclidean(Scaled):
    """A mechanism for contributions whose Euclidean length is at most C."""

    @property
    def longest(self) -> float:
        """Return C."""
        return self.clip

    @property
    def vector_multiplier(self) -> float:
        """The noise on one number of the vector, in units of C: sigma."""
        return self.noise_multiplier

    def bounded(self, vector: Tensor) -> tuple[Tensor, bool]:
        return shortened(vector, length(vector), self.clip)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian(Euclidean):
    """Release sum_i v_i + N(0, (sigma C)^2 I_d) where every ||v_i|| <= C, and perhaps a count.

    Attributes:
        measure: whether contributions are bounded as a whole, or each layer by itself within the
            same C.
        share: the part of 1/sigma^2 that pays for a count, in [0, 1); 0 for none.
    """

    measure: Literal["flat", "layers"] = "flat"
    share: float = field(default=0.0, repr=False)  # noise is drawn over its text

    def event(self) -> event.Gaussian:
        """The fact that the ledger keeps of one release, before sampling."""
        return event.Gaussian(noise_multiplier=self.noise_multiplier)

    @property
    def vector_multiplier(self) -> float:
        """sigma_v: the noise on the vector, in units of C."""
        return self.noise_multiplier / math.sqrt(1.0 - self.share)

    @property
    def count_deviation(self) -> float:
        """Standard deviation of the noise on the count, in examples: sigma_b / 2."""
        return 0.5 * self.noise_multiplier / math.sqrt(self.share)

    def noise_within(self, dimension: int, times: int, chance: float) -> float:
        deviation = self.vector_multiplier * self.clip * math.sqrt(times)
        return normal_within(deviation, deviation, dimension, chance)

    def release_counted(
        self, total: Tensor, excess: float, rng: Generator
    ) -> tuple[Tensor, float | None]:
        """Noisy vector (d,), float32, and noisy excess where a count is released.

        Args:
            total: sum of contributions (d,), each within C; left as it is.
            excess: sum over the batch of b_i - 1/2, in examples.
            rng: the noise; the vector's comes first, then the count's.
        """
        from sordino.mechanisms.grid import add_gaussian

        noisy = add_gaussian(total, rng, clip=self.clip, noise_multiplier=self.vector_multiplier)
        return noisy, noisy_count(excess, rng, self.count_deviation) if self.share else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedGaussian(Gaussian):
    """A Gaussian release of a vector and of a count, together priced at sigma."""

    share: float = COUNT_SHARE


def noisy_count(excess: float, rng: Generator, deviation: float) -> float:
    """Return the sum of b_i - 1/2 over a batch, with noise of this standard deviation."""
    import torch

    from sordino.mechanisms.grid import add_gaussian

    half = torch.tensor([excess], dtype=torch.float64)
    scale = deviation / COUNT_SENSITIVITY
    return float(add_gaussian(half, rng, clip=COUNT_SENSITIVITY, noise_multiplier=scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """Release v + N(0, (2 z C)^2 I_d) of one v that is shortened to C.

    Attributes:
        clip: C, the L2 bound of the vector (units of the vector), in [1e-12, 1e12].
        noise_multiplier: z, noise over the distance 2C, dimensionless, in [1e-12, 1e12].

    Raises:
        StudyError: for a bound or a multiplier outside these.
    """

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        for name, value in (("clip", self.clip), ("noise_multiplier", self.noise_multiplier)):
            if not SMALLEST <= value <= LARGEST:
                raise StudyError(
                    f"{name} must be a number from {SMALLEST:g} to {LARGEST:g}; got {value}"
                )

    @property
    def sensitivity(self) -> float:
        """2C: how far the vector can move when its row is replaced by another."""
        return 2.0 * self.clip

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on one number: 2 z C."""
        return self.noise_multiplier * self.sensitivity

    def event(self) -> event.Gaussian:
        """The fact that the ledger keeps of one release; of :meth:`release_rows`, about one row."""
        return event.Gaussian(noise_multiplier=self.noise_multiplier)

    def within(self, rows: int, dimension: int, chance: float) -> float:
        """Length that so many noisy rows, (d,) in all, exceed with at most this probability."""
        noise = normal_within(self.deviation, self.deviation, dimension, chance)
        return self.clip * math.sqrt(rows) + noise

    def bounded(self, rows: Tensor) -> Tensor:
        """Rows (n, d), each shortened to at most s C; zero if above 1e19 or not finite."""
        import torch

        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
        factors = (self.clip * SHRINK / norms).clamp_max_(1.0).to(rows.dtype)
        return torch.where(norms <= LONGEST, rows * factors, 0.0)  # NaN is not

    def release(self, v: Tensor, rng: Generator) -> Tensor:
        """The noisy vector (d,) of a vector (d,), which is left as it is."""
        return self.release_rows(v.unsqueeze(0), rng).squeeze(0)

    def release_rows(self, rows: Tensor, rng: Generator) -> Tensor:
        """Noisy rows (n, d) of rows (n, d), each with noise of its own: n releases.

        One about each row. ``rows`` are left as they are.
        """
        from sordino.mechanisms.grid import add_gaussian

        within, (_, d) = self.bounded(rows.detach()).flatten(), rows.shape
        return add_gaussian(
            within, rng, clip=self.sensitivity, noise_multiplier=self.noise_multiplier, dimension=d
        ).view(rows.shape)


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

    def event(self) -> event.Gaussian:
        """The fact that the ledger keeps of one release."""
        return event.Gaussian(noise_multiplier=self.noise_multiplier / self.excess)

    def release(self, vector: Tensor, rng: Generator) -> Tensor:
        """The noisy vector (d,), float32, on a public grid; ``vector`` is left as it is."""
        from sordino.mechanisms.grid import add_gaussian

        clip, sigma = self.claimed * self.excess, self.noise_multiplier / self.excess
        return add_gaussian(vector, rng, clip=clip, noise_multiplier=sigma)
