r"""Every module that autograd can differentiate: examples one by one, where they cannot meet.

A module is a function of a batch, and nothing in its type says that row i of its scores depends
on example i alone. A module that sorts examples by length and back, or cuts padding to the longest
of a batch, has rows that depend on their neighbours, on some batches only. Clipping what autograd
calls example i's gradient then bounds nothing. So modules outside of :mod:`.separable` never see
two examples at once:

    vmap   ``torch.func.vmap`` over the module on batches of one: the module's code sees one
           example, whose operations are carried out for all of them side by side
    alone  one example after another, where an operation has no rule for vmap (its control flow
           depends on data), or none that is known to keep examples apart (:mod:`.apart`)

Which of the two is found out on zeros and on random numbers of the input's shape, never on data:
the paths round differently, and a path that one example could choose would change what the others
add.

Nothing passes from one call of the module's code to the next: each gets a copy of the module, which
is thrown away (:mod:`sordino.training.copies`), copies of the examples, and the same random
generators and settings of the process (:mod:`sordino.training.settings`).

An example on which the module fails contributes nothing, whatever it raises: rows of NaN. Under
vmap, where one failure ends the call for all, the call is repeated with zeros in the places of half
of the examples, until those that fail are found. All calls have the same shapes, so the others keep
their bits.

Both cost n x d memory, for as many examples at a time as fit 64 MB.

Shapes: x (n, ...), y (n, ...); per-example gradients (n, d).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from sordino.training.flat import Flat
from sordino.training.loss import Loss
from sordino.training.perexample.apart import apart
from sordino.training.perexample.fixed import block, filled
from sordino.training.perexample.workspace import Workspace
from sordino.training.settings import own_call, own_code

GRADIENT_BYTES = 64e6


class OneByOne:
    """Materialised per-example gradients of a whole module, and its scores."""

    def __init__(self, flat: Flat, loss: Loss) -> None:
        self._flat, self._loss = flat, loss
        self._space = Workspace(flat.weights)
        self._mapped_shapes: dict[tuple[object, ...], bool] = {}
        self.piece = max(1, int(GRADIENT_BYTES / (flat.dim * flat.weights.element_size())))

    def gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (n,) and gradients (n, d) in the flat vector's order; NaN where it has none.

        The gradients lie in a buffer that the next call overwrites. Side by side, examples go in
        blocks of one shape (:mod:`.fixed`).
        """
        losses = self._flat.weights.new_empty(len(x))
        rows = self._space.take("rows", (len(x), self._flat.dim))
        mapped = self.maps(x, y)
        size = min(block(x), self.piece) if mapped else 1
        work = self._block if mapped else self._alone
        with own_code(x.device):
            for start in range(0, len(x), size):
                some = slice(start, start + size)
                work(filled(x[some], size), filled(y[some], size), losses[some], rows[some])
        return losses, rows

    def _block(self, x: Tensor, y: Tensor, losses: Tensor, rows: Tensor) -> None:
        """Losses (k,) and gradients (k, d) of the first k examples of a block."""
        try:
            self._mapped(x, y, losses, rows)
        except Exception:  # a user's module may raise anything
            losses.fill_(torch.nan)
            rows.fill_(torch.nan)
            self._halves(x, y, slice(0, len(rows)), losses, rows)

    def _halves(self, x: Tensor, y: Tensor, some: slice, losses: Tensor, rows: Tensor) -> None:
        """Fill in what ``some`` of the examples have, where together they fail."""
        if some.stop - some.start < 2:
            return
        middle = (some.start + some.stop) // 2
        for half in (slice(some.start, middle), slice(middle, some.stop)):
            alone, label = torch.zeros_like(x), torch.zeros_like(y)
            alone[half], label[half] = x[half], y[half]
            found = torch.empty_like(losses), torch.empty_like(rows)
            try:
                self._mapped(alone, label, *found)
            except Exception:  # a user's module may raise anything
                self._halves(x, y, half, losses, rows)
            else:
                losses[half], rows[half] = found[0][half], found[1][half]

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
        losses, rows = (
            self._flat.weights.new_empty(2),
            self._space.take("rows", (2, self._flat.dim)),
        )
        with torch.no_grad(), own_code(x.device):
            # an error of the module itself is told as it is, also where vmap would not see it
            self._one(inputs[:1], labels[:1], losses[:1], rows[:1])
            try:
                self._mapped(inputs, labels, losses, rows, probing=True)
            except Exception:  # a user's module may raise anything
                return False
        return True

    def _mapped(
        self, x: Tensor, y: Tensor, losses: Tensor, rows: Tensor, *, probing: bool = False
    ) -> None:
        """Losses (k,) and gradients (k, d) of the first k of n examples, side by side."""
        module, parameters = self._flat.copy()
        named = {
            slot.name: p.detach() for slot, p in zip(self._flat.layout, parameters, strict=True)
        }

        def single(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            scores = functional_call(module, weights, (image.unsqueeze(0),))
            return self._loss(scores, label.unsqueeze(0)).sum()

        given = x.clone(), y.clone()
        with own_call(x.device), apart(kernels=probing):
            grads, found = vmap(grad_and_value(single), in_dims=(None, 0, 0))(named, *given)
        losses.copy_(found.detach()[: len(losses)])
        self._write(grads.values(), rows)

    def _write(self, grads: Iterable[Tensor | None], rows: Tensor) -> None:
        for slot, grad in zip(self._flat.layout, grads, strict=True):
            place = rows[:, slot.offset : slot.offset + slot.size]
            if grad is None:
                place.zero_()
            else:
                some = grad[: len(rows)]
                ordered = some.permute(0, 1, 3, 4, 2) if len(slot.shape) == 4 else some
                place.copy_(ordered.reshape(len(rows), -1))

    def _alone(self, x: Tensor, y: Tensor, losses: Tensor, rows: Tensor) -> None:
        """The same of one example, by a backward pass of its own: slow, right by construction."""
        try:
            self._one(x, y, losses, rows)
        except Exception:  # a user's module may raise anything
            losses.fill_(torch.nan)
            rows.fill_(torch.nan)

    def _one(self, x: Tensor, y: Tensor, losses: Tensor, rows: Tensor) -> None:
        """The loss (1,) of a batch of one, and its gradient (1, d)."""
        module, parameters = self._flat.copy()
        with own_call(x.device):
            with torch.enable_grad():
                value = self._loss(module(x.clone()), y.clone()).sum()
            grads = torch.autograd.grad(value, parameters, allow_unused=True)
        self._write((None if g is None else g.unsqueeze(0) for g in grads), rows)
        losses.copy_(value.detach())

    def scores(self, x: Tensor, classes: int) -> Tensor:
        """Scores (n, classes) of each example by itself; NaN where the module fails."""
        found = self._flat.weights.new_full((len(x), classes), torch.nan)
        with torch.no_grad(), own_code(x.device):
            for i in range(len(x)):
                module, _ = self._flat.copy()
                try:
                    with own_call(x.device):
                        found[i] = module(x[i : i + 1].clone())[0]
                except Exception:  # a user's module may raise anything
                    continue
        return found
