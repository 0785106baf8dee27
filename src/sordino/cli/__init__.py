"""The command line. Results go to standard output, progress, warnings and errors to standard error.

Heavy libraries are imported inside commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import io
import sys
import warnings
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sordino.base import VERSION, companions, companions_here
from sordino.cli import audit, ledger, network, plan, run, say, tune


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
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Read the options that stand before a command."""


app.command("run")(run.run)
app.command("compare")(run.compare)
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
        sys.exit(say.failed(error))
