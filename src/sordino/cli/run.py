"""``sordino run``, ``compare``, ``record``, ``report``, ``new``, ``examples`` and ``view``; options
of several commands.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sordino.base.errors import StudyError
from sordino.cli import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sordino.core.run.session import Outcome
    from sordino.core.study.base import Study

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (TOML).")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the study; may be repeated."),
]
Workers = Annotated[
    int | None, typer.Option(help="Number of processes, with a run each. Default: one a core.")
]
Modules = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the modules that the study names. This runs their code; without the "
        "option no code of a run folder runs."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json", callback=say.for_machines, help="End with one JSON object on standard output."
    ),
]


def run(
    study: Annotated[Path | None, typer.Argument(help="The study file (TOML).")] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume this run folder.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run folder to create. Default: runs/NAME-001, -002, ..."),
    ] = None,
    change: Set = None,
    modules: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the modules that the study names. Default: its own folder, or "
            "installed modules."
        ),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            "--track",
            metavar="NAME",
            help="Hand the log on to tensorboard, mlflow or wandb, into a store in the run folder; "
            r"may be repeated. Needs: pip install 'sordino\[track]'.",
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Show the run on a page of this machine while it goes on."),
    ] = False,
    port: Annotated[
        int, typer.Option(help="The port of the page of --live. Default: any that is free.")
    ] = 0,
    workers: Annotated[
        int | None,
        typer.Option(help="Number of processes that train. Default: 1, or as torchrun says."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train the model of a study, and write a run folder with a report."""
    if (study is None) == (resume is None):
        raise StudyError("give either a study file or --resume RUN")
    if resume is not None and (out is not None or change):
        raise StudyError("--resume continues a run without changes: leave out --out and --set")
    from sordino.base.modules import look_beside
    from sordino.clients import workers as processes
    from sordino.core import regimes
    from sordino.core import study as studies
    from sordino.core.run import session
    from sordino.core.study.base import refuse_repeated, tuned_sentence
    from sordino.live.observers import observed

    if study is not None:
        look_beside(study.parent if modules is None else modules)  # for a tracker of one's own
    with (
        processes.workers(workers) as group,
        observed(
            quiet=quiet,
            tell=say.people,
            warn=say.warn,
            notice=say.people,
            track=track or (),
            live=port if live else None,
        ) as seen,
    ):
        build = regimes.build if group is None else group.build
        if resume is not None:
            outcome = session.resume(resume, seen.row, seen.begin, modules=modules, build=build)
        else:
            assert study is not None
            asked = studies.read(study, change or (), modules=modules)
            refuse_repeated(asked.tuned)
            if asked.tuned is not None:
                say.people(f"tuned: {tuned_sentence(asked.tuned, asked.privacy.accountant)}")
            outcome = session.begin(asked, out, seen.row, seen.begin, build=build)
        if group is not None:  # the report needs none
            group.close()
        seen.end(outcome)
        concluded(outcome)  # while the live page is still there, which goes on to the report
    if as_json:
        say.machine(outcome)


def record(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has ended.")] = Path(),
    answers: Annotated[
        Path | None, typer.Option(help="A TOML file with answers; see --questions.")
    ] = None,
    kit: Annotated[
        Path | None,
        typer.Option(
            help="The kit of the server or site, whose key signs. Default: the folder around the "
            "run, where that is a kit."
        ),
    ] = None,
    proof: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="A folder with the proof.json of a site. Give it often. Default: those that the "
            "run folder keeps (network proof --keep).",
        ),
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What `sordino audit --json` printed, for its table."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write. Default: the run.")] = None,
    modules: Modules = None,
    questions: Annotated[
        bool, typer.Option("--questions", help="Print the questions as a file to fill in.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write record.yaml and record.html for an auditor: what was released, and what holds."""
    from sordino.api.recording import NAME, PAGE
    from sordino.api.recording import record as made
    from sordino.deployment.document import blank_answers, plain

    if questions:
        say.result(blank_answers().rstrip())
        return
    found = made(
        run, answers=answers, kit=kit, proofs_of=proof or (), audit=audit, out=out, modules=modules
    )
    if as_json:
        say.machine(plain(found))
        return
    open_points = [each.point for each in found.points if each.state == "open"]
    for name in (NAME, PAGE):
        say.result(str((out or run) / name))
    say.people(f"Open: {', '.join(open_points) or 'nothing'}.")


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
        Literal["true", "claimed"],
        typer.Option(help="Which epsilon to show: the true one, or what a paper claims."),
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
    if latex is not None and (latex.is_dir() or not latex.parent.is_dir()):
        raise StudyError(f"--latex {latex}: give a file name in a folder that exists")
    from sordino.comparison import runner, tables
    from sordino.core import study as studies

    def read(path: Path, varied: Sequence[str]) -> Study:
        return studies.read(path, [*(change or ()), *varied])

    comparison = runner.compared(
        [(path, partial(read, path)) for path in paths],
        vary or (),
        seeds=count,
        out=out,
        workers=workers,
        at=at,
        quiet=quiet,
        over=over,
        until=until,
        warn=say.warn,
    )
    overclaimed = " ".join(comparison.overclaims)
    if overclaimed and at == "claimed":
        say.alarm(f"NOT PRIVATE AS CLAIMED: {overclaimed}")
    elif overclaimed:
        say.warn(overclaimed)
    for shown in (tables.studies(comparison), tables.reported(comparison)):
        if shown.rows:
            say.table(shown.title, shown.head, shown.rows)
    found, first = tables.differences(comparison), comparison.members[0].side.label
    if found.rows:
        say.table(f"Differences to {first}, with the same seed", found.head, found.rows)
        for verdict, unequal in tables.verdicts(comparison):
            say.result(" ".join(filter(None, (verdict, unequal))))
    for warning in comparison.warnings:
        say.warn(warning)
    for failure in comparison.failures:
        say.people(f"failed: {failure}")
    say.result(f"Report: {comparison.folder / tables.PAGE}")
    if latex is not None:
        from sordino.core.files import replace_file

        replace_file(latex, tables.latex(comparison).encode())
        say.result(f"LaTeX: {latex}")
    if as_json:
        from sordino.comparison.result import recorded

        say.machine(recorded(comparison) | {"page": str(comparison.folder / tables.PAGE)})
    if comparison.failures:
        raise typer.Exit(1)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders. Several folders give one page that compares them."),
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write a comparison.")] = None,
    modules: Modules = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the figures of one run as files, and no page."),
    ] = None,
    kind: Annotated[
        Literal["svg", "pdf", "png"], typer.Option("--format", help="The files of --figures.")
    ] = "svg",
    as_json: AsJson = False,
) -> None:
    """Write report.html of a run again, or write one page that compares several runs."""
    from sordino.core.run.folder import about_of
    from sordino.core.run.reading import load
    from sordino.report import write, write_comparison
    from sordino.report.page import write_figures
    from sordino.report.words import ends_early

    if figures is not None and (len(runs) > 1 or out is not None):
        raise StudyError("--figures is for one run, and makes no page: leave out --out")

    for folder in runs if modules is not None else ():
        about_of(folder, modules)
    if figures is not None:
        files = write_figures(runs[0], figures, kind)
        for file in files:
            say.result(str(file))
        if as_json:
            say.machine({"figures": [str(file) for file in files]})
        return
    alone = len(runs) == 1 and out is None
    page = write(runs[0]) if alone else write_comparison(runs, out or Path("comparison.html"))
    for folder in runs:
        if damaged := load(folder).damaged:
            say.warn(f"{folder}: {ends_early(damaged)}")
    say.result(f"Report: {page}")
    if as_json:
        say.machine({"report": str(page)})


