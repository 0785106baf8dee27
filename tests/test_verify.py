"""Runs of every regime whose folders are changed afterwards: verify names what does not fit, and
resume refuses what differs.
"""

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from command import sordino
from sordino.base.errors import LedgerError, ResumeError, SordinoError, StudyError
from sordino.core import study as studies
from sordino.core.run import session
from sordino.core.run.verify import priced, verify
from sordino.privacy import Ledger
from sordino.privacy.records import Prices
from sordino.regimes.asynchronous.study import TEMPLATE as ASYNCHRONOUS
from sordino.regimes.synchronous.study import TEMPLATE as SYNCHRONOUS
from sordino.regimes.vertical.study import TEMPLATE as VERTICAL

CHEAP = {
    "synchronous": (
        SYNCHRONOUS,
        ["data.clients=3", "budget.rounds=4", "budget.steps=8", "execution.checkpoint_every=1"],
    ),
    "asynchronous": (
        ASYNCHRONOUS,
        [
            "data.clients=3",
            "budget.updates=60",
            "execution.evaluate_every=20",
            "execution.checkpoint_every=1",
        ],
    ),
    "vertical": (
        VERTICAL,
        [
            'privacy={unit="label", epsilon=3.0, delta=1e-5}',
            "data.stream=replay",
            "budget.events=1300",
            "execution.evaluate_every=100",
            "execution.checkpoint_every=1",
        ],
    ),
}


class Stopped(Exception):
    """What a kill is in these tests."""


def quiet(told: object) -> None:
    """Show nothing."""


def study(folder: Path, regime: str, *changes: str) -> studies.Study:
    text, cheap = CHEAP[regime]
    (folder / "asked.toml").write_text(text)
    return studies.read(folder / "asked.toml", [*cheap, *changes])


def stopped(asked: studies.Study, folder: Path) -> None:
    """A run that is stopped while it shows the first row after a checkpoint."""

    def show(row: object) -> None:
        if list((folder / "checkpoints").glob("latest.safetensors")):
            raise Stopped

    with pytest.raises(Stopped):
        session.begin(asked, folder, show, quiet)


@dataclass(frozen=True)
class Made:
    """A run that ended, and the same one stopped on its way."""

    regime: str
    ended: Path
    stopped: Path


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(each, marks=[pytest.mark.nightly] if each == "asynchronous" else [])
        for each in CHEAP
    ],
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    place = tmp_path_factory.mktemp(request.param)
    asked = study(place, request.param)
    session.begin(asked, place / "ended", quiet, quiet)
    stopped(asked, place / "stopped")
    return Made(request.param, place / "ended", place / "stopped")


def copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to / "run"))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    about = json.loads((folder / "run.json").read_text())
    change(about)
    (folder / "run.json").write_text(json.dumps(about))


def sql(path: Path, statement: str) -> None:
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()


def test_what_is_as_it_was_passes(made: Made) -> None:
    about = json.loads((made.ended / "run.json").read_text())
    verdict = verify(made.ended)
    assert verdict.problems == verdict.remarks == []
    assert verdict.sealed is True
    assert verdict.epsilon == about["result"]["epsilon"]
    (kept,) = verdict.ledgers
    assert {unit.name for unit in kept.units} == set(
        Ledger.open(made.ended / "ledger.sqlite", readonly=True).units()
    )
    assert all(unit.epsilon is not None for unit in kept.units)
    running = verify(made.stopped)
    assert running.problems == []
    assert running.sealed is False
    assert "no seal" in running.remarks[0]
    assert verify(made.ended, digest=about["ledger"]["digest"]).problems == []
    assert "no link of the chain" in verify(made.ended, digest="0" * 64).problems[0]


def test_an_earlier_link_is_not_where_the_run_was_sealed(made: Made) -> None:
    path, first = made.ended / "run.json", made.ended / "ledger.sqlite"
    with Ledger.open(first, readonly=True) as ledger:
        seq, digest = next((each.seq, each.digest) for each in ledger.entries())
    about = json.loads(path.read_text())
    about["ledger"].update(seq=seq, digest=digest)
    path.write_text(json.dumps(about))
    assert any("no link of the chain" in each for each in verify(made.ended).problems)


