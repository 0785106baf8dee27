r"""Every module that autograd can differentiate: examples one by one, where they cannot meet.

A module is a function of a batch, and nothing in its type says that row i of its scores depends
on example i alone. A module that sorts examples by length and back, or cuts padding to the longest
of a batch, has rows that depend on their neighbours, on some batches only. Clipping what autograd
calls example i's gradient then bounds nothing. So modules outside of :mod:`.separable` never see
two examples at once:

    vmap      a graph of the module for one example (:mod:`.recorded`), carried out for all of them
              side by side
    recorded  the same graph for one example after another, where vmap has no rule for an
              operation, or none that is known to keep examples apart
    alone     the module's own code for one example after another, where it has no graph (its
              control flow depends on numbers): each call gets a copy of the module, which is thrown
              away (:mod:`sordino.training.copies`), and the same random generators and settings of
              the process (:mod:`sordino.training.settings`)

Which of them is found out on made-up inputs, never on data: the ways round differently, and a way
that one example could choose would change what the others add.

An example on which the module fails contributes nothing, whatever it raises: rows of NaN. Under
vmap, where one failure ends the call for all, each example of the piece is then tried by itself, in
a piece that is filled with copies of it: the others keep their bits.

All cost n x d memory, for as many examples at a time as fit 64 MB.

Shapes: x (k, ...), y (k,), a piece (:mod:`.pieces`); gradients of a parameter (k, size).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from sordino.training.flat import Flat, Slot
from sordino.training.loss import Loss
from sordino.training.outline import ALONE, MAPPED, RECORDED, Path
from sordino.training.perexample.clipping import add_rows, kept, squares
from sordino.training.perexample.pieces import VECTOR
from sordino.training.perexample.recorded import Recording, recorded
from sordino.training.perexample.workspace import Workspace
from sordino.training.settings import own_call, own_code, set_generators

GRADIENT_BYTES = 64e6

Named = dict[str, Tensor]
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
        self._recordings: dict[tuple[object, ...], Recording | None] = {}
        self.most = max(1, int(GRADIENT_BYTES / (flat.dim * flat.weights.element_size())))

    def gradients(
        self, x: Tensor, y: Tensor, places: Tensor
    ) -> tuple[Tensor, list[tuple[Written, Tensor]]]:
        """Losses (k,) of a piece, and each layer's gradients with their squared norms (k,).

        Examples are in ``places``. Where one has no gradient, its numbers are NaN. The next call
        overwrites them.
        """
        recording = self._recording(x, y)
        valid, y = self._loss.known(y, self._classes)
        with own_code(x.device):
            if recording is not None and self._maps(recording):
                losses, rows = self._side_by_side(recording, x, y, places)
            else:
                losses, rows = self._in_turn(recording, x, y, places)
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

    def path(self, x: Tensor, y: Tensor) -> Path:
        """The way for inputs and labels of such shapes and types."""
        recording = self._recording(x, y)
        return ALONE if recording is None else MAPPED if self._maps(recording) else RECORDED

    def _maps(self, recording: Recording | None) -> bool:
        """Whether examples go side by side; fewer than a vector of them fit no piece."""
        return recording is not None and recording.apart and self.most >= VECTOR

    def _side_by_side(self, recording: Recording, x: Tensor, y: Tensor, places: Tensor) -> Made:
        try:
            return self._mapped(recording, x, y)
        except Exception:  # an operation may raise anything
            losses, rows = self._room(len(x))
            for each in (losses, *rows):
                each.fill_(torch.nan)
        for i in places.tolist():
            try:
                found, made = self._mapped(recording, _copies(x, i), _copies(y, i))
            except Exception:
                continue
            losses[i] = found[i]
            for into, each in zip(rows, made, strict=True):
                into[i] = each[i]
        return losses, rows

    def _mapped(self, recording: Recording, x: Tensor, y: Tensor) -> Made:
        """Losses and gradients of all rows, side by side."""
        if recording.draws:
            set_generators(x.device)
        run = vmap(recording.run, in_dims=(None, None, 0, 0), randomness="same")
        grads, losses = run(*self._constants(), x, y)
        rows = [
            _stored(slot, grads[slot.name]).reshape(len(x), slot.size) for slot in self._flat.layout
        ]
        return losses, rows

    def _in_turn(self, recording: Recording | None, x: Tensor, y: Tensor, places: Tensor) -> Made:
        """One example after another: slow, right by construction."""
        losses, rows = self._room(len(x))
        if len(places) < len(x):
            for each in (losses, *rows):
                each.zero_()
        for i in places.tolist():
            into = [each[i] for each in rows]
            try:
                losses[i] = self._one(recording, x[i].clone(), y[i].clone(), into)
            except Exception:  # a user's module may raise anything
                for each in (losses[i], *into):
                    each.fill_(torch.nan)
        return losses, rows

    def _one(self, recording: Recording | None, x: Tensor, y: Tensor, into: list[Tensor]) -> Tensor:
        """The loss of one example; its gradient goes ``into`` one vector for each parameter."""
        if recording is None:
            value, grads = self._called(x, y)
        else:
            if recording.draws:
                set_generators(x.device)
            found, value = recording.run(*self._constants(), x, y)
            grads = [found[slot.name] for slot in self._flat.layout]
        for slot, grad, place in zip(self._flat.layout, grads, into, strict=True):
            if grad is None:
                place.zero_()
            else:
                place.view(slot.stored).copy_(_stored(slot, grad))
        return value

    def _called(self, x: Tensor, y: Tensor) -> tuple[Tensor, Sequence[Tensor | None]]:
        """The loss of one example and its gradients, by a copy of the module."""
        module, parameters = self._flat.copy()
        with own_call(x.device):
            with torch.enable_grad():
                scores = module(x.unsqueeze(0).clone())
                value = self._loss.plain(scores, y.unsqueeze(0))
            grads = torch.autograd.grad(value, parameters, allow_unused=True)
        self._classes = self._classes or scores.shape[1]
        return value.detach(), grads

    def _constants(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What a graph takes besides an example: weights, and what is not trained."""
        weights = {slot.name: slot.logical(self._flat.weights) for slot in self._flat.layout}
        named = [*self._flat.module.named_parameters(), *self._flat.module.named_buffers()]
        return weights, {name: each.detach() for name, each in named if name not in weights}

    def _room(self, rows: int) -> Made:
        take = self._space.take
        made = [take(slot.name, (rows, slot.size)) for slot in self._flat.layout]
        return self._flat.weights.new_empty(rows), made

    def _recording(self, x: Tensor, y: Tensor) -> Recording | None:
        key = tuple(x.shape[1:]), x.dtype, tuple(y.shape[1:]), y.dtype
        if key not in self._recordings:
            with torch.no_grad(), own_code(x.device):
                self._recordings[key] = self._recorded(x, y)
        return self._recordings[key]

    def _recorded(self, x: Tensor, y: Tensor) -> Recording | None:
        """The module's graph; None where it has none, or the graph gives something else."""
        made_up = [torch.zeros_like(x[0], device="cpu") for _ in range(2)]
        if x.is_floating_point():
            made_up[1].normal_(generator=torch.Generator().manual_seed(0))
        label, expected = torch.zeros_like(y[0]), []
        for each in made_up:
            try:
                expected.append((each.to(x.device), *self._called(each.to(x.device), label)))
            except Exception:  # told as it is where it fails on all
                if each is made_up[-1] and not expected:
                    raise
        try:
            recording = self._record(expected[0][0], label)
            for example, value, grads in expected:
                now, again = recording.run(*self._constants(), example, label)
                _same(value.reshape(()), again.reshape(()))
                for slot, grad in zip(self._flat.layout, grads, strict=True):
                    other = now[slot.name]
                    _same(torch.zeros_like(other) if grad is None else grad, other)
        except Exception:  # a user's module may raise anything
            return None
        try:
            examples = torch.stack([example for example, _, _ in expected])
            losses, _ = self._mapped(recording, examples, torch.stack([label] * len(examples)))
            _same(torch.stack([value.reshape(()) for _, value, _ in expected]), losses)
        except Exception:  # no rule for vmap
            recording.apart = False
        return recording

    def _record(self, x: Tensor, y: Tensor) -> Recording:
        module = self._flat.copy()[0]

        def loss_of(weights: Named, others: Named, image: Tensor, label: Tensor) -> Tensor:
            scores = functional_call(module, {**weights, **others}, (image.unsqueeze(0),))
            return self._loss.plain(scores, label.unsqueeze(0)).sum()

        with sdpa_kernel(SDPBackend.MATH):  # vmap has rules for its operations
            return recorded(grad_and_value(loss_of), *self._constants(), x, y)

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


def _copies(some: Tensor, row: int) -> Tensor:
    """As many copies of a row as there are rows."""
    return some[row : row + 1].expand(some.shape).clone()


def _same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5, equal_nan=True)
