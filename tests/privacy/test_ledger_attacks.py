"""Attacks on a ledger's file: whatever is done to it without rewriting the whole chain is found,
and no file takes forever.
"""

import contextlib
import json
import os
import sqlite3
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sordino.base.errors import LedgerError, ResumeError
from sordino.privacy import (
    Budget,
    Charge,
    Gaussian,
    Ledger,
    PoissonSampled,
    Repeated,
    chain,
    decode,
    encode,
)
from sordino.privacy.formats import NEWEST

STEP = PoissonSampled(sampling_rate=0.1, event=Gaussian(noise_multiplier=1.0))
FREE = Budget(epsilon=float("inf"), delta=1e-5, accountant="rdp")
UNITS = {"client:0": "aaaa", "client:1": "bbbb"}


def charge(key: str, unit: str = "client:0", *, count: int = 2) -> Charge:
    return Charge(unit=unit, event=STEP, count=count, why="test", method="toy", round=1, key=key)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "ledger.sqlite"
    with Ledger.create(place, UNITS, {"client:0": "St. Mary's"}) as ledger:
        ledger.charge([charge("a"), charge("b", "client:1"), charge("c")], FREE)
    return place


def tamper(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


def look(path: Path) -> None:
    """Everything that believes a file."""
    with Ledger.open(path, readonly=True) as ledger:
        ledger.verify()


def rehash(path: Path) -> None:
    """Write all digests anew, as a forger with time would."""
    db = sqlite3.connect(path)
    tables = ("entries", "notes")
    rows = [(table, row) for table in tables for row in db.execute(f"SELECT * FROM {table}")]
    prev = NEWEST.start
    for table, row in sorted(rows, key=lambda each: int(each[1][0])):
        body = (*row[:-2], prev)
        prev, before = chain.digest(body), prev
        db.execute(f"UPDATE {table} SET prev = ?, digest = ? WHERE seq = ?", (before, prev, row[0]))
    db.commit()
    db.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM notes WHERE name = 'client:1'",
        "DELETE FROM notes",
        "UPDATE notes SET name = 'client:2' WHERE name = 'client:1'",
        "UPDATE notes SET content = replace(content, 'bbbb', 'cccc')",
        "UPDATE notes SET content = replace(content, 'Mary', 'Anne')",
        "UPDATE meta SET value = '2' WHERE name = 'format'",
        "UPDATE meta SET value = '3' WHERE name = 'format'",
        "UPDATE meta SET value = 'replace one record' WHERE name = 'adjacency'",
        "DELETE FROM meta",
        "INSERT INTO meta VALUES ('delta', '1e-9')",
        "CREATE TRIGGER quiet AFTER INSERT ON entries BEGIN UPDATE entries SET count = 0; END",
        "CREATE TRIGGER gone BEFORE INSERT ON entries BEGIN SELECT RAISE(IGNORE); END",
        "CREATE VIEW endless AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM "
        "n) SELECT i FROM n",
        "CREATE TABLE other (x)",
        "CREATE INDEX other ON entries (unit)",
        "ALTER TABLE entries ADD COLUMN twice INTEGER GENERATED ALWAYS AS (count * 2)",
        "ALTER TABLE entries ADD COLUMN more TEXT",
        "ALTER TABLE entries RENAME COLUMN count TO howmany",
        "UPDATE entries SET count = -5 WHERE seq = 5",
        "UPDATE entries SET seq = 9 WHERE seq = 5",
    ],
)
def test_what_is_done_to_a_file_is_found_by_who_reads_and_by_who_charges(
    path: Path, statement: str
) -> None:
    tamper(path, statement)
    with pytest.raises(LedgerError):
        look(path)
    with pytest.raises(LedgerError), Ledger.open(path) as ledger:
        ledger.charge([charge("d")], FREE)
    with pytest.raises(LedgerError), Ledger.open(path) as ledger:
        ledger.spent("client:0")


@pytest.mark.parametrize(
    "count", ["0", "-1", "-1000000", "NULL", "x'02'", "1.5", "'2'", "'two'", str(2**41), str(2**62)]
)
def test_a_count_that_cannot_be_is_found_even_where_every_digest_fits(
    path: Path, count: str
) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA ignore_check_constraints = ON")
    (sql,) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'entries'").fetchone()
    # so that the file holds just what is put there
    loose = sql.replace("count INTEGER NOT NULL", "count")
    db.executescript(
        f"PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = '{loose}' WHERE name = "
        "'entries';"
    )
    db.close()
    tamper(path, f"UPDATE entries SET count = {count} WHERE seq = 5")
    db = sqlite3.connect(path)
    db.executescript(
        f"PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = '{sql}' WHERE name = "
        "'entries';"
    )
    db.close()
    rehash(path)
    with pytest.raises(LedgerError, match=r"entry 5|damaged"):
        look(path)
    with pytest.raises(LedgerError, match="entry 5"), Ledger.open(path) as ledger:
        ledger.spent("client:0")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE entries SET unit = 'client:7' WHERE seq = 5", "no entry before it registers"),
        (f"UPDATE entries SET unit = '{'x' * 99}' WHERE seq = 5", "charges 'x{80}…', which no"),
        ("UPDATE entries SET event = '{}' WHERE seq = 5", "not an event"),
        ("UPDATE notes SET content = '{}' WHERE seq = 2", "without one fingerprint"),
        ("UPDATE notes SET content = '[' WHERE seq = 2", "not JSON that can be read"),
        ("UPDATE notes SET content = '[1]' WHERE seq = 2", "list where an object"),
        (
            "UPDATE notes SET kind = 'gift' WHERE seq = 2",
            "of a kind that this version does not know",
        ),
    ],
)
def test_links_that_say_nonsense_are_named_even_where_every_digest_fits(
    path: Path, statement: str, message: str
) -> None:
    tamper(path, statement)
    rehash(path)
    with pytest.raises(LedgerError, match=message):
        look(path)


