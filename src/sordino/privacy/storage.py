"""The file of a ledger: its tables and nothing else, opened so that no file can do harm.

Nor can one take forever.

A ledger may come from anybody. Before anything in it is read, its schema must be that of a format
(:mod:`sordino.privacy.formats`): no trigger, no view, no generated column, no further table or
index. Text has a longest length, files have a largest size, and a reader has so many seconds.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sordino.base.errors import LedgerError, LedgerUnavailable, SordinoError
from sordino.privacy.formats import NEWEST, LedgerFormat, recognise

PATIENCE = 30.0  # seconds to wait for another process that is charging
SECONDS = 300.0  # that a reader may take
LONGEST = 8 << 20  # bytes of one row
LARGEST = 8 << 30  # bytes of a file
LARGEST_LOG = 1 << 30  # bytes of a write-ahead log, which SQLite reads in one go
LOOKS, LOOK = 20, 0.01  # at a file that somebody may be writing, and seconds between two
IN_MEMORY = 256 << 20  # bytes up to which a file is read into memory


class LedgerExists(LedgerError):
    """Where a new ledger was to be made there is one."""


class OutOfTime(SordinoError):
    """A reader's seconds are over."""


class Clock:
    """Seconds that a reader may take, from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._end = seconds, time.monotonic() + seconds

    def over(self) -> bool:
        """Tell whether they are over."""
        return time.monotonic() > self._end

    def left(self) -> float:
        """Seconds that are left; below 0 when they are over."""
        return self._end - time.monotonic()

    def check(self) -> None:
        """Stop if they are.

        Raises:
            OutOfTime: to be caught where the file is known.
        """
        if self.over():
            raise OutOfTime


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file was when it was opened, and which file that was (device and number)."""

    path: Path
    file: tuple[int, int]

    @classmethod
    def of(cls, path: Path) -> Place:
        """The place of a file that is there."""
        about = path.stat()
        return cls(path.absolute(), (about.st_dev, about.st_ino))

    def stands(self) -> bool:
        """Tell whether the same file is there still."""
        try:
            return Place.of(self.path) == self
        except OSError:
            return False

    @property
    def stamp(self) -> tuple[int, int]:
        """Another one after whoever has written into the file."""
        about = self.path.stat()
        return about.st_mtime_ns, about.st_size


def connect(path: Path, *, clock: Clock | None) -> tuple[sqlite3.Connection, LedgerFormat]:
    """A connection to a ledger with a checked schema: ``clock`` to read, without one to write.

    Raises:
        LedgerError: if it is no ledger, or none that may be trusted.
    """
    _refuse_files(path)
    logged = path.with_name(path.name + "-wal").exists()
    if logged and clock is None:  # first: who may write brings the log into the file at its end
        with closing(_opened(path, "mode=ro")) as seen:
            harden(seen, Clock(SECONDS))
            refuse_hidden(seen, path, recognise(seen, path))
    db = _snapshot(path) if clock is not None else None
    if db is None:
        db = _opened(path, f"mode={'rw' if clock is None else 'ro'}")
    try:
        harden(db, clock)
        form = recognise(db, path)
        if logged and clock is not None:
            refuse_hidden(db, path, form)
        if clock is None:
            refuse_early(path, form)
            durable(db)
        return db, form
    except BaseException:
        db.close()
        raise


def _opened(path: Path, how: str) -> sqlite3.Connection:
    where = f"{path.resolve().as_uri()}?{how}"
    return sqlite3.connect(where, uri=True, timeout=PATIENCE, isolation_level=None)


def refuse_hidden(db: sqlite3.Connection, path: Path, form: LedgerFormat) -> None:
    """Refuse a connection that does not see what stands in the file itself: it reads an older log,
    or another one than whoever has charged, and would write over that.

    Raises:
        LedgerError: saying so; :func:`unseen`.
    """
    for _ in range(LOOKS):
        last = _last_in_file(path, form)
        query = f"SELECT 1 FROM ({form.heads}) WHERE seq = ? AND digest = ?"
        if last is None or db.execute(query, last).fetchone():
            return
        time.sleep(LOOK)  # somebody may be writing
    raise unseen(path)


