"""The kernel, bound to a network.

:class:`LiveKernel` takes what really happens: answers in the order in which they come, sites that
are gone and back, alarms of a real clock. Each input is written down before it is acted on, so that
a server that was killed steps through the same inputs again.

:class:`ScriptedKernel` keeps the simulator's virtual clock: it asks real sites, and takes their
answers in the order that the study's latencies give. So a run over a network can be compared with
a simulation byte by byte.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile

from sordino.engine import records
from sordino.engine.effect import (
    Arrived,
    Book,
    Booked,
    Joined,
    Left,
    Request,
    Said,
    Stretch,
    Woke,
)
from sordino.engine.kernel import Kernel, M
from sordino.engine.moment import S
from sordino.engine.watch import Watcher
from sordino.engine.world import World
from sordino.errors import RemoteProtocolError
from sordino.message import Reply, Task, decode
from sordino.network.courier import Courier
from sordino.network.journal import Input, Journal
from sordino.privacy import Permit


def _task(task: Request) -> Task:
    if isinstance(task, Stretch):
        raise TypeError("a stretch of events is played in one process, and is not sent")
    return task


def _said(body: bytes, dimension: int) -> Reply:
    found = decode(body, dimension=dimension)
    if not isinstance(found, Reply):
        raise RemoteProtocolError(f"a site does not send {type(found).__name__}")
    return found


def _there_after(inputs: Sequence[Input]) -> set[int]:
    """Who is there after these inputs."""
    found: set[int] = set()
    for each in inputs:
        if each.kind in ("up", "there"):
            found.add(each.site)
        elif each.kind in ("down", "refused"):
            found.discard(each.site)
    return found


class LiveKernel(Kernel[S, M]):
    """A run between real sites.

    Args:
        courier: the way to them.
        journal: what reached the server since the moment was saved.
        dimension: d.
        minimum: sites that must be there for a round to begin.
        kept: number of the moment that was kept last.
        told: of progress: called after each input with the kernel.
    """

    def __init__(
        self,
        world: World[S],
        moment: M,
        watcher: Watcher[M],
        *,
        courier: Courier,
        journal: Journal,
        dimension: int,
        minimum: int,
        kept: Callable[[], int],
        told: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(world, moment, watcher)
        self.courier, self.journal, self.told, self._kept = courier, journal, told, kept
        self._dimension, self._minimum, self._clock = dimension, minimum, clock
        self._again = deque(journal.after(moment.count))
        self._there = _there_after(journal.before(moment.count))
        self._replaying = True
        self._unbooked: set[int] = set()
        self._leaving: list[int] = []
        self._booking = 0
        self._permits: tuple[Permit, ...] = ()
        self._start = clock() - moment.time
        self._order = moment.count
        self._saved = 0  # the input after which a moment was kept

    def run(self) -> M:
        """See :class:`~sordino.engine.kernel.Kernel`."""
        try:
            return self._run()
        finally:
            self.journal.close()

    def _run(self) -> M:
        self.tasks.update(self.world.asked(self.state))
        self.book(self.world.reissued(self.state, self._first.blocks))
        for site, task in self.tasks.items():
            self.courier.ask(site, _task(task))
        self._start = min(
            self._start, self._clock() - max((e.time for e in self._again), default=0.0)
        )
        if self.count:
            self._return()
        while self.state.ended is None:
            if self._closed and len(self._there) >= self._minimum:
                self.begin()
            else:
                self.next()
        self.journal.destroy()
        return self.moment()

    def _return(self) -> None:
        """Stand where the journal begins anew: with those that were there, and without the others,
        who may have left after the moment was packed.
        """
        first = list(takewhile(lambda each: each.kind == "there", self._again))
        for site in range(len(self.courier.names)):
            if site not in self._there and all(each.site != site for each in first):
                self._left(site)
        if not self._again:  # killed after a checkpoint, before the journal was cut
            self._cut()
        for _ in first:
            self.next()

    def begin(self) -> None:
        """As the simulator's, without those that are not there: a moment that was kept may count
        them in.
        """
        for site in range(len(self.courier.names)):
            if site not in self._there:
                self._left(site)
        super().begin()

    def next(self) -> None:
        """The next input: what the journal holds, then what really comes."""
        each = self._again.popleft() if self._again else self._heard()
        if each is None:
            return
        self.count, self.time = each.seq, each.time
        self._take(each)
        if self._saved == self.count and not self._again:
            self._cut()
        self.told()

    def _cut(self) -> None:
        """Let the journal begin anew, with who is there: a checkpoint does not say that."""
        first = [
            Input(self.count + i, self.time, "there", site)
            for i, site in enumerate(sorted(self._there), start=1)
        ]
        self.journal.cut(first)
        for each in first:
            self.count = each.seq
            self._take(each)

    def _heard(self) -> Input | None:
        if self._replaying:
            self._replaying = False
            self.courier.expect(self._there)
        alarm = self.heap[0][0] + self._start if self.heap else None
        heard = self.courier.next(alarm)
        now = self._clock() - self._start
        if heard is None:
            tag = self.heap[0][4]
            found = Input(self.count + 1, now, "woke", 0, tag.encode())
        else:
            kind, site, body, number = heard
            found = Input(self.count + 1, now, kind, site, body, number)  # type: ignore[arg-type]
        self.journal.append(found)
        return found

    def _take(self, each: Input) -> None:
        site = each.site
        match each.kind:
            case "woke":
                heapq.heappop(self.heap)
                self.tell(Woke(each.body.decode()))
            case "up" | "there":
                self._there.add(site)
                self.tell(Joined(site))
            case "down":
                self._gone(site)
            case "booked":
                self.courier.booked(site, each.number)
                if each.number == self._booking:
                    self._booked(site)
            case "refused":
                self._refused(each)
            case "message":
                self._arrived(each)

    def _arrived(self, each: Input) -> None:
        """An answer. A site has only one to a task: if it is not what was asked for, the run goes
        on without the site.
        """
        self.courier.settled(each.site, each.number)
        self.tell(Arrived(_said(each.body, self._dimension)))
        if self.state.ended is not None:
            return
        if self.world.expects(self.state, each.site, each.number):
            self.courier.barred(each.site)
            self._gone(each.site)
        else:
            self.tell(Joined(each.site))  # who was late is counted in again

    def _refused(self, each: Input) -> None:
        """A site takes this task not, and takes part no more until it connects again."""
        why = each.body.decode(errors="replace")
        self.write(
            records.Declined(
                round=self.state.number, time=self.time, client=each.site, why=why[:500]
            )
        )
        self.courier.settled(each.site, each.number)
        self.courier.booked(each.site, each.number)
        self.courier.barred(each.site)
        self._gone(each.site)

    def _gone(self, site: int) -> None:
        """A site takes part no more; nobody waits for its booking. While a round is being booked,
        the regime hears of it afterwards: a round closes only when it is paid for.
        """
        self._there.discard(site)
        if not self._unbooked:
            self._left(site)
            return
        self._leaving.append(site)
        self._booked(site)

    def _left(self, site: int) -> None:
        """Tell the regime; what the site was asked, it is not asked again when it comes back, where
        the answer would not count.
        """
        self.tell(Left(site))
        asked = self.courier.sites[site].ask
        if asked is not None and not self.world.expects(self.state, site, asked.number):
            self.courier.settled(site, asked.number)

    def booked(self, effect: Book, permits: tuple[Permit, ...]) -> None:
        """Go on when everybody who is there has booked the round as well. Who is not there books
        it on coming back: every site is charged for every round.
        """
        self._permits, self._unbooked = permits, set(self._there)
        self._booking = effect.number
        for site in range(len(self.courier.names)):
            self.courier.book(site, effect.number, effect.fact)
        if not self._unbooked:
            self.tell(Booked(permits))

    def _booked(self, site: int) -> None:
        if site in self._unbooked:
            self._unbooked.discard(site)
            if not self._unbooked:
                permits, self._permits = self._permits, ()
                leaving, self._leaving = self._leaving, []
                self.tell(Booked(permits))
                for each in leaving:
                    if each not in self._there:
                        self._left(each)

    def dispatch(self, site: int, task: Request) -> None:
        """Ask the site."""
        self.tasks[site] = task
        self.courier.ask(site, _task(task))

    def push(self, time: float, site: int = 0, number: int = 0, tag: str = "") -> None:
        """An alarm."""
        self._order += 1
        heapq.heappush(self.heap, (time, self._order, site, number, tag))

    def save(self, moment: M) -> None:
        """Keep a moment; the journal begins anew once this input is done with."""
        before = self._kept()
        self.watcher.save(moment)
        if self._kept() != before:
            self._saved = self.count


class ScriptedKernel(Kernel[S, M]):
    """A run between real sites by the simulator's clock; see the module.

    Args:
        courier: the way to the sites.
        dimension: d.
        sites: how many must be there before it begins.
    """

    def __init__(
        self,
        world: World[S],
        moment: M,
        watcher: Watcher[M],
        *,
        courier: Courier,
        dimension: int,
        sites: int,
    ) -> None:
        super().__init__(world, moment, watcher)
        self.courier, self._dimension, self._sites = courier, dimension, sites
        self._there: set[int] = set()
        self._answers: dict[tuple[int, int], bytes] = {}
        self._booked: set[tuple[int, int]] = set()

    def run(self) -> M:
        """See :class:`~sordino.engine.kernel.Kernel`."""
        for site, task in self.world.asked(self.state).items():
            self.courier.ask(site, _task(task))
        while len(self._there) < self._sites:
            self._listen()
        return super().run()

    def dispatch(self, site: int, task: Request) -> None:
        """Ask the site now, and take its answer when it is due."""
        self.courier.ask(site, _task(task))
        super().dispatch(site, task)

    def booked(self, effect: Book, permits: tuple[Permit, ...]) -> None:
        """Go on when everybody has booked the round as well."""
        for site in range(self._sites):
            self.courier.book(site, effect.number, effect.fact)
        while not all((site, effect.number) in self._booked for site in range(self._sites)):
            self._listen()
        self._booked.clear()
        super().booked(effect, permits)

    def answer(self, site: int, number: int) -> Said | None:
        """Wait for the site's answer."""
        while (site, number) not in self._answers:
            self._listen()
        return _said(self._answers.pop((site, number)), self._dimension)

    def _listen(self) -> None:
        heard = self.courier.next(None)
        if heard is None:
            return
        kind, site, body, number = heard
        match kind:
            case "up":
                self._there.add(site)
            case "booked":
                self._booked.add((site, number))
                self.courier.booked(site, number)
            case "message":
                self._answers[site, number] = body
                self.courier.settled(site, number)
            case "refused":
                raise RemoteProtocolError(
                    f"site {self.courier.names[site]} refuses a task: "
                    f"{body.decode(errors='replace')}"
                )
