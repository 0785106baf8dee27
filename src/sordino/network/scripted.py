"""The kernel of a scripted run over a network: it keeps the simulator's virtual clock.

It asks real sites, and takes their answers in the order that the study's latencies give. So a run
over a network can be compared with a simulation byte by byte.

All that reaches it and decides anything are the answers: their order and all times follow from the
study. So a journal of answers is enough to go on after a kill, from the last checkpoint on: what
was answered before is not asked again, and the next task has the same bytes as it had.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sordino.core.effect import Book, Request, Said, Stop
from sordino.core.kernel import Kernel, M
from sordino.core.world import RunListener, S, ServerSide
from sordino.network.journal import Input, Journal
from sordino.network.kernel import TICK
from sordino.network.server_session import Heard, ServerSession, reply_in, sendable
from sordino.privacy import Permit


class Declined(Exception):
    """A site refuses."""


class ScriptedKernel(Kernel[S, M]):
    """A run between real sites by the simulator's clock; see the module.

    Args:
        session: the way to the sites.
        journal: answers that were not used when the moment was saved, and those since.
        dimension: d.
        sites: how many must be there before it begins.
        kept: number of the moment that was kept last; ``hurry`` asks to keep the next one.
        told: of progress.
    """

    world: ServerSide[S]

    def __init__(
        self,
        world: ServerSide[S],
        moment: M,
        watcher: RunListener[M],
        *,
        session: ServerSession,
        journal: Journal,
        dimension: int,
        sites: int,
        kept: Callable[[], int],
        hurry: Callable[[], None] = lambda: None,
        told: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(world, moment, watcher)
        self._told, self._clock, self._hurry = told, clock, hurry
        self.session, self.journal, self._sites, self._kept = session, journal, sites, kept
        self._there: set[int] = set()
        before = journal.after(0)
        self._bodies = {
            (each.site, each.number): each.body for each in before if each.kind == "message"
        }
        self._noted = len(before)
        self._answers = {key: reply_in(body, dimension) for key, body in self._bodies.items()}
        self._booked: set[tuple[int, int]] = set()

    @property
    def waiting(self) -> int:
        """Sites that must come before the run can begin."""
        return self._sites - len(self._there)

    def run(self) -> M:
        """It ends when a site refuses: a simulation
        knows no refusals.
        """
        try:
            return self._run()
        except Declined as refusal:
            self.tell(Stop(str(refusal)))
            return self.moment()
        finally:
            if self.state.ended is None:
                self.journal.close()
            else:
                self.journal.destroy()

    def _run(self) -> M:
        for site, task in self.world.asked(self.state).items():
            self._ask(site, task)
        while len(self._there) < self._sites:
            self._listen()
        return super().run()

    def dispatch(self, site: int, task: Request) -> None:
        """Ask the site now, and take its answer when it is due."""
        self._ask(site, task)
        super().dispatch(site, task)

    def _ask(self, site: int, task: Request) -> None:
        if (site, task.number) not in self._answers:
            self.session.ask(site, sendable(task))

    def next(self) -> None:
        """As the simulator's; what could not be used is named."""
        super().next()
        for site, why in self.world.faults():
            self.session.note(site, "too large", why)

    def booked(self, effect: Book, permits: tuple[Permit, ...]) -> None:
        """Go on when everybody has booked the round as well."""
        for site in range(self._sites):
            self.session.book(site, effect.number, effect.fact)
        while not all((site, effect.number) in self._booked for site in range(self._sites)):
            self._listen()
        self._booked.clear()
        super().booked(effect, permits)

    def answer(self, site: int, number: int) -> Said | None:
        """Wait for the site's answer."""
        while (site, number) not in self._answers:
            self._listen()
        del self._bodies[site, number]
        return self._answers.pop((site, number))

    def save(self, moment: M) -> None:
        """Keep a moment; of answers the journal then holds those that are still to be used."""
        if self.journal.large:
            self._hurry()
        before = self._kept()
        self.watcher.save(moment)
        if self._kept() == before:
            return
        due = {(site, number) for _, _, site, number, _ in self.heap}
        self._bodies = {key: body for key, body in self._bodies.items() if key in due}
        self._answers = {key: each for key, each in self._answers.items() if key in due}
        self._noted = len(self._bodies)
        self.journal.cut(
            [
                Input(seq, 0.0, "message", site, body, number)
                for seq, ((site, number), body) in enumerate(self._bodies.items(), start=1)
            ]
        )

    def _listen(self) -> None:
        heard = self.session.next(self._clock() + TICK)
        self._told()
        if heard is not None:
            self._hear(heard)

    def _hear(self, heard: Heard) -> None:
        site, number = heard.site, heard.number
        match heard.kind:
            case "up":
                self._there.add(site)
            case "booked":
                self._booked.add((site, number))
                self.session.booked(site, number)
            case "message" if heard.said is not None:
                self._noted += 1
                self.journal.append(Input(self._noted, 0.0, "message", site, heard.body, number))
                weighed = self.world.reach(site, self.tasks.get(site), heard.said)
                self.session.weighed(site, number, weighed)
                self._bodies[site, number] = heard.body
                self._answers[site, number] = heard.said
                self.session.settled(site, number)
            case "refused":
                why = heard.body.decode(errors="replace")[:500]
                self.session.note(site, "declined", why)
                self.session.barred(site, why)
                secret = self.world.charges_everybody
                raise Declined(
                    self.session.hopeless(self._sites, self.world.indispensable, secret=secret)
                )
