"""A site: one client's work with its own data, ledger and veto.

A site computes nothing that it has not booked, and books nothing that its study does not say. It
takes a task, notes which one, books it, computes, keeps the answer on its disk, and sends it. Asked
the same again, it says the same bytes again.

What it refuses, :class:`~sordino.network.site_session.SiteSession` says.
"""

from __future__ import annotations

import datetime as dt
import logging
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sordino.base.errors import DataError, StudyError
from sordino.base.settings import give_back, tune
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.files import locked
from sordino.core.network import Standing
from sordino.core.plan import size_text
from sordino.core.prepared import Affordable, PreparedRun, PrepareRun
from sordino.core.run import session
from sordino.core.run.environment import sources
from sordino.core.statements import adjacency, assumptions
from sordino.core.world import EncodedSnapshot, RunListener, SiteSide
from sordino.data.dataset import Dataset
from sordino.data.notices import notice
from sordino.network import certificates, frames, transport
from sordino.network.kit import AGAIN, KEYS, RUN, Agreed
from sordino.network.proof import write as write_proof
from sordino.network.secure_client import SecureSumClient
from sordino.network.site_session import SiteMoment, SiteSession, unpacked
from sordino.network.status import Listeners
from sordino.network.storage import AnswerStore
from sordino.privacy import Budget, LedgerSession
from sordino.privacy.rounding import epsilon_text

FIRST_SAID = (1, 10, 100)
"""Answers of a connection after which memory is handed back."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts to connect: doubled each time, with a random part."""
REMEDY = (
    "The study is agreed, and this site may not spend more: allow more with --epsilon-limit, if "
    "that is what bounds it, or do not join"
)
"""Remedy of a site that cannot pay for a single task."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """One client of a federation: what :class:`~sordino.core.world.RunPlayer` asks for.

    Attributes:
        agreed: what everybody has agreed to.
        index: which client, from 0.
        inner: the simulation of the same study, with this site's data and stand-ins for the others.
        ledgers: where charges go; ``unit`` is this site's unit there.
        budget: what this site spends at most, and ``affordable_steps`` what that pays for.
        folder: of the run.
        every: tasks between two rows of the log.
        connects: opens a connection for frames of at most so many bytes.
        log: told of what happens.
        secure: in secure sums, where there are any.
    """

    agreed: Agreed
    index: int
    inner: SiteSide[Any]
    ledgers: LedgerSession
    unit: str
    budget: Budget
    affordable_steps: list[int] | None
    folder: Path
    every: int
    connects: transport.Connects
    log: logging.Logger
    secure: SecureSumClient | None = None

    @property
    def units(self) -> Sequence[str]:
        return (self.unit,)

    def unpack(self, packed: EncodedSnapshot) -> SiteMoment:
        return unpacked(packed)

    def run(self, moment: SiteMoment, watcher: RunListener) -> SiteMoment:
        """Connect, do what is asked, and connect again, until the run is over."""
        tune()
        # what was said must outlive a power failure where the noise of events is numbered, and
        # where a site takes part in a round's sum once
        durable = self.inner.remembers or self.secure is not None
        answers, session = AnswerStore(self.folder, durable=durable), None
        try:
            session = SiteSession(self, moment, watcher, answers)
            pause = FIRST_PAUSE
            while session.moment.ended is None:
                try:
                    self._talk(session)
                    pause = FIRST_PAUSE
                except transport.Lost as lost:
                    if session.moment.ended is not None:
                        break
                    pause = FIRST_PAUSE if session.heard else min(2 * pause, LONGEST_PAUSE)
                    self.log.warning(f"no connection to the server ({lost}); trying again")
                    time.sleep(pause * (0.5 + random.random()))  # no secret
                except transport.Stranger as refusal:
                    raise StudyError(str(refusal)) from refusal
            return session.moment
        finally:
            answers.close()
            if session is not None:
                session.close()

    def _talk(self, session: SiteSession) -> None:
        session.heard = session.welcomed = False
        try:
            certificates.refuse_expired(self.agreed.folder, "site.pem", dt.datetime.now(dt.UTC))
            line = self.connects(frames.limit(max(session.dimension, self.inner.widest)))
        except StudyError as error:  # a certificate that ended, or a kit that is being copied
            raise transport.Lost(str(error)) from error
        try:
            progress = session.answers.progress
            hello = frames.Hello(
                frames.VERSION,
                self.agreed.digest,
                sources(),
                progress.number,
                progress.booked,
                progress.asked,
                progress.due,
            )
            line.send(frames.encode(hello))
            give_back()  # while the server reads this
            said = 0
            for frame in line.frames():
                for answer in session.said(frame):
                    line.send(frames.encode(answer))
                    if isinstance(answer, frames.Say):
                        said += 1
                        if said in FIRST_SAID:
                            give_back()  # what the first tasks needed to begin
                if session.moment.ended is not None:
                    return
        finally:
            line.close()


def prepare_site(
    *, agreed: Agreed, index: int, own: Dataset, connects: transport.Connects, log: logging.Logger
) -> PrepareRun:
    """Return what makes the objects of a calibrated study at a site with its ``own`` examples."""

    def build(study: studies.Study, folder: Path, run: str, steps: Affordable) -> PreparedRun:
        if not (folder / "run.json").exists():  # seeds of masks and single updates will be here
            folder.chmod(0o700)
        built = agreed.network.site(index, own, study, folder, run, steps)
        world: Any = built.simulation
        model, secure = built.first.model, None
        if agreed.summing is not None:
            pair = certificates.read_pair(agreed.folder, "site")
            secure = SecureSumClient(agreed, index, agreed.summing, model.size, pair)
        site = Site(
            agreed=agreed,
            index=index,
            inner=world,
            ledgers=world.ledgers,
            unit=world.units[index],
            budget=world.budgets[index],
            affordable_steps=world.affordable_steps,
            folder=folder,
            every=study.stride,
            connects=connects,
            log=log,
            secure=secure,
        )
        return replace(
            built,
            simulation=site,
            first=SiteMoment(0, 0, world.model_of(index, model)),
            own=agreed.network.own(index),
            remedy=REMEDY,
            agreed=True,
        )

    return build


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
        address: host and port of the server or the broker, if they are not the agreed ones now.
    """

    kit: Path
    data: Path
    ledger: Path | None = None
    limit: float | None = None
    out: Path | None = None
    rehearsal: bool = False
    address: str | None = None

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.out or self.kit / RUN


