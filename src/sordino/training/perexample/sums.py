r"""The two sums a client asks for: clipped per example, or plain.

Both run under ``no_grad`` over micro-batches; see the package's docstring for the paths.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from sordino.errors import StudyError
from sordino.mechanism import checked_clip
from sordino.training.flat import Flat as Parameters
from sordino.training.flat import Slot
from sordino.training.loss import Loss
from sordino.training.perexample.bound import Bound, FlatBound, Layers, Measured, Shortened
from sordino.training.perexample.clipping import (
    MOST,
    TOGETHER,
    Clipped,
    add_rows,
    factors,
    finite,
    joined,
    kept,
    leaves,
    root,
    squares,
)
from sordino.training.perexample.fixed import in_blocks, pairs_in_blocks
from sordino.training.perexample.kernel import Kernel
from sordino.training.perexample.paths import Paths
from sordino.training.perexample.plan import Plan
from sordino.training.perexample.separable import exact_products
from sordino.training.perexample.store import Given, Store
from sordino.training.perexample.workspace import Workspace
from sordino.training.settings import same_settings

# gradients of as many examples as this are written out at once, while they are in the cache
ROW_BYTES, FEW = 3_000_000, 16


def _batches(path: Plan | None, paths: Paths, n: int) -> list[slice]:
    """Micro-batches of n examples."""
    size = paths.slow.piece if path is None else path.piece
    return [slice(start, start + size) for start in range(0, n, size)]


class ClippedSum:
    """Writes sum_i g_i min(1, C/|g_i|) over a batch into a flat vector."""

    def __init__(self, flat: Parameters, loss: Loss) -> None:
        self._paths = Paths(flat, loss)
        self._space = Workspace(flat.weights)

    def __call__(self, x: Tensor, y: Tensor, bound: float | Bound, out: Tensor) -> Clipped:
        """Overwrite ``out`` (d,), float64, with the clipped sum over ``x`` (n, ...), ``y`` (n,).

        A number is a flat bound C. An empty batch gives zeros. What is returned is raw and must not
        leave its client.

        Raises:
            StudyError: for a bound, a batch or a setting of torch for which the sum's sensitivity
                is not proven.
        """
        if len(x) > MOST:
            raise StudyError(
                f"a batch of {len(x)} examples: at most {MOST} can be summed within the proven "
                "bound; lower the sampling rate"
            )
        given = Given(x, y)
        return self.of(given, torch.arange(len(y), device=y.device), bound, out)

    def of(self, examples: Store, chosen: Tensor, bound: float | Bound, out: Tensor) -> Clipped:
        """The same over indices ``chosen`` (b,), in place where the module's path can.

        Nothing that examples hold makes it fail: those that cannot be computed add nothing.
        """
        bound = FlatBound(bound) if isinstance(bound, int | float) else bound
        checked_clip(bound.clip)
        if isinstance(bound, Layers):
            layers = len(layers_of(self._paths.flat))
            checked_clip(bound.each(layers), f"privacy.clip / sqrt({layers} layers)")
        _provable(out)
        total = out
        if not 0 < len(chosen) <= TOGETHER:
            total = torch.empty_like(out.zero_())
        parts = []
        for leaf in leaves(chosen):
            parts.append(self._leaf(examples, leaf, bound, total))
            if total is not out:
                out.add_(total)
        return joined(parts, bound.clip, self._paths.flat.weights, chosen)

    def _leaf(self, examples: Store, chosen: Tensor, bound: Bound, out: Tensor) -> Clipped:
        """Overwrite ``out`` with the clipped sum over a leaf."""
        found = self._paths.in_place(examples, chosen) if isinstance(bound, FlatBound) else None
        if found is not None:
            single, rows, where = found
            return single.clipped(rows, where, bound.clip, out)
        x, y = examples.take(chosen)
        with torch.no_grad():
            norms, losses = self._sum(self._paths.find(x), x, y, bound, out)
        return Clipped(norms.to(losses.dtype), bound.clip, losses)

    def rows(self, x: Tensor, y: Tensor) -> Tensor:
        """Every example's own gradient (n, d). Raw."""
        with torch.no_grad():
            path = self._paths.find(x)
            if path is not None:
                _, kernels = self._collected(path, x, y)
                return _formed(
                    kernels,
                    slice(None),
                    self._paths.flat.weights.new_empty(len(x), self._paths.flat.dim),
                )
            return self._paths.slow.gradients(x, y)[1].clone()

    def _sum(
        self, path: Plan | None, x: Tensor, y: Tensor, bound: Bound, out: Tensor
    ) -> tuple[Tensor, Tensor]:
        parts = [
            self._piece(path, x[some], y[some], bound, out, some.start == 0)
            for some in _batches(path, self._paths, len(x))
        ]
        if len(parts) == 1:
            return parts[0]
        return torch.cat([norms for norms, _ in parts]), torch.cat([losses for _, losses in parts])

    def _piece(
        self, path: Plan | None, x: Tensor, y: Tensor, bound: Bound, out: Tensor, fresh: bool
    ) -> tuple[Tensor, Tensor]:
        """Norms and losses of a micro-batch; its clipped sum goes to ``out``.

        Written if ``fresh``, else added.

        Nothing here lets one example change what is computed for another: those that cannot
        contribute are left in their places, with zeros for gradients.
        """
        if path is None:
            losses, rows = self._paths.slow.gradients(x, y)
            if isinstance(bound, Layers):
                return _by_layers(self._paths.flat, rows, bound, out, fresh), losses
            return _add(rows, bound, out, fresh), losses
        losses, kernels = self._collected(path, x, y)
        if isinstance(bound, Measured | Shortened):
            return self._measured(kernels, bound, len(x), out, fresh), losses
        norms = _together(kernels, bound)
        usable = finite(norms)
        if not bool(usable.all()):
            for kernel, square in kernels:
                kernel.leave(usable)
                square.masked_fill_(~usable, 0.0)
        if isinstance(bound, Layers):
            for kernel, square in kernels:
                kernel.write(
                    factors(square.sqrt(), bound.each(len(kernels)), bound.margin, losses.dtype),
                    out,
                    fresh,
                )
        else:
            factor = factors(norms, bound.clip, bound.margin, losses.dtype)
            for kernel, _ in kernels:
                kernel.write(factor, out, fresh)
        return norms, losses

    def _collected(
        self, path: Plan, x: Tensor, y: Tensor
    ) -> tuple[Tensor, list[tuple[Kernel, Tensor]]]:
        """Losses (n,), and each kernel with its squared norms (n,), after both passes."""
        losses, pairs = path.pairs(self._paths.loss, x, y, 1.0)
        return losses, [(kernel, kernel.collect(a, g)) for kernel, a, g in pairs]

    def _measured(
        self,
        kernels: list[tuple[Kernel, Tensor]],
        bound: Measured | Shortened,
        n: int,
        out: Tensor,
        fresh: bool,
    ) -> Tensor:
        """Norms (n,); gradients are written, measured and added few at a time, in the cache."""
        weights, dim = self._paths.flat.weights, self._paths.flat.dim
        few = max(1, min(FEW, int(ROW_BYTES / (dim * weights.element_size()))))
        norms = weights.new_empty(n, dtype=torch.float64)
        for start in range(0, n, few):
            part = slice(start, min(start + few, n))
            rows = _formed(kernels, part, self._space.take("rows", (part.stop - start, dim)))
            norms[part] = _add(rows, bound, out, fresh and start == 0, few)
        return norms


