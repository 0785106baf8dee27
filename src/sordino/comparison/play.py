"""A comparison from its tasks to what was found: every run that is not done yet, then the page."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Self, TextIO

from sordino.base.errors import StudyError
from sordino.comparison import result, runner, tables
from sordino.comparison.over import Over
from sordino.comparison.result import At, Comparison
from sordino.comparison.runner import State, rounds_done
from sordino.comparison.schedule import Side, Task
from sordino.core.files import locked
from sordino.core.run.reading import load
from sordino.live.console import Fact, Screen, duration, plain, remaining
from sordino.report import words

LOOK = 0.5  # seconds between two looks at the logs


class Progress(Screen):
    """Shows how far all runs are."""

    transient = True

    def __init__(
        self,
        tasks: Sequence[Task],
        states: Sequence[State],
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("comparison", stream, clock)
        self.tasks, self.going = tasks, list[Task]()
        self.ends: dict[Task, str] = {
            task: "done" for task, state in zip(tasks, states, strict=True) if state == "done"
        }
        self.rounds = {task: rounds_done(task.folder) for task in tasks}
        self.first, self.looked = self.share(), clock()

    def __enter__(self) -> Self:
        if self.ends:
            self.say(f"{len(self.ends)} of {len(self.tasks)} runs were finished before")
        return super().__enter__()

    def ended(self, task: Task, why: str | None) -> None:
        """A run ended, or failed for a reason."""
        self.ends[task] = "done" if why is None else "failed"
        if self.live is None:
            self.say(
                f"{len(self.ends)}/{len(self.tasks)}  {task.side.label}, seed {task.seed}: "
                f"{outcome(task.folder, why)}"
            )

    def tick(self, going: Sequence[Task]) -> None:
        """Look at the logs now and then."""
        if self.live is None or self.clock() - self.looked < LOOK:
            return
        self.looked, self.going = self.clock(), list(going)
        self.rounds |= {task: rounds_done(task.folder) for task in going}
        self.live.update(self.panel())

    def share(self) -> float:
        """Return the share of all rounds that is done."""
        parts = [
            1.0 if task in self.ends else self.rounds[task] / task.study.horizon
            for task in self.tasks
        ]
        return sum(parts) / len(parts)

    def facts(self) -> Sequence[Fact]:
        found = []
        for side in dict.fromkeys(task.side for task in self.tasks):
            name, done, seeds = line(side, self.tasks, self.ends, self.rounds, self.going)
            found.append(Fact(name, f"{done}  {seeds}"))
        now = self.share()
        left = remaining(self.clock() - self.started, self.first, now)
        told = "" if left is None else f"  {duration(left)} left"
        return [*found, Fact("all", f"{len(self.ends)}/{len(self.tasks)}{told}", now)]


def line(
    side: Side,
    tasks: Sequence[Task],
    ends: Mapping[Task, str],
    rounds: Mapping[Task, int],
    going: Sequence[Task],
) -> tuple[str, str, str]:
    """One study: its name, seeds done of all, and where each seed is."""
    mine = [task for task in tasks if task.side is side]
    seeds = []
    for task in mine:
        waiting = "waiting" if task not in going else f"{rounds[task]}/{task.study.horizon}"
        seeds.append(f"seed {task.seed} {ends.get(task, waiting)}")
    done = sum(ends.get(task) == "done" for task in mine)
    return plain(side.label), f"{done}/{len(mine)}", "  ".join(seeds)


def outcome(folder: Path, why: str | None) -> str:
    """Return the end of one run, in a few words."""
    if why is not None:
        first, _, more = why.partition("\n")
        return f"failed: {first}{' …' if more else ''}"
    try:
        run = load(folder)
    except StudyError as error:
        return f"failed: {error}"
    return (
        f"{run.vocabulary.accuracy.told} {words.measured(run, run.measured)}, epsilon "
        f"{words.bound(run.spent, 5)}"
    )


STOPPED = "Finished runs are kept: give the same command again to go on"


def compared(
    folder: Path,
    tasks: Sequence[Task],
    at: At,
    at_once: int,
    *,
    over: Over | None = None,
    quiet: bool = False,
) -> Comparison:
    """Run what is not done yet in ``folder``, and write what was found there.

    Raises:
        StudyError: if the folder holds something else, or another process has it.
    """
    runner.refuse_file(folder)
    runner.states(tasks)  # what holds something else is refused before anything is made
    with locked(folder, make=True):
        runner.sweep(task.folder for task in tasks)
        failed = play(tasks, at_once, quiet)
        comparison = result.collect(folder, at, tasks, failed, over)
        tables.write(comparison)
    return comparison


def play(
    tasks: Sequence[Task],
    at_once: int,
    quiet: bool,
) -> dict[Task, str]:
    """Run what is not done yet; why each failed that did."""
    states = runner.states(tasks)
    failed: dict[Task, str] = {}
    progress = None if quiet else Progress(tasks, states, sys.stderr)

    def ended(task: Task, why: str | None) -> None:
        if why is not None:
            failed[task] = why
        if progress is not None:
            progress.ended(task, why)

    def tick(going: Sequence[Task]) -> None:
        if progress is not None:
            progress.tick(going)

    with (
        tempfile.TemporaryDirectory(prefix="sordino-") as scratch,
        runner.terminated_like_interrupted(),
        progress or nullcontext(),
    ):
        todo = [
            runner.job(task, state, Path(scratch))
            for task, state in zip(tasks, states, strict=True)
            if state != "done"
        ]
        try:
            runner.play(todo, at_once, ended=ended, tick=tick)
        except KeyboardInterrupt as stopped:
            stopped.add_note(STOPPED)
            raise
    return failed
