"""What is said of private rows to their owner alone: at the console, never in a file of the run.

A notice depends on the rows. Nothing that is released, and nothing that stands in a run folder, may
hold one.
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
    """Whether anybody would be told."""
    return _listener.get() is not None


def notice(text: str) -> None:
    """Tell the owner of the data."""
    listener = _listener.get()
    if listener is not None:
        listener(text)
