"""Figures of several runs, as data: curves of each study, and points over a key that studies
differ in.

A curve is the mean over the seeds, with a band from the lowest to the highest. Figures over a key
are those of Figures 6 and 7 of Li et al. 2022: final accuracy against the epsilon that may be
spent, and updates until the accuracy first stays above a threshold (or the loss below one) against
the number of edges. What is not private has no place on an axis of epsilon and is drawn as a level.

>>> Goal("accuracy", 0.75).first([(10, 0.7), (20, 0.8), (30, 0.74), (40, 0.76), (50, 0.9)])
40.0
>>> Goal("loss", 0.5).first([(10, 0.7), (20, 0.6)]) is None
True
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

import numpy as np

from sordino.core.records import Round
from sordino.core.regimes import Vocabulary, shared
from sordino.core.run.reading import Run
from sordino.core.statements import Curve, Figure, Mark, Panel, Series, look, points, smoothed

Groups = Sequence[Sequence[Run]]
"""The runs of each of several studies."""
STRETCHES = 5  # rows that a run-time error is averaged over where it is drawn beside others


EMPTY = Series(x=(), y=(), spread=((), ()))


def band(curves: Sequence[Curve]) -> Series:
    """The mean of curves with the lowest and the highest, over the stretch that all of them have,
    straight between their points.

    >>> found = band([([1, 2, 3], [0.0, 1.0, 2.0]), ([1, 3], [2.0, 4.0])])
    >>> found.x, found.y, found.spread
    ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], ([0.0, 1.0, 2.0], [2.0, 3.0, 4.0]))
    >>> band([([1], [0.5]), ([], [])]).x
    ()
    """
    # of points above each other, the last
    last = [dict(zip(xs, ys, strict=True)) for xs, ys in curves]
    if not last or not all(last):
        return EMPTY
    if all(len(points) == 1 for points in last):
        grid = np.array([np.mean([x for points in last for x in points])])
    else:
        start, end = max(min(points) for points in last), min(max(points) for points in last)
        grid = np.array(sorted({float(x) for points in last for x in points if start <= x <= end}))
    values = np.array(
        [np.interp(grid, sorted(points), [points[x] for x in sorted(points)]) for points in last]
    )
    if not len(grid):
        return EMPTY
    spread = values.min(0).tolist(), values.max(0).tolist()
    return Series(x=grid.tolist(), y=values.mean(0).tolist(), spread=spread)


def together(
    groups: Groups,
    labels: Sequence[str],
    over: Literal["round", "steps", "epsilon"],
    *,
    title: str = "",
    caption: str = "",
    claimed: bool = False,
) -> Figure | None:
    """Accuracy (on streams: run-time error) of groups of runs: means, from lowest to highest.

    Below it the epsilon spent, unless that is the axis or it never changes. With ``claimed`` the
    axis is what papers claim. Over epsilon, a group whose epsilon is infinite in every run is a
    level, if there is a curve to hold against it.
    """
    words = shared(run.vocabulary for runs in groups for run in runs)
    key, measure = words.accuracy.curve
    if over == "epsilon":
        key = words.accuracy.key
        measure = f"{words.accuracy.told} (%)" if words.accuracy.percent else words.accuracy.told
    spent = over != "epsilon" and rising(run for runs in groups for run in runs)
    curves = [band([_measured(run, over, claimed, key) for run in runs]) for runs in groups]
    prices = [  # of groups in which every run makes a promise
        band([points(run.rounds, over, "epsilon") for run in runs])
        if spent and all(run.private for run in runs)
        else EMPTY
        for runs in groups
    ]
    if not any(curve.x for curve in curves):
        return None
    end = 1.02 * max(x for each in (*curves, *prices) for x in each.x) or 1.0
    levels = [
        _level(runs, (0.0, end)) if over == "epsilon" and not curve.x else EMPTY
        for curve, runs in zip(curves, groups, strict=True)
    ]
    factor = 100 if words.accuracy.percent else 1
    series = [
        _named(i, curve if curve.x else level, f"{name} (ε = ∞)" if level.x else name, factor)
        for i, (name, curve, level) in enumerate(zip(labels, curves, levels, strict=True))
        if curve.x or level.x
    ]
    panels = [Panel(label=measure, series=series, percent=True)]
    if spent:
        budgets = {run.budget for runs in groups for run in runs if run.private}
        panels.append(
            Panel(
                label="epsilon spent",
                series=[_named(i, price) for i, price in enumerate(prices) if price.x],
                marks=[Mark(each) for each in sorted(budgets)],
                limits=(0.0, None),
            )
        )
    x = {"round": words.round, "steps": words.steps_of_one}.get(
        over, "epsilon claimed" if claimed else "epsilon spent"
    )
    what = measure.removesuffix(" (%)").capitalize()
    return Figure(
        key=f"compared-{over}",
        title=title,
        caption=caption,
        label=f"{what} over {x}"
        if over == "epsilon"
        else f"{what} and epsilon of {len(groups)} runs over {x}",
        x=x,
        limits=(0.0, end) if over == "epsilon" else None,
        panels=panels,
        height=1.8 if spent else 2.4,
    )


def _named(number: int, found: Series, name: str = "", factor: float = 1.0) -> Series:
    """A line of one of many groups."""
    colour, dash = look(number)
    y, low, high = ([factor * v for v in each] for each in (found.y, *(found.spread or ())))
    return replace(found, y=y, spread=(low, high), name=name, colour=colour, dash=dash)


def rising(runs: Iterable[Run]) -> bool:
    """Return whether epsilon is worth a curve: some private run spends as it goes on."""
    return any(len(set(run.values("epsilon"))) > 1 for run in runs if run.private)


def _measured(run: Run, over: str, claimed: bool, key: str) -> Curve:
    """The curve of a run.

    Over epsilon none where nothing is promised, and one point where only the end is told or
    claimed.
    """
    if over != "epsilon":
        xs, ys = points(run.rounds, over, key)
        return xs, smoothed(ys, STRETCHES) if run.vocabulary.accuracy.streamed else ys
    if run.vocabulary.accuracy.streamed:
        return _point(run.spent, run.accuracy) if run.private else ([], [])
    if claimed and run.claimed != run.spent:
        told = points(run.rounds, "claimed_epsilon", key)
        return told if told[0] else _point(run.claimed, run.measured)
    return points(run.rounds, "epsilon", key) if run.private else ([], [])


def _point(x: float | None, y: float | None) -> Curve:
    """One point, if both its numbers are known and finite."""
    return points([Round(epsilon=x, accuracy=y)], "epsilon", "accuracy")


def _level(runs: Sequence[Run], ends: tuple[float, float]) -> Series:
    """The final accuracy of runs whose epsilon is infinite, along the whole axis; else nothing."""
    final = [run.measured for run in runs if run.measured is not None and run.spent == math.inf]
    if len(final) < len(runs):
        return EMPTY
    return band([([*ends], [accuracy, accuracy]) for accuracy in final])


# Studies that differ in one key

EPSILON, EDGES = "privacy.epsilon", "data.clients"

Lines = Mapping[str, Mapping[float, Sequence[Run]]]
"""Of each method, the runs at each value of the key."""


@dataclass(frozen=True, slots=True)
class Goal:
    """An accuracy to stay above, or a loss to stay below."""

    key: Literal["accuracy", "loss"]
    value: float

    def first(self, rows: Iterable[tuple[float, float]]) -> float | None:
        """The first round, or update, from which on the goal is kept to the end; or None."""
        found: float | None = None
        for at, value in rows:
            kept = value >= self.value if self.key == "accuracy" else value <= self.value
            found = None if not kept else float(at) if found is None else found
        return found

    def of(self, run: Run) -> float | None:
        """The same of a run."""
        return self.first(zip(*points(run.rounds, "round", self.key), strict=True))

    def __str__(self) -> str:
        """
        >>> str(Goal("accuracy", 0.75)), str(Goal("loss", 0.5))
        ('accuracy ≥ 75 %', 'loss ≤ 0.5')
        """
        if self.key == "loss":
            return f"loss ≤ {self.value:g}"
        return f"accuracy ≥ {100 * self.value:g} %"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A key to draw over, and its runs; with a goal, how long it took, else final accuracy."""

    key: str
    lines: Lines = field(default_factory=dict)
    goal: Goal | None = None

    @property
    def words(self) -> Vocabulary:
        """Words for all runs."""
        runs = (run for line in self.lines.values() for runs in line.values() for run in runs)
        return shared(run.vocabulary for run in runs)


