r"""Prices of records: a charge is held against the history of every entity in the set.

It is translated into the unit that the set protects.

A set's entities have few histories, for they fall into classes. A history that covers others is
asked first: where it is within the budget, so are they. Only where it is not are its parts asked
one by one. So a charge costs what it did before records were known, unless the budget is nearly
spent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sordino.base.errors import BudgetExceeded, HeldBack, LedgerError
from sordino.privacy.accounting import accountant
from sordino.privacy.budget import Budget
from sordino.privacy.chain import BEGIN, OUTSIDE, PROMISED, RECORDS, Entry
from sordino.privacy.event import Event, NonPrivate, encode
from sordino.privacy.ledger import Ledger
from sordino.privacy.records import store
from sordino.privacy.records.classes import (
    Class,
    Group,
    Totals,
    added,
    history,
    maximal,
    most,
    of_group,
)
from sordino.privacy.records.group import (
    CLIENT,
    Column,
    Counts,
    Spent,
    composed,
    of_client,
    together,
    translated,
)
from sordino.privacy.records.store import Set

K = TypeVar("K")
_TUNED = re.compile("[0-9a-f]{16}/(public$|tune/)")  # keys of a tuning
SHOWN = 16
"""Histories of a set that are priced one by one; more are merged into ones that cover them."""


def since(ledger: Ledger, sets: Mapping[int, Set], until: int | None) -> Totals:
    """Return what was charged on each set since it was opened."""
    found: dict[int, tuple[str, dict[Event, int]]] = {}

    def totals(number: int) -> tuple[str, Mapping[Event, int]]:
        if number not in found:
            one = sets[number]
            before = dict(one.before)
            booked = (
                ledger.booked(one.unit) if until is None else dict(ledger.spent(one.unit, until))
            )
            spent = {event: max(0, count - before.get(event, 0)) for event, count in booked.items()}
            found[number] = one.kind, {event: count for event, count in spent.items() if count}
        return found[number]

    return totals


@dataclass(slots=True, eq=False)
class _Seen:
    """The tables in memory, as of one version of them."""

    version: str = ""
    sets: dict[int, Set] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    classes: dict[int, list[tuple[Class, int]]] = field(default_factory=dict)
    upper: dict[int, list[tuple[Class, dict[Column, int]]]] = field(default_factory=dict)


class Prices:
    """The histories behind the sets of one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._seen = _Seen()
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
            seen = self._refreshed()
            for unit in charged:
                if run not in self._holders(unit):
                    raise LedgerError(
                        f"{self.ledger.path}: run {run} was ended with `sordino ledger end`, so it "
                        f"charges nothing more on {names.get(unit, unit)}; stop its process"
                    )
            totals = since(self.ledger, seen.sets, None)
            own = {seen.numbers[unit]: budget for unit, budget in charged.items()}
            for number in sorted(self._sharing(seen, own)):
                unit = seen.sets[number].unit
                if number in own:
                    self._within(seen, number, own[number], names.get(unit, unit), totals, own)
                for whose, budget in self._promises(unit).items():
                    if budget == own.get(number):
                        continue
                    name = names.get(unit, unit) if whose == run else f"{unit} of run {whose}"
                    try:
                        self._within(seen, number, budget, name, totals, own)
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
        seen = self._refreshed()
        self.ledger.refresh()
        number = seen.numbers.get(unit)
        try:
            if number is None:
                budget.admit(unit, self.ledger.spent(unit))
            else:
                totals = since(self.ledger, seen.sets, None)
                self._within(seen, number, budget, unit, totals, {number})
        except BudgetExceeded:
            return False
        return True

    def _sharing(self, seen: _Seen, numbers: Collection[int]) -> set[int]:
        """Sets that share a record with one of these, and these."""
        found = set(numbers)
        for number in numbers:
            for one, _ in seen.classes.get(number, ()):
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
        seen: _Seen,
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
        kind = seen.sets[number].kind
        if kind == CLIENT:
            self._ask(budget, name, [self._client(seen, number, totals, None)])
            return
        for one, counts in self._upper(seen, number):
            if one.sets.isdisjoint(charged):
                continue
            live = _live(one, totals)
            try:
                budget.admit(name, translated(added(counts, live), kind))
            except BudgetExceeded:
                alike = [
                    dict(each.frozen) for each, _ in seen.classes[number] if each.live == one.live
                ]
                whole = maximal(alike, len(alike))
                self._ask(budget, name, [translated(added(each, live), kind) for each in whole])

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
        seen = self._refreshed()
        number = seen.numbers.get(unit)
        self.ledger.refresh()
        if number is None:
            return [self.ledger.spent(unit, until)]
        totals, kind = since(self.ledger, seen.sets, until), seen.sets[number].kind
        if kind == CLIENT:
            return [self._client(seen, number, totals, until)]
        counts = [history(one, totals) for one, _ in seen.classes.get(number, ())]
        return [translated(one, kind) for one in maximal(counts, SHOWN)]

    def remaining(
        self, events: Mapping[str, Sequence[Event]], budgets: Mapping[str, Budget]
    ) -> dict[str, int | None]:
        """Return how often the events of every set can be charged on all sets alike, for the
        records of each; None where nothing limits it.

        It counts as admission does: the budget of each set that a record is in, and what other runs
        promised to sets of this kind that share it.
        """
        seen = self._refreshed()
        self.ledger.refresh()
        on = {seen.numbers[name]: each for name, each in events.items() if name in seen.numbers}
        return {unit: self._remaining(seen, unit, on, events, budgets) for unit in events}

    def _remaining(
        self,
        seen: _Seen,
        unit: str,
        on: Mapping[int, Sequence[Event]],
        events: Mapping[str, Sequence[Event]],
        budgets: Mapping[str, Budget],
    ) -> int | None:
        if (number := seen.numbers.get(unit)) is None:
            spent = self.ledger.spent(unit)
            return budgets[unit].remaining_steps(composed(events[unit]), spent)
        totals, kind = since(self.ledger, seen.sets, None), seen.sets[number].kind
        if kind == CLIENT:
            own = self._client(seen, number, totals, None)
            return budgets[unit].remaining_steps(composed(events[unit]), own)
        alike: dict[tuple[Group, ...], list[Counts]] = {}
        most: dict[tuple[Group, ...], set[Budget]] = {}
        for one, _ in seen.classes.get(number, ()):
            found = [(tuple(each for each in sets if each in on), size) for sets, size in one.live]
            key = tuple(sorted(group for group in found if group[0]))
            alike.setdefault(key, []).append(history(one, totals))
            for each in one.sets:
                other = seen.sets[each]
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

    def _client(self, seen: _Seen, number: int, totals: Totals, until: int | None) -> Spent:
        """The one history of a client: its own, and what its records were in besides."""
        own = own_of(self.ledger, seen.sets[number].unit, until)
        return of_own_client(
            own, [(history(one, totals), size) for one, size in seen.classes.get(number, ())]
        )

    def _refreshed(self) -> _Seen:
        db = self.ledger.connection
        version = store.meta(db, "version")
        if self._seen.version != version:
            self.ledger.refuse_changed_records()
            sets = {one.number: one for one in store.sets(db, live=True)}
            seen = _Seen(version, sets, {one.unit: one.number for one in sets.values()})
            for one, size in zip(*store.classes(db), strict=True):
                for number in () if one.owned else one.sets:
                    seen.classes.setdefault(number, []).append((one, size))
            self._seen = seen
        return self._seen

    def _upper(self, seen: _Seen, number: int) -> list[tuple[Class, dict[Column, int]]]:
        """For each way to be live: one class, and counts that cover the frozen ones of all."""
        if number not in seen.upper:
            found: dict[object, tuple[Class, dict[Column, int]]] = {}
            for one, _ in seen.classes.get(number, ()):
                known = found.get(one.live)
                found[one.live] = (
                    one,
                    most(known[1], dict(one.frozen)) if known is not None else dict(one.frozen),
                )
            seen.upper[number] = list(found.values())
        return seen.upper[number]


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
    found: dict[Event, int] = {}
    for each in store.alike(ledger.connection, unit):
        spent = ledger.booked(each).items() if until is None else ledger.spent(each, until)
        for event, count in spent:
            found[event] = found.get(event, 0) + count
    return tuple(found.items())


