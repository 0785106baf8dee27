"""The runs of a comparison in processes of their own: one that fails, or is killed, takes nobody
along. Every run that is not done yet, then the page.
"""

from __future__ import annotations

import importlib
import io
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TextIO

import msgspec

from sordino.base import processes
from sordino.base.errors import SordinoError, StudyError, printable
from sordino.base.frozen import Frozen
from sordino.base.modules import nothing_new
from sordino.comparison import result, schedule, tables
from sordino.comparison.schedule import Reads, Task
from sordino.core import study as studies
from sordino.core.files import locked, replace_file
from sordino.core.records import known
from sordino.core.run.folder import flat
from sordino.core.run.reading import load
from sordino.live.console import Fact, Screen, remaining
from sordino.report import words

State = Literal["missing", "begun", "done"]
FILES = ("data.file", "data.test_file")
TAIL = 1 << 16
REMEDY = "Choose another --out, or move the folder away; nothing was changed"


def states(tasks: Sequence[Task]) -> list[State]:
    """Return the state of each run.

    Raises:
        StudyError: names every folder that holds something else than its task.
    """
    found: list[State] = []
    wrong: list[str] = []
    for task in tasks:
        try:
            found.append(_state(task))
        except StudyError as error:
            wrong.append(str(error))
    if wrong:
        raise StudyError("\n".join([*wrong, REMEDY]))
    return found


def _state(task: Task) -> State:
    if not task.folder.exists():
        return "missing"
    run = load(task.folder)
    # it may be anybody's folder: what its study names is not run to find out that it differs
    with nothing_new():
        there = studies.read_run(task.folder, modules=task.side.path.parent)
    if changed := differing(there, task.full):
        raise StudyError(
            f"{task.folder}: holds a run of another study than {task.side.path} asks for: "
            f"{'; '.join(changed)}"
        )
    return "done" if run.done and known(run.about.result) is not None else "begun"


def differing(there: studies.Study, asked: studies.Study) -> list[str]:
    """Return the differences of two studies, key by key; defaults and order do not count."""
    old, new = (dict(flat(study.as_table())) for study in (there, asked))
    return [
        f"{key} is {old.get(key, 'not set')} there, {new.get(key, 'not set')} here"
        for key in sorted({*old, *new}, key=[*old, *new].index)
        if old.get(key) != new.get(key) and not (key in FILES and _one(old.get(key), new.get(key)))
    ]


def _one(there: object, asked: object) -> bool:
    """Return whether two names are of one file, as those of equal data in memory are."""
    try:
        return os.path.samefile(str(there), str(asked))
    except OSError:
        return False


def rounds_done(folder: Path) -> int:
    """Rounds that a run has closed, from the end of its log; it may be written to meanwhile."""
    try:
        return load(folder, last=TAIL).number
    except StudyError:  # it has no folder yet
        return 0


def refuse_file(out: Path) -> None:
    """``out`` must be a folder, or may become one."""
    there = next((path for path in (out, *out.parents) if path.exists()), None)
    if there is not None and not there.is_dir():
        raise StudyError(f"{there}: this is a file; give --out a folder, which may be new")


def sweep(folders: Iterable[Path]) -> None:
    """Remove what runs in these folders left that were killed before they began."""
    ours = set(folders)
    for parent in {folder.parent for folder in ours}:
        for draft in parent.glob(".*.*"):
            if parent / draft.name[1:].rpartition(".")[0] in ours:
                with suppress(StudyError), locked(draft):  # one that begins just now keeps it
                    shutil.rmtree(draft, ignore_errors=True)


PAUSE = 0.1  # seconds between two looks


@dataclass(frozen=True, slots=True)
class Job:
    """A process to run: its name to us, its command, its threads."""

    key: Hashable
    command: tuple[str, ...]
    threads: int = 1


def job(task: Task, state: State, scratch: Path) -> Job:
    """The ordinary ``sordino run`` of a task, with its study, as checked, in ``scratch``."""
    if state == "begun":
        what = ["--resume", str(task.folder)]
    else:
        path = scratch / f"{task.side.slug}-{task.seed}.toml"
        replace_file(path, studies.write(task.study).encode())
        what = [str(path), "--out", str(task.folder)]
    what += ["--modules", str(task.side.path.parent)]
    return Job(
        task,
        (*processes.calling("sordino.cli:main()"), "run", *what, "--quiet"),
        task.study.execution.threads,
    )


