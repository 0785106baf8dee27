"""The pictures of a run: what was learned, what was spent, and how the rounds went.

Each function takes numbers and gives SVG text, or None where there is nothing to show: a run
that was just begun, a method that does not measure the thing. Nothing here reads a file.

>>> picture = partition_figure([[3, 0], [1, 2]], ["cat", "dog"])
>>> picture.startswith("<svg") and "cat" in picture
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sordino.report.band import Band, band
from sordino.report.canvas import BLUE, GREEN, INK, ORANGE, PURPLE, QUIET, SERIES, canvas, clean, figure, shortened, svg
from sordino.report.load import Row, Run, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BUBBLES = 30
SMOOTH = 10  # rounds that the estimate of signal to noise is averaged over
MOST_ROWS = 60
SMALLEST, LARGEST = 2.0, 330.0  # areas of bubbles, in square points


def points(rows: Sequence[Row], x: str, y: str) -> tuple[list[float], list[float]]:
    """The rows that have both numbers, finite, as two lists.

    >>> points([{"round": 1, "loss": 0.5}, {"round": 2}, {"round": 3, "loss": "inf"}], "round", "loss")
    ([1.0], [0.5])
    """
    pairs = [(number(row.get(x)), number(row.get(y))) for row in rows]
    kept = [(a, b) for a, b in pairs if a is not None and b is not None and math.isfinite(a) and math.isfinite(b)]
    return [a for a, _ in kept], [b for _, b in kept]


def learning(run: Run, over: str) -> str | None:
    """Accuracy and epsilon over "round" or "steps", the budget as a line."""
    words = {"round": "round", "steps": "local steps of one client"}[over]
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
            axis.plot(xs, [100 * a for a in accuracy], color=BLUE, marker="o" if len(xs) < 60 else "", markersize=3.5)
            vx, validation = points(run.rounds, over, "validation")
            if vx:
                axis.plot(vx, [100 * a for a in validation], color=GREEN, linestyle="--", label="validation")
                axis.lines[0].set_label("test")
                axis.legend(loc="lower right")
            axis.set_ylabel("accuracy (%)")
        if es:
            axis = next(left)
            axis.plot(es, epsilon, color=ORANGE)
            axis.axhline(run.budget, color=INK, linestyle="--", linewidth=1)
            axis.annotate(
                "budget", (0.01, run.budget), xycoords=("axes fraction", "data"), xytext=(0, -3), textcoords="offset points", va="top"
            )
            axis.set_ylim(0, 1.08 * max(run.budget, *epsilon))
            axis.set_ylabel("epsilon spent")
        _from_zero(axes[-1], max([*xs, *es]), words)
        return svg(drawn, f"Accuracy and epsilon over {words}")


def pace(run: Run) -> str | None:
    """Local steps per round, with the even pace R_c / R_s."""
    xs, tau = points(run.rounds, "round", "tau")
    if not xs:
        return None
    steps, rounds = number(run.about.get("R_c")), number(run.about.get("R_s"))
    with canvas("pace"):
        drawn, (axis,) = figure(1, 2.2)
        axis.step([xs[0] - 1, *xs], [tau[0], *tau], where="pre", color=BLUE)
        top = max(tau)
        if steps and rounds and math.isfinite(steps / rounds):
            even = steps / rounds
            top = max(top, even)
            axis.axhline(even, color=INK, linestyle="--", linewidth=1, label=f"pace R_c / R_s = {even:.3g}")
            axis.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)
        axis.set_ylim(0, 1.15 * top)
        _whole_numbers(axis)
        axis.set_ylabel("tau")
        _from_zero(axis, max(xs), "round")
        return svg(drawn, "Local steps per round")


def share_clipped(run: Run) -> str | None:
    """Fraction of the examples whose gradient was cut to the clipping norm."""
    xs, ys = points(run.rounds, "round", "clipped")
    return _line(xs, [100 * y for y in ys], "clipped (%)", PURPLE, "Clipped gradients per round", limit=100.0)


def signal(run: Run) -> str | None:
    """Estimated signal to noise of a step: squares averaged over the last rounds, since one round says little."""
    xs, ys = points(run.rounds, "round", "snr")
    powers = [y * abs(y) for y in ys]
    recent = (powers[max(0, i - SMOOTH + 1) : i + 1] for i in range(len(powers)))
    return _line(xs, [max(sum(part) / len(part), 0.0) ** 0.5 for part in recent], "signal / noise", GREEN, "Signal to noise")


def absences(run: Run) -> str | None:
    """Late and lost answers per round, stacked."""
    counts = {kind: _per_round(run, kind) for kind in ("late", "lost")}
    missing = {int(x): int(y) for x, y in zip(*points(run.rounds, "round", "missing"), strict=True) if y}
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
            axis.stairs(above, edges, baseline=below, fill=True, color=colour, label=kind)  # one path, however many rounds
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
        _from_zero(axis, last, "round")
        return svg(drawn, "Late and lost answers per round")


def clock(run: Run) -> str | None:
    """Virtual time at which rounds closed; None if every round took equally long."""
    xs, ys = points(run.rounds, "round", "time")
    lasted = [b - a for a, b in zip([0.0, *ys], ys, strict=False)]
    if not lasted or max(lasted) - min(lasted) < 1e-9 * max(1.0, max(lasted)):
        return None
    return _line(xs, ys, "virtual seconds", BLUE, "Virtual time at which each round closed")


def partition_figure(counts: Sequence[Sequence[int]], classes: Sequence[str]) -> str:
    """How many examples of each class (column) each client (row) has, as SVG text."""
    names = [clean(str(name), 24) for name in classes] or [""]
    rows = [[*row, *[0] * len(names)][: len(names)] for row in counts]
    with canvas("partition"):
        many = len(rows) > MOST_BUBBLES
        height = 1.6 + (4.6 if many else 0.3 * max(len(rows), 1))
        drawn, (axis,) = figure(1, height, width=7.6)
        (_heat if many else _bubbles)(drawn, axis, rows)
        if len(names) <= 40:
            turned = sum(len(name) for name in names) > 60
            axis.set_xticks(
                range(len(names)), names, rotation=35 if turned else 0, ha="right" if turned else "center", rotation_mode="anchor"
            )
        axis.set_xlim(-0.6, len(names) - 0.4)
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set_ylabel("clients, ordered by the label they hold most of" if many else "client")
        return svg(drawn, "Examples of each label at each client")


def aggregated(rows: Sequence[Sequence[int]], most: int) -> list[list[float]]:
    """Clients ordered by the label they hold most of, then averaged in at most ``most`` groups of neighbours.

    >>> aggregated([[0, 8], [9, 1], [0, 4], [7, 1]], 2)
    [[8.0, 1.0], [0.0, 6.0]]
    """

    def place(row: Sequence[int]) -> tuple[bool, int, int]:
        top = max(row, default=0)
        return top == 0, (list(row).index(top) if row else 0), -top

    ordered = sorted(rows, key=place)
    groups = min(most, len(ordered))
    edges = [i * len(ordered) // groups for i in range(groups + 1)] if groups else [0]
    parts = [ordered[a:b] for a, b in pairwise(edges)]
    return [[sum(column) / len(part) for column in zip(*part, strict=True)] for part in parts]


def compared(runs: Sequence[Run], labels: Sequence[str], over: str) -> str | None:
    """Accuracy and epsilon of several runs in one picture."""
    return together([[run] for run in runs], labels, over)


def together(groups: Sequence[Sequence[Run]], labels: Sequence[str], over: str, *, claimed: bool = False) -> str | None:
    """Accuracy of several groups of runs over "round", "steps" or "epsilon": means, with bands from lowest to highest.

    Below it the epsilon spent, unless that is the axis. With ``claimed`` the axis is what papers claim.
    """
    words = {"round": "round", "steps": "local steps of one client", "epsilon": "epsilon claimed" if claimed else "epsilon spent"}[over]
    curves = [band([_accuracy(run, over, claimed) for run in runs]) for runs in groups]
    prices = [
        band([points(run.rounds, over, "epsilon") for run in runs] if over != "epsilon" and all(run.private for run in runs) else [])
        for runs in groups
    ]
    if not any(curve.xs for curve in curves):
        return None
    spent = any(price.xs for price in prices)
    wordy = any(len(label) > 34 for label in labels)
    with canvas(f"compared-{over}"):
        lines = len(labels) if wordy else -(-len(labels) // 2)
        drawn, axes = figure(1 + spent, 0.6 + (1.8 if spent or over != "epsilon" else 2.6) * (1 + spent) + 0.19 * lines)
        for i, label in enumerate(labels):
            colour, dash = SERIES[i % len(SERIES)], ("-", "--", ":", "-.")[i // len(SERIES) % 4]
            _band(axes[0], curves[i], 100, colour, dash, shortened(clean(label, 1000), 70 if wordy else 34) if curves[i].xs else None)
            axes[0].plot(curves[i].xs[-1:], [100 * a for a in curves[i].mean[-1:]], color=colour, marker="o", markersize=5)
            if spent:
                _band(axes[1], prices[i], 1, colour, dash)
        axes[0].set_ylabel("accuracy (%)")
        if spent:
            for budget in sorted({run.budget for runs in groups for run in runs if run.private}):
                axes[1].axhline(budget, color=INK, linestyle="--", linewidth=1)
            axes[1].set_ylim(bottom=0)
            axes[1].set_ylabel("epsilon spent")
        drawn.legend(loc="outside lower left", ncols=1 if wordy else 2)
        last = max(x for each in (*curves, *prices) for x in each.xs)
        _from_zero(axes[-1], last, words)
        if over == "epsilon":
            axes[-1].set_xlim(0, 1.02 * last or 1.0)
        what = f"Accuracy over {words}" if over == "epsilon" else f"Accuracy and epsilon of {len(groups)} runs over {words}"
        return svg(drawn, what)


def _accuracy(run: Run, over: str, claimed: bool) -> tuple[list[float], list[float]]:
    """The curve of a run; over epsilon none where nothing is promised, and one point where only the end is claimed."""
    if over != "epsilon":
        return points(run.rounds, over, "accuracy")
    if claimed and run.claimed != run.spent:
        told = points(run.rounds, "claimed_epsilon", "accuracy")
        return told if told[0] else points([{"x": run.claimed, "y": run.accuracy}], "x", "y")
    return points(run.rounds, "epsilon", "accuracy") if run.private else ([], [])


def _band(axis: Axes, found: Band, scale: float, colour: str, dash: str, label: str | None = None) -> None:
    axis.plot(found.xs, [scale * y for y in found.mean], color=colour, linestyle=dash, label=label)
    if found.low != found.high:
        axis.fill_between(found.xs, [scale * y for y in found.low], [scale * y for y in found.high], color=colour, alpha=0.18, linewidth=0)


def _line(xs: list[float], ys: list[float], label: str, colour: str, title: str, limit: float | None = None) -> str | None:
    if not xs:
        return None
    with canvas(title):
        drawn, (axis,) = figure(1, 2.2)
        axis.plot(xs, ys, color=colour, linewidth=1.3, marker="" if len(xs) > 1 else "o")
        axis.set_ylim(0, limit if limit is not None else 1.08 * max(*ys, 1e-12))
        axis.set_ylabel(label)
        _from_zero(axis, max(xs), "round")
        return svg(drawn, title)


def _from_zero(axis: Axes, last: float, label: str) -> None:
    axis.set_xlim(0, 1.02 * max(last, 1.0))
    axis.set_xlabel(label)


def _whole_numbers(axis: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.yaxis.set_major_locator(MaxNLocator(integer=True))


def _per_round(run: Run, kind: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for row in run.others:
        at = number(row.get("round"))
        if row.get("kind") == kind and at is not None and 1 <= at < 1e7:
            found[int(at)] = found.get(int(at), 0) + 1
    return found


def _bubbles(drawn: Any, axis: Axes, rows: list[list[int]]) -> None:
    """Area, not width, is proportional to the count: that is how the eye reads a bubble."""
    most = max((n for row in rows for n in row), default=0) or 1
    spots = [(j, i, n) for i, row in enumerate(rows) for j, n in enumerate(row) if n > 0]
    sizes = [max(LARGEST * n / most, SMALLEST) for _, _, n in spots]
    axis.scatter([j for j, _, _ in spots], [i for _, i, _ in spots], s=sizes, color=BLUE, alpha=0.85, linewidths=0)
    axis.set_yticks(range(len(rows)), [str(i) for i in range(len(rows))])
    for share in (1.0, 0.1, 0.01):
        shown = max(round(most * share), 1)
        axis.scatter([], [], s=max(LARGEST * shown / most, SMALLEST), color=QUIET, linewidths=0, label=f"{shown}")
    axis.legend(title="examples", loc="center left", bbox_to_anchor=(1.02, 0.5), labelspacing=1.2)


def _heat(drawn: Any, axis: Axes, rows: list[list[int]]) -> None:
    """Darker is more, on a square-root scale, so that few examples are seen as well; none is left empty.

    Clients are put in order, and neighbours averaged until at most MOST_ROWS rows are left: thinner ones no eye tells apart.
    """
    import numpy as np
    from matplotlib.colors import PowerNorm

    bands = aggregated(rows, MOST_ROWS)
    most = max((n for row in bands for n in row), default=0) or 1
    axis.grid(False)
    axis.set_facecolor("#fbfbf8")  # on a dark page the darkest cells would vanish
    seen = np.ma.masked_equal(np.array(bands, np.float64, ndmin=2), 0.0)
    extent = (-0.5, len(rows[0]) - 0.5, len(rows) - 0.5, -0.5)
    shown = axis.imshow(seen, aspect="auto", extent=extent, cmap="cividis_r", norm=PowerNorm(0.5, 0, most), interpolation="nearest")
    bar = drawn.colorbar(shown, ax=axis, label="examples" if len(bands) == len(rows) else "examples, mean of neighbours", pad=0.02)
    bar.outline.set_visible(False)
