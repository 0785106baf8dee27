"""A proposed schema is a study's table that reads its own file; it bounds all rows."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from command import sordino
from sordino.base.errors import DataError
from sordino.data import load
from sordino.data.encoding import Encoding
from sordino.data.look import proposed
from sordino.data.table import ReadOptions


def test_the_proposal_reads_its_own_file(tmp_path: Path) -> None:
    rng, n = np.random.default_rng(0), 300
    table = pl.DataFrame(
        {
            "age": [None if i % 7 == 0 else int(v) for i, v in enumerate(rng.integers(18, 97, n))],
            "income": rng.lognormal(10, 2, n),
            "tiny": rng.normal(0, 3e-7, n),
            'a "quoted" name': ["x\u00e9\U0001f600", None, "y"] * (n // 3),
            "alone": [f"row {i}" for i in range(n)],
            "label": rng.normal(size=n),
        }
    )
    path = tmp_path / "t.parquet"
    table.drop("alone").write_parquet(path)
    keys = tomllib.loads(proposed(path, "label"))["data"]
    assert keys["target"] == "number"
    for name in ("age", "income", "tiny"):
        low, high = keys["ranges"][name]
        values = table[name].drop_nulls().to_numpy()
        assert low <= values.min() < values.max() <= high
        assert high - low <= 3.01 * np.ptp(values)
    span = tuple(keys["label_range"])
    rules = Encoding(keys["categories"], keys["ranges"], keys["missing"])
    corpus = load(
        "t",
        file=path,
        test_fraction=None,
        how=ReadOptions(encoding=rules, target="number", label_range=span),
    )
    assert len(corpus.train) == n
    table.write_parquet(path)
    assert '# "alone": 300 distinct values, such as "row 0"' in proposed(path, "label")
    with pytest.raises(DataError, match="no column 'nobody'"):
        proposed(path, "label", ("nobody",))


def test_the_command_writes_a_table_to_standard_output_alone(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,label\n1,yes\n2,no\n")
    done = sordino(tmp_path, "data", "look", "t.csv")
    assert tomllib.loads(done.stdout)["data"]["classes"] == ["no", "yes"]
    assert "private rows" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv"]


def test_a_name_of_a_column_adds_no_key(tmp_path: Path) -> None:
    names = ["evil\n[privacy]\nunit = 'none'", "x\x1b[2J\x9b2J\u202e"]
    table = pl.DataFrame({name: [f"{i} text" for i in range(60)] for name in names})
    table.with_columns(label=pl.Series(range(60)) % 2).write_parquet(tmp_path / "t.parquet")
    text = proposed(tmp_path / "t.parquet", "label")
    assert tomllib.loads(text).keys() == {"data"}
    assert not {"\x1b", "\x9b", "\u202e"} & set(text)
    with pytest.raises(DataError) as told:
        proposed(tmp_path / "t.parquet", "nobody")
    assert "\x1b" not in str(told.value)
    assert "\n" not in str(told.value)
