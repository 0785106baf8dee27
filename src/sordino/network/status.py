"""The state of a federation and what was refused, written down beside a run.

``status.json`` is written at most once a second; :mod:`sordino.live.federation` shows it.

``incidents.jsonl`` is a log that no flood can fill the disk with. Each line is one JSON object:
when (UTC), which site (empty for somebody without a name), what, the detail, and how often that has
happened in this life of the process. The first, second, fourth, eighth time and so on of the same
is written, of so many different ones of each site; and no more than :data:`MOST` bytes in all.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from sordino.base.errors import SordinoError, StudyError, printable
from sordino.base.files import MIB, append_below
from sordino.base.frozen import Frozen
from sordino.core.files import replace_file, said_clearly
from sordino.core.records import known
from sordino.core.run.folder import ABOUT, Show
from sordino.core.run.session import Announce
from sordino.live.federation import NAME, SiteStatus, Status, read
from sordino.network.kit import Agreed

if TYPE_CHECKING:
    from sordino.network.kernel import NetworkKernel

EVERY = 1.0
"""Seconds between two writings of the status."""
INCIDENTS = "incidents.jsonl"
MOST = 16 * MIB
DIFFERENT, NAMES = 128, 1_000
"""Different incidents of one site that are told apart, and sites."""
LONGEST = 300
FULL = "the log is full"
NAMED = 10
"""Sites that one line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Listeners: of rows of the run's log, of the beginning, and of messages."""

    row: Show
    begin: Announce
    log: logging.Logger


class Reporter:
    """Writes the status of a run, at most once a second.

    Args:
        incidents: connections that were refused are among them.
        log: told when sites come and go, and when the run begins to wait for them.
    """

    def __init__(
        self, folder: Path, agreed: Agreed, incidents: Incidents, log: logging.Logger
    ) -> None:
        self._folder, self._agreed, self._incidents = folder, agreed, incidents
        self._log, self._waited, self._next = log, "", 0.0
        self._there, self._came = set[str](), set[str]()
        if (folder / ABOUT).exists():  # who came to the run before; all, where that is not known
            try:
                self._came = {site.name for site in read(folder).sites if site.epsilon != 0}
            except StudyError:
                self._came = set(agreed.agreement.names)

    def __call__(self, kernel: NetworkKernel[Any]) -> None:
        """After an input of the kernel, or a while without one."""
        now = time.monotonic()
        if now < self._next and kernel.state.ended is None:
            return
        self._next = now + EVERY
        session, waiting = kernel.session, _waiting(kernel)
        world: Any = kernel.world
        secret: bool = world.regime.secret
        if waiting and waiting != self._waited:
            self._log.warning(waiting)
        self._waited = waiting
        standings = list(zip(session.names, session.sites, strict=True))
        there = {name for name, each in standings if each.there}
        for name in sorted(there ^ self._there):
            self._log.info(
                f"{name} is {'there' if name in there else 'gone'}", extra={"site": name}
            )
        self._there = there
        self._came |= {name for name, each in standings if each.seen and not each.turned}
        booked = [kernel.booked_for(site) for site in range(len(session.names))]
        found = Status(
            format=1,
            name=self._agreed.agreement.name,
            run=session.run,
            number=kernel.state.number,
            planned=self._agreed.study.horizon,
            seconds=kernel.time,
            minimum=self._agreed.minimum,
            sites=tuple(
                SiteStatus(
                    name=name,
                    there=standing.there,
                    asked=None if standing.ask is None or secret else standing.ask.number,
                    quiet=now - standing.seen if standing.seen and not secret else None,
                    epsilon=_finite(spent) if name in self._came else 0.0,
                    limit=_finite(limit),
                    received=0 if secret else standing.received,
                    sent=0 if secret else standing.sent,
                    refused=dict(standing.refused),
                    flagged=standing.flagged,
                    flag=standing.flag,
                    out=standing.out or standing.turned or standing.revoked,
                    answers=None if secret else standing.answers,
                )
                for (name, standing), (spent, limit) in zip(standings, booked, strict=True)
            ),
            strangers=self._incidents.strangers(),
            ended=kernel.state.ended,
            waiting=waiting or None,
            journal=None if secret else kernel.journal.size,  # it holds the answers
        )
        replace_file(self._folder / NAME, msgspec.json.encode(found))


