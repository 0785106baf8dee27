r"""Squared gradient norms of a shared linear map, from Gram matrices or by forming the gradients.

A weight W (out, in) that is applied at P positions of an example, with inputs a_p and output
gradients g_p, has the gradient sum_p g_p a_p^T. Its squared norm is

    sum_{p,q} (a_p . a_q) (g_p . g_q)

at P^2 (in + out) multiply-adds, without anything of size in x out. Forming the gradient takes
P in out multiply-adds and moves in x out numbers through memory twice; moving a number costs
about as much as MOVE multiply-adds. Where the gradient is formed it also serves the clipped
sum; the Gram form needs one more product for it, of P in out.

The Gram form subtracts. It is taken in float64, where every one of its in + out + P^2 roundings is
at most v = 2^-53 of R^2, R = sum_p |a_p||g_p|, so with n = in + out + P^2 + 8

    | computed - |G|^2 |  <=  2 n v R^2                          (Higham 2002, section 3.1)

and that much is added: the norm N comes out too large, never too small. The clipped sum is added in
float64, too, m P products at a time: off by 2 m P v sum_i c_i R_i, where c_i R_i <= C R_i / N_i <=
C / sqrt(2 n v). As n > P^2 that is at most m^2 2^-26 C, 1.9e-4 C for the m = 112 of
:mod:`.clipping`, for every shape.

Shapes: a (n, P, in), g (n, P, out).
"""

from __future__ import annotations

import torch
from torch import Tensor

from sordino.training.perexample.clipping import VANISHING, put
from sordino.training.perexample.pieces import parts

MOVE = 8
GRAM_BYTES = 32e6  # Gram matrices of as many examples as this at a time


def cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """Whether the Gram form is cheaper where the gradient would be kept for the clipped sum."""
    return (
        positions * positions * (inputs + outputs) + positions * inputs * outputs
        < (positions + 2 * MOVE) * inputs * outputs
    )


def squared_norms(a: Tensor, g: Tensor, *, weight: bool, bias: bool) -> Tensor:
    """Upper bounds (n,) in float64 of squared gradient norms, of W and bias as asked, together."""
    positions = g.shape[1]
    few = max(
        1, int(GRAM_BYTES / (8 * (positions * (2 * positions + a.shape[2] + g.shape[2]) + 1)))
    )
    return torch.cat(
        [_squared(a[some].double(), g[some].double(), weight, bias) for some in parts(len(g), few)]
    )


def _squared(a: Tensor, g: Tensor, weight: bool, bias: bool) -> Tensor:
    grams = torch.bmm(g, g.transpose(1, 2))
    inputs = torch.bmm(a, a.transpose(1, 2)) if weight else torch.zeros_like(grams)
    if bias:
        inputs += 1.0
    reach = (
        (torch.diagonal(inputs, dim1=1, dim2=2) * torch.diagonal(grams, dim1=1, dim2=2))
        .sqrt()
        .sum(1)
    )
    roundings = a.shape[2] + g.shape[2] + g.shape[1] ** 2 + 8
    # twice the bound, since the reach is itself rounded
    error = reach.square_().mul_(4.0 * roundings * 2.0**-53).add_(VANISHING)
    return grams.mul_(inputs).sum((1, 2)).clamp_min_(0).add_(error)


def write_products(
    a: Tensor, g: Tensor, factor: Tensor, weight: Tensor | None, bias: Tensor | None, fresh: bool
) -> None:
    """sum_i factor_i G_i into ``weight`` (out, in) and ``bias`` (out,) of the total, in float64."""
    scaled = (g.double() * factor.double().view(-1, 1, 1)).flatten(0, 1)
    if weight is not None:
        put(weight, scaled.t() @ a.double().flatten(0, 1), fresh)
    if bias is not None:
        put(bias, scaled.sum(0), fresh)
