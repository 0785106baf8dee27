"""WebSocket over mutual TLS 1.3: one port at the server, connections from the sites only.

Whoever waits for events runs the loop that brings them, so that a frame wakes no other thread on
its way. While the server computes, a thread of the hub's own runs it.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from itertools import count
from typing import Any

from websockets.http11 import Response

from sordino.base.errors import StudyError
from sordino.network.transport.base import Event, Mailbox
from sordino.network.transport.connection import CLOSING, OPENING, Connection

STRANGERS = 32
"""Connections at once beyond one for each site."""
ATTEND = 0.05
"""Seconds between two looks of the hub's own thread whether anybody runs the loop."""
_REFUSED = 4403


def _telling(context: ssl.SSLContext, refused: Callable[[str], None]) -> None:
    """Have a context tell of every handshake that fails: without, nobody would hear of strangers
    that TLS refuses.
    """

    class Told(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                refused(f"TLS: {(error.reason or 'failed').replace('_', ' ').lower()}")
                raise

    context.sslobject_class = Told


class WebSocketHub:
    """The server's end.

    Args:
        host, port: where to listen.
        context: mutual TLS.
        limit: bytes of a frame.
        sites: names that may connect.
        mailbox: where events go.
        barred: whether a certificate (by its serial number) is revoked now.
        refused: told of each connection that was refused: who (or where from), and why.
    """

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext,
        limit: int,
        sites: frozenset[str],
        mailbox: Mailbox,
        barred: Callable[[int], bool],
        refused: Callable[[str, str], None],
    ) -> None:
        self._context, self._limit, self._sites, self._mailbox = context, limit, sites, mailbox
        self._barred, self._refused, self._numbers = barred, refused, count(1)
        _telling(context, lambda why: refused("", why))
        self._there: dict[str, Connection] = {}
        self._all: set[Connection] = set()
        self._open = 0
        self._todo: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._loop = asyncio.new_event_loop()
        self._mine = threading.Lock()  # of who runs the loop
        self._runs = 0  # the thread that runs it until an event comes; 0 if none does
        self._attends = False  # whether the hub's own thread runs it
        self._closing, self._ready = threading.Event(), threading.Event()
        self._failed: OSError | None = None
        self.port = port
        self._thread = threading.Thread(
            target=self._attend, args=(host, port), name="sordino hub", daemon=True
        )
        self._thread.start()
        self._ready.wait()
        mailbox.waits, mailbox.pump, mailbox.came = self._give, self._pump, self._came
        if self._failed is not None:
            raise StudyError(
                f"{host}:{port}: the server cannot listen there ({self._failed.strerror}). Is "
                "another one running, or is the port not free?"
            )

    def send(self, site: str, frame: bytes) -> None:
        """See :class:`~sordino.network.transport.base.Hub`."""
        self._todo.append((self._put, (site, frame)))

    def drop(self, site: str, why: str) -> None:
        """See :class:`~sordino.network.transport.base.Hub`."""
        self._todo.append((self._close_one, (site, why)))
        self._give()

    def close(self) -> None:
        """See :class:`~sordino.network.transport.base.Hub`."""
        self._closing.set()
        self._call(self._yield)
        self._thread.join(timeout=10)

    def _give(self) -> None:
        """Do what waits to be done: here if nobody runs the loop, and else there."""
        if not self._todo:
            return
        if not self._mine.acquire(blocking=False):
            self._call(self._do)
            return
        try:
            self._do()
        finally:
            self._mine.release()

    def _do(self) -> None:
        while self._todo:
            what, given = self._todo.popleft()
            what(*given)

    def _call(self, what: Callable[[], None]) -> None:
        """Have the thread that runs the loop do something, now or when one does."""
        if not self._loop.is_closed():
            with suppress(RuntimeError):  # closed meanwhile
                self._loop.call_soon_threadsafe(what)

    def _pump(self, seconds: float | None) -> bool:
        """Run the loop until an event is there, or for so many seconds."""
        if _within_a_loop():
            return False
        if not self._mine.acquire(blocking=False):
            self._call(self._yield)
            self._mine.acquire()
        try:
            return not self._loop.is_closed() and self._until(seconds)
        finally:
            self._mine.release()

    def _until(self, seconds: float | None) -> bool:
        over = threading.Event()

        def late() -> None:
            over.set()
            self._halt()

        timer = None if seconds is None else self._loop.call_later(seconds, late)
        self._runs = threading.get_ident()
        try:
            while self._mailbox.empty() and not over.is_set():
                self._loop.run_forever()
        finally:
            self._runs = 0
            if timer is not None:
                timer.cancel()
        return True

    def _came(self) -> None:
        """An event is there: whoever waits for it stops running the loop."""
        if self._runs == threading.get_ident():
            self._halt()
        elif self._runs:
            self._call(self._halt)

    def _halt(self) -> None:
        if self._runs and self._loop.is_running():
            self._loop.stop()

    def _yield(self) -> None:
        if self._attends:
            self._loop.stop()

    def _put(self, site: str, frame: bytes) -> None:
        if site in self._there:
            self._there[site].put(frame)

    def _close_one(self, site: str, why: str) -> None:
        if site in self._there:
            self._there[site].close(_REFUSED, why)

    def _attend(self, host: str, port: int) -> None:
        """Listen; then run the loop whenever nobody else does, until the hub is closed."""
        try:
            server = self._loop.run_until_complete(self._listen(host, port))
        except OSError as error:
            self._failed = error
            self._loop.close()
            return
        finally:
            self._ready.set()
        while not self._closing.wait(ATTEND):
            if not self._mine.acquire(blocking=False):
                continue
            try:
                self._attends = True
                if not self._closing.is_set():
                    self._loop.run_forever()
            finally:
                self._attends = False
                self._mine.release()
        with self._mine:
            self._loop.run_until_complete(self._farewell(server))
            self._loop.close()

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        server = await self._loop.create_server(
            lambda: Connection(self, self._limit),
            host,
            port,
            ssl=self._context,
            ssl_handshake_timeout=OPENING,
            ssl_shutdown_timeout=CLOSING,
        )
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _farewell(self, server: asyncio.Server) -> None:
        self._do()
        server.close()
        for each in self._there.values():
            each.finish()
        end = self._loop.time() + CLOSING
        while self._there and self._loop.time() < end:
            await asyncio.sleep(0.01)
        for connection in tuple(self._all):
            connection.abort()
        while self._all and self._loop.time() < end + CLOSING:
            await asyncio.sleep(0.01)

    # What a connection asks for: see :class:`~sordino.network.transport.connection.Host`.

    def made(self, connection: Connection) -> None:
        """See :class:`~sordino.network.transport.connection.Host`."""
        self._all.add(connection)

    def admit(self, connection: Connection) -> Response | None:
        """See :class:`~sordino.network.transport.connection.Host`."""
        name = connection.name
        if self._open >= len(self._sites) + STRANGERS:
            self._refused(name, "too many connections at once")
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")
        if name not in self._sites:
            self._refused(name, "its certificate is of no site of this federation")
            return connection.respond(HTTPStatus.FORBIDDEN, "not a site of this federation\n")
        if self._barred(connection.serial):
            self._refuse_revoked(name)
            return connection.respond(HTTPStatus.FORBIDDEN, "this certificate is revoked\n")
        return None

    def _refuse_revoked(self, name: str) -> None:
        why = "its certificate is revoked"
        self._refused(name, why)
        self._mailbox.put(Event("barred", name, 0, why.encode()))

    def opened(self, connection: Connection) -> None:
        """See :class:`~sordino.network.transport.connection.Host`."""
        name, connection.number = connection.name, next(self._numbers)
        if name in self._there:  # a site that came back before its end was noticed
            self._there[name].abort()
        self._there[name], self._open = connection, self._open + 1
        self._mailbox.put(Event("open", name, connection.number))

    def full(self, connection: Connection) -> bool:
        """See :class:`~sordino.network.transport.connection.Host`."""
        return self._mailbox.full(connection.name) and not self._closing.is_set()

    def got(self, connection: Connection, frame: bytes) -> None:
        """See :class:`~sordino.network.transport.connection.Host`."""
        if self._barred(connection.serial):
            connection.revoked = True
            connection.close(_REFUSED, "this certificate is revoked")
            return
        self._mailbox.put(Event("frame", connection.name, connection.number, frame))

    def refused(self, name: str, why: str) -> None:
        """See :class:`~sordino.network.transport.connection.Host`."""
        self._refused(name, why)

    def over(self, connection: Connection) -> None:
        """See :class:`~sordino.network.transport.connection.Host`."""
        name = connection.name
        self._all.discard(connection)
        if not connection.number:
            return
        self._open -= 1
        if self._there.get(name) is connection:
            del self._there[name]
        self._mailbox.put(Event("closed", name, connection.number))
        if connection.revoked:
            self._refuse_revoked(name)


def _within_a_loop() -> bool:
    """Whether this thread runs a loop already, as a notebook's does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
