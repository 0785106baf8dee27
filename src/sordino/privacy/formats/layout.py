"""The layout of a ledger file: tables, columns, the first digest, and rows as charges.

Tables are compared by what SQLite says of them, and by the words of their SQL, with those of a new
file of the format. So spaces and lines may differ, and nothing that computes, replaces or compares
otherwise may be there: no trigger, view, generated column, default, check, collation, foreign key,
conflict clause, or index but those that SQLite makes for keys.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar

from sordino.privacy.chain import Charge, Entry, Row, digest
from sordino.privacy.event import Event, encode

MOST_TABLES = 100  # that are looked at


class Adjacency(StrEnum):
    """Which data sets are neighbours: the relation that a unit's events are priced for."""

    ADD_OR_REMOVE = "ADD_OR_REMOVE"  # one record more or less
    ZERO_OUT = "ZERO_OUT"  # one record's contribution replaced by none, sizes public
    REPLACE_ONE = "REPLACE_ONE"  # one record replaced by another


_REPLACED = re.compile("(?:[0-9a-f]{16}/)?(?:labels?|party|entity|entities|entitys)(?:[: ]|$)")


@dataclass(frozen=True, slots=True)
class Shape:
    """Tables of a file, by name, and everything else that is in its schema.

    Attributes:
        tables: of each table its columns, keys and the words of its SQL, as SQLite tells them.
        others: type, name and table of each trigger, view or index that SQLite did not make.
    """

    tables: Mapping[str, tuple[object, ...]]
    others: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, eq=False)
class LedgerFormat:
    """One format of ledger files.

    Attributes:
        meta: names and values of the table ``meta``.
        start: digest that the first link continues.
        tables: SQL of each table.
        outer: adjacency of samples and clients. Of labels, parties and entities of events it is to
            replace one.
        charged: whether this version adds charges to ledgers of this format.
    """

    meta: Mapping[str, str]
    start: str
    tables: Mapping[str, str]
    outer: Adjacency = Adjacency.ZERO_OUT
    charged: bool = True

    # Columns of ``entries`` in their order, which is that of the digest; prev and digest are last.
    columns: ClassVar[tuple[tuple[str, type], ...]] = (
        ("seq", int),
        ("unit", str),
        ("event", str),
        ("count", int),
        ("why", str),
        ("method", str),
        ("round", int),
        ("key", str),
        ("prev", str),
        ("digest", str),
    )

    def read(self, row: Row, event: Event) -> Entry:
        """Return the charge in a row of ``entries`` whose event was decoded."""
        seq, unit, _, count, why, method, number, key, prev, own = row
        return Entry(unit, event, count, why, method, number, key, seq, prev, own)

    def write(self, charge: Charge, seq: int, prev: str) -> Row:
        """Return the row of ``entries`` for a charge, with its digest."""
        text = encode(charge.event)
        about = (charge.why, charge.method, charge.round, charge.key)
        body = (seq, charge.unit, text, charge.count, *about, prev)
        return (*body, digest(body))

    def adjacency(self, unit: str) -> Adjacency:
        """Return the relation that a unit's events are priced for."""
        return Adjacency.REPLACE_ONE if _REPLACED.match(unit) else self.outer

    def units(self, db: sqlite3.Connection) -> dict[str, tuple[str, str | None]]:
        """Return fingerprints and labels of units that are kept outside of the chain."""
        return {}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of ``entries``."""
        return tuple(name for name, _ in self.columns)

    @cached_property
    def chained(self) -> tuple[str, ...]:
        """The tables whose rows are links."""
        return tuple(name for name in ("entries", "notes") if name in self.tables)

    @cached_property
    def links(self) -> str:
        """The query for links ``:first`` to ``:last``, each with whether it is a charge."""
        named = ", ".join(self.names)
        within = "WHERE seq BETWEEN :first AND :last"
        query = f"SELECT 1, {named} FROM entries {within}"
        if "notes" in self.tables:
            blank = ", 0" * (len(self.columns) - NOTE)
            query += (
                f" UNION ALL SELECT 0, seq, kind, name, content, prev, digest{blank} FROM notes "
                f"{within}"
            )
        return f"{query} ORDER BY 2 LIMIT :batch"

    @cached_property
    def shape(self) -> Shape:
        """The shape of a new file of this format."""
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            for sql in self.tables.values():
                db.execute(sql)
            return shape(db)


NOTE = 6  # columns of a note


def shape(db: sqlite3.Connection) -> Shape:
    """Return what a file's schema holds."""
    tables: dict[str, tuple[object, ...]] = {}
    others = []
    asked = f"SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT {MOST_TABLES}"
    for kind, name, table, sql in db.execute(asked).fetchall():
        if kind == "table":
            tables[str(name)] = (*_columns(db, name), *_keys(db, name), _words(sql))
        elif kind != "index" or sql is not None:
            others.append((str(kind), str(name), str(table)))
    return Shape(tables, tuple(others))


def _columns(db: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    """Number, name, type, NOT NULL, default, place in the key, and hidden, of each column."""
    return db.execute("SELECT * FROM pragma_table_xinfo(?)", (table,)).fetchall()


def _keys(db: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    """The indices that SQLite keeps for a table's keys, each with its columns and collations."""
    found = db.execute('SELECT name, "unique", origin, partial FROM pragma_index_list(?)', (table,))
    return [
        (*about, *db.execute("SELECT * FROM pragma_index_xinfo(?)", (name,)).fetchall())
        for name, *about in found.fetchall()
    ]


def _words(sql: object) -> frozenset[str]:
    """The words of a table's SQL, and its other signs but for spaces."""
    return frozenset(re.findall(r"\w+|[^\w\s]", str(sql)))
