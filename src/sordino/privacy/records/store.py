"""The tables of records, in the ledger's file.

Arrays are kept in pieces, so that no value is larger than SQLite likes.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.privacy.event import Event, decode, encode
from sordino.privacy.records.arrays import Book, Index
from sordino.privacy.records.classes import Class
from sordino.privacy.records.identity import KEY

_PART = 1 << 22  # bytes of an array in one value; a ledger's rows have a longest length

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Set:
    """One set.

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


def prepare(db: sqlite3.Connection, *, apart: bool = False) -> None:
    """A key and counters, where there are none yet; inside of a transaction.

    Args:
        apart: whether the key is kept elsewhere: then none stands here.
    """
    key = "" if apart else secrets.token_hex(KEY)
    fresh = {"key": key, "version": "0", "openings": "0"}
    db.executemany("INSERT OR IGNORE INTO record_meta VALUES (?, ?)", fresh.items())


def meta(db: sqlite3.Connection, name: str) -> str:
    """A value by name."""
    found: tuple[str] | None = db.execute(
        "SELECT value FROM record_meta WHERE name = ?", (name,)
    ).fetchone()
    if found is None:
        raise ValueError(f"the record index has no {name}")
    return found[0]


def put_meta(db: sqlite3.Connection, name: str, value: str) -> None:
    """Another value."""
    db.execute("UPDATE record_meta SET value = ? WHERE name = ?", (value, name))


def knows_records(db: sqlite3.Connection) -> bool:
    """Whether this ledger knows records."""
    return db.execute("SELECT 1 FROM record_meta").fetchone() is not None


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


def of_run(name: str, run: str) -> str:
    """The name of a set that a run opens for itself, while another holds ``name`` open."""
    return f"{name} {run}"


def alike(db: sqlite3.Connection, unit: str) -> list[str]:
    """The names of all sets with the members of this one; runs at once have one each."""
    base = " ".join(unit.split(" ")[:2])  # kind and digest
    found = db.execute(
        "SELECT unit FROM record_sets WHERE unit = ? OR unit > ? AND unit < ? ORDER BY id",
        (base, f"{base} ", f"{base}!"),
    )
    return [name for (name,) in found]


def put_set(db: sqlite3.Connection, one: Set) -> None:
    """Write a set."""
    before = json.dumps([[encode(event), count] for event, count in one.before])
    row = (one.number, one.unit, one.kind, int(one.live), before, json.dumps(one.runs))
    db.execute("INSERT OR REPLACE INTO record_sets VALUES (?, ?, ?, ?, ?, ?)", row)


def classes(db: sqlite3.Connection) -> tuple[list[Class], list[int]]:
    """All classes by number, and how many entities each has."""
    events = {
        number: decode(text) for number, text in db.execute("SELECT id, event FROM record_events")
    }
    found, sizes = [], []
    for _, size, person, loose, runs, kept, live in db.execute(
        "SELECT * FROM record_classes ORDER BY id"
    ):
        counts = tuple(
            ((events[event], str(kind), int(each)), int(count))
            for event, kind, each, count in json.loads(kept)
        )
        groups = frozenset((tuple(numbers), each) for numbers, each in json.loads(live))
        found.append(Class(counts, groups, bool(person), bool(loose), int(runs, 16)))
        sizes.append(int(size))
    return found, sizes


def put_classes(db: sqlite3.Connection, wanted: Sequence[Class], sizes: Sequence[int]) -> None:
    """Write all classes anew."""
    events: dict[Event, int] = {
        decode(text): number for number, text in db.execute("SELECT id, event FROM record_events")
    }
    for one in wanted:
        for (event, _, _), _ in one.frozen:
            if event not in events:
                events[event] = len(events) + 1
                db.execute(
                    "INSERT INTO record_events VALUES (?, ?)", (events[event], encode(event))
                )
    db.execute("DELETE FROM record_classes")
    db.executemany(
        "INSERT INTO record_classes VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                number,
                size,
                int(one.person),
                int(one.loose),
                f"{one.runs:x}",
                json.dumps(
                    [
                        [events[event], kind, each, count]
                        for (event, kind, each), count in one.frozen
                    ]
                ),
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


def _named(index: Index) -> dict[str, Array]:
    return {
        "row digests": index.rows.digests,
        "row owners": index.rows.owners,
        "person digests": index.people.digests,
        "person owners": index.people.owners,
        "classes": index.classes,
    }


def index(db: sqlite3.Connection) -> Index:
    """All arrays."""
    found: dict[str, Array] = {}
    for name, kind in _TYPES.items():
        pieces = [
            content
            for (content,) in db.execute(
                "SELECT content FROM record_arrays WHERE name = ? ORDER BY part", (name,)
            )
        ]
        found[name] = (
            np.concatenate([np.frombuffer(piece, dtype=kind) for piece in pieces])
            if pieces
            else np.empty(0, dtype=kind)
        )
    return Index(
        Book(found["row digests"], found["row owners"]),
        Book(found["person digests"], found["person owners"]),
        found["classes"],
    )


def put_index(db: sqlite3.Connection, fresh: Index, before: Index | None) -> None:
    """Write the arrays that are not those of ``before``."""
    old = {} if before is None else _named(before)
    for name, array in _named(fresh).items():
        if array is old.get(name):
            continue
        db.execute("DELETE FROM record_arrays WHERE name = ?", (name,))
        content = np.ascontiguousarray(array).astype(_TYPES[name], copy=False).view(np.uint8).data
        for part in range(-(-len(content) // _PART)):
            piece = content[part * _PART : (part + 1) * _PART]
            db.execute("INSERT INTO record_arrays VALUES (?, ?, ?)", (name, part, piece))
