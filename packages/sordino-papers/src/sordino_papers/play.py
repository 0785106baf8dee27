"""Making all runs of some grids that are not made yet, several at a time, each only once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino.extend.runs import STOPPED, StudyError, known, replace_file, runner, write
from sordino_papers.cells import Cell, Grid, told
from sordino_papers.results import Damaged, loaded, read, seconds_of


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
    runs: Sequence[Run], at_once: int, quiet: bool, say: Callable[[str], None]
) -> dict[Path, str]:
    """Make the runs that are not there yet; why each failed that did.

    A damaged run counts as failed, and is left as it is: it may be all that is left of something.
    """
    runner.sweep(run.folder for run in runs)
    todo, damaged = list[Run](), dict[Run, str]()
    for run in runs:
        try:
            if not run.done:
                todo.append(run)
        except Damaged as error:
            damaged[run] = str(error)
    failed: dict[Path, str] = {}
    done = len(runs) - len(todo) - len(damaged)

    def tell(text: str) -> None:
        if not quiet:
            say(text)

    def note(run: Run, why: str | None) -> None:
        nonlocal done
        done += 1
        if why is not None:
            failed[run.folder] = why
        end = "done" if why is None else f"failed: {why.splitlines()[0]}"
        tell(f"{done}/{len(runs)}  {run.label}, seed {run.seed}: {end}")

    def ended(number: int, answer: runner.Answer) -> None:
        run = todo[number]
        if answer.why is None:
            kept = seconds_of(run.folder)
            kept.parent.mkdir(parents=True, exist_ok=True)
            replace_file(kept, f"{answer.seconds:.3f}\n".encode())
        note(run, answer.why)

    if done:
        tell(f"{done} of {len(runs)} runs were finished before")
    for run, why in damaged.items():
        note(run, why)
    with tempfile.TemporaryDirectory(prefix="sordino-") as scratch:
        calls = {}
        for number, run in enumerate(todo):
            path = Path(scratch) / f"{number}.toml"
            study = run.cell.study.model_copy(update={"seed": run.seed})
            replace_file(path, write(study).encode())
            given = str(path), str(run.folder), run.images, run.cell.broker
            calls[number] = runner.Call(given, study.execution.threads)
        try:
            runner.call("sordino_papers.worker:make", calls, at_once, ended)
        except KeyboardInterrupt:
            say(STOPPED)
            raise
    return failed
