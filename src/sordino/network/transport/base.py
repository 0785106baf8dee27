"""What a transport is to the server and to a site."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from sordino.base.errors import printable

AT_ONCE = 8
"""Frames of one site that wait for the server; with more the site is not read."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a transport tells the server.

    Attributes:
        kind: a site has connected, a frame has come, or a connection has ended; or who has the
            site's name was not admitted, because the certificate is revoked.
        site: its name, from its certificate.
        connection: number of the connection: of two with one name, the later one counts.
        frame: bytes of the frame, or the reason (UTF-8); empty otherwise.
    """

    kind: Literal["open", "frame", "closed", "barred"]
    site: str
    connection: int
    frame: bytes = b""


class Mailbox:
    """Events for the server, in the order in which they came; safe between threads.

    Attributes:
        waits: called before the server waits for an event: what it has put on its way goes then.
        pump: called where no event is there, with the seconds to wait: it does what brings events,
            in the server's own thread, until one is there or the time is over. It answers whether
            it could. Without one, events come from other threads.
        came: called after each event.
    """

    def __init__(self) -> None:
        self.waits: Callable[[], None] = lambda: None
        self.pump: Callable[[float | None], bool] = lambda seconds: False
        self.came: Callable[[], None] = lambda: None
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._waiting: Counter[str] = Counter()
        self._lock = threading.Lock()

    def put(self, event: Event) -> None:
        """For the transport."""
        with self._lock:
            self._waiting[event.site] += 1
        self._queue.put(event)
        self.came()

    def full(self, site: str) -> bool:
        """Whether the transport is to stop reading a site for a moment."""
        return self._waiting[site] >= AT_ONCE

    def empty(self) -> bool:
        """Whether no event is there."""
        return self._queue.empty()

    def get(self, seconds: float | None) -> Event | None:
        """The next event; None if none came in time."""
        self.waits()
        left = None if seconds is None else max(seconds, 0.0)
        if self.empty() and self.pump(left):
            left = 0.0
        try:
            found = self._queue.get(timeout=left)
        except queue.Empty:
            return None
        with self._lock:
            self._waiting[found.site] -= 1
        return found


class Hub(Protocol):
    """The server's end."""

    def send(self, site: str, frame: bytes) -> None:
        """Put a frame on its way, if the site is there; never waits. It goes when the server waits
        for an event at the latest, so that a thread is woken once for the frames of several sites.
        """
        ...

    def drop(self, site: str, why: str) -> None:
        """End a site's connection."""
        ...

    def close(self) -> None:
        """End all connections; what was put on its way before is still sent, if that is quick."""
        ...


class Line(Protocol):
    """A site's end: one connection to the server."""

    def send(self, frame: bytes) -> None:
        """Send a frame.

        Raises:
            Lost: if the connection has ended.
        """
        ...

    def frames(self) -> Iterator[bytes]:
        """Frames as they come, until the connection ends.

        Raises:
            Lost: when it ends.
        """
        ...

    def close(self) -> None:
        """End it."""
        ...


class _Unconnected(Exception):
    """Says why, in words of which the other side or a broker may have chosen a part."""

    def __init__(self, why: str) -> None:
        super().__init__(printable(why))


class Lost(_Unconnected):
    """A connection that could not be made or has ended, and why."""


class Stranger(_Unconnected):
    """The other side is not who it should be, or does not want to talk to us; trying again does not
    help.
    """
