"""Making all runs of some grids that are not made yet, several at a time, each only once."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sordino.extend.runs import STOPPED, StudyError, known, replace_file, runner, write
from sordino_papers.cells import Cell, Grid, told
from sordino_papers.results import Damaged, loaded, read, seconds_of
from sordino_papers.worker import Answer, Order

PROGRAM = (
    f"import sys; sys.path.extend({sys.path!r}); from sordino_papers.worker import main; main()"
)
MOST = 10  # runs of one process
ENDED = "its process ended before it did"


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run that some entries need."""

    cell: Cell
    seed: int
    folder: Path
    label: str
    images: int | None = None

    @property
    def done(self) -> bool:
        """Return True if it is there, whole.

        Raises:
            Damaged: if it cannot be read.
            StudyError: if the folder holds another study.
        """
        if self.images is not None:
            return read(self.folder) is not None
        if not self.folder.exists():
            return False
        found = loaded(self.folder)
        if known(found.about.name) != self.cell.study.name:
            raise StudyError(
                f"{self.folder}: holds another run than {self.label}. Choose another --out, or "
                "move the folder away; nothing was changed"
            )
        return found.done and known(found.about.result) is not None


@dataclass(slots=True)
class Seen:
    """Progress of the runs: answers of processes, as they come."""

    runs: Mapping[int, Run]
    whole: int
    say: Callable[[str], None]
    ended: int = 0
    failed: dict[Path, str] = field(default_factory=dict)
    seconds: dict[Path, float] = field(default_factory=dict)
    heard: set[int] = field(default_factory=set)

    def look(self, scratch: Path) -> None:
        """Take note of new answers."""
        for number in [each for each in self.runs if each not in self.heard]:
            try:
                content = (scratch / f"{number}.answer").read_bytes()
            except FileNotFoundError:
                continue
            answer = msgspec.json.decode(content, type=Answer)
            self.seconds[self.runs[number].folder] = answer.seconds
            if answer.why is None:
                kept = seconds_of(self.runs[number].folder)
                kept.parent.mkdir(parents=True, exist_ok=True)
                replace_file(kept, f"{answer.seconds:.3f}\n".encode())
            self.note(number, answer.why)

    def note(self, number: int, why: str | None) -> None:
        """A run ended, or failed for a reason."""
        self.heard.add(number)
        self.ended += 1
        run = self.runs[number]
        if why is not None:
            self.failed[run.folder] = why
        end = "done" if why is None else f"failed: {why.splitlines()[0]}"
        self.say(f"{self.ended}/{self.whole}  {run.label}, seed {run.seed}: {end}")


def needed(grids: Sequence[Grid], out: Path) -> list[Run]:
    """The runs of all grids, seed by seed; equal ones once."""
    found: dict[Path, Run] = {}
    for grid in grids:
        images = None if grid.entry.attack is None else grid.entry.attack.images
        for folder, (cell, seed) in grid.folders(out).items():
            label = f"{grid.entry.name}: {told(grid.entry, cell.place)}"
            found.setdefault(folder, Run(cell, seed, folder, label, images))
    return list(found.values())


def play(
    runs: Sequence[Run],
    at_once: int,
    quiet: bool,
    say: Callable[[str], None],
) -> Seen:
    """Make the runs that are not there yet; the answer knows why each failed that did.

    A damaged run counts as failed, and is left as it is: it may be all that is left of something.
    """
    runner.sweep(run.folder for run in runs)
    todo, damaged = _missing(runs)
    before = len(runs) - len(todo) - len(damaged)
    seen = Seen(
        dict(enumerate([*damaged, *todo])),
        len(runs),
        (lambda text: None) if quiet else say,
        ended=before,
    )
    if before and not quiet:
        say(f"{before} of {len(runs)} runs were finished before")
    for number, why in enumerate(damaged.values()):
        seen.note(number, why)
    with (
        tempfile.TemporaryDirectory(prefix="sordino-") as place,
        runner.terminated_like_interrupted(),
    ):
        scratch = Path(place)
        left = {number: run for number, run in seen.runs.items() if number not in seen.heard}
        jobs = [_job(batch, scratch) for batch in batches(left, at_once)]

        def ended(batch: tuple[int, ...], why: str | None) -> None:
            seen.look(scratch)
            for number in batch:
                if number not in seen.heard:
                    seen.note(number, why or ENDED)

        try:
            runner.play(jobs, at_once, ended=ended, tick=lambda going: seen.look(scratch))
        except KeyboardInterrupt:
            say(STOPPED)
            raise
    return seen


def _missing(runs: Sequence[Run]) -> tuple[list[Run], dict[Run, str]]:
    """The runs that are not there, and those that are damaged, with what is wrong."""
    todo: list[Run] = []
    damaged: dict[Run, str] = {}
    for run in runs:
        try:
            if not run.done:
                todo.append(run)
        except Damaged as error:
            damaged[run] = str(error)
    return todo, damaged


def batches(runs: Mapping[int, Run], at_once: int) -> Iterator[list[tuple[int, Run]]]:
    """Runs that one process makes one after another: many at first, single ones towards the end,
    so that all processes end at about the same time.
    """
    left = list(runs.items())
    while left:
        count = min(max(len(left) // (3 * at_once), 1), MOST)
        yield left[:count]
        left = left[count:]


def _job(batch: Sequence[tuple[int, Run]], scratch: Path) -> runner.Job:
    orders = []
    for number, run in batch:
        path = scratch / f"{number}.toml"
        study = run.cell.study.model_copy(update={"seed": run.seed})
        replace_file(path, write(study).encode())
        orders.append(Order(number, str(path), str(run.folder), run.images))
    asked = scratch / f"{batch[0][0]}.batch"
    replace_file(asked, msgspec.json.encode(orders))
    threads = max(run.cell.study.execution.threads for _, run in batch)
    numbers = tuple(number for number, _ in batch)
    return runner.Job(numbers, (sys.executable, "-P", "-c", PROGRAM, str(asked)), threads)
