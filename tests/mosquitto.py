"""A broker for tests: a federation of two sites, and whole runs over it."""

from __future__ import annotations

import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sordino.base.logs import log_to
from sordino.clients.network import HorizontalNetwork
from sordino.core import study as studies
from sordino.core.network import Agreement
from sordino.network import certificates, demo, server, site
from sordino.network.kit import AGREEMENT, read_agreement
from sordino.network.site import JoinOptions
from sordino.network.status import Listeners
from sordino.network.transport import Mailbox
from sordino_mqtt import broker as brokers
from sordino_mqtt import link
from sordino_mqtt.link import Broker, Link
from sordino_mqtt.transport import MQTT, MqttHub, MqttLine

LIMIT = 70_000
PLACES = (
    (site, "opened"),
    (HorizontalNetwork, "test"),
    (HorizontalNetwork, "site"),
    (HorizontalNetwork, "server"),
)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let threads read their data and build one after another.

    A first model is drawn from torch's generator, which threads share; and Python 3.11 cannot parse
    literals, such as those that NumPy's files begin with, in several threads at once.
    """
    lock = threading.RLock()

    def alone(done: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(done)
        def locked(*given: Any, **named: Any) -> Any:
            with lock:
                return done(*given, **named)

        return locked

    with ExitStack() as stack:
        for owner, name in PLACES:
            stack.enter_context(mock.patch.object(owner, name, alone(getattr(owner, name))))
        yield


NEEDED = pytest.mark.skipif(
    brokers.program() is None, reason="mosquitto is not installed (Debian: apt install mosquitto)"
)
STUDY = """
name = "test"
[data]
name = "digits"
clients = 2
[model]
name = "logistic"
[method]
name = "mapa"
batch = 40
[privacy]
unit = "sample"
epsilon = 4.0
delta = 1e-3
[budget]
updates = {updates}
[world]
latency = {{ kind = "exponential" }}
"""


@dataclass
class Place:
    """A running broker, and what was made over it."""

    kits: Path
    process: subprocess.Popen[bytes]
    refused: list[tuple[str, str]] = field(default_factory=list)
    box: Mailbox = field(default_factory=Mailbox)
    made: list[Any] = field(default_factory=list)

    @property
    def agreement(self) -> Agreement:
        return read_agreement(self.kits / "server" / "agreement.toml")

    @property
    def where(self) -> Broker:
        return Broker(self.agreement.host, self.agreement.port, self.agreement.name)

    def context(self, name: str) -> ssl.SSLContext:
        if name == "server":
            return certificates.context(self.kits / name, "server", connects=True)
        return certificates.context(self.kits / name, "site")

    def hub(self) -> MqttHub:
        sites = frozenset(self.agreement.names)
        self.made.append(
            MqttHub(
                self.where,
                partial(self.context, "server"),
                LIMIT,
                sites,
                self.box,
                lambda who, why: self.refused.append((who, why)),
                lambda words: None,
            )
        )
        found: MqttHub = self.made[-1]
        return found

    def line(self, name: str) -> MqttLine:
        self.made.append(MqttLine(self.where, name, self.context(name), LIMIT))
        found: MqttLine = self.made[-1]
        return found

    def link(self, name: str, got: link.Got = lambda *given: None) -> Link:
        """A client that does as it likes."""
        self.made.append(Link(self.where, name, b"own", self.context(name), got, lambda: None))
        found: Link = self.made[-1]
        return found

    def next(self) -> tuple[str, str, bytes]:
        """The next event of the server."""
        found = self.box.get(10.0)
        assert found is not None
        return found.kind, found.site, found.frame

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(how)
        self.process.wait()

    def start(self) -> None:
        self.process = brokers.start(self.kits, self.kits / "log.txt", self.agreement)

    def until(self, true: Callable[[], object]) -> None:
        end = time.monotonic() + 20.0
        while not true():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.01)


class Run:
    """A whole federation in this process, over a broker."""

    def __init__(self, tmp_path: Path, *, updates: int, scripted: bool = False) -> None:
        (tmp_path / "study.toml").write_text(STUDY.format(updates=updates))
        self.study = studies.read(tmp_path / "study.toml")
        self.laid = demo.lay_out(self.study, tmp_path / "laid", scripted=scripted, transport="mqtt")
        self.scripted, self.words, self.done = scripted, [], {}
        self.rows: list[Any] = []
        agreed = read_agreement(self.laid.server / "agreement.toml")
        kits = self.laid.server.parent
        self.place = Place(kits, brokers.start(kits, tmp_path / "log.txt", agreed))

    words: list[str]
    done: dict[str, Any]

    def play(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Everybody to the end."""
        own = Listeners(
            row=self.rows.append, begin=lambda going: None, log=log_to(self.words.append)
        )
        site_shown = Listeners(
            row=lambda row: None, begin=lambda going: None, log=log_to(lambda text: None)
        )

        def serve() -> None:
            kit = self.laid.server
            way = MQTT.server(read_agreement(kit / AGREEMENT), kit, "")
            self.done["server"] = server.serve(
                kit, own, way=way, test=self.laid.test, scripted=self.scripted
            )

        def join(folder: Path, data: Path) -> None:
            self.done[folder.name] = site.join(
                JoinOptions(kit=folder, data=data, rehearsal=self.scripted), site_shown
            )

        threads = [threading.Thread(target=serve, daemon=True)] + [
            threading.Thread(target=join, args=each, daemon=True) for each in self.laid.sites
        ]
        with one_at_a_time():
            for thread in threads:
                thread.start()
            meanwhile()
            for thread in threads:
                thread.join(120.0)
        self.place.stop()
        assert set(self.done) == {"server", "site-0", "site-1"}

    def killed(self) -> None:
        """Kill the broker twice, and start it again."""
        for rows in (5, 25):
            self.place.until(partial(lambda least: len(self.rows) >= least, rows))
            self.place.stop()
            self.place.start()

    def models(self) -> set[bytes]:
        """Final models of everybody."""
        folders = [self.laid.server, *(folder for folder, _ in self.laid.sites)]
        return {(folder / "run/model.safetensors").read_bytes() for folder in folders}
