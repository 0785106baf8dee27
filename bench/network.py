"""A federation on the loopback, over WebSocket and over MQTT: how long a frame takes there and
back, and updates a second between processes. Both with mutual TLS 1.3; the broker is Mosquitto.
"""

from __future__ import annotations

import datetime as dt
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from sordino.core import study as studies
from sordino.core.network import Agreement, Shape, SiteEntry
from sordino.network import demo, kit
from sordino.network import transport as transports
from sordino.network.kit import Agreed
from sordino.network.transport import Hub, Line, Mailbox
from sordino_mqtt import broker

Transport = Literal["websocket", "mqtt"]
TRANSPORTS: tuple[Transport, ...] = ("websocket", "mqtt")
SITES, UPDATES, ECHOES, BYTES = 3, 3000, 300, 100_000
STUDY = """
name = "bench"
[data]
name = "fashion-mnist"
clients = {sites}
[model]
name = "logistic"
[method]
name = "mapa"
batch = 12
[privacy]
unit = "sample"
epsilon = 1e6
delta = 1e-5
noise_multiplier = 1.0
[budget]
updates = {updates}
[participation]
staleness = 100000
[execution]
evaluate_every = {updates}
checkpoint_every = 1000
"""


def echo(transport: Transport) -> float:
    """Milliseconds in which 100 KB go from a site to the server and back: the median."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        agreement = provisioned(out, transport)
        with _running(agreement, out / "kits"):
            return timed(agreement, out / "kits")


def provisioned(out: Path, transport: Transport) -> Agreement:
    """Kits of a server and one site, in ``out / "kits"``."""
    path = out / "study.toml"
    path.write_text(STUDY.format(sites=1, updates=1))
    agreement = Agreement(
        name="bench",
        server=f"127.0.0.1:{demo.free_port()}",
        transport=transport,
        data=Shape(shape=(28, 28), type="uint8", classes=tuple("0123456789")),
        site=(SiteEntry(name="site", examples=60_000),),
    )
    return kit.write(agreement, studies.read(path), out / "kits", dt.datetime.now(dt.UTC))


@contextmanager
def _running(agreement: Agreement, kits: Path) -> Iterator[None]:
    if agreement.transport != "mqtt":
        yield
        return
    process = broker.start(kits, kits / "broker.txt", agreement)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def timed(agreement: Agreement, kits: Path, address: str | None = None) -> float:
    """Milliseconds of an echo: the median. The site connects to ``address``."""
    mailbox, place = Mailbox(), agreement.at(address)
    opens = transports.of(agreement.transport).server(agreement, kits / "server", "")
    hub = opens(2 * BYTES, mailbox, lambda who, why: None, lambda words: None)
    line = transports.of(agreement.transport).site(place, 0, kits / "site")(2 * BYTES)
    thread = threading.Thread(target=_back, args=(hub, mailbox))
    thread.start()
    taken, frames, body = [], line.frames(), bytes(BYTES)
    for _ in range(ECHOES):
        start = time.perf_counter()
        line.send(body)
        next(frames)
        taken.append(time.perf_counter() - start)
    _end(line, hub, thread)
    return 1e3 * sorted(taken)[ECHOES // 2]


def _back(hub: Hub, mailbox: Mailbox) -> None:
    while (event := mailbox.get(None)) is not None and event.kind != "closed":
        if event.kind == "frame":
            hub.send(event.site, event.frame)


def _end(line: Line, hub: Hub, thread: threading.Thread) -> None:
    line.close()
    thread.join()
    hub.close()


def updates(transport: Transport) -> float:
    """Updates a second of logistic regression of 784 inputs (31 KB) between three sites and a
    server, each a process of its own; from the first tenth of the run to its end.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.toml"
        path.write_text(STUDY.format(sites=SITES, updates=UPDATES))
        study = studies.read(path, [f"execution.evaluate_every={UPDATES // 10}"])
        laid = demo.lay_out(study, Path(folder) / "laid", scripted=False, transport=transport)
        with watched(laid.server / "run" / "rounds.jsonl") as seen:
            with _running(Agreed(laid.server).agreement, laid.server.parent):
                failed = demo.play(laid, lambda words: None, scripted=False, more=["--quiet"])
            if failed:
                raise SystemExit(f"the run over {transport} failed")
    return rate(seen)


@contextmanager
def watched(log: Path) -> Iterator[list[tuple[int, float]]]:
    """Rounds whose model was measured, and when that appeared in the log, which does not say it."""
    seen: list[tuple[int, float]] = []
    over = threading.Event()

    def watch() -> None:
        length = 0
        while not over.wait(0.01):
            if not log.exists() or log.stat().st_size == length:
                continue
            with log.open("rb") as file:
                file.seek(length)
                whole = file.read().rpartition(b"\n")[0]
            length += len(whole) + bool(whole)
            rows = map(msgspec.json.decode, whole.splitlines())
            now = time.monotonic()
            seen.extend((row["round"], now) for row in rows if "accuracy" in row and "round" in row)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def rate(seen: list[tuple[int, float]]) -> float:
    """Updates a second, from the first row to the last one of another round."""
    (first, begin), (last, end) = seen[0], next(each for each in seen if each[0] == seen[-1][0])
    return (last - first) / (end - begin)


def measure() -> list[dict[str, Any]]:
    """All rows; those of MQTT only where Mosquitto is installed."""
    rows: list[dict[str, Any]] = []
    for transport in TRANSPORTS:
        if transport == "mqtt" and broker.program() is None:
            continue
        name = {"websocket": "WebSocket", "mqtt": "MQTT, Mosquitto"}[transport]
        took = min(echo(transport) for _ in range(3))
        rows.append(
            {
                "what": f"ms for 100 KB to the server and back, mutual TLS, {name}",
                "peer": None,
                "ours": took,
                "reach": "<= 3",
                "met": took <= 3.0,
                "detail": {},
            }
        )
        rate = max(updates(transport) for _ in range(2))
        rows.append(
            {
                "what": f"updates a second: logistic 784-10 (31 KB), {SITES} sites, {name}",
                "peer": None,
                "ours": rate,
                "reach": "-",
                "met": True,
                "detail": {},
            }
        )
    return rows


if __name__ == "__main__":
    for each in measure():
        print(f"{each['ours']:8.3g}  {each['what']}")
