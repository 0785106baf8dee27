r"""Prices of records: what a charge is held against, and what a plan asks of a ledger.

A charge is held against the history of every entity in the set, translated into the unit that the
set protects. A set's entities have few histories, for they fall into classes. A history that covers
others is asked first: where it is within the budget, so are they. Only where it is not are its
parts asked one by one. So a charge costs what it did before records were known, unless the budget
is nearly spent.

A set is held against what it was charged itself, and what *other runs* charged to its records: rows
that look the same in two sets of a run are two people's, and whether there are any is nobody's
business. Only where these two promise different epsilons is each held against what both were
charged (:meth:`Prices._seen`), unless one of them only tests.

A plan opens its sets in a copy of the ledger, and charges them there.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial, reduce
from operator import or_
from typing import TypeVar

from sordino.base.errors import BudgetExceeded, HeldBack, LedgerError
from sordino.privacy.accounting import accountant
from sordino.privacy.budget import Budget
from sordino.privacy.chain import BEGIN, OUTSIDE, PROMISED, RECORDS, Entry
from sordino.privacy.event import Event, History, NonPrivate, encode
from sordino.privacy.ledger import Ledger
from sordino.privacy.records import store
from sordino.privacy.records.classes import (
    Choice,
    Class,
    Counts,
    Group,
    Totals,
    apart,
    choices,
    histories,
    maximal,
    of_groups,
)
from sordino.privacy.records.group import CLIENT, bare, composed, of_client, together, translated
from sordino.privacy.records.store import Set
from sordino.privacy.reserve import reserve

K = TypeVar("K")
T = TypeVar("T")
Seen = Callable[[int, Collection[Group], bool], frozenset[int]]
Rest = Mapping[str, Counter[Event]]
"""Charges that runs which have not ended may still make, by set."""
_TUNED = re.compile("[0-9a-f]{16}/(public$|tune/)")  # keys of a tuning
FINISH = (
    "Finish it with `sordino run --resume`, or as a site with `sordino join`; or, if it will not "
    "go on, end it with `sordino ledger end`"
)
SHOWN = 16
"""Histories of a set that are priced one by one; more are merged into ones that cover them."""


def since(
    ledger: Ledger, sets: Mapping[int, Set], until: int | None = None, rest: Rest | None = None
) -> Totals:
    """Return what was charged on each set since it was opened, up to entry ``until`` if given; with
    the ``rest`` that runs may still charge.
    """

    @cache
    def totals(number: int) -> tuple[str, Mapping[Event, int]]:
        one = sets[number]
        booked = _spent(ledger, one.unit, until) - Counter(dict(one.before))
        return one.kind, booked + rest[one.unit] if rest and one.unit in rest else booked

    return totals


def _spent(ledger: Ledger, unit: str, until: int | None) -> Counter[Event]:
    return Counter(ledger.booked(unit) if until is None else dict(ledger.spent(unit, until)))


@dataclass(slots=True, eq=False)
class _Tables:
    """The tables in memory, as of one version of them.

    Attributes:
        classes: of each set.
        ways: of each set, by the groups that its classes are in and whether they are persons, what
            is frozen of these classes, and counts that cover all of that.
        totals: of the sets, as the ledger is now, with the ``rest`` of other runs, which are
            ``open``.
    """

    version: str = ""
    sets: dict[int, Set] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    classes: dict[int, list[Class]] = field(default_factory=dict)
    ways: dict[int, dict[tuple[frozenset[Group], bool], tuple[list[Counts], Counts]]] = field(
        default_factory=dict
    )
    totals: Totals = field(init=False)
    rest: Rest = field(default_factory=dict)
    open: set[str] = field(default_factory=set)

    def ways_of(
        self, number: int
    ) -> dict[tuple[frozenset[Group], bool], tuple[list[Counts], Counts]]:
        """Return the ways to be in a set."""
        if number not in self.ways:
            alike: dict[tuple[frozenset[Group], bool], list[Counts]] = {}
            for one in self.classes.get(number, ()):
                alike.setdefault((one.live, one.person), []).extend(one.several)
            self.ways[number] = {key: (each, reduce(or_, each)) for key, each in alike.items()}
        return self.ways[number]


def event_of(
    groups: Iterable[tuple[Iterable[K], int]], events: Callable[[K], Sequence[Event]]
) -> Event:
    """The charge on an entity in these groups, where each set has these events, as one event."""
    return composed([event for sets, size in groups for event in together(map(events, sets), size)])


class Prices:
    """The histories behind the sets of one ledger, as a run sees them."""

    def __init__(self, ledger: Ledger, run: str = "") -> None:
        self.ledger, self.run = ledger, run
        self._tables = _Tables()
        self._promised: dict[str, dict[str, Budget]] = {}  # of runs that have begun, by set

    def admit(
        self,
        names: Mapping[str, str],
        run: str,
        budgets: Mapping[str, Budget],
        *,
        planned: bool = False,
    ) -> None:
        """Refuse charges on sets that are about to be booked, if they exceed a budget.

        A charge on one set raises the history of every set that shares a record with it. So each
        promise to such a set that still binds, of this run or of another one that has not ended, is
        held against its own budget.

        Args:
            names: of this run's sets, for people.
            run: who charges.
            budgets: of the sets that are charged.
            planned: whether the run has not charged them yet, but planned to.

        Raises:
            BudgetExceeded: naming the set.
            LedgerError: where the run was ended while its process went on.
        """
        tables = self._refreshed()
        for unit in budgets:
            if run not in store.holders(self.ledger.connection, unit):
                raise LedgerError(
                    f"{self.ledger.path}: run {run} was ended with `sordino ledger end`, so it "
                    f"charges nothing more on {names.get(unit, unit)}; stop its process"
                )
        numbers = tables.numbers
        own = {numbers[unit]: budget for unit, budget in budgets.items() if unit in numbers}
        if planned:
            self._promised.pop(run, None)  # of a beginning that was refused
        seen = self._seen(own)
        sharing = [one.sets for number in own for one in tables.classes.get(number, ())]
        mine, others = list[tuple[int, Budget]](), list[tuple[int, str, Budget]]()
        for number in sorted({*own}.union(*sharing)):
            mine += [(number, own[number])] if number in own else []
            for whose, budget in self._promises(tables.sets[number].unit).items():
                if whose != run:
                    others.append((number, whose, budget))
                elif budget != own.get(number):
                    mine.append((number, budget))
        if planned:
            self._count(besides="")
        for number, budget in mine:
            unit = tables.sets[number].unit
            try:
                self._within(number, budget, names.get(unit, unit), own, seen)
            except BudgetExceeded as refusal:
                if self.waits is None:
                    raise
                raise HeldBack(f"{refusal}. {self.waits}") from refusal
        if others:  # they are held against all that this run plans, if others can end it early
            self._count(besides="")
        for number, whose, budget in others:
            try:
                self._within(
                    number, budget, f"{tables.sets[number].unit} of run {whose}", own, seen
                )
            except BudgetExceeded as refusal:
                raise HeldBack(
                    f"{refusal}. Run {whose} promised this to records that it shares with this "
                    f"run, and has not ended. {FINISH}"
                ) from refusal

    @property
    def waits(self) -> str | None:
        """Which runs could still charge, which counts as if they had; None where there are none."""
        if not (runs := sorted(self._tables.open - {self.run})):
            return None
        return (
            "All that other runs of these records may still spend counts, for their releases, or "
            f"others, decide when they end: {', '.join(runs)}. {FINISH}"
        )

    def within(self, unit: str, budget: Budget) -> bool:
        """Tell whether no history of a unit's records exceeds a budget yet."""
        number = self._now().numbers.get(unit)
        try:
            if number is None:
                budget.admit(unit, self.ledger.spent(unit))
            else:
                self._within(number, budget, unit, {number}, self._seen({}))
        except BudgetExceeded:
            return False
        return True

    def sharing(self, names: Iterable[str]) -> set[str]:
        """The runs that hold sets open which share a record with these."""
        tables, found = self._now(), set[str]()
        for name in names:
            one = tables.numbers.get(name)
            near = [] if one is None else [each.sets for each in tables.classes.get(one, ())]
            for number in {one}.union(*near) if one is not None else ():
                found.update(store.holders(self.ledger.connection, tables.sets[number].unit))
        return found

    def _promises(self, unit: str) -> dict[str, Budget]:
        """The budgets that runs promised to a set which they hold open, by run."""
        found = {}
        for run in store.holders(self.ledger.connection, unit):
            if run not in self._promised:
                if (note := self.ledger.noted(BEGIN, run)) is None:
                    continue  # it has not begun, and promises nothing yet
                self._promised[run] = {
                    name: Budget(*promised)
                    for name, promised in note.facts.get(PROMISED, {}).items()
                }
            if unit in self._promised[run]:
                found[run] = self._promised[run][unit]
        return found

    def _seen(self, budgets: Mapping[int, Budget]) -> Seen:
        """Return what says, of a set and of a class in it, in which sets its records are taken to
        be: in this one, and in those of its group that promise them another epsilon; ``budgets``
        are promises besides those of runs that have begun.

        Rows that look the same in two sets of one run are two people's. Which of them two clients
        with different epsilons hold is public.
        """
        tables = self._tables

        @cache
        def promised(number: int) -> Collection[Budget]:
            own = budgets.get(number)
            return self._promises(tables.sets[number].unit).values() if own is None else [own]

        def seen(number: int, live: Collection[Group], person: bool) -> frozenset[int]:
            if person or tables.sets[number].aside:
                return frozenset({number})
            instead = {each for sets, _ in live if number in sets for each in sets} - {number}
            return frozenset({number}).union(
                each
                for each in instead
                if not tables.sets[each].aside
                and any(one != other for one in promised(number) for other in promised(each))
            )

        return seen

    def _within(
        self, number: int, budget: Budget, name: str, charged: Collection[int], seen: Seen
    ) -> None:
        """Hold a set's records against a budget, as far as a charged set raises their histories.

        Raises:
            BudgetExceeded: if the history of one exceeds it.
        """
        tables = self._tables
        kind = tables.sets[number].kind
        if kind == CLIENT:
            self._ask(budget, name, self._bounds(number, seen=seen))
            return
        views: dict[tuple[tuple[Choice, ...], tuple[int, ...]], list[tuple[list[Counts], Counts]]]
        views = {}
        for (live, person), frozen in tables.ways_of(number).items():
            ordered = apart(live, person, seen(number, live, person))
            ways = choices(ordered, person)
            if any(each in charged for way in ways for sets in way for each in sets):
                key = tuple(ways), tuple(size for _, size in ordered)
                views.setdefault(key, []).append(frozen)
        for (view, sizes), parts in views.items():
            now = [of_groups(zip(way, sizes, strict=True), tables.totals) for way in view]
            upper = reduce(or_, (each for _, each in parts)) + reduce(or_, now)
            try:
                budget.admit(name, translated(upper, kind))
            except BudgetExceeded:
                before = [each for frozen, _ in parts for each in frozen]
                whole = maximal([one + other for one in before for other in now], len(before))
                self._ask(budget, name, [translated(each, kind) for each in whole])

    def _ask(self, budget: Budget, name: str, histories: Sequence[History]) -> None:
        for spent in histories:
            try:
                budget.admit(name, spent)
            except BudgetExceeded as refusal:
                if (blame := self.blame(spent)) is not None:
                    raise BudgetExceeded(f"{name}: {blame}") from refusal
                raise

    def histories(self, asked: Iterable[tuple[str, int | None]]) -> Iterator[tuple[History, ...]]:
        """Bounds of the records of each set: up to :data:`SHOWN` histories, to an entry if one is
        given; of one that is closed, as where a run was ended while its process goes on, to the
        last entry. All are of the file as it is when the first is asked for.
        """
        tables = self._now()
        for unit, until in asked:
            if (number := tables.numbers.get(unit)) is not None:
                yield self._bounds(number, until)
            elif tables.version and unit in store.same_members(self.ledger.connection, unit):
                yield tuple(bounds(self.ledger)[unit])
            else:
                yield (self.ledger.seen(unit, until),)

    def remaining(
        self,
        events: Mapping[str, Sequence[Event]],
        budgets: Mapping[str, Budget],
        *,
        promised: bool = True,
    ) -> dict[str, int | None]:
        """Return how often the events of every set can be charged on all sets alike, for the
        records of each; None where nothing limits it.

        It counts as admission does: the budget of each set that a record is in, and what other runs
        ``promised`` to sets of this kind that share it, unless these have ended by then.
        """
        self._now()
        return self._left(events, budgets, promised=promised)

    def _left(
        self,
        events: Mapping[str, Sequence[Event]],
        budgets: Mapping[str, Budget],
        *,
        promised: bool = False,
    ) -> dict[str, int | None]:
        numbers = self._tables.numbers
        on = {numbers[name]: each for name, each in events.items() if name in numbers}
        seen = self._seen({numbers[name]: budgets[name] for name in events if name in numbers})
        steps = cache(Budget.remaining_steps)  # units are often alike
        return {
            unit: self._remaining(unit, on, events, budgets, seen, steps, promised=promised)
            for unit in events
        }

    def _remaining(
        self,
        unit: str,
        on: Mapping[int, Sequence[Event]],
        events: Mapping[str, Sequence[Event]],
        budgets: Mapping[str, Budget],
        seen: Seen,
        steps: Callable[[Budget, Event, History], int | None],
        *,
        promised: bool,
    ) -> int | None:
        tables = self._tables
        number = tables.numbers.get(unit)
        if number is None or tables.sets[number].kind == CLIENT:
            (own,) = [self.ledger.spent(unit)] if number is None else self._bounds(number)
            return steps(budgets[unit], composed(events[unit]), tuple(own))
        kind, left = tables.sets[number].kind, list[int | None]()
        shares: dict[tuple[Group, ...], list[tuple[frozenset[Budget], Class, frozenset[int]]]] = {}
        for one in tables.classes.get(number, ()):
            own_view = seen(number, one.live, one.person)
            instead = {
                each for sets, _ in one.live if number in sets and not one.person for each in sets
            }
            for other in sorted((one.sets - instead) | own_view):
                held = tables.sets[other]
                if held.kind == kind:
                    own_budget = {budgets[held.unit]} if held.unit in budgets else set()
                    others = self._promises(held.unit).values() if promised else ()
                    most = frozenset(own_budget.union(others))
                    view = own_view | seen(other, one.live, one.person)
                    key = _charged(one, on, view)
                    shares.setdefault(key, []).append((most, one, view))
        for groups, members in fewer(shares).items():
            whole, known = event_of(groups, on.__getitem__), dict[frozenset[Budget], list[Counts]]()
            for most, one, view in members:
                known.setdefault(most, []).extend(histories(one, tables.totals, view))
            left += [
                steps(budget, whole, tuple(translated(counts, kind)))
                for most, each in known.items()
                for counts in maximal(each, SHOWN)
                for budget in most
            ]
        return min((each for each in left if each is not None), default=None)

    def at_odds(self, budgets: Iterable[tuple[str, Budget]]) -> bool:
        """Tell whether a record is in sets that are promised different budgets here."""
        tables = self._now()
        promised: dict[int, set[Budget]] = {}
        for name, budget in budgets:
            promised.setdefault(tables.numbers[name], set()).add(budget)
        held = [one.sets for each in map(tables.classes.get, promised) for one in each or ()]
        return any(
            len({budget for number in sets for budget in promised.get(number, ())}) > 1
            for sets in held
        )

    def blame(self, spent: History) -> str | None:
        """Which release it is that a history has no bound for; None where it has one."""
        for event, _ in spent:
            if math.isfinite(accountant("rdp").epsilon([(event, 1)], 1e-5)):
                continue
            entry = self.ledger.connection.execute(
                "SELECT seq, method FROM entries WHERE event = ? ORDER BY seq LIMIT 1",
                (encode(event),),
            ).fetchone()
            where = f" (entry {entry[0]}, method {entry[1]!r})" if entry is not None else ""
            bare = "a release without a known bound"
            why = event.reason if isinstance(event, NonPrivate) else bare
            return (
                f"records in it were used before in a way that no epsilon bounds: {why}{where}. "
                "Nothing takes that back: use other records, or promise nothing (unit = 'none')"
            )
        return None

    def _bounds(
        self, number: int, until: int | None = None, seen: Seen | None = None
    ) -> tuple[History, ...]:
        """Histories of a set's records; of a client one: its own, and what its records were in."""
        tables, one = self._tables, self._tables.sets[number]
        rest = tables.rest if until is None else {}
        own = own_of(self.ledger, one.unit, until, rest) if one.kind == CLIENT else ()
        totals = tables.totals if until is None else since(self.ledger, tables.sets, until)
        seen = self._seen({}) if seen is None else seen
        known = [
            found
            for each in tables.classes.get(number, ())
            for found in histories(each, totals, seen(number, each.live, each.person))
        ]
        return bound(one.kind, own, known)

    def _now(self) -> _Tables:
        """Return the tables as they are, with all that other processes have booked."""
        self.ledger.refresh()
        return self._refreshed()

    def _refreshed(self) -> _Tables:
        db = self.ledger.connection
        version = store.meta(db, "version") if store.knows_records(db) else ""
        if self._tables.version != version:
            self.ledger.refuse_changed_records()
            sets = {one.number: one for one in store.sets(db, live=True)}
            tables = _Tables(version, sets, {one.unit: one.number for one in sets.values()})
            for one in store.classes(db)[0]:
                for number in one.sets:
                    tables.classes.setdefault(number, []).append(one)
            self._tables = tables
        self._count(besides=self.run)
        return self._tables

    def _count(self, *, besides: str) -> None:
        """Count what was charged, and what open runs but for one may still charge, where their
        releases or others choose how much that is (:mod:`~sordino.privacy.reserve`).
        """
        tables, rest, self._tables.open = self._tables, dict[str, Counter[Event]](), set()
        tables.rest, tables.totals = {}, since(self.ledger, tables.sets)
        runs = {run for one in tables.sets.values() for run in one.runs} - {besides}
        # plans first: what a budget pays for without a plan comes after them
        for run in sorted(runs, key=lambda each: (not self.ledger.planned(each), each)):
            missing = reserve(self.ledger, run, self._left)
            for each in missing:
                rest.setdefault(each.unit, Counter())[each.event] += each.count
            if missing:
                tables.open.add(run)
                if self.ledger.planned(run):
                    tables.rest, tables.totals = rest, since(self.ledger, tables.sets, None, rest)
        tables.rest, tables.totals = rest, since(self.ledger, tables.sets, None, rest)

    def rest(self) -> dict[str, Counter[Event]]:
        """The charges that runs could still make on each unit, where they or others choose them."""
        found = dict[str, Counter[Event]]()
        if self.ledger.notes(RECORDS):
            self._now()
            self._count(besides="")
            found = dict(self._tables.rest)
        for each in reserve(self.ledger):
            if each.unit not in self._tables.numbers:
                found.setdefault(each.unit, Counter())[each.event] += each.count
        return found


