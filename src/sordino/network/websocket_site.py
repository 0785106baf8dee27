"""A site's end of a WebSocket over mutual TLS 1.3, in the thread of whoever uses it: a frame that
comes wakes nobody else on its way.

While a site computes, another thread looks after the connection, so that the server's signs of life
are answered however long that takes.

A site's connection goes through an HTTP proxy where the environment names one (``https_proxy``).
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import unquote, urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import CloseCode, Frame, Opcode
from websockets.headers import build_authorization_basic
from websockets.protocol import State
from websockets.uri import parse_uri

from sordino.network.transport import Lost, Stranger

CHUNK = 1 << 18
STALL = 60.0
"""Seconds without a byte that the other side takes, after which it is gone."""
MOST_HEAD = 16_384
"""Bytes of what a proxy says before a connection begins."""
BEAT = 5.0
"""Seconds of silence before a ping; twice as long without an answer ends a connection."""
OPENING = 5.0
CLOSING = 2.0
LOOK = 1.0
"""Seconds between two looks while the site computes."""
QUEUED = 4
"""Frames that wait for the site; with more, nothing is read while it computes."""


class Stream:
    """An open connection.

    Args:
        raw: a connected socket; it is closed with the stream.
        name: of the server, as its certificate says.
        seconds: that the handshake may take.

    Raises:
        OSError: if the handshake fails; ``ssl.SSLCertVerificationError`` for another server.
    """

    def __init__(
        self, raw: socket.socket, context: ssl.SSLContext, name: str, seconds: float
    ) -> None:
        self._raw = raw
        self._come, self._gone = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._come, self._gone, server_hostname=name)
        self._ended = False
        self._wait = -1.0
        end = time.monotonic() + seconds
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._patient(max(end - time.monotonic(), 1e-3))
                self._feed()
            except ssl.SSLError:
                self._flush()  # an alert says why
                raise
            else:
                break
        self._flush()

    def receive(self, seconds: float) -> bytes | None:
        """Return what has come: None if nothing did in time, and no bytes at the end.

        Raises:
            OSError: if the connection is broken.
        """
        while True:
            parts = self._decrypted()
            if parts or self._ended:
                return parts[0] if len(parts) == 1 else b"".join(parts)
            self._flush()
            self._patient(seconds)
            try:
                self._feed()
            except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
                return None

    def send(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            OSError: if the connection is broken, or nobody takes it.
        """
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        self._flush()

    def close(self) -> None:
        """Close the socket."""
        self._raw.close()

    def end(self) -> None:
        """Let whoever waits for it know that it ends."""
        with suppress(OSError):  # it has ended already
            self._raw.shutdown(socket.SHUT_RDWR)

    def _decrypted(self) -> list[bytes]:
        parts: list[bytes] = []
        try:
            while part := self._tls.read(CHUNK):
                parts.append(part)
            self._ended = True
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._ended = True
        return parts

    def _feed(self) -> None:
        data = self._raw.recv(CHUNK)
        if data:
            self._come.write(data)
        else:
            self._come.write_eof()

    def _flush(self) -> None:
        """Send what is encrypted."""
        if not self._gone.pending:
            return
        rest = memoryview(self._gone.read())
        self._patient(STALL)
        while rest:
            rest = rest[self._raw.send(rest) :]

    def _patient(self, seconds: float) -> None:
        """Set how long the socket waits from now on."""
        if seconds != self._wait:
            self._raw.settimeout(seconds)
            self._wait = seconds


def connected(host: str, port: int, seconds: float) -> socket.socket:
    """A socket that is connected, through an HTTP proxy where the environment names one.

    Raises:
        OSError: if it cannot be connected now.
    """
    proxy = _proxy(host)
    if proxy is None:
        raw = socket.create_connection((host, port), timeout=seconds)
    else:
        raw = _tunnel(proxy, host, port, seconds)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return raw


def _proxy(host: str) -> str | None:
    named = urllib.request.getproxies()
    found = named.get("wss") or named.get("https")
    return None if found is None or urllib.request.proxy_bypass(host) else found


def _tunnel(proxy: str, host: str, port: int, seconds: float) -> socket.socket:
    """A socket that a proxy has connected."""
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OSError(f"the environment names a proxy of kind {parts.scheme!r}; known are HTTP's")
    secure, end = parts.scheme == "https", time.monotonic() + seconds
    at = parts.hostname, parts.port or (443 if secure else 80)
    raw = socket.create_connection(at, timeout=seconds)
    try:
        if secure:
            raw = ssl.create_default_context().wrap_socket(raw, server_hostname=parts.hostname)
        to = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        asked = [f"CONNECT {to} HTTP/1.1", f"Host: {to}"]
        if parts.username is not None:
            user, password = unquote(parts.username), unquote(parts.password or "")
            asked.append(f"Proxy-Authorization: {build_authorization_basic(user, password)}")
        raw.sendall("\r\n".join([*asked, "", ""]).encode())
        said = b""
        while not said.endswith(b"\r\n\r\n"):
            if not (byte := raw.recv(1)) or len(said) > MOST_HEAD or time.monotonic() > end:
                raise OSError(f"the proxy {parts.hostname} does not answer as one")
            said += byte
        status = said.split(b"\r\n", 1)[0].decode(errors="replace")
        if status.split(" ")[1:2] != ["200"]:
            raise OSError(f"the proxy {parts.hostname} refuses: {status[:200]!r}")
    except BaseException:
        raw.close()
        raise
    return raw


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
        with self._lock:
            self._refuse_ended()
            self._protocol.send_binary(frame)
            self._flushed()
            self._refuse_ended()

    def frames(self) -> Iterator[bytes]:
        while True:
            with self._lock:
                while not self._frames:
                    self._refuse_ended()
                    self._take(BEAT)
                frame = self._frames.popleft()
            yield frame

    def close(self) -> None:
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


def _refused(address: str, error: InvalidHandshake) -> Lost | Stranger:
    """Return the error for what the server says instead of greeting."""
    status, body = 0, b""
    if isinstance(error, InvalidStatus):
        status, body = error.response.status_code, bytes(error.response.body or b"")
    said = body.decode(errors="replace").strip()[:200] or str(error)
    if status == HTTPStatus.FORBIDDEN:
        return Stranger(f"{address}: the server does not admit this site: {said}")
    return Lost(f"{address}: {said}")
