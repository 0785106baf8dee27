"""NVFlare's channels: the server and the sites are job processes of an NVFlare job.

Frames travel as messages between the *cells* of the job's processes, over the connections that
NVFlare has provisioned and certified. NVFlare may deliver the messages of one process in another
order than they were sent, and loses what is on its way when a connection ends. So each connection
of a site has a key of its own and numbers its frames in both directions: they are put in order
again, and a frame that does not come ends the connection. The site then connects anew, and is
asked again.

Who has sent a message is what NVFlare's server has checked against the site's token, which that
server signed when the site had shown its certificate. Whoever runs NVFlare's server is trusted for
identity, and reads what passes.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Literal, Protocol

import msgspec

from sordino.extend.network import Event, FrameQueue, Lost, Mailbox, Stranger

BEAT = 1.0
"""Seconds between two signs of life of a site."""
SILENT = 10.0
"""Seconds without one after which its connection has ended, and that a site waits for a reply."""
AHEAD = 64
"""Frames that may come before one that was sent earlier; with more a connection ends."""
Topic = Literal["open", "beat", "up", "down", "end"]


class Parcel(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The content of a message.

    Attributes:
        key: of the connection, 8 bytes that its site has drawn.
        number: of a frame, from 1, or how many frames were sent.
        body: a frame, or words.
    """

    key: bytes
    number: int = 0
    body: bytes = b""


Got = Callable[[str, Parcel], Parcel | None]
"""Takes the certified name of who has sent a message, and the message; gives the reply to it."""


class Post(Protocol):
    """One process's way to the processes of the same job. Names are those of sites."""

    def on(self, topic: Topic, got: Got) -> None:
        """Have messages of a topic taken, in threads of the library."""

    def tell(self, to: str, topic: Topic, parcel: Parcel) -> None:
        """Put a message on its way."""

    def ask(self, to: str, topic: Topic, parcel: Parcel, seconds: float) -> Parcel | None:
        """Send a message, and wait for the reply; None if none came."""


SERVER = "server"
"""The server's process, for a :class:`Post`."""


class Order:
    """Frames of one direction of a connection, put in order again; not safe between threads."""

    def __init__(self) -> None:
        self._early: dict[int, bytes] = {}
        self.given = 0
        self._told = 0

    def put(self, number: int, body: bytes) -> list[bytes] | None:
        """The frames whose turn it is now; None if too many wait for an earlier one."""
        if number > self.given:
            self._early[number] = body
        found = []
        while (following := self._early.pop(self.given + 1, None)) is not None:
            self.given += 1
            found.append(following)
        return found if len(self._early) <= AHEAD else None

    def lost(self, told: int) -> bool:
        """Return whether a frame was lost: one that had been sent a beat ago is not here yet.

        Args:
            told: how many frames the other side has sent, as it says now.
        """
        missing = self.given < self._told
        self._told = told
        return missing


class _There:
    """A site that is connected, for the hub."""

    def __init__(self, number: int, key: bytes, now: float) -> None:
        self.number, self.key, self.seen = number, key, now
        self.order, self.sent = Order(), 0


class FlareHub:
    """The server's end.

    Args:
        post: of the server's process.
        limit: bytes of a frame.
        sites: names that may connect.
        mailbox: where events go.
        refused: told of what was refused: who, and why.
    """

    def __init__(
        self,
        post: Post,
        limit: int,
        sites: frozenset[str],
        mailbox: Mailbox,
        refused: Callable[[str, str], None],
    ) -> None:
        self._post, self._limit, self._sites = post, limit, sites
        self._mailbox, self._refused = mailbox, refused
        self._numbers, self._lock = count(1), threading.RLock()
        self._there: dict[str, _There] = {}
        self._stop = threading.Event()
        post.on("open", self._open)
        post.on("beat", self._beat)
        post.on("up", self._frame)
        post.on("end", self._end)
        self._thread = threading.Thread(target=self._watch, name="sordino hub", daemon=True)
        self._thread.start()

    @property
    def present(self) -> int:
        """Number of connected sites."""
        return len(self._there)

    def send(self, site: str, frame: bytes) -> None:
        with self._lock:
            own = self._there.get(site)
            if own is not None:
                own.sent += 1
                self._post.tell(site, "down", Parcel(own.key, own.sent, frame))

    def drop(self, site: str, why: str) -> None:
        with self._lock:
            own = self._there.get(site)
            if own is not None:
                self._post.tell(site, "end", Parcel(own.key, own.sent, why.encode()[:200]))
                self._gone(site, own.key)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=SILENT)
        for site in tuple(self._there):
            self.drop(site, "the server has ended")

    def _watch(self) -> None:
        """End connections of sites that give no sign of life."""
        while not self._stop.wait(BEAT):
            with self._lock:
                for site, own in tuple(self._there.items()):
                    if time.monotonic() - own.seen > SILENT:
                        self.drop(site, "no sign of life")

    def _open(self, name: str, parcel: Parcel) -> Parcel | None:
        """A site connects; an earlier connection of it has ended then."""
        if name not in self._sites:
            self._refused(name, "it is no site of this federation")
            return Parcel(parcel.key, 0, b"not a site of this federation")
        with self._lock:
            if self._stop.is_set() or self._mailbox.full(name):
                return None
            self._gone(name, None)
            own = _There(next(self._numbers), parcel.key, time.monotonic())
            self._there[name] = own
            self._mailbox.put(Event("open", name, own.number))
        return Parcel(parcel.key)

    def _beat(self, name: str, parcel: Parcel) -> Parcel | None:
        """A sign of life; the reply says how many frames were sent, and has another key for a
        connection that has ended.
        """
        with self._lock:
            own = self._there.get(name)
            if own is None or own.key != parcel.key:
                return Parcel(b"")
            own.seen = time.monotonic()
            if own.order.lost(parcel.number):
                self._refused(name, "a frame was lost on its way")
                self._gone(name, own.key)
                return Parcel(b"")
            return Parcel(own.key, own.sent)

    def _frame(self, name: str, parcel: Parcel) -> None:
        with self._lock:
            own = self._there.get(name)
            if own is None or own.key != parcel.key:
                self._refused(name, "a frame of a connection that has ended")
            elif not 0 < len(parcel.body) <= self._limit:
                self._refused(name, f"a frame of {len(parcel.body)} bytes")
                self.drop(name, "a frame that is too large, or empty")
            elif self._mailbox.full(name):
                self._refused(name, "it sends more than the server reads")
                self.drop(name, "too many frames")
            elif (frames := own.order.put(parcel.number, parcel.body)) is None:
                self._refused(name, "its frames do not come in order")
                self.drop(name, "frames that do not come in order")
            else:
                own.seen = time.monotonic()
                for each in frames:
                    self._mailbox.put(Event("frame", name, own.number, each))

    def _end(self, name: str, parcel: Parcel) -> None:
        with self._lock:
            self._gone(name, parcel.key)

    def _gone(self, site: str, key: bytes | None) -> None:
        """The connection with this key, or any, has ended."""
        own = self._there.get(site)
        if own is not None and key in (None, own.key):
            del self._there[site]
            self._mailbox.put(Event("closed", site, own.number))


