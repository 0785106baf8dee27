r"""Factors that bring every example's gradient inside the bound, rounding included.

    c_i = min(1, s C / |G_i|),        s = 1 - 2^-18

In exact arithmetic s = 1 gives |c_i G_i| <= C. In float32 the norm, the quotient and the
products c_i G_i are each off by some units in the last place (eps = 2^-23 relative), the
norm by the most, as it is a sum over the whole vector; vectorised sums keep it within
a few eps. s leaves 32 eps of room for all of them together, at a cost of 4 parts in a
million of the signal. What s does not cover is the rounding of the sum over examples,
which depends on all of them and is of the order of eps times the sum; it lies far below
the noise but is part of what floating-point noise can never promise (Mironov 2012).

An example whose gradient is not finite (overflow, NaN in its data) has no direction that
could be kept: it contributes nothing, which is inside the bound. The same holds for norms
above 1e19, whose square float32 does not hold.

References:
    Abadi et al. 2016, Deep Learning with Differential Privacy, algorithm 1.
    Mironov 2012, On Significance of the Least Significant Bits for Differential Privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.errors import StudyError
from sordino.mechanism import SHRINK

SMALLEST, LARGEST = 1e-12, 1e12


@dataclass(frozen=True, slots=True, eq=False)
class Clipped:
    """Raw quantities of one batch. They depend on single examples: they never leave a client.

    Attributes:
        norms: |G_i| before clipping (n,); infinite where a gradient is not finite.
        clip: C.
        loss: losses (n,).
        counted: how many norms are above C, where the path has counted them on its way.
    """

    norms: Tensor
    clip: float
    loss: Tensor
    counted: int | None = None

    @property
    def clipped(self) -> int:
        """How many examples had a norm above C."""
        return int((self.norms > self.clip).sum()) if self.counted is None else self.counted


def checked(clip: float) -> float:
    """C itself, if it is one that float32 can work with."""
    if not SMALLEST <= clip <= LARGEST:
        raise StudyError(f"privacy.clip must lie between {SMALLEST:g} and {LARGEST:g}; got {clip}")
    return clip


def factors(norms: Tensor, clip: float, margin: float = SHRINK) -> Tensor:
    """c_i (n,) of norms (n,); a norm of zero gives 1."""
    return torch.reciprocal(norms).mul_(clip * margin).clamp_max_(1.0)


def lengths(rows: Tensor) -> Tensor:
    """|row| (n,) of rows (n, d), added up in float64: in float32 the sum over a long row loses more than the margin leaves room for."""
    exact: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return exact.to(rows.dtype)
