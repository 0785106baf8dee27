"""Ledgers as files: made whole or not at all, by one of two at once, watched by others, read
without a trace.
"""

import hashlib
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sordino.base.errors import LedgerError, LedgerUnavailable, ResumeError, StudyError
from sordino.cli.say import failed
from sordino.privacy import Budget, Charge, Gaussian, Ledger, LedgerSession, PoissonSampled, storage
from sordino.privacy import ledger as ledger_module
from sordino.privacy.formats import NEWEST
from sordino.privacy.records import Records
from sordino.privacy.storage import LedgerExists

STEP = PoissonSampled(sampling_rate=0.1, event=Gaussian(noise_multiplier=1.0))
FREE = Budget(epsilon=float("inf"), delta=1e-5, accountant="rdp")
UNITS = {"client:0": "aaaa", "client:1": "bbbb"}


def held(**units: str) -> list[Records]:
    """Units with one row each; equal words are equal rows."""
    words = [
        np.array([[int.from_bytes(word.encode(), "little") % 2**64] * 2], np.uint64)
        for word in units.values()
    ]
    return [
        Records(unit.replace("_", ":"), "sample", rows)
        for unit, rows in zip(units, words, strict=True)
    ]


def charge(
    key: str, unit: str = "client:0", *, count: int = 1, method: str = "toy", why: str = "test"
) -> Charge:
    return Charge(unit=unit, event=STEP, count=count, why=why, method=method, round=1, key=key)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "ledger.sqlite"
    with Ledger.create(place, UNITS) as ledger:
        ledger.charge([charge("a"), charge("b", "client:1")], FREE)
    return place


@pytest.mark.parametrize("stop", ["storage.durable", "ledger.publish"])
def test_interrupted_making_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"sordino.privacy.{stop}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            Ledger.create(tmp_path / "l.sqlite", UNITS)
    assert list(tmp_path.iterdir()) == []
    Ledger.create(tmp_path / "l.sqlite", UNITS).close()


def test_a_file_system_without_hard_links_does_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    Ledger.create(tmp_path / "l.sqlite", UNITS).close()
    with pytest.raises(LedgerExists):
        Ledger.create(tmp_path / "l.sqlite", UNITS)


def test_two_runs_that_meet_the_same_new_data_share_its_ledger(tmp_path: Path) -> None:
    barrier, made, failed = threading.Barrier(4), [], []

    def run(name: int) -> None:
        barrier.wait()
        try:
            with LedgerSession.for_data(
                tmp_path / "kept", f"run {name}", held(client_0="aaaa")
            ) as ledgers:
                made.append(ledgers.charge([charge(f"run{name}")], FREE))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with LedgerSession.for_data(tmp_path / "kept", "last", held(anybody="aaaa")) as ledgers:
        assert ledgers.histories("anybody") == (((STEP, 4),),)
    # notes of records stand between them, as it happens
    assert len({receipts[0].seq for receipts in made}) == 4


def test_no_folder_and_no_right_to_it_are_one_clear_message(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="its folder exists"):
        Ledger.create(tmp_path / "missing" / "l.sqlite", UNITS)
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="no folder for ledgers"):
        LedgerSession.for_data(tmp_path / "file", "run", held(client_0="aaaa"))


@pytest.mark.parametrize(
    "error", [MemoryError(), sqlite3.OperationalError("locking protocol"), OSError(28, "full")]
)
def test_what_passes_is_tried_again(path: Path, error: Exception) -> None:
    with pytest.raises(LedgerUnavailable) as refused, storage.ledger_errors(path):
        raise error
    assert failed(refused.value) == 1


def test_another_process_is_waited_for_and_then_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "PATIENCE", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Ledger.open(path) as ledger:
        with pytest.raises(LedgerUnavailable, match="Another process is charging") as refused:
            ledger.charge([charge("c")], FREE)
        assert failed(refused.value) == 1  # a service tries again
        other.execute("ROLLBACK")
        other.close()
        assert ledger.charge([charge("c")], FREE)[0].seq == 5


def test_what_others_write_is_seen(path: Path) -> None:
    with (
        Ledger.open(path) as one,
        Ledger.open(path) as two,
        Ledger.open(path, readonly=True) as reader,
    ):
        assert reader.spent("client:0") == ((STEP, 1),)
        for i in range(5):
            one.charge([charge(f"one{i}")], FREE)
            assert two.spent("client:0") == reader.spent("client:0") == ((STEP, 2 * i + 2),)
            two.charge([charge(f"two{i}")], FREE)
            assert one.spent("client:0") == ((STEP, 2 * i + 3),)
        assert one.verify() == two.verify() == reader.verify()


