"""What a stream has cost so far: messages, activations and time, added up over the rows of the log.

Rows hold bytes and seconds since the beginning, but shares of the events since the row before; so
the former are read off the last row, and the latter are weighed by events.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from sordino.engine.records import VerticalRound, known, number
from sordino.engine.runs import Run

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Totals:
    """Of all events so far.

    Attributes:
        events: that were used.
        unused: whose entities had no budget left.
        dropped: messages that were no part of anything.
        active, silent: share of the events in which each party was active, or did not answer.
        up, down, framing: MiB.
        seconds: of active parties, passive parties and the server.
    """

    events: float
    unused: float
    dropped: float
    active: tuple[float, ...]
    silent: tuple[float, ...]
    up: float
    down: float
    framing: float
    seconds: tuple[float, float, float]

    @property
    def mebibytes(self) -> float:
        """All that was sent, MiB."""
        return self.up + self.down + self.framing

    @property
    def activity(self) -> float | None:
        """Share of the events in which a party was active, on average over parties."""
        return fmean(self.active) if self.active else None


def totals(run: Run) -> Totals | None:
    """Of a run; None where its rows tell of no messages, as in other regimes."""
    sent = {key: run.values(key) for key in ("up", "down", "framing")}
    if not any(sent.values()):
        return None
    parties = len(run.clients)
    rows = [row for row in run.rounds if isinstance(row, VerticalRound)]
    ends = [0.0, *(float(known(row.round) or 0) for row in rows)]
    events, unused = 0.0, 0.0
    shares = {"active": [0.0] * parties, "silent": [0.0] * parties}
    for (before, end), row in zip(pairwise(ends), rows, strict=True):
        left_out = float(known(row.unused) or 0)
        used = max(end - before - left_out, 0.0)
        events, unused = events + used, unused + left_out
        for total, told in ((shares["active"], row.active), (shares["silent"], row.silent)):
            for party, share in enumerate(_shares(known(told) or (), parties)):
                total[party] += used * share
    active, silent = (
        tuple(each / max(events, 1.0) for each in shares[key]) for key in ("active", "silent")
    )
    up, down, framing = (max(values, default=0.0) / MIB for values in sent.values())
    seconds = [
        max(run.values(f"{who}_seconds"), default=0.0) for who in ("active", "passive", "server")
    ]
    dropped = math.fsum(known(row.dropped) or 0 for row in rows)
    return Totals(
        events,
        unused,
        dropped,
        active,
        silent,
        up,
        down,
        framing,
        (seconds[0], seconds[1], seconds[2]),
    )


def amount(mebibytes: float, digits: int = 4) -> str:
    """MiB for people.

    >>> amount(0.99243), amount(4.3111), amount(976.6, 3), amount(12345.6)
    ('0.9924', '4.311', '977', '12\u202f346')
    """
    return (
        f"{mebibytes:.{digits}g}"
        if mebibytes < 999.5
        else f"{mebibytes:,.0f}".replace(",", "\u202f")
    )


def _shares(told: Sequence[float], parties: int) -> Sequence[float]:
    """One share for each party; zeros where the row tells none."""
    kept = [share for each in told if (share := number(each)) is not None and 0 <= share <= 1]
    return kept if len(kept) == parties else [0.0] * parties
