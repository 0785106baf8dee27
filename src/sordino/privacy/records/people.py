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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import or_

import numpy as np

from sordino.base.arrays import Ints
from sordino.base.errors import LedgerError, ResumeError
from sordino.base.siphash import Words, stacked
from sordino.privacy.chain import BEGIN, CLOSED, OUTSIDE, RECORDS, SEAL
from sordino.privacy.event import Event
from sordino.privacy.ledger import Ledger
from sordino.privacy.records import store
from sordino.privacy.records.classes import Class, Pool, bridged, closed, frozen, histories
from sordino.privacy.records.identity import Records, groups, membership
from sordino.privacy.records.price import Prices, contains, counted_until, outside, own_of, since
from sordino.privacy.records.store import Index, Set
from sordino.privacy.reserve import RESERVE

# Theory of operation
#
# Four things, from the outside to the inside:
#
#     row, person   what data holds. A row becomes keyed digests (of all its values, of its
#                   features, of all but the label), a person one.
#     entity        all that digests say is one: a person, where runs name them, or a row where they
#                   do not. A row is known with its person or without: of rows that a run names, the
#                   ledger keeps only that they are a person's (``Class.named``), and refuses runs
#                   that come with the one after the other. Two entities that turn out to be one are
#                   merged; an entity is never split.
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
# * two entities that turn out to be one have the counts of both;
# * a whole client has no bound once its records were in other releases than its own
#   (``group.of_client``).
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
        LedgerError: if the file cannot be written, or is the ledger of one run.
        ResumeError: if the run is ``known``, and a set is not, or the data is another; or where it
            was ended without a seal: its rest is booked, and what it would have may be taken.
    """
    apart = key is not None
    with ledger.transaction() as db:
        ledger.refuse_changed_records()
        if not (apart or store.knows_records(db)) and ledger.notes(BEGIN):
            raise _of_one_run(ledger)  # whose units are no sets: what they have spent is nobody's
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
        if not known:
            ledger.book_reserve()
        sets = {one.unit: one for one in store.sets(db)}
        names = {name: _set_name(ledger, sets, name, run, known=known) for name in distinct}
        if known and ledger.noted(SEAL, run) is None:
            for name in names.values():
                if name not in sets or run not in sets[name].runs:
                    raise ResumeError(
                        f"{ledger.path}: run {run} was ended with `sordino ledger end`, and the "
                        "plans of other runs count on that. Begin a new run"
                    )
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
            before, pool = store.index(db), Pool(store.classes(db)[0])
            index = _counted(ledger, sets, before, pool)
            # of persons no later run asks for the rows in a ledger of one run, and rows that look
            # the same would show
            index = _entered(ledger, index, pool, fresh, rows_too=not apart)
            _keep(ledger, index, before, pool, ledger.head()[0])
    return {unit: names[name] for unit, name in members.items()}


def recognised(ledger: Ledger, records: Records) -> tuple[int, int]:
    """Return how many of these rows a ledger of the data knows, by their values or by their
    persons, and how many different rows it knows in all.
    """
    db = ledger.connection
    if not store.knows_records(db) or not store.meta(db, "key"):
        return 0, 0
    index, own = store.index(db), records.under(_key(db, ledger))
    known = np.zeros(len(own.rows), bool)
    for book, words in ((index.rows, own.rows), (index.people, own.people)):
        if words is not None:
            known |= (book.find(words.reshape(-1)) >= 0).reshape(words.shape).any(axis=1)
    return int(known.sum()), len(np.unique(index.rows.owners))


def _set_name(ledger: Ledger, sets: Mapping[str, Set], name: str, run: str, *, known: bool) -> str:
    """The name of a run's set: that of its members, unless another run holds that one open."""
    own, old = store.of_run(name, run), sets.get(name)
    if own in sets:
        return own
    if old is None or not old.live or run in old.runs:
        return name
    # what a run that is known releases is booked already
    return name if known or name in ledger.charged_by(run) else own


def _key(db: sqlite3.Connection, ledger: Ledger) -> bytes:
    """The key of the digests that stands in the ledger."""
    if not (kept := store.meta(db, "key")):
        raise _of_one_run(ledger)
    return bytes.fromhex(kept)


def _of_one_run(ledger: Ledger) -> LedgerError:
    return LedgerError(
        f"{ledger.path}: this is the ledger of one run, which recognises no records of another. "
        "Give privacy.ledger the folder of a ledger of the data, or a new one"
    )


def close_sets(ledger: Ledger, run: str) -> bool:
    """A run has ended: freeze what was booked on sets that nobody else holds open; whether it held
    any.
    """
    with ledger.transaction() as db:
        if not store.knows_records(db) or not store.meta(db, "key"):
            return False  # a run's own ledger has no later run
        ledger.refuse_changed_records()
        held = [one for one in store.sets(db) if run in one.runs]
        if held:
            ledger.book_reserve(run, partial(Prices(ledger, run).remaining, promised=False))
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
        _keep(ledger, replace(before, classes=numbers[before.classes]), before, pool, closed=run)
    return bool(held)


