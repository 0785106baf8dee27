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

from sordino.core.records import known, number
from sordino.core.run.reading import Run
from sordino.core.statements import Costs
from sordino.regimes.vertical.records import VerticalRound

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals(Costs):
    """Of all events so far.

    Attributes:
        events: that were used.
        unused: whose entities had no budget left.
        dropped: messages that were no part of anything.
        active, silent: share of the events in which each party was active, or did not answer.
        durations: seconds of active parties, passive parties and the server.
    """

    events: float
    unused: float
    dropped: float
    active: tuple[float, ...]
    silent: tuple[float, ...]
    durations: tuple[float, float, float]


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
        events=events,
        unused=unused,
        dropped=dropped,
        active=active,
        silent=silent,
        up=up,
        down=down,
        framing=framing,
        seconds=seconds[0] + seconds[1],
        activity=fmean(active) if active else None,
        durations=(seconds[0], seconds[1], seconds[2]),
    )


def _shares(told: Sequence[float], parties: int) -> Sequence[float]:
    """One share for each party; zeros where the row tells none."""
    kept = [share for each in told if (share := number(each)) is not None and 0 <= share <= 1]
    return kept if len(kept) == parties else [0.0] * parties
