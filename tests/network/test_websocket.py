"""The transport over TLS: who is let in, and what ends a connection."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.http11 import Request, Response
from websockets.uri import parse_uri

from federations import laid
from sordino.base.errors import StudyError
from sordino.network import certificates, kit, transport, websocket
from sordino.network.demo import DemoFederation
from sordino.network.kit import Agreed
from sordino.network.transport import Lost, Mailbox, Stranger
from sordino.network.websocket import Beginning, Port, WebSocketHub, WebSocketLine

LIMIT = 100_000


@dataclass
class Open:
    """A hub, its mailbox and what it refused."""

    laid: DemoFederation
    mailbox: Mailbox = field(default_factory=Mailbox)
    refused: list[tuple[str, str]] = field(default_factory=list)
    number: int = 0
    hub: WebSocketHub = field(init=False)

    def __post_init__(self) -> None:
        kit = self.laid.server
        study = Agreed(kit).agreement.name
        self.hub = WebSocketHub(
            Port("127.0.0.1", self.number, {study: (kit, "127.0.0.1")}),
            study,
            LIMIT,
            frozenset({"site-0", "site-1"}),
            self.mailbox,
            kit,
            lambda who, why: self.refused.append((who, why)),
        )
        self.address = f"127.0.0.1:{self.hub.port}"

    def context(self, site: int) -> ssl.SSLContext:
        return certificates.context(self.laid.sites[site][0], "site")

    def line(self, site: int = 0) -> WebSocketLine:
        return WebSocketLine(self.address, self.context(site), LIMIT)

    def raw(
        self,
        context: ssl.SSLContext,
        *said: str | bytes | list[bytes],
        then: Callable[[], None] = lambda: None,
    ) -> bytes | str:
        """Say something over a connection of one's own, and what comes back.

        In one thread: TLS of Python before 3.13 may lose what is written while another one reads.
        """

        async def talk() -> bytes | str:
            async with connect(f"wss://{self.address}/", ssl=context, compression=None) as line:
                for each in said:
                    await line.send(each)
                await asyncio.to_thread(then)  # while it is open
                return await asyncio.wait_for(line.recv(), 5) if not said else b""

        return asyncio.run(talk())

    def until(self, what: Callable[[], object]) -> None:
        end = time.monotonic() + 10
        while not what():
            assert time.monotonic() < end, self.refused
            time.sleep(0.005)

    def named(self, why: str) -> bool:
        return any(why in told for _, told in self.refused)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    found = Open(laid(tmp_path, "synchronous"))
    yield found
    found.hub.close()


def test_frames_pass_both_ways_and_a_second_connection_ends_the_first(opened: Open) -> None:
    first = opened.line()
    event = opened.mailbox.get(5)
    assert event is not None
    assert (event.kind, event.site) == ("open", "site-0")
    first.send(b"up")
    event = opened.mailbox.get(5)
    assert event is not None
    assert event.frame == b"up"
    opened.hub.send("site-0", b"down")
    assert next(first.frames()) == b"down"
    second = opened.line()
    with pytest.raises(Lost):
        next(first.frames())
    kinds = {
        found.connection: found.kind
        for found in (opened.mailbox.get(5), opened.mailbox.get(5))
        if found
    }
    assert set(kinds.values()) == {"open", "closed"}
    opened.hub.send("site-1", b"to nobody")
    opened.hub.drop("site-0", "enough")
    with pytest.raises(Lost):
        next(second.frames())


def test_strangers_are_refused_named_and_counted(opened: Open, tmp_path: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.load_verify_locations(opened.laid.server / "authority.pem")
    other = certificates.context(laid(tmp_path / "of", "client").sites[0][0], "site")
    other.load_verify_locations(opened.laid.server / "authority.pem")
    other.verify_flags &= ~ssl.VERIFY_CRL_CHECK_LEAF  # its list is of the other authority
    old = opened.context(0)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    for context, why in (
        (bare, "did not return a certificate"),
        (other, "verify failed"),
        (old, "unsupported protocol"),
    ):
        with pytest.raises((OSError, ConnectionClosed, InvalidHandshake)):
            opened.raw(context)
        opened.until(lambda why=why: opened.named(why))  # type: ignore[misc]
    with pytest.raises(Stranger, match="not a site of this federation"):
        opened.line(2)
    assert ("site-2", "its certificate is of no site of this federation") in opened.refused
    authority = opened.laid.server.parent / "authority"
    (opened.laid.server / certificates.REVOKED).write_bytes(
        kit.revoke(authority, "site-1", now).read_bytes()
    )
    with pytest.raises(Stranger, match="revoked"):
        opened.line(1)
    assert ("site-1", "its certificate is revoked") in opened.refused
    told = opened.mailbox.get(5)
    assert told is not None
    assert (told.kind, told.site) == ("barred", "site-1")
    opened.line(0).close()


def test_no_ticket_admits_a_certificate_that_has_ended_since(opened: Open) -> None:
    host, port = opened.address.split(":")
    with (
        socket.create_connection((host, int(port))) as plain,
        opened.context(0).wrap_socket(plain, server_hostname=host) as line,
    ):
        line.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert line.recv(1)  # a ticket would have come before
        assert line.session is None or not line.session.has_ticket


def test_a_site_refuses_a_server_whose_certificate_is_on_the_list_in_its_kit(opened: Open) -> None:
    """A stolen kit of the server, revoked, is the server's no more; each connection reads the list
    anew, and a kit of before, without one, is used as it is. A list that came by an open way makes
    nobody else the server.
    """
    (site, _), authority = opened.laid.sites[0], opened.laid.server.parent / "authority"
    agreement = Agreed(site).agreement.model_copy(update={"server": opened.address})
    connects = transport.of("websocket").site(agreement, 0, site)
    (site / certificates.REVOKED).unlink()
    connects(LIMIT).close()
    now = dt.datetime.now(dt.UTC)
    found = kit.revoke(authority, "site-1", now).read_bytes()
    (site / certificates.REVOKED).write_bytes(found)
    connects(LIMIT).close()
    found = kit.revoke(authority, "server", now).read_bytes()
    (site / certificates.REVOKED).write_bytes(found)
    with pytest.raises(Lost, match="revoked"):
        connects(LIMIT)
    kit.renew(authority, "server", opened.laid.server, now)
    opened.hub.close()
    opened.__post_init__()
    agreement = agreement.model_copy(update={"server": opened.address})
    transport.of("websocket").site(agreement, 0, site)(LIMIT).close()
    mallory = certificates.authority("mallory", now)
    trusting = found + mallory.pem()[0] + certificates.revoked(mallory, (), now)
    for content in (found[:200], found * 2, trusting, certificates.revoked(mallory, (), now)):
        (site / certificates.REVOKED).write_bytes(content)
        with pytest.raises(StudyError, match=r"revoked.pem: (cannot be read|this list)"):
            transport.of("websocket").site(agreement, 0, site)


def test_a_broker_of_the_same_authority_and_host_is_no_server(opened: Open) -> None:
    """Who has the broker's key of one study would be the server of the others."""
    by = certificates.read_pair(opened.laid.server.parent / "authority", "authority")
    broker = certificates.certify(
        by, "broker", "server", dt.datetime.now(dt.UTC), hosts=("127.0.0.1",)
    )
    for name, content in zip(("server.key", "server.pem"), broker.pem()[::-1], strict=True):
        (opened.laid.server / name).write_bytes(content)
    opened.hub.close()
    opened.__post_init__()
    with pytest.raises(Lost, match="its certificate is that of the broker only"):
        opened.line()


