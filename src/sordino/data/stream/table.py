"""A table in a file as a stream, row after row, without ever holding the file.

**CSV** (``.csv``; also ``.csv.gz`` and ``.csv.bz2``, recognised by content) and **Parquet**
(``.parquet``). One column holds the label, one may say whose each row is, every other one is a
feature. Text is read in one pass; a row may be asked for again as long as it is in the stretch at
hand, anything earlier opens the file again and passes what lies before, in a few microseconds a
row.

**What is refused**, with file, row and column: a gap, text, NaN or infinity where a number belongs,
a row with too many or too few cells, a label that is no class, a compressed file that breaks off.
Rows that are passed are not checked.

**A constant.** x' = x / scale, with a number that is known without looking at the data.

**Length.** A Parquet file says how many rows it has. A CSV file does not: ``length`` is None, and
reading gives fewer rows than asked for at its end. Where ``rows`` is given, as it is for published
files, exactly so many must be there.

**Classes** are public knowledge: their names are given and not looked up in the data
(:func:`sordino.data.labels.class_numbers`).

**Entities.** Numbers in order of first appearance would need memory for each person. So an entity
is a hash of its name (:func:`sordino.data.identity.entity`): the first 63 bits of BLAKE2b, the same
in every file, run and program. Two given people share a number with probability 2^-63; among n
people any two do with probability below n^2 / 2^64, for a million people 5 10^-8. A number has one
name however it is written, so that 12 in a CSV file and in a Parquet file are the same person.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.base.errors import DataError, did_you_mean
from sordino.data.dataset import Indices, Names, Shape, Single, listed, refuse_non_finite, single
from sordino.data.encoding import refuse_gaps
from sordino.data.formats import AGAIN, Source
from sordino.data.identity import entity as entity_of
from sordino.data.labels import class_numbers
from sordino.data.stream.drift import ByClass
from sordino.data.stream.piece import Piece, joined
from sordino.data.table import MOST_COLUMNS, reading, refuse_long

if TYPE_CHECKING:
    from sordino.data.stream.drift import Sampling

Seen = Callable[[Single, Indices, Sequence[list[str]]], None]
TEXT = (".csv", ".csv.gz", ".csv.bz2")
PARQUET_ROWS = 20_000
"""Rows at a time, at most."""
NO_ROWS = Piece(np.empty((0, 0), np.float32), np.empty(0, np.int64))
GAP = ", or fill the gap with a constant that does not depend on the data"


class TableStream:
    """Rows of a CSV or Parquet file, in order.

    Attributes:
        path: the file.
        name: what reports call it.
        shape: (features,).
        classes: names of the classes.
        columns: names of the features.
        length: rows, where it is known; see the chapter above.
        seen: called with rows as they are read: features as they stand (n, k), class numbers (n,),
            and the cells of labels and of entities, if the file has any.
    """

    seen: Seen | None = None

    def __new__(cls, path: str | os.PathLike[str], **_: Any) -> TableStream:
        """Make the stream of this kind of file: its ending says it."""
        low = Path(path).name.lower()
        if not low.endswith((*TEXT, ".parquet")):
            raise DataError(
                f"{path}: its ending says its kind, and must be one of {', '.join(TEXT)}, .parquet"
            )
        return super().__new__(Text if low.endswith(TEXT) else Parquet)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        classes: Sequence[str],
        label: str = "label",
        entity: str | None = None,
        header: Sequence[str] | None = None,
        scale: float = 1.0,
        rows: int | None = None,
        name: str | None = None,
        seed: int = 0,
    ) -> None:
        """Open the file and look at its columns.

        Args:
            path: .csv, .csv.gz, .csv.bz2 or .parquet.
            classes: their names.
            label: the column of labels.
            entity: the column that says whose each row is.
            header: names of all columns of a CSV file whose first line is a row already.
            scale: a public constant by which features are divided.
            rows: how many there must be.
            name: otherwise the file's.
            seed: of what a drift draws.

        Raises:
            DataError: names the file and what is wrong with it, or with what was asked.
        """
        self.path, self.label, self.entity, self.header = Path(path), label, entity, header
        self._rows, self.seed = rows, seed
        self.name, self.classes = self.path.name if name is None else name, tuple(classes)
        self._number = class_numbers(self.classes)
        self._expected = listed(self.classes)
        if self._number("0") == 0 and "0" not in self.classes:
            self._expected += f", or 0 to {len(self.classes) - 1}"
        self._again()
        self.columns: Names | None = self._features
        self.shape: Shape = (len(self._features),)
        self.length = rows if self._file_rows is None else self._file_rows
        if rows is not None and rows != self.length:
            raise self._count(self.length or 0)
        self._scale = np.float32(scale)

    def read(self, start: int, count: int) -> Piece:
        """Return the examples from ``start`` on.

        Raises:
            DataError: names file, row and column of what cannot be read.
        """
        if start < self._first:
            self._again()
        at, stop, pieces = start, start + count, list[Piece]()
        if self.length is not None:
            stop = min(stop, self.length)
        while at < stop and self._reach(at):
            rows = np.arange(at, min(stop, self._first + len(self._piece))) - self._first
            pieces.append(self._piece.take(rows))
            at += len(rows)
        return joined(pieces, self.shape[0], entities=self.entity is not None)

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """None that anybody knows of."""
        return ()

    def drifting(self, drift: Sampling) -> ByClass:
        """The same rows, their classes drawn by ``drift``: within a class in the file's order."""
        return ByClass(self, self.seed, drift)

    def _again(self) -> None:
        self._first, self._piece = 0, NO_ROWS
        self._open()

    def _open(self) -> None:
        """Begin the file, and tell its columns by :meth:`_has`."""
        raise NotImplementedError

    def _skip(self, rows: int) -> int:
        """Pass so many rows, unchecked; how many there were."""
        raise NotImplementedError

    def _next(self) -> Piece:
        """The next rows, some thousand; none at the end of the file. Features may be infinite."""
        raise NotImplementedError

    def _reach(self, row: int) -> bool:
        """Hold the stretch with ``row``; False where the file ends before."""
        while row >= (end := self._first + len(self._piece)):
            self._first, self._piece = end + self._skip(row - end), NO_ROWS
            self._piece = self._next()
            x = self._piece.x
            if not len(x):
                if self._rows is not None and self._first != self._rows:
                    raise self._count(self._first)
                return False
            if self._scale != 1.0:
                with np.errstate(over="ignore", invalid="ignore"):  # a warning would tell of a row
                    x /= self._scale
            refuse_non_finite(x, str(self.path), self._features, self._first)
            if self._rows is not None and self._first + len(self._piece) > self._rows:
                raise self._count(self._first + len(self._piece))
        return True

    def _count(self, found: int) -> DataError:
        more = " or more" if self._file_rows is None and found > (self._rows or 0) else ""
        return DataError(
            f"{self.path}: expected {self._rows} rows, but found {found}{more}. {AGAIN}"
        )

    def _made(self, x: Single, cells: Callable[[str], list[str]]) -> Piece:
        """The next rows, by their features and the cells of the other columns."""
        others = [cells(name) for name in (self.label, self.entity) if name is not None]
        y = self._numbers(others[0], self.label, self._number, self._unknown_label)
        entity = None
        if self.entity is not None:
            entity = self._numbers(
                others[1],
                self.entity,
                lambda name: entity_of(name) if name.strip() else None,
                lambda _: "is empty; whose row is it?",
            )
        if self.seen is not None:
            self.seen(x, y, others)
        return Piece(x, y, entity)

    def _numbers(
        self,
        cells: Sequence[str],
        column: str,
        number: Callable[[str], int | None],
        fault: Callable[[str], str],
    ) -> Indices:
        """Numbers of cells, each text looked up once."""
        known = {text: number(text) for text in set(cells)}
        if None in known.values():
            at = next(at for at, text in enumerate(cells) if known[text] is None)
            raise DataError(f"{self._cell(at, column)} {fault(cells[at].strip())}")
        return np.array([known[text] for text in cells], np.int64)

    def _unknown_label(self, text: str) -> str:
        what = f"has the label {text!r}" if text else "has no label"
        return f"{what}; expected {self._expected}"

    def _cell(self, at: int, column: str) -> str:
        """The place of a cell of the next rows, for messages."""
        return f"{self.path}: row {self._first + at} (the first is 0), column {column!r}"

    def _has(self, columns: Sequence[str], rows: int | None = None) -> None:
        """Note the columns of the file, and its rows where it says them."""
        path, label, entity = self.path, self.label, self.entity
        for role, name in (("label", label), ("entity", entity)):
            if name is not None and name not in columns:
                hint = did_you_mean(name, columns) or "."
                raise DataError(
                    f"{path}: no column {name!r} for the {role}{hint} Its columns are "
                    f"{listed(columns)}"
                )
        if label == entity:
            raise DataError(f"{path}: column {label!r} cannot be both the label and the entity")
        if twice := sorted({name for name in columns if columns.count(name) > 1}):
            raise DataError(f"{path}: two columns are called {twice[0]!r}; rename one")
        if len(columns) < 2 + (entity is not None):
            raise DataError(f"{path}: there are no feature columns beside {label!r}")
        self._columns, self._file_rows = tuple(columns), rows
        self._features = tuple(name for name in columns if name not in (label, entity))


