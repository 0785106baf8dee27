"""Two workers over one, by wall time: rounds of many clients, rounds of ten, and a comparison; and
a task that FLUTE has published. Needs two quiet cores.

FLUTE (Dimitriadis et al. 2022; its README): 1 000 clients with one linear layer, ten a round, 100
rounds, a test after every 20 (experiments/cv_lr_mnist): 3:20 minutes on a CPU, 30:14 for Flower.
Here the same on Fashion-MNIST's 60 000 images, with whole clients protected, and pfl beside it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench import clients, rounds

FLUTE = """
name = "FLUTE's MNIST-LR"
data = { name = "fashion-mnist", clients = 1000, partition = { kind = "iid" } }
model = { name = "logistic" }
method = { name = "dp-fedavg", tau = 6, batch = 10, learning_rate = 0.03 }
budget = { rounds = 100 }
execution = { evaluate_every = 20 }
[privacy]
unit = "client"
epsilon = 8.0
delta = 1e-4
sampling_rate = 0.01
clip = 0.3
"""


def command(folder: Path, *arguments: str) -> float:
    """Seconds of ``sordino ARGUMENTS``."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "sordino", *arguments], cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return time.perf_counter() - start


def speedup(
    text: str, turns: int, counts: tuple[int, ...] = (1, 2)
) -> tuple[float, dict[str, float]]:
    """How many times faster two workers are in rounds, and seconds for these numbers of processes,
    the median over turns.
    """
    taken: dict[str, list[float]] = {
        f"{what}, {n} processes": []
        for what in ("a round", "a run", "processor time of process 0 a round")
        for n in counts
    }
    with TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "study.toml").write_text(text)
        for turn in range(turns):
            for n in counts if turn % 2 else counts[::-1]:
                out = folder / f"{turn}-{n}"
                given = ["study.toml", "--quiet", "--out", out.name, "--workers", str(n)]
                run = subprocess.Popen(
                    [sys.executable, "-m", "sordino", "run", *given],
                    cwd=folder,
                    stdout=subprocess.DEVNULL,
                )
                start = time.perf_counter()
                seen = list(_rows(out / "rounds.jsonl", run))
                if run.wait():
                    raise RuntimeError("the run has failed")
                taken[f"a run, {n} processes"].append(time.perf_counter() - start)
                # the first two warm up
                clock, worked = np.subtract(seen[-1], seen[1]) / (len(seen) - 2)
                taken[f"a round, {n} processes"].append(clock)
                taken[f"processor time of process 0 a round, {n} processes"].append(worked)
    found = {name: statistics.median(each) for name, each in taken.items()}
    return found["a round, 1 processes"] / found["a round, 2 processes"], found


def _rows(log: Path, run: subprocess.Popen[bytes]) -> Iterator[tuple[float, float]]:
    """Yield the moment at which each row is in the log, and what the process has worked by then."""
    seen, ticks, stat = 0, os.sysconf("SC_CLK_TCK"), Path(f"/proc/{run.pid}/stat")
    while True:
        worked = sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13])) / ticks
        over = run.poll() is not None
        now = log.read_bytes().count(b'"round", "round"') if log.exists() else 0
        yield from [(time.perf_counter(), worked)] * (now - seen)
        seen = now
        if over:
            return
        time.sleep(0.002)


def comparison(turns: int) -> tuple[float, dict[str, float]]:
    """How many times faster two workers compare four studies, and seconds."""
    taken: dict[int, list[float]] = {1: [], 2: []}
    text = rounds.STUDY.format(
        data="fashion-mnist", clients=10, tau=5, rate=0.015, rounds=20, every=1, cohort=""
    )
    with TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "study.toml").write_text(text)
        vary = "method.learning_rate=0.1,0.2,0.3,0.5"
        for turn in range(turns):
            for n in (1, 2) if turn % 2 else (2, 1):
                given = ["--vary", vary, "--seeds", "1", "--out", f"{turn}-{n}", "--quiet"]
                seconds = command(folder, "compare", "study.toml", *given, "--workers", str(n))
                taken[n].append(seconds)
    found = {f"{n} processes": statistics.median(each) for n, each in taken.items()}
    return found["1 processes"] / found["2 processes"], found


