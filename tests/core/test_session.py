"""Whole runs on the embedded digits: folders, kills, resumption, ledgers of the data, bad input."""

import itertools
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import warm
from command import sordino
from sordino.base.errors import BudgetExceeded, ResumeError, StudyError
from sordino.clients.study import VALIDATION
from sordino.core import regimes as builder
from sordino.core import study as studies
from sordino.core.prepared import PreparedRun
from sordino.core.records import Round, Row
from sordino.core.run import environment, session
from sordino.core.run.environment import ENDED
from sordino.core.run.folder import KEY
from sordino.core.run.verify import verify
from sordino.privacy import Ledger
from sordino.privacy.rounding import epsilon_text
from sordino.regimes.asynchronous.study import TEMPLATE as ASYNCHRONOUS
from sordino.regimes.synchronous.study import TEMPLATE as SYNCHRONOUS

DAILY = {('"uniform"', "sample"), ('"learned"', "client")}
FAST = ["data.clients=4", "budget.rounds=6", "budget.steps=12", "execution.checkpoint_every=2"]


def study(tmp_path: Path, *changes: str, text: str = SYNCHRONOUS) -> studies.Study:
    path = tmp_path / "study.toml"
    path.write_text(text)
    return studies.read(path, [*(FAST if text == SYNCHRONOUS else ()), *changes])


def quiet(told: object) -> None:
    """Show nothing."""


def run(tmp_path: Path, name: str, *changes: str) -> tuple[session.Outcome, Path]:
    folder = tmp_path / name
    return session.begin(study(tmp_path, *changes), folder, quiet, quiet), folder


@pytest.mark.parametrize("otherwise", [False, True])
def test_a_run_is_built_once_unless_the_study_in_its_folder_reads_otherwise(
    tmp_path: Path, otherwise: bool
) -> None:
    """Then the objects before are let go of, data and all."""
    alive: list[weakref.ref[Any]] = []
    before: list[int] = []

    def watched(*told: Any) -> PreparedRun:
        before.append(sum(each() is not None for each in alive))
        built = builder.build(*told)
        alive.extend(weakref.ref(client.examples.x) for client in built.simulation.clients)  # type: ignore[attr-defined]
        return built

    other = mock.patch.object(session, "shape", side_effect=itertools.count())
    with other if otherwise else nullcontext():
        session.begin(study(tmp_path), tmp_path / "run", quiet, quiet, build=watched)
    assert before == ([0, 0] if otherwise else [0])
    assert verify(tmp_path / "run").problems == []


def rows(folder: Path, kind: str = "round") -> list[dict[str, Any]]:
    return [
        row
        for row in map(json.loads, (folder / "rounds.jsonl").read_text().splitlines())
        if row["kind"] == kind
    ]


def test_a_run_leaves_everything_and_keeps_its_promise(tmp_path: Path) -> None:
    outcome, folder = run(tmp_path, "run")
    for name in (
        "study.toml",
        "run.json",
        "environment.json",
        "ledger.sqlite",
        "rounds.jsonl",
        "model.safetensors",
        "checkpoints",
    ):
        assert (folder / name).exists()
    about = json.loads((folder / "run.json").read_text())
    assert about["status"] == "done"
    assert about["result"]["epsilon"] == outcome.epsilon <= 4.0
    assert outcome.steps <= about["R_c"]
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        booked = dict(db.execute("SELECT unit, SUM(count) FROM entries GROUP BY unit"))
    assert set(booked.values()) == {outcome.steps}
    kept: Any = studies.read(folder / "study.toml")
    assert kept.privacy.noise_multiplier == about["noise_multiplier"]


