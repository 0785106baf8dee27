"""Rows of a file, some thousand at a time: what all kinds of tables share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sordino.base.errors import DataError
from sordino.base.registry import did_you_mean
from sordino.data.stream.piece import Piece

ROWS = 20_000
"""Rows at a time, at most."""

REMEDY = "drop the row, or fill the gap with a constant that does not depend on the data"


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


def not_finite(path: Path, row: int, column: str, value: np.float32) -> DataError:
    """The one form in which a NaN or an infinity is reported."""
    return DataError(
        f"{cell(path, row, column)} is {value}; every feature must be finite: {REMEDY}"
    )
