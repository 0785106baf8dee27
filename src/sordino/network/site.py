"""A site: one client's work with its own data, ledger and veto.

A site computes nothing that it has not booked, and books nothing that its study does not say. It
takes a task, notes which one, books it, computes, keeps the answer on its disk, and sends it. Asked
the same again, it says the same bytes again.

What it refuses, :class:`~sordino.network.site_session.SiteSession` says.
"""

from __future__ import annotations

import ctypes
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from sordino.base.errors import StudyError
from sordino.core.prepared import PreparedRun, PrepareRun
from sordino.core.run.environment import sources
from sordino.core.study.base import Study
from sordino.core.world import EncodedSnapshot, RunListener, SiteSide, Summing
from sordino.data.dataset import Dataset
from sordino.network import certificates, frames
from sordino.network.answers import AnswerStore
from sordino.network.kit import Agreed
from sordino.network.secure_client import SecureSumClient
from sordino.network.site_session import SiteMoment, SiteSession, unpacked
from sordino.network.transport import Connects, Lost, Stranger
from sordino.privacy import Budget, LedgerSession

FIRST_SAID = (1, 10, 100)
"""Answers of a connection after which memory is handed back."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts to connect: doubled each time, with a random part."""
REMEDY = (
    "The study is agreed, and this site may not spend more: allow more with --epsilon-limit, if "
    "that is what bounds it, or do not join"
)
"""Remedy of a site that cannot pay for a single task."""


def give_back() -> None:
    """Hand back what the C library keeps for later, where it is one that can be asked to (glibc).

    What starts a site (reading its kit and study, building its objects) needs tens of megabytes
    for a moment; without this they stay with the process for as long as it waits for rounds.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another C library, as musl
        return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """One client of a federation: what :class:`~sordino.core.world.Simulation` asks for.

    Attributes:
        agreed: what everybody has agreed to.
        index: which client, from 0.
        inner: the simulation of the same study, with this site's data and stand-ins for the others.
        ledgers: where charges go; ``unit`` is this site's unit there.
        budget: what this site spends at most, and ``affordable_steps`` what that pays for.
        folder: of the run.
        every: tasks between two rows of the log.
        connects: opens a connection for frames of at most so many bytes.
        told: told of what happens, in words.
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
    connects: Connects
    told: Callable[[str], None]
    secure: SecureSumClient | None = None

    @property
    def units(self) -> Sequence[str]:
        return (self.unit,)

    def unpack(self, packed: EncodedSnapshot) -> SiteMoment:
        return unpacked(packed)

    def run(self, moment: SiteMoment, watcher: RunListener[Any]) -> SiteMoment:
        """Connect, do what is asked, and connect again, until the run is over."""
        answers, session = self._answer_store(), None
        try:
            session = SiteSession(self, moment, watcher, answers)
            pause = FIRST_PAUSE
            while session.moment.ended is None:
                try:
                    self._talk(session)
                    pause = FIRST_PAUSE
                except Lost as lost:
                    if session.moment.ended is not None:
                        break
                    pause = FIRST_PAUSE if session.heard else min(2 * pause, LONGEST_PAUSE)
                    self.told(f"no connection to the server ({lost}); trying again")
                    time.sleep(pause * (0.5 + random.random()))  # no secret
                except Stranger as refusal:
                    raise StudyError(str(refusal)) from refusal
            return session.moment
        finally:
            answers.close()
            if session is not None:
                session.close()

    def _answer_store(self) -> AnswerStore:
        """One that outlives a power failure where what was said must not be forgotten: the noise
        of events is numbered, and a site takes part in a round's sum once.
        """
        return AnswerStore(self.folder, durable=self.inner.remembers or self.secure is not None)

    def _talk(self, session: SiteSession) -> None:
        session.heard = session.welcomed = False
        line = self.connects(frames.limit(max(session.dimension, self.inner.widest)))
        try:
            kept = session.answers.kept
            hello = frames.Hello(
                frames.VERSION,
                self.agreed.digest,
                sources(),
                kept.number,
                kept.booked,
                kept.asked,
                kept.due,
            )
            line.send(frames.encode(hello))
            give_back()  # while the server reads this
            said = 0
            for frame in line.frames():
                session.heard = True
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
    *,
    agreed: Agreed,
    index: int,
    own: Dataset,
    connects: Connects,
    told: Callable[[str], None],
) -> PrepareRun:
    """Return what makes the objects of a calibrated study at a site with its ``own`` examples."""

    def build(
        study: Study, folder: Path, run: str, affordable_steps: Sequence[int] | None = None, /
    ) -> PreparedRun:
        if not (folder / "run.json").exists():  # seeds of masks and single updates will be here
            folder.chmod(0o700)
        found = agreed.network.site(
            agreed.agreement, agreed.study, index, own, study, folder, run, affordable_steps
        )
        built, world = found.built, found.world
        model = built.first.model
        site = Site(
            agreed=agreed,
            index=index,
            inner=world,
            ledgers=world.ledgers,
            unit=found.unit,
            budget=found.budget,
            affordable_steps=found.affordable_steps,
            folder=folder,
            every=study.stride,
            connects=connects,
            told=told,
            secure=_partner(agreed, index, world.summing, model.size),
        )
        return replace(
            built,
            simulation=site,
            first=SiteMoment(0, 0, world.model_of(index, model)),
            own=agreed.network.own(study, index),
            remedy=REMEDY,
            agreed=True,
        )

    return build


def _partner(
    agreed: Agreed, index: int, summing: Summing | None, dimension: int
) -> SecureSumClient | None:
    if summing is None:
        return None
    return SecureSumClient(
        agreed=agreed,
        index=index,
        summing=summing,
        dimension=dimension,
        pair=certificates.read_pair(agreed.folder, "site"),
    )
