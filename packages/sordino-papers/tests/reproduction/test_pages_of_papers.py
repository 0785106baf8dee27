"""What the documentation says of the papers' claims is what was judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from sordino_papers.entry import entries
from sordino_papers.pages import COLUMNS, TITLES
from sordino_papers.verdicts import SAID

DOCS = Path(__file__).parents[4] / "docs"


def rows(page: Path, begins: str = "") -> list[list[str]]:
    """Cells of the rows of a page's tables that begin so."""
    lines = page.read_text().splitlines()
    found = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [row for row in found if row[0].startswith(begins) and set(row[0]) != {"-"}]


@pytest.mark.parametrize("paper", TITLES)
def test_a_page_of_a_paper_quotes_the_headlines(paper: str) -> None:
    """Word for word: a page that is not made again would contradict the verdicts."""
    judged = rows(DOCS / "reproduction.md", f"{TITLES[paper]}: ")
    assert judged
    assert all(len(row) == len(COLUMNS) for row in judged)
    quoted = rows(DOCS / "papers" / f"{paper}.md", f"{TITLES[paper]}: ")
    assert quoted == judged
    claims = [claim for entry in entries(["all"]) if entry.paper == paper for claim in entry.claim]
    texts = [f"{TITLES[paper]}: {each.text} ({each.where})" for each in claims if each.headline]
    assert sorted(row[0] for row in judged) == sorted(texts)


def test_counts_are_those_of_the_pages() -> None:
    for paper, title in TITLES.items():
        ((_, *counts),) = rows(DOCS / "reproduction.md", f"[{title}]")
        claims = [row for row in rows(DOCS / "reproduction" / f"{paper}.md", "[") if len(row) == 9]
        once = [row for row in claims if not row[-1].startswith("counted in")]
        assert int(counts[-1]) == len(claims) - len(once)
        assert sum(map(int, counts[: len(SAID)])) == len(once)
        assert [row[2] for row in once].count("**holds**") == int(counts[0])
        assert (
            f"**Of {len(once)} claims, {counts[0]} "
            in (DOCS / "reproduction" / f"{paper}.md").read_text()
        )
