"""Labels and owners of a table's rows, as text or numbers, become class numbers and entities.

**Classes** are public knowledge: their number, or their names, is given and not looked up in the
data. A label that is one of the names is that class. Otherwise, where no name looks like a number
itself, labels are the whole numbers 0 to k - 1. Anything else is refused with its row.

**Entities.** Numbers in order of first appearance would need memory for each person. So an entity
is a hash of its name: the first 63 bits of BLAKE2b, the same in every file, run and program. Two
given people share a number with probability 2^-63; among n people any two do with probability below
n^2 / 2^64, for a million people 5 10^-8. Whole numbers are hashed as their decimal text, so that 12
in a CSV file and in a Parquet file are the same person.

>>> coder = Classes(("ill", "well"))
>>> [coder.number("well"), coder.number("1.0"), coder.number("dead")]
[1, 1, None]
>>> entity("12") == entity("12"), entity("12") == entity("13")
(True, False)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.base.errors import DataError
from sordino.data.identity import entity
from sordino.data.labels import MOST_CLASSES

_KEPT = 1 << 16
"""Above so many texts the memory of numbers is emptied; a stretch of rows is added at once."""


def whole(text: str) -> int | None:
    """The whole number that ``text`` is, as "3", "3.0" or "3e0"; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() and abs(value) <= 2**53 else None


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes that a table may have."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, classes: int | Sequence[str], place: str) -> Classes:
        """From their number, or their names.

        Raises:
            DataError: for fewer than two, too many, or the same twice.
        """
        if isinstance(classes, str):
            raise DataError(
                f"{place}: classes must be a number or a list of names, got the text {classes!r}"
            )
        count = classes if isinstance(classes, int) else len(classes)
        if not 2 <= count <= MOST_CLASSES:
            raise DataError(f"{place}: there must be 2 to {MOST_CLASSES} classes, got {count}")
        names = (
            tuple(map(str, range(classes)))
            if isinstance(classes, int)
            else tuple(str(name).strip() for name in classes)
        )
        if len(set(names)) < len(names):
            raise DataError(f"{place}: each class needs a name of its own, got {', '.join(names)}")
        return cls(names)

    def number(self, label: str) -> int | None:
        """The class number of a label; None where there is none."""
        if label in self.names:
            return self.names.index(label)
        value = whole(label)
        if value is None or not 0 <= value < len(self.names):
            return None
        # numbers are names here: 1.0 is the class named "1"
        if any(whole(name) is not None for name in self.names):
            return self.names.index(str(value)) if str(value) in self.names else None
        return value

    def wanted(self) -> str:
        """What labels are expected, in words."""
        names = ", ".join(self.names[:12]) + (
            f" and {len(self.names) - 12} more" if len(self.names) > 12 else ""
        )
        return (
            names
            if any(whole(name) is not None for name in self.names)
            else f"{names}, or 0 to {len(self.names) - 1}"
        )


class Coder:
    """Cells of labels and owners, as text, to numbers; each text is looked up once."""

    def __init__(self, classes: Classes, path: str) -> None:
        self.classes, self.path = classes, path
        self._labels: dict[str, int] = {}
        self._owners: dict[str, int] = {}

    def labels(self, cells: Sequence[str], row: int, column: str) -> NDArray[np.int64]:
        """Class numbers of the labels of rows ``row``, ``row + 1``, ...

        Raises:
            DataError: names row and column of a label that no class has.
        """
        return _looked_up(self._labels, cells, lambda cell, at: self._label(cell, row + at, column))

    def owners(self, cells: Sequence[str], row: int, column: str) -> NDArray[np.int64]:
        """Entities of the owners of rows ``row``, ``row + 1``, ...; an empty name is refused."""
        return _looked_up(self._owners, cells, lambda cell, at: self._owner(cell, row + at, column))

    def _label(self, cell: str, row: int, column: str) -> int:
        text = cell.strip()
        number = self.classes.number(text)
        if number is None:
            what = f"has the label {text!r}" if text else "has no label"
            raise DataError(
                f"{self.path}: row {row} (the first is 0), column {column!r} {what}; "
                f"expected {self.classes.wanted()}"
            )
        return number

    def _owner(self, cell: str, row: int, column: str) -> int:
        text = cell.strip()
        if not text:
            raise DataError(
                f"{self.path}: row {row} (the first is 0), column {column!r} is empty; whose "
                "row is it?"
            )
        return entity(text)


def _looked_up(
    known: dict[str, int], cells: Sequence[str], find: Callable[[str, int], int]
) -> NDArray[np.int64]:
    numbers = [known.get(cell) for cell in cells]
    if None in numbers:
        if len(known) > _KEPT:
            known.clear()
        for at, cell in enumerate(cells):
            if numbers[at] is None:
                numbers[at] = (
                    known[cell] if cell in known else known.setdefault(cell, find(cell, at))
                )
    return np.array(numbers, dtype=np.int64)
