"""A federation of processes on the loopback, over WebSocket with mutual TLS: what a site needs of
memory beyond PyTorch's, how soon the first round is closed, what a round costs beyond the
simulator's, and events a second between parties.

The figures depend on what else the machine does: how busy it was stands beside each. Compiled code
is there already: each row's study is run once before.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from sordino.core import study as studies
from sordino.core.run import session
from sordino.core.study.base import Study
from sordino.network import demo

SITES, ROUNDS, EVENTS = 10, 20, 3000
SYNCHRONOUS = """
name = "bench"
[data]
name = "digits"
clients = {sites}
partition = {{ kind = "iid" }}
[model]
name = "logistic"
[method]
name = "dp-sgd"
tau = 5
learning_rate = 0.1
[privacy]
unit = "sample"
epsilon = 8
delta = 1e-3
noise_multiplier = 2.0
clip = 1.0
sampling_rate = 0.1
[budget]
rounds = {rounds}
[execution]
evaluate_every = 1
checkpoint_every = 1000
"""
VERTICAL = """
name = "bench"
[data]
name = "digits"
parties = 2
stream = "replay"
[model]
name = "mlp"
embedding = 4
hidden = 8
[method]
name = "dlr"
learning_rate = 0.05
length = 3
activation = {{ kind = "random", p = 0.5 }}
[privacy]
unit = "none"
[budget]
events = {events}
[execution]
path = "messages"
evaluate_every = {every}
"""
TORCH = "import torch; torch.zeros(9) @ torch.zeros(9); print(open('/proc/self/status').read())"


def _study(folder: Path, text: str, **given: int) -> Study:
    path = folder / "study.toml"
    path.write_text(text.format(**given))
    return studies.read(path)


def _memory(status: str, kind: str) -> float:
    """MB that a process has in memory (VmRSS), or had at most (VmHWM)."""
    line = next(each for each in status.splitlines() if each.startswith(kind))
    return int(line.split()[1]) / 1024


def torch_alone() -> float:
    """MB of a process that has imported PyTorch and multiplied two vectors."""
    found = subprocess.run([sys.executable, "-c", TORCH], check=True, capture_output=True)
    return _memory(found.stdout.decode(), "VmHWM")


def run(study: Study, folder: Path) -> dict[str, float]:
    """A run between processes: seconds until the first round is in the log, seconds of each from
    then on, and MB of the site that had most: in the whole run, with its report at the end, and
    ``steady``, while rounds go on.
    """
    laid = demo.lay_out(study, folder, scripted=False)
    commands = demo.commands(laid, scripted=False, more=["--quiet"])
    log, begun = laid.server / "run" / "rounds.jsonl", time.monotonic()
    running = [
        subprocess.Popen(each, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for each in commands
    ]
    memory, seen, steady = 0.0, [(0.0, 0)], {0: 0.0}
    while any(process.poll() is None for process in running):
        if (closed := _closed(log)) > seen[-1][1]:
            seen.append((time.monotonic() - begun, closed))
        for process in running[1:]:
            with suppress(OSError, StopIteration):  # it may have ended
                told = Path(f"/proc/{process.pid}/status").read_text()
                memory = max(memory, _memory(told, "VmHWM"))
                at = seen[-1][1]
                steady[at] = max(steady.get(at, 0.0), _memory(told, "VmRSS"))
        time.sleep(0.02)
    if any(process.returncode for process in running):
        raise SystemExit("a process of the federation failed")
    (first, begin), (last, end) = seen[1], seen[-1]
    between = max((found for at, found in steady.items() if 0 < at < last), default=memory)
    each = (last - first) / (end - begin)
    return {"first": first, "memory": memory, "steady": between, "each": each}


def _each(text: str, **given: int) -> float:
    """Seconds of one round or event: between the first and the last row of a run's log."""
    with tempfile.TemporaryDirectory() as folder:
        return run(_study(Path(folder), text, **given), Path(folder) / "run")["each"]


def simulated() -> float:
    """Seconds of a round of the same study in the simulator, likewise."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        study = _study(Path(folder), SYNCHRONOUS, sites=SITES, rounds=ROUNDS)
        out = Path(folder) / "run"
        session.begin(study, out, lambda row: times.append(time.monotonic()), lambda going: None)
    return (times[-1] - times[0]) / (len(times) - 1)


def _closed(log: Path) -> int:
    """The last round or event that the log tells of; 0 before the first."""
    found = log.read_bytes().splitlines() if log.exists() else []
    rows = [line for line in found if b'"kind": "round"' in line and line.endswith(b"}")]
    return int(msgspec.json.decode(rows[-1])["round"]) if rows else 0


def _row(what: str, ours: float, reach: str, *, met: bool) -> dict[str, Any]:
    busy = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    return {
        "what": what,
        "peer": None,
        "ours": ours,
        "reach": reach,
        "met": met,
        "detail": {"load": busy},
    }


def measure() -> list[dict[str, Any]]:
    """All rows."""
    return [*small(), *events(), *rounds()]


def small() -> list[dict[str, Any]]:
    """What two sites need to begin."""
    alone = torch_alone()
    with tempfile.TemporaryDirectory() as folder:
        kept = SYNCHRONOUS.replace("every = 1000", "every = 1")  # rows reach the disk at once
        study = _study(Path(folder), kept, sites=2, rounds=20)
        run(study, Path(folder) / "before")
        found = run(study, Path(folder) / "small")
    memory, first = found["memory"] - alone, found["first"]
    steady = found["steady"] - alone
    what = f"MB of a site beyond PyTorch's {alone:.0f}"
    going = f"{what}, while rounds go on"
    begun = "seconds from the start of a server and two sites to the first round's row"
    return [
        _row(going, steady, "<= 60", met=steady <= 60),
        _row(f"{what}, at most: with its report", memory, "<= 60", met=memory <= 60),
        _row(begun, first, "<= 5", met=first <= 5),
    ]


def events() -> list[dict[str, Any]]:
    """Events a second."""
    rate = 1 / _each(VERTICAL, events=EVENTS, every=EVENTS // 10)
    what = "events a second: two parties and labels, mlp of digits"
    return [_row(what, rate, ">= 500", met=rate >= 500)]


def rounds() -> list[dict[str, Any]]:
    """What a round costs more than in the simulator."""
    more = 1e3 * (_each(SYNCHRONOUS, rounds=ROUNDS, sites=SITES) - simulated())
    what = f"ms of a round of {SITES} sites beyond the simulator's (logistic, digits)"
    return [_row(what, more, "<= 50", met=more <= 50)]


if __name__ == "__main__":
    for found in measure():
        print(f"{found['ours']:8.3g}  {found['what']} ({found['reach']}; {found['detail']})")
