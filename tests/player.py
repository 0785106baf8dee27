"""Does what a page says, in a process of its own: ``python -m player PAGE FOLDER WHEN``.

WHEN is ``parse`` (nothing is run), ``quick`` (all but what is slow), ``nightly`` (all) or ``slow``.
Pages of runs have their pictures at night.

Blocks that are saved are saved; Python runs in one namespace, studies are planned, fragments of
studies are checked by the schema, and the commands of ``sordino`` are run. Everything else that a
shell is told must be of a program that is known here.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import typer.main

from blocks import ROOT, Block, blocks, commands, printed, unlike
from command import paint, sordino
from sordino.cli import app
from sordino.comparison import runner
from sordino.core import regimes
from sordino.core import study as studies

_KNOWN = """make pip .venv/bin/pip apt git cd cp kill wait source export if else fi for sqlite3
mosquitto nvflare torchrun curl tar sha256sum tensorboard .ci/run sudo"""
OTHERS = frozenset(re.findall(r"\S+", _KNOWN))  # programs that nobody runs here
AGREEMENT = frozenset(("transport", "server", "site"))  # keys of a federation, not of a study


class Wrong(Exception):
    """What a page says does not work."""


def parsed(line: str) -> list[str] | None:
    """The arguments of a ``sordino`` command, checked by the command line itself; None for others.

    Raises:
        Wrong: if there is no such command or option, or if nobody knows the program.
    """
    words = shlex.split(re.sub(r"(\s+2>> \S+)?\s*&?$", "", line))
    if not words or re.match(r"\w+=", words[0]):
        return None
    if words[0] != "sordino":
        if words[0] == "python":
            _is_there(words[1:])
        elif words[0] not in OTHERS:
            raise Wrong(f"{line}: this test does not know the program {words[0]}")
        return None
    words = words[1 : words.index(">")] if ">" in words else words[1:]
    expanded = [each for word in words for each in _expanded(word)]
    command: Any = typer.main.get_command(app)
    path, rest = ["sordino"], list(expanded)
    while hasattr(command, "commands"):
        if not rest:
            return expanded
        if rest[0].startswith("-"):
            break
        if rest[0] not in command.commands:
            raise Wrong(f"{line}: there is no command {rest[0]!r}")
        path.append(rest[0])
        command = command.commands[rest.pop(0)]
    try:
        command.make_context(" ".join(path), list(rest), resilient_parsing=False)
    except Exception as error:
        raise Wrong(f"{line}: {getattr(error, 'message', error)}") from None
    return expanded


def _is_there(words: list[str]) -> None:
    """Scripts and modules that Python is told to run."""
    if words[0] == "-m":
        top = words[1].partition(".")[0]
        known = top in ("venv", "pytest", "build") or (ROOT / top).exists()
        if not known:
            raise Wrong(f"python -m {words[1]}: there is no such module")
    elif not any((place / words[0]).exists() for place in (Path(), ROOT, ROOT / "examples")):
        raise Wrong(f"python {words[0]}: there is no such file")


def _expanded(word: str) -> list[str]:
    """A word as a shell expands it; what is shipped must be there."""
    if not word.startswith(("examples/", "docs/")):
        return sorted(glob.glob(word)) or [word] if "*" in word else [word]
    found = sorted(glob.glob(word, root_dir=ROOT))
    if not found and "docs/" not in word:
        raise Wrong(f"{word}: there is no such file")
    return found or [word]


def played(line: str, said: list[str]) -> None:
    """Run one command line in the current folder.

    Raises:
        Wrong: if it fails.
    """
    arguments = parsed(line)
    if arguments is None:
        words = shlex.split(line)
        if words[0] == "python" and words[1] != "-m":
            with contextlib.redirect_stdout(io.StringIO()):
                runpy.run_path(words[1], run_name="__main__")
        return
    done = sordino(Path.cwd(), *arguments)
    if done.returncode:
        raise Wrong(f"{line}: status {done.returncode}: {done.stderr[-2000:]}")
    if found := re.search(r">\s*(\S+)", re.sub(r"\s+#\s.*$", "", line)):
        Path(found[1]).write_text(done.stdout)
    said.append(done.screen)


def toml(block: Block) -> None:
    """A study is planned; a part of one is checked with the template of its regime.

    Raises:
        StudyError: if it is none.
    """
    table = tomllib.loads(block.text)
    if AGREEMENT & table.keys():
        return  # read by the tests of federations
    if {"data", "method", "privacy", "budget"} <= table.keys():
        regimes.plan(studies.of_table(table, source="page", modules=Path.cwd()))
        return
    failed: Exception | None = None
    for name in regimes.names():
        template = tomllib.loads(regimes.named(name).template)
        for whole in _merged(template, table):
            try:
                studies.of_table(whole, block.changes, source="page", modules=Path.cwd())
                return
            except Exception as error:
                failed = failed or error
    raise failed or Wrong("no regime takes this part of a study")


def _merged(template: dict[str, Any], part: dict[str, Any]) -> list[dict[str, Any]]:
    """The template with the part's keys; or with its tables in place of the template's."""
    updated = {
        key: {**template.get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in part.items()
    }
    kept = {
        key: {**value, **({"name": "dp-fedavg"} if key == "method" else {})}
        for key, value in part.items()
        if isinstance(value, dict)
    }
    filed = {**template, **part, "data": {"file": "rows.csv", **part.get("data", {})}}
    return [{**template, **updated}, {**template, **part}, {**template, **kept}, filed]


there = runner.play


def here(jobs: Any, at_once: int, *, ended: Any, **more: Any) -> None:
    """The runs of a comparison, one after another in this process."""
    if any("run" not in job.command for job in jobs):  # calls of functions
        there(jobs, at_once, ended=ended, **more)
        return
    for job in jobs:
        at = job.command.index("run")
        done = sordino(Path.cwd(), *job.command[at:])
        ended(job.key, done.stderr if done.returncode else None)


def play(page: str, when: str) -> list[str]:
    """Everything on a page, in the current folder; what went wrong."""
    main = ModuleType("__main__")
    main.__dict__["__file__"] = page
    wrong: list[str] = []
    for block in blocks((ROOT / page).read_text(encoding="utf-8")):
        try:
            _do(block, main.__dict__, when)
        except BaseException as error:
            wrong.append(f"{page}:{block.line}: {type(error).__name__}: {error}")
    return wrong


def _do(block: Block, namespace: dict[str, Any], when: str) -> None:
    if block.saved:
        Path(block.saved).parent.mkdir(parents=True, exist_ok=True)
        Path(block.saved).write_text(block.text, encoding="utf-8")
    runs = block.reason is None and when in (
        ("slow", "nightly") if block.slow else ("quick", "nightly")
    )
    if block.kind == "shell":
        shown = printed(block.text)
        if runs and block.before:
            played(block.before, [])
        for line in commands(block.text):
            said: list[str] = []
            played(line, said) if runs else parsed(line)
            # what is drawn from a seed is another thing with every version of the program
            exact = line.split()[1:2] in (["methods"], ["plan"], ["tune"])
            if said and (odd := unlike(shown.get(line, []), said[0], exact=exact)) is not None:
                raise Wrong(f"{line}: the page says {odd!r}, and the command {said[0]!r}")
    elif block.kind == "toml" and block.reason is None and when != "parse":
        toml(block)
    elif block.kind == "python":
        code = compile(block.text, f"block at line {block.line}", "exec")
        if runs and not block.saved:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(code, namespace)


if __name__ == "__main__":
    page, folder, when = sys.argv[1:]
    os.chdir(folder)
    sys.path.insert(0, folder)
    setattr(runner, "play", here)  # noqa: B010
    if when != "quick":
        paint()
    problems = play(page, when)
    sys.stdout.write("\n".join(problems))
    sys.exit(bool(problems))
