"""Measures of a run: one class for each kind of number, chosen by its first key.

A measure is a number of one run, or a curve of one run. To add one, write a class here: its first
field is the key that selects it in a file of the catalogue, the other fields are its options, and
``of`` reads it from a run. :data:`MEASURES` lists all classes.

>>> from sordino_papers.measures import measure_of
>>> measure_of({"column": "tau", "take": "mean"})
Column(column='tau', take='mean', part=None)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, linear_regression, pstdev
from typing import ClassVar, Literal, TypeAlias, TypeVar

import msgspec

from sordino.extend.runs import Run, at, known, number

Curve: TypeAlias = tuple[tuple[float, float], ...]
"""Points (x, y), in the order of x."""

SHARES = ("accuracy", "error", "accumulated")
"""Columns that are shown in per cent."""

Take = Literal["last", "first", "mean", "max", "spread"]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a file of the catalogue."""


P = TypeVar("P", bound=Part)


def chosen(told: Mapping[str, object], kinds: Sequence[type[P]]) -> P:
    """The part whose class is chosen by its first key: ``{column = "tau"}`` is of ``Column``.

    Raises:
        ValueError: if there is none, or the table has a wrong key or value.
    """
    heads = [kind for kind in kinds if kind.__struct_fields__[0] in told]
    # an option of one kind may be called as the first key of another: `until` has a `column`
    fitting = [kind for kind in heads if set(told) <= set(kind.__struct_fields__)]
    if not heads:
        raise ValueError(f"{[*told]} has no key that says of which kind it is")
    return msgspec.convert(told, (fitting or heads)[0])


class Measure(Part, frozen=True):
    """A number of one run; ``curved`` ones are curves.

    Attributes:
        percent: whether it is a share, shown in per cent.
        falling: whether less is better.
    """

    curved: ClassVar[bool] = False

    @property
    def percent(self) -> bool:
        return False

    @property
    def falling(self) -> bool:
        return False

    @property
    def told(self) -> str:
        """Name on a page."""
        raise NotImplementedError

    def of(self, run: Run) -> float | Curve | None:
        """The number, or the curve; None where the run has none."""
        return None


class Final(Measure, frozen=True):
    """Value at a run's end: ``final = "accuracy"`` (of the model handed out, or of a whole stream),
    "error" (1 - accuracy), or the "seconds" that it took.
    """

    final: Literal["accuracy", "error", "seconds"]

    @property
    def percent(self) -> bool:
        return self.final != "seconds"

    @property
    def falling(self) -> bool:
        return self.final != "accuracy"

    @property
    def told(self) -> str:
        return self.final

    def of(self, run: Run) -> float | None:
        if self.final == "seconds":
            result = known(run.about.result)
            return None if result is None else number(result.seconds)
        if run.accuracy is None:
            return None
        return 1.0 - run.accuracy if self.final == "error" else run.accuracy


class Column(Measure, frozen=True):
    """A column of the log, reduced to one number; ``part`` picks one of a list, from 0."""

    column: str
    take: Take = "last"
    part: int | None = None

    @property
    def told(self) -> str:
        if self.take in ("first", "last"):
            return f"{self.column} in the first row" if self.take == "first" else self.column
        reduced = {"max": "largest", "spread": "deviation of"}.get(self.take, self.take)
        return f"{reduced} {self.column}"

    def of(self, run: Run) -> float | None:
        found = [value for _, value in points(run, self.column, "round", self.part)]
        return REDUCERS[self.take](found) if found else None


class Total(Measure, frozen=True):
    """The sum of columns at the end of the log, divided: ``total = ["up", "down"]``."""

    total: tuple[str, ...]
    divided_by: float = 1.0
    unit: str = ""

    falling = True

    @property
    def told(self) -> str:
        return self.unit or " + ".join(self.total)

    def of(self, run: Run) -> float | None:
        found = [points(run, key, "round", None) for key in self.total]
        return sum(each[-1][1] for each in found) / self.divided_by if all(found) else None


