"""Rows of a file, some thousand at a time, in constant memory: CSV and Parquet.

**Classes** are public knowledge: their number, or their names, is given and not looked up in the
data. A label that is one of the names is that class. Otherwise, where no name looks like a number
itself, labels are the whole numbers 0 to k - 1. Anything else is refused with its row.

**Entities.** Numbers in order of first appearance would need memory for each person. So an entity
is a hash of its name: the first 63 bits of BLAKE2b, the same in every file, run and program. Two
given people share a number with probability 2^-63; among n people any two do with probability below
n^2 / 2^64, for a million people 5 10^-8. Whole numbers are hashed as their decimal text, so that 12
in a CSV file and in a Parquet file are the same person.

>>> coder = Classes(("ill", "well"))
>>> [coder.number("well"), coder.number("1.0"), coder.number("dead")]
[1, 1, None]
>>> entity("12") == entity("12"), entity("12") == entity("13")
(True, False)
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sordino.base.errors import DataError
from sordino.base.registry import did_you_mean
from sordino.data.dataset import single
from sordino.data.encoding import refuse_gaps
from sordino.data.identity import entity
from sordino.data.labels import MOST_CLASSES
from sordino.data.source import MOST_COLUMNS, Source, refuse_long
from sordino.data.stream.piece import Piece

PARQUET_ROWS = 20_000
"""Rows at a time, at most."""

GAP = ", or fill the gap with a constant that does not depend on the data"


class Rows(Protocol):
    """An open file, read from front to back."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the feature columns."""
        ...

    def skip(self, rows: int) -> int:
        """Pass so many rows; how many there were."""
        ...

    def next(self) -> Piece:
        """The next rows, some thousand; none at the end of the file. Features may be infinite."""
        ...


def roles(columns: Sequence[str], label: str, entity: str | None, path: Path) -> NDArray[np.int64]:
    """For each column its feature's number, of the label -1, of the entity -2.

    Raises:
        DataError: for columns that are missing, twice there, or both.
    """
    for role, name in (("label", label), ("entity", entity)):
        if name is not None and name not in columns:
            hint = did_you_mean(name, columns) or "."
            shown = ", ".join(columns[:12]) + (
                f" and {len(columns) - 12} more" if len(columns) > 12 else ""
            )
            raise DataError(
                f"{path}: no column {name!r} for the {role}{hint} Its columns are {shown}"
            )
    if label == entity:
        raise DataError(f"{path}: column {label!r} cannot be both the label and the entity")
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise DataError(f"{path}: two columns are called {twice[0]!r}; rename one")
    if len(columns) < 2 + (entity is not None):
        raise DataError(f"{path}: there are no feature columns beside {label!r}")
    places, features = np.empty(len(columns), np.int64), 0
    for at, name in enumerate(columns):
        places[at] = -1 if name == label else -2 if name == entity else features
        features += places[at] >= 0
    return places


def cell(path: Path, row: int, column: str) -> str:
    """The place of a cell, for messages."""
    return f"{path}: row {row} (the first is 0), column {column!r}"


_KEPT = 1 << 16
"""Above so many texts the memory of numbers is emptied; a stretch of rows is added at once."""


