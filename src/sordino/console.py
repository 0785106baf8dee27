"""What a person sees while a run goes on: one live panel, or one line a round where there is no terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any

Row = Mapping[str, Any]

_BARS = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class Progress:
    """What is known of a run so far.

    Attributes:
        total_rounds: R_s.
        budget_epsilon: at most; infinite without a promise.
        budget_steps: R_c, or None.
        title: the study's name.
        started: clock at the first row, in seconds.
    """

    total_rounds: int
    budget_epsilon: float
    budget_steps: int | None
    title: str
    started: float
    first: int = 0
    round: int = 0
    steps: int = 0
    epsilon: float = 0.0
    accuracy: float | None = None
    best: float | None = None
    taus: list[int] = field(default_factory=list)
    late: int = 0
    lost: int = 0
    note: str | None = None

    def take(self, row: Row) -> None:
        """Take in one row of the log."""
        match row.get("kind"):
            case "round":
                self.first = self.first or int(row["round"])
                self.round, self.steps = int(row["round"]), int(row["steps"])
                self.epsilon = float(row["epsilon"])
                self.taus.append(int(row["tau"]))
                self.note = row.get("note") or self.note
                if row.get("accuracy") is not None:
                    self.accuracy = float(row["accuracy"])
                    self.best = max(self.accuracy, self.best or 0.0)
            case "late":
                self.late += 1
            case "lost":
                self.lost += 1
            case "end" | "refused":
                self.note = str(row.get("why"))

    def left(self, now: float) -> float | None:
        """Seconds to the end, judged by the rounds or the steps, whichever runs out first; None before a round is timed."""
        done = self.round - self.first + 1
        if not self.taus or done < 2 or now <= self.started:
            return None
        rounds = self.total_rounds - self.round
        if self.budget_steps is not None:
            rounds = min(rounds, math.ceil((self.budget_steps - self.steps) / max(self.taus[-1], 1)))
        return max(rounds, 0) * (now - self.started) / done


def line(progress: Progress, now: float) -> str:
    """One plain line.

    >>> p = Progress(total_rounds=158, budget_epsilon=2.0, budget_steps=316, title="t", started=0.0)
    >>> p.take({"kind": "round", "round": 1, "steps": 2, "tau": 2, "epsilon": 0.31, "accuracy": 0.4, "note": None})
    >>> line(p, 1.0)
    'round 1/158  tau 2  steps 2  accuracy 40.0 %  epsilon 0.310/2'
    """
    parts = [f"round {progress.round}/{progress.total_rounds}"]
    if progress.taus:
        parts.append(f"tau {progress.taus[-1]}")
    parts.append(f"steps {progress.steps}")
    if progress.accuracy is not None:
        parts.append(f"accuracy {100 * progress.accuracy:.1f} %")
    parts.append(f"epsilon {spent(progress)}")
    if progress.late or progress.lost:
        parts.append(f"late {progress.late}  lost {progress.lost}")
    left = progress.left(now)
    if left is not None:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def spent(progress: Progress) -> str:
    """epsilon against its budget."""
    if math.isinf(progress.epsilon):
        return "inf"
    budget = "" if math.isinf(progress.budget_epsilon) else f"/{progress.budget_epsilon:g}"
    return f"{progress.epsilon:.3f}{budget}"


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(7.4), duration(75), duration(7300)
    ('7 s', '1 min 15 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def sparkline(values: list[int], width: int = 40) -> str:
    """The last values as little bars.

    >>> sparkline([1, 2, 3, 2])
    '▁▅█▅'
    """
    shown = values[-width:]
    low, high = min(shown, default=0), max(shown, default=0)
    return "".join(_BARS[round((v - low) / (high - low) * 7)] if high > low else _BARS[3] for v in shown)


class _Lines:
    """One line a round."""

    def __init__(self, progress: Progress, stream: IO[str]) -> None:
        self.progress, self.stream = progress, stream

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stream.flush()

    def show(self, row: Row) -> None:
        """Take in a row; print a line for each round."""
        self.progress.take(row)
        if row.get("kind") == "round":
            self.stream.write(line(self.progress, time.monotonic()) + "\n")


class _Panel:
    """One live panel."""

    def __init__(self, progress: Progress, stream: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self.progress = progress
        self.live = Live(console=Console(file=stream), get_renderable=lambda: panel(progress, time.monotonic()), refresh_per_second=4)

    def __enter__(self) -> _Panel:
        self.live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.live.__exit__(kind, error, trace)

    def show(self, row: Row) -> None:
        """Take in a row; the panel is drawn a few times a second."""
        self.progress.take(row)


def panel(progress: Progress, now: float) -> Any:
    """The panel as something that rich can draw."""
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="dim", width=9)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", width=26)
    accuracy = "-" if progress.accuracy is None else f"{100 * progress.accuracy:.1f} %"
    best = "" if progress.best is None else f"best {100 * progress.best:.1f} %"
    grid.add_row("accuracy", ProgressBar(total=1.0, completed=progress.accuracy or 0.0, complete_style="green"), f"{accuracy}  {best}")
    if math.isinf(progress.epsilon) or math.isinf(progress.budget_epsilon):
        grid.add_row("epsilon", Text("no privacy" if math.isinf(progress.epsilon) else "no budget", style="bold red"), spent(progress))
    else:
        share = progress.epsilon / progress.budget_epsilon
        colour = "yellow" if share > 0.9 else "cyan"
        grid.add_row("epsilon", ProgressBar(total=1.0, completed=min(share, 1.0), complete_style=colour), spent(progress))
    grid.add_row("rounds", ProgressBar(total=progress.total_rounds, completed=progress.round), f"{progress.round}/{progress.total_rounds}")
    steps = f"{progress.steps}" if progress.budget_steps is None else f"{progress.steps}/{progress.budget_steps}"
    grid.add_row("tau", sparkline(progress.taus), f"{progress.taus[-1] if progress.taus else '-'}  steps {steps}")
    left = progress.left(now)
    waits = "" if not (progress.late or progress.lost) else f"late {progress.late}, lost {progress.lost}"
    grid.add_row("time left", waits, "-" if left is None else duration(left))
    if progress.note:
        grid.add_row("note", Text(progress.note, style="italic"), "")
    return Panel(grid, title=Text(progress.title), title_align="left", border_style="dim")


def display(
    *, total_rounds: int, budget_epsilon: float, budget_steps: int | None, title: str, stream: IO[str] | None = None
) -> _Lines | _Panel:
    """The display that fits where people's text goes: a panel on a terminal, lines elsewhere."""
    place = sys.stderr if stream is None else stream
    progress = Progress(total_rounds, float(budget_epsilon), budget_steps, title, time.monotonic())
    return _Panel(progress, place) if place.isatty() else _Lines(progress, place)
