"""Files of a reproduction: ``entries/<name>.json``, ``reproduction.md`` with a page for each paper
in ``reproduction/``, and ``index.html`` with the headlines, every table, picture and verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sordino.extend.runs import dumped, replace_file, template
from sordino_papers import figures, markdown, tables
from sordino_papers.markdown import TITLES, Found, counted
from sordino_papers.results import EntryOf, Results

HOME = Path(__file__).parent


def write(out: Path, found: Found, whole: Found, command: str) -> None:
    """Write everything about these entries; runs stay as they are.

    Args:
        whole: what there is of entries at full scale.
        command: with which they were made, for the reader.
    """
    entries, pages = out / "entries", out / "reproduction"
    entries.mkdir(parents=True, exist_ok=True)
    pages.mkdir(exist_ok=True)
    beside = markdown.beside(found, whole)
    for _, said in (*found, *beside):
        replace_file(entries / f"{said.name}.json", dumped(said, indent=1).encode())
    for paper in TITLES:
        mine = [pair for pair in found if pair[1].paper == paper]
        if mine:
            replace_file(pages / f"{paper}.md", markdown.page(paper, mine, beside).encode())
    replace_file(out / "reproduction.md", markdown.first(found, whole, command).encode())
    replace_file(out / "index.html", render(found, beside).encode("utf-8", "replace"))


def render(found: Found, beside: Found = ()) -> str:
    """The page as HTML."""
    html: str = template("reproduction.html", HOME).render(
        head=markdown.COLUMNS,
        headlines=[
            [cell.replace("**", "") for cell in row]
            for row in markdown.headlines([s for _, s in found], markdown.by_name(beside))
        ],
        sections=[_section(results, said) for results, said in (*found, *beside)],
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
            (claim, [(form, tables.statistics(form)) for form in claim.forms])
            for claim in said.claims
        ],
        "tables": [*tables.tables(results), *([paid] if paid.rows else [])],
        "pictures": figures.pictures(results),
    }
