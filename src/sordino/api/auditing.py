"""Attacks on what studies release: lower bounds of epsilon beside the ledger's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sordino.api.shipped import folder
from sordino.audit import mechanisms
from sordino.audit.canaries import own_mechanism
from sordino.audit.intervals import (
    Interval,
    IntervalsRecord,
    Row,
    failed,
    intervals_figure,
    lira_figure,
    rows,
)
from sordino.audit.lira import FEWEST, FORMS, Form, Inferred, Observed, inferred
from sordino.audit.shadows import STUDY, Shadows, observe, observed, shadows
from sordino.base import HOME
from sordino.base.errors import StudyError
from sordino.base.files import there
from sordino.clients.study import HorizontalStudy
from sordino.comparison import runner
from sordino.comparison.schedule import slug
from sordino.core import study as studies
from sordino.core.files import locked, replace_file, said_clearly
from sordino.core.records import known
from sordino.core.run.folder import about_of, study_of
from sordino.core.study.base import Study
from sordino.report.drawing import draw

ALPHA = 0.05
"""All lower bounds of a table hold together but for this chance."""
PICTURE, ROC = "audit.svg", "lira.svg"
SHADOWS = "shadows"
SCALES = ("quick", "full")
LONGEST_NAME = 24
SMALL = {
    "samples": "budget.rounds=10",
    "clients": "budget.rounds=10",
    "arrivals": "budget.updates=20",
    "labels": "budget.events=600",
    "entities": "budget.events=600",
}
"""Studies that come with the program, one for each unit and regime, and how they are shortened."""
FEW = 1000
"""Canaries of a short run."""
FEW_SHADOWS, MANY_SHADOWS = 8, 64

Progress = Callable[[int, int], None]
"""Told how many of how many runs are done."""


@dataclass(slots=True, kw_only=True, eq=False)
class Audit:
    """Attacks, and what they came to.

    Attributes:
        attack: its name: "mechanism", "canaries", "lira" or "all".
        study: under attack; None for all mechanisms, and small studies.
        canaries: most of them in a run.
        scale: "quick" or "full".
        seed: of the releases of mechanisms.
        shadows: shadow runs; None for as many as the scale has.
        jobs: runs at once; None for as many as there are cores.
        modules: where modules lie that the study names.
        picture: where it goes; all else goes beside it.
        intervals: the rows of the table.
        inferred: curves of attacks with shadow runs.
    """

    attack: str
    study: Study | None = None
    canaries: int = 16_000
    scale: str = "quick"
    seed: int = 0
    shadows: int | None = None
    jobs: int | None = None
    modules: Path | None = None
    picture: Path
    intervals: list[Interval] = field(default_factory=list)
    inferred: list[Inferred] = field(default_factory=list)

    @property
    def wants_shadows(self) -> bool:
        """True if shadow runs are made: many of them, so not of a study by "all" alone."""
        return self.attack == "lira" or (
            self.attack == "all" and (self.study is None or self.shadows is not None)
        )

    @property
    def count(self) -> int:
        """Shadow runs."""
        if self.shadows is not None:
            return self.shadows
        return FEW_SHADOWS if self.scale == "quick" else MANY_SHADOWS

    @property
    def failed(self) -> list[Interval]:
        """Ledgers that are contradicted, and false claims that are not caught."""
        return failed(self.intervals)

    @property
    def curves(self) -> Path | None:
        """The picture of hits over false alarms, where shadow runs were made."""
        return self.picture.with_name(ROC) if self.inferred else None

    def record(self) -> IntervalsRecord:
        """Return the table for machines."""
        return IntervalsRecord(
            attack=self.attack,
            seed=self.seed,
            confidence=1.0 - ALPHA,
            picture=str(self.picture),
            intervals=tuple(self.intervals),
            verdicts=tuple(one.verdict for one in self.intervals),
            inferred=tuple(self.inferred),
        )

    def run(self, progress: Progress) -> None:
        """Make all attacks, and draw what they came to.

        Rows share the chance of error (Bonferroni). Runs say less than releases by the thousand:
        where there are both, half of the chance is theirs.

        Raises:
            StudyError: if the attack cannot be made on this study.
        """
        self._check()
        subjects = self._subjects()
        made = [*self._canaries(), *self._shadows(progress)]
        part = ALPHA / 2.0 if subjects and made else ALPHA
        effort = mechanisms.Effort() if self.scale == "quick" else mechanisms.FULL
        if subjects:
            self.intervals.extend(mechanisms.table(subjects, effort, self.seed, part))
        for row in made:
            self.intervals.append(row(part / len(made)))
        with said_clearly(self.picture):
            self.picture.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.picture, draw(intervals_figure(self.intervals)).encode())
        if self.curves is not None:
            replace_file(self.curves, draw(lira_figure(self.inferred)).encode())

    def _check(self) -> None:
        if self.scale not in SCALES:
            raise StudyError(f"--scale {self.scale!r} is not known: one of {', '.join(SCALES)}")
        if self.canaries < 1:
            raise StudyError(f"--canaries must be from 1; got {self.canaries}")
        if self.wants_shadows:
            attacked_runs(self.count)
        elif self.shadows is not None:
            raise StudyError(
                f"--shadows does not go with --attack {self.attack}; give --attack lira"
            )

    def _subjects(self) -> list[mechanisms.Subject]:
        if self.attack not in ("mechanism", "all"):
            return []
        known_ones = mechanisms.subjects() if self.study is None or self.attack == "all" else []
        if self.study is None:
            return known_ones
        return [own_mechanism(_horizontal(self.study)), *known_ones]

    def _canaries(self) -> Iterator[Row]:
        """Yield rows of runs with canaries: of the study, or of small ones."""
        if self.attack not in ("canaries", "all"):
            return
        if self.study is not None:
            yield from rows(self.study, self.canaries, _name(self.study))
            return
        most = min(self.canaries, FEW) if self.scale == "quick" else self.canaries
        for study in [small(unit, self.scale) for unit in SMALL]:
            yield from rows(study, most, study.name)

    def _shadows(self, progress: Progress) -> list[Row]:
        """Make shadow runs, and return a row for each form of the attack with them."""
        if not self.wants_shadows:
            return []
        study = small("samples", self.scale) if self.study is None else self.study
        seen = shadowed(
            _horizontal(study),
            self.count,
            self.picture.parent / SHADOWS,
            modules=folder() if self.study is None else self.modules,
            jobs=self.jobs,
            told=progress,
        )

        def row(form: Form, alpha: float) -> Interval:
            found = seen.inferred(form, alpha)
            self.inferred.append(found)
            return seen.interval(found, _name(study))

        return [partial(row, form) for form in FORMS]


def small(unit: str, scale: str) -> Study:
    """Return a study that comes with the program: ``samples``, ``clients``, ``arrivals``, ..."""
    changes = (SMALL[unit],) if scale == "quick" else ()
    return studies.read(folder() / "audit" / f"{unit}.toml", changes)


def attacked_study(path: Path, changes: tuple[str, ...]) -> Study:
    """Return the study in a file, or of a run folder.

    Raises:
        StudyError: if it is neither.
    """
    if not path.is_dir():
        return studies.read(path, changes)
    if missing := [name for name in ("run.json", "study.toml") if not there(path, name)]:
        raise StudyError(
            f"{path}: this is no run folder: it has no {missing[0]}. Give a study file, or a "
            "folder that `sordino run` made"
        )
    return study_of(path, known(about_of(path).modules) or {}, changes=changes)


def picture_place(out: Path | None, name: str, path: Path | None) -> Path:
    """Return where a picture goes: ``out``, or beside runs, in a folder called after ``path``.

    Raises:
        StudyError: if ``out`` is no place for an SVG file.
    """
    if out is None:
        # of "." and "..", too
        called = "" if path is None else slug(path.resolve().name.removesuffix(".toml"))
        return Path("runs") / "-".join(filter(None, ("audit", called))) / name
    if out.is_dir() or not out.suffix:
        if out.is_file():
            raise StudyError(
                f"{out}: this is a file; give --out a name that ends in .svg, or a folder"
            )
        return out / name
    if out.suffix != ".svg":
        raise StudyError(
            f"{out}: the picture is an SVG file; give --out a name that ends in .svg, or a folder"
        )
    return out


def _name(study: Study) -> str:
    return study.name if len(study.name) <= LONGEST_NAME else study.method.name


def _horizontal(study: Study) -> HorizontalStudy:
    if not isinstance(study, HorizontalStudy):
        raise StudyError(
            f"method.name = {study.method.name!r}: this attack is for studies whose clients hold "
            "examples. `sordino audit --attack mechanism` without a study looks at the mechanisms "
            "of the others too, and --attack canaries at their runs"
        )
    return study


# Shadow runs, in processes of their own: as many at once as there are cores.

PROGRAM = (
    f"import sys; sys.path.append({str(HOME.parent)!r}); "
    "from sordino.audit.shadows import work; work(sys.argv[1:])"
)
PART = 2
"""Shadow runs for each run that is attacked."""
ALONE = 3
"""Runs that are not worth another process, which takes seconds to begin."""
MOST_SHADOWS = 10_000


def attacked_runs(count: int) -> int:
    """Return the number of attacked runs beside so many shadow runs.

    Raises:
        StudyError: for too few or too many.
    """
    if not FEWEST <= count <= MOST_SHADOWS:
        raise StudyError(f"--shadows must be from {FEWEST} to {MOST_SHADOWS}; got {count}")
    return -(-count // PART)


@dataclass(frozen=True, slots=True, eq=False)
class Shadowed:
    """Observations of shadow runs and attacked runs of a study.

    Attributes:
        shadows: runs whose coins the attacker knows.
        targets: runs that are attacked.
        delta: of the study.
        epsilon: the highest that a ledger of any of these runs has booked.
    """

    shadows: Observed
    targets: Observed
    delta: float
    epsilon: float

    def inferred(self, form: Form, alpha: float) -> Inferred:
        """One form of the attack."""
        return inferred(self.shadows, self.targets, form, self.delta, alpha)

    def interval(self, told: Inferred, name: str) -> Interval:
        """The table's row; the bound from rates refutes no ledger: see the attack's module."""
        return Interval(
            name=f"{name}, shadow runs, {told.form}",
            unit="sample",
            sound=True,
            how=f"{len(self.shadows.phi)} shadow runs",
            low=told.low,
            plain=told.low_run,
            claimed=self.epsilon,
            ledger=self.epsilon,
            releases=told.guesses,
            delta=self.delta,
            binding=False,
        )


def shadowed(
    study: HorizontalStudy,
    count: int,
    folder: Path,
    *,
    modules: Path | None,
    jobs: int | None = None,
    told: Callable[[int, int], None] = lambda done, whole: None,
) -> Shadowed:
    """Make the runs that are not there yet, and read what all of them show.

    Args:
        count: shadow runs; half as many are attacked.
        folder: below which what runs show is kept.
        modules: where modules lie that the study names; None if they are known to this process
            alone, which makes all runs then.
        jobs: processes at once; one for each core if left out.
        told: how many runs of how many are done.
    """
    runs = count + attacked_runs(count)
    found = shadows(study, folder)
    at_once = runner.jobs_at_once(jobs, [study.execution.threads])
    with locked(folder, make=True):
        try:
            _make(found, runs, 1 if modules is None else at_once, modules or folder, told)
        except KeyboardInterrupt as stopped:  # which a run in this process says how to resume alone
            stopped.__notes__ = [runner.STOPPED]
            raise
    seen, epsilon = observed(found, runs)
    return Shadowed(
        seen.take(slice(count)),
        seen.take(slice(count, None)),
        study.privacy.delta or 1e-5,
        epsilon,
    )


def _make(
    found: Shadows,
    runs: int,
    at_once: int,
    modules: Path,
    told: Callable[[int, int], None],
) -> None:
    left = found.left(runs)
    if at_once == 1 or len(left) <= ALONE:
        for number in left:
            observe(found, number)
            told(runs - len(found.left(runs)), runs)
        return
    base = found.folder.parent
    replace_file(base / STUDY, studies.write(found.study).encode())
    jobs = [_job(base, modules, left[i::at_once]) for i in range(at_once)]
    failed: list[str] = []
    done = runs - len(left)

    def tick(going: Sequence[Any]) -> None:
        nonlocal done
        if (now := runs - len(found.left(runs))) != done:
            done = now
            told(done, runs)

    def ended(key: Any, why: str | None) -> None:
        if why is not None:
            failed.append(why)

    with runner.terminated_like_interrupted():
        runner.play(jobs, at_once, ended=ended, tick=tick)
    if failed:
        raise StudyError(f"a shadow run failed: {failed[0]}")


def _job(base: Path, modules: Path, numbers: Sequence[int]) -> runner.Job:
    told = (str(base.resolve()), str(modules.resolve()), *map(str, numbers))
    return runner.Job(numbers[0], (sys.executable, "-P", "-c", PROGRAM, *told))
