"""The server's end of one WebSocket, in the loop of the hub: a frame goes straight from the socket
to the mailbox, and straight from the hub to the socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Any, Protocol

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

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


class Host(Protocol):
    """What a connection asks of the hub."""

    def made(self, connection: Connection) -> None:
        """TLS has let it in."""
        ...

    def admit(self, connection: Connection) -> Response | None:
        """Why a connection is not opened, or None."""
        ...

    def opened(self, connection: Connection) -> None:
        """It is open."""
        ...

    def full(self, connection: Connection) -> bool:
        """Whether its next frame must wait."""
        ...

    def got(self, connection: Connection, frame: bytes) -> None:
        """A frame has come."""
        ...

    def refused(self, name: str, why: str) -> None:
        """Something is refused."""
        ...

    def over(self, connection: Connection) -> None:
        """It has ended, whether it was open or not."""
        ...


class Connection(asyncio.Protocol):
    """One connection.

    Args:
        host: the hub.
        limit: bytes of a frame.

    Attributes:
        name, serial: common name and serial number of the certificate that TLS has verified.
        number: of the connection; 0 until it is open.
        revoked: whether it is ended because the certificate is revoked.
    """

    def __init__(self, host: Host, limit: int) -> None:
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
        """See :class:`asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(WRITING)
        self.name, self.serial = _who(transport)
        self._timer = self._loop.call_later(OPENING, self.abort)
        self._host.made(self)

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        self._seen = self._loop.time()
        self._protocol.receive_data(data)
        self._events += self._protocol.events_received()
        self._work()

    def connection_lost(self, error: Exception | None) -> None:
        """See :class:`asyncio.Protocol`. What has come before still counts."""
        self._lost = True
        if self._timer is not None:
            self._timer.cancel()
        self._work()

    def pause_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self._slow = True

    def resume_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
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
        """Whether the server takes the next frame now."""
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
