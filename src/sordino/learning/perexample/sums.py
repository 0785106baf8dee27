r"""The two sums a client asks for: clipped per example, or plain.

Both run under ``no_grad`` over micro-batches; see the package's docstring for the paths.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sordino.learning.flat import Flat as Parameters
from sordino.learning.flat import Slot
from sordino.learning.loss import Loss
from sordino.learning.perexample.bound import Bound, Flat, Layers, Measured
from sordino.learning.perexample.clipping import Clipped, checked, factors, lengths
from sordino.learning.perexample.general import Unsuitable
from sordino.learning.perexample.kernel import Kernel
from sordino.learning.perexample.paths import Fast, Paths
from sordino.learning.perexample.plan import Plan
from sordino.learning.perexample.store import Store
from sordino.learning.perexample.workspace import Workspace
from sordino.mechanism.pieces import Piece, Pieces

ROW_BYTES = 3_000_000  # gradients of as many examples as this are written out at once, while they are in the cache


def _pieces(path: Fast | None, paths: Paths, n: int) -> list[slice]:
    """Micro-batches of n examples."""
    size = path.piece if isinstance(path, Plan) else paths.slow.piece if path is None else n
    return [slice(start, start + size) for start in range(0, n, size)]


class ClippedSum:
    """Writes sum_i g_i min(1, C/|g_i|) over a batch into a flat vector."""

    def __init__(self, flat: Parameters, loss: Loss) -> None:
        self._paths = Paths(flat, loss)
        self._space = Workspace(flat.weights)

    def __call__(self, x: Tensor, y: Tensor, bound: float | Bound, out: Tensor) -> Clipped:
        """Overwrite ``out`` (d,) with the clipped sum over examples ``x`` (n, ...), ``y`` (n,); a number is a flat bound C.

        An empty batch gives zeros. What is returned is raw and must not leave its client.
        """
        bound = Flat(bound) if isinstance(bound, int | float) else bound
        checked(bound.clip)
        if len(x) == 0:
            out.zero_()
            return Clipped(out.new_zeros(0), bound.clip, out.new_zeros(0))
        with torch.no_grad():
            path = self._paths.find(x, y)
            try:
                norms, losses = self._sum(path, x, y, bound, out)
            except Unsuitable:  # this very batch took a way through the module that the first one did not
                self._paths.distrust(x)
                norms, losses = self._sum(None, x, y, bound, out)
        return Clipped(norms, bound.clip, losses)

    def of(self, examples: Store, chosen: Tensor, bound: float | Bound, out: Tensor) -> Clipped:
        """The same over the examples with the indices ``chosen`` (b,), which are not copied where the module's path reads them in place."""
        clip = bound.clip if isinstance(bound, Flat) else None if isinstance(bound, Layers | Measured) else bound
        found = None if clip is None else self._paths.in_place(examples, chosen)
        if clip is None or found is None:
            return self(*examples.take(chosen), bound, out)
        single, rows, where = found
        return single.clipped(rows, where, checked(clip), out)

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        """Every example's own gradient (n, d). Raw."""
        with torch.no_grad():
            path = self._paths.find(x, y)
            if isinstance(path, Plan):
                _, kernels = self._collected(path, x, y)
                pieces = self._formed(kernels, len(x))
                if pieces is not None:
                    return pieces.rows(slice(None), self._paths.flat.weights.new_empty(len(x), self._paths.flat.dim))
            return self._paths.slow.gradients(x, y)[1].clone()

    def _sum(self, path: Fast | None, x: Tensor, y: Tensor, bound: Bound, out: Tensor) -> tuple[Tensor, Tensor]:
        fresh = isinstance(path, Plan)  # only a plan is sure to write every stretch of the vector
        pieces = _pieces(path, self._paths, len(x))
        if not fresh:
            out.zero_()
        if len(pieces) == 1:
            return self._piece(path, x, y, bound, out, fresh)
        parts = [self._piece(path, x[piece], y[piece], bound, out, fresh and piece.start == 0) for piece in pieces]
        return torch.cat([norms for norms, _ in parts]), torch.cat([losses for _, losses in parts])

    def _piece(self, path: Fast | None, x: Tensor, y: Tensor, bound: Bound, out: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        """Norms and losses of a micro-batch; its clipped sum is written to ``out`` if ``fresh``, else added."""
        if path is None:
            losses, rows = self._paths.slow.gradients(x, y)
            norms, factor = self._by_rows(rows, bound)
            if math.isfinite(float(norms.sum())):
                out.add_((rows * factor).sum(0) if factor.ndim == 2 else rows.t().mv(factor))
                return norms, losses
        else:
            losses, kernels = self._collected(path, x, y)
            found = self._measured(kernels, bound, losses) if isinstance(bound, Measured) else _together(kernels, bound, losses)
            if found is None:  # some layer does not form single gradients
                if fresh:
                    out.zero_()
                return self._piece(None, x, y, bound, out, False)
            norms = found
            if math.isfinite(float(norms.sum())):
                if isinstance(bound, Layers):
                    for kernel, square in kernels:
                        kernel.write(factors(square.sqrt(), bound.each(len(kernels))), out, fresh)
                else:
                    factor = factors(norms, bound.clip, bound.margin)
                    for kernel, _ in kernels:
                        kernel.write(factor, out, fresh)
                return norms, losses
        return self._without_infinite(path, x, y, bound, out, fresh, norms, losses)

    def _collected(self, path: Fast, x: Tensor, y: Tensor) -> tuple[Tensor, list[tuple[Kernel, Tensor]]]:
        """Losses (n,), and each kernel with its squared norms (n,), after a pass forward and back."""
        losses, pairs = path.pairs(self._paths.loss, x, y, 1.0)
        return losses, [(kernel, kernel.collect(a, g)) for kernel, a, g in pairs]

    def _measured(self, kernels: list[tuple[Kernel, Tensor]], bound: Measured, like: Tensor) -> Tensor | None:
        """Norms (n,): of gradients in pieces, or written out a few at a time, so that they stay in the cache; None if neither."""
        pieces = self._formed(kernels, len(like))
        if pieces is None:
            return None
        found = bound.piecewise(pieces) if bound.piecewise is not None else None
        if found is not None:
            return found
        norms = torch.empty_like(like)
        few = max(1, int(ROW_BYTES / (self._paths.flat.dim * like.element_size())))
        for start in range(0, len(like), few):
            part = slice(start, min(start + few, len(like)))
            rows = self._space.take("rows", (part.stop - start, self._paths.flat.dim))
            norms[part] = bound.norms(pieces.rows(part, rows))
        return norms

    def _formed(self, kernels: list[tuple[Kernel, Tensor]], n: int) -> Pieces | None:
        """The batch's gradients as the kernels keep them; None if some layer does not form them."""
        found: list[Piece] = []
        for kernel, _ in kernels:
            own = kernel.pieces()
            if own is None:
                return None
            found += own
        return Pieces.of(n, self._paths.flat.dim, found)

    def _by_rows(self, rows: Tensor, bound: Bound) -> tuple[Tensor, Tensor]:
        """Norms (n,) and factors, (n,) or (n, d) where layers have their own."""
        if not isinstance(bound, Layers):
            norms = lengths(rows) if isinstance(bound, Flat) else bound.norms(rows)
            return norms, factors(norms, bound.clip, bound.margin)
        layers = layers_of(self._paths.flat)
        squares = [sum((slot_columns(rows, slot).square().sum(1) for slot in layer), rows.new_zeros(len(rows))) for layer in layers]
        each = torch.empty_like(rows)
        for layer, square in zip(layers, squares, strict=True):
            own = factors(square.sqrt(), bound.each(len(layers)))
            for slot in layer:
                slot_columns(each, slot).copy_(own.unsqueeze(1).expand(-1, slot.size))
        return _largest(squares, bound), each

    def _without_infinite(
        self, path: Fast | None, x: Tensor, y: Tensor, bound: Bound, out: Tensor, fresh: bool, norms: Tensor, losses: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A micro-batch without the examples whose gradient is not finite: zero times infinity is not zero."""
        keep = torch.isfinite(norms)
        everywhere, losses = torch.full_like(norms, torch.inf), losses.clone()
        if bool(keep.any()):
            everywhere[keep] = self._piece(path, x[keep], y[keep], bound, out, fresh)[0]
        elif fresh:
            out.zero_()
        return everywhere, losses


def _together(kernels: list[tuple[Kernel, Tensor]], bound: Flat | Layers, like: Tensor) -> Tensor:
    """Norms (n,) from the layers' squared ones: plain, or the largest layer's in units of its C_l, times C."""
    squares = [square for _, square in kernels]
    if not squares:
        return like.new_zeros(len(like))
    if isinstance(bound, Layers):
        return _largest(squares, bound)
    total = squares[0].clone()
    for square in squares[1:]:
        total.add_(square)
    return total.sqrt_()


def _largest(squares: list[Tensor], bound: Layers) -> Tensor:
    return torch.stack(squares).amax(0).sqrt_().mul_(bound.clip / bound.each(len(squares)))  # NaN and infinity come through


def layers_of(flat: Parameters) -> list[list[Slot]]:
    """The parameters of each module that has some of its own, in order: a layer's weight and bias go together."""
    found: dict[str, list[Slot]] = {}
    for slot in flat.layout:
        found.setdefault(slot.name.rpartition(".")[0], []).append(slot)
    return list(found.values())


def slot_columns(rows: Tensor, slot: Slot) -> Tensor:
    """One parameter's columns of rows (n, d)."""
    return rows[:, slot.offset : slot.offset + slot.size]


class MeanGradient:
    """Writes the gradient of the mean loss of a batch into a flat vector: no clipping, no privacy."""

    def __init__(self, flat: Parameters, loss: Loss) -> None:
        self._paths = Paths(flat, loss)

    def __call__(self, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        """Overwrite ``out`` (d,) with the mean gradient over ``x`` (n, ...), ``y`` (n,); the mean loss is returned.

        An empty batch gives zeros, and zero.
        """
        if len(x) == 0:
            out.zero_()
            return out.new_zeros(())
        with torch.no_grad():
            path = self._paths.find(x, y)
            try:
                return self._mean(path, x, y, out)
            except Unsuitable:
                self._paths.distrust(x)
                return self._mean(None, x, y, out)

    def of(self, examples: Store, chosen: Tensor, out: Tensor) -> Tensor:
        """The same over the examples with the indices ``chosen`` (b,), in place where that is possible."""
        found = self._paths.in_place(examples, chosen)
        if found is None:
            return self(*examples.take(chosen), out)
        single, rows, where = found
        return single.mean(rows, where, out)

    def _mean(self, path: Fast | None, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        if path is None:
            return self._by_autograd(x, y, out)
        total, share = out.new_zeros(()), 1.0 / len(x)
        planned = isinstance(path, Plan)
        if not planned:
            out.zero_()
        for piece in _pieces(path, self._paths, len(x)):
            losses, pairs = path.pairs(self._paths.loss, x[piece], y[piece], share)
            for kernel, a, g in pairs:
                kernel.plain(a, g, out, planned and piece.start == 0)
            total += losses.sum()
        return total * share

    def _by_autograd(self, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        """The whole batch at once: without privacy, examples may meet (as batch norm has them do)."""
        flat = self._paths.flat
        named = dict(flat.module.named_parameters())
        with torch.enable_grad():
            mean = self._paths.loss(flat.module(x), y).mean()
        gradients = torch.autograd.grad(mean, [named[slot.name] for slot in flat.layout], allow_unused=True)
        for slot, gradient in zip(flat.layout, gradients, strict=True):
            if gradient is None:
                slot.flat(out).zero_()
            else:
                slot.logical(out).copy_(gradient)
        return mean.detach()
