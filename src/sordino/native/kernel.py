"""Functions to call from Python: their machine code is found on disk, or made at the first call.

A :class:`Kernel` is compiled for the types that it is called with, as numba would: an array's type
of numbers, dimensions and order, whole numbers, floats, truth values, tuples of whole numbers.
Other arguments, and machines for which nothing is kept, are left to numba.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, overload

import numpy as np

from sordino.native import meaning, notice, processor, store

Kinds = tuple[str, ...]
_LOCK = threading.RLock()
_NUMBERS = frozenset(
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
) | frozenset(("float32", "float64", "bool"))


def _kind(value: Any) -> str | None:
    """The type of an argument, as :mod:`sordino.native.entry` reads it; None for any other."""
    if type(value) is np.ndarray:
        flags = value.flags
        if value.dtype.name not in _NUMBERS or not value.dtype.isnative or not flags.aligned:
            return None
        order = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        return f"{value.dtype.name} {value.ndim} {order} {'w' if flags.writeable else 'r'}"
    if type(value) is tuple:
        whole = value and all(type(each) is int for each in value)
        return f"tuple {len(value)}" if whole else None
    if type(value) in (bool, np.bool_):
        return "bool"
    if type(value) in (int, np.int64):
        return "int64"
    if type(value) in (float, np.float64):
        return "float64"
    return "float32" if type(value) is np.float32 else None


class Tile:
    """What compiled code can call, and Python cannot; made by :func:`emitted`."""

    def __init__(
        self, size: int, body: Callable[..., Any], returns: str, told: Mapping[str, str]
    ) -> None:
        self._size, self._body, self._returns, self._told = size, body, returns, told

    def meaning(self) -> str:
        """A digest of all that its instructions depend on in this program."""
        return self._meaning

    @cached_property
    def _meaning(self) -> str:
        from importlib.util import find_spec

        emitter = find_spec("sordino.native.emit")
        assert emitter is not None
        options = (self._size, self._returns, sorted(self._told.items()))
        sources = [
            meaning.of_source(str(path))
            for path in (emitter.origin, self._body.__code__.co_filename)
        ]
        return meaning.of_function(self._body, (options, sources))

    @cached_property
    def compiled(self) -> Any:
        """What numba calls."""
        from sordino.native.emit import intrinsic_of

        return intrinsic_of(self._size, self._body, self._returns, self._told)

    def __call__(self, *arguments: Any) -> Any:
        """For the eyes of type checkers."""
        raise TypeError("only compiled code can call this")


def emitted(size: int, body: Callable[..., Any], returns: str = "void", **told: str) -> Tile:
    """What compiled code can call with the arguments of ``body(code, x, at, n, ...)``.

    There an array, or a pointer, is a pointer to its numbers, every other argument an
    :class:`~sordino.native.emit.Index` unless its type is told, and ``code`` an
    :class:`~sordino.native.emit.Emitter`. What ``body`` does is written down once, instruction by
    instruction; only loops that it opens with ``code.loop`` are loops of the result.

    Args:
        size: L, numbers in a vector.
        body: what it does; it returns its result, or None.
        returns: the name of numba's type of the result.
        told: those of arguments that are neither buffers nor whole numbers.
    """
    return Tile(size, body, returns, told)


class Kernel:
    """A function that is compiled for the types that it is called with; see the module."""

    def __init__(self, run: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self.run, self.options = run, dict(options)
        self.__doc__, self.__name__ = run.__doc__, run.__name__
        self._entries: list[Callable[..., Any]] = []
        self._made: dict[Kinds, Callable[..., Any] | None] = {}

    def meaning(self) -> str:
        """A digest of all that its machine code depends on in this program.

        Raises:
            Unknown: if that cannot be told.
        """
        return self._meaning

    @cached_property
    def _meaning(self) -> str:
        options = sorted((name, sorted(value) if isinstance(value, set) else value)
                         for name, value in self.options.items())  # fmt: skip
        return meaning.of_function(self.run, options)

    @cached_property
    def compiled(self) -> Any:
        """What numba calls, from compiled code."""
        from sordino.native.build import inside

        return inside(self.run, self.options)

    @cached_property
    def _numba(self) -> Any:
        from sordino.native.build import outside

        notice.compiling()
        return outside(self.run, self.options)

    def __call__(self, *arguments: Any) -> Any:
        """Run it; arguments must be of types for which it can be compiled."""
        for entry in self._entries:
            found = entry(*arguments)
            if found is not NotImplemented:
                return found
        return self._first(arguments)

    def _first(self, arguments: tuple[Any, ...]) -> Any:
        """The first call with arguments of these types."""
        processor.refuse_settings()
        kinds = self._kinds(arguments)
        if kinds is not None:
            with _LOCK:
                if kinds not in self._made:
                    self._made[kinds] = entry = self._entry(kinds)
                    if entry is not None:
                        self._entries.append(entry)
                entry = self._made[kinds]
            if entry is not None:
                found = entry(*arguments)
                if found is not NotImplemented:
                    return found
        return self._numba(*arguments)

    def _kinds(self, arguments: tuple[Any, ...]) -> Kinds | None:
        found = [_kind(each) for each in arguments]
        known = [each for each in found if each is not None]
        return tuple(known) if len(known) == len(found) and processor.keeps() else None

    def _entry(self, kinds: Kinds) -> Callable[..., Any] | None:
        """The machine code for these types; None where it cannot be kept."""
        try:
            own = self.meaning()
        except meaning.Unknown:
            return None
        key = store.key(own, kinds)
        if (found := store.find(key)) is not None:
            return found
        from sordino.native import build

        notice.compiling()
        made = build.image(self, kinds)
        if made is None:
            return None
        store.keep(key, made)
        return store.ready(made)


@overload
def compiled(run: Callable[..., Any], **options: Any) -> Kernel: ...
@overload
def compiled(**options: Any) -> Callable[[Callable[..., Any]], Kernel]: ...
def compiled(
    run: Callable[..., Any] | None = None, **options: Any
) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Compile a function for this processor; see :class:`Kernel`. Also to stand above a function.

    It lets go of the interpreter while it runs.

    Args:
        options: of numba's compiler, such as ``fastmath``.
    """
    if run is None:
        return lambda each: Kernel(each, options)
    return Kernel(run, options)
