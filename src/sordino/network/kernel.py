"""The kernel, bound to a network.

It takes what really happens: answers in the order in which they come, sites that are gone and back,
alarms of a real clock. Each input is written down before it is acted on, so that a server that was
killed steps through the same inputs again.

A site that has refused is waited for no more. When those that are left are too few, the run ends.
"""

# Theory of operation
#
# A server that is killed at any instant must come to the same end: the same releases, and none of
# them twice with other answers under the same noise. It does so by being a function of its
# inputs.
#
#     session.next()  ->  _noted(input)  ->  journal  ->  _take(input)  ->  regime.step, effects
#
# Whatever reaches the server and decides anything is an Input (storage.Input): an answer, a site
# that has come, is gone, has booked or refused, an alarm of the real clock, the decision to stop.
# It is numbered and in the journal before it is acted on. What is not an input decides nothing:
# frames that are refused, connections that come back in time, progress for the status.
#
# Time. Inputs carry their time, and alarms lie in a heap. An alarm is no input while it waits;
# that it has come is one ("woke"), and then the top of the heap is taken, live and in replay
# alike.
#
# Checkpoints and the journal. A checkpoint holds the state after input number `count`, and the
# journal what came since. save() only keeps the moment; when the input is done with, the journal
# is cut (_cut): it begins anew with who is there, because a checkpoint does not say that. Killed
# between the two, before(count) tells who was there, and after(count) skips what the checkpoint
# holds. Killed in the middle of writing a record, that record has a wrong length or CRC and is
# cut off: nobody has acted on it.
#
# Starting again. run() asks for what the state says sites were asked (regime.asked), brings back
# permits of charges that stand in the ledger (world.reissued), and steps through the journal; in
# replay nothing is drawn, charged or sent that was not before: charges are found by their keys,
# and the session sends tasks again only to sites that connect. Then sites of the journal count as
# there for the agreed patience.
#
# A ledger that knows more than the journal leads to (world.forgotten) means that a power failure
# or an older copy took a part of it. Where the server adds the noise, which it numbers by rounds,
# it refuses to go on (Journal.refuse_older). Elsewhere the tasks that it lost are passed over:
# they are paid for, and never asked for again ("ahead"). Sites prove the same by their tokens.
#
# Booking. A round that is charged to everybody waits in booked() until each site that is there
# has booked it in its own ledger, or time is up; who leaves meanwhile is told of afterwards, so
# that no round is closed before it is paid for.

from __future__ import annotations

import datetime as dt
import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from sordino.base.message import Task
from sordino.core import records
from sordino.core.effect import (
    Arrived,
    Book,
    Booked,
    Joined,
    Left,
    Permits,
    Request,
    Said,
    Stop,
    Woke,
)
from sordino.core.kernel import Kernel
from sordino.core.world import KernelSnapshot, RunListener, S, ServerSide
from sordino.network.frames import FORGOTTEN
from sordino.network.server_session import Heard, ServerSession, reply_in, sendable
from sordino.network.storage import Input, Journal, Kind, there_after

if TYPE_CHECKING:
    from sordino.network.sums import Sums

SILENT = "mute"
"""The tag of an alarm that a site may have been silent for too long, as checkpoints have it."""
SLOW = 60.0
"""Seconds after which the status says that an answer is waited for."""
BOOKING = 60.0
"""Seconds that a round waits for sites that are there to book it."""
_BOOK = "book "
TICK = 1.0
"""Seconds after which progress is told of even if nothing happens."""


class AnswerTimeouts:
    """Since when sites have owed an answer, and when the server is to look after each again, in
    seconds of the run.

    Args:
        within: seconds in which a site answers.
        watched: sites that an alarm is set for; there is one for each at most.
    """

    def __init__(self, within: float, watched: Iterable[int]) -> None:
        self.within, self._watched = within, set(watched)
        self._asked: dict[int, tuple[float, dt.datetime]] = {}

    def asked(self, site: int, time: float) -> float | None:
        """A site is asked now; when to look after it, unless an alarm is set already."""
        self._asked[site] = time, dt.datetime.now(dt.UTC)
        return self._due(site, time)

    def looked(self, site: int, time: float) -> float | None:
        """Its alarm has come; when to look again, or None if it has been silent for too long."""
        self._watched.discard(site)
        since = self._asked[site][0] if site in self._asked else time
        return None if time >= since + self.within else self._due(site, since)

    def slow(self) -> list[tuple[int, dt.datetime]]:
        """Sites that were asked a while ago, answered or not, and when (UTC)."""
        now = dt.datetime.now(dt.UTC)
        return [
            (site, since)
            for site, (_, since) in sorted(self._asked.items())
            if (now - since).total_seconds() > SLOW
        ]

    def _due(self, site: int, since: float) -> float | None:
        if site in self._watched or math.isinf(self.within):
            return None
        self._watched.add(site)
        return since + self.within


