"""Promises to records that are used by several names: of clients, runs, commands and charges."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import sordino as so
from federations import laid
from sordino.base.errors import BudgetExceeded, DataError, LedgerError, StudyError
from sordino.cli import app
from sordino.comparison import runner
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.run import session
from sordino.core.run.verify import verify
from sordino.core.statements import assumptions
from sordino.network.kit import Agreed
from sordino.privacy import Gaussian, LedgerSession, NonPrivate, accountant
from sordino.privacy import chain as links
from sordino.privacy.formats import NEWEST
from sordino.privacy.records import Prices
from sordino.regimes.asynchronous.study import TEMPLATE as ASYNCHRONOUS
from sordino.regimes.synchronous.study import TEMPLATE as SYNCHRONOUS
from sordino.tune import private

ROWS = 60
SYNC = 'method={name="dp-sgd", tau=1}'
ARRIVALS = 'method={name="audp", batch=6}'


def rows(seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {f"f{j}": rng.normal(size=ROWS).astype(np.float32) for j in range(4)}
    return pl.DataFrame({**columns, "label": rng.integers(0, 2, ROWS)})


def at_two(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    return pl.concat(
        [first.with_columns(where=pl.lit("a")), second.with_columns(where=pl.lit("b"))]
    )


def saved(path: Path, frame: pl.DataFrame) -> Path:
    frame.write_csv(path)
    return path


def read(folder: Path, data: str, *changes: str, text: str = SYNCHRONOUS) -> Any:
    path = folder / "study.toml"
    path.write_text(text)
    kept = f'privacy.ledger="{folder / "kept"}"'
    return studies.read(path, [f"data={{{data}}}", 'model.name="logistic"', *changes, kept])


def played(study: Any, out: Path) -> session.Outcome:
    return session.begin(study, out, lambda _: None, lambda _: None)


def result(folder: Path) -> Any:
    return json.loads((folder / "run.json").read_text())["result"]


def personal(tmp_path: Path, second: pl.DataFrame, regime: str, epsilons: str, *more: str) -> Any:
    """Two clients with epsilons of their own, whose data may be the same."""
    file = saved(tmp_path / "two.csv", at_two(rows(), second))
    privacy = f'privacy={{unit="sample", epsilon=8.0, epsilons={epsilons}, delta=1e-3'
    return read(
        tmp_path,
        f'file="{file}", clients=2, client_column="where", partition="column"',
        regime,
        privacy + (", sampling_rate=0.2}" if regime != ARRIVALS else "}"),
        *more,
        text=ASYNCHRONOUS if regime == ARRIVALS else SYNCHRONOUS,
    )


def plenty(_: LedgerSession, events: Any, __: Any) -> dict[str, int]:
    return dict.fromkeys(events, 40)


ALL = rows()
SOME = pl.concat([rows().head(20), rows(1).tail(40)])
HURRIED = ('method={name="dp-sgd", tau=20}', "budget.rounds=1")


@pytest.mark.parametrize("second", [ALL, SOME], ids=["all", "some"])
def test_the_same_rows_at_two_clients_keep_the_lesser_epsilon(
    tmp_path: Path, second: pl.DataFrame
) -> None:
    """Client 0 spent 5.6 of its 1, and the run was done, sealed and verified."""
    study = personal(tmp_path, second, HURRIED[0], "[1.0, 8.0]", HURRIED[1])
    planned, _ = regimes.plan(study)
    assert any("each has the least epsilon of those who hold it" in one for one in planned.warnings)
    assert planned.left[0].steps == 0
    with pytest.raises(BudgetExceeded, match="each has the least epsilon of those who hold it"):
        played(study, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("second", [ALL, SOME], ids=["all", "some"])
@pytest.mark.parametrize("regime", [SYNC, ARRIVALS])
def test_a_run_over_shared_rows_ends_in_order_and_keeps_what_it_promised(
    tmp_path: Path, second: pl.DataFrame, regime: str
) -> None:
    limit = "budget.rounds=30" if regime == SYNC else "budget={updates=200}"
    study = personal(tmp_path, second, regime, "[4.0, 5.0]", limit)
    planned, _ = regimes.plan(study)
    outcome = played(study, tmp_path / "run")
    assert 0 < max(result(tmp_path / "run")["spent"]) <= 4.0
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [min(one.steps or 10**9, planned.steps or 10**9) for one in planned.left] == [
        min(one, planned.steps or 10**9) for one in told["payable"]
    ]
    assert "budget" in outcome.why
    for place in ("run", "kept"):  # the ledger showed each client's own charges alone
        verdict = verify(tmp_path / place)
        assert verdict.problems == []
        shown = sorted(unit.epsilon or 0.0 for unit in verdict.ledgers[0].units)
        assert shown == pytest.approx(result(tmp_path / "run")["spent"])


def test_a_run_whose_promise_was_exceeded_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As versions before admitted it."""
    monkeypatch.setattr(Prices, "admit", lambda *_: lambda _: None)
    monkeypatch.setattr(LedgerSession, "remaining", plenty)
    study = personal(tmp_path, ALL, HURRIED[0], "[1.0, 8.0]", HURRIED[1])
    played(study, tmp_path / "run")
    (problem,) = verify(tmp_path / "run").problems
    assert "client:0 was promised an epsilon of at most 1, and its records had spent" in problem


