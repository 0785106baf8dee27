"""``sordino compare``: several studies with the same seeds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.base.errors import StudyError
from sordino.cli import say
from sordino.cli.run import AsJson, Quiet, Set, Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sordino.comparison.result import Comparison
    from sordino.core.study.base import Study


def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="STUDY...", help="Study files. The first one is the baseline."),
    ],
    count: Annotated[
        int,
        typer.Option(
            "--seeds",
            help="Number of seeds. They start at the first study's seed, for every study.",
        ),
    ] = 3,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for all runs. Give the same folder to continue a comparison."),
    ] = None,
    change: Set = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2,...",
            help="Compare variants of each study, one for each value; may be repeated.",
        ),
    ] = None,
    workers: Workers = None,
    at: Annotated[
        str,
        typer.Option(
            metavar="true|claimed",
            help="Which epsilon to show: the true one, or what a paper claims.",
        ),
    ] = "true",
    over: Annotated[
        str | None,
        typer.Option(
            metavar="privacy.epsilon|data.clients",
            help="Add a figure over a key in which the studies differ.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="ACCURACY",
            help="With --over data.clients: the accuracy to reach and keep, or loss=LOSS.",
        ),
    ] = None,
    latex: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the tables as LaTeX there.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run several studies with the same seeds, and estimate their differences."""
    if at not in ("true", "claimed"):
        raise StudyError(f"--at must be true or claimed; got {at!r}")
    if latex is not None and (latex.is_dir() or not latex.parent.is_dir()):
        raise StudyError(f"--latex {latex}: give a file name in a folder that exists")
    from sordino.comparison import runner
    from sordino.core import study as studies

    def read(path: Path, varied: Sequence[str]) -> Study:
        return studies.read(path, [*(change or ()), *varied])

    comparison = runner.compared(
        [(path, partial(read, path)) for path in paths],
        vary or (),
        seeds=count,
        out=out,
        workers=workers,
        at="claimed" if at == "claimed" else "true",
        quiet=quiet,
        over=over,
        until=until,
        warn=say.warn,
    )
    _show_comparison(comparison)
    if latex is not None:
        from sordino.comparison.tables import latex as latex_of
        from sordino.core.files import replace_file

        replace_file(latex, latex_of(comparison).encode())
        say.result(f"LaTeX: {latex}")
    if as_json:
        from sordino.comparison.result import recorded
        from sordino.comparison.tables import PAGE

        page = str(comparison.folder / PAGE)
        say.machine(recorded(comparison) | {"page": page})
    if comparison.failures:
        raise typer.Exit(1)


def _show_comparison(comparison: Comparison) -> None:
    """The tables and what they mean."""
    from sordino.comparison import tables

    claimed = comparison.at == "claimed"
    if claimed and comparison.overclaims:
        say.alarm("NOT PRIVATE AS CLAIMED: " + " ".join(comparison.overclaims))
    elif comparison.overclaims:
        say.warn(" ".join(comparison.overclaims))
    studies = tables.studies(comparison)
    say.table(studies.title, studies.head, studies.rows)
    beside = tables.reported(comparison)
    if beside.rows:
        say.table(beside.title, beside.head, beside.rows)
    found = tables.differences(comparison)
    if found.rows:
        say.table(
            f"Differences to {comparison.members[0].side.label}, with the same seed",
            found.head,
            found.rows,
        )
        for verdict, unequal in tables.verdicts(comparison):
            say.result(" ".join(filter(None, (verdict, unequal))))
    for warning in comparison.warnings:
        say.warn(warning)
    for failure in comparison.failures:
        say.people(f"failed: {failure}")
    say.result(f"Report: {comparison.folder / tables.PAGE}")