class Declined(Exception):
    """A site refuses, and a scripted run ends."""


class Checkpoints(RunListener, Protocol):
    """The log of a run, as far as a kernel knows it.

    Attributes:
        saved: number of the moment that was kept last.
    """

    saved: int

    def hurry(self) -> None:
        """Let the next moment be kept, wherever the run stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOptions:
    """The options of a kernel.

    Attributes:
        session: the way to the sites.
        journal: what reached the server since the moment was saved.
        within: seconds in which a site that is there answers.
        reports: called with the kernel after each input, every second without one, and at the end.
        ends: called with the moment at which the run has ended, before it is kept.
        sums: secure sums, where the server learns nothing else.
    """

    session: ServerSession
    journal: Journal
    within: float = math.inf
    reports: Callable[[Any], None] = lambda kernel: None
    ends: Callable[[Any], None] = lambda moment: None
    sums: Sums | None = None
    clock: Callable[[], float] = time.monotonic


class NetworkKernel(Kernel[S]):
    """A run between real sites.

    Attributes:
        waiting: sites that must come before it can go on.
    """

    world: ServerSide[S]
    watcher: Checkpoints
    waiting: int

    def __init__(
        self,
        world: ServerSide[S],
        moment: KernelSnapshot[S],
        watcher: Checkpoints,
        options: KernelOptions,
    ) -> None:
        super().__init__(world, moment, watcher)
        self.session, self.journal = options.session, options.journal
        self._minimum = self.session.agreed.minimum  # of sites, for a round to begin
        self._reports, self._ends, self._clock = options.reports, options.ends, options.clock
        self._everybody, self._there = range(len(self.session.names)), set[int]()
        if options.sums is not None:
            self._sums = options.sums
        self.read_journal(moment, options)

    def read_journal(self, moment: KernelSnapshot[S], options: KernelOptions) -> None:
        """Take from the journal what came after this moment."""
        raise NotImplementedError

    def booked_for(self, site: int) -> tuple[float, float]:
        """Return the epsilon that the ledger holds against a site's own answers, and its limit."""
        unit, budget = self.world.account(site)
        return self._priced({unit: (None, budget)}), budget.epsilon

    def awaited(self) -> list[tuple[int, dt.datetime]]:
        """Sites that are there and have owed an answer for a while, and since when (UTC)."""
        return []

    def due(self) -> bool:
        """Return True: the journal may be too large."""
        return True

    def save(self, moment: KernelSnapshot[S]) -> None:
        """Keep a moment; the journal begins anew when that is on the disk."""
        if self.journal.large:
            self.watcher.hurry()
        if moment.ended is not None:
            self._ends(moment)
        before = self.watcher.saved
        self.watcher.save(moment)
        if self.watcher.saved != before:
            self.moment_saved()

    def moment_saved(self) -> None:
        """Let the journal begin anew."""
        raise NotImplementedError


