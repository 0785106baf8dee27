"""A schema of a table, proposed from its rows: a text to edit, and never used as it is.

Ranges, categories and classes of a study must be public knowledge. Whoever holds a new file does
not know them by heart, so this proposes the keys, filled with what the rows say. That is a function
of private rows, with no noise: it is shown to the file's owner and written nowhere.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.base.errors import DataError
from sordino.data.labels import shown_name
from sordino.data.table import frame_of

if TYPE_CHECKING:
    import polars as pl

FEW = 50
"""Distinct texts of a column that are proposed as its categories."""
CLASSES = 20
"""Distinct whole numbers of a label that are proposed as classes."""

_HEAD = """\
# Proposed by `sordino data look` from private rows. No ledger has charged this: show it to nobody.
# Replace each value by one that is public without these rows: a legal maximum, a code book.
# Then remove these lines.
"""


def proposed(path: Path, label: str, leave_out: tuple[str, ...] = ()) -> str:
    """Return the table ``[data]`` of a study of this CSV or Parquet file, as TOML.

    Args:
        label: the column to predict.
        leave_out: columns that are no features, such as those of persons and clients.

    Raises:
        DataError: if the file cannot be read, or has no such column.
    """
    frame = frame_of(path)
    for column in (label, *leave_out):
        if column not in frame.columns:
            raise DataError(
                f"{path}: no column {shown_name(column)!r}; its columns are "
                + ", ".join(map(shown_name, frame.columns[:12]))
            )
    lines = [f"file = {_text(str(path))}", f"label = {_text(label)}"]
    lines += _label(frame[label])
    ranges, categories, missing = [], [], []
    for series in frame.get_columns():
        if series.name in (label, *leave_out):
            continue
        key = _text(series.name)
        if series.dtype.is_numeric() or str(series.dtype) == "Boolean":
            low, high = _span(series)
            ranges.append(f"{key} = [{_number(low)}, {_number(high)}]")
            if series.null_count():
                missing.append(f"{key} = {_number((low + high) / 2)}")
            continue
        values = sorted(map(str, series.drop_nulls().unique().to_list()))
        if len(values) > FEW:
            lines.append(
                f"# {key}: {len(values)} distinct values, such as {_text(values[0][:40])}. If it "
                f"says who a row is about, set person = {key} and person_rows = 1. Otherwise "
                "leave the column out of the file, or group its values"
            )
            continue
        gap = [""] if series.null_count() else []  # the empty category stands for a gap
        categories.append(f"{key} = [{', '.join(map(_text, [*values, *gap]))}]")
    for name, entries in (("ranges", ranges), ("categories", categories), ("missing", missing)):
        if entries:
            lines += ["", f"[data.{name}]", *entries]
    return f"{_HEAD}[data]\n" + "\n".join(lines) + "\n"


def _label(series: pl.Series) -> list[str]:
    found = series.drop_nulls().unique()
    if series.dtype.is_float() or (series.dtype.is_numeric() and len(found) > CLASSES):
        low, high = _span(series)
        return ['target = "number"', f"label_range = [{_number(low)}, {_number(high)}]"]
    names = sorted(found.to_list()) if series.dtype.is_numeric() else sorted(map(str, found))
    return [f"classes = [{', '.join(_text(str(name)) for name in names)}]"]


def _span(series: pl.Series) -> tuple[float, float]:
    """The least and the largest finite value, rounded outwards to one digit of their distance."""
    numbers = series.cast(float).drop_nulls()
    numbers = numbers.filter(numbers.is_finite())
    if not len(numbers):
        return 0.0, 1.0
    low, high = float(numbers.min()), float(numbers.max())  # type: ignore[arg-type]
    if low == high:
        return low - 1.0, high + 1.0
    step = 10.0 ** math.floor(math.log10(high - low))
    return math.floor(low / step) * step, math.ceil(high / step) * step


def _text(value: str) -> str:
    """A TOML string in which nothing controls a terminal."""
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in quoted)


def _number(value: float) -> str:
    """A TOML number: a sum of multiples of powers of ten, without the rounding of its last bits."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(round(value, 12))
