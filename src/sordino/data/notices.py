"""Words to whoever watches while data is read.

A **notice** is for the owner of private rows alone: at the console, never in a file of the run. It
depends on the rows. Nothing that is released, and nothing that stands in a run folder, may hold
one. **Progress** says how many examples have features by now.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Listener = Callable[[str], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def noticed(listener: Listener) -> Iterator[None]:
    """Tell notices to the owner of the data, each once; without a listener nobody is told."""
    before: set[str] = set()

    def once(text: str) -> None:
        if text not in before:
            before.add(text)
            listener(text)

    with _told_to(_listener, once):
        yield


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
_progress: ContextVar[ProgressListener | None] = ContextVar("progress", default=None)


@contextlib.contextmanager
def watched(listener: ProgressListener) -> Iterator[None]:
    """Tell how far features are: what they are of, how many examples are done, and of how many."""
    with _told_to(_progress, listener):
        yield


@contextlib.contextmanager
def _told_to(place: ContextVar[T | None], listener: T) -> Iterator[None]:
    token = place.set(listener)
    try:
        yield
    finally:
        place.reset(token)


def tell(name: str, done: int, count: int) -> None:
    """So many examples of ``name`` are done, out of ``count``."""
    listener = _progress.get()
    if listener is not None and (done % EVERY == 0 or done == count):
        listener(name, done, count)