def spots(line: Mapping[float, Sequence[Run]], goal: Goal | None) -> Series:
    """The points of a line in the order of x, without values of which no run tells.

    Those are open that took longer than this: not every seed reached the goal.
    """
    rows = []
    for x, runs in sorted(line.items()):
        if goal is None:
            values = [100 * run.accuracy for run in runs if run.accuracy is not None]
            missed = False
        else:
            took = [(goal.of(run), float(run.number)) for run in runs if run.number]
            missed = any(each is None for each, _ in took)
            values = [whole if each is None else each for each, whole in took]
        if values:
            rows.append((x, fmean(values), min(values), max(values), missed))
    return _spots(rows)


def _spots(rows: Sequence[tuple[float, float, float, float, bool]]) -> Series:
    x, y, low, high, opened = zip(*rows, strict=True) if rows else [()] * 5
    return Series(kind="points", x=x, y=y, spread=(low, high), open=opened)


def _title(sweep: Sweep) -> str:
    """Of the figure."""
    words = sweep.words
    over = {EPSILON: "epsilon", EDGES: f"the number of {words.clients}"}.get(sweep.key, sweep.key)
    rounds = words.rounds.capitalize()
    final = words.accuracy.told.capitalize() if words.accuracy.streamed else "Final accuracy"
    what = final if sweep.goal is None else f"{rounds} until {sweep.goal}"
    return f"{what} against {over}"


