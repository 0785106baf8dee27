"""How far a run is, from the rows of its log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sordino.core import vocabulary
from sordino.core.records import End, Refused, Round, Row, Unknown, at, known, number
from sordino.core.vocabulary import Vocabulary

LONGEST_TRAIL = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the run may use, where None is no limit; how to speak of it; rounds done before."""

    title: str
    rounds: int
    epsilon: float
    steps: int | None
    words: Vocabulary = field(default_factory=lambda: vocabulary.of(None))
    begun: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What the rows said until now.

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
    """What is known after one more row; rows of unknown kinds change nothing."""
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
    """How much of the run is behind us, in [0, 1]."""
    return 0.0 if row is None else _share(known(row.round) or 0, known(row.steps) or 0, limits)


def _share(rounds: int, steps: int, limits: Limits) -> float:
    parts = [rounds / max(limits.rounds, 1)]
    if limits.steps:
        parts.append(steps / limits.steps)
    return min(max(*parts, 0.0), 1.0)


def remaining(elapsed: float, first: float, now: float) -> float | None:
    """Seconds left if the rest goes on as from ``first`` to ``now``; None if that cannot be said.

    >>> remaining(10.0, 0.5, 0.75), remaining(10.0, 0.5, 0.5)
    (10.0, None)
    """
    return elapsed * (1.0 - now) / (now - first) if now > first else None
