"""TLS over a connected socket, for one thread at a time: what has come is read at once, however
many records it is.
"""

from __future__ import annotations

import socket
import ssl
import time
import urllib.request
from contextlib import suppress
from urllib.parse import unquote, urlsplit

from websockets.headers import build_authorization_basic

CHUNK = 1 << 18
STALL = 60.0
"""Seconds without a byte that the other side takes, after which it is gone."""
MOST_HEAD = 16_384
"""Bytes of what a proxy says before a connection begins."""


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
        """What has come: None if nothing did in time, and no bytes at the end.

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
        """How long the socket waits from now on."""
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
