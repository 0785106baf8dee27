"""Parquet, some thousand rows at a time; memory is what the library unpacks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sordino.base.errors import DataError
from sordino.data.bounded import refuse_long
from sordino.data.dataset import single
from sordino.data.stream.cells import Coder, whole
from sordino.data.stream.piece import Piece
from sordino.data.stream.rows import REMEDY, ROWS, cell, roles


class Parquet:
    """Parquet, by stretches of :data:`ROWS` rows."""

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
        """See :class:`Rows`."""
        passed = min(rows, self.rows - self._row)
        self._row += passed
        return passed

    def next(self) -> Piece:
        """See :class:`Rows`."""
        import polars as pl

        try:
            frame = self._frame.slice(self._row, ROWS).collect()
        except (Exception, pl.exceptions.PanicException) as error:
            raise self._failed(error) from error
        if frame.height < min(ROWS, self.rows - self._row):
            raise DataError(
                f"{self._path}: expected {self.rows} rows, found {self._row + frame.height}; "
                "did the file change?"
            )
        x = np.empty((frame.height, len(self.features)), np.float32)
        for at, name in enumerate(self.features):
            self._refuse_gaps(frame[name])
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
        self._refuse_gaps(series)
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

    def _refuse_gaps(self, series: Any) -> None:
        if series.null_count():
            row = self._row + int(np.argmax(series.is_null().to_numpy()))
            raise DataError(f"{cell(self._path, row, series.name)} is empty; {REMEDY}")

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
