r"""Linear layers: norms and clipped sums without a single per-example gradient.

For y = W a + b with input a_i (in) and output gradient g_i (out), the gradient of example
i is the outer product g_i a_i^T, and g_i for the bias. Hence (Goodfellow 2015)

    |G_i|^2 = |g_i|^2 (|a_i|^2 + 1),        sum_i c_i G_i = (diag(c) g)^T a

which is one matrix product and nothing of size n x out x in.

With a sequence of P positions per example the gradient is sum_p g_ip a_ip^T. Its norm is
found from two Gram matrices (:mod:`~sordino.training.perexample.gram`) or by forming
g_i^T a_i, the cheaper by count.

Shapes: a (n, in) or (n, P..., in), g (n, out) or (n, P..., out).

References:
    Goodfellow 2015, Efficient Per-Example Gradient Computations, arXiv:1510.01799.
    Li, Tramer, Liang, Hashimoto 2022, Large Language Models Can Be Strong DP Learners (Gram form).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sordino.training.flat import Flat, Slot
from sordino.training.perexample.clipping import add_rows, kept, put, squares
from sordino.training.perexample.gram import squared_norms, write_products
from sordino.training.perexample.workspace import Workspace


def _products(g: Tensor, a: Tensor) -> Tensor:
    return torch.bmm(g.transpose(1, 2), a)


class LinearKernel:
    """See the module's docstring."""

    def __init__(self, layer: nn.Linear, flat: Flat) -> None:
        self._weight: Slot | None = flat.slot(layer.weight)
        self._bias: Slot | None = flat.slot(layer.bias) if layer.bias is not None else None
        self._space = Workspace(flat.weights)
        self._a = self._g = self._made = self._shift = flat.weights
        self._formed = False

    def collect(self, a: Tensor, g: Tensor) -> Tensor:
        """See :class:`Kernel`."""
        if g.ndim == 2:
            self._a, self._g = a, g
            return self._outer(a, g)
        a, g = a.flatten(1, -2), g.flatten(1, -2)
        self._a, self._g = a, g
        self._formed = a.shape[1] * (a.shape[2] + g.shape[2]) >= a.shape[2] * g.shape[2]
        if not self._formed:
            return squared_norms(a, g, weight=self._weight is not None, bias=self._bias is not None)
        squared = torch.zeros(len(a), dtype=torch.float64, device=a.device)
        if self._weight is not None:
            self._made = _products(g, a).flatten(1)
            squared += squares(self._made)
        if self._bias is not None:
            self._shift = g.sum(1)
            squared += squares(self._shift)
        return squared

    def _outer(self, a: Tensor, g: Tensor) -> Tensor:
        squared = squares(g)
        if self._weight is None:
            return squared
        inputs = squares(a)
        return squared.mul_(inputs.add_(1.0) if self._bias is not None else inputs)

    def leave(self, keep: Tensor) -> None:
        """See :class:`Kernel`."""
        self._a, self._g = kept(keep, self._a), kept(keep, self._g)
        if self._g.ndim != 2 and self._formed:
            self._made = kept(keep, self._made) if self._weight is not None else self._made
            self._shift = kept(keep, self._shift) if self._bias is not None else self._shift

    def write(self, factor: Tensor, out: Tensor, fresh: bool) -> None:
        """See :class:`Kernel`."""
        weight = self._weight.of(out) if self._weight is not None else None
        bias = self._bias.of(out) if self._bias is not None else None
        if self._g.ndim == 2:
            self._write_outer(factor, weight, bias, fresh)
        elif not self._formed:
            write_products(self._a, self._g, factor, weight, bias, fresh)
        else:
            for place, rows in ((weight, self._made), (bias, self._shift)):
                if place is not None:
                    add_rows(place.view(-1), rows, factor, fresh)

    def _write_outer(
        self, factor: Tensor, weight: Tensor | None, bias: Tensor | None, fresh: bool
    ) -> None:
        """One product: the outer products added up are those that were measured."""
        a, g = self._a, self._g
        scaled = torch.mul(g, factor.unsqueeze(1), out=self._space.take("scaled", tuple(g.shape)))
        if weight is not None:
            part = self._space.take("part", tuple(weight.shape))
            put(weight, torch.mm(scaled.t(), a, out=part), fresh)
        if bias is not None:
            put(bias, scaled.sum(0), fresh)

    def form(self, part: slice, rows: Tensor) -> None:
        """See :class:`Kernel`."""
        a, g = self._a[part], self._g[part]
        if self._weight is not None:
            place = self._weight.columns(rows).view(len(g), g.shape[-1], a.shape[-1])
            if g.ndim == 2:
                torch.mul(g.unsqueeze(2), a.unsqueeze(1), out=place)
            else:
                place.copy_(_products(g, a))
        if self._bias is not None:
            self._bias.columns(rows).copy_(g if g.ndim == 2 else g.sum(1))

    def plain(self, a: Tensor, g: Tensor, out: Tensor, fresh: bool) -> None:
        """See :class:`Kernel`."""
        self._add(a.reshape(-1, a.shape[-1]), g.reshape(-1, g.shape[-1]), out, fresh)

    def _add(self, a: Tensor, g: Tensor, out: Tensor, fresh: bool) -> None:
        if self._weight is not None:
            place = self._weight.of(out)
            torch.addmm(place, g.t(), a, beta=0.0 if fresh else 1.0, out=place)
        if self._bias is not None:
            place = self._bias.of(out)
            if fresh:
                torch.sum(g, 0, out=place)
            else:
                place += g.sum(0)
