"""The pictures of a run: what was learned, what was spent, and how the rounds went.

Each function takes numbers and gives SVG text, or None where there is nothing to show: a run
that was just begun, a method that does not measure the thing. Nothing here reads a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from sordino.engine.records import Round, Row, at, known, number
from sordino.engine.runs import Run
from sordino.engine.vocabulary import Vocabulary, shared
from sordino.report.band import Band, band
from sordino.report.canvas import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    QUIET,
    SERIES,
    canvas,
    clean,
    figure,
    shortened,
    svg,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DECADES = 20.0  # from this ratio of highest to lowest on, an axis is logarithmic
LONG = 1e5  # from this count on, digits are grouped
MOST_ROUNDS = 10**7  # rounds that late and lost answers are counted in
SMOOTH = 10  # rounds that the estimate of signal to noise is averaged over
STRETCHES = 5  # rows that a run-time error is averaged over where it is drawn beside others


def points(rows: Sequence[Round], x: str, y: str) -> tuple[list[float], list[float]]:
    """The rows that have both numbers, finite, as two lists.

    >>> rows = [Round(round=1, loss=0.5), Round(round=2), Round(round=3, loss=math.inf)]
    >>> points(rows, "round", "loss")
    ([1.0], [0.5])
    """
    pairs = [(number(at(row, x)), number(at(row, y))) for row in rows]
    kept = [
        (a, b)
        for a, b in pairs
        if a is not None and b is not None and math.isfinite(a) and math.isfinite(b)
    ]
    return [a for a, _ in kept], [b for _, b in kept]


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on the x axis where something new begins, and what is written there."""

    at: float
    text: str = ""


def learning(run: Run, over: str, marks: Sequence[Mark] = ()) -> str | None:
    """Accuracy and epsilon over "round" or "steps", the budget as a line."""
    words = _axis(run.vocabulary, over)
    xs, accuracy = points(run.rounds, over, "accuracy")
    es, epsilon = points(run.rounds, over, "epsilon")
    if not run.private:
        es, epsilon = [], []  # a finite number would look like a promise
    if not xs and not es:
        return None
    with canvas(f"learning-{over}"):
        drawn, axes = figure(bool(xs) + bool(es), 0.9 + 1.6 * (bool(xs) + bool(es)))
        left = iter(axes)
        if xs:
            axis = next(left)
            axis.plot(
                xs,
                [100 * a for a in accuracy],
                color=BLUE,
                marker="o" if len(xs) < 60 else "",
                markersize=3.5,
            )
            vx, validation = points(run.rounds, over, "validation")
            if vx:
                axis.plot(
                    vx,
                    [100 * a for a in validation],
                    color=GREEN,
                    linestyle="--",
                    label="validation",
                )
                axis.lines[0].set_label("test")
                axis.legend(loc="lower right")
            axis.set_ylabel("accuracy (%)")
        if es:
            axis = next(left)
            axis.plot(es, epsilon, color=ORANGE)
            axis.axhline(run.budget, color=INK, linestyle="--", linewidth=1)
            axis.annotate(
                "budget",
                (0.01, run.budget),
                xycoords=("axes fraction", "data"),
                xytext=(0, -3),
                textcoords="offset points",
                va="top",
            )
            axis.set_ylim(0, 1.08 * max(run.budget, *epsilon))
            axis.set_ylabel("epsilon spent")
        from_zero(axes[-1], max([*xs, *es]), words)
        draw_marks(axes, marks)
        shown = " and ".join(["accuracy"] * bool(xs) + ["epsilon"] * bool(es))
        return svg(drawn, f"{shown.capitalize()} over {words}")


def draw_marks(axes: Sequence[Axes], marks: Sequence[Mark]) -> None:
    """A line through all panels at each mark but at 0, its text above the first where there is
    room. Limits must be set.
    """
    low, high = axes[0].get_xlim()
    free = low
    for mark in marks:
        for axis in axes if mark.at > low else ():
            axis.axvline(mark.at, color=QUIET, linestyle=":", linewidth=1.1)
        if mark.text and mark.at >= free:
            axes[0].annotate(
                mark.text,
                (mark.at, 1),
                xycoords=("data", "axes fraction"),
                xytext=(1, 1),
                textcoords="offset points",
                size=8.5,
            )
            free = mark.at + (high - low) * 0.018 * (len(mark.text) + 1)


