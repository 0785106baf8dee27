r"""Embeddings: the gradient of a table is a few rows, and stays a few rows.

Example i looks up tokens t_i1 ... t_iP and receives output gradients g_i1 ... g_iP. Row v
of its gradient is the sum of g_ip over the positions with t_ip = v, so

    |G_i|^2 = sum_{p,q} [t_ip = t_iq] g_ip . g_iq,    sum_i c_i G_i = scatter-add of c_i g_ip

and nothing of size n x vocabulary x dimension exists. Equal tokens are added up before
squaring (not by the sum over p, q, which subtracts): sorting the tokens of an example
makes equal ones neighbours, and positions of one run share a row of a (n, P, dim) buffer.
The same rows go into the sum, in float64.

Shapes: tokens (n, P...) integers, g (n, P..., dim).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sordino.training.flat import Flat, Slot
from sordino.training.perexample.clipping import kept, squares


def supported(layer: nn.Embedding) -> bool:
    """Whether :class:`EmbeddingKernel` covers this layer: no rescaling by counts or norms."""
    return not layer.scale_grad_by_freq and layer.max_norm is None and not layer.sparse


class EmbeddingKernel:
    """See the module's docstring."""

    def __init__(self, layer: nn.Embedding, flat: Flat) -> None:
        self._slot: Slot | None = flat.slot(layer.weight)
        self._padding = layer.padding_idx
        self._tokens = self._rows = flat.weights

    def _flattened(self, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        tokens, g = a.reshape(len(a), -1), g.reshape(len(g), -1, g.shape[-1])
        if self._padding is not None:
            g = g * (tokens != self._padding).unsqueeze(2)
        return tokens, g

    def collect(self, a: Tensor, g: Tensor) -> Tensor:
        """See :class:`Kernel`; ``a`` are tokens."""
        self._tokens, self._rows = _runs(*self._flattened(a, g))
        return squares(self._rows.flatten(1))

    def leave(self, keep: Tensor) -> None:
        """See :class:`Kernel`."""
        self._rows = kept(keep, self._rows)

    def write(self, factor: Tensor, out: Tensor, fresh: bool) -> None:
        """See :class:`Kernel`."""
        self._scatter(
            self._tokens, self._rows.double() * factor.double().view(-1, 1, 1), out, fresh
        )

    def form(self, part: slice, rows: Tensor) -> None:
        """See :class:`Kernel`; whole tables."""
        if self._slot is None:
            return
        tokens, own = self._tokens[part].unsqueeze(2), self._rows[part]
        self._slot.columns(rows).zero_().view(len(own), *self._slot.shape).scatter_add_(
            1, tokens.expand_as(own), own
        )

    def plain(self, a: Tensor, g: Tensor, out: Tensor, fresh: bool) -> None:
        """See :class:`Kernel`."""
        self._scatter(*self._flattened(a, g), out, fresh)

    def _scatter(self, tokens: Tensor, g: Tensor, out: Tensor, fresh: bool) -> None:
        if self._slot is None:
            return
        place = self._slot.of(out)
        if fresh:
            place.zero_()
        place.index_add_(0, tokens.reshape(-1), g.reshape(-1, g.shape[2]))


def _runs(tokens: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Every example's different tokens (n, P), and the sums of their gradients (n, P, dim)."""
    ordered, order = tokens.sort(dim=1, stable=True)
    run = torch.zeros_like(ordered)
    run[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
    rows = torch.zeros_like(g).scatter_add_(
        1, run.unsqueeze(2).expand_as(g), g.gather(1, order.unsqueeze(2).expand_as(g))
    )
    return torch.zeros_like(ordered).scatter_(1, run, ordered), rows
