"""One budget for the same people: whole runs over the same records in other orders, columns,
codings, files, partitions and regimes.
"""

from __future__ import annotations

import errno
import json
import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import sordino as so
from sordino.base.errors import BudgetExceeded, LedgerError, SordinoError, StudyError
from sordino.cli import app
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.files import replace_file
from sordino.core.run import session
from sordino.core.run.environment import ENDED
from sordino.core.run.folder import KEY
from sordino.core.run.verify import priced, verify
from sordino.data.notices import noticed
from sordino.privacy import Gaussian, Ledger, LedgerSession, PoissonSampled, accountant
from sordino.privacy.budget import most_steps
from sordino.privacy.records import Records
from sordino.regimes.asynchronous.study import TEMPLATE as ASYNCHRONOUS
from sordino.regimes.synchronous.study import TEMPLATE as SYNCHRONOUS
from sordino.regimes.vertical.study import TEMPLATE as VERTICAL

ROWS = 120
SIGMA, RATE, DELTA = 2.0, 0.2, 1e-3
DP_SGD = (
    'method={name="dp-sgd", tau=1}',
    "budget.rounds=3",
    f"privacy.noise_multiplier={SIGMA}",
    f"privacy.sampling_rate={RATE}",
)
RAW = ('method={name="fedavg"}', 'privacy={unit="none", sampling_rate=0.2}', "budget.rounds=2")
CLIENTS = (
    'method={name="dp-fedavg"}',
    "budget.rounds=2",
    "privacy.noise_multiplier=3.0",
    'privacy.unit="client"',
)


def table(seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {f"f{j}": rng.normal(size=ROWS).astype(np.float32) for j in range(4)}
    return pl.DataFrame(
        {**columns, "label": rng.integers(0, 2, ROWS), "who": [f"p{i // 2}" for i in range(ROWS)]}
    )


def plain(seed: int = 0) -> pl.DataFrame:
    return table(seed).drop("who")


def study(folder: Path, text: str, file: Path, changes: Sequence[str]) -> studies.Study:
    path = folder / "study.toml"
    path.write_text(text)
    data = f'data={{file="{file}", clients=3}}'
    kept = f'privacy.ledger="{folder / "kept"}"'
    return studies.read(
        path, [data, 'model.name="logistic"', "privacy.epsilon=20.0", *changes, kept]
    )


def run(
    folder: Path, name: str, file: Path, *changes: str, text: str = SYNCHRONOUS
) -> session.Outcome:
    def quiet(told: object) -> None:
        """Show nothing."""

    return session.begin(study(folder, text, file, changes), folder / name, quiet, quiet)


def epsilon(steps: int) -> float:
    step = PoissonSampled(sampling_rate=RATE, event=Gaussian(noise_multiplier=SIGMA))
    return accountant("pld").epsilon([(step, steps)], DELTA)


def saved(folder: Path, name: str, frame: pl.DataFrame) -> Path:
    path = folder / name
    if path.suffix == ".npz":
        x = frame.select(pl.exclude("label")).to_numpy()
        np.savez(path, x=x, y=frame["label"].to_numpy())
    elif path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path)
    return path


AGAIN = {
    "another seed": (plain(), "csv", ("seed=5",)),
    "more clients": (plain(), "csv", ("data.clients=7",)),
    "another partition": (
        plain().with_columns(site=pl.Series([f"s{i % 5 % 3}" for i in range(ROWS)])),
        "csv",
        ('data.client_column="site"', 'data.partition={kind="column"}'),
    ),
    "another order of rows": (plain().sample(fraction=1.0, shuffle=True, seed=3), "csv", ()),
    "another order of columns": (plain().select(["f3", "label", "f1", "f0", "f2"]), "csv", ()),
    "other names of columns": (plain().rename({"f0": "a", "f1": "b"}), "csv", ()),
    "labels in words": (
        plain().with_columns(pl.col("label").replace_strict({0: "no", 1: "yes"})),
        "csv",
        (),
    ),
    "labels the other way round": (plain().with_columns(label=1 - pl.col("label")), "csv", ()),
    "npz": (plain(), "npz", ()),
    "parquet, in double precision": (
        plain().with_columns(pl.col("^f.$").cast(pl.Float64)),
        "parquet",
        (),
    ),
    "half of the rows, and others": (pl.concat([plain().head(60), plain(7)]), "csv", ()),
}