def _formed(kernels: list[tuple[Kernel, Tensor]], part: slice, rows: Tensor) -> Tensor:
    """``rows`` (k, d), filled with the kernels' gradients of this part."""
    for kernel, _ in kernels:
        kernel.form(part, rows)
    return rows


def _add(
    rows: Tensor,
    bound: FlatBound | Measured | Shortened,
    out: Tensor,
    fresh: bool,
    few: int | None = None,
) -> Tensor:
    """Norms (n,) of ``rows`` (n, d); their clipped sum goes to ``out``, added unless ``fresh``."""
    if isinstance(bound, Shortened):
        short, norms = pairs_in_blocks(bound.rows, rows, size=few)
        add_rows(out, short, short.new_ones(len(short)), fresh)
        return _usable(norms)
    norms = (
        root(squares(rows))
        if isinstance(bound, FlatBound)
        else _usable(in_blocks(bound.norms, rows, size=few))
    )
    usable = finite(norms)
    factor = factors(
        norms,
        bound.clip,
        bound.margin,
        rows.dtype if isinstance(bound, FlatBound) else torch.float64,
    )
    add_rows(out, rows if bool(usable.all()) else kept(usable, rows), factor, fresh)
    return norms


def _by_layers(flat: Parameters, rows: Tensor, bound: Layers, out: Tensor, fresh: bool) -> Tensor:
    """:func:`_add` with each layer clipped by itself."""
    layers = layers_of(flat)
    squared = [_added([squares(slot.columns(rows)) for slot in layer]) for layer in layers]
    norms = _largest(squared, bound)
    usable = finite(norms)
    rows = kept(usable, rows)
    for layer, square in zip(layers, squared, strict=True):
        factor = factors(
            kept(usable, square).sqrt(), bound.each(len(layers)), bound.margin, rows.dtype
        )
        for slot in layer:
            add_rows(slot.flat(out), slot.columns(rows), factor, fresh)
    return norms


