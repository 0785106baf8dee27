"""A table in a file as a stream, row after row, without ever holding the file.

**CSV** (``.csv``; also ``.csv.gz`` and ``.csv.bz2``, recognised by content) and **Parquet**
(``.parquet``). One column holds the label, one may say whose each row is, every other one is a
feature. Text is read in one pass; a row may be asked for again as long as it is in the stretch at
hand, anything earlier opens the file again and passes what lies before, in a few microseconds a
row.

**What is refused**, with file, row and column: a gap, text, NaN or infinity where a number belongs,
a row with too many or too few cells, a label that is no class, a compressed file that breaks off.
Rows that are passed are not checked.

**Constants.** x' = x / scale, with numbers that are known without looking at the data.

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
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.base.errors import DataError
from sordino.base.registry import did_you_mean
from sordino.data.dataset import Scale, constants, listed, refuse_non_finite, single
from sordino.data.encoding import refuse_gaps
from sordino.data.formats import AGAIN, Source
from sordino.data.identity import entity as entity_of
from sordino.data.labels import class_numbers
from sordino.data.stream.drift import ByClass
from sordino.data.stream.piece import Piece, joined, room
from sordino.data.table import MOST_COLUMNS, refuse_long

if TYPE_CHECKING:
    from sordino.data.stream.drift import Sampling

Seen = Callable[[NDArray[np.float32], NDArray[np.int64], Sequence[list[str]]], None]
TEXT = (".csv", ".csv.gz", ".csv.bz2")
PARQUET_ROWS = 20_000
"""Rows at a time, at most."""
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

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        classes: Sequence[str],
        label: str = "label",
        entity: str | None = None,
        header: Sequence[str] | None = None,
        scale: Scale | None = None,
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
            scale: public constants by which features are divided; one, or one for each.
            rows: how many there must be.
            name: otherwise the file's.
            seed: of what a drift draws.

        Raises:
            DataError: names the file and what is wrong with it, or with what was asked.
        """
        self.path, self.label, self.entity, self.header = Path(path), label, entity, header
        self._rows, self.seed = rows, seed
        self.name, self.classes = self.path.name if name is None else name, tuple(classes)
        self._open()
        self.columns: tuple[str, ...] | None = self._file.features
        self.shape: tuple[int, ...] = (len(self._file.features),)
        self.length = rows if self._file.rows is None else self._file.rows
        if rows is not None and rows != self.length:
            raise self._count(self.length or 0)
        self._scale = constants(scale, self.shape, f"{self.path}: scale")

    def read(self, start: int, count: int) -> Piece:
        """Return the examples from ``start`` on.

        Raises:
            DataError: names file, row and column of what cannot be read.
        """
        count = room(start, count, self.length)
        if start < self._first:
            self._open()
        at, stop, pieces = start, start + count, list[Piece]()
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

    def rescale(self, x: NDArray[np.float32], first: int) -> None:
        """Apply the constants to rows (n, features) from ``first`` on, in place.

        Raises:
            DataError: for a feature that is not finite then.
        """
        if self._scale is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # a warning would tell of a row
                x /= self._scale
        refuse_non_finite(x, str(self.path), self._file.features, first)

    def _open(self) -> None:
        path, low = self.path, self.path.name.lower()
        if not low.endswith((*TEXT, ".parquet")):
            raise DataError(
                f"{path}: its ending says its kind, and must be one of {', '.join(TEXT)}, .parquet"
            )
        self._file: Rows = Text(self) if low.endswith(TEXT) else Parquet(self)
        self._first, self._piece = 0, Piece(np.empty((0, 0), np.float32), np.empty(0, np.int64))

    def _reach(self, row: int) -> bool:
        """Hold the stretch with ``row``; False where the file ends before."""
        while row >= (end := self._first + len(self._piece)):
            passed = self._file.skip(row - end)
            self._first, self._piece = end + passed, self._file.next()
            if not len(self._piece):
                if self._rows is not None and self._first != self._rows:
                    raise self._count(self._first)
                return False
            self.rescale(self._piece.x, self._first)
            if self._rows is not None and self._first + len(self._piece) > self._rows:
                raise self._count(self._first + len(self._piece))
        return True

    def _count(self, found: int) -> DataError:
        more = " or more" if self._file.rows is None and found > (self._rows or 0) else ""
        return DataError(
            f"{self.path}: expected {self._rows} rows, but found {found}{more}. {AGAIN}"
        )


class Rows:
    """An open file, read from front to back.

    Attributes:
        rows: how many, where it says so.
        features: names of the feature columns.
    """

    rows: int | None = None

    def __init__(self, stream: TableStream, columns: Sequence[str]) -> None:
        self._path, self._row, self._stream = stream.path, 0, stream
        self._label, self._entity = stream.label, stream.entity
        self.columns = tuple(columns)
        self._refuse_columns()
        self.features = tuple(name for name in columns if name not in (self._label, self._entity))
        self._number = class_numbers(stream.classes)
        self._expected = listed(stream.classes)
        if self._number("0") == 0 and "0" not in stream.classes:
            self._expected += f", or 0 to {len(stream.classes) - 1}"

    def skip(self, rows: int) -> int:
        """Pass so many rows, unchecked; how many there were."""
        raise NotImplementedError

    def next(self) -> Piece:
        """The next rows, some thousand; none at the end of the file. Features may be infinite."""
        raise NotImplementedError

    def _piece(self, x: NDArray[np.float32], cells: Callable[[str], list[str]]) -> Piece:
        """The next rows, by their features and the cells of the other columns."""
        others = [cells(name) for name in (self._label, self._entity) if name is not None]
        y = self._numbers(others[0], self._label, self._number, self._unknown_label)
        entity = None
        if self._entity is not None:
            entity = self._numbers(
                others[1],
                self._entity,
                lambda name: entity_of(name) if name.strip() else None,
                lambda _: "is empty; whose row is it?",
            )
        if self._stream.seen is not None:
            self._stream.seen(x, y, others)
        self._row += len(x)
        return Piece(x, y, entity)

    def _numbers(
        self,
        cells: Sequence[str],
        column: str,
        number: Callable[[str], int | None],
        fault: Callable[[str], str],
    ) -> NDArray[np.int64]:
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
        return f"{self._path}: row {self._row + at} (the first is 0), column {column!r}"

    def _refuse_columns(self) -> None:
        path, columns, label, entity = self._path, self.columns, self._label, self._entity
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