@pytest.mark.parametrize(
    ("method", "rounds", "steps"),
    [
        ("dp-sgd", 6, 12),
        ("dp-sgd", 6, 4),
        ("ali-dpfl", 6, 4),
        ("als-dpfl", 6, 12),
        pytest.param("ali-dpfl", 6, 12, marks=pytest.mark.nightly),
        pytest.param("als-dpfl", 6, 4, marks=pytest.mark.nightly),
    ],
)
def test_every_method_stops_where_a_budget_ends(
    tmp_path: Path, method: str, rounds: int, steps: int
) -> None:
    changes = [
        f'method={{name="{method}", learning_rate=0.5}}',
        f"budget.rounds={rounds}",
        f"budget.steps={steps}",
    ]
    outcome, folder = run(tmp_path, "run", *changes)
    about = json.loads((folder / "run.json").read_text())
    assert outcome.epsilon <= 4.0
    assert outcome.steps <= about["R_c"]
    assert outcome.rounds <= rounds
    assert outcome.rounds == rounds or outcome.steps == about["R_c"]
    if method != "dp-sgd" and rounds >= about["R_c"]:
        assert {row["tau"] for row in rows(folder)} == {1}


@pytest.mark.parametrize("asked", ["data.validation=100", "data.client_validation=0.1"])
def test_validation_only_when_asked_for_and_then_said(tmp_path: Path, asked: str) -> None:
    _, plain = run(tmp_path, "plain")
    _, folder = run(tmp_path, "asked", asked)
    about, before = (json.loads((place / "run.json").read_text()) for place in (folder, plain))
    assert "validation" not in rows(plain)[-1]
    assert 0.0 < rows(folder)[-1]["validation"] <= 1.0
    assert VALIDATION in about["assumptions"]
    assert VALIDATION not in before["assumptions"]
    held = sum(c["examples"] for c in before["clients"]) - sum(
        c["examples"] for c in about["clients"]
    )
    assert 90 <= held <= 160


def test_papers_forms_run_and_are_booked_as_not_private(tmp_path: Path) -> None:
    for method in ("ali-dpfl", "als-dpfl"):
        outcome, folder = run(tmp_path, method, f'method={{name="{method}", form="paper"}}')
        about = json.loads((folder / "run.json").read_text())
        assert outcome.epsilon == float("inf")
        assert about["guarantee"].startswith("No privacy guarantee")
        assert any("NOT private" in warning for warning in about["warnings"])
        assert rows(folder)[-1]["epsilon"] == "inf"


def test_fedavg_learns_and_promises_nothing(tmp_path: Path) -> None:
    plain = 'privacy={unit="none", sampling_rate=0.2}'
    outcome, _ = run(
        tmp_path,
        "run",
        'method={name="fedavg", tau=5, learning_rate=0.3}',
        plain,
        "budget.rounds=15",
    )
    assert outcome.epsilon == float("inf")
    assert outcome.accuracy is not None
    assert outcome.accuracy > 0.8


def test_momentum_average_equal_weights_and_stragglers_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the same draws whatever this program's sources: how long a round is follows from its noise
    monkeypatch.setattr(environment, "environment", lambda study: {})
    changes = [
        "method.momentum=0.5",
        "method.average=0.8",
        'method.weights="equal"',
        "participation.cohort=2",
        "participation.deadline=1.0",
        "seed=2",
    ]
    world = 'world={latency={kind="lognormal", shape=1.5}, dropout=0.2}'
    outcome, folder = run(tmp_path, "run", *changes, world)
    assert rows(folder, "late")
    assert rows(folder, "lost")
    assert outcome.epsilon <= 4.0


CLIENTS = [
    "data.clients=30",
    'data.partition={kind="iid"}',
    'privacy={unit="client", epsilon=6.0, delta=0.01, clip=0.5, sampling_rate=0.2}',
]


@pytest.mark.parametrize(
    "method",
    [
        '{name="dp-fedavg", learning_rate=0.2}',
        '{name="dp-fedavg", clipping="adaptive", weights="size", optimizer={kind="adam"}, '
        "learning_rate=0.01}",
        '{name="dynamic-dp-fedavg", stages=3, learning_rate=0.2}',
    ],
)
def test_whole_clients_are_booked_once_a_round_whoever_is_drawn(
    tmp_path: Path, method: str
) -> None:
    outcome, folder = run(tmp_path, "run", *CLIENTS, f"method={method}")
    about = json.loads((folder / "run.json").read_text())
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        booked = db.execute(
            "SELECT unit, round, SUM(count) FROM entries GROUP BY unit, round"
        ).fetchall()
    assert booked == [("clients", number, 1) for number in range(1, 7)]
    assert outcome.epsilon == pytest.approx(6.0, abs=0.01)
    assert outcome.epsilon <= 6.0
    assert outcome.unit == "client"
    assert "one client's contribution, with all its data, replaced by none" in about["guarantee"]
    # as if everybody had been drawn: who was is nobody's business
    assert outcome.steps == 6 * rows(folder)[0]["tau"]


