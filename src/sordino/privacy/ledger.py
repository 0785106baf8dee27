"""The ledger: what was released, append-only, chained by digest, durable before the release.

One SQLite file (write-ahead log, synchronous=FULL). An entry says which unit's data was used,
by which event and how often, why, by which method and in which round; its digest covers all of
that and the digest of the entry before, so no entry can be changed or taken out unseen. That the
*last* entries were cut off shows only against a digest kept elsewhere: the report prints it.

``charge`` checks the budget and appends in one transaction, so that two runs over the same data
cannot both spend the last of it. It returns receipts; nothing may be released without one.

A charge has a key. Charging the same key again with the same content adds nothing: a resumed
simulation replays the very same release. With other content it is refused.

Queries open the file read-only and change nothing.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from sordino.errors import LedgerError, ResumeError
from sordino.privacy.accounting import accountant
from sordino.privacy.budget import Budget
from sordino.privacy.event import Event, decode, encode

FORMAT = "1"
ADJACENCY = "add or remove one record; of the units labels, party and entities of events: replace one"
START = hashlib.sha256(b"sordino ledger").hexdigest()
_MOST = 2**40  # of one number in an entry: a file of millions of them still adds up within 64 bits
_BATCH = 1000  # entries read at once
_PATIENCE = 30.0  # seconds to wait for another process that is charging

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE units (unit TEXT PRIMARY KEY, fingerprint TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, unit TEXT NOT NULL, event TEXT NOT NULL, count INTEGER NOT NULL, why TEXT NOT NULL,
    method TEXT NOT NULL, round INTEGER NOT NULL, key TEXT NOT NULL UNIQUE, prev TEXT NOT NULL, digest TEXT NOT NULL
);
"""


Admit = Callable[[Sequence[str], Budget], None]
"""Refuses, by an error, charges on these units; their totals count them already."""


class LedgerExists(LedgerError):
    """Where a new ledger was to be made there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A release that is about to happen.

    Attributes:
        unit: whose data.
        event: what is done with it.
        count: how often.
        why: in words.
        method: name of the method.
        round: number of the round.
        key: names this release and no other, over all runs.
    """

    unit: str
    event: Event
    count: int
    why: str
    method: str
    round: int
    key: str

    def __post_init__(self) -> None:
        # SQLite keeps numpy's integers as bytes, which add up to next to nothing, and True and 2.0 as
        # integers, which hash otherwise: what is kept must be what was hashed.
        object.__setattr__(self, "count", _whole("count", self.count))
        object.__setattr__(self, "round", _whole("round", self.round))
        for name in ("unit", "why", "method", "key"):
            object.__setattr__(self, name, _text(name, getattr(self, name)))


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that a charge is in the ledger."""

    unit: str
    event: Event
    count: int
    round: int
    key: str
    seq: int
    digest: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger."""

    seq: int
    unit: str
    event: Event
    count: int
    why: str
    method: str
    round: int
    key: str
    prev: str
    digest: str


@dataclass(frozen=True, slots=True)
class Verified:
    """A ledger whose chain is whole."""

    entries: int
    digest: str


