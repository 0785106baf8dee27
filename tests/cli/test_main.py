"""Errors that reach the edge of the program."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import warm
from command import sordino
from sordino import cli
from sordino.cli import say
from sordino.core.run import folder as log
from sordino.core.run import session
from sordino.regimes.synchronous.study import TEMPLATE as SYNCHRONOUS


def test_a_full_disk_is_one_message_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/a/checkpoints")

    cli.add_companions()
    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("sordino: runs/a/checkpoints: no space left on the disk")
    assert said.rstrip().endswith("Free some space, then give the command again")
    assert "--resume" not in said
    assert said.count("\n") == 1


def test_what_the_system_refuses_is_one_message_with_the_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def closed() -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "kits/.north.draft")

    cli.add_companions()
    monkeypatch.setattr(cli, "app", closed)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("sordino: kits/.north.draft: the system says: Permission denied")
    assert said.count("\n") == 1
    monkeypatch.setenv(say.DEBUG, "1")
    with pytest.raises(PermissionError):
        cli.main()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried")])
def test_no_memory_left_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def exhausted() -> None:
        raise error

    cli.add_companions()
    monkeypatch.setattr(cli, "app", exhausted)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("sordino: no memory is left on this machine")
    assert said.count("\n") == 1


SMALL = (
    "data.clients=3",
    "budget.rounds=2",
    "budget.steps=4",
    "privacy.accountant=rdp",
    "model.name=logistic",
)


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1, "then continue with"),
        (KeyboardInterrupt(), 130, "interrupted. Continue with"),
    ],
)
def test_a_run_that_has_begun_is_continued_and_one_that_has_not_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, status: int, said: str
) -> None:
    def stop(*_: object) -> None:
        raise raised

    (tmp_path / "study.toml").write_text(SYNCHRONOUS)
    sets = [word for change in SMALL for word in ("--set", change)]
    command = ("run", "study.toml", "--out", "mine", "--quiet", *sets)
    with monkeypatch.context() as broken:
        broken.setattr(session, "surrounded", stop)
        done = sordino(tmp_path, *command)
    assert done.returncode == status
    assert "--resume" not in done.stderr
    assert not (tmp_path / "mine").exists()
    with monkeypatch.context() as broken:
        broken.setattr(log, "write_checkpoint", stop)
        done = sordino(tmp_path, *command)
    assert done.returncode == status
    assert f"{said} `sordino run --resume mine`" in done.stderr
    resumed = "run", "--resume", "mine", "--quiet"
    with monkeypatch.context() as broken:  # a site's run is not resumed so, and its page is drawn
        broken.setattr("sordino.report.write", stop)
        assert "rite the page with `sordino report mine`" in sordino(tmp_path, *resumed).stderr
    assert sordino(tmp_path, *resumed).returncode == 0


@pytest.mark.parametrize("place", ["sordino.core.study.read", "typer.core.TyperGroup.make_context"])
def test_an_interruption_is_one_line_at_any_moment(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "study.toml").write_text(SYNCHRONOUS)
    monkeypatch.setattr(place, stop)
    for command in ("run", "plan", "compare"):
        done = sordino(tmp_path, command, "study.toml")
        assert done.returncode == 130
        assert done.stderr.strip().rstrip(".") == "sordino: interrupted"


DEAF = """
import ctypes, os, signal, sys, time, types
from sordino.__main__ import main

def command():
    deaf = ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        deaf()  # as a callback of a compiler: Python passes over what it raises
        time.sleep(20)
    except KeyboardInterrupt:
        print("heard")

sys.modules["sordino.cli"] = types.SimpleNamespace(main=command)
main()
"""


def test_an_interruption_that_nobody_could_hear_comes_once_more() -> None:
    """A site that compiled when it was told to stop went on for ever."""
    done = subprocess.run(
        [sys.executable, "-c", DEAF], capture_output=True, text=True, check=False, timeout=15
    )
    assert (done.stdout, done.stderr) == ("heard\n", "")


def test_what_nobody_expected_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    cli.add_companions()
    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(OSError, match="Bad file"):
        cli.main()


def test_a_request_to_end_is_an_interruption(tmp_path: Path) -> None:
    """By SIGTERM, which the first process of a container ignores if nobody handles it."""
    (tmp_path / "study.toml").write_text(SYNCHRONOUS)
    words, said = [sys.executable, "-m", "sordino", "run", "study.toml"], tmp_path / "said"
    with said.open("wb") as file:
        running = warm.Popen(words, cwd=tmp_path, stderr=file)
    while not said.read_text():
        assert running.poll() is None
        time.sleep(0.01)
    running.terminate()
    assert running.wait(60) == 130
    assert "interrupted" in said.read_text()
