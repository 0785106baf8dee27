r"""Every module that autograd can differentiate: hooks where a kernel exists, else examples one by one.

A module with branches, attention or recurrences is no sequence, but most of its
parameters sit in layers that have a kernel. Hooks record what each of them saw; autograd
gives the gradients by their outputs, and stops there:

    a_l  from a forward hook,      g_l = d(sum_i loss_i)/d(output_l)

Where this is not enough (a layer called twice, weights tied or owned by a module of an
unknown kind, an input changed in place) :class:`OneByOne` differentiates every example by
itself: ``vmap`` over the whole module, or a loop where ``vmap`` cannot follow. It costs
n x d memory and works for all of them.

Hooks rest on an assumption that no type can express: that the first axis of every
layer's input counts the examples and that examples never meet. So
:class:`~sordino.learning.perexample.ClippedSum` compares the fast path with the loop on
the first examples it sees, and takes the slow one if they disagree.

Shapes: x (n, ...), y (n, ...); per-example gradients (n, d).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, grad_and_value, vmap

from sordino.learning.flat import Flat
from sordino.learning.loss import Loss
from sordino.learning.perexample import conv, embedding
from sordino.learning.perexample.conv import ConvKernel
from sordino.learning.perexample.embedding import EmbeddingKernel
from sordino.learning.perexample.kernel import Kernel
from sordino.learning.perexample.linear import LinearKernel
from sordino.learning.perexample.norm import NormKernel

GRADIENT_BYTES = 64e6


class Unsuitable(Exception):
    """The module does something that hooks cannot follow."""


def _kernel(layer: nn.Module, flat: Flat) -> Kernel | None:
    kind = type(layer)
    if isinstance(layer, nn.Linear) and kind is nn.Linear:
        return LinearKernel(layer, flat)
    if isinstance(layer, nn.Conv2d) and kind is nn.Conv2d and conv.supported(layer):
        return ConvKernel(layer, flat)
    if (isinstance(layer, nn.GroupNorm) and kind is nn.GroupNorm) or (isinstance(layer, nn.LayerNorm) and kind is nn.LayerNorm):
        return NormKernel(layer, flat)
    if isinstance(layer, nn.Embedding) and kind is nn.Embedding and embedding.supported(layer):
        return EmbeddingKernel(layer, flat)
    return None


def _channels_last(layer: nn.Module, x: Tensor) -> Tensor:
    return x.movedim(1, -1) if isinstance(layer, nn.Conv2d | nn.GroupNorm) else x


class Hooked:
    """Kernels fed by hooks. Construction raises :class:`Unsuitable` where a trainable parameter has no kernel."""

    def __init__(self, flat: Flat) -> None:
        self._module = flat.module
        self._kernels: list[tuple[nn.Module, Kernel]] = []
        covered: list[int] = []
        for layer in flat.module.modules():
            own = [p for p in layer.parameters(recurse=False) if flat.slot(p) is not None]
            if not own:
                continue
            kernel = _kernel(layer, flat)
            if kernel is None:
                raise Unsuitable(f"{type(layer).__name__} has parameters and no kernel")
            self._kernels.append((layer, kernel))
            covered.extend(id(p) for p in own)
        if len(set(covered)) < len(covered):
            raise Unsuitable("weights are shared between layers")

    def pairs(self, loss: Loss, x: Tensor, y: Tensor, scale: float) -> tuple[Tensor, Iterable[tuple[Kernel, Tensor, Tensor]]]:
        """Losses (n,) and, for each layer, its kernel, input and output gradient times ``scale``."""
        seen: dict[int, tuple[Tensor, int, GradientEdge]] = {}

        def record(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if id(layer) in seen or len(inputs) != 1 or len(inputs[0]) != len(x):
                raise Unsuitable(f"{type(layer).__name__} is called twice, or on something that is not a batch")
            # The edge names this very output, even if a later layer overwrites it in place.
            seen[id(layer)] = (inputs[0].detach(), inputs[0]._version, get_gradient_edge(output))

        handles = [layer.register_forward_hook(record) for layer, _ in self._kernels]
        try:
            with torch.enable_grad():
                losses = loss(self._module(x), y)
                total = losses.sum() * scale
        finally:
            for handle in handles:
                handle.remove()
        used = [(layer, kernel, *seen[id(layer)]) for layer, kernel in self._kernels if id(layer) in seen]
        if any(a._version != version for _, _, a, version, _ in used):
            raise Unsuitable("a layer's input is changed in place afterwards")
        slopes = torch.autograd.grad(total, [edge for *_, edge in used], allow_unused=True)
        return losses.detach(), [
            (kernel, _channels_last(layer, a), _channels_last(layer, g))
            for (layer, kernel, a, _, _), g in zip(used, slopes, strict=True)
            if g is not None
        ]


class OneByOne:
    """Materialised per-example gradients of a whole module."""

    def __init__(self, flat: Flat, loss: Loss) -> None:
        self._flat, self._loss = flat, loss
        self._parameters = {name: p for name, p in flat.module.named_parameters() if flat.slot(p) is not None}
        self._looping = False
        self.piece = max(1, int(GRADIENT_BYTES / (flat.dim * flat.weights.element_size())))

    def gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (n,) and gradients (n, d) in the flat vector's order."""
        if not self._looping:
            try:
                return self._mapped(x, y)
            except RuntimeError:  # vmap's word for "this operation has no batching rule"
                self._looping = True
        return self.loop(x, y)

    def _mapped(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        def single(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            scores = functional_call(self._flat.module, parameters, (image.unsqueeze(0),))
            return self._loss(scores, label.unsqueeze(0)).sum()

        detached = {name: p.detach() for name, p in self._parameters.items()}
        grads, losses = vmap(grad_and_value(single), in_dims=(None, 0, 0))(detached, x, y)
        return losses.detach(), self._rows(grads.values(), len(x))

    def _rows(self, grads: Iterable[Tensor], n: int) -> Tensor:
        rows = self._flat.weights.new_empty((n, self._flat.dim))
        for slot, grad in zip(self._flat.layout, grads, strict=True):
            ordered = grad.permute(0, 1, 3, 4, 2) if len(slot.shape) == 4 else grad
            rows[:, slot.offset : slot.offset + slot.size] = ordered.reshape(n, -1)
        return rows

    def loop(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The same by one backward pass per example: slow, and right by construction."""
        losses, rows = [], []
        parameters = list(self._parameters.values())
        for i in range(len(x)):
            with torch.enable_grad():
                value = self._loss(self._flat.module(x[i : i + 1]), y[i : i + 1]).sum()
            grads = torch.autograd.grad(value, parameters, allow_unused=True)
            whole = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
            rows.append(self._rows((g.unsqueeze(0) for g in whole), 1))
            losses.append(value.detach())
        return torch.stack(losses), torch.cat(rows)
