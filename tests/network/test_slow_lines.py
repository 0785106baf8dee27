"""Lines that are slow, and break: what is on its way arrives all the same."""

from __future__ import annotations

import os
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warm
from federations import study_of
from sordino.network import demo

from .slow import SlowLine


def played(
    folder: Path,
    line: SlowLine,
    size: int,
    seconds: float,
    sites: int = 2,
    rounds: int = 1,
    starts: Any = warm.Popen,
) -> int:
    """Let sites take part in rounds, of which one is behind a slow line; a model has so many bytes.
    Return the most memory that the server had, in bytes.
    """
    rng, y = np.random.default_rng(0), np.arange(60) % 20
    x = rng.normal(size=(60, size // 80)).astype(np.float32)
    np.savez(folder / "all.npz", x=x, y=y)
    study = study_of(folder, "synchronous", [f"budget.rounds={rounds}"], clients=sites)
    laid = demo.lay_out(study, folder / "out", scripted=False)
    commands, most = demo.commands(laid, scripted=False), 0
    behind = os.environ | {"https_proxy": line.url}
    with (folder / "log").open("wb") as log:
        running: list[Any] = [
            starts(command, stdout=log, stderr=log, env=behind if i == 2 else dict(os.environ))
            for i, command in enumerate(commands)
        ]
    end = time.monotonic() + seconds
    try:
        while running[0].poll() is None and time.monotonic() < end:
            most = max(most, peak(running[0].pid))
            time.sleep(0.05)
        statuses = [each.wait(max(end - time.monotonic(), 0.0)) for each in running]
    finally:
        demo.end(running)
        line.close()
        said = (folder / "log").read_text()
    assert not any(statuses), said
    runs = [laid.server / "run", *(each / "run" for each, _ in laid.sites)]
    assert len({(run / "model.safetensors").read_bytes() for run in runs}) == 1
    assert line.passed > 3 * size  # the model, its update, and the model of the end
    return most


def peak(process: int) -> int:
    """The most memory that a process had so far, in bytes; 0 once it has ended."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        return 0 if found is None else 1024 * int(found[1])
    return 0


def test_what_a_broken_line_has_carried_is_not_sent_again(tmp_path: Path) -> None:
    """Each of three times 200 kB takes longer than the line ever lasts."""
    line = SlowLine(rate=160_000, lasts=1.1)
    played(tmp_path, line, size=200_000, seconds=90.0)
    assert line.connections >= 4


@pytest.mark.nightly
@pytest.mark.parametrize("lasts", [None, 45.0])
def test_forty_megabytes_pass_a_line_of_five_megabits(tmp_path: Path, lasts: float | None) -> None:
    played(tmp_path, SlowLine(625_000, lasts), size=40_000_000, seconds=600.0)


@pytest.mark.nightly
def test_a_server_of_three_sites_with_forty_megabytes_stays_below_a_gigabyte(
    tmp_path: Path,
) -> None:
    """Processes that begin with nothing: one that was forked holds what the tests import, too."""
    line, own = SlowLine(rate=1e9), subprocess.Popen
    most = played(tmp_path, line, 40_000_000, 600.0, sites=3, rounds=3, starts=own)
    assert 300e6 < most < 1e9


@pytest.mark.nightly
def test_a_megabyte_passes_a_line_of_one_megabit(tmp_path: Path) -> None:
    played(tmp_path, SlowLine(120_000), size=1_000_000, seconds=120.0)