def test_a_second_authority_in_a_kit_is_nobodys(opened: Open, tmp_path: Path) -> None:
    """Kits without secrets are mailed. TLS took every certificate and list in authority.pem, of
    which all checks looked at the first: whoever added his own was the server.
    """
    (site, _), now = opened.laid.sites[0], dt.datetime.now(dt.UTC)
    mallory = certificates.authority("mallory", now)
    own, _ = mallory.pem()
    own += certificates.revoked(mallory, (), now)
    server = certificates.certify(mallory, "server", "server", now, hosts=("127.0.0.1",))
    before = (site / "authority.pem").read_bytes()
    for name, content in zip(("server.pem", "server.key"), server.pem(), strict=True):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "authority.pem").write_bytes(before)
    listening = certificates.context(tmp_path, "server")
    (site / "authority.pem").write_bytes(before + own)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = certificates.context(site, "site").wrap_bio(there, back, server_hostname="127.0.0.1")
    fake = listening.wrap_bio(back, there, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        fake.do_handshake()
    with pytest.raises(ssl.SSLCertVerificationError):
        client.do_handshake()
    opened.line().close()  # its own server is who it was


def test_a_site_whose_certificate_is_revoked_is_cut_off_when_it_speaks(opened: Open) -> None:
    line, other = opened.line(1), opened.line(0)
    line.send(b"before")
    opened.until(lambda: opened.mailbox._queue.qsize() == 3)
    authority = opened.laid.server.parent / "authority"
    found = kit.revoke(authority, "site-1", dt.datetime.now(dt.UTC))
    (opened.laid.server / certificates.REVOKED).write_bytes(found.read_bytes())
    line.send(b"after")
    with pytest.raises(Lost):
        next(line.frames())
    opened.until(lambda: opened.named("revoked"))
    other.send(b"still there")
    opened.until(lambda: opened.mailbox._queue.qsize() == 6)
    told = [opened.mailbox.get(5) for _ in range(6)]
    kinds = [(each.kind, each.site) for each in told if each is not None]
    assert kinds[3:5] == [("closed", "site-1"), ("barred", "site-1")]
    assert not any(each is not None and each.frame == b"after" for each in told)


def test_connections_beyond_the_limit_are_refused_and_named(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "STRANGERS", -1)
    first = opened.line(0)
    with pytest.raises(Lost):  # the reason may be lost when the server closes the connection
        opened.line(1)
    opened.until(lambda: ("site-1", "too many connections at once") in opened.refused)
    first.close()


def test_connections_that_say_nothing_leave_files_and_sites_their_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many more than the process may open; they are held by another process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = max(int(each) for each in os.listdir("/dev/fd")) + 300
    flood = (
        "import socket, sys, time\n"
        "held = []\n"
        "for _ in range(600):\n"
        "    try: held.append(socket.create_connection(('127.0.0.1', int(sys.argv[1])), 1))\n"
        "    except OSError: pass\n"
        "print(len(held), flush=True)\n"
        "sys.stdin.read()\n"
    )
    monkeypatch.setattr(websocket, "DESCRIPTORS", lowest)
    monkeypatch.setattr(websocket, "OPENING", 2.0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        opened = Open(laid(tmp_path, "synchronous"))
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [sys.executable, "-c", flood, str(opened.hub.port)], stdin=pipe, stdout=pipe, text=True
        ) as held:
            assert held.stdout is not None
            assert held.stdin is not None
            assert int(held.stdout.readline()) > 300
            opened.until(lambda: opened.named("too many connections that have not said"))
            (tmp_path / "own file").write_text("there is a descriptor for it")
            while True:  # as a site does
                with suppress(Lost):
                    opened.line().close()
                    break
            held.stdin.close()
        opened.hub.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_server_that_ends_while_sites_connect_leaves_no_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio prints a line for each."""
    opened = Open(laid(tmp_path, "synchronous"))
    with ExitStack() as held:
        for _ in range(20):
            held.enter_context(socket.create_connection(("127.0.0.1", opened.hub.port)))
        loop = opened.hub._port.thread.loop
        opened.until(lambda: len(asyncio.all_tasks(loop)) >= 20)
        opened.hub.close()
    gc.collect()
    assert "pending" not in caplog.text


def test_too_large_a_frame_ends_a_connection_and_text_is_no_frame(opened: Open) -> None:
    line = opened.line()
    line.send(b"x" * (LIMIT + 1))
    with pytest.raises(Lost):
        next(line.frames())
    opened.until(lambda: ("site-0", f"a frame of more than {LIMIT} bytes") in opened.refused)
    opened.raw(opened.context(0), "text")
    opened.until(lambda: opened.mailbox._queue.qsize() >= 4)
    kinds = [opened.mailbox.get(5) for _ in range(4)]
    assert kinds[3] is not None
    assert (kinds[3].kind, kinds[3].frame) == ("frame", b"")


def test_who_reads_too_slowly_is_cut_off(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    line = opened.line()
    assert opened.mailbox.get(5) is not None
    for _ in range(websocket.QUEUED + 400):
        opened.hub.send("site-0", b"x" * LIMIT)
    opened.until(lambda: opened.named("it reads too slowly"))
    with pytest.raises(Lost):
        for _ in line.frames():
            pass


def test_a_flood_waits_outside(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one site at most a few frames wait for the server, however many it sends."""
    monkeypatch.setattr(websocket, "BEAT", 0.2)
    line = opened.line()
    with suppress(Lost):
        for _ in range(2_000):
            line.send(b"x" * LIMIT)
    assert opened.mailbox._waiting["site-0"] <= 9


def test_a_port_that_is_taken_and_an_address_without_a_server_are_named(opened: Open) -> None:
    with pytest.raises(StudyError, match="cannot listen there"):
        Open(opened.laid, number=opened.hub.port)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Lost):
        WebSocketLine(f"127.0.0.1:{port}", opened.context(0), LIMIT)


