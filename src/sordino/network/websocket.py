"""WebSocket over mutual TLS 1.3: sites connect to one port, behind which studies are served.

Each end runs an event loop in a thread of its own, so that signs of life are answered however long
the server or a site computes. A site's connection goes through a proxy where the environment names
one (``https_proxy``).
"""

# Theory of operation
#
# `websockets` speaks the protocol. What stands here is who is admitted, and what one side may cost
# the other:
#
# * One port. The path of a request names the study, and the host that a site asks TLS for chooses
#   the server's certificate. Each study has a hub: who is admitted, by which authority, and on how
#   many connections, is its own, and its end is not that of the others.
# * Liveness. Both sides ping every BEAT. A connection on which no byte has come for three beats is
#   ended. Bytes count, and not answers to pings: those wait behind a large frame on a slow line.
# * Strangers. A connection that has not shown a certificate within OPENING is ended, and there are
#   so many of them at most that descriptors are left for the run's own files.
# * Frames in. While AT_ONCE frames of a site wait in the mailbox, no more are taken from its
#   connection, which stops reading when it holds IN_HAND. It goes on only once it holds none: TLS
#   of a peer that has ended hands over the rest when reading goes on, and drops what comes after
#   another stop.
# * Frames out. A connection holds QUEUED of them, or SHORT bytes of shorter ones; a site that reads
#   slower than that is cut off,
#   and so is one that sends pings and does not read the answers.
# * Pieces. A long frame goes out in pieces of PIECE, so that pings pass between two of them. Empty
#   ones count for no limit and would add up, so they are not kept.
# * Going on. What has come of a frame when its connection ends is kept (Beginning), one for each
#   peer. Its length and digest are in the next handshake (BEGUN), and who sends a frame that begins
#   so sends GO_ON and the rest. Versions without this know neither and send everything again.

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import logging
import re
import resource
import ssl
import sys
import threading
import urllib.request
import weakref
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from cryptography import x509
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidProxy,
    InvalidStatus,
    InvalidURI,
)
from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from sordino.base.errors import StudyError
from sordino.network import certificates
from sordino.network.transport import IS_REVOKED, Event, Lost, Mailbox, Stranger

BEAT = 2.5
"""Seconds between two pings; three times as long without a byte ends a connection."""
OPENING, CLOSING = 5.0, 2.0
QUEUED, SHORT = 64, 1 << 24
"""Frames that wait for a site, or bytes of more frames: a site that comes back is told at once of
each round that it has missed. With more of both it reads too slowly, and is cut off.
"""
IN_HAND = 4
"""Pieces of frames that have come on one connection, beyond which it is not read: each may be as
long as a frame.
"""
HELD = 0.001
"""Seconds between two looks whether the server can take the next frame."""
WRITING = 1 << 15
"""Bytes on their way in this process, beyond which frames wait."""
PIECE, RECORD = 1 << 16, 1 << 14
"""Bytes of a frame that are sent at once; bytes that a server reads at once, a record of TLS."""
ANSWERS = 1 << 20
"""Bytes beyond frames that wait for a site to read them; with more, it is cut off."""
BEGUN, GO_ON = "Sordino-Begun", "go on"
"""Header of a handshake, and message: the next frame is the rest of the one that it names."""
STRANGERS = 32
"""Connections at once beyond one for each site."""
DESCRIPTORS = 65536
"""Files and connections of a server at most; handshakes get half of those that there are."""
_REFUSED = 4403
_SILENT = logging.Logger("websockets", logging.CRITICAL + 1)  # a stranger prints nothing here

T = TypeVar("T")