@pytest.mark.parametrize("name", AGAIN)
def test_the_same_records_have_one_budget(tmp_path: Path, name: str) -> None:
    first = run(tmp_path, "one", saved(tmp_path, "one.csv", plain()), *DP_SGD)
    frame, ending, changes = AGAIN[name]
    second = run(tmp_path, "two", saved(tmp_path, f"two.{ending}", frame), *DP_SGD, *changes)
    assert (first.epsilon, second.epsilon) == (epsilon(3), epsilon(6))
    assert (
        json.loads((tmp_path / "two" / "run.json").read_text())["result"]["epsilon"]
        == second.epsilon
    )


def test_a_label_that_was_a_feature_is_the_same_record(tmp_path: Path) -> None:
    frame = plain().with_columns(other=pl.Series(np.arange(ROWS) % 2))
    run(tmp_path, "one", saved(tmp_path, "one.csv", frame), *DP_SGD)
    second = run(tmp_path, "two", tmp_path / "one.csv", *DP_SGD, 'data.label="other"')
    assert second.epsilon == epsilon(6)


def test_others_have_a_budget_of_their_own(tmp_path: Path) -> None:
    run(tmp_path, "one", saved(tmp_path, "one.csv", plain()), *DP_SGD)
    second = run(tmp_path, "two", saved(tmp_path, "two.csv", plain(1)), *DP_SGD)
    assert second.epsilon == epsilon(3)


def test_a_budget_that_is_spent_is_refused_to_the_next(tmp_path: Path) -> None:
    file, tight = saved(tmp_path, "one.csv", plain()), f"privacy.epsilon={epsilon(4)}"
    run(tmp_path, "one", file, *DP_SGD, tight)
    second = run(tmp_path, "two", file, *DP_SGD, "seed=1", tight)
    assert (second.steps, second.epsilon) == (1, epsilon(4))
    with pytest.raises(BudgetExceeded, match="does not pay for a single local step"):
        run(tmp_path, "three", file, *DP_SGD, "data.clients=4", tight)


ALI = ('method={name="ali-dpfl"}', "budget.rounds=2", "privacy.epsilon=6.0")


def test_a_later_run_counts_all_that_one_could_have_spent_which_chose_by_looking(
    tmp_path: Path,
) -> None:
    """Releases decide how many steps ALI-DPFL takes. What it had spent was added to what the next
    run spent, and the sum was stated: no bound, as a stopping rule shows (1.7 times delta).
    """
    rows, others = (saved(tmp_path, f"{i}.csv", plain(i)) for i in range(2))
    first = run(tmp_path, "first", rows, *ALI, f"privacy.noise_multiplier={SIGMA}")
    own = PoissonSampled(RATE, Gaussian(SIGMA))
    most = most_steps(own, epsilon=6.0, delta=DELTA, accountant="pld")
    assert first.spent < epsilon(most) <= first.epsilon == 6.0
    for name in ("first", "kept"):  # nobody came after it yet
        assert verify(tmp_path / name).epsilon == pytest.approx(
            6.0 if name == "first" else epsilon(most), rel=1e-6
        )
    with so.Ledger.open(tmp_path / "kept", readonly=True) as ledger:
        assert ledger.epsilon(DELTA) == pytest.approx(epsilon(most), rel=1e-6)
    with pytest.raises(BudgetExceeded, match="does not pay for a single local step"):
        run(tmp_path, "refused", rows, *DP_SGD, "privacy.epsilon=6.0")
    later = run(tmp_path, "later", rows, *DP_SGD, "privacy.noise_multiplier=4.0")
    both = [(own, most), (PoissonSampled(RATE, Gaussian(4.0)), 3)]
    wanted = accountant("pld").epsilon(both, DELTA)
    assert later.epsilon == later.spent == pytest.approx(wanted, rel=1e-6)
    apart = run(tmp_path, "apart", others, *DP_SGD)
    assert apart.epsilon == apart.spent == pytest.approx(epsilon(3), rel=1e-6)
    for name, bound in {"later": wanted, "apart": apart.epsilon, "kept": wanted}.items():
        verdict = verify(tmp_path / name)
        assert not verdict.problems
        assert verdict.epsilon == pytest.approx(bound, rel=1e-6)


def test_in_a_runs_own_ledger_each_client_counts_up_to_its_own_budget(tmp_path: Path) -> None:
    """The rest of a run that chooses was filled up to the largest: 3.99 where 1 was promised."""
    path = tmp_path / "study.toml"
    path.write_text(SYNCHRONOUS)
    own = (1.0, 2.0, 4.0)
    data = f'data={{file="{saved(tmp_path, "0.csv", plain())}", clients=3}}'
    asked = [data, 'model.name="logistic"', *ALI, f"privacy.epsilons={list(own)}"]
    session.begin(
        studies.read(path, [*asked, "privacy.epsilon=4.0"]), tmp_path / "run", print, print
    )
    with so.Ledger.open(tmp_path / "run") as ledger:
        for i, most in enumerate(own):
            assert 0.9 * most < ledger.epsilon(DELTA, f"client:{i}") <= most