FORGED: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("result.epsilon is 0.1; the ledger gives", lambda about: about["result"].update(epsilon=0.1)),
    (
        "result.spent lists",
        lambda about: about["result"].update(spent=[0.1] * len(about["result"]["spent"])),
    ),
    ("result.spent lists 0 units", lambda about: about["result"].update(spent=None)),
    ("result.accuracy is 1.0", lambda about: about["result"].update(accuracy=1.0)),
    ("delta is 1e-09; the ledger says", lambda about: about.update(delta=1e-9)),
    (
        "noise_multiplier is 50.0; the ledger says",
        lambda about: about.update(noise_multiplier=50.0),
    ),
    ('accountant is "rdp"; the ledger says "pld"', lambda about: about.update(accountant="rdp")),
    ('unit is "galaxy"', lambda about: about.update(unit="galaxy")),
    ('adjacency is "none"', lambda about: about.update(adjacency="none")),
    ("epsilon_budget is 0.1", lambda about: about.update(epsilon_budget=0.1)),
    (
        'guarantee is "Nothing can be learnt."',
        lambda about: about.update(guarantee="Nothing can be learnt."),
    ),
    ("assumptions is []", lambda about: about.update(assumptions=[])),
    ('warnings is ["all is well"]', lambda about: about.update(warnings=["all is well"])),
    ("clients is", lambda about: about.update(clients=about["clients"][1:])),
    ('status is "running"', lambda about: about.update(status="running")),
    ("ledger.digest is no link", lambda about: about["ledger"].update(digest="0" * 64)),
    ("ledger.digest is no link", lambda about: about.update(ledger=None)),
    ("ledger.scope is 'data'", lambda about: about["ledger"].update(scope="data")),
    ("ledger.scope is None", lambda about: about["ledger"].pop("scope")),
    ("knows nothing of run 'another'", lambda about: about.update(run="another")),
    ("result.epsilon is not a number", lambda about: about.update(result="fine")),
    ("extra is 1; the ledger says not set", lambda about: about.update(extra=1)),
]


@pytest.mark.parametrize(("message", "change"), FORGED)
def test_a_forged_run_json_is_named(
    made: Made, tmp_path: Path, message: str, change: Callable[[dict[str, Any]], object]
) -> None:
    folder = copy(made.ended, tmp_path)
    edit(folder, change)
    problems = verify(folder).problems
    assert any(message in problem and "run.json" in problem for problem in problems), problems


def test_a_key_that_stands_twice_is_named(made: Made, tmp_path: Path) -> None:
    """Of two values, readers of JSON take the first or the last, and people read the first."""
    path = copy(made.ended, tmp_path) / "run.json"
    path.write_text('{"epsilon_budget": 0.1,' + path.read_text().lstrip().removeprefix("{"))
    (problem,) = verify(path.parent).problems
    assert "run.json" in problem
    assert "names 'epsilon_budget' twice" in problem


@pytest.mark.parametrize(
    "name", ["study.toml", "rounds.jsonl", "model.safetensors", "environment.json"]
)
@pytest.mark.parametrize("how", ["appended", "emptied", "missing", "link"])
def test_changed_files_are_named(made: Made, tmp_path: Path, name: str, how: str) -> None:
    folder = copy(made.ended, tmp_path)
    path = folder / name
    match how:
        case "appended":
            path.write_bytes(path.read_bytes() + b"\n")
        case "emptied":
            path.write_bytes(b"")
        case "missing":
            path.unlink()
        case "link":
            path.unlink()
            path.symlink_to("/dev/zero")
    problems = verify(folder, seconds=30.0).problems
    assert any(str(path) in problem for problem in problems), problems


def test_a_run_without_run_json_is_no_ledger_alone(made: Made, tmp_path: Path) -> None:
    folder = copy(made.ended, tmp_path)
    (folder / "run.json").unlink()
    (problem,) = verify(folder).problems
    assert "run.json" in problem