class Parquet(TableStream):
    """Parquet, by stretches of :data:`PARQUET_ROWS` rows."""

    _file_rows: int

    def _open(self) -> None:
        # Here, because polars takes a tenth of a second to import.
        import polars as pl

        path = self.path
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        with reading(path, "a Parquet file"):
            self._frame: Any = pl.scan_parquet(path)
            schema = self._frame.collect_schema()
            rows = int(self._frame.select(pl.len()).collect().item())
        self._has(schema.names(), rows)
        for name in self._features:
            if not (schema[name].is_numeric() or schema[name] == pl.Boolean):
                raise DataError(
                    f"{path}: feature column {name!r} holds {schema[name]}, not numbers; "
                    "drop it or encode it as numbers"
                )

    def _skip(self, rows: int) -> int:
        return min(rows, self._file_rows - self._first - len(self._piece))

    def _next(self) -> Piece:
        with reading(self.path, "a Parquet file"):
            frame = self._frame.slice(self._first, PARQUET_ROWS).collect()
        if frame.height < min(PARQUET_ROWS, self._file_rows - self._first):
            found = self._first + frame.height
            raise DataError(
                f"{self.path}: expected {self._file_rows} rows, found {found}; did the file change?"
            )
        for name in self._columns:
            refuse_gaps(frame[name], str(self.path), GAP, self._first)
        x = np.empty((frame.height, len(self._features)), np.float32)
        for at, name in enumerate(self._features):
            x[:, at] = single(frame[name].cast(float).to_numpy())
        return self._made(x, lambda name: self._cells(frame[name]))

    def _cells(self, series: Any) -> list[str]:
        """Labels or entities as a CSV file would have them."""
        refuse_long(series, str(self.path))
        values = series.to_list()
        if series.dtype.is_integer() or not series.dtype.is_numeric():
            return [str(value) for value in values]
        if series.name == self.entity:
            raise DataError(
                f"{self._cell(0, series.name)} is {values[0]}, a fraction, to which another number "
                "may have been rounded; owners are text or whole numbers"
            )
        return [str(int(each) if float(each).is_integer() else each) for each in values]


