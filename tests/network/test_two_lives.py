"""Two processes with one kit: the second is refused, before it says or writes anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import warm
from federations import study_of
from sordino.network import demo

PATIENCE = 60.0


@contextmanager
def started(command: list[str], log: Path) -> Iterator[warm.Popen]:
    """A process, which is killed in the end."""
    with log.open("ab") as file:
        process = warm.Popen(command, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(reached: Callable[[], object]) -> None:
    """Wait for something, for a minute."""
    end = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.02)


def files(folder: Path) -> dict[str, bytes]:
    """All files of a folder but the status, which a server writes every second."""
    found = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != "status.json"]
    return {str(p): p.read_bytes() for p in found}


@pytest.mark.parametrize("who", ["site", "server"])
def test_two_lives_of_one_kit_never_run_at_once(who: str, tmp_path: Path) -> None:
    laid = demo.lay_out(study_of(tmp_path, "shared", clients=3), tmp_path / "out", scripted=False)
    server, site, *_ = demo.commands(laid, scripted=False)
    # two servers, each at an address of its own: as with a broker, no port keeps them apart
    commands = (
        [[*server, "--quiet", "--host", f"127.0.0.{i}"] for i in (1, 2)]
        if who == "server"
        else [site, site]
    )
    run, logs = (laid.server if who == "server" else laid.sites[0][0]) / "run", tmp_path
    ready = run / ("journal.bin" if who == "server" else "outbox.1")
    with started(commands[0], logs / "first") as first:
        until(ready.exists)
        before = files(run)
        with started(commands[1], logs / "second") as second:
            assert second.wait(PATIENCE) == 2, "it runs beside the first"
        said = (logs / "second").read_text()
        assert f"{run}: another process ({first.pid}) is running there" in said
        assert files(run) == before
        assert first.poll() is None
    with started(commands[1], logs / "third") as third:  # after a kill the next one goes on
        until(lambda: str(third.pid) in (run / ".lock").read_text())
