"""A user's own file: CSV, Parquet or npz.

**CSV and Parquet.** One row is one example. One column holds the label (``label``), one
may say whose the example is (``client``), every other column is a numeric feature.

**npz.** Arrays ``x`` (examples first) and ``y``; optionally ``client``, and ``x_test`` with
``y_test`` (and ``client_test``). Images without a channel axis, (examples, height, width),
get one. Type ``uint8`` means pixels; anything else becomes ``float32``.

**Labels.** Integers (or whole floats, or true/false) are class numbers 0..k-1 as they
stand; text is numbered in sorted order and kept as class names. Which classes exist is
treated as public knowledge, like the list of columns.

**No missing values.** A gap, a NaN or an infinity is refused with its row and column:
a row that silently disappeared would change the number of examples that the guarantee
speaks about.

CSV files carry no length: one that breaks off inside a row with too few columns is
refused, one that breaks off elsewhere cannot be recognised. Parquet and npz can.

**Memory.** Columns are copied into the one feature matrix and dropped from the table one
at a time, so that there is never a second float copy of the whole.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sordino.data import identity
from sordino.data.bounded import csv_input, read_arrays, refuse_large, refuse_long
from sordino.data.columns import in_order
from sordino.data.dataset import Features, Labels, Words, refuse_non_finite
from sordino.errors import DataError

if TYPE_CHECKING:
    import polars as pl

_LOOKED_AT = (
    100_000  # values of a column of text in which the first that is no number is looked for
)
ARRAYS = tuple(f"{name}{half}" for half in ("", "_test") for name in ("x", "y", "client"))
SUFFIXES = (".csv", ".parquet", ".npz")
MOST_CLASSES = 1 << 16
LONGEST_NAME = 60
"""Characters of a client's name that are shown."""

Scale = float | Sequence[float]


@dataclass(frozen=True, slots=True, eq=False)
class Raw:
    """Features that are ready, labels and owners as written, what rows are recognised by, and the
    names of the features where the file has any.
    """

    x: Features
    y: npt.NDArray[Any]
    client: npt.NDArray[Any] | None
    words: Words | None = None
    columns: tuple[str, ...] = ()


def read_table(
    path: Path,
    label: str = "label",
    client_column: str | None = None,
    scale: Scale | None = None,
    *,
    person: str | None = None,
    identify: bool = False,
    columns: Sequence[str] = (),
    whose: str = "the agreed ones",
) -> Raw:
    """A CSV or Parquet file.

    The column ``person`` says who a row is about; it is no feature, and ``client_column`` may be
    the same. Features come in the order of ``columns``, if these are given.
    """
    frame = _frame(path)
    if frame.height == 0:
        raise DataError(f"{path}: there are no rows")
    for role, column in (("label", label), ("client_column", client_column), ("person", person)):
        if column is not None and column not in frame.columns:
            raise DataError(
                f"{path}: no column {column!r} (data.{role}); its columns are "
                f"{_listed(frame.columns)}"
            )
    if label == client_column:
        raise DataError(f"{path}: column {label!r} cannot be both the label and the client")
    if label == person:
        raise DataError(f"{path}: column {label!r} cannot be both the label and the person")
    y = _plain(frame.drop_in_place(label), path)
    client = None if client_column is None else _plain(frame.drop_in_place(client_column), path)
    who = (
        client
        if person == client_column
        else None
        if person is None
        else _plain(frame.drop_in_place(person), path)
    )
    if not frame.columns:
        raise DataError(f"{path}: no feature columns beside {label!r}")
    columns = in_order(frame.columns, columns, str(path), whose)
    x = np.empty((frame.height, len(columns)), dtype=np.float32)
    for j, column in enumerate(columns):
        series = frame.drop_in_place(column)
        if not (series.dtype.is_numeric() or str(series.dtype) == "Boolean"):
            hint = (
                " (is it the client column? name it in data.client_column)"
                if client_column is None
                else ""
            )
            found = f"{series.dtype}, not numbers{_first_word(series)}"
            raise DataError(
                f"{path}: feature column {column!r} holds {found}; drop it or encode it as "
                f"numbers{hint}"
            )
        _refuse_gaps(series, path)
        # becomes an infinity, which is refused below with its place
        with np.errstate(over="ignore"):
            x[:, j] = series.to_numpy()
    others = (y, client, None if person == client_column else who)
    words = _identified(x, others, who) if identify else None
    _rescale(x, scale, path)
    refuse_non_finite(x, str(path), columns)
    return Raw(x, y, client, words, tuple(columns))


