"""A table in a file as a stream, row after row, without ever holding the file.

**CSV** (``.csv``; also ``.csv.gz`` and ``.csv.bz2``, recognised by content) and **Parquet**
(``.parquet``). One column holds the label, one may say whose each row is, every other one is a
feature. Text is read in one pass; a row may be asked for again as long as it is in the stretch at
hand, anything earlier opens the file again and passes what lies before, in a few microseconds a
row.

**What is refused**, with file, row and column: a gap, text, NaN or infinity where a number belongs,
a row with too many or too few cells, a label that is no class, a compressed file that breaks off.
Rows that are passed are not checked.

**Constants.** x' = (x - offset) / scale, with numbers that are known without looking at the data.
Sahoo et al. 2018 standardise SUSY and HIGGS; mean and deviation of the data are a release of it, so
nothing here computes them. The features of both files are roughly standardised by their publishers
anyway.

**Length.** A Parquet file says how many rows it has. A CSV file does not: ``length`` is None, and
reading gives fewer rows than asked for at its end. Where ``rows`` is given, as it is for published
files, exactly so many must be there.

**Classes** and **entities**: :mod:`sordino.data.stream.rows`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino.base.errors import DataError
from sordino.data.dataset import Scale, constants, refuse_non_finite
from sordino.data.source import AGAIN
from sordino.data.stream.drift import ByClass
from sordino.data.stream.piece import Piece, joined, room
from sordino.data.stream.rows import Classes, Coder, Parquet, Rows, Text

if TYPE_CHECKING:
    from sordino.data.stream.drift import Sampling

TEXT = (".csv", ".csv.gz", ".csv.bz2")


class TableStream:
    """Rows of a CSV or Parquet file, in order.

    Attributes:
        path: the file.
        name: what reports call it.
        shape: (features,).
        classes: names of the classes.
        columns: names of the features.
        length: rows, where it is known; see the chapter above.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        classes: int | Sequence[str],
        label: str = "label",
        entity: str | None = None,
        header: Sequence[str] | None = None,
        scale: Scale | None = None,
        offset: Scale | None = None,
        rows: int | None = None,
        name: str | None = None,
        seed: int = 0,
    ) -> None:
        """Open the file and look at its columns.

        Args:
            path: .csv, .csv.gz, .csv.bz2 or .parquet.
            classes: how many, or their names.
            label: the column of labels.
            entity: the column that says whose each row is.
            header: names of all columns of a CSV file whose first line is a row already.
            scale: public constants by which features are divided; one, or one for each.
            offset: public constants that are taken away before.
            rows: how many there must be.
            name: otherwise the file's.
            seed: of what a drift draws.

        Raises:
            DataError: names the file and what is wrong with it, or with what was asked.
        """
        self.path, self._label, self._entity, self._header = Path(path), label, entity, header
        self._rows, self.seed = rows, seed
        known = Classes.of(classes, str(self.path))
        self._coder = Coder(known, str(self.path))
        self.name, self.classes = self.path.name if name is None else name, known.names
        self._open()
        self.columns: tuple[str, ...] | None = self._file.features
        self.shape: tuple[int, ...] = (len(self._file.features),)
        self.length = self._file.rows if isinstance(self._file, Parquet) else rows
        if rows is not None and rows != self.length:
            raise self._count(self.length or 0)
        self._scale = constants(scale, self.shape, f"{self.path}: scale")
        self._offset = constants(offset, self.shape, f"{self.path}: offset", positive=False)

    def read(self, start: int, count: int) -> Piece:
        """Return the examples from ``start`` on.

        Raises:
            DataError: names file, row and column of what cannot be read.
        """
        count = room(start, count, self.length)
        if start < self._first:
            self._open()
        at, stop, parts = start, start + count, list[Piece]()
        while at < stop and self._reach(at):
            first, last = at - self._first, min(stop - self._first, len(self._piece))
            held = self._piece
            x, y = held.x[first:last].copy(), held.y[first:last].copy()
            parts.append(
                Piece(x, y, None if held.entity is None else held.entity[first:last].copy())
            )
            at += last - first
        if not parts and self._entity is not None:
            return Piece(
                np.empty((0, self.shape[0]), np.float32),
                np.empty(0, np.int64),
                np.empty(0, np.int64),
            )
        return joined(parts, self.shape[0])

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
        with np.errstate(over="ignore", invalid="ignore"):  # a warning would tell of a row
            if self._offset is not None:
                x -= self._offset
            if self._scale is not None:
                x /= self._scale
        refuse_non_finite(x, str(self.path), self._file.features, first)

    def _open(self) -> None:
        path, low = self.path, self.path.name.lower()
        self._file: Rows | Parquet
        if low.endswith(".parquet"):
            if self._header is not None:
                raise DataError(
                    f"{path}: a Parquet file names its columns itself; leave header out"
                )
            self._file = Parquet(path, self._label, self._entity, self._coder)
        elif low.endswith(TEXT):
            self._file = Text(path, self._label, self._entity, self._coder, self._header)
        else:
            raise DataError(
                f"{path}: its kind is told by its ending, which must be one of "
                f"{', '.join(TEXT)}, .parquet"
            )
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
        more = (
            " or more" if not isinstance(self._file, Parquet) and found > (self._rows or 0) else ""
        )
        return DataError(
            f"{self.path}: expected {self._rows} rows, but found {found}{more}. {AGAIN}"
        )
