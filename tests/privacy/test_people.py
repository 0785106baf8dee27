"""One budget for the same people, whatever set, order or run they come in."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.base.errors import BudgetExceeded, HeldBack, LedgerError, ResumeError, StudyError
from sordino.privacy import (
    Budget,
    Charge,
    Event,
    Gaussian,
    Grouped,
    Ledger,
    LedgerSession,
    NonPrivate,
    PoissonSampled,
    accountant,
)
from sordino.privacy.chain import BEGIN
from sordino.privacy.records import Prices, Records, bounds, close_sets, people, spendings
from sordino.privacy.records.group import grouped, of_rows

STEP = PoissonSampled(sampling_rate=0.1, event=Gaussian(noise_multiplier=1.5))
OTHER = Gaussian(noise_multiplier=20.0)
WIDE = Budget(1e6, 1e-5, "rdp")
LATER = Budget(math.inf, 1e-5, "rdp")


def of(unit: str, *rows: int, kind: str = "sample", people: list[int] | None = None) -> Records:
    """A unit with these rows; whoever has the same number is the same row."""
    words = np.array(rows, dtype=np.uint64)
    own = None if people is None else np.array(people, dtype=np.uint64)[:, None]
    most = 1 if people is None else max(map(people.count, people))
    return Records(unit, kind, np.stack([words + np.uint64(10**6), words], axis=1), own, most)


def booked(
    ledgers: LedgerSession,
    unit: str,
    event: Event,
    count: int,
    budget: Budget = WIDE,
    key: str = "",
) -> None:
    if ledgers.ledger.noted(BEGIN, ledgers.run) is None:
        ledgers.begin(ledgers.run, {}, {})
    ledgers.charge(
        [
            Charge(
                unit=unit,
                event=event,
                count=count,
                why="",
                method="m",
                round=1,
                key=f"{ledgers.run}/{unit}/{key}/{ledgers.head()[0]}",
            )
        ],
        budget,
    )


def epsilon(*spent: tuple[Event, int]) -> float:
    return accountant("rdp").epsilon(spent, 1e-5)


@pytest.mark.parametrize("kind", ["client", "person", "sample"])
def test_classes_in_the_ledger_of_a_run_stand_in_the_order_of_its_sets(
    tmp_path: Path, kind: str
) -> None:
    """By how many rows persons have, their order would tell others who has the fewest."""
    seen = []
    for more in ([], [5]):
        people = [[1, 1], [2, 2], [3, 3, *more]]
        wanted = [
            of(f"client:{i}", *range(9 * i, 9 * i + len(each)), kind=kind, people=each)
            for i, each in enumerate(people)
        ]
        folder = tmp_path / str(len(more))
        with LedgerSession.for_data(folder, "run", wanted, key=bytes(16)) as ledgers:
            rows = ledgers.ledger.connection.execute("SELECT * FROM record_classes ORDER BY id")
            seen.append(rows.fetchall())
    assert seen[0] == seen[1]


def test_a_record_is_known_in_whatever_set_it_comes(tmp_path: Path) -> None:
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2, 3), of("b", 4, 5)]) as ledgers:
        booked(ledgers, "a", STEP, 10)
        booked(ledgers, "b", STEP, 30)
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((STEP, 10))
        ledgers.finish()
    with LedgerSession.for_data(
        tmp_path, "two", [of("x", 9, 3), of("y", 3, 5), of("z", 7)]
    ) as ledgers:
        assert ledgers.epsilon("x", 1e-5, "rdp") == epsilon((STEP, 10))
        assert ledgers.epsilon("y", 1e-5, "rdp") == epsilon((STEP, 30))  # the highest, not the sum
        assert ledgers.epsilon("z", 1e-5, "rdp") == 0.0
        booked(ledgers, "y", OTHER, 1)
        assert ledgers.epsilon("y", 1e-5, "rdp") == max(
            epsilon((STEP, 30), (OTHER, 1)), epsilon((STEP, 10), (OTHER, 1))
        )


def test_a_person_who_is_clipped_is_one_unit_and_each_row_takes_two_steps(tmp_path: Path) -> None:
    """Whatever others hold the same person otherwise, before or after."""
    people = [8, 8, 8, 9]

    def persons(unit: str, kind: str) -> Records:
        return of(unit, 1, 2, 3, 4, kind=kind, people=people)

    alone = replace(persons("a", "person"), most=1)
    with LedgerSession.for_data(tmp_path, "one", [alone]) as ledgers:
        booked(ledgers, "a", STEP, 10)
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((STEP, 10))
        ledgers.finish()
    with LedgerSession.for_data(tmp_path, "two", [persons("b", "sample")]) as ledgers:
        booked(ledgers, "b", OTHER, 1)
        both = epsilon((STEP, 10), (of_rows(OTHER, 3), 1))
        assert ledgers.epsilon("b", 1e-5, "rdp") == both
        ledgers.finish()
    with LedgerSession.for_data(tmp_path, "three", [replace(alone, unit="c")]) as ledgers:
        assert ledgers.epsilon("c", 1e-5, "rdp") == both
        ledgers.finish()


def test_either_word_is_enough(tmp_path: Path) -> None:
    def rows(*pairs: tuple[int, int]) -> Records:
        return Records("a", "sample", np.array(pairs, dtype=np.uint64))

    with LedgerSession.for_data(tmp_path, "one", [rows((1, 11), (2, 12))]) as ledgers:
        booked(ledgers, "a", STEP, 10)
        ledgers.finish()
    for run, pair, count in (("two", (1, 99), 10), ("three", (98, 12), 10), ("four", (97, 96), 0)):
        with LedgerSession.for_data(tmp_path, run, [rows(pair)]) as ledgers:
            assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((STEP, count))
    # a record that was known under two names
    with LedgerSession.for_data(tmp_path, "both", [rows((1, 12))]) as ledgers:
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((STEP, 20))


def test_rows_that_look_the_same_do_not_add_up(tmp_path: Path) -> None:
    with LedgerSession.for_data(tmp_path, "one", [of("a", *[1] * 40, 2), of("b", 1, 3)]) as ledgers:
        booked(ledgers, "a", STEP, 10)
        booked(ledgers, "b", STEP, 4)
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((STEP, 10))
        assert ledgers.epsilon("b", 1e-5, "rdp") == epsilon((STEP, 4))
        ledgers.finish()
    with LedgerSession.for_data(tmp_path, "two", [of("c", 3), of("d", 1)]) as ledgers:
        assert ledgers.epsilon("c", 1e-5, "rdp") == epsilon((STEP, 4))
        assert ledgers.epsilon("d", 1e-5, "rdp") == epsilon((STEP, 10))  # whichever it is


@pytest.mark.parametrize("event", [OTHER, STEP], ids=["another release", "an equal one"])
@pytest.mark.parametrize("same", [True, False])
def test_rows_that_look_the_same_add_up_only_where_their_clients_promise_otherwise(
    same: bool, event: Event, tmp_path: Path
) -> None:
    """Which of two clients with different epsilons holds a row is public."""
    tight = Budget(epsilon((STEP, 10), (event, 1)) * (1 - 1e-9), 1e-5, "rdp")
    promised = {"a": tight, "b": tight if same else WIDE}
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1), of("b", 1)]) as ledgers:
        ledgers.begin("one", {}, promised)
        booked(ledgers, "b", event, 1, promised["b"])
        if same:
            booked(ledgers, "a", STEP, 10, tight)
        else:
            with pytest.raises(BudgetExceeded, match="a: this release would bring"):
                booked(ledgers, "a", STEP, 10, tight)


def test_rows_of_a_person_do(tmp_path: Path) -> None:
    with LedgerSession.for_data(
        tmp_path, "one", [of("a", 1, 2, 3, people=[7, 7, 8]), of("b", 4, people=[7])]
    ) as ledgers:
        booked(ledgers, "a", OTHER, 1)
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((Gaussian(noise_multiplier=10.0), 1))
        booked(ledgers, "b", OTHER, 1)
        both = epsilon((Gaussian(noise_multiplier=10.0), 1), (OTHER, 1))
        assert ledgers.epsilon("b", 1e-5, "rdp") == ledgers.epsilon("a", 1e-5, "rdp") == both
        ledgers.finish()
    # other rows of the same person
    with LedgerSession.for_data(
        tmp_path, "two", [of("c", 5, people=[7]), of("d", 6, people=[9])]
    ) as ledgers:
        assert ledgers.epsilon("c", 1e-5, "rdp") == both
        assert ledgers.epsilon("d", 1e-5, "rdp") == 0.0
    # two clients hold the same rows, two a person, and one release is the sum over both
    shared = [replace(of(unit, 1, 2, people=[7, 7]), summed=True) for unit in "ab"]
    with LedgerSession.for_data(tmp_path / "sum", "one", shared) as ledgers:
        booked(ledgers, "a", OTHER, 1)
        assert ledgers.epsilon("b", 1e-5, "rdp") == epsilon((Gaussian(noise_multiplier=5.0), 1))


def test_rows_of_a_person_are_drawn_by_themselves_where_releases_are_whole(tmp_path: Path) -> None:
    """In one set they cost the mixture, also once it is closed; in shares of sums, the group."""
    many, few, kept = of_rows(STEP, 3), of_rows(STEP, 2), grouped(STEP, 3)
    alone = [of("a", 1, 2, 3, people=[7, 7, 7]), of("b", 4, 5, people=[8, 8])]
    with LedgerSession.for_data(tmp_path / "one", "one", alone) as ledgers:
        booked(ledgers, "a", STEP, 10)
        booked(ledgers, "b", STEP, 4)
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((many, 10))
        assert ledgers.epsilon("b", 1e-5, "rdp") == epsilon((few, 4))
        ledgers.finish()
    with LedgerSession.for_data(tmp_path / "one", "two", alone) as ledgers:
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((many, 10))
        booked(ledgers, "a", STEP, 5)
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((many, 15))
    # each client was left out of some sums
    sums = [replace(one, most=most, summed=True) for one, most in zip(alone, (2, 1), strict=True)]
    sums[0] = replace(sums[0], rows=sums[0].rows[:2], people=np.array([[7], [7]], np.uint64))
    sums[1] = replace(sums[1], rows=sums[1].rows[:1], people=np.array([[7]], np.uint64))
    for run in ("one", "two"):
        with LedgerSession.for_data(tmp_path / "sums", run, sums) as ledgers:
            if run == "one":
                booked(ledgers, "a", STEP, 3)
                booked(ledgers, "b", STEP, 4)
            assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((kept, 4))
            ledgers.finish()


@pytest.mark.parametrize("ended", [True, False])
def test_a_row_is_known_with_its_person_or_without(ended: bool, tmp_path: Path) -> None:
    """How many rows of a person a nameless run charges is not known: it is refused, and a run with
    persons after it, also while the first one goes on, and whatever kind of unit asks.
    """
    bare, named = [of("a", 1, 2)], [of("b", 3, 4, people=[7, 8])]
    with LedgerSession.for_data(tmp_path, "one", [*bare, of("b", 9)]) as one:
        booked(one, "a", OTHER, 1)
        with LedgerSession.for_data(tmp_path, "two", named) as two:  # other rows: both may be
            booked(two, "b", OTHER, 2)
            for ledgers in (one, two) if ended else ():
                ledgers.finish()
            for kind in ("sample", "client", "entity"):
                with pytest.raises(LedgerError, match="were used without"):
                    LedgerSession.for_data(
                        tmp_path, kind, [of("c", 5, 2, kind=kind, people=[1, 2])]
                    )
                with pytest.raises(LedgerError, match="does not name them"):
                    LedgerSession.for_data(tmp_path, kind, [of("c", 5, 3, kind=kind)])
        for run, again in (("three", bare), ("four", named)):
            with LedgerSession.for_data(tmp_path, run, again) as ledgers:
                (unit,) = ledgers.names
                times = {"a": 1, "b": 2}[unit]
                assert ledgers.epsilon(unit, 1e-5, "rdp") == epsilon((OTHER, times))


def test_classes_of_persons_and_of_rows_never_become_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row's history went with the mark of rows that have persons, once classes were merged."""
    monkeypatch.setattr(people, "MOST_CLASSES", 4)
    named, bare = of("n", 101, 102, people=[7, 8]), [of(f"{i}", i) for i in range(12)]
    with LedgerSession.for_data(tmp_path, "named", [named]) as ledgers:
        booked(ledgers, "n", OTHER, 1)
        ledgers.finish()
    for run in ("one", "two"):
        with LedgerSession.for_data(tmp_path, run, bare) as ledgers:
            for i in range(12):
                booked(ledgers, f"{i}", STEP, i + 1)
            ledgers.finish()
    with LedgerSession.for_data(tmp_path, "three", bare) as ledgers:
        for i in range(12):
            assert ledgers.epsilon(f"{i}", 1e-5, "rdp") >= epsilon((STEP, 2 * i + 2))
        ledgers.finish()
    for i in range(12):
        with pytest.raises(LedgerError, match="were used without"):
            LedgerSession.for_data(tmp_path, "four", [of("a", i, people=[i])])
    with pytest.raises(LedgerError, match="does not name them"):
        LedgerSession.for_data(tmp_path, "four", [of("a", 101)])
    with LedgerSession.for_data(tmp_path, "five", [named]) as ledgers:
        assert ledgers.epsilon("n", 1e-5, "rdp") == epsilon((OTHER, 1))


