"""Blocks of code in Markdown: fenced, or indented by four spaces.

A comment before a block says what a test does with it::

    <!-- slow -->                     only parsed in the quick tests; nightly runs it
    <!-- not run: needs a GPU -->     only parsed, for this reason
    <!-- with data.clients=4 -->      a part of a study fits a study with this change
    <!-- after sordino new ... -->    this command is given first

All others are run. What stands below a command with a prompt is what it prints: these lines in this
order, blanks apart. Three dots stand for anything, within a line and between lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
)
MARK = re.compile(r"<!--\s*(?P<mark>slow|not run: [^>]+?|with [^>]+?|after [^>]+?)\s*-->")
SAVED = re.compile(r"Save\s+this\s+as\s+`(?P<name>[\w./]+)`")
SHELL = re.compile(
    r"^(?:\$ )?(?:sordino|python|make|pip|apt|git|cd|cp|docker|sqlite3|nvflare|\.ci/\w+) ", re.M
)


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page.

    Attributes:
        kind: "python", "toml", "shell", or another: what people see, which nobody runs.
        saved: the name of the file that the page says to save it as.
        slow: whether it is run at night only.
        reason: why it is not run.
        changes: of the study that a part of one is checked with.
        before: a command that is given first.
    """

    line: int
    kind: str
    text: str
    saved: str | None
    slow: bool
    reason: str | None
    changes: tuple[str, ...]
    before: str | None = None


def blocks(page: str) -> list[Block]:
    """The blocks of a page, from its top to its bottom."""
    lines = page.splitlines()
    found: list[Block] = []
    told = 0  # where the words before a block begin
    for start, end, kind, text in _raw(lines):
        words = "\n".join(lines[told:start])
        told = end
        mark = MARK.search(words.rstrip().rpartition("\n")[2])
        named = SAVED.findall(words)
        said = "" if mark is None else mark["mark"]
        found.append(
            Block(
                start + 1,
                kind,
                text,
                named[-1] if named else None,
                said == "slow",
                said.partition(": ")[2] if said.startswith("not run") else None,
                tuple(said.split()[1:]) if said.startswith("with ") else (),
                said.partition(" ")[2] if said.startswith("after ") else None,
            )
        )
    return found


def _raw(lines: list[str]) -> Iterator[tuple[int, int, str, str]]:
    """Where each block starts and ends (lines from 0), its kind and its text."""
    at = 0
    while at < len(lines):
        if lines[at].startswith("```"):
            end = lines.index("```", at + 1)
            yield at, end + 1, _fenced(lines[at][3:].strip()), "\n".join(lines[at + 1 : end]) + "\n"
            at = end + 1
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            text = "\n".join(line[4:] for line in lines[at:end]).rstrip() + "\n"
            yield at, end, _indented(text), text
            at = end
        else:
            at += 1


def _fenced(kind: str) -> str:
    return "shell" if kind in ("bash", "console", "sh", "shell") else kind or "text"


def _indented(text: str) -> str:
    if SHELL.search(text):
        return "shell"
    return "toml" if re.search(r"^\[\w+\]$", text, re.M) else "text"


def commands(text: str) -> list[str]:
    """Command lines of a shell block, without prompts, comments and what is printed."""
    joined = text.replace("\\\n", " ")
    lines = joined.splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    kept = (re.sub(r"\s+#\s.*$", "", line).strip() for line in lines)
    return [line for line in kept if line and not line.startswith("#")]


def printed(text: str) -> dict[str, list[str]]:
    """What is printed below each command line with a prompt."""
    found: dict[str, list[str]] = {}
    below: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            below = found.setdefault(commands(line)[0], [])
        elif line.strip() not in ("", "..."):
            below.append(line)
    return found


def unlike(shown: list[str], output: str, *, exact: bool = True) -> str | None:
    """The first line of a page that the output does not have, below the one before it.

    >>> unlike(["a  1", "b ..."], "a 1\\nx\\nb 2"), unlike(["b", "a"], "a\\nb")
    (None, 'a')
    >>> unlike(["round 2"], "round 3"), unlike(["round 2"], "round 3", exact=False)
    ('round 2', None)

    Args:
        exact: whether numbers count, too.
    """
    lines = iter([_words(line, exact) for line in output.splitlines()])
    for line in shown:
        parts = (re.escape(_words(part, exact)) for part in line.split("..."))
        wanted = re.compile(r"\s*.*\s*".join(parts))
        if not any(wanted.fullmatch(each) for each in lines):
            return line
    return None


def _words(line: str, exact: bool) -> str:
    words = " ".join(line.split())
    return words if exact else re.sub(r"\b[\da-f]*\d[\da-f]*(\.\d+)?", "0", words)
