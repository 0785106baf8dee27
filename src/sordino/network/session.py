"""Serving and joining: from a kit to a finished run folder, and on after a kill."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sordino.base.errors import BudgetExceeded, StudyError
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.files import locked
from sordino.core.network import Agreement
from sordino.core.promise import adjacency, assumptions
from sordino.core.records import Row
from sordino.core.run import session
from sordino.core.run.session import Going, Outcome
from sordino.core.study.base import Study
from sordino.data.dataset import Dataset
from sordino.live.federation import Page
from sordino.network import certificates, kit, transport
from sordino.network.journal import NAME as JOURNAL
from sordino.network.kit import Agreed
from sordino.network.proof import write as write_proof
from sordino.network.server import FAREWELL, ServerOptions, farewell, prepare_server
from sordino.network.site import prepare_site
from sordino.network.status import Incidents, Reporter, conclude
from sordino.network.transport import Connects, Hub, Mailbox, OpensHub
from sordino.privacy.rounding import epsilon_text

RUN = "run"
MOST_STRANGERS = 256
"""Refused connections that the status tells apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Listeners: of rows of the log, of the beginning, and of words."""

    row: Callable[[Row], None]
    begin: Callable[[Going], None]
    words: Callable[[str], None]


class Revoked:
    """The server's list of revoked certificates, read again when its file has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, str(folder / kit.REVOKED)
        self._trusted = certificates.read_certificate(folder, "authority.pem")
        self._stamp: tuple[int, int] = (0, 0)
        self._serials: frozenset[int] = frozenset()
        self(0)

    def __call__(self, serial: int) -> bool:
        """Return whether the certificate with this number is revoked; all are, while the list
        cannot be read.
        """
        with suppress(OSError):
            found = os.stat(self._path)  # for every frame: a Path would take longer than the call
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._stamp:
                self._serials = certificates.read_revoked(self._folder, kit.REVOKED, self._trusted)
                self._stamp = stamp
            return serial in self._serials
        return True


class RejectedPeers:
    """Connections that are refused: counted, written down, and told as often as that.

    Attributes:
        counts: by who and why.
        incidents: the log.
    """

    def __init__(self, incidents: Incidents, words: Callable[[str], None]) -> None:
        self.incidents, self.words, self.counts = incidents, words, Counter[str]()

    def __call__(self, who: str, why: str) -> None:
        """A connection of somebody is refused; for the transport."""
        key = f"{who or 'somebody without a name'}: {why}"
        known = key in self.counts or len(self.counts) < MOST_STRANGERS
        self.counts[key if known else "others"] += 1
        if self.incidents.note(who, "connection", why):
            self.words(f"refused {who or 'a connection'}: {why}")

    def refused(self, who: str, why: str) -> None:
        """Something that a site has said is refused; the log knows it already."""
        self.words(f"refused {who}: {why}")


class _Opening:
    """Opens the transport, and remembers that it has."""

    def __init__(self, agreement: Agreement, way: OpensHub, strangers: RejectedPeers) -> None:
        self._agreement, self._way, self._strangers = agreement, way, strangers
        self.opened = False

    def __call__(self, limit: int, mailbox: Mailbox) -> Hub:
        self.opened = True
        agreement, words = self._agreement, self._strangers.words
        hub = self._way(limit, mailbox, self._strangers, words)
        words(f"{agreement.name}: waiting for {len(agreement.names)} sites on {agreement.server}")
        return hub


def serve(
    folder: Path,
    shown: Shown,
    *,
    out: Path | None = None,
    host: str = "",
    test: Path | None = None,
    page: int | None = None,
    durable: bool = False,
    scripted: bool = False,
    within: float | None = None,
    way: OpensHub | None = None,
) -> Outcome:
    """Serve a kit's study to its sites, until it is over.

    Args:
        folder: the server's kit.
        out: the run folder; goes on with it if it is there.
        host: address to listen on; every one of this machine if left out.
        test: rows that models are measured on, which are public.
        page: port of a page on the loopback.
        durable: whether each input waits for the disk.
        scripted: whether the simulator's clock decides who is heard first; for rehearsals.
        within: seconds in which a site that is connected answers; as agreed, if left out.
        way: opens the transport, where the federation's does not follow from the kit alone.

    Raises:
        StudyError: if the kit does not fit.
    """
    if within is not None and not within > 0:
        raise StudyError(f"--answer-within: it must be positive; got {within}")
    agreed = Agreed(folder)
    certificates.refuse_expired(folder, "server.pem", dt.datetime.now(dt.UTC))
    travels = transport.of(agreed.agreement.transport)
    by = way or travels.server(agreed.agreement, folder, host, Revoked)
    run = out or folder / RUN
    strangers = RejectedPeers(Incidents(run), shown.words)
    opens = _Opening(agreed.agreement, by, strangers)
    reporter = Reporter(
        run,
        agreed.agreement.name,
        agreed.study.horizon,
        agreed.minimum,
        lambda: dict(strangers.counts),
        shown.words,
    )
    options = ServerOptions(
        agreed=agreed,
        opens=opens,
        refused=strangers.refused,
        told=reporter,
        idle=reporter,
        noted=strangers.incidents.note,
        test=agreed.network.test(agreed.agreement, agreed.study, test),
        scripted=scripted,
        durable=durable,
        within=within,
    )
    shows = None if page is None else Page(run, page)
    if shows is not None:
        shown.words(f"status: {shows.address}")
    try:
        done = _served(run, options, opens, shown, travels.again)
        with locked(run):
            conclude(run, done.rounds, done.spent, done.why)
        return done
    finally:
        if shows is not None:
            shows.close()


