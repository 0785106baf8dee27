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

Shapes: x (k, ...), y (k,), a piece (:mod:`.pieces`); gradients of a parameter (k, size).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from sordino.training.flat import Flat, Slot
from sordino.training.loss import Loss
from sordino.training.perexample.apart import apart
from sordino.training.perexample.clipping import add_rows, kept, squares
from sordino.training.perexample.workspace import Workspace
from sordino.training.settings import own_call, own_code

GRADIENT_BYTES = 64e6

Made = tuple[Tensor, list[Tensor]]
"""Losses (k,), and for each parameter in the flat vector's order its gradients (k, size)."""


class Written:
    """The gradients of one layer's parameters, written out; see
    :class:`~sordino.training.perexample.kernel.Gradients`.
    """

    def __init__(self, slots: list[tuple[Slot, Tensor]]) -> None:
        self._slots = slots

    def leave(self, keep: Tensor) -> None:
        """Zeros for examples outside of ``keep`` (k,)."""
        self._slots = [(slot, kept(keep, rows)) for slot, rows in self._slots]

    def write(self, factor: Tensor, out: Tensor, fresh: bool) -> None:
        """sum_i factor_i G_i into ``out`` (d,): overwritten if ``fresh``, else added to."""
        for slot, rows in self._slots:
            add_rows(slot.flat(out), rows, factor, fresh)

    def form(self, part: slice, rows: Tensor) -> None:
        """G_i of this part into this layer's columns of ``rows`` (k, d)."""
        for slot, own in self._slots:
            slot.columns(rows).copy_(own[part])


def layers_of(flat: Flat) -> list[list[Slot]]:
    """The parameters of each module that has some, in order: weight and bias go together."""
    found: dict[str, list[Slot]] = {}
    for slot in flat.layout:
        found.setdefault(slot.name.rpartition(".")[0], []).append(slot)
    return list(found.values())


class OneByOne:
    """Materialised per-example gradients of a whole module, and its scores.

    Attributes:
        most: examples of a piece at most, for memory.
    """

    def __init__(self, flat: Flat, loss: Loss) -> None:
        self._flat, self._loss = flat, loss
        self._space = Workspace(flat.weights)
        self._classes = 0
        self._mapped_shapes: dict[tuple[object, ...], bool] = {}
        self.most = max(1, int(GRADIENT_BYTES / (flat.dim * flat.weights.element_size())))

    def gradients(
        self, x: Tensor, y: Tensor, places: Tensor
    ) -> tuple[Tensor, list[tuple[Written, Tensor]]]:
        """Losses (k,) of a piece, and each layer's gradients with their squared norms (k,).

        Examples are in ``places``. Where one has no gradient, its numbers are NaN. The
        next call overwrites them.
        """
        mapped = self.maps(x, y)
        valid, y = self._loss.known(y, self._classes)
        with own_code(x.device):
            losses, rows = self._side_by_side(x, y) if mapped else self._in_turn(x, y, places)
        made = {slot.name: each for slot, each in zip(self._flat.layout, rows, strict=True)}
        layers = []
        for slots in layers_of(self._flat):
            square = torch.zeros(len(x), dtype=torch.float64, device=x.device)
            for slot in slots:
                square += squares(made[slot.name])
            layers.append((Written([(slot, made[slot.name]) for slot in slots]), square))
        if not bool(valid.all()):
            for layer, square in layers:
                layer.leave(valid)
                square.masked_fill_(~valid, torch.nan)
            losses.masked_fill_(~valid, torch.nan)
        return losses, layers

    def _side_by_side(self, x: Tensor, y: Tensor) -> Made:
        try:
            return self._mapped(x, y)
        except Exception:  # a user's module may raise anything
            losses, rows = self._room(len(x))
            for each in (losses, *rows):
                each.fill_(torch.nan)
            self._halves(x, y, slice(0, len(x)), losses, rows)
            return losses, rows

    def _halves(
        self, x: Tensor, y: Tensor, some: slice, losses: Tensor, rows: list[Tensor]
    ) -> None:
        """Fill in what ``some`` of the examples have, where together they fail."""
        if some.stop - some.start < 2:
            return
        middle = (some.start + some.stop) // 2
        for half in (slice(some.start, middle), slice(middle, some.stop)):
            alone, label = torch.zeros_like(x), torch.zeros_like(y)
            alone[half], label[half] = x[half], y[half]
            try:
                found, made = self._mapped(alone, label)
            except Exception:  # a user's module may raise anything
                self._halves(x, y, half, losses, rows)
            else:
                losses[half] = found[half]
                for into, each in zip(rows, made, strict=True):
                    into[half] = each[half]

    def _in_turn(self, x: Tensor, y: Tensor, places: Tensor) -> Made:
        """One example after another, by a backward pass of its own: slow, right by construction."""
        losses, rows = self._room(len(x))
        if len(places) < len(x):
            for each in (losses, *rows):
                each.zero_()
        for i in places.tolist():
            into = [each[i] for each in rows]
            try:
                losses[i] = self._one(x[i : i + 1], y[i : i + 1], into)
            except Exception:  # a user's module may raise anything
                for each in (losses[i], *into):
                    each.fill_(torch.nan)
        return losses, rows

    def _room(self, rows: int) -> Made:
        take = self._space.take
        made = [take(slot.name, (rows, slot.size)) for slot in self._flat.layout]
        return self._flat.weights.new_empty(rows), made

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
        into = [each[0] for each in self._room(1)[1]]
        with torch.no_grad(), own_code(x.device):
            # an error of the module itself is told as it is, also where vmap would not see it
            self._one(inputs[:1], labels[:1], into)
            try:
                self._mapped(inputs, labels, probing=True)
            except Exception:  # a user's module may raise anything
                return False
        return True

    def _mapped(self, x: Tensor, y: Tensor, *, probing: bool = False) -> Made:
        """Losses and gradients of all rows, side by side."""
        module, parameters = self._flat.copy()
        named = {
            slot.name: p.detach() for slot, p in zip(self._flat.layout, parameters, strict=True)
        }

        def single(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            scores = functional_call(module, weights, (image.unsqueeze(0),))
            return self._loss.plain(scores, label.unsqueeze(0)).sum()

        given = x.clone(), y.clone()
        with own_call(x.device, fill=False), apart(kernels=probing):
            grads, losses = vmap(grad_and_value(single), in_dims=(None, 0, 0))(named, *given)
        rows = [
            _stored(slot, grads[slot.name]).reshape(len(x), slot.size) for slot in self._flat.layout
        ]
        return losses.detach(), rows

    def _one(self, x: Tensor, y: Tensor, into: list[Tensor]) -> Tensor:
        """The loss of a batch of one; its gradient goes ``into`` one vector for each parameter."""
        module, parameters = self._flat.copy()
        with own_call(x.device):
            with torch.enable_grad():
                scores = module(x.clone())
                value = self._loss.plain(scores, y.clone())
            grads = torch.autograd.grad(value, parameters, allow_unused=True)
        self._classes = self._classes or scores.shape[1]
        for slot, grad, place in zip(self._flat.layout, grads, into, strict=True):
            if grad is None:
                place.zero_()
            else:
                place.view(slot.stored).copy_(_stored(slot, grad))
        return value.detach()

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


def _stored(slot: Slot, gradient: Tensor) -> Tensor:
    """A gradient (..., *shape) in the order in which the flat vector has it."""
    return gradient.movedim(-3, -1) if len(slot.shape) == 4 else gradient