def _waiting(kernel: NetworkKernel[Any]) -> str:
    """Return in words what the run waits for: sites that have been absent for the agreed patience,
    or answers.
    """
    away, count, names = kernel.session.missing(), kernel.waiting, kernel.session.names
    if away and count:
        return f"waiting for {count} more site{'s' if count > 1 else ''}; away: {_listed(away)}"
    if kernel.world.regime.secret:
        return ""  # whoever owes an answer was drawn
    slow = [
        f"{names[site]} (task {kernel.tasks[site].number}, since {since:%H:%M:%S} UTC)"
        for site, since in kernel.awaited()
    ]
    return f"waiting for an answer of {_listed(slow)}" if slow else ""


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def conclude(folder: Path, number: int, epsilon: float, why: str) -> None:
    """Say in the status of a run that it has ended after so many rounds or updates, and why."""
    with suppress(StudyError):  # there is none where no site was ever heard from
        found = read(folder)
        booked = [known(each.epsilon) for each in found.sites]
        # what answers cost is said by the better bound: rows have a quick one
        sites = tuple(
            replace(
                each, asked=None, quiet=None, epsilon=None if own is None else min(own, epsilon)
            )
            for each, own in zip(found.sites, booked, strict=True)
        )
        seconds = round(found.seconds)
        found = replace(found, number=number, seconds=seconds, sites=sites, ended=why, waiting=None)
        replace_file(folder / NAME, msgspec.json.encode(found))


class Incident(Frozen, forbid_unknown_fields=True):
    """A line of the log.

    Attributes:
        time: UTC, ISO 8601.
        site: its name; empty where nobody has said one.
        what: a kind of incidents.
        detail: in words.
        times: how often it has happened since the process began.
    """

    time: str
    site: str
    what: str
    detail: str
    times: int


class Incidents:
    """The log of a run folder; made when there is something to say. Safe between threads.

    Args:
        log: told of what is written down, and of the rest at the level debug.
    """

    def __init__(
        self, folder: Path, log: logging.Logger | None = None, *, most: int = MOST
    ) -> None:
        self._folder, self._log, self._most = folder, log, most
        self._seen: dict[str, Counter[tuple[str, str]]] = {}
        self._lock = threading.Lock()
        self._full = False

    def connection(self, site: str, why: str) -> None:
        """A connection of somebody is refused; for the transport, which such news must not end. A
        full disk ends the run at its next write.
        """
        with suppress(SordinoError):
            self.note(site, "connection", why)

    def strangers(self) -> dict[str, int]:
        """Return how many connections were refused, by who and why."""
        with self._lock:
            return {
                f"{site or 'somebody without a name'}: {text}": times
                for site, counts in self._seen.items()
                for (what, text), times in counts.items()
                if what in ("connection", "more")
            }

    def note(self, site: str, what: str, detail: str) -> bool:
        """Write an incident down, if it is due; whether it is."""
        text = printable(detail, LONGEST)
        with self._lock:
            if site not in self._seen and len(self._seen) >= NAMES:
                site = ""
            counts = self._seen.setdefault(site, Counter())
            key = (what, text)
            if key not in counts and len(counts) >= DIFFERENT:
                key = ("more", "more kinds of incidents")
            counts[key] += 1
            times = counts[key]
            due = times & (times - 1) == 0
            if due and not self._full:
                self._write(site, *key, times)
        if self._log is not None:
            level = logging.WARNING if due else logging.DEBUG
            refused = site or (what == "connection" and "a connection")
            words = f"refused {refused}: {detail}" if refused else f"{what}: {detail}"
            self._log.log(level, words, extra={"site": site})
        return due

    def _write(self, site: str, what: str, detail: str, times: int) -> None:
        with said_clearly(self._folder / INCIDENTS), append_below(self._folder, INCIDENTS) as file:
            os.fchmod(file.fileno(), 0o600)
            now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
            line = msgspec.json.encode(Incident(now, site, what, detail, times)) + b"\n"
            if file.seek(0, os.SEEK_END) + len(line) > self._most:
                self._full = True
                line = msgspec.json.encode(Incident(now, "", "end", FULL, 1)) + b"\n"
            file.write(line)
