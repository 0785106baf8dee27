r"""The one-dimensional Haar transform of a vector of any length.

A vector of d numbers is padded with zeros to m = 2^L, L = ceil(log2 d), and halved L times.
With a and b the sums of a pair's two halves, each over 2^(l-1) leaves,

    detail of level l:   u_l = (a - b) / 2^(l/2),      spans 2^l leaves,  l = 1..L
    base:                u_0 = (sum of all) / sqrt(m)

is an orthonormal transform: ||u|| = ||v||. Ranaweera et al. average instead of adding,

    H_l = (mean a - mean b) / 2 = u_l / 2^(l/2),       H_0 = mean of all = u_0 / sqrt(m).

Order: base, then details from the coarsest level (L) to the finest (1), left to right in
each. A detail that spans padding alone is zero for every vector and shows nothing of itself
in the d numbers that come back, so it has no place: level l has ceil(d / 2^l) coefficients,
and all together are at most d + L. At powers of two this is the order of Mallat's pyramid.

Sums are not scaled until a coefficient is final, which costs one rounding a level and one
more. They are taken on a processor
(:mod:`sordino.mechanisms.kernels.haar`), wherever the vector lies.

Shapes: v (..., d); coefficients (..., count(d)).

>>> example = torch.tensor([4.0, 8, 1, 9, 8, 4, 5, 3])            # Ranaweera et al. 2024, table II
>>> averages(example)
tensor([ 5.2500,  0.2500,  0.5000,  1.0000, -2.0000, -4.0000,  2.0000,  1.0000])
>>> paper_order(averages(example), 8)                             # base, then finest to coarsest
tensor([ 5.2500, -2.0000, -4.0000,  2.0000,  1.0000,  0.5000,  1.0000,  0.2500])
>>> paper_order(divisors(8), 8)                                   # their weights W
tensor([8., 2., 2., 2., 2., 4., 4., 8.])
>>> torch.allclose(averages(example), forward(example) / divisors(8).sqrt())
True
>>> count(26_010), levels(26_010)
(26017, 15)

References:
    Haar 1910, Zur Theorie der orthogonalen Funktionensysteme.
    Mallat 1989, A Theory for Multiresolution Signal Decomposition.
    Ranaweera et al. 2024, Federated Learning with Differential Privacy: An Utility-Enhanced
    Approach, section 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.base.errors import StudyError


def levels(d: int) -> int:
    """L = ceil(log2 d)."""
    if d < 1:
        raise StudyError(f"a Haar transform needs at least one number; got {d}")
    return (d - 1).bit_length()


def lengths(d: int) -> tuple[int, ...]:
    """Return the number of coefficients of the base and the levels L..1, in their order."""
    return (1, *((((d - 1) >> level) + 1) for level in range(levels(d), 0, -1)))


def count(d: int) -> int:
    """Return the number of coefficients of a vector (d,)."""
    return sum(lengths(d))


def steps(d: int) -> tuple[int, ...]:
    """Levels in the order of the coefficients, (L + 1,); the base, level 0, comes first."""
    return (0, *range(levels(d), 0, -1))


def divisors(d: int) -> Tensor:
    """W of Ranaweera et al. for every coefficient, (count(d),): 2^l for details, m for the base."""
    powers = [2.0 ** (level or levels(d)) for level in steps(d)]
    return torch.repeat_interleave(torch.tensor(powers), torch.tensor(lengths(d)))


def paper_order(coefficients: Tensor, d: int) -> Tensor:
    """Coefficients (..., count(d)) as Ranaweera et al.

    number them: base, then the finest level to the coarsest.
    """
    base, *details = torch.split(coefficients, list(lengths(d)), dim=-1)
    return torch.cat([base, *reversed(details)], dim=-1)


def orthonormal(d: int) -> tuple[float, ...]:
    """Factors of unscaled sums and differences, (L + 1,): 2^(-l/2), and 1/sqrt(m) for the base."""
    return tuple(2.0 ** (-0.5 * (level or levels(d))) for level in steps(d))


def forward(v: Tensor) -> Tensor:
    """Orthonormal coefficients (..., count(d)) of v (..., d)."""
    return forward_blocks(v, (v.shape[-1],), orthonormal(v.shape[-1]))


def inverse(u: Tensor, d: int) -> Tensor:
    """The first d numbers (..., d) of the vector of orthonormal coefficients u (..., count(d))."""
    return inverse_blocks(u, (d,), orthonormal(d))


def averages(v: Tensor) -> Tensor:
    """H (..., count(d)) of v (..., d): the averages of Ranaweera et al. 2024, table II."""
    d = v.shape[-1]
    return forward_blocks(v, (d,), tuple(x * x for x in orthonormal(d)))


def forward_blocks(v: Tensor, sizes: tuple[int, ...], scale: Sequence[float]) -> Tensor:
    """Blocks of v (..., sum of sizes), each transformed; ``scale`` is by base and level."""
    return _run(_kernels().forward, v, sizes, scale, sum(count(size) for size in sizes))


def inverse_blocks(u: Tensor, sizes: tuple[int, ...], scale: Sequence[float]) -> Tensor:
    """The vector (..., sum of sizes) from scaled coefficients, means and half differences."""
    return _run(_kernels().inverse, u, sizes, scale, sum(sizes))


def energies(rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Sums of squares (n, groups) in float64 of the coefficients of rows (n, sum of sizes).

    They are orthonormal; a group is a base or a level of the blocks.
    """
    numbers = _numbers(rows)
    blocks, scale = _arrays(sizes, _orthonormal(sizes), numbers.dtype)
    out = np.empty((len(numbers), len(scale)))
    _kernels().energies(numbers, blocks, scale, out)
    return torch.from_numpy(out)


def _kernels() -> ModuleType:
    from sordino.mechanisms.kernels import haar  # loads numba

    return haar


@lru_cache(maxsize=64)
def _orthonormal(sizes: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(factor for size in sizes for factor in orthonormal(size))


@lru_cache(maxsize=64)
def _arrays(
    sizes: tuple[int, ...], scale: tuple[float, ...], kind: np.dtype[Any]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Sizes and factors as kernels take them."""
    return np.array(sizes, np.int64), np.array(scale, kind)


def _numbers(v: Tensor) -> NDArray[Any]:
    return v.detach().cpu().reshape(-1, v.shape[-1]).contiguous().numpy()


def _run(
    which: Callable[..., None],
    v: Tensor,
    sizes: tuple[int, ...],
    scale: Sequence[float],
    length: int,
) -> Tensor:
    rows = _numbers(v)
    out = np.empty((len(rows), length), rows.dtype)
    which(rows, *_arrays(sizes, tuple(scale), rows.dtype), out)
    return torch.from_numpy(out).view(*v.shape[:-1], length).to(v.device)
