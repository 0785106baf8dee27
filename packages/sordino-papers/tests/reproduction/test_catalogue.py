"""Every file of the catalogue can be read, and names studies that can be planned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sordino.extend.runs import StudyError, toml_of
from sordino_papers import cells, files
from sordino_papers.entry import ScaleName, parse

SCALES: tuple[ScaleName, ...] = ("quick", "full")
SMALL = """
paper = "ali-dpfl"
item = "Table I"
title = "t"
study = "s"
[[shown]]
measure = "accuracy"
[[series]]
key = "a"
label = "A"
"""


NUMERALS = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5}
ITEMS: dict[str, tuple[str, Sequence[int], str, Sequence[int]]] = {
    "mapa": ("table", [], "figure", range(4, 10)),
    "events": ("table", range(1, 6), "figure", range(2, 14)),
    "ali-dpfl": ("table", [2, 3, 4, 5], "figure", [1, 4, 5]),
    "als-dpfl": ("table", [2, 3], "figure", [2, 4, 5, 6]),
    "haar": ("table", [3], "figure", [7, 8, 9, 10, 11, 12]),
}
"""Of each paper, its tables and figures with results."""


@pytest.mark.parametrize("name", files.names())
def test_every_study_of_an_entry_is_right(name: str) -> None:
    entry = files.chosen([name])[0]
    for scale in SCALES:
        every = cells.grid(entry, scale, here=lambda data: True)
        assert every.cells
        embedded = cells.grid(entry, scale, here=lambda data: False)
        assert embedded.cells, "from a clean clone, something of it must run"
    kind, _, number = entry.item.lower().partition(" ")
    named = {"fig.": "figure"}.get(kind, kind)
    count = NUMERALS.get(number.upper(), number)
    assert name == f"{entry.paper}-{named}-{count}"
    assert entry.minutes is None or entry.minutes >= 0.1, "of all its runs, shared ones too"


@pytest.mark.parametrize("paper", ITEMS)
def test_every_item_of_a_paper_has_an_entry(paper: str) -> None:
    tables, numbers, figures, others = ITEMS[paper]
    wanted = {f"{paper}-{tables}-{each}" for each in numbers}
    wanted |= {f"{paper}-{figures}-{each}" for each in others}
    found = {name for name in files.names() if name.startswith(f"{paper}-")}
    assert found == wanted


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("labl = 'x'", "series[0].labl is no key that is known there; did you mean 'label'?"),
        ("[[claim]]\ntext='t'\nwhere='w'", "claim[0]: rule is missing"),
        (
            "[[claim]]\ntext='t'\nwhere='w'\nrule={better='b', than=['a']}",
            "claim[0].rule: there is no series 'b'; there are: a",
        ),
        (
            "[[claim]]\ntext='t'\nwhere='w'\nrule={beter='b', than=['a']}",
            "did you mean 'better'? Known: better, no_worse",
        ),
        (
            "[[claim]]\ntext='t'\nwhere='w'\nmeasure='speed'\nrule={rises=['a']}",
            "measure 'speed' is not known",
        ),
        ("[[published]]\nseries='a'\nvalue='x'", "Expected `float`, got `str`"),
    ],
)
def test_mistakes_are_named(more: str, told: str) -> None:
    with pytest.raises(StudyError) as error:
        parse(toml_of(SMALL + more), "small", "small.toml")
    assert told in str(error.value), str(error.value)
    assert str(error.value).startswith("small.toml: ")


def test_an_entry_needs_a_base_study(tmp_path: Path) -> None:
    entry = parse(toml_of(SMALL), "small", "small.toml")
    with pytest.raises(StudyError, match="names no base study"):
        files.base(entry, tmp_path)
    with pytest.raises(StudyError, match="is no entry of the catalogue; did you mean"):
        files.chosen(["ali-dpfl-table-55"])
