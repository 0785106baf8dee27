"""What records have been in, asked of a ledger that stays as it is, and how a charge would count
for them: for plans, which open nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from sordino.privacy.event import Event
from sordino.privacy.ledger import Ledger
from sordino.privacy.records import store
from sordino.privacy.records.arrays import Index
from sordino.privacy.records.classes import Class, added, history, maximal
from sordino.privacy.records.group import (
    CLIENT,
    SAMPLE,
    Counts,
    Spent,
    beside_others,
    together,
    translated,
)
from sordino.privacy.records.identity import Records, Words, digests, name_of
from sordino.privacy.records.members import membership
from sordino.privacy.records.people import MIXED, PEOPLE
from sordino.privacy.records.price import SHOWN, of_own_client, since


def _sum(parts: Sequence[Counts]) -> Counts:
    return reduce(added, parts, {})


@dataclass(frozen=True, slots=True)
class Burden:
    """Some records of a unit: what they have spent, and how one charge on every unit of a run alike
    counts for them.

    Attributes:
        spent: a history that covers theirs.
        sizes: how many rows their person has in each unit that the person is in.
        held: where whole clients are charged, at how many clients people of this one are, and how
            many people; empty where none is at another.
    """

    spent: Spent
    sizes: tuple[int, ...] = (1,)
    held: tuple[tuple[int, int], ...] = ()

    def of(self, event: Event) -> Event:
        """One ``event`` on every unit."""
        return beside_others(event, self.held) if self.held else together(event, self.sizes)

    @property
    def alone(self) -> bool:
        """Whether a charge counts for them as it is booked."""
        return self.sizes == (1,) and not self.held


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What a ledger holds, as it is now: its key, its index, its classes and their histories."""

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
        classes, _ = store.classes(db)
        totals = since(ledger, {one.number: one for one in store.sets(db)}, None)
        spent = [history(one, totals) for one in classes]
        return cls(ledger, bytes.fromhex(store.meta(db, "key")), store.index(db), classes, spent)

    def of_people(self, words: Words) -> npt.NDArray[np.int64]:
        """The class of each person, by their words; -1 for who is not known."""
        at = self.index.people.find(digests(self.key, words ^ PEOPLE))
        every = self.index.classes.astype(np.int64)
        return np.where(at >= 0, every[at], -1) if len(every) else at

    def histories(self, each: Records) -> tuple[Spent, ...]:
        """Of one unit; see :func:`histories`."""
        rows = np.stack(
            [digests(self.key, each.rows[:, 0]), digests(self.key, each.rows[:, 1])], axis=1
        )
        people = None if each.people is None else digests(self.key, each.people ^ PEOPLE)
        known = self._of_rows(rows, people is not None)
        if each.people is not None:
            places = np.unique(self.of_people(np.unique(each.people)))
            known += [(self.spent[place], 1) for place in places.tolist() if place >= 0]
        if each.kind == CLIENT:
            name = name_of(replace(each, rows=rows, people=people), rows, people)
            booked = self.ledger.spent(name) if name in self.ledger.units() else ()
            return (of_own_client(booked, known),)
        return tuple(
            translated(one, each.kind) for one in maximal([counts for counts, _ in known], SHOWN)
        ) or ((),)

    def _of_rows(self, rows: Words, named: bool) -> list[tuple[Counts, int]]:
        """Histories of rows by their digests (n, 2), and how many rows have each."""
        whole, own = self.index.rows.find(rows[:, 0]), self.index.rows.find(rows[:, 1])
        # A row that is known under two names was in all that either was in. One that is nobody's
        # has the class -1.
        every = self.index.classes.astype(np.int64)
        pairs = np.stack(
            [np.where(at >= 0, every[at], -1) if len(every) else at for at in (whole, own)], axis=1
        )
        pairs[whole == own, 1] = -1
        distinct, counts = np.unique(pairs, axis=0, return_counts=True)
        known: list[tuple[Counts, int]] = []
        for (one, other), size in zip(distinct.tolist(), counts.tolist(), strict=True):
            parts = [place for place in (one, other) if place >= 0]
            counted: Counts = _sum([self.spent[place] for place in parts])
            if named and any(self.classes[place].loose for place in parts):
                counted = added(counted, {(MIXED, SAMPLE, 1): 1})
            known.append((counted, size))
        return known


def histories(ledger: Ledger, wanted: Sequence[Records]) -> dict[str, tuple[Spent, ...]]:
    """What bounds the records of each unit, as if its set were opened now; the price of a unit is
    the highest of these.
    """
    known = _Known.of(ledger)
    if known is None:
        return {each.unit: ((),) for each in wanted}
    return {each.unit: known.histories(each) for each in wanted}


def burdens(ledger: Ledger | None, wanted: Sequence[Records]) -> dict[str, tuple[Burden, ...]]:
    """What bounds the records of each unit, as if the sets of all of these units, which are of one
    kind, were opened now; ``ledger`` is None where there is none yet.
    """
    known = None if ledger is None else _Known.of(ledger)
    before = {each.unit: ((),) if known is None else known.histories(each) for each in wanted}
    found = {unit: [Burden(spent) for spent in spents] for unit, spents in before.items()}
    named = [each for each in wanted if each.people is not None]
    if not named:
        return {unit: tuple(each) for unit, each in found.items()}
    people, entity = np.unique(
        np.concatenate([each.people for each in named if each.people is not None]),
        return_inverse=True,
    )
    place = np.repeat(np.arange(len(named)), [len(each.rows) for each in named])
    members = membership(entity.reshape(-1).astype(np.int64), place, len(named))
    classes = np.full(len(people), -1) if known is None else known.of_people(people)
    pairs, counts = np.unique(
        np.stack([members.patterns, classes], axis=1), axis=0, return_counts=True
    )
    shared: dict[int, Counter[int]] = {}
    for (pattern, number), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        inside = members.pairs[pattern]
        for at, _ in inside:
            unit, kind = named[at].unit, named[at].kind
            if kind == CLIENT:
                shared.setdefault(at, Counter())[len(inside)] += count
                continue
            spent = translated(known.spent[number], kind) if known and number >= 0 else ()
            found[unit].append(Burden(spent, tuple(sorted(rows for _, rows in inside))))
    for at, held in shared.items():
        others = tuple((size, count) for size, count in sorted(held.items()) if size > 1)
        found[named[at].unit] = [replace(one, held=others) for one in found[named[at].unit]]
    return {unit: tuple(dict.fromkeys(each)) for unit, each in found.items()}