def test_of_a_run_that_ended_in_a_version_before_no_less_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That booked no rest, and its sets are closed: nobody knows any more who was in which."""
    rows = saved(tmp_path, "0.csv", plain())
    with monkeypatch.context() as before:
        before.setattr("sordino.privacy.records.people.CLOSED", "unknown then")
        before.setattr(Ledger, "book_reserve", lambda *given: None)
        run(tmp_path, "first", rows, *ALI, f"privacy.noise_multiplier={SIGMA}")
    own = PoissonSampled(RATE, Gaussian(SIGMA))
    most = most_steps(own, epsilon=6.0, delta=DELTA, accountant="pld")
    assert verify(tmp_path / "kept").epsilon == pytest.approx(epsilon(most), rel=1e-6)
    later = run(tmp_path, "later", rows, *DP_SGD)
    assert later.epsilon >= epsilon(most + 3) * (1 - 1e-9)
    for name in ("first", "later", "kept"):
        assert not verify(tmp_path / name).problems


def test_of_noise_that_was_chosen_a_later_run_counts_what_its_order_had_left(
    tmp_path: Path,
) -> None:
    rows = saved(tmp_path, "0.csv", plain())
    adap = ('method={name="adap-dpfl"}', "budget.rounds=2", "privacy.epsilon=8.0")
    order = 'privacy.accountant="rdp@8"'
    run(tmp_path, "first", rows, *adap, order, f"privacy.noise_multiplier={SIGMA}")
    with pytest.raises(BudgetExceeded, match="does not pay for a single local step"):
        run(tmp_path, "refused", rows, *DP_SGD, order, "privacy.epsilon=8.0")
    verdict = verify(tmp_path / "kept")
    assert not verdict.problems
    assert verdict.epsilon == pytest.approx(8.0, rel=1e-6)


LOOKS = """
from typing import ClassVar, Literal
import msgspec
from sordino.extend.methods import About, Choice, SynchronousMethod, Wants, register

class Memory(msgspec.Struct, frozen=True):
    n: int = 0

@register
class Looks(SynchronousMethod):
    about: ClassVar[About] = About(
        regime="synchronous", paper="yours", does="x", forms={"sound": True}
    )
    memory: ClassVar[type[Memory]] = Memory
    name: Literal["looks"] = "looks"

    @property
    def wants(self):
        return Wants(loss=(1.0, 1.0))

    def choose(self, memory, terms, left):
        return Choice(2 if memory.n == 0 else 0, "" if memory.n == 0 else "seen enough")

    def fold(self, memory, terms, answers):
        return Memory(memory.n + 1)
