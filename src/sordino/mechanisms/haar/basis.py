r"""A vector in blocks, each under a Haar transform of its own, and its groups of coefficients.

One block is the *flat* transform; one block for each parameter of a model is the transform
*per layer*. A group is one level of one block. Groups stand in the order of the coefficients:
block by block, the base (level 0), then the coarsest level L to the finest, 1.

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
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sordino.base.errors import StudyError
from sordino.mechanisms.haar import transform

LARGEST = 1e19  # squares of larger numbers are beyond float32

Groups = tuple[float, ...]
"""One number for every group."""


class _Shape(NamedTuple):
    """The constants that follow from the sizes of the blocks of a :class:`Basis`."""

    levels: tuple[int, ...]
    leaves: tuple[int, ...]
    lengths: tuple[int, ...]
    sizes: Groups
    orthonormal: Groups


@lru_cache(maxsize=64)
def _shape(blocks: tuple[int, ...]) -> _Shape:
    levels: list[int] = []
    leaves: list[int] = []
    lengths: list[int] = []
    scale: list[float] = []
    sizes: list[float] = []
    for size in blocks:
        steps, top = transform.steps(size), transform.levels(size)
        levels += steps
        leaves += [2**top] * len(steps)
        lengths += transform.lengths(size)
        scale += transform.orthonormal(size)
        sizes += [size / 2 ** (level or top) for level in steps]
    return _Shape(tuple(levels), tuple(leaves), tuple(lengths), tuple(sizes), tuple(scale))


@dataclass(frozen=True, slots=True)
class Basis:
    """Orthonormal Haar coefficients of consecutive blocks of a vector (d,).

    Attributes:
        blocks: (offset, size) of every block, in order and without gaps.
    """

    blocks: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        end = 0
        for offset, size in self.blocks:
            if offset != end or size < 1:
                raise StudyError(
                    "blocks must lie one after another and hold at least one number each; "
                    f"got ({offset}, {size}) after {end}"
                )
            end = offset + size
        if not self.blocks:
            raise StudyError("a basis needs at least one block")

    @classmethod
    def flat(cls, dimension: int) -> Basis:
        """One block."""
        return cls.of([dimension])

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Basis:
        """A block for each size, such as those of a model's parameters."""
        blocks: list[tuple[int, int]] = []
        end = 0
        for size in sizes:
            blocks.append((end, size))
            end += size
        return cls(tuple(blocks))

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """The numbers in each block, (blocks,)."""
        return tuple(size for _, size in self.blocks)

    @property
    def dimension(self) -> int:
        """d."""
        return sum(self.blocks[-1])

    @property
    def groups(self) -> int:
        """The number of pairs of block and level."""
        return len(self.levels)

    @property
    def coefficients(self) -> int:
        """The number of coefficients; at most d + sum of L."""
        return sum(self.lengths)

    @property
    def levels(self) -> tuple[int, ...]:
        """The level of every group; 0 for a base."""
        return _shape(self.block_sizes).levels

    @property
    def leaves(self) -> tuple[int, ...]:
        """m, the padded length of the block to which a group belongs, (groups,)."""
        return _shape(self.block_sizes).leaves

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of coefficients of each group, (groups,)."""
        return _shape(self.block_sizes).lengths

    @property
    def sizes(self) -> Groups:
        """n (groups,): d_block / 2^l, and d_block / m for a base. They sum to d."""
        return _shape(self.block_sizes).sizes

    def forward(self, v: Tensor, weights: Sequence[float] | None = None) -> Tensor:
        """Orthonormal coefficients (..., coefficients) of v (..., d), times the group's weight."""
        return transform.forward_blocks(self._checked(v), self.block_sizes, self._scale(weights))

    def inverse(self, u: Tensor, weights: Sequence[float] | None = None) -> Tensor:
        """The vector (..., d) of coefficients u (..., coefficients) times their group's weight."""
        return transform.inverse_blocks(u, self.block_sizes, self._scale(weights))

    def _scale(self, weights: Sequence[float] | None) -> tuple[float, ...]:
        scale = _shape(self.block_sizes).orthonormal
        return (
            scale
            if weights is None
            else tuple(a * b for a, b in zip(scale, self.each(weights), strict=True))
        )

    def energies(self, rows: Tensor) -> Tensor:
        """Sums of squared coefficients (n, groups), float64, by group and row of rows (n, d)."""
        return transform.energies(self._checked(rows), self.block_sizes)

    def weighted_norms(self, rows: Tensor, weights: Sequence[float]) -> Tensor:
        """||diag(w) u(row)|| (n,) of the rows (n, d), rounded up; infinite if not finite."""
        energies = self.energies(rows).cpu().numpy()
        norms = self._at_least(energies, self.each(weights), torch.finfo(rows.dtype).eps / 2)
        return torch.from_numpy(np.where(norms <= LARGEST, norms, np.inf)).to(rows)

    def largest_levels(self, rows: Tensor, weights: Sequence[float]) -> Tensor:
        """max_g w_g ||u_g(row)|| (n,) of the rows (n, d), rounded up; infinite if not finite."""
        energies, own = self.energies(rows).cpu().numpy(), self.each(weights)
        with np.errstate(invalid="ignore"):
            largest = np.sqrt((energies * np.square(own)).max(1))
        norms = self._raised(largest, energies, own, torch.finfo(rows.dtype).eps / 2)
        return torch.from_numpy(np.where(norms <= LARGEST, norms, np.inf)).to(rows)

    def _at_least(
        self, energies: np.ndarray[Any, np.dtype[np.float64]], weights: Groups, u: float
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Norms (n,) from computed energies (n, groups), never too small."""
        return self._raised(np.sqrt(energies @ np.square(weights)), energies, weights, u)

    def _raised(
        self,
        norms: np.ndarray[Any, np.dtype[np.float64]],
        energies: np.ndarray[Any, np.dtype[np.float64]],
        weights: Groups,
        u: float,
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        r"""Norms (n,) of all weighted coefficients, or of some, with a proven bound of their
        rounding added.

        A coefficient of level l is a signed sum of 2^l numbers, halved l/2 times, along a tree of L
        + 4 roundings of u each (two of them for its factor). So it is off by (L + 4) u 2^(-l/2) sum
        |v_k|, at most (L + 4) u times the norm of its own part of v, a level by (L + 4) u |v|, and
        all of them, weighted, by max w sqrt(L + 1) (L + 4) u |v|. Squares are then added in
        float64, d of them: a relative error of (d + 80) 2^-53, twice that of the norm. Numbers
        below 2^-126 may vanish.
        """
        heaviest, top = max(weights), max(self.levels)
        lengths = np.sqrt(energies.sum(1))
        cascade = 1.01 * math.sqrt(top + 1.0) * (top + 4.0) * u * lengths
        vanished = 2.0 * math.sqrt(self.coefficients) * 2.0**-63
        bounded: np.ndarray[Any, np.dtype[np.float64]] = norms * (
            1.0 + 0.51 * (self.coefficients + 80) * 2.0**-53
        ) + heaviest * (cascade + vanished)
        return bounded

    def noise_energies(self, deviations: Sequence[float]) -> Tensor:
        """Return the expected :meth:`energies`, (groups,), of noise that is cut to d numbers.

        The noise has these deviations on the coefficients.

        n s^2 for noise of one size s everywhere, and always up to the one coefficient of each
        level that spans both real numbers and padding: cutting mixes these with one another.
        """
        squares = np.square(self.each(deviations))
        out = np.empty(self.groups)
        at = 0
        for size in self.block_sizes:
            top = transform.levels(size)
            own = slice(at, at + top + 1)
            out[own] = _cut(size, top) @ squares[own]
            at += top + 1
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

    def _checked(self, v: Tensor) -> Tensor:
        self._fits(v.shape[-1])
        return v

    def _fits(self, dimension: int) -> None:
        if dimension != self.dimension:
            raise StudyError(
                f"the basis is made for vectors of {self.dimension} numbers; got {dimension}"
            )


@lru_cache(maxsize=256)
def _cut(size: int, top: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Sums over two groups' coefficients of <h_j, T h_k>^2, (L + 1, L + 1).

    T keeps the first ``size`` leaves.

    Functions with real support alone stay orthogonal to all others. Of two that span the end,
    the finer lies under one half of the coarser, where that is a constant of square 2^-l.
    """
    steps = transform.steps(size)
    out = np.zeros((len(steps), len(steps)))
    for row, level in enumerate(steps):
        span, half = 2 ** (level or top), 2 ** ((level or top) - 1) if level else 0
        real = size % span
        out[row, row] = size // span + (real / span) ** 2
        if level and real:
            total = min(real, half) - max(0, real - half)  # of the signs that are left
            for above in range(row):
                mixed = total * total / span / 2 ** (steps[above] or top)
                out[row, above], out[above, row] = mixed, mixed
    return out
