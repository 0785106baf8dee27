"""What the machine code of a function depends on, as a digest.

That is the function's bytecode and constants, and whatever it names: numbers, other functions,
modules. A function is digested by its bytecode, not by its text, so that a comment changes nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import types
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


class Unknown(TypeError):
    """A value of which it cannot be told what it does to machine code."""


@cache
def of_source(path: str) -> str:
    """A digest of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def of_function(run: Any, options: object = ()) -> str:
    """A digest of all that a compiled function depends on in this program.

    Raises:
        Unknown: if it names something whose meaning is not known, as an address in memory.
    """
    lines: list[str] = [repr(options)]
    _function(run, lines, set())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _function(run: Any, lines: list[str], seen: set[int]) -> None:
    if id(run) in seen:
        lines.append("again")
        return
    seen.add(id(run))
    code = run.__code__
    lines.append(f"function {_plain(run.__defaults__)} {_plain(run.__kwdefaults__ or ())}")
    names = _code(code, lines)
    for name, cell in zip(code.co_freevars, run.__closure__ or (), strict=True):
        lines.append(f"free {name}")
        _value(cell.cell_contents, lines, seen)
    for name in sorted(names & run.__globals__.keys()):
        lines.append(f"global {name}")
        _value(run.__globals__[name], lines, seen)


def _code(code: types.CodeType, lines: list[str]) -> set[str]:
    """Describe bytecode; all names in it."""
    lines.append(f"{code.co_code.hex()} {code.co_argcount} {code.co_kwonlyargcount}")
    lines.append(f"{code.co_names} {code.co_varnames} {code.co_freevars} {code.co_cellvars}")
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _code(constant, lines)
        else:
            lines.append(_plain(constant))
    return names


def _value(value: Any, lines: list[str], seen: set[int]) -> None:
    if hasattr(value, "meaning"):  # what is compiled, or emitted, by itself
        lines.append(value.meaning())
    elif isinstance(value, types.FunctionType) and not _library(value.__module__):
        _function(value, lines, seen)
    elif isinstance(value, types.ModuleType):
        file = value.__file__
        lines.append(f"module {value.__name__}")
        if not _library(value.__name__):
            lines.append(of_source(str(file)))
    elif isinstance(value, type):
        lines.append(f"class {value.__module__}.{value.__qualname__}")
        if not _library(value.__module__):
            raise Unknown(f"the class {value.__qualname__}")
    elif isinstance(value, types.FunctionType | types.BuiltinFunctionType):
        lines.append(f"function {value.__module__}.{value.__qualname__}")
    else:
        lines.append(_plain(value))


def _plain(value: Any) -> str:
    """A value that is only data; floats by their bits.

    Raises:
        Unknown: if it is not.
    """
    if value is None or isinstance(value, bool | int | str | bytes) or value is Ellipsis:
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, float):
        return f"float {struct.pack('<d', value).hex()}"
    if isinstance(value, np.generic):
        return f"{value.dtype.str} {value.tobytes().hex()}"
    if isinstance(value, tuple | list):
        return f"({', '.join(_plain(each) for each in value)})"
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(_plain(each) for each in value))}}}"
    if isinstance(value, dict):
        return _plain(sorted(value.items()))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return f"{type(value).__qualname__} {_plain(fields)}"
    raise Unknown(f"{type(value).__qualname__} {value!r:.80}")


def _library(module: str | None) -> bool:
    """Whether the version of a library, which is told apart, says what its names mean."""
    return module is not None and module.partition(".")[0] in ("builtins", "math", "numpy")
