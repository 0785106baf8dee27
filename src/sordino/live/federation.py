"""The state of a federation: a file that its server writes into its run folder, and a page on the
loopback that shows it.

Neither holds a quantity that is not released anyway. Where it is a secret who takes part in a
round, neither says who is asked, waited for or heard from, nor how many bytes a site has sent: the
number of rounds that it was drawn in follows from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from sordino.base.errors import StudyError
from sordino.base.files import MIB, read_below, readable
from sordino.base.frozen import Frozen
from sordino.core.records import Count, Maybe, Real, known
from sordino.live.loopback import Answer, Loopback
from sordino.report.page import template

NAME = "status.json"
SILENT = 30.0
"""Seconds after which a server that writes no status counts as ended; it writes every second."""
HEAD = ("site", "state", "task", "last heard", "epsilon booked", "traffic", "refused")


class SiteStatus(Frozen, forbid_unknown_fields=True):
    """The state of a site.

    Attributes:
        there: whether it is present.
        asked: number of the task that it works on; null without one, or where that is a secret.
        quiet: seconds since it was last heard from; null if never, or where that is a secret.
        epsilon: what the server's ledger holds against this site's own answers; 0 while it has
            never come, and null where no bound is known. ``limit`` is what was agreed at most.
        received, sent: bytes of frames; 0 where they would tell a secret.
        refused: frames that were refused, by reason.
        flagged: answers that were longer than clipping and noise make plausible; they were used.
            ``flag`` is about the last one.
        out: why it takes part no more, or is not admitted; empty while it may take part.
        answers: that were used, since the server's process began; null where that is a secret.
    """

    name: str
    there: bool
    asked: Count | None
    quiet: Real | None
    epsilon: Maybe[Real]
    limit: Maybe[Real]
    received: Count
    sent: Count
    refused: dict[str, Count]
    out: str = ""
    flagged: Count = 0
    flag: str = ""
    answers: Count | None = None


class Status(Frozen, forbid_unknown_fields=True):
    """The state of a federation.

    Attributes:
        format: of this file.
        number: rounds begun, or updates done; ``planned`` as many as there may be.
        seconds: since the run began, without the time when no server ran.
        minimum: sites that must be there.
        strangers: connections that were refused, by reason.
        ended: why the run is over; null while it goes on.
        waiting: what the run waits for, where nothing goes on without it and it is no secret.
        journal: bytes of the server's journal; null where they would tell how many were drawn.
    """

    format: Count
    name: str
    run: str
    number: Count
    planned: Count
    seconds: Real
    minimum: Count
    sites: tuple[SiteStatus, ...]
    strangers: dict[str, Count]
    ended: str | None
    waiting: str | None = None
    journal: Count | None = None


def read(folder: Path) -> Status:
    """The status of a server's run folder.

    Raises:
        StudyError: if there is none.
    """
    remedy = "Give the run folder of a server that has heard from a site"
    with readable(folder / NAME, remedy=remedy, missing=f"there is no status yet. {remedy}"):
        return msgspec.json.decode(read_below(folder, NAME, most=MIB), type=Status)


def page(*states: Status) -> str:
    """The status of studies as a page that renews itself."""
    title = f"{', '.join(each.name for each in states)}: federation"
    html: str = template("federation.html", Path(__file__).parent).render(
        title=title, states=states, head=HEAD, rows=rows, script=None
    )
    return html


def silence(folder: Path, status: Status) -> str:
    """Say that the server of a run that has not ended writes no status, if it does not."""
    age = time.time() - (folder / NAME).stat().st_mtime
    if status.ended is not None or age < SILENT:
        return ""
    return f"the server does not run, or is stuck: it wrote this {age:.0f} s ago"


def rows(status: Status) -> Sequence[tuple[str, ...]]:
    """A row for each site: name, presence, task, silence, epsilon, traffic, refused frames."""
    return [
        (
            site.name,
            "out" if site.out else "present" if site.there else "away",
            "-" if site.asked is None else str(site.asked),
            "-" if site.quiet is None else f"{site.quiet:.0f} s",
            _epsilon(site),
            f"{traffic / MIB:.1f} MiB" if (traffic := site.received + site.sent) else "-",
            "; ".join(
                ([f"out: {site.out}"] if site.out else [])
                + ([f"flagged: {site.flag} ({site.flagged})"] if site.flagged else [])
                + [
                    f"{why} ({times})"
                    for why, times in site.refused.items()
                    if why != site.out or times > 1
                ]
            )
            or "-",
        )
        for site in status.sites
    ]


def _epsilon(site: SiteStatus) -> str:
    from sordino.privacy.rounding import epsilon_text

    spent, limit = known(site.epsilon), known(site.limit)
    return "no promise" if limit is None else f"{epsilon_text(spent)} of {epsilon_text(limit)}"


TEXT = "text/plain; charset=utf-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text format."""


