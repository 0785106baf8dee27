"""TCP connections, carried by messages that may come in another order, twice, or not at all."""

# Theory of operation
#
# A program at a site connects to the site's end of the tunnel. The site's end draws a name for the
# connection, and the server's end connects to its own port for it. Each end of a connection has two
# threads, one for each direction.
#
# * One piece at a time. In each direction of a connection at most one piece is on its way. Who
#   sends it reads no more from its socket until the other end has written the piece into its own
#   socket and says so ("taken"). So order needs no buffer, each end holds one piece of a connection
#   and direction, and a program that does not read holds back the one that writes.
# * Sizes. Nothing of a piece comes before all of it has, and programs take a connection that is
#   silent for some seconds for dead. So pieces grow while each is taken within QUICK, and shrink
#   when one is not.
# * Numbers. Pieces are numbered from 1. Number 0 opens a connection, and is taken when the server's
#   end has connected. A number that was there before is a second copy, and dropped. Any other
#   number than the next, a piece before the last one was taken, and a piece that is too long end
#   the connection.
# * Loss. A piece that is not taken within SILENT ends the connection. A message for a connection
#   that is not there is answered with "end". Nothing is sent again: the programs connect again.
# * Ends. An empty piece says that no more bytes come in its direction. The other has SILENT then.
#   "end" ends both directions.
# * Names have 16 random bytes, and belong to who has opened the connection: nobody else can mean
#   it. A site has AT_ONCE connections at most.
#
# Nothing here protects the bytes: TLS between the programs does. It notices a byte that was lost,
# changed or put in, and ends the connection.

from __future__ import annotations

import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Literal

import msgspec

HOST = "127.0.0.1"
PIECE, LEAST = 1 << 18, 1 << 14
"""Bytes of a piece at most, and of the first ones."""
QUICK = 1.0
"""Seconds: after a full piece that was taken within them come longer ones, else shorter ones."""
AT_ONCE = 8
"""Connections of a site at most: one in use, and earlier ones whose end was not noticed yet."""
SILENT = 30.0
"""Seconds in which the other end takes a piece."""
CONNECTING = 5.0
LOOK = 0.2
"""Seconds between two looks whether a tunnel is still wanted."""
NAME = 16


