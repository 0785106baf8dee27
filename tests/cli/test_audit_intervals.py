"""``sordino audit --attack mechanism|canaries|all``: the table, the picture, the exit status."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from sordino.api import auditing
from sordino.audit import mechanisms
from sordino.audit.mechanisms import Effort, sigma_of, subject
from sordino.base.errors import Interrupted, StudyError
from sordino.cli import app
from sordino.mechanisms.gaussian import Gaussian
from sordino.mechanisms.kinds import GaussianNoise

FEW_MECHANISMS = ("gaussian, ε = 1", "randomised response, 2 classes", "raw mu beside a step")
"""For the table beside a study; all of them are in the table without one."""
EXAMPLE = Path(__file__).parents[2] / "examples/audit/samples.toml"


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE, "study.toml")
    monkeypatch.setattr(mechanisms.Effort, "__init__", _few)


def _few(self: Effort, cheap: int = 0, dear: int = 0) -> None:
    object.__setattr__(self, "cheap", 20_000)
    object.__setattr__(self, "dear", 400)


def audit(*arguments: str) -> int:
    return int(app(["audit", *arguments], standalone_mode=False) or 0)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few mechanisms, and runs that are as short as they can be."""
    known = [each for each in mechanisms.subjects() if each.name in FEW_MECHANISMS]
    monkeypatch.setattr(mechanisms, "subjects", lambda: known)
    short = {name: re.sub(r"\d+", "20", each) for name, each in auditing.SMALL.items()}
    rounds = dict.fromkeys(("samples", "clients"), "budget.rounds=2")
    monkeypatch.setattr(auditing, "SMALL", short | rounds)


@pytest.mark.usefixtures("painted")
def test_all_rows_stand_in_one_table(capfd: pytest.CaptureFixture[str], few: None) -> None:
    arguments = ["study.toml", "--attack", "all", "--canaries", "500", "--json"]
    assert audit(*arguments, "--set", "budget.rounds=5", "--set", "model.name=logistic") == 0
    output = capfd.readouterr()
    told = json.loads(output.out.splitlines()[-1])
    assert told["confidence"] == 0.95
    names = [one["name"] for one in told["intervals"]]
    assert names[0] == "the study's gaussian"
    assert names[-2:] == ["dp-sgd, every release seen", "dp-sgd, model at the end"]
    assert set(told["verdicts"]) == {"holds", "caught"}
    picture = Path("runs/audit-study/audit.svg").read_text(encoding="utf-8")
    for name in ("raw mu beside a step", "dp-sgd, every release seen", "caught", "∞"):
        assert name in picture
    assert "the study's own examples, with canaries among them" in output.err


@pytest.mark.usefixtures("painted")
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_the_build_fails_where_a_lower_bound_of_anything_exceeds_its_ledger(
    whole: bool, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """Every mechanism at night, and a run for every unit, at 95 % for all rows together."""
    if not whole:
        request.getfixturevalue("few")
    arguments = [
        "--attack",
        "all",
        "--canaries",
        "400",
        "--shadows",
        "4",
        "--workers",
        "1",
        "--json",
    ]
    assert audit(*arguments) == 0
    output = capfd.readouterr()
    told = json.loads(output.out.splitlines()[-1])
    found = told["intervals"]
    assert {one["unit"] for one in found} == {"sample", "client", "label", "entity"}
    assert {one["how"].partition(",")[0] for one in found} == {
        "two worlds",
        "one run",
        "4 shadow runs",
    }
    assert [one["name"] for one in found][-8:] == [
        "dp-sgd, every release seen",
        "dp-sgd, model at the end",
        "dp-fedavg, every release seen",
        "mapa, every gradient seen",
        "dlr, labels, every answer seen",
        "dlr, entities, every message seen",
        "dp-sgd, shadow runs, online",
        "dp-sgd, shadow runs, offline",
    ]
    for one, verdict in zip(found, told["verdicts"], strict=True):
        assert verdict == ("holds" if one["sound"] else "caught")
    assert [one["form"] for one in told["inferred"]] == ["online", "offline"]
    assert "hits at 0.1% false alarms" in output.err
    assert told["picture"] == "runs/audit/audit.svg"
    assert "dp-fedavg, every release seen" in Path(told["picture"]).read_text(encoding="utf-8")
    assert "false alarms" in Path("runs/audit/lira.svg").read_text(encoding="utf-8")


def test_shadow_runs_in_processes_of_their_own_are_made_once(
    capfd: pytest.CaptureFixture[str], forked: None
) -> None:
    arguments = ["study.toml", "--attack", "lira", "--shadows", "4", "--set", "budget.rounds=2"]
    assert audit(*arguments, "--workers", "2", "--json") == 0
    first = capfd.readouterr()
    runs = sorted(Path("runs/audit-study/shadows").rglob("*.npz"))
    assert len(runs) == 6
    made = [each.stat().st_mtime_ns for each in runs]
    assert audit(*arguments, "--json") == 0
    assert capfd.readouterr().out == first.out
    assert [each.stat().st_mtime_ns for each in runs] == made
    assert "some left out" in first.err


def test_interrupted_shadow_runs_go_on_by_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def observe(*given: object) -> None:
        stopped = KeyboardInterrupt()
        stopped.add_note("Continue with `sordino run --resume run-0000`")
        raise stopped

    monkeypatch.setattr("sordino.api.auditing.observe", observe)
    with pytest.raises(Interrupted, match=r"interrupted\. Finished runs are kept: give the same"):
        audit("study.toml", "--attack", "lira", "--shadows", "4", "--workers", "1")


def test_without_a_study_all_mechanisms_are_looked_at(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = subject("gaussian", GaussianNoise(), sigma_of(2.0), 1, cheap=True)
    monkeypatch.setattr(mechanisms, "subjects", lambda: [one])
    assert audit("--attack", "mechanism", "--out", "here.svg", "--json") == 0
    first = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert [each["name"] for each in first["intervals"]] == ["gaussian"]
    assert audit("--attack", "mechanism", "--out", "here.svg", "--json") == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1]) == first  # seeded
    # a mechanism that adds less noise than it books ends with a status of its own
    object.__setattr__(one, "draw", mechanisms.releases(Gaussian(clip=0.7, noise_multiplier=0.5)))
    assert audit("--attack", "mechanism") == 1
    assert "FAILED: gaussian" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--attack", "lira", "--shadows", "3"], "--shadows must be from 4"),
        (["--attack", "mechanism", "--shadows", "8"], "--shadows does not go with --attack"),
        (["--attack", "inversion", "--shadows", "8"], "--shadows does not go with --attack"),
        (["--attack", "lira", "--model", "cnn"], "--model does not go with --attack lira"),
        (["--attack", "all", "--images", "3"], "--images does not go with --attack all"),
        (["--attack", "canaries", "--noise", "1"], "--noise does not go with --attack canaries"),
        (["--attack", "inversion"], "--attack inversion needs a study or a run folder"),
        (["--attack", "mechanism", "--out", "x.png"], "the picture is an SVG file"),
    ],
)
def test_mistakes_are_told(arguments: list[str], message: str) -> None:
    with pytest.raises(StudyError) as refused:
        audit(*arguments)
    assert message in str(refused.value)
    assert not list(Path().glob("*.svg"))
