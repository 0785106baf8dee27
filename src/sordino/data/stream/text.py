"""CSV, compressed or not, some rows at a time, in constant memory, by Python's own reader."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sordino.base.errors import DataError
from sordino.data.bounded import MOST_COLUMNS
from sordino.data.dataset import single
from sordino.data.source import Source
from sordino.data.stream.cells import Coder
from sordino.data.stream.piece import Piece
from sordino.data.stream.rows import REMEDY, cell, roles

STRETCH = 1 << 18  # bytes
MOST_STRETCH = 1 << 26  # bytes of some rows
MOST_LINE = 1 << 24  # bytes of a row
ROWS = 1000

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
        """See :class:`Rows`. What is passed is not checked."""
        passed = sum(1 for _ in islice(self._rows(), rows))
        self._row += passed
        return passed

    def next(self) -> Piece:
        """See :class:`Rows`."""
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
            if len(rows) == ROWS or self._lines.given - start > MOST_STRETCH:
                break
        return rows

    def _rows(self) -> Iterator[list[str]]:
        """What is left, without empty lines."""
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
            raise DataError(f"{cell(self._path, row, name)} is empty; {REMEDY}")
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