def test_a_site_that_computes_for_long_stays_and_a_silent_one_is_cut_off(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "BEAT", 0.4)
    first = opened.line(0)
    time.sleep(1.5)  # more than three beats without a word
    opened.hub.send("site-0", b"still there")
    assert next(first.frames()) == b"still there"
    first.close()
    opened.line(1)._thread.soon(time.sleep, 2.5)
    events = [opened.mailbox.get(5) for _ in range(4)]
    assert [(each.kind, each.site) for each in events if each is not None] == [
        ("open", "site-0"), ("closed", "site-0"), ("open", "site-1"), ("closed", "site-1"),
    ]  # fmt: skip


def test_a_server_that_says_nothing_is_lost(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "BEAT", 0.1)
    line = opened.line()
    opened.hub._port.thread.soon(time.sleep, 1.0)
    with pytest.raises(Lost, match="nothing for"):
        next(line.frames())
    with pytest.raises(Lost, match="nothing for"):
        line.send(b"into the void")
    line.close()


def test_a_frame_in_pieces_is_one(opened: Open) -> None:
    opened.raw(opened.context(0), [b"in ", b"two ", b"pieces"])
    found = [opened.mailbox.get(5) for _ in range(2)]
    assert found[1] is not None
    assert found[1].frame == b"in two pieces"


