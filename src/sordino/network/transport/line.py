"""A site's end of a WebSocket, in the thread of whoever uses it: a frame that comes wakes nobody
else on its way.

While a site computes, another thread looks after the connection, so that the server's signs of life
are answered however long that takes.

A site's connection goes through an HTTP proxy where the environment names one (``https_proxy``).
"""

from __future__ import annotations

import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidURI
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from sordino.network.transport.base import Lost, Stranger
from sordino.network.transport.stream import Stream, connected

BEAT = 5.0
"""Seconds of silence before a ping; twice as long without an answer ends a connection."""
OPENING = 5.0
CLOSING = 2.0
LOOK = 1.0
"""Seconds between two looks while the site computes."""
QUEUED = 4
"""Frames that wait for the site; with more, nothing is read while it computes."""


class WebSocketLine:
    """A site's end.

    Args:
        address: host and port.
        context: mutual TLS.
        limit: bytes of a frame.

    Raises:
        Lost: if the server cannot be reached now.
        Stranger: if it is not the federation's server, or does not admit this site.
    """

    def __init__(self, address: str, context: ssl.SSLContext, limit: int) -> None:
        self._frames: deque[bytes] = deque()
        self._parts: list[bytes] = []
        self._why = ""  # the connection has ended, and why
        self._text = False
        self._lock, self._over = threading.Lock(), threading.Event()
        try:
            uri = parse_uri(f"wss://{address}/")
            self._protocol = ClientProtocol(uri, max_size=limit)
            raw = connected(uri.host, uri.port, 2 * OPENING)
            try:
                self._stream = Stream(raw, context, uri.host, 2 * OPENING)
                self._open()
            except BaseException:
                raw.close()
                raise
        except ssl.SSLCertVerificationError as error:
            raise Stranger(
                f"{address}: its certificate is not that of the federation's server "
                f"({error.verify_message})"
            ) from error
        except InvalidHandshake as error:
            raise _refused(address, error) from error
        except (InvalidURI, ValueError) as error:
            raise Stranger(f"{address}: no address ({error})") from error
        except (OSError, EOFError) as error:
            raise Lost(f"{address}: {error}") from error
        self._seen, self._asked = time.monotonic(), False
        threading.Thread(target=self._attend, name="sordino line", daemon=True).start()

    def _open(self) -> None:
        """Greet by HTTP."""
        protocol, end = self._protocol, time.monotonic() + 2 * OPENING
        protocol.send_request(protocol.connect())
        self._flush()
        while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
            data = self._stream.receive(max(end - time.monotonic(), 1e-3))
            if data is None:
                raise TimeoutError("the server does not answer in time")
            self._fed(data)
        if protocol.handshake_exc is not None:
            raise protocol.handshake_exc

    def send(self, frame: bytes) -> None:
        """See :class:`~sordino.network.transport.base.Line`."""
        with self._lock:
            self._refuse_ended()
            self._protocol.send_binary(frame)
            self._flushed()
            self._refuse_ended()

    def frames(self) -> Iterator[bytes]:
        """See :class:`~sordino.network.transport.base.Line`."""
        while True:
            with self._lock:
                while not self._frames:
                    self._refuse_ended()
                    self._take(BEAT)
                frame = self._frames.popleft()
            yield frame

    def close(self) -> None:
        """See :class:`~sordino.network.transport.base.Line`."""
        self._over.set()
        if not self._lock.acquire(timeout=CLOSING):  # somebody else waits for a frame
            self._stream.end()
            self._lock.acquire()
        try:
            if not self._why:
                self._farewell()
        finally:
            self._lock.release()

    def _farewell(self) -> None:
        """Say that this is the end, and wait a while for the answer: what was sent before would be
        lost if the socket was closed while something waits in it.
        """
        self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        self._flushed()
        end = time.monotonic() + CLOSING
        while not self._why and (left := end - time.monotonic()) > 0:
            self._take(left)
        self._end("closed")

    def _attend(self) -> None:
        """Look after the connection while nobody reads."""
        while not self._over.wait(LOOK):
            if not self._lock.acquire(blocking=False):
                continue
            try:
                if self._why:
                    return
                if len(self._frames) < QUEUED:
                    self._take(0.0)
            finally:
                self._lock.release()

    def _end(self, why: str) -> None:
        """The connection is over; the first reason counts."""
        self._why = self._why or why
        self._stream.close()

    def _refuse_ended(self) -> None:
        if self._why:
            raise Lost(self._why)

    def _take(self, seconds: float) -> None:
        """Read what has come, or will within so many seconds."""
        try:
            data = self._stream.receive(seconds)
        except OSError as error:
            self._end(str(error) or "the connection is broken")
            return
        if data is not None:
            self._seen, self._asked = time.monotonic(), False
            self._fed(data)
            self._flushed()
            if self._protocol.close_expected() or not data:
                if data:
                    self._protocol.receive_eof()
                self._end(str(self._protocol.close_exc))
            return
        quiet = time.monotonic() - self._seen
        if quiet >= 3 * BEAT:
            self._end(f"the server has said nothing for {quiet:.0f} s")
        elif quiet >= BEAT and not self._asked:
            self._asked = True
            self._protocol.send_ping(b"beat")
            self._flushed()

    def _fed(self, data: bytes) -> None:
        """Have the protocol take in what has come; nothing is the end."""
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._got(event)

    def _got(self, frame: Frame) -> None:
        """Whole messages; one of text is no frame."""
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._text = frame.opcode is Opcode.TEXT
        elif frame.opcode is not Opcode.CONT:
            return
        if frame.fin and not self._parts:
            self._frames.append(b"" if self._text else bytes(frame.data))
            return
        if frame.data:  # empty ones count for no limit, and would add up
            self._parts.append(bytes(frame.data))
        if frame.fin:
            self._frames.append(b"" if self._text else b"".join(self._parts))
            self._parts = []

    def _flushed(self) -> None:
        """Send what the protocol has to say; it may break the connection."""
        try:
            self._flush()
        except OSError as error:
            self._end(str(error) or "the connection is broken")

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._stream.send(data)


def _refused(address: str, error: Any) -> Lost | Stranger:
    """What the server says instead of greeting."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", 0)
    body = bytes(getattr(response, "body", b"") or b"")
    said = body.decode(errors="replace").strip()[:200] or str(error)
    if status == HTTPStatus.FORBIDDEN:
        return Stranger(f"{address}: the server does not admit this site: {said}")
    return Lost(f"{address}: {said}")
