"""Which features each party holds: slices of the flat vector, named columns of a table, regions of an image.

``parts(shape, columns)`` gives one array of feature numbers a party, into the flat vector of an example. Parties share
no feature. Slices and regions leave none out; columns may.

>>> [list(map(int, part)) for part in Slices(3).parts((7,), None)]
[[0, 1, 2], [3, 4], [5, 6]]
>>> [list(map(int, part)) for part in Regions(2, 1).parts((1, 3, 2), None)]
[[0, 1, 2, 3], [4, 5]]
>>> [list(map(int, part)) for part in Columns((("age", "dose"), (3,))).parts((4,), ("age", "height", "dose", "pulse"))]
[[0, 2], [3]]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino.errors import StudyError
from sordino.registry import did_you_mean

Parts = tuple[NDArray[np.int64], ...]


@dataclass(frozen=True, slots=True)
class Slices:
    """Consecutive features, as many for each party as can be; the first ones have one more."""

    kind: ClassVar[str] = "slices"
    parties: int

    def __post_init__(self) -> None:
        """At least one party."""
        if self.parties < 1:
            raise StudyError(f"parties must be at least 1, got {self.parties}")

    def parts(self, shape: tuple[int, ...], columns: tuple[str, ...] | None) -> Parts:
        """Features of each party, of an example of this shape."""
        features = math.prod(shape)
        if self.parties > features:
            raise StudyError(f"parties: {self.parties} parties cannot divide {features} features; each holds at least one")
        return tuple(np.array_split(np.arange(features, dtype=np.int64), self.parties))


@dataclass(frozen=True, slots=True)
class Regions:
    """An image cut into a grid of rectangles, each as large as can be; a party holds all channels of its own. By rows."""

    kind: ClassVar[str] = "regions"
    rows: int
    columns: int

    def __post_init__(self) -> None:
        """At least one rectangle."""
        if self.rows < 1 or self.columns < 1:
            raise StudyError(f"regions: rows and columns must be at least 1, got {self.rows} and {self.columns}")

    def parts(self, shape: tuple[int, ...], columns: tuple[str, ...] | None) -> Parts:
        """Features of each party, in rising order."""
        if len(shape) != 3:
            raise StudyError(f"regions: only images (channels, height, width) have regions, examples have shape {shape}; use slices")
        if self.rows > shape[1] or self.columns > shape[2]:
            raise StudyError(f"regions: a grid of {self.rows} x {self.columns} does not fit an image of {shape[1]} x {shape[2]} pixels")
        numbers = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
        bands = np.array_split(numbers, self.rows, axis=1)
        return tuple(part.reshape(-1) for band in bands for part in np.array_split(band, self.columns, axis=2))


@dataclass(frozen=True, slots=True)
class Columns:
    """Features by name or number (from 0), a group for each party; features in no group stay unused."""

    kind: ClassVar[str] = "columns"
    groups: tuple[tuple[str | int, ...], ...]

    def __post_init__(self) -> None:
        """At least one party, and something for each."""
        if not self.groups or not all(self.groups):
            raise StudyError(f"columns: each party needs at least one feature, got the groups {self.groups}")

    def parts(self, shape: tuple[int, ...], columns: tuple[str, ...] | None) -> Parts:
        """Features of each party, in the order of its group."""
        holder: dict[int, int] = {}
        found: list[NDArray[np.int64]] = []
        for party, group in enumerate(self.groups):
            numbers = [_number(feature, math.prod(shape), columns) for feature in group]
            for feature, number in zip(group, numbers, strict=True):
                if number in holder:
                    raise StudyError(
                        f"columns: feature {feature!r} is held by party {holder[number]} and again by party {party}; "
                        "each feature belongs to one party"
                    )
                holder[number] = party
            found.append(np.array(numbers, dtype=np.int64))
        return tuple(found)


def _number(feature: str | int, features: int, columns: tuple[str, ...] | None) -> int:
    if isinstance(feature, int) and not isinstance(feature, bool):
        if not 0 <= feature < features:
            raise StudyError(f"columns: there is no feature {feature}; features are numbered 0 to {features - 1}")
        return feature
    if columns is None:
        raise StudyError(f"columns: {feature!r} is a name, but this data has no names of features; give numbers, 0 to {features - 1}")
    if feature not in columns:
        hint = did_you_mean(str(feature), columns) or "."
        raise StudyError(
            f"columns: there is no feature {feature!r}{hint} Features: {', '.join(columns[:40])}"
            + (f" and {len(columns) - 40} more" if len(columns) > 40 else "")
        )
    return columns.index(feature)


Vertical = Slices | Columns | Regions
