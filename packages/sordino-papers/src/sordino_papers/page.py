"""Files of a reproduction: ``entries/<name>.json``, ``reproduction.md``, and one page with every
entry, its tables, pictures and verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sordino.extend.runs import dumped, replace_file, template
from sordino_papers import figures, markdown, tables
from sordino_papers.markdown import TITLES, counted, verdict
from sordino_papers.results import EntryOf, Results

HOME = Path(__file__).parent


def write(out: Path, found: Sequence[tuple[Results, EntryOf]], command: str) -> None:
    """Write everything about these entries; runs stay as they are.

    Args:
        command: with which they were made, for the reader.
    """
    folder = out / "entries"
    folder.mkdir(parents=True, exist_ok=True)
    for _, said in found:
        replace_file(folder / f"{said.name}.json", dumped(said, indent=1).encode())
    replace_file(out / "index.html", render(found).encode("utf-8", "replace"))
    replace_file(out / "reproduction.md", markdown.text(found, command).encode("utf-8"))


def render(found: Sequence[tuple[Results, EntryOf]]) -> str:
    """The page as HTML."""
    html: str = template("reproduction.html", HOME).render(
        sections=[_section(results, said) for results, said in found]
    )
    return html


def _section(results: Results, said: EntryOf) -> dict[str, Any]:
    """An entry as the page shows it."""
    paid = tables.epsilons(results)
    return {
        "said": said,
        "paper": TITLES[said.paper],
        "data": tables.data_of(results.grid),
        "counted": counted(said.claims),
        "claims": [
            {
                "text": claim.text,
                "where": claim.where,
                "verdict": verdict(claim),
                "forms": [
                    (form.form, form.said, tables.statistics(form, asked.measure.percent))
                    for form in claim.forms
                ],
            }
            for claim, asked in zip(said.claims, results.grid.entry.claim, strict=True)
        ],
        "tables": [*tables.tables(results), *([paid] if paid.rows else [])],
        "pictures": figures.pictures(results),
    }
