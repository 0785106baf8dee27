"""One cell of one row changes no other row, whatever it makes of its column's type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest

from sordino.base.errors import DataError
from sordino.data import load
from sordino.data.encoding import Encoding
from sordino.data.identity import persons
from sordino.data.stream.table import TableStream
from sordino.data.table import ReadOptions

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
                how=ReadOptions(
                    identify=True,
                    encoding=Encoding(
                        categories={"g": two if role == "category" else ("a", "b")}, unknown="other"
                    ),
                    classes=("a", "b") if role == "category" else (*two, odd),
                ),
            ).train
        )
    whole, other = found
    assert whole.words is not None
    assert other.words is not None
    for before, after in (
        (whole.x, other.x),
        (whole.y, other.y),
        (whole.words[:, :2], other.words[:, :2]),
    ):
        assert np.array_equal(before[1:], after[1:])


WIDE = 2**61 + 2**37 + 1  # rounds to another float32 by way of float64


@pytest.mark.parametrize("odd", ["0.5", "12345678901234567890"])
@pytest.mark.parametrize("label", ["label", "a"])
def test_a_fraction_among_large_whole_numbers_changes_no_other_row(
    tmp_path: Path, odd: str, label: str
) -> None:
    """Neither its numbers, nor the words by which it is recognised."""
    found = []
    for name, first in (("whole", "7"), ("odd", odd)):
        lines = [f"{first if row == 0 else WIDE},{row},{row % 2}" for row in range(ROWS)]
        file = tmp_path / f"{name}.csv"
        file.write_text("\n".join(["a,b,label", *lines]) + "\n")
        found.append(
            load(
                "x",
                file=file,
                test_fraction=None,
                how=ReadOptions(
                    label=label,
                    identify=True,
                    target="classes" if label == "label" else "number",
                    label_range=None if label == "label" else (0.0, 1e19),
                ),
            ).train
        )
    whole, other = found
    assert whole.words is not None
    assert other.words is not None
    for before, after in (
        (whole.x, other.x),
        (whole.y, other.y),
        (whole.words[:, :2], other.words[:, :2]),
    ):
        assert before[1:].tobytes() == after[1:].tobytes()


def test_a_number_has_one_float32_in_all_kinds_of_files(tmp_path: Path) -> None:
    columns = {
        "a": [7, *[WIDE] * (ROWS - 1)],
        "b": list(range(ROWS)),
        "label": [0, 1] * (ROWS // 2),
    }
    frame = polars.DataFrame(columns)
    files = [tmp_path / name for name in ("t.csv", "t.parquet", "float.parquet", "t.npz")]
    frame.write_csv(files[0])
    frame.write_parquet(files[1])
    frame.with_columns(polars.col("a").cast(polars.Float64)).write_parquet(files[2])
    np.savez(files[3], x=frame["a", "b"].to_numpy(), y=columns["label"])
    rows = [
        load("x", file=file, test_fraction=None, how=ReadOptions(identify=True)).train
        for file in files
    ]
    assert all(np.array_equal(each.x, rows[0].x) for each in rows)
    for each in rows[1:]:
        np.testing.assert_array_equal(each.words, rows[0].words)
    for file in files[:3]:
        assert np.array_equal(TableStream(file, classes=("0", "1")).read(0, ROWS).x, rows[0].x)


@pytest.mark.parametrize("odd", ["0,5", "0.5"])
def test_a_decimal_comma_changes_no_other_person_category_or_label(
    tmp_path: Path, odd: str
) -> None:
    """The first lines tell whether features have decimal commas; here one row decides it."""
    found = []
    for name, first in (("whole", "7"), ("odd", odd)):
        cells = [first, *["1"] * 60, *["2,5"] * 3]
        lines = [f"{cell};{cell};{row};{cell}" for row, cell in enumerate(cells)]
        file = tmp_path / f"{name}.csv"
        file.write_text("\n".join(["who;g;f;label", *lines]) + "\n")
        found.append(
            load(
                "x",
                file=file,
                test_fraction=None,
                how=ReadOptions(
                    identify=True,
                    person="who",
                    encoding=Encoding(categories={"g": ("1", "2.5")}, unknown="other"),
                    classes=("1", "7", "2.5", "0.5"),
                ),
            ).train
        )
    whole, other = found
    assert whole.words is not None
    assert other.words is not None
    for before, after in (
        (whole.x, other.x),
        (whole.y, other.y),
        (whole.words[:, :2], other.words[:, :2]),
    ):
        assert before[1:].tobytes() == after[1:].tobytes()


def test_a_word_among_codes_does_not_rename_gaps(tmp_path: Path) -> None:
    found = []
    for name, first in (("whole", 1), ("odd", "x")):
        file = tmp_path / f"{name}.parquet"
        cells = [first, None, 1, 2] if name == "whole" else [first, None, "1", "2"]
        polars.DataFrame({"g": cells, "f": range(4), "label": [0, 1, 0, 1]}).write_parquet(file)
        rules = Encoding(categories={"g": ("1", "2")}, unknown="other")
        found.append(
            load(
                "x", file=file, test_fraction=None, how=ReadOptions(identify=True, encoding=rules)
            ).train.words
        )
    assert found[0] is not None
    assert found[1] is not None
    assert np.array_equal(found[0][1:, :2], found[1][1:, :2])


@pytest.mark.parametrize(
    ("first", "kind"), [(WIDE, polars.Float64), (1 << 24, polars.Float32), (1, polars.Float16)]
)
@pytest.mark.parametrize(("person", "client"), [("who", None), (None, "who"), ("who", "who")])
def test_persons_that_fractions_do_not_tell_apart_are_refused(
    tmp_path: Path, person: str | None, client: str | None, first: int, kind: Any
) -> None:
    who = polars.Series("who", [float(first), 0.5], dtype=kind)
    table = polars.DataFrame([who, polars.Series("f", [1, 2]), polars.Series("label", [0, 1])])
    table.write_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"row 0 .*, a fraction, .* whole numbers or text"):
        load("x", file=tmp_path / "t.parquet", how=ReadOptions(person=person, client_column=client))


def test_a_persons_name_is_exact_and_of_no_type() -> None:
    for names in (
        ["12", "12.0", "1.2e1", b"12"],
        ["12345678901234567", "12345678901234567.00"],
        ["A1", b"A1"],
    ):
        words = [persons(np.array([name]))[0, 0] for name in names]
        assert len(set(words)) == 1
    assert len({*persons(["12345678901234567.00", "12345678901234569.00"])[:, 0]}) == 2
