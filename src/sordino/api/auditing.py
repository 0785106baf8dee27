"""Attacks on what studies release: lower bounds of epsilon beside the ledger's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sordino.api.shipped import folder
from sordino.audit import mechanisms
from sordino.audit.canaries import own_mechanism
from sordino.audit.intervals import Interval, Row, intervals_figure, rows
from sordino.audit.lira import (
    FEWEST,
    FORMS,
    STUDY,
    Form,
    Inferred,
    Observed,
    Shadows,
    inferred,
    lira_figure,
    observe,
    observed,
    shadows,
)
from sordino.base.errors import StudyError
from sordino.clients.study import HorizontalStudy
from sordino.comparison import runner
from sordino.core import study as studies
from sordino.core.files import locked, replace_file, said_clearly
from sordino.report.drawing import draw

ALPHA = 0.05
"""All lower bounds of a table hold together but for this chance."""
PICTURE, ROC = "audit.svg", "lira.svg"
SHADOWS = "shadows"
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


def attacked(
    attack: str,
    study: studies.Study | None,
    picture: Path,
    *,
    canaries: int,
    scale: str,
    seed: int,
    shadows: int | None,
    workers: int | None,
    modules: Path | None,
    progress: Progress,
) -> tuple[list[Interval], list[Inferred]]:
    """Attack, and draw what that came to.

    Rows share the chance of error (Bonferroni). Runs say less than releases by the thousand:
    where there are both, half of the chance is theirs.

    Args:
        attack: "mechanism", "canaries", "lira" or "all".
        study: under attack; None for all mechanisms, and small studies.
        picture: where it goes; all else goes beside it.
        canaries: most of them in a run.
        scale: "quick" or "full".
        seed: of the releases of mechanisms.
        shadows: shadow runs; None for as many as the scale has.
        workers: runs at once; None for as many as there are cores.
        modules: where modules lie that the study names.

    Returns:
        the rows of the table, and curves of attacks with shadow runs.

    Raises:
        StudyError: if the attack cannot be made on this study.
    """
    quick = scale == "quick"
    # many runs, so not of a study by "all" alone
    shadowing = attack == "lira" or (attack == "all" and (study is None or shadows is not None))
    count = shadows if shadows is not None else FEW_SHADOWS if quick else MANY_SHADOWS
    if shadowing:
        attacked_runs(count)
    elif shadows is not None:
        raise StudyError(f"--shadows does not go with --attack {attack}; give --attack lira")
    subjects: list[mechanisms.Subject] = []
    if attack in ("mechanism", "all"):
        subjects += [] if study is None else [own_mechanism(_horizontal(study))]
        subjects += mechanisms.subjects() if study is None or attack == "all" else []
    made: list[Row] = []
    if attack in ("canaries", "all"):
        most = min(canaries, FEW) if study is None and quick else canaries
        for one in [small(unit, scale) for unit in SMALL] if study is None else [study]:
            made += rows(one, most, _name(one))
    inferred: list[Inferred] = []
    if shadowing:
        own = _horizontal(small("samples", scale) if study is None else study)
        seen = shadowed(
            own,
            count,
            picture.parent / SHADOWS,
            modules=folder() if study is None else modules,
            workers=workers,
            told=progress,
        )

        def row(form: Form, alpha: float) -> Interval:
            inferred.append(seen.inferred(form, alpha))
            return seen.interval(inferred[-1], _name(own))

        made += [partial(row, form) for form in FORMS]
    part = ALPHA / 2.0 if subjects and made else ALPHA
    effort = mechanisms.Effort() if quick else mechanisms.FULL
    intervals = list(mechanisms.table(subjects, effort, seed, part)) if subjects else []
    intervals += [one(part / len(made)) for one in made]
    with said_clearly(picture):
        picture.parent.mkdir(parents=True, exist_ok=True)
    replace_file(picture, draw(intervals_figure(intervals)).encode())
    if inferred:
        replace_file(picture.with_name(ROC), draw(lira_figure(inferred)).encode())
    return intervals, inferred


def small(unit: str, scale: str) -> studies.Study:
    """Return a study that comes with the program: ``samples``, ``clients``, ``arrivals``, ..."""
    changes = (SMALL[unit],) if scale == "quick" else ()
    return studies.read(folder() / "audit" / f"{unit}.toml", changes)


def _name(study: studies.Study) -> str:
    return study.name if len(study.name) <= LONGEST_NAME else study.method.name


def _horizontal(study: studies.Study) -> HorizontalStudy:
    if not isinstance(study, HorizontalStudy):
        raise StudyError(
            f"method.name = {study.method.name!r}: this attack is for studies whose clients hold "
            "examples. `sordino audit --attack mechanism` without a study looks at the mechanisms "
            "of the others too, and --attack canaries at their runs"
        )
    return study


# Shadow runs, in processes of their own: as many at once as there are cores.

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
    workers: int | None = None,
    told: Progress = lambda done, whole: None,
) -> Shadowed:
    """Make the runs that are not there yet, and read what all of them show.

    Args:
        count: shadow runs; half as many are attacked.
        folder: below which what runs show is kept.
        modules: where modules lie that the study names; None if they are known to this process
            alone, which makes all runs then.
        workers: processes at once; one for each core if left out.
        told: how many runs of how many are done.
    """
    runs = count + attacked_runs(count)
    found = shadows(study, folder)
    at_once = runner.runs_at_once(workers, [study.execution.threads])
    with locked(folder, make=True):
        try:
            _make(found, runs, 1 if modules is None else at_once, modules or folder, told)
        except KeyboardInterrupt as stopped:
            stopped.__notes__ = [runner.STOPPED]
            raise
    seen, epsilon = observed(found, runs)
    return Shadowed(
        seen.take(slice(count)), seen.take(slice(count, None)), study.privacy.delta or 1e-5, epsilon
    )


def _make(found: Shadows, runs: int, at_once: int, modules: Path, told: Progress) -> None:
    left = found.left(runs)
    if at_once == 1 or len(left) <= ALONE:
        for number in left:
            observe(found, number)
            told(runs - len(found.left(runs)), runs)
        return
    base = found.folder.parent
    replace_file(base / STUDY, studies.write(found.study).encode())
    done, failed = runs - len(left), list[str]()

    def ended(number: int, answer: runner.Answer) -> None:
        nonlocal done
        done += 1
        told(done, runs)
        if answer.why is not None:
            failed.append(answer.why)

    places, threads = (str(base.resolve()), str(modules.resolve())), found.study.execution.threads
    calls = {number: runner.Call((*places, number), threads) for number in left}
    runner.call("sordino.audit.lira:work", calls, at_once, ended)
    if failed:
        raise StudyError(f"a shadow run failed: {failed[0]}")
