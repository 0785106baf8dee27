"""One connection to an MQTT broker, over paho-mqtt."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paho.mqtt import MQTTException
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from sordino.extend.network import Lost, Stranger

BEAT = 5
"""Seconds between two signs of life; half as long again without one, and the broker ends it."""
OPENING = 5.0
VERDICT = 1.0
"""Seconds at most until a broker has looked at our certificate."""
SERVER = "server"
THERE = b"there"
_REFUSED = {"Not authorized", "Bad user name or password", "Banned"}

Got = Callable[[str, str, bytes, bytes, bool], None]
"""Kind and name of the topic, payload, correlation data, and whether the broker had kept it."""


class _Client(paho.Client):
    """Takes a message whose properties the library refuses, as those with U+FEFF in them, without
    its content. A broker passes them on: one that a site has had kept would end the connection of
    the server each time that it comes.
    """

    def _handle_publish(self) -> MQTTErrorCode:
        packet, command = self._in_packet["packet"], self._in_packet["command"]
        try:
            return super()._handle_publish()
        except MQTTException:
            end = 2 + int.from_bytes(packet[:2], "big")
            found = paho.MQTTMessage(topic=bytes(packet[2:end]))
            found.retain = bool(command & 1)
            self._handle_on_message(found)
            if not command & 6:  # nobody waits for an answer to it
                return MQTTErrorCode.MQTT_ERR_SUCCESS
            return self._send_puback(int.from_bytes(packet[end : end + 2], "big"))

    def loop_stop(self) -> MQTTErrorCode:
        """Close what wakes the loop, too: the library leaves these sockets to who collects it."""
        found = super().loop_stop()
        if threading.current_thread() is not self._thread:
            self._reset_sockets(sockpair_only=True)
        return found


@dataclass(frozen=True, slots=True)
class Broker:
    """The place of a federation's broker.

    Attributes:
        host, port: that it listens on.
        federation: whose topics are meant.
    """

    host: str
    port: int
    federation: str

    def topic(self, kind: str, name: str) -> str:
        """Of a site or the server: ``up``, ``down`` or ``there``."""
        return f"sordino/{self.federation}/{kind}/{name}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Link:
    """One connection to the broker; it ends once, and does not connect again.

    Args:
        name: of the certificate.
        key: correlation data of this connection's messages.
        got: told of messages, in a thread of its own.
        over: called when it has ended.

    Raises:
        Lost: if the federation's broker cannot be reached now.
        Stranger: if it does not admit us.
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        key: bytes,
        context: ssl.SSLContext,
        got: Got,
        over: Callable[[], None],
    ) -> None:
        self.key, self.why = key, ""
        self._broker, self._name, self._got, self._over = broker, name, got, over
        self._opened, self._subscribed = threading.Event(), threading.Event()
        self._refused, self._closing = False, threading.Lock()
        self.ended = threading.Event()
        self._client = client = _Client(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
        )
        client.tls_set_context(context)
        client.connect_timeout = OPENING
        will = _properties(PacketTypes.WILLMESSAGE, key)
        client.will_set(broker.topic("there", name), qos=1, retain=True, properties=will)
        client.on_socket_open = self._reached
        client.on_log = self._logged
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected
        client.on_subscribe = self._answered
        client.on_publish = self._taken
        client.on_message = self._message
        self._connect()

    def _connect(self) -> None:
        where = self._broker
        try:
            self._client.connect(where.host, where.port, keepalive=BEAT, clean_start=True)
        except ssl.SSLCertVerificationError as error:
            raise Lost(
                f"{where}: its certificate is not that of the federation's broker "
                f"({error.verify_message})"
            ) from error
        except (OSError, ValueError) as error:
            raise Lost(f"{where}: {error}") from error
        self._client.loop_start()
        self._opened.wait(OPENING)
        self._settled(self._client.is_connected())

    def subscribe(self, *topics: tuple[str, str]) -> None:
        """Receive what is sent to these topics (kind and name).

        Raises:
            Lost: if the connection has ended.
            Stranger: if the broker does not allow it.
        """
        self._client.subscribe([(self._broker.topic(*each), 1) for each in topics])
        self._subscribed.wait(OPENING)
        self._settled(self._subscribed.is_set())

    def publish(self, kind: str, name: str, body: bytes, key: bytes, *, keep: bool = False) -> Any:
        """Put a message on its way; never waits. Kept by the broker, it greets later readers."""
        topic, more = self._broker.topic(kind, name), _properties(PacketTypes.PUBLISH, key)
        return self._client.publish(topic, body, qos=1, retain=keep, properties=more)

    def appear(self) -> None:
        """Say that we are there, and wait until the broker has passed it on.

        Raises:
            Lost: if the connection has ended.
            Stranger: if the broker does not allow it.
        """
        told = self.publish("there", self._name, THERE, self.key, keep=True)
        self._settled(published(told, OPENING))

    def _settled(self, done: bool) -> None:
        if done and not self.ended.is_set() and not self.why:
            return
        self.close()
        if self._refused:
            raise Stranger(f"{self._broker}: the broker does not admit {self._name}: {self.why}")
        raise Lost(f"{self._broker}: {self.why or 'the broker does not answer'}")

    def close(self) -> None:
        """Say good-bye and end; what was put on its way before is still sent, if that is quick."""
        if not self.ended.is_set() and self._client.is_connected():
            published(self.publish("there", self._name, b"", self.key, keep=True), 2.0)
        with self._closing:
            self._client.disconnect()
            self._client.loop_stop()
        self._end("closed")

    def _end(self, why: str) -> None:
        self.why = self.why or why
        first = not self.ended.is_set()
        for each in (self.ended, self._opened, self._subscribed):
            each.set()
        if first:
            self._over()

    def _reached(self, client: paho.Client, data: Any, opened: Any) -> None:
        """Nothing waits to be sent together; and a broker that refuses our certificate says so when
        the handshake is over for us. What it says would be lost if we spoke first.
        """
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        select.select([opened], [], [], VERDICT)
        try:
            opened.recv(1)  # a broker sends nothing before it is greeted
        except ssl.SSLWantReadError:
            return
        except OSError as error:
            self.why, self._refused = str(error), "ALERT" in str(error)

    def _logged(self, client: paho.Client, data: Any, level: int, text: str) -> None:
        """Keep what the library found wrong with the socket."""
        if level == paho.MQTT_LOG_ERR and not self.why:
            self.why = text

    def _connected(
        self, client: paho.Client, data: Any, flags: Any, code: ReasonCode, more: Any
    ) -> None:
        if code.is_failure:
            self.why, self._refused = str(code), str(code) in _REFUSED
        self._opened.set()

    def _disconnected(
        self, client: paho.Client, data: Any, flags: Any, code: ReasonCode, more: Any
    ) -> None:
        self._end(str(code))

    def _answered(
        self, client: paho.Client, data: Any, mid: int, codes: Sequence[ReasonCode], more: Any
    ) -> None:
        if any(code.is_failure for code in codes):
            self.why, self._refused = "its access list does not let it read its topics", True
            self._end(self.why)
        self._subscribed.set()

    def _taken(self, client: paho.Client, data: Any, mid: int, code: ReasonCode, more: Any) -> None:
        if code.is_failure:
            self.why, self._refused = f"it refuses a message ({code})", True
            client.disconnect()  # the library holds a lock here: the rest follows from its end

    def _message(self, client: paho.Client, data: Any, found: paho.MQTTMessage) -> None:
        try:
            *_, kind, name = found.topic.split("/")
            key = getattr(found.properties, "CorrelationData", b"")
            self._got(kind, name, bytes(found.payload), key, found.retain)
        except Exception as error:  # it would end the library's thread, and nobody would be told
            self._end(f"a message cannot be taken: {error}")


def _properties(packet: int, key: bytes) -> Properties:
    made = Properties(packet)  # type: ignore[no-untyped-call]
    made.CorrelationData = key
    return made


def published(told: Any, seconds: float) -> bool:
    """Return whether the broker has acknowledged a message in time."""
    try:
        told.wait_for_publish(seconds)
        return bool(told.is_published())
    except (RuntimeError, ValueError):
        return False