def _caption(sweep: Sweep) -> str:
    """Return the caption."""
    words = sweep.words
    bars = "A point is the mean over seeds, its bar reaches from the lowest to the highest."
    if sweep.goal is None:
        level = ""
        if sweep.key == EPSILON:
            level = f" A level is a method whose epsilon is infinite. The axis is {sweep.key}."
        return f"{words.accuracy.final}. {bars}{level}"
    return (
        f"{words.rounds.capitalize()} after which {sweep.goal} first held and went on holding to "
        f"the end of the run, as far as it was evaluated. {bars} An open triangle: not every seed "
        "got there, and those that did not count with all they did."
    )


def over_key(sweep: Sweep) -> Figure | None:
    """The figure of a sweep; None where no run tells anything."""
    lines = {name: spots(line, sweep.goal) for name, line in sweep.lines.items()}
    placed = sorted({x for line in lines.values() for x in line.x if math.isfinite(x)})
    if not placed:
        return None
    words = sweep.words
    log = sweep.goal is not None or placed[-1] >= 8 * placed[0] > 0
    limits = _limits(placed, log=log)
    return Figure(
        key=f"sweep-{sweep.key}",
        title=_title(sweep),
        caption=_caption(sweep),
        label=_title(sweep),
        x={EPSILON: "epsilon that may be spent", EDGES: words.clients}.get(sweep.key, sweep.key),
        limits=limits,
        log=log,
        ticks=_ticks(placed, limits, log=log),
        panels=[
            Panel(
                label=f"{words.accuracy.told} (%)"
                if sweep.goal is None
                else f"{words.rounds} until {sweep.goal}",
                log=sweep.goal is not None,
                series=[
                    one
                    for i, (name, line) in enumerate(lines.items())
                    for one in _of_line(i, name, line, limits)
                ],
            )
        ],
        height=2.2,
    )


def _of_line(number: int, name: str, line: Series, limits: tuple[float, float]) -> Iterable[Series]:
    """Points of one method, and a level where it is not private."""
    rows = list(zip(line.x, line.y, *(line.spread or ()), line.open, strict=True))
    for _, *values, _ in (row for row in rows if math.isinf(row[0])):
        mean, low, high = ([value] * 2 for value in values)
        level = Series(x=limits, y=mean, spread=(low, high))
        yield replace(_named(number, level, f"{name} (ε = ∞)"), dash="dashed")
    if finite := [row for row in rows if math.isfinite(row[0])]:
        yield _named(number, _spots(finite), name)


def _limits(placed: Sequence[float], *, log: bool) -> tuple[float, float]:
    """Ends of the axis, with room beside the first and the last value."""
    low, high = placed[0], placed[-1]
    if log:
        room = 2.0 if low == high else (high / low) ** 0.05
        return low / room, high * room
    space = 0.5 if low == high else 0.05 * (high - low)
    return low - space, high + space


def _ticks(
    placed: Sequence[float], limits: tuple[float, float], *, log: bool
) -> list[tuple[float, str]]:
    """The values themselves, as long as their numbers do not run into each other."""
    low, high = map(math.log, limits) if log else limits
    kept: list[tuple[float, str]] = []
    free = -math.inf
    for x in placed:
        at = ((math.log(x) if log else x) - low) / (high - low)
        if at > free:
            kept.append((x, f"{x:g}"))
            free = at + 0.02 * (len(f"{x:g}") + 1)
    return kept
