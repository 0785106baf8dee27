"""Formats of ledger files, so that every later version reads them all.

A ledger stays in the format that it was made in: its chain begins with a digest of what the format
says of itself. New ledgers are made in :data:`NEWEST`. A new format is one more value here, with
the tables and the first digest of its own, and one more stored ledger for the tests
(``tests/golden/ledgers``); no format is ever changed or taken out.

========  =====================================================================================
1         charges are chained, units are a table beside them; can be read, not charged
2         one chain of charges and notes; adjacency is an English sentence, in three wordings
3         as 2, adjacency is a code
4         as 3; a class of records may have several histories, of which one holds, and a history
          may hold releases as they bound several rows of a person (SampledRows), and
          sets in which a person is one unit
5         as 4; of rows whose persons are named, their classes say nothing but that
========  =====================================================================================

Rows of ``entries`` and fields of :class:`~sordino.privacy.chain.Entry` have the same names, and a
format says in its SQL which of them there are. A new field is named there, in the base of
``Charge`` and ``Entry`` with a default, in ``SHOWN_COLUMNS`` (:mod:`sordino.privacy.chain`), and
in ``NOT_COMPARED`` (:mod:`sordino.privacy.ledger`) if it may differ when a charge is booked again.

Tables are compared by what SQLite says of them, and by the words of their SQL, with those of a new
file of the format. So spaces and lines may differ, and nothing that computes, replaces or compares
otherwise may be there: no trigger, view, generated column, default, check, collation, foreign key,
conflict clause, or index but those that SQLite makes for keys.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from sordino.base.errors import LedgerError
from sordino.privacy.chain import NOTE, Charge, Entry, Row, Units, canonical, digest
from sordino.privacy.event import decode, encode

MOST_TABLES = 100  # that are looked at
_TYPES = {"TEXT": str, "INTEGER": int}
_decoded = lru_cache(maxsize=256)(decode)


class Adjacency(StrEnum):
    """Which data sets are neighbours: the relation that a unit's events are priced for."""

    ADD_OR_REMOVE = "ADD_OR_REMOVE"  # one record more or less
    ZERO_OUT = "ZERO_OUT"  # one record's contribution replaced by none, sizes public
    REPLACE_ONE = "REPLACE_ONE"  # one record replaced by another


_REPLACED = re.compile("(?:[0-9a-f]{16}/)?(?:labels?|party|entity|entities|entitys)(?:[: ]|$)")


class Table(NamedTuple):
    """A table, as SQLite describes it.

    Attributes:
        columns: number, name, type, NOT NULL, default, place in the key, and hidden, of each.
        keys: the indices that SQLite keeps for keys, each with its columns and collations.
        words: of its SQL, and its other signs but for spaces.
    """

    columns: tuple[tuple[Any, ...], ...]
    keys: tuple[tuple[Any, ...], ...]
    words: frozenset[str]


class Shape(NamedTuple):
    """Tables of a file, by name, and everything else that is in its schema.

    Attributes:
        others: type, name and table of each trigger, view or index that SQLite did not make.
    """

    tables: Mapping[str, Table]
    others: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, eq=False)