def _axis(words: Vocabulary, over: str) -> str:
    return {"round": words.round, "steps": words.steps_of_one}[over]


def pace(run: Run) -> str | None:
    """Local steps per round, with the even pace R_c / R_s."""
    xs, tau = points(run.rounds, "round", "tau")
    if not xs:
        return None
    steps, rounds = number(run.about.facts.R_c), number(run.about.R_s)
    with canvas("pace"):
        drawn, (axis,) = figure(1, 2.2)
        axis.step([xs[0] - 1, *xs], [tau[0], *tau], where="pre", color=BLUE)
        top = max(tau)
        if steps and rounds and math.isfinite(steps / rounds):
            even = steps / rounds
            top = max(top, even)
            axis.axhline(
                even, color=INK, linestyle="--", linewidth=1, label=f"pace R_c / R_s = {even:.3g}"
            )
            axis.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
        axis.set_ylim(0, 1.15 * top)
        _whole_numbers(axis)
        axis.set_ylabel("tau")
        from_zero(axis, max(xs), "round")
        return svg(drawn, "Local steps per round")


def share_clipped(run: Run) -> str | None:
    """Fraction of the examples whose gradient was cut to the clipping norm."""
    xs, ys = points(run.rounds, "round", "clipped")
    return _line(
        run,
        xs,
        [100 * y for y in ys],
        "clipped (%)",
        PURPLE,
        "Clipped gradients per round",
        limit=100.0,
    )


def signal(run: Run) -> str | None:
    """Estimated signal to noise of a step: squares averaged over the last rounds, since one round
    says little.
    """
    xs, ys = points(run.rounds, "round", "snr")
    powers = smoothed([y * abs(y) for y in ys], SMOOTH)
    return _line(
        run,
        xs,
        [max(power, 0.0) ** 0.5 for power in powers],
        "signal / noise",
        GREEN,
        "Signal to noise",
    )


def absences(run: Run) -> str | None:
    """Late and lost answers per round, stacked."""
    counts = {kind: _per_round(run, kind) for kind in ("late", "lost")}
    missing = {
        int(x): int(y) for x, y in zip(*points(run.rounds, "round", "missing"), strict=True) if y
    }
    if not any(counts.values()) and not missing:
        return None
    last = int(max([*run.values("round"), *missing, *counts["late"], *counts["lost"]]))
    xs = list(range(1, last + 1))
    edges = [x - 0.5 for x in range(1, last + 2)]
    with canvas("absences"):
        drawn, (axis,) = figure(1, 2.2)
        below = [0] * last
        for kind, colour in (("late", BLUE), ("lost", ORANGE)):
            above = [old + counts[kind].get(x, 0) for x, old in zip(xs, below, strict=True)]
            # one path, however many rounds
            axis.stairs(above, edges, baseline=below, fill=True, color=colour, label=kind)
            below = above
        if missing:
            axis.step(
                [0, *xs],
                [missing.get(1, 0), *(missing.get(x, 0) for x in xs)],
                where="mid",
                color=INK,
                linewidth=1,
                label="missing when the round closed",
            )
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0)
        _whole_numbers(axis)
        axis.set_ylabel("answers")
        from_zero(axis, last, "round")
        return svg(drawn, "Late and lost answers per round")


def clock(run: Run) -> str | None:
    """Virtual time at which rounds closed; None if every round took equally long."""
    xs, ys = points(run.rounds, "round", "time")
    lasted = [
        (b - a) / max(y - x, 1.0)
        for (x, a), (y, b) in pairwise([(0.0, 0.0), *zip(xs, ys, strict=True)])
    ]
    if not lasted or max(lasted) - min(lasted) < 1e-9 * max(1.0, max(lasted)):
        return None
    words = run.vocabulary
    return _line(
        run,
        xs,
        ys,
        "virtual seconds",
        BLUE,
        f"Virtual time at which each {words.round} was {words.closed}",
    )


def compared(runs: Sequence[Run], labels: Sequence[str], over: str) -> str | None:
    """Accuracy and epsilon of several runs in one picture."""
    return together([[run] for run in runs], labels, over)