def runs_at_once(asked: int | None, threads: Iterable[int]) -> int:
    """Return the number of parallel runs: as many as there are cores for."""
    if asked is not None:
        if asked < 1:
            raise StudyError(f"--workers must be at least 1; got {asked}")
        return asked
    return max(len(os.sched_getaffinity(0)) // max(threads, default=1), 1)


def play(
    jobs: Sequence[Job],
    at_once: int,
    *,
    ended: Callable[[Any, str | None], None],
    tick: Callable[[Sequence[Any]], None] = lambda going: None,
) -> None:
    """Run every job, ``at_once`` at a time; however this is left, no process of it is left behind.

    Args:
        ended: told the key of each that ended, and why it failed or None.
        tick: told now and then which are going on.
    """
    waiting, going = deque(jobs), dict[Job, processes.Child]()
    try:
        while waiting or going:
            while waiting and len(going) < at_once:
                going[waiting[0]] = processes.start(waiting[0].command, waiting[0].threads)
                waiting.popleft()
            for done in [each for each, (child, _) in going.items() if child.poll() is not None]:
                ended(done.key, _why(going.pop(done)))
            tick([each.key for each in going])
            if going:
                time.sleep(PAUSE)
    finally:
        processes.stop(list(going.values()))


MOST_CALLS = 10
"""Calls of one process."""
ENDED = "its process ended before it did"


class Call(NamedTuple):
    """Arguments, as JSON has them, and the threads that the call takes."""

    given: tuple[str | int | None, ...]
    threads: int


class Answer(Frozen):
    """End of a call: why it failed or None, and seconds of its process's core."""

    why: str | None
    seconds: float


def call(
    function: str, calls: Mapping[int, Call], at_once: int, ended: Callable[[int, Answer], None]
) -> None:
    """Call a function many times in processes, which make several calls one after another: to
    start one takes longer than a short run.

    One that is killed, or fails, takes no call of another process along.

    Args:
        function: as "package.module:name"; its package is found by the processes.
        ended: told the number of each call that ended, and how.
    """
    module = importlib.import_module(function.partition(":")[0])
    home = Path(module.__file__ or "").parents[module.__name__.count(".")]
    command = processes.calling("sordino.comparison.runner:work(sys.argv[-1])", home)
    left = dict(calls)
    with tempfile.TemporaryDirectory(prefix="sordino-") as scratch, terminated_like_interrupted():

        def look(going: object = None) -> None:
            for number in list(left):
                path = Path(scratch) / f"{number}.answer"
                if path.exists():
                    del left[number]
                    ended(number, msgspec.json.decode(path.read_bytes(), type=Answer))

        def over(numbers: tuple[int, ...], why: str | None) -> None:
            look()
            for number in [each for each in numbers if left.pop(each, None) is not None]:
                ended(number, Answer(why or ENDED, 0.0))

        jobs = []
        for numbers in batches(list(calls), at_once):
            path = Path(scratch) / f"{numbers[0]}.batch"
            asked = function, {number: calls[number].given for number in numbers}
            replace_file(path, msgspec.json.encode(asked))
            threads = max(calls[number].threads for number in numbers)
            jobs.append(Job(numbers, (*command, str(path)), threads))
        play(jobs, at_once, ended=over, tick=look)


def batches(numbers: Sequence[int], at_once: int) -> Iterator[tuple[int, ...]]:
    """Calls that one process makes one after another: many at first, single ones towards the end,
    so that all processes end at about the same time.
    """
    left = tuple(numbers)
    while left:
        count = min(max(len(left) // (3 * at_once), 1), MOST_CALLS)
        yield left[:count]
        left = left[count:]


def work(batch: str) -> None:
    """Make the calls in a file; beside it, one file for each says how it ended."""
    name, calls = msgspec.json.decode(
        Path(batch).read_bytes(), type=tuple[str, dict[int, list[str | int | None]]]
    )
    module, _, attribute = name.partition(":")
    for number, given in calls.items():
        started, why = time.process_time(), None
        try:
            getattr(importlib.import_module(module), attribute)(*given)
        except SordinoError as error:
            why = str(error)
        except Exception as error:  # of one call: the others of this process go on
            why = f"{type(error).__name__}: {error}"
        answer = Answer(why, time.process_time() - started)
        replace_file(Path(batch).with_name(f"{number}.answer"), msgspec.json.encode(answer))


def terminated_like_interrupted() -> AbstractContextManager[None]:
    """SIGTERM stops the runs as Ctrl-C does; where this is not the main thread, whoever runs it has
    other means.
    """
    return processes.handling(signal.SIGTERM, signal.default_int_handler)


def _why(child: processes.Child) -> str | None:
    """Why a run failed; None if it did not."""
    found = processes.why(child)
    killed = child.process.returncode < 0
    return f"{found}; the same command goes on with it" if killed else found


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
        self.failed = dict[Task, str]()  # and why
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
        self.ends[task] = "done"
        if why is not None:
            self.ends[task], self.failed[task] = "failed", why
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
            seeds, done = [], 0
            for task in (each for each in self.tasks if each.side is side):
                going = f"{self.rounds[task]}/{task.study.horizon}"
                place = self.ends.get(task, going if task in self.going else "waiting")
                seeds.append(f"seed {task.seed} {place}")
                done += place == "done"
            told = f"{done}/{len(seeds)}  {'  '.join(seeds)}"
            found.append(Fact(printable(side.label), told))
        now = self.share()
        left = remaining(self.clock() - self.started, self.first, now)
        told = "" if left is None else f"  {words.duration(left)} left"
        return [*found, Fact("all", f"{len(self.ends)}/{len(self.tasks)}{told}", now)]


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
    studies: Sequence[tuple[Path, Reads]],
    vary: Sequence[str],
    *,
    seeds: int,
    out: Path | None,
    workers: int | None,
    at: result.At,
    quiet: bool,
    over: str | None = None,
    until: str | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> result.Comparison:
    """Run studies, and variants of them, with the same seeds, as far as they are not done yet; and
    write what was found.

    Args:
        studies: a path that tells each study from others, and how it is read with changes.
        vary: variants of each study, as ``KEY=V1,V2``.
        out: folder of all runs; made of their names unless given.
        over, until: a key for a figure of its own, and the goal of that figure.
        warn: told where a study's own seed is not used.

    Raises:
        StudyError: if the folder holds something else, or another process has it.
    """
    sides = schedule.sides_of(studies, vary)
    drawn_over = result.over(over, until, sides)
    folder = schedule.usual_folder(sides) if out is None else out
    tasks = schedule.tasks(sides, schedule.seeds_of(sides[0].study, seeds), folder)
    for side in sides:
        if side.study.seed != tasks[0].seed:
            warn(
                f"{side.path} says seed = {side.study.seed}; all use the first study's seeds, for "
                "paired differences"
            )
    failed = play_tasks(tasks, folder, workers, quiet)
    comparison = result.collect(folder, at, tasks, failed, drawn_over)
    tables.write(comparison)
    return comparison


def play_tasks(
    tasks: Sequence[Task], folder: Path, workers: int | None, quiet: bool
) -> dict[Task, str]:
    """Run in ``folder`` what is not done yet; why each failed that did.

    Raises:
        StudyError: if it holds something else, or another process has it.
    """
    refuse_file(folder)
    at_once = runs_at_once(workers, [task.study.execution.threads for task in tasks])
    states(tasks)  # what holds something else is refused before anything is made
    with (
        locked(folder, make=True),
        tempfile.TemporaryDirectory(prefix="sordino-") as scratch,
        terminated_like_interrupted(),
    ):
        sweep(task.folder for task in tasks)
        before = states(tasks)
        todo = [
            job(task, state, Path(scratch))
            for task, state in zip(tasks, before, strict=True)
            if state != "done"
        ]
        with Progress(tasks, before, io.StringIO() if quiet else sys.stderr) as progress:
            try:
                play(todo, at_once, ended=progress.ended, tick=progress.tick)
            except KeyboardInterrupt as stopped:
                stopped.add_note(STOPPED)
                raise
    return progress.failed
