"""``sordino compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sordino.base.errors import StudyError
from sordino.cli import say
from sordino.cli.run import AsJson, Set

if TYPE_CHECKING:
    from sordino.comparison.result import Comparison


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
    jobs: Annotated[
        int | None, typer.Option(help="Number of parallel runs. Default: the number of cores.")
    ] = None,
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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run several studies with the same seeds, and estimate their differences."""
    chosen = _at(at)
    from sordino.api.comparing import of_files, play_sides

    comparison = play_sides(
        of_files(paths, change or ()),
        vary or (),
        seeds=count,
        out=out,
        jobs=jobs,
        at=chosen,
        quiet=quiet,
        over=over,
        until=until,
        warn=lambda text: say.people(f"warning: {text}"),
    )
    _tell(comparison)
    if as_json:
        from sordino.comparison.result import recorded

        page = str(comparison.folder / "comparison.html")
        say.machine(recorded(comparison) | {"page": page})
    if comparison.failures:
        raise typer.Exit(1)


def _at(at: str) -> Literal["true", "claimed"]:
    if at == "true" or at == "claimed":
        return "true" if at == "true" else "claimed"
    raise StudyError(f"--at must be true or claimed; got {at!r}")


def _tell(comparison: Comparison) -> None:
    """The tables and what they mean."""
    from sordino.comparison import tables

    claimed = comparison.at == "claimed"
    for warning in comparison.warnings:
        say.people(f"warning: {warning}")
    if claimed and comparison.overclaims:
        say.people("NOT PRIVATE AS CLAIMED: " + " ".join(comparison.overclaims))
    elif comparison.overclaims:
        say.people("warning: " + " ".join(comparison.overclaims))
    studies = tables.studies(comparison)
    say.table("Studies", studies.head, studies.rows)
    beside = tables.reported(comparison)
    if beside.rows:
        say.table("Beside what is reported", beside.head, beside.rows)
    found = tables.differences(comparison)
    if found.rows:
        say.table(
            f"Differences to {comparison.members[0].side.label}, with the same seed",
            found.head,
            found.rows,
        )
        for verdict, unequal in tables.verdicts(comparison):
            say.people(" ".join(filter(None, (verdict, unequal))))
    for failure in comparison.failures:
        say.people(f"failed: {failure}")
    say.people(f"Report: {comparison.folder / 'comparison.html'}")
