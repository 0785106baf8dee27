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
more. A float32 vector in a processor's memory goes through :mod:`.compiled`; every other
goes through torch, on any device, and gives the same bits.

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
    Ranaweera et al. 2024, Federated Learning with Differential Privacy: An Utility-Enhanced Approach, section 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from sordino.errors import StudyError
from sordino.mechanism.haar import compiled


def levels(d: int) -> int:
    """L = ceil(log2 d)."""
    if d < 1:
        raise StudyError(f"a Haar transform needs at least one number; got {d}")
    return (d - 1).bit_length()


def lengths(d: int) -> tuple[int, ...]:
    """How many coefficients the base and the levels L..1 have, in the order of the coefficients."""
    return (1, *((((d - 1) >> level) + 1) for level in range(levels(d), 0, -1)))


def count(d: int) -> int:
    """How many coefficients a vector (d,) has."""
    return sum(lengths(d))


def steps(d: int) -> tuple[int, ...]:
    """Levels in the order of the coefficients, (L + 1,); the base, level 0, comes first."""
    return (0, *range(levels(d), 0, -1))


def divisors(d: int) -> Tensor:
    """W of Ranaweera et al. for every coefficient, (count(d),): 2^l for details, m for the base."""
    powers = [2.0 ** (level or levels(d)) for level in steps(d)]
    return torch.repeat_interleave(torch.tensor(powers), torch.tensor(lengths(d)))


def paper_order(coefficients: Tensor, d: int) -> Tensor:
    """Coefficients (..., count(d)) as Ranaweera et al. number them: base, then the finest level to the coarsest."""
    base, *details = torch.split(coefficients, list(lengths(d)), dim=-1)
    return torch.cat([base, *reversed(details)], dim=-1)


def orthonormal(d: int) -> tuple[float, ...]:
    """What unscaled sums and differences are multiplied with, (L + 1,): 2^(-l/2), and 1/sqrt(m) for the base."""
    return tuple(2.0 ** (-0.5 * (level or levels(d))) for level in steps(d))


def forward(v: Tensor) -> Tensor:
    """Orthonormal coefficients (..., count(d)) of v (..., d)."""
    return forward_blocks(v, (v.shape[-1],), orthonormal(v.shape[-1]))


def inverse(u: Tensor, d: int) -> Tensor:
    """The first d numbers (..., d) of the vector that has the orthonormal coefficients u (..., count(d))."""
    return inverse_blocks(u, (d,), orthonormal(d))


def averages(v: Tensor) -> Tensor:
    """H (..., count(d)), the averaging transform of Ranaweera et al. 2024, table II, of v (..., d)."""
    d = v.shape[-1]
    return forward_blocks(v, (d,), tuple(x * x for x in orthonormal(d)))


def forward_blocks(v: Tensor, sizes: tuple[int, ...], scale: Sequence[float]) -> Tensor:
    """Blocks of v (..., sum of sizes), each transformed by itself; ``scale`` has a factor for each base and level."""
    if _compiles(v):
        out = torch.empty(sum(count(size) for size in sizes), dtype=v.dtype)
        compiled.forward(v.detach().numpy(), layout(sizes), np.array(scale, np.float32), out.numpy())
        return out
    parts: list[Tensor] = []
    at = 0
    for block, size in zip(torch.split(v, list(sizes), dim=-1), sizes, strict=True):
        parts += _split(block, scale[at : at + levels(size) + 1])
        at += levels(size) + 1
    return torch.cat(parts, dim=-1)


def inverse_blocks(u: Tensor, sizes: tuple[int, ...], scale: Sequence[float]) -> Tensor:
    """The vector (..., sum of sizes) back from its coefficients times ``scale``, means and half differences."""
    if _compiles(u):
        out = torch.empty(sum(sizes), dtype=u.dtype)
        compiled.inverse(u.detach().numpy(), layout(sizes), np.array(scale, np.float32), out.numpy())
        return out
    blocks: list[Tensor] = []
    at = 0
    for coefficients, size in zip(torch.split(u, [count(size) for size in sizes], dim=-1), sizes, strict=True):
        blocks.append(_join(coefficients, size, scale[at : at + levels(size) + 1]))
        at += levels(size) + 1
    return torch.cat(blocks, dim=-1)


@lru_cache(maxsize=64)
def layout(sizes: tuple[int, ...]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Offsets and sizes (blocks, 2) as :mod:`.compiled` takes them."""
    ends = np.cumsum(sizes, dtype=np.int64)
    return np.stack([ends - np.array(sizes, np.int64), np.array(sizes, np.int64)], axis=1)


def _compiles(v: Tensor) -> bool:
    return v.dim() == 1 and v.dtype == torch.float32 and v.device.type == "cpu" and v.is_contiguous()


def _split(v: Tensor, scale: Sequence[float]) -> list[Tensor]:
    """Base (..., 1) and details, coarsest first, of one block v (..., size)."""
    details: list[Tensor] = []
    while v.shape[-1] > 1:
        if v.shape[-1] % 2:
            v = torch.nn.functional.pad(v, (0, 1))
        left, right = v[..., 0::2], v[..., 1::2]
        details.append((left - right) * _number(scale[-1 - len(details)], v))
        v = left + right
    return [v * _number(scale[0], v), *reversed(details)]


def _join(u: Tensor, size: int, scale: Sequence[float]) -> Tensor:
    """One block (..., size) of its coefficients (..., count(size))."""
    base, *details = torch.split(u, list(lengths(size)), dim=-1)
    v = base * _number(scale[0], u)
    for number, detail in enumerate(details, start=1):
        difference = detail * _number(scale[number], u)
        length = ((size - 1) >> (len(details) - number)) + 1
        v = torch.stack((v + difference, v - difference), dim=-1).flatten(-2)[..., :length]
    return v


def _number(value: float, like: Tensor) -> float:
    # rounded to the tensor's own precision first, as the compiled path must
    return float(np.float32(value)) if like.dtype == torch.float32 else value
