"""MQTT 5 over mutual TLS 1.3: the server and the sites are clients of a broker. Sordino finds this
transport by the entry point ``mqtt``.

Each site has two topics, ``sordino/FEDERATION/up/SITE`` and ``.../down/SITE``, and one for its
presence, ``.../there/SITE``, which the broker clears when the site's connection ends (last will).
Everything is sent with QoS 1. Sessions are clean: the broker keeps nothing for who is away, because
the server asks again whoever comes back.

Who has sent a message is what its topic says. That holds because the broker takes names from
certificates and its access list lets a site write to its own topics alone: *the broker is trusted
for identity*, and it reads what passes. Its list of revoked certificates is the broker's as well;
for the broker's own certificate, server and sites have one in their kits.

The correlation data of a message say to which connection of a site it belongs, and of which server
process a presence is. So messages that were on their way when a connection ended are told from
those of the next one.
"""

from __future__ import annotations

import secrets
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path

from sordino.extend.network import (
    Agreed,
    Agreement,
    Connects,
    DemoFederation,
    Event,
    FrameQueue,
    Lost,
    Mailbox,
    OpensHub,
    Stranger,
    StudyError,
    Transport,
    context,
    end,
)
from sordino_mqtt import broker as brokers
from sordino_mqtt.link import SERVER, Broker, Link

WAITING = 30.0
"""Seconds that a site waits at the broker for the server, before it connects anew."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts of the server to reach the broker."""


class MqttHub:
    """The server's end. It connects to the broker again whenever that connection ends.

    Args:
        broker: where it is.
        context: makes mutual TLS, as a client, for each connection.
        limit: bytes of a frame.
        sites: names that may connect.
        mailbox: where events go.
        refused: told of what was refused: who, and why.
        told: told of the connection to the broker, in words.

    Raises:
        StudyError: if the broker is not the federation's, or does not admit the server.
    """

    def __init__(
        self,
        broker: Broker,
        context: Callable[[], ssl.SSLContext],
        limit: int,
        sites: frozenset[str],
        mailbox: Mailbox,
        refused: Callable[[str, str], None],
        told: Callable[[str], None],
    ) -> None:
        self._broker, self._context, self._limit = broker, context, limit
        self._sites, self._mailbox, self._refused, self._told = sites, mailbox, refused, told
        self._numbers, self._lock = count(1), threading.RLock()
        self._there: dict[str, tuple[int, bytes]] = {}
        self._last: dict[str, bytes] = {}
        self._link: Link | None = None
        self._stop = threading.Event()
        try:
            self._open()
        except Stranger as error:
            raise StudyError(str(error)) from error
        except Lost as error:
            told(f"no connection to the broker ({error}); trying again")
        self._thread = threading.Thread(target=self._keep, name="sordino hub", daemon=True)
        self._thread.start()

    def send(self, site: str, frame: bytes) -> None:
        with self._lock:
            if self._link is not None and site in self._there:
                self._link.publish("down", site, frame, self._there[site][1])

    def drop(self, site: str, why: str) -> None:
        """An empty message ends a connection."""
        self.send(site, b"")
        self._gone(site)

    def close(self) -> None:
        self._stop.set()
        with self._lock:
            link = self._link
        if link is not None:
            link.close()
        self._thread.join(timeout=10)

    def _keep(self) -> None:
        """Connect whenever there is no connection, until closed."""
        pause, said = FIRST_PAUSE, ""
        while not self._stop.is_set():
            try:
                link = self._link
                if link is None:
                    self._stop.wait(pause)
                    link = self._open()
                    self._told("connected to the broker again")
                    pause = FIRST_PAUSE
                if not self._stop.is_set():  # else it was opened while the hub was being closed
                    link.ended.wait()
                why = link.why
                link.close()  # frees the socket
                self._link = None
            except (Lost, Stranger, StudyError) as error:  # a list that is being copied
                why, pause = str(error), min(2 * pause, LONGEST_PAUSE)
            if why != said and not self._stop.is_set():
                said = why
                self._told(f"no connection to the broker ({said}); trying again")

    def _open(self) -> Link:
        self._link = None
        link = Link(
            self._broker, SERVER, secrets.token_bytes(8), self._context(), self._got, self._ended
        )
        link.subscribe(("up", "+"), ("there", "+"))
        with self._lock:
            self._link = link
        try:
            link.appear()  # sites speak from here on
        except (Lost, Stranger):
            self._link = None
            raise
        return link

    def _ended(self) -> None:
        with self._lock:
            for site in tuple(self._there):
                self._gone(site)

    def _got(self, kind: str, name: str, body: bytes, key: bytes, kept: bool) -> None:
        if name == SERVER:
            return
        if name not in self._sites:
            self._refused(name, "its certificate is of no site of this federation")
        elif kind == "up":
            self._frame(name, body, key)
        elif not kept:  # a presence from before this connection: the site comes anew
            self._presence(name, body, key)

    def _presence(self, name: str, body: bytes, key: bytes) -> None:
        with self._lock:
            current = self._there.get(name, (0, b""))[1]
            if not body:
                if key == current:
                    self._gone(name)
            elif key in (current, self._last.get(name)):
                pass  # it says it again
            elif self._mailbox.full(name):
                self._refused(name, "it connects more often than the server reads")
            else:
                self._there[name] = (next(self._numbers), key)
                self._mailbox.put(Event("open", name, self._there[name][0]))

    def _frame(self, name: str, body: bytes, key: bytes) -> None:
        number, current = self._there.get(name, (0, b""))
        if not number or key != current:
            self._refused(name, "a frame of a connection that has ended")
        elif len(body) > self._limit:
            self._refused(name, f"a frame of {len(body)} bytes")
            self.drop(name, "a frame that is too large")
        elif self._mailbox.full(name):
            self._refused(name, "it sends more than the server reads")
            self.drop(name, "too many frames")
        else:
            self._mailbox.put(Event("frame", name, number, body))

    def _gone(self, site: str) -> None:
        with self._lock:
            if site in self._there:
                number, self._last[site] = self._there.pop(site)
                self._mailbox.put(Event("closed", site, number))


