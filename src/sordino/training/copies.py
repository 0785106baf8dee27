"""Throw-away copies of a module, so that nothing that a forward pass writes can stay.

A forward pass is code of somebody's own. It may write into its parameters (``max_norm`` of an
embedding), its buffers, a deque, an array or any other attribute, on some inputs only: no trial
shows it. What it writes is raw data. So a module never works on data itself. Copies of it do, and
each is thrown away with all that was written to it:

* Parameters and buffers of a copy are copies. The vector of weights that is trained and released
  (:class:`~sordino.training.flat.Flat`) is out of every copy's reach.
* Attributes are copied deeply, hooks and bound methods included. Attributes of the module's classes
  are put back before each copy is made.
* What a copy would share with the module must be constant. Functions are shared: so a function that
  holds something changeable (in its closure or its defaults), or assigns to a global name, is
  refused, and so is whatever cannot be copied.

Three things stay the responsibility of a module's author: changeable objects that code finds by a
global name, objects outside of Python, and settings of the process.

>>> module = nn.Linear(2, 1)
>>> copied = Copies(module).copy()
>>> _ = copied.weight.data.zero_()
>>> bool(module.weight.any())
True
"""

from __future__ import annotations

import copy
import dis
import enum
import functools
import numbers
import re
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino import modules
from sordino.errors import StudyError

_CONSTANT = (
    type(None), numbers.Number, str, bytes, range, type, enum.Enum, re.Pattern, types.ModuleType,
    torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype, np.generic, np.ufunc,
    PurePath, type(Ellipsis), types.GenericAlias, types.UnionType,
)  # fmt: skip
"""What copies may share: nothing can be written to it."""

_CARRIERS = (
    tuple, frozenset, functools.partial, weakref.ref, property, staticmethod, classmethod,
    types.FunctionType, types.MethodType, types.BuiltinFunctionType,
)  # fmt: skip
"""What copies may share if it leads to nothing else that they share."""

_TORCH = str(Path(torch.__file__).parent)
_OTHERS = frozenset({"torch", "builtins", "abc", "typing", "collections"})
"""Packages whose classes are trusted to keep nothing in themselves."""

_MACHINERY = frozenset(vars(nn.Module()))
_STANDARD = ("__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__")
_RESTORED = {
    kind.__setstate__
    for kind in (nn.Module, nn.Conv2d, nn.MultiheadAttention, nn.TransformerEncoderLayer)
}
"""What only fills in attributes that older files lack."""
_GONE = object()

Found = dict[int | tuple[int, str], tuple[str, object]]


class Copies:
    """A module, and how to copy it.

    The module itself must not be called on data.

    Raises:
        StudyError: naming what cannot be copied, or would be shared by copies.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._held = [_Held(kind) for kind in _own_classes(module)]
        self._tensors = [*module.parameters(), *module.buffers()]
        for part in module.modules():
            if isinstance(part, torch.jit.ScriptModule) or part._compiled_call_impl is not None:
                raise StudyError(
                    f"model: a part of it ({type(part).__name__}) is compiled, so it cannot be "
                    "copied; give the module as it was before torch.compile or torch.jit"
                )
        self._parts = [_Part(part) for part in module.modules() if _plain(type(part))]
        try:
            made = self.copy()
        except Exception as error:  # whatever an attribute's copying raises
            raise StudyError(
                f"model: it cannot be copied ({modules.told_of(error)}), and every example gets a "
                "copy, so that nothing of it stays; leave out of the module what cannot be copied"
            ) from error
        _refuse_shared(module, made)

    def copy(self, given: Mapping[int, Tensor] | None = None) -> nn.Module:
        """A copy; ``given`` are parameters by the ``id`` of those in whose place they stand."""
        for held in self._held:
            held.put_back()
        memo: dict[int, Any] = {} if given is None else dict(given)
        for tensor in self._tensors:
            if id(tensor) not in memo:
                memo[id(tensor)] = _cloned(tensor)
        for part in self._parts:
            part.begin(memo)
        for part in self._parts:
            part.fill(memo)
        found: nn.Module = copy.deepcopy(self._module, memo)
        return found


def _constant(value: object) -> bool:
    return isinstance(value, _CONSTANT) or (type(value) is tuple and all(map(_constant, value)))


def _cloned(tensor: Tensor) -> Tensor:
    cloned = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(cloned, requires_grad=tensor.requires_grad)
    return cloned


def _plain(kind: type[nn.Module]) -> bool:
    """Whether instances are their ``__dict__`` and no more, as ``copy`` would find, too."""
    own = any(getattr(kind, name, None) is not getattr(nn.Module, name, None) for name in _STANDARD)
    slots = any("__slots__" in vars(each) for each in kind.__mro__)
    return not own and not slots and kind.__setstate__ in _RESTORED


class _Part:
    """A plain part of a module, copied as ``copy.deepcopy`` would, in a fifth of the time."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._kind = module, type(module)
        self._constant: dict[str, Any] = {}
        self._empty: list[tuple[str, int, type[Any]]] = []
        self._others: list[tuple[str, Any]] = []
        for name, value in vars(module).items():
            if _constant(value):
                self._constant[name] = value
            elif name in _MACHINERY and type(value) in (dict, OrderedDict, set) and not value:
                self._empty.append((name, id(value), type(value)))
            else:
                self._others.append((name, value))

    def begin(self, memo: dict[int, Any]) -> None:
        """Put a copy of this part into ``memo``, with what refers to nothing else."""
        made = memo[id(self._module)] = self._kind.__new__(self._kind)
        into = made.__dict__
        into.update(self._constant)
        for name, key, kind in self._empty:
            into[name] = memo[key] = kind()

    def fill(self, memo: dict[int, Any]) -> None:
        """Give the copy the rest of its attributes."""
        into = memo[id(self._module)].__dict__
        for name, value in self._others:
            if name in _MACHINERY and type(value) is dict:
                into[name] = {key: copy.deepcopy(each, memo) for key, each in value.items()}
            else:
                into[name] = copy.deepcopy(value, memo)