def _identified(
    x: Features, others: Sequence[npt.NDArray[Any] | None], who: npt.NDArray[Any] | None
) -> Words:
    """(n, 2), or (n, 3) with persons; of features as they are in the file."""
    found = identity.words(x, *(values for values in others if values is not None))
    return found if who is None else np.concatenate([found, identity.persons(who)[:, None]], axis=1)


def columns_of(path: Path, also: str | None = None) -> dict[str, npt.NDArray[Any]]:
    """Every column of a CSV or Parquet file, (n,); of an npz those it trains on, and ``also``."""
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path}: its kind is told by its ending, which must be one of {', '.join(SUFFIXES)}"
        )
    if path.suffix.lower() == ".npz":
        return _arrays(path, (*ARRAYS[:3], *(() if also is None else (also,))))
    frame = _frame(path)
    if frame.height == 0:
        raise DataError(f"{path}: there are no rows")
    return {name: _plain(frame[name], path) for name in frame.columns}


def _arrays(path: Path, wanted: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of these names in an npz file, x and y among them."""
    arrays, found = read_arrays(path, wanted)
    for name in ("x", "y"):
        if name not in arrays:
            raise DataError(
                f"{path}: no array {name!r}; expected x and y (optional: client, x_test, "
                f"y_test), found {_listed(found)}"
            )
    return arrays


def read_npz(
    path: Path, scale: Scale | None = None, *, person: str | None = None, identify: bool = False
) -> tuple[Raw, Raw | None]:
    """(the examples, the test examples if the file has any)."""
    arrays = _arrays(path, (*ARRAYS, *(() if person is None else (person,))))
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{path}: x_test and y_test must come together")
    if person is not None and person not in arrays:
        raise DataError(f"{path}: no array {person!r} (data.person); found {_listed(list(arrays))}")
    train = _raw(path, arrays, "", scale, person, identify)
    return train, _raw(path, arrays, "_test", scale, None, identify) if "x_test" in arrays else None


def _raw(
    path: Path,
    arrays: dict[str, npt.NDArray[Any]],
    suffix: str,
    scale: Scale | None,
    person: str | None,
    identify: bool,
) -> Raw:
    x, y, client = arrays.pop("x" + suffix), arrays["y" + suffix], arrays.get("client" + suffix)
    if x.dtype.kind not in "buif":
        raise DataError(f"{path}: x{suffix} must hold numbers, found {x.dtype}")
    if x.ndim < 2 or len(x) == 0 or x.size == 0:
        raise DataError(
            f"{path}: x{suffix} must have a row for each example, found shape {x.shape}"
        )
    who = None if person is None else arrays[person]
    for name, values in (("y", y), ("client", client), (person, who)):
        if values is not None and values.shape != (len(x),):
            raise DataError(
                f"{path}: {name}{suffix} must have one entry for each of {len(x)} examples, "
                f"found shape {values.shape}"
            )
    if x.dtype != np.uint8 or scale is not None:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
    others = (y, client, None if person == "client" else who)
    words = _identified(x, others, who) if identify else None
    if x.dtype != np.uint8:
        _rescale(x, scale, path)
        refuse_non_finite(x, f"{path}: x{suffix}")
    return Raw(x[:, None] if x.ndim == 3 else x, y, client, words)


def encode_labels(
    parts: Sequence[npt.NDArray[Any]], place: str
) -> tuple[tuple[Labels, ...], tuple[str, ...]]:
    """Class numbers for each of ``parts`` (training, test) under one list of class names."""
    for values in parts:
        if values.dtype.kind == "f":
            _whole_numbers(values, place)
    if odd := [values.dtype for values in parts if values.dtype.kind not in "buifSU"]:
        raise DataError(f"{place}: labels must be class numbers or text, found {odd[0]}")
    if all(values.dtype.kind in "uif" for values in parts):
        for values in parts:
            if (most := int(values.max())) >= MOST_CLASSES:  # before it overflows an int64
                raise DataError(
                    f"{place}: label {most} would mean {most + 1} classes; number the "
                    "classes 0, 1, 2, ... or use text"
                )
        numbers = tuple(values.astype(np.int64) for values in parts)
        for values in numbers:
            row = int(np.argmin(values))
            if values[row] < 0:
                raise DataError(
                    f"{place}: row {row} has the label {values[row]}; class numbers start at "
                    "0 (use 0 and 1, not -1 and 1)"
                )
        largest = max(int(values.max()) for values in numbers)
        return numbers, tuple(str(i) for i in range(largest + 1))
    try:
        texts = [values.astype(str) for values in parts]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}: labels must be class numbers or text, but some are bytes that are not ASCII"
        ) from error
    for values in texts:
        if (empty := np.flatnonzero(values == "")).size:
            raise DataError(f"{place}: row {int(empty[0])} has no label")
    names = np.unique(np.concatenate(texts))
    return tuple(np.searchsorted(names, values).astype(np.int64) for values in texts), tuple(
        str(name) for name in names
    )


def encode_clients(parts: Sequence[npt.NDArray[Any]]) -> tuple[Labels, ...]:
    """Owners numbered 0.. in sorted order, the same numbers in training and test."""
    _, numbers = np.unique(np.concatenate(list(parts)), return_inverse=True)
    cuts = np.cumsum([len(values) for values in parts])[:-1]
    return tuple(np.split(numbers.astype(np.int64), cuts))


def client_names(parts: Sequence[npt.NDArray[Any]]) -> tuple[str, ...]:
    """What the owners of :func:`encode_clients` are called, by number: each name once, fit to show.

    Names are text from a file: control characters go, white space becomes one blank, and what is
    long is cut.

    >>> client_names([np.array(["b", "a\\x1b[31m", "b"])])
    ('a[31m', 'b')
    """
    shown: dict[str, None] = {}
    for number, value in enumerate(np.unique(np.concatenate(list(parts)))):
        name = shown_name(str(value)) or f"client {number}"
        while name in shown:
            name = (
                f"{name[: LONGEST_NAME - 12]} ({number})"
                if f"{name} ({number})" not in shown
                else f"{name}'"
            )
        shown[name] = None
    return tuple(shown)


def shown_name(text: str) -> str:
    """A name from a file on one line, plain, of :data:`LONGEST_NAME` characters at most."""
    clean = " ".join(
        "".join(
            " " if c.isspace() else c
            for c in text
            if c.isspace() or unicodedata.category(c)[0] != "C"
        ).split()
    )
    return clean if len(clean) <= LONGEST_NAME else f"{clean[: LONGEST_NAME - 1]}…"


def _frame(path: Path) -> pl.DataFrame:
    # Here, because polars takes a tenth of a second to import.
    import polars as pl

    if not path.is_file():
        raise DataError(f"{path}: no such file")
    parquet = path.suffix.lower() == ".parquet"
    try:
        if parquet:
            refuse_large(path, pl.scan_parquet(path))
            return pl.read_parquet(path)
        return pl.read_csv(csv_input(path), infer_schema_length=None)
    except DataError:
        raise
    except (Exception, pl.exceptions.PanicException) as error:
        # a panic of its Rust part is no Exception
        kind = "a Parquet file" if parquet else "a CSV file with a header and equally long rows"
        raise DataError(
            f"{path}: expected {kind}, but reading it failed ({str(error).splitlines()[0]})"
        ) from error


def _plain(series: pl.Series, path: Path) -> npt.NDArray[Any]:
    """Labels or owners as a NumPy array of integers, floats, or text."""
    _refuse_gaps(series, path)
    if series.dtype.is_numeric():
        return series.to_numpy()
    refuse_long(series, path)
    return np.array([str(value) for value in series.to_list()])


def _first_word(series: pl.Series) -> str:
    """Where the first value stands that is no number, for a column of text."""
    if str(series.dtype) != "String":
        return ""
    for row, value in enumerate(series.head(_LOOKED_AT), start=1):
        try:
            float(value)
        except (TypeError, ValueError):
            return f" (row {row} below the header says {str(value)[:40]!r})"
    return ""


def _refuse_gaps(series: pl.Series, path: Path) -> None:
    if series.null_count():
        row = int(np.argmax(series.is_null().to_numpy()))
        raise DataError(
            f"{path}: row {row} (the first is 0), column {series.name!r} is empty; drop the row, "
            "or fill the gap with a constant that does not depend on the data"
        )


def _whole_numbers(values: npt.NDArray[Any], place: str) -> None:
    bad = np.flatnonzero(
        ~np.isfinite(values) | (values != np.round(values)) | (np.abs(values) > 2**53)
    )
    if bad.size:
        raise DataError(
            f"{place}: row {int(bad[0])} has the label {values[bad[0]]}; labels must be "
            "class numbers or text"
        )


def _rescale(x: npt.NDArray[np.float32], scale: Scale | None, path: Path) -> None:
    """Divide by public constants, in place."""
    if scale is None:
        return
    divisor = np.asarray(scale, dtype=np.float64)
    if not (np.isfinite(divisor).all() and (divisor > 0).all()):
        raise DataError(f"{path}: data.scale must be positive and finite, got {scale}")
    if divisor.ndim and (divisor.shape != x.shape[1:]):
        raise DataError(
            f"{path}: data.scale has {divisor.size} entries, the data has features of shape "
            f"{x.shape[1:]}"
        )
    x /= divisor.astype(np.float32)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:12]) or "none"
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