def test_a_chain_written_anew_no_longer_holds_what_was_noted(path: Path) -> None:
    with Ledger.open(path, readonly=True) as ledger:
        head = ledger.head()
        assert ledger.holds(head[1])
    tamper(path, "UPDATE entries SET count = 1 WHERE seq = 3")
    rehash(path)
    with Ledger.open(path, readonly=True) as ledger:
        ledger.verify()  # whole in itself
        assert not ledger.stands(head)
        assert not ledger.holds(head[1])


def test_a_trigger_made_while_a_ledger_is_open_is_found_before_the_next_charge(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge([charge("d")], FREE)
        tamper(path, "CREATE TRIGGER gone BEFORE INSERT ON entries BEGIN SELECT RAISE(IGNORE); END")
        with pytest.raises(LedgerError, match="trigger 'gone'"):
            ledger.charge([charge("e")], FREE)


def test_notes_are_noted_once_and_say_the_same(path: Path) -> None:
    with Ledger.open(path) as ledger:
        first = ledger.note("begin", "run", {"b": 1, "a": [0.5, "x"]})
        assert (
            ledger.note("begin", "run", {"a": [0.5, "x"], "b": 1})
            == first
            == ledger.noted("begin", "run")
        )
        with pytest.raises(ResumeError, match="already has other content"):
            ledger.note("begin", "run", {"a": 2})
        assert ledger.noted("seal", "run") is None
        assert ledger.charge([charge("d")], FREE)[0].seq == first.seq + 1
        assert ledger.verify().entries == 4
        assert ledger.labels() == {"client:0": "St. Mary's"}


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("key TEXT NOT NULL UNIQUE", "key TEXT NOT NULL UNIQUE ON CONFLICT REPLACE"),
        ("key TEXT NOT NULL UNIQUE", "key TEXT NOT NULL"),
        ("unit TEXT NOT NULL", "unit TEXT COLLATE NOCASE NOT NULL"),
        ("count INTEGER NOT NULL", "count INTEGER NOT NULL CHECK (count < 9)"),
        ("count INTEGER NOT NULL", "count INTEGER NOT NULL DEFAULT 1"),
        ("count INTEGER NOT NULL", "count INTEGER"),
        ("count INTEGER NOT NULL", "count TEXT NOT NULL"),
        ("unit TEXT NOT NULL", "unit TEXT NOT NULL REFERENCES meta (name) ON DELETE CASCADE"),
        ("seq INTEGER PRIMARY KEY", "seq INTEGER PRIMARY KEY AUTOINCREMENT"),
        ("digest TEXT NOT NULL)", "digest TEXT NOT NULL) STRICT"),
        ("digest TEXT NOT NULL)", "digest TEXT NOT NULL, UNIQUE (unit, key))"),
        ("round INTEGER NOT NULL", "'round' INTEGER NOT NULL"),
        ("prev TEXT NOT NULL, digest TEXT NOT NULL", "digest TEXT NOT NULL, prev TEXT NOT NULL"),
    ],
)
def test_a_table_that_computes_compares_or_replaces_otherwise_is_refused(
    path: Path, there: str, instead: str
) -> None:
    sql = NEWEST.tables["entries"]
    assert there in sql
    columns = ", ".join(NEWEST.names)
    tamper(
        path,
        "ALTER TABLE entries RENAME TO moved",
        sql.replace(there, instead),
        f"INSERT INTO entries ({columns}) SELECT {columns} FROM moved",
        "DROP TABLE moved",
    )
    for readonly in (True, False):
        with pytest.raises(LedgerError, match="restore it from a copy"):
            Ledger.open(path, readonly=readonly)


def test_spaces_in_the_text_of_a_table_change_nothing(path: Path) -> None:
    sql = NEWEST.tables["entries"].replace("(", "(\n  ").replace(", ", ",\n  ")
    moved = "INSERT INTO entries SELECT * FROM moved"
    tamper(path, "ALTER TABLE entries RENAME TO moved", sql, moved, "DROP TABLE moved")
    look(path)