def test_raw_releases_are_never_forgotten(tmp_path: Path) -> None:
    with LedgerSession.for_data(tmp_path, "raw", [of("a", 1, 2), of("b", 3)]) as ledgers:
        booked(ledgers, "a", NonPrivate(reason="plain gradients without noise"), 5, LATER)
        ledgers.finish()
    with LedgerSession.for_data(tmp_path, "two", [of("x", 2, 3), of("y", 3, 4)]) as ledgers:
        with pytest.raises(
            BudgetExceeded,
            match=r"x: records in it.*plain gradients.*\(entry \d+, method 'm'\).*unit = 'none'",
        ):
            booked(ledgers, "x", STEP, 1)
        booked(ledgers, "y", STEP, 1)
        booked(ledgers, "x", STEP, 1, LATER)


def test_a_client_has_no_bound_once_its_records_were_in_other_releases(tmp_path: Path) -> None:
    """Before or after, in releases of examples, of other clients, or of itself with more rows."""
    client = of("a", *range(1, 5), kind="client")
    others = {
        "examples": of("x", 4, 5),
        "a client": of("x", 4, 5, kind="client"),
        "more rows": of("x", *range(1, 6), kind="client"),
    }
    for name, other in others.items():
        for first, second in ((client, other), (other, client)):
            folder = tmp_path / f"{name} {first.unit}"
            with LedgerSession.for_data(folder, "one", [first]) as ledgers:
                booked(ledgers, first.unit, OTHER, 1)
                assert ledgers.epsilon(first.unit, 1e-5, "rdp") == epsilon((OTHER, 1))
                kept = ledgers.names[first.unit]
                ledgers.finish()
            with LedgerSession.for_data(folder, "two", [second]) as ledgers:
                booked(ledgers, second.unit, OTHER, 2, LATER)
                kept = kept if first is client else ledgers.names["a"]
                for _ in range(2):
                    found = bounds(ledgers.ledger)[kept]
                    assert math.isinf(max(epsilon(*each) for each in found))
                    ledgers.finish()
    with LedgerSession.for_data(tmp_path, "one", [client]) as ledgers:
        for count in (1, 2):
            booked(ledgers, "a", OTHER, 1)
            assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((OTHER, count))


