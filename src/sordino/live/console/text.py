"""What a panel and a line say of a run."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from sordino.core import vocabulary
from sordino.core.records import Round, at, known, number
from sordino.core.vocabulary import Vocabulary
from sordino.live.console.progress import Limits, Progress
from sordino.privacy.rounding import epsilon_text

BARS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """A length of time for people.

    >>> duration(12.3), duration(75), duration(3700)
    ('12 s', '1 min 15 s', '1 h 1 min')
    """
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60} s"
        if whole < 3600
        else f"{whole // 3600} h {whole % 3600 // 60} min"
    )


def epsilon_of(spent: float | None, budget: float) -> str:
    """What was spent, of what may be. It is rounded up: less than it is would be no bound.

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


def line(
    row: Round, *, rounds: int, budget: float, left: float | None, words: Vocabulary | None = None
) -> str:
    """One row as one plain line; what it does not have is left out.

    >>> told = {"stage": 2, "clip": 0.5, "staleness": 4.0}
    >>> row = Round(round=50, steps=11, epsilon=0.5, extra=told)
    >>> line(row, rounds=99, budget=2.0, left=None, words=vocabulary.of("asynchronous"))
    'update 50/99  stage 2  clip 0.5  staleness 4.0  epsilon 0.500/2.000'
    """
    words = vocabulary.of(None) if words is None else words
    parts = [
        f"{words.round} {'?' if (count := known(row.round)) is None else count}/{rounds}",
        *_told(row, words),
    ]
    if not words.accuracy.streamed and (accuracy := number(row.accuracy)) is not None:
        parts.append(f"accuracy {accuracy:.3f}")
    if (error := number(at(row, "rmse"))) is not None:
        parts.append(f"RMSE {error:.4g}")
    parts.append(f"epsilon {epsilon_of(number(row.epsilon), budget)}")
    if words.lacking and (lacking := number(at(row, words.lacking))):
        parts.append(f"{words.lacking} {lacking:.15g}")
    if left is not None:
        parts.append(f"{duration(left)} left")
    return plain("  ".join(parts))


def _told(row: Round, words: Vocabulary, without: str = "") -> list[str]:
    """What a line or panel says of a row beside its number, ``without`` one key."""
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
    told = _told(row, words, without=words.trail)
    return [Fact("now", plain("   ".join(told)))] if told else []


def counted(seen: Progress, words: Vocabulary) -> str:
    """The answers that came to nothing, and who is gone.

    >>> counted(Progress(counts={"lost": 2, "late": 1}), vocabulary.of(None))
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
