"""Format 1, of the first day: charges are a chain, units are a table beside it.

So nobody can tell whether units were added, renamed or given another fingerprint: such ledgers are
read, verified and added up, and take no more charges. Adjacency is a sentence in ``meta``, which
the chain does not cover, in two wordings.
"""

from __future__ import annotations

import hashlib
import sqlite3

from sordino.base.errors import LedgerError
from sordino.privacy.formats.layout import Adjacency, LedgerFormat

_TABLES = {
    "meta": "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "units": (
        "CREATE TABLE units (unit TEXT PRIMARY KEY, fingerprint TEXT NOT NULL) WITHOUT ROWID"
    ),
    "entries": (
        "CREATE TABLE entries (seq INTEGER PRIMARY KEY, unit TEXT NOT NULL, event TEXT NOT NULL, "
        "count INTEGER NOT NULL, why TEXT NOT NULL, method TEXT NOT NULL, round INTEGER NOT NULL, "
        "key TEXT NOT NULL UNIQUE, prev TEXT NOT NULL, digest TEXT NOT NULL)"
    ),
}
_START = hashlib.sha256(b"sordino ledger").hexdigest()


class _Beside(LedgerFormat):
    """Format 1, whose units stand beside the chain."""

    def units(self, db: sqlite3.Connection) -> dict[str, tuple[str, str | None]]:
        """Return the fingerprints in the table of units.

        Raises:
            LedgerError: if one is no text.
        """
        found: dict[str, tuple[str, str | None]] = {}
        for unit, fingerprint in db.execute("SELECT unit, fingerprint FROM units"):
            if not (isinstance(unit, str) and isinstance(fingerprint, str)):
                raise LedgerError("a unit or its fingerprint is no text: restore it from a copy")
            found[unit] = (fingerprint, None)
        return found


def _worded(sentence: str) -> _Beside:
    meta = {"format": "1", "adjacency": sentence}
    return _Beside(meta, _START, _TABLES, outer=Adjacency.ADD_OR_REMOVE, charged=False)


FIRST = _worded("add or remove one record")
V1 = _worded(
    "add or remove one record; of the units labels, party and entities of events: replace one"
)
