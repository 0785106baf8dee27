"""What was refused, line by line: a log beside a run, which no flood can fill the disk with.

Each line of ``incidents.jsonl`` is one JSON object: when (UTC), which site (empty for somebody
without a name), what, the detail, and how often that has happened in this life of the process. The
first, second, fourth, eighth time and so on of the same is written, of so many different ones of
each site; and no more than :data:`MOST` bytes in all.
"""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections import Counter
from pathlib import Path

import msgspec

from sordino.base.errors import printable
from sordino.base.files import MIB, append_below
from sordino.core.files import said_clearly

NAME = "incidents.jsonl"
MOST = 16 * MIB
DIFFERENT, NAMES = 128, 1_000
"""Different incidents of one site that are told apart, and sites."""
LONGEST = 300
FULL = "the log is full"


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
        with said_clearly(self._folder / NAME), append_below(self._folder, NAME) as file:
            os.fchmod(file.fileno(), 0o600)
            now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
            line = msgspec.json.encode(Incident(now, site, what, detail, times)) + b"\n"
            if file.seek(0, os.SEEK_END) + len(line) > self._most:
                self._full = True
                line = msgspec.json.encode(Incident(now, "", "end", FULL, 1)) + b"\n"
            file.write(line)


def read(folder: Path) -> list[Incident]:
    """The lines of a log; one that a kill has torn is passed over."""
    found = []
    try:
        content = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return []
    for line in content.splitlines():
        try:
            found.append(msgspec.json.decode(line, type=Incident))
        except msgspec.MsgspecError:
            continue
    return found
