"""Every file of the catalogue can be read, and names studies that can be planned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.extend.runs import StudyError, toml_of
from sordino.extend.tables import Published
from sordino_papers import cells, parity
from sordino_papers.checks import CHECKS
from sordino_papers.entry import SCALES, Entry, entries, names, parse, read
from sordino_papers.measures import SHORT, Best

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


@pytest.mark.parametrize("name", names())
def test_every_study_of_an_entry_is_right(name: str) -> None:
    entry = entries([name])[0]
    for scale in SCALES:
        said = entry.at(scale)
        every = cells.grid(entry, scale, here=lambda data: True)
        assert bool(every.cells) is not bool(said.left_out)
        embedded = cells.grid(entry, scale, here=lambda data: False)
        assert bool(embedded.cells) is bool(every.cells), "something must run from a clean clone"
        assert said.minutes is None or said.minutes >= 0.1, "of all its runs, shared ones too"
        if scale == "quick":
            assert len(every.seeds) <= 3, "all of it must end within an hour on two cores"
    item, _, part = entry.item.lower().partition(", ")
    kind, _, number = item.partition(" ")
    named = {"fig.": "figure"}.get(kind, kind)
    count = NUMERALS.get(number.upper(), number)
    kind = {"": "", "testbed": "-testbed"}.get(part, "-all-events")
    assert name == f"{entry.paper}-{named}-{count}{kind}"


@pytest.mark.parametrize("paper", ITEMS)
def test_every_item_of_a_paper_has_an_entry(paper: str) -> None:
    tables, numbers, figures, others = ITEMS[paper]
    wanted = {f"{paper}-{tables}-{each}" for each in numbers}
    wanted |= {f"{paper}-{figures}-{each}" for each in others}
    found = {each.name for each in entries(["all"]) if each.paper == paper and "," not in each.item}
    assert found == wanted


def _wrong(entry: Entry) -> list[str]:
    """Names of an entry that stand for nothing, or for two things."""
    keys = {
        "series": [each.key for each in entry.series],
        "panel": [each.key for each in entry.panel],
        "x": [each.label for each in entry.x.values] if entry.x else [],
        "form": [form.key for form in entry.form],
        "check": list(CHECKS),
        "best": list(SHORT),
    }
    named = [
        (what, name) for each in entry.claim for what, names in each.rule.named() for name in names
    ]
    named += [("series", name) for each in entry.form for name in each.only]
    named += [("series", name) for each in entry.shown for name in (each.minus, *each.only)]
    for each in (*entry.published, *entry.also):
        for what in ("series", "panel", "x", "form"):
            value = getattr(each, what, "")
            named += [(what, name) for name in ([value] if isinstance(value, str) else value)]
    named += [("x", name) for each in entry.panel for name in each.points]
    for scale in entry.scale.values():
        parts = (("series", scale.series), ("panel", scale.panels), ("x", scale.points))
        named += [(what, name) for what, names in parts for name in names]
    measures = [*(each.measure for each in entry.shown), *(each.measure for each in entry.claim)]
    named += [("best", each.best_of) for each in measures if isinstance(each, Best)]
    wrong = [f"{what} {name}" for what, name in named if name and name not in keys[what]]
    return wrong + [f"{what} twice" for what, each in keys.items() if len(set(each)) < len(each)]


@pytest.mark.parametrize("name", names())
def test_every_name_in_an_entry_stands_for_something(name: str) -> None:
    assert not _wrong(entries([name])[0])


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("labl = 'x'", r"unknown field `labl` - at `\$.series\[0\]`"),
        ("[[claim]]\ntext='t'\nwhere='w'\nrule={beter='b', than=['a']}", "of which kind it is"),
        ("[[published]]\nseries='a'\nvalue='x'", "Expected `float`, got `str`"),
    ],
)
def test_mistakes_are_named(more: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SMALL + more)
    with pytest.raises(StudyError, match=f"small.toml: .*{told}"):
        read(tmp_path / "small.toml")


def test_digits_are_even_or_odd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    x: Any = np.zeros((4, 2), np.float32)
    y: Any = np.array([0, 1, 5, 8])
    whole = Published("mnist", tuple("0123456789"), (), read=lambda *_: ((x, y), (x[:2], y[:2])))
    monkeypatch.setattr(parity, "PUBLISHED", {"mnist": whole})
    assert parity.MNIST.read is not None
    (seen, labels), (_, tested) = parity.MNIST.read(tmp_path, parity.MNIST)
    assert seen is x
    assert [*labels, *tested] == [0, 1, 1, 0, 0, 1]


def test_a_name_of_nothing_is_found() -> None:
    claim = "[[claim]]\ntext='t'\nwhere='w'\nrule={better='b', than=['a']}"
    assert _wrong(parse(toml_of(SMALL + claim), "small")) == ["series b"]


def test_a_name_that_is_no_entry_is_refused() -> None:
    with pytest.raises(StudyError, match="is no entry of the catalogue; did you mean"):
        entries(["ali-dpfl-table-55"])
