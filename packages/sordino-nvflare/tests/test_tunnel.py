"""The tunnel between ends in memory: order, losses, floods, and who may mean which connection."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from sordino_nvflare import tunnel
from sordino_nvflare.tunnel import (
    AT_ONCE,
    HOST,
    LEAST,
    NAME,
    PIECE,
    Parcel,
    ServerEnd,
    SiteEnd,
    bound,
)

SERVER, NORTH, SOUTH = "server.job", "north.job", "south.job"
BYTES = random.Random(1).randbytes(3 * PIECE + 17)


class Place:
    """A server's end, a program's port behind it, and the ends of sites.

    Attributes:
        bends: what becomes of a message on its way: what delivers it, or its like, calls ``go``.
        seen: every message: from whom, to whom, and what.
        said: by the server's end.
    """

    def __init__(self) -> None:
        self.listener = socket.create_server((HOST, 0))
        self.listener.settimeout(3.0)
        self.said: list[str] = []
        self.seen: list[tuple[str, str, Parcel]] = []
        self.bends: Callable[[Parcel, Callable[[], None]], None] = lambda parcel, go: go()
        self.sites: dict[str, SiteEnd] = {}
        self.server = ServerEnd(
            lambda peer, parcel: self.carry(SERVER, peer, parcel), self.port, self.said.append
        )
        self.stack, self.over = ExitStack(), threading.Event()

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def carry(self, sender: str, peer: str, parcel: Parcel) -> bool:
        end = self.server if peer == SERVER else self.sites.get(peer)
        self.seen.append((sender, peer, parcel))
        if end is None:
            return False
        self.bends(parcel, lambda: end.got(sender, parcel))
        return True

    def site(self, name: str = NORTH) -> Callable[[], socket.socket]:
        """A site's end; what connects a program to it."""
        end = SiteEnd(lambda peer, parcel: self.carry(name, peer, parcel), SERVER)
        self.sites[name] = end
        listener = self.stack.enter_context(socket.create_server((HOST, 0)))
        port = listener.getsockname()[1]
        thread = threading.Thread(
            target=end.listen, args=(listener, lambda: not self.over.is_set())
        )
        thread.start()
        self.stack.callback(thread.join)
        self.stack.callback(self.over.set)

        def connect() -> socket.socket:
            made = self.stack.enter_context(socket.create_connection((HOST, port), timeout=3.0))
            made.settimeout(3.0)
            return made

        return connect

    def accept(self) -> socket.socket:
        made = self.stack.enter_context(self.listener.accept()[0])
        made.settimeout(3.0)
        return made

    def names(self, site: str = NORTH) -> list[bytes]:
        """Connections that a site has opened."""
        return [
            each.connection
            for sender, _, each in self.seen
            if sender == site and (each.kind, each.number) == ("piece", 0)
        ]

    def close(self) -> None:
        for each in (self.server, *self.sites.values()):
            each.close()
        self.stack.close()
        self.listener.close()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(tunnel, "LOOK", 0.02)
    with closing(Place()) as found:
        yield found


def whole(own: socket.socket) -> bytes:
    """All bytes until the other side sends no more, or the connection is broken."""
    found = bytearray()
    with suppress(ConnectionError):
        while part := own.recv(1 << 16):
            found += part
    return bytes(found)


def ended(own: socket.socket) -> bool:
    """Whether nothing more comes."""
    with suppress(ConnectionError):
        return own.recv(1) == b""
    return True


def talk(own: socket.socket, content: bytes) -> threading.Thread:
    def send() -> None:
        with suppress(OSError):
            own.sendall(content)
            own.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def exchanged(one: socket.socket, other: socket.socket) -> None:
    """Many bytes go both ways at once, and each side ends its own direction."""
    threads = [talk(one, BYTES), talk(other, BYTES[::-1])]
    found: list[bytes] = []
    reads = threading.Thread(target=lambda: found.append(whole(one)))
    reads.start()
    assert whole(other) == BYTES
    reads.join()
    assert found == [BYTES[::-1]]
    for each in threads:
        each.join()


def test_bytes_go_both_ways_in_order(place: Place) -> None:
    one = place.site()()
    exchanged(one, place.accept())
    assert "end" not in {parcel.kind for _, _, parcel in place.seen}
    assert max(len(parcel.body) for _, _, parcel in place.seen) <= PIECE


