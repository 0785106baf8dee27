"""Links in the documents lead somewhere: to a file, and to a heading where they name one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?P<to>[^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings: lower case, no punctuation, hyphens for
    spaces.
    """
    plain = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    titles = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    lost = []
    for found in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = found["to"].partition("#")
        if path.startswith(("http:", "https:")):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(found["to"])
    assert not lost
