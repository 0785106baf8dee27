"""A user's own csv, parquet and npz files: read back, and refused with the place that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from sordino.base.errors import DataError
from sordino.data import Corpus, load
from sordino.data.encoding import Encoding
from sordino.data.table import ReadOptions

RNG = np.random.default_rng(11)
ROWS = 40


def table(**changes: Any) -> pl.DataFrame:
    frame = pl.DataFrame(
        {
            "age": RNG.integers(20, 80, ROWS),
            "dose": RNG.normal(size=ROWS),
            "smoker": RNG.random(ROWS) < 0.5,
            "site": [f"site-{i % 4}" for i in range(ROWS)],
            "outcome": [("well", "ill", "unknown")[i % 3] for i in range(ROWS)],
        }
    )
    return frame.with_columns(**{name: pl.Series(name, values) for name, values in changes.items()})


def write(frame: pl.DataFrame, path: Path) -> Path:
    if path.suffix == ".csv":
        frame.write_csv(path)
    else:
        frame.write_parquet(path)
    return path


def read(path: Path, **options: Any) -> Corpus:
    split = {key: options.pop(key) for key in ("test_file", "test_fraction") if key in options}
    how = ReadOptions(**({"label": "outcome", "client_column": "site"} | options))
    return load("mine", file=path, how=how, **split)


def rows_of(frame: pl.DataFrame) -> list[tuple[float, ...]]:
    columns = [frame[c].cast(pl.Float32).to_numpy() for c in ("age", "dose", "smoker")]
    outcome = np.unique(frame["outcome"].to_numpy(), return_inverse=True)[1]
    site = np.unique(frame["site"].to_numpy(), return_inverse=True)[1]
    return sorted(zip(*(c.tolist() for c in (*columns, outcome, site)), strict=True))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".PARQUET"])
def test_every_row_lands_once_with_its_label_and_client(tmp_path: Path, suffix: str) -> None:
    frame = table()
    corpus = read(write(frame, tmp_path / f"t{suffix}"), test_fraction=0.25)
    assert (len(corpus.train), len(corpus.test)) == (30, 10)
    assert corpus.train.classes == ("ill", "unknown", "well")
    assert corpus.train.x.dtype == np.float32
    seen = []
    for part in (corpus.train, corpus.test):
        assert part.client is not None
        seen += [
            (*map(float, x), int(y), int(c))
            for x, y, c in zip(part.x, part.y, part.client, strict=True)
        ]
    assert sorted(seen) == rows_of(frame)


def test_the_same_rows_are_always_the_test_set(tmp_path: Path) -> None:
    path = write(table(), tmp_path / "t.csv")
    first, second = read(path), read(path)
    assert first.train.fingerprint() == second.train.fingerprint()
    assert first.test.fingerprint() == second.test.fingerprint()
    # Pinned: if the choice ever moved, test rows of old runs would train new ones.
    np.savez(tmp_path / "rows.npz", x=np.arange(20.0)[:, None], y=np.arange(20) % 2)
    assert load("mine", file=tmp_path / "rows.npz").test.x[:, 0].tolist() == [1.0, 6.0, 8.0, 14.0]
    # Slices of one matrix: there is no second float copy of the table.
    assert first.train.x.base is not None
    assert first.train.x.base is first.test.x.base


def test_a_test_file_shares_classes_and_clients(tmp_path: Path) -> None:
    train = write(table(outcome=["b"] * ROWS, site=["y"] * ROWS), tmp_path / "train.csv")
    test = write(
        table(outcome=["a", "b"] * (ROWS // 2), site=["x", "y"] * (ROWS // 2)),
        tmp_path / "test.csv",
    )
    corpus = read(train, test_file=test)
    assert corpus.train.classes == ("a", "b")
    assert set(corpus.train.y.tolist()) == {1}
    assert corpus.test.y.tolist() == [0, 1] * (ROWS // 2)
    assert corpus.train.client is not None
    assert set(corpus.train.client.tolist()) == {1}


def test_scale_divides_by_a_public_constant(tmp_path: Path) -> None:
    path = write(table(), tmp_path / "t.parquet")
    plain, divided = read(path), read(path, scale=100.0)
    assert np.allclose(plain.train.x / np.float32(100), divided.train.x)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"dose": [1.0] * 7 + [float("nan")] + [1.0] * 32},
            r"row 7 \(the first is 0\), column 'dose' is nan",
        ),
        (
            {"dose": [1.0] * 9 + [float("-inf")] + [1.0] * 30},
            r"row 9 \(the first is 0\), column 'dose' is -inf",
        ),
        ({"dose": [1.0] * 3 + [1e300] + [1.0] * 36}, r"row 3 .* column 'dose' is inf"),
        ({"dose": [1.0] * 4 + [None] + [1.0] * 35}, r"row 4 .*, column 'dose' is empty"),
        ({"age": ["old"] * ROWS}, r"feature column 'age' holds String, not numbers"),
        ({"outcome": ["x"] * 6 + [None] + ["x"] * 33}, r"row 6 .*, column 'outcome' is empty"),
        (
            {"outcome": [0] * 5 + [-1] + [0] * 34},
            r"row 5 .* has the label -1; class numbers start at 0",
        ),
        (
            {"outcome": [0.0] * 5 + [0.5] + [0.0] * 34},
            r"row 5 .* has the label 0\.5, which is no class number: set data\.target = 'number'",
        ),
        (
            {"outcome": [0] * 5 + [10**9] + [0] * 34},
            r"label 1000000000 would mean 1000000001 classes",
        ),
        ({"site": [None] + ["a"] * 39}, r"row 0 .*, column 'site' is empty"),
    ],
)
def test_bad_cells_are_named(
    tmp_path: Path, suffix: str, change: dict[str, Any], message: str
) -> None:
    path = write(table(**change), tmp_path / f"t{suffix}")
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "expected", "classes"),
    [
        ([2, 0] * 20, [2, 0] * 20, ("0", "1", "2")),
        ([1.0, 0.0] * 20, [1, 0] * 20, ("0", "1")),
        ([True, False] * 20, [1, 0] * 20, ("False", "True")),
        (["10", "9"] * 20, [0, 1] * 20, ("10", "9")),
    ],
)
def test_labels_become_class_numbers(
    tmp_path: Path, labels: list[Any], expected: list[int], classes: tuple[str, ...]
) -> None:
    # Parquet, since a csv cannot tell the text "10" from the number.
    path = write(table(outcome=labels), tmp_path / "t.parquet")
    corpus = read(path, test_file=path)
    assert corpus.train.y.tolist() == expected
    assert corpus.train.classes == classes


def test_bad_files_and_options_are_named(tmp_path: Path) -> None:
    path = write(table(), tmp_path / "t.csv")
    with pytest.raises(
        DataError,
        match=r"no column 'label' \(data.label\); its columns are age, dose, smoker, site, outcome",
    ):
        load("mine", file=path)
    with pytest.raises(
        DataError, match=r"feature column 'site' holds String.*is it the client column"
    ):
        read(path, client_column=None)
    with pytest.raises(DataError, match="cannot be both the label and the client"):
        read(path, client_column="outcome")
    with pytest.raises(DataError, match="no feature columns beside 'outcome'"):
        read(write(table().select("site", "outcome"), tmp_path / "n.csv"))
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "absent.csv")
    with pytest.raises(DataError, match=r"must be one of \.csv, \.parquet, \.npz"):
        read(tmp_path / "t.xlsx")
    with pytest.raises(DataError, match="there are no rows"):
        read(write(table().head(0), tmp_path / "z.csv"))
    with pytest.raises(DataError, match="one row cannot be both"):
        read(write(table().head(1), tmp_path / "o.csv"))
    with pytest.raises(
        DataError,
        match=r"short.csv: its 2 feature columns are not those of .*t.csv \(3\): it lacks 'age'",
    ):
        read(path, test_file=write(table().drop("age"), tmp_path / "short.csv"))
    (tmp_path / "ragged.csv").write_text("a,b,outcome\n1,2,x\n1,2,3,4,x\n")
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "bytes.csv").write_bytes(b"a,outcome\n\xff\xfe,1\n")
    for bad in ("ragged.csv", "empty.csv", "bytes.csv"):
        with pytest.raises(DataError, match=bad):
            read(tmp_path / bad)


def test_every_truncated_parquet_is_a_data_error(tmp_path: Path) -> None:
    content = write(table(), tmp_path / "t.parquet").read_bytes()
    for cut in [*range(0, len(content), 1 + len(content) // 150), len(content) - 1]:
        (tmp_path / "cut.parquet").write_bytes(content[:cut])
        with pytest.raises(DataError, match=r"cut.parquet: expected a Parquet file"):
            read(tmp_path / "cut.parquet")


def test_npz_round_trip(tmp_path: Path) -> None:
    x = RNG.integers(0, 256, (20, 5, 6), dtype=np.uint8)
    y = np.arange(20) % 3
    np.savez(
        tmp_path / "a.npz", x=x, y=y, client=np.array(list("ab") * 10), x_test=x[:4], y_test=y[:4]
    )
    corpus = load("mine", file=tmp_path / "a.npz")
    assert corpus.train.shape == (1, 5, 6)
    assert np.array_equal(corpus.train.x[:, 0], x)
    assert np.array_equal(corpus.train.y, y)
    assert corpus.train.client is not None
    assert corpus.train.client.tolist() == [0, 1] * 10
    assert corpus.test.client is None
    assert len(corpus.test) == 4
    np.savez_compressed(
        tmp_path / "b.npz", x=x.reshape(20, 30).astype(np.float64), y=np.array(["u", "v"] * 10)
    )
    corpus = load("mine", file=tmp_path / "b.npz", test_fraction=0.1, how=ReadOptions(scale=255.0))
    assert corpus.train.x.dtype == np.float32
    assert (len(corpus.train), len(corpus.test)) == (18, 2)
    assert float(corpus.train.x.max()) <= 1
    assert corpus.train.classes == ("u", "v")


def test_npz_faults_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    x, y = RNG.normal(size=(6, 3)), np.array([0, 1, 0, 1, 0, 1])

    def fails(message: str, **arrays: Any) -> None:
        np.savez(path, **arrays)
        with pytest.raises(DataError, match=message):
            load("mine", file=path)

    fails("no array 'y'; expected x and y .* found x", x=x)
    fails(
        "Arrays of Python objects are not read",
        x=x,
        y=np.array([0, 1, None, 1, 0, 1], dtype=object),
    )
    fails("y must have one entry for each of 6 examples", x=x, y=y[:4])
    fails("x_test and y_test must come together", x=x, y=y, x_test=x)
    fails("x must hold numbers", x=x.astype(str), y=y)
    fails("x must have a row for each example", x=x[:, 0], y=y)
    fails(r"row 3 .* has the label -1", x=x, y=np.array([0, 1, 0, -1, 0, 1]))
    fails(r"row 2 .* has no label", x=x, y=np.array(["a", "b", "", "a", "b", "a"]))
    fails("class numbers or text, found .V3", x=x, y=np.zeros(6, "V3"))
    fails(f"label {2**64 - 1} would mean", x=x, y=np.full(6, 2**64 - 1, np.uint64))
    fails("bytes that are not ASCII", x=x, y=np.array([b"a", b"\xff"] * 3))
    bad = x.copy()
    bad[4, 1] = np.nan
    fails(r"x: row 4 \(the first is 0\), column 1 is nan", x=bad, y=y)
    fails(r"x_test: row 4", x=x, y=y, x_test=bad, y_test=y)
    np.savez(path, x=x, y=y, x_test=x, y_test=y)
    with pytest.raises(DataError, match=r"leave data.test_file out"):
        load("mine", file=path, test_file=path)
    with pytest.raises(DataError, match=r"cannot be read \(No such file"):
        load("mine", file=tmp_path / "absent.npz")


def test_every_truncated_npz_is_a_data_error(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=RNG.normal(size=(6, 3)), y=np.arange(6))
    content = (tmp_path / "a.npz").read_bytes()
    for cut in range(len(content)):
        (tmp_path / "cut.npz").write_bytes(content[:cut])
        with pytest.raises(
            DataError,
            match=r"cut.npz: expected an npz archive|cut.npz: cannot be read|cut.npz: no array",
        ):
            load("mine", file=tmp_path / "cut.npz")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    """A reader would call the second otherwise, and take it for a feature like any other."""
    path = tmp_path / "twice.csv"
    path.write_text("a,b,a,label\n1,2,3,0\n4,5,6,1\n")
    with pytest.raises(DataError, match=r"twice\.csv: two columns are called 'a'; rename one"):
        load("", file=path)


@pytest.mark.parametrize("rules", [{}, {"encoding": Encoding(categories={"smoker": ("true",)})}])
def test_the_mistakes_of_all_columns_are_told_together(
    tmp_path: Path, rules: dict[str, object]
) -> None:
    gaps: list[object] = [None, *range(ROWS - 1)]
    frame = table(dose=gaps, age=[f"{i} years" for i in range(ROWS)]).with_columns(
        outcome=pl.when(pl.int_range(ROWS) == 3).then(None).otherwise(pl.col("outcome"))
    )
    with pytest.raises(DataError) as refused:
        read(write(frame, tmp_path / "t.csv"), **rules)
    told = str(refused.value).splitlines()
    assert len(told) == 3 + len(rules)
    assert "row 3 (the first is 0), column 'outcome' is empty" in told[0]
    assert any("'age' holds String" in line for line in told)
    assert any("row 0 (the first is 0), column 'dose' is empty" in line for line in told)


def test_of_a_thousand_mistakes_twenty_are_told(tmp_path: Path) -> None:
    words = {f"word {i}": ["a"] * ROWS for i in range(1000)}
    with pytest.raises(DataError) as refused:
        read(write(table(**words), tmp_path / "t.parquet"))
    told = str(refused.value).splitlines()
    assert (len(told), told[-1]) == (21, "and 980 more columns that cannot be read")
