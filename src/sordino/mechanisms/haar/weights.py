r"""Weights: the share of the bound that each group of Haar coefficients may take.

A contribution is clipped so that ||diag(w) u(v)|| <= C, and noise of deviation sigma C / w
goes on the coefficients. A larger weight means a tighter bound and less noise. The scale of
w is the scale of C. With n coefficients and energy E (mean of the sum of u^2 over
contributions) in a group,

    noise, squared            ~  sum n / w^2
    contribution, squared     =  sum w^2 E
    product                  >=  (sum sqrt(n E))^2,    equal at  w^2 ~ sqrt(n / E),

by Cauchy and Schwarz. That is the smallest total noise, and not the best training: it puts
noise where gradients are large, which is where curvature is large too. So half of the
exponent is the default, and equal weights are the mechanism that has proved best.

Weights must be public, or come from what was released with noise before: a weight that
depends on raw data is a release that nobody has booked.

>>> from sordino.mechanisms.haar.basis import Basis
>>> basis = Basis.flat(8)
>>> [round(w * w, 6) for w in paper(basis)]
[8.0, 8.0, 4.0, 2.0]
>>> [round(w * w, 3) for w in optimal([4.0, 1.0], [1.0, 1.0], exponent=1.0)]  # 1 : 2, with sum 5
[0.833, 1.667]

References:
    Ranaweera et al. 2024, section 4.3. (W, on averaging coefficients)
    Xiao, Wang, Gehrke 2011, Differential Privacy via Wavelet Transforms. (where W comes from)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.base.errors import StudyError
from sordino.mechanisms.haar.basis import Basis, Groups

HALF = 0.5


def uniform(basis: Basis) -> Groups:
    """1 everywhere: clips and adds noise exactly as the plain Gaussian mechanism does."""
    return (1.0,) * basis.groups


def paper(basis: Basis) -> Groups:
    """W of Ranaweera et al. as weights of orthonormal coefficients: 2^(l/2), base sqrt(m).

    They weight averaging coefficients, H_l = u_l / 2^(l/2), with W_l = 2^l; so W_l H_l =
    2^(l/2) u_l, and W_0 H_0 = m u_0 / sqrt(m) = sqrt(m) u_0.
    """
    return tuple(
        math.sqrt(2**level if level else m)
        for level, m in zip(basis.levels, basis.leaves, strict=True)
    )


def averaging(basis: Basis) -> Groups:
    """H of Ranaweera et al. is these times u, (groups,): 2^(-l/2), and 1/sqrt(m) for a base."""
    return tuple(
        1.0 / math.sqrt(2**level if level else m)
        for level, m in zip(basis.levels, basis.leaves, strict=True)
    )


def discounts(basis: Basis, discount: bool) -> Groups:
    """f = sqrt((2 + log2 m)/2) of each group's block, or 1, (groups,)."""
    return tuple(math.sqrt((2.0 + math.log2(m)) / 2.0) if discount else 1.0 for m in basis.leaves)


def optimal(
    energies: Sequence[float],
    sizes: Sequence[float],
    *,
    exponent: float = HALF,
    mean_square: float = 1.0,
    floor: float = 1e-6,
) -> Groups:
    """w^2 ~ sqrt(n / E)^exponent.

    Args:
        energies: E (groups,), public or from noisy releases; what is zero or less counts as the
            floor.
        sizes: n (groups,).
        exponent: 1 for the least noise, 0 for equal weights.
        mean_square: of w, weighted with E. With 1 the mean squared norm of contributions stays what
            it was without weights, so that C keeps its meaning.
        floor: smallest energy of one coefficient, as a share of the mean over all.
    """
    if not (
        len(energies) == len(sizes)
        and all(map(math.isfinite, energies))
        and all(n > 0 for n in sizes)
    ):
        raise StudyError(
            "weights need a finite energy and a positive size for every group; got "
            f"{list(energies)} and {list(sizes)}"
        )
    if not (mean_square > 0 and 0 < floor <= 1):
        raise StudyError(
            f"mean_square must be positive and floor in (0, 1]; got {mean_square} and {floor}"
        )
    average = math.fsum(max(E, 0.0) for E in energies) / math.fsum(sizes)
    if average == 0.0:
        return (math.sqrt(mean_square),) * len(sizes)
    each = [max(E / n / average, floor) for E, n in zip(energies, sizes, strict=True)]
    squares = [e ** (-0.5 * exponent) for e in each]
    spent = math.fsum(n * e * w for n, e, w in zip(sizes, each, squares, strict=True))
    whole = math.fsum(n * e for n, e in zip(sizes, each, strict=True))
    return tuple(math.sqrt(mean_square * w * whole / spent) for w in squares)


@dataclass(frozen=True, slots=True)
class Observed:
    """Energies of the sums released so far, with their noise taken off.

    Attributes:
        energies: exponential moving average (groups,) from zero; its scale is without meaning while
            it is young, and weights do not depend on it. A group that is all noise may stand below
            zero.
    """

    energies: Groups

    @classmethod
    def nothing(cls, basis: Basis) -> Observed:
        """Before the first release."""
        return cls((0.0,) * basis.groups)

    def after(
        self, noisy: Tensor, basis: Basis, deviations: Sequence[float], *, decay: float = 0.9
    ) -> Observed:
        """With one release more: per group ||u(noisy)||^2 less what noise alone would give.

        That is n sigma^2 C^2 / w^2.

        The noise that was drawn is not asked for, only the released sum: this is post-processing,
        and free.

        Args:
            noisy: a released sum (d,), with its noise.
            basis: the one it was released in.
            deviations: of the noise on the coefficients of each group, in units of the sum.
            decay: what is left of an earlier release one step later, in [0, 1).
        """
        if not 0.0 <= decay < 1.0:
            raise StudyError(f"decay must lie in [0, 1); got {decay}")
        seen = basis.energies(noisy.unsqueeze(0))[0].cpu() - basis.noise_energies(deviations)
        if not bool(torch.isfinite(seen).all()):
            return self  # a sum that has overflowed says nothing
        mixed = (
            decay * old + (1.0 - decay) * new
            for old, new in zip(self.energies, seen.tolist(), strict=True)
        )
        return Observed(tuple(mixed))


def learned(
    observed: Observed,
    basis: Basis,
    *,
    exponent: float = HALF,
    mean_square: float = 1.0,
    floor: float = 0.01,
) -> Groups:
    """Weights for a *later* step from earlier noisy releases; equal ones before the first.

    What is seen is the energy of sums, not of single contributions, and much of it is noise
    where groups are small; hence a floor of a hundredth of the mean, under which no group falls.
    """
    return optimal(
        observed.energies, basis.sizes, exponent=exponent, mean_square=mean_square, floor=floor
    )