def wal_files(path: Path) -> tuple[int, ...]:
    """Which files SQLite's log and index beside a ledger are: by them processes know of each other.
    Nobody removes them while one has the ledger open.
    """
    found = (path.with_name(f"{path.name}-{each}") for each in ("wal", "shm"))
    return tuple(each.stat().st_ino if each.exists() else 0 for each in found)


def unseen(path: Path) -> LedgerUnavailable:
    """The error where a process does not see what others charge."""
    return LedgerUnavailable(
        f"{path}: this process does not see all that is charged here: the two files beside the "
        f"ledger ({path.name}-wal and {path.name}-shm) were removed or replaced, or are not those "
        "of the process that has charged it, as where this file is mounted without its folder. "
        "Nothing more is released. End all processes that use the ledger, and not by a kill: what "
        "they have charged is in the ledger itself then. After that move these two files away"
    )


def _last_in_file(path: Path, form: LedgerFormat) -> tuple[int, str] | None:
    """Return the last link in the file, without its log and without locks; None where there is
    none, or none can be read, as when a kill has left a charge half in it.
    """
    try:
        with closing(_opened(path, "mode=ro&immutable=1")) as db:
            harden(db, Clock(PATIENCE))
            found: tuple[int, str] | None = db.execute(
                f"{form.heads} ORDER BY 1 DESC LIMIT 1"
            ).fetchone()
            return found
    except sqlite3.Error:
        return None


def refuse_early(path: Path, form: LedgerFormat) -> None:
    """Refuse a ledger to which this version adds no charges.

    Raises:
        LedgerError: saying what can be done with it.
    """
    if not form.charged:
        raise LedgerError(
            f"{path}: a ledger of format {form.meta['format']} of an early version, which can be "
            "read, verified and priced, and takes no more charges. Keep it, because its charges "
            "remain spent, and begin a new run with a new ledger"
        )


def harden(db: sqlite3.Connection, clock: Clock | None) -> None:
    """Let no schema run anything, no row be endless and no query outlast the clock."""
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    if hasattr(db, "setconfig"):  # from Python 3.12 on
        db.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)  # type: ignore[attr-defined,unused-ignore]
    if clock is not None:
        db.set_progress_handler(clock.over, 20_000)
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")


def refuse_records(db: sqlite3.Connection, path: Path, form: LedgerFormat) -> None:
    """Refuse records where the chain holds no digest of them.

    Raises:
        LedgerError: naming the table that is not as a new ledger has it.
    """
    if "record_meta" not in form.tables:
        return
    stated = dict(db.execute("SELECT name, value FROM record_meta LIMIT 10").fetchall())
    for name in ("key", "openings"):  # openings were counted by versions before
        stated.pop(name, None)
    # key and version are made in a step before the first set is opened
    full = ["record_meta"] if stated not in ({}, {"version": "0"}) else []
    tables = [name for name in form.tables if name.startswith("record_") and name != "record_meta"]
    full += [name for name in tables if db.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone()]
    if full:
        raise LedgerError(
            f"{path}: its table {full[0]} holds records, and no entry says so: somebody added "
            "them. Restore the ledger from a copy"
        )


def seen_by_others(folder: Path) -> str | None:
    """A warning if others than the owner may write into a folder of ledgers, or read its files."""
    for each, rights in ((folder, 0o022), *((file, 0o077) for file in folder.glob("*.sqlite*"))):
        with suppress(FileNotFoundError):  # SQLite's log comes and goes
            if each.stat().st_mode & rights:
                return (
                    f"warning: {each}: other users of this machine have rights here, and a ledger "
                    "of the data holds the key of its records' digests. Take the rights away: "
                    f"chmod -R go= {folder}"
                )
    return None


def create(db: sqlite3.Connection) -> None:
    """Make the tables of the newest format, inside a transaction that the caller ends."""
    db.execute("BEGIN")
    for sql in NEWEST.tables.values():
        db.execute(sql)
    db.executemany("INSERT INTO meta VALUES (?, ?)", NEWEST.meta.items())


def durable(db: sqlite3.Connection) -> None:
    """Keep what was committed, whatever happens to the machine."""
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA schema_version").fetchone()  # the log and its index are there from now on