"""


def test_several_kinds_of_releases_whose_number_is_chosen_need_one_order_and_leave_its_rest(
    tmp_path: Path,
) -> None:
    """With a filter of privacy losses they reached 1.28 times the stated delta."""
    rows = saved(tmp_path, "0.csv", plain())
    (tmp_path / "looks.py").write_text(LOOKS)
    own = ('method={name="looks:Looks"}', "budget.rounds=4", "privacy.epsilon=9.0")
    with pytest.raises(StudyError, match="fix a Rényi order in advance"):
        run(tmp_path, "pld", rows, *own, f"privacy.noise_multiplier={SIGMA}")
    order = 'privacy.accountant="rdp@8"'
    first = run(tmp_path, "one", rows, *own, order, f"privacy.noise_multiplier={3 * SIGMA}")
    assert 0.0 < first.spent < 9.0 == first.epsilon
    assert verify(tmp_path / "kept").epsilon == pytest.approx(9.0, rel=1e-4)


def test_nobody_else_uses_the_records_of_a_run_that_chooses_by_looking(tmp_path: Path) -> None:
    rows = saved(tmp_path, "0.csv", plain())
    quiet = lambda going: None  # noqa: E731

    class Stopped(BaseException):
        """As a kill of the process."""

    def stopped(row: object) -> None:
        raise Stopped

    for name, steps, later in (("one", ALI, DP_SGD), ("two", DP_SGD, ALI)):
        own = study(tmp_path, SYNCHRONOUS, rows, (*steps, f"privacy.noise_multiplier={SIGMA}"))
        with pytest.raises(Stopped):
            session.begin(own, tmp_path / name, stopped, quiet)
        with pytest.raises(StudyError, match="has not ended and uses the same records"):
            run(
                tmp_path,
                "late",
                rows,
                *later,
                "privacy.epsilon=50.0",
                "privacy.noise_multiplier=5.0",
            )
        session.resume(tmp_path / name, lambda row: None, quiet)


def test_the_folder_of_a_run_is_no_ledger_of_the_data(tmp_path: Path) -> None:
    """What that run has spent would not count, and the key would stand where others see it."""
    file, kept = saved(tmp_path, "one.csv", plain()), tmp_path / "kept"
    alone = study(tmp_path, SYNCHRONOUS, file, DP_SGD).with_privacy({"ledger": "run"})
    session.begin(alone, kept, lambda row: None, lambda going: None)
    before = (kept / "ledger.sqlite").read_bytes()
    with pytest.raises(LedgerError, match="this is the ledger of one run"):
        run(tmp_path, "two", file, *DP_SGD)
    assert (kept / "ledger.sqlite").read_bytes() == before


def test_examples_then_whole_clients(tmp_path: Path) -> None:
    file = saved(tmp_path, "one.csv", pl.concat([plain(0), plain(1), plain(2)]))
    run(tmp_path, "one", file, *DP_SGD)
    with pytest.raises(BudgetExceeded, match=r"records of a whole client were in releases of"):
        run(tmp_path, "two", file, *CLIENTS, "privacy.sampling_rate=1.0")


def test_whole_clients_then_examples(tmp_path: Path) -> None:
    file = saved(tmp_path, "one.csv", plain())
    first = run(tmp_path, "one", file, *CLIENTS, "privacy.sampling_rate=1.0")
    second = run(tmp_path, "two", file, *DP_SGD, "seed=4")
    step = PoissonSampled(sampling_rate=RATE, event=Gaussian(noise_multiplier=SIGMA))
    halved = Gaussian(noise_multiplier=1.5)
    found = accountant("pld").epsilon(
        [(PoissonSampled(sampling_rate=1.0, event=halved), 2), (step, 3)], DELTA
    )
    assert second.epsilon == pytest.approx(found)
    assert first.epsilon < second.epsilon
    third = run(
        tmp_path, "three", file, *CLIENTS, "privacy.sampling_rate=1.0", "privacy.epsilon=inf"
    )
    assert math.isinf(third.epsilon)  # all records of a client, as one group


ARRIVALS = (
    "budget.updates=12",
    "privacy.noise_multiplier=3.0",
    'privacy.accountant="rdp"',
    "method.batch=20",
)
RAW_ARRIVALS = ('privacy={unit="none"}', "budget.updates=12")


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (SYNCHRONOUS, RAW),
        (ASYNCHRONOUS, ('method={name="asgd", batch=20}', *RAW_ARRIVALS)),
        (ASYNCHRONOUS, ('method={name="csgd", batch=20}', *RAW_ARRIVALS)),
    ],
    ids=["fedavg", "asgd", "csgd"],
)
def test_raw_releases_are_known_to_every_later_run(
    tmp_path: Path, text: str, changes: tuple[str, ...]
) -> None:
    file = saved(tmp_path, "one.csv", plain())
    assert math.isinf(run(tmp_path, "raw", file, *changes, text=text).epsilon)
    for name, later, told in (
        ("sgd", SYNCHRONOUS, DP_SGD),
        ("whole", SYNCHRONOUS, CLIENTS),
        ("audp", ASYNCHRONOUS, ('method={name="audp", batch=20}', *ARRIVALS)),
    ):
        with pytest.raises(BudgetExceeded, match=r"before in a way that no epsilon bounds"):
            run(tmp_path, name, file, *told, "seed=3", text=later)
        assert not (tmp_path / name).exists()
    assert math.isinf(run(tmp_path, "again", file, *changes, text=text).epsilon)


def test_arrivals_and_rounds_add_up(tmp_path: Path) -> None:
    file = saved(tmp_path, "one.csv", plain())
    alone = run(tmp_path, "one", file, *DP_SGD)
    both = run(
        tmp_path, "two", file, 'method={name="audp", batch=20}', *ARRIVALS, text=ASYNCHRONOUS
    )
    other = tmp_path / "other"
    other.mkdir()
    without = run(
        other,
        "two",
        saved(other, "one.csv", plain()),
        'method={name="audp", batch=20}',
        *ARRIVALS,
        text=ASYNCHRONOUS,
    )
    assert both.epsilon > max(without.epsilon, alone.epsilon)


def test_a_person_has_one_budget_for_all_rows(tmp_path: Path) -> None:
    """Each person has two rows, which lie at one client."""
    file = saved(tmp_path, "one.csv", table())
    told = (
        *DP_SGD,
        f'data={{file="{file}", clients=3, person="who", person_rows=2}}',
        "privacy.epsilon=200",
        'privacy.accountant="rdp"',
    )
    first = run(tmp_path, "one", file, *told)
    assert first.epsilon > 2 * epsilon(3)
    second = run(tmp_path, "two", file, *told, "seed=3")
    assert second.epsilon > first.epsilon
    own = run(tmp_path / "one", "alone", file, *told, 'privacy.ledger="run"')
    assert own.epsilon < first.epsilon * 1.5


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_nobody_is_renamed_by_somebody_elses_name(tmp_path: Path, ending: str) -> None:
    """One fraction, one long number or one word makes a column of whole numbers another type; in
    Parquet, a column of fractions is refused.
    """
    start = 2**53 + 1 if ending == "csv" else 1
    others = list(range(start, start + ROWS - 1))
    spent: list[float] = []
    for name, first in (("whole", 0), ("fraction", "0.5"), ("word", "x")):
        file = tmp_path / f"{name}.{ending}"
        if ending == "csv":
            who = pl.Series([str(first), *map(str, others)])
            table(len(spent)).with_columns(who=who).write_csv(file)
        else:
            kind = {int: pl.Int64, str: pl.String}[type(first)]
            who = pl.Series([first, *others], strict=False, dtype=kind)
            table(len(spent)).with_columns(who=who).write_parquet(file)
        told = (*DP_SGD, f'data={{file="{file}", clients=3, person="who", person_rows=1}}')
        spent.append(run(tmp_path, name, file, *told).epsilon)
    assert spent == sorted(set(spent))


def test_what_data_person_cannot_be_is_said(tmp_path: Path) -> None:
    file = saved(tmp_path, "one.csv", table())
    for changes, message in (
        (
            (f'data={{file="{file}", clients=3, person="whom", person_rows=2}}',),
            r"no column 'whom' \(data.person\)",
        ),
        (
            ('data={name="digits", clients=3, person="who", person_rows=1}',),
            "data.person: 'digits' names no persons",
        ),
        (
            (f'data={{file="{file}", clients=3, person="label", person_rows=1}}',),
            "cannot be both the label and the person",
        ),
    ):
        with pytest.raises(SordinoError, match=message):
            run(tmp_path, "one", file, *DP_SGD, *changes)


def test_a_finished_run_says_its_end_again_and_charges_nothing(tmp_path: Path) -> None:
    file = saved(tmp_path, "one.csv", plain())
    first = run(tmp_path, "one", file, *DP_SGD)
    again = session.resume(tmp_path / "one", lambda _: None, lambda _: None)
    assert again.epsilon == first.epsilon
    assert run(tmp_path, "two", file, *DP_SGD).epsilon == epsilon(6)


@pytest.mark.parametrize(
    "done", [True, False], ids=["ended", "stopped between its seal and its result"]
)
def test_a_run_that_was_sealed_ends_as_it_did_whoever_used_its_records_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    file, write = saved(tmp_path, "one.csv", plain()), replace_file

    def stops(path: Path, *data: bytes, below: Path | None = None) -> None:
        if path == tmp_path / "one" / "run.json":
            raise KeyboardInterrupt
        write(path, *data, below=below)

    if not done:
        monkeypatch.setattr(session, "replace_file", stops)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, "one", file, *DP_SGD, 'privacy.entropy="system"')
        monkeypatch.undo()
    else:
        run(tmp_path, "one", file, *DP_SGD, 'privacy.entropy="system"')
    run(tmp_path, "two", file, *DP_SGD)
    for _ in range(2):
        again = session.resume(tmp_path / "one", lambda _: None, lambda _: None)
        assert again.epsilon == again.spent == epsilon(3)
        assert verify(tmp_path / "one").problems == []
        assert (tmp_path / "one" / KEY).read_bytes() == ENDED
    assert session.resume(tmp_path / "two", lambda _: None, lambda _: None).epsilon == epsilon(6)
    about = json.loads((tmp_path / "one" / "run.json").read_text())
    for change in ({"spent": [0.1] * 3}, {"spent": ["x"]}, {"spent": 3, "epsilon": 0.1}):
        (tmp_path / "one" / "run.json").write_text(
            json.dumps({**about, "result": {**about["result"], **change}})
        )
        assert session.resume(tmp_path / "one", lambda _: None, lambda _: None).epsilon == epsilon(
            3
        )
        assert verify(tmp_path / "one").problems == []


STREAM = (
    "data={file='FILE', label='label', classes=['0','1'], parties=2, stream='file', "
    "parts={kind='columns', groups=[['f0','f1'],['f2','f3']]}}",
    'model.name="linear"',
    'method={name="dlr", learning_rate=0.01, length=1, alpha=0.95, activation="full"}',
    'privacy={unit="label", epsilon=2.0, label_epsilon=1.0, delta=1e-6}',
)


def streamed(folder: Path, name: str, frame: pl.DataFrame, *changes: str) -> session.Outcome:
    file = saved(folder, f"{name}.csv", frame)
    told = [each.replace("FILE", str(file)) for each in STREAM]
    path = folder / "stream.toml"
    path.write_text(VERTICAL)
    wanted = studies.read(
        path,
        [*told, f"budget.events={len(frame)}", *changes, f'privacy.ledger="{folder / "kept"}"'],
    )
    return session.begin(wanted, folder / name, lambda told: None, lambda told: None)


def test_a_stream_whose_labels_are_spent_says_so(tmp_path: Path) -> None:
    """Raw features of the same run are promised nothing, and are not what the budget lacks."""
    streamed(tmp_path, "one", plain())
    streamed(tmp_path, "two", plain())
    with pytest.raises(BudgetExceeded, match=r"The labels have spent epsilon 2 of 2 before: use"):
        streamed(tmp_path, "three", plain())


def test_no_set_is_shown_below_what_its_records_have_spent_in_all_runs(tmp_path: Path) -> None:
    """Two runs divide the same rows differently: what was charged on each set is half of what the
    rows in it have spent.
    """
    file = saved(tmp_path, "one.csv", plain())
    run(tmp_path, "one", file, *DP_SGD)
    run(tmp_path, "two", file, *DP_SGD, "seed=3")
    found = verify(tmp_path / "kept")
    assert found.epsilon == pytest.approx(epsilon(6))
    for place in (tmp_path / "kept", tmp_path / "one", tmp_path / "two"):
        (kept,) = verify(place).ledgers
        assert [unit.epsilon for unit in kept.units] == [pytest.approx(epsilon(6))] * 6
        (kept,) = priced(place, 1e-4, "rdp")
        step = PoissonSampled(sampling_rate=RATE, event=Gaussian(noise_multiplier=SIGMA))
        assert [unit.epsilon for unit in kept.units] == [
            pytest.approx(accountant("rdp").epsilon([(step, 6)], 1e-4))
        ] * 6
    assert verify(tmp_path / "one").problems == verify(tmp_path / "two").problems == []


def test_a_run_that_was_stopped_is_priced_by_its_records(tmp_path: Path) -> None:
    file = saved(tmp_path, "one.csv", plain())
    run(tmp_path, "one", file, *DP_SGD)

    def stop(row: object) -> None:
        raise KeyboardInterrupt

    def quiet(told: object) -> None:
        """Show nothing."""

    with pytest.raises(KeyboardInterrupt):
        session.begin(
            study(tmp_path, SYNCHRONOUS, file, (*DP_SGD, "seed=3")), tmp_path / "two", stop, quiet
        )
    found = verify(tmp_path / "two")
    assert found.sealed is False
    assert found.problems == []
    assert (found.epsilon or 0.0) >= epsilon(4) - 1e-9


def test_persons_are_not_shown_at_the_price_of_a_row(tmp_path: Path) -> None:
    """Each person has two rows; what was charged on a set is the price of one."""
    file = saved(tmp_path, "one.csv", table())
    told = (
        *DP_SGD,
        f'data={{file="{file}", clients=1, person="who", person_rows=2}}',
        "privacy.epsilon=200",
        'privacy.accountant="rdp"',
    )
    alone = run(tmp_path, "one", file, *told)
    assert verify(tmp_path / "kept").epsilon == pytest.approx(alone.epsilon)
    assert alone.epsilon > 1.5 * epsilon(3)


@pytest.mark.parametrize("kind", ["test", "validation", "client_validation"])
def test_rows_that_were_declared_public_are_promised_nothing_later(
    tmp_path: Path, kind: str
) -> None:
    """A run that sets nothing aside, or other rows, trains on some that models were measured on
    exactly.
    """
    file = saved(tmp_path, "one.csv", plain())
    said = {
        "test": 'data.test="public share"',
        "validation": "data.validation=20",
        "client_validation": "data.client_validation=0.2",
    }[kind]
    first = run(tmp_path, "one", file, *DP_SGD, said)
    assert first.epsilon == pytest.approx(epsilon(3))
    assert verify(tmp_path / "one").problems == []
    with pytest.raises(BudgetExceeded, match=r"before in a way that no epsilon bounds: .*public"):
        run(tmp_path, "two", file, *DP_SGD, "seed=3")
    again = run(tmp_path, "three", file, *DP_SGD, said)  # the same rows are set aside
    assert again.epsilon == pytest.approx(epsilon(6))
    assert (
        session.resume(tmp_path / "three", lambda _: None, lambda _: None).epsilon == again.epsilon
    )


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_rows_of_a_test_file_are_promised_nothing_later(tmp_path: Path, kind: str) -> None:
    """They were declared public in one run, and another would train on them."""
    rows = plain()
    trained, tested = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    if kind == "csv":
        file, other = saved(tmp_path, "one.csv", trained), saved(tmp_path, "two.csv", tested)
        run(tmp_path, "one", file, *DP_SGD, f'data.test_file="{other}"')
    else:
        halves: dict[str, Any] = {}
        for suffix, part in (("", trained), ("_test", tested)):
            halves |= {
                f"x{suffix}": part.drop("label").to_numpy(),
                f"y{suffix}": part["label"].to_numpy(),
            }
        file, other = tmp_path / "one.npz", tmp_path / "two.npz"
        np.savez(file, **halves)
        np.savez(other, x=halves["x_test"], y=halves["y_test"])
        run(tmp_path, "one", file, *DP_SGD, 'data.test="file"')
    assert verify(tmp_path / "one").problems == []
    with pytest.raises(BudgetExceeded, match=r"before in a way that no epsilon bounds: .*public"):
        run(tmp_path, "two", other, *DP_SGD)


def open_sets(folder: Path) -> list[str]:
    """The runs that hold sets of a ledger of the data open."""
    with closing(sqlite3.connect(folder / "kept" / "ledger.sqlite")) as ledger:
        found = ledger.execute("SELECT runs FROM record_sets").fetchall()
    return [name for (names,) in found for name in json.loads(names)]


@pytest.mark.parametrize("also", [False, True])
def test_a_run_that_cannot_be_begun_leaves_no_set_open_or_says_how_to_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, also: bool
) -> None:
    """Whether or not the ledger can be written when the folder cannot."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def broken(*_: object) -> bool:
        raise LedgerError("disk is full")

    told: list[str] = []
    with monkeypatch.context() as patched, noticed(told.append):
        patched.setattr("sordino.core.files.take", full)
        if also:
            patched.setattr("sordino.core.run.session.close_sets", broken)
        with pytest.raises(OSError, match="No space"):
            run(tmp_path, "one", saved(tmp_path, "one.csv", plain()), *DP_SGD)
    assert not (tmp_path / "one").exists()
    warnings = [text for text in told if "ledger end" in text]
    if also:
        command = warnings[0].split("`sordino ")[1].rstrip("`").split()
        assert set(open_sets(tmp_path)) == {command[-1]}
        assert CliRunner().invoke(app, command).exit_code == 0
    else:
        assert warnings == []
    assert open_sets(tmp_path) == []


