"""The ledger: tamper-evident, durable, atomic, and nobody's budget spent twice."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from sordino.base.errors import BudgetExceeded, LedgerError, ResumeError
from sordino.privacy import (
    Budget,
    Charge,
    Event,
    Gaussian,
    Ledger,
    LedgerSession,
    NonPrivate,
    PoissonSampled,
    decode,
    encode,
)
from sordino.privacy.event import Composed, Repeated, Selected
from sordino.privacy.records import Records

STEP = PoissonSampled(sampling_rate=0.1, event=Gaussian(noise_multiplier=1.0))
FREE = Budget(epsilon=float("inf"), delta=1e-5, accountant="rdp")
UNITS = {"client:0": "aaaa", "client:1": "bbbb"}


def charge(
    key: str, unit: str = "client:0", event: Event = STEP, count: int = 1, number: int = 1
) -> Charge:
    return Charge(
        unit=unit, event=event, count=count, why="test", method="toy", round=number, key=key
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "ledger.sqlite"
    with Ledger.create(place, UNITS) as ledger:
        for number in range(1, 6):
            ledger.charge(
                [charge(f"r{number}/{unit}", unit, count=2, number=number) for unit in UNITS], FREE
            )
    return place


@pytest.mark.parametrize(
    "event",
    [STEP, NonPrivate(reason="ü\n"), Composed(events=(STEP, Repeated(event=STEP, count=3)))],
)
def test_events_survive_their_text(event: Event) -> None:
    assert decode(encode(event)) == event


def test_unknown_events_are_refused() -> None:
    for text in (
        '{"type":"Laplace"}',
        '{"type":"Gaussian","noise_multiplier":-1}',
        "nonsense",
        '{"type":"Gaussian","noise_multiplier":1,"x":2}',
    ):
        with pytest.raises(LedgerError, match="not an event"):
            decode(text)


def test_what_was_charged_is_what_is_spent(path: Path) -> None:
    with Ledger.open(path, readonly=True) as ledger:
        assert ledger.spent("client:1") == ((STEP, 10),)
        assert ledger.verify().entries == 10
        assert [entry.seq for entry in ledger.entries("client:1")] == [4, 6, 8, 10, 12]
        assert ledger.units() == UNITS


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("unit", "client:1"),
        ("event", encode(Gaussian(noise_multiplier=9.0))),
        ("count", 1),
        ("why", "no"),
        ("method", "no"),
        ("round", 9),
        ("key", "no"),
        ("prev", "0" * 64),
        ("digest", "0" * 64),
    ],
)
def test_any_change_is_found_and_named(path: Path, column: str, value: object) -> None:
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE entries SET {column} = ? WHERE seq = 5", (value,))
    with Ledger.open(path) as ledger, pytest.raises(LedgerError, match=r"entry [56]"):
        ledger.verify()


def test_a_missing_entry_is_found_and_a_missing_tail_against_the_digest(path: Path) -> None:
    with Ledger.open(path) as ledger:
        whole = ledger.verify().digest
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM entries WHERE seq = 12")
    with Ledger.open(path) as ledger:
        ledger.verify()
        with pytest.raises(LedgerError, match="cut off"):
            ledger.verify(expected_digest=whole)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM entries WHERE seq = 4")
    with Ledger.open(path) as ledger, pytest.raises(LedgerError, match="entry 4 is missing"):
        ledger.verify()


def test_a_key_is_booked_once(path: Path) -> None:
    with Ledger.open(path) as ledger:
        before = ledger.head()
        again = ledger.charge([charge("r3/client:0", count=2, number=3)], FREE)
        assert again[0].seq == 7
        assert ledger.head() == before
        for other in (
            charge("r3/client:0", count=3, number=3),
            charge("r3/client:0", unit="client:1", count=2, number=3),
        ):
            with pytest.raises(ResumeError, match="was charged before"):
                ledger.charge([other], FREE)
        assert ledger.head() == before


def test_a_refusal_leaves_no_trace_and_names_what_it_refused(path: Path) -> None:
    tight = Budget(epsilon=6.0, delta=1e-5, accountant="rdp")
    with Ledger.open(path) as ledger:
        left = tight.remaining_steps(STEP, ledger.spent("client:0"))
        assert left
        before = ledger.head()
        with pytest.raises(
            BudgetExceeded,
            match=r"client:0: this release would bring epsilon to .* over the budget of 6 ",
        ):
            ledger.charge([charge("a", unit="client:1"), charge("b", count=left + 1)], tight)
        assert ledger.head() == before
        assert ledger.spent("client:1") == ((STEP, 10),)
        ledger.charge([charge("c", count=left)], tight)
        assert tight.remaining_steps(STEP, ledger.spent("client:0")) == 0
        ledger.verify()


def test_no_bound_means_no_finite_budget(path: Path) -> None:
    with Ledger.open(path) as ledger:
        with pytest.raises(BudgetExceeded):
            ledger.charge([charge("x", event=NonPrivate(reason="raw"))], Budget(1e6, 1e-5, "pld"))
        ledger.charge([charge("x", event=NonPrivate(reason="raw"))], FREE)
        assert ledger.epsilon("client:0", 1e-5, "pld") == float("inf")


def test_other_data_is_refused(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.register({"client:2": "cccc"})
        with pytest.raises(LedgerError, match="kept for other data: client:0"):
            ledger.register({"client:0": "zzzz"})
        with pytest.raises(LedgerError, match="no data of 'client:9'"):
            ledger.charge([charge("x", unit="client:9")], FREE)


def test_queries_change_nothing(path: Path) -> None:
    before = path.read_bytes()
    with Ledger.open(path, readonly=True) as ledger:
        ledger.verify()
        list(ledger.entries())
        ledger.epsilon("client:0", 1e-5, "rdp")
        with pytest.raises(LedgerError, match="writable"):
            ledger.charge([charge("x")], FREE)
    assert path.read_bytes() == before


def test_files_that_are_no_ledger_are_one_clear_error(tmp_path: Path, path: Path) -> None:
    text = tmp_path / "text.sqlite"
    text.write_text(
        "hello, I am a text file, long enough to be looked at as a database header would be " * 9
    )
    empty = tmp_path / "empty.sqlite"
    sqlite3.connect(empty).execute("CREATE TABLE x (y)").connection.close()
    for bad in (tmp_path / "none.sqlite", tmp_path, text, empty):
        with pytest.raises(LedgerError):
            Ledger.open(bad)
    with pytest.raises(LedgerError, match="exists there already"):
        Ledger.create(path, {})


def test_a_full_disk_books_nothing_by_halves(path: Path) -> None:
    with Ledger.open(path) as ledger:
        before = ledger.head()
        pages = ledger.connection.execute("PRAGMA page_count").fetchone()[0]
        ledger.connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(LedgerError, match="Free some space"):
            ledger.charge([charge(f"big{i}") for i in range(2000)], FREE)
        ledger.connection.execute("PRAGMA max_page_count = 100000")
        assert ledger.head() == before
        assert ledger.verify().entries == 10
        ledger.charge([charge("after")], FREE)


KILLED = """
import sys
from pathlib import Path
from sordino.privacy import Budget, Charge, Gaussian, Ledger, PoissonSampled
step = PoissonSampled(sampling_rate=0.1, event=Gaussian(noise_multiplier=1.0))
ledger = Ledger.open(Path(sys.argv[1]))
for i in range(10**6):
    charge = Charge(unit="client:0", event=step, count=1, why="w", method="m", round=i, key=f"k{i}")
    ledger.charge([charge], Budget(float("inf"), 1e-5, "rdp"))
    print(i + 1, flush=True)
