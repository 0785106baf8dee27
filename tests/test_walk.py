"""The walk in CONTRIBUTING.md works as it is written: its files are saved, its commands are run."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import Done, sordino
from sordino.engine.methods import METHODS
from sordino.mechanism.registry import MECHANISMS

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
SAVED = re.compile(r"Save this as `(?P<name>[\w.]+)`")
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


def follow(page: str, folder: Path) -> list[Done]:
    """Do what the page says, from top to bottom; what its ``sordino`` commands answered."""
    done: list[Done] = []
    before = 0
    for block in BLOCK.finditer(page):
        told, before = page[before : block.start()], block.end()
        if block["kind"] == "console":
            done += [
                each
                for line in block["text"].splitlines()
                if line.startswith("$ ")
                for each in typed(line[2:], folder)
            ]
        elif named := SAVED.findall(told):
            (folder / named[-1]).write_text(block["text"])
    return done


def typed(line: str, folder: Path) -> list[Done]:
    """One command line of the page, run in this process."""
    match line.split():
        case ["sordino", *arguments]:
            return [sordino(folder, *arguments)]
        case ["python", "-m", "pytest", "-q", script]:
            tests = [
                found for name, found in runpy.run_path(script).items() if name.startswith("test_")
            ]
            assert tests
            for test in tests:
                test()
        case ["python", script]:
            runpy.run_path(script, run_name="__main__")
        case _:
            raise AssertionError(f"the page has a command that this test does not know: {line}")
    return []


def test_a_method_a_mechanism_and_a_data_set_by_public_extension_points_alone(folder: Path) -> None:
    done = follow(PAGE.read_text(encoding="utf-8"), folder)
    assert [each.returncode for each in done] == [0, 0, 0], [each.stderr for each in done]
    plan, run, verified = (each.stderr for each in done)
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
