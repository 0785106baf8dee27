"""CSV, compressed or not, a stretch of text at a time: constant memory, more only for a longer row."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sordino.data.source import Source
from sordino.data.stream import numbers
from sordino.data.stream.cells import Coder, plain
from sordino.data.stream.piece import Piece
from sordino.data.stream.rows import REMEDY, ROWS, cell, not_finite, roles
from sordino.errors import DataError

STRETCH = 1 << 20
LONGEST = 1 << 26
"""No row is longer than this many bytes; one that seems so has a quote that is never closed."""

_TRUTH = {"true": 1.0, "false": 0.0}


class Text:
    """CSV; the columns are given, or stand in the first line."""

    def __init__(self, path: Path, label: str, entity: str | None, coder: Coder, columns: Sequence[str] | None) -> None:
        self._path, self._coder, self._source = path, coder, Source(path)
        self._text, self._at, self._row, self._ended = b"", 0, 0, False
        self.columns = tuple(columns) if columns is not None else self._header()
        self._places = roles(self.columns, label, entity, path)
        self._label, self._entity = label, entity
        self.features = tuple(name for name, place in zip(self.columns, self._places, strict=True) if place >= 0)

    def skip(self, rows: int) -> int:
        """See :class:`Rows`. What is passed is not checked."""
        passed = 0
        while passed < rows:
            stop = self._text.rfind(b"\n") + 1
            step, self._at = numbers.skip(np.frombuffer(self._text, np.uint8), self._at, stop, rows - passed)
            passed, self._row = passed + step, self._row + step
            if passed < rows and not self._more():
                break
        return passed

    def next(self) -> Piece:
        """See :class:`Rows`."""
        while True:
            piece = self._parsed()
            if len(piece) or not self._more():
                return piece

    def _parsed(self) -> Piece:
        """The complete rows of the text at hand."""
        text, stop = np.frombuffer(self._text, np.uint8), self._text.rfind(b"\n") + 1
        most = min(ROWS, (stop - self._at) // len(self.columns) + 1)  # a cell has at least its comma
        x, spans = np.empty((most, len(self.features)), np.float32), np.zeros((most, 4), np.int64)
        row, column, at, begin = 0, 0, self._at, self._at
        while True:
            why, row, column, at, begin = numbers.parse(text, at, stop, self._places, begin, row, column, x, spans)
            if why in (numbers.ENOUGH, numbers.FULL):
                break
            if why != numbers.CELL:
                raise self._ragged(self._row + row, begin, stop)
            end = numbers.cell_end(text, at, stop)
            x[row, self._places[column]] = self._unusual(self._text[at:end], self._row + row, column)
            last = self._text[end] == 10
            if last != (column + 1 == len(self.columns)):
                raise self._ragged(self._row + row, begin, stop)
            row, column, at = (row + 1, 0, end + 1) if last else (row, column + 1, end + 1)
        body, edges = self._text, spans[:row].tolist()
        y = self._coder.labels([body[first:last] for first, last, _, _ in edges], self._row, self._label)
        owners = None
        if self._entity is not None:
            owners = self._coder.owners([body[first:last] for _, _, first, last in edges], self._row, self._entity)
        self._at, self._row = at, self._row + row
        return Piece(x[:row], y, owners)

    def _unusual(self, found: bytes, row: int, column: int) -> np.float32:
        """A feature that the compiled reader left: quoted, a truth value, or bad."""
        text, name = plain(found), self.columns[column]
        if not text:
            raise DataError(f"{cell(self._path, row, name)} is empty; {REMEDY}")
        try:
            value = _TRUTH[text.lower()] if text.lower() in _TRUTH else float(text)
        except ValueError:
            raise DataError(f"{cell(self._path, row, name)} is {text!r}, not a number; drop the column or encode it as numbers") from None
        with np.errstate(over="ignore"):
            rounded = np.float32(value)
        if not np.isfinite(rounded):
            raise not_finite(self._path, row, name, rounded)
        return rounded

    def _ragged(self, row: int, begin: int, stop: int) -> DataError:
        text, cells, at = np.frombuffer(self._text, np.uint8), 1, begin
        while self._text[(end := numbers.cell_end(text, at, stop))] != 10:
            cells, at = cells + 1, end + 1
        expected = f"{len(self.columns)} ({self.columns[0]}, ..., {self.columns[-1]})"
        return DataError(f"{self._path}: row {row} (the first is 0) has {cells} cells, expected {expected}")

    def _more(self) -> bool:
        """Put more text behind what is left; False where there was none."""
        rest = self._text[self._at :]
        if self._ended:
            if rest.strip():
                raise DataError(f"{self._path}: row {self._row} (the first is 0) begins a quote that is never closed")
            return False
        if len(rest) > LONGEST:
            raise DataError(f"{self._path}: row {self._row} (the first is 0) is longer than {LONGEST} bytes; is a quote never closed?")
        found = self._source.read(max(STRETCH, len(rest)))
        self._ended = len(found) < max(STRETCH, len(rest))
        body = rest + found
        # The last line may lack its line feed.
        self._text, self._at = body + b"\n" if self._ended and body and not body.endswith(b"\n") else body, 0
        return True

    def _header(self) -> tuple[str, ...]:
        while (end := self._text.find(b"\n")) < 0:
            if not self._more():
                raise DataError(f"{self._path}: expected a CSV file with a header, but it is empty")
        line = self._text[:end].decode("utf-8-sig", "surrogateescape").rstrip("\r")
        self._at = end + 1
        if not line.strip():
            raise DataError(f"{self._path}: expected a CSV file with a header, but its first line is empty")
        return tuple(name.strip() for name in next(csv.reader([line])))