class Ledger:
    """One ledger file."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection
        self._head: tuple[int, str] = (0, START)
        self._totals: dict[str, dict[Event, int]] = {}
        self._last: dict[str, int] = {}  # number of each unit's last entry

    @classmethod
    def create(cls, path: Path, units: Mapping[str, str]) -> Ledger:
        """A new ledger for these units and the fingerprints of their data.

        Raises:
            LedgerError: if the file exists or cannot be written.
        """
        # Made under another name and then linked: killed at any instant, there is a whole ledger or none,
        # and of two processes that make the same one, one is told that it exists.
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with _said(path):
            if path.exists():
                raise FileExistsError
            try:
                fresh.unlink(missing_ok=True)
                with closing(sqlite3.connect(fresh, timeout=_PATIENCE, isolation_level=None)) as db:
                    db.executescript("BEGIN;" + _TABLES)
                    db.executemany("INSERT INTO meta VALUES (?, ?)", [("format", FORMAT), ("adjacency", ADJACENCY)])
                    db.executemany("INSERT INTO units VALUES (?, ?)", units.items())
                    db.execute("COMMIT")
                    _durable(db)
                _publish(fresh, path)
            finally:
                fresh.unlink(missing_ok=True)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, readonly: bool = False) -> Ledger:
        """A ledger that exists. A reader sees it as it stood when opened, or live if somebody was writing then.

        Raises:
            LedgerError: if there is none, or the file is no ledger.
        """
        if not path.is_file():
            raise LedgerError(f"{path}: there is no ledger here")
        with _said(path):
            db, found = _connect(path, readonly)
        if found is None or found[0] != FORMAT:
            db.close()
            raise LedgerError(f"{path}: a ledger of format {found and found[0]}; this version reads format {FORMAT}")
        return cls(path, db)

    def register(self, units: Mapping[str, str]) -> None:
        """Add units, or check that they are kept for the data they were kept for.

        Raises:
            LedgerError: if a unit was kept for other data.
        """
        with _said(self.path), self._transaction():
            known = dict(self._db.execute("SELECT unit, fingerprint FROM units"))
            for unit, fingerprint in units.items():
                if known.setdefault(unit, fingerprint) != fingerprint:
                    raise LedgerError(
                        f"{self.path}: this ledger was kept for other data: {unit} had fingerprint"
                        f" {known[unit][:12]}, now {fingerprint[:12]}."
                        " Use the ledger that belongs to this data, or begin a new one"
                    )
            self._db.executemany("INSERT OR IGNORE INTO units VALUES (?, ?)", units.items())

    def charge(self, charges: Sequence[Charge], budget: Budget, admit: Admit | None = None) -> tuple[Receipt, ...]:
        """Book all of the charges, durably, or none.

        ``admit`` is asked, inside of the transaction, instead of holding each unit's own history against the budget.

        Raises:
            BudgetExceeded: if a unit would pass the budget; nothing was booked.
            ResumeError: if a key was booked before with other content.
            LedgerError: for a unit that is not kept here, or a file that cannot be written.
        """
        with _said(self.path):
            try:
                with self._transaction():
                    return self._book(charges, budget, admit)
            except BaseException:
                self._head, self._totals, self._last = (0, START), {}, {}  # what memory holds may not have been committed
                raise

    def _book(self, charges: Sequence[Charge], budget: Budget, admit: Admit | None) -> tuple[Receipt, ...]:
        self._refresh()
        receipts, rows, touched = [], [], set()
        new: dict[str, tuple[Charge, tuple[int, str]]] = {}
        seq, prev = self._head
        for charge in charges:
            if charge.unit not in self._totals:
                raise LedgerError(f"{self.path}: no data of {charge.unit!r} is kept here")
            if charge.count < 1:
                raise LedgerError(f"{charge.unit}: a release happens at least once; got {charge.count}")
            booked = self._booked(charge)
            if charge.key in new:
                same, booked = new[charge.key]
                if same != charge:
                    raise ResumeError(f"{self.path}: two releases of one call have the key {charge.key!r}; a key names one release only")
            if booked is None:
                seq += 1
                body = (seq, charge.unit, encode(charge.event), charge.count, charge.why, charge.method, charge.round, charge.key, prev)
                prev = _digest(body)
                rows.append((*body, prev))
                totals = self._totals[charge.unit]
                totals[charge.event] = totals.get(charge.event, 0) + charge.count
                self._last[charge.unit] = seq
                touched.add(charge.unit)
                booked = (seq, prev)
                new[charge.key] = charge, booked
            receipts.append(Receipt(charge.unit, charge.event, charge.count, charge.round, charge.key, *booked))
        if admit is not None:
            admit(sorted(touched), budget)
        else:
            for unit in sorted(touched):
                budget.admit(unit, self._totals[unit].items())
        self._db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self._head = (seq, prev)
        return tuple(receipts)

    def _booked(self, charge: Charge) -> tuple[int, str] | None:
        found = self._db.execute(
            "SELECT seq, digest, unit, event, count, method, round FROM entries WHERE key = ?", (charge.key,)
        ).fetchone()
        if found is None:
            return None
        # The words of "why" may change between versions without making it another release.
        content = (charge.unit, encode(charge.event), charge.count, charge.method, charge.round)
        if found[2:] != content:
            raise ResumeError(
                f"{self.path}: the release {charge.key!r} was booked before as {found[2:]}, now it would be {content}."
                " The study or the data changed: begin a new run"
            )
        return int(found[0]), str(found[1])

    def _refresh(self) -> None:
        """Bring the totals in memory up to the file, which other processes may have written."""
        kept = self._db.execute("SELECT digest FROM entries WHERE seq = ?", (self._head[0],)).fetchone()
        if kept != (self._head[1],) or len(self._totals) != self._db.execute("SELECT COUNT(*) FROM units").fetchone()[0]:
            self._head = (0, START)
            self._totals = {unit: {} for (unit,) in self._db.execute("SELECT unit FROM units")}
            self._last = {}
        # The head is read first: what another process adds between the two queries is then next time's news.
        head = self.head()
        news = self._db.execute(
            "SELECT unit, event, SUM(count), MAX(seq) FROM entries WHERE seq > ? AND seq <= ? GROUP BY unit, event ORDER BY MIN(seq)",
            (self._head[0], head[0]),
        )
        for unit, text, count, last in news.fetchall():
            event = decode(text)
            self._last[unit] = max(last, self._last.get(unit, 0))
            totals = self._totals.setdefault(unit, {})
            totals[event] = totals.get(event, 0) + count
        self._head = head

    def spent(self, unit: str, until: int | None = None) -> tuple[tuple[Event, int], ...]:
        """What a unit has spent: events and how often; up to and with entry ``until`` where that is given.

        Raises:
            LedgerError: for a unit that is not kept here: a slip in its name must not read as "nothing spent".
        """
        with _said(self.path):
            self._refresh()
            if unit not in self._totals:
                raise LedgerError(f"{self.path}: no data of {unit!r} is kept here")
            if until is None or until >= self._last.get(unit, 0):
                return tuple(self._totals[unit].items())
            totals = self._db.execute(
                "SELECT event, SUM(count) FROM entries WHERE unit = ? AND seq <= ? GROUP BY event ORDER BY MIN(seq)", (unit, until)
            )
            return tuple((decode(text), int(count)) for text, count in totals.fetchall())

    def epsilon(self, unit: str, delta: float, name: str) -> float:
        """What a unit has spent, priced by an accountant."""
        return accountant(name).epsilon(self.spent(unit), delta)

    def units(self) -> dict[str, str]:
        """Every unit and the fingerprint of its data."""
        with _said(self.path):
            return dict(self._db.execute("SELECT unit, fingerprint FROM units"))

    def head(self) -> tuple[int, str]:
        """Number and digest of the last entry."""
        with _said(self.path):
            found = self._db.execute("SELECT seq, digest FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
            return (int(found[0]), str(found[1])) if found else (0, START)

    def entries(self, unit: str | None = None) -> Iterator[Entry]:
        """The entries in order, of one unit or of all, up to the one that is last now."""
        for row in self._rows(unit):
            yield Entry(row[0], row[1], decode(row[2]), *row[3:])

    def _rows(self, unit: str | None = None) -> Iterator[tuple[Any, ...]]:
        # In batches: a query left half-read would hold this connection at an old state of the file, from
        # which it could not charge; and with no fixed end, one who charges while reading would never be done.
        last, _ = self.head()
        following = -(2**63)
        while True:
            with _said(self.path):
                rows = self._db.execute(
                    "SELECT * FROM entries WHERE seq BETWEEN ? AND ? AND unit = ifnull(?, unit) ORDER BY seq LIMIT ?",
                    (following, last, unit, _BATCH),
                ).fetchall()
            yield from rows
            if not rows or rows[-1][0] == last:
                return
            following = rows[-1][0] + 1

    def verify(self, expected_digest: str | None = None) -> Verified:
        """Walk the chain and hash every entry again.

        Raises:
            LedgerError: naming the first entry that does not fit, or if the last digest is not the
                one expected.
        """
        seq, prev = 0, START
        for row in self._rows():
            seq += 1
            if row[0] != seq:
                raise LedgerError(f"{self.path}: entry {seq} is missing: the chain goes on with entry {row[0]}")
            if row[8] != prev:
                raise LedgerError(f"{self.path}: entry {seq} does not continue the entry before it: one of the two was changed")
            prev = _digest(row[:9])
            if row[9] != prev:
                raise LedgerError(f"{self.path}: entry {seq} ({row[1]}, round {row[6]}) was changed after it was written")
            decode(row[2])
        if expected_digest is not None and expected_digest != prev:
            raise LedgerError(
                f"{self.path}: the last digest is {prev[:16]}… after {seq} entries, expected {expected_digest[:16]}…:"
                " entries were cut off, or added since that digest was noted"
            )
        return Verified(seq, prev)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """The file's connection, for tables that stand beside the ledger's own."""
        return self._db

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One durable change of tables that stand beside the ledger's own; nobody charges meanwhile.

        Raises:
            LedgerError: if the file cannot be written.
        """
        with _said(self.path), self._transaction():
            self._refresh()
            yield self._db

    def refresh(self) -> None:
        """Look what other processes have booked."""
        with _said(self.path):
            self._refresh()

    def booked(self, unit: str) -> Mapping[Event, int]:
        """What memory knows that a unit has spent; inside of a charge that includes the charge."""
        return self._totals.get(unit, {})

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # a full disk has SQLite roll back by itself
                self._db.execute("ROLLBACK")
            raise