STRETCH = 1 << 18  # bytes
MOST_LINE = 1 << 24  # characters of a row
TEXT_ROWS, MOST_CELLS = 1000, 1 << 21  # that are read at once, where rows are short

_TRUTH = {"true": 1.0, "false": 0.0}


class Text(TableStream):
    """CSV; the columns are given, or stand in the first line.

    A number is exactly ``numpy.float32(float(text))``.
    """

    def _open(self) -> None:
        content = io.BufferedReader(Source(self.path), STRETCH)
        # bytes that are no UTF-8 keep their difference
        text = io.TextIOWrapper(content, "utf-8-sig", "surrogateescape", newline="")
        self._held = 0  # characters of the row at hand, which has several lines where a cell has
        self._reader = csv.reader(self._lines(text), strict=True)
        self._has(self._header() if self.header is None else self.header)
        self._places = [self._columns.index(name) for name in self._features]

    def _skip(self, rows: int) -> int:
        return sum(1 for _ in islice(self._left(), rows))

    def _next(self) -> Piece:
        width, rows, held = len(self._columns), list[list[str]](), 0
        for row in islice(self._left(), max(1, min(TEXT_ROWS, MOST_CELLS // width))):
            rows.append(row)
            held += sum(map(len, row))
            if held > MOST_LINE:
                break
        for at, row in enumerate(rows):
            if len(row) != width:
                expected = f"{width} ({self._columns[0]}, ..., {self._columns[-1]})"
                raise DataError(
                    f"{self.path}: row {self._first + at} (the first is 0) has {len(row)} "
                    f"cells, expected {expected}"
                )
        values = [self._values(row, at) for at, row in enumerate(rows)]
        x = single(np.array(values, np.float64)).reshape(len(rows), len(self._places))
        return self._made(x, lambda name: [row[self._columns.index(name)] for row in rows])

    def _left(self) -> Iterator[list[str]]:
        """Yield the rows that are left, without empty lines."""
        try:
            for row in self._reader:
                self._held = 0
                if row:
                    yield row
        except csv.Error as error:
            raise DataError(
                f"{self.path}: line {self._reader.line_num}: {error}; is there a quote that "
                "is never closed?"
            ) from error

    def _values(self, row: Sequence[str], number: int) -> list[float]:
        try:
            return [float(row[place]) for place in self._places]
        except ValueError:
            places = self._places
            return [self._unusual(row[at].strip(), number, self._columns[at]) for at in places]

    def _unusual(self, text: str, at: int, column: str) -> float:
        """A number of a row in which something is none: a truth value, or bad."""
        if not text:
            raise DataError(f"{self._cell(at, column)} is empty; drop the row{GAP}")
        try:
            return _TRUTH[text.lower()] if text.lower() in _TRUTH else float(text)
        except ValueError:
            raise DataError(
                f"{self._cell(at, column)} is {text!r}, not a number; drop the column "
                "or encode it as numbers"
            ) from None

    def _header(self) -> Names:
        try:
            names = next(self._reader, None)
        except csv.Error as error:
            raise DataError(
                f"{self.path}: expected a CSV file with a header, but its first line is "
                f"none: {error}"
            ) from error
        if not names:
            found = "it is empty" if names is None else "its first line is empty"
            raise DataError(f"{self.path}: expected a CSV file with a header, but {found}")
        if len(names) > MOST_COLUMNS:
            raise DataError(
                f"{self.path}: its first line has more than {MOST_COLUMNS:,} columns; is it "
                "a CSV file?"
            )
        return tuple(name.strip() for name in names)

    def _lines(self, text: io.TextIOWrapper) -> Iterator[str]:
        while line := text.readline(MOST_LINE):
            self._held += len(line)
            if self._held > MOST_LINE:
                raise DataError(
                    f"{self.path}: a row has more than {MOST_LINE:,} characters; is it a CSV "
                    "file, and is every quote closed?"
                )
            yield line
