r"""Prices of records: what a charge is held against, and what a plan asks of a ledger.

A charge is held against the history of every entity in the set, translated into the unit that the
set protects. A set's entities have few histories, for they fall into classes. A history that covers
others is asked first: where it is within the budget, so are they. Only where it is not are its
parts asked one by one. So a charge costs what it did before records were known, unless the budget
is nearly spent.

A plan opens nothing: it asks the ledger as it is what records have spent, and how a charge would
count for them (:func:`burdens`).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from operator import or_
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sordino.base.errors import BudgetExceeded, HeldBack, LedgerError
from sordino.privacy.accounting import accountant
from sordino.privacy.budget import Budget
from sordino.privacy.chain import BEGIN, OUTSIDE, PROMISED, RECORDS, Entry
from sordino.privacy.event import Event, NonPrivate, encode
from sordino.privacy.ledger import Ledger
from sordino.privacy.records import store
from sordino.privacy.records.classes import (
    Class,
    Counts,
    Group,
    Totals,
    history,
    maximal,
    of_groups,
)
from sordino.privacy.records.group import (
    CLIENT,
    SAMPLE,
    Spent,
    composed,
    of_client,
    together,
    translated,
)
from sordino.privacy.records.identity import PEOPLE, Records, Words, digests, membership, stacked
from sordino.privacy.records.store import Index, Set, rows_found

K = TypeVar("K")
Shared = Sequence[tuple[Counts, int]]
"""Histories, and how many records share each."""
_TUNED = re.compile("[0-9a-f]{16}/(public$|tune/)")  # keys of a tuning
SHOWN = 16
"""Histories of a set that are priced one by one; more are merged into ones that cover them."""
MIXED = NonPrivate(
    reason="rows were used before without data.person, so nobody knows how many of them were one "
    "person's"
)


def since(ledger: Ledger, sets: Mapping[int, Set], until: int | None = None) -> Totals:
    """Return what was charged on each set since it was opened, up to entry ``until`` if given."""

    @cache
    def totals(number: int) -> tuple[str, Mapping[Event, int]]:
        one = sets[number]
        return one.kind, _spent(ledger, one.unit, until) - Counter(dict(one.before))

    return totals


def _spent(ledger: Ledger, unit: str, until: int | None) -> Counter[Event]:
    booked = ledger.booked(unit) if until is None else dict(ledger.spent(unit, until))
    return Counter(booked)


class _Way(NamedTuple):
    """Classes of a set that are alike but for what is frozen.

    Attributes:
        upper: counts that cover what is frozen of all of them.
        each: these counts.
    """

    upper: Counts
    each: list[Counts]


@dataclass(slots=True, eq=False)
class _Tables:
    """The tables in memory, as of one version of them.

    Attributes:
        classes: of each set, with the number of entities in each.
        ways: of each set, its classes by the groups that they are in.
    """

    version: str = ""
    sets: dict[int, Set] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    classes: dict[int, list[tuple[Class, int]]] = field(default_factory=dict)
    ways: dict[int, dict[frozenset[Group], _Way]] = field(default_factory=dict)

    def ways_of(self, number: int) -> dict[frozenset[Group], _Way]:
        """Return the ways to be in a set."""
        if number not in self.ways:
            alike: dict[frozenset[Group], list[Counts]] = {}
            for one, _ in self.classes.get(number, ()):
                alike.setdefault(one.live, []).append(one.counts)
            self.ways[number] = {
                live: _Way(reduce(or_, each), each) for live, each in alike.items()
            }
        return self.ways[number]


class Prices:
    """The histories behind the sets of one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._tables = _Tables()
        self._promised: dict[str, dict[str, Budget]] = {}  # of runs that have begun, by set

    def admit(self, names: Mapping[str, str], run: str) -> Callable[[Mapping[str, Budget]], None]:
        """Return what refuses charges on sets that are about to be booked.

        A charge on one set raises the history of every set that shares a record with it. So each
        promise to such a set that still binds, of this run or of another one that has not ended, is
        held against its own budget.

        Args:
            names: of this run's sets, for people.
            run: who charges.

        Raises:
            LedgerError: where the run was ended while its process went on.
        """

        def check(charged: Mapping[str, Budget]) -> None:
            tables = self._refreshed()
            for unit in charged:
                if run not in self._holders(unit):
                    raise LedgerError(
                        f"{self.ledger.path}: run {run} was ended with `sordino ledger end`, so it "
                        f"charges nothing more on {names.get(unit, unit)}; stop its process"
                    )
            totals = since(self.ledger, tables.sets)
            own = {tables.numbers[unit]: budget for unit, budget in charged.items()}
            for number in sorted(self._sharing(tables, own)):
                unit = tables.sets[number].unit
                if number in own:
                    self._within(tables, number, own[number], names.get(unit, unit), totals, own)
                for whose, budget in self._promises(unit).items():
                    if budget == own.get(number):
                        continue
                    name = names.get(unit, unit) if whose == run else f"{unit} of run {whose}"
                    try:
                        self._within(tables, number, budget, name, totals, own)
                    except BudgetExceeded as refusal:
                        if whose == run:
                            raise
                        raise HeldBack(
                            f"{refusal}. Run {whose} promised this to records that it shares with "
                            "this run, and has not ended: finish it with `sordino run --resume`, "
                            "or, if it will not go on, end it with `sordino ledger end`"
                        ) from refusal

        return check

    def within(self, unit: str, budget: Budget) -> bool:
        """Tell whether no history of a unit's records exceeds a budget yet."""
        tables = self._now()
        number = tables.numbers.get(unit)
        try:
            if number is None:
                budget.admit(unit, self.ledger.spent(unit))
            else:
                totals = since(self.ledger, tables.sets)
                self._within(tables, number, budget, unit, totals, {number})
        except BudgetExceeded:
            return False
        return True

    def _sharing(self, tables: _Tables, numbers: Collection[int]) -> set[int]:
        """Sets that share a record with one of these, and these."""
        found = set(numbers)
        for number in numbers:
            for one, _ in tables.classes.get(number, ()):
                found |= one.sets
        return found

    def _holders(self, unit: str) -> list[str]:
        """The runs that hold a set open."""
        (runs,) = self.ledger.connection.execute(
            "SELECT runs FROM record_sets WHERE unit = ?", (unit,)
        ).fetchone()
        found: list[str] = json.loads(runs)
        return found

    def _promises(self, unit: str) -> dict[str, Budget]:
        """The budgets that runs promised to a set which they hold open, by run."""
        found = {}
        for run in self._holders(unit):
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

    def _within(
        self,
        tables: _Tables,
        number: int,
        budget: Budget,
        name: str,
        totals: Totals,
        charged: Collection[int],
    ) -> None:
        """Hold a set's records that are in one of the charged sets against a budget.

        Raises:
            BudgetExceeded: if the history of one exceeds it.
        """
        kind = tables.sets[number].kind
        if kind == CLIENT:
            self._ask(budget, name, self._bounds(tables, number, totals))
            return
        for live, way in tables.ways_of(number).items():
            if not any(one in charged for group, _ in live for one in group):
                continue
            now = of_groups(live, totals)
            try:
                budget.admit(name, translated(way.upper + now, kind))
            except BudgetExceeded:
                whole = maximal(way.each, len(way.each))
                self._ask(budget, name, [translated(each + now, kind) for each in whole])

    def _ask(self, budget: Budget, name: str, histories: Sequence[Spent]) -> None:
        for spent in histories:
            try:
                budget.admit(name, spent)
            except BudgetExceeded as refusal:
                if (blame := self.blame(spent)) is not None:
                    raise BudgetExceeded(f"{name}: {blame}") from refusal
                raise

    def histories(self, unit: str, until: int | None = None) -> list[Spent]:
        """Bounds of the records of a set: up to :data:`SHOWN` histories, to entry ``until``."""
        tables = self._now()
        number = tables.numbers.get(unit)
        if number is None:
            return [self.ledger.spent(unit, until)]
        return list(self._bounds(tables, number, since(self.ledger, tables.sets, until), until))

    def remaining(
        self, events: Mapping[str, Sequence[Event]], budgets: Mapping[str, Budget]
    ) -> dict[str, int | None]:
        """Return how often the events of every set can be charged on all sets alike, for the
        records of each; None where nothing limits it.

        It counts as admission does: the budget of each set that a record is in, and what other runs
        promised to sets of this kind that share it.
        """
        tables = self._now()
        on = {tables.numbers[name]: each for name, each in events.items() if name in tables.numbers}
        return {unit: self._remaining(tables, unit, on, events, budgets) for unit in events}

    def _remaining(
        self,
        tables: _Tables,
        unit: str,
        on: Mapping[int, Sequence[Event]],
        events: Mapping[str, Sequence[Event]],
        budgets: Mapping[str, Budget],
    ) -> int | None:
        number = tables.numbers.get(unit)
        if number is None or tables.sets[number].kind == CLIENT:
            (own,) = self.histories(unit)
            return budgets[unit].remaining_steps(composed(events[unit]), own)
        totals, kind = since(self.ledger, tables.sets), tables.sets[number].kind
        alike: dict[tuple[Group, ...], list[Counts]] = {}
        most: dict[tuple[Group, ...], set[Budget]] = {}
        for one, _ in tables.classes.get(number, ()):
            found = [(tuple(each for each in sets if each in on), size) for sets, size in one.live]
            key = tuple(sorted(group for group in found if group[0]))
            alike.setdefault(key, []).append(history(one, totals))
            for each in one.sets:
                other = tables.sets[each]
                if other.kind == kind:
                    told = {budgets[other.unit]} if other.unit in budgets else set[Budget]()
                    most.setdefault(key, set()).update(told, self._promises(other.unit).values())
        left = []
        for key, groups in fewer({key: key for key in alike}).items():
            whole = composed(
                [
                    event
                    for sets, size in key
                    for event in together([on[each] for each in sets], size)
                ]
            )
            histories = maximal([one for each in groups for one in alike[each]], SHOWN)
            left += [
                budget.remaining_steps(whole, translated(one, kind))
                for one in histories
                for budget in {budget for each in groups for budget in most[each]}
            ]
        return min((steps for steps in left if steps is not None), default=None)

    def blame(self, spent: Spent) -> str | None:
        """Which release it is that a history has no bound for; None where it has one."""
        for event, _ in spent:
            if isinstance(event, NonPrivate) or math.isinf(
                accountant("rdp").epsilon([(event, 1)], 1e-5)
            ):
                entry = self.ledger.connection.execute(
                    "SELECT seq, method, unit FROM entries WHERE event = ? ORDER BY seq LIMIT 1",
                    (encode(event),),
                ).fetchone()
                why = (
                    event.reason
                    if isinstance(event, NonPrivate)
                    else "a release without a known bound"
                )
                where = f" (entry {entry[0]}, method {entry[1]!r})" if entry is not None else ""
                return (
                    f"records in it were used before in a way that no epsilon bounds: {why}{where}."
                    " Nothing takes that back: use other records, or promise nothing (unit = "
                    "'none')"
                )
        return None

    def _bounds(
        self, tables: _Tables, number: int, totals: Totals, until: int | None = None
    ) -> tuple[Spent, ...]:
        """Histories of a set's records; of a client one: its own, and what its records were in."""
        kind, unit = tables.sets[number].kind, tables.sets[number].unit
        own = own_of(self.ledger, unit, until) if kind == CLIENT else ()
        known = [(history(one, totals), size) for one, size in tables.classes.get(number, ())]
        return bound(kind, own, known)

    def _now(self) -> _Tables:
        """Return the tables as they are, with all that other processes have booked."""
        self.ledger.refresh()
        return self._refreshed()

    def _refreshed(self) -> _Tables:
        db = self.ledger.connection
        version = store.meta(db, "version")
        if self._tables.version != version:
            self.ledger.refuse_changed_records()
            sets = {one.number: one for one in store.sets(db, live=True)}
            tables = _Tables(version, sets, {one.unit: one.number for one in sets.values()})
            for one, size in zip(*store.classes(db), strict=True):
                for number in () if one.owned else one.sets:
                    tables.classes.setdefault(number, []).append((one, size))
            self._tables = tables
        return self._tables


