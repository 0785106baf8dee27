"""Processes of this program that another process of it starts, watches and ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple

from sordino.base import HOME

PATIENCE = 10.0
"""Seconds that a process has to stop."""


class Child(NamedTuple):
    """A process, and what it says on standard error."""

    process: subprocess.Popen[bytes]
    said: IO[bytes]


def calling(call: str, *homes: Path) -> tuple[str, ...]:
    """Return the command of a process that calls ``package.module:function(arguments)``, and goes
    on with what follows that.

    As ``python -m sordino``, but the current folder is never where modules are looked for; ours is,
    after all others: it may be there because of the current folder.

    Args:
        homes: other folders where packages lie that it needs.
    """
    module, _, rest = call.partition(":")
    name = rest.partition("(")[0]
    places = [str(HOME.parent), *map(str, homes)]
    program = f"import sys; sys.path.extend({places!r}); from {module} import {name}; {rest}"
    return sys.executable, "-P", "-c", program


def follow(parent: int) -> None:
    """End with the process that has started this one, at once, and leave Ctrl-C to it.

    It is called before anything that takes long to import.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != parent:
        os._exit(1)


@contextmanager
def handling(number: int, handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Have a signal handled so meanwhile, in the main thread: no other can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def start(command: Sequence[str], threads: int | None = None, keep: Sequence[int] = ()) -> Child:
    """Start a process whose libraries use so many threads; as many as ours unless given.

    Args:
        keep: handles of open files that it inherits.
    """
    said = tempfile.TemporaryFile()  # noqa: SIM115 — closed when the process is gone
    environment = dict(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said,
        env=environment,
        pass_fds=keep,
    )
    return Child(process, said)


def why(child: Child) -> str | None:
    """Return why a process that has ended failed, in its own last words; None if it did not."""
    child.said.seek(0)
    words = child.said.read().decode("utf-8", "replace").strip()
    child.said.close()
    code = child.process.returncode
    if code == 0:
        return None
    if code < 0:
        return f"stopped by signal {-code} ({signal.strsignal(-code)})"
    _, marked, message = words.rpartition("sordino: ")
    if not marked:
        message = words.splitlines()[-1] if words else f"ended with status {code} and said nothing"
    return message.strip()


def stop(children: Sequence[Child], within: float = PATIENCE, *, ask: bool = True) -> None:
    """End processes, and wait for them.

    Args:
        within: seconds after which they are killed.
        ask: interrupt them first, as Ctrl-C does.
    """
    # which a child takes over from us
    deaf = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    for child in children:
        if ask and child.process.poll() is None:
            child.process.send_signal(signal.SIGTERM if deaf else signal.SIGINT)
    until = time.monotonic() + within
    for child in children:
        try:
            child.process.wait(max(until - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        child.said.close()