@pytest.mark.parametrize("ended", [False, True])
def test_rows_that_become_equal_are_records_of_their_client(ended: bool, tmp_path: Path) -> None:
    """A column that was a feature names clients in another run (0.93 shown, and 6.6 spent)."""
    client = of("a", *range(1, 9), kind="client")
    eight = client.rows.copy()
    eight[:, 1] = 99
    with LedgerSession.for_data(tmp_path, "one", [client]) as first:
        booked(first, "a", OTHER, 1)
        if ended:
            first.finish()
        with LedgerSession.for_data(tmp_path, "two", [Records("b", "sample", eight)]) as second:
            booked(second, "b", OTHER, 2)
            name = first.names["a"]
            assert math.isinf(max(epsilon(*each) for each in bounds(second.ledger)[name]))


def test_client_then_sample_is_two_steps(tmp_path: Path) -> None:
    with LedgerSession.for_data(
        tmp_path, "one", [of("a", 1, 2, kind="client"), of("b", 3, kind="client")]
    ) as ledgers:
        booked(ledgers, "a", OTHER, 1)
        booked(ledgers, "b", OTHER, 1)
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((OTHER, 1))
        ledgers.finish()
    with LedgerSession.for_data(tmp_path, "again", [of("a", 1, 2, kind="client")]) as ledgers:
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((OTHER, 1))
        booked(ledgers, "a", OTHER, 1)
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((OTHER, 2))
        ledgers.finish()
    with LedgerSession.for_data(tmp_path, "two", [of("x", 2, 3)]) as ledgers:
        assert ledgers.epsilon("x", 1e-5, "rdp") == epsilon((Gaussian(noise_multiplier=10.0), 2))