def _charged(one: Class, on: Collection[int], seen: Collection[int]) -> tuple[Group, ...]:
    """The groups of a class in which a charge on all sets ``on`` counts; ``seen`` as of
    :func:`apart`.
    """
    found = []
    for sets, size in apart(one.live, one.person, seen):
        if here := tuple(each for each in sets if each in on):
            found.append((here, size))
    return tuple(sorted(found))


def fewer(ways: dict[tuple[Group, ...], list[T]]) -> dict[tuple[Group, ...], list[T]]:
    """At most :data:`SHOWN` ways of being in sets, or two: one that covers all that share."""
    if len(ways) <= SHOWN:
        return ways
    shared = [group for key in ways if len(key) > 1 or len(key[0][0]) > 1 for group in key]
    size = max((size for _, size in shared), default=1)
    sets = tuple(sorted({each for group, _ in shared for each in group}))
    one = all(len(key) == 1 for key in ways)
    cover = ((sets, size),) if one else tuple(((each,), size) for each in sets)
    found: dict[tuple[Group, ...], list[T]] = {}
    for key, members in ways.items():
        alone = len(key) == 1 and len(key[0][0]) == 1
        found.setdefault(key if alone else cover, []).extend(members)
    return found


def own_of(
    ledger: Ledger, unit: str, until: int | None = None, rest: Rest | None = None
) -> History:
    """Return what a client of these members was charged, by any run, and the ``rest``.

    Of several in one run each has its own charges in this run, and may be any of them in others.
    """
    alike = store.same_members(ledger.connection, unit)
    more = sum(((rest or {}).get(each, Counter()) for each in alike), Counter[Event]())
    if not any(store.is_nth(each) for each in alike):
        found = sum((_spent(ledger, each, until) for each in alike), more)
        return tuple(found.items())
    here = set(store.holders(ledger.connection, unit))
    by_run: dict[str, dict[str, Counter[Event]]] = {}
    for each in alike:
        for entry in ledger.entries(each):
            if until is None or entry.seq <= until:
                run = by_run.setdefault(entry.key.partition("/")[0], {})
                run.setdefault(each, Counter())[entry.event] += entry.count
    parts = (
        charged.get(unit, Counter[Event]()) if run in here else reduce(or_, charged.values())
        for run, charged in by_run.items()
    )
    return tuple(sum(parts, more).items())


