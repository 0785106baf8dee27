"""The ledger: what was released, append-only, chained by digest, durable before the release.

One SQLite file (write-ahead log, synchronous=FULL). A charge says which unit's data was used,
by which event and how often, why, by which method and in which round. Units, and how runs began
and ended, are links of the same chain (:mod:`sordino.privacy.chain`).

``charge`` checks the budget and appends in one transaction, so that two runs over the same data
cannot both spend the last of it. It returns permits (:mod:`sordino.privacy.permit`); nothing may be
released without one.

A charge has a key. Charging the same key again with the same content adds nothing: a resumed
simulation replays the very same release. With other content it is refused: all columns are
compared but those of :data:`NOT_COMPARED`. So a new column must stay the same while a run is
resumed, or be named there.

A file is read along its chain: a link that does not fit is an error, never a smaller sum. Queries
change nothing. Other processes may write the file meanwhile: every question first looks what they
have added.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

from sordino.base.errors import LedgerError, ResumeError, StudyError
from sordino.base.files import publish, refuse_odd
from sordino.base.fingerprints import refuse_other_data
from sordino.privacy import storage
from sordino.privacy.accounting import accountant
from sordino.privacy.budget import Budget
from sordino.privacy.chain import (
    BEGIN,
    DATA,
    NOTE,
    PLANNED,
    RECORDS,
    UNIT,
    Charge,
    Entry,
    Head,
    Note,
    Row,
    Verified,
    Walk,
    canonical,
    digest,
)
from sordino.privacy.event import Event, decode
from sordino.privacy.formats import NEWEST, LedgerFormat, recognise
from sordino.privacy.parts import OF
from sordino.privacy.permit import Permit, issue
from sordino.privacy.reserve import RESERVE, Remaining, reserve
from sordino.privacy.storage import SECONDS, Clock, LedgerExists, ledger_errors

BATCH = 64  # links read at once; a hostile one has megabytes

NOT_COMPARED = ("seq", "why", "key", "prev", "digest")
"""When a charge is found by its key: words of ``why`` may change with versions, and the release is
the same."""
_LOWEST = -(2**63)

ByUnit = Mapping[str, str]
Admit = Callable[[Mapping[str, Budget]], None]
"""Refuses, by an error, charges on sets of records; their totals count them already."""


class Ledger:
    """One ledger file.

    Attributes:
        connection: of the file, for tables that stand beside the ledger's own.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        form: LedgerFormat,
        clock: Clock | None = None,
    ) -> None:
        self.path, self.format = path, form
        self.connection, self._clock = connection, clock
        self._version: int | None = None
        self._place: storage.Place | None = None
        self._last: Head = (0, form.start)  # that stood in the file when it was charged last
        self._stamp: tuple[int, int] | None = None  # of the file, then
        self._wal_files: tuple[int, ...] = ()  # the files beside it, when it was opened
        self._walk = self._new_walk()

    @classmethod
    def open(cls, path: Path, *, readonly: bool = False, seconds: float = SECONDS) -> Ledger:
        """A ledger that exists, as it stood when opened, or live if somebody was writing then.

        Raises:
            LedgerError: if there is none, or the file is no ledger. Of a reader also, later, when
                its ``seconds`` are over.
        """
        _refuse_odd(path)
        if not path.is_file():
            raise LedgerError(f"{path}: there is no ledger here")
        clock = Clock(seconds) if readonly else None
        with ledger_errors(path, clock):
            place = storage.Place.of(path)  # before the file is opened: what is opened is no older
            found = cls(path, *storage.connect(path, clock=clock), clock)
        if not readonly:
            with closed_if_refused(found):
                _refuse_forked(place)
            found._place, found._wal_files = place, storage.wal_files(path)
            _CHARGED.add(found)
        return found

    def reopen(self, path: Path) -> None:
        """Open the ledger again, which was closed, where it lies now."""
        _refuse_odd(path)
        with ledger_errors(path):
            self._place = storage.Place.of(path)
            self.connection, self.format = storage.connect(path, clock=None)
        self.path, self._version, self._walk = path, None, self._new_walk()
        self._stamp, self._wal_files = None, storage.wal_files(path)

    def noted(self, kind: str, name: str) -> Note | None:
        """The note of this kind and name, if there is one."""
        found = self._notes("kind = ? AND name = ?", kind, name)
        return found[0] if found else None

    def notes(self, kind: str) -> tuple[Note, ...]:
        """All notes of a kind, in order."""
        return self._notes("kind = ? ORDER BY seq", kind)

    def _notes(self, where: str, *values: str) -> tuple[Note, ...]:
        if "notes" not in self.format.tables:
            return ()
        return tuple(Note(*row) for row in self._ask(f"SELECT * FROM notes WHERE {where}", *values))

    def _ask(self, query: str, *values: object) -> list[Row]:
        with self._errors():
            return self.connection.execute(query, values).fetchall()

    def _errors(self) -> AbstractContextManager[None]:
        return ledger_errors(self.path, self._clock)

    def _new_walk(self) -> Walk:
        return Walk(self.path, self.format, self.format.units(self.connection))

    def refresh(self) -> Walk:
        """Bring memory up to the file, which other processes may have written, along the chain."""
        with self._errors():
            if not self._stands(self._walk.head):
                self._walk = self._new_walk()
            # The head is read first: what another process adds between the two queries is then
            # next time's news.
            until = self.head()
            try:
                if until != self._walk.head:
                    deque(self._walk.over(self._links(self._walk.head[0], until[0])), maxlen=0)
            except BaseException:
                self._walk = self._new_walk()
                raise
            return self._walk

    def _stands(self, head: Head) -> bool:
        if head[0] == 0:
            return head[1] == self.format.start
        found = self._ask(f"SELECT digest FROM ({self.format.heads}) WHERE seq = ?", head[0])
        return found == [(head[1],)]

    def stands(self, head: Head) -> bool:
        """Tell whether the chain, which is checked, holds just this link, noted elsewhere."""
        return 0 <= head[0] <= self.refresh().head[0] and self._stands(head)

    def holds(self, digest: str) -> bool:
        """Tell whether a link of the chain, which is checked, has this digest."""
        self.refresh()
        query = f"SELECT 1 FROM ({self.format.heads}) WHERE digest = ?"
        return digest == self.format.start or bool(self._ask(query, digest))

    def spent(self, unit: str, until: int | None = None) -> tuple[tuple[Event, int], ...]:
        """Return what a unit has spent: events and how often; up to and with entry ``until`` if
        given.

        Raises:
            LedgerError: for a chain that is broken, or a unit that is not kept here: a slip in its
                name must not read as "nothing spent".
        """
        self.refresh()
        return self.seen(unit, until)

    def seen(self, unit: str, until: int | None = None) -> tuple[tuple[Event, int], ...]:
        """The same, without a look for what other processes have added since the last one."""
        walk = self._walk
        with self._errors():
            if unit not in walk.totals:
                raise LedgerError(f"{self.path}: no data of {unit!r} is kept here")
            if until is None or until >= walk.last.get(unit, 0):
                return tuple(walk.totals[unit].items())
            totals = self.connection.execute(
                "SELECT event, SUM(count) FROM entries WHERE unit = ? AND seq <= ? GROUP BY "
                "event ORDER BY MIN(seq)",
                (unit, until),
            )
            return tuple((decode(text), int(count)) for text, count in totals.fetchall())

    def epsilon(self, unit: str, delta: float, name: str, until: int | None = None) -> float:
        """Price what a unit was charged, up to entry ``until`` if given, by an accountant."""
        return self.price(unit, self.spent(unit, until), delta, self.chosen_by(name))

    def price(
        self, unit: str, spent: Sequence[tuple[Event, int]], delta: float, name: str
    ) -> float:
        """Return epsilon of a history of a unit, whatever a forger has written into it.

        Raises:
            LedgerError: if it cannot be priced.
        """
        try:
            return accountant(name).epsilon(spent, delta)
        except (ArithmeticError, RecursionError, TypeError, MemoryError) as error:
            raise LedgerError(
                f"{self.path}: what {unit!r} has spent cannot be priced ({error})"
            ) from error

    def chosen_by(self, name: str) -> str:
        """Return an accountant's name, with the number of trials of which a private choice released
        the run that this ledger is of: its entries are those of one trial.
        """
        for begin in self.notes(BEGIN):
            _, of, trials = str((begin.facts.get("promise") or {}).get("accountant")).partition(OF)
            if of and OF not in name:
                return f"{name}{of}{trials}"
        return name

    def units(self) -> dict[str, str]:
        """Every unit and the fingerprint of its data."""
        return {unit: fingerprint for unit, (fingerprint, _) in self.refresh().units.items()}

    def labels(self) -> dict[str, str]:
        """Return the units' names for people, of those that have one."""
        units = self.refresh().units.items()
        return {unit: label for unit, (_, label) in units if label is not None}

    def head(self) -> Head:
        """Number and digest of the last link."""
        with self._errors():
            found = self.connection.execute(
                f"{self.format.heads} ORDER BY 1 DESC LIMIT 1"
            ).fetchone()
            return (0, self.format.start) if found is None else (int(found[0]), found[1])

    def entries(self, unit: str | None = None) -> Iterator[Entry]:
        """The charges in order, of one unit or all, up to the last one now; checked or not."""
        for charge, row in self._links(0, self.head()[0]):
            if charge:
                found = self.format.read(row)
                if unit is None or found.unit == unit:
                    yield found

    def _links(self, after: int, last: int) -> Iterator[tuple[bool, Row]]:
        # In batches: a query left half-read would hold this connection at an old state of the file,
        # from which it could not charge; and with no fixed end, one who charges while reading would
        # never be done.
        first = after + 1 if after else _LOWEST  # what stands before the first link is found, too
        while True:
            with self._errors():
                if self._clock is not None:
                    self._clock.check()
                rows = self.connection.execute(
                    self.format.links, {"first": first, "last": last, "batch": BATCH}
                ).fetchall()
            for row in rows:
                yield bool(row[0]), row[1:] if row[0] else row[1 : 1 + len(NOTE)]
            if not rows or rows[-1][1] >= last:
                return
            first = rows[-1][1] + 1

    def verify(self, expected_digest: str | None = None) -> Verified:
        """Walk the whole chain and hash every link again, after SQLite's own check of the file.

        Raises:
            LedgerError: naming the first link that does not fit, or if the last digest is not the
                one expected.
        """
        with self._errors():
            (sound,) = self.connection.execute("PRAGMA integrity_check(1)").fetchone()
            if sound != "ok":
                raise LedgerError(
                    f"{self.path}: the file is damaged: {str(sound)[:200]}. Restore it from a copy"
                )
            walk, count = self._new_walk(), 0
            for link in walk.over(self._links(0, self.head()[0])):
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
            storage.refuse_records(self.connection, self.path, self.format)
            return
        from sordino.privacy.records.store import digest  # arrays take a while to import

        if told[-1].facts.get("digest") != digest(self.connection):
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
        _CHARGED.discard(self)
        self.connection.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # --- what changes the file

    @classmethod
    def create(
        cls, path: Path, units: ByUnit, labels: ByUnit | None = None, *, secret: bool = False
    ) -> Ledger:
        """A new ledger for these units and their data's fingerprints; ``labels`` are for people.

        A ``secret`` one only its owner may read, nor the files that SQLite puts beside it.

        Raises:
            LedgerError: if the file exists or cannot be written.
        """
        # Made under another name and then linked: killed at any instant, there is a whole ledger or
        # none, and of two processes that make the same one, one is told that it exists.
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with ledger_errors(path):
            if path.exists():
                raise FileExistsError
            try:
                # SQLite gives its log and index the rights of the file
                fresh.touch(0o600 if secret else 0o666, exist_ok=False)
                with closing(
                    sqlite3.connect(fresh, timeout=storage.PATIENCE, isolation_level=None)
                ) as db:
                    storage.create(db)
                    cls(path, db, NEWEST).register(units, labels)
                    db.execute("COMMIT")
                    storage.durable(db)
                publish(fresh, path)
            finally:
                fresh.unlink(missing_ok=True)
        return cls.open(path)

    @classmethod
    def scratch(cls, like: Ledger | None) -> Ledger:
        """A copy of a ledger in memory, or a new one, for what would be if it were charged.

        Raises:
            LedgerError: if it takes no more charges.
        """
        if like is not None:
            storage.refuse_early(like.path, like.format)
        db = sqlite3.connect(":memory:", isolation_level=None)
        if like is None:
            storage.create(db)
            db.execute("COMMIT")
            return cls(Path("ledger"), db, NEWEST)
        with like._errors():
            like.connection.backup(db)
        return cls(like.path, db, like.format)

    @classmethod
    def open_or_create(
        cls, path: Path, units: ByUnit, labels: ByUnit | None = None, *, secret: bool = False
    ) -> Ledger:
        """The ledger in this file, made where there is none, for these units; see :meth:`create`.

        Raises:
            LedgerError: if the file is no ledger, or a unit was kept for other data.
        """
        try:
            return cls.create(path, units, labels, secret=secret)
        except LedgerExists:  # long since, or by another process just now
            with closed_if_refused(cls.open(path)) as ledger:
                ledger.register(units, labels)
            return ledger

    def register(self, units: ByUnit, labels: ByUnit | None = None) -> None:
        """Add units, or check that they are kept for the data they were kept for.

        Raises:
            LedgerError: if a unit was kept for other data.
        """
        with self.transaction():
            for unit, fingerprint in units.items():
                known, _ = self._walk.units.get(unit, (None, None))
                if known is None:
                    label = {"label": labels[unit]} if labels and unit in labels else {}
                    self.note(UNIT, unit, {"fingerprint": fingerprint, **label})
                elif known != fingerprint:
                    raise LedgerError(
                        f"{self.path}: this ledger was kept for other data: {unit} had "
                        f"fingerprint {known[:12]}, now {fingerprint[:12]}. Use the ledger that "
                        "belongs to this data, or begin a new one"
                    )

    def note(self, kind: str, name: str, facts: Mapping[str, Any]) -> Note:
        """Add a note to the chain, durably, unless one of this kind and name says the same.

        Raises:
            ResumeError: if one says something else.
        """
        content = canonical(dict(facts))
        with self.transaction():
            found = self.noted(kind, name)
            if found is None:
                seq, prev = self._walk.head
                body = (seq + 1, kind, name, content, prev)
                row = (*body, digest(body))
                self.connection.execute("INSERT INTO notes VALUES (?, ?, ?, ?, ?, ?)", row)
                deque(self._walk.over(iter([(False, row)])), maxlen=0)
                return Note(*row)
            if found.content != content:
                raise ResumeError(
                    f"{self.path}: entry {found.seq} ({kind} {name}) already has other "
                    "content, and a note cannot be changed"
                )
            return found

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
        with self.transaction():
            permits, touched = self._book(charges)
            if once and not touched:
                raise StudyError(
                    f"{self.path}: a release with the key {charges[0].key!r} is charged already. "
                    "With other noise it is a second release: give it another key, and pay for it"
                )
            own = {
                unit: budget if isinstance(budget, Budget) else budget[unit]
                for unit in sorted(touched)
            }
            sets = {unit: own.pop(unit) for unit in tuple(own) if self._is_set(unit, admit)}
            for unit, most in own.items():
                most.admit(unit, self._walk.totals[unit].items())
            if sets and admit is not None:
                admit(sets)
            return permits

    def _is_set(self, unit: str, admit: Admit | None) -> bool:
        """Tell a set of records from a unit that stands for itself.

        Raises:
            LedgerError: for a set that takes no such charge.
        """
        found = self._ask("SELECT live FROM record_sets WHERE unit = ?", unit)
        if not found:
            return False
        if not found[0][0]:
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
        permits, rows, touched = [], [], set[str]()
        new: dict[str, tuple[Charge, Head]] = {}
        seq, prev = self._walk.head
        for charge in charges:
            if charge.unit not in self._walk.totals:
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
                self._walk.add(charge.unit, charge.event, charge.count, seq)
                touched.add(charge.unit)
                booked, fresh = (seq, prev), True
                new[charge.key] = charge, booked
            permits.append(issue(charge, *booked, new=fresh))
        blanks = ", ".join("?" * len(self.format.names))
        self.connection.executemany(f"INSERT INTO entries VALUES ({blanks})", rows)
        self._walk.head = (seq, prev)
        return tuple(permits), touched

    def book_reserve(self, run: str | None = None, remaining: Remaining | None = None) -> None:
        """Book what a run that ends could still have spent, where it chose how much it is; or what
        is missing of all that ended in versions before.
        """
        with self.transaction() as db:
            if run is not None and remaining is not None:
                charged = "SELECT 1 FROM entries WHERE key >= ? AND key < ? LIMIT 1"
                if self._ask(charged, f"{run}/", f"{run}0"):  # its keys begin with its name
                    self._book(reserve(self, run, remaining))
                return
            held = dict(db.execute("SELECT unit, runs FROM record_sets").fetchall())
            self._book(
                [
                    replace(each, key=f"{RESERVE}/{each.key}")
                    for each in reserve(self)
                    if each.key.partition("/")[0] not in held.get(each.unit, "")
                ]
            )

    def planned(self, run: str) -> dict[str, Counter[Event]]:
        """Return the charges that a run has planned on its units, where it has noted them."""
        begin = self.noted(BEGIN, run)
        noted = None if begin is None else begin.facts.get(PLANNED)
        found = defaultdict[str, Counter[Event]](Counter)
        for unit, charges in noted.items() if isinstance(noted, dict) else ():
            for text, count in charges:
                found[unit][decode(text)] += count
        return dict(found)

    def charged_by(self, run: str) -> dict[str, Counter[Event]]:
        """Return what a run has charged its units, without what it could still have charged; its
        keys begin with its name.
        """
        query = (
            "SELECT unit, event, SUM(count) FROM entries WHERE key >= ? AND key < ? AND NOT (key "
            ">= ? AND key < ?) GROUP BY unit, event"
        )
        rest, found = f"{run}/{RESERVE}", defaultdict[str, Counter[Event]](Counter)
        for unit, text, count in self._ask(query, f"{run}/", f"{run}0", f"{rest}/", f"{rest}0"):
            found[unit][decode(text)] = int(count)
        return found

    def _booked(self, charge: Charge) -> Head | None:
        """Return the entry of this release, if it is booked with this content."""
        names = self.format.names
        rows = self._ask(f"SELECT {', '.join(names)} FROM entries WHERE key = ?", charge.key)
        if not rows:
            return None
        (found,) = rows
        compared = [name not in NOT_COMPARED for name in names]
        before, content = (
            tuple(compress(row, compared)) for row in (found, self.format.write(charge, 0, ""))
        )
        if before != content:
            raise ResumeError(
                f"{self.path}: the release {charge.key!r} was charged before as {before}, now it "
                f"would be {content}. The study or the data changed: begin a new run"
            )
        return int(found[0]), str(found[-1])

    def booked(self, unit: str) -> Mapping[Event, int]:
        """Return what a unit has spent, as memory knows it; inside of a charge that includes the
        charge."""
        return self._walk.totals.get(unit, {})

    def _refuse_replaced(self) -> None:
        """Refuse to go on where the ledger at its path is no longer the one that was opened, or an
        older state of it: what is charged would stand in a file that nobody reads, or what was
        charged before in none.

        Raises:
            LedgerError: saying so.
        """
        if self._place is not None and not self._place.stands():
            what = "its file was moved, removed, or replaced by another one"
        elif self._place is not None and storage.wal_files(self._place.path) != self._wal_files:
            raise storage.unseen(self.path)
        elif not self._stands(self._last):
            what = f"its entry {self._last[0]} has gone: it is an older copy"
        else:
            return
        raise LedgerError(
            f"{self.path}: since this process has opened the ledger, {what}. Nothing more is "
            "released. Stop all processes that use the ledger, and put back its newest copy"
        )

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One durable change as a whole, over a schema that stands as it was checked.

        Nobody charges meanwhile. Within another one it is a part of that.

        Raises:
            LedgerError: if the file cannot be written.
        """
        if self.connection.in_transaction:
            yield self.connection
            return
        if self._place is not None:
            _refuse_forked(self._place)
        with self._errors():
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                (version,) = self.connection.execute("PRAGMA schema_version").fetchone()
                if version != self._version:
                    if recognise(self.connection, self.path) is not self.format:
                        raise LedgerError(f"{self.path}: another ledger stands in its place")
                    self._version = version
                self._refuse_replaced()
                if self._place is not None and self._place.stamp != self._stamp:
                    storage.refuse_hidden(self.connection, self.path, self.format)
                self._last = self.refresh().head
                yield self.connection
                self.connection.execute("COMMIT")
                self._last = self._walk.head
                storage.checkpoint_wal(self.connection)
                self._refuse_replaced()  # before anybody has a permit
                self._stamp = None if self._place is None else self._place.stamp
            except BaseException:
                self._walk = self._new_walk()  # what memory holds may not have been committed
                if self.connection.in_transaction:  # a full disk has SQLite roll back by itself
                    self.connection.execute("ROLLBACK")
                raise


@contextmanager
def closed_if_refused(ledger: Ledger) -> Iterator[Ledger]:
    """Close a ledger that turns out not to be the one."""
    try:
        yield ledger
    except BaseException:
        ledger.close()
        raise


_CHARGED: weakref.WeakSet[Ledger] = weakref.WeakSet()
"""Ledgers that are open for charges."""
_FORKED = set[tuple[int, int]]()
"""Their files, of the process that this one was forked from."""


def _forked() -> None:
    _FORKED.update(one._place.file for one in _CHARGED if one._place is not None)


os.register_at_fork(after_in_child=_forked)


def _refuse_forked(place: storage.Place) -> None:
    """Refuse to charge a file that was open when this process was forked: SQLite takes locks that
    the other process has for its own, so that each would write over what the other one charges.

    Raises:
        LedgerError: saying so.
    """
    if place.file in _FORKED:
        raise LedgerError(
            f"{place.path}: this ledger was open when this process was forked from another one, so "
            "that it cannot be charged here. Open it after the fork alone, or start the process by "
            "'spawn'"
        )


def _refuse_odd(path: Path) -> None:
    """SQLite opens by path and follows links: only plain files may stand where it works."""
    for ending in ("", "-wal", "-shm", "-journal"):
        try:
            refuse_odd(path.with_name(path.name + ending))
        except (StudyError, OSError) as error:
            raise LedgerError(f"{path}: the ledger cannot be used: {error}") from error
