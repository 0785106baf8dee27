"""A federation on one machine, to try: kits, a server and its sites, each a process of its own.

The study's data is divided as a simulation would divide it, and each part is a file of its own, for
one site. Nothing but these files and the network passes between the processes.
"""

from __future__ import annotations

import datetime as dt
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from sordino.engine.study.base import Study
from sordino.errors import StudyError
from sordino.federation.division import Federation, federation
from sordino.federation.study import HorizontalStudy
from sordino.network import broker, kit
from sordino.network.agreement import Agreement, Shape, SiteEntry
from sordino.network.parts import regime_of

KITS, DATA = "kits", "data"


@dataclass(frozen=True, slots=True)
class Laid:
    """A federation that is laid out in a folder.

    Attributes:
        server: the server's kit.
        test: its test set, or None.
        sites: each site's kit and data file.
        broker: what everybody agreed to, where there is a broker to start.
    """

    server: Path
    test: Path | None
    sites: tuple[tuple[Path, Path], ...]
    broker: Agreement | None = None


def lay_out(
    study: Study,
    out: Path,
    *,
    scripted: bool,
    minimum: int | None = None,
    transport: Literal["websocket", "mqtt"] = "websocket",
) -> Laid:
    """Divide a study's data into files, and make a kit for everybody.

    Args:
        scripted: whether noise comes from the study's seed, as in a simulation of the same study.
        minimum: sites that must be there; all of them if left out.
        transport: how frames travel.

    Raises:
        StudyError: if the study cannot be carried by a network, or the folder exists.
    """
    regime_of(study)
    assert isinstance(study, HorizontalStudy)
    if out.exists():
        raise StudyError(f"{out}: this folder exists already. Choose another with --out")
    found = federation(study)
    names = [_named(name, i) for i, name in enumerate(found.names or [""] * len(found.parts))]
    agreement = Agreement(
        name=re.sub(r"[^A-Za-z0-9_.-]+", "-", study.name).strip("-.")[:60] or "demo",
        server=f"127.0.0.1:{free_port()}",
        transport=transport,
        minimum=len(names) if minimum is None else minimum,
        data=Shape(
            shape=found.test.shape,
            type="uint8" if found.test.x.dtype == np.uint8 else "float32",
            classes=found.test.classes,
        ),
        site=tuple(
            SiteEntry(name=name, examples=len(part))
            for name, part in zip(names, found.parts, strict=True)
        ),
        rehearsal=_prints(found) if scripted else (),
    )
    kit.write(agreement, study, out / KITS, dt.datetime.now(dt.UTC))
    (out / DATA).mkdir()
    sites = []
    for name, part in zip(names, found.parts, strict=True):
        path = out / DATA / f"{name}.npz"
        _save(path, part.x, part.y, found.test.classes)
        sites.append((out / KITS / name, path))
    test = out / DATA / "test.npz" if len(found.test) else None
    if test is not None:
        _save(test, found.test.x, found.test.y, found.test.classes)
    through = agreement if transport == "mqtt" else None
    return Laid(out / KITS / kit.SERVER, test, tuple(sites), through)


def _named(name: str, index: int) -> str:
    found = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:50]
    return f"{found}-{index}" if found else f"site-{index}"


def _prints(found: Federation) -> tuple[str, ...]:
    return tuple(part.fingerprint() for part in (*found.parts, found.test))


def _save(path: Path, x: np.ndarray, y: np.ndarray, classes: Sequence[str]) -> None:
    np.savez(path, x=x, y=np.array(classes)[y])


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def commands(laid: Laid, *, scripted: bool, more: Sequence[str] = ()) -> list[list[str]]:
    """What each process is started with: the server first."""
    program = [sys.executable, "-m", "sordino"]
    test = [] if laid.test is None else ["--test", str(laid.test)]
    server = [*program, "serve", str(laid.server), *test, *more]
    if scripted:
        server.append("--scripted")
    return [server] + [
        [*program, "join", str(folder), "--data", str(data), "--quiet"]
        for folder, data in laid.sites
    ]


def play(
    laid: Laid, tell: Callable[[str], None], *, scripted: bool, more: Sequence[str] = ()
) -> int:
    """Run everybody to the end; the server's own output is shown. The number of processes that
    failed.

    Args:
        more: options of the server.
    """
    server, *sites = commands(laid, scripted=scripted, more=more)
    logs = laid.server.parent.parent / "logs"
    logs.mkdir(exist_ok=True)
    running: list[tuple[str, subprocess.Popen[bytes]]] = []
    through = (
        None
        if laid.broker is None
        else broker.start(laid.server.parent, logs / "broker.txt", laid.broker)
    )
    try:
        running.append(("server", subprocess.Popen(server)))
        for (folder, _), command in zip(laid.sites, sites, strict=True):
            log = (logs / f"{folder.name}.txt").open("wb")
            with log:
                running.append((folder.name, subprocess.Popen(command, stdout=log, stderr=log)))
        return _waited(running, logs, tell)
    finally:
        started = [process for _, process in running] + ([] if through is None else [through])
        for process in started:
            if process.poll() is None:
                process.terminate()
        for process in started:
            process.wait()


def _waited(
    running: Sequence[tuple[str, subprocess.Popen[bytes]]], logs: Path, tell: Callable[[str], None]
) -> int:
    failed: set[str] = set()
    while any(process.poll() is None for _, process in running):
        for name, process in running:
            if process.poll() not in (None, 0) and name not in failed:
                failed.add(name)
                tell(f"{name} ended with status {process.returncode}; see {logs / name}.txt")
                if name == "server":
                    return len(failed)
        time.sleep(0.05)
    return len(failed | {name for name, process in running if process.returncode})
