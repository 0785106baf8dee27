"""Many studies that differ in one key: a line for each method, a point for each value.

Two pictures, those of Figures 6 and 7 of Li et al. 2022: final accuracy against the epsilon that
may be spent, and updates until the accuracy first stays above a threshold (or the loss below one)
against the number of edges. A point is the mean over seeds, its bar reaches from the lowest to the
highest. What is not private has no place on an axis of epsilon and is drawn as a level.

>>> Goal("accuracy", 0.75).first([(10, 0.7), (20, 0.8), (30, 0.74), (40, 0.76), (50, 0.9)])
40.0
>>> Goal("loss", 0.5).first([(10, 0.7), (20, 0.6)]) is None
True
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from sordino.core.run.reading import Run
from sordino.core.statements import points
from sordino.core.vocabulary import Vocabulary, shared
from sordino.report.canvas import SERIES, canvas, clean, figure, shortened, svg
from sordino.report.drawing import logarithmic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EPSILON, EDGES = "privacy.epsilon", "data.clients"
MARKERS = "osD^vP*X"

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
        return (
            f"accuracy ≥ {100 * self.value:g} %"
            if self.key == "accuracy"
            else f"loss ≤ {self.value:g}"
        )


@dataclass(frozen=True, slots=True)
class Sweep:
    """A key to draw over, and its runs; with a goal, how long it took, else final accuracy."""

    key: str
    lines: Lines
    goal: Goal | None = None

    @property
    def words(self) -> Vocabulary:
        """Words for all runs."""
        runs = (run for line in self.lines.values() for runs in line.values() for run in runs)
        return shared(run.vocabulary for run in runs)


@dataclass(frozen=True, slots=True)
class Spot:
    """A point of a line.

    Where a goal was not reached by all seeds, ``open`` says that it took longer than this.
    """

    x: float
    mean: float
    low: float
    high: float
    open: bool = False


def spots(line: Mapping[float, Sequence[Run]], goal: Goal | None) -> list[Spot]:
    """The points of a line in the order of x, without values of which no run tells."""
    found = []
    for x, runs in sorted(line.items()):
        if goal is None:
            values = [100 * run.accuracy for run in runs if run.accuracy is not None]
            reached = values
        else:
            took = [goal.of(run) for run in runs]
            reached = [each for each in took if each is not None]
            values = [
                float(run.number) if each is None else each
                for each, run in zip(took, runs, strict=True)
                if run.number
            ]
        if values:
            found.append(
                Spot(x, fmean(values), min(values), max(values), open=len(reached) < len(values))
            )
    return found


def title(sweep: Sweep) -> str:
    """Of the figure."""
    words = sweep.words
    over = {EPSILON: "epsilon", EDGES: f"the number of {words.clients}"}.get(sweep.key, sweep.key)
    rounds = words.rounds.capitalize()
    what = _final(words) if sweep.goal is None else f"{rounds} until {sweep.goal}"
    return f"{what} against {over}"


def caption(sweep: Sweep) -> str:
    """Return the caption."""
    words = sweep.words
    bars = "A point is the mean over seeds, its bar reaches from the lowest to the highest."
    if sweep.goal is None:
        level = (
            f" A level is a method whose epsilon is infinite. The axis is {sweep.key}."
            if sweep.key == EPSILON
            else ""
        )
        return f"{words.accuracy.final}. {bars}{level}"
    return (
        f"{words.rounds.capitalize()} after which {sweep.goal} first held and went on holding to "
        f"the end of the run, as far as it was evaluated. {bars} An open triangle: not every seed "
        "got there, and those that did not count with all they did."
    )


def _final(words: Vocabulary) -> str:
    return words.accuracy.told.capitalize() if words.accuracy.streamed else "Final accuracy"


def draw(sweep: Sweep) -> str | None:
    """The picture; None where no run tells anything."""
    lines = {name: spots(line, sweep.goal) for name, line in sweep.lines.items()}
    placed = sorted({spot.x for line in lines.values() for spot in line if math.isfinite(spot.x)})
    if not placed:
        return None
    words = sweep.words
    with canvas(f"sweep-{sweep.key}"):
        drawn, (axis,) = figure(1, 3.1 + 0.19 * -(-len(lines) // 2))
        if sweep.goal is not None or placed[-1] >= 8 * placed[0] > 0:
            axis.set_xscale("log")
        if sweep.goal is not None:
            heights = [
                end
                for line in lines.values()
                for spot in line
                for end in (spot.low, spot.high)
                if end > 0
            ]
            logarithmic(axis, 0.7 * min(heights, default=1.0), 1.4 * max(heights, default=1.0))
        for i, (name, line) in enumerate(lines.items()):
            _line(
                axis,
                line,
                SERIES[i % len(SERIES)],
                MARKERS[i % len(MARKERS)],
                shortened(clean(name, 1000), 34),
            )
        _ticks(axis, placed)
        axis.set_xlabel(
            {EPSILON: "epsilon that may be spent", EDGES: words.clients}.get(sweep.key, sweep.key)
        )
        axis.set_ylabel(
            f"{words.accuracy.told} (%)"
            if sweep.goal is None
            else f"{words.rounds} until {sweep.goal}"
        )
        drawn.legend(loc="outside lower left", ncols=2)
        return svg(drawn, title(sweep))


def _line(axis: Axes, line: Sequence[Spot], colour: str, marker: str, name: str) -> None:
    level = [spot for spot in line if math.isinf(spot.x)]
    finite = [spot for spot in line if math.isfinite(spot.x)]
    for spot in level:
        axis.axhline(
            spot.mean, color=colour, linestyle="--", linewidth=1.4, label=f"{name} (ε = ∞)"
        )
        if spot.low < spot.high:
            axis.axhspan(spot.low, spot.high, color=colour, alpha=0.15, linewidth=0)
    if finite:
        below = [abs(spot.mean - spot.low) for spot in finite]
        above = [abs(spot.mean - spot.high) for spot in finite]
        xs, ys = [spot.x for spot in finite], [spot.mean for spot in finite]
        axis.errorbar(
            xs,
            ys,
            yerr=[below, above],
            color=colour,
            capsize=3,
            elinewidth=1.2,
            linewidth=1.5,
            label=name,
        )
        for spot in finite:
            shape = "^" if spot.open else marker
            axis.plot(
                spot.x,
                spot.mean,
                shape,
                color=colour,
                markersize=7 if spot.open else 5.5,
                markerfacecolor="none" if spot.open else colour,
            )


def _ticks(axis: Axes, placed: Sequence[float]) -> None:
    """The values themselves under the axis, as long as their numbers do not run into each other."""
    from matplotlib.ticker import NullLocator

    low, high = placed[0], placed[-1]
    wide = axis.get_xscale() == "log"
    axis.xaxis.set_minor_locator(NullLocator())
    if low == high:
        axis.set_xlim(low / 2, low * 2) if wide else axis.set_xlim(low - 0.5, low + 0.5)
        axis.set_xticks([low], [f"{low:g}"])
        return
    if wide:
        axis.set_xlim(low * (low / high) ** 0.05, high * (high / low) ** 0.05)
    else:
        axis.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))

    def place(x: float) -> float:
        return math.log(x / low) / math.log(high / low) if wide else (x - low) / (high - low)

    kept: list[float] = []
    for x in placed:
        if not kept or place(x) - place(kept[-1]) > 0.02 * (len(f"{x:g}") + 1):
            kept.append(x)
    axis.set_xticks(kept, [f"{x:g}" for x in kept])
