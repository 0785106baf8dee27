"""The ledger: what was released, append-only, chained by digest, durable before the release.

One SQLite file (write-ahead log, synchronous=FULL). A charge says which unit's data was used,
by which event and how often, why, by which method and in which round. Units, and how runs began
and ended, are links of the same chain (:mod:`sordino.privacy.chain`).
:mod:`sordino.privacy.reading` reads it.

``charge`` checks the budget and appends in one transaction, so that two runs over the same data
cannot both spend the last of it. It returns permits (:mod:`sordino.privacy.permit`); nothing may be
released without one.

A charge has a key. Charging the same key again with the same content adds nothing: a resumed
simulation replays the very same release. With other content it is refused.

Queries open the file read-only and change nothing.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sordino.base.errors import LedgerError, ResumeError, StudyError
from sordino.privacy import storage
from sordino.privacy.budget import Budget
from sordino.privacy.chain import (
    UNIT,
    Charge,
    Head,
    Note,
    canonical,
    digest,
)
from sordino.privacy.event import Event, encode
from sordino.privacy.formats import NEWEST, recognise
from sordino.privacy.permit import Permit, issue
from sordino.privacy.reading import LedgerReader
from sordino.privacy.storage import said

Admit = Callable[[Mapping[str, Budget]], None]
"""Refuses, by an error, charges on sets of records; their totals count them already."""


class Ledger(LedgerReader):
    """One ledger file."""

    @classmethod
    def create(
        cls,
        path: Path,
        units: Mapping[str, str],
        labels: Mapping[str, str] | None = None,
        *,
        secret: bool = False,
    ) -> Ledger:
        """A new ledger for these units and their data's fingerprints; ``labels`` are for people.

        A ``secret`` one only its owner may read, nor the files that SQLite puts beside it.

        Raises:
            LedgerError: if the file exists or cannot be written.
        """
        # Made under another name and then linked: killed at any instant, there is a whole ledger or
        # none,
        # and of two processes that make the same one, one is told that it exists.
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with said(path):
            if path.exists():
                raise FileExistsError
            try:
                fresh.unlink(missing_ok=True)
                # SQLite gives its log and index the rights of the file
                os.close(
                    os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o666)
                )
                with closing(
                    sqlite3.connect(fresh, timeout=storage.PATIENCE, isolation_level=None)
                ) as db:
                    storage.create(db)
                    cls(path, db, NEWEST)._register(units, labels or {})
                    db.execute("COMMIT")
                    storage.durable(db)
                storage.publish(fresh, path)
            finally:
                fresh.unlink(missing_ok=True)
        return cls.open(path)

    def register(self, units: Mapping[str, str], labels: Mapping[str, str] | None = None) -> None:
        """Add units, or check that they are kept for the data they were kept for.

        Raises:
            LedgerError: if a unit was kept for other data.
        """
        with self._writing():
            self._register(units, labels or {})

    def registered_within(self, units: Mapping[str, str]) -> None:
        """:meth:`register`, inside of a transaction."""
        self._register(units, {})

    def _register(self, units: Mapping[str, str], labels: Mapping[str, str]) -> None:
        self._refresh()
        known = self._walk.units
        for unit, fingerprint in units.items():
            if unit not in known:
                label = {"label": labels[unit]} if unit in labels else {}
                self._note(UNIT, unit, {"fingerprint": fingerprint, **label})
            elif known[unit][0] != fingerprint:
                raise LedgerError(
                    f"{self.path}: this ledger was kept for other data: {unit} had fingerprint "
                    f"{known[unit][0][:12]}, now {fingerprint[:12]}. Use the ledger that belongs "
                    "to this data, or begin a new one"
                )

    def note(self, kind: str, name: str, facts: Mapping[str, Any]) -> Note:
        """Add a note to the chain, durably, unless one of this kind and name says the same.

        Raises:
            ResumeError: if one says something else.
        """
        with self._writing():
            self._refresh()
            found = self.noted(kind, name)
            if found is None:
                return self._note(kind, name, facts)
            if found.content != canonical(dict(facts)):
                raise ResumeError(
                    f"{self.path}: entry {found.seq} ({kind} {name}) already has other "
                    "content, and a note cannot be changed"
                )
            return found

    def noted_within(self, kind: str, name: str, facts: Mapping[str, Any]) -> Note:
        """Add a note that is new, inside of a transaction."""
        return self._note(kind, name, facts)

    def _note(self, kind: str, name: str, facts: Mapping[str, Any]) -> Note:
        seq, prev = self._walk.head
        content = canonical(dict(facts))
        body = (seq + 1, kind, name, content, prev)
        row = (*body, digest(body))
        self._db.execute("INSERT INTO notes VALUES (?, ?, ?, ?, ?, ?)", row)
        for link in self._walk.over(iter([(False, row)])):
            self._learn(link)
        return Note(*row)

    def charge(
        self,
        charges: Sequence[Charge],
        budget: Budget | Mapping[str, Budget],
        admit: Admit | None = None,
        *,
        once: bool = False,
    ) -> tuple[Permit, ...]:
        """Book all of the charges, durably, or none.

        Args:
            budget: of every unit alike, or of each.
            admit: is asked, inside of the transaction, about units that are sets of records, whose
                own history is not all that their records were in. Without it they are refused.
            once: whether a key that was booked before is refused, whatever its content.

        Raises:
            BudgetExceeded: if a unit would pass the budget; nothing was booked.
            ResumeError: if a key was booked before with other content.
            LedgerError: for a unit that is not kept here, a set of records that is closed or that
                nobody may charge by itself, a chain that is broken, or a file that cannot be
                written.
        """
        with self._writing():
            permits, touched = self._book(charges)
            if once and not touched:
                raise StudyError(
                    f"{self.path}: a release with the key {charges[0].key!r} is booked already. "
                    "With other noise it is a second release: give it another key, and pay for it"
                )
            own = {
                unit: budget if isinstance(budget, Budget) else budget[unit]
                for unit in sorted(touched)
            }
            sets = {unit: own.pop(unit) for unit in tuple(own) if self._is_set(unit, admit)}
            for unit, most in own.items():
                most.admit(unit, self._totals[unit].items())
            if sets and admit is not None:
                admit(sets)
            return permits

    def _is_set(self, unit: str, admit: Admit | None) -> bool:
        """Tell a set of records from a unit that stands for itself.

        Raises:
            LedgerError: for a set that takes no such charge.
        """
        found = self._db.execute("SELECT live FROM record_sets WHERE unit = ?", (unit,)).fetchone()
        if found is None:
            return False
        if not found[0]:
            raise LedgerError(
                f"{self.path}: {unit} is a set of records that was closed, for its run had ended; "
                "open it again with `sordino run --resume`"
            )
        if admit is None:
            raise LedgerError(
                f"{self.path}: {unit} is a set of records, which runs charge: what is charged on "
                "it must count for each record, wherever it is used. Charge a unit of your own, or "
                "train on these records with `sordino run`"
            )
        return True

    def _book(self, charges: Sequence[Charge]) -> tuple[tuple[Permit, ...], set[str]]:
        """Write the charges that are new, to be admitted before the transaction ends."""
        self._refresh()
        permits, rows, touched = [], [], set[str]()
        new: dict[str, tuple[Charge, Head]] = {}
        seq, prev = self._walk.head
        for charge in charges:
            if charge.unit not in self._totals:
                raise LedgerError(f"{self.path}: no data of {charge.unit!r} is kept here")
            if charge.count < 1:
                raise LedgerError(
                    f"{charge.unit}: a release happens at least once; got {charge.count}"
                )
            booked, fresh = self._booked(charge), False
            if charge.key in new:
                same, booked = new[charge.key]
                if same != charge:
                    raise ResumeError(
                        f"{self.path}: two releases of one call have the key {charge.key!r}; "
                        "a key names one release only"
                    )
            if booked is None:
                seq += 1
                row = self.format.write(charge, seq, prev)
                prev = row[-1]
                rows.append(row)
                self._add(charge.unit, charge.event, charge.count, seq)
                touched.add(charge.unit)
                booked, fresh = (seq, prev), True
                new[charge.key] = charge, booked
            permits.append(issue(charge, *booked, new=fresh))
        blanks = ", ".join("?" * len(self.format.columns))
        self._db.executemany(f"INSERT INTO entries VALUES ({blanks})", rows)
        self._walk.head = (seq, prev)
        return tuple(permits), touched

    def charged_by(self, run: str, unit: str) -> bool:
        """Tell whether a run has booked anything on a unit; its keys begin with its name."""
        found = self._db.execute(
            "SELECT 1 FROM entries WHERE key >= ? AND key < ? AND unit = ? LIMIT 1",
            (f"{run}/", f"{run}0", unit),
        )
        return found.fetchone() is not None

    def _booked(self, charge: Charge) -> Head | None:
        found = self._db.execute(
            "SELECT seq, digest, unit, event, count, method, round FROM entries WHERE key = ?",
            (charge.key,),
        ).fetchone()
        if found is None:
            return None
        # The words of "why" may change between versions without making it another release.
        content = (charge.unit, encode(charge.event), charge.count, charge.method, charge.round)
        if found[2:] != content:
            raise ResumeError(
                f"{self.path}: the release {charge.key!r} was booked before as {found[2:]}, now it "
                f"would be {content}. The study or the data changed: begin a new run"
            )
        return int(found[0]), str(found[1])

    @property
    def connection(self) -> sqlite3.Connection:
        """The file's connection, for tables that stand beside the ledger's own."""
        return self._db

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One durable change of tables beside the ledger's own; nobody charges meanwhile.

        Raises:
            LedgerError: if the file cannot be written.
        """
        with self._writing():
            self._refresh()
            yield self._db

    def booked(self, unit: str) -> Mapping[Event, int]:
        """Return what a unit has spent, as memory knows it; inside of a charge that includes the
        charge."""
        return self._totals.get(unit, {})

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that ends as a whole, over a schema that stands as it was checked."""
        with said(self.path, self._clock):
            try:
                self._db.execute("BEGIN IMMEDIATE")
                (version,) = self._db.execute("PRAGMA schema_version").fetchone()
                if version != self._version:
                    if recognise(self._db, self.path) is not self.format:
                        raise LedgerError(f"{self.path}: another ledger stands in its place")
                    self._version = version
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._forget()  # what memory holds may not have been committed
                if self._db.in_transaction:  # a full disk has SQLite roll back by itself
                    self._db.execute("ROLLBACK")
                raise
