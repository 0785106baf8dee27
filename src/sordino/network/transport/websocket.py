"""WebSocket over mutual TLS 1.3: one port at the server, connections from the sites only."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from itertools import count
from typing import Any

from websockets.http11 import Response

from sordino.errors import StudyError
from sordino.network.transport.base import Event, Mailbox
from sordino.network.transport.connection import CLOSING, OPENING, Connection

STRANGERS = 32
"""Connections at once beyond one for each site."""
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
    """The server's end, in a thread of its own.

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
        self._woken = False
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready: threading.Event = threading.Event()
        self._failed: OSError | None = None
        self.port = port
        self._thread = threading.Thread(
            target=self._run, args=(host, port), name="sordino hub", daemon=True
        )
        self._thread.start()
        self._ready.wait()
        mailbox.waits = self._wake
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
        self._soon(self._close_one, site, why)

    def close(self) -> None:
        """See :class:`~sordino.network.transport.base.Hub`."""
        self._soon(self._stop.set)
        self._thread.join(timeout=10)

    def _soon(self, what: Callable[..., Any], *given: Any) -> None:
        """Have the loop's thread do something."""
        self._todo.append((what, given))
        self._wake()

    def _wake(self) -> None:
        """Wake the loop's thread, once for all that waits."""
        if self._todo and not self._woken and not self._loop.is_closed():
            self._woken = True
            self._loop.call_soon_threadsafe(self._do)

    def _do(self) -> None:
        self._woken = False  # first: what is added from here on wakes the loop again
        while self._todo:
            what, given = self._todo.popleft()
            what(*given)

    def _put(self, site: str, frame: bytes) -> None:
        if site in self._there:
            self._there[site].put(frame)

    def _close_one(self, site: str, why: str) -> None:
        if site in self._there:
            self._there[site].close(_REFUSED, why)

    def _run(self, host: str, port: int) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve(host, port))
        except OSError as error:
            self._failed = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self, host: str, port: int) -> None:
        server = await self._loop.create_server(
            lambda: Connection(self, self._limit),
            host,
            port,
            ssl=self._context,
            ssl_handshake_timeout=OPENING,
            ssl_shutdown_timeout=CLOSING,
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
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
        return self._mailbox.full(connection.name) and not self._stop.is_set()

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