class MqttLine:
    """A site's end.

    Args:
        broker: where it is.
        name: of the site, as in its certificate.
        context: mutual TLS.
        limit: bytes of a frame.

    Raises:
        Lost: if the broker cannot be reached now, or the server is not there.
        Stranger: if the broker does not admit this site.
    """

    def __init__(self, broker: Broker, name: str, context: ssl.SSLContext, limit: int) -> None:
        self._name, self._limit, self._server = name, limit, b""
        self._came = FrameQueue()
        self._stirred = threading.Event()
        self._why = ""
        self._link = Link(
            broker, name, secrets.token_bytes(8), context, self._got, self._stirred_up
        )
        self._link.subscribe(("down", name), ("there", SERVER))
        if not self._stirred.wait(WAITING) or self._link.ended.is_set():
            why = self._link.why or f"the broker {broker} is there, and the server is not"
            self._link.close()
            raise Lost(why)
        self._link.appear()

    def send(self, frame: bytes) -> None:
        if self._link.ended.is_set() or self._why:
            raise Lost(self._why or self._link.why)
        self._link.publish("up", self._name, frame, self._link.key)

    def frames(self) -> Iterator[bytes]:
        yield from self._came
        raise Lost(self._why or self._link.why)

    def close(self) -> None:
        self._link.close()

    def _stirred_up(self) -> None:
        self._came.end()
        self._stirred.set()

    def _got(self, kind: str, name: str, body: bytes, key: bytes, kept: bool) -> None:
        if kind == "down" and key == self._link.key and not self._why:
            if not 0 < len(body) <= self._limit:
                self._over(
                    f"a frame of {len(body)} bytes" if body else "the server ended the connection"
                )
            elif not self._came.put(body):
                self._over("the server sends more than this site reads")
        elif name == SERVER and not self._server and body:
            self._server = key
            self._stirred.set()
        elif name == SERVER and self._server and (not body or key != self._server):
            self._over("the server has gone")

    def _over(self, why: str) -> None:
        if not self._why:
            self._why = why
            self._came.end()


class Mqtt(Transport):
    """Server and sites are clients of a broker."""

    brokered = True

    def server(self, agreement: Agreement, kit: Path, host: str) -> OpensHub:
        """The broker refuses who is revoked."""
        if host:
            raise StudyError(
                "--host: with MQTT the server listens nowhere; it connects to the broker at "
                f"{agreement.server}. Leave --host out"
            )
        tls, where = partial(context, kit, "server", connects=True), _broker(agreement)
        names = frozenset(agreement.names)
        return lambda limit, mailbox, refused, told: MqttHub(
            where, tls, limit, names, mailbox, refused, told
        )

    def site(self, agreement: Agreement, index: int, kit: Path) -> Connects:
        tls, where = partial(context, kit, "site"), _broker(agreement)
        tls()  # refuses a kit that cannot be used
        return lambda limit: MqttLine(where, agreement.names[index], tls(), limit)

    def trusted(self, server: str) -> str:
        return (
            f"the federation's server, through the broker at {server}, which reads what passes and "
            "says who has sent it. The federation's authority certified both."
        )

    def broker_files(self, agreement: Agreement, limit: int) -> Mapping[str, bytes]:
        return brokers.settings(agreement, limit)

    def play(
        self, federation: DemoFederation, tell: Callable[[str], None], *, scripted: bool
    ) -> int:
        """Beside a broker of its own."""
        kits = federation.server.parent
        logs = kits.parent / "logs"
        logs.mkdir(exist_ok=True)
        agreement = Agreed(federation.server).agreement
        process = brokers.start(kits, logs / "broker.txt", agreement)
        try:
            return super().play(federation, tell, scripted=scripted)
        finally:
            end([process])


def _broker(agreement: Agreement) -> Broker:
    return Broker(agreement.host, agreement.port, agreement.name)


MQTT = Mqtt()
