r"""The kernel: one heap, one virtual clock, one place that charges, one packing of a moment. It plays any regime.

It tells the regime what happens and carries out what the regime asks for:

* ``Book``, ``Send``  — charge what they release in one durable transaction, *then* let the site work;
* ``Send``            — put its answer on the heap, at now and what its trip takes;
* ``Wake``            — put the alarm on the heap;
* ``Learn``, ``Skip`` — let the server's own model work, and tell what came of it;
* ``Log``             — write the row; that of a round when the round is closed, with its epsilon and what was measured;
* ``Closed``          — measure the model, write the row, save a checkpoint, and ask for the next round;
* ``Finish``          — forget what is still on its way, and save.

What is particular to a regime it asks of a :class:`World`: which charges belong to which tasks, how long an answer takes, who
answers, what a row may show.

A site's work is done when its answer is due, and not at all if the regime would drop the answer anyway (``Lapsed``): the
charge stands, the arithmetic is saved.

Killed anywhere, a run resumes from its last checkpoint. What came after it is played again with the same addresses of
randomness, so it releases the same bytes; the ledger knows their charges by key and books them once. Where the environment
differs (another version of torch, another device) the bytes may differ, and the charges are booked again: a world puts its
environment into each key.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from sordino.engine import records
from sordino.engine.effect import (
    Arrived,
    Asked,
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
    Learned,
    Left,
    Log,
    Refused,
    Said,
    Send,
    Skip,
    Wake,
    Woke,
)
from sordino.engine.watch import Packed, Watcher, bound
from sordino.errors import BudgetExceeded
from sordino.privacy import Budget, Charge, Permit, Vault
from sordino.privacy.accounting import Spent

Flight = tuple[float, int, int, int, str]
"""When, in which order among equals, whose answer, to which number (0: a site that comes back); or an alarm's tag, if there is one."""

Block = tuple[int, int]
"""Number of the first release of a permit, and how many."""


class Standing(Protocol):
    """Where a regime stands."""

    @property
    def number(self) -> int:
        """Rounds begun, or updates done."""
        ...

    @property
    def ended(self) -> str | None:
        """Why the run is over, or None."""
        ...


S = TypeVar("S", bound=Standing)


@dataclass(frozen=True, slots=True)
class Away:
    """A site that takes a task and vanishes.

    Attributes:
        seconds: until it is back.
        until: the number whose :class:`Begin` finds it back, where rounds are counted and not seconds.
    """

    seconds: float = 0.0
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Bill:
    """A charge, and who may work when it is booked.

    Attributes:
        sites: who gets the permit.
        charge: what is booked.
        budget: what it is held against.
        counts: whether what it comes to is part of the epsilon that rows show.
    """

    sites: tuple[int, ...]
    charge: Charge
    budget: Budget
    counts: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Moment(Generic[S]):
    """A run between two events. A state that is changed in place goes on changing: pack it at once.

    Attributes:
        state: of the regime.
        time: virtual seconds.
        flights: answers, returns and alarms to come.
        away: absent sites, and the number whose beginning finds them back.
        blocks: of each site, the permits that it has not worked off.
        count: flights so far.
        epsilon: highest so far, over all units.
    """

    state: S
    time: float = 0.0
    flights: tuple[Flight, ...] = ()
    away: Mapping[int, int] = field(default_factory=dict)
    blocks: Mapping[int, tuple[Block, ...]] = field(default_factory=dict)
    count: int = 0
    epsilon: float = 0.0

    @property
    def number(self) -> int:
        """Rounds begun, or updates done."""
        return self.state.number

    @property
    def ended(self) -> str | None:
        """Why the run is over, or None."""
        return self.state.ended

    def packed(self) -> Packed:
        """The regime's state."""
        raise NotImplementedError

    def pack(self) -> Packed:
        """See :class:`sordino.engine.watch.Moment`."""
        own = self.packed()
        rest = _Rest(
            time=self.time,
            flights=list(self.flights),
            away=dict(self.away),
            blocks=dict(self.blocks),
            count=self.count,
            epsilon=bound(self.epsilon),
            state=msgspec.Raw(own.rest),
        )
        return Packed(own.vectors, msgspec.json.encode(rest))


