"""From below by an attack, from above by the ledger: where a true epsilon lies, and what to say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from sordino.base.errors import StudyError
from sordino.base.frozen import Frozen
from sordino.core import records, regimes
from sordino.core.prepared import PreparedRun
from sordino.core.statements import Figure, Panel, Series
from sordino.core.study.base import Study
from sordino.core.world import Snapshot
from sordino.report.words import bound

FORMAT = 1  # of the JSON of a table of intervals
Verdict = Literal["holds", "BROKEN", "caught", "not caught"]

SLACK = 1e-9
"""Of rounding, relative: a bound that equals the ledger's epsilon contradicts nothing."""


class Interval(Frozen, kw_only=True):
    """One mechanism or method under attack.

    Attributes:
        name: in words.
        unit: whose presence is asked about.
        sound: whether its claim is meant to hold; papers' literal forms are not.
        how: which attack.
        low: lower bound of epsilon, if the trade-off between hits and false alarms is of the kind
            that is claimed.
        plain: lower bound that needs no such knowledge.
        claimed: epsilon that its author says.
        ledger: epsilon that the ledger books.
        releases: how many releases, or canaries of a run, were looked at.
        delta: at which these epsilons are told.
        binding: whether ``low`` itself contradicts the ledger where it is above it; else ``plain``.
    """

    name: str
    unit: str
    sound: bool = True
    how: str
    low: float
    plain: float
    claimed: float
    ledger: float
    releases: int
    delta: float
    binding: bool = True

    @property
    def proven(self) -> float:
        """The lower bound that counts."""
        return max(self.low, self.plain) if self.binding else self.plain

    @property
    def verdict(self) -> Verdict:
        """The conclusion from both numbers."""
        if self.proven > self.ledger * (1.0 + SLACK):
            return "BROKEN"
        if self.sound:
            return "holds"
        return "caught" if self.proven > self.claimed * (1.0 + SLACK) else "not caught"


def failed(intervals: Sequence[Interval]) -> list[Interval]:
    """Return contradicted ledgers, and false claims that are not caught."""
    return [one for one in intervals if one.verdict in ("BROKEN", "not caught")]


S = TypeVar("S", bound=Study)
Row = Callable[[float], Interval]
"""Makes a row of the table, whose lower bounds are wrong with at most this probability."""


Rows = Callable[[Any, int, str], Sequence[Row]]
"""``ROWS`` of a regime's module ``audit``: rows of a study, with at most so many canaries in a run,
under a name. It raises a StudyError if nothing can be planted in the study."""


def alone(study: S) -> S:
    """The study with a ledger of its run: an attack spends nothing of a lasting one's budget."""
    return study.with_privacy({"ledger": "run"})


def rows(study: Study, canaries: int, name: str) -> Sequence[Row]:
    """Attacks with canaries on a study; ``name`` is what its rows are called.

    Raises:
        StudyError: if its regime has none, or they do not fit it.
    """
    try:
        made: Rows = regimes.part(study.regime, "audit", "ROWS")
    except StudyError as error:
        raise StudyError(
            f"method.name = {study.method.name!r}: --attack canaries does not know how to plant "
            f"anything in regime {study.regime!r}; its package may have a module `audit` with ROWS"
        ) from error
    return made(study, canaries, name)


class _Nobody:
    """Nobody watches, and nothing is kept."""

    def row(self, row: records.Row) -> None: ...

    def due(self, number: int, ended: str | None) -> bool:
        return False

    def save(self, moment: Snapshot) -> None: ...


def played(built: PreparedRun) -> Snapshot:
    """Play a run by the ordinary kernel, charged to its ledger, and return how it ended."""
    end: Snapshot = built.simulation.run(built.first, _Nobody())
    return end


# Figures

LEAST, MOST = 0.1, 1000.0
"""Ends of the axis of epsilon; what is beyond stands there."""


def lower_text(value: float) -> str:
    """A lower bound, rounded down to three digits.

    >>> lower_text(1.9999), lower_text(0.0), lower_text(29.97)
    ('1.99', '0', '29.9')
    """
    if value <= 0.0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.floor(value / unit * (1.0 + 1e-12)) * unit:.3g}"


def intervals_figure(intervals: Sequence[Interval]) -> Figure:
    """Where the true epsilon of every row lies: a bar from the lower bound to the ledger's epsilon.

    A cross stands at what a paper's literal form claims.
    """
    ends = [
        [min(max(end, LEAST), MOST) for end in (one.low, one.plain, one.ledger)]
        for one in intervals
    ]
    lows = [max(low, plain) for low, plain, _ in ends]
    highs = [max(high, 1.03 * low) for (*_, high), low in zip(ends, lows, strict=True)]
    texts = [
        f"[{lower_text(max(one.low, one.plain))}, {bound(one.ledger, 4)}]  {one.verdict}"
        for one in intervals
    ]
    wrong = [not one.sound or one.verdict in ("BROKEN", "not caught") for one in intervals]

    def bars(red: bool) -> Series:
        chosen = [i for i, each in enumerate(wrong) if each is red]
        return Series(
            kind="bar",
            colour="red" if red else "blue",
            x=chosen,
            y=[highs[i] - lows[i] for i in chosen],
            base=[lows[i] for i in chosen],
            texts=[texts[i] for i in chosen],
        )

    literal = [(i, one.claimed) for i, one in enumerate(intervals) if not one.sound]
    claims = Series(
        kind="dots",
        colour="ink",
        filled=False,
        x=[i for i, _ in literal],
        y=[min(max(claimed, LEAST), MOST) for _, claimed in literal],
        name="claimed by a paper" if literal else "",
    )
    return Figure(
        key="audit",
        title="Epsilon from below and from above",
        caption="",
        label="Lower bounds of epsilon by attacks, and the ledger's epsilons",
        x="epsilon: from the attack's lower bound to the ledger's",
        lying=True,
        names=[one.name for one in intervals],
        log=True,
        ticks=[(0.1, "≤ 0.1"), (1.0, "1"), (10.0, "10"), (100.0, "100"), (1000.0, "≥ 1000")],
        panels=[Panel(label="", series=[bars(False), bars(True), claims], limits=(LEAST, MOST))],
        table=(
            ("row", "lower bound", "assuming nothing", "claimed", "ledger", "verdict"),
            [
                [str(each) for each in (a.name, a.low, a.plain, a.claimed, a.ledger, a.verdict)]
                for a in intervals
            ],
        ),
        width=9.0,
    )
