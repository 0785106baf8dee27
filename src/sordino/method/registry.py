"""Methods by name. A new one is a file with one registration: docs/own-method.md shows one.

A study names a registered method, or one in a module of its own as ``package.module:Class``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from pydantic import create_model

from sordino.errors import StudyError
from sordino.method.base import About, SynchronousMethod

M = TypeVar("M", bound=SynchronousMethod)

_KNOWN: dict[str, type[SynchronousMethod]] = {}


def register(kind: type[M]) -> type[M]:
    """Make a method known by the default of its ``name``.

    Raises:
        StudyError: if another method has this name, or it does not say what it is.
    """
    name = kind.model_fields["name"].default
    if not isinstance(name, str) or not isinstance(getattr(kind, "about", None), About):
        raise StudyError(f"{kind.__qualname__}: a method needs a name (name: Literal['mine'] = 'mine') and an about")
    known = _KNOWN.setdefault(name, kind)
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise StudyError(f"{kind.__qualname__}: the method {name!r} is {known.__qualname__} already; choose another name")
    _KNOWN[name] = kind
    return kind


def known() -> Mapping[str, type[SynchronousMethod]]:
    """Every registered method, in the order of registration."""
    return MappingProxyType(_KNOWN)


@functools.cache
def imported(path: str) -> type[SynchronousMethod]:
    """The method at ``package.module:Class``.

    Raises:
        StudyError: if there is none.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise StudyError(f"method.name = {path!r}: {error}. Write it as package.module:Class, importable from here") from error
    if not (isinstance(found, type) and issubclass(found, SynchronousMethod) and isinstance(getattr(found, "about", None), About)):
        raise StudyError(f"method.name = {path!r} is no SynchronousMethod with an about; see docs/own-method.md")
    # Its name in a study is where it is found, so that a saved study finds it again.
    place: Any = Literal[path]
    return create_model(found.__name__, __base__=found, __doc__=found.__doc__, name=(place, path))