class _Rest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a moment is no vector."""

    time: float
    flights: list[Flight]
    away: dict[int, int]
    blocks: dict[int, tuple[Block, ...]]
    count: int
    epsilon: float | str
    state: msgspec.Raw


def unpacked(packed: Packed) -> tuple[Packed, dict[str, Any]]:
    """The regime's state as it was packed, and the kernel's own part of the moment, by name.

    Raises:
        ValueError: if it cannot be one.
    """
    rest = msgspec.json.decode(packed.rest, type=_Rest)
    own = {"time": rest.time, "flights": tuple(rest.flights), "away": rest.away, "blocks": rest.blocks, "count": rest.count}
    return Packed(packed.vectors, bytes(rest.state)), {**own, "epsilon": float(rest.epsilon)}


M = TypeVar("M", bound=Moment[Any])


class World(Protocol[S]):
    """What the kernel asks of a federation: everything that is particular to its regime."""

    @property
    def vault(self) -> Vault:
        """Where charges go."""
        ...

    def step(self, state: S, event: Event, /) -> tuple[S, Sequence[Effect]]:
        """The regime's."""
        ...

    def expects(self, state: S, site: int, number: int, /) -> bool:
        """Whether an answer of this site to this number would be used if it came now; computed it is only then."""
        ...

    def asked(self, state: S, /) -> Mapping[int, Asked]:
        """The task that each site holds in a state that was kept."""
        ...

    def answer(self, site: int, number: int, task: Asked | None, permits: Sequence[Permit], /) -> Said | None:
        """Let the site work, and what it sends; None if it sends nothing. It was last asked for ``task``, if for anything."""
        ...

    def trip(self, site: int, task: Asked, /) -> float | Away:
        """Seconds until the answer is there, or how the site vanishes."""
        ...

    def bills(self, state: S, effects: Sequence[Effect], paid: Mapping[int, Sequence[Permit]], /) -> Sequence[Bill]:
        """What must be booked before these effects may be carried out; sites hold the permits ``paid``."""
        ...

    def again(self, state: S, blocks: Mapping[int, Sequence[Block]], /) -> Sequence[Bill]:
        """What was booked for these blocks: a run goes on, and its permits are looked up."""
        ...

    def kept(self, state: S, site: int, permits: Sequence[Permit], /) -> Sequence[Permit]:
        """Those that the site has not worked off."""
        ...

    def price(self, unit: str, spent: Spent, budget: Budget, /) -> float:
        """What a history comes to."""
        ...

    def measured(self, state: S, number: int, /) -> Mapping[str, Any]:
        """What is told of the model when ``number`` is closed."""
        ...

    def learn(self, effect: Learn | Skip, /) -> Learned:
        """Let the server's own model work."""
        ...

    def shown(self, row: records.Row, /) -> records.Row | None:
        """What of a row may be shown; None if nothing."""
        ...


