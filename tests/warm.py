"""Processes of their own that need not import anything: forked from one that has imported it all.

To import and to compile what a command needs takes six seconds, longer than what most tests have it
do. This module can stand where :mod:`subprocess` does; who tests how a process starts takes that.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver, reduction, resource_tracker
from multiprocessing.context import ForkServerContext
from pathlib import Path
from subprocess import DEVNULL, TimeoutExpired
from typing import Any
from unittest import mock

# libraries whose threads would not live in a fork are imported only, and not used
IMPORTED = (
    "polars",
    "pandas",
    "rich.console",
    "scipy.stats",
    "sklearn.datasets",
    "sordino.api.auditing",
    "sordino.api.running",
    "sordino.data.formats",
    "sordino.data.stream.table",
    "sordino.cli.network",
    "sordino.network.server",
    "sordino.network.site",
    "warmed",
)


SHARED = "SORDINO_TEST_FORKS"
"""The environment variable with the address of one that forks for several processes of tests."""


def share() -> None:
    """Fork for all processes that are started from here on: each would import for itself."""
    _server()
    os.environ[SHARED] = vars(forkserver._forkserver)["_forkserver_address"]


def ready() -> None:
    """Wait until all that is needed has been imported, compiled and kept."""
    process = _server().Process(target=int)
    process.start()
    process.join()


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    if SHARED in os.environ:
        vars(forkserver._forkserver).update(
            _forkserver_address=os.environ[SHARED],
            _forkserver_alive_fd=os.open(os.devnull, os.O_RDONLY),  # it lives as long as its parent
            ensure_running=resource_tracker.ensure_running,
        )
        return context
    context.set_forkserver_preload(list(IMPORTED))
    # Python 3.11 does not tell it where to look for modules
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        forkserver.ensure_running()
    return context


class _Open:
    """An open file, by its number: the fork has it, too."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return _given, (reduction.DupFd(self.number),)


def _given(passed: Any) -> int:
    number: int = passed.detach()
    return number


def _play(
    command: Sequence[str], folder: str, environment: Mapping[str, str], to: Sequence[Any]
) -> None:
    """In the fork: what ``command`` would have an interpreter do."""
    if IMPORTED[-1] not in sys.modules:
        raise RuntimeError(f"{IMPORTED[-1]} could not be imported: try python -c 'import warmed'")
    for stream, number in zip((1, 2), to, strict=False):  # what follows is kept open, no more
        if number is not None:
            os.dup2(number, stream)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    how, what, *more = command[2 if command[1] == "-P" else 1 :]
    sys.argv = ["-c" if how == "-c" else what, *more]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


class Popen:
    """As :class:`subprocess.Popen`, of ``python -m MODULE ...`` and ``python -c CODE ...`` only."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int = DEVNULL,
        stdout: Any = None,
        stderr: Any = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        close_fds: bool = True,
    ) -> None:
        if command[0] != sys.executable or command[1] not in ("-m", "-c", "-P"):
            raise ValueError(f"an interpreter's command is needed; got {command}")
        if stdin != DEVNULL or not close_fds:
            raise ValueError("a fork reads no input, and has no other files")
        with Path(os.devnull).open("wb") as nothing:
            streams = [nothing if each == DEVNULL else each for each in (stdout, stderr)]
            to = [None if each is None else _Open(each.fileno()) for each in streams]
            self.args = command
            self._process = _server().Process(
                target=_play,
                args=(
                    tuple(command),
                    str(cwd or Path.cwd()),
                    dict(os.environ if env is None else env),
                    [*to, *map(_Open, pass_fds)],
                ),
            )
            self._process.start()

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status; minus the signal's number if it was killed; None while it goes on."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self._process.exitcode

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired(self.args, timeout or 0.0)
        return self._process.exitcode


def run(
    command: Sequence[str],
    *,
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """As :func:`subprocess.run`, with text captured."""
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder, "out"), Path(folder, "err")
        with names[0].open("ab") as out, names[1].open("ab") as err:
            process = Popen(command, stdout=out, stderr=err, cwd=cwd, env=env)
        end = time.monotonic() + timeout
        try:
            status = process.wait(max(end - time.monotonic(), 0.0))
        finally:
            process.kill()
        return subprocess.CompletedProcess(
            list(command), status, *(name.read_text() for name in names)
        )
