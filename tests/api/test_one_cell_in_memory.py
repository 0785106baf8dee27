"""One cell of data in memory changes no other row, whatever its type and wherever it stands."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import sordino as so
from sordino.api.given import store
from sordino.base.errors import DataError
from sordino.data import load
from sordino.data.dataset import Dataset
from sordino.data.encoding import Encoding
from sordino.data.table import ReadOptions

ROWS = 9
PLACES = (0, ROWS // 2, ROWS - 1)
WIDE = 2**61 + 2**37 + 1  # rounds to another float32 by way of float64
COLUMNS: dict[str, tuple[Any, Any]] = {
    "bool": (True, False),
    "int": (1, 2),
    "wide int": (WIDE, WIDE + 2),
    "float": (1.5, 0.25),
    "decimal": (Decimal("1.5"), Decimal("0.25")),
    "word": ("red", "blue"),
    "number as text": ("1", "2"),
    "date": (date(2020, 1, 1), date(2020, 1, 2)),
    "datetime": (datetime(2020, 1, 1, 1), datetime(2020, 1, 2, 1)),
    "gap": (None, 1),
    "numpy int": (np.int64(1), np.int64(2)),
    "pixel": (np.uint8(1), np.uint8(2)),
    "numpy bool": (np.True_, np.False_),
    "bytes": (b"red", b"blue"),
}
ODD: tuple[Any, ...] = (
    True, 1, 1.5, "1", "red", b"red", np.True_, np.int64(1), np.uint8(1), np.float32(1.5),
    np.str_("1"), Decimal(1), Decimal("1.5"), WIDE, 2**64, None, float("nan"), date(2020, 1, 1),
    datetime(2020, 1, 1), np.datetime64("2020-01-01"),
)  # fmt: skip
ROLES: dict[str, dict[str, Any]] = {
    "feature": {},
    "gap": {"encoding": Encoding(missing={"g": 0.0})},
    "category": {
        "encoding": Encoding(
            categories={"g": ("1", "2", "red", "blue", "true", "2020-01-01")}, unknown="other"
        )
    },
    "label": {
        "label": "g",
        "classes": ("2", "1", "red", "blue", "true", "false", str(WIDE), str(WIDE + 2), "1.5"),
    },
    "number": {"label": "g", "target": "number", "label_range": (0.0, 1e19)},
    "person": {"person": "g"},
}
Make = Callable[[list[Any]], Any]
FRAMES: dict[str, Make] = {
    "dictionary": lambda cells: {"g": cells, "f": [0.5] * ROWS, "label": [0] * ROWS},
    "pandas": lambda cells: pandas.DataFrame(
        {"g": pandas.Series(cells, dtype=object), "f": 0.5, "label": 0}
    ),
}


def read(data: Any, folder: Path, how: dict[str, Any]) -> Dataset | None:
    """The rows; None where they are refused."""
    try:
        file = Path(store(data, folder, {"label": how.get("label", "label")})["file"])
    except DataError:
        return None
    try:
        return load("x", file=file, test_fraction=None, how=ReadOptions(identify=True, **how)).train
    except DataError:
        return None
    finally:
        file.unlink()


def cells_of(column: int, whole: Dataset | None, every: bool) -> Iterator[tuple[Any, int]]:
    """Odd cells and where they stand; nothing of what is refused. By day a column has every other
    one, in one place; at night all, in all.
    """
    for number, odd in enumerate(ODD if whole is not None else ()):
        if every or (number + column) % 2:
            for at in PLACES if every else PLACES[number % 3 :][:1]:
                yield odd, at


def refuse_changed(one: Dataset, other: Dataset, at: int, said: object) -> None:
    """Compare all rows but one to the last bit."""
    rest = np.arange(len(one)) != at
    for name in ("x", "y"):
        left, right = getattr(one, name)[rest], getattr(other, name)[rest]
        assert left.dtype == right.dtype, said
        assert left.tobytes() == right.tobytes(), said
    assert one.words is not None
    assert other.words is not None
    # of the words by which versions before knew a row, a column has more where its types are mixed
    assert (one.words[rest, :2] == other.words[rest, :2]).all(), said


@pytest.mark.parametrize(
    ("made", "every"),
    [
        ("dictionary", False),
        *(pytest.param(made, True, marks=pytest.mark.nightly) for made in FRAMES),
    ],
)
@pytest.mark.parametrize("role", ROLES)
def test_no_cell_changes_another_row_of_a_table(
    tmp_path: Path, role: str, made: str, every: bool
) -> None:
    compared = 0
    for column, (name, two) in enumerate(COLUMNS.items()):
        cells = [two[row % 2] for row in range(ROWS)]
        whole = read(FRAMES[made](cells), tmp_path, ROLES[role])
        for odd, at in cells_of(column, whole, every):
            changed = [*cells[:at], odd, *cells[at + 1 :]]
            other = read(FRAMES[made](changed), tmp_path, ROLES[role])
            if whole is not None and other is not None:
                refuse_changed(whole, other, at, (name, odd, at))
                compared += 1
    assert compared > (80 if every else 20)


@pytest.mark.parametrize("role", ["label", "client"])
def test_no_cell_changes_another_label_or_owner_of_a_list(tmp_path: Path, role: str) -> None:
    x, y = np.zeros((ROWS, 2), np.float32), [0] * ROWS
    how = {"classes": ROLES["label"]["classes"] if role == "label" else ("0", "1")}
    if role == "client":
        how["person"] = "client"
    compared = 0
    for column, (name, two) in enumerate(COLUMNS.items()):
        cells = [two[row % 2] for row in range(ROWS)]
        whole = read((x, cells) if role == "label" else (x, y, cells), tmp_path, how)
        for odd, at in cells_of(column, whole, False):
            changed = [*cells[:at], odd, *cells[at + 1 :]]
            other = read((x, changed) if role == "label" else (x, y, changed), tmp_path, how)
            if whole is not None and other is not None:
                refuse_changed(whole, other, at, (name, odd, at))
                compared += 1
    assert compared > 20


PICTURES = [np.full((1, 4, 4), 9 + row, np.uint8) for row in range(ROWS)]
LABELS = [row % 2 for row in range(ROWS)]


def hugging_face(x: list[Any]) -> Any:
    from datasets import Dataset as Rows

    rows = Rows.from_dict({"image": list(range(ROWS)), "label": LABELS})
    return rows.with_transform(
        lambda held: {"image": [x[row] for row in held["image"]], "label": held["label"]}
    )


@pytest.mark.parametrize("kind", [np.int16, np.int64, np.float32, bool])
@pytest.mark.parametrize(
    "made",
    [
        lambda x: (x, LABELS),
        lambda x: (tuple(x), LABELS),
        lambda x: ([each.tolist() if each.dtype != np.uint8 else each for each in x], LABELS),
        lambda x: ([torch.from_numpy(each) for each in x], LABELS),
        lambda x: so.arrays(x, LABELS),
        lambda x: list(zip(x, LABELS, strict=True)),
        hugging_face,
    ],
)
def test_pictures_have_one_type(tmp_path: Path, made: Make, kind: Any) -> None:
    assert np.load(store(made(PICTURES), tmp_path, {})["file"])["x"].dtype == np.uint8
    for at in PLACES:
        x = [*PICTURES[:at], PICTURES[at].astype(kind), *PICTURES[at + 1 :]]
        with pytest.raises(DataError, match=r"all be pixels \(uint8\) or none"):
            store(made(x), tmp_path, {})


def test_no_number_changes_another_row_of_a_list(tmp_path: Path) -> None:
    rows = [[WIDE, 1] for _ in range(ROWS)]
    for at, odd in itertools.product(PLACES, (0.5, True, 2**64, np.uint8(1), np.float32(1.5))):
        files = [
            store((each, LABELS), tmp_path, {})["file"]
            for each in (rows, [*rows[:at], [odd, 1], *rows[at + 1 :]])
        ]
        whole, other = (np.delete(np.load(file)["x"], at, axis=0) for file in files)
        assert whole.tobytes() == other.tobytes()
