"""Runs in processes of their own: one that fails, or is killed, takes nobody along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sordino.base.errors import StudyError
from sordino.base.package import HOME
from sordino.comparison.folders import State
from sordino.comparison.schedule import Task
from sordino.core.files import replace_file
from sordino.core.study.parse import write

# As `python -m sordino`, but the current folder is never where modules are looked for; ours is,
# after all others: it may be there because of the current folder.
PROGRAM = f"import sys; sys.path.append({str(HOME.parent)!r}); from sordino.cli import main; main()"
PAUSE = 0.1  # seconds between two looks
PATIENCE = 10.0  # seconds that a run has to stop


@dataclass(frozen=True, slots=True)
class Job:
    """A process to run: its name to us, its command, its threads."""

    key: Hashable
    command: tuple[str, ...]
    threads: int = 1


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    said: IO[bytes]


def job(task: Task, state: State, scratch: Path) -> Job:
    """The ordinary ``sordino run`` of a task, with its study, as checked, in ``scratch``."""
    if state == "begun":
        what = ["--resume", str(task.folder)]
    else:
        path = scratch / f"{task.side.slug}-{task.seed}.toml"
        replace_file(path, write(task.study).encode())
        what = [str(path), "--out", str(task.folder)]
    what += ["--modules", str(task.side.path.parent)]
    return Job(
        task,
        (sys.executable, "-P", "-c", PROGRAM, "run", *what, "--quiet"),
        task.study.execution.threads,
    )


def jobs_at_once(asked: int | None, threads: Iterable[int]) -> int:
    """How many runs go on at a time: as many as there are cores for."""
    if asked is not None:
        if asked < 1:
            raise StudyError(f"--jobs must be at least 1; got {asked}")
        return asked
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(cores // max(threads, default=1), 1)


def play(
    jobs: Sequence[Job],
    at_once: int,
    *,
    ended: Callable[[Any, str | None], None],
    tick: Callable[[Sequence[Any]], None] = lambda going: None,
) -> None:
    """Run every job, ``at_once`` at a time; however this is left, no process of it is left behind.

    Args:
        ended: told the key of each that ended, and why it failed or None.
        tick: told now and then which are going on.
    """
    waiting, going = deque(jobs), dict[Job, _Child]()
    try:
        while waiting or going:
            while waiting and len(going) < at_once:
                going[waiting[0]] = _start(waiting[0])
                waiting.popleft()
            for done in [each for each, child in going.items() if child.process.poll() is not None]:
                ended(done.key, _why(going.pop(done)))
            tick([each.key for each in going])
            if going:
                time.sleep(PAUSE)
    finally:
        _stop(list(going.values()))


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM stops the runs as Ctrl-C does."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread: whoever runs us there has other means
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _start(job: Job) -> _Child:
    said = tempfile.TemporaryFile()  # noqa: SIM115 — closed when the process is gone
    environment = {**os.environ, "OMP_NUM_THREADS": str(job.threads)}
    process = subprocess.Popen(
        job.command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said,
        env=environment,
    )
    return _Child(process, said)


def _why(child: _Child) -> str | None:
    """Why it failed, in its own last words; None if it did not."""
    child.said.seek(0)
    words = child.said.read().decode("utf-8", "replace").strip()
    child.said.close()
    code = child.process.returncode
    if code == 0:
        return None
    if code < 0:
        return (
            f"stopped by signal {-code} ({signal.strsignal(-code)}); the same command goes on "
            "with it"
        )
    _, marked, message = words.rpartition("sordino: ")
    return (
        message
        if marked
        else words.splitlines()[-1]
        if words
        else f"ended with status {code} and said nothing"
    ).strip()


def _stop(children: Sequence[_Child]) -> None:
    # which a child takes over from us
    deaf = sys.platform == "win32" or signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    for child in children:
        if child.process.poll() is None:
            child.process.send_signal(signal.SIGTERM if deaf else signal.SIGINT)
    until = time.monotonic() + PATIENCE
    for child in children:
        try:
            child.process.wait(max(until - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        child.said.close()
