"""Formats of ledger files: one reader for each, so that every later version reads them all.

A ledger stays in the format that it was made in: its chain begins with a digest of what the format
says of itself. New ledgers are made in :data:`NEWEST`. A new format is one more module here, with
the tables, columns and first digest of its own, and one more stored ledger for the tests
(``tests/golden/ledgers``); no format is ever changed or taken out.

========  =====================================================================================
1         charges are chained, units are a table beside them; can be read, not charged
2         one chain of charges and notes; adjacency is an English sentence, in three wordings
3         as 2, adjacency is a code
========  =====================================================================================
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sordino.base.errors import LedgerError
from sordino.privacy.formats import v1, v2, v3
from sordino.privacy.formats.layout import Adjacency, LedgerFormat, Shape, shape

__all__ = ["FORMATS", "NEWEST", "Adjacency", "LedgerFormat", "recognise"]

FORMATS: tuple[LedgerFormat, ...] = (v1.FIRST, v1.V1, v2.EARLY, v2.SECOND, v2.V2, v3.V3)
NEWEST: LedgerFormat = v3.V3


def recognise(db: sqlite3.Connection, path: Path) -> LedgerFormat:
    """Return the format of a file that has this format's tables and columns, and nothing besides.

    Raises:
        LedgerError: naming the first thing that no format has.
    """
    found = shape(db)
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
    for kind, name, table in found.others:
        return (
            f"it has a {kind} {name[:80]!r} on {table[:80]!r} that no ledger of format {number} "
            "has. It is no ledger, or somebody changed it: restore it from a copy"
        )
    for name in found.tables:
        if name in wanted.tables and found.tables[name] != wanted.shape.tables[name]:
            return (
                f"its table {name!r} has other columns than in a ledger of format {number}. It is "
                "no ledger, or somebody changed it: restore it from a copy"
            )
        if name not in wanted.tables:
            return (
                f"it has a table {name[:80]!r} that no ledger of format {number} has. It is no "
                "ledger, or somebody changed it: restore it from a copy"
            )
    missing = ", ".join(name for name in wanted.tables if name not in found.tables)
    return f"this is no ledger of format {number}: it has no {missing}. Restore it from a copy"