class Quorum:
    """A watch for too few sites over too long a time.

    Args:
        minimum: sites that have to be there.
        seconds: how long there may be fewer.
    """

    def __init__(self, minimum: int, seconds: float) -> None:
        self._minimum, self._seconds = minimum, seconds
        self._since: float | None = None

    def lost(self, hub: FlareHub | None, now: float) -> bool:
        """Return whether it is over now; without a hub nobody is missing yet."""
        if hub is None or hub.present >= self._minimum:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since > self._seconds

    def __str__(self) -> str:
        return f"fewer than {self._minimum} sites were connected for {self._seconds:g} seconds"


class FlareLine:
    """A site's end.

    Args:
        post: of the site's process.
        limit: bytes of a frame.

    Raises:
        Lost: if the server's process is not there now.
        Stranger: if it does not admit this site.
    """

    def __init__(self, post: Post, limit: int) -> None:
        self._post, self._limit = post, limit
        self._key, self._sent, self._why = secrets.token_bytes(8), 0, ""
        self._order, self._lock = Order(), threading.Lock()
        self._came = FrameQueue()
        self._ended = threading.Event()
        post.on("down", self._frame)
        post.on("end", self._end)
        reply = post.ask(SERVER, "open", Parcel(self._key), SILENT)
        if reply is None:
            raise Lost("the server's process of this NVFlare job does not answer")
        if reply.body:
            raise Stranger(
                f"the server does not admit this site: {reply.body[:200].decode(errors='replace')}"
            )
        threading.Thread(target=self._beats, name="sordino beats", daemon=True).start()

    def send(self, frame: bytes) -> None:
        with self._lock:
            if self._ended.is_set():
                raise Lost(self._why)
            self._sent += 1
            number = self._sent
        self._post.tell(SERVER, "up", Parcel(self._key, number, frame))

    def frames(self) -> Iterator[bytes]:
        yield from self._came
        raise Lost(self._why)

    def close(self) -> None:
        if not self._ended.is_set():
            self._post.tell(SERVER, "end", Parcel(self._key))
        self._over("closed")

    def _beats(self) -> None:
        while not self._ended.wait(BEAT):
            reply = self._post.ask(SERVER, "beat", Parcel(self._key, self._sent), SILENT)
            if reply is None:
                self._over("the server's process gives no sign of life")
            elif reply.key != self._key:
                self._over("the server has ended the connection")
            else:
                with self._lock:
                    missing = self._order.lost(reply.number)
                if missing:
                    self._over("a frame was lost on its way")

    def _frame(self, name: str, parcel: Parcel) -> None:
        if parcel.key != self._key or self._ended.is_set():
            return
        if not 0 < len(parcel.body) <= self._limit:
            self._over(f"a frame of {len(parcel.body)} bytes")
            return
        with self._lock:
            found = self._order.put(parcel.number, parcel.body)
            kept = all(self._came.put(each) for each in found or ())
        if found is None or not kept:
            more = "the server sends more than this site reads"
            self._over("frames do not come in order" if found is None else more)

    def _end(self, name: str, parcel: Parcel) -> None:
        """The server ends the connection, after so many frames: those are still read."""
        if parcel.key == self._key:
            self._over(parcel.body.decode(errors="replace") or "the server ended the connection")

    def _over(self, why: str) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._why = why
                self._ended.set()
                self._came.end()
