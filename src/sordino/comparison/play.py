"""A comparison from its tasks to what was found: every run that is not done yet, then the page."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from sordino.comparison import folders, result, runner, tables
from sordino.comparison.over import Over
from sordino.comparison.progress import Progress
from sordino.comparison.result import At, Comparison
from sordino.comparison.schedule import Task
from sordino.core.files import locked

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
    folders.refuse_file(folder)
    folders.states(tasks)  # what holds something else is refused before anything is made
    with locked(folder, make=True):
        folders.sweep(task.folder for task in tasks)
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
    states = folders.states(tasks)
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
