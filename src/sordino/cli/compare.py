"""``sordino compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sordino.base.errors import StudyError
from sordino.cli import say
from sordino.cli.run import AsJson, Set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sordino.comparison.result import Comparison
    from sordino.comparison.sides import Reads


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
    from sordino.comparison import result, runner, schedule
    from sordino.comparison.over import over as asked_over
    from sordino.comparison.play import compared
    from sordino.comparison.sides import sides_of

    sides = sides_of(
        [(path, _reads(path, change or ())) for path in paths], schedule.variants(vary or ())
    )
    drawn_over = asked_over(over, until, sides)
    seeds = schedule.seeds_of(sides[0].study, count)
    at_once = runner.jobs_at_once(jobs, [side.study.execution.threads for side in sides])
    folder = out if out is not None else schedule.usual_folder(sides)
    tasks = schedule.tasks(sides, seeds, folder)
    for side in sides:
        if side.study.seed != seeds[0]:
            say.people(
                f"warning: {side.path} says seed = {side.study.seed}; all use the first "
                "study's seeds, for paired differences"
            )
    comparison = compared(folder, tasks, chosen, at_once, over=drawn_over, quiet=quiet)
    _tell(comparison)
    if as_json:
        from msgspec.structs import replace

        say.machine(replace(result.recorded(comparison), page=str(folder / "comparison.html")))
    if comparison.failures:
        raise typer.Exit(1)


def _at(at: str) -> Literal["true", "claimed"]:
    if at == "true" or at == "claimed":
        return "true" if at == "true" else "claimed"
    raise StudyError(f"--at must be true or claimed; got {at!r}")


def _reads(path: Path, changes: Sequence[str]) -> Reads:
    from sordino.core import study as studies

    return lambda more: studies.read(path, [*changes, *more])


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