def spendings(
    ledger: Ledger, late: Callable[[], None] = lambda: None, rest: Rest | None = None
) -> dict[str, tuple[History, ...]]:
    """Of every unit what it was charged itself, and of sets the histories that cover their records
    (:func:`bounds`); with the ``rest`` (:meth:`Prices.rest`).
    """
    more, together = rest or {}, bounds(ledger, late, rest)
    return {
        unit: ((*ledger.spent(unit), *more.get(unit, {}).items()), *together.get(unit, ()))
        for unit in ledger.units()
    }


def bounds(
    ledger: Ledger, late: Callable[[], None] = lambda: None, rest: Rest | None = None
) -> dict[str, tuple[History, ...]]:
    """Of every set, open or closed, histories that cover all that its records were ever in, and the
    ``rest``.

    Of a ledger without records nothing.

    Who was in a set that is closed is not known any more, only which histories there are. Every
    record that was in it was in all that the set was charged, so the histories that contain those
    charges cover its records. ``late`` may stop it.
    """
    db = ledger.connection
    ledger.refresh()
    if not store.knows_records(db):
        return {}
    sets = {one.number: one for one in store.sets(db)}
    totals = since(ledger, {number: one for number, one in sets.items() if one.live}, None, rest)
    # a ledger of one run, which others see, does not say how many records are in a class
    unsaid = not store.meta(db, "key")
    known = [
        (one, histories(one, totals))
        for one, size in zip(*store.classes(db), strict=True)
        if size or (unsaid and (one.sets or one.frozen))
    ]
    alike: dict[tuple[str, int | None, History, History], tuple[History, ...]] = {}
    found = {}
    for one in sets.values():
        spent = ledger.spent(one.unit)
        own = own_of(ledger, one.unit, None, rest) if one.kind == CLIENT else spent
        key = one.kind, one.number if one.live else None, own, spent
        if key not in alike:
            late()
            if one.live:
                among = [
                    way
                    for each, _ in known
                    if one.number in each.sets
                    for way in histories(each, totals, {one.number})
                ]
            else:
                inside = partial(contains, kind=one.kind, own=spent)
                among = [way for _, several in known for way in filter(inside, several)]
            alike[key] = bound(one.kind, own, among, SHOWN if len(alike) < SHOWN else 1) or (own,)
        more = () if one.live or not rest else rest.get(one.unit, Counter()).items()
        found[one.unit] = tuple((*each, *more) for each in alike[key]) if more else alike[key]
    return found


