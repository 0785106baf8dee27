"""Files of the folder: ``entries/<name>.json``, ``index.html``, ``reproduction.md``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino.extend.runs import dumped, replace_file
from sordino_papers import markdown, page
from sordino_papers.results import EntryOf, Results


@dataclass(frozen=True, slots=True, eq=False)
class Reproduced:
    """An entry with its runs and what they say."""

    results: Results
    said: EntryOf


def write(out: Path, found: Sequence[Reproduced], command: str) -> None:
    """Write everything about these entries; runs stay as they are.

    Args:
        command: with which they were made, for the reader.
    """
    folder = out / "entries"
    folder.mkdir(parents=True, exist_ok=True)
    for each in found:
        replace_file(folder / f"{each.said.name}.json", dumped(each.said, indent=1).encode())
    pairs = [(each.results, each.said) for each in found]
    replace_file(out / "index.html", page.render(pairs).encode("utf-8", "replace"))
    replace_file(out / "reproduction.md", markdown.text(pairs, command).encode("utf-8"))
