"""One cell of one row changes no other row, whatever it makes of its column's type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sordino.data import load
from sordino.data.encoding import Encoding
from sordino.data.identity import persons

ROWS = 12


def saved(file: Path, cells: list[str], labels: list[str], comma: bool) -> Path:
    separator, number = (";", "{},{}") if comma else (",", "{}.{}")
    lines = [
        separator.join((cell, number.format(0, i), label))
        for i, (cell, label) in enumerate(zip(cells, labels, strict=True))
    ]
    file.write_text("\n".join([separator.join(("g", "f", "label")), *lines]) + "\n")
    return file


@pytest.mark.parametrize(
    ("two", "odd", "comma"),
    [
        (("TRUE", "FALSE"), "?", False),
        (("TRUE", "FALSE"), "1", False),
        (("NaN", "2"), "?", False),
        (("1e999", "2"), "?", False),
        (("01", "02"), "2.5", False),
        (("12345678901234567", "2"), "0.5", False),
        (("38,5", "39,5"), "?", True),
        (("38,5", "39"), "?", True),
    ],
)
@pytest.mark.parametrize("role", ["category", "label"])
def test_no_cell_changes_another_row(
    tmp_path: Path, role: str, two: tuple[str, str], odd: str, comma: bool
) -> None:
    cells = [*two] * (ROWS // 2)
    same = ["a", "b"] * (ROWS // 2)
    found = []
    for name, column in (("whole", cells), ("odd", [odd, *cells[1:]])):
        first, last = (column, same) if role == "category" else (same, column)
        found.append(
            load(
                "x",
                file=saved(tmp_path / f"{name}.csv", first, last, comma),
                test_fraction=None,
                identify=True,
                encoding=Encoding(
                    categories={"g": two if role == "category" else ("a", "b")}, unknown="other"
                ),
                classes=("a", "b") if role == "category" else (*two, odd),
            ).train
        )
    whole, other = found
    assert whole.words is not None
    assert other.words is not None
    for before, after in ((whole.x, other.x), (whole.y, other.y), (whole.words, other.words)):
        assert np.array_equal(before[1:], after[1:])


def test_a_persons_name_is_exact_and_of_no_type() -> None:
    for names in (
        ["12", "12.0", "1.2e1", b"12"],
        ["12345678901234567", "12345678901234567.00"],
        ["A1", b"A1"],
    ):
        words = [persons(np.array([name]))[0] for name in names]
        assert len(set(words)) == 1
    assert len({*persons(np.array(["12345678901234567.00", "12345678901234569.00"]))}) == 2