def whole(text: str) -> int | None:
    """The whole number that ``text`` is, as "3", "3.0" or "3e0"; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() and abs(value) <= 2**53 else None


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes that a table may have."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, classes: int | Sequence[str], place: str) -> Classes:
        """From their number, or their names.

        Raises:
            DataError: for fewer than two, too many, or the same twice.
        """
        if isinstance(classes, str):
            raise DataError(
                f"{place}: classes must be a number or a list of names, got the text {classes!r}"
            )
        count = classes if isinstance(classes, int) else len(classes)
        if not 2 <= count <= MOST_CLASSES:
            raise DataError(f"{place}: there must be 2 to {MOST_CLASSES} classes, got {count}")
        names = (
            tuple(map(str, range(classes)))
            if isinstance(classes, int)
            else tuple(str(name).strip() for name in classes)
        )
        if len(set(names)) < len(names):
            raise DataError(f"{place}: each class needs a name of its own, got {', '.join(names)}")
        return cls(names)

    def number(self, label: str) -> int | None:
        """The class number of a label; None where there is none."""
        if label in self.names:
            return self.names.index(label)
        value = whole(label)
        if value is None or not 0 <= value < len(self.names):
            return None
        # numbers are names here: 1.0 is the class named "1"
        if any(whole(name) is not None for name in self.names):
            return self.names.index(str(value)) if str(value) in self.names else None
        return value

    def wanted(self) -> str:
        """Return the labels that are expected, in words."""
        names = ", ".join(self.names[:12]) + (
            f" and {len(self.names) - 12} more" if len(self.names) > 12 else ""
        )
        return (
            names
            if any(whole(name) is not None for name in self.names)
            else f"{names}, or 0 to {len(self.names) - 1}"
        )


class Coder:
    """Cells of labels and owners, as text, to numbers; each text is looked up once."""

    def __init__(self, classes: Classes, path: str) -> None:
        self.classes, self.path = classes, path
        self._labels: dict[str, int] = {}
        self._owners: dict[str, int] = {}

    def labels(self, cells: Sequence[str], row: int, column: str) -> NDArray[np.int64]:
        """Class numbers of the labels of rows ``row``, ``row + 1``, ...

        Raises:
            DataError: names row and column of a label that no class has.
        """
        return _looked_up(self._labels, cells, lambda cell, at: self._label(cell, row + at, column))

    def owners(self, cells: Sequence[str], row: int, column: str) -> NDArray[np.int64]:
        """Entities of the owners of rows ``row``, ``row + 1``, ...; an empty name is refused."""
        return _looked_up(self._owners, cells, lambda cell, at: self._owner(cell, row + at, column))

    def _label(self, cell: str, row: int, column: str) -> int:
        text = cell.strip()
        number = self.classes.number(text)
        if number is None:
            what = f"has the label {text!r}" if text else "has no label"
            raise DataError(
                f"{self.path}: row {row} (the first is 0), column {column!r} {what}; "
                f"expected {self.classes.wanted()}"
            )
        return number

    def _owner(self, cell: str, row: int, column: str) -> int:
        text = cell.strip()
        if not text:
            raise DataError(
                f"{self.path}: row {row} (the first is 0), column {column!r} is empty; whose "
                "row is it?"
            )
        return entity(text)


def _looked_up(
    known: dict[str, int], cells: Sequence[str], find: Callable[[str, int], int]
) -> NDArray[np.int64]:
    numbers = [known.get(cell) for cell in cells]
    if None in numbers:
        if len(known) > _KEPT:
            known.clear()
        for at, cell in enumerate(cells):
            if numbers[at] is None:
                numbers[at] = (
                    known[cell] if cell in known else known.setdefault(cell, find(cell, at))
                )
    return np.array(numbers, dtype=np.int64)


class Parquet:
    """Parquet, by stretches of :data:`PARQUET_ROWS` rows."""

    def __init__(self, path: Path, label: str, entity: str | None, coder: Coder) -> None:
        # Here, because polars takes a tenth of a second to import.
        import polars as pl

        if not path.is_file():
            raise DataError(f"{path}: no such file")
        self._path, self._coder, self._label, self._entity = path, coder, label, entity
        self._row = 0
        try:
            self._frame: Any = pl.scan_parquet(path)
            schema = self._frame.collect_schema()
            self.rows = int(self._frame.select(pl.len()).collect().item())
        except (Exception, pl.exceptions.PanicException) as error:
            # a panic of its Rust part is no Exception
            raise self._failed(error) from error
        self.columns = tuple(schema.names())
        places = roles(self.columns, label, entity, path)
        self.features = tuple(
            name for name, place in zip(self.columns, places, strict=True) if place >= 0
        )
        for name in self.features:
            if not (schema[name].is_numeric() or str(schema[name]) == "Boolean"):
                raise DataError(
                    f"{path}: feature column {name!r} holds {schema[name]}, not numbers; "
                    "drop it or encode it as numbers"
                )

    def skip(self, rows: int) -> int:
        passed = min(rows, self.rows - self._row)
        self._row += passed
        return passed

    def next(self) -> Piece:
        import polars as pl

        try:
            frame = self._frame.slice(self._row, PARQUET_ROWS).collect()
        except (Exception, pl.exceptions.PanicException) as error:
            raise self._failed(error) from error
        if frame.height < min(PARQUET_ROWS, self.rows - self._row):
            raise DataError(
                f"{self._path}: expected {self.rows} rows, found {self._row + frame.height}; "
                "did the file change?"
            )
        x = np.empty((frame.height, len(self.features)), np.float32)
        for at, name in enumerate(self.features):
            refuse_gaps(frame[name], str(self._path), GAP, self._row)
            x[:, at] = single(frame[name].cast(pl.Float64).to_numpy())
        y = self._coder.labels(self._cells(frame[self._label]), self._row, self._label)
        owners = None
        if self._entity is not None:
            owners = self._coder.owners(
                self._cells(frame[self._entity], owner=True), self._row, self._entity
            )
        self._row += frame.height
        return Piece(x, y, owners)

    def _cells(self, series: Any, owner: bool = False) -> list[str]:
        """Labels or owners as a CSV file would have them."""
        refuse_gaps(series, str(self._path), GAP, self._row)
        refuse_long(series, str(self._path))
        if series.dtype.is_integer():
            return [str(value) for value in series.to_list()]
        texts = [_shown(value) for value in series.to_list()]
        if owner and series.dtype.is_numeric():
            for at, text in enumerate(texts):
                if whole(text) is None:
                    raise DataError(
                        f"{cell(self._path, self._row + at, series.name)} is {text}; owners "
                        "are text or whole numbers"
                    )
        return texts

    def _failed(self, error: BaseException) -> DataError:
        return DataError(
            f"{self._path}: expected a Parquet file, but reading it failed "
            f"({str(error).splitlines()[0]})"
        )


def _shown(value: object) -> str:
    """A label or an owner as a CSV file would have it."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


