"""Progress of many runs: one live panel on a terminal, one plain line when a run ends elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from sordino.compare.folders import State, rounds_done
from sordino.compare.schedule import Side, Task
from sordino.console import bar, duration, plain, remaining
from sordino.errors import StudyError
from sordino.report import words
from sordino.report.load import load

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

LOOK = 0.5  # seconds between two looks at the logs


class Progress:
    """Shows how far all runs are. A context manager."""

    def __init__(self, tasks: Sequence[Task], states: Sequence[State], stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.tasks, self.stream, self.clock = tasks, stream, clock
        self.ends: dict[Task, str] = {task: "done" for task, state in zip(tasks, states, strict=True) if state == "done"}
        self.rounds = {task: rounds_done(task.folder) for task in tasks}
        self.first, self.started, self.looked = self.share(), clock(), clock()
        self.live: Live | None = None

    def __enter__(self) -> Progress:
        if self.ends:
            self.say(f"{len(self.ends)} of {len(self.tasks)} runs were finished before")
        if self.stream.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self.stream)
            if not console.is_dumb_terminal:
                self.live = Live(self.panel(()), console=console, refresh_per_second=4, redirect_stdout=False, transient=True)
                self.live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        live, self.live = self.live, None
        if live is not None:
            live.__exit__(kind, error, trace)

    def ended(self, task: Task, why: str | None) -> None:
        """A run ended, or failed for a reason."""
        self.ends[task] = "done" if why is None else "failed"
        if self.live is None:
            self.say(f"{len(self.ends)}/{len(self.tasks)}  {task.side.label}, seed {task.seed}: {outcome(task.folder, why)}")

    def tick(self, going: Sequence[Task]) -> None:
        """Look at the logs now and then."""
        if self.live is None or self.clock() - self.looked < LOOK:
            return
        self.looked = self.clock()
        self.rounds |= {task: rounds_done(task.folder) for task in going}
        self.live.update(self.panel(going))

    def share(self) -> float:
        """How much of all rounds is behind us."""
        parts = [1.0 if task in self.ends else self.rounds[task] / task.study.horizon for task in self.tasks]
        return sum(parts) / len(parts)

    def say(self, text: str) -> None:
        encoding = self.stream.encoding or "utf-8"
        self.stream.write(plain(text).encode(encoding, "replace").decode(encoding) + "\n")
        self.stream.flush()

    def panel(self, going: Sequence[Task]) -> RenderableType:
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold", style="dim")
        for side in dict.fromkeys(task.side for task in self.tasks):
            table.add_row(*map(Text, line(side, self.tasks, self.ends, self.rounds, going)))
        now = self.share()
        left = remaining(self.clock() - self.started, self.first, now)
        told = "" if left is None else f"{duration(left)} left"
        table.add_row(Text("all"), Text(f"{len(self.ends)}/{len(self.tasks)}"), Text(f"{bar(now)}  {told}"))
        return Panel(table, title=Text("comparison"), title_align="left", border_style="dim", expand=False)


def line(
    side: Side, tasks: Sequence[Task], ends: Mapping[Task, str], rounds: Mapping[Task, int], going: Sequence[Task]
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
    """How one run ended, in a few words."""
    if why is not None:
        first, _, more = why.partition("\n")
        return f"failed: {first}{' …' if more else ''}"
    try:
        run = load(folder)
    except StudyError as error:
        return f"failed: {error}"
    return f"{run.vocabulary.accuracy.told} {words.percent(run.accuracy)}, epsilon {words.bound(run.spent, 5)}"
