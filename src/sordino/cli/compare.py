"""``sordino compare`` and ``tune``: several runs of studies, and what they decide."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.base.errors import StudyError
from sordino.cli import say
from sordino.cli.run import AsJson, Jobs, Quiet, Set, StudyFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sordino.api.tuning import Tuned
    from sordino.comparison.result import Comparison
    from sordino.core.study.base import Study
    from sordino.tune.price import Price
    from sordino.tune.public import Scored

TIMING = (
    "how long this takes tells how many trials there are to whoever watches this machine, and so "
    "does its disk until the end. The guarantee is for those who see what is released"
)


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
    jobs: Jobs = None,
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
        jobs=jobs,
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

        page = str(comparison.folder / "comparison.html")
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
            say.result(" ".join(filter(None, (verdict, unequal))))
    for warning in comparison.warnings:
        say.warn(warning)
    for failure in comparison.failures:
        say.people(f"failed: {failure}")
    say.result(f"Report: {comparison.folder / 'comparison.html'}")


def tune(
    path: StudyFile,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2,...",
            help="Values to try; may be repeated. The grid is every combination.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="DATA|FILE|validation|private",
            help="Public data to try them on, which is free ('validation': the examples that "
            "data.validation declares public); or 'private': the study's own data, paid for.",
        ),
    ] = None,
    rules: Annotated[
        bool, typer.Option("--rules", help="No trials: clip and learning rate follow rules.")
    ] = False,
    declared: Annotated[
        bool,
        typer.Option(
            "--declared-public",
            help="Declare the rows of a file, or of a data set of your own, public.",
        ),
    ] = False,
    count: Annotated[
        int, typer.Option("--seeds", help="Runs of each candidate on public data.")
    ] = 1,
    law: Annotated[
        str,
        typer.Option(
            help="On private data: how the number of trials is distributed: geometric, "
            "logarithmic or poisson."
        ),
    ] = "geometric",
    trials: Annotated[
        float | None,
        typer.Option(
            help="On private data: how many trials are expected. Default: two for each candidate."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The study file to write; on private data, the folder of the tuning."),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="On public data: the folder for all runs.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="On public data: number of parallel runs.")
    ] = None,
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Show the grid and the price, and run nothing.")
    ] = False,
    change: Set = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Choose constants of a study: on public data, on private data at a price, or by rules."""
    if rules:
        if vary or on is not None:
            raise StudyError("--rules tries nothing: leave out --vary and --on")
        from sordino.api.tuning import by_rules

        written = by_rules(path, change or (), out, say.result, only_plan=only_plan)
        if written is not None:
            _show_tuned(written, as_json)
        return
    if on is None:
        raise StudyError(
            "say what the constants are chosen by: --on DATA (public data, free), --on private "
            "(paid for), or --rules (no trials)"
        )
    from sordino.api import tuning
    from sordino.tune.grid import candidates

    found = candidates(path, change or (), vary or ())
    if on == "private":
        if runs is not None or jobs is not None or count != 1:
            raise StudyError("--runs, --jobs and --seeds are for public data: leave them out")
        from sordino.tune.price import price

        priced = price(found, vary or (), law, trials)
        _private(priced, path, change or (), out, only_plan, as_json)
        return
    tuned = tuning.choose_publicly(
        path,
        found,
        vary or (),
        on,
        say.result if only_plan else say.people,
        _scores,
        declared=declared,
        count=count,
        out=out,
        runs=runs,
        jobs=jobs,
        quiet=quiet,
        only_plan=only_plan,
    )
    if tuned is not None:
        _show_tuned(tuned, as_json)


def _scores(title: str, scored: Sequence[Scored]) -> None:
    rows = [
        [one.title, "-" if one.failed else f"{100 * one.mean:.2f} %", "; ".join(one.failed)]
        for one in scored
    ]
    say.table(title, ["candidate", "mean", "failed"], rows)


def _private(
    priced: Price,
    path: Path,
    changes: Sequence[str],
    out: Path | None,
    only_plan: bool,
    as_json: bool,
) -> None:
    """Show what the choice costs; then make it."""
    from sordino.api import tuning
    from sordino.core.run.folder import PAGE
    from sordino.tune.price import told
    from sordino.tune.private import NOBODY

    say.table("A choice on private data", ["", ""], told(priced))
    say.warn(TIMING)
    if only_plan:
        if as_json:
            say.machine(_numbers(priced))
        return
    if out is None:
        raise StudyError(
            "--on private needs --out FOLDER: after a kill, the same command with the same folder "
            "goes on and pays nothing twice"
        )
    chosen, run = tuning.choose_privately(priced, path, changes, out, say.people)
    if run is None:
        say.result(NOBODY)
    else:
        values = ", ".join(f"{key} = {value}" for key, value in (chosen or {}).items())
        say.result(f"chosen: {values}. The run: {run}")
        say.result(f"Report: {run / PAGE}")
    if as_json:
        where = None if run is None else str(run)
        say.machine({**_numbers(priced), "chosen": chosen, "run": where})


def _numbers(priced: Price) -> dict[str, object]:
    """The price, for machines."""
    return {
        "candidates": len(priced.studies),
        "epsilon": priced.epsilon,
        "delta": priced.delta,
        "epsilon_of_one": priced.one,
        "noise_multiplier": priced.noise,
        "noise_multiplier_untuned": priced.without,
        "missed": priced.missed,
    }


def _show_tuned(found: Tuned, as_json: bool) -> None:
    say.result(found.why)
    say.result(f"Wrote {found.path}. Next: sordino plan {found.path}")
    if as_json:
        say.machine(found.record())