STRETCH = 1 << 18  # bytes
MOST_STRETCH = 1 << 26  # bytes of some rows
MOST_LINE = 1 << 24  # bytes of a row
TEXT_ROWS = 1000

_TRUTH = {"true": 1.0, "false": 0.0}


class Text:
    """CSV; the columns are given, or stand in the first line.

    A number is exactly ``numpy.float32(float(text))``.
    """

    def __init__(
        self,
        path: Path,
        label: str,
        entity: str | None,
        coder: Coder,
        columns: Sequence[str] | None,
    ) -> None:
        self._path, self._coder, self._row = path, coder, 0
        self._lines = _Lines(Source(path))
        self._reader = csv.reader(self._lines, strict=True)
        self.columns = tuple(columns) if columns is not None else self._header()
        places = roles(self.columns, label, entity, path)
        self._label, self._entity = label, entity
        self._held = [at for at, place in enumerate(places) if place >= 0]
        self.features = tuple(self.columns[at] for at in self._held)

    def skip(self, rows: int) -> int:
        """Take what is passed unchecked."""
        passed = sum(1 for _ in islice(self._rows(), rows))
        self._row += passed
        return passed

    def next(self) -> Piece:
        rows, width = self._stretch(), len(self.columns)
        for at, row in enumerate(rows):
            if len(row) != width:
                expected = f"{width} ({self.columns[0]}, ..., {self.columns[-1]})"
                raise DataError(
                    f"{self._path}: row {self._row + at} (the first is 0) has {len(row)} "
                    f"cells, expected {expected}"
                )
        x = self._numbers(rows)
        y = self._coder.labels(self._column(rows, self._label), self._row, self._label)
        owners = None
        if self._entity is not None:
            owners = self._coder.owners(self._column(rows, self._entity), self._row, self._entity)
        self._row += len(rows)
        return Piece(x, y, owners)

    def _stretch(self) -> list[list[str]]:
        """Some rows: fewer where they are long."""
        rows, start = list[list[str]](), self._lines.given
        for row in self._rows():
            rows.append(row)
            if len(rows) == TEXT_ROWS or self._lines.given - start > MOST_STRETCH:
                break
        return rows

    def _rows(self) -> Iterator[list[str]]:
        """Yield the rows that are left, without empty lines."""
        try:
            for row in self._reader:
                self._lines.since = 0
                if row:
                    yield row
        except csv.Error as error:
            raise DataError(
                f"{self._path}: line {self._reader.line_num}: {error}; is there a quote that "
                "is never closed?"
            ) from error

    def _column(self, rows: Sequence[list[str]], name: str) -> list[str]:
        at = self.columns.index(name)
        return [row[at] for row in rows]

    def _numbers(self, rows: Sequence[list[str]]) -> NDArray[np.float32]:
        """The features (n, f)."""
        values = [self._values(row, self._row + at) for at, row in enumerate(rows)]
        return single(np.array(values, np.float64)).reshape(len(rows), len(self._held))

    def _values(self, row: Sequence[str], number: int) -> list[float]:
        try:
            return [float(row[at]) for at in self._held]
        except ValueError:
            return [self._unusual(row[at].strip(), number, self.columns[at]) for at in self._held]

    def _unusual(self, text: str, row: int, name: str) -> float:
        """A number of a row in which something is none: a truth value, or bad."""
        if not text:
            raise DataError(f"{cell(self._path, row, name)} is empty; drop the row{GAP}")
        try:
            return _TRUTH[text.lower()] if text.lower() in _TRUTH else float(text)
        except ValueError:
            raise DataError(
                f"{cell(self._path, row, name)} is {text!r}, not a number; drop the column "
                "or encode it as numbers"
            ) from None

    def _header(self) -> tuple[str, ...]:
        try:
            names = next(self._reader, None)
        except csv.Error as error:
            raise DataError(
                f"{self._path}: expected a CSV file with a header, but its first line is "
                f"none: {error}"
            ) from error
        if not names:
            found = "it is empty" if names is None else "its first line is empty"
            raise DataError(f"{self._path}: expected a CSV file with a header, but {found}")
        if len(names) > MOST_COLUMNS:
            raise DataError(
                f"{self._path}: its first line has more than {MOST_COLUMNS:,} columns; is it "
                "a CSV file?"
            )
        return tuple(name.strip() for name in names)


class _Lines:
    """Lines with their ends; bytes that are no UTF-8 keep their difference.

    Attributes:
        given: bytes so far.
        since: bytes given since the caller had a row; a row may have many lines, between quotes.
    """

    def __init__(self, source: Source) -> None:
        self.since = self.given = 0
        self._source = source
        self._found = self._split()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._found)
        self.since += len(line)
        self.given += len(line)
        self._refuse_long(self.since)
        return line.decode("utf-8", "surrogateescape")

    def _split(self) -> Iterator[bytes]:
        rest, first = b"", True
        while found := self._source.read(STRETCH):
            *whole, rest = (rest + found).split(b"\n")
            self._refuse_long(len(rest))
            for line in whole:
                yield (line.removeprefix(b"\xef\xbb\xbf") if first else line) + b"\n"
                first = False
        if rest:
            yield rest.removeprefix(b"\xef\xbb\xbf") if first else rest

    def _refuse_long(self, size: int) -> None:
        if size > MOST_LINE:
            raise DataError(
                f"{self._source.path}: a row has more than {MOST_LINE:,} bytes; is it a CSV "
                "file, and is every quote closed?"
            )