def fewer(keys: Mapping[tuple[Group, ...], K]) -> dict[tuple[Group, ...], list[K]]:
    """At most :data:`SHOWN` ways of being in sets, or two: one that covers all that share."""
    if len(keys) <= SHOWN:
        return {key: [value] for key, value in keys.items()}
    shared = [group for key in keys if len(key) > 1 or len(key[0][0]) > 1 for group in key]
    size = max((size for _, size in shared), default=1)
    sets = tuple(sorted({each for group, _ in shared for each in group}))
    one = all(len(key) == 1 for key in keys)
    cover = ((sets, size),) if one else tuple(((each,), size) for each in sets)
    found: dict[tuple[Group, ...], list[K]] = {}
    for key, value in keys.items():
        alone = len(key) == 1 and len(key[0][0]) == 1
        found.setdefault(key if alone else cover, []).append(value)
    return found


def own_of(ledger: Ledger, unit: str, until: int | None = None) -> Spent:
    """Return what a client of these members was charged, by any run."""
    alike = store.alike(ledger.connection, unit)
    found = sum((_spent(ledger, each, until) for each in alike), Counter[Event]())
    return tuple(found.items())


def of_own_client(own: Spent, known: Shared) -> Spent:
    """A client's history: its own, and what its records' histories hold besides."""
    others = []
    for each, size in known:
        counts = each.copy()
        for event, count in own:
            # Where a person is at several clients, the columns do not tell which of the releases
            # were this client's.
            if not any(booked == event and kind == CLIENT and k > 1 for booked, kind, k in counts):
                counts[event, CLIENT, 1] = max(0, counts[event, CLIENT, 1] - count)
        others.append((counts, size))
    return of_client(own, others)


