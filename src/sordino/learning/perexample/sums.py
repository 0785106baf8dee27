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
from sordino.learning.perexample.clipping import Clipped, checked, factors
from sordino.learning.perexample.general import Unsuitable
from sordino.learning.perexample.kernel import Kernel
from sordino.learning.perexample.paths import Fast, Paths
from sordino.learning.perexample.plan import PIECE_BYTES, Plan
from sordino.learning.perexample.workspace import Workspace


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

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        """Every example's own gradient (n, d). Raw."""
        with torch.no_grad():
            return self._rows(self._paths.find(x, y), x, y)[1].clone()

    def _sum(self, path: Fast | None, x: Tensor, y: Tensor, bound: Bound, out: Tensor) -> tuple[Tensor, Tensor]:
        fresh = isinstance(path, Plan)  # only a plan is sure to write every stretch of the vector
        if isinstance(bound, Measured):
            size = max(1, int(PIECE_BYTES / (out.numel() * out.element_size())))
            pieces, fresh = [slice(start, start + size) for start in range(0, len(x), size)], True
        else:
            pieces = _pieces(path, self._paths, len(x))
        if not fresh:
            out.zero_()
        if len(pieces) == 1:
            return self._piece(path, x, y, bound, out, fresh)
        parts = [self._piece(path, x[piece], y[piece], bound, out, fresh and piece.start == 0) for piece in pieces]
        return torch.cat([norms for norms, _ in parts]), torch.cat([losses for _, losses in parts])

    def _piece(self, path: Fast | None, x: Tensor, y: Tensor, bound: Bound, out: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        """Norms and losses of a micro-batch; its clipped sum is written to ``out`` if ``fresh``, else added."""
        if isinstance(bound, Measured):
            losses, rows = self._rows(path, x, y)
            norms = bound.norms(rows)
            if math.isfinite(float(norms.sum())):
                factor = factors(norms, bound.clip, bound.margin)
                torch.addmv(out, rows.t(), factor, beta=0.0 if fresh else 1.0, out=out)
                return norms, losses
        elif path is None:
            losses, rows = self._paths.slow.gradients(x, y)
            norms, factor = self._by_rows(rows, bound)
            if math.isfinite(float(norms.sum())):
                out.add_((rows * factor).sum(0) if factor.ndim == 2 else rows.t().mv(factor))
                return norms, losses
        else:
            losses, pairs = path.pairs(self._paths.loss, x, y, 1.0)
            kernels: list[Kernel] = []
            squares: list[Tensor] = []
            for kernel, a, g in pairs:
                squares.append(kernel.collect(a, g))
                kernels.append(kernel)
            norms = _together(squares, bound, losses)
            if math.isfinite(float(norms.sum())):
                common = factors(norms, bound.clip) if isinstance(bound, Flat) else None
                for kernel, square in zip(kernels, squares, strict=True):
                    own = common if common is not None else factors(square.sqrt(), bound.each(len(kernels)))  # type: ignore[union-attr]
                    kernel.write(own, out, fresh)
                return norms, losses
        return self._without_infinite(path, x, y, bound, out, fresh, norms, losses)

    def _rows(self, path: Fast | None, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (n,) and gradients (n, d), through a plan's kernels where all of them can write theirs."""
        if isinstance(path, Plan):
            rows = self._space.take("rows", (len(x), self._paths.flat.dim))
            losses, pairs = path.pairs(self._paths.loss, x, y, 1.0)
            written = True
            for kernel, a, g in pairs:
                kernel.collect(a, g)
                written = kernel.each(rows) and written
            if written:
                return losses, rows
        return self._paths.slow.gradients(x, y)

    def _by_rows(self, rows: Tensor, bound: Flat | Layers) -> tuple[Tensor, Tensor]:
        """Norms (n,) and factors, (n,) or (n, d) where layers have their own."""
        if isinstance(bound, Flat):
            norms = torch.linalg.vector_norm(rows, dim=1)
            return norms, factors(norms, bound.clip)
        layers = layers_of(self._paths.flat)
        squares = [sum((slot_columns(rows, slot).square().sum(1) for slot in layer), rows.new_zeros(len(rows))) for layer in layers]
        each = torch.empty_like(rows)
        for layer, square in zip(layers, squares, strict=True):
            own = factors(square.sqrt(), bound.each(len(layers)))
            for slot in layer:
                slot_columns(each, slot).copy_(own.unsqueeze(1).expand(-1, slot.size))
        return _together(squares, bound, rows), each

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


def _together(squares: list[Tensor], bound: Flat | Layers, like: Tensor) -> Tensor:
    """Norms (n,) from the layers' squared ones: plain, or the largest in units of its C_l, times C."""
    if not squares:
        return like.new_zeros(len(like))
    if isinstance(bound, Flat):
        total = squares[0].clone()
        for square in squares[1:]:
            total.add_(square)
        return total.sqrt_()
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
