"""Progress of a run: one live panel on a terminal, one plain line per row of the log elsewhere.

A program's log must be readable in a file years later, so without a terminal there are no control
characters and nothing is overwritten::

    round 12/158  tau 2  steps 24  accuracy 0.712  epsilon 0.531/2.000  12 s left
    update 13650/15000  stage 3  clip 0.25  staleness 4.0  accuracy 0.744  ...  2 s left
    event 20000/2000000  error 0.103  accumulated 0.211  regret 3.1e-02  ...  5 min 2 s left

How far a run in rounds is, is the larger of the shares of rounds and steps used: it ends when
either is used up. Updates and events end when there were enough of them. The time left assumes that
the rest goes as fast as what was seen here after the first row, which has waited for compilation;
after a resume only the rounds of this session count.

>>> from sordino.core.records import About, Round
>>> row = Round(round=12, steps=24, accuracy=0.712, epsilon=0.531, extra={"tau": 2})
>>> Progress(About(R_s=158, epsilon_budget=2.0)).line(row, 12.0)
'round 12/158  tau 2  steps 24  accuracy 0.712  epsilon 0.531/2.000  12 s left'
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

from sordino.base.errors import printable
from sordino.core import regimes
from sordino.core.records import About, End, Refused, Round, Row, Unknown, at, known, number
from sordino.privacy.rounding import epsilon_text
from sordino.report.words import duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from sordino.core.run.session import Going

LONGEST_TRAIL = 40


class Fact(NamedTuple):
    """A row of the panel: its name, its text, and the share used up in [0, 1] if a bar shows it."""

    name: str
    text: str
    part: float | None = None


class Progress:
    """The progress of a run: its limits, where None is no limit, and what its rows say so far.

    Args:
        clock: in seconds.

    Attributes:
        row: the last row of a round, or None.
        trail: what the regime follows, tau, staleness or error, of the last rows.
        accuracy, best: last and highest on the test set.
        note: last remark.
        counts: how many rows of the kinds that are counted.
        since: when the time left began to be counted, and the share of the run done then.
        said: how it ended or why it was refused.
    """

    def __init__(self, about: About, clock: Callable[[], float] = time.monotonic) -> None:
        self.words, budget = regimes.vocabulary(about.regime), number(about.epsilon_budget)
        self.title = known(about.name) or known(about.run) or "run"
        self.rounds = known(about.R_s) or 0
        self.epsilon = math.inf if budget is None else budget
        self.steps = known(about.facts.R_c) if self.words.steps_end else None
        self.clock = clock
        self.row: Round | None = None
        self.trail: list[float] = []
        self.accuracy: float | None = None
        self.best: float | None = None
        self.note: str | None = None
        self.counts = Counter[str]()
        self.since: tuple[float, float] | None = None
        self.said: str | None = None

    def take(self, row: Row | Unknown) -> None:
        """Take in one more row; rows of unknown kinds change nothing."""
        match row:
            case Round():
                self.row, self.note = row, known(row.note) or self.note
                accuracy, followed = number(row.accuracy), number(at(row, self.words.trail))
                if followed is not None and not math.isinf(followed):
                    self.trail = [*self.trail, followed][-LONGEST_TRAIL:]
                if accuracy is not None:
                    self.best = accuracy if self.best is None else max(accuracy, self.best)
                    self.accuracy = accuracy
                if self.since is None:
                    self.count()
            case End(why=why):
                self.said = f"ended: {known(why) or ''}"
            case Refused(why=why):
                self.said = f"refused: {known(why) or ''}"
            case _ if row.kind in self.words.counted:
                self.counts[row.kind] += 1

    def count(self) -> None:
        """Count the time left from here on: what came before was not seen, or comes once.

        Compilation and the first pass over the data come before the first row, and would be taken
        for a part of every round.
        """
        self.since = self.clock(), self.share()

    def share(self) -> float:
        """Return the share of the run that is done, in [0, 1]."""
        row = self.row or Round()
        parts = [0.0, (known(row.round) or 0) / max(self.rounds, 1)]
        if self.steps:
            parts.append((known(row.steps) or 0) / self.steps)
        return min(max(parts), 1.0)

    def left(self) -> float | None:
        """Seconds left, or None."""
        if self.since is None or self.said is not None:
            return None
        started, first = self.since
        return remaining(self.clock() - started, first, self.share())

    def line(self, row: Round, left: float | None) -> str:
        """One row as one plain line; what it does not have is left out."""
        words, count = self.words, known(row.round)
        parts = [
            f"{words.round} {'?' if count is None else count}/{self.rounds}",
            *_texts(row, words),
        ]
        if not words.accuracy.streamed and (accuracy := number(row.accuracy)) is not None:
            parts.append(f"accuracy {accuracy:.3f}")
        if (error := number(at(row, "rmse"))) is not None:
            parts.append(f"RMSE {error:.4g}")
        parts.append(f"epsilon {epsilon_of(number(row.epsilon), self.epsilon)}")
        if words.lacking and (lacking := number(at(row, words.lacking))):
            parts.append(f"{words.lacking} {lacking:.15g}")
        if left is not None:
            parts.append(f"{duration(left)} left")
        return printable("  ".join(parts))

    def facts(self) -> list[Fact]:
        """The rows of the panel."""
        row, words, left = self.row or Round(), self.words, self.left()
        count, spent = known(row.round) or 0, number(row.epsilon)
        private = math.isfinite(self.epsilon) and not (spent is not None and math.isinf(spent))
        accuracy = "not evaluated yet"
        if self.accuracy is not None and self.best is not None:
            accuracy = f"{100 * self.accuracy:.2f} %   best {100 * self.best:.2f} %"
        used = (spent or 0.0) / self.epsilon if private and self.epsilon > 0 else 0.0
        found = [Fact("accuracy", accuracy)] if not words.accuracy.streamed else []
        found += [
            Fact("epsilon", epsilon_of(spent, self.epsilon), used if private else None),
            Fact(words.rounds, f"{count}/{self.rounds}", count / max(self.rounds, 1)),
        ]
        if words.steps_end:  # where in its course it is; else what the row tells
            of = "" if self.steps is None else f"/{self.steps}"
            found.append(Fact("steps", f"{known(row.steps) or 0}{of}"))
        elif told := _texts(row, words, without=words.trail):
            found.append(Fact("now", printable("   ".join(told))))
        trail = f"{self.trail[-1]:.4g}  {sparkline(self.trail)}" if self.trail else "-"
        found += [
            Fact(words.trail, trail),
            Fact("time left", "-" if left is None else duration(left)),
        ]
        named = {"answers": self.counted(), "note": self.note, "": self.said}
        return found + [Fact(name, printable(text)) for name, text in named.items() if text]

    def counted(self) -> str:
        """The answers that came to nothing, and who is gone."""
        names = self.words.counted
        return ", ".join(
            f"{self.counts[kind]} {name}" for kind, name in names.items() if kind in self.counts
        )


def remaining(elapsed: float, first: float, now: float) -> float | None:
    """Seconds left if the rest goes on as from ``first`` to ``now``; None if that cannot be said.

    >>> remaining(10.0, 0.5, 0.75), remaining(10.0, 0.5, 0.5)
    (10.0, None)
    """
    return elapsed * (1.0 - now) / (now - first) if now > first else None


BARS = "▁▂▃▄▅▆▇█"


def epsilon_of(spent: float | None, budget: float) -> str:
    """Return epsilon spent, of the budget, rounded up: less would be no bound.

    >>> epsilon_of(0.5314, 2.0), epsilon_of(0.531, 2.0), epsilon_of(None, 0.0005)
    ('0.532/2.000', '0.531/2.000', '-/0.0005')
    >>> epsilon_of(math.inf, math.inf)
    'infinite (no privacy)'
    """
    if math.isinf(budget) or (spent is not None and math.isinf(spent)):
        return "infinite (no privacy)"
    digits = epsilon_text(budget, decimals=3)
    return (
        f"{epsilon_text(spent, decimals=3)}/{digits if float(digits) == budget else repr(budget)}"
    )


def sparkline(values: Sequence[float]) -> str:
    """Small bars, the highest for the largest value.

    >>> sparkline([1, 2, 4, 8]), sparkline([2, 2]), sparkline([])
    ('▁▂▄█', '██', '')
    """
    most = max(values, default=0)
    return "".join(
        BARS[max(math.ceil(len(BARS) * value / most) - 1, 0)] if most > 0 else BARS[0]
        for value in values
    )


def _texts(row: Round, words: regimes.Vocabulary, without: str = "") -> list[str]:
    """Return the text of a row beside its number, ``without`` one key."""
    told = [(key, number(at(row, key)), shape) for key, shape in words.told if key != without]
    return [
        f"{key} {format(value, shape) if shape else f'{value:.15g}'}"
        for key, value, shape in told
        if value is not None
    ]


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
        """Return the panel as it is now."""
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
            title=Text(printable(self.title)),
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
        self.stream.write(printable(text).encode(encoding, "replace").decode(encoding) + "\n")
        self.stream.flush()


class Display(Screen):
    """Shows rows as they come, on standard error unless told otherwise."""

    def __init__(self, seen: Progress, stream: TextIO | None = None) -> None:
        super().__init__(seen.title, sys.stderr if stream is None else stream, seen.clock)
        self.seen = seen

    def facts(self) -> Sequence[Fact]:
        return self.seen.facts()

    def show(self, row: Row | Unknown) -> None:
        """Take in one row of the log."""
        self.seen.take(row)
        if self.live is not None:
            self.live.update(self.panel())
            return
        match row:
            case Round():
                self.say(self.seen.line(row, self.seen.left()))
                if note := known(row.note):
                    self.say(f"  {note}")
            case End() | Refused():
                if self.seen.counts:
                    self.say(f"answers: {self.seen.counted()}")
                self.say(self.seen.said or "")


class Running:
    """The live display, opened when the run knows how long it may become."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.open: Display | None = None

    def close(self) -> None:
        """Leave the panel as it is; lines that follow stand below it."""
        shown, self.open = self.open, None
        if shown is not None:
            shown.__exit__(None, None, None)

    def begin(self, going: Going) -> None:
        """Show the warnings, then the panel."""
        about = going.about
        for warning in known(about.warnings) or ():
            sys.stderr.write(f"warning: {warning}\n")
        if not self.quiet:
            self.open = Display(Progress(about)).__enter__()

    def row(self, row: Row) -> None:
        """One row of the log."""
        if self.open is not None:
            self.open.show(row)


class Making:
    """Shows how many examples have their features; as ``told`` of
    :func:`sordino.data.notices.watched`.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: Bar | None = None
        self._tasks: dict[tuple[str, int], TaskID] = {}

    def close(self) -> None:
        """Stop the bar."""
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
            from rich.console import Console
            from rich.progress import MofNCompleteColumn, Progress

            self._bar = Progress(
                *Progress.get_default_columns(),
                MofNCompleteColumn(),
                console=Console(stderr=True),
                transient=True,
                disable=not sys.stderr.isatty(),
            )
            self._bar.start()
        if not begun:
            self._tasks[name, whole] = self._bar.add_task(f"features of {name}", total=whole)
        self._bar.update(self._tasks[name, whole], completed=done)
