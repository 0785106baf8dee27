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

    from sordino.core.study.base import Study
    from sordino.tune.grid import Candidate
    from sordino.tune.price import Price


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
        _by_rules(path, change or (), out, only_plan, as_json)
        return
    if on is None:
        raise StudyError(
            "say what the constants are chosen by: --on DATA (public data, free), --on private "
            "(paid for), or --rules (no trials)"
        )
    from sordino.tune.grid import candidates

    found = candidates(path, change or (), vary or ())
    if on == "private":
        if runs is not None or jobs is not None or count != 1:
            raise StudyError("--runs, --jobs and --seeds are for public data: leave them out")
        _private(found, vary or (), path, change or (), (law, trials), out, only_plan, as_json)
        return
    _public(
        found, vary or (), path, (on, declared), count, (out, runs, jobs), only_plan, quiet, as_json
    )


def _public(
    found: Sequence[Candidate],
    vary: Sequence[str],
    path: Path,
    data: tuple[str, bool],
    count: int,
    places: tuple[Path | None, Path | None, int | None],
    only_plan: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Try every candidate on public data, and write the study with the best one."""
    from sordino.comparison import folders, runner, schedule
    from sordino.comparison.play import play
    from sordino.core.files import locked
    from sordino.tune import public
    from sordino.tune.grid import tuned

    (on, declared), (out, runs, jobs) = data, places
    named = schedule.slug(found[0].study.name)
    written = _free(out if out is not None else Path(f"{named}-tuned.toml"))
    folder = runs if runs is not None else Path("runs") / f"tune-{named}-on-{schedule.slug(on)}"
    folders.refuse_file(folder)
    with public.place_of(on, folder, only_plan=only_plan) as place:
        sides = public.sides(found, path, on, place, declared=declared)
        seeds = schedule.seeds_of(sides[0].study, count)
        at_once = runner.jobs_at_once(jobs, [side.study.execution.threads for side in sides])
        tasks = schedule.tasks(sides, seeds, folder)
        folders.states(tasks)
    if (file := public.file_of(on)) is not None:
        public.keep_digest(file, folder / "data.sha256", write=not only_plan)
    say.people(
        f"{len(found)} candidates, {len(tasks)} trials on public data ({on}): no privacy is spent"
    )
    if only_plan:
        return
    if (warning := public.book(found[0].study, on, declared=declared)) is not None:
        say.people(warning)
    with locked(folder, make=True):
        folders.sweep(task.folder for task in tasks)
        failed = play(tasks, at_once, quiet)
    scored = public.scored(tasks, failed)
    say.table(
        f"Accuracy on {on}",
        ["candidate", "mean", "failed"],
        [
            [one.title, "-" if one.failed else f"{100 * one.mean:.2f} %", "; ".join(one.failed)]
            for one in scored
        ],
    )
    best = public.best(scored)
    note = {
        "source": "public",
        "grid": list(vary),
        "data": public.called(on),
        "measure": public.MEASURE,
        "seeds": list(seeds),
        "trials": len(tasks),
    }
    _write(written, tuned(found[best], note), scored[best].mean, as_json)


def _private(
    found: Sequence[Candidate],
    vary: Sequence[str],
    path: Path,
    changes: Sequence[str],
    law: tuple[str, float | None],
    out: Path | None,
    only_plan: bool,
    as_json: bool,
) -> None:
    """Show what the choice costs; then book it, run the trials, and release the best."""
    from sordino.core import study as studies
    from sordino.tune import private
    from sordino.tune.price import price, told

    priced = price(found, vary, *law)
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
    try:
        done = private.tune(priced, studies.read(path, changes), out, say.people)
    except KeyboardInterrupt as stopped:
        stopped.add_note(f"The same command with --out {out} goes on, and pays nothing twice")
        raise
    if done.run is None:
        say.people(private.NOBODY)
    else:
        from sordino.report import write

        values = ", ".join(f"{key} = {value}" for key, value in (done.chosen or {}).items())
        say.people(f"chosen: {values}. The run: {out / done.run}")
        say.people(f"Report: {write(out / done.run)}")
    private.ageless(out)
    if as_json:
        say.machine(
            {**_numbers(priced), "chosen": done.chosen, "run": done.run and str(out / done.run)}
        )


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


def _by_rules(
    path: Path, changes: Sequence[str], out: Path | None, only_plan: bool, as_json: bool
) -> None:
    """Write the study with clip and learning rate by the rules."""
    from sordino.comparison.schedule import slug
    from sordino.core import study as studies
    from sordino.tune.grid import horizontal
    from sordino.tune.rules import ruled

    study = horizontal(studies.read(path, changes), path)
    written = _free(out if out is not None else Path(f"{slug(study.name)}-tuned.toml"))
    found, why = ruled(study)
    for line in why:
        say.people(line)
    if not only_plan:
        _write(written, found, None, as_json)


def _free(path: Path) -> Path:
    if path.exists():
        raise StudyError(f"{path}: exists already; choose another name with --out")
    return path


def _write(path: Path, study: Study, accuracy: float | None, as_json: bool) -> None:
    """The tuned study as a file."""
    from sordino.core import study as studies
    from sordino.core.files import replace_file
    from sordino.core.study.base import tuned_sentence

    replace_file(path, studies.write(study).encode())
    assert study.tuned is not None
    say.people(tuned_sentence(study.tuned, study.privacy.accountant))
    say.people(f"Wrote {path}. Next: sordino plan {path}")
    if as_json:
        say.machine({"study": str(path), "chosen": study.tuned.chosen, "accuracy": accuracy})