class LedgerFormat:
    """One format of ledger files.

    Attributes:
        meta: names and values of the table ``meta``.
        start: digest that the first link continues.
        tables: SQL of each table.
        sample_adjacency: that of samples and clients. Of labels, parties and entities of events it
            is to replace one.
        charged: whether this version adds charges to ledgers of this format.
    """

    meta: Mapping[str, str]
    start: str
    tables: Mapping[str, str]
    sample_adjacency: Adjacency = Adjacency.ZERO_OUT
    charged: bool = True

    def read(self, row: Row) -> Entry:
        """Return the charge in a row of ``entries``.

        Raises:
            LedgerError: if its event is none that this version knows.
        """
        fields = dict(zip(self.names, row, strict=True))
        return Entry(**fields | {"event": _decoded(fields["event"])})

    def write(self, charge: Charge, seq: int, prev: str) -> Row:
        """Return the row of ``entries`` for a charge, with its digest."""
        own = {"seq": seq, "event": encode(charge.event), "prev": prev}
        body = tuple(
            own[name] if name in own else getattr(charge, name) for name in self.names[:-1]
        )
        return (*body, digest(body))

    def adjacency(self, unit: str) -> Adjacency:
        """Return the relation that a unit's events are priced for."""
        return Adjacency.REPLACE_ONE if _REPLACED.match(unit) else self.sample_adjacency

    def units(self, db: sqlite3.Connection) -> Units:
        """Return fingerprints and labels of units that are kept outside of the chain.

        Raises:
            LedgerError: if one is no text.
        """
        if "units" not in self.tables:
            return {}
        found: Units = {}
        for unit, fingerprint in db.execute("SELECT unit, fingerprint FROM units"):
            if not (isinstance(unit, str) and isinstance(fingerprint, str)):
                raise LedgerError("a unit or its fingerprint is no text: restore it from a copy")
            found[unit] = (fingerprint, None)
        return found

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Columns of ``entries`` in their order, which is that of the digest, itself the last."""
        return tuple(name for _, name, *_ in self.shape.tables["entries"].columns)

    @cached_property
    def types(self) -> list[type]:
        """The types of these columns."""
        return [_TYPES[kind] for _, _, kind, *_ in self.shape.tables["entries"].columns]

    @cached_property
    def heads(self) -> str:
        """A query for number and digest of every link."""
        chained = (name for name in ("entries", "notes") if name in self.tables)
        return " UNION ALL ".join(f"SELECT seq, digest FROM {name}" for name in chained)

    @cached_property
    def links(self) -> str:
        """The query for links ``:first`` to ``:last``, each with whether it is a charge."""
        within = "WHERE seq BETWEEN :first AND :last"
        query = f"SELECT 1, {', '.join(self.names)} FROM entries {within}"
        if "notes" in self.tables:
            blank = ", 0" * (len(self.names) - len(NOTE))
            query += f" UNION ALL SELECT 0, {', '.join(NOTE)}{blank} FROM notes {within}"
        return f"{query} ORDER BY 2 LIMIT :batch"

    @cached_property
    def shape(self) -> Shape:
        """The shape of a new file of this format."""
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            for sql in self.tables.values():
                db.execute(sql)
            return shape(db)


def shape(db: sqlite3.Connection) -> Shape:
    """Return what a file's schema holds."""
    tables, others = dict[str, Table](), []
    asked = f"SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT {MOST_TABLES}"
    for kind, name, table, sql in db.execute(asked).fetchall():
        if kind == "table":
            columns = db.execute("SELECT * FROM pragma_table_xinfo(?)", (name,)).fetchall()
            tables[str(name)] = Table(
                tuple(columns), _keys(db, name), frozenset(re.findall(r"\w+|[^\w\s]", str(sql)))
            )
        elif kind != "index" or sql is not None:
            others.append((str(kind), str(name), str(table)))
    return Shape(tables, tuple(others))


def _keys(db: sqlite3.Connection, table: str) -> tuple[tuple[Any, ...], ...]:
    found = db.execute('SELECT name, "unique", origin, partial FROM pragma_index_list(?)', (table,))
    return tuple(
        (*about, *db.execute("SELECT * FROM pragma_index_xinfo(?)", (name,)).fetchall())
        for name, *about in found.fetchall()
    )


def recognise(db: sqlite3.Connection, path: Path) -> LedgerFormat:
    """Return the format of a file that has this format's tables and columns, and nothing besides.

    Raises:
        LedgerError: naming the first thing that no format has, or the later format.
    """
    found = shape(db)
    if found.tables.get("meta") == NEWEST.shape.tables["meta"]:
        number = (db.execute("SELECT value FROM meta WHERE name = 'format'").fetchone() or ("",))[0]
        known = max(int(one.meta["format"]) for one in FORMATS)
        if re.fullmatch("[1-9][0-9]{0,3}", str(number)) and int(number) > known:
            raise LedgerError(
                f"{path}: this ledger has format {number}, of a later version of this program; "
                f"this version knows formats up to {known}. Use the later version: nothing is "
                "guessed"
            )
    alike = [one for one in FORMATS if one.shape == found]
    if not alike:
        names = found.tables.keys()
        nearest = next((one for one in FORMATS if one.tables.keys() == names), NEWEST)
        raise LedgerError(f"{path}: {_difference(nearest, found)}")
    stated = dict(db.execute("SELECT name, value FROM meta LIMIT 10").fetchall())
    for one in alike:
        if one.meta == stated:
            return one
    wanted = next((one for one in alike if one.meta["format"] == stated.get("format")), alike[-1])
    name = next(
        name for name in (*wanted.meta, *stated) if stated.get(name) != wanted.meta.get(name)
    )
    raise LedgerError(
        f"{path}: meta.{str(name)[:80]} is {str(stated.get(name))[:80]!r}; in a ledger of format "
        f"{wanted.meta['format']} it is {wanted.meta.get(name)!r}. It was changed, or written by "
        "another version"
    )


def _difference(wanted: LedgerFormat, found: Shape) -> str:
    number = wanted.meta["format"]
    whose = f"no ledger of format {number} has. It is no ledger, or somebody changed it: restore it"
    for kind, name, table in found.others:
        return f"it has a {kind} {name[:80]!r} on {table[:80]!r} that {whose} from a copy"
    for name in found.tables:
        if name not in wanted.tables:
            return f"it has a table {name[:80]!r} that {whose} from a copy"
        if found.tables[name] != wanted.shape.tables[name]:
            return (
                f"its table {name!r} has other columns than in a ledger of format {number}. It is "
                "no ledger, or somebody changed it: restore it from a copy"
            )
    missing = ", ".join(name for name in wanted.tables if name not in found.tables)
    return f"this is no ledger of format {number}: it has no {missing}. Restore it from a copy"


