"""What earlier versions left on disk is read, verified and gone on with, and what commands write
for machines stays as it was: see ``stored``.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from command import sordino
from sordino.base import NUMERICS, processes
from sordino.base.errors import ResumeError
from sordino.core.run import environment, session
from sordino.core.run.verify import verify
from stored import CASES, FOLDERS, TOLD, as_then, at_home, fresh, quiet, refusals, told, unpacked
from test_same_bits import TIMES, probe

BEFORE: dict[str, Any] = json.loads((FOLDERS / "told.json").read_text())


def same(now: Any, then: Any) -> bool:
    """Equal, numbers to nine digits: accountants round as their machine does."""
    if isinstance(now, dict) and isinstance(then, dict):
        return now.keys() == then.keys() and all(same(now[key], then[key]) for key in now)
    if isinstance(now, list) and isinstance(then, list):
        return len(now) == len(then) and all(map(same, now, then))
    if isinstance(now, float) and isinstance(then, float):
        return math.isclose(now, then, rel_tol=1e-9)
    return bool(now == then) and type(now) is type(then)


def rows(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in found]


@pytest.mark.parametrize("name", CASES)
def test_commands_read_what_was_left(name: str, tmp_path: Path) -> None:
    place = unpacked(name, tmp_path.resolve())
    for state in ("ended", "killed"):
        then = BEFORE["runs"][name]["told"][state]
        now = told(place / state, TOLD)
        assert now.keys() == then.keys()
        for command in now:
            assert same(now[command], then[command]), (state, command, now[command])


@pytest.mark.parametrize("name", CASES)
def test_what_was_killed_ends_as_what_was_not(name: str, tmp_path: Path) -> None:
    """An installed version goes on with a run of another one that computes the same."""
    place = unpacked(name, tmp_path.resolve())
    run, whole = place / "killed" / "run", place / "ended" / "run"
    with at_home(place / "killed"), as_then(run):
        outcome = session.resume(run, quiet, quiet)
        verdict = verify(run)
    assert verdict.problems == []
    assert verdict.sealed is True
    result = json.loads((whole / "run.json").read_text())["result"]
    assert outcome.why == result["why"]
    assert outcome.rounds == result["rounds"]
    ended = "inf" if math.isinf(outcome.epsilon) else outcome.epsilon
    assert same(ended, result["epsilon"])
    alike = BEFORE["probe"] == probe() and BEFORE["numerics"] == NUMERICS
    if not alike or "system" in (run / "study.toml").read_text():
        return
    if name != "ali-dpfl":  # another run over a ledger of the data draws other noise
        assert rows(run) == rows(whole)
        weights, others = (load_file(each / "model.safetensors") for each in (run, whole))
        assert all((weights[key] == others[key]).all() for key in weights | others)


@pytest.mark.parametrize("name", CASES)
def test_an_ended_run_says_again_how_it_ended(name: str, tmp_path: Path) -> None:
    place = unpacked(name, tmp_path.resolve())
    run = place / "ended" / "run"
    before = {path: path.read_bytes() for path in run.glob("*.*") if "sqlite" not in path.name}
    with at_home(place / "ended"), as_then(run):
        outcome = session.resume(run, quiet, quiet)
        assert verify(run).problems == []
    assert outcome.accuracy == json.loads(before[run / "run.json"])["result"]["accuracy"]
    now = {path: path.read_bytes() for path in before}
    about = [json.loads(each.pop(run / "run.json")) for each in (now, before)]
    if name == "ali-dpfl":  # its ledger has gone on
        del about[0]["ledger"], about[1]["ledger"]
    assert about[0] == about[1]
    assert now == before


def test_a_run_of_other_sources_is_refused_by_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what a checkout computes: the digest of its sources must be the same."""
    monkeypatch.setattr(environment, "sources", lambda: "0" * 16)
    place = unpacked("audp", tmp_path.resolve())
    run = place / "killed" / "run"
    files = [each for each in run.rglob("*") if each.is_file() and "sqlite" not in each.name]
    before = {path: path.read_bytes() for path in files}
    with pytest.raises(ResumeError) as refused:
        session.resume(run, quiet, quiet)
    first, last = str(refused.value).splitlines()[0], str(refused.value).splitlines()[-1]
    assert first.startswith('environment: numerics was "1-')
    assert last == (
        f"{run}: a run can be resumed only without changes. Put back what is named above as it "
        "was, or begin a new run with what is new"
    )
    assert {path: path.read_bytes() for path in before} == before
    done = sordino(place / "killed", "run", "--resume", "run")
    assert done.returncode == 2
    assert "environment: numerics was" in done.stderr


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("dp-sgd", "ended"),
        ("dp-sgd", "killed"),
        pytest.param("slr, entities", "ended", marks=pytest.mark.nightly),
        ("slr, entities", "killed"),
    ],
)
def test_a_changed_file_is_refused_as_before(name: str, state: str, tmp_path: Path) -> None:
    place = unpacked(name, tmp_path.resolve())
    then, now = BEFORE["runs"][name]["refusals"][state], refusals(place, state)
    assert now.keys() == then.keys()
    assert {key: now[key] for key in now if now[key] != then[key]} == {}


def test_what_is_written_for_machines_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import warm

    monkeypatch.setattr(processes, "subprocess", warm)
    now = fresh(tmp_path.resolve())
    assert now.keys() == BEFORE["fresh"].keys()
    for command, then in BEFORE["fresh"].items():
        told = now[command]
        if isinstance(told, dict):  # keys may have come since
            told = {key: told[key] for key in told if key in then}
        if name := {"methods --json": "name", "keys privacy --json": "key"}.get(command):
            known = {each[name] for each in then}  # others may have come since, in any order
            told = [each for each in told if each[name] in known]
            told, then = (sorted(each, key=json.dumps) for each in (told, then))
        assert same(told, then), (command, told)