def together(
    groups: Sequence[Sequence[Run]], labels: Sequence[str], over: str, *, claimed: bool = False
) -> str | None:
    """Accuracy (on streams: run-time error) of several groups of runs: means, with bands from
    lowest to highest.

    The axis is "round", "steps" or "epsilon". Below it the epsilon spent, unless that is the axis
    or it never changes. With ``claimed`` the axis is what papers claim. Over epsilon, a group whose
    epsilon is infinite in every run is a level, if there is a curve to hold against it.
    """
    words = shared(run.vocabulary for runs in groups for run in runs)
    label = (
        f"epsilon {'claimed' if claimed else 'spent'}" if over == "epsilon" else _axis(words, over)
    )
    key, name_of_y = (
        words.accuracy.curve if over != "epsilon" else ("accuracy", f"{words.accuracy.told} (%)")
    )
    curves = [band([_measured(run, over, claimed, key) for run in runs]) for runs in groups]
    spent = over != "epsilon" and rising(run for runs in groups for run in runs)
    prices = [
        band(
            [points(run.rounds, over, "epsilon") for run in runs]
            if spent and all(run.private for run in runs)
            else []
        )
        for runs in groups
    ]
    if not any(curve.xs for curve in curves):
        return None
    last = max(x for each in (*curves, *prices) for x in each.xs)
    levels = [band([])] * len(curves)
    if over == "epsilon":
        levels = [
            band([]) if curve.xs else _level(runs, (0.0, 1.02 * last or 1.0))
            for curve, runs in zip(curves, groups, strict=True)
        ]
        labels = [
            f"{name} (ε = ∞)" if level.xs else name
            for name, level in zip(labels, levels, strict=True)
        ]
    wordy = any(len(label) > 34 for label in labels)
    with canvas(f"compared-{over}"):
        lines = len(labels) if wordy else -(-len(labels) // 2)
        drawn, axes = figure(1 + spent, 0.6 + (1.8 if spent else 2.6) * (1 + spent) + 0.19 * lines)
        for i, name in enumerate(labels):
            colour, dash = SERIES[i % len(SERIES)], ("-", "--", ":", "-.")[i // len(SERIES) % 4]
            shown = curves[i] if curves[i].xs else levels[i]
            _band(
                axes[0],
                shown,
                100,
                colour,
                dash,
                shortened(clean(name, 1000), 70 if wordy else 34) if shown.xs else None,
            )
            axes[0].plot(
                curves[i].xs[-1:],
                [100 * a for a in curves[i].mean[-1:]],
                color=colour,
                marker="o",
                markersize=5,
            )
            if spent:
                _band(axes[1], prices[i], 1, colour, dash)
        axes[0].set_ylabel(name_of_y)
        if spent:
            for budget in sorted({run.budget for runs in groups for run in runs if run.private}):
                axes[1].axhline(budget, color=INK, linestyle="--", linewidth=1)
            axes[1].set_ylim(bottom=0)
            axes[1].set_ylabel("epsilon spent")
        drawn.legend(loc="outside lower left", ncols=1 if wordy else 2)
        from_zero(axes[-1], last, label)
        if over == "epsilon":
            axes[-1].set_xlim(0, 1.02 * last or 1.0)
        drawn_of = name_of_y.removesuffix(" (%)").capitalize()
        what = (
            f"{drawn_of} over {label}"
            if over == "epsilon"
            else f"{drawn_of} and epsilon of {len(groups)} runs over {label}"
        )
        return svg(drawn, what)


def rising(runs: Iterable[Run]) -> bool:
    """Whether epsilon is worth a curve: some run promises something, and spends it as it goes
    on.
    """
    return any(len(set(run.values("epsilon"))) > 1 for run in runs if run.private)


def _measured(run: Run, over: str, claimed: bool, key: str) -> tuple[list[float], list[float]]:
    """The curve of a run; over epsilon none where nothing is promised, and one point where only the
    end is told or claimed.
    """
    if over != "epsilon":
        xs, ys = points(run.rounds, over, key)
        return xs, smoothed(ys, STRETCHES) if run.vocabulary.accuracy.streamed else ys
    if run.vocabulary.accuracy.streamed:
        return _point(run.spent, run.accuracy) if run.private else ([], [])
    if claimed and run.claimed != run.spent:
        told = points(run.rounds, "claimed_epsilon", "accuracy")
        return told if told[0] else _point(run.claimed, run.accuracy)
    return points(run.rounds, "epsilon", "accuracy") if run.private else ([], [])


def _point(x: float | None, y: float | None) -> tuple[list[float], list[float]]:
    """One point, if both its numbers are known and finite."""
    return points([Round(epsilon=x, accuracy=y)], "epsilon", "accuracy")


def smoothed(values: Sequence[float], last: int) -> list[float]:
    """Each value's mean with those before it, so many at most.

    >>> smoothed([1.0, 0.0, 0.5], 2)
    [1.0, 0.5, 0.25]
    """
    parts = (values[max(0, i - last + 1) : i + 1] for i in range(len(values)))
    return [sum(part) / len(part) for part in parts]


def _level(runs: Sequence[Run], ends: tuple[float, float]) -> Band:
    """The final accuracy of runs whose epsilon is infinite, from one end of the axis to the other;
    else nothing.
    """
    final = [run.accuracy for run in runs if run.accuracy is not None and run.spent == math.inf]
    return (
        band([([*ends], [accuracy, accuracy]) for accuracy in final])
        if len(final) == len(runs)
        else band([])
    )


def _band(
    axis: Axes, found: Band, scale: float, colour: str, dash: str, label: str | None = None
) -> None:
    axis.plot(found.xs, [scale * y for y in found.mean], color=colour, linestyle=dash, label=label)
    if found.low != found.high:
        axis.fill_between(
            found.xs,
            [scale * y for y in found.low],
            [scale * y for y in found.high],
            color=colour,
            alpha=0.18,
            linewidth=0,
        )


def _line(
    run: Run,
    xs: list[float],
    ys: list[float],
    label: str,
    colour: str,
    title: str,
    limit: float | None = None,
) -> str | None:
    if not xs:
        return None
    with canvas(title):
        drawn, (axis,) = figure(1, 2.2)
        axis.plot(xs, ys, color=colour, linewidth=1.3, marker="" if len(xs) > 1 else "o")
        axis.set_ylim(0, limit if limit is not None else 1.08 * max(*ys, 1e-12))
        axis.set_ylabel(label)
        from_zero(axis, max(xs), run.vocabulary.round)
        return svg(drawn, title)


def from_zero(axis: Axes, last: float, label: str) -> None:
    """An x axis of counts; long ones in groups of three digits."""
    axis.set_xlim(0, 1.02 * max(last, 1.0))
    axis.set_xlabel(label)
    if last >= LONG:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:,.0f}".replace(",", "\u202f"))
        )


