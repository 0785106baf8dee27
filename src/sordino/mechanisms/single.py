r"""A Gaussian release of one bounded vector: what somebody tells of a single row.

Before anybody adds anything to it.

A row with the vector v releases

    v min(1, s C / ||v||)  +  N(0, (2 z C)^2 I_d),        s = 1 - 2^-18.

The adjacency is replace-one: the entity's row is replaced by another, whose vector lies in the same
ball, at most 2C away. So the noise is z times as wide as the largest distance, and the price is
that of a Gaussian with noise multiplier z (Dwork and Roth 2014, appendix A); of n releases about
one row, ``Repeated(event, n)``, also where each depends on those before. The accountants' sampling
is for a contribution replaced by none: :class:`~sordino.privacy.event.PoissonSampled` must not be
put around it.

s leaves room for float32, as in ``mechanisms.gaussian``: norms are added up in float64; a
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
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sordino.base.errors import DataError, StudyError
from sordino.mechanisms.gaussian import LARGEST, LONGEST, SHRINK, SMALLEST, normal_within
from sordino.mechanisms.grid import add_gaussian
from sordino.privacy import event


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
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
        factors = (self.clip * SHRINK / norms).clamp_max_(1.0).to(rows.dtype)
        return torch.where(norms <= LONGEST, rows * factors, 0.0)  # NaN is not

    def release(self, v: Tensor, rng: np.random.Generator) -> Tensor:
        """The noisy vector (d,) of a vector (d,), which is left as it is."""
        if v.ndim != 1:
            raise DataError(f"a single release is of one vector (d,); got {tuple(v.shape)}")
        return self.release_rows(v.unsqueeze(0), rng).squeeze(0)

    def release_rows(self, rows: Tensor, rng: np.random.Generator) -> Tensor:
        """Noisy rows (n, d) of rows (n, d), each with noise of its own: n releases.

        One about each row. ``rows`` are left as they are.

        Raises:
            DataError: for anything but float32 (n, d).
        """
        if rows.ndim != 2 or rows.dtype != torch.float32:
            raise DataError(
                f"single releases are of float32 rows (n, d); got {rows.dtype} {tuple(rows.shape)}"
            )
        within, (_, d) = self.bounded(rows.detach()).flatten(), rows.shape
        return add_gaussian(
            within, rng, clip=self.sensitivity, noise_multiplier=self.noise_multiplier, dimension=d
        ).view(rows.shape)
