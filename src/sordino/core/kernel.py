r"""The kernel, which plays any regime: one heap, one virtual clock, one place that charges.

It tells the regime what happens and carries out what the regime asks for:

* ``Book``, ``Send``  — charge what they release in one durable transaction, *then* let the site
  work;
* ``Send``            — put its answer on the heap, at now and what its trip takes;
* ``Wake``            — put the alarm on the heap;
* ``Learn``, ``Skip`` — let the server's own model work, and tell what came of it;
* ``Open``            — open the sum of a round's contributions, and tell what it is;
* ``Log``             — write the row; that of a round when the round is closed, with its epsilon
  and what was measured;
* ``Closed``          — measure the model, write the row, save a checkpoint, and ask for the next
  round;
* ``Finish``          — forget what is still on its way, and save.

What is particular to a regime it asks of a :class:`~sordino.core.world.World`: which charges
belong to which tasks, how long an answer takes, who answers, what a row may show.

A site's work is done when its answer is due, and not at all if the regime would drop the answer
anyway (``Lapsed``): the charge stands, the arithmetic is saved.

Killed anywhere, a run resumes from its last checkpoint. What came after it is played again with the
same addresses of randomness, so it releases the same bytes; the ledger knows their charges by key
and books them once. Where the environment differs (another version of torch, another device) the
bytes may differ, and the charges are booked again: a world puts its environment into each key.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic

import msgspec

from sordino.base.errors import BudgetExceeded, HeldBack, LocalProtocolError
from sordino.core import records
from sordino.core.effect import (
    Arrived,
    Begin,
    Book,
    Booked,
    Closed,
    Effect,
    Event,
    Finish,
    Joined,
    Lapsed,
    Learn,
    Left,
    Log,
    Open,
    Permits,
    Request,
    Said,
    Send,
    Skip,
    Stop,
    Summed,
    Wake,
    Woke,
)
from sordino.core.world import Absence, ChargeRequest, Flight, KernelSnapshot, RunListener, S, World
from sordino.privacy import Budget, Permit

# Theory of operation.
#
# A regime is a pure function step(state, event) -> (state, effects). The kernel owns everything
# else: the clock, the heap of what is on its way, the permits, the epsilon that rows show. One turn
# of the loop is
#
#   1. take what is next: if a round was just closed, the event Begin; else the earliest entry of
#      the heap (an answer, a site that is back, an alarm), to whose time the clock jumps;
#   2. tell the regime, which returns effects;
#   3. book: all charges that these effects need, in one durable transaction for each budget;
#   4. only then do the effects, in their order. Some tell the regime again at once (Book, Learn,
#      Skip, Open), so effects may nest, but never before their own charges are durable.
#
# Four invariants make privacy independent of what a regime does.
#
# One charge, one task. A charge is named by a task's number, which must rise from one task of a
# site to the next: batches are drawn, and noise is, by that number, too.
#
# Charge before release. A site is asked for its answer (World.answer) in a later turn than the one
# that booked its task, and is handed the permits of that booking; what computes a release shows a
# permit. If a charge is refused, nothing of the effects is done (of what Begin asked for, the state
# is that before it), and the regime is told to stop: a ledger never gets back what was spent.
#
# A row shows what was booked until it. Epsilon is priced when a round is closed, of each unit up to
# the last entry that this run booked (_unpriced), not to the ledger's end: a run that is played
# again has booked later entries already, and its rows must come out the same.
#
# A snapshot is taken when all effects of a step are done (``save`` is the last thing that
# carry_out does). It holds the regime's state, the heap, the clock and, of each site, what it
# carries from task to task (World.memories: noise that later releases take a part of), and which
# blocks of releases its permits still cover, but no permit: World.reissued books them again
# by their keys, which the ledger knows, and which therefore cost nothing. Resuming plays on from
# there with the same addresses of randomness. So each release after the snapshot is made again,
# byte for byte, under the charge that it had.
#
# Order among equal times is the order in which entries were pushed (``count`` is in the snapshot,
# too). Sites' work is done when their answers are due, not when they are sent: an answer that the
# regime would drop is never computed (Lapsed), and stays charged.
#
# Over a network (sordino.network.kernel) a subclass takes its inputs from a journal: ``next``,
# ``dispatch``, ``push`` and others are replaced, answers come from sites instead of World.answer,
# and replaying the journal gives the same effects in the same order. Nothing here may depend on
# anything but state, events and heap.


class Kernel(Generic[S]):
    """One call of a run: the moving parts."""

    def __init__(self, world: World[S], moment: KernelSnapshot[S], watcher: RunListener) -> None:
        self.world, self.watcher, self._blocks = world, watcher, moment.blocks
        self.state: S = moment.state
        self.time, self.count, self.epsilon = moment.time, moment.count, moment.epsilon
        self.heap: list[Flight] = sorted(moment.flights)  # a sorted list is a heap
        self.away = dict(moment.away)
        self.tasks: dict[int, Request] = {}
        self.paid: dict[int, Permits] = {}
        self.common: Permits = ()  # of a round that is charged to everybody
        self._closed = True
        # entry of the last charge of each unit that no row has priced yet
        self._unpriced: dict[str, tuple[int, Budget]] = {}
        self._prices: dict[Any, float] = {}

    def run(self) -> KernelSnapshot[S]:
        """Play to the end of the run, which comes where the ledger books nothing more: somebody
        else may have spent this data's budget meanwhile.

        Raises:
            HeldBack: if it may book more once another run has ended.
        """
        self.tasks.update(self.world.regime.asked(self.state))
        with self.filtered():
            self.book(self.world.reissued(self.state, self._blocks))
            while self.state.ended is None and (self._closed or self.heap):
                if self._closed:
                    self.begin()
                else:
                    self.next()
        return self.moment()

    @contextmanager
    def filtered(self) -> Iterator[None]:
        """Stop the run where a charge is refused for good."""
        try:
            yield
        except HeldBack:
            raise
        except BudgetExceeded as refusal:
            self.tell(Stop(f"the privacy filter lets no further round pass: {refusal}"))

    def moment(self) -> KernelSnapshot[S]:
        """The run as it stands now."""
        unused = {i: self.world.unused_permits(self.state, i, p) for i, p in self.paid.items()}
        return KernelSnapshot(
            state=self.state,
            time=self.time,
            flights=tuple(sorted(self.heap)),
            away=dict(self.away),
            blocks={
                site: tuple((each.round, each.count) for each in permits)
                for site, permits in unused.items()
                if permits
            },
            count=self.count,
            epsilon=self.epsilon,
            memories=self.world.memories(),
        )

    def begin(self) -> None:
        """Let those come back whose time it is, then ask for what is next."""
        # the loop begins the next: many empty rounds in a row must not pile up calls
        self._closed = False
        for site, back in sorted(self.away.items()):
            if back <= self.state.number + 1:
                del self.away[site]
                self.tell(Joined(site))
        before = self.state
        try:
            self.tell(Begin())
        except BudgetExceeded:
            self.state = before
            raise

    def next(self) -> None:
        """Whatever comes next on the heap."""
        self.time, _, site, number, tag = heapq.heappop(self.heap)
        if tag:
            self.tell(Woke(tag))
        elif number == 0:
            self.tell(Joined(site))
        elif self.world.regime.expects(self.state, site, number):
            message = self.answer(site, number)
            if message is not None:
                self.tell(Arrived(message))
        else:
            self.tell(Lapsed(site, number))

    def answer(self, site: int, number: int) -> Said | None:
        """Return what a site says to what it was last asked; None if nothing."""
        return self.world.answer(site, number, self.tasks.get(site), self.permits(site))

    def permits(self, site: int) -> Permits:
        """Return the permits that a site works with."""
        return (*self.common, *self.paid.get(site, ()))

    def tell(self, event: Event) -> None:
        """Tell the regime, and carry out what it asks for."""
        self.state, effects = self.world.step(self.state, event)
        if effects:
            self.carry_out(effects)

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """Book, then do."""
        priced = [effect for effect in effects if type(effect) is Send or type(effect) is Book]
        permits = self.book(self.world.requests(self.state, priced, self.paid)) if priced else ()
        log: records.Round | None = None
        save = False
        for effect in effects:
            match effect:
                case Send(site, message):
                    self.dispatch(site, message)
                case Book():
                    self.booked(effect, permits)
                case Wake(after, tag):
                    self.push(self.time + after, tag=tag)
                case Log(records.Round() as closed):
                    log = closed
                case Log(row):
                    self.write(msgspec.structs.replace(row, time=self.time))
                case Closed(number) if log is not None:
                    self.close(number, log)
                    save, log = True, None
                case Finish():
                    self.heap.clear()
                    save = True
                case Learn() | Skip():
                    self.tell(self.world.learn(effect))
                case Open():
                    self.open(effect)
                case Closed():
                    pass
        if save and self.due():
            self.save(self.moment())

    def due(self) -> bool:
        """Return whether a moment to resume from is wanted."""
        return self.watcher.due(self.state.number, self.state.ended)

    def save(self, moment: KernelSnapshot[S]) -> None:
        """Keep a moment to resume from."""
        self.watcher.save(moment)

    def booked(self, effect: Book, permits: Permits) -> None:
        """A round is in the ledger: go on."""
        self.tell(Booked(permits))

    def open(self, effect: Open) -> None:
        """A simulation's contributions are under no mask."""
        self.tell(Summed(effect.number, effect.clients, effect.values))

    def close(self, number: int, log: records.Round) -> None:
        """Price what was booked since the last row, measure the model, and write the row."""
        self._price()
        seen = self.world.measured(self.state, number)
        # of rows that only test, where these are private
        self.epsilon = max(self.epsilon, seen.get("test_epsilon", 0.0))
        self.write(msgspec.structs.replace(log, epsilon=self.epsilon, time=self.time, **seen))
        self._closed = True

    def write(self, row: records.Row) -> None:
        """A row for the log, as far as it may be shown."""
        shown = self.world.visible_row(row)
        if shown is not None:
            self.watcher.row(shown)

    def push(self, time: float, site: int = 0, number: int = 0, tag: str = "") -> None:
        """Put something on the heap; first in, first out among equal times."""
        self.count += 1
        heapq.heappush(self.heap, (time, self.count, site, number, tag))

    def dispatch(self, site: int, task: Request) -> None:
        """Put the answer on its way, or let the site vanish with the task.

        Raises:
            LocalProtocolError: for a number that is not above that of the site's last task: its
                charge has paid for one answer, and its batch would be the same.
        """
        last = self.tasks.get(site)
        if last is not None and task.number <= last.number:
            raise LocalProtocolError(
                f"client {site} is asked for round {task.number} after round {last.number}: one "
                "charge pays for one task, so the rounds of a client's tasks must rise"
            )
        self.tasks[site] = task
        trip = self.world.trip(site, task)
        if not isinstance(trip, Absence):
            self.push(self.time + trip, site, task.number)
            return
        if trip.until is None:
            self.push(self.time + trip.seconds, site)
        else:
            self.away[site] = trip.until
        self.tell(Left(site))

    def book(self, requests: Sequence[ChargeRequest]) -> Permits:
        """Charge durably and hand out the permits; equal budgets share one transaction.

        Raises:
            BudgetExceeded: after a row in the log.
        """
        groups: dict[Budget, list[ChargeRequest]] = {}
        for request in requests:
            groups.setdefault(request.budget, []).append(request)
        found: list[Permit] = []
        for budget, own in groups.items():
            try:
                permits = self.world.ledgers.charge([request.charge for request in own], budget)
            except BudgetExceeded as refusal:
                self.write(
                    records.Refused(round=self.state.number, time=self.time, why=str(refusal))
                )
                raise
            fresh: dict[int, list[Permit]] = {}
            common: list[Permit] = []
            for request, permit in zip(own, permits, strict=True):
                if request.sites is None:
                    common.append(permit)
                for site in request.sites or ():
                    fresh.setdefault(site, []).append(permit)
                # as of this entry: a run that is being replayed has booked later ones already
                if request.in_epsilon:
                    before = self._unpriced.get(permit.unit, (0, budget))[0]
                    self._unpriced[permit.unit] = max(permit.seq, before), budget
            if common:  # of the round before, nobody has work
                self.common = tuple(common)
            for site, handed in fresh.items():
                self.paid[site] = (
                    *self.world.unused_permits(self.state, site, self.paid.get(site, ())),
                    *handed,
                )
            found += permits
        return tuple(found)

    def _price(self) -> None:
        """The highest epsilon, with what was booked since the last row."""
        if self._unpriced:  # else the ledger is not asked
            self.epsilon = max(self.epsilon, self._priced(self._unpriced))
            self._unpriced.clear()

    def _priced(self, asked: Mapping[str, tuple[int | None, Budget]]) -> float:
        """The highest epsilon of the units' records, each to an entry of the ledger if given."""
        found, highest = self.world.ledgers.each((unit, to) for unit, (to, _) in asked.items()), 0.0
        for (unit, (_, budget)), histories in zip(asked.items(), found, strict=True):
            for spent in histories:
                if (spent, budget) not in self._prices:
                    self._prices[spent, budget] = self.world.price(unit, spent, budget)
                highest = max(highest, self._prices[spent, budget])
        return highest