@pytest.mark.parametrize("how", ["entry", "file", "folder", "removed"])
def test_a_ledger_put_back_from_a_copy_under_a_process_is_charged_no_more(
    how: str, path: Path
) -> None:
    """Its charges went into a file that nobody read any more: 900 releases, 300 in the ledger."""
    place, copy = path.parent / "used", path.parent / "copy"
    place.mkdir()
    copy.mkdir()
    path = path.rename(place / path.name)
    with Ledger.open(path) as ledger:
        shutil.copy(path, copy)
        ledger.charge([charge("c", count=7)], FREE)
        match how:
            case "entry":
                with sqlite3.connect(path) as db:
                    db.execute("DELETE FROM entries WHERE seq = 5")
                db.close()
            case "file":
                (copy / path.name).replace(path)
            case "folder":
                place.rename(path.parents[1] / "older")
                copy.rename(place)
            case "removed":
                path.unlink()
        for number in range(2):
            with pytest.raises(LedgerError, match=r"put back its newest copy"):
                ledger.charge([charge(f"d{number}")], FREE)
    if how != "removed":
        with Ledger.open(path, readonly=True) as ledger:
            ledger.verify()
            assert {each.key for each in ledger.entries()} <= {"a", "b", "c"}


@pytest.mark.parametrize("alike", ["removed", "another file"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_who_does_not_see_what_others_charge_charges_no_more(
    alike: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index by which SQLite's processes know of each other was removed, or is another one, as
    where the file is mounted without its folder: each of two wrote over what the other one charged,
    and both could spend the last of a budget.
    """
    if alike == "another file":
        monkeypatch.setattr(storage, "wal_files", lambda path: ())
    waits, go = os.pipe()
    if not (child := os.fork()):
        os.read(waits, 1)
        with Ledger.open(path) as other:
            other.charge([charge("of another one")], FREE)
        os._exit(0)
    with Ledger.open(path) as ledger:
        ledger.charge([charge("own")], FREE)
        path.with_name(f"{path.name}-shm").unlink()
        if alike == "another file":
            os.write(go, b"!")
            os.waitpid(child, 0)
        with pytest.raises(LedgerError, match=r"does not see all.* move these two files"):
            ledger.charge([charge("more")], FREE)
    if alike == "removed":
        os.write(go, b"!")
        os.waitpid(child, 0)
    with Ledger.open(path) as ledger:
        keys = [each.key for each in ledger.entries()]
        assert keys == ["a", "b", "own", "of another one"]
    os.close(waits)
    os.close(go)


@pytest.mark.parametrize("readonly", [True, False])
def test_an_older_log_beside_a_ledger_takes_no_charge_back(
    readonly: bool, path: Path, tmp_path: Path
) -> None:
    """It has older pages, which SQLite would put in the place of newer ones."""
    log, copy = path.with_name(f"{path.name}-wal"), tmp_path / "copy.sqlite"
    with Ledger.open(path) as ledger:
        ledger.charge([charge("c")], FREE)
        shutil.copy(log, tmp_path / "older")
        ledger.charge([charge("d")], FREE)
        shutil.copy(path, copy)
    shutil.copy(tmp_path / "older", tmp_path / "copy.sqlite-wal")
    before = copy.read_bytes()
    with pytest.raises(LedgerError, match="does not see all"):
        Ledger.open(copy, readonly=readonly)
    for each in ("wal", "shm"):
        (tmp_path / f"copy.sqlite-{each}").unlink()
    assert copy.read_bytes() == before
    with Ledger.open(copy) as ledger:
        assert [each.key for each in ledger.entries()] == ["a", "b", "c", "d"]


def test_reading_leaves_no_trace(path: Path) -> None:
    def look() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in path.parent.iterdir()}

    before = look()
    assert set(before) == {"ledger.sqlite"}
    with Ledger.open(path, readonly=True) as ledger:
        assert ledger.spent("client:0") == ((STEP, 1),)
        assert len(list(ledger.entries())) == ledger.verify().entries == 2
    assert look() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_archive_can_be_read(path: Path) -> None:
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        with Ledger.open(path, readonly=True) as ledger:
            assert ledger.verify().entries == 2
    finally:
        path.parent.chmod(0o700)


def test_a_secret_ledger_is_for_its_owner_alone_and_so_are_the_files_beside_it(
    tmp_path: Path,
) -> None:
    with Ledger.create(tmp_path / "secret.sqlite", UNITS, secret=True) as ledger:
        ledger.charge([charge("a")], FREE)
        files = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert files == dict.fromkeys(
        ("secret.sqlite", "secret.sqlite-wal", "secret.sqlite-shm"), 0o600
    )
    with LedgerSession.for_data(tmp_path / "kept", "run", held(client_0="aaaa")):
        files = {file.name: file.stat().st_mode & 0o077 for file in (tmp_path / "kept").iterdir()}
    assert set(files.values()) == {0}, files


@pytest.mark.parametrize("column", ["unit", "event", "why", "method", "key", "prev", "digest"])
def test_bytes_where_text_was_are_found_and_named(path: Path, column: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE entries SET {column} = x'00ff' WHERE seq = 4")
    db.close()
    with Ledger.open(path, readonly=True) as ledger, pytest.raises(LedgerError, match="entry 4"):
        ledger.verify()


def test_a_name_that_is_not_kept_is_not_read_as_nothing_spent(path: Path) -> None:
    with Ledger.open(path, readonly=True) as ledger:
        ask: Callable[[str], object]
        for ask in (ledger.spent, lambda unit: ledger.epsilon(unit, 1e-5, "rdp")):
            with pytest.raises(LedgerError, match="no data of 'client:O' is kept here"):
                ask("client:O")


def test_a_key_twice_in_one_call(path: Path) -> None:
    with Ledger.open(path) as ledger:
        first, second = ledger.charge([charge("c"), charge("c")], FREE)
        assert first == second
        assert ledger.spent("client:0") == ((STEP, 2),)
        with pytest.raises(ResumeError, match="a key names one release only"):
            ledger.charge([charge("d"), charge("d", count=2)], FREE)
        assert ledger.verify().entries == 3


def test_another_method_is_another_release_and_other_words_are_not(path: Path) -> None:
    with Ledger.open(path) as ledger:
        assert ledger.charge([charge("a", why="said differently")], FREE)[0].seq == 3
        with pytest.raises(ResumeError, match="was charged before"):
            ledger.charge([charge("a", method="another")], FREE)


def test_equal_data_of_one_run_is_in_one_file_with_a_budget_each(tmp_path: Path) -> None:
    with LedgerSession.for_data(
        tmp_path, "run", held(client_0="same", client_1="same", client_2="else")
    ) as ledgers:
        ledgers.charge(
            [charge("k0", "client:0"), charge("k1", "client:1"), charge("k2", "client:2")], FREE
        )
        assert {ledgers.spent(f"client:{i}") for i in range(3)} == {((STEP, 1),)}
        assert ledgers.head()[0] == 7  # three units, a note of their records, three charges
        with pytest.raises(LedgerError, match="no ledger is kept for 'client:9'"):
            ledgers.spent("client:9")
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_ledgers_that_knew_files_are_not_taken_for_nobodys(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "0123456789abcdef.sqlite", UNITS).close()
    with pytest.raises(LedgerError, match="were kept for files"):
        LedgerSession.for_data(tmp_path, "run", held(client_0="aaaa"))


def test_a_folder_that_may_not_be_read_is_not_taken_for_one_without_ledgers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sordino.core.run import verify

    kept, run = tmp_path / "kept", tmp_path / "run"
    LedgerSession.for_data(kept, "one", held(client_0="a")).close()
    run.mkdir()
    (run / "run.json").write_text('{"run": "one"}')
    (run / "study.toml").write_text(f'[privacy]\nledger = "{kept}"\n')

    def closed(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", closed)
    with pytest.raises(LedgerError, match="no permission to read this folder"):
        LedgerSession.for_data(kept, "two", held(client_0="a"))
    assert "no permission to read this folder" in verify.verify(run).problems[0]


def test_a_refusal_leaves_nothing(tmp_path: Path) -> None:
    tight = Budget(epsilon=3.0, delta=1e-5, accountant="rdp")
    left = tight.remaining_steps(STEP, ())
    assert left
    with LedgerSession.for_data(tmp_path, "run", held(client_0="aaaa", client_1="bbbb")) as ledgers:
        with pytest.raises(Exception, match="client:1: this release would bring epsilon"):
            ledgers.charge(
                [charge("k0", "client:0"), charge("k1", "client:1", count=left + 1)], tight
            )
        assert ledgers.spent("client:0") == ledgers.spent("client:1") == ()


@pytest.mark.parametrize("count", [np.int64(52), np.int32(52), np.uint8(52)])
def test_any_kind_of_whole_number_is_kept_as_that_number(path: Path, count: int) -> None:
    """SQLite takes numpy's 52 for eight bytes that begin with the digit 4, and adds them up to
    4.
    """
    with Ledger.open(path) as ledger:
        ledger.charge([replace(charge("c", count=count), round=count)], FREE)
    with Ledger.open(path, readonly=True) as ledger:
        assert ledger.spent("client:0") == ((STEP, 53),)
        assert ledger.verify().entries == 3


def test_what_would_be_kept_otherwise_than_it_is_hashed(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge([charge("c", count=True)], FREE)
        assert ledger.verify().entries == 3
    for impossible in (2.0, 1.5, "3", None, 2**63, 2**41, -(2**41)):
        with pytest.raises(LedgerError, match="count of a charge must be"):
            charge("d", count=impossible)  # type: ignore[arg-type]
    with pytest.raises(LedgerError, match="key of a charge must be text; got 5"):
        charge(5)  # type: ignore[arg-type]


def test_text_that_no_file_can_hold_books_nothing(path: Path) -> None:
    with Ledger.open(path) as ledger:
        with pytest.raises(LedgerError, match="must be text"):
            ledger.charge([charge("c"), charge("d", why="\ud800")], FREE)
        assert ledger.verify().entries == 2
        assert ledger.charge([charge("c")], FREE)[0].seq == 5


def test_one_may_charge_while_reading_and_leave_off_reading(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "PATIENCE", 0.05)
    monkeypatch.setattr(ledger_module, "BATCH", 2)
    with Ledger.open(path) as ledger, Ledger.open(path) as other:
        ledger.charge([charge(f"c{i}", "client:1") for i in range(5)], FREE)
        for number, entry in enumerate(ledger.entries(), start=3):
            assert entry.seq == number <= 9
            ledger.charge([charge(f"echo{number}")], FREE)
        half_read = ledger.entries()
        next(half_read)
        other.charge([charge("other")], FREE)
        assert ledger.charge([charge("mine")], FREE)[0].seq == 18
        assert [entry.seq for entry in ledger.entries("client:1")] == [4, 5, 6, 7, 8, 9]
        assert ledger.verify().entries == 16


def copy_entry(path: Path, seq: int) -> None:
    """Copy the first entry to another place, under another key."""
    told = {"seq": str(seq), "key": "'x'"}
    columns = ", ".join(told.get(name, name) for name in NEWEST.names)
    with sqlite3.connect(path) as db:
        db.execute(f"INSERT INTO entries SELECT {columns} FROM entries LIMIT 1")
    db.close()


@pytest.mark.parametrize("seq", [-(2**63), -1, 0])
def test_an_entry_before_the_first_is_found(path: Path, seq: int) -> None:
    copy_entry(path, seq)
    with Ledger.open(path) as ledger, pytest.raises(LedgerError, match="entry 1 is missing"):
        ledger.verify()


def test_an_entry_with_the_last_of_all_numbers_can_be_read_and_is_found(path: Path) -> None:
    copy_entry(path, 2**63 - 1)
    with Ledger.open(path, readonly=True) as ledger:
        assert len(list(ledger.entries())) == 3
        with pytest.raises(LedgerError, match="entry 5 is missing"):
            ledger.verify()


def test_no_flipped_byte_is_believed(path: Path) -> None:
    """Whatever rots in the file: one kind of error, or the entries are as they were."""
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    used = [i for i, byte in enumerate(whole) if byte]
    with Ledger.open(path, readonly=True) as ledger:
        digest, before = ledger.verify().digest, list(ledger.entries())
    refused = 0
    for place in rng.choice(used, size=150, replace=False):
        rotten = bytearray(whole)
        rotten[place] ^= int(rng.integers(1, 256))
        path.write_bytes(rotten)
        try:
            with Ledger.open(path, readonly=True) as ledger:
                ledger.verify(digest)
                assert list(ledger.entries()) == before
                assert dict(ledger.spent("client:0")) == {STEP: 1}
        except LedgerError:
            refused += 1
    assert refused > 50


def forge(path: Path, first: int, last: int) -> None:
    """Lower the count of entry ``first`` and write the digests from it to ``last`` anew, as a
    careful forger would.
    """
    with sqlite3.connect(path) as db:
        db.execute("UPDATE entries SET count = 1 WHERE seq = ?", (first,))
        prev = None
        for seq in range(first, last + 1):
            row = list(db.execute("SELECT * FROM entries WHERE seq = ?", (seq,)).fetchone())
            row[-2] = before = prev or row[-2]
            said = json.dumps(row[:-1], separators=(",", ":")).encode()
            prev = hashlib.sha256(said).hexdigest()
            db.execute("UPDATE entries SET prev = ?, digest = ? WHERE seq = ?", (before, prev, seq))
    db.close()


def test_a_forger_must_rewrite_all_that_follows_and_is_found_by_the_noted_digest(
    path: Path,
) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge([charge("c", count=9), charge("d"), charge("e")], FREE)
        noted = ledger.verify().digest
    for last in (5, 6):
        forge(path, 5, last)
        with (
            Ledger.open(path) as ledger,
            pytest.raises(
                LedgerError, match=f"entry {last + 1} does not continue the entry before it"
            ),
        ):
            ledger.verify()
    forge(path, 5, 7)
    with Ledger.open(path) as ledger:
        assert ledger.verify().entries == 5  # whole in itself: only what was noted elsewhere tells
        with pytest.raises(LedgerError, match="expected"):
            ledger.verify(noted)