def site_of(agreed: Agreed) -> int:
    """Return which client the site of a kit is, by its certificate.

    Raises:
        StudyError: if it is nobody of the federation, or is for another key than the other kits
            have.
    """
    certificates.refuse_other_authority(agreed.folder, "site.pem")
    certificate = certificates.read_certificate(agreed.folder, "site.pem")
    name = certificates.common_name(certificate)
    if name not in agreed.agreement.names:
        raise StudyError(f"{agreed.folder / 'site.pem'}: {name!r} is no site of this federation")
    index = agreed.agreement.names.index(name)
    if agreed.keys and certificate.public_key() != agreed.keys[index]:
        raise StudyError(
            f"{agreed.folder / 'site.pem'}: it is for another key than the one of {name} in "
            f"{KEYS}, which all kits have, so the others would refuse what this site signs. Put "
            "back its certificate and key. To renew them, give `sordino network renew` this kit "
            "with --out"
        )
    return index


def opened(options: JoinOptions) -> tuple[Agreed, int, studies.Study, Dataset]:
    """The agreement of a kit, which site it is, the study as this site runs it, and its data.

    Raises:
        StudyError: if they do not fit.
    """
    agreed = Agreed(options.kit)
    part, index = agreed.network, site_of(agreed)
    study = part.limited(index, options.ledger, options.limit)
    try:
        return agreed, index, study, part.read(options.data, index, study)
    except StudyError as error:  # its message may quote rows
        raise DataError(str(error)) from error


def unchecked(agreed: Agreed, own: Dataset) -> str | None:
    """Return a warning where a file names its columns, and nobody has agreed on names; or None."""
    if not own.columns or agreed.agreement.data.columns:
        return None
    return (
        "The agreement names no columns (data.columns): whether every site has the same columns in "
        "the same order, no program checks"
    )


def join(options: JoinOptions, listeners: Listeners) -> session.Outcome:
    """Take part with one's own data, until the run is over; its proof is written then.

    Raises:
        StudyError: if kit, data or limit do not fit, the server does not want this site, or the
            kit's study draws noise from a seed and this is no rehearsal.
    """
    agreed, index, study, own = opened(options)
    privacy, folder = study.privacy, options.folder
    if privacy.unit != "none" and privacy.entropy != "system" and not options.rehearsal:
        raise StudyError(
            f"{options.kit}: the noise of this study comes from its seed, which everybody knows: "
            "it protects nobody. Ask for a kit of a real federation; or, if all of your rows are "
            "public, join the rehearsal with --rehearsal"
        )
    if (warning := unchecked(agreed, own)) is not None:
        listeners.log.warning(warning)
    if not (folder / "run.json").exists():
        known, held = agreed.network.recognised(study, own)
        if (warning := stranger(known, held, len(own), options.ledger)) is not None:
            notice(warning)  # of its own rows, so that no log holds it
    certificates.refuse_expired(options.kit, "site.pem", dt.datetime.now(dt.UTC))
    travels = transport.of(agreed.agreement.transport)
    connects = travels.site(agreed.agreement.at(options.address), index, options.kit)
    build = prepare_site(agreed=agreed, index=index, own=own, connects=connects, log=listeners.log)
    if (folder / "run.json").exists():
        _refuse_another_promise(study, folder)
        done = session.resume(folder, listeners.row, listeners.begin, build=build, again=AGAIN)
    else:
        done = session.begin(
            study, folder, listeners.row, listeners.begin, build=build, again=AGAIN
        )
    with locked(folder):
        write_proof(options.kit, folder, agreed, index, done)
    return done


