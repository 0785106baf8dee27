"""What a label is: told by the study, or classes; and what is refused instead of guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import LabelEncoder, minmax_scale

from sordino.base.errors import DataError
from sordino.data import load
from sordino.data.labels import encode
from sordino.data.table import ReadOptions

DIABETES = load_diabetes(scaled=False)


def test_diabetes_is_refused_as_classes_and_read_as_a_number(tmp_path: Path) -> None:
    frame = pl.DataFrame(DIABETES.data, schema=DIABETES.feature_names).with_columns(
        label=pl.Series(DIABETES.target).cast(pl.Int64)
    )
    frame.write_csv(tmp_path / "d.csv")
    with pytest.raises(
        DataError,
        match=r"labels of 442 rows have 214 distinct values, .*: set data\.target = 'number'",
    ):
        load("d", file=tmp_path / "d.csv", test_fraction=None)
    found = load(
        "d",
        file=tmp_path / "d.csv",
        test_fraction=None,
        how=ReadOptions(target="number", label_range=(25, 346)),
    ).train
    assert (found.classes, found.span, found.outputs) == ((), (25, 346), 1)
    np.testing.assert_allclose(found.y, minmax_scale(DIABETES.target, (-1, 1)), atol=1e-6)


def test_training_labels_are_clamped_and_test_labels_are_not(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pl.DataFrame({"a": [1.0, 2.0, 3.0], "label": [-5.0, 5.0, 20.0]}).write_parquet(file)
    found = load(
        "t", file=file, test_file=file, how=ReadOptions(target="number", label_range=(0.0, 10.0))
    )
    assert found.train.y.tolist() == [-1.0, 0.0, 1.0]
    assert found.test.y.tolist() == [-2.0, 0.0, 3.0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.0, 0.5, 1.0], r"row 1 .* has the label 0\.5, which is no class number"),
        (["yes", "YES", "no"], r"labels 'YES' and 'yes' differ only in case or blanks"),
        (["yes", "yes ", "no"], r"labels 'yes' and 'yes ' differ only"),
        ([1990, 2001, 2001], r"a label of 2001 means 2002 classes, and 2 of them occur"),
        (list(range(50)), r"labels of 50 rows have 50 distinct values"),
        ([f"row {i}" for i in range(50)], r"labels of 50 rows have 50 distinct values"),
    ],
)
def test_what_may_be_no_class_is_refused(labels: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        encode((np.array(labels),), "x.csv")


@pytest.mark.parametrize("labels", [["yes", "YES", "no"], list(range(50)), [2, 4, 60]])
def test_who_says_classes_gets_classes(labels: list[Any]) -> None:
    values = np.array(labels)
    (found,), _ = encode((values,), "x.csv", "classes")
    known = np.unique(values).tolist() if values.dtype.kind == "U" else list(range(max(labels) + 1))
    assert found.tolist() == [known.index(label) for label in labels]


@pytest.mark.parametrize(
    "labels", [["yes", "no", "no"], [-1, 1, 1], [2.0, 1.0, 1.0], [True, False, False]]
)
def test_two_values_are_numbered_in_order(labels: list[Any]) -> None:
    values = np.array(labels)
    (found,), classes = encode((values,), "x.csv", "binary")
    assert found.tolist() == LabelEncoder().fit_transform(values).tolist()
    assert len(classes) == 2


def test_binary_takes_spellings_for_one() -> None:
    parts, classes = encode((np.array(["Yes", "NO", " yes"]), np.array(["no"])), "x.csv", "binary")
    assert classes == ("no", "yes")
    assert [part.tolist() for part in parts] == [[1, 0, 1], [0]]


@pytest.mark.parametrize(("labels", "count"), [(["a", "b", "c"], 3), ([1, 1], 1)])
def test_binary_is_two_values(labels: list[Any], count: int) -> None:
    with pytest.raises(DataError, match=rf"needs labels of two values, and there \w+ {count}"):
        encode((np.array(labels),), "x.csv", "binary")


def test_text_is_no_number() -> None:
    with pytest.raises(DataError, match=r"labels hold <U1, not numbers"):
        encode((np.array(["a", "b"]),), "x.csv", "number", (0.0, 1.0))
    with pytest.raises(DataError, match=r"row 1 .* has the label nan; every label must be finite"):
        encode((np.array([0.0, np.nan]),), "x.csv", "number", (0.0, 1.0))


def test_a_label_that_no_float_measures_is_refused() -> None:
    for value in (1e300, -1.7e308):
        with pytest.raises(DataError, match=r"row 1 .* has the label .* too far"):
            encode((np.array([0.5, value]),), "x.csv", "number", (0.0, 1.0))
