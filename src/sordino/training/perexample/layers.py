r"""Layers with their forward and backward moves written out, and their per-example gradients.

Let layer l have input a_i and output gradient g_i for example i, and let G_i^l be the gradient of
its parameters by example i alone. Clipping needs |G_i|^2 = sum_l |G_i^l|^2 of every example first,
then the factors c_i = min(1, C/|G_i|), then sum_i c_i G_i^l. So a layer with parameters has two
more moves: ``collect`` gives the squared norms with :class:`Gradients`, from which the clipped sum
is written, and ``plain`` writes sum_i G_i^l without norms, for training without privacy.

Linear layers. For y = W a + b the gradient of example i is the outer product g_i a_i^T, and g_i for
the bias. Hence (Goodfellow 2015)

    |G_i|^2 = |g_i|^2 (|a_i|^2 + 1),        sum_i c_i G_i = (diag(c) g)^T a

which is one matrix product and nothing of size n x out x in. A weight that is applied at P
positions of an example, of a sequence or an image, has the gradient sum_p g_p a_p^T, with

    |G_i|^2 = sum_{p,q} (a_p . a_q) (g_p . g_q)          (Gram form; Li et al. 2022)

at P^2 (in + out) multiply-adds, without anything of size in x out. Forming the gradient takes
P in out multiply-adds and moves in x out numbers through memory twice; moving a number costs about
as much as :data:`MOVE` multiply-adds. Where the gradient is formed it also serves the clipped sum;
the Gram form needs one more product for it, of P in out. Counting decides.

The Gram form subtracts. It is taken in float64, where every one of its in + out + P^2 roundings is
at most v = 2^-53 of R^2, R = sum_p |a_p||g_p|, so with n = in + out + P^2 + 8

    | computed - |G|^2 |  <=  2 n v R^2                          (Higham 2002, section 3.1)

and that much is added: the norm N comes out too large, never too small. The clipped sum is added in
float64, too, m P products at a time: off by 2 m P v sum_i c_i R_i, where c_i R_i <= C R_i / N_i <=
C / sqrt(2 n v). As n > P^2 that is at most m^2 2^-26 C, 1.4e-4 C for the m = 96 of
:mod:`.clipping`, for every shape.

Convolutions are linear layers applied to P = height' x width' patches of length
K = kernel x channels that share one weight matrix W (O, K). With the patches A_i (P, K) of
example i and output gradients g_i (P, O),

    G_i = g_i^T A_i            O P K multiply-adds each, as much as the forward pass
    |G_i|^2 = sum of its squares,      sum_i c_i G_i = c^T [G_1; ...; G_n]

Output and input gradient need no patches: there the library's convolution is as fast as a
product with patches, and it saves folding them back (measured on the small network's
second layer: 0.8 against 1.2 ms). Patches are copied from a strided view of the padded
channels-last image. They are many times larger than images: they are made for a few examples at a
time and used up at once, while they are in the cache (a twentieth of the whole step). Where O K is
much larger than P the Gram form is cheaper. Again counting decides.

Normalisations compute y = w * z + b with z the input normalised over one example's own numbers.
Their gradients are sums over positions p, small enough to be kept for every example:

    G_i^w = sum_p g_ip * z_ip,        G_i^b = sum_p g_ip.

Embeddings. Example i looks up tokens t_i1 ... t_iP. Row v of its gradient is the sum of g_ip over
the positions with t_ip = v. Nothing of size n x vocabulary x dimension exists: equal tokens are
added up before squaring (not by a sum over p, q, which subtracts), in a buffer (n, P, dim).

Shapes: images are (n, height, width, channels), channels last, everywhere here; linear layers see
a (n, in) or (n, P, in), g (n, out) or (n, P, out); layer norm (n, ..., *normalised); tokens (n, P);
patches (n, P, K) with K in order (row, column, channel), which is the flat vector's order of a
weight.

References:
    Goodfellow 2015, Efficient Per-Example Gradient Computations, arXiv:1510.01799.
    Li, Tramer, Liang, Hashimoto 2022, Large Language Models Can Be Strong DP Learners.
    Higham 2002, Accuracy and Stability of Numerical Algorithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sordino.training.flat import Flat, Slot
from sordino.training.perexample.clipping import VANISHING, add_rows, kept, parts, put, squares

MOVE = 8
GRAM_BYTES = 32e6
"""Gram matrices of as many examples as this are made at a time."""
PATCH_BYTES = 1_000_000
"""Patches of as many examples as this are worked off while they are in the cache."""

Pair = tuple[int, int]


class Gradients(Protocol):
    """The gradients of one layer's parameters, of every example of a piece."""

    def leave(self, keep: Tensor) -> None:
        """Set all that was collected of examples outside of ``keep`` (n,) to zero; shapes stay."""

    def write(self, factor: Tensor, out: Tensor, fresh: bool) -> None:
        """Write sum_i factor_i G_i to ``out`` (d,), float64: overwritten if ``fresh``, else added.

        The factors are of the layer's own type, in which the piece is added up.
        """

    def form(self, part: slice, rows: Tensor) -> None:
        """Write G_i of this part of the piece into this layer's columns of ``rows`` (k, d)."""


