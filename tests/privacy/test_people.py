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

from sordino.base.errors import BudgetExceeded, LedgerError
from sordino.data.table import paired
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
from sordino.privacy.records import Records, bounds, burdens, close_sets, link
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
    with LedgerSession.for_data(tmp_path, "four", [of("d", 2)]) as ledgers:
        rows = epsilon((Grouped(STEP, 2), 10), (OTHER, 1))
        assert ledgers.epsilon("d", 1e-5, "rdp") == rows > epsilon((STEP, 10), (OTHER, 1))


def test_two_names_of_one_person_are_no_unit(tmp_path: Path) -> None:
    one = of("a", 1, 2, 3, kind="person", people=[7, 7, 9])
    with LedgerSession.for_data(tmp_path, "one", [replace(one, most=1)]) as ledgers:
        link(
            ledgers.ledger,
            np.array([[10**6 + 1, 1]], np.uint64),
            np.array([[10**6 + 3, 3]], np.uint64),
        )
    with pytest.raises(LedgerError, match="counts as 2 persons here"):
        LedgerSession.for_data(tmp_path, "two", [replace(one, most=1)])


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


def test_a_person_whose_rows_were_used_namelessly_has_no_bound(tmp_path: Path) -> None:
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2)]) as ledgers:
        booked(ledgers, "a", OTHER, 1)
        ledgers.finish()
    with LedgerSession.for_data(
        tmp_path, "two", [of("a", 1, people=[7]), of("b", 3, people=[8])]
    ) as ledgers:
        assert math.isinf(ledgers.epsilon("a", 1e-5, "rdp"))
        assert ledgers.epsilon("b", 1e-5, "rdp") == 0.0
        with pytest.raises(
            BudgetExceeded, match=r"a: records in it were used before .* without data\.person"
        ):
            booked(ledgers, "a", OTHER, 1)


@pytest.mark.parametrize("linked", [False, True])
def test_a_person_has_no_bound_once_a_known_row_was_used_namelessly(
    linked: bool, tmp_path: Path
) -> None:
    """Also where that row is not in the next run: it cost the person nothing, and the ledger had
    been told whose it is. Persons of other runs keep what they have.
    """
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2, people=[7, 7])]) as ledgers:
        booked(ledgers, "a", OTHER, 1)
        ledgers.finish()
    with LedgerSession.for_data(tmp_path, "other", [of("b", 3, people=[8])]) as ledgers:
        booked(ledgers, "b", OTHER, 2)
        ledgers.finish()
        if linked:
            link(ledgers.ledger, of("", 2).rows, of("", 9).rows)
    with LedgerSession.for_data(tmp_path, "two", [of("c", 2)]) as ledgers:
        booked(ledgers, "c", OTHER, 3)
        assert ledgers.epsilon("c", 1e-5, "rdp") == epsilon((OTHER, 4))
        ledgers.finish()
    later = [of("a", 1, people=[7]), of("b", 3, people=[8])]
    with LedgerSession.for_data(tmp_path, "three", later) as ledgers:
        assert math.isinf(ledgers.epsilon("a", 1e-5, "rdp"))
        assert ledgers.epsilon("b", 1e-5, "rdp") == epsilon((OTHER, 2))


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


def test_sample_then_client(tmp_path: Path) -> None:
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1), of("b", *range(10, 200))]) as ledgers:
        booked(ledgers, "a", STEP, 3)
        booked(ledgers, "b", STEP, 3)
        ledgers.finish()
    with LedgerSession.for_data(
        tmp_path, "two", [of("a", 1, kind="client"), of("b", *range(10, 100), kind="client")]
    ) as ledgers:
        # a client with one record is this record
        assert ledgers.epsilon("a", 1e-5, "rdp") == epsilon((STEP, 3))
        assert math.isinf(ledgers.epsilon("b", 1e-5, "rdp"))
        with pytest.raises(BudgetExceeded, match="no useful bound is known for 90 records"):
            booked(ledgers, "b", OTHER, 1)


