"""Borders of a ledger: sizes, counts and numbers that are just allowed, and those just beyond."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sordino.base.errors import LedgerError, StudyError
from sordino.privacy import Budget, Charge, Gaussian, Ledger, chain, formats, permit, storage
from sordino.privacy import ledger as ledgers
from sordino.privacy.permit import Allowance, issue

FREE = Budget(epsilon=float("inf"), delta=1e-5, accountant="rdp")
STEP = Gaussian(noise_multiplier=2.0)


def charge(key: str, unit: str = "a", count: int = 1, number: int = 1) -> Charge:
    return Charge(unit=unit, event=STEP, count=count, why="", method="toy", round=number, key=key)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "ledger.sqlite"
    with Ledger.create(place, {"a": "1", "b": "2"}, {"b": "Bo", "c": "Cy"}) as ledger:
        ledger.charge([charge("x"), charge("y", "b"), charge("z", count=3)], FREE)
    return place


def test_limits_against_hostile_files() -> None:
    assert (chain.MOST, formats.MOST_TABLES, ledgers.BATCH) == (2**40, 100, 64)
    assert (storage.PATIENCE, storage.SECONDS, storage.MOMENT) == (30, 300, 200)
    assert (storage.LONGEST, storage.LARGEST, storage.LARGEST_LOG) == (2**23, 2**33, 2**30)
    assert (storage.LOOKS, storage.LOOK, storage.IN_MEMORY) == (20, 0.01, 2**28)
    assert ledgers._LOWEST == -(2**63)


def test_texts_are_canonical() -> None:
    assert chain.canonical({"ü": 1, "a": [None]}) == '{"a":[null],"\\u00fc":1}'
    with pytest.raises(ValueError, match="JSON compliant"):
        chain.canonical(float("nan"))
    assert chain.digest(["ü", 1]) == hashlib.sha256(b'["\\u00fc",1]').hexdigest()
    for length, shown in (
        (79, "x" * 79),
        (80, "x" * 80),
        (81, "x" * 80 + "…"),
        (99, "x" * 80 + "…"),
    ):
        assert chain._short("x" * length) == shown
    assert chain._short("x\n\x7f") == "x??"


def test_counts_at_their_borders(path: Path) -> None:
    assert charge("n", count=2**40).count == 2**40
    assert charge("n", number=-(2**40)).round == -(2**40)
    for count, number in ((2**40 + 1, 1), (1, 2**40 + 1), (1, -(2**40) - 1)):
        with pytest.raises(LedgerError, match="must be at most 1099511627776"):
            charge("n", count=count, number=number)
    with Ledger.open(path) as ledger:
        with pytest.raises(LedgerError, match="happens at least once; got 0"):
            ledger.charge([charge("n", count=0)], FREE)
        ledger.charge([charge("n", count=2**40)], FREE)
        assert dict(ledger.spent("a")) == {STEP: 2**40 + 4}


def test_what_stands_in_the_chain(path: Path) -> None:
    with Ledger.open(path) as ledger:
        number, digest = ledger.head()
        assert number == 5  # two units and three charges
        start = ledger.format.start
        for head, there in (
            ((5, digest), True), ((5, start), False), ((6, digest), False), ((-1, start), False),
            ((0, start), True), ((0, digest), False),
        ):  # fmt: skip
            assert ledger.stands(head) == there
        assert ledger.holds(start)
        assert ledger.holds(digest)
        assert not ledger.holds("0")
        for until, count in ((0, 0), (2, 0), (3, 1), (4, 1), (5, 4), (6, 4), (None, 4)):
            assert dict(ledger.seen("a", until)).get(STEP, 0) == count
        assert [each.seq for each in ledger.entries()] == [3, 4, 5]
        assert [each.seq for each in ledger.entries("a")] == [3, 5]
        assert ledger.labels() == {"b": "Bo"}
        for found in (ledger.verify(), ledger.verify(digest)):
            assert (found.entries, found.digest) == (3, digest)
        with pytest.raises(LedgerError, match=f"after 5 entries, expected {start[:16]}"):
            ledger.verify(start)


def test_permits_of_charges_that_are_new_and_of_those_that_are_not(path: Path) -> None:
    with Ledger.open(path) as ledger:
        again, new, same = ledger.charge([charge("z", count=3), charge("n"), charge("n")], FREE)
        assert [each.new for each in (again, new, same)] == [False, True, False]
        assert [each.seq for each in (again, new, same)] == [5, 6, 6]
        assert new == same
        assert "maker" not in repr(new)
        with pytest.raises(StudyError, match="charged already"):
            ledger.charge([charge("z", count=3)], FREE, once=True)
        assert ledger.charge([charge("m")], FREE, once=True)[0].seq == 7
    block = issue(charge("z", count=3, number=7), 5, "d")
    assert [number for number in range(5, 13) if block.holds(number)] == [7, 8, 9]
    assert not block.new
    assert permit.unpacked(block.packed()) == block == replace(block, new=True)
    assert Allowance([block]).releases == 1
    Allowance([block], 3).covers("a", STEP)
    Allowance([block], 9).covers("a", STEP, 3)


def test_rights_of_files(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for name, secret, mode in (("open", False, 0o644), ("own", True, 0o600)):
            with Ledger.create(tmp_path / name, {}, secret=secret):
                assert (tmp_path / name).stat().st_mode & 0o777 == mode
        with Ledger.create(tmp_path / "usual", {}), Ledger.open_or_create(tmp_path / "this", {}):
            for name in ("usual", "this"):
                assert (tmp_path / name).stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder / "ledger.sqlite"
    for rights, own, said in (
        (0o700, 0o600, False), (0o755, 0o700, False), (0o701, 0o600, False), (0o720, 0o600, True),
        (0o702, 0o600, True), (0o700, 0o640, True), (0o700, 0o604, True), (0o700, 0o601, True),
    ):  # fmt: skip
        file.touch()
        file.chmod(own)
        folder.chmod(rights)
        assert (storage.seen_by_others(folder) is not None) == said, (oct(rights), oct(own))


def test_sizes_of_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = path.stat().st_size
    for most, fine in ((size, True), (size - 1, False)):
        monkeypatch.setattr(storage, "LARGEST", most)
        if fine:
            Ledger.open(path).close()
        else:
            with pytest.raises(LedgerError, match=f"{size} bytes; a ledger's file"):
                Ledger.open(path)
    monkeypatch.undo()
    for most, memory in ((size, True), (size - 1, False)):
        monkeypatch.setattr(storage, "IN_MEMORY", most)
        with Ledger.open(path, readonly=True) as ledger:
            (_, _, file), *_ = ledger.connection.execute("PRAGMA database_list").fetchall()
            assert (file != str(path)) == memory
            assert ledger.head()[0] == 5
    monkeypatch.undo()
    log = path.with_name(f"{path.name}-wal")
    log.write_bytes(bytes(8))
    for most, fine in ((8, True), (7, False)):
        monkeypatch.setattr(storage, "LARGEST_LOG", most)
        if fine:
            Ledger.open(path, readonly=True).close()
            log.write_bytes(bytes(8))
        else:
            with pytest.raises(LedgerError, match="8 bytes; a ledger's file"):
                Ledger.open(path, readonly=True)
    log.unlink()
    journal = path.with_name(f"{path.name}-journal")
    journal.touch()
    Ledger.open(path, readonly=True).close()
    journal.write_bytes(b"x")
    with pytest.raises(LedgerError, match="never a rollback journal"):
        Ledger.open(path, readonly=True)


def test_a_clock_counts_down() -> None:
    clock = storage.Clock(50.0)
    assert 49.0 < clock.left() <= 50.0
    assert not clock.over()
    assert storage.Clock(-1.0).over()
