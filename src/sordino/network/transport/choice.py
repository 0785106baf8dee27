"""The transport that a federation has agreed on, for its server and for a site.

Each is imported where it is used: a device that speaks MQTT needs no WebSocket library.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sordino.base.errors import StudyError
from sordino.core.network import Agreement
from sordino.network import certificates
from sordino.network.transport.base import Hub, Line, Mailbox

Way = Callable[[int, Mailbox, Callable[[str, str], None], Callable[[str], None]], Hub]
"""Opens the server's end: for frames of so many bytes; told of refusals, and in words."""


def for_server(
    agreement: Agreement, kit: Path, host: str, revoked: Callable[[Path], Callable[[int], bool]]
) -> Way:
    """How a server opens its end.

    Args:
        kit: its folder.
        host: address to listen on, where it listens itself.
        revoked: reads the list of revoked certificates in a kit.

    Raises:
        StudyError: if the kit does not fit, or a library is missing.
    """
    _refuse_job(agreement)
    if agreement.transport == "mqtt":
        return _broker_for_server(agreement, kit, host)
    try:
        from sordino.network.transport.websocket import WebSocketHub
    except ModuleNotFoundError as error:
        raise _missing(error, "network") from error
    context, barred = certificates.context(kit, "server"), revoked(kit)

    def opens(
        limit: int,
        mailbox: Mailbox,
        refused: Callable[[str, str], None],
        told: Callable[[str], None],
    ) -> Hub:
        sites = frozenset(agreement.names)
        return WebSocketHub(host, agreement.port, context, limit, sites, mailbox, barred, refused)

    return opens


def _broker_for_server(agreement: Agreement, kit: Path, host: str) -> Way:
    try:
        from sordino.network.transport.link import Broker
        from sordino.network.transport.mqtt import MqttHub
    except ModuleNotFoundError as error:
        raise _missing(error, "edge") from error
    if host:
        raise StudyError(
            "--host: with MQTT the server listens nowhere; it connects to the broker at "
            f"{agreement.server}. Leave --host out"
        )
    context = certificates.context(kit, "server", connects=True)
    broker = Broker(agreement.host, agreement.port, agreement.name)

    def opens(
        limit: int,
        mailbox: Mailbox,
        refused: Callable[[str, str], None],
        told: Callable[[str], None],
    ) -> Hub:
        return MqttHub(broker, context, limit, frozenset(agreement.names), mailbox, refused, told)

    return opens


def for_site(agreement: Agreement, index: int, kit: Path) -> Callable[[int], Line]:
    """How a site connects, for frames of at most so many bytes.

    Raises:
        StudyError: if the kit does not fit, or a library is missing.
    """
    _refuse_job(agreement)
    context = certificates.context(kit, "site")
    try:
        if agreement.transport == "mqtt":
            from sordino.network.transport.link import Broker
            from sordino.network.transport.mqtt import MqttLine

            broker = Broker(agreement.host, agreement.port, agreement.name)
            return lambda limit: MqttLine(broker, agreement.names[index], context, limit)
        from sordino.network.transport.line import WebSocketLine

        return lambda limit: WebSocketLine(agreement.server, context, limit)
    except ModuleNotFoundError as error:
        extra = "edge" if agreement.transport == "mqtt" else "network"
        raise _missing(error, extra) from error


def _refuse_job(agreement: Agreement) -> None:
    if agreement.transport == "nvflare":
        raise StudyError(
            f"the federation {agreement.name} runs as a job of NVFlare, which starts the server "
            "and the sites itself. Submit the job to it: docs/nvflare.md says how"
        )


def _missing(error: ModuleNotFoundError, extra: str) -> StudyError:
    return StudyError(
        f"this federation's transport needs the library {error.name}, which is not installed: "
        f"pip install 'sordino[{extra}]'"
    )