def test_two_runs_at_once_see_each_other(tmp_path: Path) -> None:
    tight = Budget(epsilon((STEP, 10)) * (1 + 1e-9), 1e-5, "rdp")
    with (
        LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2)]) as one,
        LedgerSession.for_data(tmp_path, "two", [of("b", 2, 3)]) as two,
    ):
        booked(one, "a", STEP, 6, tight)
        with pytest.raises(BudgetExceeded):
            booked(two, "b", STEP, 5, tight)
        booked(two, "b", STEP, 4, tight)
        with pytest.raises(BudgetExceeded):
            booked(one, "a", STEP, 1, tight)
        assert one.epsilon("a", 1e-5, "rdp") == epsilon((STEP, 10))


@pytest.mark.parametrize("kind", ["sample", "client"])
def test_a_row_that_looks_like_another_is_in_one_set_of_each_run(kind: str, tmp_path: Path) -> None:
    """Rows 2 of the first run are two records; of the others, it may be one."""
    with (
        LedgerSession.for_data(
            tmp_path, "both", [of("a", 1, 2, kind=kind), of("b", 2, 3, kind=kind)]
        ) as x,
        LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2, kind=kind)]) as one,
        LedgerSession.for_data(tmp_path, "two", [of("b", 2, 3, kind=kind)]) as two,
    ):
        booked(x, "a", STEP, 2, LATER)
        booked(x, "b", STEP, 3, LATER)
        booked(one, "a", STEP, 4, LATER)
        booked(two, "b", STEP, 5, LATER)
        for ledgers in (x, one, two):
            ledgers.finish()
    with LedgerSession.for_data(tmp_path, "last", [of("c", 2)]) as ledgers:
        found = ledgers.epsilon("c", 1e-5, "rdp")
    assert found == (epsilon((STEP, 12)) if kind == "sample" else epsilon((Grouped(STEP, 2), 12)))


def test_a_client_in_two_runs_at_once_is_itself_in_both(tmp_path: Path) -> None:
    client = of("a", 1, 2, kind="client")
    with (
        LedgerSession.for_data(tmp_path, "one", [client]) as one,
        LedgerSession.for_data(tmp_path, "two", [client]) as two,
    ):
        booked(one, "a", STEP, 2)
        booked(two, "a", STEP, 3)
        for ledgers in (one, two):
            assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((STEP, 5))
            ledgers.finish()
    with LedgerSession.for_data(tmp_path, "three", [client]) as ledgers:
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((STEP, 5))