def _refuse_another_promise(study: studies.Study, folder: Path) -> None:
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
    agreement, part = agreed.agreement.at(options.address), agreed.network
    ends = certificates.read_certificate(options.kit, "site.pem").not_valid_after_utc
    yield f"You would join {agreement.name} as site {agreement.names[index]}, with {len(own)} rows."
    yield f"To whom: {transport.of(agreement.transport).trusted(agreement.server)}"
    others = [name for name in agreement.names if name != agreement.names[index]]
    yield f"Who else takes part: {', '.join(others) or 'nobody'}. {part.others}"
    yield (
        f"Study: {study.name}, method {study.method.name}, {study.horizon} rounds, updates or "
        "events at most."
    )
    yield f"What leaves this site each time it is asked: {part.released(index)}."
    held = agreement.site[index].examples
    what = "persons" if getattr(study, "clips_persons", False) else "rows"
    yield (
        f"What is public: that you take part, how many {what} you have ({held}), and when you "
        "answer."
    )
    yield f"What stays here: {options.data}, its labels, and the ledger."
    yield from _price(agreed, study, index, own, options)
    if (disk := part.disk()) is not None:
        yield f"What the run takes on this site's disk: at most about {size_text(disk.site)}."
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
    yield f"This page is about the agreement with the digest {agreed.digest}."
    yield "Nothing was sent, and nothing was charged."


def _price(
    agreed: Agreed, study: studies.Study, index: int, own: Dataset, options: JoinOptions
) -> Iterator[str]:
    privacy = study.privacy
    if privacy.unit == "none":
        yield "Price: epsilon is infinite. This study protects nobody"
        return
    part = agreed.network
    if (why := part.unbounded(index)) is not None:
        yield f"Price: epsilon is infinite for what this site has: {why}"
        return
    plan = part.plan(index, study)
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
    standing = part.standing(index, study, own)
    yield (
        f"Price: at most epsilon {epsilon_text(limit)} at delta {privacy.delta} "
        f"({privacy.accountant}), with a noise multiplier of {standing.noise}; this site's "
        "own ledger refuses anything beyond it, whatever the server asks"
    )
    if options.ledger is None:
        yield (
            "The ledger is of this run alone: what other runs spend on the same rows is not added "
            "up" + (". Give --ledger FOLDER for one that is" if part.data_ledger else "")
        )
    else:
        yield from _spent(standing, limit, len(own), options.ledger)
    yield _left(standing)
    if options.ledger is not None:
        yield (
            "Proof, run.json and log of the run will state what these rows have spent by all runs "
            "in that ledger. Whoever you give them to learns it"
        )


def _spent(standing: Standing, limit: float | None, rows: int, ledger: Path) -> Iterator[str]:
    """Say what rows have spent in a ledger of the data, and which of them it knows."""
    if not standing.held:
        yield f"Spent so far: nothing. The ledger in {ledger} knows no rows yet."
        return
    if (line := stranger(standing.known, standing.held, rows, ledger)) is not None:
        yield line
    elif standing.known < rows:
        yield (
            f"For you alone: the ledger in {ledger} knows {standing.known} of these {rows} rows. "
            "The others have spent nothing in it"
        )
    if standing.known:
        yield (
            f"Spent so far: epsilon {epsilon_text(standing.spent)} of {epsilon_text(limit)}, by "
            f"all runs on these rows in the ledger in {ledger}, or planned by those that are open. "
            "The limit includes it."
        )


def _left(standing: Standing) -> str:
    """Say what the rest of a limit pays for."""
    planned, charged, pays = standing.planned, standing.charged, standing.pays
    if standing.refused:
        return f"This site could not begin now: {standing.refused}."
    after = f" at epsilon {epsilon_text(standing.total)} in all"
    if pays is None or pays >= planned:
        return f"What is left pays for all {planned} {charged} that the study plans{after}."
    if not pays:
        return (
            f"What is left pays for none of the {planned} {charged} that the study plans: this "
            "site would not begin."
        )
    most = standing.rounds
    rounds = (
        "" if most is None else f", in at most {most} {standing.turns}{'' if most == 1 else 's'}"
    )
    return (
        f"What is left pays for {pays} of the {planned} {charged} that the study plans{rounds}"
        f"{after}. The first task that takes more is refused."
    )


def stranger(known: int, held: int, rows: int, ledger: Path | None) -> str | None:
    """Return a warning, for a site's own operator, that a ledger which holds rows knows none of
    its own: they may be people whom it knows, in another form. It tells of the rows, and is sent
    to nobody.
    """
    if known or not held:
        return None
    return (
        f"WARNING, for you alone: none of these {rows} rows is in the ledger in {ledger}, which "
        f"holds {held} others. It takes them for new rows that have spent nothing. If they are "
        "about people whom it knows, and were rounded, scaled or given another column since, their "
        "budget is not counted: use the rows as they were, or agree on data.person"
    )