def bounds(ledger: Ledger, late: Callable[[], None] = lambda: None) -> dict[str, tuple[Spent, ...]]:
    """Of every set, open or closed, histories that cover all that its records were ever in.

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
    totals = since(ledger, {number: one for number, one in sets.items() if one.live})
    # a ledger of one run, which others see, does not say how many records are in a class
    unsaid = not store.meta(db, "key")
    known = [
        (one, history(one, totals), max(size, 1))
        for one, size in zip(*store.classes(db), strict=True)
        if (size or (unsaid and (one.sets or one.frozen))) and not one.owned
    ]
    alike: dict[tuple[str, int | None, Spent], tuple[Spent, ...]] = {}
    found = {}
    for one in sets.values():
        own = own_of(ledger, one.unit) if one.kind == CLIENT else ledger.spent(one.unit)
        key = one.kind, one.number if one.live else None, own
        if key not in alike:
            late()
            if one.live:
                among = [(counts, size) for each, counts, size in known if one.number in each.sets]
            else:
                among = [
                    (counts, size) for _, counts, size in known if contains(counts, one.kind, own)
                ]
            most = SHOWN if len(alike) < SHOWN else 1
            alike[key] = bound(one.kind, own, among, most) or (own,)
        found[one.unit] = alike[key]
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


def contains(counts: Counts, kind: str, own: Spent) -> bool:
    """Tell whether a history has all of a set's charges, for several rows of a person in
    columns."""
    booked = Counter[Event]()
    for (event, of, _), count in counts.items():
        if of == kind:
            booked[event] += count
    return Counter(dict(own)) <= booked


def bound(kind: str, own: Spent, among: Shared, at_most: int = SHOWN) -> tuple[Spent, ...]:
    """Return histories that bound records of this kind, which share those in ``among``."""
    if kind == CLIENT:
        return (of_own_client(own, among),)
    return tuple(translated(one, kind) for one in maximal([counts for counts, _ in among], at_most))


@dataclass(frozen=True, slots=True)
class Burden:
    """Some records of a unit: what they have spent, and how one charge on every unit of a run alike
    counts for them.

    Attributes:
        spent: a history that covers theirs.
        sets: the sets that hold them, each by the places of the units that it is.
        size: how many rows of theirs a person counts as.
    """

    spent: Spent
    sets: tuple[tuple[int, ...], ...]
    size: int = 1

    def of(self, event: Callable[[int], Event]) -> Event:
        """One event on every unit, which ``event`` gives by the unit's place."""
        return composed(together([[event(i) for i in each] for each in self.sets], self.size))

    @property
    def units(self) -> tuple[int, ...]:
        """Places of the units that hold them."""
        return tuple(i for each in self.sets for i in each)


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """A ledger as it is now: its key, its index, its classes and their histories."""

    ledger: Ledger
    key: bytes
    index: Index
    classes: Sequence[Class]
    spent: Sequence[Counts]

    @classmethod
    def of(cls, ledger: Ledger) -> _Known | None:
        """None where the ledger knows no records."""
        db = ledger.connection
        ledger.refresh()
        if not store.knows_records(db):
            return None
        ledger.refuse_changed_records()
        classes, _ = store.classes(db)
        totals = since(ledger, {one.number: one for one in store.sets(db)})
        spent = [history(one, totals) for one in classes]
        return cls(ledger, bytes.fromhex(store.meta(db, "key")), store.index(db), classes, spent)

    def of_people(self, words: Words) -> npt.NDArray[np.int64]:
        """The class of each person, by their words; -1 for who is not known."""
        at = self.index.people.find(digests(self.key, words ^ PEOPLE))
        every = self.index.classes.astype(np.int64)
        return np.where(at >= 0, every[at], -1) if len(every) else at

    def histories(self, each: Records) -> tuple[Spent, ...]:
        """Return what bounds the records of a unit, as if its set were opened now."""
        members = each.under(self.key)
        known = self._of_rows(members.rows, each.people is not None)
        if each.people is not None:
            found = np.unique(self.of_people(np.unique(each.people)), return_counts=True)
            pairs = zip(*(one.tolist() for one in found), strict=True)
            known += [(self.spent[place], size) for place, size in pairs if place >= 0]
        own = own_of(self.ledger, members.name) if each.kind == CLIENT else ()
        return bound(each.kind, own, known) or ((),)

    def _of_rows(self, rows: Words, named: bool) -> list[tuple[Counts, int]]:
        """Histories of rows by their digests (n, 2), and how many rows have each."""
        found = np.stack([self.index.rows.find(digest) for digest in rows.T], axis=1)
        # A row that is known under several names was in all that any was in. One that is nobody's
        # has the class -1.
        every = self.index.classes.astype(np.int64)
        classes = np.where(found >= 0, every[found], -1) if len(every) else found
        for name in range(1, found.shape[1]):
            same = (found[:, :name] == found[:, name : name + 1]).any(axis=1)
            classes[same, name] = -1
        distinct, counts = np.unique(classes, axis=0, return_counts=True)
        known: list[tuple[Counts, int]] = []
        for places, size in zip(distinct.tolist(), counts.tolist(), strict=True):
            parts = [
                place
                for place in places
                if place >= 0 and not (named and self.classes[place].owned)
            ]
            counted = sum((self.spent[place] for place in parts), Counts())
            if named and any(self.classes[place].loose for place in parts):
                counted[MIXED, SAMPLE, 1] += 1
            known.append((counted, size))
        return known


