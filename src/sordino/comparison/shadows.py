"""Shadow runs of a study in processes of their own, as many at once as there are cores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.audit.intervals import Interval
from sordino.audit.lira import FEWEST, Form, Inferred, Observed, inferred
from sordino.audit.shadows import STUDY, Shadows, observe, observed, shadows
from sordino.base.errors import StudyError
from sordino.base.package import HOME
from sordino.clients.study import HorizontalStudy
from sordino.comparison import runner
from sordino.comparison.play import STOPPED
from sordino.core.files import locked, replace_file
from sordino.core.study import write

PROGRAM = (
    f"import sys; sys.path.append({str(HOME.parent)!r}); "
    "from sordino.audit.shadows import work; work(sys.argv[1:])"
)
PART = 2
"""Shadow runs for each run that is attacked."""
ALONE = 3
"""Runs that are not worth another process, which takes seconds to begin."""
MOST = 10_000


def attacked_runs(count: int) -> int:
    """Return the number of attacked runs beside so many shadow runs.

    Raises:
        StudyError: for too few or too many.
    """
    if not FEWEST <= count <= MOST:
        raise StudyError(f"--shadows must be from {FEWEST} to {MOST}; got {count}")
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
            stopped.__notes__ = [STOPPED]
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
    replace_file(base / STUDY, write(found.study).encode())
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