def test_what_a_site_said_before_it_closed_is_heard(opened: Open) -> None:
    line = opened.line()
    for number in range(20):  # more than the server lets in at once
        line.send(bytes([number]))
    line.close()
    found = [opened.mailbox.get(5) for _ in range(22)]
    assert [each.frame for each in found if each and each.kind == "frame"] == [
        bytes([number]) for number in range(20)
    ]
    assert found[-1] is not None
    assert found[-1].kind == "closed"


def test_frames_that_wait_when_a_site_ends_are_heard(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server lets in a few, holds many, and has stopped reading when the last ones come; the
    site does not wait for it.
    """
    monkeypatch.setattr(websocket, "CLOSING", 0.2)
    line = opened.line()
    opened.hub._port.thread.soon(time.sleep, 0.3)  # it reads many at once after that
    for number in range(80):
        line.send(bytes([number]))
        if number == 60:
            time.sleep(0.6)
    line.close()
    time.sleep(0.3)
    found = [opened.mailbox.get(5) for _ in range(82)]
    assert [each.frame[0] for each in found if each and each.kind == "frame"] == [*range(80)]
    assert found[-1] is not None
    assert found[-1].kind == "closed"


def _proxy(answer: bytes, asked: list[bytes]) -> int:
    """A proxy for one connection, and its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def relay(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with listening, listening.accept()[0] as near:
            asked.append(near.recv(65_536))
            near.sendall(answer)
            if b" 200 " not in answer:
                return
            host, port = asked[0].split(b" ")[1].decode().rsplit(":", 1)
            with socket.create_connection((host, int(port))) as far:
                back = threading.Thread(target=relay, args=(far, near))
                back.start()
                relay(near, far)
                back.join()

    threading.Thread(target=serve, daemon=True).start()
    return int(listening.getsockname()[1])


def test_a_site_goes_through_the_proxy_that_its_environment_names(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    asked: list[bytes] = []
    port = _proxy(b"HTTP/1.1 200 Connection established\r\n\r\n", asked)
    monkeypatch.setenv("https_proxy", f"http://me:secret@127.0.0.1:{port}")
    line = opened.line()
    line.send(b"through")
    told = [opened.mailbox.get(5) for _ in range(2)]
    assert [each.kind for each in told if each] == ["open", "frame"]
    assert told[1] is not None
    assert told[1].frame == b"through"
    line.close()
    assert asked[0].startswith(f"CONNECT {opened.address} HTTP/1.1\r\n".encode())
    assert b"Proxy-Authorization: Basic bWU6c2VjcmV0" in asked[0]
    for answer, why in (
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "rejected connection: HTTP 403"),
        (b"HTTP/1.1 200", "HTTP response from proxy"),
    ):
        port = _proxy(answer, asked)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        with pytest.raises(Lost, match=why):
            opened.line()
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(Lost, match="SOCKS"):
        opened.line()
    for odd in ("foo", "http://me:secret@", "http://me:secret@127.0.0.1:99999"):
        monkeypatch.setenv("https_proxy", odd)
        with pytest.raises(Stranger, match="https_proxy") as found:
            opened.line()
        assert "secret" not in str(found.value)


def test_who_pings_and_does_not_read_is_cut_off(opened: Open) -> None:
    """Answers to pings wait for the site, too: they must not fill the server's memory."""
    address = ("127.0.0.1", opened.hub.port)
    with opened.context(0).wrap_socket(
        socket.create_connection(address, 5), server_hostname="127.0.0.1"
    ) as raw:
        protocol = ClientProtocol(parse_uri(f"wss://{opened.address}/"))
        protocol.send_request(protocol.connect())
        raw.sendall(b"".join(protocol.data_to_send()))
        protocol.receive_data(raw.recv(4096))
        for _ in range(5_000):
            protocol.send_ping(b"x" * 125)
        pings = b"".join(protocol.data_to_send())
        with suppress(OSError):
            for _ in range(100):
                raw.sendall(pings)
    opened.until(lambda: opened.named("it reads too slowly"))


def test_empty_pieces_of_a_frame_are_not_kept(opened: Open) -> None:
    opened.raw(opened.context(0), [*[b""] * 5_000, b"whole"])
    found = [opened.mailbox.get(5) for _ in range(2)]
    assert found[1] is not None
    assert found[1].frame == b"whole"


def test_while_the_list_of_revoked_certificates_cannot_be_read_sites_are_asked_to_come_again(
    opened: Open,
) -> None:
    """As when somebody copies it: each site that speaks then is gone, and counted as gone."""
    place = opened.laid.server / certificates.REVOKED
    whole = place.read_bytes()
    for half in (whole[:200], None):
        line = opened.line()
        place.unlink() if half is None else place.write_bytes(half)
        line.send(b"frame")
        with pytest.raises(Lost, match="cannot be read now"):
            next(line.frames())
        with pytest.raises(Lost, match="cannot be read now"):  # no Stranger, who stays away
            opened.line()
        place.write_bytes(whole)
        opened.until(lambda: not opened.hub._open)
        told = [opened.mailbox.get(5) for _ in range(2)]
        assert [each and each.kind for each in told] == ["open", "closed"]
    opened.line().close()


def test_what_a_site_has_missed_is_sent_at_once_however_many_frames(opened: Open) -> None:
    line = opened.line()
    opened.until(lambda: opened.hub._there)
    for number in range(1000):
        opened.hub.send("site-0", b"%300d" % number)
    came = line.frames()
    assert [int(next(came)) for _ in range(1000)] == [*range(1000)]
    assert not opened.named("slowly")
    line.close()


def test_a_server_sends_no_site_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it could look which hosts and ports of the site's network answer."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(0.2)
        port = elsewhere.getsockname()[1]

        def redirects(
            hub: WebSocketHub, connection: ServerConnection, request: Request
        ) -> Response:
            answer = connection.respond(HTTPStatus.FOUND, "")
            answer.headers["Location"] = f"wss://127.0.0.1:{port}/"
            return answer

        monkeypatch.setattr(WebSocketHub, "admit", redirects)
        found = Open(laid(tmp_path, "synchronous"))
        with pytest.raises(Lost, match="302"):
            found.line()
        with pytest.raises(TimeoutError):
            elsewhere.accept()
        found.hub.close()


def test_pieces_of_a_frame_cost_no_more_than_their_bytes() -> None:
    beginning = Beginning(1_000_000)
    tracemalloc.start()
    for number in range(100_000):
        assert beginning.add(b"%02d" % (number % 100))
    assert tracemalloc.get_traced_memory()[0] < 2 * 200_000
    tracemalloc.stop()
    assert len(beginning.take()) == 200_000
