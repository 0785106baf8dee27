"""What is there already: finished runs, half-finished ones, and runs of something else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from sordino.base.errors import StudyError
from sordino.base.files import open_below
from sordino.base.modules import nothing_new
from sordino.comparison.schedule import Task
from sordino.core import study as studies
from sordino.core.files import locked
from sordino.core.records import closed, known
from sordino.core.run.folder import LOG
from sordino.core.run.reading import load
from sordino.core.study.base import Study

State = Literal["missing", "begun", "done"]
FILES = ("data.file", "data.test_file")
TAIL = 1 << 16
REMEDY = "Choose another --out, or move the folder away; nothing was changed"


def states(tasks: Sequence[Task]) -> list[State]:
    """How far each run is.

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


def differing(there: Study, asked: Study) -> list[str]:
    """What stands otherwise in two studies, key by key; defaults and order do not count."""
    old, new = (
        _flat(study.model_dump(mode="json", by_alias=True, exclude_none=True))
        for study in (there, asked)
    )
    keys = sorted({*old, *new}, key=[*old, *new].index)
    return [
        f"{key} is {old.get(key, 'not set')} there, {new.get(key, 'not set')} here"
        for key in keys
        if old.get(key) != new.get(key) and not (key in FILES and _one(old.get(key), new.get(key)))
    ]


def _one(there: object, asked: object) -> bool:
    """Whether two names are of one file, as those of equal data in memory are."""
    try:
        return os.path.samefile(str(there), str(asked))
    except OSError:
        return False


def _flat(table: Mapping[str, object], above: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in table.items():
        found |= (
            _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {above + key: value}
        )
    return found


def rounds_done(folder: Path) -> int:
    """Rounds that a run has closed, from the end of its log; it may be written to meanwhile."""
    try:
        with open_below(folder, LOG) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - TAIL, 0))
            lines = file.read().split(b"\n")[:-1]
    except (OSError, StudyError):
        return 0
    return next((number for line in reversed(lines) if (number := closed(line)) is not None), 0)


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
