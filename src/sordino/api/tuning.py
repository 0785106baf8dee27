"""Constants of a study chosen by trials, on public data or on private data, or by rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino.base.errors import StudyError
from sordino.comparison import runner, schedule
from sordino.core import study as studies
from sordino.core.files import locked, replace_file
from sordino.core.study.base import Study, tuned_sentence
from sordino.report import write as write_report
from sordino.tune import private, public
from sordino.tune.grid import Candidate, horizontal, tuned
from sordino.tune.price import Price
from sordino.tune.rules import ruled

Say = Callable[[str], None]
"""Told what happens, a line at a time."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """A study with chosen constants, in a file.

    Attributes:
        path: of the study file.
        study: with its table ``[tuned]``.
        accuracy: of the best candidate; None where nothing was tried.
    """

    path: Path
    study: Study
    accuracy: float | None

    @property
    def why(self) -> str:
        """The reason for the chosen constants, in a sentence."""
        assert self.study.tuned is not None
        return tuned_sentence(self.study.tuned, self.study.privacy.accountant)

    def record(self) -> dict[str, object]:
        """Return the choice for machines."""
        assert self.study.tuned is not None
        chosen = self.study.tuned.chosen
        return {"study": str(self.path), "chosen": chosen, "accuracy": self.accuracy}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTrials:
    """Trials of candidates on public data, which cost no privacy.

    Attributes:
        path: of the study.
        found: the candidates.
        vary: what they are made of, as ``KEY=V1,V2``.
        on: the public data: a data set, a file, or "validation".
        declared: whether the user declares its rows public.
        count: seeds of each candidate.
        out: the study file to write; named after the study unless given.
        runs: folder of all trials; named after the study unless given.
        jobs: runs at once; as many as there are cores unless given.
    """

    path: Path
    found: Sequence[Candidate]
    vary: Sequence[str]
    on: str
    declared: bool = False
    count: int = 1
    out: Path | None = None
    runs: Path | None = None
    jobs: int | None = None

    def run(
        self, say: Say, table: Callable[[str, Sequence[public.Scored]], None], *, quiet: bool
    ) -> Tuned:
        """Try every candidate, and write the study with the best one.

        Args:
            table: is told a title and what each candidate came to.
        """
        target, tasks, at_once = self._prepared(say, only_plan=False)
        warning = public.book(self.found[0].study, self.on, declared=self.declared)
        if warning is not None:
            say(warning)
        with locked(self._folder, make=True):
            runner.sweep(task.folder for task in tasks)
            failed = runner.play_tasks(tasks, at_once, quiet)
        scored = public.scored(tasks, failed)
        table(f"Accuracy on {self.on}", scored)
        best = public.best(scored)
        note = {
            "source": "public",
            "grid": list(self.vary),
            "data": public.called(self.on),
            "measure": public.MEASURE,
            "seeds": list(dict.fromkeys(task.seed for task in tasks)),
            "trials": len(tasks),
        }
        return _written(target, tuned(self.found[best], note), scored[best].mean)

    def show(self, say: Say) -> None:
        """Say what would be tried, and run nothing."""
        self._prepared(say, only_plan=True)

    @property
    def _folder(self) -> Path:
        named = schedule.slug(self.found[0].study.name)
        usual = Path("runs") / f"tune-{named}-on-{schedule.slug(self.on)}"
        return usual if self.runs is None else self.runs

    def _prepared(self, say: Say, *, only_plan: bool) -> tuple[Path, list[schedule.Task], int]:
        """Return the file to write, all trials, and how many run at once."""
        target = _free(self.out, self.found[0].study)
        folder = self._folder
        runner.refuse_file(folder)
        with public.place_of(self.on, folder, only_plan=only_plan) as place:
            sides = public.sides(self.found, self.path, self.on, place, declared=self.declared)
            seeds = schedule.seeds_of(sides[0].study, self.count)
            at_once = runner.jobs_at_once(
                self.jobs, [side.study.execution.threads for side in sides]
            )
            tasks = schedule.tasks(sides, seeds, folder)
            runner.states(tasks)
        if (file := public.file_of(self.on)) is not None:
            public.keep_digest(file, folder / "data.sha256", write=not only_plan)
        say(
            f"{len(self.found)} candidates, {len(tasks)} trials on public data ({self.on}): no "
            "privacy is spent"
        )
        return target, tasks, at_once


@dataclass(frozen=True, slots=True)
class PrivateChoice:
    """The outcome of a choice on private data: a run that is released, or none.

    Attributes:
        chosen: values by key; None where no trial was made.
        run: folder of the released run.
        report: its page.
    """

    chosen: dict[str, object] | None
    run: Path | None
    report: Path | None


def choose_privately(
    priced: Price, path: Path, changes: Sequence[str], out: Path, say: Say
) -> PrivateChoice:
    """Book a choice on private data, run its trials, and release the best.

    Raises:
        StudyError, BudgetExceeded: if it cannot be made, or is not paid for.
    """
    try:
        done = private.tune(priced, studies.read(path, changes), out, say)
    except KeyboardInterrupt as stopped:
        stopped.add_note(f"The same command with --out {out} goes on, and pays nothing twice")
        raise
    if done.run is None:
        private.ageless(out)
        return PrivateChoice(done.chosen, None, None)
    run = out / done.run
    found = PrivateChoice(done.chosen, run, write_report(run))
    private.ageless(out)
    return found


def by_rules(
    path: Path, changes: Sequence[str], out: Path | None, say: Say, *, only_plan: bool
) -> Tuned | None:
    """Write the study with clip and learning rate by the rules, which need no trials.

    Returns:
        what was written; None where only the plan was asked for.
    """
    study = horizontal(studies.read(path, changes), path)
    target = _free(out, study)
    found, why = ruled(study)
    for line in why:
        say(line)
    return None if only_plan else _written(target, found, None)


def _free(out: Path | None, study: Study) -> Path:
    path = Path(f"{schedule.slug(study.name)}-tuned.toml") if out is None else out
    if path.exists():
        raise StudyError(f"{path}: exists already; choose another name with --out")
    return path


def _written(path: Path, study: Study, accuracy: float | None) -> Tuned:
    replace_file(path, studies.write(study).encode())
    return Tuned(path, study, accuracy)
