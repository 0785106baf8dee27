"""Curves of several runs in one picture: accuracy, and below it the epsilon spent.

Of several runs of one study the mean, and how far they lie apart. Numbers in, SVG text out, None
where there is nothing to show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sordino.core.records import Round
from sordino.core.run.reading import Run
from sordino.core.statements import Curve, points, smoothed
from sordino.core.vocabulary import Vocabulary, shared
from sordino.report.canvas import INK, SERIES, canvas, clean, figure, shortened, svg
from sordino.report.drawing import from_zero, label_of, of_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Band:
    """At each x the mean, the lowest and the highest."""

    xs: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def band(curves: Sequence[Curve]) -> Band:
    """The curves over the stretch that all of them have, straight between their points.

    >>> band([([1, 2, 3], [0.0, 1.0, 2.0]), ([1, 3], [2.0, 4.0])])
    Band(xs=[1.0, 2.0, 3.0], mean=[1.0, 2.0, 3.0], low=[0.0, 1.0, 2.0], high=[2.0, 3.0, 4.0])
    >>> band([([1], [0.5]), ([], [])]).xs
    []
    """
    # of points above each other, the last
    last = [dict(zip(xs, ys, strict=True)) for xs, ys in curves]
    if not last or not all(last):
        return Band([], [], [], [])
    if all(len(points) == 1 for points in last):
        grid = np.array([np.mean([x for points in last for x in points])])
    else:
        start, end = max(min(points) for points in last), min(max(points) for points in last)
        grid = np.array(sorted({float(x) for points in last for x in points if start <= x <= end}))
    values = np.array(
        [np.interp(grid, sorted(points), [points[x] for x in sorted(points)]) for points in last]
    )
    if not len(grid):
        return Band([], [], [], [])
    return Band(
        grid.tolist(), values.mean(0).tolist(), values.min(0).tolist(), values.max(0).tolist()
    )


STRETCHES = 5  # rows that a run-time error is averaged over where it is drawn beside others
WORDY = 34  # characters of a label from which on each has a line of its own


@dataclass(frozen=True, slots=True)
class _Group:
    """The drawing of one group of runs: a curve or a level, and the epsilon it spent."""

    label: str
    curve: Band
    level: Band
    price: Band

    @property
    def shown(self) -> Band:
        """The curve, or the level where there is no curve."""
        return self.curve if self.curve.xs else self.level


def together(
    groups: Sequence[Sequence[Run]], labels: Sequence[str], over: str, *, claimed: bool = False
) -> str | None:
    """Accuracy (on streams: run-time error) of groups of runs: means, from lowest to highest.

    The axis is "round", "steps" or "epsilon". Below it the epsilon spent, unless that is the axis
    or it never changes. With ``claimed`` the axis is what papers claim. Over epsilon, a group whose
    epsilon is infinite in every run is a level, if there is a curve to hold against it.
    """
    words = shared(run.vocabulary for runs in groups for run in runs)
    key, measure = words.accuracy.curve
    if over == "epsilon":
        key = words.accuracy.key
        measure = f"{words.accuracy.told} (%)" if words.accuracy.percent else words.accuracy.told
    spent = over != "epsilon" and rising(run for runs in groups for run in runs)
    curves = [band([_measured(run, over, claimed, key) for run in runs]) for runs in groups]
    prices = [_price(runs, over) if spent else band([]) for runs in groups]
    if not any(curve.xs for curve in curves):
        return None
    last = max(x for each in (*curves, *prices) for x in each.xs)
    end = 1.02 * last or 1.0
    levels = [
        _level(runs, (0.0, end)) if over == "epsilon" and not curve.xs else band([])
        for curve, runs in zip(curves, groups, strict=True)
    ]
    drawn = [
        _Group(f"{name} (ε = ∞)" if level.xs else name, curve, level, price)
        for name, curve, level, price in zip(labels, curves, levels, prices, strict=True)
    ]
    wordy = any(len(group.label) > WORDY for group in drawn)
    label = _label(words, over, claimed)
    with canvas(f"compared-{over}"):
        lines = len(labels) if wordy else -(-len(labels) // 2)
        page, axes = figure(1 + spent, 0.6 + (1.8 if spent else 2.6) * (1 + spent) + 0.19 * lines)
        _draw(axes, drawn, 70 if wordy else WORDY, 100 if words.accuracy.percent else 1)
        axes[0].set_ylabel(measure)
        of_percent(axes[0])
        if spent:
            _budgets(axes[1], [run for runs in groups for run in runs if run.private])
        page.legend(loc="outside lower left", ncols=1 if wordy else 2)
        from_zero(axes[-1], last, label)
        if over == "epsilon":
            axes[-1].set_xlim(0, end)
        what = measure.removesuffix(" (%)").capitalize()
        if over != "epsilon":
            what += f" and epsilon of {len(groups)} runs"
        return svg(page, f"{what} over {label}")


def _label(words: Vocabulary, over: str, claimed: bool) -> str:
    if over == "epsilon":
        return "epsilon claimed" if claimed else "epsilon spent"
    return label_of(words, over)


def _draw(axes: Sequence[Axes], groups: Sequence[_Group], longest: int, factor: int) -> None:
    """Curves or levels on the first panel, what was spent on the second where there is one."""
    for i, group in enumerate(groups):
        colour, dash = SERIES[i % len(SERIES)], ("-", "--", ":", "-.")[i // len(SERIES) % 4]
        label = shortened(clean(group.label, 1000), longest) if group.shown.xs else None
        _band(axes[0], group.shown, factor, colour, dash, label)
        ends = group.curve.xs[-1:], [factor * a for a in group.curve.mean[-1:]]
        axes[0].plot(*ends, color=colour, marker="o", markersize=5)
        if len(axes) > 1:
            _band(axes[1], group.price, 1, colour, dash)


def _budgets(axis: Axes, private: Sequence[Run]) -> None:
    for budget in sorted({run.budget for run in private}):
        axis.axhline(budget, color=INK, linestyle="--", linewidth=1)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("epsilon spent")


def rising(runs: Iterable[Run]) -> bool:
    """Return whether epsilon is worth a curve: some private run spends as it goes on."""
    return any(len(set(run.values("epsilon"))) > 1 for run in runs if run.private)


def _price(runs: Sequence[Run], over: str) -> Band:
    """The epsilon spent by a group in which every run makes a promise."""
    if not all(run.private for run in runs):
        return band([])
    return band([points(run.rounds, over, "epsilon") for run in runs])


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


def _level(runs: Sequence[Run], ends: tuple[float, float]) -> Band:
    """The final accuracy of runs whose epsilon is infinite, along the whole axis; else nothing."""
    final = [run.measured for run in runs if run.measured is not None and run.spent == math.inf]
    if len(final) < len(runs):
        return band([])
    return band([([*ends], [accuracy, accuracy]) for accuracy in final])


def _band(
    axis: Axes, found: Band, scale: float, colour: str, dash: str, label: str | None = None
) -> None:
    axis.plot(found.xs, [scale * y for y in found.mean], color=colour, linestyle=dash, label=label)
    if found.low != found.high:
        low, high = [scale * y for y in found.low], [scale * y for y in found.high]
        axis.fill_between(found.xs, low, high, color=colour, alpha=0.18, linewidth=0)
