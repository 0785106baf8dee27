"""A ledger file, read along its chain: a link that does not fit is an error, never a smaller sum.

Queries change nothing. Other processes may write the file meanwhile: every question first looks
what they have added.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from sordino.base.errors import LedgerError, StudyError
from sordino.base.files import refuse_odd
from sordino.base.fingerprints import refuse_other_data
from sordino.privacy import storage
from sordino.privacy.accounting import accountant
from sordino.privacy.chain import (
    BEGIN,
    DATA,
    RECORDS,
    UNIT,
    Entry,
    Head,
    Note,
    Row,
    Verified,
    Walk,
)
from sordino.privacy.event import Event, decode
from sordino.privacy.formats import LedgerFormat
from sordino.privacy.formats.layout import NOTE
from sordino.privacy.storage import SECONDS, Clock, said

BATCH = 64  # links read at once; a hostile one has megabytes

_LOWEST = -(2**63)


class LedgerReader:
    """One ledger file, as it is read."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        form: LedgerFormat,
        clock: Clock | None = None,
    ) -> None:
        self.path, self.format = path, form
        self._db, self._clock = connection, clock
        self._version: int | None = None
        self._forget()

    @classmethod
    def open(cls, path: Path, *, readonly: bool = False, seconds: float = SECONDS) -> Self:
        """A ledger that exists, as it stood when opened, or live if somebody was writing then.

        Raises:
            LedgerError: if there is none, or the file is no ledger. Of a reader also, later, when
                its ``seconds`` are over.
        """
        _refuse_odd(path)
        if not path.is_file():
            raise LedgerError(f"{path}: there is no ledger here")
        clock = Clock(seconds) if readonly else None
        with said(path, clock):
            return cls(path, *storage.connect(path, clock=clock), clock)

    def noted(self, kind: str, name: str) -> Note | None:
        """The note of this kind and name, if there is one."""
        if "notes" not in self.format.tables:
            return None
        with said(self.path, self._clock):
            found = self._db.execute(
                "SELECT * FROM notes WHERE kind = ? AND name = ?", (kind, name)
            ).fetchone()
            return None if found is None else Note(*found)

    def notes(self, kind: str) -> tuple[Note, ...]:
        """All notes of a kind, in order."""
        if "notes" not in self.format.tables:
            return ()
        with said(self.path, self._clock):
            return tuple(
                Note(*row)
                for row in self._db.execute(
                    "SELECT * FROM notes WHERE kind = ? ORDER BY seq", (kind,)
                )
            )

    def _forget(self) -> None:
        self._walk = self._new_walk()
        self._totals: dict[str, dict[Event, int]] = {unit: {} for unit in self._walk.units}
        self._last: dict[str, int] = {}  # number of each unit's last entry

    def _new_walk(self) -> Walk:
        return Walk(self.path, self.format, self.format.units(self._db))

    def _refresh(self) -> None:
        """Bring memory up to the file, which other processes may have written, along the chain."""
        if not self._stands(self._walk.head):
            self._forget()
        # The head is read first: what another process adds between the two queries is then next
        # time's news.
        until = self._head()
        if until == self._walk.head:
            return
        try:
            for link in self._walk.over(self._links(self._walk.head[0], until[0])):
                self._learn(link)
        except BaseException:
            self._forget()
            raise

    def _learn(self, link: Entry | Note) -> None:
        if isinstance(link, Entry):
            self._add(link.unit, link.event, link.count, link.seq)
        elif link.kind == UNIT:
            self._totals[link.name] = {}

    def _add(self, unit: str, event: Event, count: int, seq: int) -> None:
        totals = self._totals[unit]
        totals[event] = totals.get(event, 0) + count
        self._last[unit] = seq

    def _stands(self, head: Head) -> bool:
        if head[0] == 0:
            return head[1] == self.format.start
        asked = " UNION ALL ".join(
            f"SELECT digest FROM {table} WHERE seq = :seq" for table in self.format.chained
        )
        return bool(self._db.execute(asked, {"seq": head[0]}).fetchall() == [(head[1],)])

    def stands(self, head: Head) -> bool:
        """Tell whether the chain, which is checked, holds just this link, noted elsewhere."""
        with said(self.path, self._clock):
            self._refresh()
            return 0 <= head[0] <= self._walk.head[0] and self._stands(head)

    def holds(self, digest: str) -> bool:
        """Tell whether a link of the chain, which is checked, has this digest."""
        with said(self.path, self._clock):
            self._refresh()
            asked = " UNION ALL ".join(
                f"SELECT 1 FROM {table} WHERE digest = :digest" for table in self.format.chained
            )
            return (
                digest == self.format.start
                or self._db.execute(asked, {"digest": digest}).fetchone() is not None
            )

    def spent(self, unit: str, until: int | None = None) -> tuple[tuple[Event, int], ...]:
        """Return what a unit has spent: events and how often; up to and with entry ``until`` if
        given.

        Raises:
            LedgerError: for a chain that is broken, or a unit that is not kept here: a slip in its
                name must not read as "nothing spent".
        """
        with said(self.path, self._clock):
            self._refresh()
            if unit not in self._totals:
                raise LedgerError(f"{self.path}: no data of {unit!r} is kept here")
            if until is None or until >= self._last.get(unit, 0):
                return tuple(self._totals[unit].items())
            totals = self._db.execute(
                "SELECT event, SUM(count) FROM entries WHERE unit = ? AND seq <= ? GROUP BY "
                "event ORDER BY MIN(seq)",
                (unit, until),
            )
            return tuple((decode(text), int(count)) for text, count in totals.fetchall())

    def epsilon(self, unit: str, delta: float, name: str, until: int | None = None) -> float:
        """Return what a unit has spent, up to entry ``until`` if given, priced by an accountant."""
        spent = self.spent(unit, until)
        try:
            return accountant(name).epsilon(spent, delta)
        except (ArithmeticError, RecursionError, TypeError) as error:  # whatever a forger thinks of
            raise LedgerError(
                f"{self.path}: what {unit!r} has spent cannot be priced ({error})"
            ) from error

    def units(self) -> dict[str, str]:
        """Every unit and the fingerprint of its data."""
        with said(self.path, self._clock):
            self._refresh()
            return {unit: fingerprint for unit, (fingerprint, _) in self._walk.units.items()}

    def labels(self) -> dict[str, str]:
        """Return the units' names for people, of those that have one."""
        with said(self.path, self._clock):
            self._refresh()
            return {
                unit: label for unit, (_, label) in self._walk.units.items() if label is not None
            }

    def head(self) -> Head:
        """Number and digest of the last link."""
        with said(self.path, self._clock):
            return self._head()

    def _head(self) -> Head:
        found = [(0, self.format.start)]
        for table in self.format.chained:
            found += self._db.execute(
                f"SELECT seq, digest FROM {table} ORDER BY seq DESC LIMIT 1"
            ).fetchall()
        last: Head = max(found, key=lambda head: int(head[0]))
        return last

    def entries(self, unit: str | None = None) -> Iterator[Entry]:
        """The charges in order, of one unit or all, up to the last one now; checked or not."""
        for charge, row in self._links(0, self.head()[0]):
            if charge:
                found = self.format.read(row, decode(row[self.format.names.index("event")]))
                if unit is None or found.unit == unit:
                    yield found

    def _links(self, after: int, last: int) -> Iterator[tuple[bool, Row]]:
        # In batches: a query left half-read would hold this connection at an old state of the file,
        # from which it could not charge; and with no fixed end, one who charges while reading would
        # never be done.
        first = after + 1 if after else _LOWEST  # what stands before the first link is found, too
        while True:
            with said(self.path, self._clock):
                if self._clock is not None:
                    self._clock.check()
                rows = self._db.execute(
                    self.format.links, {"first": first, "last": last, "batch": BATCH}
                ).fetchall()
            for row in rows:
                yield bool(row[0]), row[1:] if row[0] else row[1 : 1 + NOTE]
            if not rows or rows[-1][1] >= last:
                return
            first = rows[-1][1] + 1

    def verify(self, expected_digest: str | None = None) -> Verified:
        """Walk the whole chain and hash every link again, after SQLite's own check of the file.

        Raises:
            LedgerError: naming the first link that does not fit, or if the last digest is not the
                one expected.
        """
        with said(self.path, self._clock):
            (sound,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            if sound != "ok":
                raise LedgerError(
                    f"{self.path}: the file is damaged: {str(sound)[:200]}. Restore it from a copy"
                )
            walk, count = self._new_walk(), 0
            for link in walk.over(self._links(0, self._head()[0])):
                count += isinstance(link, Entry)
            self.refuse_changed_records()
        seq, last = walk.head
        if expected_digest is not None and expected_digest != last:
            raise LedgerError(
                f"{self.path}: the last digest is {last[:16]}… after {seq} entries, expected "
                f"{expected_digest[:16]}…: entries were cut off, or added since that digest was "
                "noted"
            )
        return Verified(count, last)

    def refuse_changed_records(self) -> None:
        """Hold the tables of records against the chain, which holds a digest of them.

        Raises:
            LedgerError: if they are not as the last change by a run left them.
        """
        if not (told := self.notes(RECORDS)):
            storage.refuse_records(self._db, self.path, self.format)
            return
        from sordino.privacy.records.store import digest  # arrays take a while to import

        if told[-1].facts.get("digest") != digest(self._db):
            raise LedgerError(
                f"{self.path}: the records that it knows are not those that entry {told[-1].seq} "
                "left: they were changed. Restore the ledger from a copy"
            )

    def refuse_other_data(self, run: str, data: str) -> None:
        """Hold a fingerprint of all rows of a run against those that it began with.

        Raises:
            ResumeError: if they are others. A ledger that knows no such run says nothing here.
        """
        if (note := self.noted(BEGIN, run)) is not None:
            before = str(note.facts.get(DATA, ""))
            refuse_other_data(self.path, f"run {run}", before, data)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def refresh(self) -> None:
        """Look what other processes have booked."""
        with said(self.path, self._clock):
            self._refresh()


def _refuse_odd(path: Path) -> None:
    """SQLite opens by path and follows links: only plain files may stand where it works."""
    for ending in ("", "-wal", "-shm", "-journal"):
        try:
            refuse_odd(path.with_name(path.name + ending))
        except (StudyError, OSError) as error:
            raise LedgerError(f"{path}: the ledger cannot be used: {error}") from error
