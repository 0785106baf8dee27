"""Doing what a page of the documents says: its files are saved, its commands are run."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from command import Done, sordino

BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
SAVED = re.compile(r"Save\s+this\s+as\s+`(?P<name>[\w.]+)`")


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
