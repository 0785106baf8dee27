r"""Every module that autograd can differentiate: examples one by one, where they cannot meet.

A module is a function of a batch, and nothing in its type says that row i of its scores depends
on example i alone. A module that sorts examples by length and back, or cuts padding to the longest
of a batch, has rows that depend on their neighbours, on some batches only. Clipping what autograd
calls example i's gradient then bounds nothing. So modules outside of :mod:`.plan`'s list never see
two examples at once:

    vmap      the module's graph for one example (:mod:`sordino.training.graph`), carried out for
              all of them side by side
    recorded  the same graph for one example after another, where vmap has no rule for an
              operation, or none that is known to keep examples apart

Which of them is found out on made-up inputs, never on data: the ways round differently, and a way
that one example could choose would change what the others add.

An example on which the module fails contributes nothing, whatever it raises: rows of NaN. Under
vmap, where one failure ends the call for all, each example of the piece is then tried by itself, in
a piece that is filled with copies of it: the others keep their bits.

All cost n x d memory, for as many examples at a time as fit 64 MB.

Shapes: x (k, ...), y (k,), a piece (:mod:`.clipping`); gradients of a parameter (k, size).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sordino.training.flat import Flat, Slot
from sordino.training.graph import Function, Graph, Named, passed_over, pulled, scores_of, trained
from sordino.training.loss import Loss
from sordino.training.outline import MAPPED, RECORDED, Path
from sordino.training.perexample.clipping import VECTOR
from sordino.training.perexample.layers import Collected, Written

GRADIENT_BYTES = 64e6

LossesAndRows = tuple[Tensor, list[Tensor]]
"""Losses (k,), and for each parameter in the flat vector's order its gradients (k, size)."""


def layers_of(flat: Flat) -> list[list[Slot]]:
    """The parameters of each module that has some, in order: weight and bias go together."""
    found: dict[str, list[Slot]] = {}
    for slot in flat.layout:
        found.setdefault(slot.name.rpartition(".")[0], []).append(slot)
    return list(found.values())


def written(flat: Flat, rows: Callable[[Slot], Tensor]) -> list[Collected]:
    """Each layer's gradients, by a function that gives those (k, size) of a parameter."""
    return [Written.collected(*((slot, rows(slot)) for slot in slots)) for slots in layers_of(flat)]


class OneByOne:
    """Materialised per-example gradients of a whole module, and its scores.

    Attributes:
        most: examples of a piece at most, for memory.
    """

    def __init__(self, flat: Flat, loss: Loss) -> None:
        self._flat, self._loss = flat, loss
        self._classes = 0
        self._names = {slot.name: slot for slot in flat.layout}
        self.most = max(1, int(GRADIENT_BYTES / (flat.dim * flat.weights.element_size())))

    def gradients(self, x: Tensor, y: Tensor, places: Tensor) -> tuple[Tensor, list[Collected]]:
        """Losses (k,) of a piece, and each layer's gradients with their squared norms (k,).

        Examples are in ``places``. Where one has no gradient, its numbers are NaN.
        """
        graph = self._graph(x, y)
        valid, y = self._loss.known(y, self._classes)
        way = self._side_by_side if self._maps(graph) else self._in_turn
        losses, rows = way(graph, x, y, places)
        made = dict(zip(self._flat.layout, rows, strict=True))
        layers = written(self._flat, made.__getitem__)
        if not bool(valid.all()):
            for layer, square in layers:
                layer.leave(valid)
                square.masked_fill_(~valid, torch.nan)
            losses.masked_fill_(~valid, torch.nan)
        return losses, layers

    def path(self, x: Tensor, y: Tensor) -> Path:
        """The way for inputs and labels of such shapes and types.

        Raises:
            StudyError: for a module that has no graph.
        """
        return MAPPED if self._maps(self._graph(x, y)) else RECORDED

    def _maps(self, graph: Graph) -> bool:
        """Return whether examples go side by side; fewer than a vector of them fit no piece."""
        return graph.apart and self.most >= VECTOR

    def _graph(self, x: Tensor, y: Tensor) -> Graph:
        """Of one example's loss and gradients."""
        example, label = x[0], y[0]
        if not self._classes:
            scores = self._flat.graphs.of("scores", scores_of, example.unsqueeze(0))
            self._classes = scores.shape[1]
        return self._flat.graphs.of(("example", self._loss), self._gradient, example, label)

    def _gradient(
        self, module: Function, tensors: Named, example: Tensor, label: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        leaves = trained(tensors, self._names)
        with torch.enable_grad():
            scores = module(leaves, example.unsqueeze(0))
            value = self._loss.plain(scores, label.unsqueeze(0)).sum()
        return value.detach(), pulled(value, leaves)

    def _side_by_side(self, graph: Graph, x: Tensor, y: Tensor, places: Tensor) -> LossesAndRows:
        with passed_over():
            return self._mapped(graph, x, y)
        losses, rows = self._room(len(x), torch.nan)
        for i in places.tolist():
            with passed_over():
                copies = (each[i : i + 1].expand(each.shape).clone() for each in (x, y))
                found, made = self._mapped(graph, *copies)
                losses[i] = found[i]
                for into, each in zip(rows, made, strict=True):
                    into[i] = each[i]
        return losses, rows

    def _mapped(self, graph: Graph, x: Tensor, y: Tensor) -> LossesAndRows:
        """Losses and gradients of all rows, side by side."""
        losses, grads = graph.mapped(x, y)
        rows = [
            _stored(slot, grads[slot.name]).reshape(len(x), slot.size) for slot in self._flat.layout
        ]
        return losses, rows

    def _in_turn(self, graph: Graph, x: Tensor, y: Tensor, places: Tensor) -> LossesAndRows:
        """One example after another: slow, right by construction."""
        losses, rows = self._room(len(x), 0.0)
        for i in places.tolist():
            for each in (losses[i], *(into[i] for into in rows)):
                each.fill_(torch.nan)
            with passed_over():
                losses[i], grads = graph(x[i].clone(), y[i].clone())
                for slot, into in zip(self._flat.layout, rows, strict=True):
                    into[i].view(slot.stored).copy_(_stored(slot, grads[slot.name]))
        return losses, rows

    def _room(self, rows: int, number: float) -> LossesAndRows:
        """Losses and gradients of so many rows, all of them this number."""
        new = self._flat.weights.new_full
        return new((rows,), number), [new((rows, slot.size), number) for slot in self._flat.layout]


def _stored(slot: Slot, gradient: Tensor) -> Tensor:
    """A gradient (..., *shape) in the order in which the flat vector has it."""
    return gradient.movedim(-3, -1) if len(slot.shape) == 4 else gradient