class LiveKernel(NetworkKernel[S]):
    """A run that takes what really happens, as it comes."""

    def read_journal(self, moment: KernelSnapshot[S], options: KernelOptions) -> None:
        self._to_replay = deque(self.journal.after(moment.count))
        before = self.journal.before(moment.count)
        self.journal.enter(before)
        self._there = there_after(before)
        self._replaying = True
        watched = (each[2] for each in self.heap if each[4] == SILENT)
        self.patience = AnswerTimeouts(options.within, watched)
        self._unbooked: set[int] = set()
        self._leaving: list[int] = []
        self._booking = 0
        self._permits: Permits = ()
        self._start = self._clock() - moment.time
        self._order = moment.count
        self._saved = 0  # the input after which a moment was kept
        self.session.state = lambda: self.state

    @property
    def waiting(self) -> int:  # type: ignore[override]
        return max(self._minimum - len(self._there), 0) if self._closed else 0

    def awaited(self) -> list[tuple[int, dt.datetime]]:
        return [(site, since) for site, since in self.patience.slow() if self._awaited(site)]

    def _awaited(self, site: int) -> bool:
        """Return whether an answer is waited for of a site that is there."""
        task = self.tasks.get(site)
        return (
            site in self._there
            and task is not None
            and self.world.regime.expects(self.state, site, task.number)
        )

    def run(self) -> KernelSnapshot[S]:
        try:
            return self._run()
        finally:
            self.journal.close()

    def _run(self) -> KernelSnapshot[S]:
        self.tasks.update(self.world.regime.asked(self.state))
        with self.filtered():
            self.book(self.world.reissued(self.state, self._blocks))
            for site, task in tuple(self.tasks.items()):
                self.dispatch(site, task)
            self._start = min(
                self._start, self._clock() - max((e.time for e in self._to_replay), default=0.0)
            )
            if self.count:
                self._restore_presence()
            while self.state.ended is None:
                enough = len(self._there) >= self._minimum
                if self._closed and not self._waits and (enough or self._over()):
                    self.begin()
                else:
                    self.next()
        self._reports(self)  # it may have ended at the beginning of a round, without an input
        self.journal.destroy()
        return self.moment()

    def _over(self) -> bool:
        """Return whether there is no further round: nobody is needed for the end. Where tasks
        follow each other it is not a matter of rounds.
        """
        if self.world.continuous:
            return False
        passed = self.state.number >= self.session.agreed.study.horizon
        return passed or self.world.regime.exhausted(self.state)

    def _restore_presence(self) -> None:
        """Stand where the journal begins anew: with those that were there, and without the others,
        who may have left after the moment was packed.
        """
        first = list(takewhile(lambda each: each.kind in ("there", "answered"), self._to_replay))
        there = there_after(first)
        for site in self._everybody:
            if site not in self._there and site not in there:
                self._left(site)
        if not self._to_replay:  # killed after a checkpoint, before the journal was cut
            self._cut()
        for _ in first:
            self.next()

    @property
    def _waits(self) -> bool:
        """True where something else comes before the next round, whoever is there."""
        return False

    def begin(self) -> None:
        """As the simulator's, without those that are not there: a moment that was kept may count
        them in.
        """
        for site in self._everybody:
            if site not in self._there:
                self._left(site)
        super().begin()

    def next(self) -> None:
        """The next input: what the journal holds, then what really comes."""
        each = self._to_replay.popleft() if self._to_replay else self._heard()
        if each is not None:
            self.count, self.time = each.seq, each.time
            self.journal.enter([each])
            self._take(each)
            ended = self.state.ended is not None
            if self.world.saves_anytime and self.journal.large and not (self._to_replay or ended):
                self.save(self.moment())
            if self._saved == self.count and not self._to_replay:
                self._cut()
        self._reports(self)

    def _cut(self) -> None:
        """Let the journal begin anew, with who is there and what each site has answered: a
        checkpoint does not say that.
        """
        first = [
            Input(self.count + i, self.time, "there", site, self.session.sites[site].serial)
            for i, site in enumerate(sorted(self._there), start=1)
        ]
        first += [
            Input(self.count + i, self.time, "answered", site, number=number)
            for i, (site, number) in enumerate(self.session.answers(), start=len(first) + 1)
        ]
        self.journal.cut(self.count, first)
        self.journal.enter(first)
        for each in first:
            self.count = each.seq
            self._take(each)

    def _heard(self) -> Input | None:
        if self._replaying:
            self._replaying = False
            lost = self.world.forgotten(self.state)
            if lost is not None and self.world.charges_everybody:
                self.journal.refuse_older(lost, self.state.number)
            self.session.expect(self._there)
            if lost is not None:
                return self._noted("ahead", number=lost)
        # it may end while no round is open, or where there are none
        if (self._closed or self.world.continuous) and not self._unbooked:
            why = self.session.hopeless(self._minimum, self.world.exhausted_sites(self.state))
            if why is not None:
                return self._noted("stop", why.encode())
        tick = self._clock() + TICK
        alarm = self.heap[0][0] + self._start if self.heap else tick
        heard = self.session.next(min(alarm, tick))
        if heard is not None:
            return self._noted(heard.kind, heard.body, heard.site, heard.number)
        if self._clock() >= alarm and self.heap:
            return self._noted("woke", self.heap[0][4].encode())
        return None

    def _noted(self, kind: Kind, body: bytes = b"", site: int = 0, number: int = 0) -> Input:
        """An input, written down."""
        now = self._clock() - self._start
        found = Input(self.count + 1, now, kind, site, body, number)
        self.journal.append(found)
        return found

    def _without(self, site: int, what: str, why: str) -> None:
        """A site takes part no more until it connects again."""
        self.session.note(site, what, why)
        self.session.barred(site, why)
        self._gone(site)

    def _take(self, each: Input) -> None:
        site = each.site
        match each.kind:
            case "stop":
                self.tell(Stop(each.body.decode()))
            case "woke":
                _, _, asked, _, tag = heapq.heappop(self.heap)
                self._silent(asked) if tag == SILENT else self._woke(tag)
            case "up" | "there":
                self.session.admitted(site, each.body)
                self._there.add(site)
                self.tell(Joined(site))
            case "ahead":
                self._skip_forgotten(site, each.number)
            case "down" | "late":
                self._gone(site)
            case "answered":
                self.session.answered(site, each.number)
            case "booked":
                self.session.close_booking(site, each.number)
                if each.number == self._booking:
                    self._booked(site)
            case "refused":
                self._refused(each)
            case "message":
                self._arrived(each)
        for faulty, why in self.world.faults():
            if (ask := self.session.sites[faulty].ask) is not None:
                self.session.close_ask(faulty, ask.number)  # it has only this one answer
            self._without(faulty, "too large", f"its answer cannot be used: {why}")

    def _woke(self, tag: str) -> None:
        """An alarm: of the regime, or that a round was to be booked by now. Who has not booked it
        still has to, as who is away, and the round goes on.
        """
        if not tag.startswith(_BOOK):
            self.tell(Woke(tag))
        elif tag == f"{_BOOK}{self._booking}":
            for site in sorted(self._unbooked):
                self.session.note(site, "slow", f"it has not charged round {self._booking} in time")
                self._booked(site)

    def _skip_forgotten(self, site: int, number: int) -> None:
        """Ask for nothing again that was booked after the end of the journal: a site may have
        answered it.
        """
        for each in self._everybody if not self.world.continuous else (site,):
            self.session.close_ask(each, number)
        self.tell(self.world.overtaken(site, number))

    def _silent(self, site: int) -> None:
        """A site may have been asked too long ago: then it is out, and is cut off, so that it
        connects again as soon as it can.
        """
        if (again := self.patience.looked(site, self.time)) is not None:
            self.push(again, site, tag=SILENT)
        elif self._awaited(site):
            task, within = self.tasks[site].number, self.patience.within
            why = f"task {task} is not answered within {within:g} s"
            self._without(site, "mute", why)
            if not self._replaying:
                self.session.drop(site, why)

    def _arrived(self, each: Input) -> None:
        """An answer. A site has only one to a task: if it is not what was asked for, the run goes
        on without the site.
        """
        self.session.answered(each.site, each.number)
        message = reply_in(each.body, self.session.dimension)
        if not self._replaying:  # its length is checked once
            bound = self.world.length_bound(each.site, self.tasks.get(each.site), message)
            self.session.flag_implausible(each.site, each.number, bound)
        self.tell(Arrived(message))
        if self.state.ended is not None:
            return
        if self.world.regime.expects(self.state, each.site, each.number):
            self._without(each.site, "another answer", "its answer was not what it was asked for")
        else:
            self.tell(Joined(each.site))  # who was late is counted in again

    def _refused(self, each: Input) -> None:
        """A site takes this task not, and takes part no more until it connects again."""
        why = each.body.decode(errors="replace")
        self.session.note(each.site, "declined", why)
        self.write(
            records.Declined(
                round=self.state.number, time=self.time, client=each.site, why=why[:500]
            )
        )
        self.session.close_ask(each.site, each.number)
        self.session.close_booking(each.site, each.number)
        self.session.barred(each.site, why[:500], away=why == FORGOTTEN)
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
        self.tell(Left(site, final=bool(self.session.sites[site].out)))
        asked = self.session.sites[site].ask
        if asked is not None and not self.world.regime.expects(self.state, site, asked.number):
            self.session.close_ask(site, asked.number)

    def booked(self, effect: Book, permits: Permits) -> None:
        """Go on when everybody who is there has booked the round as well. Who is not there books
        it on coming back: every site is charged for every round.
        """
        self._permits, self._unbooked = permits, set(self._there)
        self._booking = effect.number
        for site in self._everybody:
            self.session.book(site, effect.number, effect.fact)
        if self._unbooked:
            self.push(self.time + BOOKING, tag=f"{_BOOK}{effect.number}")
        else:
            self.tell(Booked(permits))

    def forget_alarms(self, kind: str) -> None:
        """Take alarms off the heap whose tag begins so."""
        self.heap = [each for each in self.heap if not each[4].startswith(kind)]
        heapq.heapify(self.heap)

    def _booked(self, site: int) -> None:
        if site in self._unbooked:
            self._unbooked.discard(site)
            if not self._unbooked:
                self.forget_alarms(_BOOK)
                permits, self._permits = self._permits, ()
                leaving, self._leaving = self._leaving, []
                self.tell(Booked(permits))
                for each in leaving:
                    if each not in self._there:
                        self._left(each)

    def dispatch(self, site: int, task: Request) -> None:
        """Ask the site, unless it is out: then it is asked once it has connected again."""
        self.tasks[site] = task
        if (look := self.patience.asked(site, self.time)) is not None:
            self.push(look, site, tag=SILENT)
        if not self.session.sites[site].out:
            self.ask(site, sendable(task))

    def ask(self, site: int, task: Task) -> None:
        """Ask the site, now and whenever it connects again."""
        self.session.ask(site, task)

    def write(self, row: records.Row) -> None:
        """A row for the log, without the time: it is real here, and depends on secret batches."""
        super().write(msgspec.structs.replace(row, time=msgspec.UNSET))

    def push(self, time: float, site: int = 0, number: int = 0, tag: str = "") -> None:
        """An alarm."""
        self._order += 1
        heapq.heappush(self.heap, (time, self._order, site, number, tag))

    def moment_saved(self) -> None:
        self._saved = self.count  # the journal begins anew once this input is done with