class _Thread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        """Return what comes of it there, for another thread."""
        return asyncio.run_coroutine_threadsafe(what, self.loop).result()

    def soon(self, what: Callable[..., object], *given: object) -> None:
        """Have it done there, unless the loop has ended."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(what, *given)

    def end(self) -> None:
        """End the loop, and what goes on in it: handshakes, for one."""
        self.run(_cancel())
        self.soon(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _cancel() -> None:
    """Cancel all other tasks of the loop; asyncio complains of those that are left."""
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        for each in others:
            each.cancel()
        await asyncio.wait(others, timeout=CLOSING)


class Beginning:
    """The bytes of a frame that have come, over one connection after another.

    Args:
        limit: bytes of a frame.
        begun: what an earlier connection has left.
    """

    def __init__(self, limit: int, begun: bytes = b"") -> None:
        self._limit, self._begun = limit, begun
        self._come = bytearray()  # one block: many pieces would stay with the process
        self._size = 0

    def next(self) -> Beginning:
        """Return the one of the next connection: another one may still write to this."""
        return Beginning(self._limit, bytes(self._come) or self._begun)

    @property
    def header(self) -> dict[str, str]:
        """Length and SHA-256 of what an earlier connection has left, for the handshake."""
        return {BEGUN: _mark(self._begun)} if self._begun else {}

    def go_on(self) -> None:
        """The rest comes now."""
        self._come, self._size, self._begun = bytearray(self._begun), len(self._begun), b""

    def add(self, part: bytes) -> bool:
        """Take a piece, unless the frame is too long with it; then nothing is left of it."""
        self._size += len(part)
        if self._size > self._limit:
            self._come = bytearray()
            return False
        self._come += part
        return True

    def take(self) -> bytes:
        """Return the whole frame. After a long one, nothing is left of another."""
        found = bytes(self._come)
        self._come, self._size = bytearray(), 0
        self._begun = b"" if len(found) > PIECE else self._begun
        return found


def _mark(begun: bytes | memoryview) -> str:
    return f"{len(begun)} {hashlib.sha256(begun).hexdigest()}"


def _begun(frame: bytes, header: str) -> int:
    """Return how many bytes of a frame the other side has by the header of its handshake."""
    found = re.fullmatch(r"([0-9]{1,10}) [0-9a-f]{64}", header)
    length = 0 if found is None else int(found[1])
    return length if header == _mark(memoryview(frame)[:length]) else 0


class _Watched(Connection):
    """A connection that ends when nothing comes.

    Attributes:
        beginning: of the frame that comes.
        there: header of the handshake about what the other side has; empty where it has nothing.
    """

    beginning: Beginning
    there = ""

    async def give(self, frame: bytes) -> None:
        """Send a frame, or the rest of one that the other side has in part."""
        rest = memoryview(frame)
        if len(frame) > PIECE and self.there:
            begun, self.there = _begun(frame, self.there), ""  # it forgets it with a long frame
            if begun:
                await self.send(GO_ON)
                rest = rest[begun:]
        if len(rest) <= PIECE:
            await self.send(rest)
        else:
            await self.send(rest[i : i + PIECE] for i in range(0, len(rest), PIECE))

    async def take(self) -> bytes:
        """The next frame; one of text is none.

        Raises:
            ConnectionClosed: if the connection has ended; what has come of a frame is kept.
        """
        going_on = True
        while going_on:
            going_on = False
            async for part in self.recv_streaming():
                if isinstance(part, str):
                    going_on = part == GO_ON
                elif part and not self.beginning.add(part):
                    await self.close(CloseCode.MESSAGE_TOO_BIG)
            if going_on:
                self.beginning.go_on()
        return self.beginning.take()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._seen = self.loop.time()
        self._look()

    def data_received(self, data: bytes) -> None:
        self._seen = self.loop.time()
        super().data_received(data)

    def _look(self) -> None:
        quiet = self.loop.time() - self._seen
        if quiet >= 3 * BEAT:
            self.set_connection_exc(TimeoutError(f"it has said nothing for {quiet:.0f} s"))
            self.transport.abort()
        elif not self.transport.is_closing():
            self.loop.call_later(3 * BEAT - quiet, self._look)


class _ToServer(_Watched, ClientConnection):
    """A site's connection."""