def test_a_process_of_a_run_that_was_ended_charges_nothing_more(tmp_path: Path) -> None:
    """Its set was opened again by another run, in which the shared record counts once."""
    with (
        LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2)]) as one,
        LedgerSession.for_data(tmp_path, "two", [of("b", 2, 3)]) as two,
    ):
        booked(one, "a", STEP, 1)
        booked(two, "b", STEP, 1)
        for ledgers in (one, two):
            with Ledger.open(ledgers.ledger.path) as ledger:
                close_sets(ledger, ledgers.run)
        with LedgerSession.for_data(tmp_path, "both", [of("a", 1, 2), of("b", 2, 3)]) as both:
            booked(both, "a", STEP, 1)
            for ledgers, unit in ((one, "a"), (two, "b")):
                with pytest.raises(LedgerError, match="was ended"):
                    booked(ledgers, unit, STEP, 1)


def test_a_process_of_a_run_that_was_ended_states_what_other_runs_have_spent(
    tmp_path: Path,
) -> None:
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2)]) as one:
        booked(one, "a", STEP, 1)
        with LedgerSession.for_data(tmp_path, "two", [of("b", 2, 3)]) as two:
            booked(two, "b", STEP, 1)
            with Ledger.open(two.ledger.path) as ledger:
                close_sets(ledger, "two")
            assert two.epsilon("b", 1e-5, "rdp") == epsilon((STEP, 2))


RACE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from test_people import *
rows = of("a", *map(int, sys.argv[3].split(",")))
ledgers = LedgerSession.for_data(Path(sys.argv[1]), sys.argv[2], [rows])
tight, done = Budget(epsilon((STEP, 40)) * (1 + 1e-9), 1e-5, "rdp"), 0
try:
    for i in range(100):
        booked(ledgers, "a", STEP, 1, tight, str(i))
        done += 1
except BudgetExceeded:
    pass
