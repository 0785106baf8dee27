"""What models are measured on: rows of a user's own file are people, and public only where that was
said.
"""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sordino.base.errors import StudyError
from sordino.clients.division import federation
from sordino.clients.pricing import priced
from sordino.clients.study import HorizontalStudy
from sordino.core import regimes as build
from sordino.core import study as studies
from sordino.core.prepared import UNIT, PaidEvaluation
from sordino.core.run import session
from sordino.core.run.verify import verify
from sordino.core.statements import assumptions, guarantee
from sordino.data.sets import find
from sordino.privacy import Gaussian, Ledger, accountant
from sordino.report import write

STUDY = """
name = "Patients"
seed = 1

[data]
file = "FILE"
clients = 3

[model]
name = "logistic"

[method]
name = "dp-sgd"
learning_rate = 0.5
tau = 1

[privacy]
unit = "sample"
epsilon = 4.0
delta = 1e-4
sampling_rate = 0.2

[budget]
rounds = 4
"""
ROWS = 300


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng, lines = np.random.default_rng(3), ["a,b,ward,label"]
    wards = ["north", "south", "st <b>mary</b>\x1b[31m"]
    for i in range(ROWS):
        label = int(rng.integers(2))
        lines.append(f"{label + rng.normal():.4f},{rng.normal():.4f},{wards[i % 3]},{label}")
    (tmp_path / "patients.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def read(folder: Path, *changes: str) -> HorizontalStudy:
    (folder / "study.toml").write_text(STUDY.replace("FILE", str(folder / "patients.csv")))
    found = studies.read(
        folder / "study.toml",
        [change.replace("FILE", str(folder / "patients.csv")) for change in changes],
    )
    assert isinstance(found, HorizontalStudy)
    return found


def data(*keys: str) -> tuple[str, ...]:
    """The [data] table with these keys, clients by their column."""
    return (
        'data={file="FILE", clients=3, client_column="ward", '
        f'partition={{kind="column"}}{"".join(f", {key}" for key in keys)}}}',
    )


def played(study: HorizontalStudy, out: Path) -> session.Outcome:
    return session.begin(study, out, lambda row: None, lambda about: None)


def test_nothing_of_ones_own_file_is_public_unless_it_is_said(table: Path) -> None:
    study = read(table, *data())
    divided = federation(study)
    assert len(divided.test) == 0
    assert sum(divided.sizes) == ROWS, "and no row is set aside for nothing"
    outcome = played(study, table / "run")
    assert outcome.accuracy is None
    rows = [json.loads(line) for line in (table / "run" / "rounds.jsonl").read_text().splitlines()]
    assert not [row for row in rows if "accuracy" in row or "loss" in row]
    about = json.loads((table / "run" / "run.json").read_text())
    assert about["test"] == {"kind": "none", "rows": 0}
    assert any("no model is measured" in said and "data.test" in said for said in about["warnings"])
    page = write(table / "run").read_text()
    assert "no test set" in page


def test_a_public_share_is_said_in_plan_promise_and_report(table: Path) -> None:
    study = read(table, *data('test="public share"', "test_share=0.25"))
    assert len(federation(study).test) == ROWS // 4
    assert any("25 %" in said and "DECLARED PUBLIC" in said for said in assumptions(study))
    outcome = played(study, table / "run")
    assert outcome.accuracy is not None
    about = json.loads((table / "run" / "run.json").read_text())
    assert any("DECLARED PUBLIC" in said for said in about["warnings"])
    assert "DECLARED PUBLIC" in write(table / "run").read_text()


def test_rows_of_a_private_share_pay_no_more_than_anybody_is_promised(table: Path) -> None:
    """They may be of the client with the least epsilon, and spent 3.57 of 0.5."""
    changes = *data('test="private share"'), "privacy.epsilons=[0.5, 2.0, 4.0]"
    assert priced(read(table, *changes))[1].epsilon == 0.5
    with pytest.raises(StudyError, match=r"must not pass 0\.5"):
        read(table, *changes, "privacy.evaluation_epsilon=1.0")


def test_a_private_share_pays_for_every_evaluation(table: Path) -> None:
    study = read(table, *data('test="private share"'), "privacy.evaluation_epsilon=1.0")
    outcome = played(study, table / "run")
    about = json.loads((table / "run" / "run.json").read_text())
    with Ledger.open(table / "run" / "ledger.sqlite", readonly=True) as ledger:
        entries = [entry for entry in ledger.entries() if entry.unit == UNIT]
        spent = ledger.epsilon(UNIT, 1e-4, "pld")
    assert len(entries) == 4, "one for each evaluation"
    assert 0.0 < spent <= 1.0
    z = about["test"]["noise_multiplier"]
    assert {entry.event for entry in entries} == {Gaussian(noise_multiplier=z)}
    assert (
        accountant("pld").epsilon([(Gaussian(noise_multiplier=z), priced(study)[2])], 1e-4) <= 1.0
    )
    assert about["result"]["test_epsilon"] == spent
    assert outcome.epsilon == max(*about["result"]["spent"], spent), (
        "disjoint rows: the largest, not the sum"
    )
    rows = [json.loads(line) for line in (table / "run" / "rounds.jsonl").read_text().splitlines()]
    measured = [row for row in rows if row.get("accuracy") is not None]
    assert len(measured) == 4
    assert all("loss" not in row for row in measured), "only the count is paid for"
    assert "example" in about["guarantee"]
    assert "every evaluation on private test rows" in about["guarantee"]


def test_what_leaves_a_private_evaluation_is_the_count_with_the_booked_noise(table: Path) -> None:
    """Against the exact count, over many models: the deviation is z, and no released number is the
    exact one.
    """
    study = read(
        table,
        *data('test="private share"'),
        "privacy.evaluation_epsilon=0.5",
        "execution.evaluate_every=1",
    )
    built = build.build(study, table, "0" * 16)
    paid = built.evaluation
    assert isinstance(paid, PaidEvaluation)
    z, off = paid.mechanism.noise_multiplier, []
    rng = np.random.default_rng(0)
    # more evaluations than were planned
    free = replace(paid, budget=replace(paid.budget, epsilon=math.inf))
    for _ in range(200):
        weights = rng.normal(size=built.first.model.shape).astype(np.float32)
        told = free(weights)["accuracy"] * paid.rows
        if 0.0 < told < paid.rows:
            off.append(told - paid.right(weights))
    built.simulation.ledgers.close()
    assert len(off) > 100
    assert 0.7 * z < float(np.std(off)) < 1.3 * z


def test_the_same_model_is_paid_for_once_and_says_the_same(table: Path) -> None:
    built = build.build(read(table, *data('test="private share"')), table, "0" * 16)
    assert isinstance(built.evaluation, PaidEvaluation)
    weights = np.zeros_like(built.first.model)
    one, two = built.evaluation(weights), built.evaluation(weights)
    assert one == two
    assert built.simulation.ledgers.spent(UNIT)[0][1] == 1
    built.simulation.ledgers.close()


def test_without_budget_nothing_is_measured(table: Path) -> None:
    built = build.build(
        read(table, *data('test="private share"'), "privacy.evaluation_epsilon=0.2"),
        table,
        "0" * 16,
    )
    paid = built.evaluation
    assert isinstance(paid, PaidEvaluation)
    told = [paid(np.full_like(built.first.model, i)) for i in range(priced(read(table))[2] + 5)]
    assert "accuracy" in told[0]
    assert told[-1] == {}
    assert paid.spent() <= 0.2
    built.simulation.ledgers.close()


def test_test_rows_do_not_train(table: Path) -> None:
    divided = federation(read(table, *data('test="private share"')))
    trained = {row.tobytes() for part in divided.parts for row in part.x}
    assert trained.isdisjoint({row.tobytes() for row in divided.test.x})
    assert len(trained) + len(divided.test) == ROWS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (data('test="file"'), "test 'file' needs test_file"),
        (data("test_share=0.3"), "test_share is the share of the rows that is set aside"),
        (
            data('test="none"', 'test_file="FILE"'),
            "test_file is given, and test = 'none' makes no use of it",
        ),
        (
            ('data={name="digits", test="none"}',),
            "are for a file of your own; 'digits' has a public test set",
        ),
        (
            ("privacy.evaluation_epsilon=1.0",),
            "privacy.evaluation_epsilon is what the rows of data.test = 'private share' pay",
        ),
        ((*data('test="private share"'), "privacy.evaluation_epsilon=9.0"), "must not pass 4"),
        (
            (
                *data('test="private share"'),
                'method={name="fedavg", learning_rate=0.5}',
                'privacy={unit="none", sampling_rate=0.2}',
            ),
            "privacy.unit is 'none'",
        ),
        (
            (
                *data('test="private share"'),
                'method={name="dp-fedavg", learning_rate=0.5, tau=1}',
                'privacy.unit="client"',
            ),
            "releases counts of single rows at the price of a row, and privacy.unit is 'client'",
        ),
        (
            ('data={file="FILE", clients=3, client_column="ward"}',),
            "client_column = 'ward' says whose each example is",
        ),
        (
            (
                'data={file="FILE", clients=3, client_column="ward", '
                'partition={kind="dirichlet", beta=0.5}}',
            ),
            "partition kind 'dirichlet'",
        ),
        (
            ('data={name="digits", client_column="ward", partition={kind="column"}}',),
            "client_column is for a file of your own",
        ),
        (('data={file="FILE", test_file="FILE", clients=3}',), "test_file is the file that trains"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(
    table: Path, changes: tuple[str, ...], message: str
) -> None:
    with pytest.raises(StudyError) as told:
        read(table, *changes)
    assert message in str(told.value)


def test_an_archive_that_names_owners_is_not_dealt_to_others(table: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2
    np.savez(table / "own.npz", x=x, y=y, client=np.array(["a", "b", "c"] * 20))
    own = str(table / "own.npz")
    with pytest.raises(
        StudyError, match=r"says whose each example is, and data\.partition kind 'iid'"
    ):
        federation(read(table, f'data={{file="{own}", clients=3}}'))
    kept = read(
        table,
        f'data={{file="{own}", clients=3, client_column="client", partition={{kind="column"}}}}',
    )
    assert federation(kept).names == ("a", "b", "c")


def test_an_archives_own_test_set_is_used_only_if_it_is_asked_for(table: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2
    np.savez(table / "own.npz", x=x, y=y, x_test=x[:7], y_test=y[:7])
    own = str(table / "own.npz")
    sizes = {}
    for test in ("none", "file"):
        sizes[test] = len(
            federation(read(table, f'data={{file="{own}", clients=3, test="{test}"}}')).test
        )
    assert sizes == {"none": 0, "file": 7}
    with pytest.raises(StudyError, match="has a test set of its own"):
        federation(read(table, f'data={{file="{own}", clients=3, test="public share"}}'))


def test_clients_are_called_by_their_names_and_names_are_harmless(table: Path) -> None:
    study = read(table, *data())
    outcome = played(study, table / "run")
    about = json.loads((Path(outcome.run) / "run.json").read_text())
    assert [client["name"] for client in about["clients"]] == [
        "north",
        "south",
        "st <b>mary</b>[31m",
    ]
    assert all(client["labels"] == [] for client in about["clients"]), (
        "label counts of one's own file are raw data"
    )
    page = write(Path(outcome.run)).read_text()
    assert "north" in page
    assert "st &lt;b&gt;mary&lt;/b&gt;" in page
    assert "<b>mary" not in page
    assert "\x1b" not in page
    assert "examples of each label" not in page


def test_the_study_that_is_kept_says_what_was_measured_on(table: Path) -> None:
    outcome = played(read(table, *data('test="public share"')), table / "run")
    kept = tomllib.loads((Path(outcome.run) / "study.toml").read_text())
    assert kept["data"]["test"] == "public share"


def test_a_published_set_keeps_its_public_test_set(table: Path) -> None:
    study = read(table, 'data={name="digits", clients=3}')
    assert study.data.testing == "published"
    assert len(federation(study).test) > 0
    assert "The test set is public" in " ".join(assumptions(study))
    assert "one example's contribution replaced by none" in guarantee(study, None)


def test_arrivals_pay_for_evaluations_too(table: Path) -> None:
    changes = (
        *data('test="private share"'),
        'method={name="audp", batch=20}',
        'privacy={unit="sample", epsilon=4.0, delta=1e-4}',
        "budget={updates=20}",
    )
    study = read(table, *changes, "execution.evaluate_every=10")
    outcome = played(study, table / "run")
    assert outcome.accuracy is not None
    with Ledger.open(table / "run" / "ledger.sqlite", readonly=True) as ledger:
        assert 1 <= sum(entry.count for entry in ledger.entries(UNIT)) <= priced(study)[2]


def test_a_run_over_a_ledger_of_the_data_that_pays_for_tests_verifies(table: Path) -> None:
    keys = data('test="private share"')
    played(
        read(
            table,
            *keys,
            "privacy.evaluation_epsilon=1.0",
            "privacy.noise_multiplier=4.0",
            f"privacy.ledger={table / 'kept'}",
        ),
        table / "run",
    )
    assert verify(table / "run").problems == []
    about = json.loads((table / "run" / "run.json").read_text())
    about["result"]["test_epsilon"] += 0.5
    (table / "run" / "run.json").write_text(json.dumps(about))
    assert verify(table / "run").problems


def with_patients(table: Path, rows: int) -> None:
    """Give each patient so many rows."""
    lines = (table / "patients.csv").read_text().splitlines()
    people = [f"{line},p{i // rows}" for i, line in enumerate(lines[1:])]
    (table / "patients.csv").write_text("\n".join([lines[0] + ",patient", *people]) + "\n")


@pytest.mark.parametrize("share", ["private share", "public share"])
@pytest.mark.parametrize("kept", [(), ("privacy.ledger=LEDGER",)])
def test_nobody_both_trains_and_tests(table: Path, share: str, kept: tuple[str, ...]) -> None:
    """A share is one of persons, by each person's name alone; a count has one row of each."""
    with_patients(table, 2)
    keys = data(f'test="{share}"', 'person="patient", person_rows=2')
    ledger = (each.replace("LEDGER", str(table / "kept")) for each in kept)
    study = read(table, *keys, *ledger, "privacy.noise_multiplier=9.0")
    divided = federation(study)
    train = np.concatenate([part.people[:, 0] for part in divided.parts if part.people is not None])
    assert divided.test.people is not None
    test = divided.test.people[:, 0]
    assert not np.isin(test, train).any()
    assert len(np.unique(test)) == len(test) / (2 if share == "public share" else 1)
    assert 0.1 < len(np.unique(test)) / len(np.unique([*test, *train])) < 0.3
    result = played(study, table / "run")
    assert result.epsilon is not None
    assert verify(table / "run").problems == []
    about = json.loads((table / "run" / "run.json").read_text())
    assert any("20 % of the file's persons" in each for each in about["assumptions"])


def test_a_plan_says_that_persons_with_many_rows_spend_more(table: Path) -> None:
    with_patients(table, 1)
    noise = []
    for most in (1, 3):
        keys = data(f'person="patient", person_rows={most}')
        planned, _ = build.plan(read(table, *keys))
        noise.append(planned.noise_multiplier)
        assert planned.steps == planned.used  # the calibrated noise pays for all steps
        assert not any("of one person" in warning for warning in planned.warnings)
    row, person = noise
    assert 1.5 * row < person < 3 * row
    keys += (f"privacy.noise_multiplier={row}",)
    short, _ = build.plan(read(table, *keys))
    assert any("up to 3 examples of one person" in warning for warning in short.warnings)


def test_a_promise_to_persons_says_so(table: Path) -> None:
    with_patients(table, 3)
    played(
        read(table, *data('person="patient", person_rows=3'), "privacy.noise_multiplier=8.0"),
        table / "run",
    )
    about = json.loads((table / "run" / "run.json").read_text())
    assert "all examples of one person" in about["adjacency"]
    assert "all examples of one person replaced by none" in about["guarantee"]
    assert verify(table / "run").problems == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("execution.device=meta", "execution.device = 'meta'"),
        ("privacy.ledger=", "privacy.ledger"),
        ("privacy.ledger=FILE", "privacy.ledger: .* no folder for ledgers"),
        ("privacy.noise_multiplier=1e300", "privacy.noise_multiplier"),
        ("privacy.sampling_rate=1e-300", "privacy.sampling_rate"),
        ("method.learning_rate=1e300", "method.learning_rate"),
    ],
)
def test_what_cannot_be_run_is_one_message(table: Path, change: str, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        played(read(table, *data(), change), table / "run")
    assert not (table / "run").exists()


def test_an_output_folder_that_cannot_be_made_is_one_message(table: Path) -> None:
    for out in (table / "patients.csv" / "run", table / ("x" * 300)):
        with pytest.raises(StudyError, match="nothing can be written there"):
            played(read(table, *data()), out)


def test_a_data_set_that_nobody_knows_is_one_message() -> None:
    with pytest.raises(StudyError, match=r"data set 'nope' is not known\. Known: digits"):
        find("nope")


def test_a_report_without_accuracy_does_not_speak_of_it(table: Path) -> None:
    played(read(table, *data()), table / "run")
    page = write(table / "run").read_text()
    assert "Epsilon over rounds" in page
    assert "Accuracy and epsilon" not in page
    assert "Share of the test set" not in page


def test_a_plan_counts_the_rows_of_a_private_share(table: Path) -> None:
    """They are people, too: a plan said 2.99, and the run came to 45.2."""
    study = read(table, *data('test="private share"'), "privacy.noise_multiplier=9")
    planned, _ = build.plan(study)
    alone, _ = build.plan(read(table, *data('test="public share"'), "privacy.noise_multiplier=9"))
    assert planned.epsilon >= played(study, table / "run").spent > 0.0
    assert planned.epsilon > 2 * alone.epsilon
