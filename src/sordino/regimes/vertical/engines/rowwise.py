"""A party's half as a function of weights and rows, in which no row can meet another or stay.

A price counts one row for an event: the embedding of the entity's own features, and the entity's
part of the gradient. So what a module makes of a row may depend on that row and on released weights
alone. Layers of known types (:mod:`sordino.training.perexample.separable`) keep rows apart, and
they get all rows of an event at once. Of any other module nothing is believed: its graph
(:mod:`sordino.training.graph`) gets one row after another. A row on which an operation fails has an
embedding of zeros and no gradient. It ends nothing: an end would tell of the row.

Shapes: rows (n, f), embeddings (n, e).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from sordino.base.errors import StudyError
from sordino.training.flat import Flat
from sordino.training.graph import Function, Named, pulled, scores_of, trained
from sordino.training.perexample.separable import alone, known


class PartyModule:
    """A party's half of the network.

    Attributes:
        flat: its weights.

    Raises:
        StudyError: for a module that has no graph, or makes no embedding of one row.
    """

    def __init__(self, module: nn.Module, features: int) -> None:
        self.flat = Flat(module)
        self._own = [p for p in module.parameters() if p.requires_grad]
        self._names = {slot.name: slot for slot in self.flat.layout}
        self._known = keeps_rows_apart(module, features)
        self._width = 0 if self._known else self._width_of_one(features)
        self._last: tuple[Tensor, Tensor] | None = None

    def __call__(self, rows: Tensor, learns: bool) -> Tensor:
        """Embeddings of rows, which autograd follows where the party learns."""
        if self._known:
            with torch.set_grad_enabled(learns):
                out: Tensor = self.flat.module(rows.clone())  # a copy: a layer may work in place
            return out
        made = rows.new_zeros((len(rows), self._width), requires_grad=learns)
        graph = self.flat.graphs.of("embedding", scores_of, rows[:1])
        with torch.no_grad():
            for i in range(len(rows)):
                try:
                    made[i] = graph(rows[i : i + 1].clone())[0]
                except Exception:  # an operation may raise anything
                    continue
        self._last = (rows.clone(), made) if learns else None
        return made

    def gradients(self, out: Tensor, slopes: Tensor) -> list[Tensor | None]:
        """By parameter, of the sum of ``out`` times ``slopes`` (n, e); None: zero.

        ``out`` is a function of the last embeddings. Gradients of rows are bounded together, so
        rows may meet here.
        """
        # slopes as gradients would be checked by a part of torch that takes 1.4 s and 60 MB to load
        value = (out * slopes).sum()
        if self._last is None:
            return list(torch.autograd.grad(value, self._own, allow_unused=True))
        rows, made = self._last
        back = torch.autograd.grad(value, made)[0]
        graph = self.flat.graphs.of("gradient", self._gradient, rows[:1], back[:1])
        total = {name: torch.zeros(slot.shape) for name, slot in self._names.items()}
        for i in range(len(rows)):
            try:
                found = graph(rows[i : i + 1].clone(), back[i : i + 1].clone())
            except Exception:  # an operation may raise anything
                continue
            for name, gradient in found.items():
                total[name] += gradient
        return list(total.values())

    def _gradient(
        self, module: Function, tensors: Named, row: Tensor, slope: Tensor
    ) -> dict[str, Tensor]:
        leaves = trained(tensors, self._names)
        with torch.enable_grad():
            value = (module(leaves, row) * slope).sum()
        return pulled(value, leaves)

    def _width_of_one(self, features: int) -> int:
        row = torch.zeros((1, features))
        made = self.flat.graphs.of("embedding", scores_of, row)
        if len(made.shape) != 2 or made.shape[0] != 1 or made.dtype != torch.float32:
            kind = str(made.dtype).removeprefix("torch.")
            raise StudyError(
                f"model: of a single example it gives {kind} of shape {made.shape}; "
                "parties' models get examples one by one, and must give float32 of shape "
                "(1, numbers)"
            )
        self.flat.graphs.of("gradient", self._gradient, row, torch.zeros(made.shape))
        width: int = made.shape[1]
        return width


def keeps_rows_apart(module: nn.Module, features: int) -> bool:
    """Whether a module is known layers in a row, each of which works on every row by itself."""
    layers = list(_layers(module))
    if not all(type(p) is nn.Parameter for p in module.parameters()):
        return False
    x = torch.zeros((2, features))
    for layer in layers:
        if not known(layer) or not _apart(layer, x.ndim):
            return False
        with torch.no_grad():
            x = layer(x)
    return True


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is nn.Sequential and known(module):
        for child in module._modules.values():
            if child is not None:
                yield from _layers(child)
    else:
        yield module


def _apart(layer: nn.Module, axes: int) -> bool:
    match layer:
        case nn.Linear() | nn.GroupNorm():
            return axes >= 2
        case nn.Conv2d():
            return axes == 4
        case nn.LayerNorm():
            return len(layer.normalized_shape) < axes
    return alone(layer, axes)
