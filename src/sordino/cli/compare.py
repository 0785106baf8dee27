"""``sordino compare``."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sordino.cli import say
from sordino.cli.run import AsJson, Set
from sordino.errors import StudyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sordino.compare.result import Comparison
    from sordino.compare.schedule import Side, Task, Variant


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
    from sordino.compare import folders, result, runner, schedule, tables
    from sordino.compare.over import over as asked_over

    sides = _sides(paths, change or (), schedule.variants(vary or ()))
    drawn_over = asked_over(over, until, sides)
    seeds = schedule.seeds_of(sides[0].study, count)
    at_once = runner.jobs_at_once(jobs, [side.study.execution.threads for side in sides])
    folder = out if out is not None else schedule.usual_folder(sides)
    folders.refuse_file(folder)
    tasks = schedule.tasks(sides, seeds, folder)
    folders.states(tasks)  # what holds something else is refused before anything is made
    for side in sides:
        if side.study.seed != seeds[0]:
            say.people(
                f"warning: {side.path} says seed = {side.study.seed}; all use the first "
                "study's seeds, for paired differences"
            )
    with folders.held(folder) as keep:
        if keep:
            folders.sweep(tasks)
        failed = play(tasks, at_once, keep, quiet)
        comparison = result.collect(folder, chosen, tasks, failed, drawn_over)
        tables.write(comparison)
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


def _sides(
    paths: Sequence[Path], changes: Sequence[str], variants: Sequence[Variant]
) -> list[Side]:
    """Every study in every variant, read and calibrated; all wrong ones are told at once."""
    from sordino.compare.schedule import Side, labels, refuse_shared, slug
    from sordino.engine import study as studies
    from sordino.engine.assemble import calibrated
    from sordino.engine.study.tuned import refuse_repeated

    read, wrong = [], []
    for path, variant in [(path, variant) for path in paths for variant in variants]:
        try:
            study = studies.read(path, [*changes, *variant.changes])
            refuse_repeated(study.tuned)
            read.append((study, calibrated(study), path, variant))
        except StudyError as error:
            wrong.append(str(error))
    if wrong:
        raise StudyError("\n".join(dict.fromkeys(wrong)))
    names = labels(
        [study.name for study, *_ in read],
        [path for _, _, path, _ in read],
        [variant.title for *_, variant in read],
    )
    sides = [
        Side(name, slug(name), path, study, full)
        for name, (study, full, path, _) in zip(names, read, strict=True)
    ]
    refuse_shared(sides)
    return sides


def play(
    tasks: Sequence[Task], at_once: int, keep: tuple[int, ...], quiet: bool
) -> dict[Task, str]:
    """Run what is not done yet; why each failed that did."""
    import tempfile

    from sordino.compare import folders, runner
    from sordino.compare.progress import Progress

    states = folders.states(tasks)
    failed: dict[Task, str] = {}
    progress = None if quiet else Progress(tasks, states, sys.stderr)

    def ended(task: Task, why: str | None) -> None:
        if why is not None:
            failed[task] = why
        if progress is not None:
            progress.ended(task, why)

    def tick(going: Sequence[Task]) -> None:
        if progress is not None:
            progress.tick(going)

    with (
        tempfile.TemporaryDirectory(prefix="sordino-") as scratch,
        runner.terminated_like_interrupted(),
        progress or nullcontext(),
    ):
        todo = [
            runner.job(task, state, Path(scratch))
            for task, state in zip(tasks, states, strict=True)
            if state != "done"
        ]
        try:
            runner.play(todo, at_once, ended=ended, tick=tick, keep=keep)
        except KeyboardInterrupt:
            say.people("stopped. Finished runs are kept; run the same command again to continue")
            raise
    return failed


def _tell(comparison: Comparison) -> None:
    """The tables and what they mean."""
    from sordino.compare import tables

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