def open_runs(ledger: Ledger) -> list[str]:
    """The runs that hold sets of a ledger of the data open, in the order of their sets."""
    db = ledger.connection
    if not store.knows_records(db) or not store.meta(db, "key"):
        return []
    return list(dict.fromkeys(run for one in store.sets(db) for run in one.runs))


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
    # by what belongs together: the rest of one run, of whose sets a row was in one
    missing: dict[str, dict[int, Counter[Event]]] = {}
    for entry in found:
        one = sets[entry.unit]
        own[one.number][entry.event] -= entry.count
        if not one.live or entry.event in dict(one.before):  # else its set counts it
            words = entry.key.split("/")
            group = words[1] if words[0] == RESERVE else entry.key
            part = missing.setdefault(group, {}).setdefault(one.number, Counter())
            part[entry.event] += entry.count
    numbers = []
    for each in tuple(pool.classes):
        whole = histories(each, totals)
        for parts in missing.values():
            added = list[Counter[tuple[Event, str, int]]]()
            for one in (one for one in sets.values() if one.number in parts):
                spent = tuple((+own[one.number]).items())
                alike = any(contains(way, one.kind, spent) for way in whole)
                of_a_person = each.named and not each.person  # who is priced in its place
                if not of_a_person and (one.number in each.sets or alike):
                    kinds = (column for way in whole for column in way)
                    size = max((size for _, kind, size in kinds if kind == one.kind), default=1)
                    more = parts[one.number].items()
                    added.append(Counter({(event, one.kind, size): n for event, n in more}))
            if added:
                new = sum(added, Counter()) if each.person else reduce(or_, added)
                each = replace(each, frozen=frozen(each.counts + new))
        numbers.append(pool.put(each))
    return replace(index, classes=np.array(numbers, np.uint32)[index.classes])


def _entered(
    ledger: Ledger, index: Index, pool: Pool, fresh: Mapping[int, Records], *, rows_too: bool
) -> Index:
    """The index with everybody in the classes that follow, once these sets are open, by number.

    Raises:
        LedgerError: for rows that are known with their persons, and come without; or the other way
            round.
    """
    records = [*fresh.values()]
    people = [one.people for one in records if one.people is not None]
    if (named := bool(people)) and len(people) < len(records):
        raise LedgerError(
            "some of this run's rows name persons (data.person, data.entity), and others do not: "
            "name the persons of all of them"
        )
    if rows_too or not named:
        index, who = _known(index, pool, [one.rows for one in records])
        rows = [pool.classes[number] for number in np.unique(index.classes[who]).tolist()]
        _refuse_other_names(ledger, rows, named)
        if named:
            index.classes[who] = pool.put(Class(named=True))
    if named:
        index, who = _known(index, pool, people, people=True)
    classes = index.classes
    at = np.repeat(np.arange(len(records)), [len(one.rows) for one in records])
    entities, which, pairs = membership(who, at, len(records))
    patterns = len(pairs)
    while True:
        codes = classes[entities].astype(np.int64) * patterns + which
        distinct, places = np.unique(codes, return_inverse=True)
        if len(distinct) <= 4 * max(MOST_CLASSES, patterns) or not pool.halve(classes):
            break
    moved = np.empty(len(distinct), np.uint32)
    for i, code in enumerate(distinct.tolist()):
        old = pool.classes[code // patterns]
        more = groups(pairs[code % patterns], [*fresh], records, old.person)
        moved[i] = pool.put(replace(old, live=old.live | more))
    classes[entities] = moved[places]
    return index


def _known(
    index: Index, pool: Pool, words: Sequence[Words], *, people: bool = False
) -> tuple[Index, Ints]:
    """(The index with these rows or persons, whose classes may be written, the entity of each.)"""
    new = pool.put(Class(person=people, named=people))
    index, who, same = store.found(index, stacked(words), new, people=people)
    index = _merged(index, same, pool)
    return replace(index, classes=index.classes.copy()), who


def _refuse_other_names(ledger: Ledger, rows: Sequence[Class], named: bool) -> None:
    """Refuse rows, of these classes, that runs knew by their persons alone, or without them.

    Raises:
        LedgerError: with the remedy.
    """
    other = "give privacy.ledger another folder, where what was spent here does not count"
    if not named and any(one.named for one in rows):
        raise LedgerError(
            f"{ledger.path}: this ledger knows rows of this run by their persons (data.person, "
            "data.entity), and this run does not name them: how many rows are one person's would "
            f"not be known. Name them as the runs before, or {other}"
        )
    if named and any(one.person or one.live or one.most for one in rows):
        raise LedgerError(
            f"{ledger.path}: rows of this run were used without data.person or data.entity before, "
            "and how many of them were one person's is not known. Leave out the persons' names, "
            f"and promise it to rows, or {other}"
        )


def _merged(index: Index, together: Mapping[int, Sequence[int]], pool: Pool) -> Index:
    """The index once each of these entities is the others, too, to which nothing leads then."""
    if not together:
        return index
    classes, known = index.classes.copy(), dict[tuple[int, ...], int]()
    for first, others in together.items():
        own = tuple(sorted(classes[[first, *others]].tolist()))
        if own not in known:
            known[own] = pool.put(reduce(bridged, (pool.classes[number] for number in own)))
        classes[first] = known[own]
        classes[others] = pool.blank
    return replace(index, classes=classes)


def _keep(
    ledger: Ledger,
    index: Index,
    before: Index,
    pool: Pool,
    counted: int = 0,
    *,
    closed: str | None = None,
) -> None:
    """Write everything, with equal classes as one and no more of them than can be.

    ``counted`` is the entry up to which charges that no run made are counted, if any more are;
    ``closed`` the run that has ended.
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
    db.execute("UPDATE record_meta SET value = ? WHERE name = 'version'", (version,))
    facts = {"digest": store.digest(db), OUTSIDE: counted or counted_until(ledger)}
    facts |= {} if closed is None else {CLOSED: closed}
    ledger.note(RECORDS, version, facts)