"""


def test_killed_while_charging_it_keeps_all_that_was_acknowledged(path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in process.stdout.read().splitlines()]
    process.wait()
    process.stdout.close()
    with Ledger.open(path) as ledger:
        assert ledger.verify().entries >= 10 + acknowledged[-1]
        assert dict(ledger.spent("client:0"))[STEP] >= 10 + acknowledged[-1]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_was_forked_from_an_open_ledger_does_not_charge_it(path: Path) -> None:
    """Through the connection that it has inherited, or a new one: SQLite has locks of a process."""
    said, says = os.pipe()
    with Ledger.open(path) as ledger:
        before = ledger.head()
        if not (child := os.fork()):
            for anew in (False, True):
                try:
                    own = Ledger.open(path) if anew else ledger
                    own.charge([charge("forked")], FREE)
                except LedgerError as refusal:
                    os.write(says, f"{refusal}\n".encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(says)
        with open(said) as refusals:
            assert refusals.read().count("Open it after the fork") == 2
        assert ledger.head() == before
        ledger.charge([charge("not forked")], FREE)


RACE = """
import sys
from pathlib import Path
from sordino.base.errors import BudgetExceeded
from sordino.privacy import Budget, Charge, Gaussian, Ledger, PoissonSampled
step = PoissonSampled(sampling_rate=0.1, event=Gaussian(noise_multiplier=1.0))
ledger = Ledger.open(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
try:
    charge = Charge(unit="client:0", event=step, count=int(sys.argv[3]), why="w", method="m",
                    round=1, key=sys.argv[2])
    ledger.charge([charge], Budget(6.0, 1e-5, "rdp"))
    print("won")
except BudgetExceeded:
    print("refused")
"""


def test_two_runs_cannot_both_spend_the_last_of_a_budget(path: Path) -> None:
    with Ledger.open(path) as ledger:
        left = Budget(6.0, 1e-5, "rdp").remaining_steps(STEP, ledger.spent("client:0"))
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(path), name, str(left)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    assert sorted(racer.communicate()[0].strip() for racer in racers) == ["refused", "won"]


def test_a_thousand_clients_are_charged_in_one_quick_transaction(tmp_path: Path) -> None:
    units = {f"client:{i}": f"{i:08x}" for i in range(1000)}
    with Ledger.create(tmp_path / "many.sqlite", units) as ledger:
        ledger.charge([charge(f"warm/{unit}", unit) for unit in units], Budget(50.0, 1e-5, "rdp"))
        start = time.process_time()
        ledger.charge([charge(f"r/{unit}", unit) for unit in units], Budget(50.0, 1e-5, "rdp"))
        assert time.process_time() - start < 1.0


def test_an_event_that_nobody_could_read_again_is_refused() -> None:
    with pytest.raises(LedgerError, match="not an event that this version knows"):
        charge("a", event=Selected(STEP, None))  # type: ignore[arg-type]


def test_a_ledger_of_the_data_outlives_runs_and_numbers(tmp_path: Path) -> None:
    def held(unit: str, row: int) -> Records:
        return Records(unit, "sample", np.array([[row, row]], np.uint64))

    first = LedgerSession.for_data(
        tmp_path / "kept", "one", [held("client:0", 1), held("client:1", 2)]
    )
    receipts = first.charge(
        [charge("run1/0", "client:0", count=3), charge("run1/1", "client:1", count=4)], FREE
    )
    assert [receipt.unit for receipt in receipts] == ["client:0", "client:1"]
    first.close()
    second = LedgerSession.for_data(
        tmp_path / "kept", "two", [held("client:0", 2), held("client:1", 3)]
    )
    assert second.histories("client:0") == (((STEP, 4),),)
    assert second.spent("client:1") == ()
    second.charge([charge("run2/0", "client:0", count=5)], FREE)
    assert second.histories("client:0") == (((STEP, 9),),)
    second.close()


def test_a_runs_own_ledger_is_opened_again_for_the_same_data_only(tmp_path: Path) -> None:
    LedgerSession.for_run(tmp_path / "l.sqlite", UNITS).close()
    LedgerSession.for_run(tmp_path / "l.sqlite", UNITS).close()
    with pytest.raises(LedgerError, match="kept for other data"):
        LedgerSession.for_run(tmp_path / "l.sqlite", {"client:0": "zzzz", "client:1": "bbbb"})


def test_a_server_of_an_earlier_version_goes_on_with_the_digest_of_its_sites(
    tmp_path: Path,
) -> None:
    """It wrote the digest of the names of its sites, and not that their rows are elsewhere."""
    path = tmp_path / "l.sqlite"
    LedgerSession.for_run(path, {"clients": "ab12"}).close()
    LedgerSession.for_run(path, {"clients": "elsewhere/ab12"}, begun=True).close()
    with pytest.raises(ResumeError, match="not what the run began with"):
        LedgerSession.for_run(path, {"clients": "elsewhere/cd34"}, begun=True)


def test_what_is_charged_is_in_the_file_itself(path: Path, tmp_path: Path) -> None:
    """After a kill, whoever moves or copies the file may leave its log behind."""
    with Ledger.open(path) as ledger, Ledger.open(path, readonly=True) as reader:
        for number in range(3):
            assert len(list(reader.entries())) == 10 + number
            ledger.charge([charge(key=f"run/{number}")], FREE)
            shutil.copy(path, tmp_path / "moved.sqlite")
            with Ledger.open(tmp_path / "moved.sqlite") as moved:
                assert len(list(moved.entries())) == 11 + number


def test_a_paused_reader_holds_up_no_charge(path: Path) -> None:
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as paused,
        Ledger.open(path) as ledger,
    ):
        paused.execute("BEGIN")
        paused.execute("SELECT * FROM entries").fetchone()
        begun = time.monotonic()
        for number in range(3):
            ledger.charge([charge(key=f"run/{number}")], FREE)
        assert time.monotonic() - begun < 5.0
        paused.execute("COMMIT")
        ledger.charge([charge(key="run/3")], FREE)
        assert len(list(ledger.entries())) == 14