def _served(
    run: Path, options: ServerOptions, opens: _Opening, shown: Shown, again: str
) -> Outcome:
    """Begin a run, or go on with it; sites of one that had ended are told so."""
    build = prepare_server(options)
    if not (run / "run.json").exists():
        study = options.agreed.study
        return session.begin(study, run, shown.row, shown.begin, build=build, again=again)
    try:
        done = session.resume(run, shown.row, shown.begin, build=build, again=again)
    except BudgetExceeded:
        if not options.agreed.agreement.rehearsal:  # killed before it was removed
            (run / JOURNAL).unlink(missing_ok=True)
        raise
    if not opens.opened:
        with locked(run):
            heard = farewell(options.agreed, run, opens, options.refused, FAREWELL)
        shown.words(f"the run had ended; {heard} sites were told so")
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """The options of a site.

    Attributes:
        kit: its folder.
        data: its own file.
        ledger: folder of its data's ledger; None for a ledger of this run.
        limit: epsilon that it spends at most.
        out: the run folder; goes on with it if it is there.
        rehearsal: whether noise may come from the study's seed, which everybody knows.
    """

    kit: Path
    data: Path
    ledger: Path | None = None
    limit: float | None = None
    out: Path | None = None
    rehearsal: bool = False

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out or self.kit / RUN


def site_of(agreed: Agreed) -> int:
    """Return which client the site of a kit is, by its certificate.

    Raises:
        StudyError: if it is nobody of the federation.
    """
    name = certificates.common_name(certificates.read_certificate(agreed.folder, "site.pem"))
    if name not in agreed.agreement.names:
        raise StudyError(f"{agreed.folder / 'site.pem'}: {name!r} is no site of this federation")
    return agreed.agreement.names.index(name)


def opened(options: JoinOptions) -> tuple[Agreed, int, Study, Dataset]:
    """The agreement of a kit, which site it is, the study as this site runs it, and its data.

    Raises:
        StudyError: if they do not fit.
    """
    agreed = Agreed(options.kit)
    part, index = agreed.network, site_of(agreed)
    study = part.limited(agreed.study, index, options.ledger, options.limit)
    return agreed, index, study, part.read(options.data, agreed.agreement, index, study)


def unchecked(agreed: Agreed, own: Dataset) -> str | None:
    """Return a warning where a file names its columns, and nobody has agreed on names; or None."""
    if not own.columns or agreed.agreement.data.columns:
        return None
    return (
        "The agreement names no columns (data.columns): whether every site has the same columns in "
        "the same order, no program checks"
    )


def join(options: JoinOptions, shown: Shown, *, connects: Connects | None = None) -> Outcome:
    """Take part with one's own data, until the run is over; its proof is written then.

    Args:
        connects: opens a connection for frames of at most so many bytes, where the federation's
            transport does not follow from the kit alone.

    Raises:
        StudyError: if kit, data or limit do not fit, or the server does not want this site.
    """
    agreed, index, study, own = opened(options)
    _refuse_known_noise(study, options)
    if (warning := unchecked(agreed, own)) is not None:
        shown.words(warning)
    certificates.refuse_expired(options.kit, "site.pem", dt.datetime.now(dt.UTC))
    travels = transport.of(agreed.agreement.transport)
    way, again = connects or travels.site(agreed.agreement, index, options.kit), travels.again
    build = prepare_site(agreed=agreed, index=index, own=own, connects=way, told=shown.words)
    if (options.folder / "run.json").exists():
        _refuse_another_promise(study, options.folder)
        done = session.resume(options.folder, shown.row, shown.begin, build=build, again=again)
    else:
        done = session.begin(
            study, options.folder, shown.row, shown.begin, build=build, again=again
        )
    with locked(options.folder):
        write_proof(options.kit, options.folder, agreed, index, done)
    return done


