"""The tables of records, in the ledger's file.

Arrays are kept in pieces, so that no value is larger than SQLite likes.

**The index** leads from digests to entities to classes, as sorted arrays: 28 bytes a record, 12
more for a person's.

A row leads to an entity by its digests (:mod:`sordino.privacy.records.identity`); each is enough.
Rows that share one are one entity, and so are all that hang together that way (the components of
the graph of digests). A person's digests lead to an entity of its own, likewise.

Shapes: digests (k,) sorted, owners (k,), classes (entities,).
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from sordino.base.arrays import Array, Ints
from sordino.base.siphash import Words
from sordino.privacy.event import Event, decode, encode
from sordino.privacy.records.classes import Class, Frozen, Numbers
from sordino.privacy.records.identity import KEY


@dataclass(frozen=True, slots=True, eq=False)
class Book:
    """Sorted digests, and the entity that each leads to."""

    digests: Words
    owners: Numbers

    def find(self, wanted: Words) -> Ints:
        """The entity of each digest, (n,); -1 where there is none. ``wanted`` is best sorted."""
        if not len(self.digests):
            return np.full(len(wanted), -1, np.int64)
        at = np.minimum(np.searchsorted(self.digests, wanted), len(self.digests) - 1)
        return np.where(self.digests[at] == wanted, self.owners[at].astype(np.int64), -1)


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """Everybody.

    Attributes:
        rows: digests of rows; ``people`` of persons.
        classes: number of the class of each entity.
    """

    rows: Book
    people: Book
    classes: Numbers


def found(
    index: Index, words: Words, new_class: int, *, people: bool
) -> tuple[Index, Ints, dict[int, list[int]]]:
    """(The index with these rows or persons, by their digests (n, w), the entity of each, entities
    that are one: first -> others).

    The others stay in ``classes``, and nothing leads to them any more.
    """
    count, book = len(words), index.people if people else index.rows
    if not count:
        return index, np.empty(0, np.int64), {}
    distinct, places = np.unique(words.T.reshape(-1), return_inverse=True)
    known = book.find(distinct)
    names = places.reshape(-1, count)
    one = names[0]
    if (known >= 0).all() and (known[names] == known[one]).all():
        return index, known[one], {}
    left, right = np.tile(one, len(names) - 1), names[1:].reshape(-1)
    owners, merged, total = _components(known, left, right, len(index.classes))
    fresh = known < 0
    at = np.searchsorted(book.digests, distinct[fresh])
    leads = np.insert(book.owners, at, owners[fresh].astype(np.uint32))
    if merged:
        redirect = np.arange(total, dtype=np.uint32)
        for first, others in merged.items():
            redirect[others] = first
        leads = redirect[leads]
    book = Book(np.insert(book.digests, at, distinct[fresh]), leads)
    more = np.full(total - len(index.classes), new_class, np.uint32)
    index = replace(index, classes=np.concatenate([index.classes, more]))
    index = replace(index, people=book) if people else replace(index, rows=book)
    return index, owners[one], merged


def _components(
    known: Ints, one: Ints, two: Ints, entities: int
) -> tuple[Ints, dict[int, list[int]], int]:
    """The entity of each distinct digest, entities that are joined, and how many there are."""
    from scipy.sparse import coo_matrix  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    nodes, found = len(known), np.flatnonzero(known >= 0)
    old, old_places = np.unique(known[found], return_inverse=True)
    differ = one != two
    left = np.concatenate([one[differ], found])
    right = np.concatenate([two[differ], nodes + old_places])
    size = nodes + len(old)
    graph: Any = coo_matrix((np.ones(len(left), np.int8), (left, right)), shape=(size, size))
    labels: Ints = connected_components(graph, directed=False)[1]
    entity = np.full(int(labels.max(initial=-1)) + 1, -1, np.int64)
    entity[labels[nodes:][::-1]] = old[::-1]  # the smallest number is written last, and stays
    moved = np.flatnonzero(entity[labels[nodes:]] != old)
    merged: dict[int, list[int]] = {}
    for i in moved.tolist():
        merged.setdefault(int(entity[labels[nodes + i]]), []).append(int(old[i]))
    nameless = np.flatnonzero(entity < 0)
    entity[nameless] = entities + np.arange(len(nameless))
    return entity[labels[:nodes]], merged, entities + len(nameless)


_PART = 1 << 22  # bytes of an array in one value; a ledger's rows have a longest length


@dataclass(frozen=True, slots=True)
class Set:
    """One set.

    Where one run holds several of the same members, the name of each but the first says which it
    is: "(2)"; and that of rows that only test is "(test)".

    Attributes:
        number: its own.
        unit: its name in the ledger.
        kind: what a charge on it protects.
        live: whether it can be charged.
        before: what was booked on it when it was opened last.
        runs: who holds it open.
    """

    number: int
    unit: str
    kind: str
    live: bool
    before: tuple[tuple[Event, int], ...]
    runs: tuple[str, ...]

    @property
    def aside(self) -> bool:
        """True for one whose rows only test."""
        return ASIDE in self.unit.split(" ")


def prepare(db: sqlite3.Connection, *, apart: bool) -> None:
    """A key and counters, where there are none yet; inside of a transaction.

    Args:
        apart: whether the key is kept elsewhere: then none stands here.
    """
    fresh = {"key": "" if apart else secrets.token_hex(KEY), "version": "0"}
    db.executemany("INSERT OR IGNORE INTO record_meta VALUES (?, ?)", fresh.items())


def meta(db: sqlite3.Connection, name: str) -> str:
    """A value by name."""
    found: tuple[str] | None = db.execute(
        "SELECT value FROM record_meta WHERE name = ?", (name,)
    ).fetchone()
    if found is None:
        raise ValueError(f"the record index has no {name}")
    return found[0]


def knows_records(db: sqlite3.Connection) -> bool:
    """Tell whether this ledger knows records; one of an early format has no tables for them."""
    there = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'record_meta'").fetchone()
    return bool(there and db.execute("SELECT 1 FROM record_meta").fetchone())


_ALL = (
    "SELECT * FROM record_meta ORDER BY name",
    # who holds a set open may change without a change of histories
    "SELECT id, unit, kind, live, before FROM record_sets ORDER BY id",
    "SELECT * FROM record_classes ORDER BY id",
    "SELECT * FROM record_events ORDER BY id",
)


def digest(db: sqlite3.Connection) -> str:
    """SHA-256 of everything that these tables say."""
    found = hashlib.sha256()
    for query in _ALL:
        for row in db.execute(query):
            found.update(json.dumps(row, default=repr).encode())
    for name, part, content in db.execute(
        "SELECT name, part, content FROM record_arrays ORDER BY name, part"
    ):
        found.update(json.dumps([name, part, len(content)], default=repr).encode())
        found.update(content)
    return found.hexdigest()


def sets(db: sqlite3.Connection, *, live: bool = False) -> list[Set]:
    """All of them, or those that can be charged."""
    return [
        Set(
            number,
            unit,
            kind,
            bool(open_now),
            tuple((decode(text), count) for text, count in json.loads(before)),
            tuple(json.loads(runs)),
        )
        for number, unit, kind, open_now, before, runs in db.execute(
            "SELECT * FROM record_sets WHERE live >= ? ORDER BY id", (int(live),)
        )
    ]


ASIDE = "(test)"


def nth(name: str, units: int, *, aside: bool) -> str:
    """The name of a set of which a run has so many already."""
    return f"{name} {ASIDE}" if aside else f"{name} ({units + 1})" if units else name


def is_nth(name: str) -> bool:
    """Tell whether it is the name of a set of which a run has several."""
    return any(word.startswith("(") for word in name.split(" "))


def of_run(name: str, run: str) -> str:
    """The name of a set that a run opens for itself, while another holds ``name`` open."""
    return f"{name} {run}"


def same_members(db: sqlite3.Connection, unit: str) -> list[str]:
    """The names of all sets with the members of this one; runs at once have one each."""
    base = " ".join(unit.split(" ")[:2])  # kind and digest
    found = db.execute(
        "SELECT unit FROM record_sets WHERE unit = ? OR unit > ? AND unit < ? ORDER BY id",
        (base, f"{base} ", f"{base}!"),
    )
    return [name for (name,) in found]


def holders(db: sqlite3.Connection, unit: str) -> list[str]:
    """The runs that hold a set open."""
    rows = db.execute("SELECT runs FROM record_sets WHERE unit = ?", (unit,))
    return [run for (runs,) in rows for run in json.loads(runs)]


def put_set(db: sqlite3.Connection, one: Set) -> None:
    """Write a set."""
    before = json.dumps([[encode(event), count] for event, count in one.before])
    row = (one.number, one.unit, one.kind, int(one.live), before, json.dumps(one.runs))
    db.execute("INSERT OR REPLACE INTO record_sets VALUES (?, ?, ?, ?, ?, ?)", row)


def classes(db: sqlite3.Connection) -> tuple[list[Class], list[int]]:
    """All classes by number, and how many entities each has.

    The column ``loose`` is 0 of persons that runs name, and of their rows, which have no history of
    their own; versions before kept one.
    """
    events = {
        number: decode(text) for number, text in db.execute("SELECT id, event FROM record_events")
    }
    found, sizes = [], []
    for _, size, person, loose, _, kept, live in db.execute(
        "SELECT * FROM record_classes ORDER BY id"
    ):
        rows = json.loads(kept)
        one_way = not rows or (rows[0] and not isinstance(rows[0][0], list))
        sure, *ways = (
            tuple(
                ((events[event], str(kind), int(each)), int(count))
                for event, kind, each, count in part
            )
            for part in ([rows] if one_way else rows)
        )
        groups = frozenset((tuple(numbers), each) for numbers, each in json.loads(live))
        own = Class(sure, groups, bool(person), not loose, tuple(ways))
        found.append(own if person or loose else Class(named=True))
        sizes.append(int(size))
    return found, sizes


def put_classes(db: sqlite3.Connection, wanted: Sequence[Class], sizes: Sequence[int]) -> None:
    """Write all classes anew.

    Of one with several ways its column has the part that is sure first, and then each way. ``runs``
    is empty, which versions before do not read: they would take rows of persons for new ones.
    """
    events: dict[Event, int] = {
        decode(text): number for number, text in db.execute("SELECT id, event FROM record_events")
    }
    for one in wanted:
        for (event, _, _), _ in (*one.frozen, *chain.from_iterable(one.ways)):
            if event not in events:
                events[event] = len(events) + 1
                db.execute(
                    "INSERT INTO record_events VALUES (?, ?)", (events[event], encode(event))
                )

    def rows(counts: Frozen) -> list[list[Any]]:
        return [[events[event], kind, each, count] for (event, kind, each), count in counts]

    db.execute("DELETE FROM record_classes")
    db.executemany(
        "INSERT INTO record_classes VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                number,
                size,
                int(one.person),
                int(not one.named),
                "",
                json.dumps([*map(rows, (one.frozen, *one.ways))] if one.ways else rows(one.frozen)),
                json.dumps(sorted([list(numbers), each] for numbers, each in one.live)),
            )
            for number, (one, size) in enumerate(zip(wanted, sizes, strict=True))
        ],
    )


_TYPES: Mapping[str, str] = {
    "row digests": "<u8",
    "row owners": "<u4",
    "person digests": "<u8",
    "person owners": "<u4",
    "classes": "<u4",
}


def index(db: sqlite3.Connection) -> Index:
    """All arrays."""
    found: list[Array] = []
    for name, kind in _TYPES.items():
        content = bytearray()
        for (piece,) in db.execute(
            "SELECT content FROM record_arrays WHERE name = ? ORDER BY part", (name,)
        ):
            content += piece
        found.append(np.frombuffer(content, dtype=kind))
    return Index(Book(*found[:2]), Book(*found[2:4]), found[4])


def put_index(db: sqlite3.Connection, fresh: Index, before: Index) -> None:
    """Write the arrays that are not those of ``before``."""
    arrays = (
        (each.rows.digests, each.rows.owners, each.people.digests, each.people.owners, each.classes)
        for each in (fresh, before)
    )
    for (name, kind), array, old in zip(_TYPES.items(), *arrays, strict=True):
        if array is old:
            continue
        db.execute("DELETE FROM record_arrays WHERE name = ?", (name,))
        content = np.ascontiguousarray(array).astype(kind, copy=False).view(np.uint8).data
        for part, start in enumerate(range(0, len(content), _PART)):
            piece = content[start : start + _PART]
            db.execute("INSERT INTO record_arrays VALUES (?, ?, ?)", (name, part, piece))
