"""Whole rounds: against a hand-written loop over Opacus, and from 10 clients to 1000."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.nn import functional as F

from sordino.clients.assemble import model
from sordino.clients.division import federation
from sordino.core import regimes as builder
from sordino.core import study as studies
from sordino.core.world import KernelSnapshot
from sordino.data import scaled

STUDY = """
name = "bench"
[data]
name = "{data}"
clients = {clients}
partition = {{ kind = "iid" }}
[model]
name = "cnn"
[method]
name = "dp-sgd"
tau = {tau}
[privacy]
unit = "sample"
epsilon = 50.0
delta = 1e-5
noise_multiplier = 1.1
sampling_rate = {rate}
clip = 1.0
[budget]
rounds = {rounds}
[participation]
{cohort}
[execution]
evaluate_every = {every}
"""


class Silent:
    """A watcher that keeps nothing."""

    def row(self, row: object) -> None:
        """Look away."""

    def due(self, number: int, ended: str | None) -> bool:
        """Want each moment, as a run folder may."""
        return True

    def save(self, moment: KernelSnapshot[Any]) -> None:
        """Keep nothing."""


def simulate(folder: Path, **options: Any) -> tuple[float, Any]:
    """CPU seconds of a run, its ledger and bookkeeping included, after a first run that warms up;
    and what was built.
    """
    text = STUDY.format(**{"data": "fashion-mnist", "cohort": "", **options})
    (folder / "study.toml").write_text(text)
    study = studies.read(folder / "study.toml")
    built = builder.build(study, folder, "bench")
    start = time.process_time()
    built.simulation.run(built.first, Silent())
    return time.process_time() - start, built


def by_hand(built: Any, rounds: int, tau: int, private: bool) -> float:
    """CPU seconds of the loop that one would write for the same work: over Opacus, or plain PyTorch
    without privacy.
    """
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    fed = federation(built.study)
    parts = [(torch.from_numpy(scaled(p.x)), torch.from_numpy(p.y)) for p in fed.parts]
    test_x, test_y = torch.from_numpy(scaled(fed.test.x)), torch.from_numpy(fed.test.y)
    module: torch.nn.Module = model(built.study, fed.test.shape, 10)
    if private:
        module = GradSampleModule(module)
    state = {key: value.clone() for key, value in module.state_dict().items()}
    q = built.study.privacy.sampling_rate
    start = time.process_time()
    for _ in range(rounds):
        total = {key: torch.zeros_like(value) for key, value in state.items()}
        for x, y in parts:
            module.load_state_dict(state)
            optimizer: torch.optim.Optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
            if private:
                optimizer = DPOptimizer(
                    optimizer,
                    noise_multiplier=1.1,
                    max_grad_norm=1.0,
                    expected_batch_size=int(q * len(x)),
                )
            for _ in range(tau):
                chosen = torch.rand(len(x)) < q
                optimizer.zero_grad()
                F.cross_entropy(module(x[chosen]), y[chosen]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            for key, value in module.state_dict().items():
                total[key] += value / len(parts)
        state = total
        module.load_state_dict(state)
        with torch.no_grad():
            for first in range(0, len(test_x), 1000):
                right = (
                    module(test_x[first : first + 1000]).argmax(1) == test_y[first : first + 1000]
                )
                right.sum().item()
    return time.process_time() - start


def in_turn(folder: Path, turns: int = 4, rounds: int = 8, tau: int = 5) -> dict[str, float]:
    """CPU seconds a round of our run and of both loops, taken in turns: the lower quartile of
    each.
    """
    taken: dict[str, list[float]] = {"ours": [], "opacus": [], "plain": []}
    for turn in range(turns + 1):
        (folder / f"round-{turn}").mkdir()
        seconds, built = simulate(
            folder / f"round-{turn}", clients=10, tau=tau, rate=0.015, rounds=rounds, every=1
        )
        if turn:  # the first one warms up
            taken["ours"].append(seconds / rounds)
            taken["opacus"].append(by_hand(built, rounds, tau, private=True) / rounds)
            taken["plain"].append(by_hand(built, rounds, tau, private=False) / rounds)
    return {name: sorted(values)[turns // 4] for name, values in taken.items()}


def measure() -> list[dict[str, Any]]:
    """The rows of whole rounds, of many clients, and of peak memory."""
    rows = []
    with TemporaryDirectory() as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(made)
        cost = in_turn(folder)
        shown = {f"{name}, CPU s a round": round(value, 3) for name, value in cost.items()}
        rows.append(
            {
                "what": "a whole round (10 clients, tau 5, evaluation of 10 000 images): times "
                "faster than a loop over Opacus",
                "peer": 1.0,
                "ours": cost["opacus"] / cost["ours"],
                "reach": ">= 3.5",
                "met": cost["opacus"] / cost["ours"] >= 3.5,
                "detail": shown,
            }
        )
        rows.append(
            {
                "what": "the same round: time over a plain PyTorch loop without any privacy",
                "peer": cost["opacus"] / cost["plain"],
                "ours": cost["ours"] / cost["plain"],
                "reach": "<= 1",
                "met": cost["ours"] <= cost["plain"],
                "detail": shown,
            }
        )
        per_step = {}
        for clients, cohort in ((10, ""), (1000, "cohort = 100")):
            place = folder / f"many-{clients}"
            place.mkdir()
            number = 60 if clients == 10 else 6
            batch = 10 / (60_000 / clients)
            seconds, _ = simulate(
                place,
                clients=clients,
                tau=1,
                rate=batch,
                rounds=number,
                every=10_000,
                cohort=cohort,
            )
            per_step[clients] = seconds / (number * min(clients, 100))
        rows.append(
            {
                "what": "1000 clients, 100 a round, tau 1, batch 10: cost of a client-step over "
                "that "
                "of 10 clients",
                "peer": None,
                "ours": per_step[1000] / per_step[10],
                "reach": "<= 1.2",
                "met": per_step[1000] / per_step[10] <= 1.2,
                "detail": {
                    f"{clients} clients, CPU ms": round(1e3 * value, 3)
                    for clients, value in per_step.items()
                },
            }
        )
    peak = json.loads(
        subprocess.run(
            [sys.executable, "-m", "bench.rounds"], capture_output=True, text=True, check=True
        ).stdout
    )
    rows.append(
        {
            "what": "peak memory of the 10-client run, GB",
            "peer": 1.1,
            "ours": peak,
            "reach": "<= 0.7",
            "met": peak <= 0.7,
            "detail": {},
        }
    )
    return rows


if __name__ == "__main__":  # a process of its own, so that its peak is the run's
    with TemporaryDirectory() as made:
        simulate(Path(made), clients=10, tau=5, rate=0.015, rounds=3, every=1)
    lines = Path("/proc/self/status").read_text().splitlines()
    print(
        json.dumps(next(int(line.split()[1]) / 1e6 for line in lines if line.startswith("VmHWM")))
    )
