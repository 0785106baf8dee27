"""What a module leads to: what its copies could share.

Attributes, items, slots, closures and defaults are followed, and the classes of objects of one's
own; from one's own functions also functions, caches and classes that they find by a global name.
Code of Python, torch and numpy is trusted to keep nothing in itself. Global names of installed
packages are not followed.
"""

from __future__ import annotations

import dis
import enum
import functools
import logging
import numbers
import os
import re
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_CONSTANT = (
    type(None), numbers.Number, str, bytes, range, re.Pattern, types.CodeType,
    torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype, np.generic, np.ufunc,
    PurePath, type(Ellipsis), types.GenericAlias, types.UnionType,
)  # fmt: skip
"""What copies may share: nothing can be written to it, unless a class of one's own derives it."""

CARRIERS = (
    tuple, frozenset, functools.cached_property, functools.singledispatchmethod, weakref.ref,
    property, staticmethod, classmethod, types.FunctionType, types.MethodType,
    types.BuiltinFunctionType, types.MappingProxyType, type, enum.Enum, logging.Logger,
)  # fmt: skip
"""What copies may share if it leads to nothing else that they share; attributes are put back."""

_NAMED = (type, types.FunctionType, functools._lru_cache_wrapper, types.ModuleType)
"""What is followed by a global name."""
_KNOWN = frozenset({"torch", "numpy", "sordino"})
_TORCH, _STDLIB = str(Path(torch.__file__).parent), str(Path(os.__file__).parent)
UNTOUCHED = frozenset({
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__",
    "__slotnames__", "__abstractmethods__", "_abc_impl", "__dataclass_fields__",
    "__dataclass_params__", "__orig_bases__", "__parameters__", "__type_params__", "_clear_cache",
})  # fmt: skip
"""What Python itself keeps in classes and functions."""
_COPIED = (functools._lru_cache_wrapper, functools.partialmethod)
_CLOSED = (functools.cached_property, functools.singledispatchmethod, logging.Logger)
"""What has locks and tables of its own."""
_LINKS = ("func", "fget", "fset", "fdel", "__func__", "__self__")
_OF_FUNCTIONS = frozenset({"__defaults__", "__kwdefaults__", "__code__", "cell_contents"})

Found = dict[int | tuple[int, str], tuple[str, object]]


def origin(code: object) -> str:
    """Say who wrote a module, or what lies in one: "known", "installed" (a package) or "own".

    Known are Python, torch, numpy and this package.
    """
    name = "__name__" if isinstance(code, types.ModuleType) else "__module__"
    return _origin(str(getattr(code, name, None)).partition(".")[0])


@functools.cache
def _origin(top: str) -> str:
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    if "site-packages" in file or "dist-packages" in file:
        return "known" if top in _KNOWN else "installed"
    python = top in sys.stdlib_module_names and (not file or file.startswith(_STDLIB))
    return "known" if python or top in _KNOWN else "own"


def constant(value: object) -> bool:
    """Whether copies may share it as it is."""
    kind = type(value)
    if kind is tuple:
        return all(map(constant, value))  # type: ignore[call-overload]
    if isinstance(value, types.ModuleType):
        itself = sys.modules.get(value.__name__, value) is value
        return itself and origin(value) != "own"
    if kind is object or kind.__module__ in ("typing", "dataclasses"):  # compared by identity
        return True
    if isinstance(value, (*CARRIERS, *_COPIED)):
        return False
    unchanged = isinstance(value, _CONSTANT) or hasattr(kind, "__get__")
    return unchanged and origin(kind) == "known"


def assigned(function: types.FunctionType) -> str | None:
    """A global name, or one of an enclosing function, that a function assigns to."""
    ahead: list[types.CodeType] = [function.__code__]
    for code in ahead:
        for step in dis.get_instructions(code):
            outer = step.argval in function.__code__.co_freevars
            if (
                step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
                or (step.opname in ("STORE_DEREF", "DELETE_DEREF") and outer)
                or (step.opname == "STORE_ATTR" and step.argval in _OF_FUNCTIONS)
            ):
                return str(step.argval)
        ahead += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return None


def reached(module: nn.Module) -> Found:
    """All that is not constant and that a module leads to, with its place, by identity."""
    found: Found = {}
    ahead: list[tuple[str, object]] = [("the module itself", module)]
    while ahead:
        place, value = ahead.pop()
        if id(value) in found or constant(value):
            continue
        found[id(value)] = place, value
        if (at := _memory(value)) is not None:  # two objects may lie in one place
            found[at] = place, value
        for name, each in _inside(value):
            first = place == "the module itself" or isinstance(each, type)
            ahead.append((name if first else f"{place}.{name}", each))
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
    kind = type(value)
    if isinstance(value, Mapping):
        yield from ((str(key), each) for key, each in value.items())
    elif isinstance(value, (tuple, list, set, frozenset, deque)):
        yield from ((str(i), each) for i, each in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, types.FunctionType):
        yield from _held_by(value)
    elif isinstance(value, weakref.ref):
        yield "referent", value()
    elif isinstance(value, type):
        yield from ((each.__name__, each) for each in value.__mro__ if each is not object)
        if origin(value) == "known":
            return
    elif isinstance(value, CARRIERS):
        yield from ((name.strip("_"), getattr(value, name, None)) for name in _LINKS)
    if isinstance(value, _CLOSED):
        return
    if isinstance(value, nn.Module) or origin(kind) != "known":
        yield kind.__name__, kind
    for each in kind.__mro__:
        slots = vars(each).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if hasattr(value, name):
                yield name, getattr(value, name)
    if kind.__dictoffset__:
        yield from ((name, each) for name, each in vars(value).items() if name not in UNTOUCHED)


def _held_by(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """What a function holds or names; of Python's and torch's own, other functions only."""
    file = function.__code__.co_filename
    installed = "site-packages" in file or "dist-packages" in file
    known = file.startswith(_TORCH) or (file.startswith(_STDLIB) and not installed)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if not known or isinstance(content, types.FunctionType):
            yield name, content
    if not known:
        yield from (("default", each) for each in function.__defaults__ or ())
        yield from (function.__kwdefaults__ or {}).items()
    if not known and not installed:
        yield from _found_by(function)


def _found_by(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Functions, caches and classes of one's own that a function finds by a global name."""
    codes, steps = [function.__code__], list(dis.get_instructions(function.__code__))
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        steps += dis.get_instructions(code)
    named = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    names, spaces = {name for code in codes for name in code.co_names}, [function.__globals__]
    for space in spaces:
        for name in (named if space is function.__globals__ else names) & space.keys():
            value = space[name]
            if not isinstance(value, _NAMED) or origin(value) != "own":
                continue
            if not isinstance(value, types.ModuleType):
                yield name, value
            elif all(vars(value) is not each for each in spaces):
                spaces.append(vars(value))
