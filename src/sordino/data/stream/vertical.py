"""Which features each party holds: slices of a vector, columns of a table, regions of an image.

Each way is a class, and the ``data.parts`` table of a study that asks for it; one of your own is a
class with a registration, or ``kind = "package.module:Class"`` (docs/own-tables.md). ``parts(shape,
columns, parties)`` gives one array of feature numbers a party, into the flat vector of an example.
Parties share no feature. Slices and regions leave none out; columns may.

>>> [list(map(int, part)) for part in Slices().parts((7,), None, 3)]
[[0, 1, 2], [3, 4], [5, 6]]
>>> [list(map(int, part)) for part in Regions(rows=2, columns=1).parts((1, 3, 2), None, 2)]
[[0, 1, 2, 3], [4, 5]]
>>> columns = Columns(groups=(("age", "dose"), (3,)))
>>> [list(map(int, part)) for part in columns.parts((4,), ("age", "height", "dose", "pulse"), 2)]
[[0, 2], [3]]
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from sordino.base.errors import StudyError
from sordino.base.registry import Registry, Section, did_you_mean

Parts = tuple[NDArray[np.int64], ...]


def _feature(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"a column is a name or a number from 0; got {value!r}")
    return value


Feature = Annotated[str | int, BeforeValidator(_feature)]


class Division(Section):
    """Which features each party holds: the ``data.parts`` table of a study; its name will do."""

    kind: str

    def parts(self, shape: tuple[int, ...], columns: tuple[str, ...] | None, parties: int) -> Parts:
        """The numbers of each party's features, of examples of this shape.

        Args:
            shape: of an example before it was made flat.
            columns: names of its features, if they have any.
            parties: how many.

        Raises:
            StudyError: if these examples cannot be divided so.
        """
        raise NotImplementedError

    def refused(self, parties: int) -> str | None:
        """Return why it is not for so many parties; None if it is."""
        return None


DIVISIONS = Registry(
    base=Division,
    noun="division",
    key="kind",
    place="data.parts",
    page="docs/own-tables.md",
    needs=("parts",),
)


@DIVISIONS.register
class Slices(Division):
    """Consecutive features, as many for each party as can be; the first ones have one more."""

    kind: Literal["slices"] = "slices"

    def parts(self, shape: tuple[int, ...], columns: tuple[str, ...] | None, parties: int) -> Parts:
        features = math.prod(shape)
        if parties > features:
            raise StudyError(
                f"parties: {parties} parties cannot divide {features} features; each holds "
                "at least one"
            )
        return tuple(np.array_split(np.arange(features, dtype=np.int64), parties))


@DIVISIONS.register
class Regions(Division):
    """A grid of rectangles of an image, as large as can be, by rows; with all channels."""

    kind: Literal["regions"] = "regions"
    rows: int = Field(ge=1, description="regions of an image from top to bottom")
    columns: int = Field(ge=1, description="regions of an image from left to right")

    def refused(self, parties: int) -> str | None:
        return (
            f"parts has {self.rows} x {self.columns} regions; parties is {parties}"
            if self.rows * self.columns != parties
            else None
        )

    def parts(self, shape: tuple[int, ...], columns: tuple[str, ...] | None, parties: int) -> Parts:
        """In rising order."""
        if len(shape) != 3:
            raise StudyError(
                "regions: only images (channels, height, width) have regions, examples have "
                f"shape {shape}; use slices"
            )
        if self.rows > shape[1] or self.columns > shape[2]:
            raise StudyError(
                f"regions: a grid of {self.rows} x {self.columns} does not fit an image of "
                f"{shape[1]} x {shape[2]} pixels"
            )
        numbers = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
        bands = np.array_split(numbers, self.rows, axis=1)
        return tuple(
            part.reshape(-1)
            for band in bands
            for part in np.array_split(band, self.columns, axis=2)
        )


@DIVISIONS.register
class Columns(Division):
    """Features by name or number (from 0), a group for each party; the others stay unused."""

    kind: Literal["columns"] = "columns"
    groups: tuple[tuple[Feature, ...], ...] = Field(
        description="the columns of each party, by name or number"
    )

    @model_validator(mode="after")
    def _something_for_each(self) -> Columns:
        if not self.groups or not all(self.groups):
            raise ValueError(f"each party needs at least one feature, got the groups {self.groups}")
        return self

    def refused(self, parties: int) -> str | None:
        if len(self.groups) == parties:
            return None
        return (
            f"parts has {len(self.groups)} groups of columns; parties is {parties}: one group "
            "for each"
        )

    def parts(self, shape: tuple[int, ...], columns: tuple[str, ...] | None, parties: int) -> Parts:
        """In the order of a party's group."""
        holder: dict[int, int] = {}
        found: list[NDArray[np.int64]] = []
        for party, group in enumerate(self.groups):
            numbers = [_number(feature, math.prod(shape), columns) for feature in group]
            for feature, number in zip(group, numbers, strict=True):
                if number in holder:
                    raise StudyError(
                        f"columns: feature {feature!r} is held by party {holder[number]} and again "
                        f"by party {party}; each feature belongs to one party"
                    )
                holder[number] = party
            found.append(np.array(numbers, dtype=np.int64))
        return tuple(found)


def _number(feature: str | int, features: int, columns: tuple[str, ...] | None) -> int:
    if isinstance(feature, int):
        if not 0 <= feature < features:
            raise StudyError(
                f"columns: there is no feature {feature}; features are numbered 0 to {features - 1}"
            )
        return feature
    if columns is None:
        raise StudyError(
            f"columns: {feature!r} is a name, but this data has no names of features; give "
            f"numbers, 0 to {features - 1}"
        )
    if feature not in columns:
        hint = did_you_mean(str(feature), columns) or "."
        raise StudyError(
            f"columns: there is no feature {feature!r}{hint} Features: {', '.join(columns[:40])}"
            + (f" and {len(columns) - 40} more" if len(columns) > 40 else "")
        )
    return columns.index(feature)
