r"""A vector in blocks, each under a Haar transform of its own, and its groups of coefficients.

**The transform** of a block of d numbers: it is padded with zeros to m = 2^L, L = ceil(log2 d), and
halved L times. With a and b the sums of a pair's two halves, each over 2^(l-1) leaves,

    detail of level l:   u_l = (a - b) / 2^(l/2),      spans 2^l leaves,  l = 1..L
    base:                u_0 = (sum of all) / sqrt(m)

is an orthonormal transform: ||u|| = ||v||. Ranaweera et al. average instead of adding,

    H_l = (mean a - mean b) / 2 = u_l / 2^(l/2),       H_0 = mean of all = u_0 / sqrt(m).

A detail that spans padding alone is zero for every vector and shows nothing of itself in the d
numbers that come back, so it has no place: level l has ceil(d / 2^l) coefficients, and all together
are at most d + L. At powers of two their order is that of Mallat's pyramid.

Sums are not scaled until a coefficient is final, which costs one rounding a level and one more.
They are taken on a processor (:mod:`sordino.mechanisms.haar.loops`), wherever the vector lies.

One block is the *flat* transform; one block for each parameter of a model is the transform
*per layer*. A group is one level of one block. Groups stand in the order of the coefficients:
block by block, the base (level 0), then the coarsest level L to the finest, 1, left to right in
each.

How much of a group lies on real numbers and not on padding decides how much of its noise
comes back. Every real leaf sits under exactly one coefficient of a level, with a square of
2^-l, so independent noise of standard deviations s on the coefficients has

    E ||noise on the d real numbers||^2 = sum over groups n s^2,     n_l = d/2^l,   n_0 = d/m,

and the n of a block sum to its d.

Shapes: vectors (..., d); rows (n, d), one contribution each; weights and energies (groups,).

>>> basis = Basis.of([5, 2])
>>> basis.dimension, basis.coefficients, basis.groups
(7, 9, 6)
>>> basis.levels
(0, 3, 2, 1, 0, 1)
>>> basis.sizes
(0.625, 0.625, 1.25, 2.5, 1.0, 1.0)
>>> example = torch.tensor([4.0, 8, 1, 9, 8, 4, 5, 3])            # Ranaweera et al. 2024, table II
>>> factors = [2.0 ** (-0.5 * (level or 3)) for level in Basis.flat(8).levels]
>>> Basis.flat(8).forward(example, factors)                       # H
tensor([ 5.2500,  0.2500,  0.5000,  1.0000, -2.0000, -4.0000,  2.0000,  1.0000])

References:
    Haar 1910, Zur Theorie der orthogonalen Funktionensysteme.
    Mallat 1989, A Theory for Multiresolution Signal Decomposition.
    Ranaweera et al. 2024, Federated Learning with Differential Privacy: An Utility-Enhanced
    Approach, section 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.base.arrays import Array, Floats, Ints
from sordino.base.errors import StudyError

LARGEST = 1e19  # squares of larger numbers are beyond float32

Groups = tuple[float, ...]
"""One number for every group."""


@dataclass(frozen=True)
class Basis:
    """Orthonormal Haar coefficients of consecutive blocks of a vector (d,).

    Attributes:
        blocks: sizes above zero, such as those of a model's parameters, in the vector's order.
    """

    blocks: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Basis:
        """A block for each size, none for an empty one: compiled loops take first numbers."""
        return cls(tuple(size for size in sizes if size))

    @classmethod
    def flat(cls, dimension: int) -> Basis:
        """One block."""
        return cls((dimension,))

    @property
    def dimension(self) -> int:
        """d."""
        return sum(self.blocks)

    @property
    def groups(self) -> int:
        """The number of pairs of block and level."""
        return len(self.levels)

    @property
    def coefficients(self) -> int:
        """The number of coefficients; at most d + sum of L."""
        return sum(self.lengths)

    @cached_property
    def _groups(self) -> list[tuple[int, int, int]]:
        """The size of the block, its L, and the level of every group."""
        tops = [(size - 1).bit_length() for size in self.blocks]
        return [
            (size, top, level)
            for size, top in zip(self.blocks, tops, strict=True)
            for level in (0, *range(top, 0, -1))
        ]

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """The level of every group; 0 for a base."""
        return tuple(level for _, _, level in self._groups)

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """m, the padded length of the block to which a group belongs, (groups,)."""
        return tuple(2**top for _, top, _ in self._groups)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The number of coefficients of each group, (groups,)."""
        return tuple(-(-size // 2 ** (level or top)) for size, top, level in self._groups)

    @cached_property
    def sizes(self) -> Groups:
        """n (groups,): d_block / 2^l, and d_block / m for a base. They sum to d."""
        return tuple(size / 2 ** (level or top) for size, top, level in self._groups)

    @cached_property
    def _scale(self) -> Groups:
        """Factors of a signed sum that make it an orthonormal coefficient, (groups,)."""
        return tuple(2.0 ** (-0.5 * (level or top)) for _, top, level in self._groups)

    def forward(self, v: Tensor, weights: Sequence[float] | None = None) -> Tensor:
        """Orthonormal coefficients (..., coefficients) of v (..., d), times the group's weight."""
        from sordino.mechanisms.haar import loops  # loads numba

        self._fits(v)
        return self._transformed(loops.forward, v, weights, self.coefficients)

    def inverse(self, u: Tensor, weights: Sequence[float] | None = None) -> Tensor:
        """The vector (..., d) of coefficients u (..., coefficients) times their group's weight."""
        from sordino.mechanisms.haar import loops

        return self._transformed(loops.inverse, u, weights, self.dimension)

    def _transformed(
        self, run: Callable[..., None], v: Tensor, weights: Sequence[float] | None, length: int
    ) -> Tensor:
        scale = self._scale
        if weights is not None:
            scale = tuple(a * b for a, b in zip(scale, self.each(weights), strict=True))
        rows = _numbers(v)
        out = np.empty((len(rows), length), rows.dtype)
        run(rows, *_arrays(self.blocks, scale, rows.dtype), out)
        return torch.from_numpy(out).view(*v.shape[:-1], length).to(v.device)

    def energies(self, rows: Tensor) -> Tensor:
        """Sums of squared coefficients (n, groups), float64, by group and row of rows (n, d)."""
        from sordino.mechanisms.haar import loops

        self._fits(rows)
        numbers, out = _numbers(rows), np.empty((len(rows), self.groups))
        loops.energies(numbers, *_arrays(self.blocks, self._scale, numbers.dtype), out)
        return torch.from_numpy(out)

    def weighted_norms(
        self, rows: Tensor, weights: Sequence[float], *, by_level: bool = False
    ) -> Tensor:
        r"""||diag(w) u(row)|| (n,) of the rows (n, d), with a proven bound of its rounding added;
        infinite if not finite. By level: max_g w_g ||u_g(row)|| likewise.

        A coefficient of level l is a signed sum of 2^l numbers, halved l/2 times, along a tree of L
        + 4 roundings of u each (two of them for its factor). So it is off by (L + 4) u 2^(-l/2) sum
        |v_k|, at most (L + 4) u times the norm of its own part of v, a level by (L + 4) u |v|, and
        all of them, weighted, by max w sqrt(L + 1) (L + 4) u |v|. Squares are then added in
        float64, d of them: a relative error of (d + 80) 2^-53, twice that of the norm. Numbers
        below 2^-126 may vanish.
        """
        energies, own = self.energies(rows).numpy(), self.each(weights)
        weighted = energies * np.square(own)
        with np.errstate(invalid="ignore"):  # a matrix product rounds a row by its place
            norms = np.sqrt(weighted.max(1) if by_level else weighted.sum(1))
        heaviest, top, u = max(own), max(self.levels), torch.finfo(rows.dtype).eps / 2
        lengths = np.sqrt(energies.sum(1))
        cascade = 1.01 * math.sqrt(top + 1.0) * (top + 4.0) * u * lengths
        vanished = 2.0 * math.sqrt(self.coefficients) * 2.0**-63
        bounded = norms * (1.0 + 0.51 * (self.coefficients + 80) * 2.0**-53) + heaviest * (
            cascade + vanished
        )
        return torch.from_numpy(np.where(bounded <= LARGEST, bounded, np.inf)).to(rows)

    def noise_energies(self, deviations: Sequence[float]) -> Tensor:
        """Return the expected :meth:`energies`, (groups,), of noise that is cut to d numbers.

        The noise has these deviations on the coefficients.

        n s^2 for noise of one size s everywhere, and always up to the one coefficient of each
        level that spans both real numbers and padding: cutting mixes these with one another.
        """
        squares = np.square(self.each(deviations))
        out = np.empty(self.groups)
        at = 0
        for size in self.blocks:
            cut = _cut(size)
            own = slice(at, at + len(cut))
            out[own] = cut @ squares[own]
            at += len(cut)
        return torch.from_numpy(out)

    def each(self, weights: Sequence[float]) -> Groups:
        """The weights, if there is one for every group.

        Raises:
            StudyError: if there is not.
        """
        if len(weights) != self.groups:
            raise StudyError(
                f"one weight for each of {self.groups} groups is needed; got {len(weights)}"
            )
        return tuple(map(float, weights))

    def _fits(self, v: Tensor) -> None:
        if v.shape[-1] != self.dimension:
            raise StudyError(
                f"the basis is made for vectors of {self.dimension} numbers; got {v.shape[-1]}"
            )


@lru_cache(maxsize=64)
def _arrays(
    sizes: tuple[int, ...], scale: tuple[float, ...], kind: np.dtype[Any]
) -> tuple[Ints, Array]:
    """Sizes and factors as loops take them."""
    return np.array(sizes, np.int64), np.array(scale, kind)


def _numbers(v: Tensor) -> Array:
    return v.detach().cpu().reshape(-1, v.shape[-1]).contiguous().numpy()


@lru_cache(maxsize=256)
def _cut(size: int) -> Floats:
    """Sums over two groups' coefficients of <h_j, T h_k>^2, (L + 1, L + 1).

    T keeps the first ``size`` leaves.

    Functions with real support alone stay orthogonal to all others. Of two that span the end,
    the finer lies under one half of the coarser, where that is a constant of square 2^-l.
    """
    steps = Basis.flat(size).levels
    top = len(steps) - 1
    out = np.zeros((len(steps), len(steps)))
    for row, level in enumerate(steps):
        span, half = 2 ** (level or top), 2 ** (level - 1) if level else 0
        real = size % span
        out[row, row] = size // span + (real / span) ** 2
        if level and real:
            total = min(real, half) - max(0, real - half)  # of the signs that are left
            for above in range(row):
                mixed = total * total / span / 2 ** (steps[above] or top)
                out[row, above], out[above, row] = mixed, mixed
    return out
