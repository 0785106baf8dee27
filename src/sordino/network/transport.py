"""Transports: how the frames of a federation travel between its server and its sites.

A transport has two ends. The server's, a :class:`Hub`, puts what happens into a :class:`Mailbox`;
a site's is a :class:`Line`. Both say who the other side is by its certificate, or the transport is
none. WebSocket comes with this package; packages beside it add others, each as a
:class:`Transport` that an entry point of the group ``sordino.transports`` names as an agreement
does (``transport = "mqtt"``).
"""

from __future__ import annotations

import importlib
import queue
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from sordino.base import companions
from sordino.base.errors import StudyError, printable
from sordino.core.network import Agreement
from sordino.network import certificates

if TYPE_CHECKING:
    from sordino.network.demo import DemoFederation

IS_REVOKED = "its certificate is revoked"
AT_ONCE = 8
"""Frames of one site that wait for the server; with more the site is not read."""
WAITING, OBJECT = 1 << 24, 100
"""Bytes of frames that wait for a site, beyond AT_ONCE of them: one that comes back is told of each
round that it has missed. And what Python needs for one of them.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a transport tells the server.

    Attributes:
        kind: a site has connected, a frame has come, or a connection has ended; or who has the
            site's name was not admitted, because the certificate is revoked.
        site: its name, from its certificate.
        connection: number of the connection: of two with one name, the later one counts.
        frame: bytes of the frame; of who has connected or was not admitted, the serial number of
            the certificate, where the transport knows it; empty otherwise.
    """

    kind: Literal["open", "frame", "closed", "barred"]
    site: str
    connection: int
    frame: bytes = b""


class Mailbox:
    """Events for the server, in the order in which they came; safe between threads."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._waiting: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        """Have the server stop, as an interruption of its thread would."""
        self._stopped = True
        self._queue.put(Event("closed", "", 0))

    def put(self, event: Event) -> None:
        """For the transport."""
        with self._lock:
            self._waiting[event.site] += 1
        self._queue.put(event)

    def full(self, site: str) -> bool:
        """Return whether the transport is to stop reading a site for a moment."""
        return self._waiting[site] >= AT_ONCE

    def get(self, seconds: float | None) -> Event | None:
        """The next event; None if none came in time.

        Raises:
            KeyboardInterrupt: once it was stopped.
        """
        try:
            found = self._queue.get(timeout=None if seconds is None else max(seconds, 0.0))
        except queue.Empty:
            found = None
        if self._stopped:
            raise KeyboardInterrupt
        if found is None:
            return None
        with self._lock:
            self._waiting[found.site] -= 1
        return found


class FrameQueue:
    """Frames that wait for a site, which a transport does not stop reading; safe between two
    threads, one of which puts and one takes.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._put = self._taken = 0  # bytes, each counted by one thread alone

    def put(self, frame: bytes) -> bool:
        """Keep a frame, unless AT_ONCE wait, and more bytes than WAITING with it."""
        size = len(frame) + OBJECT
        if self._queue.qsize() >= AT_ONCE and self._put - self._taken + size > WAITING:
            return False
        self._put += size
        self._queue.put(frame)
        return True

    def end(self) -> None:
        """No more frames come."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[bytes]:
        while (frame := self._queue.get()) is not None:
            self._taken += len(frame) + OBJECT
            yield frame


class Hub(Protocol):
    """The server's end."""

    def send(self, site: str, frame: bytes) -> None:
        """Put a frame on its way, if the site is there; never waits."""

    def drop(self, site: str, why: str) -> None:
        """End a site's connection."""

    def close(self) -> None:
        """End all connections; what was put on its way before is still sent, if that is quick."""


class Line(Protocol):
    """A site's end: one connection to the server."""

    def send(self, frame: bytes) -> None:
        """Send a frame.

        Raises:
            Lost: if the connection has ended.
        """

    def frames(self) -> Iterator[bytes]:
        """Frames as they come, until the connection ends.

        Raises:
            Lost: when it ends.
        """

    def close(self) -> None:
        """End it."""


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


OpensHub = Callable[[int, Mailbox, Callable[[str, str], None], Callable[[str], None]], Hub]
"""Opens the server's end: for frames of so many bytes; told of refusals, and in words."""
Connects = Callable[[int], Line]
"""Opens a site's connection, for frames of at most so many bytes."""
EXTRAS = {"websocket": "network", "mqtt": "edge"}
"""Return the command that installs a transport: ``pip install 'sordino[EXTRA]'``."""


