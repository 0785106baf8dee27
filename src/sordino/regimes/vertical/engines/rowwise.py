"""A party's half as a function of weights and rows, in which no row can meet another or stay.

A price counts one row for an event: the embedding of the entity's own features, and the entity's
part of the gradient. So what a module makes of a row may depend on that row and on released weights
alone. Layers of known types (:mod:`sordino.training.perexample.separable`) keep rows apart, and
they get all rows of an event at once. Of any other module nothing is believed: each row goes alone
through a throw-away copy (:mod:`sordino.training.copies`). A row on which the module fails has an
embedding of zeros and no gradient. It ends nothing: an end would tell of the row.

Shapes: rows (n, f), embeddings (n, e).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino import modules
from sordino.errors import StudyError
from sordino.training.flat import Flat
from sordino.training.perexample.separable import alone, known
from sordino.training.settings import own_call, own_code, same_settings


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """Embeddings of some rows.

    Attributes:
        out: (k, e), with a graph where the party learns.
        parameters: of the module, or of the copy, that made them; none where it failed.
    """

    out: Tensor
    parameters: Sequence[Tensor]


class PartyModule:
    """A party's half of the network.

    Attributes:
        flat: its weights.

    Raises:
        StudyError: for a module that cannot be copied, or makes no embedding of one row.
    """

    def __init__(self, module: nn.Module, features: int) -> None:
        self.flat = Flat(module)
        self._own = [p for p in module.parameters() if p.requires_grad]
        self._known = keeps_rows_apart(module, features)
        self._width = 0 if self._known else self._width_of_one(features)

    def __call__(self, rows: Tensor, learns: bool) -> tuple[Made, ...]:
        """Embeddings of rows, in their order."""
        with torch.set_grad_enabled(learns):
            if self._known:
                # a copy: a layer may work in place
                return (Made(self.flat.module(rows.clone()), self._own),)
            with own_code(rows.device):
                return tuple(self._guarded(rows[i : i + 1]) for i in range(len(rows)))

    def gradients(self, made: Sequence[Made], slopes: Sequence[Tensor]) -> list[Tensor | None]:
        """Of the sum of ``out`` times its slope, by parameter; None: zero.

        They are bounded together, so rows may meet here. A backward pass that fails has none.
        """
        wanted = [p for part in made for p in part.parameters]
        # slopes as gradients would be checked by a part of torch that takes 1.4 s and 60 MB to load
        value = torch.stack(
            [(part.out * slope).sum() for part, slope in zip(made, slopes, strict=True)]
        ).sum()
        try:
            with same_settings():
                given = torch.autograd.grad(value, wanted, allow_unused=True)
        except Exception:  # a module of one's own may fail in its backward pass, too
            if self._known:
                raise
            given = ()
        found: list[Tensor | None] = [None] * len(self._own)
        for i, gradient in enumerate(given):
            place = i % len(found)
            before = found[place]
            found[place] = gradient if before is None or gradient is None else before + gradient
        return found

    def _guarded(self, row: Tensor) -> Made:
        """An embedding by a copy of the module; zeros where it fails."""
        try:
            made = self._alone(row)
        except Exception:  # a user's module may raise anything
            return Made(row.new_zeros((1, self._width)), ())
        fits = made.out.shape == (1, self._width) and made.out.dtype == row.dtype
        return made if fits else Made(row.new_zeros((1, self._width)), ())

    def _alone(self, row: Tensor) -> Made:
        module, parameters = self.flat.copy()
        with own_call(row.device):
            out = module(row.clone())
        if not isinstance(out, Tensor):
            raise TypeError(f"an embedding is a tensor, not {type(out).__name__}")
        return Made(out, parameters)

    def _width_of_one(self, features: int) -> int:
        row = torch.zeros((1, features))
        with torch.no_grad(), own_code(row.device):
            try:
                out = self._alone(row).out
            except StudyError:
                raise  # it cannot be copied
            except Exception as error:  # a user's module may raise anything
                raise StudyError(
                    f"model: it fails on a single example ({modules.told_of(error)}); parties' "
                    "models get examples one by one"
                ) from error
        if out.ndim != 2 or len(out) != 1 or out.dtype != torch.float32:
            kind = str(out.dtype).removeprefix("torch.")
            raise StudyError(
                f"model: of a single example it gives {kind} of shape {tuple(out.shape)}; "
                "parties' models get examples one by one, and must give float32 of shape "
                "(1, numbers)"
            )
        return out.shape[1]


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