def test_a_run_that_never_began_can_be_ended(tmp_path: Path) -> None:
    """One that was killed while it prepared: it holds sets, and there is no note of it, nor a
    folder that names it. `ledger show` does.
    """
    rows = Records("client:0", "sample", np.array([[1, 2]], np.uint64))
    with LedgerSession.for_data(tmp_path / "kept", "0123456789abcdef", [rows]):
        pass
    assert open_sets(tmp_path) == ["0123456789abcdef"]
    shows = ["ledger", "show", str(tmp_path / "kept")]
    said = " ".join(CliRunner().invoke(app, shows).stdout.split())
    assert said.count("has not ended") == 1
    command = said.split("end it: sordino ")[1].split()
    assert command == ["ledger", "end", str(tmp_path / "kept"), "0123456789abcdef"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert open_sets(tmp_path) == []
    assert "has not ended" not in CliRunner().invoke(app, shows).stdout
    assert isinstance(CliRunner().invoke(app, command).exception, StudyError)


def test_public_rows_that_look_like_training_rows_are_refused_before_anything_is_booked(
    tmp_path: Path,
) -> None:
    file = saved(tmp_path, "one.csv", pl.concat([plain(), plain()]))
    # not how many they are, which would say more about private rows
    said = r"one.csv: rows that train, or test at a price, look the same as rows that are declared"
    with pytest.raises(StudyError, match=said):
        run(tmp_path, "one", file, *DP_SGD, 'data.test="public share"')
    assert not (tmp_path / "kept").exists()
    assert run(tmp_path, "two", file, *DP_SGD).epsilon == pytest.approx(epsilon(3))


def test_a_person_does_not_train_and_stand_in_a_public_test_file(tmp_path: Path) -> None:
    """Only a ledger of the data noticed it; the page promised epsilon for all rows of a person."""
    data = 'data={file="%s", test="file", test_file="%s", clients=3, person="who", person_rows=2}'
    earlier, own = saved(tmp_path, "earlier.csv", table()), 'privacy.ledger="run"'
    for later, refused in ((table().tail(2), True), (table().with_columns(who=pl.lit("q")), False)):
        file = saved(tmp_path, "later.csv", later)
        path = tmp_path / "study.toml"
        path.write_text(SYNCHRONOUS)
        changes = [data % (earlier, file), 'model.name="logistic"', "privacy.epsilon=20.0", own]
        asked = studies.read(path, [*changes, *DP_SGD])
        if refused:
            with pytest.raises(StudyError, match=r"about the same people .*nothing would protect"):
                regimes.plan(asked)
        else:
            assert regimes.plan(asked)[0].epsilon > 0
    x, y, who = (table().drop("label", "who").to_numpy(), np.arange(ROWS) % 2, table()["who"])
    names = who.to_numpy().astype("U4")  # the rows of the test half name nobody
    np.savez(tmp_path / "all.npz", x=x, y=y, who=names, x_test=x[:9], y_test=y[:9])
    both = f'data={{file="{tmp_path / "all.npz"}", test="file", clients=3, person="who"}}'
    asked = studies.read(path, [both, *changes[1:], "data.person_rows=2", *DP_SGD])
    with pytest.raises(StudyError, match=r"name data.person in public rows, too"):
        regimes.plan(asked)


def people(at_several: bool) -> pl.DataFrame:
    """Sixty people of two rows each, or ten rows that share a person with another client's rows."""
    frame = plain()
    client = np.arange(ROWS) % 3
    person = np.arange(ROWS) // 6 * 3 + (client if not at_several else 0)
    return frame.with_columns(
        who=pl.Series([f"p{i}" for i in person]), where=pl.Series([f"c{i}" for i in client])
    )


SHARED = (
    'data={file="FILE", clients=3, person="who", person_rows=2, client_column="where", '
    'partition="column"}',
    "privacy.accountant=rdp",
)
PLANNED = {
    "local steps": (SYNCHRONOUS, (*DP_SGD, "privacy.epsilon=30.0", "budget.rounds=30")),
    "a schedule": (
        SYNCHRONOUS,
        (
            'method={name="dynamic-dp-sgd", tau=1, noise_decay=1.5}',
            *DP_SGD[1:],
            "privacy.epsilon=30.0",
            "budget.rounds=8",
        ),
    ),
    "rounds": (SYNCHRONOUS, (*CLIENTS, "privacy.noise_multiplier=400.0", "privacy.epsilon=20.0")),
    "gradients": (
        ASYNCHRONOUS,
        (
            'method={name="audp", batch=8}',
            'privacy={unit="sample", epsilon=30.0, delta=1e-3, noise_multiplier=2.0}',
            "budget={updates=60}",
        ),
    ),
}


@pytest.mark.parametrize("several", [False, True], ids=["at one client", "at several"])
@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_counts_people_as_the_run_does(tmp_path: Path, name: str, several: bool) -> None:
    text, changes = PLANNED[name]
    file = saved(tmp_path, "people.csv", people(several))
    asked = [each.replace("FILE", str(file)) for each in (*changes, *SHARED)]
    for before in (False, True):
        if before:
            run(
                tmp_path,
                "before",
                file,
                *DP_SGD,
                *(each.replace("FILE", str(file)) for each in SHARED),
            )
        wanted = regimes.calibrated(study(tmp_path, text, file, asked))
        planned, _ = regimes.plan(wanted)
        built = regimes.build(wanted, tmp_path / "draft", "draft", None)
        found = built.simulation.affordable_steps
        built.simulation.ledgers.finish()
        built.simulation.ledgers.close()
        assert found is not None
        most = 10**9 if planned.steps is None else planned.steps
        told = [min(most, most if each.steps is None else each.steps) for each in planned.left]
        ran = [min(most, steps) for steps in found]
        assert ran == (told if len(ran) == len(told) else [min(told)])  # a round is all clients'


def test_what_people_can_pay_for_is_said_by_the_plan_and_by_the_refusal(tmp_path: Path) -> None:
    file = saved(tmp_path, "people.csv", people(True))
    asked = [each.replace("FILE", str(file)) for each in (*DP_SGD, *SHARED)]
    asked += ["privacy.epsilon=3.0", "data.person_rows=6", "privacy.noise_multiplier=2.0"]
    planned, _ = regimes.plan(study(tmp_path, SYNCHRONOUS, file, asked))
    cause = "data.person_rows = 6: up to 6 examples of one person share one budget"
    (said,) = [each for each in planned.warnings if cause in each]
    assert "it pays for 0 of" in said
    assert "keep fewer rows of each person (data.person_rows)" in said
    with pytest.raises(BudgetExceeded, match=cause) as refused:
        run(tmp_path, "one", file, *asked)
    assert "keep fewer rows of each person" in str(refused.value)
    assert not (tmp_path / "one").exists()