def test_an_edited_study_is_named_by_its_key(made: Made, tmp_path: Path) -> None:
    folder = copy(made.ended, tmp_path)
    text = (folder / "study.toml").read_text()
    (folder / "study.toml").write_text(re.sub(r"(?m)^delta = .*$", "delta = 1e-9", text))
    assert any(
        "privacy.delta is 1e-09; the ledger says" in problem for problem in verify(folder).problems
    )


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entries WHERE seq = (SELECT MAX(seq) FROM entries)",
        "DELETE FROM notes WHERE kind = 'seal'",
        "DELETE FROM notes WHERE kind = 'begin'",
        "DELETE FROM notes WHERE kind = 'unit'",
        "UPDATE entries SET count = -count",
        "UPDATE notes SET content = '{}' WHERE kind = 'seal'",
        "CREATE TRIGGER t AFTER INSERT ON entries BEGIN SELECT 1; END",
    ],
)
def test_a_changed_ledger_is_named(made: Made, tmp_path: Path, statement: str) -> None:
    folder = copy(made.ended, tmp_path)
    sql(folder / "ledger.sqlite", statement)
    assert verify(folder).problems


def test_entries_cut_off_with_the_seal_show_against_checkpoint_and_result(
    made: Made, tmp_path: Path
) -> None:
    folder = copy(made.ended, tmp_path)
    sql(folder / "ledger.sqlite", "DELETE FROM notes WHERE kind = 'seal'")
    sql(folder / "ledger.sqlite", "DELETE FROM entries WHERE seq = (SELECT MAX(seq) FROM entries)")
    edit(folder, lambda about: about.update(status="running", result=None))
    assert any("at the checkpoint the ledger" in problem for problem in verify(folder).problems)


HOSTILE = [
    "",
    "nonsense",
    "[" * 200_000,
    "[]",
    '"run"',
    '{"run": ' + "9" * 10_000 + "}",
    '{"a":' * 100_000,
    "\0",
    '{"run": {}}',
    "{}",
]


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("name", ["run.json", "study.toml"])
def test_hostile_text_is_a_clear_problem(
    made: Made, tmp_path: Path, name: str, content: str
) -> None:
    folder = copy(made.ended, tmp_path)
    (folder / name).write_text(content)
    problems = verify(folder).problems
    assert problems
    assert all(len(problem) < 5000 for problem in problems)


def test_a_huge_run_json_ends_at_once(made: Made, tmp_path: Path) -> None:
    folder = copy(made.ended, tmp_path)
    with (folder / "run.json").open("r+b") as file:
        file.truncate(10 << 30)
    assert "at most" in verify(folder).problems[0]


# What a stopped run is held to when it goes on.


def refused(folder: Path, message: str, kind: type[SordinoError] = ResumeError) -> None:
    before = {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and not path.name.startswith("ledger")
    }
    with pytest.raises(kind, match=message):
        session.resume(folder, quiet, quiet)
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert not (folder / "model.safetensors").exists()


def test_what_was_stopped_goes_on_to_the_same_end(made: Made, tmp_path: Path) -> None:
    folder = copy(made.stopped, tmp_path)
    session.resume(folder, quiet, quiet)
    for name in ("rounds.jsonl", "model.safetensors"):
        if made.regime != "vertical" or name != "rounds.jsonl":  # whose rows hold times
            assert (folder / name).read_bytes() == (made.ended / name).read_bytes()
    assert verify(folder).problems == []
    ends = (folder / "ledger.sqlite").stat().st_size
    session.resume(folder, quiet, quiet)  # says again how it ended, and seals nothing twice
    assert (folder / "ledger.sqlite").stat().st_size == ends
    assert verify(folder).problems == []


def test_a_missing_ledger_is_refused_and_not_made_anew(made: Made, tmp_path: Path) -> None:
    folder = copy(made.stopped, tmp_path)
    for path in folder.glob("ledger.sqlite*"):
        path.unlink()
    refused(folder, "the ledger is missing")
    assert not (folder / "ledger.sqlite").exists()


def test_a_new_ledger_of_the_same_data_is_refused(made: Made, tmp_path: Path) -> None:
    folder = copy(made.stopped, tmp_path)
    with Ledger.open(folder / "ledger.sqlite", readonly=True) as ledger:
        units = ledger.units()
    for path in folder.glob("ledger.sqlite*"):
        path.unlink()
    Ledger.create(folder / "ledger.sqlite", units).close()
    refused(folder, "no ledger here knows of run")


def test_the_ledger_of_another_run_is_refused(made: Made, tmp_path: Path) -> None:
    folder = copy(made.stopped, tmp_path)
    for path in folder.glob("ledger.sqlite*"):
        path.unlink()
    shutil.copy(made.ended / "ledger.sqlite", folder / "ledger.sqlite")
    refused(folder, "no ledger here knows of run")