print(done)
"""


def test_two_processes_cannot_both_spend_the_last(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path), run, rows, here],
            stdout=subprocess.PIPE,
            text=True,
        )
        for run, rows in (("one", "1,2,3"), ("two", "3,4,5"))
    ]
    done = [int(child.communicate(timeout=120)[0]) for child in children]
    assert sum(done) == 40


def test_a_run_that_goes_on_finds_its_sets(tmp_path: Path) -> None:
    wanted = [of("a", 1, 2), of("b", 3)]
    with LedgerSession.for_data(tmp_path, "one", wanted) as ledgers:
        booked(ledgers, "a", STEP, 5)
    with LedgerSession.for_data(tmp_path, "one", wanted[::-1]) as ledgers:
        booked(ledgers, "a", STEP, 5)
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((STEP, 10))
        ledgers.finish()
    with LedgerSession.for_data(tmp_path, "one", wanted) as ledgers:  # ended, and told again
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((STEP, 10))
        ledgers.finish()


SOME = st.lists(st.integers(0, 7), min_size=1, max_size=6, unique=True)
TIMES = st.lists(st.tuples(st.sampled_from([STEP, OTHER]), st.integers(1, 4)), max_size=2)
RUNS = st.lists(st.lists(st.tuples(SOME, TIMES), min_size=1, max_size=3), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(runs=RUNS, ended=st.lists(st.booleans(), min_size=5, max_size=5))
def test_against_a_book_that_keeps_every_record_by_itself(
    runs: list[list[tuple[list[int], list[tuple[Event, int]]]]],
    ended: list[bool],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("kept")
    twin: dict[int, dict[Event, int]] = {}
    for number, run in enumerate(runs):
        taken: set[int] = set()
        sets = []
        for i, (rows, charges) in enumerate(run):
            own = [row for row in rows if row not in taken]
            taken |= set(own)
            if own:
                sets.append((f"client:{i}", own, charges))
        with LedgerSession.for_data(
            folder, f"run {number}", [of(unit, *rows) for unit, rows, _ in sets]
        ) as ledgers:
            for unit, rows, charges in sets:
                for event, count in charges:
                    booked(ledgers, unit, event, count, key=str(number))
                    for row in rows:
                        own_events = twin.setdefault(row, {})
                        own_events[event] = own_events.get(event, 0) + count
            for unit, rows, _ in sets:
                truth = max(epsilon(*twin.get(row, {}).items()) for row in rows)
                assert ledgers.epsilon(unit, 1e-5, "rdp") == truth
            if ended[number]:
                ledgers.finish()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE record_classes SET frozen = '[]'",
        "DELETE FROM record_classes",
        "DELETE FROM record_arrays WHERE name = 'row digests'",
        "UPDATE record_sets SET live = 0",
        "UPDATE record_events SET event = replace(event, '1.5', '15.0')",
        "UPDATE record_meta SET value = CASE substr(value, 1, 1) WHEN '0' THEN '1' ELSE '0' END "
        "|| substr(value, 2) WHERE name = 'key'",
    ],
)
def test_records_that_were_changed_by_hand_are_found(tmp_path: Path, change: str) -> None:
    for run in ("one", "two"):
        with LedgerSession.for_data(tmp_path, run, [of("a", 1, 2)]) as ledgers:
            ledgers.ledger.verify()
            booked(ledgers, "a", STEP, 3)
            if run == "one":
                ledgers.finish()
            ledgers.ledger.verify()
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db, db:
        assert db.execute(change).rowcount
    with (
        Ledger.open(tmp_path / "ledger.sqlite") as ledger,
        pytest.raises(LedgerError, match=r"the records that it knows are not those"),
    ):
        ledger.verify()
    before = (tmp_path / "ledger.sqlite").read_bytes()
    with pytest.raises(LedgerError, match=r"the records that it knows are not those"):
        LedgerSession.for_data(tmp_path, "three", [of("a", 1, 2)])
    assert (tmp_path / "ledger.sqlite").read_bytes() == before  # and no run signs them


def test_a_plan_charges_what_a_run_would_and_keeps_nothing(tmp_path: Path) -> None:
    with LedgerSession.for_data(
        tmp_path, "one", [of("a", 1, 2, 3), of("b", 4, kind="client")]
    ) as ledgers:
        booked(ledgers, "a", STEP, 10)
        booked(ledgers, "b", OTHER, 2)
        ledgers.finish()
    before = (tmp_path / "ledger.sqlite").read_bytes()
    wanted = [of("x", 3, 9), of("y", 4, 5), of("z", 7), of("b", 4, kind="client")]
    for _ in range(2):
        with LedgerSession.for_plan(tmp_path, wanted, {}) as planned:
            assert planned.epsilon("x", 1e-5, "rdp") == epsilon((STEP, 10))
            assert planned.epsilon("y", 1e-5, "rdp") == epsilon(
                (Gaussian(noise_multiplier=10.0), 2)
            )
            assert planned.epsilon("z", 1e-5, "rdp") == 0.0
            assert planned.histories("b") == (((OTHER, 2),),)
            with planned.undone():
                booked(planned, "x", STEP, 5)
                assert planned.epsilon("x", 1e-5, "rdp") == epsilon((STEP, 15))
            assert planned.epsilon("x", 1e-5, "rdp") == epsilon((STEP, 10))
    assert (tmp_path / "ledger.sqlite").read_bytes() == before


def test_a_plan_counts_a_person_at_two_clients_as_a_charge_does(tmp_path: Path) -> None:
    wanted = [of("a", 1, people=[7]), of("b", 2, people=[7]), of("c", 3, people=[8])]
    with (
        LedgerSession.for_data(tmp_path, "one", wanted) as ledgers,
        LedgerSession.for_plan(None, wanted, {}) as planned,
    ):
        for each in (ledgers, planned):
            for unit in "abc":
                booked(each, unit, OTHER, 1)
        for unit in "abc":
            assert planned.epsilon(unit, 1e-5, "rdp") == ledgers.epsilon(unit, 1e-5, "rdp")
        assert planned.epsilon("a", 1e-5, "rdp") > planned.epsilon("c", 1e-5, "rdp")
        one, two = Budget(1.0, 1e-5), Budget(2.0, 1e-5)
        assert planned.at_odds({"a": one, "b": two, "c": one})
        assert not planned.at_odds({"a": one, "b": one, "c": two})


def begun(
    ledgers: LedgerSession,
    most: float,
    planned: tuple[tuple[Event, int], ...] = (),
    *,
    chosen: bool = False,
    others: bool = False,
) -> None:
    """A run begins that promises ``most`` to everybody in it."""
    promise = {"form": "sound", "chosen": chosen, "epsilon_budget": most}
    budgets = dict.fromkeys(ledgers.names, Budget(most, 1e-5, "rdp"))
    charges = dict.fromkeys(ledgers.names, planned) if planned else {}
    ledgers.begin(ledgers.run, {"promise": promise}, budgets, charges, others=others)


@pytest.mark.parametrize("others", [False, True])
def test_of_a_federation_that_is_ended_by_hand_the_whole_plan_counts_at_its_least_noise(
    tmp_path: Path, others: bool
) -> None:
    """Whoever sees releases may have had it end there: the rest was at the price of what came."""
    first, last = Gaussian(noise_multiplier=40.0), Gaussian(noise_multiplier=10.0)
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2)]) as one:
        begun(one, 50.0, ((first, 4), (last, 6)), others=others)
        booked(one, "a", first, 2)
        assert close_sets(one.ledger, "one")
        name = one.names["a"]  # as before it was closed: who resumes it asks again
        assert one.ledger.charged_by("one") == {name: {first: 2}}
    with LedgerSession.for_data(tmp_path, "two", [of("x", 2), of("y", 3)]) as two:
        counted = epsilon((first, 4), (last, 6)) if others else epsilon((first, 2))
        assert two.epsilon("x", 1e-5, "rdp") == counted
        assert two.epsilon("y", 1e-5, "rdp") == 0.0


def test_the_rest_of_a_run_is_what_its_budget_would_have_paid_for_after_all_before(
    tmp_path: Path,
) -> None:
    """It was counted from the run's own charges alone, once for each set of a person in two."""
    budget = epsilon((STEP, 40)) * (1 + 1e-9)
    with LedgerSession.for_data(tmp_path, "before", [of("a", 1, people=[1])]) as before:
        booked(before, "a", STEP, 10)
        before.finish()
    both = [of("a", 1, 3, people=[1, 3]), of("b", 2, 4, people=[1, 4])]
    with LedgerSession.for_data(tmp_path, "one", both) as one:
        begun(one, budget, chosen=True)
        for unit in "ab":
            booked(one, unit, STEP, 5, Budget(budget, 1e-5, "rdp"))
        one.finish()
    with LedgerSession.for_data(tmp_path, "two", [of("x", 1, people=[1])]) as two:
        assert two.epsilon("x", 1e-5, "rdp") == epsilon((STEP, 40))  # 10, and 15 in each set