class Parcel(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message between the ends.

    Attributes:
        connection: its name.
        number, body: of a piece; the number also of one that was taken.
    """

    kind: Literal["piece", "taken", "end"]
    connection: bytes
    number: int = 0
    body: bytes = b""


Tell = Callable[[str, Parcel], bool]
"""Puts a message to a peer on its way; returns whether that was possible."""


class _Connection:
    """One end of a connection.

    Args:
        tell: sends a parcel to the other end.
        name: of the connection.
    """

    def __init__(self, tell: Callable[[Parcel], bool], name: bytes) -> None:
        self._tell, self._name = tell, name
        self._socket: socket.socket | None = None
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._changed = threading.Condition()  # guards what follows
        self._come = self._written = 0  # numbers of the last piece that came, and was written
        self._sent = self._taken = -1
        self._ended, self._directions = False, 2

    @property
    def open(self) -> bool:
        """True once it has a socket."""
        return self._socket is not None

    def live(self, opens: Callable[[], socket.socket]) -> None:
        """Carry bytes until both directions have ended."""
        try:
            with opens() as made:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._changed:
                    self._socket, ended = made, self._ended
                if not ended:
                    self._carry(made)
        except OSError:
            self.end()

    def _carry(self, own: socket.socket) -> None:
        sending = threading.Thread(target=self._send, args=(own,), name="sordino send", daemon=True)
        sending.start()
        try:
            self._write(own)
        except OSError:
            self.end()
        sending.join()

    def ask(self, accepted: socket.socket) -> socket.socket:
        """Have the other end connect, for a socket that was accepted here.

        Raises:
            ConnectionError: if it does not.
        """
        if self._piece(0):
            return accepted
        accepted.close()
        raise ConnectionRefusedError("the other end does not connect")

    def connect(self, port: int) -> socket.socket:
        """Connect to a port of this machine, and say so.

        Raises:
            OSError: if nobody listens there.
        """
        made = socket.create_connection((HOST, port), timeout=CONNECTING)
        made.settimeout(None)
        self._tell(Parcel("taken", self._name))
        return made

    def got(self, parcel: Parcel) -> None:
        """Take a message of the other end; safe between threads, and never waits."""
        with self._changed:
            if parcel.kind == "taken" and parcel.number <= self._sent:
                self._taken = max(self._taken, parcel.number)
                self._changed.notify_all()
                return
            if parcel.kind == "piece" and parcel.number <= self._come:
                return
            free = self._written == self._come and len(parcel.body) <= PIECE
            if parcel.kind == "piece" and parcel.number == self._come + 1 and free:
                self._come += 1
                self._pieces.put(parcel.body)
                return
        self.end(tells=parcel.kind != "end")

    def end(self, *, tells: bool = True) -> None:
        """End both directions now."""
        with self._changed:
            if self._ended:
                return
            self._ended = True
            self._changed.notify_all()
        self._pieces.put(None)
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        if tells:
            self._tell(Parcel("end", self._name))

    def _piece(self, number: int, body: bytes = b"") -> bool:
        """Send a piece; return whether it was taken."""
        with self._changed:
            self._sent = number
        if not self._tell(Parcel("piece", self._name, number, body)):
            return False
        with self._changed:
            self._changed.wait_for(lambda: self._taken == number or self._ended, SILENT)
            return self._taken == number and not self._ended

    def _send(self, own: socket.socket) -> None:
        """Send what the program here writes."""
        most = LEAST
        with suppress(OSError):
            for number in count(1):
                body = own.recv(most)
                begun = time.monotonic()
                if not self._piece(number, body):
                    break
                if not body:
                    self._half()
                    return
                if time.monotonic() - begun > QUICK:
                    most = max(LEAST, most // 2)
                elif len(body) == most:
                    most = min(PIECE, 2 * most)
        self.end()

    def _write(self, own: socket.socket) -> None:
        """Write what comes for the program here."""
        while (body := self._pieces.get()) is not None:
            if body:
                own.sendall(body)
            else:
                own.shutdown(socket.SHUT_WR)
            with self._changed:
                self._written += 1
            self._tell(Parcel("taken", self._name, self._written))
            if not body:
                self._half()
                return

    def _half(self) -> None:
        """One direction has ended: wait for the other, and end it if that takes too long."""
        with self._changed:
            self._directions -= 1
            self._changed.notify_all()
            over = self._changed.wait_for(lambda: not self._directions or self._ended, SILENT)
        if not over:
            self.end()


class _End:
    """Connections of one end of the tunnel, by who is at the other end and their names.

    Args:
        tell: sends a parcel to a peer.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._there: dict[tuple[str, bytes], _Connection] = {}
        self._closed = False

    def got(self, peer: str, parcel: Parcel) -> None:
        """Take a message of a peer, in any thread."""
        with self._lock:
            found = self._there.get((peer, parcel.connection))
        if found is None:
            found = self._opened(peer, parcel)
        if found is not None:
            found.got(parcel)
        elif parcel.kind != "end":
            self._tell(peer, Parcel("end", parcel.connection))

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            self._closed = True
            there = tuple(self._there.values())
        for each in there:
            each.end()

    def _opened(self, peer: str, parcel: Parcel) -> _Connection | None:
        """Return the connection that a message opens, if it may."""
        return None

    def _made(self, peer: str, name: bytes) -> _Connection | None:
        """Return a new connection, unless the peer has too many."""
        with self._lock:
            if self._closed or sum(each == peer for each, _ in self._there) >= AT_ONCE:
                return None
            made = _Connection(lambda parcel: self._tell(peer, parcel), name)
            self._there[peer, name] = made
            return made

    def _start(
        self, peer: str, name: bytes, made: _Connection, opens: Callable[[], socket.socket]
    ) -> None:
        def lives() -> None:
            try:
                made.live(opens)
            finally:
                with self._lock:
                    del self._there[peer, name]

        threading.Thread(target=lives, name="sordino connection", daemon=True).start()


class ServerEnd(_End):
    """The server's end: each connection of a site goes to one port of this machine.

    Args:
        port: the only one that it connects to.
        log: told when nobody listens there, and when somebody does again.
    """

    def __init__(self, tell: Tell, port: int, log: Callable[[str], None]) -> None:
        super().__init__(tell)
        self._port, self._log, self._said = port, log, ""
        self._used = time.monotonic()

    def quiet(self) -> float:
        """Return the seconds without a connection to the port, as far as somebody has asked."""
        now = time.monotonic()
        with self._lock:
            if any(each.open for each in self._there.values()):
                self._used = now
        return now - self._used

    def _opened(self, peer: str, parcel: Parcel) -> _Connection | None:
        if (parcel.kind, parcel.number, len(parcel.connection)) != ("piece", 0, NAME):
            return None
        if (made := self._made(peer, parcel.connection)) is not None:
            self._start(peer, parcel.connection, made, partial(self._connected, made))
        return made

    def _connected(self, made: _Connection) -> socket.socket:
        said = f"connected to {HOST}:{self._port}"
        try:
            return made.connect(self._port)
        except OSError as error:
            said = f"{HOST}:{self._port}: {error}"
            raise
        finally:
            if said != self._said:
                self._said = said
                self._log(said)


class SiteEnd(_End):
    """A site's end: programs of its machine connect to it.

    Args:
        server: the peer.
    """

    def __init__(self, tell: Tell, server: str) -> None:
        super().__init__(tell)
        self._server = server

    def listen(self, listener: socket.socket, wanted: Callable[[], bool]) -> None:
        """Accept connections while they are wanted."""
        listener.settimeout(LOOK)
        while wanted():
            try:
                accepted, _ = listener.accept()
            except OSError:  # nobody within LOOK, or somebody who has gone again
                continue
            name = secrets.token_bytes(NAME)
            if (made := self._made(self._server, name)) is None:
                accepted.close()
            else:
                self._start(self._server, name, made, partial(made.ask, accepted))


def bound(port: int, wanted: Callable[[], bool]) -> socket.socket | None:
    """Return a socket that listens on a port of the loopback, as soon as nobody else does; None if
    it is not wanted any more.
    """
    while wanted():
        try:
            return socket.create_server((HOST, port))
        except OSError:  # the end of an earlier job, which ends soon
            time.sleep(LOOK)
    return None