def test_an_older_copy_of_the_ledger_is_refused(made: Made, tmp_path: Path) -> None:
    folder = copy(made.stopped, tmp_path)
    sql(folder / "ledger.sqlite", "DELETE FROM entries")
    refused(folder, "older than the checkpoint, or another ledger")


EDITS = {
    "delta": (r"(?m)^delta = .*$", "delta = 1e-9", "privacy.delta was .*, is 1e-09"),
    "epsilon": (r"(?m)^epsilon = .*$", "epsilon = 99.0", "privacy.epsilon was .*, is 99"),
    "seed": (r"(?m)^seed = 0$", "seed = 1", "seed was 0, is 1"),
    "rate": (
        r"(?m)^learning_rate = .*$",
        "learning_rate = 0.123",
        "method.learning_rate was .*, is 0.123",
    ),
    "name": (r"(?m)^name = .*$", 'name = "another"', "name was .*, is"),
}


@pytest.mark.parametrize("key", [key for key in EDITS if key != "name"])
def test_an_edited_study_is_refused_by_key(made: Made, tmp_path: Path, key: str) -> None:
    folder = copy(made.stopped, tmp_path)
    pattern, instead, message = EDITS[key]
    text = (folder / "study.toml").read_text()
    changed = re.sub(pattern, instead, text, count=1)
    if changed == text:
        pytest.skip("a key of other regimes")
    (folder / "study.toml").write_text(changed)
    refused(folder, message)


def test_less_noise_than_the_run_began_with_is_refused(tmp_path: Path) -> None:
    stopped(study(tmp_path, "synchronous", "privacy.noise_multiplier=2.0"), tmp_path / "run")
    path = tmp_path / "run" / "study.toml"
    path.write_text(path.read_text().replace("noise_multiplier = 2.0", "noise_multiplier = 1.9"))
    refused(tmp_path / "run", r"study\.toml: privacy\.noise_multiplier was 2\.0, is 1\.9")


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("delta was .*, is 0.5", lambda about: about.update(delta=0.5)),
        ("payable was", lambda about: about.update(payable=[10**6])),
        ("no ledger here knows of run another", lambda about: about.update(run="another")),
    ],
)
def test_an_edited_promise_is_refused(
    made: Made, tmp_path: Path, message: str, change: Callable[[dict[str, Any]], object]
) -> None:
    folder = copy(made.stopped, tmp_path)
    edit(folder, change)
    refused(folder, message)


@pytest.mark.parametrize(
    ("key", "value"), [("torch", "1.0.0"), ("numerics", "0123456789abcdef"), ("threads", 64)]
)
def test_another_environment_is_refused(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: object
) -> None:
    from sordino.core.run import environment
    from sordino.core.run import session as sessions

    folder = copy(made.stopped, tmp_path)
    monkeypatch.setattr(
        sessions, "environment", lambda study: {**environment.environment(study), key: value}
    )
    refused(folder, f"environment: {key} was .*, is")


def test_what_is_only_looked_at_may_be_changed(made: Made, tmp_path: Path) -> None:
    folder = copy(made.stopped, tmp_path)
    path = folder / "study.toml"
    path.write_text(
        re.sub(r"(?m)^checkpoint_every = .*$", "checkpoint_every = 7", path.read_text())
    )
    session.resume(folder, quiet, quiet)
    assert verify(folder).problems == []


def table(path: Path, last: float = 1.0) -> None:
    rows = [f"{i % 7},{i % 5},{i % 2}" for i in range(119)]
    path.write_text("a,b,label\n" + "\n".join([*rows, f"{last},1,0"]) + "\n")


