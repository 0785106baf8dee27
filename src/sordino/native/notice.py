"""Who wants to know that a compiler is at work: it takes seconds, once on a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_told: list[Callable[[], None]] = []


@contextmanager
def watched(told: Callable[[], None]) -> Iterator[None]:
    """Call ``told`` before the first function is compiled, and not again."""
    _told.append(told)
    try:
        yield
    finally:
        if told in _told:
            _told.remove(told)


def compiling() -> None:
    """Say that a function will be compiled now."""
    while _told:
        _told.pop()()
