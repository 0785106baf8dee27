"""The state of a federation: a file that its server writes into its run folder, and a page on the
loopback that shows it.

Neither holds a quantity that is not released anyway. Where it is a secret who takes part in a
round, neither says who is asked, waited for or heard from, nor how many bytes a site has sent: the
number of rounds that it was drawn in follows from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from sordino.base.errors import StudyError
from sordino.base.files import MIB, read_below
from sordino.core.records import Count, Maybe, Real
from sordino.live.loopback import Answer, Loopback
from sordino.report.page import template

NAME = "status.json"
SILENT = 30.0
"""Seconds after which a server that writes no status counts as ended; it writes every second."""
HEAD = ("site", "state", "task", "last heard", "epsilon booked", "traffic", "refused")


class SiteStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


class Status(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a federation.

    Attributes:
        format: of this file.
        number: rounds begun, or updates done; ``planned`` as many as there may be.
        seconds: since the run began, without the time when no server ran.
        minimum: sites that must be there.
        strangers: connections that were refused, by reason.
        ended: why the run is over; null while it goes on.
        waiting: what the run waits for, where nothing goes on without it and it is no secret.
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


def read(folder: Path) -> Status:
    """The status of a server's run folder.

    Raises:
        StudyError: if there is none.
    """
    try:
        return msgspec.json.decode(read_below(folder, NAME, most=MIB), type=Status)
    except (FileNotFoundError, NotADirectoryError):
        raise StudyError(
            f"{folder / NAME}: there is no status yet. Give the run folder of a server that has "
            "heard from a site"
        ) from None
    except msgspec.MsgspecError as error:
        raise StudyError(f"{folder / NAME}: cannot be read ({error})") from error


def page(status: Status) -> str:
    """The status as a page that renews itself."""
    title = f"{status.name}: federation"
    html: str = template("federation.html", Path(__file__).parent).render(
        title=title, status=status, head=HEAD, rows=rows(status), script=None
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

    spent = site.epsilon if isinstance(site.epsilon, float | int) else None
    limit = site.limit if isinstance(site.limit, float | int) else None
    return "no promise" if limit is None else f"{epsilon_text(spent)} of {epsilon_text(limit)}"


TEXT = "text/plain; charset=utf-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text format."""


def metrics(status: Status) -> str:
    """The status as Prometheus reads it; nothing that the page does not show.

    A figure that is a secret, or that there is not yet, is left out.
    """
    lines: list[str] = []

    def family(name: str, kind: str, about: str, values: Iterable[tuple[str, object]]) -> None:
        found = [(label, value) for label, value in values if isinstance(value, int | float)]
        if found:
            lines.append(f"# HELP sordino_{name} {about}")
            lines.append(f"# TYPE sordino_{name} {kind}")
            lines.extend(f"sordino_{name}{label} {value}" for label, value in found)

    def of_sites(value: Callable[[SiteStatus], object]) -> Iterable[tuple[str, object]]:
        return [(f'{{site="{_label(site.name)}"}}', value(site)) for site in status.sites]

    family("up", "gauge", "1 while the run goes on.", [("", int(status.ended is None))])
    family("round", "gauge", "Rounds begun, or updates done.", [("", status.number)])
    family("rounds_planned", "gauge", "As many as there may be.", [("", status.planned)])
    family("sites_minimum", "gauge", "Sites that must be there.", [("", status.minimum)])
    family("waiting", "gauge", "1 while nothing goes on.", [("", int(status.waiting is not None))])
    strangers = [(f'{{why="{_label(why)}"}}', each) for why, each in status.strangers.items()]
    family("connections_refused_total", "counter", "Connections that were refused.", strangers)
    family("site_present", "gauge", "1 if a site is there.", of_sites(lambda s: int(s.there)))
    family("site_out", "gauge", "1 if it takes part no more.", of_sites(lambda s: int(bool(s.out))))
    family("site_epsilon", "gauge", "Booked by the server's ledger.", of_sites(lambda s: s.epsilon))
    family("site_epsilon_limit", "gauge", "What was agreed.", of_sites(lambda s: s.limit))
    family("site_quiet_seconds", "gauge", "Since it was heard from.", of_sites(lambda s: s.quiet))
    family(
        "site_refused_total",
        "counter",
        "Frames of a site that were refused.",
        of_sites(lambda s: sum(s.refused.values())),
    )
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

    Raises:
        StudyError: if nothing can listen there.
    """

    def __init__(self, folder: Path, port: int) -> None:
        def answer(path: str) -> Answer:
            if path not in ("/", "/healthz", "/readyz", "/metrics"):
                return Answer(b"There are /, /healthz, /readyz and /metrics", 404, TEXT)
            status = read(folder)
            if path == "/":
                return Answer(page(status).encode())
            if path == "/metrics":
                return Answer(metrics(status).encode(), kind=METRICS)
            why = silence(folder, status) or ("" if path == "/healthz" else _ready(status))
            return Answer((why or "ok").encode(), 503 if why else 200, TEXT)

        super().__init__(port, answer, "--page")