def burdens(ledger: Ledger | None, wanted: Sequence[Records]) -> dict[str, tuple[Burden, ...]]:
    """Return what bounds the records of each unit, as if the sets of all of these units, which are
    of one kind, were opened now; ``ledger`` is None where there is none yet.
    """
    known = None if ledger is None else _Known.of(ledger)
    found: dict[str, list[Burden]] = {}
    for (sets, at), part in _parts(wanted):
        size = part.most if part.people is not None and part.kind == SAMPLE else 1
        spent = ((),) if known is None else known.histories(part)
        found.setdefault(wanted[at].unit, []).extend(Burden(each, sets, size) for each in spent)
    return {unit: tuple(dict.fromkeys(each)) for unit, each in found.items()}


def _parts(
    wanted: Sequence[Records],
) -> Iterator[tuple[tuple[tuple[tuple[int, ...], ...], int], Records]]:
    """The records of each unit, parted by the sets that hold them, and the unit's place."""
    places = np.repeat(np.arange(len(wanted)), [len(each.rows) for each in wanted])
    people = [each.people for each in wanted if each.people is not None]
    if len(people) == len(wanted):  # equal rows of two persons are two records
        entity = np.unique(np.concatenate(people), return_inverse=True)[1].astype(np.int64)
    else:
        rows = stacked([each.rows for each in wanted])
        _, entity, _ = rows_found(Index.empty(), rows, 0)
    members = membership(entity, places, len(wanted))
    alike: dict[str, list[int]] = {}
    for i, each in enumerate(wanted):
        alike.setdefault(each.name, []).append(i)
    same = {i: tuple(group) for group in alike.values() for i in group}
    patterns = members.patterns[np.searchsorted(members.entities, entity)]
    for at, each in enumerate(wanted):
        if each.kind == CLIENT:  # what a whole client is charged is its own
            yield ((same[at],), at), each
            continue
        own = patterns[places == at]
        patterns_of: dict[tuple[Group, ...], list[int]] = {}
        for pattern in np.unique(own).tolist():
            # the same sets may be several patterns: of other numbers of rows
            first = tuple(sorted({same[i][0] for i, _ in members.pairs[pattern]}))
            patterns_of.setdefault(((first, 1),), []).append(pattern)
        for ((held, _),), chosen in fewer(patterns_of).items():
            of = [pattern for each_of in chosen for pattern in each_of]
            here = np.isin(own, of)
            whose = None if each.people is None else each.people[here]
            part = replace(each, rows=each.rows[here], people=whose)
            yield (tuple(same[i] for i in held), at), part
