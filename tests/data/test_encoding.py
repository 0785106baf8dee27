"""Columns by public rules: categories, ranges, gaps; and which files are told apart how."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder

from sordino.base.errors import DataError
from sordino.data import identity, load
from sordino.data.dataset import Words
from sordino.data.encoding import Encoding, uneven
from sordino.data.table import ReadOptions, form_of, from_arrays, read_frame

COLOURS = ("red", "green", "blue")


def homes(**change: list[object]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "colour": ["red", "blue", "red", "green"],
            "rooms": [1, 2, None, 3],
            "income": [10.0, 500.0, 20.0, 5.0],
            "label": [0, 1, 0, 1],
        }
        | change
    )


RULES = Encoding({"colour": COLOURS}, {"income": (0.0, 100.0)}, {"rooms": 2.5})


def test_columns_become_what_scikit_learn_makes_of_them() -> None:
    found = read_frame(homes(), ReadOptions(encoding=RULES), "homes.csv")
    names = ("colour=red", "colour=green", "colour=blue", "rooms", "rooms is missing", "income")
    assert found.names == names
    assert found.columns == ("colour", "rooms", "income")
    frame = homes()
    encoder = OneHotEncoder(categories=[list(COLOURS)], sparse_output=False)
    np.testing.assert_array_equal(
        found.x[:, :3], encoder.fit_transform(frame["colour"].to_numpy().reshape(-1, 1))
    )
    scaler = MinMaxScaler((-1, 1), clip=True).fit([[0.0], [100.0]])
    np.testing.assert_allclose(
        found.x[:, 5:], scaler.transform(frame["income"].to_numpy().reshape(-1, 1)), rtol=1e-6
    )
    assert found.x[:, 3:5].tolist() == [[1, 0], [2, 0], [2.5, 1], [3, 0]]


def test_what_is_not_listed_is_refused_or_goes_into_a_column_of_its_own() -> None:
    def strange() -> pl.DataFrame:
        return homes(colour=["red", "mauve", None, "green"])

    with pytest.raises(DataError, match=r"row 1 .*, column 'colour' says 'mauve', which is none"):
        read_frame(strange(), ReadOptions(encoding=RULES), "homes.csv")
    other = Encoding(RULES.categories, RULES.ranges, RULES.missing, "other")
    found = read_frame(strange(), ReadOptions(encoding=other), "homes.csv")
    assert found.names[:4] == ("colour=red", "colour=green", "colour=blue", "colour=other")
    assert found.x[:, :4].argmax(1).tolist() == [0, 3, 3, 1]
    encoder = OneHotEncoder(categories=[list(COLOURS)], handle_unknown="ignore")
    encoder.fit([["red"]])
    np.testing.assert_array_equal(
        found.x[:, :3], encoder.transform([["red"], ["mauve"], [None], ["green"]]).toarray()
    )


def test_codes_are_categories_however_they_are_written() -> None:
    rules = Encoding({"code": ("1", "2.0", "30")})
    for values in ([1, 30, 2], [1.0, 30.0, 2.0], ["1", "30", " 2"]):
        frame = pl.DataFrame({"code": values, "label": [0, 1, 0]})
        found = read_frame(frame, ReadOptions(encoding=rules), "t")
        assert found.x.argmax(1).tolist() == [0, 2, 1]


def test_a_star_stands_for_all_other_columns_of_numbers() -> None:
    rules = Encoding(ranges={"*": (0.0, 4.0), "income": (0.0, 100.0)}, missing={"*": 0.0})
    frame = homes().drop("colour")
    found = read_frame(frame, ReadOptions(encoding=rules), "t")
    assert found.names == ("rooms", "rooms is missing", "income", "income is missing")
    assert found.x[:, 0].tolist() == [-0.5, 0.0, -1.0, 0.5]


def test_an_array_has_its_columns_by_number() -> None:
    x = np.array([[1.0, np.nan], [3.0, 4.0]])
    rules = Encoding(ranges={"0": (0.0, 4.0)}, missing={"1": 7.0})
    found, _ = from_arrays({"x": x, "y": np.array([0, 1])}, ReadOptions(encoding=rules), "t")
    assert found.x.tolist() == [[-0.5, 7.0, 1.0], [0.5, 4.0, 0.0]]
    pixels = {"x": np.zeros((2, 4, 4), np.uint8), "y": np.array([0, 1])}
    with pytest.raises(DataError, match="are for tables, and this is uint8"):
        from_arrays(pixels, ReadOptions(encoding=rules), "t")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (Encoding(ranges={"age": (0.0, 1.0)}), r"data\.ranges speaks of the column 'age'"),
        (Encoding({"shade": ("a",)}), r"data\.categories speaks of the column 'shade'"),
        (Encoding({"colour": COLOURS}), r"row 2 .*, column 'rooms' is empty; .* data\.missing"),
        (
            Encoding(missing={"rooms": 0.0}),
            r"'colour' holds String, not numbers .*; list its values in data\.categories",
        ),
    ],
)
def test_rules_that_do_not_fit_are_named(rules: Encoding, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_frame(homes(), ReadOptions(encoding=rules), "homes.csv")


def known(frame: pl.DataFrame, rules: Encoding) -> Words:
    words = read_frame(frame, ReadOptions(encoding=rules, identify=True), "t").words
    assert words is not None
    return words


def test_a_row_is_recognised_whatever_the_rules() -> None:
    """A ledger of the data must know a row however it is encoded."""
    wide = Encoding(RULES.categories, {"income": (-7.0, 9000.0)}, {"rooms": 0.0}, "other")
    as_codes = Encoding({"colour": COLOURS, "income": ("10", "500", "20", "5")}, {}, {"rooms": 1.0})
    found = [known(homes(), rules) for rules in (RULES, wide, as_codes)]
    assert all(np.array_equal(found[0], each) for each in found[1:])
    whole = pl.DataFrame({"a": [1.5, 2.0], "b": [True, False], "label": [0, 1]})
    plain, ruled = (
        known(whole.clone(), rules) for rules in (Encoding(), Encoding(ranges={"a": (0.0, 9.0)}))
    )
    assert np.array_equal(plain, ruled)
    assert identity.column(["mauve"])[0, 0] not in found[0]


def test_a_test_file_is_encoded_alike(tmp_path: Path) -> None:
    homes().write_csv(tmp_path / "a.csv")
    homes().reverse().select("income", "label", "rooms", "colour").write_csv(tmp_path / "b.csv")
    found = load(
        "t", file=tmp_path / "a.csv", test_file=tmp_path / "b.csv", how=ReadOptions(encoding=RULES)
    )
    assert found.train.columns == found.test.columns
    np.testing.assert_array_equal(found.train.x, found.test.x[::-1])


def test_semicolons_and_tabs_are_seen(tmp_path: Path) -> None:
    cancer = load_breast_cancer(as_frame=True).frame
    found = {}
    for name, form in {
        "a": {},
        "b": {"sep": ";"},
        "c": {"sep": ";", "decimal": ","},
        "d": {"sep": "\t"},
    }.items():
        path = tmp_path / f"{name}.csv"
        cancer.to_csv(path, index=False, **form)
        found[name] = load(
            "t", file=path, test_fraction=None, how=ReadOptions(label="target")
        ).train
    for each in found.values():
        np.testing.assert_array_equal(each.x, found["a"].x)
    assert form_of(b"a;b\n1.5;2\n").decimal_comma is False
    assert form_of(b"a;b,c\n").separator == ","


def test_features_that_differ_a_thousandfold_are_seen() -> None:
    cancer = load_breast_cancer()
    names = list(cancer.feature_names)
    assert uneven(cancer.data, names) == ("worst area", "fractal dimension error")
    scaled = MinMaxScaler().fit_transform(cancer.data)
    assert uneven(scaled, names) is None
    assert uneven(np.zeros((3, 2)), ("a", "b")) is None


def test_embedded_tables_are_scikit_learns() -> None:
    cancer = load_breast_cancer()
    found = load("breast-cancer")
    assert (len(found.train), len(found.test), found.train.shape) == (456, 113, (30,))
    whole = np.concatenate([found.train.x, found.test.x])
    assert np.abs(whole).max() <= 1
    assert found.train.classes == tuple(cancer.target_names)
    assert np.bincount(np.concatenate([found.train.y, found.test.y])).tolist() == [212, 357]
    numbers = load("diabetes")
    assert numbers.train.span == (25.0, 346.0)
    assert np.abs(np.concatenate([numbers.train.y, numbers.test.y])).max() == 1


def test_csv_and_parquet_are_the_same_examples(tmp_path: Path) -> None:
    homes().write_csv(tmp_path / "a.csv")
    homes().write_parquet(tmp_path / "a.parquet")
    one = load("t", file=tmp_path / "a.csv", test_fraction=0.25, how=ReadOptions(encoding=RULES))
    other = load(
        "t", file=tmp_path / "a.parquet", test_fraction=0.25, how=ReadOptions(encoding=RULES)
    )
    assert one.train.fingerprint() == other.train.fingerprint()
    assert one.test.fingerprint() == other.test.fingerprint()


@pytest.mark.parametrize("values", [[True, None, False, True], [None] * 4])
def test_a_record_is_the_same_whatever_rule_its_column_has(values: list[object]) -> None:
    """A column of truth values, or an empty one, may be listed or filled; its rows stay known."""
    listed = Encoding({**RULES.categories, "odd": ("true",)}, {}, {"rooms": 2.5}, "other")
    filled = Encoding(RULES.categories, {"odd": (0.0, 1.0)}, {"rooms": 2.5, "odd": 0.0})
    words = [
        read_frame(homes(odd=values), ReadOptions(encoding=rules, identify=True), "homes.csv").words
        for rules in (listed, filled)
    ]
    assert words[0] is not None
    np.testing.assert_array_equal(words[0], words[1])


def test_numbers_of_any_width_and_far_outside_of_their_range_are_read() -> None:
    frame = homes(colour=["red"] * 4, income=[1.7e308, -1.7e308, 50.0, 0.0])
    wide = frame.with_columns(pl.col("label").cast(pl.Int128))
    rules = Encoding({}, {"income": (-10.0, 100.0)}, {"rooms": 2.5})
    found = read_frame(wide.drop("colour"), ReadOptions(encoding=rules), "homes.csv")
    assert found.x[:2, -1].tolist() == [1.0, -1.0]
    plain = pl.DataFrame({"a": pl.Series([1, 2]).cast(pl.Int128), "label": [0, 1]})
    assert read_frame(plain, ReadOptions(), "homes.csv").x.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("unknown", ["refuse", "other"])
def test_the_empty_category_is_a_gap_and_no_unknown_value(unknown: Any) -> None:
    rules = Encoding(categories={"smoker": ("yes", "no", "")}, unknown=unknown)
    x, names = rules.column(pl.Series("smoker", ["no", None, "yes", ""]), "t.csv")
    assert names[:3] == ("smoker=yes", "smoker=no", "smoker=")
    assert x[:, :3].tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1]]
    assert not x[:, 3:].any()


GAPS = {  # one table, with its gaps written by other programs
    "empty": "g,f,label\n,2.5,q\na,,p\n",
    "quoted": 'g,f,label\n"",2.5,q\n"a",,"p"\n',
    "blank": 'g,f,label\n" ",2.5,q\na,,p\n',
}


def test_a_row_is_recognised_however_its_gaps_are_written(tmp_path: Path) -> None:
    """Else the same row would spend its budget again after an export."""
    rules = Encoding(categories={"g": ("a", "b", "")}, missing={"f": 0.0})
    rows = pl.DataFrame({"g": [None, "a"], "f": [2.5, None], "label": ["q", "p"]})
    zero = np.zeros(1, np.float32)
    with np.errstate(invalid="ignore"):
        strange = [2.5, float(np.copysign((zero / zero)[0], -1.0))]
    frames = {
        "null": rows,
        "text": rows.with_columns(pl.col("g").fill_null("")),
        "sign": rows.with_columns(pl.Series("f", strange)),
        "positive": rows.with_columns(pl.col("f").fill_null(math.nan)),
    }
    for name, text in GAPS.items():
        (tmp_path / f"{name}.csv").write_text(text)
    for name, frame in frames.items():
        frame.write_parquet(tmp_path / f"{name}.parquet")
    read = [
        load(
            "t",
            file=file,
            test_fraction=None,
            how=ReadOptions(encoding=rules, identify=True, classes=["p", "q"]),
        )
        for file in sorted(tmp_path.iterdir())
    ]
    for corpus in read:
        assert np.array_equal(corpus.train.x, read[0].train.x)
        words, others = (np.asarray(each.train.words)[:, :2] for each in (corpus, read[0]))
        assert np.array_equal(words, others)
