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

>>> from sordino.core.records import Round
>>> row = Round(round=12, steps=24, accuracy=0.712, epsilon=0.531, extra={"tau": 2})
>>> line(row, Limits(title="", rounds=158, epsilon=2.0, steps=None), 12.0)
'round 12/158  tau 2  steps 24  accuracy 0.712  epsilon 0.531/2.000  12 s left'
"""

from __future__ import annotations

import math
import sys
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

from sordino.core import regimes
from sordino.core.records import About, End, Refused, Round, Row, Unknown, at, known, number
from sordino.core.regimes import Vocabulary
from sordino.privacy.rounding import epsilon_text
from sordino.report.words import duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from sordino.core.run.session import Going

LONGEST_TRAIL = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a run, where None is no limit, and its vocabulary."""

    title: str
    rounds: int
    epsilon: float
    steps: int | None
    words: Vocabulary = field(default_factory=lambda: regimes.vocabulary(None))


def limits_of(about: About) -> Limits:
    """Return the limits of a run."""
    words = regimes.vocabulary(about.regime)
    budget = number(about.epsilon_budget)
    return Limits(
        title=known(about.name) or known(about.run) or "run",
        rounds=known(about.R_s) or 0,
        epsilon=math.inf if budget is None else budget,
        steps=known(about.facts.R_c) if words.steps_end else None,
        words=words,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The content of the rows so far.

    Attributes:
        row: the last row of a round, or None.
        trail: what the regime follows, tau, staleness or error, of the last rows.
        accuracy, best: last and highest on the test set.
        note: last remark.
        counts: how many rows of the kinds that are counted.
        first: share of the run that was done at the first row seen here.
        said: how it ended or why it was refused.
    """

    row: Round | None = None
    trail: tuple[float, ...] = ()
    accuracy: float | None = None
    best: float | None = None
    note: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    first: float = 0.0
    said: str | None = None


def follow(seen: Progress, row: Row | Unknown, limits: Limits) -> Progress:
    """Return the progress after one more row; rows of unknown kinds change nothing."""
    match row:
        case Round():
            accuracy, followed = number(row.accuracy), number(at(row, limits.words.trail))
            return replace(
                seen,
                row=row,
                trail=seen.trail
                if followed is None or math.isinf(followed)
                else (*seen.trail, followed)[-LONGEST_TRAIL:],
                accuracy=seen.accuracy if accuracy is None else accuracy,
                best=seen.best
                if accuracy is None
                else max(accuracy, -math.inf if seen.best is None else seen.best),
                note=known(row.note) or seen.note,
                first=share(row, limits) if seen.row is None else seen.first,
            )
        case End(why=why):
            return replace(seen, said=f"ended: {known(why) or ''}")
        case Refused(why=why):
            return replace(seen, said=f"refused: {known(why) or ''}")
        case _ if (kind := row.kind) in limits.words.counted:
            return replace(seen, counts={**seen.counts, kind: seen.counts.get(kind, 0) + 1})
        case _:
            return seen


def share(row: Round | None, limits: Limits) -> float:
    """Return the share of the run that is done, in [0, 1]."""
    if row is None:
        return 0.0
    parts = [0.0, (known(row.round) or 0) / max(limits.rounds, 1)]
    if limits.steps:
        parts.append((known(row.steps) or 0) / limits.steps)
    return min(max(parts), 1.0)


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


def line(row: Round, limits: Limits, left: float | None) -> str:
    """One row as one plain line; what it does not have is left out.

    >>> words = regimes.vocabulary("asynchronous")
    >>> limits = Limits(title="", rounds=99, epsilon=2.0, steps=None, words=words)
    >>> told = {"stage": 2, "clip": 0.5, "staleness": 4.0}
    >>> line(Round(round=50, steps=11, epsilon=0.5, extra=told), limits, None)
    'update 50/99  stage 2  clip 0.5  staleness 4.0  epsilon 0.500/2.000'
    """
    words, count = limits.words, known(row.round)
    parts = [
        f"{words.round} {'?' if count is None else count}/{limits.rounds}",
        *_texts(row, words),
    ]
    if not words.accuracy.streamed and (accuracy := number(row.accuracy)) is not None:
        parts.append(f"accuracy {accuracy:.3f}")
    if (error := number(at(row, "rmse"))) is not None:
        parts.append(f"RMSE {error:.4g}")
    parts.append(f"epsilon {epsilon_of(number(row.epsilon), limits.epsilon)}")
    if words.lacking and (lacking := number(at(row, words.lacking))):
        parts.append(f"{words.lacking} {lacking:.15g}")
    if left is not None:
        parts.append(f"{duration(left)} left")
    return plain("  ".join(parts))


def _texts(row: Round, words: Vocabulary, without: str = "") -> list[str]:
    """Return the text of a row beside its number, ``without`` one key."""
    told = [(key, number(at(row, key)), shape) for key, shape in words.told if key != without]
    return [
        f"{key} {format(value, shape) if shape else f'{value:.15g}'}"
        for key, value, shape in told
        if value is not None
    ]


class Fact(NamedTuple):
    """A row of the panel: its name, its text, and the share used up in [0, 1] if a bar shows it."""

    name: str
    text: str
    part: float | None = None


def facts(seen: Progress, limits: Limits, left: float | None) -> list[Fact]:
    """The rows of the panel."""
    row, words = seen.row or Round(), limits.words
    spent = number(row.epsilon)
    private = math.isfinite(limits.epsilon) and not (spent is not None and math.isinf(spent))
    accuracy = "not evaluated yet"
    if seen.accuracy is not None and seen.best is not None:
        accuracy = f"{100 * seen.accuracy:.2f} %   best {100 * seen.best:.2f} %"
    used = (spent or 0.0) / limits.epsilon if private and limits.epsilon > 0 else 0.0
    found = [
        *([] if words.accuracy.streamed else [Fact("accuracy", accuracy)]),
        Fact("epsilon", epsilon_of(spent, limits.epsilon), used if private else None),
        Fact(
            words.rounds,
            f"{known(row.round) or 0}/{limits.rounds}",
            (known(row.round) or 0) / max(limits.rounds, 1),
        ),
        *_course(row, limits),
        Fact(words.trail, f"{seen.trail[-1]:.4g}  {sparkline(seen.trail)}" if seen.trail else "-"),
        Fact("time left", "-" if left is None else duration(left)),
    ]
    if seen.counts:
        found.append(Fact("answers", counted(seen, words)))
    if seen.note:
        found.append(Fact("note", plain(seen.note)))
    if seen.said:
        found.append(Fact("", plain(seen.said)))
    return found


def _course(row: Round, limits: Limits) -> list[Fact]:
    """Where in its course a run is: steps where they end it, else what the row tells."""
    words = limits.words
    if words.steps_end:
        return [
            Fact(
                "steps",
                f"{known(row.steps) or 0}" + ("" if limits.steps is None else f"/{limits.steps}"),
            )
        ]
    told = _texts(row, words, without=words.trail)
    return [Fact("now", plain("   ".join(told)))] if told else []


def counted(seen: Progress, words: Vocabulary) -> str:
    """The answers that came to nothing, and who is gone.

    >>> counted(Progress(counts={"lost": 2, "late": 1}), regimes.vocabulary(None))
    '1 late, 2 lost'
    """
    return ", ".join(
        f"{seen.counts[kind]} {name}" for kind, name in words.counted.items() if kind in seen.counts
    )


def plain(text: str) -> str:
    """``text`` on one line, without control characters."""
    return "".join(
        " " if c in "\n\t\r" else c
        for c in text
        if c in "\n\t\r" or unicodedata.category(c) not in ("Cc", "Cf", "Cs")
    )


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
    """Shows rows as they come, on standard error unless told otherwise."""

    def __init__(
        self,
        limits: Limits,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(limits.title, sys.stderr if stream is None else stream, clock)
        self.limits, self.seen = limits, Progress()
        self.since: float | None = None

    def facts(self) -> Sequence[Fact]:
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
                self.say(line(row, self.limits, self.left()))
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
            self.open = Display(limits_of(about)).__enter__()

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