def test_a_promise_binds_other_runs_until_its_run_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs at once over one ledger, one of which promises its records less."""
    file = saved(tmp_path / "one.csv", rows())
    noise = ("privacy.noise_multiplier=2.0", "privacy.sampling_rate=0.2")

    def of(epsilon: float, rounds: int) -> Any:
        asked = (SYNC, f"privacy.epsilon={epsilon}", f"budget.rounds={rounds}")
        return read(tmp_path, f'file="{file}", clients=2', *asked, *noise)

    with monkeypatch.context() as patch:  # stopped before its first round
        patch.setattr(session, "_play", lambda *_, **__: None)
        session.begin(of(1.0, 3), tmp_path / "less", lambda _: None, lambda _: None)
    name = json.loads((tmp_path / "less" / "run.json").read_text())["run"]
    more = of(20.0, 40)
    outcome = played(more, tmp_path / "more")
    assert outcome.epsilon <= 1.0
    with monkeypatch.context() as patch:
        patch.setattr(LedgerSession, "remaining", plenty)
        with pytest.raises(BudgetExceeded, match="sordino ledger end"):
            played(more, tmp_path / "again")
    raw = read(
        tmp_path,
        f'file="{file}", clients=1',
        'method={name="fedavg"}',
        'privacy={unit="none", sampling_rate=0.2}',
    )
    with pytest.raises(BudgetExceeded, match=f"Run {name} promised this"):
        played(raw, tmp_path / "raw")
    ended = CliRunner().invoke(app, ["ledger", "end", str(tmp_path / "kept"), name])
    assert ended.exit_code == 0, ended.output
    again = session.resume(tmp_path / "again", lambda _: None, lambda _: None)
    assert 1.0 < again.epsilon <= 20.0


def test_a_row_at_two_clients_has_one_budget_in_later_runs_on_each(tmp_path: Path) -> None:
    """The run over both is not over: what later ones are charged adds up for the row at both."""

    def stop(row: object) -> None:
        raise KeyboardInterrupt

    both = at_two(rows(), pl.concat([rows(1).head(ROWS - 1), rows().head(1)]))
    same = [SYNC, "budget.rounds=9", "privacy.epsilon=1.0", "privacy.noise_multiplier=2.0"]
    same += ["privacy.delta=1e-3", "privacy.sampling_rate=0.2"]
    for name, frame in (("both", both), ("north", both.head(ROWS)), ("south", both.tail(ROWS))):
        file, clients = saved(tmp_path / f"{name}.csv", frame), 2 if name == "both" else 1
        column = f'file="{file}", clients={clients}, client_column="where", partition="column"'
        with pytest.raises(KeyboardInterrupt):
            session.begin(read(tmp_path, column, *same), tmp_path / name, stop, lambda _: None)
    for name in ("north", "south"):
        with suppress(BudgetExceeded):
            session.resume(tmp_path / name, lambda _: None, lambda _: None)
    entries = so.Ledger.open(tmp_path / "kept").entries()
    steps = sum(entry.count for entry in entries) - 1  # of the first run one at each client
    assert accountant("pld").epsilon([(entries[0].event, steps)], 1e-3) <= 1.0


def a_set(kept: Path) -> str:
    with so.Ledger.open(kept) as ledger:
        return next(unit for unit in ledger.units if unit.startswith("samples "))


LITTLE = ("privacy.epsilon=3.0", "privacy.noise_multiplier=4.0", "privacy.sampling_rate=0.2")


@pytest.mark.parametrize("ended", [True, False])
def test_nobody_charges_records_by_the_name_of_their_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    file = saved(tmp_path / "one.csv", rows())
    study = read(tmp_path, f'file="{file}", clients=1', SYNC, *LITTLE, "budget.rounds=2")
    if not ended:
        monkeypatch.setattr(session, "_play", lambda *_, **__: None)
    session.begin(study, tmp_path / "run", lambda _: None, lambda _: None)
    name = a_set(tmp_path / "kept")
    path = tmp_path / "kept" / "ledger.sqlite"
    with so.Ledger.open(path, readonly=False) as ledger:
        before = ledger.epsilon(1e-3, name)
        with pytest.raises(
            LedgerError, match=r"set of records (that was closed|, which runs)|which"
        ):
            ledger.charge(Gaussian(0.5), epsilon=50.0, delta=1e-3, unit=name)
        assert ledger.epsilon(1e-3, name) == before
        assert len(ledger.entries(name)) == (2 if ended else 0)


def charged_by_its_name(path: Path, unit: str) -> None:
    """A charge on a set as versions before wrote it for who asked."""
    with so.Ledger.open(path) as ledger:
        (entry,) = ledger.entries()[-1:]
    with closing(sqlite3.connect(path)) as db, db:
        seq, prev = max(
            db.execute("SELECT seq, digest FROM entries UNION SELECT seq, digest FROM notes")
        )
        about: dict[str, Any] = {"unit": unit, "event": Gaussian(0.5), "key": "charge/ab"}
        charge = links.Charge(**about, count=1, why="", method="", round=0)
        row = NEWEST.write(charge, seq + 1, prev)
        db.execute(f"INSERT INTO entries VALUES ({', '.join('?' * len(row))})", row)
    assert entry.unit == unit


@pytest.mark.parametrize("clients", [1, 2])
def test_what_was_charged_by_a_name_is_found_and_counts_for_every_record(
    tmp_path: Path, clients: int
) -> None:
    """A run over the same rows certified 0.99 after 16 had been booked on their set."""
    file = saved(tmp_path / "one.csv", rows())
    study = read(tmp_path, f'file="{file}", clients=1', SYNC, *LITTLE, "budget.rounds=2")
    played(study, tmp_path / "run")
    path = tmp_path / "kept" / "ledger.sqlite"
    name = a_set(path.parent)
    charged_by_its_name(path, name)
    for place in (path.parent, tmp_path / "run"):
        assert any(
            f"charges {name}, a set of records, and no run made it" in one
            for one in verify(place).problems
        )
    again = read(tmp_path, f'file="{file}", clients={clients}', SYNC, *LITTLE, "budget.rounds=2")
    with pytest.raises(BudgetExceeded, match="does not pay for a single local step"):
        played(again, tmp_path / "two")
    wide = read(
        tmp_path,
        f'file="{file}", clients={clients}',
        SYNC,
        *LITTLE[1:],
        "privacy.epsilon=100.0",
        "budget.rounds=2",
    )
    outcome = played(wide, tmp_path / "three")
    with so.Ledger.open(path) as ledger:
        assert outcome.epsilon > 7.0  # 0.9 without the charge
        assert ledger.epsilon(1e-3) >= outcome.epsilon
    assert verify(tmp_path / "three").problems == []


PERSONS = (SYNC, "privacy.epsilon=2.0", "privacy.noise_multiplier=2.0", "privacy.sampling_rate=0.1")


@pytest.mark.parametrize("regime", [SYNC, ARRIVALS])
def test_nothing_published_tells_how_many_rows_a_person_has(tmp_path: Path, regime: str) -> None:
    """Files that differ in whose rows eight are: 60 rounds and 0.373, or 1 and 2.168."""
    frame, found = rows(), []
    for name, who in (("single", np.arange(ROWS)), ("shared", np.maximum(np.arange(ROWS), 7))):
        folder = tmp_path / name
        folder.mkdir()
        file = saved(folder / "one.csv", frame.with_columns(who=pl.Series(who)))
        data = f'file="{file}", clients=2, person="who", partition={{kind="iid"}}'
        asked = (
            (*PERSONS, "budget.rounds=30")
            if regime == SYNC
            else (
                ARRIVALS,
                'privacy={unit="sample", epsilon=8.0, delta=1e-3, noise_multiplier=6.0}',
                "budget={updates=40}",
            )
        )
        text = SYNCHRONOUS if regime == SYNC else ASYNCHRONOUS
        with pytest.raises(StudyError, match="needs person_rows"):
            read(folder, data, *asked, text=text)
        study = read(folder, f"{data}, person_rows=1", *asked, text=text)
        planned, _ = regimes.plan(study)
        played(study, folder / "run")
        told = result(folder / "run")
        found.append((planned.warnings, planned.left[0].spent, told["epsilon"], told["why"]))
    # rows that are left out change the sizes, which are public; the price of a row is the same
    if regime == SYNC:
        assert found[0] == found[1]


def test_everybody_is_priced_at_the_most_rows_that_are_allowed(tmp_path: Path) -> None:
    frame, found = rows(), []
    for name, last in (("single", ROWS), ("shared", 8)):
        folder = tmp_path / name
        folder.mkdir()
        who = np.where(np.arange(ROWS) < last, np.arange(ROWS), np.arange(ROWS) // 4 * 4)
        file = saved(folder / "one.csv", frame.with_columns(who=pl.Series(who)))
        data = f'file="{file}", clients=1, person="who", person_rows=4'
        more = ("privacy.noise_multiplier=12.0", "budget.rounds=30")
        study = read(folder, data, *PERSONS, *more)
        planned, _ = regimes.plan(study)
        played(study, folder / "run")
        about = json.loads((folder / "run" / "run.json").read_text())
        found.append(
            (planned.warnings, about["payable"], about["result"]["spent"], about["warnings"])
        )
        with so.Ledger.open(folder / "run") as ledger:  # which does not say who is in which class
            told = ledger.epsilon(study.privacy.delta)
        assert told == pytest.approx(max(about["result"]["spent"]))
    assert found[0] == found[1]


def tuned(tmp_path: Path, patch: pytest.MonkeyPatch, *more: str) -> str:
    """What a tuning says until its first candidate would train."""

    def stop(*_: object) -> None:
        raise StudyError("here candidates train")

    patch.setattr(runner, "play_tasks", stop)
    asked = ["tune", str(tmp_path / "study.toml"), "--vary", "method.learning_rate=0.1,0.5"]
    asked += [
        "--workers",
        "1",
        "--out",
        str(tmp_path / "tuned.toml"),
        "--runs",
        str(tmp_path / "runs"),
    ]
    done = CliRunner().invoke(app, [*asked, *more])
    assert done.exit_code == 0 if "--plan" in more else "train" in str(done.exception)
    return " ".join(done.output.split())


@pytest.mark.parametrize("on", ["validation", "file"])
def test_a_ledger_of_the_data_hears_what_tuning_declares_public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: str
) -> None:
    file = saved(tmp_path / "one.csv", rows())
    data = f'file="{file}", clients=1'
    aside = f"{data}, validation=20, test='none'" if on == "validation" else data
    study = read(tmp_path, aside, SYNC, *LITTLE, "budget.rounds=1")
    (tmp_path / "study.toml").write_text(studies.write(study))
    copied = saved(tmp_path / "copy.csv", rows().sample(fraction=1.0, shuffle=True, seed=1))
    given = ("--on", "validation") if on == "validation" else ("--on", str(copied))
    more = () if on == "validation" else ("--declared-public",)
    tuned(tmp_path, monkeypatch, *given, *more, "--plan")
    assert not (tmp_path / "kept").exists()
    assert "records them as public" in tuned(tmp_path, monkeypatch, *given, *more)
    with so.Ledger.open(tmp_path / "kept") as ledger:
        (entry,) = ledger.entries()
    assert isinstance(entry.event, NonPrivate)
    all_rows = read(tmp_path, data, SYNC, *LITTLE, "budget.rounds=1")
    with pytest.raises(BudgetExceeded, match="declared public"):
        played(all_rows, tmp_path / "run")


def test_without_a_lasting_ledger_tuning_says_that_nothing_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved(tmp_path / "one.csv", rows())
    data = f"file=\"{file}\", clients=1, validation=20, test='none'"
    study = read(tmp_path, data, SYNC, *LITTLE, "budget.rounds=1")
    text = studies.write(study).replace(str(tmp_path / "kept"), "run")
    (tmp_path / "study.toml").write_text(text)
    assert "nothing lasting remembers it" in tuned(tmp_path, monkeypatch, "--on", "validation")


def test_a_site_is_priced_by_the_agreed_rows_of_a_person(tmp_path: Path) -> None:
    """Its own file is refused, and nothing is left to it to tell by how soon it stops."""
    kit, data = laid(tmp_path, "synchronous").sites[0]
    agreed = Agreed(kit)
    found = agreed.network
    with np.load(data) as held:
        x, y = held["x"], held["y"]
    for name, who in (("single", np.arange(len(x))), ("shared", np.arange(len(x)) // 3)):
        np.savez(tmp_path / f"{name}.npz", x=x, y=y, who=who)
    asked = agreed.study.data.model_copy(update={"person": "who", "person_rows": 2})
    study = agreed.study.model_copy(update={"data": asked})
    own = found.read(tmp_path / "single.npz", 0, study)
    assert len(own) == len(x)
    with pytest.raises(DataError, match="a person has more rows than the agreed data"):
        found.read(tmp_path / "shared.npz", 0, study)


ODD = re.compile(r"[0-9a-f]{8,}|\d{4}-\d\d-\d\dT[^\"]*|seconds\W+\d+")


def shown(folder: Path) -> list[list[str]]:
    """All that a run's own ledger and its record say, in any order of keys; but for digests, random
    names and dates.
    """
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE sql != ''")]
        found = [str(row) for name in names for row in db.execute(f"SELECT * FROM {name}")]
    about = json.loads((folder / "run.json").read_text())
    told = [*found, str(about["payable"]), str(about["result"])]
    plain = [ODD.sub("#", each.replace(str(folder.parent), "here")) for each in told]
    return [sorted(re.split("[,{}]", each)) for each in plain]


def at_three(folder: Path, *, same: bool) -> Path:
    """Persons at three clients; ``same`` has the features of one's row equal those of another's."""
    folder.mkdir()
    frame = rows().with_columns(
        who=pl.Series([f"p{i}" for i in range(ROWS)]),
        where=pl.Series([f"c{i % 3}" for i in range(ROWS)]),
    )
    if same:
        one, other = frame.row(2), list(frame.row(6))
        other[:4] = one[:4]
        frame = pl.concat(
            [frame[:6], pl.DataFrame([other], schema=frame.schema, orient="row"), frame[7:]]
        )
    return saved(folder / "rows.csv", frame)


@pytest.mark.parametrize("regime", [SYNC, ARRIVALS])
@pytest.mark.parametrize("lasting", [False, True], ids=["of the run", "of the data"])
def test_equal_rows_of_two_persons_show_nowhere(tmp_path: Path, regime: str, lasting: bool) -> None:
    """A client that planted a guess read from the run folder whether it was right."""
    found = []
    for name in ("apart", "same"):
        folder = tmp_path / name
        file = at_three(folder, same=name == "same")
        rate = ", sampling_rate=0.2" if regime == SYNC else ""
        study = read(
            folder,
            f'file="{file}", person="who", person_rows=1, clients=3, client_column="where", '
            'partition="column", classes=["0", "1"]',
            regime,
            'privacy={unit="sample", epsilon=8.0, epsilons=[1.0, 1.0, 8.0], delta=1e-3, '
            f'entropy="system"{rate}}}',
            "budget.rounds=4" if regime == SYNC else "budget={updates=40}",
            text=SYNCHRONOUS if regime == SYNC else ASYNCHRONOUS,
        )
        ledger = str(folder / "kept") if lasting else "run"
        study = study.model_copy(
            update={"privacy": study.privacy.model_copy(update={"ledger": ledger})}
        )
        planned, _ = regimes.plan(study)
        played(study, folder / "run")
        assert verify(folder / "run").problems == []
        about = json.loads((folder / "run" / "run.json").read_text())
        about["result"].pop("seconds")  # of this machine's clock
        told = [about["payable"], about["result"]] if lasting else shown(folder / "run")
        found.append([planned.warnings, planned.left, *told])
    assert found[0] == found[1]


def test_a_row_is_known_with_its_person_or_without(tmp_path: Path) -> None:
    """In whichever order runs come, also where the column of persons has gone from the file."""
    file = at_three(tmp_path / "data", same=True)
    plain = saved(tmp_path / "plain.csv", pl.read_csv(file).drop("who"))
    rest = 'clients=3, client_column="where", partition="column"'
    noise = ("privacy.noise_multiplier=2.0", "privacy.sampling_rate=0.2", "privacy.epsilon=30.0")
    asked = (SYNC, *noise, "budget.rounds=3", "privacy.accountant=rdp")
    for first in (True, False):
        folder = tmp_path / str(first)
        folder.mkdir()
        told = (f'file="{file}", {rest}, person="who", person_rows=1', f'file="{plain}", {rest}')
        named, bare = (read(folder, each, *asked) for each in told)
        before, later = (named, bare) if first else (bare, named)
        spent = [played(before, folder / name).epsilon for name in ("one", "two")]
        assert spent[0] < spent[1]
        for refused in (lambda: regimes.plan(later), lambda: played(later, folder / "three")):  # noqa: B023
            with pytest.raises(LedgerError, match="another folder, where"):
                refused()
        assert not (folder / "three").exists()


def test_a_plan_says_that_equal_rows_are_two_peoples(tmp_path: Path) -> None:
    """One person's row at two clients cost 5.9, and 3.7 was shown."""
    file = at_three(tmp_path / "data", same=False)
    data = f'file="{file}", clients=3, client_column="where", partition="column", '
    for person, said in (("", True), ('person="who", person_rows=1', False)):
        more = person or 'categories={who=["p0"]}, unknown="other"'
        study = read(tmp_path, data + more, SYNC, *LITTLE, "budget.rounds=1")
        planned, _ = regimes.plan(study)
        for each in (planned.warnings, assumptions(study)):
            assert said == any("for two people's" in one for one in each)


