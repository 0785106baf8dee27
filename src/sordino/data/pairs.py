"""Rows of two files that are about the same people, as the words that a ledger knows them by.

They are paired by a column or by their order.

A row has two words, (n, 2). In a table both are over all of its columns, whichever of them a study
takes for the label. In an npz file a study reads the array that names people only where it asks for
it: there one word is over the features alone, which every study reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sordino.base.errors import DataError
from sordino.data import identity
from sordino.data.identity import Words
from sordino.data.table import columns_of


def paired(first: Path, second: Path, on: str | None) -> tuple[Words, Words]:
    """Words of rows of the first file and of the second, (n, 2) each.

    ``on`` None pairs them by their order.

    Raises:
        DataError: if a file cannot be read, has no such column, or the orders do not match.
    """
    (one, left), (other, right) = _read(first, on), _read(second, on)
    if on is None:
        if len(one) != len(other):
            raise DataError(
                f"{first} has {len(one)} rows, {second} has {len(other)}: pair them by a "
                "column (--on)"
            )
        return one, other
    # Everybody's first row stands for all of them: each row of either file is paired with it.
    names, start = np.unique(left, return_index=True)
    at = np.minimum(np.searchsorted(names, right), max(len(names) - 1, 0))
    known = names[at] == right if len(names) else np.zeros(len(right), bool)
    if not known.any():
        raise DataError(f"{first} and {second}: no value of column {on!r} is in both")
    again = np.isin(left, right[known])
    return (
        np.concatenate([one[start[at[known]]], one[start[np.searchsorted(names, left[again])]]]),
        np.concatenate([other[known], one[again]]),
    )


def _read(path: Path, on: str | None) -> tuple[Words, Words]:
    """The two words of each row, (n, 2), and that of the person it names, (n,)."""
    columns: dict[str, npt.NDArray[Any]] = columns_of(path, on)
    if on is not None and on not in columns:
        raise DataError(f"{path}: no column {on!r} (--on); it has {', '.join(list(columns)[:12])}")
    own = np.zeros(len(next(iter(columns.values()))), dtype=np.uint64)
    for values in columns.values():
        own += identity.features(values) if values.ndim > 1 else identity.column(values)
    features = identity.features(columns["x"]) if path.suffix.lower() == ".npz" else own
    return np.stack([own, features], axis=1), own if on is None else identity.persons(columns[on])