def of_own_client(own: Spent, known: Sequence[tuple[Counts, int]]) -> Spent:
    """A client's history: its own, and what its records' histories hold besides."""
    others = []
    for each, size in known:
        counts = dict(each)
        for event, count in own:
            # Where a person is at several clients, the columns do not tell which of the releases
            # were this client's.
            if not any(booked == event and kind == CLIENT and k > 1 for booked, kind, k in counts):
                counts[event, CLIENT, 1] = max(0, counts.get((event, CLIENT, 1), 0) - count)
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
    totals = since(ledger, {number: one for number, one in sets.items() if one.live}, None)
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
            alike[key] = _bound(one.kind, own, among, SHOWN if len(alike) < SHOWN else 1)
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
    booked: dict[Event, int] = {}
    for (event, of, _), count in counts.items():
        if of == kind:
            booked[event] = booked.get(event, 0) + count
    return all(booked.get(event, 0) >= count for event, count in own)


def _bound(
    kind: str, own: Spent, among: Sequence[tuple[Counts, int]], most_histories: int
) -> tuple[Spent, ...]:
    if kind == CLIENT:
        return (of_own_client(own, among),)
    return tuple(
        translated(one, kind) for one in maximal([counts for counts, _ in among], most_histories)
    ) or (own,)


def _live(one: Class, totals: Totals) -> dict[Column, int]:
    found: dict[Column, int] = {}
    for group in one.live:
        found = added(found, of_group(group, totals))
    return found