class Parquet(Rows):
    """Parquet, by stretches of :data:`PARQUET_ROWS` rows."""

    rows: int

    def __init__(self, stream: TableStream) -> None:
        # Here, because polars takes a tenth of a second to import.
        import polars as pl

        self._path = path = stream.path
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        try:
            self._frame: Any = pl.scan_parquet(path)
            schema = self._frame.collect_schema()
            self.rows = int(self._frame.select(pl.len()).collect().item())
        except (Exception, pl.exceptions.PanicException) as error:
            # a panic of its Rust part is no Exception
            raise self._failed(error) from error
        super().__init__(stream, schema.names())
        for name in self.features:
            if not (schema[name].is_numeric() or schema[name] == pl.Boolean):
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
        for name in self.columns:
            refuse_gaps(frame[name], str(self._path), GAP, self._row)
        x = np.empty((frame.height, len(self.features)), np.float32)
        for at, name in enumerate(self.features):
            x[:, at] = single(frame[name].cast(pl.Float64).to_numpy())
        return self._piece(x, lambda name: self._cells(frame[name]))

    def _cells(self, series: Any) -> list[str]:
        """Labels or entities as a CSV file would have them."""
        refuse_long(series, str(self._path))
        values = series.to_list()
        if series.dtype.is_integer() or not series.dtype.is_numeric():
            return [str(value) for value in values]
        if series.name == self._entity:
            for at, value in enumerate(values):
                if not (float(value).is_integer() and abs(value) <= 2**53):
                    raise DataError(
                        f"{self._cell(at, series.name)} is {value}; owners are text or whole "
                        "numbers"
                    )
        return [str(int(each) if float(each).is_integer() else each) for each in values]

    def _failed(self, error: BaseException) -> DataError:
        return DataError(
            f"{self._path}: expected a Parquet file, but reading it failed "
            f"({str(error).splitlines()[0]})"
        )


STRETCH = 1 << 18  # bytes
MOST_STRETCH = 1 << 26  # bytes of some rows
MOST_LINE = 1 << 24  # bytes of a row
TEXT_ROWS = 1000

_TRUTH = {"true": 1.0, "false": 0.0}


class Text(Rows):
    """CSV; the columns are given, or stand in the first line.

    A number is exactly ``numpy.float32(float(text))``.
    """

    def __init__(self, stream: TableStream) -> None:
        self._path = stream.path
        # bytes so far, and before the row at hand, which has several lines where a cell has
        self._given = self._before = 0
        self._reader = csv.reader(self._lines(Source(self._path)), strict=True)
        super().__init__(stream, self._header() if stream.header is None else stream.header)
        self._places = [self.columns.index(name) for name in self.features]

    def skip(self, rows: int) -> int:
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
        values = [self._values(row, at) for at, row in enumerate(rows)]
        x = single(np.array(values, np.float64)).reshape(len(rows), len(self._places))
        return self._piece(x, lambda name: [row[self.columns.index(name)] for row in rows])

    def _stretch(self) -> list[list[str]]:
        """Some rows: fewer where they are long."""
        rows, start = list[list[str]](), self._given
        for row in self._rows():
            rows.append(row)
            if len(rows) == TEXT_ROWS or self._given - start > MOST_STRETCH:
                break
        return rows

    def _rows(self) -> Iterator[list[str]]:
        """Yield the rows that are left, without empty lines."""
        try:
            for row in self._reader:
                self._before = self._given
                if row:
                    yield row
        except csv.Error as error:
            raise DataError(
                f"{self._path}: line {self._reader.line_num}: {error}; is there a quote that "
                "is never closed?"
            ) from error

    def _values(self, row: Sequence[str], at: int) -> list[float]:
        try:
            return [float(row[place]) for place in self._places]
        except ValueError:
            return [
                self._unusual(row[place].strip(), at, self.columns[place]) for place in self._places
            ]

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

    def _lines(self, source: Source) -> Iterator[str]:
        """Lines with their ends; bytes that are no UTF-8 keep their difference."""
        rest = b""
        while more := source.read(STRETCH):
            *lines, rest = (rest + more).split(b"\n")
            self._refuse_long(len(rest))
            for line in lines:
                yield self._text(line + b"\n")
        if rest:
            yield self._text(rest)

    def _text(self, line: bytes) -> str:
        if not self._given:
            line = line.removeprefix(b"\xef\xbb\xbf")
        self._given += len(line)
        self._refuse_long(self._given - self._before)
        return line.decode("utf-8", "surrogateescape")

    def _refuse_long(self, size: int) -> None:
        if size > MOST_LINE:
            raise DataError(
                f"{self._path}: a row has more than {MOST_LINE:,} bytes; is it a CSV "
                "file, and is every quote closed?"
            )
