"""``sordino tune``: constants of a study by trials on public or private data, or by rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.base.errors import StudyError
from sordino.cli import say
from sordino.cli.run import AsJson, Quiet, Set, StudyFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sordino.core.study.base import Study
    from sordino.tune.private import Tuning

TIMING = (
    "how long this takes tells how many trials there are to whoever watches this machine, and so "
    "does its disk until the end. The guarantee is for those who see what is released"
)


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
    workers: Annotated[
        int | None, typer.Option(help="On public data: number of processes, with a run each.")
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
        _by_rules(path, change or (), out, only_plan, as_json)
        return
    if on is None:
        raise StudyError(
            "say what the constants are chosen by: --on DATA (public data, free), --on private "
            "(paid for), or --rules (no trials)"
        )
    from sordino.tune.grid import candidates, tuned

    found = candidates(path, change or (), vary or ())
    if on == "private":
        if runs is not None or workers is not None or count != 1:
            raise StudyError("--runs, --workers and --seeds are for public data: leave them out")
        from sordino.tune.private import price

        priced = price(found, vary or (), law, trials)
        _privately(priced, path, change or (), out, only_plan, as_json)
        return
    from sordino.comparison import runner
    from sordino.comparison.schedule import slug
    from sordino.tune import public

    target = _free(out, found[0].study)
    folder = runs or Path("runs") / f"tune-{slug(found[0].study.name)}-on-{slug(on)}"
    tasks = public.trials(found, path, on, folder, count, declared=declared, only_plan=only_plan)
    tell = say.result if only_plan else say.people
    tell(f"{len(found)} candidates, {len(tasks)} trials on public data ({on}): no privacy is spent")
    if only_plan:
        return
    if (warning := public.book(found[0].study, on, declared=declared)) is not None:
        say.people(warning)
    scored = public.scored(tasks, runner.play_tasks(tasks, folder, workers, quiet))
    rows = [
        [one.title, "-" if one.failed else f"{100 * one.mean:.2f} %", "; ".join(one.failed)]
        for one in scored
    ]
    say.table(f"Accuracy on {on}", ["candidate", "mean", "failed"], rows)
    best = public.best(scored)
    note = {
        "source": "public",
        "grid": vary or [],
        "data": public.called(on),
        "measure": public.MEASURE,
        "seeds": list(dict.fromkeys(task.seed for task in tasks)),
        "trials": len(tasks),
    }
    _write(target, tuned(found[best], note), scored[best].mean, as_json)


def _by_rules(
    path: Path, changes: Sequence[str], out: Path | None, only_plan: bool, as_json: bool
) -> None:
    """Write the study with clip and learning rate by the rules, which need no trials."""
    from sordino.core import study as studies
    from sordino.tune.grid import horizontal
    from sordino.tune.rules import ruled

    study = horizontal(studies.read(path, changes), path)
    target = _free(out, study)
    found, why = ruled(study)
    for line in why:
        say.result(line)
    if not only_plan:
        _write(target, found, None, as_json)


def _free(out: Path | None, study: Study) -> Path:
    from sordino.comparison.schedule import slug

    path = Path(f"{slug(study.name)}-tuned.toml") if out is None else out
    if path.exists():
        raise StudyError(f"{path}: exists already; choose another name with --out")
    return path


def _write(path: Path, study: Study, accuracy: float | None, as_json: bool) -> None:
    """Write a study with chosen constants, and say why; ``accuracy`` is the best candidate's."""
    from sordino.core.files import replace_file
    from sordino.core.study.base import tuned_sentence
    from sordino.core.study.parse import write

    assert study.tuned is not None
    replace_file(path, write(study).encode())
    say.result(tuned_sentence(study.tuned, study.privacy.accountant))
    say.result(f"Wrote {path}. Next: sordino plan {path}")
    if as_json:
        say.machine({"study": str(path), "chosen": study.tuned.chosen, "accuracy": accuracy})


def _privately(
    priced: Tuning,
    path: Path,
    changes: Sequence[str],
    out: Path | None,
    only_plan: bool,
    as_json: bool,
) -> None:
    """Show what the choice costs; then book it, run its trials, and release the best."""
    from sordino.core import study as studies
    from sordino.core.run.folder import PAGE
    from sordino.report import write as write_report
    from sordino.tune import private

    numbers = {
        "candidates": len(priced.studies),
        "epsilon": priced.epsilon,
        "delta": priced.delta,
        "epsilon_of_one": priced.one,
        "noise_multiplier": priced.noise,
        "noise_multiplier_untuned": priced.without,
        "missed": priced.missed,
    }
    say.table("A choice on private data", ["", ""], private.told(priced))
    say.warn(TIMING)
    if only_plan:
        if as_json:
            say.machine(numbers)
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
    run = None if done.run is None else out / done.run
    if run is not None:
        write_report(run)
    private.ageless(out)
    if run is None:
        say.result("no trial was drawn: nothing is released, and the price stays charged")
    else:
        values = ", ".join(f"{key} = {value}" for key, value in (done.chosen or {}).items())
        say.result(f"chosen: {values}. The run: {run}")
        say.result(f"Report: {run / PAGE}")
    if as_json:
        say.machine({**numbers, "chosen": done.chosen, "run": run and str(run)})
