"""What WCAG 2.2 AA asks of a page: contrast in light and dark, headings, tables, names, focus."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from sordino.report import page, write, write_comparison

from .conftest import Maker
from .test_page import Reader, read

STYLE = (page.HOME / "style.html").read_text(encoding="utf-8")
TEXTS = (
    *((ink, paper) for ink in ("ink", "quiet") for paper in ("paper", "card")),
    ("ink", "calm-back"),
    ("ink", "red-back"),
    ("ink", "amber-back"),
    ("red", "red-back"),
    ("red", "paper"),
    ("series-0", "paper"),  # links, and what opens a list
)
SHAPES = (
    *((f"series-{i}", "card") for i in range(8)),
    ("quiet", "card"),  # borders of buttons
    ("calm", "calm-back"),
    ("red", "red-back"),
    ("amber", "amber-back"),
    ("series-0", "paper"),  # the outline of what has the focus
)


def colours(scheme: str) -> dict[str, str]:
    blocks = re.findall(r":root \{(.*?)\}", STYLE, flags=re.DOTALL)
    assert len(blocks) == 2
    found: dict[str, str] = {}
    for block in blocks[: 1 + (scheme == "dark")]:
        found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    return found


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, two: str) -> float:
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_black_and_white() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme: str) -> None:
    found = colours(scheme)
    for pairs, least in ((TEXTS, 4.5), (SHAPES, 3.0)):
        for one, two in pairs:
            assert contrast(found[one], found[two]) >= least, (scheme, one, two)


@pytest.fixture
def pages(make: Maker, tmp_path: Path) -> list[Path]:
    clients = [{"client": i, "unit": "u", "examples": 3, "labels": [i, 40]} for i in range(3)]
    one, two = make("one", name="one", clients=clients), make("two", name="two")
    return [write(one), write_comparison([one, two], tmp_path / "c.html")]


def test_every_page_can_be_read_aloud_and_walked_by_keyboard(pages: list[Path]) -> None:
    for found in pages:
        html, text, reader = read(found)
        assert '<html lang="en">' in html
        levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(below <= above + 1 for above, below in pairwise(levels))
        skip = next(attributes for tag, attributes in reader.tags if tag == "a")
        assert skip["href"] == "#main"
        assert any(tag == "main" and each.get("id") == "main" for tag, each in reader.tags)
        pictures = re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)
        assert pictures
        assert all('role="img"' in each and "<title>" in each for each in pictures)
        assert html.count("<figcaption>") == len(pictures)
        assert_tables(html, reader)
        assert text


def assert_tables(html: str, reader: Reader) -> None:
    tables = re.findall(r"<table.*?</table>", html, flags=re.DOTALL)
    assert tables
    assert all("<caption" in each for each in tables)
    assert all(each.get("scope") in ("col", "row") for tag, each in reader.tags if tag == "th")
    for tag, each in reader.tags:
        if each.get("class") == "scroll":  # what a pointer scrolls, the keyboard does
            assert tag == "div"
            assert each.get("tabindex") == "0"
            assert each.get("aria-label")


def test_focus_is_seen_and_print_has_no_buttons() -> None:
    assert re.search(r":focus-visible \{ outline: 3px solid", STYLE)
    printed = STYLE[STYLE.index("@media print") :]
    assert re.search(r"\.tools, \.tip, \.skip, \.cursor \{ display: none; \}", printed)
    assert "@media screen and (prefers-color-scheme: dark)" in STYLE  # paper stays white