def _whole_numbers(axis: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.yaxis.set_major_locator(MaxNLocator(integer=True))


def _per_round(run: Run, kind: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for row in run.others:
        if (
            isinstance(row, Row)
            and row.kind == kind
            and (place := known(row.round)) is not None
            and 1 <= place < MOST_ROUNDS
        ):
            found[place] = found.get(place, 0) + 1
    return found


def logarithmic(axis: Axes, low: float, high: float, which: str = "y") -> None:
    """A logarithmic axis from ``low`` to ``high``, its numbers plain ones, as many as fit."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    (axis.set_yscale if which == "y" else axis.set_xscale)("log")
    (axis.set_ylim if which == "y" else axis.set_xlim)(low, high)
    ruler = axis.yaxis if which == "y" else axis.xaxis
    ruler.set_major_locator(FixedLocator(ticks(low, high)))
    ruler.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
    ruler.set_minor_locator(NullLocator())


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers for a logarithmic axis.

    >>> ticks(0.02, 3.0), ticks(900, 2100), ticks(1e-6, 1e6)
    ([0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0], [1000.0, 1200.0, 1500.0, 2000.0], [1e-06, 0.0001, 0.01,
    1.0, 100.0, 10000.0, 1000000.0])
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for parts in (
        (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0),
        (1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
        (1.0, 2.0, 5.0),
        (1.0, 3.0),
        (1.0,),
    ):
        found = [float(f"{part:g}e{decade}") for decade in decades for part in parts]
        found = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]
