"""The walk in CONTRIBUTING.md works as it is written: its files are saved, its commands are run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pages import follow
from sordino.core.method import METHODS
from sordino.mechanisms.kinds import MECHANISMS

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
OWN = ("rising", "absolute", "test_mine")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in; what is imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    try:
        yield tmp_path
    finally:
        for name in OWN:
            sys.modules.pop(name, None)
        METHODS.forget("rising")
        MECHANISMS.forget("absolute")


def test_a_method_a_mechanism_and_a_data_set_by_public_extension_points_alone(folder: Path) -> None:
    done = follow(PAGE.read_text(encoding="utf-8"), folder)
    assert [each.returncode for each in done] == [0, 0, 0], [each.stderr for each in done]
    plan, run, verified = (each.stdout + each.stderr for each in done)
    assert "This study imports and runs the code of rising" in plan
    assert "This study imports and runs the code of absolute" in plan
    assert "rising:Rising" in run
    assert "The run ended and was sealed" in verified
    rows = [
        json.loads(line)
        for line in (folder / "runs" / "walk" / "rounds.jsonl").read_text().splitlines()
    ]
    taus = [row["tau"] for row in rows if row["kind"] == "round"]
    assert taus[:5] == [1, 1, 1, 1, 2]
    about = json.loads((folder / "runs" / "walk" / "run.json").read_text())
    assert about["result"]["epsilon"] <= 6.0
    assert about["test"]["kind"] == "public share"
