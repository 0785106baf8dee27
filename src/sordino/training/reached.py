"""What a module leads to: what its copies could share.

Attributes, items, keys, slots, closures and defaults are followed, and the classes of objects of
one's own; from one's own functions also functions, caches and classes that they find by a global
name, alone or in a table. Of any other object (an iterator, a proxy) all is followed that Python's
collector of garbage sees. Code of Python, torch and numpy is trusted to keep nothing in itself.
Global names of installed packages are not followed.
"""

from __future__ import annotations

import contextvars
import dis
import enum
import functools
import gc
import importlib.util
import logging
import numbers
import os
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque, namedtuple
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_CONSTANT = (
    type(None), numbers.Number, str, bytes, range, re.Pattern, types.CodeType,
    torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype, np.generic, np.ufunc,
    PurePath, type(Ellipsis), types.GenericAlias, types.UnionType, type(np.sum),
    types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType,
    type(vars(namedtuple("_Pair", "one"))["one"]),
)  # fmt: skip
"""What copies may share: nothing can be written to it, unless a class of one's own derives it."""

CARRIERS = (
    tuple, frozenset, functools.cached_property, functools.singledispatchmethod, weakref.ref,
    property, staticmethod, classmethod, types.FunctionType, types.MethodType,
    types.BuiltinFunctionType, types.MappingProxyType, types.DynamicClassAttribute, type, enum.Enum,
    logging.Logger,
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
_APART = (type, types.FunctionType, types.MappingProxyType, *_CLOSED)
_BUILT_IN = (dict, OrderedDict, list, tuple, set, frozenset, deque)
"""What is followed by name alone."""
_LINKS = ("func", "fget", "fset", "fdel", "__func__", "__self__")
_OF_FUNCTIONS = frozenset({
    "__annotations__", "__annotate__", "__builtins__", "__closure__", "__code__", "__defaults__",
    "__globals__", "__kwdefaults__", "__dataclass_fields__", "cell_contents",
})  # fmt: skip
"""What Python keeps in functions and classes, and does not put back."""
_OF_NAMES = frozenset({"__doc__", "__module__", "__name__", "__qualname__"})
_LOOKS_UP = frozenset({"__import__", "eval", "exec", "globals", "import_module"})
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_COLLECTED = 1 << 14
"""The flag of a class whose objects Python's collector of garbage looks into."""

Found = dict[int | tuple[int, str], tuple[str, object]]


def origin(code: object) -> str:
    """Say who wrote a module, or what lies in one: "known", "installed" (a package) or "own".

    Known are Python, torch, numpy and this package.
    """
    name = "__name__" if isinstance(code, types.ModuleType) else "__module__"
    return _origin(str(getattr(code, name, None)).partition(".")[0])


@functools.cache
def _origin(top: str) -> str:
    if top in sys.modules:
        file = getattr(sys.modules[top], "__file__", None) or ""
    else:
        found = importlib.util.find_spec(top) if top else None
        file = (found and found.origin) or ""
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
    return isinstance(value, _CONSTANT) and origin(kind) == "known"


def opaque(kind: type) -> bool:
    """Whether objects may lead to others that nothing in Python shows."""
    own = kind.__basicsize__ > next(
        each.__basicsize__ for each in kind.__mro__ if origin(each) == "known"
    )
    return own and not kind.__flags__ & _COLLECTED


def hidden(function: types.FunctionType) -> str | None:
    """Say where a function writes past its module, or looks for what its code does not show."""
    own = origin(function) == "own"
    for code, steps in _steps(function):
        if own and not _OF_FUNCTIONS.isdisjoint(
            text for text in code.co_consts if isinstance(text, str)
        ):
            return "names what Python keeps in a function"
        before = None
        for i, step in enumerate(steps):
            name, outer = step.argval, step.argval in function.__code__.co_freevars
            written = step.opname in ("STORE_ATTR", "DELETE_ATTR")
            if (
                step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
                or (step.opname in ("STORE_DEREF", "DELETE_DEREF") and outer)
                or (written and name in _OF_FUNCTIONS)
                or (own and written and name in _OF_NAMES)
                or (own and written and isinstance(_value(function, before), types.ModuleType))
            ):
                return f"assigns to {name!r}"
            if not own:
                continue
            if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and name in _OF_FUNCTIONS:
                return f"reads {name!r}"
            if (step.opname in _GLOBAL and name in _LOOKS_UP) or name == "import_module":
                return f"calls {name!r}"
            if step.opname == "IMPORT_NAME":
                relative = bool(steps[i - 2].argval)
                if relative or _origin(str(name).partition(".")[0]) == "own":
                    return f"imports {name!r} in a function, not at the head of the file"
            before = step
    return None


def _steps(
    function: types.FunctionType,
) -> Iterator[tuple[types.CodeType, list[dis.Instruction]]]:
    """The code of a function and of those within it."""
    codes = [function.__code__]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        yield code, [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]


def _value(function: types.FunctionType, step: dis.Instruction | None) -> object:
    """The global value that a step loads."""
    named = step is not None and step.opname in _GLOBAL
    return function.__globals__.get(step.argval) if step is not None and named else None


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
    if kind not in _BUILT_IN and not isinstance(value, _APART):
        seen = (kind, getattr(value, "__dict__", None))
        for each in gc.get_referents(value):
            if all(each is not other for other in seen):
                yield "part", each
    if isinstance(value, Mapping):
        yield from (("key", each) for each in value)
        yield from ((str(key), each) for key, each in value.items())
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        yield "items", value.tolist()
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
        for each in vars(value).get("__dataclass_fields__", {}).values():
            yield from (("factory", each.default_factory), ("metadata", each.metadata))
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
    named: set[str] = set()
    names: set[str] = set()
    whole = False
    for code, steps in _steps(function):
        names.update(code.co_names)
        for step, after in pairwise(steps):
            if step.opname in _GLOBAL:
                named.add(step.argval)
                module = isinstance(_value(function, step), types.ModuleType)
                whole |= module and after.opname not in ("LOAD_ATTR", "LOAD_METHOD")
    spaces = [function.__globals__]
    for space in spaces:
        at_hand = named if space is function.__globals__ else space.keys() if whole else names
        for name in at_hand & space.keys():
            value = space[name]
            if not isinstance(value, types.ModuleType):
                yield from ((name, each) for each in _code_in(value))
            elif origin(value) == "own" and all(vars(value) is not each for each in spaces):
                spaces.append(vars(value))


def _code_in(value: object) -> Iterator[object]:
    """Functions, caches and classes of one's own in what a global name stands for, and memories of
    threads and contexts.
    """
    ahead, seen = [value], set()
    while ahead:
        each: Any = ahead.pop()
        if id(each) in seen or type(each) in (str, int, float, bool, type(None)):
            continue
        seen.add(id(each))
        if isinstance(each, (contextvars.ContextVar, threading.local)):
            yield each
        elif isinstance(each, _NAMED):
            if origin(each) == "own":
                yield each
        elif isinstance(each, Mapping):
            ahead += [*each.keys(), *each.values()]
        elif isinstance(each, (tuple, list, set, frozenset, deque)):
            ahead += each
        elif isinstance(each, functools.partial):
            ahead += [each.func, *each.args, *each.keywords.values()]
        elif isinstance(each, types.MethodType):
            ahead += [each.__func__, each.__self__]
        elif origin(type(each)) == "own":
            yield type(each)
            ahead += getattr(each, "__dict__", {}).values()
