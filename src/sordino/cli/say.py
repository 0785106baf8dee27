"""Printing: results on standard output, progress, warnings and errors on standard error.

With ``--json`` one JSON object is all of standard output, and results in words go to standard
error.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

from sordino.base import errors, modules
from sordino.base.files import FULL


def machine(value: object) -> None:
    """One JSON value on one line of standard output."""
    from sordino.core.records import simple

    sys.stdout.write(json.dumps(simple(value), allow_nan=False) + "\n")
    sys.stdout.flush()


@contextmanager
def stoppable() -> Iterator[None]:
    """Let an interruption end as an error that says how to go on; the parser of the command line
    would end it without a word.

    Raises:
        Interrupted: in its place.
    """
    try:
        yield
    except KeyboardInterrupt as stopped:
        remedy = " ".join(getattr(stopped, "__notes__", ()))
        raise errors.Interrupted(f"interrupted. {remedy}".rstrip()) from stopped


class Waiting:
    """Says how many of so many things are done, every few seconds; nothing where that is quick."""

    EVERY = 2.0  # seconds

    def __init__(self, what: str) -> None:
        self.what, self.last = what, time.monotonic()

    def __call__(self, done: int, whole: int) -> None:
        """Take note of it."""
        if (now := time.monotonic()) - self.last >= self.EVERY:
            self.last = now
            people(f"  {done} of {whole} {self.what}")


SPACES = "\n\t\xa0\u2009\u202f"


def shown(text: str) -> str:
    r"""Text of which anybody may have written a part, so that it controls no terminal.

    >>> shown("a\x1b[2Jb\nc")
    'a?[2Jb\nc'
    """
    return "".join(each if each.isprintable() or each in SPACES else "?" for each in text)


def people(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(shown(text) + "\n")


def warn(text: str) -> None:
    """A warning."""
    people(f"warning: {text}")


log: ContextVar[logging.Logger | None] = ContextVar("log", default=None)
"""Where a command was asked to write log lines, which hold nothing of private rows."""


_json: ContextVar[bool] = ContextVar("json", default=False)


def for_machines(asked: bool) -> bool:
    """Note whether this command was given ``--json``."""
    _json.set(asked)
    return asked


def _results() -> TextIO:
    return sys.stderr if _json.get() else sys.stdout


def result(text: str, codes: tuple[str, str] = ("", "")) -> None:
    """A line of a result, between ``codes`` for the screen."""
    stream = _results()
    stream.write(f"{codes[0]}{shown(text)}{codes[1]}\n")
    stream.flush()  # so that it keeps its place among what goes to standard error


def alarm(text: str) -> None:
    """A line of a result, in red where the screen has colours."""
    red = _results().isatty() and "NO_COLOR" not in os.environ
    result(text, ("\x1b[31m", "\x1b[0m") if red else ("", ""))


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of a result; columns of numbers stand to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, padding=(0, 2, 0, 0))
    for i, name in enumerate(head):
        numbers = i > 0 and all(
            row[i].removeprefix("-")[:1].isdigit() or row[i] in ("-", "inf") for row in rows
        )
        drawn.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        # names come from files: square brackets are no markup
        drawn.add_row(*(Text(shown(cell)) for cell in row))
    stream = _results()
    width = None if stream.isatty() else 120
    console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
    console.print(Text(shown(title), style="bold"))
    console.print(drawn)
    stream.flush()


def bound(value: float | None, digits: int = 4) -> str:
    """An upper bound for people: rounded up, never down.

    >>> bound(1.99941), bound(0.53), bound(float("inf"))
    ('2', '0.53', 'inf')
    """
    from sordino.privacy.rounding import epsilon_text  # here, because --help should not wait for it

    return epsilon_text(value, digits)


def number(value: float | None, digits: int = 4) -> str:
    """Return a number for people."""
    from sordino.core import statements  # here, likewise

    return statements.number_text(value, digits)


STATUSES = (
    (errors.LedgerUnavailable, 1),
    (errors.LedgerError, 2),
    (errors.ResumeError, 2),
    (errors.StudyError, 2),
    (errors.BudgetExceeded, 3),
    (errors.CutShort, 4),
    (errors.Interrupted, 130),
)
"""Statuses by the first kind that fits; of the rest 1. A service tries again after 1 alone."""
PRIVATE = (errors.DataError, errors.BudgetExceeded, errors.LedgerError)
"""Errors whose messages may quote private rows, or tell what they have spent; of code that a study
names nobody knows.
"""
DEBUG = "SORDINO_DEBUG"
"""The environment variable that lets an exception in code that a study names, or of the system,
end with its traceback.
"""


def failed(error: BaseException) -> int:
    """Say what has ended a command, or a study of several; its exit status.

    Raises:
        BaseException: the error itself, where nobody expected it and there is no log.
    """
    failure, lines = _failure(error), log.get()
    if lines is None and failure is None:
        raise error
    text, status = failure or ("", 1)
    # words that may depend on private rows
    causes = [each for each in (error, error.__cause__) if each is not None]
    private = any(isinstance(each, PRIVATE) or modules.raised(each) for each in causes)
    if lines is None:
        people(f"sordino: {text}")
    elif failure is None or private:
        lines.error(f"{type(error).__name__}: without --log-format the same command says more")
    else:
        lines.error(text)
    return status


def _failure(error: BaseException) -> tuple[str, int] | None:
    """Return the message and the exit status of an error; None of one that nobody expected."""
    traceback = bool(os.environ.get(DEBUG))
    if isinstance(error, errors.SordinoError):
        return str(error), next((code for kind, code in STATUSES if isinstance(error, kind)), 1)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if (said := modules.raised(error)) is not None and not traceback:
        return (
            f"{said}. The study names this code; with {DEBUG}=1 the same command shows the "
            "traceback",
            2,
        )
    if errors.no_memory(error) and not traceback:
        return (
            "no memory is left on this machine; what a run has saved is whole. Free some, or "
            "choose a smaller model or batch, then give the command again, with --resume for a run "
            f"that had begun; with {DEBUG}=1 the same command shows the traceback",
            1,
        )
    if not isinstance(error, OSError):
        return None
    if error.errno in FULL:
        return str(errors.DiskFull(error.filename or "a file")), 1
    if error.filename is None or traceback:
        return None
    return (
        f"{error.filename}: the system says: {error.strerror}. Check the path and this user's "
        f"permission to read and write there, then give the command again; with {DEBUG}=1 it "
        "shows the traceback",
        2,
    )