def test_a_run_that_others_can_end_counts_in_full_from_its_beginning(tmp_path: Path) -> None:
    """What it had spent counted, so that its end, or a server that vanished, chose what the next
    run stated; then the plan from its first charge on, so that who sent the first task did; and
    what another promise held back of it was forgotten.
    """
    promised = Budget(epsilon((STEP, 12)) * (1 + 1e-9), 1e-5, "rdp")
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2)]) as one:
        begun(one, 50.0, ((STEP, 9),), others=True)
        with LedgerSession.for_data(tmp_path, "two", [of("b", 2, 3)]) as two:
            begun(two, promised.epsilon)
            assert one.epsilon("a", 1e-5, "rdp") == 0.0
            for count in (0, 2):
                if count:
                    booked(one, "a", STEP, count)
                assert two.epsilon("b", 1e-5, "rdp") == epsilon((STEP, 9))
            assert one.epsilon("a", 1e-5, "rdp") == epsilon((STEP, 2))
            booked(two, "b", STEP, 3, promised)
            with pytest.raises(HeldBack, match=r"All that other runs of these records .* one\."):
                booked(two, "b", STEP, 1, promised, key="more")
            close_sets(one.ledger, "one")
            assert two.epsilon("b", 1e-5, "rdp") == epsilon((STEP, 12))
    with LedgerSession.for_data(tmp_path, "three", [of("c", 1), of("d", 2)]) as three:
        assert three.epsilon("c", 1e-5, "rdp") == epsilon((STEP, 9))


def test_a_run_does_not_begin_where_its_plan_is_more_than_another_was_promised(
    tmp_path: Path,
) -> None:
    with (
        LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2)]) as one,
        LedgerSession.for_data(tmp_path, "two", [of("b", 2, 3)]) as two,
    ):
        begun(two, epsilon((STEP, 12)) * (1 + 1e-9))
        with pytest.raises(BudgetExceeded):  # nor where it is more than it promises itself
            begun(one, epsilon((STEP, 8)) * (1 + 1e-9), ((STEP, 9),), others=True)
        with pytest.raises(HeldBack, match="Run two promised"):
            begun(one, 50.0, ((STEP, 13),), others=True)
        assert one.ledger.noted(BEGIN, "one") is None
        assert two.epsilon("b", 1e-5, "rdp") == 0.0
        two.finish()
        begun(one, 50.0, ((STEP, 13),), others=True)
        booked(one, "a", STEP, 1)
        for event, count in ((STEP, 14), (OTHER, 1)):
            with pytest.raises(BudgetExceeded, match="plans no such charge"):
                booked(one, "a", event, count, key="more")


def test_what_a_run_could_still_charge_is_one_price_before_and_after_it_is_ended(
    tmp_path: Path,
) -> None:
    """Steps of one row were added to what persons with three rows had spent: 8.9 of 6."""

    def most(ledger: Ledger) -> float:
        found = spendings(ledger, rest=Prices(ledger).rest())
        return max(epsilon(*spent) for each in found.values() for spent in each)

    with LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2, 3, 4, people=[1, 1, 1, 2])]) as one:
        begun(one, 6.0, chosen=True)
        booked(one, "a", STEP, 3)
        before = most(one.ledger)
        assert 5.8 < before <= 6.0
        close_sets(one.ledger, "one")
        assert not Prices(one.ledger).rest()
        assert most(one.ledger) == pytest.approx(before)


@pytest.mark.parametrize("spent", [0, 4])
def test_a_run_that_was_ended_does_not_go_on(tmp_path: Path, spent: int) -> None:
    """Gone on with, it was held against no other plan, and charged beside its booked rest."""
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2)]) as one:
        begun(one, 50.0, ((STEP, 9),), others=True)
        if spent:
            booked(one, "a", STEP, spent)
        with LedgerSession.for_data(tmp_path, "two", [of("b", 1, 2)]):  # holds the same records
            close_sets(one.ledger, "one")
    with pytest.raises(ResumeError, match="run one was ended with `sordino ledger end`"):
        LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2)], begun=True)
    with LedgerSession.for_data(tmp_path, "three", [of("c", 2)]) as three:
        assert three.epsilon("c", 1e-5, "rdp") == epsilon(*([(STEP, 9)] if spent else []))


