"""A live panel on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TextIO

from sordino.core import vocabulary
from sordino.core.records import End, Refused, Round, Row, Unknown, known
from sordino.live.console.progress import Limits, Progress, follow, remaining, share
from sordino.live.console.text import Fact, counted, facts, line, plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live


class Screen:
    """A live panel on a terminal, and plain lines elsewhere. A context manager."""

    transient = False  # whether the panel is gone when it is left

    def __init__(self, title: str, stream: TextIO, clock: Callable[[], float]) -> None:
        self.title, self.stream, self.clock, self.started = title, stream, clock, clock()
        self.live: Live | None = None

    def facts(self) -> Sequence[Fact]:
        """The rows of the panel now."""
        raise NotImplementedError

    def panel(self) -> RenderableType:
        """What a terminal shows now."""
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, text, part in self.facts():
            # names come from files: square brackets are no markup
            cell: RenderableType = Text(text)
            if part is not None:
                both = Table.grid(padding=(0, 1))
                both.add_row(
                    ProgressBar(total=1.0, completed=min(max(part, 0.0), 1.0), width=30), cell
                )
                cell = both
            table.add_row(Text(name), cell)
        return Panel(
            table,
            title=Text(plain(self.title)),
            title_align="left",
            border_style="dim",
            expand=False,
        )

    def __enter__(self) -> Self:
        self.started = self.clock()
        if self.stream.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self.stream)
            if not console.is_dumb_terminal:
                self.live = Live(
                    self.panel(),
                    console=console,
                    refresh_per_second=4,
                    redirect_stdout=False,
                    transient=self.transient,
                )
                self.live.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        live, self.live = self.live, None
        if live is not None:
            live.__exit__(*raised)

    def say(self, text: str) -> None:
        """One line, without control characters, in what the stream can encode."""
        encoding = self.stream.encoding or "utf-8"
        self.stream.write(plain(text).encode(encoding, "replace").decode(encoding) + "\n")
        self.stream.flush()


class Display(Screen):
    """Shows rows as they come; use :func:`display`."""

    def __init__(self, limits: Limits, stream: TextIO, clock: Callable[[], float]) -> None:
        super().__init__(limits.title, stream, clock)
        self.limits, self.seen = limits, Progress()
        self.since: float | None = None

    def facts(self) -> Sequence[Fact]:
        """See :class:`Screen`."""
        return facts(self.seen, self.limits, self.left())

    def show(self, row: Row | Unknown) -> None:
        """Take in one row of the log."""
        self.seen = follow(self.seen, row, self.limits)
        if self.since is None and self.seen.row is not None:
            self.since = self.clock()
        if self.live is not None:
            self.live.update(self.panel())
            return
        match row:
            case Round():
                limits = self.limits
                self.say(
                    line(
                        row,
                        rounds=limits.rounds,
                        budget=limits.epsilon,
                        left=self.left(),
                        words=limits.words,
                    )
                )
                if note := known(row.note):
                    self.say(f"  {note}")
            case End() | Refused():
                if self.seen.counts:
                    self.say(f"answers: {counted(self.seen, self.limits.words)}")
                self.say(self.seen.said or "")

    def left(self) -> float | None:
        """Seconds left, or None.

        Counted from the first row on: what comes before it, compilation and the first pass over
        the data, comes once, and would be taken for a part of every round.
        """
        if self.since is None or self.seen.said is not None:
            return None
        now = share(self.seen.row, self.limits)
        return remaining(self.clock() - self.since, self.seen.first, now)


def display(
    *,
    total_rounds: int,
    budget_epsilon: float,
    budget_steps: int | None,
    title: str,
    regime: str | None = None,
    begun: int = 0,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Display:
    """A display to be entered; rows go to its ``show``.

    Writes to standard error unless told otherwise.
    """
    words = vocabulary.of(regime)
    steps = budget_steps if words.steps_end else None
    limits = Limits(
        title=title,
        rounds=total_rounds,
        epsilon=budget_epsilon,
        steps=steps,
        words=words,
        begun=begun,
    )
    return Display(limits, sys.stderr if stream is None else stream, clock)
