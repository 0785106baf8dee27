r"""Squared gradient norms of a shared linear map, from Gram matrices or by forming the gradients.

A weight W (out, in) that is applied at P positions of an example, with inputs a_p and output
gradients g_p, has the gradient sum_p g_p a_p^T. Its squared norm is

    sum_{p,q} (a_p . a_q) (g_p . g_q)

at P^2 (in + out) multiply-adds, without anything of size in x out. Forming the gradient takes
P in out multiply-adds and moves in x out numbers through memory twice; moving a number costs
about as much as MOVE multiply-adds. Where the gradient is formed it also serves the clipped
sum; the Gram form needs one more product for it, of P in out.

The Gram form subtracts: its rounding error is of the order of eps (sum_p |a_p||g_p|)^2, and a
norm that came out too small would break the clipping bound, so that much is added.

Shapes: a (n, P, in), g (n, P, out).
"""

from __future__ import annotations

import torch
from torch import Tensor

MOVE = 8


def cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """Whether the Gram form is the cheaper one where the gradient would be kept for the clipped sum."""
    return positions * positions * (inputs + outputs) + positions * inputs * outputs < (positions + 2 * MOVE) * inputs * outputs


def squared_norms(a: Tensor, g: Tensor, *, weight: bool, bias: bool) -> Tensor:
    """Squared norms (n,) of the gradients of W (if ``weight``) and of a bias (if ``bias``) together."""
    grams = torch.bmm(g, g.transpose(1, 2))
    inputs = torch.bmm(a, a.transpose(1, 2)) if weight else torch.zeros_like(grams)
    if bias:
        inputs += 1.0
    reach = (torch.diagonal(inputs, dim1=1, dim2=2) * torch.diagonal(grams, dim1=1, dim2=2)).clamp_min(0).sqrt().sum(1)
    return grams.mul_(inputs).sum((1, 2)).clamp_min_(0).add_(reach.square(), alpha=4 * torch.finfo(a.dtype).eps)