def test_a_run_without_a_plan_is_alone(tmp_path: Path) -> None:
    """What it could still charge fell with each charge of others: who ended it chose how much of it
    counted (true delta 2.0 times the stated one).
    """
    with (
        LedgerSession.for_data(tmp_path, "z", [of("a", 1, 2)]) as one,
        LedgerSession.for_data(tmp_path, "b", [of("b", 2)]) as two,
    ):
        begun(one, 50.0, ((STEP, 9),), others=True)
        with pytest.raises(StudyError, match="has not ended and uses the same records"):
            begun(two, 50.0, others=True)
        one.finish()
        begun(two, 50.0, others=True)
        with (
            LedgerSession.for_data(tmp_path, "c", [of("c", 2)]) as three,
            pytest.raises(StudyError, match="has not ended and uses the same records"),
        ):
            begun(three, 50.0)


def test_no_round_that_is_charged_again_goes_beyond_the_plan(tmp_path: Path) -> None:
    """After each restart of a site a server had one more pass released, and the site stated what
    was spent.
    """
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1)]) as one:
        begun(one, 50.0, ((STEP, 3),), others=True)
        for life in range(3):
            assert not one.did_all("one")
            booked(one, "a", STEP, 1, key=f"{life}/round 1")
        assert one.did_all("one")
        with pytest.raises(BudgetExceeded, match="plans no such charge"):
            booked(one, "a", STEP, 1, key="3/round 1")


def test_a_later_run_may_charge_all_that_it_plans_and_no_more(tmp_path: Path) -> None:
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1)]) as one:
        booked(one, "a", STEP, 3)
        one.finish()
    with LedgerSession.for_data(tmp_path, "two", [of("b", 1)]) as two:
        begun(two, 50.0, ((STEP, 4),), others=True)
        booked(two, "b", STEP, 4)
        with pytest.raises(BudgetExceeded, match="plans no such charge"):
            booked(two, "b", STEP, 1, key="more")


def test_a_run_is_complete_where_every_plan_was_carried_out_by_somebody(tmp_path: Path) -> None:
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1), of("b", 2), of("c", 3)]) as one:
        budgets = dict.fromkeys("abc", WIDE)
        plans = {"a": ((STEP, 2),), "b": ((STEP, 3),), "c": ((STEP, 3),)}
        one.begin("one", {}, budgets, plans, others=True)
        for unit, count in (("a", 2), ("b", 2)):
            booked(one, unit, STEP, count)
            assert not one.did_all("one")
        booked(one, "c", STEP, 3)
        assert one.did_all("one")


def test_two_runs_that_others_can_end_do_not_stop_each_other(tmp_path: Path) -> None:
    """Each had begun, and took what was left beside the plan of the other; neither went on."""
    budget = Budget(epsilon((STEP, 20)) * (1 + 1e-9), 1e-5, "rdp")
    with (
        LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2), of("c", 4)]) as one,
        LedgerSession.for_data(tmp_path, "two", [of("b", 2)]) as two,
    ):
        begun(two, budget.epsilon, ((STEP, 12),), others=True)
        with pytest.raises(HeldBack, match="Run two promised"):
            begun(one, 50.0, ((STEP, 9),), others=True)
        begun(one, 50.0, ((STEP, 8),), others=True)
        booked(one, "c", STEP, 4)
        booked(two, "b", STEP, 12, budget)
        booked(one, "a", STEP, 8, key="all")
        assert one.epsilon("a", 1e-5, "rdp") == epsilon((STEP, 20))


def test_a_round_that_was_booked_twice_stops_nobody_beside_a_run_of_other_records(
    tmp_path: Path,
) -> None:
    budget = Budget(epsilon((STEP, 9)) * (1 + 1e-9), 1e-5, "rdp")
    with (
        LedgerSession.for_data(tmp_path, "one", [of("a", 1)]) as one,
        LedgerSession.for_data(tmp_path, "two", [of("b", 2)]) as two,
    ):
        begun(one, budget.epsilon, ((STEP, 9),), others=True)
        booked(one, "a", STEP, 1, budget)
        booked(one, "a", STEP, 1, budget, key="again")  # a round counts once of its plan
        begun(two, 50.0, ((STEP, 5),), others=True)
        booked(two, "b", STEP, 1)
        booked(one, "a", STEP, 7, budget, key="more")
        with pytest.raises(BudgetExceeded):
            booked(one, "a", STEP, 1, budget, key="last")


def test_the_rest_that_is_booked_is_no_more_than_was_promised(tmp_path: Path) -> None:
    """Others charged between the beginning and the first charge, and the plan was too much then."""
    budget = Budget(epsilon((STEP, 20)) * (1 + 1e-9), 1e-5, "rdp")
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1)]) as one:
        begun(one, budget.epsilon, ((STEP, 20),), others=True)
        with (
            LedgerSession.for_data(tmp_path, "two", [of("b", 1)]) as two,
            pytest.raises(HeldBack, match="Run one promised"),
        ):
            booked(two, "b", STEP, 8)
        booked(one, "a", STEP, 3, budget)
        one.finish()
    with LedgerSession.for_data(tmp_path, "three", [of("c", 1)]) as three:
        assert three.epsilon("c", 1e-5, "rdp") == epsilon((STEP, 20))
