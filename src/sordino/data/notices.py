"""Words to whoever watches while data is read.

A **notice** is for the owner of private rows alone: at the console, never in a file of the run. It
depends on the rows. Nothing that is released, and nothing that stands in a run folder, may hold
one. **Progress** says how many examples have features by now.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Listener = Callable[[str], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def noticed(listener: Listener) -> Iterator[None]:
    """Tell notices to the owner of the data, each once; without a listener nobody is told."""
    said: set[str] = set()

    def once(text: str) -> None:
        if text not in said:
            said.add(text)
            listener(text)

    token = _listener.set(once)
    try:
        yield
    finally:
        _listener.reset(token)


def listening() -> bool:
    """Return whether there is a listener."""
    return _listener.get() is not None


def notice(text: str) -> None:
    """Tell the owner of the data."""
    listener = _listener.get()
    if listener is not None:
        listener(text)


EVERY = 16
"""Examples between two words."""

ProgressListener = Callable[[str, int, int], None]
_told: ContextVar[ProgressListener | None] = ContextVar("told", default=None)


@contextlib.contextmanager
def watched(told: ProgressListener) -> Iterator[None]:
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
