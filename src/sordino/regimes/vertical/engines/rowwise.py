"""A party's half as a function of weights and rows, in which no row can meet another or stay.

A price counts one row for an event: the embedding of the entity's own features, and the entity's
part of the gradient. So what a module makes of a row may depend on that row and on released weights
alone. Layers of known types (:mod:`sordino.training.perexample.separable`) keep rows apart, and
they get all rows of an event at once. Of any other module nothing is believed:

* Weights lie in a vector that the module never sees. Each row goes alone through a throw-away deep
  copy, whose parameters are copies of that vector's numbers. What a forward pass writes (weights,
  buffers, attributes, its input) goes away with the copy.
* A module that a deep copy does not separate from the original (a ``__deepcopy__`` of its own, a
  closure or a bound method of something that changes) is refused before anything is read.
* A row on which the module fails has an embedding of zeros and no gradient. It ends nothing: an end
  would tell of the row.

State outside of the module (globals, attributes of classes, files) is its author's responsibility.

Shapes: rows (n, f), embeddings (n, e).
"""

from __future__ import annotations

import copy
import enum
import functools
import numbers
import re
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino import modules
from sordino.errors import StudyError
from sordino.training.flat import Flat
from sordino.training.perexample.separable import alone, known

_CONSTANT = (
    type(None), numbers.Number, str, bytes, range, type, enum.Enum, re.Pattern, types.ModuleType,
    torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype, np.generic, np.ufunc,
)  # fmt: skip
"""What two copies may share, for nothing can be written to it."""

_CARRIERS = (
    tuple, frozenset, functools.partial,
    types.FunctionType, types.MethodType, types.BuiltinFunctionType,
)  # fmt: skip
"""What two copies may share if they share nothing that it leads to."""


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
        whole = separate_copy(module)
        self.flat = Flat(whole)
        self._own = [p for p in whole.parameters() if p.requires_grad]
        self._first = None if keeps_rows_apart(whole, features) else separate_copy(module)
        self._width = self._width_of_one(features) if self._first is not None else 0

    def __call__(self, rows: Tensor, learns: bool) -> tuple[Made, ...]:
        """Embeddings of rows, in their order."""
        with torch.set_grad_enabled(learns):
            if self._first is None:
                return (Made(self.flat.module(rows), self._own),)
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
            given = torch.autograd.grad(value, wanted, allow_unused=True)
        except Exception:  # a module of one's own may fail in its backward pass, too
            if self._first is None:
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
        module = copy.deepcopy(self._first)
        assert module is not None
        parameters = [p for p in module.parameters() if p.requires_grad]
        for slot, parameter in zip(self.flat.layout, parameters, strict=True):
            parameter.data = slot.logical(self.flat.weights).clone()
        out = module(row.clone())
        if not isinstance(out, Tensor):
            raise TypeError(f"an embedding is a tensor, not {type(out).__name__}")
        return Made(out, parameters)

    def _width_of_one(self, features: int) -> int:
        with torch.no_grad():
            try:
                out = self._alone(torch.zeros((1, features))).out
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
        for child in module.children():
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


def separate_copy(module: nn.Module) -> nn.Module:
    """A deep copy that shares nothing that can change with the module.

    Raises:
        StudyError: naming what cannot be copied.
    """
    try:
        made = copy.deepcopy(module)
    except Exception as error:  # whatever an attribute's copying raises
        raise StudyError(
            f"model: it cannot be copied ({modules.told_of(error)}), and every example must get a "
            "copy of its own, so that nothing of it stays; leave out what cannot be copied"
        ) from error
    theirs = _reached(made)
    for key, (place, value) in _reached(module).items():
        if key in theirs:
            raise StudyError(
                f"model: {place} ({type(value).__name__}) is shared between the model and its "
                "copies, so what one example writes there would reach others; let no closure, "
                "bound method or copying of its own lead to anything that changes"
            )
    return made


def _reached(module: nn.Module) -> dict[tuple[str, int], tuple[str, object]]:
    """Everything that can change and that a module leads to: its place, by identity or memory."""
    found: dict[tuple[str, int], tuple[str, object]] = {}
    ahead: list[tuple[str, object]] = [("the model itself", module)]
    seen: set[int] = set()
    while ahead:
        place, value = ahead.pop()
        if id(value) in seen or isinstance(value, _CONSTANT):
            continue
        seen.add(id(value))
        if not isinstance(value, _CARRIERS):
            found["object", id(value)] = place, value
        if isinstance(value, Tensor) and (at := value.untyped_storage().data_ptr()):
            found["memory", at] = place, value
        ahead += [
            (name if place == "the model itself" else f"{place}.{name}", each)
            for name, each in _inside(value)
        ]
    return found


def _inside(value: Any) -> Iterator[tuple[str, object]]:
    """What a value leads to."""
    if isinstance(value, Mapping):
        yield from ((str(key), each) for key, each in value.items())
    elif isinstance(value, tuple | list | set | frozenset | deque):
        yield from ((str(i), each) for i, each in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # not filled yet
                continue
        yield from (("defaults", value.__defaults__), ("defaults", value.__kwdefaults__))
    elif isinstance(value, types.MethodType):
        yield from (("self", value.__self__), ("func", value.__func__))
    elif isinstance(value, types.BuiltinFunctionType):
        yield "self", value.__self__
    for kind in type(value).__mro__:
        for name in _names(vars(kind).get("__slots__", ())):
            if hasattr(value, name):
                yield name, getattr(value, name)
    yield from getattr(value, "__dict__", {}).items()


def _names(slots: str | Sequence[str]) -> Sequence[str]:
    return (slots,) if isinstance(slots, str) else tuple(slots)