def _whole(name: str, value: object) -> int:
    try:
        number = int(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        raise LedgerError(f"{name} of a charge must be a whole number; got {value!r}") from None
    if abs(number) > _MOST:
        raise LedgerError(f"{name} of a charge must be at most {_MOST}; got {number}")
    return number


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise LedgerError(f"{name} of a charge must be text; got {value!r}")
    return str(value)


def _digest(body: Sequence[object]) -> str:
    # What was tampered with may hold anything, bytes too: it must still hash to something, and to something else.
    return hashlib.sha256(json.dumps(list(body), ensure_ascii=True, separators=(",", ":"), default=repr).encode()).hexdigest()


def _connect(path: Path, readonly: bool) -> tuple[sqlite3.Connection, tuple[str] | None]:
    """A connection, and the format that the file states."""
    db = _snapshot(path) if readonly else None
    if db is None:
        mode = "ro" if readonly else "rw"
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=_PATIENCE, isolation_level=None)
    try:
        if not readonly:
            _durable(db)
        return db, db.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
    except BaseException:
        db.close()
        raise


def _snapshot(path: Path) -> sqlite3.Connection | None:
    """The file as it stands, in memory; None while somebody writes to it.

    SQLite's own reader of a write-ahead log leaves an index beside the file, and needs the right to: a
    query would leave a trace, and an archive could not be read. Where there is no log the file is whole.
    """

    def state() -> tuple[int, int, bool]:
        about = path.stat()
        return about.st_mtime_ns, about.st_size, path.with_name(path.name + "-wal").exists()

    before = state()
    content = bytearray() if before[2] else bytearray(path.read_bytes())
    if before[2] or state() != before or len(content) < 100:
        return None
    content[18:20] = b"\x01\x01"  # the header's mark "has a write-ahead log", which memory cannot have
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.deserialize(bytes(content))
    db.execute("PRAGMA query_only = ON")
    return db


