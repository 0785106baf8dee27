"""The command line in this process: a process of its own spends three seconds on imports for every
command.
"""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from sordino.cli import main


@dataclass(frozen=True)
class Done:
    """How a command ended: its exit status, and what it said to machines and to people."""

    returncode: int
    stdout: str
    stderr: str


def sordino(folder: Path, *arguments: str) -> Done:
    """``sordino ARGUMENTS`` as typed in ``folder``."""
    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    typed = mock.patch.object(sys, "argv", ["sordino", *arguments])
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        typed,
    ):
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
    if not isinstance(status, int):
        raise TypeError(f"an exit status is a number; got {status!r}")
    return Done(status, out.getvalue(), err.getvalue())
