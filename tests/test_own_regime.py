"""A regime of one page, as docs/own-regime.md has it: the kernel, the ledger, checkpoints,
resuming, the report and verifying know it by public extension points alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command import sordino
from pages import follow
from sordino.base import modules
from sordino.base.errors import ResumeError, StudyError
from sordino.clients.records import Horizontal
from sordino.core import regimes
from sordino.core import study as studies
from sordino.core.method import METHODS
from sordino.core.records import Row
from sordino.core.run import folder as log
from sordino.core.run import session
from sordino.core.run.folder import CHECKPOINT
from sordino.core.run.verify import verify
from sordino.privacy import Ledger
from sordino.report import write

PAGE = Path(__file__).parents[1] / "docs" / "own-regime.md"
TEXT = PAGE.read_text(encoding="utf-8")
SMALL = ["privacy.accountant=rdp", "execution.checkpoint_every=4"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files of the page; what is imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    follow(TEXT.partition("```console")[0], tmp_path)
    try:
        yield tmp_path
    finally:
        forget()


def forget() -> None:
    """What a new process would not know."""
    modules.look_beside(None)
    sys.modules.pop("relay", None)
    modules._told.pop("relay", None)
    modules._FINDER.modules.pop("relay", None)
    METHODS.forget("relay")
    regimes.forget("relay")


def test_one_charge_pays_for_one_task(folder: Path) -> None:
    """Ten tasks of one round were one charge, and had one batch."""
    code = (folder / "relay.py").read_text()
    one = code.replace("state.number % self.clients", "0").replace(
        "round=number, st", "round=1, st"
    )
    (folder / "relay.py").write_text(one)
    done = sordino(folder, "run", "study.toml", "--out", "run", "--quiet")
    assert done.returncode == 1
    assert "client 0 is asked for round 1 after round 1: one charge pays for one" in done.stderr


class Killed(Exception):
    """In the middle of a run."""


def test_the_page_runs(folder: Path) -> None:
    done = follow(TEXT, folder)
    assert [each.returncode for each in done] == [0] * 5, [each.stderr for each in done]
    assert "This study imports and runs the code of relay" in done[0].stderr
    assert "at most 5 local steps of one client in 20 hops" in done[0].stdout
    assert "hop 20/20  client 3  steps 5" in done[1].stderr
    assert "The run ended and was sealed" in done[3].stdout
    rows = [json.loads(line) for line in Path("runs/relay/rounds.jsonl").read_text().splitlines()]
    assert [row["client"] for row in rows if row["kind"] == "round"] == [0, 1, 2, 3] * 5
    assert json.loads(Path("runs/relay/run.json").read_text())["regime"] == "relay"
    page = Path("runs/relay/report.html").read_text(encoding="utf-8")
    assert "Accuracy and epsilon over hops" in page
    with Ledger.open(Path("runs/relay/ledger.sqlite"), readonly=True) as ledger:
        assert [count for unit in ledger.units() for _, count in ledger.spent(unit)] == [5] * 4


def test_a_run_that_was_killed_ends_as_one_without_interruption(folder: Path) -> None:
    asked = [*SMALL, "world.dropout=0.3"]
    session.begin(
        studies.read(folder / "study.toml", asked), folder / "whole", lambda _: None, lambda _: None
    )

    def dies(row: Row) -> None:
        if row.round == 11:
            raise Killed

    with pytest.raises(Killed):
        session.begin(
            studies.read(folder / "study.toml", asked), folder / "run", dies, lambda _: None
        )
    assert log.checkpoint_heads(folder / "run")
    forget()
    session.resume(folder / "run", lambda _: None, lambda _: None, modules=folder)
    for name in ("rounds.jsonl", "model.safetensors"):
        assert (folder / "run" / name).read_bytes() == (folder / "whole" / name).read_bytes()
    assert verify(folder / "run").problems == []
    kinds = [
        json.loads(line)["kind"] for line in (folder / "run/rounds.jsonl").read_text().splitlines()
    ]
    assert kinds == ["round"] * 20 + ["end"]


def test_who_does_not_know_the_regime_says_so_and_runs_no_code(folder: Path) -> None:
    session.begin(
        studies.read(folder / "study.toml", SMALL), folder / "run", lambda _: None, lambda _: None
    )
    forget()
    with pytest.raises(StudyError, match=r"run\.json: regime 'relay' is not known.*--modules"):
        write(folder / "run")
    assert "relay" not in sys.modules
    assert verify(folder / "run").problems == []
    assert "relay" not in sys.modules
    assert sordino(folder, "report", "run", "--modules", ".").returncode == 0


def test_a_state_of_another_regime_is_refused(folder: Path) -> None:
    session.begin(
        studies.read(folder / "study.toml", SMALL), folder / "run", lambda _: None, lambda _: None
    )
    path = folder / "run" / CHECKPOINT
    data = path.read_bytes()
    assert data.count(b'\\"regime\\":\\"relay\\"') == 1
    path.write_bytes(data.replace(b'\\"regime\\":\\"relay\\"', b'\\"regime\\":\\"delay\\"'))
    with pytest.raises(
        ResumeError, match="a state of regime 'delay', and the run is of regime 'relay'"
    ):
        session.resume(folder / "run", lambda _: None, lambda _: None)


def test_no_two_regimes_have_one_name_and_each_is_whole(folder: Path) -> None:
    studies.read(folder / "study.toml")
    regimes.register("relay", "relay")  # a module that is imported again is no second regime
    with pytest.raises(StudyError, match="the regime 'relay' is relay already"):
        regimes.register("relay", "elsewhere")
    relay: Any = sys.modules["relay"]
    del relay.WORDS
    relay.FACTS = Horizontal
    with pytest.raises(StudyError, match="regime 'relay': relay has no WORDS"):
        regimes.vocabulary("relay")
    with pytest.raises(StudyError, match="its FACTS must have this name as their tag"):
        regimes.facts("relay")
