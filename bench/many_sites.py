"""A server of many sites: updates a second, and its memory. Real certificates, kits and frames;
the sites' answers are made up, so that the server is measured and not a hundred trainings.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.network import STUDY
from sordino.base.message import Compute, Gradient, decode, encode
from sordino.core import study as studies
from sordino.network import demo, frames
from sordino.network import transport as transports
from sordino.network.kit import Agreed
from sordino.network.transport import Lost

DIMENSION, PROCESSES = 7850, 4
SITES, UPDATES, IDLE = 100, 20_000, 1000
PATIENCE = 120.0
"""Seconds in which all idle sites must have come, and stay."""


def served(sites: int, updates: int, *, idle: bool) -> tuple[float, float, float]:
    """Return updates a second of wall time, of the server's processor time, and its memory in MB,
    at its largest, from its start to the page at its end. Idle sites are asked and say nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.toml"
        path.write_text(STUDY.format(sites=sites, updates=updates))
        study = studies.read(
            path, [f"execution.evaluate_every={updates // 10}", "privacy.epsilon=20"]
        )
        laid = demo.lay_out(study, Path(folder) / "laid", scripted=False, transport="websocket")
        server, *_ = demo.commands(laid, scripted=False, more=["--quiet"])
        kits = [kit for kit, _ in laid.sites]
        process = subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        children = [_forked(kits, first, idle) for first in range(PROCESSES)]
        try:
            log = laid.server / "run" / "rounds.jsonl"
            return _idle(process, sites) if idle else _busy(process, log, updates)
        finally:
            process.kill()
            process.wait()
            for child in children:
                os.kill(child, 9)
                os.waitpid(child, 0)


def _forked(kits: list[Path], first: int, idle: bool) -> int:
    if child := os.fork():
        return child
    for index in range(first, len(kits), PROCESSES):
        threading.Thread(target=_site, args=(index, kits[index], idle), daemon=True).start()
        time.sleep(0.02)
    while True:
        time.sleep(60.0)


def _site(index: int, folder: Path, idle: bool) -> None:
    agreed, rng = Agreed(folder), np.random.default_rng(index)
    vector = 0.01 * rng.standard_normal(DIMENSION).astype(np.float32)
    opens = transports.of("websocket").site(agreed.agreement, index, folder)
    while True:
        try:
            line = opens(frames.limit(DIMENSION))
            line.send(frames.encode(frames.Hello(frames.VERSION, agreed.digest, "", 0)))
            for frame in line.frames():
                asked = frames.to_site(frame)
                if idle or not isinstance(asked, frames.Ask):
                    continue
                task = decode(asked.body, dimension=DIMENSION)
                assert isinstance(task, Compute)
                answer = Gradient(index, task.task, task.version, vector)
                line.send(frames.encode(frames.Say(asked.number, encode(answer))))
        except Lost:
            time.sleep(1.0)


def _used(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    """Return processor seconds and MB at most, so far."""
    about = Path(f"/proc/{process.pid}")
    ticks = (about / "stat").read_text().rpartition(")")[2].split()[11:13]
    most = re.search(r"VmHWM:\s+(\d+)", (about / "status").read_text())
    assert most is not None
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), int(most[1]) * 1024 / 1e6


def _busy(process: subprocess.Popen[bytes], log: Path, updates: int) -> tuple[float, float, float]:
    seen: list[tuple[int, float, float]] = []
    while not seen or seen[-1][0] < updates:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with status {process.returncode}")
        time.sleep(0.1)
        rows = log.read_bytes().rpartition(b"\n")[0].splitlines() if log.exists() else []
        last = max((msgspec.json.decode(row).get("round", 0) for row in rows), default=0)
        if last and (not seen or seen[-1][0] < last):
            used, most = _used(process)
            seen.append((last, time.monotonic(), used))
    with suppress(AssertionError):  # it ends between two looks
        while process.poll() is None:
            most = _used(process)[1]
            time.sleep(0.05)
    (first, begun, before), (last, ended, after) = seen[1], seen[-1]
    return (last - first) / (ended - begun), (last - first) / (after - before), most


def _idle(process: subprocess.Popen[bytes], sites: int) -> tuple[float, float, float]:
    time.sleep(PATIENCE)
    if process.poll() is not None or len(os.listdir(f"/proc/{process.pid}/fd")) < sites:
        raise SystemExit(f"not all of {sites} sites are connected")
    return 0.0, 0.0, _used(process)[1]


def measure() -> list[dict[str, Any]]:
    """Rows of the benchmark."""
    rate, own, busy = served(SITES, UPDATES, idle=False)
    *_, idle = served(IDLE, 10_000, idle=True)
    rows = (
        (f"updates a second: {SITES} sites of 31 KB, made-up answers", rate, ">= 900", rate >= 900),
        (f"MB of a server of {SITES} sites of 31 KB", busy, "< 400", busy < 400),
        (f"MB of a server of {IDLE} idle sites", idle, "< 1000", idle < 1000),
    )
    return [
        {
            "what": what,
            "peer": None,
            "ours": ours,
            "reach": reach,
            "met": met,
            "detail": {"updates a second of the server's processor time": round(own)},
        }
        for what, ours, reach, met in rows
    ]


if __name__ == "__main__":
    for each in measure():
        print(f"{each['ours']:8.3g}  {each['what']}  {each['detail']}")