class Kernel(Generic[S, M]):
    """One call of a run: the moving parts."""

    def __init__(self, world: World[S], moment: M, watcher: Watcher) -> None:
        self.world, self.watcher, self._first = world, watcher, moment
        self.state: S = moment.state
        self.time, self.count, self.epsilon = moment.time, moment.count, moment.epsilon
        self.heap = sorted(moment.flights)  # a sorted list is a heap
        self.away = dict(moment.away)
        self.tasks: dict[int, Asked] = {}
        self.paid: dict[int, tuple[Permit, ...]] = {}
        self._closed = True
        self._unpriced: dict[str, tuple[int, Budget]] = {}  # entry of the last charge of each unit that no row has priced yet
        self._prices: dict[Any, float] = {}

    def run(self) -> M:
        """Play to the end of the run.

        Raises:
            BudgetExceeded: if somebody else spent this data's budget meanwhile. What was released until then is saved.
        """
        self.tasks.update(self.world.asked(self.state))
        self.book(self.world.again(self.state, self._first.blocks))
        while self.state.ended is None and (self._closed or self.heap):
            if self._closed:
                self.begin()
            else:
                self.next()
        return self.moment()

    def moment(self) -> M:
        """The run as it stands now."""
        kept = {site: self.world.kept(self.state, site, permits) for site, permits in self.paid.items()}
        return replace(
            self._first,
            state=self.state,
            time=self.time,
            flights=tuple(sorted(self.heap)),
            away=dict(self.away),
            blocks={site: tuple((each.round, each.count) for each in permits) for site, permits in kept.items() if permits},
            count=self.count,
            epsilon=self.epsilon,
        )

    def begin(self) -> None:
        """Let those come back whose time it is, then ask for what is next."""
        self._closed = False  # the loop begins the next: many empty rounds in a row must not pile up calls
        for site, back in sorted(self.away.items()):
            if back <= self.state.number + 1:
                del self.away[site]
                self.tell(Joined(site))
        before = self.state
        try:
            self.tell(Begin())
        except BudgetExceeded as refusal:
            self.state = before
            self.tell(Refused(str(refusal)))
            if self.state.ended is None:
                raise

    def next(self) -> None:
        """Whatever comes next on the heap."""
        self.time, _, site, number, tag = heapq.heappop(self.heap)
        if tag:
            self.tell(Woke(tag))
        elif number == 0:
            self.tell(Joined(site))
        elif self.world.expects(self.state, site, number):
            message = self.world.answer(site, number, self.tasks.get(site), self.paid.get(site, ()))
            if message is not None:
                self.tell(Arrived(message))
        else:
            self.tell(Lapsed(site, number))

    def tell(self, event: Event) -> None:
        """Tell the regime, and carry out what it asks for."""
        self.state, effects = self.world.step(self.state, event)
        if effects:
            self.carry_out(effects)

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """Book, then do."""
        first = effects[0]
        if len(effects) == 1 and type(first) is Send:  # as after nearly every arrival
            if bills := self.world.bills(self.state, effects, self.paid):
                self.book(bills)
            self.dispatch(first.site, first.message)
            return
        priced = [effect for effect in effects if type(effect) is Send or type(effect) is Book]
        permits = self.book(self.world.bills(self.state, priced, self.paid)) if priced else ()
        log: records.Round | None = None
        save = False
        for effect in effects:
            match effect:
                case Send(site, message):
                    self.dispatch(site, message)
                case Book():
                    self.tell(Booked(permits))
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
                case Closed():
                    pass
        if save:
            self.watcher.save(self.moment())

    def close(self, number: int, log: records.Round) -> None:
        """Price what was booked since the last row, measure the model, and write the row."""
        self._price()
        seen = self.world.measured(self.state, number)
        self.epsilon = max(self.epsilon, seen.get("test_epsilon", 0.0))  # of rows that only test, where these are private
        self.write(msgspec.structs.replace(log, epsilon=self.epsilon, time=self.time, **seen))
        self._closed = True

    def write(self, row: records.Row) -> None:
        """A row for the log, as far as it may be shown."""
        shown = self.world.shown(row)
        if shown is not None:
            self.watcher.row(shown)

    def push(self, time: float, site: int = 0, number: int = 0, tag: str = "") -> None:
        """Put something on the heap; first in, first out among equal times."""
        self.count += 1
        heapq.heappush(self.heap, (time, self.count, site, number, tag))

    def dispatch(self, site: int, task: Asked) -> None:
        """Put the answer on its way, or let the site vanish with the task."""
        self.tasks[site] = task
        trip = self.world.trip(site, task)
        if not isinstance(trip, Away):
            self.push(self.time + trip, site, task.number)
            return
        if trip.until is None:
            self.push(self.time + trip.seconds, site)
        else:
            self.away[site] = trip.until
        self.tell(Left(site))

    def book(self, bills: Sequence[Bill]) -> tuple[Permit, ...]:
        """Charge durably, and hand out the permits; one transaction for all who have the same budget.

        Raises:
            BudgetExceeded: after a row in the log.
        """
        groups: dict[Budget, list[Bill]] = {}
        for bill in bills:
            groups.setdefault(bill.budget, []).append(bill)
        found: list[Permit] = []
        for budget, own in groups.items():
            try:
                permits = self.world.vault.charge([bill.charge for bill in own], budget)
            except BudgetExceeded as refusal:
                self.write(records.Refused(round=self.state.number, time=self.time, why=str(refusal)))
                raise
            fresh: dict[int, list[Permit]] = {}
            for bill, permit in zip(own, permits, strict=True):
                for site in bill.sites:
                    fresh.setdefault(site, []).append(permit)
                if bill.counts:  # as of this entry: a run that is being replayed has booked later ones already
                    before = self._unpriced.get(permit.unit, (0, budget))[0]
                    self._unpriced[permit.unit] = max(permit.seq, before), budget
            for site, handed in fresh.items():
                self.paid[site] = (*self.world.kept(self.state, site, self.paid.get(site, ())), *handed)
            found += permits
        return tuple(found)

    def _price(self) -> None:
        """The highest epsilon, with what was booked since the last row."""
        for unit, (seq, budget) in self._unpriced.items():
            for spent in self.world.vault.histories(unit, seq):
                if (spent, budget) not in self._prices:
                    self._prices[spent, budget] = self.world.price(unit, spent, budget)
                self.epsilon = max(self.epsilon, self._prices[spent, budget])
        self._unpriced.clear()
