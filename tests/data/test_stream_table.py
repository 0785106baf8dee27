"""Tables as streams: what stands in the file, in constant memory; and what is wrong with it, with
its place.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sordino.data.stream.table as text_module
from sordino.base.errors import DataError
from sordino.data import load, sets
from sordino.data.stream.opening import Replay, Rows, Streaming, Wanted, published
from sordino.data.stream.table import TableStream

RNG = np.random.default_rng(3)


def collisions(rows: int, features: int) -> np.ndarray:
    return np.concatenate(
        [RNG.integers(2, size=(rows, 1)), RNG.normal(1, 1, (rows, features))], axis=1
    ).astype(np.float32)


def as_published(values: np.ndarray) -> bytes:
    return "".join(",".join(f"{v:.18e}" for v in row) + "\n" for row in values.tolist()).encode()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sets, "_SYSTEM", tmp_path / "system")
    return tmp_path


def of_susy(path: Path, rows: int) -> TableStream:
    header = ("label", *sets.PUBLISHED["susy"].columns)
    return TableStream(path, classes=("background", "signal"), header=header, rows=rows)


@pytest.mark.parametrize(("name", "features"), [("susy", 18), ("higgs", 28)])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_collisions_by_name(bare: Path, name: str, features: int, ending: str) -> None:
    values = collisions(300, features)
    folder = bare / "own" / name
    folder.mkdir(parents=True)
    body = as_published(values)
    (folder / f"{name.upper()}.csv{ending}").write_bytes(gzip.compress(body) if ending else body)
    stream = published(name, rows=300)
    piece = stream.read(0, 1000)
    assert np.array_equal(piece.x, values[:, 1:])
    assert np.array_equal(piece.y, values[:, 0])
    assert piece.entity is None
    assert (stream.name, stream.shape, stream.classes, stream.length) == (
        name,
        (features,),
        ("background", "signal"),
        300,
    )
    assert stream.columns is not None
    assert len(set(stream.columns)) == features
    for rows in (299, 301):
        with pytest.raises(
            DataError, match=rf"{name.upper()}.csv{ending}: expected {rows} rows, but found 300"
        ):
            published(name, rows=rows).read(0, rows)
    # As published it has millions of rows: a smaller file is incomplete.
    with pytest.raises(
        DataError, match=r"expected (5|11)000000 rows, but found 300\. .* get it again"
    ):
        published(name).read(200, 300)


@pytest.mark.parametrize("name", ["susy", "higgs"])
def test_missing_collisions_list_every_place_and_way(bare: Path, name: str) -> None:
    with pytest.raises(DataError) as caught:
        published(name)
    message = str(caught.value)
    for place in (bare / "own" / name, bare / "cache" / "sordino" / name, bare / "system" / name):
        assert f"{place}: no such folder" in message
    assert f"sordino data fetch {name}" in message
    assert (
        f"put {name.upper()}.csv (each with or without .gz) into "
        f"{bare / 'cache' / 'sordino' / name}" in message
    )
    with pytest.raises(
        DataError, match=f"'{name}' is too large to be loaded; it is read as a stream"
    ):
        load(name)
    with pytest.raises(DataError, match="unknown stream 'mnist'; known: susy, higgs"):
        published("mnist")


def frame(rows: int = 50) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "age": [20 + i for i in range(rows)],
            "dose": [i / 7 for i in range(rows)],
            "smoker": [i % 3 == 0 for i in range(rows)],
            "who": [f"Doe, {i % 5} \"x\"" for i in range(rows)],
            "outcome": [("well", "ill")[i % 2] for i in range(rows)],
        }
    )  # fmt: skip


def write(table: pl.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        table.write_parquet(path)
        return path
    body = table.write_csv().encode()
    path.write_bytes(
        gzip.compress(body)
        if path.suffix == ".gz"
        else bz2.compress(body)
        if path.suffix == ".bz2"
        else body
    )
    return path


def hashed(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") // 2


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".csv.bz2", ".parquet"])
def test_a_users_table(tmp_path: Path, ending: str) -> None:
    stream = TableStream(
        write(frame(), tmp_path / f"t{ending}"),
        classes=("ill", "well"),
        label="outcome",
        entity="who",
    )
    piece, count = stream.read(0, 99), 50
    assert stream.columns == ("age", "dose", "smoker")
    assert stream.length == (count if ending == ".parquet" else None)
    assert piece.x.tolist() == [
        [20 + i, np.float32(i / 7), float(i % 3 == 0)] for i in range(count)
    ]
    assert piece.y.tolist() == [(1, 0)[i % 2] for i in range(count)]
    assert piece.entity is not None
    assert piece.entity.tolist() == [hashed(f'Doe, {i % 5} "x"') for i in range(count)]
    assert piece.entity.min() >= 0
    for start, length in ((50, 3), (7, 0)):
        empty = stream.read(start, length)
        assert (empty.x.shape, empty.entity is not None) == ((0, 3), True)
    assert stream.changes(0, 50) == ()


def test_owners_have_one_number_in_every_kind_of_file(tmp_path: Path) -> None:
    table = frame().with_columns(who=pl.Series([i % 4 for i in range(50)]))
    kinds = [write(table, tmp_path / f"t{ending}") for ending in (".csv", ".parquet")]
    found = [
        TableStream(p, classes=("ill", "well"), label="outcome", entity="who").read(0, 50).entity
        for p in kinds
    ]
    for owners in found:
        assert owners is not None
        assert owners.tolist() == [hashed(str(i % 4)) for i in range(50)]


def test_a_constant_divides(tmp_path: Path) -> None:
    path = write(frame(), tmp_path / "t.csv")

    def read(**options: Any) -> np.ndarray:
        return (
            TableStream(path, classes=("ill", "well"), label="outcome", entity="who", **options)
            .read(0, 50)
            .x
        )

    plain = read()
    assert np.allclose(read(scale=4.0), plain / 4)


@pytest.mark.parametrize(
    ("bad", "scale", "stream"),
    [("nan", 1.0, Rows()), ("1e30", 1e-20, Rows()), ("1e30", 1e-20, Replay())],
)
def test_a_private_row_that_cannot_be_read_is_told_of_before_the_first_event(
    tmp_path: Path, bad: str, scale: float, stream: Streaming
) -> None:
    """In the middle of a run it would end the run, after releases."""
    path = tmp_path / "t.csv"
    path.write_text("dose,outcome\n" + "1.0,0\n" * 3000 + f"{bad},0\n")
    wanted = Wanted(
        name=None,
        file=path,
        label="outcome",
        entity=None,
        classes=("0", "1"),
        scale=scale,
        seed=0,
        events=3001,
        identify=False,
        private=True,
    )
    with pytest.raises(DataError, match="row 3000"):
        stream.open(wanted)
    table = TableStream(path, classes=("0", "1"), label="outcome", scale=scale)
    with pytest.raises(DataError, match=r"row 3000 .* column 'dose' is"):
        table.read(0, 3001)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"dose": [1.0] * 7 + [float("nan")] + [1.0] * 42},
            r"row 7 \(the first is 0\), column 'dose' is nan",
        ),
        (
            {"dose": [1.0] * 9 + [float("-inf")] + [1.0] * 40},
            r"row 9 \(the first is 0\), column 'dose' is -inf",
        ),
        ({"dose": [1.0] * 3 + [1e300] + [1.0] * 46}, r"row 3 .* column 'dose' is inf"),
        ({"dose": [1.0] * 4 + [None] + [1.0] * 45}, r"row 4 .*, column 'dose' is empty"),
        (
            {"outcome": ["ill"] * 6 + [None] + ["ill"] * 43},
            r"row 6 .*, column 'outcome' (is empty|has no label)",
        ),
        (
            {"outcome": ["ill"] * 8 + ["dead"] + ["ill"] * 41},
            r"row 8 .* has the label 'dead'; expected ill, well, or 0 to 1",
        ),
        ({"outcome": [0] * 5 + [2] + [0] * 44}, r"row 5 .* has the label '2'"),
        ({"outcome": [0] * 5 + [-1] + [0] * 44}, r"row 5 .* has the label '-1'"),
        ({"outcome": [0.0] * 5 + [0.5] + [0.0] * 44}, r"row 5 .* has the label '0.5'"),
        ({"who": ["a"] * 11 + [None] + ["a"] * 38}, r"row 11 .*, column 'who' is empty"),
    ],
)
def test_bad_cells_are_named(
    tmp_path: Path,
    suffix: str,
    change: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_module, "TEXT_ROWS", 4)
    path = write(
        frame().with_columns(**{n: pl.Series(n, v) for n, v in change.items()}),
        tmp_path / f"t{suffix}",
    )
    with pytest.raises(DataError, match=message) as caught:
        TableStream(path, classes=("ill", "well"), label="outcome", entity="who").read(0, 50)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("a,b,label\n1,2,0\n3,4\n",
         r"row 1 \(the first is 0\) has 2 cells, expected 3 \(a, ..., label\)"),
        ("a,b,label\n1,2,0\n3,4,5,1\n", r"row 1 .* has 4 cells, expected 3"),
        ("a,b,label\n1,2,0\n3\n", r"row 1 .* has 1 cells, expected 3"),
        ('a,b,label\n1,2,0\n3,"4",1,1\n', r"row 1 .* has 4 cells"),
        ("label,a,b\n1,2,0\n0,3,\"4\",1\n", r"row 1 .* has 4 cells"),
        ('label,a,b\n1,2,0\n0,"4"\n', r"row 1 .* has 2 cells"),
        ("a,b,label\n1,2,0\nold,4,1\n",
         r"row 1 .* column 'a' is 'old', not a number; drop the column or encode it as numbers"),
        ('a,b,label\n1,2,0\n3,"4,1\n5,6,1\n',
         r"line 4: unexpected end of data; is there a quote that is never closed\?"),
        ("a,b,label\n1,2,0\n3,4", r"row 1 .* has 2 cells, expected 3"),
        ("a,b,label\n1,2,0\n3,1 2,1", r"row 1 .* column 'b' is '1 2', not a number"),
        ("a,b,label\n1,2,0\n,4,1", r"row 1 .* column 'a' is empty"),
        ("", "expected a CSV file with a header, but it is empty"),
        ("\n", "expected a CSV file with a header, but its first line is empty"),
        ("a,b\n1,2\n", r"no column 'label' for the label\. Its columns are a, b"),
        ("a,lable\n1,2\n",
         r"no column 'label' for the label; did you mean 'lable'\? Its columns are a, lable"),
        ("a,a,label\n1,2,0\n", "two columns are called 'a'"),
        ("label\n1\n", "no feature columns beside 'label'"),
    ],
)  # fmt: skip
def test_bad_text_is_named(tmp_path: Path, body: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(body)
    with pytest.raises(DataError, match=message) as caught:
        TableStream(path, classes=("0", "1")).read(0, 9)
    assert str(path) in str(caught.value)


def test_a_quote_that_is_never_closed_does_not_swallow_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "open.csv"
    path.write_text('a,label\n1,0\n"2,1\n' + "3,1\n" * 100_000)
    with pytest.raises(
        DataError,
        match=r"field larger than field limit .*; is there a quote that is never closed\?",
    ):
        TableStream(path, classes=("0", "1")).read(0, 9)


def test_unusual_text_that_is_right(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_bytes(
        '\ufeff"a", b ,label\r\n"1.5", 2 ,0\r\n\r\n+3e0,-.5,"1"\r\n\n1_0,tRue,1.0'.encode()
    )
    piece = TableStream(path, classes=("0", "1")).read(0, 9)
    assert piece.x.tolist() == [[1.5, 2], [3, -0.5], [10, 1]]
    assert piece.y.tolist() == [0, 1, 1]
    path.write_text("a,b,label\n")
    assert len(TableStream(path, classes=("0", "1")).read(0, 9)) == 0


def test_classes_are_given(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text("a,label\n1,2\n1,1\n1,1.0\n")
    # Where names look like numbers, they are what the file says, not positions.
    assert TableStream(path, classes=("1", "2")).read(0, 3).y.tolist() == [1, 0, 0]
    assert TableStream(path, classes=("0", "1", "2")).read(0, 3).y.tolist() == [2, 1, 1]
    assert TableStream(path, classes=("x", "y", "z")).read(0, 3).y.tolist() == [2, 1, 1]
    with pytest.raises(DataError, match=r"row 0 .* has the label '2'; expected 0, 1$"):
        TableStream(path, classes=("0", "1")).read(0, 3)
    with pytest.raises(DataError, match=r"names one class twice: 'a', 'a'"):
        TableStream(path, classes=("a", "a"))
    with pytest.raises(DataError, match=r"must be one of \.csv, \.csv\.gz, \.csv\.bz2, \.parquet"):
        TableStream(tmp_path / "c.xlsx", classes=("0", "1"))
    for absent in ("absent.csv", "absent.parquet"):
        with pytest.raises(DataError, match=f"{absent}: .*(no such file|No such file)"):
            TableStream(tmp_path / absent, classes=("0", "1"))
    table = write(frame(), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="cannot be both the label and the entity"):
        TableStream(table, classes=("0", "1"), label="who", entity="who")
    with pytest.raises(DataError, match="feature column 'who' holds String, not numbers"):
        TableStream(table, classes=("0", "1"), label="outcome")
    with pytest.raises(DataError, match="expected 51 rows, but found 50"):
        TableStream(table, classes=("0", "1"), label="outcome", entity="who", rows=51)
    owners = write(frame().with_columns(pl.col("dose").alias("who")), tmp_path / "o.parquet")
    with pytest.raises(
        DataError, match=r"row 0 .* column 'who' is 0\.0, a fraction.* owners are text or whole"
    ):
        TableStream(owners, classes=("ill", "well"), label="outcome", entity="who").read(0, 5)


@pytest.mark.parametrize("ending", [".csv.gz", ".csv.bz2", ".parquet"])
def test_every_truncated_file_is_a_data_error(tmp_path: Path, ending: str) -> None:
    content = write(frame(), tmp_path / f"t{ending}").read_bytes()
    path = tmp_path / f"cut{ending}"
    for cut in [*range(0, len(content), 1 + len(content) // 150), len(content) - 1]:
        path.write_bytes(content[:cut])
        with pytest.raises(DataError, match=rf"cut{ending}: expected"):
            TableStream(path, classes=("ill", "well"), label="outcome", entity="who").read(0, 51)


def test_a_damaged_byte_is_found_when_it_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "STRETCH", 1000)
    content = bytearray(gzip.compress(as_published(collisions(5000, 18)), compresslevel=1))
    content[len(content) // 2] ^= 255
    path = tmp_path / "SUSY.csv.gz"
    path.write_bytes(content)
    stream = of_susy(path, 5000)
    assert len(stream.read(0, 100)) == 100
    with pytest.raises(DataError, match=r"SUSY\.csv\.gz"):
        stream.read(100, 5000)


def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "STRETCH", 1 << 16)
    body, peaks = as_published(collisions(300, 18)), []
    for times in (10, 60):
        path = tmp_path / f"{times}.csv.gz"
        path.write_bytes(gzip.compress(body * times, compresslevel=1))
        stream = of_susy(path, 300 * times)
        stream.read(0, 1)
        tracemalloc.start()
        for start in range(0, 300 * times, 100):
            stream.read(start, 100)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_long_rows_are_read_a_few_at_once(tmp_path: Path) -> None:
    path = tmp_path / "long.csv.gz"  # of 100 MB, where it is not compressed
    number = "0." + "0" * 100_000
    path.write_bytes(gzip.compress(("a,label\n" + f"{number},0\n" * 1000).encode(), 1))
    tracemalloc.start()
    assert len(TableStream(path, classes=("0", "1")).read(0, 9)) == 9
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * text_module.MOST_LINE


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.floats(-1e6, 1e6, width=32),
            st.integers(0, 2),
            st.sampled_from(["a", 'b"', "c,d", "e\nf"]),
        ),
        max_size=30,
    ),
    st.integers(1, 200), st.integers(1, 20),
)  # fmt: skip
def test_any_csv_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[float, int, str]],
    stretch: int,
    at_once: int,
) -> None:
    path = tmp_path_factory.mktemp("any") / "t.csv"
    dose, label, who = zip(*rows, strict=True) if rows else ((), (), ())
    schema = {"dose": pl.Float32, "label": pl.Int64, "who": pl.String}
    pl.DataFrame({"dose": dose, "label": label, "who": who}, schema=schema).write_csv(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "STRETCH", stretch)
        patch.setattr(text_module, "TEXT_ROWS", at_once)
        piece = TableStream(path, classes=("0", "1", "2"), entity="who").read(0, 100)
    assert piece.x[:, 0].tolist() == list(dose)
    assert piece.y.tolist() == list(label)
    assert piece.entity is not None
    assert piece.entity.tolist() == [hashed(name) for name in who]
