r"""Standard normal numbers from raw bits, quickly and portably.

Box and Muller (1958): for u, v uniform on (0, 1], the pair

    z_1 = sqrt(-2 log u) cos(2 pi v),    z_2 = sqrt(-2 log u) sin(2 pi v)

is standard normal. u and v come from 32 random bits each, so that a generator with a
wide key (see :mod:`sordino.entropy`) drives vectorised logarithms, roots and sines. The
smallest u is 2^-33, so no number exceeds 6.8 in size (the probability that one should is
1e-11).

float32 on a processor, which is what clients ask for, goes by compiled code
(:mod:`.normal`; 7850 numbers in 13 microseconds, of which the bits take 7, against 60 by
torch or by NumPy's ziggurat); everything else by torch's functions. Both make the
same numbers of the same bits, up to rounding.

Shapes: flat vectors ``(d,)``, in float32 or float64, on any device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_UNIT = 2.0**-32  # one step of 32 random bits, as a share of a turn


def fill_normal(out: Tensor, rng: np.random.Generator) -> Tensor:
    """Overwrite ``out`` (d,) with independent N(0, 1) numbers and return it."""
    half = (out.numel() + 1) // 2
    bits: NDArray[np.int32] = rng.bit_generator.random_raw(half).view(np.int32)  # 2 x half signed words
    if out.dtype == torch.float32 and out.device.type == "cpu" and out.is_contiguous() and not out.requires_grad:
        _compiled()(bits, out.numpy())
        return out
    return by_torch(out, bits)


@cache
def _compiled() -> Callable[[NDArray[np.int32], NDArray[np.float32]], None]:
    from sordino.mechanism.normal import fill  # not before there is something to fill: the compiler takes a while to load

    return fill


def by_torch(out: Tensor, words: NDArray[np.int32]) -> Tensor:
    """The numbers that these random words, one for each or one more, stand for: the first half are u, the others v."""
    half = len(words) // 2
    # One half is added in whole numbers: a float32 near -1/2 would round the smallest u, which make the tails, to steps of 2^-25.
    u = torch.from_numpy((words[:half].view(np.uint32) ^ np.uint32(1 << 31)).astype(np.float32))
    radius = u.mul_(_UNIT).clamp_(min=_UNIT / 2).log_().mul_(-2.0).sqrt_()
    angle = torch.from_numpy(words[half:]).to(torch.float32).mul_(_UNIT * 2.0 * math.pi)
    cosine = torch.cos(angle).mul_(radius)
    sine = angle.sin_().mul_(radius)
    out[:half].copy_(cosine)
    out[half:].copy_(sine[: out.numel() - half])
    return out