@pytest.mark.parametrize("rows", [(1, 2, 3, 4), (1, 1, 1, 2)])
def test_equal_rows_of_a_client_are_as_many_records(rows: tuple[int, ...], tmp_path: Path) -> None:
    """All four fall away together: of equal ones one was counted (1.99 shown, and 16 spent)."""
    client = of("a", *rows, kind="client")
    with LedgerSession.for_data(tmp_path, "one", [of("a", *rows)]) as ledgers:
        booked(ledgers, "a", OTHER, 2)
        ledgers.finish()
        (burden,) = burdens(ledgers.ledger, [client])["a"]
    with LedgerSession.for_data(tmp_path, "two", [client]) as ledgers:
        booked(ledgers, "a", OTHER, 1)
        spent = (Gaussian(noise_multiplier=5.0), 2), (OTHER, 1)  # four rows move a sum by four
        assert ledgers.epsilon("a", 1e-5, "rdp") >= epsilon(*spent)
        name = ledgers.names["a"]
        ledgers.finish()
        assert max(epsilon(*each) for each in bounds(ledgers.ledger)[name]) >= epsilon(*spent)
    assert epsilon(*burden.spent) >= epsilon(spent[0])


@pytest.mark.parametrize("ended", [False, True])
def test_rows_that_become_equal_stay_as_many_records_of_a_client(
    ended: bool, tmp_path: Path
) -> None:
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
            spent = epsilon((OTHER, 1), (Gaussian(noise_multiplier=2.5), 2))
            assert ended or first.epsilon("a", 1e-5, "rdp") >= spent
            name = first.names["a"]
            assert max(epsilon(*each) for each in bounds(second.ledger)[name]) >= spent


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


def test_rows_that_are_held_for_their_persons_are_not_used_without_them(tmp_path: Path) -> None:
    """A row of twenty costs little of a person's budget: two runs at once spent it many times."""
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2, people=[7, 7])]) as one:
        booked(one, "a", STEP, 1)
        for rows in (of("b", 2, 3), of("b", 2, 3, kind="client"), of("b", 2, kind="entity")):
            with pytest.raises(LedgerError, match=r"held open by run one, .* does not name them"):
                LedgerSession.for_data(tmp_path, "two", [rows])
        link(one.ledger, of("", 1, 2).rows, of("", 11, 12).rows)
        with pytest.raises(LedgerError, match="held open by run one"):
            LedgerSession.for_data(tmp_path, "two", [of("b", 11, 13)])
        with LedgerSession.for_data(tmp_path, "two", [of("b", 2, people=[7])]) as two:
            two.finish()
        one.finish()
    with LedgerSession.for_data(tmp_path, "two", [of("b", 2, 3)]) as two:
        booked(two, "b", STEP, 1)


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
        booked(x, "a", STEP, 2)
        booked(x, "b", STEP, 3)
        booked(one, "a", STEP, 4)
        booked(two, "b", STEP, 5)
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


def test_linked_files_are_the_same_people(tmp_path: Path) -> None:
    with LedgerSession.for_data(tmp_path, "one", [of("a", 1, 2)]) as ledgers:
        booked(ledgers, "a", STEP, 5)
        ledgers.finish()
        words = np.array([[10**6 + 1, 10**6 + 1], [10**6 + 2, 10**6 + 2]], dtype=np.uint64)
        assert link(ledgers.ledger, words, words + np.uint64(100)) == 2
        assert link(ledgers.ledger, words, words + np.uint64(100)) == 0
    with LedgerSession.for_data(tmp_path, "two", [of("b", 101), of("c", 103)]) as ledgers:
        assert ledgers.epsilon("b", 1e-5, "rdp") == epsilon((STEP, 5))
        assert ledgers.epsilon("c", 1e-5, "rdp") == 0.0


def test_linked_rows_that_look_alike_are_as_many_of_their_person(tmp_path: Path) -> None:
    """Also where nothing but features is alike, and after a second link (0.93 for 3.88 spent)."""
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text("who,a,label\n" + "".join(f"p,5,{i % 2}\n" for i in range(5)) + "q,6,0\nq,8,0\n")
    two.write_text("who,a,label\nq,8,0\np,7,0\nq,9,1\n")
    rows, stands = paired(one, one, "who")[1][-7:], paired(two, two, "who")[1][-3:]
    with LedgerSession.for_data(tmp_path, "one", [Records("a", "sample", rows)]) as ledgers:
        booked(ledgers, "a", OTHER, 2)
        ledgers.finish()
        assert link(ledgers.ledger, *paired(one, two, "who")) == 3
        assert link(ledgers.ledger, *paired(one, two, "who")) == 0
    units = [Records("p", "sample", stands[1:2]), Records("q", "sample", stands[2:])]
    with LedgerSession.for_data(tmp_path, "two", units) as ledgers:
        # a second link has the six of both files: that these counted as so many is not known
        six = grouped(OTHER, 6)
        assert ledgers.epsilon("p", 1e-5, "rdp") == epsilon((six, 2))
        # a row of both files is one row
        assert ledgers.epsilon("q", 1e-5, "rdp") == epsilon((Gaussian(noise_multiplier=10.0), 4))
        ledgers.finish()
    with pytest.raises(LedgerError, match="counts as 2 rows"):
        LedgerSession.for_data(tmp_path, "three", [Records("p", "sample", rows[:2])])


