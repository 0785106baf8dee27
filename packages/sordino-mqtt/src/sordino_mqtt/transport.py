"""The transport that Sordino finds by the entry point ``mqtt``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from sordino.extend.network import (
    Agreed,
    Agreement,
    Connects,
    DemoFederation,
    OpensHub,
    StudyError,
    Transport,
    context,
    end,
)
from sordino_mqtt import broker
from sordino_mqtt.link import Broker
from sordino_mqtt.mqtt import MqttHub, MqttLine


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
        return broker.settings(agreement, limit)

    def play(
        self, federation: DemoFederation, tell: Callable[[str], None], *, scripted: bool
    ) -> int:
        """Beside a broker of its own."""
        kits = federation.server.parent
        logs = kits.parent / "logs"
        logs.mkdir(exist_ok=True)
        agreement = Agreed(federation.server).agreement
        process = broker.start(kits, logs / "broker.txt", agreement)
        try:
            return super().play(federation, tell, scripted=scripted)
        finally:
            end([process])


def _broker(agreement: Agreement) -> Broker:
    return Broker(agreement.host, agreement.port, agreement.name)


MQTT = Mqtt()
