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
add.

Nothing passes from one call of the module's code to the next: each gets a copy of the module, which
is thrown away (:mod:`sordino.training.copies`), copies of the examples, and the same state of the
global random generators.

An example on which the module fails contributes nothing, whatever it raises: rows of NaN. Under
vmap, where one failure ends the call for all, the call is repeated with zeros in the places of half
of the examples, until those that fail are found. All calls have the same shapes, so the others keep
their bits.

Both cost n x d memory, for as many examples at a time as fit 64 MB.

Shapes: x (n, ...), y (n, ...); per-example gradients (n, d).
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from sordino.training.flat import Flat
from sordino.training.loss import Loss

GRADIENT_BYTES = 64e6


class OneByOne:
    """Materialised per-example gradients of a whole module, and its scores."""

    def __init__(self, flat: Flat, loss: Loss) -> None:
        self._flat, self._loss = flat, loss
        self._mapped_shapes: dict[tuple[object, ...], bool] = {}
        self.piece = max(1, int(GRADIENT_BYTES / (flat.dim * flat.weights.element_size())))

    def gradients(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (n,) and gradients (n, d) in the flat vector's order; NaN where it has none."""
        if not self.maps(x, y):
            return self.loop(x, y)
        with same_generators(x.device):
            try:
                return self._mapped(x, y)
            except Exception:  # a user's module may raise anything
                new = self._flat.weights.new_full
                losses, rows = new((len(x),), torch.nan), new((len(x), self._flat.dim), torch.nan)
                self._halves(x, y, 0, len(x), losses, rows)
                return losses, rows

    def _halves(
        self, x: Tensor, y: Tensor, start: int, stop: int, losses: Tensor, rows: Tensor
    ) -> None:
        """Fill in what examples ``start`` to ``stop`` have, where together they fail."""
        middle = (start + stop) // 2
        for first, last in ((start, middle), (middle, stop)):
            if first == last or last - first == stop - start:
                continue
            some = slice(first, last)
            alone, label = torch.zeros_like(x), torch.zeros_like(y)
            alone[some], label[some] = x[some], y[some]
            try:
                found = self._mapped(alone, label)
            except Exception:  # a user's module may raise anything
                self._halves(x, y, first, last, losses, rows)
            else:
                losses[some], rows[some] = found[0][some], found[1][some]

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
        with torch.no_grad(), same_generators(x.device):
            try:
                self._mapped(inputs, labels)
            except Exception:  # a user's module may raise anything
                # an error of the module itself is told as it is
                self._one(inputs[:1], labels[:1], self._flat.weights.clone().unsqueeze(0))
                return False
        return True

    def _mapped(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        module, parameters = self._flat.copy()
        named = {
            slot.name: p.detach() for slot, p in zip(self._flat.layout, parameters, strict=True)
        }

        def single(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            scores = functional_call(module, weights, (image.unsqueeze(0),))
            return self._loss(scores, label.unsqueeze(0)).sum()

        _set_generators(x.device)
        with warnings.catch_warnings():
            # :func:`.paths.path_of` tells what it costs
            warnings.filterwarnings("ignore", "There is a performance drop")
            grads, losses = vmap(grad_and_value(single), in_dims=(None, 0, 0))(
                named, x.clone(), y.clone()
            )
        rows = x.new_empty((len(x), self._flat.dim), dtype=self._flat.weights.dtype)
        self._write(grads.values(), rows)
        return losses.detach().to(rows.dtype), rows

    def _write(self, grads: Iterable[Tensor | None], rows: Tensor) -> None:
        for slot, grad in zip(self._flat.layout, grads, strict=True):
            place = rows[:, slot.offset : slot.offset + slot.size]
            if grad is None:
                place.zero_()
            else:
                ordered = grad.permute(0, 1, 3, 4, 2) if len(slot.shape) == 4 else grad
                place.copy_(ordered.reshape(len(rows), -1))

    def loop(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The same by one backward pass per example: slow, and right by construction."""
        losses = self._flat.weights.new_empty(len(x))
        rows = self._flat.weights.new_empty((len(x), self._flat.dim))
        with same_generators(x.device):
            for i in range(len(x)):
                some = slice(i, i + 1)
                try:
                    losses[i] = self._one(x[some], y[some], rows[some])
                except Exception:  # a user's module may raise anything
                    losses[i] = rows[i] = torch.nan
        return losses, rows

    def _one(self, x: Tensor, y: Tensor, row: Tensor) -> Tensor:
        """The loss () of a batch of one; its gradient goes into ``row`` (1, d)."""
        module, parameters = self._flat.copy()
        _set_generators(x.device)
        with torch.enable_grad():
            value = self._loss(module(x.clone()), y.clone()).sum()
        grads = torch.autograd.grad(value, parameters, allow_unused=True)
        self._write((None if g is None else g.unsqueeze(0) for g in grads), row)
        return value.detach()

    def scores(self, x: Tensor, classes: int) -> Tensor:
        """Scores (n, classes) of each example by itself; NaN where the module fails."""
        found = self._flat.weights.new_full((len(x), classes), torch.nan)
        with torch.no_grad(), same_generators(x.device):
            for i in range(len(x)):
                _set_generators(x.device)
                try:
                    found[i] = self._flat.copy()[0](x[i : i + 1].clone())[0]
                except Exception:  # a user's module may raise anything
                    continue
        return found


@contextmanager
def same_generators(device: torch.device) -> Iterator[None]:
    """Set the global random generators to a fixed state, and leave them as they were."""
    held = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            _set_generators(device)
            yield
    finally:
        random.setstate(held[0])
        np.random.set_state(held[1])


def _set_generators(device: torch.device) -> None:
    """Let a module that draws random numbers draw the same whatever was drawn before."""
    torch.default_generator.manual_seed(0)
    if device.type == "cuda":
        torch.cuda.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
