r"""One budget for the same people: who is in which set, over runs, units, partitions and files.

A run *opens* its sets: who is in each, told by digests. What is charged on a set counts for every
entity in it. When a run has ended it *closes* its sets: what was booked on them is frozen into its
classes' histories, and classes with equal histories become one again. What a charge is held
against: :mod:`sordino.privacy.records.price`.

A set is named by who is in it. A run that is resumed, or a later one that divides the same data
alike, finds it again. While one run holds a set open, another gets a set of its own, named by the
run as well. For a record that may be in one of several sets is in one of them *within a run*: its
price is the largest of theirs, and what different runs were charged adds up.

There are at most :data:`MOST_CLASSES` classes, however many records. What is over is merged into
classes that cover it.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import numpy.typing as npt

from sordino.base.errors import LedgerError, ResumeError
from sordino.base.siphash import stacked
from sordino.privacy.budget import Budget
from sordino.privacy.chain import OUTSIDE, RECORDS, SEAL
from sordino.privacy.event import Event
from sordino.privacy.ledger import Ledger
from sordino.privacy.records import store
from sordino.privacy.records.classes import (
    Class,
    Numbers,
    Pool,
    bridged,
    closed,
    frozen,
    histories,
    joined,
    of_rows_alike,
)
from sordino.privacy.records.group import CLIENT, ENTITY, LABEL, PERSON, SAMPLE
from sordino.privacy.records.identity import Membership, Places, Records, Words, groups, membership
from sordino.privacy.records.price import (
    MIXED,
    Burden,
    Prices,
    contains,
    counted_until,
    outside,
    own_of,
    since,
)
from sordino.privacy.records.store import Index, Set, connected

# Theory of operation
#
# Four things, from the outside to the inside:
#
#     row, person   what data holds. A row becomes keyed digests (of all its values, of its
#                   features, of all but the label), a person one.
#     entity        all rows and persons that digests or links say are one. Two that turn out to
#                   be one are merged; an entity is never split.
#     class         a history. Entities with equal histories share one, so that ten million entities
#                   need some hundreds of classes.
#     set           a unit of a run: some client's examples, the labels of a stream. A charge is
#                   booked on a set, under its name, as on any unit.
#
# The index (digest -> entity -> class) and the classes are tables beside the chain. Each change of
# them is one transaction, which ends with a note in the chain that holds their digest, so that a
# table that was changed by somebody else is found before it is believed.
#
# A set lives like this. *Opened*: every entity in it moves to a class that also has the group
# ({this set, and others of the same run that may hold it instead}, how many units it is there).
# *Charged*: nothing moves. What was booked on a set since it was opened is read from the chain
# when a history is asked for, and counts for each class with a group that has the set in it.
# *Closed*, when the last run that holds it open has ended: what was booked is added to the counts
# of these classes, their groups go, and classes that are now equal become one.
#
# A charge is then held against the history of every class with an entity in the set, and of every
# set that shares one with it (:mod:`.price`): the promises of other runs bind as well.
#
# What must hold, always: **the history of a class is at least that of each of its entities.**
# Wherever something is not known, the larger is taken:
#
# * a record that may be in one of several sets of one run has a history for each, and its price is
#   the largest of theirs; in sets of different runs it has the sum (``classes.histories``). A run
#   that asks for one of its sets gets the histories of records that are in that one, so equal rows
#   in two of its sets change nothing for it;
# * rows with one digest are one entity, though they may be two;
# * with too many classes the nearest are merged into one that covers both (``classes.coarser``);
# * who joins two entities (a link, a person) adds their counts, and their sizes where one run may
#   have used both at once (``classes.joined``);
# * rows that were used before anybody named persons have no bound for persons (:data:`MIXED`).
#
# Nothing here lowers a history, and no operation takes a note of the chain back. So a wrong merge
# costs budget and never privacy. tests/privacy/test_people.py compares with a book that keeps every
# record by itself.

MOST_CLASSES = 4096


def open_sets(
    ledger: Ledger,
    run: str,
    wanted: Sequence[Records],
    *,
    known: bool = False,
    key: bytes | None = None,
    data: str = "",
) -> dict[str, str]:
    """Open the sets of a run; the name of each unit's set. Open ones stay as they are.

    Args:
        known: whether the run has begun: then the sets must be there, and its ``data`` (a
            fingerprint of all rows, in their order) be the same.
        key: of the digests, where it is not to stand in the ledger.

    Raises:
        LedgerError: if the file cannot be written.
        ResumeError: if the run is ``known``, and a set is not, or the data is another.
    """
    apart = key is not None
    with ledger.transaction() as db:
        ledger.refuse_changed_records()
        store.prepare(db, apart=apart)
        key = key or _key(db, ledger)
    members: dict[str, str] = {}
    distinct: dict[str, Records] = {}
    units = Counter[str]()
    for each in wanted:
        records = each.under(key)
        # a version before may have charged it under another name
        charged = (name for name in records.names if own_of(ledger, name))
        name = next(charged, records.names[0])
        units[name] += 1
        if records.people is None:  # equal rows are two people's
            name = store.nth(name, units[name] - 1, aside=records.aside)
        members[each.unit] = name
        alike = 0 if name not in distinct else distinct[name].units
        distinct[name] = replace(records, units=alike + 1)
    if known:
        kept = ledger.units()
        for unit, name in members.items():
            if name not in kept and store.of_run(name, run) not in kept:
                raise ResumeError(
                    f"{ledger.path}: the records of {unit} are not those that the run began "
                    "with. Put back the data, or begin a new run"
                )
        ledger.refuse_other_data(run, data)
    with ledger.transaction() as db:
        ledger.refuse_changed_records()
        sets = {one.unit: one for one in store.sets(db)}
        names = {name: _set_name(ledger, sets, name, run, known=known) for name in distinct}
        ledger.register({name: name for name in names.values()})
        free = max((one.number for one in sets.values()), default=0) + 1
        fresh: dict[int, Records] = {}
        for members_name, records in distinct.items():
            name = names[members_name]
            old = sets.get(name)
            if old is not None and old.live:
                store.put_set(db, replace(old, runs=tuple(dict.fromkeys((*old.runs, run)))))
                continue
            number, free = (free, free + 1) if old is None else (old.number, free)
            # what a unit of this name was charged before it was a set counts for every record
            counts = () if old is None else ledger.spent(name)
            store.put_set(db, Set(number, name, records.kind, True, counts, (run,)))
            fresh[number] = records
        if fresh:
            opening = int(store.meta(db, "openings"))
            store.put_meta(db, "openings", str(opening + 1))
            before, pool = store.index(db), Pool(store.classes(db)[0])
            index = _counted(ledger, sets, before, pool)
            runs = {one.number: one.runs for one in sets.values()}
            opened = _Opening([*fresh], [*fresh.values()], opening, pool, apart, runs)
            rows = stacked(opened.rows)
            index, owners, same = store.found(index, rows, pool.blank)
            _count_equal(ledger, index, same, pool)
            index = opened.entered(_merged(index, same, pool, bridged), owners)
            for number, records in fresh.items():
                if records.kind == CLIENT and records.people is None:
                    entities = np.unique(index.rows.find(records.rows[:, 0]))
                    if equal := len(records.rows) - len(entities):
                        store.put_equal_rows(db, number, equal)
            _keep(ledger, index, before, pool, ledger.head()[0])
    return {unit: names[name] for unit, name in members.items()}


def burdens(
    ledger: Ledger | None, wanted: Sequence[Records], budgets: Sequence[Budget] = ()
) -> dict[str, tuple[Burden, ...]]:
    """Return what would bound the records of each unit if the sets of all of these units were
    opened now, with these promises; ``ledger`` stays as it is, and is None where there is none yet.
    """
    with Ledger.scratch(ledger) as copy:
        return Prices(copy).burdens(open_sets(copy, "plan", wanted), budgets)


def recognised(ledger: Ledger, records: Records) -> tuple[int, int]:
    """Return how many of these rows a ledger of the data knows, by their values or by their
    persons, and how many different rows it knows in all.
    """
    db = ledger.connection
    if not store.knows_records(db) or not store.meta(db, "key"):
        return 0, 0
    index, own = store.index(db), records.under(_key(db, ledger))
    known = _found(index.rows, own.rows)
    if own.people is not None:
        known |= _found(index.people, own.people)
    return int(known.sum()), len(np.unique(index.rows.owners))


def _found(book: store.Book, words: Words) -> npt.NDArray[np.bool_]:
    """Tell of each row of words (n, w) whether any of them is in the book."""
    there = (book.find(words.reshape(-1)) >= 0).reshape(words.shape)
    return np.asarray(there.any(axis=1))


def _set_name(ledger: Ledger, sets: Mapping[str, Set], name: str, run: str, *, known: bool) -> str:
    """The name of a run's set: that of its members, unless another run holds that one open.

    Raises:
        ResumeError: for a run that ended without a seal, whose set another run has opened since.
    """
    own, old = store.of_run(name, run), sets.get(name)
    if own in sets:
        return own
    if old is None or not old.live or run in old.runs:
        return name
    if not (known or ledger.charged_by(run, name)):
        return own
    if known and ledger.noted(SEAL, run) is None:
        raise ResumeError(
            f"{ledger.path}: run {run} was ended, and another run has opened its records since. "
            "Finish or end that one before, or begin a new run"
        )
    return name  # what it releases is booked already


def _key(db: sqlite3.Connection, ledger: Ledger) -> bytes:
    """The key of the digests that stands in the ledger."""
    if not (kept := store.meta(db, "key")):
        raise LedgerError(
            f"{ledger.path}: this is the ledger of one run, and the key of its records is not in "
            "it. Give the folder of a ledger of the data"
        )
    return bytes.fromhex(kept)


def close_sets(ledger: Ledger, run: str) -> bool:
    """A run has ended: freeze what was booked on sets that nobody else holds open; whether it held
    any.
    """
    with ledger.transaction() as db:
        if not store.knows_records(db) or not store.meta(db, "key"):
            return False  # a run's own ledger has no later run
        ledger.refuse_changed_records()
        held = [one for one in store.sets(db) if run in one.runs]
        for one in held:
            store.put_set(db, replace(one, runs=tuple(each for each in one.runs if each != run)))
        sets = {one.number: one for one in store.sets(db)}
        done = {one.number for one in sets.values() if one.live and not one.runs}
        known, _ = store.classes(db)
        while shared := {
            s
            for one in known
            for group, _ in one.live
            if not done.issuperset(group)
            for s in group
            if s in done
        }:
            done -= shared  # a group of alternatives is frozen as a whole, or not at all
        if not done:
            return bool(held)
        totals = since(ledger, sets)
        before, pool = store.index(db), Pool()
        numbers = np.array(
            [pool.put(closed(one, frozenset(done), totals)) for one in known], np.uint32
        )
        for number in done:
            store.put_set(db, replace(sets[number], live=False, before=()))
        _keep(ledger, replace(before, classes=numbers[before.classes]), before, pool)
    return bool(held)


def open_runs(ledger: Ledger) -> list[str]:
    """The runs that hold sets of a ledger of the data open, in the order of their sets."""
    db = ledger.connection
    if "record_meta" not in ledger.format.tables or not store.knows_records(db):
        return []
    if not store.meta(db, "key"):
        return []
    return list(dict.fromkeys(run for one in store.sets(db) for run in one.runs))


def link(ledger: Ledger, one: Words, other: Words) -> int:
    """Say that rows ``one[i]`` and ``other[i]`` (n, 2 m) are one person; how many were joined.

    Rows that are several times in ``other`` are as many rows of their person.
    """
    with ledger.transaction() as db:
        ledger.refuse_changed_records()
        store.prepare(db)
        key = _key(db, ledger)
        before, pool = store.index(db), Pool(store.classes(db)[0])
        rows = Records("", SAMPLE, stacked([one, other])).under(key).rows
        index, owners, same = store.found(before, rows, pool.blank)
        _count_equal(ledger, index, same, pool)
        index = _merged(index, same, pool, bridged)
        pairs = np.stack([owners[: len(one)], owners[len(one) :]], axis=1)
        index = _alike(
            index, pairs[:, 1], other, pool, {each.number: each for each in store.sets(db)}
        )
        together = _together(pairs[pairs[:, 0] != pairs[:, 1]])
        index = _merged(index, together, pool, joined)
        book = index.rows.led(together, len(index.classes))
        _keep(ledger, replace(index, rows=book), before, pool)
    return sum(map(len, together.values()))


def _counted(ledger: Ledger, sets: Mapping[str, Set], index: Index, pool: Pool) -> Index:
    """The index once charges on sets that no run made are in the histories of their records.

    Versions before let anybody charge a set by its name. Who is in a set that is closed is not
    known any more: all those count whose histories hold what runs charged it.
    """
    found = outside(ledger)
    if not found:
        return index
    totals = since(ledger, {one.number: one for one in sets.values()})
    own = {one.number: Counter(dict(ledger.spent(one.unit))) for one in sets.values()}
    missing: dict[int, Counter[Event]] = {}
    for entry in found:
        one = sets[entry.unit]
        own[one.number][entry.event] -= entry.count
        if not one.live or entry.event in dict(one.before):  # else its set counts it
            missing.setdefault(one.number, Counter())[entry.event] += entry.count
    numbers = []
    for each in tuple(pool.classes):
        whole = histories(each, totals)
        for one in sets.values():
            more = missing.get(one.number)
            spent = tuple((+own[one.number]).items())
            alike = any(contains(way, one.kind, spent) for way in whole)
            if more and (one.number in each.sets or alike):
                kinds = (column for way in whole for column in way)
                size = max((size for _, kind, size in kinds if kind == one.kind), default=1)
                new = {(event, one.kind, size): count for event, count in more.items()}
                each = replace(each, frozen=frozen(each.counts + Counter(new)))
        numbers.append(pool.put(each))
    return replace(index, classes=np.array(numbers, np.uint32)[index.classes])


@dataclass(frozen=True, slots=True, eq=False)
class _Opening:
    """Sets that are opened together; the key is kept ``apart`` of the ledger of one run, which
    others see; ``runs`` hold the sets that are open already.
    """

    numbers: Sequence[int]
    records: Sequence[Records]
    opening: int
    pool: Pool
    apart: bool
    runs: Mapping[int, tuple[str, ...]]

    @property
    def named(self) -> list[bool]:
        """Which of the sets name the person of each row."""
        return [records.people is not None for records in self.records]

    @property
    def rows(self) -> list[Words]:
        """The rows of each set."""
        # No later run asks for the rows of persons there, and rows that look the same would show.
        shown = slice(0 if self.apart and all(self.named) else None)
        return [one.rows[shown] for one in self.records]

    def entered(self, index: Index, owners: Places) -> Index:
        """The index with everybody in the classes that follow; ``owners`` are the entities of all
        rows.
        """
        pool, records = self.pool, self.records
        at = np.repeat(np.arange(len(records)), list(map(len, self.rows)))
        classes, named = index.classes.copy(), np.array(self.named, bool)[at]
        nameless = classes[owners[~named]]
        self._refuse_nameless(nameless, classes[index.people.owners])
        self._lose(classes, self._whose(nameless, index.people.owners, classes))
        index = replace(index, classes=classes)
        if any(self.named):
            loose = np.array([one.loose for one in pool.classes])[classes]
            whose = stacked([one.people for one in records if one.people is not None])
            person = pool.put(Class(person=True))
            index, people, same = store.found(index, whose, person, people=True)
            index = _merged(index, same, pool, bridged)
            classes = index.classes.copy()
            many = [0 if one.people is None else len(one.people) for one in records]
            places = np.repeat(np.arange(len(records)), many)
            if len(owners):
                self._lose(classes, people[loose[owners[named]]])
            self._move(classes, self._membership(people, places, people))
        if len(owners):
            names = people if all(self.named) else owners
            self._move(classes, self._membership(owners, at, names), by_rows=True)
        return replace(index, classes=classes)

    def _lose(self, classes: Numbers, people: npt.NDArray[np.integer[Any]]) -> None:
        """Give these persons a history without a bound; in place."""
        mixed, pool = np.unique(people), self.pool
        lost = np.arange(len(pool.classes), dtype=np.uint32)
        for number in np.unique(classes[mixed]).tolist():
            one = pool.classes[number]
            counts = one.counts + Counter({(MIXED, SAMPLE, 1): 1})
            lost[number] = pool.put(replace(one, frozen=frozen(counts)))
        classes[mixed] = lost[classes[mixed]]

    def _whose(self, nameless: Numbers, people: Numbers, classes: Numbers) -> Numbers:
        """Return the persons whose rows these may be that were used with their persons alone until
        now, and are used without: no table says it, so all that were in a run with one of them.
        """
        found = (self.pool.classes[number] for number in np.unique(nameless).tolist())
        runs = reduce(or_, (one.runs for one in found), 0)
        there = [number for number, one in enumerate(self.pool.classes) if one.runs & runs]
        return people[np.isin(classes[people], there)]

    def _refuse_nameless(self, rows: Numbers, people: Numbers) -> None:
        """Refuse rows without persons that another run holds for their persons; classes of both.

        It would not be known how many of a person's rows are charged, so nothing would be held
        against what the other run promised.

        Raises:
            LedgerError: naming the runs.
        """
        held, named = (
            {each for number in np.unique(part).tolist() for each in self.pool.classes[number].sets}
            for part in (rows, people)
        )
        if runs := sorted({run for each in held & named for run in self.runs[each]}):
            raise LedgerError(
                f"rows of this run are held open by run {', '.join(runs)}, which promises a budget "
                "to the persons in them (data.person, data.entity), and this run does not name "
                "them: name them, or finish that run first, or end it with `sordino ledger end`"
            )

    def _membership(self, entity: Places, at: Places, names: Places) -> Membership:
        """Return who is in which set, by how many rows; where all rows under a name have one price
        (streams that name entities, persons who are clipped), by how many of these ``names``.
        """
        sets, kinds = len(self.records), (ENTITY, LABEL, PERSON)
        if all(self.named):
            several = int(names.max(initial=0)) + 1
            once = np.array([one.kind in kinds for one in self.records])[at]
            codes = np.unique((entity[once] * sets + at[once]) * several + names[once]) // several
            who, where = np.divmod(codes, sets)
            entity = np.concatenate([entity[~once], who])
            at = np.concatenate([at[~once], where])
        return membership(entity, at, sets)

    def _move(self, classes: Numbers, found: Membership, *, by_rows: bool = False) -> None:
        """Entities to the classes that they have once they are in these sets, too; in place."""
        pool, patterns = self.pool, len(found.pairs)
        while True:
            codes = classes[found.entities].astype(np.int64) * patterns + found.patterns
            distinct, places = np.unique(codes, return_inverse=True)
            if len(distinct) <= 4 * max(MOST_CLASSES, patterns) or not pool.halve(classes):
                break
        fresh = np.empty(len(distinct), np.uint32)
        for i, code in enumerate(distinct.tolist()):
            old, pairs = pool.classes[code // patterns], found.pairs[code % patterns]
            fresh[i] = pool.put(
                replace(
                    old,
                    live=old.live | groups(pairs, self.numbers, self.records, old.person, by_rows),
                    loose=old.loose or any(self.records[at].people is None for at, _ in pairs),
                    runs=old.runs | 1 << self.opening,
                )
            )
        classes[found.entities] = fresh[places]


def _merged(
    index: Index,
    together: Mapping[int, Sequence[int]],
    pool: Pool,
    by: Callable[[Class, Class], Class],
) -> Index:
    """The index once each of these entities is the others, too, to which nothing leads then."""
    if not together:
        return index
    classes, known = index.classes.copy(), dict[tuple[int, ...], int]()
    for first, others in together.items():
        own = tuple(sorted(classes[[first, *others]].tolist()))
        if own not in known:
            known[own] = pool.put(reduce(by, (pool.classes[number] for number in own)))
        classes[first] = known[own]
        classes[others] = pool.blank
    return replace(index, classes=classes)


def _alike(
    index: Index, owners: Places, words: Words, pool: Pool, sets: Mapping[int, Set]
) -> Index:
    """Return the index where entities of several rows are persons with so many."""
    many = np.bincount(owners, minlength=1)
    alike = np.zeros(len(many), bool)
    for column in words.T:
        _, at, times = np.unique(column, return_inverse=True, return_counts=True)
        alike[owners[times[at] > 1]] = True
    classes = index.classes.copy()
    # a person who was linked before is more than rows that look alike; but where some do, they may
    # have been linked as one each, by an earlier version or before the files had more of them
    fresh = np.array([not one.person for one in pool.classes])[classes[owners]]
    rows = np.where(fresh | alike[owners], many[owners], 1)
    for count in np.unique(rows[rows > 1]).tolist():
        entities = np.unique(owners[rows == count])
        for number in np.unique(index.classes[entities]).tolist():
            raised = of_rows_alike(pool.classes[number], count, lambda each: sets[each].kind)
            own = entities[index.classes[entities] == number]
            classes[own] = pool.put(raised)
    return replace(index, classes=classes)


def _count_equal(
    ledger: Ledger, index: Index, together: Mapping[int, Sequence[int]], pool: Pool
) -> None:
    """Write of whole clients how many more of their rows are equal once these rows are one each.

    Who was in a set that is closed is not known: all rows count whose histories hold its charges.
    """
    db, classes = ledger.connection, index.classes
    merged = Counter(
        tuple(sorted(classes[[first, *others]].tolist())) for first, others in together.items()
    )
    used = {number for numbers in merged for number in numbers}
    for client in store.sets(db) if merged else ():
        if client.kind != CLIENT:
            continue
        spent = ledger.spent(client.unit)
        there = {
            number
            for number in used
            if not (one := pool.classes[number]).owned
            and (
                client.number in one.sets
                or (not client.live and any(contains(way, CLIENT, spent) for way in one.several))
            )
        }
        more = sum(
            times * max(sum(number in there for number in numbers) - 1, 0)
            for numbers, times in merged.items()
        )
        if more:
            store.put_equal_rows(db, client.number, store.equal_rows(db, client.number) + more)


def _together(pairs: npt.NDArray[np.int64]) -> dict[int, list[int]]:
    """Entities that hang together by these pairs: the first, and the others."""
    nodes, at = np.unique(pairs, return_inverse=True)
    one, other = at.reshape(-1, 2).T
    labels = connected(one, other, len(nodes))
    found: dict[int, list[int]] = {}
    for label, node in zip(labels.tolist(), nodes.tolist(), strict=True):
        found.setdefault(label, []).append(node)
    return {first: others for first, *others in found.values()}


def _keep(ledger: Ledger, index: Index, before: Index, pool: Pool, counted: int = 0) -> None:
    """Write everything, with equal classes as one and no more of them than can be.

    ``counted`` is the entry up to which charges that no run made are counted, if any more are.
    """
    db = ledger.connection
    live = len({each for one in pool.classes for each in one.sets})
    classes, kept, sizes = pool.settled(index.classes, max(MOST_CLASSES, 4 * live))
    if store.meta(db, "key"):
        store.put_classes(db, kept, sizes)
        store.put_index(db, replace(index, classes=classes), before)
    else:  # a ledger of one run, which others see: nobody asks again who is in which class
        store.put_classes(db, kept, [0] * len(kept))
    version = str(int(store.meta(db, "version")) + 1)
    store.put_meta(db, "version", version)
    facts = {"digest": store.digest(db), OUTSIDE: counted or counted_until(ledger)}
    ledger.note(RECORDS, version, facts)