class ScriptedKernel(NetworkKernel[S]):
    """A run between real sites by the simulator's virtual clock: real sites are asked, and their
    answers are taken in the order that the study's latencies give. So a run over a network can be
    compared with a simulation byte by byte.

    All that reaches it and decides anything are the answers: their order and all times follow from
    the study. So a journal of answers is enough to go on after a kill, from the last checkpoint on:
    what was answered before is not asked again, and the next task has the same bytes as it had.
    """

    def read_journal(self, moment: KernelSnapshot[S], options: KernelOptions) -> None:
        before = self.journal.after(0)
        self._count = len(before)
        self._answers = {
            (each.site, each.number): (each.body, reply_in(each.body, self.session.dimension))
            for each in before
            if each.kind == "message"
        }
        self._booked: set[tuple[int, int]] = set()

    @property
    def waiting(self) -> int:  # type: ignore[override]
        return len(self.session.names) - len(self._there)

    def run(self) -> KernelSnapshot[S]:
        """Play until it ends or a site refuses: a simulation knows no refusals."""
        try:
            for site, task in self.world.regime.asked(self.state).items():
                self._ask(site, task)
            while self.waiting:
                self._listen()
            done = super().run()
            self._reports(self)
            return done
        except Declined as refusal:
            self.tell(Stop(str(refusal)))
            return self.moment()
        finally:
            if self.state.ended is None:
                self.journal.close()
            else:
                self.journal.destroy()

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

    def booked(self, effect: Book, permits: Permits) -> None:
        """Go on when everybody has booked the round as well."""
        for site in self._everybody:
            self.session.book(site, effect.number, effect.fact)
        while not all((site, effect.number) in self._booked for site in self._everybody):
            self._listen()
        self._booked.clear()
        super().booked(effect, permits)

    def answer(self, site: int, number: int) -> Said | None:
        """Wait for the site's answer."""
        while (site, number) not in self._answers:
            self._listen()
        return self._answers.pop((site, number))[1]

    def moment_saved(self) -> None:
        """Let the journal begin anew with the answers that are still to be used."""
        due = {(site, number) for _, _, site, number, _ in self.heap}
        self._answers = {key: each for key, each in self._answers.items() if key in due}
        self._count = len(self._answers)
        self.journal.cut(
            0,
            [
                Input(seq, 0.0, "message", site, body, number)
                for seq, ((site, number), (body, _)) in enumerate(self._answers.items(), start=1)
            ],
        )

    def _listen(self) -> None:
        heard = self.session.next(self._clock() + TICK)
        self._reports(self)
        if heard is not None:
            self._hear(heard)

    def _note(self, heard: Heard) -> None:
        self._count += 1
        found = Input(self._count, 0.0, heard.kind, heard.site, heard.body, heard.number)
        self.journal.append(found)

    def _hear(self, heard: Heard) -> None:
        site, number = heard.site, heard.number
        match heard.kind:
            case "up":
                self._there.add(site)
            case "booked":
                self._booked.add((site, number))
                self.session.close_booking(site, number)
            case "message":
                self._note(heard)
                reply = reply_in(heard.body, self.session.dimension)
                bound = self.world.length_bound(site, self.tasks.get(site), reply)
                self.session.flag_implausible(site, number, bound)
                self._answers[site, number] = heard.body, reply
                self.session.close_ask(site, number)
            case "refused":
                why = heard.body.decode(errors="replace")[:500]
                self.session.note(site, "declined", why)
                self.session.barred(site, why)
                raise Declined(self.session.hopeless(len(self.session.names)))
