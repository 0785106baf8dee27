"""From below by an attack, from above by the ledger: where a true epsilon lies, and what to say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from sordino.audit.lira import Inferred

FORMAT = 1
Verdict = Literal["holds", "BROKEN", "caught", "not caught"]

SLACK = 1e-9
"""Of rounding, relative: a bound that equals the ledger's epsilon contradicts nothing."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
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
    sound: bool
    how: str
    low: float
    plain: float
    claimed: float
    ledger: float
    releases: int
    delta: float
    binding: bool

    @property
    def proven(self) -> float:
        """The lower bound that counts."""
        return max(self.low, self.plain) if self.binding else self.plain

    @property
    def verdict(self) -> Verdict:
        """What the two numbers come to."""
        if self.proven > self.ledger * (1.0 + SLACK):
            return "BROKEN"
        if self.sound:
            return "holds"
        return "caught" if self.proven > self.claimed * (1.0 + SLACK) else "not caught"


class IntervalsTold(msgspec.Struct, frozen=True, kw_only=True):
    """A table of intervals for machines, with the number of its format.

    Attributes:
        confidence: that all lower bounds hold together.
        verdicts: in the order of ``intervals``.
        inferred: what attacks with shadow runs came to, form by form.
    """

    format: int = FORMAT
    attack: str
    seed: int
    confidence: float
    picture: str
    intervals: tuple[Interval, ...]
    verdicts: tuple[Verdict, ...]
    inferred: tuple[Inferred, ...] = ()


def failed(intervals: Sequence[Interval]) -> list[Interval]:
    """What a build must not pass with: a ledger contradicted, or a false claim not caught."""
    return [one for one in intervals if one.verdict in ("BROKEN", "not caught")]
