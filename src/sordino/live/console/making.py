"""Progress of what is made before a run begins: a bar on a terminal, one line elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Making:
    """Shows how many examples have their features; as ``told`` of
    :func:`sordino.data.notices.watched`.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: Progress | None = None
        self._tasks: dict[tuple[str, int], TaskID] = {}

    def __enter__(self) -> Making:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, name: str, done: int, whole: int) -> None:
        """So many examples of a data set are done, out of all."""
        if self._quiet:
            return
        begun = (name, whole) in self._tasks
        if not begun and not sys.stderr.isatty():
            sys.stderr.write(f"  making features of {whole} examples of {name}\n")
        if self._bar is None:
            self._bar = _bar()
            self._bar.start()
        if not begun:
            self._tasks[name, whole] = self._bar.add_task(f"features of {name}", total=whole)
        self._bar.update(self._tasks[name, whole], completed=done)


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