def _refuse_known_noise(study: Study, options: JoinOptions) -> None:
    """A site's noise comes from the operating system, whatever a kit says.

    Raises:
        StudyError: if the kit's study draws it from a seed, and this is no rehearsal.
    """
    privacy = study.privacy
    if privacy.unit != "none" and privacy.entropy != "system" and not options.rehearsal:
        raise StudyError(
            f"{options.kit}: the noise of this study comes from its seed, which everybody knows: "
            "it protects nobody. Ask for a kit of a real federation; or, if all of your rows are "
            "public, join the rehearsal with --rehearsal"
        )


def _refuse_another_promise(study: Study, folder: Path) -> None:
    """Refuse to go on with another limit or ledger than the run began with.

    Raises:
        StudyError: naming what differs.
    """
    before = studies.read(folder / "study.toml", as_written=True).privacy
    for key, name in (("epsilon", "limit"), ("epsilons", "limit"), ("ledger", "ledger")):
        if getattr(before, key, None) != getattr(study.privacy, key, None):
            raise StudyError(
                f"{folder}: this site joined with another {name} (privacy.{key} = "
                f"{getattr(before, key)}). Start it with the same options as before, or give "
                "--out another folder for another run"
            )


def promised(options: JoinOptions) -> Iterator[str]:
    """Say what would be released, to whom, at what price, and what stays; line by line."""
    agreed, index, study, own = opened(options)
    agreement, part = agreed.agreement, agreed.network
    ends = certificates.expires(certificates.read_certificate(options.kit, "site.pem"))
    yield f"You would join {agreement.name} as site {agreement.names[index]}, with {len(own)} rows."
    if transport.of(agreement.transport).brokered:
        yield (
            f"To whom: the federation's server, through the broker at {agreement.server}, which "
            "reads what passes and says who has sent it. The federation's authority certified both."
        )
    else:
        yield (
            f"To whom: the server at {agreement.server}, which the federation's authority "
            "certified."
        )
    others = [name for name in agreement.names if name != agreement.names[index]]
    yield f"Who else takes part: {', '.join(others) or 'nobody'}. {part.others}"
    yield (
        f"Study: {study.name}, method {study.method.name}, {study.horizon} rounds, updates or "
        "events at most."
    )
    yield f"What leaves this site each time it is asked: {part.released(study, index)}."
    yield (
        "What is public: that you take part, how many rows you have "
        f"({len(own)}), and when you answer."
    )
    yield f"What stays here: {options.data}, its labels, and the ledger."
    yield from _price(agreed, study, index, options)
    for line in assumptions(study):
        yield f"The guarantee rests on this: {line}"
    if (warning := unchecked(agreed, own)) is not None:
        yield f"WARNING: {warning}"
    if study.privacy.entropy != "system":
        yield (
            "WARNING: this is a rehearsal. The noise comes from the study's seed, which everybody "
            "knows: it protects nobody"
        )
    yield f"Your certificate is valid until {ends:%Y-%m-%d}."
    yield "Nothing was sent, and nothing was booked."


def _price(agreed: Agreed, study: Study, index: int, options: JoinOptions) -> Iterator[str]:
    privacy = study.privacy
    if privacy.unit == "none":
        yield "Price: epsilon is infinite. This study protects nobody"
        return
    part = agreed.network
    if (why := part.unbounded(study, index)) is not None:
        yield f"Price: epsilon is infinite for what this site has: {why}"
        return
    plan = part.plan(agreed.agreement, agreed.study, index, study)
    each = getattr(privacy, "epsilons", None)
    limit = privacy.epsilon if each is None else each[index]
    if study.form != "sound":
        yield (
            f"Price: epsilon {epsilon_text(plan.epsilon)} as far as it can be proved; the paper "
            f"claims {epsilon_text(plan.claimed)}. This literal form has no bound that a ledger "
            "could hold it to, so no limit is enforced"
        )
        return
    yield f"What is protected: {adjacency(study)}"
    regime = regimes.of(study)
    if regime.summing(study) is not None:
        yield f"Against whom: {regime.against(study)}"
    noise = plan.clients[index][1] if plan.clients else plan.noise_multiplier
    yield (
        f"Price: at most epsilon {epsilon_text(limit)} at delta {privacy.delta} "
        f"({privacy.accountant}), with a noise multiplier of {noise}; this site's "
        "own ledger refuses anything beyond it, whatever the server asks"
    )
    if options.ledger is None:
        yield (
            "The ledger is of this run alone: what other runs spend on the same rows is not added "
            "up" + (". Give --ledger FOLDER for one that is" if part.data_ledger else "")
        )
    else:
        yield f"The ledger in {options.ledger} adds this to what the same rows have spent before."