@pytest.mark.parametrize("regime", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("kept", ["run", "data"])
def test_data_that_changed_is_refused_and_named(tmp_path: Path, regime: str, kept: str) -> None:
    table(tmp_path / "mine.csv")
    told = [
        f'data={{file="{tmp_path / "mine.csv"}", clients=3, partition={{kind="iid"}}}}',
        "model.name=logistic",
        "privacy.delta=0.01",
    ]
    told += [] if kept == "run" else [f'privacy.ledger="{tmp_path / "kept"}"']
    told += ["method.batch=10"] if regime == "asynchronous" else []
    stopped(study(tmp_path, regime, *told), tmp_path / "run")
    before = sorted((tmp_path / "kept").glob("*")) if kept == "data" else []
    table(tmp_path / "mine.csv", last=2.0)
    refused(tmp_path / "run", "client:[012]")
    assert not [path for path in (tmp_path / "kept").glob("*.sqlite") if path not in before]
    table(tmp_path / "mine.csv")
    session.resume(tmp_path / "run", quiet, quiet)
    verdict = verify(tmp_path / "run")
    assert verdict.problems == []
    assert {unit.label or unit.name for each in verdict.ledgers for unit in each.units} == {
        "client:0",
        "client:1",
        "client:2",
    }


def test_a_stream_that_changed_is_refused(tmp_path: Path) -> None:
    table(tmp_path / "mine.csv")
    told = [
        f'data={{file="{tmp_path / "mine.csv"}", parties=2, stream="replay"}}',
        "model.name=linear",
    ]
    stopped(study(tmp_path, "vertical", *told), tmp_path / "run")
    table(tmp_path / "mine.csv", last=2.0)
    refused(tmp_path / "run", "the data of .* is not what the run began with")


def test_public_examples_that_choose_a_bound_are_held_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sordino.clients import assemble

    stopped(study(tmp_path, "synchronous", "data.validation=50"), tmp_path / "run")
    monkeypatch.setattr(assemble, "_examples_digest", lambda examples, public: "other")
    refused(tmp_path / "run", 'validation was "[0-9a-f]{64}", is "other"')


def test_a_secret_key_is_the_one_that_the_run_began_with(tmp_path: Path) -> None:
    """With another key, what is booked once would be released twice."""
    from sordino.core.run.environment import ENDED
    from sordino.core.run.folder import KEY

    stopped(study(tmp_path, "synchronous", 'privacy.entropy="system"'), tmp_path / "run")
    key = tmp_path / "run" / KEY
    secret = key.read_bytes()
    for other, message in (
        (bytes(32), "not the one that the run began with"),
        (ENDED, "destroyed"),
    ):
        key.write_bytes(other)
        refused(tmp_path / "run", message)
    key.unlink()
    refused(tmp_path / "run", "the secret key is missing")
    assert not key.exists()
    key.write_bytes(secret)
    session.resume(tmp_path / "run", quiet, quiet)
    assert key.read_bytes() == ENDED
    assert verify(tmp_path / "run").problems == []
    session.resume(tmp_path / "run", quiet, quiet)
    (tmp_path / "run" / "checkpoints" / "latest.safetensors").unlink()
    with pytest.raises(ResumeError, match="destroyed"):
        session.resume(tmp_path / "run", quiet, quiet)


def test_ledgers_of_the_data_are_verified_as_a_folder_and_from_the_run(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    session.begin(
        study(tmp_path, "synchronous", f'privacy.ledger="{kept}"', "budget.rounds=1"),
        tmp_path / "one",
        quiet,
        quiet,
    )
    session.begin(
        study(tmp_path, "synchronous", f'privacy.ledger="{kept}"', "privacy.epsilon=6.0", "seed=1"),
        tmp_path / "two",
        quiet,
        quiet,
    )
    # what came after the seal of the first is not its own
    for folder in (tmp_path / "one", tmp_path / "two"):
        assert verify(folder).problems == []
    whole = verify(kept)
    assert len(whole.ledgers) == 1
    assert whole.epsilon is not None
    assert whole.epsilon <= (verify(tmp_path / "two").epsilon or 0.0)
    edit(
        tmp_path / "two",
        lambda about: about["result"].update(spent=[each / 2 for each in about["result"]["spent"]]),
    )
    assert any(
        "result.spent lists 3 units" in problem for problem in verify(tmp_path / "two").problems
    )
    edit(  # less than in all runs, and no less than this one's own entries
        tmp_path / "two",
        lambda about: about["result"].update(
            spent=[1.98 * each for each in about["result"]["spent"]]
        ),
    )
    assert any("result.spent is" in problem for problem in verify(tmp_path / "two").problems)
    victim = min(kept.glob("*.sqlite"))
    sql(victim, "UPDATE entries SET count = 1")
    for place in (kept, tmp_path / "one"):
        assert any(str(victim) in problem for problem in verify(place).problems)
    shutil.rmtree(kept)
    assert "no ledger of its run was found" in verify(tmp_path / "one").problems[0]


def test_a_promise_of_nothing_is_verified_as_such(tmp_path: Path) -> None:
    told = [
        'method={name="fedavg", tau=2, learning_rate=0.3}',
        'privacy={unit="none", sampling_rate=0.2}',
    ]
    session.begin(study(tmp_path, "synchronous", *told), tmp_path / "run", quiet, quiet)
    verdict = verify(tmp_path / "run")
    assert verdict.problems == []
    assert verdict.epsilon == float("inf")
    edit(tmp_path / "run", lambda about: about["result"].update(epsilon=0.5))
    assert any(
        "result.epsilon is 0.5; the ledger gives inf" in problem
        for problem in verify(tmp_path / "run").problems
    )


def test_nothing_to_verify_is_said(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StudyError, match="no run folder, ledger file or folder of ledgers"):
            verify(place)


def test_the_command_line_says_what_is_wrong_in_one_line_each(tmp_path: Path) -> None:
    session.begin(study(tmp_path, "synchronous"), tmp_path / "run", quiet, quiet)
    edit(
        tmp_path / "run",
        lambda about: (
            about["result"].update(epsilon=0.1),
            about.update(guarantee="\x1b[2Jall is well"),
        ),
    )
    done = sordino(tmp_path, "ledger", "verify", str(tmp_path / "run"), "--json")
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert found["ok"] is False
    assert len(found["problems"]) == 2
    assert done.stderr.count("run.json") == 2
    assert "\x1b" not in done.stderr
    os.truncate(tmp_path / "run" / "ledger.sqlite", 5000)
    for command in ("verify", "show", "epsilon"):
        done = sordino(tmp_path, "ledger", command, str(tmp_path / "run"))
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_names_of_units_cannot_steer_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "odd.sqlite"
    Ledger.create(
        path, {"\x1b[31mred": "a", "[bold]x[/bold]": "b"}, {"[bold]x[/bold]": "Anna\u202e"}
    ).close()
    done = sordino(tmp_path, "ledger", "epsilon", str(path), "--delta", "1e-5")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout
    assert "[bold]x[/bold]" in done.stdout
    with pytest.raises(LedgerError), Ledger.open(path, readonly=True) as ledger:
        ledger.spent("red")


def test_a_run_that_was_set_back_is_found(tmp_path: Path) -> None:
    """Rounds were released twice and charged once: epsilon 2.73 where the ledger had 2."""

    class Killed(BaseException):
        pass

    def kill(row: Any) -> None:
        if row.round == 4:
            raise Killed

    path = tmp_path / "study.toml"
    path.write_text(SYNCHRONOUS)
    changes = (
        'data={name="digits", clients=2}',
        "model.name=logistic",
        'method={name="dp-sgd", tau=1}',
        "budget.rounds=6",
        "privacy.noise_multiplier=2",
        "execution.checkpoint_every=1",
    )
    with pytest.raises(Killed):
        session.begin(studies.read(path, changes), tmp_path / "run", kill, quiet)
    saved = tmp_path / "run" / "checkpoints" / "latest.safetensors"
    with safe_open(saved, "np") as file:
        tensors, about = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
    state = json.loads(about["state"])
    state["moment"]["count"], state["moment"]["state"]["round"] = 0, 0
    tensors["steps"] = np.zeros_like(tensors["steps"])
    save_file(tensors, saved, {**about, "state": json.dumps(state)})
    session.resume(tmp_path / "run", quiet, quiet)
    (problem,) = verify(tmp_path / "run").problems
    assert "round 1 follows 3, so the run was set back" in problem


def test_a_unit_that_comes_while_a_ledger_is_read_does_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, look = tmp_path / "ledger.sqlite", Prices.rest
    with Ledger.create(place, {"client-0": "sha256:00"}) as writer:

        def rest(prices: Prices) -> Any:
            writer.register({"client-1": "sha256:01"})
            return look(prices)

        monkeypatch.setattr(Prices, "rest", rest)
        for known in (["client-0"], ["client-0", "client-1"]):
            (kept,) = priced(place, 1e-5, "pld")
            assert [unit.name for unit in kept.units] == known