def outside(ledger: Ledger) -> list[Entry]:
    """Charges on sets that no run made, and that no record's history counts yet.

    The key of every charge of a run or a tuning begins with its name.
    """
    sets = {unit for (unit,) in ledger.connection.execute("SELECT unit FROM record_sets")}
    rows = ledger.connection.execute(
        "SELECT seq, unit, key FROM entries WHERE seq > ?", (counted_until(ledger),)
    ).fetchall()
    begun = {note.name for note in ledger.notes(BEGIN)}
    chosen = {
        seq
        for seq, unit, key in rows
        if unit in sets and key.partition("/")[0] not in begun and not _TUNED.match(key)
    }
    return [entry for entry in ledger.entries() if entry.seq in chosen] if chosen else []


def counted_until(ledger: Ledger) -> int:
    """The last entry up to which charges that no run made are counted for all records."""
    notes = ledger.notes(RECORDS)
    return int(notes[-1].facts.get(OUTSIDE, 0)) if notes else 0


def contains(counts: Counts, kind: str, own: History) -> bool:
    """Tell whether a history has all of a set's charges, for several rows of a person in
    columns."""
    booked = Counter[Event]()
    for (event, of, _), count in counts.items():
        if of == kind:
            booked[bare(event)] += count
    return Counter(dict(own)) <= booked


def bound(
    kind: str, own: History, among: Sequence[Counts], at_most: int = SHOWN
) -> tuple[History, ...]:
    """Return histories that bound records of this kind, which have those in ``among``."""
    if kind == CLIENT:
        return (of_client(own, among),)
    return tuple(translated(one, kind) for one in maximal(among, at_most))