def new(
    regime: Annotated[
        str | None,
        typer.Argument(
            help="Regime of the study. `sordino methods` names the regimes. Default: the first one."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file to write. Default: standard output.")
    ] = None,
) -> None:
    """Write a study file to begin with."""
    from sordino.core.files import write_new
    from sordino.core.regimes import named, names

    template = named(names()[0] if regime is None else regime).template
    if not template:
        raise StudyError(f"regime {regime!r} has no study file to begin with")
    # Without its name: a study that is changed would keep the name of another method.
    template = re.sub(r"\Aname = .*\n", "", template)
    if out is None:
        sys.stdout.write(template)
        return
    write_new(out, template)
    say.people(f"Wrote {out}. Next: sordino plan {out}")


def examples(
    name: Annotated[
        str | None,
        typer.Argument(help="An example or a folder of examples. Default: list all of them."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to copy it. Default: its name, in this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the shipped example studies, or copy one of them, or a folder of them."""
    from sordino.api import shipped

    if name is None:
        listed = shipped.listed()
        if as_json:
            say.machine(listed)
            return
        say.table("Examples", ["name", "study"], list(listed.items()))
        say.people("`sordino examples NAME` copies one; the name of a folder copies all in it")
        return
    chosen = shipped.chosen(name)
    target = Path(chosen.name) if out is None else out
    for copied in shipped.copy(chosen, target):
        say.people(f"Copied {copied}")
    if as_json:
        say.machine({"example": name, "path": str(target)})


def concluded(outcome: Outcome, *, told: bool = True) -> None:
    """Write the report, and say how a run ended, where that is to be ``told``."""
    from sordino.core import regimes
    from sordino.core.files import resumable
    from sordino.report import write

    with resumable(Path(outcome.run), f"write the page with `sordino report {outcome.run}`"):
        page = write(Path(outcome.run))
    if not told:
        return
    words, accuracy = regimes.vocabulary(outcome.regime), "-"
    if outcome.rmse is not None:
        words, accuracy = regimes.of_numbers(words), f"{outcome.rmse:.4g}"
    elif outcome.accuracy is not None:
        accuracy = f"{100 * outcome.accuracy:.2f} %"
    chosen = f", the budget ({say.bound(outcome.spent)} was spent, but only the budget is a bound),"
    if outcome.spent == outcome.epsilon:
        chosen = ""
    say.result(
        f"{outcome.method}: {words.many(outcome.rounds)}, at most {outcome.steps} "
        f"{words.steps_of_one},"
        f" {words.accuracy.told} {accuracy},"
        f" epsilon {say.bound(outcome.epsilon)}{chosen} at delta {say.number(outcome.delta)} "
        f"({outcome.accountant}).\n"
        f"It ended because {outcome.why}.\nReport: {page}"
    )


def view(
    folder: Annotated[Path, typer.Argument(help="A run folder, or a folder of run folders.")],
    port: Annotated[
        int, typer.Option(help="The port on 127.0.0.1. Default: any that is free.")
    ] = 0,
) -> None:
    """Show a run while it goes on, or the runs in a folder, in a browser of this machine."""
    from sordino.live.view import view as serve

    pages = serve(folder, port)
    say.people(f"{folder}: {pages.address} (Ctrl-C to stop)")
    try:
        pages.wait()
    except KeyboardInterrupt:
        say.people("Stopped.")
    finally:
        pages.close()