MOMENT = 200
"""Milliseconds that a charge waits for readers of an old state."""


def checkpoint_wal(db: sqlite3.Connection) -> None:
    """Bring what was committed from the log into the file: after a kill, whoever moves the file may
    leave the log behind. Who reads an old state for longer than a moment is not waited for.
    """
    _, pages, done = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if done < pages:
        db.execute(f"PRAGMA busy_timeout = {MOMENT}")
        db.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        db.execute(f"PRAGMA busy_timeout = {round(1000 * PATIENCE)}")


@contextmanager
def ledger_errors(path: Path, clock: Clock | None = None) -> Iterator[None]:
    """Complaints of SQLite and of the disk as one message."""
    try:
        yield
    except FileExistsError as error:
        raise LedgerExists(
            f"{path}: a ledger exists there already; open it instead of making it anew"
        ) from error
    except OSError as error:
        raise LedgerUnavailable(
            f"{path}: the ledger cannot be used: {error}. Make sure that its folder exists "
            "and is writable"
        ) from error
    except (OutOfTime, RecursionError, MemoryError) as error:
        if clock is None and isinstance(error, MemoryError):
            raise LedgerUnavailable(
                f"{path}: the ledger cannot be used: no memory is left. Free some; nothing was "
                "released without being charged"
            ) from error
        raise _late(path, clock) from error
    except (TypeError, ValueError) as error:  # a number or text that rotted into something else
        raise LedgerError(
            f"{path}: the ledger no longer holds readable text and numbers: {error}. Restore it "
            "from a copy"
        ) from error
    except sqlite3.Error as error:
        text = str(error)
        if "interrupted" in text:
            raise _late(path, clock) from error
        remedy = {
            "disk is full": "Free some space; nothing was released without being charged",
            "disk I/O": "Free some space, and look at the disk; nothing was released without being "
            "charged",
            "lock": "Another process is charging this ledger; try again when it is done",
            "readonly": "Make the file and its folder writable",
            "unable to open": "Make sure that its folder exists and is writable",
            "same thread": "Charge in the thread that has opened it",
        }
        hint = next((words for part, words in remedy.items() if part in text), None)
        said = f"{path}: the ledger cannot be used: {text}."
        if hint is None:
            raise LedgerError(f"{said} Restore it from a copy; nothing is guessed") from error
        raise LedgerUnavailable(f"{said} {hint}") from error


def _late(path: Path, clock: Clock | None) -> LedgerError:
    within = "" if clock is None else f" within {clock.seconds:g} seconds"
    return LedgerError(
        f"{path}: this ledger could not be read to its end{within}. It is damaged, or too "
        "large to be looked at here"
    )


def _refuse_files(path: Path) -> None:
    for file, most in ((path, LARGEST), (path.with_name(path.name + "-wal"), LARGEST_LOG)):
        if file.exists() and (size := file.stat().st_size) > most:
            raise LedgerError(
                f"{file}: {size} bytes; a ledger's file of this kind has at most {most}. "
                "Restore it from a copy"
            )
    # SQLite would roll this back before anything is read, and delete a file that it names
    journal = path.with_name(path.name + "-journal")
    if journal.exists() and journal.stat().st_size:
        raise LedgerError(
            f"{journal}: a ledger has a write-ahead log, and never a rollback journal: somebody "
            "put this file here. Delete it"
        )


def _snapshot(path: Path) -> sqlite3.Connection | None:
    """The file as it stands, in memory; None while somebody writes to it, or where it is too large.

    SQLite's own reader of a write-ahead log leaves an index beside the file, and needs the right
    to: a query would leave a trace, and an archive could not be read. Where there is no log the
    file is whole.
    """

    def state() -> tuple[int, int, bool]:
        about = path.stat()
        return about.st_mtime_ns, about.st_size, path.with_name(path.name + "-wal").exists()

    before = state()
    if before[2] or not 100 <= before[1] <= IN_MEMORY:
        return None
    content = bytearray(path.read_bytes())
    if state() != before or len(content) < 100:
        return None
    # the header's mark "has a write-ahead log", which memory cannot have
    content[18:20] = b"\x01\x01"
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.deserialize(bytes(content))
    db.execute("PRAGMA query_only = ON")
    return db