def test_a_person_linked_before_as_one_row_of_each_kind_has_all_rows_when_linked_again(
    tmp_path: Path,
) -> None:
    """So earlier versions linked; twice five rows counted as five (2.17 for 3.19 spent)."""
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text("who,a,label\n" + "p,5,0\np,6,0\n" * 5 + "q,8,0\n")
    two.write_text("who,a,label\np,7,0\nq,9,0\n")
    rows, stands = paired(one, one, "who")[1][-11:], paired(two, two, "who")[1][-2:]
    start, pairs = paired(one, two, "who")
    once = np.unique(pairs, axis=0, return_index=True)[1]
    with LedgerSession.for_data(tmp_path, "one", [Records("a", "sample", rows)]) as ledgers:
        booked(ledgers, "a", OTHER, 2)
        ledgers.finish()
        link(ledgers.ledger, start[once], pairs[once])
        link(ledgers.ledger, start, pairs)
    units = [Records(each, "sample", stands[i : i + 1]) for i, each in enumerate("pq")]
    with LedgerSession.for_data(tmp_path, "two", units) as ledgers:
        assert ledgers.epsilon("p", 1e-5, "rdp") >= epsilon((grouped(OTHER, 10), 2))
        assert ledgers.epsilon("q", 1e-5, "rdp") == epsilon((OTHER, 2))


def test_linked_rows_that_another_run_took_for_one_are_as_many(tmp_path: Path) -> None:
    rows = of("a", 1, 2, 3).rows
    alike = rows.copy()
    alike[:, 1] = 99
    with LedgerSession.for_data(tmp_path, "one", [Records("a", "sample", rows)]) as ledgers:
        booked(ledgers, "a", OTHER, 2)
        ledgers.finish()
    with LedgerSession.for_data(tmp_path, "two", [Records("a", "sample", alike)]) as ledgers:
        ledgers.finish()
        link(ledgers.ledger, rows[[0, 0, 0]], rows)
    with LedgerSession.for_data(tmp_path, "three", [of("a", 1)]) as ledgers:
        spent = epsilon((Gaussian(noise_multiplier=20.0 / 3), 2))
        assert ledgers.epsilon("a", 1e-5, "rdp") >= spent


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
        "UPDATE record_meta SET value = replace(replace(value, '0', '1'), '2', '3') WHERE "
        "name = 'key'",
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


def test_a_plan_sees_what_a_run_would(tmp_path: Path) -> None:
    with LedgerSession.for_data(
        tmp_path, "one", [of("a", 1, 2, 3), of("b", 4, kind="client")]
    ) as ledgers:
        booked(ledgers, "a", STEP, 10)
        booked(ledgers, "b", OTHER, 2)
        for _ in range(2):
            wanted = [
                of("x", 3, 9),
                of("y", 4, 5),
                of("z", 7),
                of("b", 4, kind="client"),
                of("c", 1, kind="client"),
            ]
            seen = {
                unit: tuple(burden.spent for burden in each)
                for unit, each in burdens(ledgers.ledger, wanted).items()
            }
            assert max(epsilon(*spent) for spent in seen["x"]) == epsilon((STEP, 10))
            assert max(epsilon(*spent) for spent in seen["y"]) == epsilon(
                (Gaussian(noise_multiplier=10.0), 2)
            )
            assert seen["z"] == ((),)
            assert seen["b"] == (((OTHER, 2),),)
            assert epsilon(*seen["c"][0]) == epsilon((STEP, 10))
            ledgers.finish()


def test_a_plan_counts_a_person_at_two_clients_as_a_charge_does(tmp_path: Path) -> None:
    wanted = [of("a", 1, people=[7]), of("b", 2, people=[7]), of("c", 3, people=[8])]
    seen = burdens(None, wanted)
    with LedgerSession.for_data(tmp_path, "one", wanted) as ledgers:
        for unit in "abc":
            booked(ledgers, unit, OTHER, 1)
        for unit in "abc":
            (burden,) = seen[unit]
            assert epsilon((burden.of(lambda place: OTHER), 1)) == ledgers.epsilon(
                unit, 1e-5, "rdp"
            )
    assert [each[0].units for each in seen.values()] == [(0, 1), (0, 1), (2,)]