def test_a_bound_from_public_examples_is_the_median_of_their_updates(tmp_path: Path) -> None:
    told = [
        *CLIENTS,
        'method={name="dp-fedavg", clipping="proxy", learning_rate=0.2}',
        "privacy.clipped_fraction=true",
    ]
    clips = []
    for name, asked in (("one", 0.5), ("two", 7.0)):
        _, folder = run(tmp_path, name, *told, "data.validation=200", f"privacy.clip={asked}")
        clips.append(json.loads((folder / "run.json").read_text())["clip"])
        assert {row["clip"] for row in rows(folder)} == {clips[-1]}
    assert clips[0] == clips[1]  # whatever was asked for
    assert 0.05 < clips[0] < 5.0
    first = rows(folder)[0]["clipped"]
    assert 0.0 <= first <= 1.0
    with pytest.raises(StudyError, match="needs public examples to train on"):
        run(tmp_path, "three", *told)


def test_a_client_level_ledger_of_the_data_outlives_a_run(tmp_path: Path) -> None:
    kept = [
        *CLIENTS,
        f'privacy.ledger="{tmp_path / "kept"}"',
        'method={name="dp-fedavg"}',
        "privacy.noise_multiplier=1.0",
    ]
    first, _ = run(tmp_path, "one", *kept, "budget.rounds=3")
    second, folder = run(tmp_path, "two", *kept, "budget.rounds=500")
    assert first.epsilon < second.epsilon <= 6.0
    assert json.loads((folder / "run.json").read_text())["payable"][0] == second.rounds < 500
    with pytest.raises(BudgetExceeded, match="does not pay for a single round"):
        run(tmp_path, "three", *kept)


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_a_schedule_is_calibrated_as_a_whole_and_ends_where_the_budget_does(
    tmp_path: Path, unit: str
) -> None:
    method = "dynamic-dp-sgd" if unit == "sample" else "dynamic-dp-fedavg"
    told = [
        f'method={{name="{method}", stages=3, noise_decay=2.0, clip_decay=3.0, tau=2}}',
        *(CLIENTS if unit == "client" else []),
    ]
    outcome, folder = run(tmp_path, "run", *told)
    budget = json.loads((folder / "run.json").read_text())["epsilon_budget"]
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        events = [
            text
            for (text,) in db.execute("SELECT event FROM entries GROUP BY event ORDER BY MIN(seq)")
        ]
    sigmas = [json.loads(text)["event"]["noise_multiplier"] for text in events]
    assert [sigma / sigmas[0] for sigma in sigmas] == pytest.approx([1, 2**-0.5, 0.5])
    assert budget - 0.01 < outcome.epsilon <= budget
    less, _ = run(tmp_path, "less", *told, f"privacy.noise_multiplier={0.8 * sigmas[0]}")
    assert less.rounds < 6
    assert less.epsilon <= budget


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["participation.cohort=5"], "each client is drawn independently"),
        (["data.clients=1"], "needs at least two clients"),
        (['method={name="pe-dpfl", form="paper"}'], "sampling_rate must be 1.0"),
        (['privacy.mechanism={kind="haar", weights="optimal"}'], "needs public examples"),
        (
            ['method={name="dp-fedavg", clipping="adaptive"}', 'privacy.mechanism={kind="haar"}'],
            "follows a noisy count",
        ),
        (
            ['privacy.mechanism={kind="gaussian", clipping="per-layer"}'],
            "for gradients of single examples",
        ),
        (['method={name="dp-sgd"}'], "protects single examples"),
        (['privacy.unit="sample"'], "protects whole clients"),
        (['method={name="dp-fedavg", clipping="adaptive", count_noise=0.1}'], "leaves nothing"),
        (
            ['method={name="dp-fedavg", clipping="adaptive", divisor="counted"}'],
            "needs a noisy count of its own",
        ),
        (
            ['method={name="dp-fedavg", divisor="counted"}', "privacy.mechanism.kind=haar"],
            "needs a noisy count of its own",
        ),
    ],
)
def test_client_level_refuses_what_it_cannot_promise(
    tmp_path: Path, changes: list[str], message: str
) -> None:
    with pytest.raises(StudyError, match=message):
        run(tmp_path, "run", *CLIENTS, 'method={name="dp-fedavg"}', *changes)
    assert not (tmp_path / "run").exists()


