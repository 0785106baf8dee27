"""Columns of a table as numbers that a model can learn from, by rules that are public.

Nothing is ever learned from the rows: the mean of a column, its quantiles, the categories that
occur in it are releases, which nobody booked. Whoever knows such things from elsewhere (a code
book, a legal maximum, an earlier publication) states them:

* ``categories``: the values of a column of names (or codes), one new column of 0 and 1 for each
  (as scikit-learn's ``OneHotEncoder(categories=...)`` makes them). A value that is not listed is
  refused; with ``unknown = "other"`` it goes into one more column. The empty name stands for a gap.
* ``ranges``: low and high of a numeric column, which becomes 2 (v - low) / (high - low) - 1,
  clamped to [-1, 1].
* ``missing``: what stands for a gap in a numeric column, in the column's own units; one more column
  says where a gap was.

In ``ranges`` and ``missing`` the name ``*`` stands for all other numeric columns.

Shapes: a column (n,), what becomes of it (n, k).

>>> import polars as pl
>>> rules = Encoding({"colour": ("red", "blue")}, {"age": (0.0, 100.0)}, {"age": 50.0})
>>> made = [rules.column(each, "x.csv") for each in (pl.Series("colour", ["blue", "red"]),
...     pl.Series("age", [None, 100.0]))]
>>> [names for _, names in made]
[('colour=red', 'colour=blue'), ('age', 'age is missing')]
>>> np.concatenate([x for x, _ in made], axis=1).tolist()
[[0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from sordino.base.errors import DataError
from sordino.data import identity
from sordino.data.dataset import Array, Names, Single, Span, listed

if TYPE_CHECKING:
    import polars as pl

REST = "*"
OTHER = "other"
Unknown = Literal["refuse", "other"]
UNEVEN = 1000.0
"""The owner is told where one feature is more than so many times larger than another."""

_LOOKED_AT = 100_000
"""Values of a column of text in which the first that is no number is looked for."""


EncodedColumn = tuple[Single, Names]
"""The features that a column became, (n, k), and their names."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """Public rules; see the module's docstring.

    Attributes:
        categories: by column.
        ranges: low and high, by column.
        missing: a constant, by column.
        unknown: what becomes of a value that is no listed category.
    """

    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ranges: Mapping[str, Span] = field(default_factory=dict)
    missing: Mapping[str, float] = field(default_factory=dict)
    unknown: Unknown = "refuse"

    @property
    def plain(self) -> bool:
        """True where there are no rules: columns are numbers already."""
        return not (self.categories or self.ranges or self.missing)

    def width(self, name: str) -> int:
        """Return how many features the column of this name becomes."""
        if name in self.categories:
            return len(self.categories[name]) + (self.unknown == OTHER)
        return 1 + (self._filled(name) is not None)

    def fits(self, columns: Sequence[str], place: str) -> None:
        """Refuse rules for columns that are not there.

        Raises:
            DataError: naming the first.
        """
        for key in ("categories", "ranges", "missing"):
            for name in getattr(self, key):
                if name != REST and name not in columns:
                    raise DataError(
                        f"{place}: data.{key} speaks of the column {name!r}, and there is no such "
                        f"feature; its features are {listed(columns)}"
                    )

    def column(self, series: pl.Series, place: str) -> EncodedColumn:
        """Return the features that a column becomes.

        Raises:
            DataError: naming row and column of what no rule covers.
        """
        listed = series.name in self.categories
        return self._listed(series, place) if listed else self._numeric(series, place)

    def _filled(self, name: str) -> float | None:
        return self.missing.get(name, self.missing.get(REST))

    def _listed(self, series: pl.Series, place: str) -> EncodedColumn:
        """One column of 0 and 1 for each category."""
        name, known = series.name, self.categories[series.name]
        values = _texts(series)
        spelled: Array = np.array([identity.spelled(each) for each in known])
        x = (values[:, None] == spelled).astype(np.float32)
        strange = ~x.any(axis=1)
        if self.unknown == OTHER:
            x = np.concatenate([x, strange[:, None].astype(np.float32)], axis=1)
        elif (rows := np.flatnonzero(strange)).size:
            row = int(rows[0])
            said = f"says {str(values[row])[:40]!r}" if values[row] else "is empty"
            raise DataError(
                f"{place}: row {row} (the first is 0), column {name!r} {said}, which is none of "
                f"data.categories ({listed(known, 8)}). Add "
                "it if it is public that it may occur, or set data.unknown = 'other': a column for "
                "all values that are not listed"
            )
        names = (*known, OTHER) if self.unknown == OTHER else tuple(known)
        return x, tuple(f"{name}={each}" for each in names)

    def _numeric(self, series: pl.Series, place: str) -> EncodedColumn:
        name, gap = series.name, self._filled(series.name)
        refuse_text(series, place)
        empty = series.is_null().to_numpy()
        if series.dtype.is_float():
            empty = empty | series.is_nan().fill_null(value=False).to_numpy()
        if gap is None:
            refuse_gaps(series, place)
        values = series.cast(float).fill_null(np.nan).to_numpy().copy()
        if gap is not None:
            values[empty] = gap
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise DataError(
                f"{place}: row {row} (the first is 0), column {name!r} is {values[row]}; every "
                "feature must be finite. Drop the row" + _GAP
            )
        if (span := self.ranges.get(name, self.ranges.get(REST))) is not None:
            low, high = span
            with np.errstate(over="ignore"):  # far outside is outside
                values = np.clip(2.0 * (values - low) / (high - low) - 1.0, -1.0, 1.0)
        with np.errstate(over="ignore"):
            x = values.astype(np.float32)[:, None]
        if gap is None:
            return x, (name,)
        said = empty[:, None].astype(np.float32)
        return np.concatenate([x, said], axis=1), (name, f"{name} is missing")


_GAP = (
    ", or say in data.missing which constant stands for a gap in this column; it must not depend "
    "on the data"
)


def _texts(series: pl.Series) -> Array:
    """Values as text, spelled as categories are; a gap is empty."""
    cells = series.to_list()
    known = {cell: identity.spelled(identity.written(cell)) for cell in dict.fromkeys(cells)}
    return np.array([known[cell] for cell in cells])


def refuse_text(series: pl.Series, place: str, hint: str = "") -> None:
    """Refuse a feature that is no column of numbers.

    Raises:
        DataError: with the first value that is none, and what to set.
    """
    if series.dtype.is_numeric() or str(series.dtype) in ("Boolean", "Null"):
        return
    raise DataError(
        f"{place}: feature column {series.name!r} holds {series.dtype}, not numbers"
        f"{_first_word(series)}; list its values in data.categories, if they are public, drop it "
        f"or encode it as numbers; if it says who a row is about, name it in data.person{hint}"
    )


def refuse_gaps(series: pl.Series, place: str, hint: str = _GAP, first: int = 0) -> None:
    """Refuse a column, of rows from ``first`` on, with an empty place.

    Raises:
        DataError: with the first such row.
    """
    if series.null_count():
        row = first + int(np.argmax(series.is_null().to_numpy()))
        raise DataError(
            f"{place}: row {row} (the first is 0), column {series.name!r} is empty; drop the row"
            f"{hint}"
        )


def _first_word(series: pl.Series) -> str:
    """Return the place of the first value that is no number, for a column of text."""
    if str(series.dtype) != "String":
        return ""
    for row, value in enumerate(series.head(_LOOKED_AT), start=1):
        try:
            float(value)
        except (TypeError, ValueError):
            return f" (row {row} below the header says {str(value)[:40]!r})"
    return ""


def uneven(x: Array, names: Sequence[str]) -> tuple[str, str] | None:
    """Names of the largest and the smallest of the features x (n, k), if they differ more than
    :data:`UNEVEN` times in their largest value. It looks at the rows: for the owner's eyes only.

    >>> uneven(np.array([[0.001, 2000.0]]), ("rate", "area"))
    ('area', 'rate')
    """
    if x.ndim != 2 or x.dtype == np.uint8 or not len(x) or len(names) != x.shape[1]:
        return None
    sizes = np.maximum(x.max(axis=0), -x.min(axis=0))
    some = np.flatnonzero(sizes > 0)
    if not some.size:
        return None
    most, least = some[np.argmax(sizes[some])], some[np.argmin(sizes[some])]
    return (names[most], names[least]) if sizes[most] > UNEVEN * sizes[least] else None
