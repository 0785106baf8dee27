"""The state of a federation and what was refused, written down beside a run.

``status.json`` is written at most once a second; :mod:`sordino.live.federation` shows it.

``incidents.jsonl`` is a log that no flood can fill the disk with. Each line is one JSON object:
when (UTC), which site (empty for somebody without a name), what, the detail, and how often that has
happened in this life of the process. The first, second, fourth, eighth time and so on of the same
is written, of so many different ones of each site; and no more than :data:`MOST` bytes in all.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from sordino.base.errors import StudyError, printable
from sordino.base.files import MIB, append_below
from sordino.core.files import replace_file, said_clearly
from sordino.live.federation import NAME, SiteStatus, Status, read
from sordino.network.server_session import ServerSession

EVERY = 1.0
"""Seconds between two writings of the status."""
INCIDENTS = "incidents.jsonl"
MOST = 16 * MIB
DIFFERENT, NAMES = 128, 1_000
"""Different incidents of one site that are told apart, and sites."""
LONGEST = 300
FULL = "the log is full"


class Reporter:
    """Writes the status of a run, at most once a second.

    Args:
        strangers: connections that were refused, by reason.
        words: told when the run begins to wait for sites.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        planned: int,
        minimum: int,
        strangers: Callable[[], dict[str, int]],
        words: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._name, self._planned, self._minimum = folder, name, planned, minimum
        self._strangers, self._clock, self._next = strangers, clock, 0.0
        self._words, self._waited = words, ""

    def __call__(self, session: ServerSession, kernel: Any) -> None:
        """After an input of the kernel, or a while without one."""
        now = self._clock()
        if now < self._next and kernel.state.ended is None:
            return
        self._next = now + EVERY
        world, waiting = kernel.world, _waiting(session, kernel)
        secret = world.secret
        if waiting != self._waited:
            self._waited = waiting
            if waiting:
                self._words(waiting)
        found = Status(
            format=1,
            name=self._name,
            run=session.run,
            number=kernel.state.number,
            planned=self._planned,
            seconds=kernel.time,
            minimum=self._minimum,
            sites=tuple(
                SiteStatus(
                    name=name,
                    there=own.there,
                    asked=None if own.ask is None or secret else own.ask.number,
                    quiet=now - own.seen if own.seen and not secret else None,
                    epsilon=_finite(kernel.epsilon),
                    limit=_finite(world.budget.epsilon),
                    received=0 if secret else own.received,
                    sent=0 if secret else own.sent,
                    refused=dict(own.refused),
                    flagged=own.flagged,
                    flag=own.flag,
                    out=own.out or own.turned or own.revoked,
                )
                for name, own in zip(session.names, session.sites, strict=True)
            ),
            strangers=self._strangers(),
            ended=kernel.state.ended,
            waiting=waiting or None,
        )
        replace_file(self._folder / NAME, msgspec.json.encode(found))


def _waiting(session: ServerSession, kernel: Any) -> str:
    """Return in words what the run waits for: sites that have been absent for the agreed patience,
    or answers.
    """
    away = session.missing()
    if kernel.world.secret and not (away and kernel.waiting):
        return ""  # whoever owes an answer was drawn
    if not away or not kernel.waiting:
        slow = [
            f"{session.names[site]} (task {kernel.tasks[site].number}, since {since:%H:%M:%S} UTC)"
            for site, since in (kernel.patience.slow() if hasattr(kernel, "patience") else ())
            if kernel.awaited(site)
        ]
        return f"waiting for an answer of {', '.join(slow)}" if slow else ""
    count = kernel.waiting
    return f"waiting for {count} more site{'s' if count > 1 else ''}; away: {', '.join(away)}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def conclude(folder: Path, number: int, epsilon: float, why: str) -> None:
    """Say in the status of a run that it has ended after so many rounds or updates, and why."""
    with suppress(StudyError):  # there is none where no site was ever heard from
        found = read(folder)
        sites = tuple(
            msgspec.structs.replace(each, asked=None, quiet=None, epsilon=_finite(epsilon))
            for each in found.sites
        )
        found = msgspec.structs.replace(
            found,
            number=number,
            seconds=round(found.seconds),
            sites=sites,
            ended=why,
            waiting=None,
        )
        replace_file(folder / NAME, msgspec.json.encode(found))


class Incident(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    """The log of a run folder; made when there is something to say. Safe between threads."""

    def __init__(self, folder: Path, *, most: int = MOST) -> None:
        self._folder, self._most = folder, most
        self._seen: dict[str, Counter[tuple[str, str]]] = {}
        self._lock = threading.Lock()
        self._full = False

    def note(self, site: str, what: str, detail: str) -> bool:
        """Write an incident down, if it is due; whether it is."""
        told = printable(detail, LONGEST)
        with self._lock:
            if site not in self._seen and len(self._seen) >= NAMES:
                site = ""
            own = self._seen.setdefault(site, Counter())
            key = (what, told)
            if key not in own and len(own) >= DIFFERENT:
                key = ("more", "more kinds of incidents")
            own[key] += 1
            times = own[key]
            due = times & (times - 1) == 0
            if due and not self._full:
                self._write(site, *key, times)
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


def read_incidents(folder: Path) -> list[Incident]:
    """The lines of a log; one that a kill has torn is passed over."""
    found = []
    try:
        content = (folder / INCIDENTS).read_bytes()
    except FileNotFoundError:
        return []
    for line in content.splitlines():
        try:
            found.append(msgspec.json.decode(line, type=Incident))
        except msgspec.MsgspecError:
            continue
    return found
