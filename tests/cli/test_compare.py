"""``sordino compare`` from end to end on the embedded digits."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rich.console import Console

import warm
from command import paint, sordino
from sordino.base import processes
from sordino.base.errors import StudyError
from sordino.cli import app
from sordino.comparison.runner import Progress, rounds_done
from sordino.comparison.schedule import Side, tasks
from sordino.core import study as studies
from sordino.regimes.synchronous.study import TEMPLATE as SYNCHRONOUS

FAST = ["data.clients=4", "budget.rounds=2", "model.name=logistic", "privacy.noise_multiplier=2.0"]
SETS = [part for change in FAST for part in ("--set", change)]
NAMES = ("slow", "quick", "lost")


def write_studies(at: Path) -> None:
    for name, method, data in zip(
        NAMES,
        ("tau=1", "tau=3", "tau=1"),
        ('name = "digits"', 'name = "digits"', 'file = "gone.csv"'),
        strict=True,
    ):
        text = SYNCHRONOUS.replace("ALI-DPFL on digits", name).replace('name = "digits"', data)
        head, _, rest = text.partition("[method]")
        rest = rest[rest.index("[privacy]") :]
        (at / f"{name}.toml").write_text(
            f'{head}[method]\nname = "dp-sgd"\nlearning_rate = '
            f"0.5\n{method.replace('=', ' = ')}\n\n{rest}",
            encoding="utf-8",
        )


def start(at: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sordino", "compare", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=at,
    )


def here(*arguments: str) -> int:
    """The command in this process; its exit status."""
    return int(app(["compare", *arguments], standalone_mode=False) or 0)


class Some:
    """For :mod:`subprocess`: one run is started as ever, all others are forks."""

    DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired
    cold = False

    @staticmethod
    def Popen(command: Sequence[str], **options: Any) -> Any:  # noqa: N802
        if any("slow-0.toml" in word for word in command):
            Some.cold = True
            return subprocess.Popen(command, **options)
        return warm.Popen(command, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str, str]:
    """Two studies that run and one that cannot, each with two seeds: folder, status, output,
    messages.
    """
    at = tmp_path_factory.mktemp("whole")
    write_studies(at)
    paint()
    with mock.patch.object(processes, "subprocess", Some):
        done = sordino(
            at, "compare", *(f"{name}.toml" for name in NAMES), "--seeds", "2", "--out", "out",
            *SETS, "--json"
        )  # fmt: skip
    assert Some.cold
    return at, done.returncode, done.stdout, done.stderr


def test_one_that_fails_loses_nobody_and_is_told(whole: tuple[Path, int, str, str]) -> None:
    _, status, output, messages = whole
    assert status == 1, messages
    found = json.loads(output.splitlines()[-1])
    assert [study["label"] for study in found["studies"]] == list(NAMES)
    lost = found["studies"][2]
    assert [(run["seed"], run["status"]) for run in lost["runs"]] == [(0, "failed"), (1, "failed")]
    assert "gone.csv: no such file" in lost["runs"][0]["reason"]
    assert "failed: lost, seeds 0, 1: " in messages
    assert "gone.csv: no such file" in messages
    assert found["failed"] == 2
    assert found["differences"][1]["verdict"].startswith("no seed has finished in both")
    assert "Traceback" not in messages
    assert "6/6  " in messages  # a line for each run that ended
    assert "\x1b" not in messages


def test_numbers_are_those_of_the_runs(whole: tuple[Path, int, str, str]) -> None:
    at, _, output, _ = whole
    found = json.loads(output.splitlines()[-1])
    accuracies: dict[str, list[float]] = {}
    for name in NAMES[:2]:
        results = [
            json.loads((at / "out" / name / f"seed-{seed}" / "run.json").read_text())["result"]
            for seed in (0, 1)
        ]
        accuracies[name] = [result["accuracy"] for result in results]
        study = next(each for each in found["studies"] if each["label"] == name)
        assert study["accuracy"]["mean"] == pytest.approx(sum(accuracies[name]) / 2)
        assert study["accuracy"]["sd"] == pytest.approx(
            abs(accuracies[name][0] - accuracies[name][1]) / 2**0.5
        )
        assert (
            study["epsilon"]
            == study["claimed_epsilon"]
            == max(result["epsilon"] for result in results)
        )
        assert {study["unit"], study["accountant"], study["delta"]} == {"sample", "pld", 1e-3}
        seeds = [
            studies.read(at / "out" / name / f"seed-{seed}" / "study.toml").seed for seed in (0, 1)
        ]
        assert seeds == [0, 1]
    difference = found["differences"][0]
    assert difference["differences"] == pytest.approx(
        [b - a for a, b in zip(*accuracies.values(), strict=True)]
    )
    assert not difference["equal_privacy"]  # three times the steps
    assert any("not at equal privacy: epsilon" in note for note in difference["notes"])
    assert {"study", "against", "seeds", "mean", "sd", "interval", "verdict"} <= set(difference)
    written = json.loads((at / "out" / "comparison.json").read_text())
    assert written == {key: value for key, value in found.items() if key != "page"}


def test_page_shows_it_all(whole: tuple[Path, int, str, str]) -> None:
    at, _, output, _ = whole
    page = (at / "out" / "comparison.html").read_text(encoding="utf-8")
    difference = json.loads(output.splitlines()[-1])["differences"][0]
    assert page.count("<svg") == 2
    # the bands
    assert page.count("FillBetween") + page.count("fill-opacity") + page.count("opacity: 0.18") > 0
    for said in (
        "Over rounds",
        "Over epsilon",
        "Differences to slow",
        difference["verdict"],
        "gone.csv: no such file",
    ):
        assert said in page
    assert page.count("<script") == 1  # ours


@pytest.fixture
def copied(
    whole: tuple[Path, int, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The same folder to change at will, as the working directory."""
    shutil.copytree(whole[0], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_finished_runs_are_kept_and_one_seed_shows_nothing(
    copied: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = bytes_of(copied / "out" / "slow")
    assert here("slow.toml", "quick.toml", "--seeds", "1", "--out", "out", *SETS) == 0
    said = capfd.readouterr()
    assert bytes_of(copied / "out" / "slow") == before
    assert "2 of 2 runs were finished before" in said.err
    assert "quick: one seed: nothing can be concluded." in said.out


def test_tables_as_latex_with_names_that_are_no_commands(copied: Path) -> None:
    asked = ("slow.toml", "quick.toml", "--seeds", "2", "--out", "out", *SETS)
    assert here(*asked, "--latex", "tables.tex") == 0
    written = (copied / "tables.tex").read_text()
    assert written.count(r"\begin{table}") == written.count(r"\end{table}") == 2
    assert r"\caption{Differences to slow}" in written
    assert r"\%" in written
    with pytest.raises(StudyError, match=r"--latex none/t\.tex: give a file name in a folder"):
        here(*asked, "--latex", "none/t.tex")


def test_another_study_is_refused_and_nothing_changes(copied: Path) -> None:
    before = bytes_of(copied)
    with pytest.raises(StudyError) as refused:
        here(
            "slow.toml",
            "quick.toml",
            "--seeds",
            "2",
            "--out",
            "out",
            *SETS,
            "--set",
            "privacy.clip=2.0",
        )
    assert (
        "out/slow/seed-0: holds a run of another study than slow.toml asks for: privacy.clip "
        "is 0.225 there, 2.0 here" in str(refused.value)
    )
    assert "out/quick/seed-1" in str(refused.value)
    assert "another --out" in str(refused.value)
    assert bytes_of(copied) == before


@pytest.mark.nightly
def test_a_killed_run_is_told_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_studies(tmp_path)
    monkeypatch.chdir(tmp_path)
    arguments = [
        "slow.toml",
        "--seeds",
        "1",
        "--out",
        "out",
        *SETS,
        "--set",
        "budget.rounds=80",
        "--set",
        "execution.checkpoint_every=5",
    ]
    process = start(tmp_path, *arguments, "--json")
    folder = tmp_path / "out" / "slow" / "seed-0"
    until = time.monotonic() + 60
    while rounds_done(folder) < 7 and time.monotonic() < until:
        time.sleep(0.02)
    children = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(children) == 1
    os.kill(int(children[0]), signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (
        "stopped by signal 9"
        in json.loads(output.splitlines()[-1])["studies"][0]["runs"][0]["reason"]
    )
    about = json.loads((folder / "run.json").read_text())
    assert about["status"] == "running"
    (folder.parent / ".seed-0.0123abcd").mkdir()  # as of a run that was killed before it began
    assert here(*arguments, "--json") == 0
    found = json.loads(capfd.readouterr().out.splitlines()[-1])
    after = json.loads((folder / "run.json").read_text())
    assert [path.name for path in folder.parent.iterdir()] == ["seed-0"]
    assert after["run"] == about["run"]  # gone on with, not begun again
    assert found["studies"][0]["runs"][0]["rounds"] == after["result"]["rounds"] == 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["slow.toml", "gone.toml"], "gone.toml: there is no such study file"),
        (["slow.toml", "bad.toml"], "epsilom"),
        (["slow.toml", "./slow.toml"], "given twice"),
        (["slow.toml", "quick.toml", "--seeds", "0"], "--seeds must be at least 1; got 0"),
        (["slow.toml", "quick.toml", "--workers", "0"], "--workers must be at least 1; got 0"),
        (["slow.toml", "quick.toml", "--out", "bad.toml"], "bad.toml: this is a file"),
        (["slow.toml", "quick.toml", "--out", "bad.toml/below"], "bad.toml: this is a file"),
        (
            ["slow.toml", "quick.toml", "--over", "privacy.epsilon"],
            "--over privacy.epsilon: the studies do not differ in it",
        ),
        (["slow.toml", "quick.toml", "--until", "0.75"], "--until goes with --over data.clients"),
        (
            ["slow.toml", "quick.toml", "--set", "name=same", "--set", "seed"],
            "write it as section.key=value",
        ),
    ],
)
def test_mistakes_are_told_and_leave_nothing(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_studies(tmp_path)
    (tmp_path / "bad.toml").write_text(
        (tmp_path / "slow.toml").read_text().replace("epsilon =", "epsilom =")
    )
    monkeypatch.chdir(tmp_path)
    before = bytes_of(tmp_path)
    with pytest.raises(StudyError) as refused:
        here(*arguments, *SETS)
    assert message in str(refused.value)
    assert bytes_of(tmp_path) == before
    assert not (tmp_path / "runs").exists()


def test_mistakes_end_with_status_two(tmp_path: Path) -> None:
    process = start(tmp_path, "gone.toml")
    _, messages = process.communicate(timeout=60)
    assert process.returncode == 2
    assert messages.startswith("sordino: gone.toml: there is no such study file")
    assert "Traceback" not in messages


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def some_tasks(tmp_path: Path) -> list[Any]:
    write_studies(tmp_path)
    sides = []
    for name in NAMES[:2]:
        study = studies.read(tmp_path / f"{name}.toml", FAST)
        sides.append(Side(name, name, tmp_path / f"{name}.toml", study, study))
    return tasks(sides, (0, 1), tmp_path / "out")


def test_a_line_for_each_study(tmp_path: Path) -> None:
    slow0, quick0, slow1, _ = made = some_tasks(tmp_path)
    shown = Progress(made, ["missing"] * 4, io.StringIO())
    shown.ends, shown.going = {slow0: "done", quick0: "failed"}, [slow1]
    shown.rounds = dict.fromkeys(made, 1)
    slow, quick, _ = shown.facts()
    assert (slow.name, slow.text) == ("slow", "1/2  seed 0 done  seed 1 1/2")
    assert (quick.name, quick.text) == ("quick", "0/2  seed 0 failed  seed 1 waiting")


def test_a_terminal_gets_one_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    made = some_tasks(tmp_path)
    now, stream = [0.0], Terminal()
    with Progress(made, ["missing"] * 4, stream, lambda: now[0]) as shown:
        shown.ended(made[0], None)
        now[0] = 5.0
        shown.tick(made[1:2])
        assert "comparison" in stream.getvalue()
        assert "\n1/4" not in stream.getvalue()
        assert shown.share() == 0.25
        drawn = io.StringIO()
        Console(file=drawn, width=120).print(shown.panel())
        assert "15 s left" in drawn.getvalue()