def row(what: str, ours: float, reach: float, detail: dict[str, float]) -> dict[str, Any]:
    """A row of the table."""
    return {
        "what": what,
        "peer": None,
        "ours": ours,
        "reach": f">= {reach}",
        "met": ours >= reach,
        "detail": {f"{name}, s": round(value, 3) for name, value in detail.items()},
    }


def measure(turns: int = 3) -> list[dict[str, Any]]:
    """The rows of workers."""
    many = clients.client_level(20)
    ten = rounds.STUDY.format(
        data="fashion-mnist", clients=10, tau=5, rate=0.015, rounds=40, every=1, cohort=""
    )
    found = [
        row(
            "two workers over one: rounds of 1000 clients, 100 a round",
            *_at(1.8, many, turns, (1, 2, 4)),
        ),
        row("two workers over one: rounds of ten clients of the cnn", *_at(1.6, ten, turns)),
    ]
    ratio, detail = comparison(turns)
    found.append(row("two workers over one: compare of four studies", ratio, 1.8, detail))
    with TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "study.toml").write_text(FLUTE)
        seconds = {
            f"{n} processes": statistics.median(
                command(folder, "run", "study.toml", "--quiet", "--workers", str(n))
                for _ in range(turns)
            )
            for n in (1, 2)
        }
    best = min(seconds.values())
    found.append(
        {
            "what": "FLUTE's MNIST-LR with whole clients protected, the whole command: s",
            "peer": 200.0,
            "ours": best,
            "reach": "< 20",
            "met": best < 20,
            "detail": {name: round(value, 2) for name, value in seconds.items()},
        }
    )
    if (other := clients.peer(100, "flute")) is not None:
        with TemporaryDirectory() as made:
            runs = [Path(made) / str(turn) for turn in range(turns + 1)]
            for folder in runs:
                folder.mkdir()
            _, *warm = [clients.simulate(folder, FLUTE)[0] / 100 for folder in runs]
        ours = statistics.median(warm)
        detail = {"pfl, a round": other, "ours, a round": ours}
        found.append(row("processor time of pfl over ours, that task", other / ours, 4.0, detail))
    return found


def _at(
    reach: float, text: str, turns: int, counts: tuple[int, ...] = (1, 2)
) -> tuple[float, float, dict[str, float]]:
    ratio, detail = speedup(text, turns, counts)
    return ratio, reach, detail | gathering()


def gathering(dimension: int = 26010, answers: int = 100) -> dict[str, float]:
    """Seconds of process 0 for a thousand answers (d,): unpacking those of other processes, and
    adding up.
    """
    from sordino.base.message import Contribution
    from sordino.clients import workers
    from sordino.mechanisms.gaussian import Gaussian
    from sordino.regimes.synchronous.aggregate import _within

    rng, total = np.random.default_rng(0), np.zeros(dimension)
    made = [rng.normal(size=dimension).astype(np.float32) * 1e-3 for _ in range(answers)]
    said = tuple(Contribution(i, 1, 5, each, True) for i, each in enumerate(made))
    calls, nothing = tuple((i, 1) for i in range(answers)), (b"",) * answers
    sent = workers._encoder.encode(workers.Answers(0, calls, said, nothing))
    start = time.perf_counter()
    found = workers._reports.decode(sent).said
    unpacked = time.perf_counter()
    for each in found:
        total += 0.5 * _within(Gaussian(clip=0.3, noise_multiplier=1.0), each.delta)
    added = time.perf_counter()
    part = 1000 / answers
    return {
        "unpacking 1000 answers": (unpacked - start) * part,
        "adding 1000 answers": (added - unpacked) * part,
    }


if __name__ == "__main__":
    for each in measure():
        print(each)