class Until(Measure, frozen=True):
    """The first ``over`` (round, steps, time, ...) from which a column keeps a level.

    ``until = 0.8`` with ``column = "accuracy"``; ``below = true`` for a loss that must stay below.
    A run that never keeps it has no number, unless ``else_end = true``: then its end counts.
    ``kept = false`` takes the first row that reaches it. ``unit`` names what is counted.
    """

    until: float
    column: str = "accuracy"
    over: str = "round"
    below: bool = False
    kept: bool = True
    else_end: bool = False
    unit: str = ""

    falling = True

    @property
    def told(self) -> str:
        share = self.column in SHARES
        level = f"{100 * self.until:g} %" if share else f"{self.until:g}"
        return f"{self.unit or self.over} until {self.column} is {level}"

    def of(self, run: Run) -> float | None:
        curve = points(run, self.column, self.over, None)
        reached: float | None = None
        for x, y in curve:
            if (y <= self.until) if self.below else (y >= self.until):
                reached = x if reached is None else reached
                if not self.kept:
                    return reached
            else:
                reached = None
        return curve[-1][0] if reached is None and self.else_end and curve else reached


class Along(Measure, frozen=True):
    """A curve: ``curve = "tau"``, a column of the log, over another one (``over = "round"``); with
    ``jumps = true``, how much it differs from row to row.
    """

    curve: str
    over: str = "round"
    part: int | None = None
    jumps: bool = False

    curved: ClassVar[bool] = True

    @property
    def percent(self) -> bool:
        return self.curve in SHARES

    @property
    def falling(self) -> bool:
        return self.curve in ("loss", "error", "accumulated", "regret", "regret_sum")

    @property
    def told(self) -> str:
        return f"jumps of {self.curve}" if self.jumps else self.curve

    def of(self, run: Run) -> Curve:
        found = points(run, self.curve, self.over, self.part)
        if self.jumps:
            return tuple((x, abs(y - before)) for (_, before), (x, y) in pairwise(found))
        return found


class Growth(Measure, frozen=True):
    """``growth = "regret_sum"``: the exponent of x to which a column grows, by least squares of
    logarithms over the second half of the log; 1 is as fast as the rounds or events.
    """

    growth: str

    falling = True

    @property
    def told(self) -> str:
        return f"exponent of {self.growth}"

    def of(self, run: Run) -> float | None:
        found = [(x, y) for x, y in points(run, self.growth, "round", None) if x > 0 and y > 0]
        half = [(math.log(x), math.log(y)) for x, y in found[len(found) // 2 :]]
        return linear_regression(*zip(*half, strict=True)).slope if len(half) > 1 else None


class Best(Measure, frozen=True):
    """1 where a series is the best of all series at its panel, point and seed, else 0; its mean is
    how often it is. ``best_of`` is a measure's word, such as "accuracy"; a tie counts for both.
    ``among`` names the series that are compared, all where left out.
    """

    best_of: str
    among: tuple[str, ...] = ()

    percent = True

    @property
    def told(self) -> str:
        return f"share of seeds with the best {self.best_of}"


class Attacked(Measure, frozen=True):
    """Quality of an attack's images, their mean: ``attacked = "correlation"`` or "psnr"."""

    attacked: Literal["correlation", "psnr"]

    falling = True

    @property
    def told(self) -> str:
        return {"psnr": "PSNR (dB)"}.get(self.attacked, self.attacked)


MEASURES: tuple[type[Measure], ...] = (Final, Column, Total, Until, Along, Growth, Best, Attacked)
SHORT: Mapping[str, Measure] = {"accuracy": Final("accuracy"), "error": Final("error")}
"""Measures that a word is enough for."""


def measure_of(told: str | Mapping[str, object]) -> Measure:
    """The measure that a file names by a word or a table."""
    return SHORT[told] if isinstance(told, str) else chosen(told, MEASURES)


def points(run: Run, column: str, over: str, part: int | None) -> Curve:
    """Finite values of a column over those of another, row by row; rows that lack one are left
    out.
    """
    found = []
    for row in run.rounds:
        x, y = _value(row, over, None), _value(row, column, part)
        if x is not None and y is not None and math.isfinite(x) and math.isfinite(y):
            found.append((x, y))
    return tuple(found)


def _value(row: msgspec.Struct, key: str, part: int | None) -> float | None:
    value = at(row, key)
    if part is None:
        return number(value)
    if isinstance(value, Sequence) and not isinstance(value, str) and part < len(value):
        return number(value[part])
    return None


REDUCERS: Mapping[Take, Callable[[Sequence[float]], float]] = {
    "last": lambda values: values[-1],
    "first": lambda values: values[0],
    "mean": fmean,
    "max": max,
    "spread": lambda values: pstdev(values[len(values) // 2 :]),  # of the second half
}
