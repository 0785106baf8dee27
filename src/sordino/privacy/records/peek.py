"""Histories of records, asked of a ledger that stays as it is, and how a charge would count
for them: for plans, which open nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from sordino.privacy.event import Event
from sordino.privacy.ledger import Ledger
from sordino.privacy.records import store
from sordino.privacy.records.classes import Class, Group, added, history, maximal
from sordino.privacy.records.group import (
    CLIENT,
    SAMPLE,
    Counts,
    Spent,
    composed,
    together,
    translated,
)
from sordino.privacy.records.identity import Records, Words, digests, membership, name_of
from sordino.privacy.records.people import MIXED, PEOPLE
from sordino.privacy.records.price import SHOWN, fewer, of_own_client, own_of, since
from sordino.privacy.records.store import Index, rows_found


def _sum(parts: Sequence[Counts]) -> Counts:
    return reduce(added, parts, {})


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
            found = np.unique(self.of_people(np.unique(each.people)), return_counts=True)
            pairs = zip(*(one.tolist() for one in found), strict=True)
            known += [(self.spent[place], size) for place, size in pairs if place >= 0]
        if each.kind == CLIENT:
            name = name_of(replace(each, rows=rows, people=people), rows, people)
            return (of_own_client(own_of(self.ledger, name), known),)
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
            parts = [
                place
                for place in (one, other)
                if place >= 0 and not (named and self.classes[place].owned)
            ]
            counted: Counts = _sum([self.spent[place] for place in parts])
            if named and any(self.classes[place].loose for place in parts):
                counted = added(counted, {(MIXED, SAMPLE, 1): 1})
            known.append((counted, size))
        return known


def histories(ledger: Ledger, wanted: Sequence[Records]) -> dict[str, tuple[Spent, ...]]:
    """Return what bounds the records of each unit, as if its set were opened now; the price of a
    unit is the highest of these.
    """
    known = _Known.of(ledger)
    if known is None:
        return {each.unit: ((),) for each in wanted}
    return {each.unit: known.histories(each) for each in wanted}


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
        rows = np.concatenate([each.rows for each in wanted])
        _, entity, _ = rows_found(Index.empty(), rows, 0)
    members = membership(entity, places, len(wanted))
    alike: dict[str, list[int]] = {}
    for i, each in enumerate(wanted):
        alike.setdefault(name_of(each, each.rows, each.people), []).append(i)
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
