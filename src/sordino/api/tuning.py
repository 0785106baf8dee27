"""Constants of a study chosen by trials, on public data or on private data, or by rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino.base.errors import StudyError
from sordino.comparison import runner, schedule
from sordino.core import study as studies
from sordino.core.files import replace_file
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


def choose_publicly(
    path: Path,
    found: Sequence[Candidate],
    vary: Sequence[str],
    on: str,
    say: Say,
    table: Callable[[str, Sequence[public.Scored]], None],
    *,
    declared: bool,
    count: int,
    out: Path | None,
    runs: Path | None,
    jobs: int | None,
    quiet: bool,
    only_plan: bool,
) -> Tuned | None:
    """Try candidates on public data, which costs no privacy, and write the study with the best.

    Args:
        path: of the study.
        found: the candidates.
        vary: what they are made of, as ``KEY=V1,V2``.
        on: the public data: a data set, a file, or "validation".
        table: is told a title and what each candidate came to.
        declared: whether the user declares its rows public.
        count: seeds of each candidate.
        out: the study file to write; named after the study unless given.
        runs: folder of all trials; named after the study unless given.
        jobs: runs at once; as many as there are cores unless given.

    Returns:
        what was written; None where only the plan was asked for.
    """
    study = found[0].study
    target = _free(out, study)
    usual = Path("runs") / f"tune-{schedule.slug(study.name)}-on-{schedule.slug(on)}"
    folder = usual if runs is None else runs
    runner.refuse_file(folder)
    with public.place_of(on, folder, only_plan=only_plan) as place:
        sides = public.sides(found, path, on, place, declared=declared)
        seeds = schedule.seeds_of(sides[0].study, count)
        tasks = schedule.tasks(sides, seeds, folder)
        runner.states(tasks)
    if (file := public.file_of(on)) is not None:
        public.keep_digest(file, folder / "data.sha256", write=not only_plan)
    say(f"{len(found)} candidates, {len(tasks)} trials on public data ({on}): no privacy is spent")
    if only_plan:
        return None
    if (warning := public.book(study, on, declared=declared)) is not None:
        say(warning)
    failed = runner.play_tasks(tasks, folder, jobs, quiet)
    scored = public.scored(tasks, failed)
    table(f"Accuracy on {on}", scored)
    best = public.best(scored)
    note = {
        "source": "public",
        "grid": list(vary),
        "data": public.called(on),
        "measure": public.MEASURE,
        "seeds": list(seeds),
        "trials": len(tasks),
    }
    return _written(target, tuned(found[best], note), scored[best].mean)


def choose_privately(
    priced: Price, path: Path, changes: Sequence[str], out: Path, say: Say
) -> tuple[Mapping[str, object] | None, Path | None]:
    """Book a choice on private data, run its trials, and release the best.

    Returns:
        values by key, None where no trial was made; and the folder of the released run, if any.

    Raises:
        StudyError, BudgetExceeded: if it cannot be made, or is not paid for.
    """
    try:
        done = private.tune(priced, studies.read(path, changes), out, say)
    except KeyboardInterrupt as stopped:
        stopped.add_note(f"The same command with --out {out} goes on, and pays nothing twice")
        raise
    run = None if done.run is None else out / done.run
    if run is not None:
        write_report(run)
    private.ageless(out)
    return done.chosen, run


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
