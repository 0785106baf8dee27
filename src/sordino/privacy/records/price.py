r"""What a charge is held against: the history of every entity in the set.

It is translated into the unit that the set protects.

A set's entities have few histories, for they fall into classes. A history that covers others is
asked first: where it is within the budget, so are they. Only where it is not are its parts asked
one by one. So a charge costs what it did before records were known, unless the budget is nearly
spent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sordino.errors import BudgetExceeded, LedgerError
from sordino.privacy.accounting import accountant
from sordino.privacy.budget import Budget
from sordino.privacy.event import Composed, Event, NonPrivate, encode
from sordino.privacy.ledger import Ledger
from sordino.privacy.records import store
from sordino.privacy.records.classes import Class, Totals, added, history, maximal, most, of_group
from sordino.privacy.records.group import (
    CLIENT,
    Column,
    Counts,
    Spent,
    beside_others,
    of_client,
    together,
    translated,
)
from sordino.privacy.records.store import Set

SHOWN = 16
"""Histories of a set that are priced one by one; more are merged into ones that cover them."""


def since(ledger: Ledger, sets: Mapping[int, Set], until: int | None) -> Totals:
    """What was charged on each set since it was opened."""
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
    """What memory holds of the tables, as of one version of them."""

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

    def admit(self, names: Mapping[str, str]) -> Callable[[Sequence[str], Budget], None]:
        """What refuses charges that are about to be booked; ``names`` are units' for people."""

        def check(touched: Sequence[str], budget: Budget) -> None:
            seen = self._refreshed()
            totals = since(self.ledger, seen.sets, None)
            for unit in touched:
                # kept, and of no record: a party's features, which its entity books as well
                if unit not in seen.numbers:
                    self._never_a_set(unit)
                    budget.admit(names.get(unit, unit), self.ledger.booked(unit).items())
                    continue
                number = seen.numbers[unit]
                if seen.sets[number].kind == CLIENT:
                    self._ask(
                        budget, names.get(unit, unit), [self._client(seen, number, totals, None)]
                    )
                    continue
                for one, counts in self._upper(seen, number):
                    live = _live(one, totals)
                    kind = seen.sets[number].kind
                    try:
                        budget.admit(names.get(unit, unit), translated(added(counts, live), kind))
                    except BudgetExceeded:
                        alike = [
                            dict(each.frozen)
                            for each, _ in seen.classes[number]
                            if each.live == one.live
                        ]
                        whole = maximal(alike, len(alike))
                        self._ask(
                            budget,
                            names.get(unit, unit),
                            [translated(added(each, live), kind) for each in whole],
                        )

        return check

    def _ask(self, budget: Budget, name: str, histories: Sequence[Spent]) -> None:
        for spent in histories:
            try:
                budget.admit(name, spent)
            except BudgetExceeded as refusal:
                if (blame := self.blame(spent)) is not None:
                    raise BudgetExceeded(f"{name}: {blame}") from refusal
                raise

    def histories(self, unit: str, until: int | None = None) -> list[Spent]:
        """What bounds the records of a set: up to :data:`SHOWN` histories, to entry ``until``."""
        return [spent for spent, _ in self._priced(unit, until)]

    def remaining(self, unit: str, event: Event, budget: Budget, run: str) -> int | None:
        """How often ``event`` can be charged on all sets alike, for this set's records."""
        left = [
            budget.remaining_steps(each, spent)
            for spent, each in self._priced(unit, None, event, run)
        ]
        found = [steps for steps in left if steps is not None]
        return min(found) if found else None

    def _priced(
        self, unit: str, until: int | None, event: Event | None = None, run: str = ""
    ) -> list[tuple[Spent, Event]]:
        """Histories, and what one ``event`` on every set is to the records that have them."""
        seen = self._refreshed()
        number = seen.numbers.get(unit)
        self.ledger.refresh()
        if number is None:
            return [(self.ledger.spent(unit, until), event or Composed(()))]
        totals, kind = since(self.ledger, seen.sets, until), seen.sets[number].kind
        if kind == CLIENT:
            whole = Composed(()) if event is None else self._on_clients(seen, number, run, event)
            return [(self._client(seen, number, totals, until), whole)]
        by_size: dict[tuple[int, ...], list[Counts]] = {}
        for one, _ in seen.classes.get(number, ()):
            sizes = tuple(
                sorted(
                    size
                    for group, size in one.live
                    if any(self._of(seen, each, kind, run) for each in group)
                )
            )
            by_size.setdefault(sizes if event is not None else (), []).append(history(one, totals))
        found = []
        for sizes, counts in by_size.items():
            whole = Composed(()) if event is None else together(event, sizes)
            found += [(translated(one, kind), whole) for one in maximal(counts, SHOWN)]
        return found

    def _on_clients(self, seen: _Seen, number: int, run: str, event: Event) -> Event:
        """One ``event`` on every client of a run, as it bounds this one."""
        held = [
            (size, records)
            for one, records in seen.classes.get(number, ())
            for group, size in one.live
            if number in group and any(self._of(seen, each, CLIENT, run) for each in group)
        ]
        return beside_others(event, held)

    def _of(self, seen: _Seen, number: int, kind: str, run: str) -> bool:
        return run in seen.sets[number].runs and seen.sets[number].kind == kind

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
        unit = seen.sets[number].unit
        own = (
            tuple(self.ledger.booked(unit).items())
            if until is None
            else self.ledger.spent(unit, until)
        )
        return of_own_client(
            own, [(history(one, totals), size) for one, size in seen.classes.get(number, ())]
        )

    def _refreshed(self) -> _Seen:
        db = self.ledger.connection
        version = store.meta(db, "version")
        if self._seen.version != version:
            sets = {one.number: one for one in store.sets(db, live=True)}
            seen = _Seen(version, sets, {one.unit: one.number for one in sets.values()})
            for one, size in zip(*store.classes(db), strict=True):
                for number in one.sets:
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

    def _never_a_set(self, unit: str) -> None:
        if (
            self.ledger.connection.execute(
                "SELECT 1 FROM record_sets WHERE unit = ?", (unit,)
            ).fetchone()
            is not None
        ):
            raise LedgerError(
                f"{self.ledger.path}: {unit} was closed, for its run had ended; open it "
                "again with `sordino run --resume`"
            )


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
    known = [
        (one, history(one, totals), size)
        for one, size in zip(*store.classes(db), strict=True)
        if size
    ]
    alike: dict[tuple[str, int | None, Spent], tuple[Spent, ...]] = {}
    found = {}
    for one in sets.values():
        own = ledger.spent(one.unit)
        key = one.kind, one.number if one.live else None, own
        if key not in alike:
            late()
            if one.live:
                among = [(counts, size) for each, counts, size in known if one.number in each.sets]
            else:
                among = [
                    (counts, size) for _, counts, size in known if _contains(counts, one.kind, own)
                ]
            alike[key] = _bound(one.kind, own, among, SHOWN if len(alike) < SHOWN else 1)
        found[one.unit] = alike[key]
    return found


def _contains(counts: Counts, kind: str, own: Spent) -> bool:
    """Whether a history has all of a set's charges, for several rows of a person in columns."""
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