def metrics(*states: Status) -> str:
    """The status of studies as Prometheus reads it; nothing that the page does not show.

    A figure that is a secret, or that there is not yet, is left out.
    """
    lines: list[str] = []

    def family(name: str, about: str, value: Callable[[Status], object], label: str = "") -> None:
        found = []
        for state in states:
            each = value(state)
            labelled = each.items() if isinstance(each, dict) else [("", each)]
            for which, figure in labelled:
                more = f',{label}="{_label(which)}"' if label else ""
                if isinstance(figure, int | float):
                    named = f'sordino_{name}{{study="{_label(state.name)}"{more}}}'
                    found.append(f"{named} {figure}")
        if found:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines.append(f"# HELP sordino_{name} {about}")
            lines.append(f"# TYPE sordino_{name} {kind}")
            lines.extend(found)

    def of_sites(name: str, about: str, value: Callable[[SiteStatus], object]) -> None:
        family(name, about, lambda s: {e.name: value(e) for e in s.sites}, "site")

    family("up", "1 while the run goes on.", lambda s: int(s.ended is None))
    family("round", "Rounds begun, or updates done.", lambda s: s.number)
    family("rounds_planned", "As many as there may be.", lambda s: s.planned)
    family("sites_minimum", "Sites that must be there.", lambda s: s.minimum)
    family("waiting", "1 while nothing goes on.", lambda s: int(s.waiting is not None))
    family("journal_bytes", "Of the server's journal.", lambda s: s.journal)
    about = "Connections that were refused."
    family("connections_refused_total", about, lambda s: s.strangers, "why")
    of_sites("site_present", "1 if a site is there.", lambda s: int(s.there))
    of_sites("site_out", "1 if it takes part no more.", lambda s: int(bool(s.out)))
    of_sites("site_epsilon", "Booked by the server's ledger.", lambda s: s.epsilon)
    of_sites("site_epsilon_limit", "What was agreed.", lambda s: s.limit)
    of_sites("site_quiet_seconds", "Since it was heard from.", lambda s: s.quiet)
    of_sites("site_received_bytes_total", "Of its frames.", lambda s: s.received or None)
    of_sites("site_sent_bytes_total", "Of frames to it.", lambda s: s.sent or None)
    of_sites("site_answers_total", "Answers of a site.", lambda s: s.answers)
    about = "Frames of a site that were refused."
    of_sites("site_refused_total", about, lambda s: sum(s.refused.values()))
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _ready(status: Status) -> str:
    """Return why nothing goes on; empty while it does."""
    if status.ended is not None:
        return f"ended: {status.ended}"
    present = sum(site.there for site in status.sites)
    if present < status.minimum:
        return f"{present} of {status.minimum} sites are there"
    return status.waiting or ""


class Page(Loopback):
    """The page on the loopback, in a thread of its own; and for monitors ``/healthz``, ``/readyz``
    and ``/metrics``.

    Args:
        folders: run folder of each study.
        port: 0 for any that is free.

    Raises:
        StudyError: if nothing can listen there.
    """

    def __init__(self, folders: Mapping[str, Path], port: int) -> None:
        def answer(path: str) -> Answer:
            if path not in ("/", "/healthz", "/readyz", "/metrics"):
                return Answer(b"There are /, /healthz, /readyz and /metrics", 404, TEXT)
            states, why = dict[str, Status](), dict[str, str]()
            for name, folder in folders.items():
                try:
                    states[name] = read(folder)
                except StudyError as error:
                    why[name] = str(error)
            if path == "/" and states:
                return Answer(page(*states.values()).encode())
            if path == "/metrics" and states:
                return Answer(metrics(*states.values()).encode(), kind=METRICS)
            over = all(state.ended is not None for state in states.values())
            for name, state in states.items():
                why[name] = silence(folders[name], state)
                if path == "/readyz" and (over or state.ended is None):  # others go on
                    why[name] = why[name] or _ready(state)
            text = "\n".join(f"{name}: {each}" for name, each in why.items() if each)
            return Answer((text or "ok").encode(), 503 if text else 200, TEXT)

        super().__init__(port, answer, "--page")