def twins(folder: Path, other: int | None) -> Path:
    """Rows at three clients of 20, 25 and 35, one of which looks like row ``other``."""
    folder.mkdir()
    frame = pl.concat([rows(), rows(1).head(20)])
    places = [index if index != 7 or other is None else other for index in range(len(frame))]
    where = pl.Series("where", np.repeat(["a", "b", "c"], [20, 25, 35]))
    saved(folder / "at three.csv", frame[places].with_columns(where))
    return saved(folder / "rows.csv", frame[places])


TWINS = 'classes=["0", "1"]'
AT_THREE = f'clients=3, client_column="where", partition="column", {TWINS}'
SHARE = f'clients=2, test="private share", test_share=0.4, {TWINS}'
PAID = 'privacy={unit="sample", epsilon=4.0, delta=1e-3, sampling_rate=0.2, entropy="system"'
STEPWISE = (SYNC, "budget.rounds=12", "execution.evaluate_every=1")


@pytest.mark.parametrize(
    ("data", "changes"),
    [
        (
            AT_THREE,
            (
                'method={name="mapa", batch=6}',
                'privacy={unit="sample", epsilon=2.0, delta=1e-3, entropy="system"}',
                "budget={updates=60}",
            ),
        ),
        (SHARE, (*STEPWISE, PAID + "}")),
        (SHARE, (*STEPWISE, PAID + ", evaluation_epsilon=1.5}")),
    ],
    ids=["mapa", "share", "share with its epsilon"],
)
def test_whether_two_rows_of_a_run_look_the_same_shows_nowhere(
    tmp_path: Path, data: str, changes: tuple[str, ...]
) -> None:
    """Payable [20, 10, 20], a third of the updates less, or a run that ended half-way said it."""
    found = []
    for other in (None, 30, 40, 50, 60):
        folder = tmp_path / str(other)
        file = twins(folder, other)
        text = ASYNCHRONOUS if data == AT_THREE else SYNCHRONOUS
        file = folder / "at three.csv" if data == AT_THREE else file
        study = read(folder, f'file="{file}", {data}', *changes, text=text)
        planned, _ = regimes.plan(study)
        outcome = played(study, folder / "run")
        assert verify(folder / "run").problems == []
        about = json.loads((folder / "run" / "run.json").read_text())
        log = (folder / "run" / "rounds.jsonl").read_text().splitlines()
        about["result"].pop("seconds")
        about["result"].pop("accuracy", None)  # has noise of its own
        with so.Ledger.open(folder / "kept") as ledger:
            spent = [ledger.epsilon(1e-3), sorted(ledger.epsilon(1e-3, u) for u in ledger.units)]
        told = about["payable"], about["result"], about["warnings"], len(log), outcome.why
        found.append([planned.warnings, planned.left, spent, *told])
    for each in found[1:]:
        assert each == found[0]


