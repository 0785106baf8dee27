"""A server and its sites as processes of their own, over mutual TLS."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import warm
from command import sordino
from federations import STUDIES, study_of
from sordino.core import study as studies
from sordino.network import demo
from sordino.network.demo import DemoFederation
from sordino.privacy import Ledger


def spent(ledger: Path, unit: str) -> list[tuple[int, int, str]]:
    """Round, count and event of each charge of a unit."""
    with Ledger.open(ledger, readonly=True) as found:
        return sorted((each.round, each.count, str(each.event)) for each in found.entries(unit))


def held(ledger: Path, unit: str) -> list[tuple[int, int, str]]:
    """What the server's ledger holds against a site: on its unit, or that of its block, or all."""
    found = units(ledger)
    names = (unit, unit.replace("client", "block"))
    return spent(ledger, next((name for name in names if name in found), "clients"))


def units(ledger: Path) -> set[str]:
    """Units that anything was charged to."""
    with Ledger.open(ledger, readonly=True) as found:
        return {each.unit for each in found.entries()}


def running(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file)


class OneByHand:
    """As :mod:`warm`; the server is started as a user starts it, and imports everything anew."""

    @staticmethod
    def Popen(command: list[str], **given: Any) -> Any:  # noqa: N802
        popen: Any = subprocess.Popen if "serve" in command else warm.Popen
        return popen(command, **given)


@pytest.mark.parametrize(
    "name",
    [
        *("asynchronous", "shared"),
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("synchronous", "client", "client-in-turn", "shared-client")
        ),
    ],
)
def test_a_scripted_run_over_tls_is_the_simulation_byte_for_byte(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "subprocess", OneByHand if name == "client" else warm)
    study = study_of(tmp_path, name, clients=2)
    (tmp_path / "whole.toml").write_text(studies.write(study))
    laid = demo.lay_out(study, tmp_path / "out", scripted=True)
    words: list[str] = []
    assert demo.play(laid, words.append, scripted=True) == 0, words
    simulated = sordino(tmp_path, "run", "whole.toml", "--out", "simulated", "--quiet")
    assert simulated.returncode == 0, simulated.stderr
    runs = [laid.server / "run", *(folder / "run" for folder, _ in laid.sites)]
    models = {(run / "model.safetensors").read_bytes() for run in runs}
    assert models == {(tmp_path / "simulated" / "model.safetensors").read_bytes()}
    for run in runs[1:]:
        for unit in units(run / "ledger.sqlite"):
            own = spent(run / "ledger.sqlite", unit)
            told = held(runs[0] / "ledger.sqlite", unit)
            if name == "asynchronous":  # a server reserves other blocks, of no fewer tasks
                assert {event for *_, event in own} == {event for *_, event in told}
                assert 0 < sum(count for _, count, _ in own) <= sum(count for _, count, _ in told)
            else:
                assert own == told
    proved = sordino(
        tmp_path, "network", "proof", str(runs[1]),
        "--authority", str(laid.sites[0][0] / "authority.pem"),
    )  # fmt: skip
    assert proved.returncode == 0, proved.stderr


def killed(laid: DemoFederation, logs: Path, kills: int, seed: int) -> int:
    """Run everybody to the end, killing one at random so many times; how many were killed."""
    dice, done = random.Random(seed), 0
    server, *sites = demo.commands(laid, scripted=False)
    commands = {"server": server}
    for (folder, _), command in zip(laid.sites, sites, strict=True):
        commands[folder.name] = [*command, "--rehearsal"]  # what is computed again is the same
    lives = {name: running(command, logs / name) for name, command in commands.items()}
    ended: set[str] = set()
    end = time.monotonic() + 60 * kills
    try:
        while len(ended) < len(commands):
            assert time.monotonic() < end, f"only {ended} have ended"
            time.sleep(dice.uniform(0.5, 4.0))
            for name, process in lives.items():
                if process.poll() is not None and name not in ended:
                    assert process.returncode in (0, -signal.SIGKILL), (logs / name).read_text()
                    if process.returncode == 0:
                        ended.add(name)
                    else:
                        lives[name] = running(commands[name], logs / name)
            if "server" in ended and len(ended) < len(commands):  # it tells late sites again
                ended.discard("server")
                lives["server"] = running(commands["server"], logs / "server")
            alive = [name for name, process in lives.items() if process.poll() is None]
            if alive and done < kills:
                os.kill(lives[dice.choice(alive)].pid, signal.SIGKILL)
                done += 1
    finally:
        for process in lives.values():
            process.kill()
            process.wait()
    return done


PASSES = ("passes", "correlated", "edges in passes")


@pytest.mark.nightly
@pytest.mark.parametrize("name", STUDIES)
def test_processes_that_are_killed_twenty_times_end_with_one_model(
    name: str, tmp_path: Path
) -> None:
    arrivals, passes = name in ("asynchronous", "edges in passes"), name in PASSES
    budget = "budget.updates=1000" if arrivals else "budget.rounds=200"
    study = study_of(tmp_path, name, [budget, "privacy.epsilon=1e6"], clients=2)
    laid = demo.lay_out(study, tmp_path / "out", scripted=True)
    killed(laid, tmp_path, 20, seed=len(name))
    runs = [laid.server / "run", *(folder / "run" for folder, _ in laid.sites)]
    assert len({(run / "model.safetensors").read_bytes() for run in runs}) == 1
    for run, (folder, _) in zip(runs[1:], laid.sites, strict=True):
        stated = json.loads(json.loads((run / "proof.json").read_text())["statement"])
        found = units(run / "ledger.sqlite")
        if arrivals and not found:  # the other one did all, while this one was dead
            assert stated["answers"] == 0
            continue
        (unit,) = found
        own, told = spent(run / "ledger.sqlite", unit), held(runs[0] / "ledger.sqlite", unit)
        assert len({first for first, *_ in own}) == len(own), folder
        if name == "asynchronous":
            assert stated["answers"] <= sum(count for _, count, _ in own)
        else:
            assert (stated["answers"] is None) == name.startswith("client")  # a secret
            assert passes or (stated["answers"] or 0) <= len(own)  # a pass is of several answers
            assert len(own) <= len(told)
            assert {first for first, *_ in own} <= {first for first, *_ in told}
