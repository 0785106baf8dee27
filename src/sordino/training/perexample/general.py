r"""Every module that autograd can differentiate: examples one by one, where they cannot meet.

A module is a function of a batch, and nothing in its type says that row i of its scores depends
on example i alone. A module that sorts examples by length and back, or cuts padding to the longest
of a batch, has rows that depend on their neighbours, on some batches only. Clipping what autograd
calls example i's gradient then bounds nothing. So modules outside of :mod:`.separable` never see
two examples at once:

    vmap   ``torch.func.vmap`` over the module on batches of one: the module's code sees one
           example, whose operations are carried out for all of them side by side
    alone  one example after another, where an operation has no rule for vmap (its control flow
           depends on data)

Which of the two is found out on zeros and on random numbers of the input's shape, never on data:
the paths round differently, and a path that one example could choose would change what the others
add. A state that a module keeps between calls is refused where it is seen
(:mod:`sordino.training.state`); hidden in globals or closures it is its author's responsibility.

Both cost n x d memory, for as many examples at a time as fit 64 MB.

Shapes: x (n, ...), y (n, ...); per-example gradients (n, d).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from sordino.errors import StudyError
from sordino.training.flat import Flat
from sordino.training.loss import Loss
from sordino.training.state import changed, state

GRADIENT_BYTES = 64e6

FAILURES = (
    RuntimeError,
    ValueError,
    IndexError,
    TypeError,
    ArithmeticError,
    AttributeError,
    NotImplementedError,
)
"""What a module may raise that is not fit for an input."""


class OneByOne:
    """Materialised per-example gradients of a whole module."""

    def __init__(self, flat: Flat, loss: Loss) -> None:
        self._flat, self._loss = flat, loss
        self._parameters = {
            name: p for name, p in flat.module.named_parameters() if flat.slot(p) is not None
        }
        self._mapped_shapes: dict[tuple[object, ...], bool] = {}
        self.piece = max(1, int(GRADIENT_BYTES / (flat.dim * flat.weights.element_size())))

    def gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (n,) and gradients (n, d) in the flat vector's order.

        Raises:
            StudyError: where the module works for zeros and random numbers of this shape, but not
                for this batch.
        """
        if not self.maps(x, y):
            return self.loop(x, y)
        try:
            return self._mapped(x, y)
        except FAILURES as error:
            # to go on by the loop would round the other examples' gradients differently
            raise StudyError(
                f"model: it works on random inputs of shape {tuple(x.shape[1:])} and fails on a "
                f"batch of data ({error}); check the data's values (such as tokens outside of the "
                "table), or make the module work for every input"
            ) from error

    def maps(self, x: Tensor, y: Tensor) -> bool:
        """Whether vmap can follow the module on inputs and labels of such shapes and types."""
        key = tuple(x.shape[1:]), x.dtype, tuple(y.shape[1:]), y.dtype
        if key not in self._mapped_shapes:
            self._mapped_shapes[key] = self._probe(x, y)
        return self._mapped_shapes[key]

    def _probe(self, x: Tensor, y: Tensor) -> bool:
        inputs = torch.zeros((2, *x.shape[1:]), dtype=x.dtype, device=x.device)
        if inputs.is_floating_point():
            generator = torch.Generator().manual_seed(0)
            inputs[1] = torch.randn(tuple(x.shape[1:]), generator=generator, dtype=x.dtype)
        labels = torch.zeros((2, *y.shape[1:]), dtype=y.dtype, device=y.device)
        before = state(self._flat.module)
        with torch.no_grad():
            try:
                self._mapped(inputs, labels)
                follows = True
            except FAILURES:
                follows = False
                self._one(inputs[:1], labels[:1])  # an error of the module itself is told as it is
        moved = changed(before, self._flat.module)
        if moved is not None:
            raise StudyError(
                f"model: a forward pass changes {moved!r}: it would carry raw data from step "
                "to step; make it constant"
            )
        return follows

    def _mapped(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        def single(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            scores = functional_call(self._flat.module, parameters, (image.unsqueeze(0),))
            return self._loss(scores, label.unsqueeze(0)).sum()

        detached = {name: p.detach() for name, p in self._parameters.items()}
        with warnings.catch_warnings():
            # :func:`.paths.path_of` tells what it costs
            warnings.filterwarnings("ignore", "There is a performance drop")
            grads, losses = vmap(grad_and_value(single), in_dims=(None, 0, 0))(detached, x, y)
        return losses.detach(), self._rows(grads.values(), len(x))

    def _rows(self, grads: Iterable[Tensor], n: int) -> Tensor:
        rows = self._flat.weights.new_empty((n, self._flat.dim))
        for slot, grad in zip(self._flat.layout, grads, strict=True):
            ordered = grad.permute(0, 1, 3, 4, 2) if len(slot.shape) == 4 else grad
            rows[:, slot.offset : slot.offset + slot.size] = ordered.reshape(n, -1)
        return rows

    def loop(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The same by one backward pass per example: slow, and right by construction.

        An example on which the module fails has no gradient, so it contributes none: rows of NaN.
        """
        losses, rows = [], []
        for i in range(len(x)):
            try:
                loss, row = self._one(x[i : i + 1], y[i : i + 1])
            except FAILURES:
                loss, row = (
                    self._flat.weights.new_full(shape, torch.nan)
                    for shape in ((), (1, self._flat.dim))
                )
            losses.append(loss)
            rows.append(row)
        return torch.stack(losses), torch.cat(rows)

    def _one(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Loss () and gradient (1, d) of a batch of one."""
        parameters = list(self._parameters.values())
        with torch.enable_grad():
            value = self._loss(self._flat.module(x), y).sum()
        grads = torch.autograd.grad(value, parameters, allow_unused=True)
        whole = [
            torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)
        ]
        return value.detach(), self._rows((g.unsqueeze(0) for g in whole), 1)
