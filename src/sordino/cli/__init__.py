"""The command line. Results go to standard output, progress, warnings and errors to standard error.

Heavy libraries are imported inside commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sordino.base import VERSION, companions, companions_here, modules
from sordino.base.errors import (
    BudgetExceeded,
    CutShort,
    DataError,
    DiskFull,
    Interrupted,
    LedgerError,
    SordinoError,
    StudyError,
)
from sordino.base.files import FULL
from sordino.cli import audit, compare, ledger, network, plan, run, say, tune


class _Commands(TyperGroup):
    """Commands that an interruption ends with a line, at whatever moment it comes."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was given."""
        say.for_machines(False)
        say.log.set(None)
        with say.stoppable():
            return super().invoke(ctx)


app = typer.Typer(
    name="sordino",
    cls=_Commands,
    help="Differentially private federated learning with one privacy ledger: a simulator and a "
    "federation.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        versions = {"sordino": VERSION, **companions_here()}
        sys.stdout.write("".join(f"{name} {number}\n" for name, number in versions.items()))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Read the options that stand before a command."""


app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("tune")(tune.tune)
app.command("plan")(plan.plan)
app.command("new")(run.new)
app.command("examples")(run.examples)
app.command("methods")(plan.methods)
app.command("keys")(plan.keys)
app.command("report")(run.report)
app.command("record")(run.record)
app.command("view")(run.view)
app.command("audit")(audit.audit)
app.command("serve")(network.serve)
app.command("join")(network.join)
app.add_typer(network.app, name="network")
app.add_typer(plan.data, name="data")
app.add_typer(ledger.app, name="ledger")

STATUSES = ((StudyError, 2), (BudgetExceeded, 3), (CutShort, 4), (Interrupted, 130))
PRIVATE = (DataError, BudgetExceeded, LedgerError)
"""Errors whose messages may quote private rows, or tell what they have spent; of code that a study
names nobody knows.
"""
DEBUG = "SORDINO_DEBUG"
"""The environment variable that lets an exception in code that a study names, or of the system,
end with its traceback.
"""


@cache
def add_companions() -> None:
    """Add the commands of packages beside this one, which import this module; ``network.name`` is
    one of the group ``network``.
    """
    for each in companions("sordino.commands"):
        group, _, name = each.name.rpartition(".")
        (network.app if group == "network" else app).command(name)(each.load())


def main() -> None:
    """Run the command line; every error that we raise on purpose is one message and a status."""
    add_companions()
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may be anything, as on standard error
        sys.stdout.reconfigure(errors="backslashreplace")
    # numpy's tell of rows: of an overflow, of a logarithm of zero
    warnings.simplefilter("ignore", RuntimeWarning)
    try:
        app()
    except SystemExit as ended:
        if ended.code == 130:  # the parser of the command line was interrupted, and says nothing
            sys.stderr.write("sordino: interrupted\n")
        raise
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away; there is nobody to tell
        sys.exit(1)
    except BaseException as error:
        failure, log = _failure(error), say.log.get()
        if log is None and failure is None:
            raise
        text, status = failure or ("", 1)
        if log is None:
            say.people(f"sordino: {text}")
        elif failure is None or _private(error):
            log.error(f"{type(error).__name__}: without --log-format the same command says more")
        else:
            log.error(text)
        sys.exit(status)


def _private(error: BaseException) -> bool:
    """Tell whether the words of an error may depend on private rows."""
    causes = [each for each in (error, error.__cause__) if each is not None]
    return any(isinstance(each, PRIVATE) or modules.raised(each) for each in causes)


def _failure(error: BaseException) -> tuple[str, int] | None:
    """Return the message and the exit status of an error; None of one that nobody expected."""
    traceback = bool(os.environ.get(DEBUG))
    if isinstance(error, SordinoError):
        return str(error), next((code for kind, code in STATUSES if isinstance(error, kind)), 1)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if (said := modules.raised(error)) is not None and not traceback:
        return (
            f"{said}. The study names this code; with {DEBUG}=1 the same command shows the "
            "traceback",
            2,
        )
    if not isinstance(error, OSError):
        return None
    if error.errno in FULL:
        return str(DiskFull(error.filename or "a file")), 1
    if error.filename is None or traceback:
        return None
    return (
        f"{error.filename}: the system says: {error.strerror}. Check the path and this user's "
        f"permission to read and write there, then give the command again; with {DEBUG}=1 it "
        "shows the traceback",
        2,
    )