def test_more_noise_than_signal_is_said_with_the_numbers(tmp_path: Path) -> None:
    _, folder = run(tmp_path, "run", *CLIENTS, 'method={name="dp-fedavg"}')
    (warning,) = [
        w
        for w in json.loads((folder / "run.json").read_text())["warnings"]
        if "more noise than signal" in w
    ]
    assert "6 updates" in warning


def test_nothing_that_is_written_for_others_says_who_was_drawn(tmp_path: Path) -> None:
    """Cohorts depend on who is in the federation.

    Stragglers and drop-outs would show who was asked.
    """
    world = 'world={latency={kind="lognormal", shape=1.5, spread=1.0}, dropout=0.3}'
    told = [
        *CLIENTS,
        'method={name="dp-fedavg"}',
        world,
        "participation.deadline=1.0",
        "budget.rounds=12",
    ]
    _, folder = run(tmp_path, "run", *told)
    written = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert {row["kind"] for row in written} == {"round", "end"}
    assert not {"cohort", "answered", "missing", "client", "time"} & {
        key for row in written for key in row
    }


@pytest.mark.parametrize(
    ("told", "claimed_more"),
    [
        (['privacy.mechanism={kind="haar", form="paper"}', 'method={name="dp-sgd"}'], 1e3),
        (
            [
                *CLIENTS,
                'method={name="dp-fedavg"}',
                'privacy.mechanism={kind="haar", form="paper"}',
            ],
            1e3,
        ),
        ([*CLIENTS, 'method={name="pe-dpfl", form="paper"}', "privacy.sampling_rate=1.0"], 1e3),
    ],
)
def test_literal_forms_run_at_their_true_price_and_say_so(
    tmp_path: Path, told: list[str], claimed_more: float
) -> None:
    outcome, folder = run(tmp_path, "run", *told)
    about = json.loads((folder / "run.json").read_text())
    assert outcome.rounds == 6
    assert outcome.epsilon > claimed_more * about["claimed_epsilon"] > 0
    assert any(
        "NOT private" in warning and epsilon_text(about["claimed_epsilon"]) in warning
        for warning in about["warnings"]
    )
    assert about["guarantee"].startswith("No privacy guarantee")
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        (text,) = db.execute("SELECT event FROM entries LIMIT 1").fetchone()
    booked = json.loads(text).get("event", json.loads(text))["noise_multiplier"]
    assert booked < 0.05 * about["noise_multiplier"]


@pytest.mark.parametrize(
    ("weights", "unit"),
    [
        pytest.param(weights, unit, marks=[] if (weights, unit) in DAILY else [pytest.mark.nightly])
        for weights in ('"uniform"', '"paper"', '"optimal", exponent=1.0', '"learned"')
        for unit in ("sample", "client")
    ],
)
def test_sound_wavelet_noise_costs_what_plain_noise_costs(
    tmp_path: Path, weights: str, unit: str
) -> None:
    told = (
        [*CLIENTS, 'method={name="dp-fedavg"}'] if unit == "client" else ['method={name="dp-sgd"}']
    )
    plain, _ = run(tmp_path, "plain", *told, "data.validation=100")
    outcome, folder = run(
        tmp_path,
        "run",
        *told,
        "data.validation=100",
        f'privacy.mechanism={{kind="haar", blocks="layers", weights={weights}}}',
    )
    assert outcome.epsilon == plain.epsilon
    assert not any(
        "NOT private" in warning
        for warning in json.loads((folder / "run.json").read_text())["warnings"]
    )