class Transport(ABC):
    """A way in which frames travel.

    Attributes:
        brokered: whether everybody is a client of a broker: it has a kit of its own and refuses
            revoked certificates, and the server listens nowhere.
    """

    brokered: ClassVar[bool] = False

    @abstractmethod
    def server(self, agreement: Agreement, kit: Path, host: str) -> OpensHub:
        """Return how a server opens its end.

        Args:
            kit: its folder.
            host: address to listen on, where it listens itself.

        Raises:
            StudyError: if the kit does not fit.
        """

    def servers(
        self, studies: Mapping[Path, Agreement], host: str, address: str | None
    ) -> dict[Path, OpensHub]:
        """Return how the servers of several studies open their ends, by their kits.

        Args:
            address: where all of them are, if not where it was agreed.

        Raises:
            StudyError: if the kits do not fit, each by itself or each other.
        """
        return {kit: self.server(each.at(address), kit, host) for kit, each in studies.items()}

    @abstractmethod
    def site(self, agreement: Agreement, index: int, kit: Path) -> Connects:
        """Return how a site connects.

        Raises:
            StudyError: if the kit does not fit.
        """

    def trusted(self, server: str) -> str:
        """Return to whom what a site sends goes, and whom it has to trust, for people.

        Args:
            server: host and port that were agreed.
        """
        return f"the server at {server}, which the federation's authority certified."

    def broker_files(self, agreement: Agreement, limit: int) -> Mapping[str, bytes]:
        """Return the settings in the broker's kit, for frames of at most so many bytes."""
        return {}

    def play(
        self, federation: DemoFederation, tell: Callable[[str], None], *, scripted: bool
    ) -> int:
        """Run a federation on this machine to its end; return how many processes failed."""
        from sordino.network import demo

        return demo.play(federation, tell, scripted=scripted)


class WebSocket(Transport):
    """WebSocket over mutual TLS 1.3: sites connect to the server's own port."""

    def server(self, agreement: Agreement, kit: Path, host: str) -> OpensHub:
        return self.servers({kit: agreement}, host, None)[kit]

    def servers(
        self, studies: Mapping[Path, Agreement], host: str, address: str | None
    ) -> dict[Path, OpensHub]:
        numbers = sorted({each.at(address).port for each in studies.values()})
        named = {each.name: (kit, each.host) for kit, each in studies.items()}
        if len(numbers) > 1 or len(named) < len(studies):
            raise StudyError(
                f"several kits: the port tells their studies apart by name ({', '.join(named)}), "
                f"and there is one for all; agreed on: {', '.join(map(str, numbers))}. Give "
                "--address HOST:PORT, or start a process for each study"
            )
        websocket = _websocket()
        port = websocket.Port(host, numbers[0], named)

        def opens(kit: Path, agreement: Agreement) -> OpensHub:
            return lambda limit, mailbox, refused, told: websocket.WebSocketHub(
                port, agreement.name, limit, frozenset(agreement.names), mailbox, kit, refused
            )

        return {kit: opens(kit, agreement) for kit, agreement in studies.items()}

    def site(self, agreement: Agreement, index: int, kit: Path) -> Connects:
        websocket, tls = _websocket(), partial(certificates.context, kit, "site")
        tls()  # refuses a kit that cannot be used
        last: Line | None = None  # it may have left the beginning of a frame

        def connects(limit: int) -> Line:
            nonlocal last
            last = websocket.WebSocketLine(agreement.server, tls(), limit, agreement.name, last)
            return last

        return connects


def _websocket() -> ModuleType:
    try:
        return importlib.import_module("sordino.network.websocket")
    except ModuleNotFoundError as error:
        raise _missing("websocket", error) from error


def of(name: str) -> Transport:
    """Return the transport that an agreement names. Another one is imported where it is used
    alone: a device that speaks MQTT needs no WebSocket library.

    Raises:
        StudyError: if it is not installed, with what to install.
    """
    if name == "websocket":
        return WebSocket()
    if name == "nvflare":  # kits of versions before
        raise StudyError(
            "transport = 'nvflare': NVFlare carries WebSocket now, and reads nothing of it. Take "
            "this key out of the federation's file, provision again, and give everybody the new "
            "kits; `sordino network nvflare-demo` tries it: docs/nvflare.md"
        )
    found = {each.name: each for each in companions("sordino.transports")}
    if name not in found:
        known = ", ".join(sorted({"websocket", *found}))
        extra = f": pip install 'sordino[{EXTRAS[name]}]'" if name in EXTRAS else ""
        raise StudyError(
            f"transport = {name!r}: the package that speaks it is not installed{extra}. Installed "
            f"here: {known}"
        )
    try:
        made = found[name].load()
    except ModuleNotFoundError as error:
        raise _missing(name, error) from error
    if not isinstance(made, Transport):
        raise StudyError(f"transport = {name!r}: {found[name].value} is no Transport")
    return made


def _missing(name: str, error: ModuleNotFoundError) -> StudyError:
    extra = f": pip install 'sordino[{EXTRAS[name]}]'" if name in EXTRAS else ""
    return StudyError(
        f"transport = {name!r} needs the library {error.name}, which is not installed{extra}"
    )
