"""``sordino tune``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.base.errors import StudyError
from sordino.cli import say
from sordino.cli.run import AsJson, Set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sordino.api.tuning import Tuned
    from sordino.tune.price import Price
    from sordino.tune.public import Scored


StudyPath = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (TOML).")]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=V1,V2,...",
        help="Values to try; may be repeated. The grid is every combination.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        metavar="DATA|FILE|validation|private",
        help="Public data to try them on, which is free ('validation': the examples that "
        "data.validation declares public); or 'private': the study's own data, paid for.",
    ),
]
Rules = Annotated[
    bool, typer.Option("--rules", help="No trials: clip and learning rate follow rules.")
]
Declared = Annotated[
    bool,
    typer.Option(
        "--declared-public",
        help="Declare the rows of a file, or of a data set of your own, public.",
    ),
]
Seeds = Annotated[int, typer.Option("--seeds", help="Runs of each candidate on public data.")]
Law = Annotated[
    str,
    typer.Option(
        help="On private data: how the number of trials is distributed: geometric, "
        "logarithmic or poisson."
    ),
]
Trials = Annotated[
    float | None,
    typer.Option(
        help="On private data: how many trials are expected. Default: two for each candidate."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="The study file to write; on private data, the folder of the tuning."),
]
Runs = Annotated[Path | None, typer.Option(help="On public data: the folder for all runs.")]
Jobs = Annotated[int | None, typer.Option(help="On public data: number of parallel runs.")]
OnlyPlan = Annotated[
    bool, typer.Option("--plan", help="Show the grid and the price, and run nothing.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def tune(
    path: StudyPath,
    vary: Vary = None,
    on: On = None,
    rules: Rules = False,
    declared: Declared = False,
    count: Seeds = 1,
    law: Law = "geometric",
    trials: Trials = None,
    out: Out = None,
    runs: Runs = None,
    jobs: Jobs = None,
    only_plan: OnlyPlan = False,
    change: Set = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Choose constants of a study: on public data, on private data at a price, or by rules."""
    if rules:
        if vary or on is not None:
            raise StudyError("--rules tries nothing: leave out --vary and --on")
        from sordino.api.tuning import by_rules

        written = by_rules(path, change or (), out, say.people, only_plan=only_plan)
        if written is not None:
            _tell(written, as_json)
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
    asked = tuning.PublicTrials(
        path=path,
        found=found,
        vary=vary or (),
        on=on,
        declared=declared,
        count=count,
        out=out,
        runs=runs,
        jobs=jobs,
    )
    if only_plan:
        asked.show(say.people)
        return
    _tell(asked.run(say.people, _scores, quiet=quiet), as_json)


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
    from sordino.tune.price import told
    from sordino.tune.private import NOBODY

    say.table("A choice on private data", ["", ""], [list(row) for row in told(priced)])
    say.people(f"warning: {TIMING}")
    if only_plan:
        if as_json:
            say.machine(_numbers(priced))
        return
    if out is None:
        raise StudyError(
            "--on private needs --out FOLDER: after a kill, the same command with the same folder "
            "goes on and pays nothing twice"
        )
    done = tuning.choose_privately(priced, path, changes, out, say.people)
    if done.run is None:
        say.people(NOBODY)
    else:
        values = ", ".join(f"{key} = {value}" for key, value in (done.chosen or {}).items())
        say.people(f"chosen: {values}. The run: {done.run}")
        say.people(f"Report: {done.report}")
    if as_json:
        run = None if done.run is None else str(done.run)
        say.machine({**_numbers(priced), "chosen": done.chosen, "run": run})


TIMING = (
    "how long this takes tells how many trials there are to whoever watches this machine, and so "
    "does its disk until the end. The guarantee is for those who see what is released"
)


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


def _tell(found: Tuned, as_json: bool) -> None:
    say.people(found.why)
    say.people(f"Wrote {found.path}. Next: sordino plan {found.path}")
    if as_json:
        say.machine(found.record())