def test_noise_that_falls_with_the_loss_stays_within_its_filter(tmp_path: Path) -> None:
    told = [
        "budget.rounds=60",
        "privacy.noise_multiplier=4.0",
        "data.client_validation=0.0",
        "privacy.epsilon=1.5",
    ]
    method = 'method={name="adap-dpfl", patience=1, decay=0.8, floor=0.3, learning_rate=0.5}'
    with pytest.raises(StudyError, match="fix a Rényi order in advance"):
        run(tmp_path, "pld", *told, method)
    outcome, folder = run(tmp_path, "run", *told, method, 'privacy.accountant="rdp@6"')
    assert 0.0 < outcome.epsilon <= 1.5
    assert "filter" in outcome.why
    falling = [row["noise"] for row in rows(folder)]
    assert falling[0] == 1.0
    assert min(falling) < 0.9
    assert all(before >= after >= 0.3 for before, after in itertools.pairwise(falling))
    with Ledger.open(folder / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.epsilon("client:0", 1e-3, "rdp@6") <= outcome.epsilon
        # what happened is no bound on what could have
        assert math.isinf(ledger.epsilon("client:0", 1e-3, "pld"))
    raw, _ = run(
        tmp_path, "raw", *told, 'method={name="adap-dpfl", form="paper"}', "budget.rounds=3"
    )
    assert math.isinf(raw.epsilon)


CHILD = """
import os, signal, sys
from pathlib import Path
from sordino.core import study
from sordino.core.run import session
seen = 0
def show(row):
    global seen
    seen += 1
    if seen == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
session.begin(study.read(Path(sys.argv[1])), Path(sys.argv[2]), show, lambda row: None)
"""


@pytest.mark.parametrize(
    "told",
    [
        ['method={name="als-dpfl", average=0.9, momentum=0.3}'],
        pytest.param(['method={name="ali-dpfl", form="paper"}'], marks=pytest.mark.nightly),
        pytest.param(
            [
                'method={name="dynamic-dp-sgd", stages=2, optimizer={kind="adam", '
                "debias=true}, learning_rate=0.01}"
            ],
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            [*CLIENTS, 'method={name="dp-fedavg", clipping="adaptive", momentum=0.5}'],
            marks=pytest.mark.nightly,
        ),
        [
            'method={name="dp-sgd", tau=1, average=0.5}',
            'privacy={unit="sample", epsilon=4.0, delta=1e-3, sampling_rate=0.2, noise="shared"}',
        ],
        [
            'method={name="dp-sgd", tau=2}',
            'privacy={unit="sample", epsilon=4.0, delta=1e-3, sampling="passes", batches=5, '
            'correlation="blt"}',
        ],
        pytest.param(
            [
                'method={name="dp-sgd", tau=2}',
                'privacy={unit="sample", epsilon=4.0, delta=1e-3, sampling="passes", batches=5, '
                'correlation="banded"}',
            ],
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            [*CLIENTS, 'privacy.noise="shared"', 'method={name="dp-fedavg", momentum=0.5}'],
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            ['method={name="dp-sgd", tau=2}', 'privacy.mechanism={kind="haar", weights="learned"}'],
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_killed_and_resumed_it_ends_bit_for_bit_the_same(tmp_path: Path, told: list[str]) -> None:
    whole_study = study(tmp_path, *told)
    path = tmp_path / "whole.toml"
    path.write_text(studies.write(whole_study))
    whole = session.begin(whole_study, tmp_path / "whole", quiet, quiet)
    for die_at in (1, 3, 4) if "als-dpfl" in told[0] else (1, 4):
        folder = tmp_path / f"killed-{die_at}"
        code = [sys.executable, "-c", CHILD, str(path), str(folder), str(die_at)]
        child = warm.run(code, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120)
        assert child.returncode == -signal.SIGKILL
        assert json.loads((folder / "run.json").read_text())["status"] == "running"
        for name in (".run.json.12.part", "checkpoints/.latest.safetensors.12.part"):
            (folder / name).write_text("what a kill has left half-written, such as raw rows")
        outcome = session.resume(folder, quiet, quiet)
        assert not [*folder.rglob("*.part")]
        assert rows(folder) == rows(tmp_path / "whole")
        for name in ("rounds.jsonl", "model.safetensors"):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        assert (outcome.epsilon, outcome.steps) == (whole.epsilon, whole.steps)
        # a finished run says its end again
        assert session.resume(folder, quiet, quiet).accuracy == outcome.accuracy


def test_two_runs_over_the_same_data_share_a_budget(tmp_path: Path) -> None:
    kept = f'privacy.ledger="{tmp_path / "kept"}"'
    fixed = 'method={name="dp-sgd", tau=1}'
    first, _ = run(tmp_path, "one", kept, fixed, "budget.rounds=2", "privacy.noise_multiplier=1.5")
    second, folder = run(
        tmp_path, "two", kept, fixed, "budget.rounds=400", "privacy.noise_multiplier=1.5"
    )
    assert first.epsilon < second.epsilon <= 4.0
    about = json.loads((folder / "run.json").read_text())
    assert max(about["payable"]) < about["R_c"]
    assert about["ledger"]["scope"] == "data"
    with pytest.raises(BudgetExceeded, match="does not pay for a single local step"):
        run(tmp_path, "three", kept, fixed, "privacy.noise_multiplier=1.5")
    assert not (tmp_path / "three").exists()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (['method={name="dp-sgd", tau=1}', "budget.steps=60", "budget.rounds=60"], SYNCHRONOUS),
        (['method={name="mapa"}', "budget.updates=300"], ASYNCHRONOUS),
    ],
    ids=["rounds", "arrivals"],
)
def test_a_run_whose_budget_others_spend_ends_with_what_it_has(
    tmp_path: Path, more: list[str], text: str
) -> None:
    """It stayed "running" for ever, without a model and a seal."""
    kept = [f'privacy.ledger="{tmp_path / "kept"}"', "privacy.epsilon=1.5"]
    other = [*kept, 'method={name="dp-sgd", tau=1}', "privacy.noise_multiplier=1.5"]

    def meanwhile(row: Row) -> None:
        if row.kind == "round" and row.round and not (tmp_path / "other").exists():
            run(tmp_path, "other", *other, "budget.steps=60", "budget.rounds=400")

    asked = study(
        tmp_path,
        *kept,
        *more,
        'privacy.entropy="system"',
        "privacy.noise_multiplier=1.5",
        text=text,
    )
    done = session.begin(asked, tmp_path / "run", meanwhile, quiet)
    assert done.why.startswith("the privacy filter lets no further round pass: ")
    assert done.rounds >= 1
    assert done.epsilon <= 1.5
    assert (tmp_path / "run" / KEY).read_bytes() == ENDED
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert verify(tmp_path / "run").problems == []
    assert session.resume(tmp_path / "run", quiet, quiet).why == done.why


def test_a_version_that_words_its_sentences_otherwise_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentences of ``run.json`` are for people: what the run promises is in its numbers."""

    def stop(row: Row) -> None:
        if isinstance(row, Round) and row.round == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as before:
        before.setattr(session, "adjacency", lambda study: "rows may be missing")
        before.setattr(session, "assumptions", lambda study: ["Noise is secret."])
        before.setattr(session, "uncovered", lambda study: ["Think twice."])
        with pytest.raises(KeyboardInterrupt):
            session.begin(study(tmp_path), tmp_path / "run", stop, quiet)
    assert session.resume(tmp_path / "run", quiet, quiet).steps == 12
    assert json.loads((tmp_path / "run" / "run.json").read_text())["adjacency"] == (
        "rows may be missing"
    )
    assert verify(tmp_path / "run").problems == []


def test_an_edited_study_is_refused(tmp_path: Path) -> None:
    _, folder = run(tmp_path, "run")
    text = (folder / "study.toml").read_text().replace("seed = 0", "seed = 1")
    (folder / "study.toml").write_text(text)
    with pytest.raises(ResumeError, match="seed was 0, is 1"):
        session.resume(folder, quiet, quiet)


def test_loops_for_another_processor_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They round otherwise: one noise covered two sums, and told two rows apart."""
    _, folder = run(tmp_path, "run")
    with monkeypatch.context() as patch:
        patch.setenv("NUMBA_CPU_NAME", "generic")
        with pytest.raises(ResumeError, match=r"NUMBA_CPU_NAME.*generic"):
            session.resume(folder, quiet, quiet)
    monkeypatch.setattr(environment, "processor", lambda: "another one")
    with pytest.raises(ResumeError, match=r"cpu was .*, is .*another one"):
        session.resume(folder, quiet, quiet)


def test_broken_run_folders_are_not_guessed_at(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no run folder"):
        session.resume(tmp_path, quiet, quiet)
    _, folder = run(tmp_path, "run")
    (folder / "rounds.jsonl").write_text("")
    with pytest.raises(ResumeError, match="shorter than at the last checkpoint"):
        session.resume(folder, quiet, quiet)
    (folder / "checkpoints" / "latest.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ResumeError, match="cannot be read"):
        session.resume(folder, quiet, quiet)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["privacy.noise_multiplier=0"], "noise_multiplier must be positive for a finite epsilon"),
        (["privacy.delta=1.0"], "privacy.delta"),
        (["privacy.sampling_rate=1.5"], "privacy.sampling_rate"),
        (["data.clients=5000"], "clients"),
        (["privacy.epsilom=2"], "did you mean 'epsilon'"),
        (["model.name=cnn"], "needs images of at least"),
        (["data.name=mnist"], "was not found. Looked in"),
        (["execution.device=teapot"], "execution.device"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(
    tmp_path: Path, changes: list[str], message: str
) -> None:
    (tmp_path / "study.toml").write_text(SYNCHRONOUS)
    done = sordino(
        tmp_path,
        "run",
        "study.toml",
        "--out",
        "made",
        *[part for change in changes for part in ("--set", change)],
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.toml"]


def test_a_value_that_is_no_number_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("a,b,label\n" + "1,2,0\n3,4,1\n" * 40 + "1,nan,0\n")
    (tmp_path / "study.toml").write_text(
        SYNCHRONOUS.replace('name = "digits"', 'file = "mine.csv"')
    )
    done = sordino(tmp_path, "run", "study.toml", "--out", "made")
    assert done.returncode == 2
    assert "mine.csv" in done.stderr
    assert not (tmp_path / "made").exists()


def test_the_command_line_from_plan_to_report(tmp_path: Path) -> None:
    made = sordino(tmp_path, "new", "synchronous", "--out", "study.toml")
    assert made.returncode == 0
    fast = [part for change in FAST for part in ("--set", change)]
    plan = json.loads(sordino(tmp_path, "plan", "study.toml", *fast, "--json").stdout)
    done = sordino(tmp_path, "run", "study.toml", "--out", "made", *fast, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    wanted = {
        "run",
        "method",
        "rounds",
        "steps",
        "accuracy",
        "epsilon",
        "delta",
        "accountant",
        "unit",
        "seconds",
    }
    assert wanted <= set(result)
    assert (
        plan["noise_multiplier"]
        == json.loads((tmp_path / "made" / "run.json").read_text())["noise_multiplier"]
    )
    assert (tmp_path / "made" / "report.html").exists()
    again = sordino(tmp_path, "run", "study.toml", "--out", "made")
    assert again.returncode == 2
    assert "exists already" in again.stderr
    verified = json.loads(sordino(tmp_path, "ledger", "verify", "made", "--json").stdout)
    assert verified["epsilon"] == result["epsilon"]
    spent = json.loads(
        sordino(tmp_path, "ledger", "epsilon", "made", "--accountant", "rdp", "--json").stdout
    )
    assert max(spent["epsilon"].values()) > result["epsilon"]
    with sqlite3.connect(tmp_path / "made" / "ledger.sqlite") as db:
        # 1 to 4 are the units, 5 the beginning
        db.execute("UPDATE entries SET count = 999 WHERE seq = 7")
    forged = sordino(tmp_path, "ledger", "verify", "made")
    assert forged.returncode == 2
    assert "entry 7" in forged.stderr


def test_methods_and_mechanisms_are_listed_with_what_is_private(tmp_path: Path) -> None:
    listed = {
        entry["name"]: entry["forms"]
        for entry in json.loads(sordino(tmp_path, "methods", "--json").stdout)
    }
    assert listed["pe-dpfl"] == listed["adap-dpfl"] == {"sound": True, "paper": False}
    assert {"dp-fedavg", "dynamic-dp-fedavg", "dynamic-dp-sgd"} <= set(listed)
    (haar,) = [
        line for line in sordino(tmp_path, "methods").stdout.splitlines() if line.startswith("haar")
    ]
    assert "paper (NOT private)" in haar


@pytest.mark.parametrize(
    ("accountant", "steps"), [("rdp-classic", 314), ("rdp", 553), ("pld", 716)]
)
def test_plan_answers_without_a_study(tmp_path: Path, accountant: str, steps: int) -> None:
    asked = [
        "--epsilon",
        "2",
        "--delta",
        "1e-5",
        "--sampling-rate",
        "0.015",
        "--noise-multiplier",
        "1.1",
    ]
    done = sordino(tmp_path, "plan", *asked, "--accountant", accountant, "--json")
    assert json.loads(done.stdout)["steps"] == steps


@pytest.mark.parametrize(
    "wrong",
    [
        ["--delta", "2"],
        ["--delta", "0"],
        ["--sampling-rate", "0"],
        ["--noise-multiplier", "-1"],
        ["--epsilon", "-1"],
        ["--epsilon", "0"],
        ["--accountant", "gdp"],
    ],
)
def test_plan_refuses_nonsense(tmp_path: Path, wrong: list[str]) -> None:
    asked = [
        "--epsilon",
        "2",
        "--delta",
        "1e-5",
        "--sampling-rate",
        "0.015",
        "--noise-multiplier",
        "1.1",
    ]
    done = sordino(tmp_path, "plan", *asked, *wrong, "--json")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_help_comes_without_heavy_imports(tmp_path: Path) -> None:
    heavy = "('torch', 'matplotlib', 'dp_accounting', 'numpy', 'pydantic', 'polars')"
    code = f"import sys, sordino.cli; print([m for m in {heavy} if m in sys.modules])"
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert time.monotonic() - start < 5.0


def test_a_plan_of_built_in_models_comes_without_heavy_imports() -> None:
    heavy = "('torch', 'numba', 'sklearn', 'dp_accounting', 'scipy.stats', 'matplotlib')"
    examples = Path(__file__).parents[2] / "examples"
    names = ("ali-dpfl-digits", "stragglers-digits", "events/labels")
    plans = "; ".join(
        f"app(['plan', {str(examples / f'{name}.toml')!r}], standalone_mode=False)"
        for name in names
    )
    code = (
        f"import sys; from sordino.cli import app; {plans}; "
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_plan_of_adap_dpfl_pays_for_its_losses(tmp_path: Path) -> None:
    """Where the noise never falls, what was planned is what is spent; where it is calibrated, all
    rounds are paid for.
    """
    method = 'method={name="adap-dpfl", tau=1, decay=1.0, learning_rate=0.3}'
    told = [method, 'privacy.accountant="rdp@8"', "privacy.epsilon=3.0", "budget.rounds=12"]
    priced, _ = builder.plan(study(tmp_path, *told))
    outcome, _ = run(tmp_path, "run", *told)
    assert outcome.rounds == priced.used == 12
    assert outcome.spent == pytest.approx(priced.epsilon, rel=1e-6)
    assert outcome.epsilon <= 3.0
    assert any("the privacy budget may end" in warning for warning in priced.warnings)
