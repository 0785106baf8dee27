r"""The two sums a client asks for: clipped per example, or plain.

Both run under ``no_grad`` over micro-batches; see the package's docstring for the paths.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sordino.learning.flat import Flat
from sordino.learning.loss import Loss
from sordino.learning.perexample.clipping import Clipped, checked, factors
from sordino.learning.perexample.general import Unsuitable
from sordino.learning.perexample.kernel import Kernel
from sordino.learning.perexample.paths import Fast, Paths
from sordino.learning.perexample.plan import Plan


def _pieces(path: Fast | None, paths: Paths, n: int) -> list[slice]:
    """Micro-batches of n examples."""
    size = path.piece if isinstance(path, Plan) else paths.slow.piece if path is None else n
    return [slice(start, start + size) for start in range(0, n, size)]


class ClippedSum:
    """Writes sum_i g_i min(1, C/|g_i|) over a batch into a flat vector."""

    def __init__(self, flat: Flat, loss: Loss) -> None:
        self._paths = Paths(flat, loss)

    def __call__(self, x: Tensor, y: Tensor, clip: float, out: Tensor) -> Clipped:
        """Overwrite ``out`` (d,) with the clipped sum over examples ``x`` (n, ...), ``y`` (n,); C is ``clip``.

        An empty batch gives zeros. What is returned is raw and must not leave its client.
        """
        checked(clip)
        if len(x) == 0:
            out.zero_()
            return Clipped(out.new_zeros(0), clip, out.new_zeros(0))
        with torch.no_grad():
            path = self._paths.find(x, y)
            try:
                norms, losses = self._sum(path, x, y, clip, out)
            except Unsuitable:  # this very batch took a way through the module that the first one did not
                self._paths.distrust(x)
                norms, losses = self._sum(None, x, y, clip, out)
        return Clipped(norms, clip, losses)

    def _sum(self, path: Fast | None, x: Tensor, y: Tensor, clip: float, out: Tensor) -> tuple[Tensor, Tensor]:
        pieces = _pieces(path, self._paths, len(x))
        if not isinstance(path, Plan):
            out.zero_()  # only a plan is sure to write every stretch of the vector
        if len(pieces) == 1:
            return self._piece(path, x, y, clip, out, isinstance(path, Plan))
        parts = [self._piece(path, x[piece], y[piece], clip, out, isinstance(path, Plan) and piece.start == 0) for piece in pieces]
        return torch.cat([norms for norms, _ in parts]), torch.cat([losses for _, losses in parts])

    def _piece(self, path: Fast | None, x: Tensor, y: Tensor, clip: float, out: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
        """Norms and losses of a micro-batch; its clipped sum is written to ``out`` if ``fresh``, else added."""
        if path is None:
            losses, rows = self._paths.slow.gradients(x, y)
            norms = torch.linalg.vector_norm(rows, dim=1)
            if math.isfinite(float(norms.sum())):
                out.addmv_(rows.t(), factors(norms, clip))
                return norms, losses
        else:
            losses, pairs = path.pairs(self._paths.loss, x, y, 1.0)
            squared: Tensor | None = None
            kernels: list[Kernel] = []
            for kernel, a, g in pairs:
                part = kernel.collect(a, g)
                squared = part if squared is None else squared.add_(part)
                kernels.append(kernel)
            norms = squared.sqrt_() if squared is not None else losses.new_zeros(len(x))
            if math.isfinite(float(norms.sum())):
                factor = factors(norms, clip)
                for kernel in kernels:
                    kernel.write(factor, out, fresh)
                return norms, losses
        return self._without_infinite(path, x, y, clip, out, fresh, norms, losses)

    def _without_infinite(
        self, path: Fast | None, x: Tensor, y: Tensor, clip: float, out: Tensor, fresh: bool, norms: Tensor, losses: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A micro-batch without the examples whose gradient is not finite: zero times infinity is not zero."""
        keep = torch.isfinite(norms)
        everywhere = torch.full_like(norms, torch.inf)
        if bool(keep.any()):
            everywhere[keep] = self._piece(path, x[keep], y[keep], clip, out, fresh)[0]
        elif fresh:
            out.zero_()
        return everywhere, losses.clone()


class MeanGradient:
    """Writes the gradient of the mean loss of a batch into a flat vector: no clipping, no privacy."""

    def __init__(self, flat: Flat, loss: Loss) -> None:
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
