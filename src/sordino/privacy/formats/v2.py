"""Format 2: one chain of charges and notes, which begins with a sentence about adjacency.

The sentence had two wordings, and the first ledgers had no tables of records; those are read only,
because a charge on a unit must know whether it is a set of records.
"""

from __future__ import annotations

from sordino.privacy.chain import digest
from sordino.privacy.formats.layout import LedgerFormat
from sordino.privacy.formats.v1 import _TABLES as _FIRST

_CHAIN = {
    "meta": _FIRST["meta"],
    "notes": (
        "CREATE TABLE notes (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, "
        "content TEXT NOT NULL, prev TEXT NOT NULL, digest TEXT NOT NULL, UNIQUE (kind, name))"
    ),
    "entries": _FIRST["entries"],
}
RECORDS = {  # see sordino.privacy.records.store
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
TABLES = {**_CHAIN, **RECORDS}
_REPLACE = "of the units labels, party and entities of events: replace one"
_OLDER = f"one record's contribution is replaced by none; {_REPLACE}"
_LATER = f"one record's contribution replaced by none, sizes public; {_REPLACE}"


def start(meta: dict[str, str]) -> str:
    """Return the digest of what a format says of itself."""
    return digest(["sordino ledger", *sorted(meta.items())])


def _worded(sentence: str, tables: dict[str, str], *, charged: bool = True) -> LedgerFormat:
    meta = {"format": "2", "adjacency": sentence}
    return LedgerFormat(meta, start(meta), tables, charged=charged)


EARLY = _worded(_OLDER, _CHAIN, charged=False)
SECOND = _worded(_OLDER, TABLES)
V2 = _worded(_LATER, TABLES)