class _Held:
    """Attributes of a class as they were at first."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._constant: dict[str, object] = {}
        self._others: dict[str, object] = {}
        for name, value in vars(kind).items():
            if name.startswith("__") or name == "_abc_impl":
                continue
            if isinstance(value, (*_CONSTANT, *_CARRIERS)) or hasattr(value, "__get__"):
                self._constant[name] = value
                continue
            try:
                self._others[name] = copy.deepcopy(value)
            except Exception as error:  # whatever its copying raises
                raise StudyError(
                    f"model: {kind.__name__}.{name} ({type(value).__name__}) cannot be copied "
                    f"({modules.told_of(error)}); leave it out of the class"
                ) from error
        self._count = len(vars(kind))

    def put_back(self) -> None:
        """Undo what was assigned, added or changed."""
        now = vars(self._kind)
        for name, value in self._constant.items():
            if now.get(name, _GONE) is not value:
                setattr(self._kind, name, value)
        for name, value in self._others.items():
            setattr(self._kind, name, copy.deepcopy(value))
        if len(now) != self._count:
            for name in [n for n in now if not n.startswith("__") and n != "_abc_impl"]:
                if name not in self._constant and name not in self._others:
                    delattr(self._kind, name)


def _own_classes(module: nn.Module) -> list[type]:
    """Classes of a module's parts that do not come with torch."""
    found = {kind: None for part in module.modules() for kind in type(part).__mro__}
    return [kind for kind in found if kind.__module__.partition(".")[0] not in _OTHERS]


def _refuse_shared(module: nn.Module, made: nn.Module) -> None:
    ours = _reached(module)
    for key, (place, value) in _reached(made).items():
        if isinstance(value, types.FunctionType) and (name := _assigned(value)) is not None:
            raise StudyError(
                f"model: {place} assigns to {name!r}, which lies outside of the module: it would "
                "carry raw data from example to example; leave it out"
            )
        if key in ours and not isinstance(value, _CARRIERS):
            raise StudyError(
                f"model: {place} ({type(value).__name__}) is shared by the module and its copies, "
                "so what one example writes there would reach others; make it an attribute of the "
                "module, or a constant such as a tuple"
            )


def _assigned(function: types.FunctionType) -> str | None:
    """A global name, or one of an enclosing function, that a function assigns to."""
    ahead: list[types.CodeType] = [function.__code__]
    for code in ahead:
        for step in dis.get_instructions(code):
            outer = step.argval in function.__code__.co_freevars
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") or (
                step.opname in ("STORE_DEREF", "DELETE_DEREF") and outer
            ):
                return str(step.argval)
        ahead += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return None


def _reached(module: nn.Module) -> Found:
    """All that is not constant and that a module leads to, with its place, by identity."""
    found: Found = {}
    ahead: list[tuple[str, object]] = [("the module itself", module)]
    for kind in _own_classes(module):
        ahead += [
            (f"{kind.__name__}.{name}", value)
            for name, value in vars(kind).items()
            if isinstance(value, (_CARRIERS, functools._lru_cache_wrapper))
        ]
    while ahead:
        place, value = ahead.pop()
        if id(value) in found or isinstance(value, _CONSTANT):
            continue
        found[id(value)] = place, value
        if (at := _memory(value)) is not None:  # two objects may lie in one place
            found[at] = place, value
        ahead += [
            (name if place == "the module itself" else f"{place}.{name}", each)
            for name, each in _inside(value)
        ]
    return found


def _memory(value: object) -> tuple[int, str] | None:
    """Where the numbers of a tensor or an array lie."""
    if isinstance(value, Tensor) and (at := value.untyped_storage().data_ptr()):
        return at, "memory"
    if isinstance(value, np.ndarray) and value.size:
        return value.__array_interface__["data"][0], "memory"
    return None


def _inside(value: Any) -> Iterator[tuple[str, object]]:
    """What a value leads to."""
    match value:
        case Mapping():
            yield from ((str(key), each) for key, each in value.items())
        case tuple() | list() | set() | frozenset() | deque():
            yield from ((str(i), each) for i, each in enumerate(value))
        case functools.partial():
            yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
        case weakref.ref():
            yield "referent", value()
        case property():
            yield from (("fget", value.fget), ("fset", value.fset))
        case staticmethod() | classmethod() | types.MethodType():
            yield from (("func", value.__func__), ("self", getattr(value, "__self__", None)))
        case types.BuiltinFunctionType():
            yield "self", value.__self__
        case types.FunctionType():
            yield from _held_by(value)
            return
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if hasattr(value, name):
                yield name, getattr(value, name)
    yield from getattr(value, "__dict__", {}).items()


def _held_by(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """What a function holds; of torch's own, other functions only."""
    torchs = function.__code__.co_filename.startswith(_TORCH)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if not torchs or isinstance(content, types.FunctionType):
            yield name, content
    if not torchs:
        yield from (("default", each) for each in function.__defaults__ or ())
        yield from (function.__kwdefaults__ or {}).items()
