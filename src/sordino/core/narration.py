"""What a regime says of a study, for whoever prints it: sentences and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """A table of words: a title, the names of the columns, and the rows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


Told = str | Table


@dataclass(frozen=True, slots=True)
class Advice:
    """What else a study could ask for at its price: a cell for each choice, for machines, and the
    same for people.
    """

    cells: Sequence[object]
    told: Sequence[Told]


def number(value: float | None, digits: int = 4) -> str:
    """A number for people.

    >>> number(None), number(float("inf")), number(0.53125, 3)
    ('-', 'inf', '0.531')
    """
    if value is None:
        return "-"
    return "inf" if math.isinf(value) else f"{value:.{digits}g}"