class _ToSite(_Watched, ServerConnection):
    """The server's connection to a site.

    Attributes:
        hub: of the study that the site has asked for; who has not asked yet reads nothing.
        certificate: that TLS has verified, by one of the authorities of the port.
        name, serial: in the certificate.
        waiting: frames that wait to be sent.
    """

    hub: WebSocketHub

    def __init__(self, limit: Callable[[], int], *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.protocol.max_message_size = limit()  # the first frame may come with the request
        self.waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self._held = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        found: ssl.SSLObject = transport.get_extra_info("ssl_object")
        self.certificate = x509.load_der_x509_certificate(found.getpeercert(True) or b"")
        self.name = certificates.common_name(self.certificate)
        self.serial = str(self.certificate.serial_number).encode()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_write_buffer_size() > WRITING + PIECE + ANSWERS:
            self._slow()  # it sends pings, and does not read the answers

    def put(self, frame: bytes) -> None:
        """Send a frame, once those before it have gone."""
        if self.waiting.qsize() >= QUEUED and self._held + len(frame) > SHORT:
            self._slow()
            return
        self._held += len(frame)
        self.waiting.put_nowait(frame)

    def _slow(self) -> None:
        if hasattr(self, "hub"):
            self.hub.refused(self.name, "it reads too slowly")
        self.transport.abort()

    async def write(self) -> None:
        """Send what is put, until the connection ends."""
        with suppress(ConnectionClosed):
            while True:
                frame = await self.waiting.get()
                self._held -= len(frame)
                await self.give(frame)
                del frame
                self.waiting.task_done()


def _answered(connection: _ToSite, request: Request, response: Response) -> None:
    """Say what has come of a frame; tell of a site that asks for no WebSocket."""
    if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
        response.headers.update(connection.beginning.header)
    if response.status_code in (HTTPStatus.BAD_REQUEST, HTTPStatus.UPGRADE_REQUIRED):
        connection.hub.refused(connection.name, "it does not open a WebSocket as one does")


def _guard_handshakes(context: ssl.SSLContext, refused: Callable[[str], None], most: int) -> None:
    """Have a context allow so many handshakes at once, and tell of every one that fails.

    Whoever reaches the port may open connections and say nothing. Each holds a descriptor until
    its handshake has taken too long; without a limit, none would be left for the run's own files.
    """
    begun: weakref.WeakSet[ssl.SSLObject] = weakref.WeakSet()  # one ends with its connection

    class Guarded(ssl.SSLObject):
        def do_handshake(self) -> None:
            if self not in begun and len(begun) >= most:
                refused("too many connections that have not said who they are")
                raise ssl.SSLError("too many handshakes")
            begun.add(self)
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                refused(f"TLS: {(error.reason or 'failed').replace('_', ' ').lower()}")
                begun.discard(self)
                raise
            begun.discard(self)

    context.sslobject_class = Guarded


def _descriptors() -> int:
    """Files and connections that this process may open; raised to what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if wanted <= soft:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


class Port:
    """A port that studies are served behind: it is open while one of them is.

    Args:
        host, number: where to listen.
        kits: of each study's server, by the study's name; and the host that its sites ask for.

    Raises:
        StudyError: if sites of one study would be shown the certificate of another one's server.
    """

    def __init__(self, host: str, number: int, kits: Mapping[str, tuple[Path, str]]) -> None:
        self._host, self.number, self._known = host, number, kits.keys()
        self._identities = [Identity(kit) for kit, _ in kits.values()]
        for kit, asked in kits.values():
            named = None if certificates.is_address(asked) else asked  # TLS names no address
            self._identity(named).refuse_sites(kit, asked)
        self._hubs: dict[str, WebSocketHub] = {}  # replaced, as other threads look at it
        self._changing = threading.Lock()

    def open(self, hub: WebSocketHub) -> None:
        """Let a study's sites in.

        Raises:
            StudyError: if it cannot listen there.
        """
        with self._changing:
            before, self._hubs = self._hubs, {**self._hubs, hub.study: hub}
            if before:
                return
            self.thread = _Thread("sordino hub")
            try:
                self._server = self.thread.run(self._listen())
            except OSError as error:
                self._hubs = before
                self.thread.end()
                raise StudyError(
                    f"{self._host}:{self.number}: the server cannot listen there "
                    f"({error.strerror}). Is another one running, or is the port not free?"
                ) from error
            self.number = next(iter(self._server.sockets)).getsockname()[1]

    def close(self, hub: WebSocketHub) -> None:
        """Let a study's sites in no more, and close with the last one."""
        with self._changing:
            self._hubs = {name: each for name, each in self._hubs.items() if each is not hub}
            self.thread.run(hub.farewell())
            if not self._hubs:
                self.thread.run(self._end())
                self.thread.end()

    async def _listen(self) -> Server:
        context = self._identities[0].context()
        context.sni_callback = self._identify
        self._unraisable, sys.unraisablehook = sys.unraisablehook, self._quiet
        # for each connection asyncio keeps memory for what it reads at once: 256 KiB, which a
        # thousand sites make 256 MiB; this holds for all TLS connections of the process
        SSLProtocol.max_size = RECORD
        _guard_handshakes(context, lambda why: self._refused("", why), _descriptors() // 2)
        return await serve(
            lambda connection: connection.hub.hear(connection),  # type: ignore[attr-defined]
            self._host,
            self.number,
            ssl=context,
            compression=None,
            process_request=self._admit,  # type: ignore[arg-type]
            process_response=_answered,  # type: ignore[arg-type]
            open_timeout=OPENING,
            ssl_handshake_timeout=OPENING,
            close_timeout=CLOSING,
            ping_interval=BEAT,
            ping_timeout=None,
            max_queue=(IN_HAND, 0),
            write_limit=WRITING,
            logger=_SILENT,
            create_connection=partial(_ToSite, self._limit),  # type: ignore[arg-type]
        )

    async def _end(self) -> None:
        self._server.close()
        await self._server.wait_closed()
        sys.unraisablehook = self._unraisable

    def _quiet(self, found: sys.UnraisableHookArgs) -> None:
        """Print nothing of a host that is no ASCII, which any stranger may ask for: the handshake
        fails, and that is told. Python's TLS prints seven lines for each.
        """
        if not isinstance(found.exc_value, UnicodeDecodeError):
            self._unraisable(found)

    def _limit(self) -> int:
        return max((hub.limit for hub in self._hubs.values()), default=0)

    def _refused(self, name: str, why: str) -> None:
        """Tell every study of somebody who has not said which one is meant."""
        for hub in self._hubs.values():
            hub.refused(name, why)

    def _identity(self, host: str | None) -> Identity:
        """Return the certificate for the host that a site asks for; the first where none is."""
        fits = (each for each in self._identities if host is not None and each.listens_at(host))
        return next(fits, self._identities[0])

    def _identify(self, handshake: ssl.SSLObject, host: str | None, _: ssl.SSLContext) -> None:
        handshake.context = self._identity(host).context()

    def _admit(self, connection: _ToSite, request: Request) -> Response | None:
        """Return why a connection is not opened, or None."""
        study = request.path.removeprefix("/")
        if not study and len(self._known) == 1:  # versions before name none
            study = next(iter(self._known))
        if study in self._hubs:
            return self._hubs[study].admit(connection, request)
        why = f"the study {study} is not open now"
        if study not in self._known:
            why = "this study is not served here" if study else "several studies: upgrade"
            self._refused(connection.name, f"it asks for a study that is not served ({why})")
        return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, f"{why}\n")


class Identity:
    """A server's certificate and key, read again when they have changed.

    Args:
        kit: of the server.
    """

    def __init__(self, kit: Path) -> None:
        self._kit = kit
        self._stamp: int | None = 0
        self._read()

    def _read(self) -> None:
        path = self._kit / "server.pem"
        stamp = path.stat().st_mtime_ns if path.exists() else None
        if stamp != self._stamp:
            certificates.refuse_other_authority(self._kit, "server.pem")
            self._context = certificates.context(self._kit, "server")
            self._certificate = certificates.read_certificate(self._kit, "server.pem")
            self._stamp = stamp

    def context(self) -> ssl.SSLContext:
        """Mutual TLS with the certificate that is there now; while it is copied, with the last."""
        with suppress(OSError, StudyError):
            self._read()
        return self._context

    def listens_at(self, host: str) -> bool:
        """Return whether it is for this host."""
        return certificates.listens_at(self._certificate, host)

    def refuse_sites(self, kit: Path, host: str) -> None:
        """Refuse a study whose sites, which ask for this host, do not take this for their server.

        Raises:
            StudyError: naming both kits.
        """
        trusted = certificates.read_certificate(kit, "authority.pem")
        issued = certificates.issued_by(self._certificate, trusted)
        if kit != self._kit and not (issued and self.listens_at(host)):
            raise StudyError(
                f"{kit}: its sites ask for {host}, and would be shown the certificate of "
                f"{self._kit}, of another authority or for another host. Serve it by a process of "
                "its own, or agree on a host name of its own"
            )


class WebSocketHub:
    """The server's end of a study.

    Args:
        port: that it is behind.
        study: its name.
        limit: bytes of a frame.
        sites: names that may connect.
        mailbox: where events go.
        kit: of the server; its authority certifies the sites, and revokes.
        refused: told of each connection that was refused: who (or where from), and why.

    Raises:
        StudyError: if the port cannot be opened.
    """

    def __init__(
        self,
        port: Port,
        study: str,
        limit: int,
        sites: frozenset[str],
        mailbox: Mailbox,
        kit: Path,
        refused: Callable[[str, str], None],
    ) -> None:
        self.study, self.limit, self.refused = study, limit, refused
        self._sites, self._mailbox, self._port = sites, mailbox, port
        self._barred = certificates.Revoked(kit)
        self._numbers, self._closing = count(1), False
        self._there: dict[str, _ToSite] = {}
        self._beginnings: dict[str, Beginning] = {}
        self._open = 0
        port.open(self)

    @property
    def port(self) -> int:
        """Number of the port."""
        return self._port.number

    def send(self, site: str, frame: bytes) -> None:
        self._port.thread.soon(self._put, site, frame)

    def drop(self, site: str, why: str) -> None:
        self._port.thread.soon(self._end, site, why)

    def close(self) -> None:
        self._port.close(self)

    def _put(self, site: str, frame: bytes) -> None:
        if site in self._there:
            self._there[site].put(frame)

    def _end(self, site: str, why: str) -> None:
        if site in self._there:
            reason = why.encode()[:100].decode(errors="ignore")
            self._port.thread.loop.create_task(self._there[site].close(_REFUSED, reason))

    async def farewell(self) -> None:
        """Send what waits, if that is quick, and end the study's connections."""
        self._closing = True
        if sent := [asyncio.ensure_future(each.waiting.join()) for each in self._there.values()]:
            _, late = await asyncio.wait(sent, timeout=CLOSING)
            for each in late:
                each.cancel()
        open_now = list(self._there.values())
        await asyncio.gather(*(each.close(CloseCode.GOING_AWAY) for each in open_now))

    def admit(self, connection: _ToSite, request: Request) -> Response | None:
        """Return why a connection is not opened, or None."""
        name = connection.name
        if self._open >= len(self._sites) + STRANGERS:
            self.refused(name, "too many connections at once")
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")
        if name not in self._sites or not self._barred.issued(connection.certificate):
            self.refused(name, "its certificate is of no site of this federation")
            return connection.respond(HTTPStatus.FORBIDDEN, "not a site of this federation\n")
        if why := self._turned_away(connection):
            status = HTTPStatus.FORBIDDEN if why == IS_REVOKED else HTTPStatus.SERVICE_UNAVAILABLE
            self._gone(connection, why)
            return connection.respond(status, f"{why}\n")
        connection.hub, connection.there = self, request.headers.get(BEGUN, "")
        beginning = self._beginnings.get(name, Beginning(self.limit)).next()
        self._beginnings[name] = connection.beginning = beginning
        return None

    def _turned_away(self, connection: _ToSite) -> str:
        """Return why the site with this certificate is heard no more; empty where it is heard.
        While the list cannot be read, as when it is being copied, nobody is.
        """
        try:
            return IS_REVOKED if self._barred(connection.certificate.serial_number) else ""
        except StudyError:
            return "the list of revoked certificates cannot be read now"

    def _gone(self, connection: _ToSite, why: str) -> None:
        """Tell of a site that is heard no more, for this reason."""
        self.refused(connection.name, why)
        if why == IS_REVOKED:
            self._mailbox.put(Event("barred", connection.name, 0, connection.serial))

    async def hear(self, connection: _ToSite) -> None:
        """Hear an open connection to its end. It replaces an earlier one of the same site."""
        name, number, why = connection.name, next(self._numbers), ""
        if self._closing:
            return
        if name in self._there:  # a site that came back before its end was noticed
            self._there[name].transport.abort()
        self._there[name], self._open = connection, self._open + 1
        self._mailbox.put(Event("open", name, number, connection.serial))
        writing = self._port.thread.loop.create_task(connection.write())
        try:
            while not why:
                frame = await connection.take()
                while self._mailbox.full(name) and not self._closing:
                    await asyncio.sleep(HELD)
                why = self._turned_away(connection)
                if not why:
                    self._mailbox.put(Event("frame", name, number, frame))
                del frame  # it may be long, and nothing more may come for hours
            await connection.close(_REFUSED, why)
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == CloseCode.MESSAGE_TOO_BIG:
                self.refused(name, f"a frame of more than {self.limit} bytes")
        finally:
            writing.cancel()
            self._open -= 1
            if self._there.get(name) is connection:
                del self._there[name]
            self._mailbox.put(Event("closed", name, number))
            if why:
                self._gone(connection, why)


class _Connect(connect):
    """Goes where it is told to by the agreement, and nowhere else: a server that redirects a site
    could look which hosts and ports of the site's own network answer.
    """

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class WebSocketLine:
    """A site's end.

    Args:
        address: host and port.
        context: mutual TLS.
        limit: bytes of a frame.
        study: that is meant, of those behind the port.
        before: an earlier line, which may have left the beginning of a frame.

    Attributes:
        beginning: of a frame that comes.

    Raises:
        Lost: if the federation's server cannot be reached now.
        Stranger: if it does not admit this site, or there is no such address.
    """

    def __init__(
        self,
        address: str,
        context: ssl.SSLContext,
        limit: int,
        study: str = "",
        before: WebSocketLine | None = None,
    ) -> None:
        self.beginning: Beginning = Beginning(limit) if before is None else before.beginning.next()
        self._thread = _Thread("sordino line")
        try:
            self._line = self._thread.run(self._connect(f"wss://{address}/{study}", context, limit))
        except BaseException as error:
            self._thread.end()
            if isinstance(error, ssl.SSLCertVerificationError):
                # whoever is on the way can show another one, and it may be a clock, or a renewal
                raise Lost(
                    f"{address}: its certificate is not that of the federation's server "
                    f"({error.verify_message}). By the clock of this machine it is "
                    f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC: is the clock right?"
                ) from error
            if isinstance(error, InvalidProxy):  # its words may hold a password
                raise Stranger(
                    "the environment (https_proxy) names no proxy: it must be http://HOST:PORT"
                ) from None
            if isinstance(error, InvalidURI | ValueError):
                raise Stranger(f"{address}, or the proxy of https_proxy: no address") from error
            if isinstance(error, InvalidHandshake):
                raise _refused(address, error) from error
            if isinstance(error, OSError | EOFError | ImportError):  # of a kind of proxies
                raise Lost(f"{address}: {str(error) or type(error).__name__}") from error
            raise

    async def _connect(self, uri: str, context: ssl.SSLContext, limit: int) -> _ToServer:
        named = urllib.request.getproxies()
        bypassed = urllib.request.proxy_bypass(urlsplit(uri).hostname or "")
        line = await _Connect(
            uri,
            additional_headers=self.beginning.header,
            proxy=None if bypassed else named.get("wss") or named.get("https"),
            ssl=context,
            compression=None,
            open_timeout=2 * OPENING,
            close_timeout=CLOSING,
            ping_interval=BEAT,
            ping_timeout=None,
            max_size=limit,
            write_limit=WRITING,
            logger=_SILENT,
            create_connection=_ToServer,
        )
        assert isinstance(line, _ToServer)
        assert line.response is not None
        shown: ssl.SSLObject = line.transport.get_extra_info("ssl_object")
        certificate = x509.load_der_x509_certificate(shown.getpeercert(True) or b"")
        if (name := certificates.common_name(certificate)) != "server":
            await line.close()
            raise Lost(f"{urlsplit(uri).netloc}: its certificate is that of the {name} only")
        line.beginning = self.beginning
        line.there = line.response.headers.get(BEGUN, "")
        return line

    def send(self, frame: bytes) -> None:
        self._do(self._line.give(frame))

    def frames(self) -> Iterator[bytes]:
        while True:
            yield self._do(self._line.take())

    def close(self) -> None:
        if not self._thread.loop.is_closed():
            self._thread.run(self._line.close())
            self._thread.end()

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        try:
            return self._thread.run(what)
        except ConnectionClosed as error:
            raise Lost(str(error.__cause__ or error)) from error


def _refused(address: str, error: InvalidHandshake) -> Lost | Stranger:
    """Return the error for what the server or a proxy says instead of greeting."""
    status, body = 0, b""
    if isinstance(error, InvalidStatus):
        status, body = error.response.status_code, bytes(error.response.body or b"")
    said = body.decode(errors="replace").strip()[:200] or str(error)
    if status == HTTPStatus.FORBIDDEN:
        return Stranger(f"{address}: the server does not admit this site: {said}")
    return Lost(f"{address}: {said}")