def test_pieces_are_short_where_long_ones_take_long(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def longest() -> int:
        one, content = connect(), BYTES[: 16 * LEAST]
        other = place.accept()
        place.seen.clear()
        writing = talk(one, content)
        assert whole(other) == content
        writing.join()
        return max(len(parcel.body) for _, _, parcel in place.seen)

    def slow(parcel: Parcel, go: Callable[[], None]) -> None:
        time.sleep(len(parcel.body) / LEAST * 0.01)
        go()

    connect = place.site()
    assert longest() > 2 * LEAST
    monkeypatch.setattr(tunnel, "QUICK", 0.015)
    place.bends = slow
    assert longest() <= 2 * LEAST  # silent for 0.02 s at most, and not for that of all 16


def test_a_direction_ends_by_itself(place: Place) -> None:
    one = place.site()()
    other = place.accept()
    one.sendall(b"question")
    one.shutdown(socket.SHUT_WR)
    assert whole(other) == b"question"
    time.sleep(0.05)
    other.sendall(b"answer")
    assert one.recv(100) == b"answer"
    other.close()
    assert ended(one)


def test_messages_that_come_late_or_twice_change_nothing(place: Place) -> None:
    dice = random.Random(2)

    def bent(parcel: Parcel, go: Callable[[], None]) -> None:
        for _ in range(dice.choice((1, 2))):
            threading.Timer(dice.random() * 0.01, go).start()

    place.bends = bent
    one = place.site()()
    exchanged(one, place.accept())


@pytest.mark.parametrize("kind", ["piece", "taken"])
def test_a_lost_message_ends_the_connection(
    kind: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "SILENT", 0.6)
    one = place.site()()
    other = place.accept()
    lost: list[Parcel] = []

    def bent(parcel: Parcel, go: Callable[[], None]) -> None:
        if parcel.kind == kind and parcel.number == 2 and not lost:
            lost.append(parcel)
        else:
            go()

    place.bends = bent
    talk(one, BYTES).join()
    got = whole(other)
    assert lost
    assert BYTES.startswith(got)
    assert len(got) < len(BYTES)
    assert ended(one)


def answered(place: Place, peer: str, name: bytes) -> bool:
    """Whether the server's end has ended a connection, or has said that there is none."""
    return (SERVER, peer, Parcel("end", name)) in place.seen


@pytest.mark.parametrize(
    "parcels",
    [
        [Parcel("piece", b"", 2, b"a gap")],
        [Parcel("piece", b"", 1, bytes(PIECE + 1))],
        [Parcel("piece", b"", number, bytes(PIECE)) for number in range(1, 40)],
        [Parcel("taken", b"", 1)],
        [Parcel("piece", b"", -(2**63), b""), Parcel("piece", b"", 2**63, b"")],
    ],
    ids=["gap", "long", "flood", "taken too early", "numbers"],
)
def test_a_site_that_breaks_the_rules_loses_its_connection(
    parcels: list[Parcel], place: Place
) -> None:
    place.sites[NORTH] = SiteEnd(lambda peer, parcel: True, SERVER)  # which the test plays
    name = bytes(NAME)
    place.server.got(NORTH, Parcel("piece", name, 0))
    place.accept()  # and reads nothing
    for each in parcels:
        place.server.got(NORTH, Parcel(each.kind, name, each.number, each.body))
    assert answered(place, NORTH, name)


def test_a_connection_belongs_to_who_has_opened_it(place: Place) -> None:
    one = place.site()()
    other = place.accept()
    place.sites[SOUTH] = SiteEnd(lambda peer, parcel: True, SERVER)  # which the test plays
    [name] = place.names()
    place.server.got(SOUTH, Parcel("piece", name, 0))  # opens one of the same name, its own
    stranger = place.accept()
    place.server.got(SOUTH, Parcel("piece", name, 1, b"of south"))
    assert stranger.recv(100) == b"of south"
    place.server.got(SOUTH, Parcel("taken", name, 0))
    place.server.got(SOUTH, Parcel("end", name))
    assert ended(stranger)
    one.sendall(b"of north")
    assert other.recv(100) == b"of north"
    place.sites[NORTH].got(SERVER, Parcel("piece", bytes(NAME), 0))  # a server opens nothing
    assert (NORTH, SERVER, Parcel("end", bytes(NAME))) in place.seen


def test_a_site_has_few_connections_at_once(place: Place) -> None:
    place.sites[SOUTH] = SiteEnd(lambda peer, parcel: True, SERVER)
    connect = place.site()
    there = [(connect(), place.accept()) for _ in range(AT_ONCE)]
    assert ended(connect())
    names = [bytes([each]) * NAME for each in range(3 * AT_ONCE)]
    for each in names:
        place.server.got(SOUTH, Parcel("piece", each, 0))
    assert sum(answered(place, SOUTH, each) for each in names) == 2 * AT_ONCE
    for one, other in there[:1]:
        one.close()
        assert ended(other)
        other.close()
    for _ in range(100):  # its end takes a moment
        again = connect()
        with suppress(ConnectionError):
            again.sendall(b"again")
            if place_reads(place, b"again"):
                return
    raise AssertionError("a place that became free was not used")


def place_reads(place: Place, content: bytes) -> bool:
    """Whether one of the connections that wait for the server's program says this."""
    place.listener.settimeout(0.05)
    with suppress(TimeoutError):
        while True:
            made = place.accept()
            made.settimeout(0.05)
            with suppress(TimeoutError):
                if made.recv(100) == content:
                    return True
    return False


def test_where_nobody_listens_a_connection_ends_and_it_is_said_once(place: Place) -> None:
    connect, port = place.site(), place.port
    place.listener.close()
    for _ in range(3):
        assert ended(connect())
    assert len(place.said) == 1
    assert f"{HOST}:{port}" in place.said[0]
    place.listener = socket.create_server((HOST, port))
    place.listener.settimeout(3.0)
    exchanged(connect(), place.accept())
    assert place.said[1:] == [f"connected to {HOST}:{port}"]


def test_a_program_that_does_not_read_holds_back_the_one_that_writes(place: Place) -> None:
    one = place.site()()
    other = place.accept()
    content = BYTES * 20
    writing = talk(one, content)
    before, now = -1, 0
    while before < now:  # the buffers of sockets fill, and nothing piles up
        time.sleep(0.2)
        before, now = now, sum(len(parcel.body) for _, _, parcel in place.seen)
    assert writing.is_alive()
    assert 0 < now < len(content) - 2 * PIECE
    assert whole(other) == content
    writing.join()


def test_an_end_that_closes_ends_its_connections(place: Place) -> None:
    connect = place.site()
    one = connect()
    other = place.accept()
    place.server.close()
    assert ended(one)
    assert ended(other)
    assert ended(connect())


def test_the_servers_end_knows_for_how_long_nobody_has_used_it(place: Place) -> None:
    one = place.site()()
    other = place.accept()
    one.sendall(b"x")
    assert other.recv(1) == b"x"
    time.sleep(0.1)
    assert place.server.quiet() == 0.0
    one.close()
    other.close()
    late = time.monotonic() + 3.0
    while place.server.quiet() < 0.05:
        assert time.monotonic() < late
    place.listener.close()
    assert ended(place.site(SOUTH)())  # who reaches nobody does not count
    assert place.server.quiet() > 0.05


def test_a_site_listens_as_soon_as_an_earlier_job_does_no_more(place: Place) -> None:
    holds, found = socket.create_server((HOST, 0)), list[socket.socket | None]()
    port = holds.getsockname()[1]
    thread = threading.Thread(target=lambda: found.append(bound(port, lambda: True)))
    thread.start()
    time.sleep(0.1)
    assert not found
    holds.close()
    thread.join(3.0)
    assert found[0] is not None
    with found[0]:
        assert found[0].getsockname() == (HOST, port)
        assert bound(port, lambda: False) is None


@pytest.mark.parametrize("first", ["site", "server"])
def test_half_a_connection_is_not_kept_for_ever(
    first: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "SILENT", 0.2)
    one = place.site()()
    other = place.accept()
    ends, stays = (one, other) if first == "site" else (other, one)
    ends.shutdown(socket.SHUT_WR)
    assert ended(stays)
    assert ended(ends)  # though the other program has not closed its own
    late = time.monotonic() + 3.0
    while place.server.quiet() < 0.01:
        assert time.monotonic() < late
