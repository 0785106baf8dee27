"""A federation on one machine, to try: kits, a server and its sites, each a process of its own.

The study's data is divided as a simulation would divide it, and each part is a file of its own, for
one site. Nothing but these files and the network passes between the processes.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sordino.base.errors import StudyError
from sordino.core import regimes
from sordino.core.network import Agreement, SiteEntry
from sordino.core.study.base import Study
from sordino.network import kit

GRACE = 10.0
"""Seconds that sites have to write what they keep, once the server has failed or they are ended."""
KITS, DATA, HOST = "kits", "data", "127.0.0.1"
Process = subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True)
class DemoFederation:
    """A federation that is laid out in a folder.

    Attributes:
        server: the server's kit.
        test: its test set, or None.
        sites: each site's kit and data file.
    """

    server: Path
    test: Path | None
    sites: tuple[tuple[Path, Path], ...]


def lay_out(
    study: Study,
    out: Path,
    *,
    scripted: bool,
    minimum: int | None = None,
    transport: str = "websocket",
) -> DemoFederation:
    """Divide a study's data into files, and make a kit for everybody.

    Args:
        scripted: whether noise comes from the study's seed, as in a simulation of the same study.
        minimum: sites that must be there; all of them if left out.
        transport: how frames travel.

    Raises:
        StudyError: if the study cannot be carried by a network, or the folder exists.
    """
    if out.exists():
        raise StudyError(f"{out}: this folder exists already. Choose another with --out")
    found = regimes.of(study).network.demo(study)
    digits = len(str(len(found.names) - 1))  # so that no name begins with another
    names = [_named(name, f"{i:0{digits}}") for i, name in enumerate(found.names)]
    agreement = Agreement(
        name=re.sub(r"[^A-Za-z0-9_.-]+", "-", study.name).strip("-.")[:60] or "demo",
        server=f"{HOST}:{free_port()}",
        transport=transport,
        minimum=len(names) if minimum is None else minimum,
        data=found.shape,
        site=tuple(
            SiteEntry(name=name, examples=rows)
            for name, rows in zip(names, found.examples, strict=True)
        ),
        rehearsal=found.prints if scripted else (),
    )
    kit.write(agreement, found.study, out / KITS, dt.datetime.now(dt.UTC))
    (out / DATA).mkdir()
    sites = []
    for name, arrays in zip(names, found.files, strict=True):
        path = out / DATA / f"{name}.npz"
        np.savez(path, allow_pickle=False, **arrays)
        sites.append((out / KITS / name, path))
    test = None
    if found.test is not None:
        test = out / DATA / "test.npz"
        np.savez(test, allow_pickle=False, **found.test)
    return DemoFederation(out / KITS / kit.SERVER, test, tuple(sites))


def _named(name: str, index: str) -> str:
    found = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:50]
    return f"{found}-{index}" if found else f"site-{index}"


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port


def commands(
    laid: DemoFederation, *, scripted: bool, more: Sequence[str] = (), addresses: Sequence[str] = ()
) -> list[list[str]]:
    """Return the command of each process, the server's first."""
    program = [sys.executable, "-m", "sordino"]
    test = [] if laid.test is None else ["--test", str(laid.test)]
    server, public = [*program, "serve", str(laid.server), *test, *more], list[str]()
    if scripted:
        server, public = [*server, "--scripted"], ["--rehearsal"]
    joins = [
        [*program, "join", str(folder), "--data", str(data), "--quiet", *public]
        for folder, data in laid.sites
    ]
    for command, address in zip(joins, addresses, strict=False):
        command += ["--address", address]
    return [server, *joins]


def play(
    laid: DemoFederation,
    tell: Callable[[str], None],
    *,
    scripted: bool,
    more: Sequence[str] = (),
    addresses: Sequence[str] = (),
) -> int:
    """Run everybody to the end; the server's own output is shown. The number of processes that
    failed.

    Args:
        more: options of the server.
        addresses: where each site connects to, if not where it was agreed.
    """
    server, *sites = commands(laid, scripted=scripted, more=more, addresses=addresses)
    logs = laid.server.parent.parent / "logs"
    logs.mkdir(exist_ok=True)
    running: dict[str, Process] = {}
    try:
        running["server"] = subprocess.Popen(server)
        for (folder, _), command in zip(laid.sites, sites, strict=True):
            with (logs / f"{folder.name}.txt").open("wb") as log:
                running[folder.name] = subprocess.Popen(command, stdout=log, stderr=log)
        failed, late = set[str](), math.inf
        while any(process.poll() is None for process in running.values()):
            for name, process in running.items():
                if process.poll() not in (None, 0) and name not in failed:
                    failed.add(name)
                    tell(f"{name} ended with status {process.returncode}; see {logs / name}.txt")
                    if name == "server":
                        late = time.monotonic() + GRACE
            if time.monotonic() > late:
                break
            time.sleep(0.05)
        return len(failed | {name for name, process in running.items() if process.returncode})
    finally:
        end(running.values())


def end(processes: Iterable[Process]) -> None:
    """End processes that still run."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    for process in running:
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def listens(host: str, port: int, alive: Callable[[], bool], seconds: float) -> bool:
    """Wait until somebody listens there, while who should is alive."""
    late = time.monotonic() + seconds
    while alive() and time.monotonic() < late:
        with suppress(OSError):
            socket.create_connection((host, port), timeout=1.0).close()
            return True
        time.sleep(0.05)
    return False