def test_a_choice_on_private_rows_does_not_tell_of_equal_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuning was refused before its first trial if a row of the test share looked like another."""
    monkeypatch.setattr(private, "drawn", lambda *_: 1)  # trial
    for other in (None, 30, 40, 50, 60):
        folder = tmp_path / str(other)
        file = twins(folder, other)
        paid = PAID.replace("4.0", "8.0") + ', accountant="rdp"}'
        study = read(folder, f'file="{file}", {SHARE}', SYNC, "budget.rounds=2", paid)
        (folder / "study.toml").write_text(studies.write(study))
        tuning = ["tune", str(folder / "study.toml"), "--on", "private"]
        more = ["--vary", "privacy.clip=0.5,1", "--out", str(folder / "tuned")]
        done = CliRunner().invoke(app, [*tuning, *more])
        assert done.exit_code == 0, done.output


def test_clients_with_the_same_rows_have_a_budget_each_in_this_run(tmp_path: Path) -> None:
    """Who knew all rows of a client but one, and guessed this one right, had the same set."""
    found = []
    for name, frame in (("apart", rows()), ("same", pl.concat([rows().head(1)] * ROWS))):
        folder = tmp_path / name
        folder.mkdir()
        file = saved(folder / "rows.csv", frame)
        study = read(
            folder, f'file="{file}", clients=2, {TWINS}', SYNC, PAID + "}", "budget.rounds=9"
        )
        planned, _ = regimes.plan(study)
        played(study, folder / "run")
        about = json.loads((folder / "run" / "run.json").read_text())
        about["result"].pop("seconds")
        found.append([planned.left, about["payable"], about["result"]])
        assert verify(folder / "run").problems == []
    assert found[0] == found[1]
