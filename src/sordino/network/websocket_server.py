"""The server's end of WebSocket over mutual TLS 1.3: one port, connections from the sites only.

Whoever waits for events runs the loop that brings them, so that a frame wakes no other thread on
its way: it goes straight from the socket to the mailbox, and straight from the hub to the socket.
While the server computes, a thread of the hub's own runs the loop.
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

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from sordino.base.errors import StudyError
from sordino.network.transport import Event, Mailbox

BEAT = 5.0
"""Seconds of silence before a ping; twice as long without an answer ends a connection."""
OPENING = 5.0
CLOSING = 2.0
QUEUED = 64
"""Frames that wait for a site; with more it reads too slowly, and is cut off."""
HELD = 0.001
"""Seconds between two looks whether the server can take the next frame."""
WRITING = 1 << 15
"""Bytes on their way in this process, beyond which frames wait."""
ANSWERS = 1 << 20
"""Bytes beyond one frame that wait for a site to read them; with more, it is cut off."""
STRANGERS = 32
"""Connections at once beyond one for each site."""
ATTEND = 0.05
"""Seconds between two looks of the hub's own thread whether anybody runs the loop."""
_REFUSED = 4403


class Connection(asyncio.Protocol):
    """One connection.

    Args:
        host: the hub that listens.
        limit: bytes of a frame.

    Attributes:
        name, serial: common name and serial number of the certificate that TLS has verified.
        number: of the connection; 0 until it is open.
        revoked: whether it is ended because the certificate is revoked.
    """

    def __init__(self, host: WebSocketHub, limit: int) -> None:
        self._host, self._limit = host, limit
        self._protocol = ServerProtocol(max_size=limit)
        self._loop = asyncio.get_running_loop()
        self._events: deque[Any] = deque()
        self._parts: list[bytes] = []
        self._waiting: deque[bytes] = deque()
        self._text = self._held = self._slow = self._lost = self._told = self._ending = False
        self._seen = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.name, self.serial, self.number, self.revoked = "", 0, 0, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(WRITING)
        self.name, self.serial = _who(transport)
        self._timer = self._loop.call_later(OPENING, self.abort)
        self._host.made(self)

    def data_received(self, data: bytes) -> None:
        self._seen = self._loop.time()
        self._protocol.receive_data(data)
        self._events += self._protocol.events_received()
        self._work()

    def connection_lost(self, error: Exception | None) -> None:
        """Keep what has come before."""
        self._lost = True
        if self._timer is not None:
            self._timer.cancel()
        self._work()

    def pause_writing(self) -> None:
        self._slow = True

    def resume_writing(self) -> None:
        self._slow = False
        while self._waiting and not self._slow:
            self._write(self._waiting.popleft())
        if self._ending and not self._waiting:
            self.close(CloseCode.NORMAL_CLOSURE, "")

    def respond(self, status: HTTPStatus, text: str) -> Response:
        """An answer that opens no WebSocket."""
        return self._protocol.reject(status, text)

    def put(self, frame: bytes) -> None:
        """Send a frame, once those before it have gone."""
        if not self._slow:
            self._write(frame)
        elif len(self._waiting) < QUEUED:
            self._waiting.append(frame)
        else:
            self._host.refused(self.name, "it reads too slowly")
            self.abort()

    def finish(self) -> None:
        """End when everything is sent."""
        self._ending = True
        if not self._waiting:
            self.close(CloseCode.NORMAL_CLOSURE, "")

    def close(self, code: int, why: str) -> None:
        """Say that this is the end, and why; soon it is."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, why.encode()[:100].decode(errors="ignore"))
            self._flush()
        self._loop.call_later(CLOSING, self.abort)

    def abort(self) -> None:
        """End now."""
        self._transport.abort()

    def _write(self, frame: bytes) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(frame)
            self._flush()

    def _flush(self) -> None:
        """Send what the protocol has to say."""
        for data in self._protocol.data_to_send():
            if self._transport.is_closing():
                return
            if data:
                self._transport.write(data)
                if self._transport.get_write_buffer_size() > WRITING + self._limit + ANSWERS:
                    # pings that it sends and whose answers it does not read
                    self._host.refused(self.name, "it reads too slowly")
                    self.abort()
                    return
            else:
                self._transport.close()

    def _work(self) -> None:
        """Act on what has come, as far as the server can take it."""
        while self._events and not self._held:
            event = self._events.popleft()
            if isinstance(event, Request):
                self._greeted(event)
            elif isinstance(event, Frame) and not self.revoked:
                self._got(event)
        self._flush()
        if self._protocol.close_expected() and not self._lost:
            self._loop.call_later(CLOSING, self.abort)
        if self._lost and not self._events and not self._told:
            self._told = True
            self._ended()

    def _greeted(self, request: Request) -> None:
        response = self._host.admit(self)
        admitted = response is None
        if response is None:
            response = self._protocol.accept(request)
        self._protocol.send_response(response)
        self._flush()
        if self._protocol.state is not State.OPEN:
            if admitted:
                self._host.refused(self.name, "it does not open a WebSocket as one does")
            return
        self._host.opened(self)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(BEAT, self._beat)

    def _got(self, frame: Frame) -> None:
        """A frame goes on when it is whole; one of text is none."""
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if frame.fin and self._host.full(self):
            self._events.appendleft(frame)
            self._hold()
            return
        if frame.opcode is not Opcode.CONT:
            self._text = frame.opcode is Opcode.TEXT
        body = b"" if self._text else bytes(frame.data)
        if not frame.fin:
            if body:  # empty ones count for no limit, and would add up
                self._parts.append(body)
            return
        if self._parts:
            body = b"".join((*self._parts, body))
            self._parts = []
        self._host.got(self, body)

    def _hold(self) -> None:
        self._held = True
        if not self._lost:
            self._transport.pause_reading()
        self._loop.call_later(HELD, self._again)

    def _again(self) -> None:
        """Go on reading, if the server takes the next frame now."""
        if self._host.full(self):
            self._loop.call_later(HELD, self._again)
            return
        self._held = False
        self._seen = self._loop.time()
        self._work()
        # Only once nothing waits: TLS of a peer that has ended hands over all of what it still
        # has when reading goes on, and drops it if reading was stopped again by then.
        if not self._held and not self._lost and not self._transport.is_closing():
            self._transport.resume_reading()

    def _beat(self) -> None:
        """Ask a site that is silent for a sign of life; without one, it is gone."""
        quiet = 0.0 if self._held else self._loop.time() - self._seen
        if quiet >= 3 * BEAT:
            self._protocol.fail(CloseCode.INTERNAL_ERROR, "no sign of life")
            self._flush()
            self.abort()
            return
        if quiet >= BEAT / 2 and self._protocol.state is State.OPEN:
            self._protocol.send_ping(b"beat")
            self._flush()
        self._timer = self._loop.call_later(BEAT, self._beat)

    def _ended(self) -> None:
        sent = self._protocol.close_sent
        if sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG:
            self._host.refused(self.name, f"a frame of more than {self._limit} bytes")
        self._host.over(self)


def _who(transport: asyncio.Transport) -> tuple[str, int]:
    found = transport.get_extra_info("peercert") or {}
    names = [
        value for part in found.get("subject", ()) for key, value in part if key == "commonName"
    ]
    return (names[0] if len(names) == 1 else ""), int(found.get("serialNumber", "0"), 16)


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
        self._todo.append((self._put, (site, frame)))

    def drop(self, site: str, why: str) -> None:
        self._todo.append((self._close_one, (site, why)))
        self._give()

    def close(self) -> None:
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

    def made(self, connection: Connection) -> None:
        """Take note of a connection that TLS has let in."""
        self._all.add(connection)

    def admit(self, connection: Connection) -> Response | None:
        """Return why a connection is not opened, or None."""
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
        """Have a connection count, in place of an earlier one of the same site."""
        name, connection.number = connection.name, next(self._numbers)
        if name in self._there:  # a site that came back before its end was noticed
            self._there[name].abort()
        self._there[name], self._open = connection, self._open + 1
        self._mailbox.put(Event("open", name, connection.number))

    def full(self, connection: Connection) -> bool:
        """Return whether the next frame of a connection must wait."""
        return self._mailbox.full(connection.name) and not self._closing.is_set()

    def got(self, connection: Connection, frame: bytes) -> None:
        """Take a frame; none of a certificate that is revoked."""
        if self._barred(connection.serial):
            connection.revoked = True
            connection.close(_REFUSED, "this certificate is revoked")
            return
        self._mailbox.put(Event("frame", connection.name, connection.number, frame))

    def refused(self, name: str, why: str) -> None:
        """Tell that something is refused."""
        self._refused(name, why)

    def over(self, connection: Connection) -> None:
        """Take note that a connection has ended, whether it was open or not."""
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
    """Return whether this thread runs a loop already, as a notebook's does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
