"""Since when sites have owed an answer, and when the server is to look after each again."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable

MUTE = "mute"
"""The tag of an alarm that a site may have been silent for too long."""
SLOW = 60.0
"""Seconds after which the status says that an answer is waited for."""


class Patience:
    """What a kernel remembers of this; times are seconds of the run.

    Args:
        within: seconds in which a site answers.
        watched: sites that an alarm is set for; there is one for each at most.
    """

    def __init__(self, within: float, watched: Iterable[int]) -> None:
        self.within, self._watched = within, set(watched)
        self._asked: dict[int, tuple[float, dt.datetime]] = {}

    def asked(self, site: int, time: float) -> float | None:
        """A site is asked now; when to look after it, unless an alarm is set already."""
        self._asked[site] = time, dt.datetime.now(dt.UTC)
        return self._due(site, time)

    def looked(self, site: int, time: float) -> float | None:
        """Its alarm has come; when to look again, or None if it has been silent for too long."""
        self._watched.discard(site)
        since = self._asked[site][0] if site in self._asked else time
        return None if time >= since + self.within else self._due(site, since)

    def slow(self) -> list[tuple[int, dt.datetime]]:
        """Sites that were asked a while ago, answered or not, and when (UTC)."""
        now = dt.datetime.now(dt.UTC)
        return [
            (site, since)
            for site, (_, since) in sorted(self._asked.items())
            if (now - since).total_seconds() > SLOW
        ]

    def _due(self, site: int, since: float) -> float | None:
        if site in self._watched or math.isinf(self.within):
            return None
        self._watched.add(site)
        return since + self.within