# Format 1, of the first day: charges are a chain, units are a table beside it. So nobody can tell
# whether units were added, renamed or given another fingerprint: such ledgers are read, verified
# and added up, and take no more charges. Adjacency is a sentence in ``meta``, which the chain does
# not cover, in two wordings.

_META = "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
_ENTRIES = (
    "CREATE TABLE entries (seq INTEGER PRIMARY KEY, unit TEXT NOT NULL, event TEXT NOT NULL, "
    "count INTEGER NOT NULL, why TEXT NOT NULL, method TEXT NOT NULL, round INTEGER NOT NULL, "
    "key TEXT NOT NULL UNIQUE, prev TEXT NOT NULL, digest TEXT NOT NULL)"
)
_BESIDE = {
    "meta": _META,
    "units": (
        "CREATE TABLE units (unit TEXT PRIMARY KEY, fingerprint TEXT NOT NULL) WITHOUT ROWID"
    ),
    "entries": _ENTRIES,
}
_REPLACE = "of the units labels, party and entities of events: replace one"


def _first(sentence: str) -> LedgerFormat:
    start = hashlib.sha256(b"sordino ledger").hexdigest()
    meta = {"format": "1", "adjacency": sentence}
    return LedgerFormat(
        meta, start, _BESIDE, sample_adjacency=Adjacency.ADD_OR_REMOVE, charged=False
    )


# Format 2: one chain of charges and notes, which begins with a sentence about adjacency. The
# sentence had two wordings, and the first ledgers had no tables of records; those are read only,
# because a charge on a unit must know whether it is a set of records.

_CHAIN = {
    "meta": _META,
    "notes": (
        "CREATE TABLE notes (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, "
        "content TEXT NOT NULL, prev TEXT NOT NULL, digest TEXT NOT NULL, UNIQUE (kind, name))"
    ),
    "entries": _ENTRIES,
}
_RECORDS = {  # see sordino.privacy.records.store
    "record_meta": (
        "CREATE TABLE record_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
    ),
    "record_sets": (
        "CREATE TABLE record_sets (id INTEGER PRIMARY KEY, unit TEXT NOT NULL UNIQUE, kind TEXT "
        "NOT NULL, live INTEGER NOT NULL, before TEXT NOT NULL, runs TEXT NOT NULL)"
    ),
    "record_classes": (
        "CREATE TABLE record_classes (id INTEGER PRIMARY KEY, size INTEGER NOT NULL, person "
        "INTEGER NOT NULL, loose INTEGER NOT NULL, runs TEXT NOT NULL, frozen TEXT NOT NULL, live "
        "TEXT NOT NULL)"
    ),
    "record_events": (
        "CREATE TABLE record_events (id INTEGER PRIMARY KEY, event TEXT NOT NULL UNIQUE)"
    ),
    "record_arrays": (
        "CREATE TABLE record_arrays (name TEXT NOT NULL, part INTEGER NOT NULL, content BLOB "
        "NOT NULL, PRIMARY KEY (name, part))"
    ),
}


def _chained(
    number: str, adjacency: str, tables: Mapping[str, str], *, charged: bool = True
) -> LedgerFormat:
    """A format whose chain begins with a digest of what it says of itself."""
    meta = {"format": number, "adjacency": adjacency}
    start = digest(["sordino ledger", *sorted(meta.items())])
    return LedgerFormat(meta, start, tables, charged=charged)


_OLDER = f"one record's contribution is replaced by none; {_REPLACE}"
_CODES = {
    "": Adjacency.ZERO_OUT,
    "entities": Adjacency.REPLACE_ONE,
    "labels": Adjacency.REPLACE_ONE,
    "party": Adjacency.REPLACE_ONE,
}

V2 = _chained(
    "2", f"one record's contribution replaced by none, sizes public; {_REPLACE}", _CHAIN | _RECORDS
)
V3 = _chained("3", canonical(_CODES), _CHAIN | _RECORDS)  # adjacency as codes, not as a sentence

# Format 4 has the tables of 3. In its classes of records, ``frozen`` may be several histories. This
# version writes them into ledgers of formats 2 and 3 as well, because one history that covers them
# all would cost records a budget that they have; a version that makes ledgers of format 3 then says
# that it cannot read these numbers.

V4 = _chained("4", canonical(_CODES), _CHAIN | _RECORDS)

# Format 5 has the tables of 4. Of rows whose persons are named, its classes say nothing but that.
# This version writes that into ledgers of formats 2 to 4 as well, which versions before cannot read
# then: they would take such rows for new ones.

V5 = _chained("5", canonical(_CODES), _CHAIN | _RECORDS)
FORMATS: tuple[LedgerFormat, ...] = (
    _first("add or remove one record"),
    _first(f"add or remove one record; {_REPLACE}"),
    _chained("2", _OLDER, _CHAIN, charged=False),
    _chained("2", _OLDER, _CHAIN | _RECORDS),
    V2,
    V3,
    V4,
    V5,
)
NEWEST: LedgerFormat = V5
