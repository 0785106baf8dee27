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

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from sordino.errors import StudyError
from sordino.network.transport.base import Event, Mailbox

BEAT = 5.0
"""Seconds between two pings; twice as long without an answer ends a connection."""
OPENING = 5.0
QUEUED = 64
"""Frames that wait for a site; with more it reads too slowly, and is cut off."""
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
        self._there: dict[str, tuple[int, asyncio.Queue[bytes | None], ServerConnection]] = {}
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
        if site not in self._there:
            return
        _, queue, connection = self._there[site]
        if queue.qsize() >= QUEUED:
            self._refused(site, "it reads too slowly")
            connection.transport.abort()
            return
        queue.put_nowait(frame)

    def _close_one(self, site: str, why: str) -> None:
        if site in self._there:
            self._later(self._there[site][2].close(_REFUSED, why[:100]))

    def _later(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run(self, host: str, port: int) -> None:
        asyncio.set_event_loop(self._loop)
        self._tasks: set[asyncio.Task[Any]] = set()
        try:
            self._loop.run_until_complete(self._serve(host, port))
        except OSError as error:
            self._failed = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self, host: str, port: int) -> None:
        server: Server
        async with serve(
            self._talk,
            host,
            port,
            ssl=self._context,
            max_size=self._limit,
            max_queue=2,
            compression=None,
            open_timeout=OPENING,
            close_timeout=2.0,
            ping_interval=BEAT,
            ping_timeout=2 * BEAT,
            process_request=self._admit,
            server_header=None,
            ssl_handshake_timeout=OPENING,
        ) as server:
            self.port = next(iter(server.sockets)).getsockname()[1]
            self._ready.set()
            await self._stop.wait()
            for _, queue, _ in self._there.values():
                queue.put_nowait(None)
            await asyncio.sleep(0.2)

    def _admit(self, connection: ServerConnection, request: Any) -> Any:
        name, serial = _who(connection)
        if self._open >= len(self._sites) + STRANGERS:
            self._refused(name, "too many connections at once")
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")
        if name not in self._sites:
            self._refused(name, "its certificate is of no site of this federation")
            return connection.respond(HTTPStatus.FORBIDDEN, "not a site of this federation\n")
        if self._barred(serial):
            self._refuse_revoked(name)
            return connection.respond(HTTPStatus.FORBIDDEN, "this certificate is revoked\n")
        return None

    def _refuse_revoked(self, name: str) -> None:
        why = "its certificate is revoked"
        self._refused(name, why)
        self._mailbox.put(Event("barred", name, 0, why.encode()))

    async def _talk(self, connection: ServerConnection) -> None:
        name, serial = _who(connection)
        revoked = False
        number, queue = next(self._numbers), asyncio.Queue[bytes | None]()
        if name in self._there:  # a site that came back before its end was noticed
            self._there[name][2].transport.abort()
        self._there[name], self._open = (number, queue, connection), self._open + 1
        writer = self._loop.create_task(_write(connection, queue))
        self._mailbox.put(Event("open", name, number))
        try:
            async for frame in connection:
                if revoked := self._barred(serial):
                    await connection.close(_REFUSED, "this certificate is revoked")
                    break
                while self._mailbox.full(name) and not self._stop.is_set():
                    await asyncio.sleep(0.001)
                body = frame if isinstance(frame, bytes) else b""
                self._mailbox.put(Event("frame", name, number, body))
        except ConnectionClosed as end:
            if end.sent is not None and end.sent.code == CloseCode.MESSAGE_TOO_BIG:
                self._refused(name, f"a frame of more than {self._limit} bytes")
        finally:
            writer.cancel()
            self._open -= 1
            if self._there.get(name, (0,))[0] == number:
                del self._there[name]
            self._mailbox.put(Event("closed", name, number))
            if revoked:
                self._refuse_revoked(name)


async def _write(connection: ServerConnection, queue: asyncio.Queue[bytes | None]) -> None:
    try:
        while (frame := await queue.get()) is not None:
            await connection.send(frame)
        await connection.close()
    except ConnectionClosed:
        pass


def _who(connection: ServerConnection) -> tuple[str, int]:
    """Common name and serial number of the certificate that TLS has verified."""
    found = connection.transport.get_extra_info("peercert") or {}
    names = [
        value for part in found.get("subject", ()) for key, value in part if key == "commonName"
    ]
    return (names[0] if len(names) == 1 else ""), int(found.get("serialNumber", "0"), 16)
