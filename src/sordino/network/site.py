"""A site: one client's work with its own data, ledger and veto.

A site computes nothing that it has not booked, and books nothing that its study does not say. It
takes a task, notes which one, books it, computes, keeps the answer on its disk, and sends it. Asked
the same again, it says the same bytes again.

What it refuses, :class:`~sordino.network.desk.Desk` says.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.base.errors import StudyError
from sordino.core.run.environment import sources
from sordino.core.simulation import EncodedSnapshot, RunListener
from sordino.network import frames
from sordino.network.agreement import Agreed
from sordino.network.desk import Desk
from sordino.network.memory import give_back
from sordino.network.moment import SiteMoment, unpacked
from sordino.network.outbox import Outbox
from sordino.network.partner import Partner
from sordino.network.transport import Line, Lost, Stranger
from sordino.privacy import Budget, LedgerSession

FIRST_SAID = (1, 10, 100)
"""Answers of a connection after which memory is handed back."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts to connect: doubled each time, with a random part."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """One client of a federation: what :class:`~sordino.core.simulation.Simulation` asks for.

    Attributes:
        agreed: what everybody has agreed to.
        index: which client, from 0.
        inner: the simulation of the same study, with this site's data and stand-ins for the others.
        budget: what this site spends at most.
        folder: of the run.
        every: tasks between two rows of the log.
        connects: opens a connection for frames of at most so many bytes.
        told: told of what happens, in words.
        partner: in secure sums, where there are any.
    """

    agreed: Agreed
    index: int
    inner: Any
    budget: Budget
    folder: Path
    every: int
    connects: Callable[[int], Line]
    told: Callable[[str], None]
    partner: Partner | None = None

    @property
    def ledgers(self) -> LedgerSession:
        """See :class:`~sordino.core.simulation.Simulation`."""
        found: LedgerSession = self.inner.ledgers
        return found

    @property
    def unit(self) -> str:
        """This site's unit in its ledger."""
        return str(self.inner.units[self.index])

    @property
    def units(self) -> Sequence[str]:
        """See :class:`~sordino.core.simulation.Simulation`."""
        return (self.unit,)

    @property
    def payable(self) -> list[int] | None:
        """See :class:`~sordino.core.simulation.Simulation`."""
        found: list[int] | None = self.inner.payable
        return found

    def unpack(self, packed: EncodedSnapshot) -> SiteMoment:
        """See :class:`~sordino.core.simulation.Simulation`."""
        return unpacked(packed)

    def run(self, moment: SiteMoment, watcher: RunListener[Any]) -> SiteMoment:
        """Connect, do what is asked, and connect again, until the run is over."""
        outbox, desk = self._outbox(), None
        try:
            desk = Desk(self, moment, watcher, outbox)
            pause = FIRST_PAUSE
            while desk.moment.ended is None:
                try:
                    self._talk(desk)
                    pause = FIRST_PAUSE
                except Lost as lost:
                    if desk.moment.ended is not None:
                        break
                    pause = FIRST_PAUSE if desk.heard else min(2 * pause, LONGEST_PAUSE)
                    self.told(f"no connection to the server ({lost}); trying again")
                    time.sleep(pause * (0.5 + random.random()))  # no secret
                except Stranger as refusal:
                    raise StudyError(str(refusal)) from refusal
            return desk.moment
        finally:
            outbox.close()
            if desk is not None:
                desk.close()

    def _outbox(self) -> Outbox:
        """One that outlives a power failure where what was said must not be forgotten: the noise
        of events is numbered, and a site takes part in a round's sum once.
        """
        return Outbox(self.folder, durable=self.inner.remembers or self.partner is not None)

    def _talk(self, desk: Desk) -> None:
        desk.heard = desk.welcomed = False
        line = self.connects(frames.limit(max(desk.dimension, self.inner.widest)))
        try:
            kept = desk.outbox.kept
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
                desk.heard = True
                for answer in desk.said(frame):
                    line.send(frames.encode(answer))
                    if isinstance(answer, frames.Say):
                        said += 1
                        if said in FIRST_SAID:
                            give_back()  # what the first tasks needed to begin
                if desk.moment.ended is not None:
                    return
        finally:
            line.close()