def _publish(fresh: Path, path: Path) -> None:
    """Give a finished file its name, durably, and never over another."""
    try:
        os.link(fresh, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if path.exists():
            raise FileExistsError from None
        fresh.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _durable(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")


@contextmanager
def _said(path: Path) -> Iterator[None]:
    """Complaints of SQLite and of the disk as one message."""
    try:
        yield
    except FileExistsError as error:
        raise LedgerExists(f"{path}: a ledger exists there already; open it instead of making it anew") from error
    except OSError as error:
        raise LedgerError(f"{path}: the ledger cannot be used: {error}. Make sure that its folder exists and is writable") from error
    except UnicodeError as error:
        raise LedgerError(f"{path}: the ledger cannot hold or no longer holds readable text: {error}") from error
    except (TypeError, ValueError) as error:  # a number that rotted into something else
        raise LedgerError(f"{path}: the ledger no longer holds readable numbers: {error}. Restore it from a copy") from error
    except sqlite3.Error as error:
        text = str(error)
        remedy = {
            "disk": "Free some space; nothing was released without being booked",
            "locked": "Another process is charging this ledger; try again when it is done",
            "readonly": "Make the file and its folder writable",
            "unable to open": "Make sure that its folder exists and is writable",
        }
        hint = next((words for part, words in remedy.items() if part in text), "Restore it from a copy; nothing is guessed")
        raise LedgerError(f"{path}: the ledger cannot be used: {text}. {hint}") from error
