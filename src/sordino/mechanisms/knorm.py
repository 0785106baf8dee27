r"""Pure differential privacy for a sum of clipped vectors: the Euclidean K-norm mechanism.

Every contribution v_i has ||v_i|| <= C. The release is sum_i v_i + eta with

    density of eta  ~  exp(-epsilon_0 ||eta|| / C)   on R^d.

One contribution that is there or not moves the sum by at most C, so by the triangle inequality no
answer is more than e^epsilon_0 times as likely on one side as on the other: epsilon_0, with delta =
0 (Hardt and Talwar 2010). In polar coordinates the volume element puts r^(d-1) before the
exponential: ||eta|| is Gamma distributed, of shape d and scale C / epsilon_0, and the direction is
uniform on the sphere. So

    E ||eta||^2  =  d (d + 1) (C / epsilon_0)^2.

That grows like d^2, where a Gaussian's grows like d. To compare the two, the noise is given by its
root mean square on one number in units of C, as for a Gaussian:

    sigma = sqrt(d + 1) / epsilon_0,      epsilon_0 = sqrt(d + 1) / sigma.

At sigma = 1 and d = 7850 that is epsilon_0 = 88.6: by proof next to nothing. In fact the loss of
one release is about epsilon_0 cos(angle), of deviation epsilon_0 / sqrt(d) = 1/sigma, like the
Gaussian's, but that is observed and not proved, and what is booked is proved.

:class:`ExponentialNorm` is the noise that Li et al.'s MAPA samples: ||eta|| from Exp(C /
epsilon_0), in place of Gamma. Its density in R^d is ~ ||eta||^(1-d) exp(-epsilon_0 ||eta|| / C),
which for d > 1 has no bound at 0: answers near the true sum are as many times as likely as one
likes. There is no epsilon, and it is booked as that.

**In whole numbers.** As in :mod:`.grid`, sum and noise are rounded to a public grid of step g
before they are added, and the noise is scaled to C + g sqrt(d), which is what rounding lets one
contribution do. For a true eta that costs exactly epsilon_0. But eta itself comes from a float64
sampler of NumPy's, whose distribution is not known to the last bit, and a proof like that of
:mod:`.draws` would have to follow every number through the norm of all. So the price rests on an
ideal sampler: **K-norm noise is for simulations**, and with the operating system's entropy it is
refused.

Shapes: vectors ``(d,)``; C in their units; sigma and epsilon_0 dimensionless.

>>> mechanism = KNorm(clip=1.0, noise_multiplier=10.0, dimension=99)
>>> mechanism.event()
Pure(epsilon=1.0)

References:
    Hardt and Talwar 2010, On the Geometry of Differential Privacy, section 4.
    Li, Yang, Ren, Zhao 2019, Asynchronous Federated Learning with Differential Privacy for Edge
    Intelligence, equation 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from numpy.random import Generator
from torch import Tensor

from sordino.base.errors import StudyError
from sordino.mechanisms.gaussian import Euclidean, length
from sordino.mechanisms.grid import FINE
from sordino.privacy import event

UNBOUNDED = (
    "noise of exponential length in d > 1 dimensions: its density has no bound at 0, so "
    "there is no epsilon"
)


def direction(dimension: int, rng: Generator) -> Tensor:
    """A point (d,), float64, that is uniform on the unit sphere."""
    found, norm = torch.empty(0, dtype=torch.float64), 0.0
    while norm == 0.0:  # which rounding allows where d is very small
        found = torch.from_numpy(rng.standard_normal(dimension))
        norm = length(found)
    return found.div_(norm)


def exponential_norm(dimension: int, mean: float, rng: Generator) -> Tensor:
    """A vector (d,), float32, of uniform direction and a length from Exp(mean).

    Li et al. 2022, Eq. (6), as their program draws it.
    """
    drawn = float(rng.exponential(mean))
    return direction(dimension, rng).mul_(drawn).to(torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Radial(Euclidean):
    """A sum of contributions within C, and noise whose direction is uniform.

    Attributes:
        clip: C, the L2 bound of one contribution (units of the vector).
        noise_multiplier: sigma, root mean square of the noise on one number in units of C.
        dimension: d.
    """

    dimension: int
    measure: Literal["flat"] = "flat"

    def release_counted(self, total: Tensor, excess: float, rng: Generator) -> tuple[Tensor, None]:
        """The noisy sum (d,), float32, on the grid; no count is released.

        ``total`` is left as it is.
        """
        if total.shape != (self.dimension,):
            raise StudyError(
                f"noise for {self.dimension} numbers was asked for {tuple(total.shape)}: its "
                "price would not hold"
            )
        step = self.step
        # rounding may add as much to what one record does
        moved = self.clip + step * math.sqrt(self.dimension)
        noise = direction(self.dimension, rng).mul_(moved * self.length(rng) / step).round_()
        steps = total.detach().to("cpu", torch.float64).div(step).round_()
        return steps.add_(noise).mul_(step).to(torch.float32).to(total.device), None

    @property
    def step(self) -> float:
        """The grid's step, a power of two (units of the vector)."""
        most = min(self.noise_multiplier * FINE, 2.0**-11 / math.sqrt(self.dimension))
        return 2.0 ** math.floor(math.log2(self.clip * most))

    def length(self, rng: Generator) -> float:
        """||eta|| in units of C."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class KNorm(_Radial):
    """Release sum_i v_i + eta, eta of density ~ exp(-epsilon_0 ||eta|| / C), all ||v_i|| <= C.

    Attributes: those of every noise with a uniform direction: clip, noise_multiplier and dimension.
    """

    @staticmethod
    def claimed(noise_multiplier: float, dimension: int) -> event.Pure:
        """epsilon_0 = sqrt(d + 1) / sigma."""
        return event.Pure(epsilon=math.sqrt(dimension + 1) / noise_multiplier)

    def event(self) -> event.Pure:
        """The fact that the ledger keeps of one release, before sampling."""
        return self.claimed(self.noise_multiplier, self.dimension)

    def noise_within(self, dimension: int, times: int, chance: float) -> float:
        """Return a bound by a gamma tail: the lengths of the noises add up to
        Gamma(times d) C / epsilon_0 (Boucheron, Lugosi, Massart 2013, section 2.4).
        """
        shape, tail = times * dimension, math.log(1.0 / chance)
        moved = self.clip + self.step * math.sqrt(self.dimension)
        return moved * (shape + math.sqrt(2.0 * shape * tail) + tail) / self.event().epsilon

    def length(self, rng: Generator) -> float:
        """Gamma(d) / epsilon_0."""
        return float(rng.standard_gamma(self.dimension)) / self.event().epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialNorm(_Radial):
    """The same with ||eta|| ~ Exp(C / epsilon_0). NOT private if d > 1.

    E ||eta||^2 = 2 (C / epsilon_0)^2, whatever d.

    Attributes: those of :class:`KNorm`.
    """

    @staticmethod
    def claimed(noise_multiplier: float, dimension: int) -> event.Pure:
        """epsilon_0 = sqrt(2 / d) / sigma, which is true for d = 1."""
        return event.Pure(epsilon=math.sqrt(2.0 / dimension) / noise_multiplier)

    def event(self) -> event.Pure | event.NonPrivate:
        """The fact that the ledger keeps of one release, before sampling."""
        if self.dimension > 1:
            return event.NonPrivate(reason=UNBOUNDED)
        return self.claimed(self.noise_multiplier, 1)

    def length(self, rng: Generator) -> float:
        """Exp(1) / epsilon_0."""
        claimed = self.claimed(self.noise_multiplier, self.dimension)
        return float(rng.standard_exponential()) / claimed.epsilon
