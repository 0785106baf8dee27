"""How far features are, told to whoever watches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

EVERY = 16
"""Examples between two words."""

Told = Callable[[str, int, int], None]
_told: ContextVar[Told | None] = ContextVar("told", default=None)


@contextlib.contextmanager
def watched(told: Told) -> Iterator[None]:
    """Tell how far features are: what they are of, how many examples are done, and of how many."""
    token = _told.set(told)
    try:
        yield
    finally:
        _told.reset(token)


def tell(name: str, done: int, whole: int) -> None:
    """So many examples of ``name`` are done, out of all."""
    told = _told.get()
    if told is not None and (done % EVERY == 0 or done == whole):
        told(name, done, whole)
