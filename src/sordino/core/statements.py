"""A regime's sentences, tables and figures: of a study before it runs, and of a run on its page.

A regime says what it has; the page does without the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from sordino.core.figures import Figure, Matrix
from sordino.core.records import known
from sordino.core.run.reading import Run


@dataclass(frozen=True, slots=True)
class Table:
    """A table of words: a title, the names of the columns, and the rows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


Paragraph = str | Table


@dataclass(frozen=True, slots=True)
class Advice:
    """Other choices that a study has at its price: a cell for each choice, for machines, and the
    same for people.
    """

    cells: Sequence[object]
    told: Sequence[Paragraph]


def number(value: float | None, digits: int = 4) -> str:
    """A number for people.

    >>> number(None), number(float("inf")), number(0.53125, 3)
    ('-', 'inf', '0.531')
    """
    if value is None:
        return "-"
    return "inf" if math.isinf(value) else f"{value:.{digits}g}"


Fact = tuple[str, str, str]
"""Name, value, remark."""


@dataclass(frozen=True, slots=True)
class Course:
    """A section of the page: how the run went on.

    Lines are one paragraph; a table has a head and rows, or pairs and no head.

    ``wordy`` tables hold sentences.
    """

    title: str
    intro: str = ""
    lines: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    wordy: bool = False


@dataclass(frozen=True, slots=True)
class Members:
    """The participants: a line to open the table by, a note, the table."""

    summary: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a run besides privacy, where its regime counts messages.

    Attributes:
        up, down, framing: MiB.
        seconds: of computation at those who take part.
        activity: share of the work that they took part in, on average.
    """

    up: float
    down: float
    framing: float
    seconds: float
    activity: float | None

    @property
    def mebibytes(self) -> float:
        """All that was sent, MiB."""
        return self.up + self.down + self.framing


def _units(run: Run) -> Members:
    """Return who took part, by number and unit of the ledger."""
    clients = run.clients
    return Members(
        f"{len(clients)} {run.vocabulary.clients}",
        "",
        (run.vocabulary.client, "unit"),
        [["" if UNSET is c.client else str(c.client), known(c.unit) or ""] for c in clients],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeReport:
    """The parts of a page that a regime has to tell.

    Attributes:
        facts: what to see first.
        courses: how it went on.
        terms: of its guarantee, given sigma and C.
        members: who took part.
        figures: of its course, as data.
        held: what those who took part hold, in a few words.
        unseen: why there is no accuracy, where that is so.
        exposed: what its promise leaves open, and why; None where it holds for all that is
            released.
        costs: of messages; None where they are not counted.
    """

    facts: Callable[[Run], list[Fact]] = lambda run: []
    courses: Callable[[Run], list[Course]] = lambda run: []
    terms: Callable[[Run, float | None, float | None], list[tuple[str, str]]] = lambda run, s, c: []
    members: Callable[[Run], Members] = _units
    figures: Callable[[Run], Iterable[Figure | Matrix]] = lambda run: ()
    held: Callable[[Run], str] = lambda run: ""
    unseen: Callable[[Run], str | None] = lambda run: None
    exposed: Callable[[Run], str | None] = lambda run: None
    costs: Callable[[Run], Costs | None] = lambda run: None