def _provable(out: Tensor) -> None:
    """Refuse what the proof in :mod:`.clipping` does not cover."""
    if out.dtype != torch.float64:
        raise ValueError(f"a clipped sum is written in float64; got a vector of {out.dtype}")
    if not exact_products():
        raise StudyError(
            "torch.set_float32_matmul_precision was set below 'highest': products are then "
            "too coarse for the bound; leave it alone"
        )


def _together(kernels: list[tuple[Kernel, Tensor]], bound: FlatBound | Layers) -> Tensor:
    """Norms (n,) from squared ones of layers; infinite where not usable.

    Plain, or the largest layer's in units of its C_l, times C.
    """
    squared = [square for _, square in kernels]
    return _largest(squared, bound) if isinstance(bound, Layers) else root(_added(squared))


def _added(squared: list[Tensor]) -> Tensor:
    # one after another: a sum over an axis may go another way where the others are longer
    return functools.reduce(torch.add, squared)


def _largest(squared: list[Tensor], bound: Layers) -> Tensor:
    found = root(torch.stack(squared).amax(0))  # NaN and infinity come through
    return torch.where(
        finite(root(_added(squared))),
        found * (bound.clip / bound.each(len(squared))),
        math.inf,
    )


def _usable(norms: Tensor) -> Tensor:
    norms = norms.to(torch.float64)
    return torch.where(finite(norms), norms, math.inf)


def layers_of(flat: Parameters) -> list[list[Slot]]:
    """The parameters of each module that has some, in order: weight and bias go together."""
    found: dict[str, list[Slot]] = {}
    for slot in flat.layout:
        found.setdefault(slot.name.rpartition(".")[0], []).append(slot)
    return list(found.values())


class MeanGradient:
    """Writes the gradient of a batch's mean loss into a flat vector: no clipping, no privacy."""

    def __init__(self, flat: Parameters, loss: Loss) -> None:
        self._paths = Paths(flat, loss)

    def __call__(self, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        """Overwrite ``out`` (d,) with the mean gradient over ``x`` (n, ...), ``y`` (n,); mean loss.

        An empty batch gives zeros, and zero.
        """
        if len(x) == 0:
            out.zero_()
            return out.new_zeros(())
        with torch.no_grad():
            return self._mean(self._paths.find(x), x, y, out)

    def of(self, examples: Store, chosen: Tensor, out: Tensor) -> Tensor:
        """The same over the indices ``chosen`` (b,), in place where that is possible."""
        found = self._paths.in_place(examples, chosen)
        if found is None:
            return self(*examples.take(chosen), out)
        single, rows, where = found
        return single.mean(rows, where, out)

    def _mean(self, path: Plan | None, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        if path is None:
            return self._by_autograd(x, y, out)
        total, share = out.new_zeros(()), 1.0 / len(x)
        for piece in _batches(path, self._paths, len(x)):
            losses, pairs = path.pairs(self._paths.loss, x[piece], y[piece], share)
            for kernel, a, g in pairs:
                kernel.plain(a, g, out, piece.start == 0)
            total += losses.sum()
        return total * share

    def _by_autograd(self, x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        """The whole batch at once: without privacy, examples may meet (as in batch norm)."""
        flat = self._paths.flat
        module, parameters = flat.copy()
        with same_settings():
            with torch.enable_grad():
                mean = self._paths.loss(module(x.clone()), y).mean()
            gradients = torch.autograd.grad(mean, parameters, allow_unused=True)
        for slot, gradient in zip(flat.layout, gradients, strict=True):
            if gradient is None:
                slot.flat(out).zero_()
            else:
                slot.logical(out).copy_(gradient)
        return mean.detach()
