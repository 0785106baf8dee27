"""A network in memory, for tests: the server and its sites are threads of one process."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count

from sordino.network import frames
from sordino.network.frames import FromServer
from sordino.network.transport import Event, Lost, Mailbox


class Killed(BaseException):
    """What a kill is within a process: nothing that catches errors catches it."""


class Stopped(BaseException):
    """The end of a party that is not to begin again."""


Frame = tuple[str, bytes]


class MemoryLine:
    """A site's end of a connection in memory."""

    def __init__(self, net: Net, name: str, limit: int) -> None:
        self._net, self._name, self.limit, self.number = net, name, limit, next(net.numbers)
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.open = True
        net.connect(name, self)

    def send(self, frame: bytes) -> None:
        """As a transport does: the server's mailbox may be full for a moment."""
        self._net.to_server(self._name, self, frame)

    def put(self, frame: bytes | None) -> None:
        """For the hub; None ends the connection."""
        self.open = self.open and frame is not None
        self._waiting.put(frame)

    def frames(self) -> Iterator[bytes]:
        """Until the connection ends."""
        while (frame := self._waiting.get()) is not None:
            yield frame
        raise Lost("the connection has ended")

    def get(self, seconds: float = 5.0) -> FromServer | None:
        """The next frame; None once the connection has ended."""
        found = self._waiting.get(timeout=seconds)
        return None if found is None else frames.to_site(found)

    def close(self) -> None:
        """End it."""
        self._net.disconnect(self._name, self)


class Net:
    """A network in memory: what the server and its sites share.

    Attributes:
        said: what sites sent, with their names; what a capture of all messages would show.
        told: what the server sent.
        refused: what the server said that it refused.
    """

    def __init__(self) -> None:
        self.numbers, self._lock = count(1), threading.RLock()
        self._mailbox: Mailbox | None = None
        self._limit = 0
        self.stranger: Callable[[str, str], object] = lambda who, why: None
        self._lines: dict[str, MemoryLine] = {}
        self.said: list[Frame] = []
        self.told: list[Frame] = []
        self.refused: list[tuple[str, str]] = []
        self.stopped: set[str] = set()
        self.over = False

    def opens(self, limit: int, mailbox: Mailbox) -> Net:
        """See :data:`sordino.network.transport.OpensHub`; the network is its own hub."""
        with self._lock:
            self._mailbox, self._limit = mailbox, limit
        return self

    @property
    def listens(self) -> bool:
        """Whether a server is there."""
        return self._mailbox is not None

    def end(self) -> None:
        """End whoever sends, connects or waits."""
        self.over = True
        for name in list(self._lines):
            self.drop(name, "")
        if (mailbox := self._mailbox) is not None:
            mailbox.get = self._stop  # type: ignore[method-assign]
            mailbox.put(Event("open", next(iter(self._lines), "site-0"), next(self.numbers)))

    def _stop(self, seconds: float | None) -> Event | None:
        raise Stopped

    @property
    def mailbox_empty(self) -> bool:
        """Whether the server has taken everything that was sent."""
        return self._mailbox is not None and not any(self._mailbox._waiting.values())

    def connects(self, name: str) -> Callable[[int], MemoryLine]:
        """What opens a connection of a site."""
        return lambda limit: MemoryLine(self, name, limit)

    def connect(self, name: str, line: MemoryLine) -> None:
        """A connection has come; an older one of the same name is ended."""
        with self._lock:
            if self.over or name in self.stopped:
                raise Stopped
            if self._mailbox is None:
                raise Lost("nobody listens")
            if (before := self._lines.get(name)) is not None:
                before.put(None)
            self._lines[name] = line
            self._mailbox.put(Event("open", name, line.number))

    def to_server(self, name: str, line: MemoryLine, frame: bytes) -> None:
        """A frame of a site; one that is too large ends the connection."""
        while True:
            with self._lock:
                if self._lines.get(name) is not line or not line.open or self._mailbox is None:
                    raise Lost("the connection has ended")
                if len(frame) > self._limit:
                    break
                if not self._mailbox.full(name):
                    self.said.append((name, frame))
                    self._mailbox.put(Event("frame", name, line.number, frame))
                    return
            time.sleep(0.0005)
        self.stranger(name, f"a frame of more than {self._limit} bytes")
        self.disconnect(name, line)

    def disconnect(self, name: str, line: MemoryLine) -> None:
        """A connection has ended."""
        with self._lock:
            if self._lines.get(name) is line:
                del self._lines[name]
                if self._mailbox is not None:
                    self._mailbox.put(Event("closed", name, line.number))
        line.put(None)

    def send(self, site: str, frame: bytes) -> None:
        """See :class:`~sordino.network.transport.Hub`."""
        with self._lock:
            if (line := self._lines.get(site)) is not None:
                self.told.append((site, frame))
                line.put(frame)

    def drop(self, site: str, why: str) -> None:
        """See :class:`~sordino.network.transport.Hub`."""
        with self._lock:
            line = self._lines.get(site)
        if line is not None:
            self.disconnect(site, line)

    def close(self) -> None:
        """See :class:`~sordino.network.transport.Hub`."""
        with self._lock:
            self._mailbox, lines, self._lines = None, list(self._lines.values()), {}
        for line in lines:
            line.put(None)