Collected = tuple[Gradients, Tensor]
"""Gradients with their squared norms (n,), in float64."""


class Stage(Protocol):
    """One step of a plan. It keeps what its backward move needs: forward, then backward, and never
    two batches at once.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""

    def backward(self, g: Tensor) -> Tensor:
        """Return the gradient by the input, from the gradient by the output."""


class Owner(Stage, Protocol):
    """A stage with trainable parameters."""

    def collect(self, g: Tensor) -> Collected:
        """Return the gradients by the last input and ``g``, valid until the next forward move."""

    def plain(self, g: Tensor, out: Tensor, fresh: bool) -> None:
        """Write sum_i G_i to ``out`` (d,), with no norms and nothing kept."""


class Written:
    """Gradients that are written out: rows (n, size) for each parameter."""

    def __init__(self, rows: Sequence[tuple[Slot, Tensor]]) -> None:
        self._rows = list(rows)

    @classmethod
    def collected(cls, *rows: tuple[Slot | None, Tensor]) -> Collected:
        """Return these gradients, of parameters that there are, with their squared norms."""
        there = [(slot, own) for slot, own in rows if slot is not None]
        squared = torch.zeros(len(rows[0][1]), dtype=torch.float64, device=rows[0][1].device)
        for _, own in there:
            squared += squares(own)
        return cls(there), squared

    def leave(self, keep: Tensor) -> None:
        self._rows = [(slot, kept(keep, own)) for slot, own in self._rows]

    def write(self, factor: Tensor, out: Tensor, fresh: bool) -> None:
        for slot, own in self._rows:
            add_rows(slot.flat(out), own, factor, fresh)

    def form(self, part: slice, rows: Tensor) -> None:
        for slot, own in self._rows:
            slot.columns(rows).copy_(own[part])


@dataclass(slots=True, eq=False)
class Products:
    """Gradients sum_p g_p a_p^T and sum_p g_p, as ``a`` (n, P, in) and ``g`` (n, P, out)."""

    a: Tensor
    g: Tensor
    weight: Slot
    bias: Slot | None

    @classmethod
    def collected(cls, a: Tensor, g: Tensor, weight: Slot, bias: Slot | None) -> Collected:
        """Return these gradients, with their squared norms by the Gram form."""
        return cls(a, g, weight, bias), squared_norms(a, g, bias=bias is not None)

    def leave(self, keep: Tensor) -> None:
        self.a, self.g = kept(keep, self.a), kept(keep, self.g)

    def write(self, factor: Tensor, out: Tensor, fresh: bool) -> None:
        scaled = (self.g.double() * factor.double().view(-1, 1, 1)).flatten(0, 1)
        place = self.weight.flat(out).view(scaled.shape[1], -1)
        put(place, scaled.t() @ self.a.double().flatten(0, 1), fresh)
        if self.bias is not None:
            put(self.bias.flat(out), scaled.sum(0), fresh)

    def form(self, part: slice, rows: Tensor) -> None:
        a, g = self.a[part], self.g[part]
        self.weight.columns(rows).copy_(torch.bmm(g.transpose(1, 2), a).flatten(1))
        if self.bias is not None:
            self.bias.columns(rows).copy_(g.sum(1))


@dataclass(slots=True, eq=False)
class Outer(Products):
    """Gradients g_i a_i^T and g_i, as the vectors ``a`` (n, in) and ``g`` (n, out)."""

    def write(self, factor: Tensor, out: Tensor, fresh: bool) -> None:
        """Write one product: the outer products added up are those that were measured."""
        scaled = self.g * factor.unsqueeze(1)
        put(self.weight.of(out), scaled.t() @ self.a, fresh)
        if self.bias is not None:
            put(self.bias.of(out), scaled.sum(0), fresh)

    def form(self, part: slice, rows: Tensor) -> None:
        a, g = self.a[part], self.g[part]
        place = self.weight.columns(rows).view(len(g), *self.weight.shape)
        torch.mul(g.unsqueeze(2), a.unsqueeze(1), out=place)
        if self.bias is not None:
            self.bias.columns(rows).copy_(g)


def cheaper(positions: int, inputs: int, outputs: int) -> bool:
    """Return whether the Gram form is cheaper where the gradient would serve the sum as well."""
    return (
        positions * positions * (inputs + outputs) + positions * inputs * outputs
        < (positions + 2 * MOVE) * inputs * outputs
    )


def squared_norms(a: Tensor, g: Tensor, *, bias: bool) -> Tensor:
    """Return upper bounds (n,) in float64 of squared norms, of a weight and, if asked, its bias."""
    positions = g.shape[1]
    size = 8 * (positions * (2 * positions + a.shape[2] + g.shape[2]) + 1)
    few = max(1, int(GRAM_BYTES / size))
    return torch.cat(
        [_squared(a[some].double(), g[some].double(), bias) for some in parts(len(g), few)]
    )


def _squared(a: Tensor, g: Tensor, bias: bool) -> Tensor:
    grams, inputs = torch.bmm(g, g.transpose(1, 2)), torch.bmm(a, a.transpose(1, 2))
    if bias:
        inputs += 1.0
    diagonals = (torch.diagonal(each, dim1=1, dim2=2) for each in (inputs, grams))
    reach = torch.mul(*diagonals).sqrt().sum(1)
    roundings = a.shape[2] + g.shape[2] + g.shape[1] ** 2 + 8
    # twice the bound, since the reach is itself rounded
    error = reach.square_().mul_(4.0 * roundings * 2.0**-53).add_(VANISHING)
    return grams.mul_(inputs).sum((1, 2)).clamp_min_(0).add_(error)


def place(flat: Flat, parameter: Tensor) -> Slot:
    """Return where a parameter lies; a plan has none that is frozen."""
    slot = flat.slot(parameter)
    assert slot is not None
    return slot


class Relu:
    """max(x, 0), in the input's memory where the stage before does not need it again."""

    def __init__(self, like: Tensor, in_place: bool) -> None:
        self._in_place, self._y = in_place, like

    def forward(self, x: Tensor) -> Tensor:
        self._y = x.clamp_min_(0) if self._in_place else x.clamp_min(0)
        return self._y

    def backward(self, g: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten.threshold_backward.grad_input(g, self._y, 0, grad_input=g)
        return result


class Flatten:
    """(n, H, W, channels) or (n, ...) to (n, features) in torch's order (channels, H, W)."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        self._shape = tuple(x.shape)
        return channels_first(x).flatten(1)

    def backward(self, g: Tensor) -> Tensor:
        if len(self._shape) != 4:
            return g.view(self._shape)
        n, height, width, channels = self._shape
        return channels_last(g.view(n, channels, height, width))


class Opaque:
    """A layer that keeps examples apart, by autograd on that layer alone."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer
        self._seen: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = channels_first(x).detach().requires_grad_()
            # a copy if the layer works in place: other stages still need what it would overwrite
            y = self._layer(x.clone() if getattr(self._layer, "inplace", False) else x)
        self._seen = x, y
        return channels_last(y.detach())

    def backward(self, g: Tensor) -> Tensor:
        assert self._seen is not None
        (x, y), self._seen = self._seen, None
        (result,) = torch.autograd.grad(y, x, channels_first(g))
        return channels_last(result)


def channels_first(x: Tensor) -> Tensor:
    """Return images as torch's layers take them; other tensors as they are."""
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x


def channels_last(x: Tensor) -> Tensor:
    """Return images as stages take them, in memory of their own: an expanded gradient has none."""
    return (x.permute(0, 2, 3, 1) if x.ndim == 4 else x).contiguous()


class Linear:
    """x W^T + b on the last axis of (n, in) or (n, positions, in)."""

    def __init__(self, layer: nn.Linear, flat: Flat) -> None:
        self._layer = layer
        self._weight = place(flat, layer.weight)
        self._bias = flat.slot(layer.bias)
        self._x = flat.weights

    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        rows, layer = x.reshape(-1, x.shape[-1]), self._layer
        return F.linear(rows, layer.weight, layer.bias).view(*x.shape[:-1], -1)

    def backward(self, g: Tensor) -> Tensor:
        return (g.reshape(-1, g.shape[-1]) @ self._layer.weight).view(self._x.shape)

    def collect(self, g: Tensor) -> Collected:
        a, weight, bias = self._x, self._weight, self._bias
        if g.ndim == 2:
            squared, inputs = squares(g), squares(a)
            squared *= inputs if bias is None else inputs.add_(1.0)
            return Outer(a, g, weight, bias), squared
        if a.shape[1] * (a.shape[2] + g.shape[2]) < a.shape[2] * g.shape[2]:
            return Products.collected(a, g, weight, bias)
        formed = torch.bmm(g.transpose(1, 2), a).flatten(1)
        return Written.collected((weight, formed), (bias, g.sum(1)))

    def plain(self, g: Tensor, out: Tensor, fresh: bool) -> None:
        a, g = self._x.reshape(-1, self._x.shape[-1]), g.reshape(-1, g.shape[-1])
        into = self._weight.of(out)
        torch.addmm(into, g.t(), a, beta=0.0 if fresh else 1.0, out=into)
        if self._bias is not None:
            put(self._bias.of(out), g.sum(0), fresh)


def padding(layer: nn.Conv2d) -> Pair | None:
    """Return rows and columns of zeros on either side; None where ``same`` means an odd number."""
    if not isinstance(layer.padding, str):
        rows, columns = layer.padding
        return rows, columns
    if layer.padding == "valid":
        return 0, 0
    rows, columns = (d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
    return None if rows % 2 or columns % 2 else (rows // 2, columns // 2)


class Convolution:
    """A convolution of images (n, H, W, channels), by the library."""

    def __init__(self, layer: nn.Conv2d, flat: Flat) -> None:
        self._layer, self._padding = layer, padding(layer) or (0, 0)
        self._weight = place(flat, layer.weight)
        self._bias = flat.slot(layer.bias)
        self._patch = layer.weight[0].numel()
        self._x, self._positions = flat.weights, (0, 0)

    @staticmethod
    def supports(layer: nn.Conv2d) -> bool:
        """Return whether this covers a layer: one group, as many zeros before as after."""
        return layer.groups == 1 and layer.padding_mode == "zeros" and padding(layer) is not None

    def forward(self, x: Tensor) -> Tensor:
        self._x, layer = x, self._layer
        images = channels_first(x)
        y = torch.conv2d(
            images, layer.weight, layer.bias, layer.stride, self._padding, layer.dilation
        )
        self._positions = y.shape[2], y.shape[3]
        return channels_last(y)

    def backward(self, g: Tensor) -> Tensor:
        result, _, _ = self._gradients(g, (True, False, False))
        assert result is not None
        return channels_last(result)

    def collect(self, g: Tensor) -> Collected:
        a, g = self._x, g.flatten(1, 2)
        patch, (n, positions, outputs) = self._patch, g.shape
        if cheaper(positions, patch, outputs):
            return Products.collected(self.unfold(a), g, self._weight, self._bias)
        grads = g.new_empty(n, outputs, patch)
        few = PATCH_BYTES // (positions * patch * g.element_size())
        for some in parts(n, few):
            torch.bmm(g[some].transpose(1, 2), self.unfold(a[some]), out=grads[some])
        return Written.collected((self._weight, grads.view(n, -1)), (self._bias, g.sum(1)))

    def plain(self, g: Tensor, out: Tensor, fresh: bool) -> None:
        """Write the library's own weight gradient, without patches."""
        _, weight, bias = self._gradients(g, (False, True, self._bias is not None))
        for slot, grad in ((self._weight, weight), (self._bias, bias)):
            if slot is not None and grad is not None:
                put(slot.logical(out), grad, fresh)

    @property
    def kept(self) -> int:
        """Numbers per example that are kept of gradients by images like the last input."""
        positions, outputs = math.prod(self._positions), self._layer.out_channels
        gram = cheaper(positions, self._patch, outputs)
        return positions * (self._patch + outputs) if gram else outputs * self._patch

    def unfold(self, x: Tensor) -> Tensor:
        """Return patches (n, P, K) of images (n, H, W, channels)."""
        (rows, columns), (top, left), layer = self._positions, self._padding, self._layer
        if top or left:
            x = F.pad(x, (0, 0, left, left, top, top))
        (n, *_, channels), (by_image, by_row, by_column, by_channel) = x.shape, x.stride()
        (high, wide), (down, across) = layer.kernel_size, layer.stride
        lower, further = layer.dilation
        steps = by_row * down, by_column * across, by_row * lower, by_column * further
        windows = x.as_strided(
            (n, rows, columns, high, wide, channels), (by_image, *steps, by_channel)
        )
        return windows.reshape(n, rows * columns, self._patch)

    def _gradients(self, g: Tensor, wanted: tuple[bool, bool, bool]) -> list[Tensor | None]:
        """Return the library's gradients by input, weight and bias, as ``wanted``."""
        layer, images = self._layer, (channels_first(g), channels_first(self._x))
        form = layer.stride, self._padding, layer.dilation, False, [0, 0], 1
        bias = [layer.out_channels]
        return [*torch.ops.aten.convolution_backward(*images, layer.weight, bias, *form, wanted)]


class Normalisation(Opaque):
    """Group or layer normalisation, by autograd; the input is normalised again for the gradients of
    its weight, which is cheap.
    """

    def __init__(self, layer: nn.GroupNorm | nn.LayerNorm, flat: Flat) -> None:
        super().__init__(layer)
        self._kind = layer
        self._weight = flat.slot(layer.weight)
        self._bias = flat.slot(layer.bias)
        self._x = flat.weights

    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        return super().forward(x)

    def collect(self, g: Tensor) -> Collected:
        weight, bias = self._sums(g)
        return Written.collected((self._weight, weight), (self._bias, bias))

    def plain(self, g: Tensor, out: Tensor, fresh: bool) -> None:
        for slot, grads in zip((self._weight, self._bias), self._sums(g), strict=True):
            if slot is not None:
                put(slot.flat(out), grads.sum(0), fresh)

    def _sums(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of weight and bias, (n, size) each."""
        kind, x, axes = self._kind, self._x, 1
        if isinstance(kind, nn.LayerNorm):
            axes = len(kind.normalized_shape)
            z = F.layer_norm(x, kind.normalized_shape, None, None, kind.eps)
        else:
            moved = F.group_norm(x.movedim(-1, 1), kind.num_groups, None, None, kind.eps)
            z = moved.movedim(1, -1)
        product, over = g * z, tuple(range(1, g.ndim - axes))
        if over:
            product, g = product.sum(over), g.sum(over)
        return product.flatten(1), g.flatten(1)


class Embedding:
    """Rows (n, positions, width) for tokens (n, positions): a first stage, nothing flows back."""

    def __init__(self, layer: nn.Embedding, flat: Flat) -> None:
        self._layer, self._table = layer, place(flat, layer.weight)
        self._tokens = flat.weights

    @staticmethod
    def supports(layer: nn.Embedding) -> bool:
        """Return whether this covers a layer: no rescaling by counts or norms."""
        return not layer.scale_grad_by_freq and layer.max_norm is None and not layer.sparse

    def forward(self, x: Tensor) -> Tensor:
        there = (x >= 0) & (x < len(self._layer.weight))
        self._tokens = torch.where(there, x, torch.zeros_like(x))
        rows = torch.embedding(self._layer.weight, self._tokens)
        # an example with a token outside of the table has no gradient, so it adds nothing
        return rows.masked_fill_(~there.unsqueeze(-1), torch.nan)

    def backward(self, g: Tensor) -> Tensor:
        raise RuntimeError("tokens have no gradient")

    def collect(self, g: Tensor) -> Collected:
        found = TableRows(*_runs(self._tokens, self._unpadded(g)), self._table)
        return found, squares(found.rows.flatten(1))

    def plain(self, g: Tensor, out: Tensor, fresh: bool) -> None:
        TableRows(self._tokens, self._unpadded(g), self._table).scatter(out, fresh)

    def _unpadded(self, g: Tensor) -> Tensor:
        padding = self._layer.padding_idx
        return g if padding is None else g * (self._tokens != padding).unsqueeze(2)


@dataclass(slots=True, eq=False)
class TableRows:
    """Gradients of a table: rows (n, P, dim) for tokens (n, P)."""

    tokens: Tensor
    rows: Tensor
    table: Slot

    def leave(self, keep: Tensor) -> None:
        self.rows = kept(keep, self.rows)

    def write(self, factor: Tensor, out: Tensor, fresh: bool) -> None:
        """Write the rows that were measured, in float64."""
        scaled = self.rows.double() * factor.double().view(-1, 1, 1)
        TableRows(self.tokens, scaled, self.table).scatter(out, fresh)

    def form(self, part: slice, rows: Tensor) -> None:
        """Write whole tables."""
        tokens, own = self.tokens[part].unsqueeze(2), self.rows[part]
        into = self.table.columns(rows).zero_().view(len(own), *self.table.shape)
        into.scatter_add_(1, tokens.expand_as(own), own)

    def scatter(self, out: Tensor, fresh: bool) -> None:
        """Write the sum of all rows to ``out`` (d,)."""
        into = self.table.of(out)
        if fresh:
            into.zero_()
        into.index_add_(0, self.tokens.reshape(-1), self.rows.reshape(-1, self.rows.shape[2]))


def _runs(tokens: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return every example's different tokens (n, P), and the sums of their gradients (n, P, dim).

    Sorting the tokens of an example makes equal ones neighbours; positions of one run share a row.
    """
    ordered, order = tokens.sort(dim=1, stable=True)
    run = torch.zeros_like(ordered)
    run[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)
    rows = torch.zeros_like(g).scatter_add_(
        1, run.unsqueeze(2).expand_as(g), g.gather(1, order.unsqueeze(2).expand_as(g))
    )
    return torch.zeros_like(ordered).scatter_(1, run, ordered), rows