def test_deep_and_long_events_are_one_clear_error() -> None:
    deep = '{"type":"Repeated","count":1,"event":' * 5000 + '{"type":"Nothing"}' + "}" * 5000
    for text in (
        deep,
        '{"type":"Repeated","event":{"type":"Nothing"},"count":' + "9" * 5000 + "}",
        "[" * 100_000,
    ):
        with pytest.raises(LedgerError, match="not an event"):
            decode(text)


def test_an_event_that_no_accountant_can_price_is_one_clear_error(path: Path) -> None:
    text = encode(Repeated(event=STEP, count=1)).replace('"count":1', '"count":' + "9" * 400)
    tamper(path, f"UPDATE entries SET event = '{text}' WHERE seq = 5")
    rehash(path)
    with (
        pytest.raises(LedgerError, match=r"entry 5|cannot be priced"),
        Ledger.open(path, readonly=True) as ledger,
    ):
        ledger.epsilon("client:0", 1e-5, "pld")


def test_huge_files_end_at_once(tmp_path: Path, path: Path) -> None:
    zeros = tmp_path / "zeros.sqlite"
    with zeros.open("wb") as file:
        file.truncate(10 << 30)  # a hole: it takes no space
    headed = tmp_path / "headed.sqlite"
    with headed.open("wb") as file:
        file.write(path.read_bytes()[:100])
        file.truncate(4 << 30)
    logged = tmp_path / "logged.sqlite"
    logged.write_bytes(path.read_bytes())
    with (tmp_path / "logged.sqlite-wal").open("wb") as file:
        file.truncate(2 << 30)
    start = time.monotonic()
    for hostile in (zeros, headed, logged):
        for readonly in (True, False):
            with pytest.raises(LedgerError), Ledger.open(hostile, readonly=readonly) as ledger:
                ledger.verify()
    fifo = tmp_path / "fifo.sqlite"
    os.mkfifo(fifo)
    with pytest.raises(LedgerError, match="a pipe stands where a file belongs"):
        Ledger.open(fifo, readonly=True)
    assert time.monotonic() - start < 5.0


def test_a_reader_stops_when_its_seconds_are_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge([charge(f"more{i}") for i in range(2000)], FREE)
    with Ledger.open(path, readonly=True, seconds=60.0) as ledger:
        now = time.monotonic()
        monkeypatch.setattr("sordino.privacy.storage.time.monotonic", lambda: now + 61.0)
        with pytest.raises(LedgerError, match="could not be read to its end within 60 seconds"):
            ledger.verify()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage_is_one_kind_of_error_or_none(path: Path, data: st.DataObject) -> None:
    whole = path.read_bytes()
    places = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=8))
    damaged = bytearray(whole)
    for place in places:
        damaged[place] = data.draw(st.integers(0, 255))
    broken = path.with_name("broken.sqlite")
    broken.write_bytes(damaged[: data.draw(st.integers(0, len(whole)))])
    with (
        contextlib.suppress(LedgerError),
        Ledger.open(broken, readonly=True, seconds=10.0) as ledger,
    ):
        assert ledger.verify().entries == 3
        assert ledger.spent("client:0") == ((STEP, 4),)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=5000))
@example(b"")
@example(b"SQLite format 3\0" + b"\0" * 200)
def test_random_bytes_are_no_ledger(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "random.sqlite"
    path.write_bytes(content)
    for readonly in (True, False):
        with pytest.raises(LedgerError, match=r"random\.sqlite"):
            Ledger.open(path, readonly=readonly)


def test_content_is_canonical_json(path: Path) -> None:
    with Ledger.open(path, readonly=True) as ledger:
        assert [note.content for note in ledger.notes("unit")] == [
            json.dumps({"fingerprint": "aaaa", "label": "St. Mary's"}, separators=(",", ":")),
            '{"fingerprint":"bbbb"}',
        ]


@pytest.mark.parametrize("readonly", [True, False])
def test_a_strangers_rollback_journal_is_refused_and_deletes_no_file(
    tmp_path: Path, path: Path, readonly: bool
) -> None:
    """SQLite, before it reads a page, rolls back the journal beside a file, and deletes the "super
    journal" that its last bytes name: any file of the user.
    """
    victim = tmp_path / "elsewhere" / "data.key"
    victim.parent.mkdir()
    victim.write_bytes(b"secret")
    page = int.from_bytes(path.read_bytes()[16:18], "big")
    magic, name = bytes.fromhex("d9d505f920a163d7"), str(victim).encode()
    words = (0, 7, path.stat().st_size // page, 512, page)
    content = (magic + b"".join(word.to_bytes(4, "big") for word in words)).ljust(512, b"\0")
    content += (2**30 // page + 1).to_bytes(4, "big") + name
    content += len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + magic
    path.with_name(path.name + "-journal").write_bytes(content)
    with pytest.raises(LedgerError, match="somebody put this file here"):
        Ledger.open(path, readonly=readonly)
    assert victim.read_bytes() == b"secret"
