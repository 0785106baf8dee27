"""The pictures of a run: what was learned, what was spent, and how the rounds went.

Each function takes numbers and gives SVG text, or None where there is nothing to show: a run
that was just begun, a method that does not measure the thing. Nothing here reads a file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from sordino.core.records import Row, known, number
from sordino.core.runs import Run
from sordino.report.axes import Mark, draw_marks, from_zero, label_of, of_percent, whole_numbers
from sordino.report.band import points, smoothed
from sordino.report.canvas import BLUE, GREEN, INK, ORANGE, PURPLE, canvas, figure, svg

MOST_ROUNDS = 10**7  # rounds that late and lost answers are counted in
SMOOTH = 10  # rounds that the estimate of signal to noise is averaged over


def learning(run: Run, over: str, marks: Sequence[Mark] = ()) -> str | None:
    """Accuracy and epsilon over "round" or "steps", the budget as a line."""
    words = label_of(run.vocabulary, over)
    measure = run.vocabulary.accuracy
    factor = 100 if measure.percent else 1
    xs, accuracy = points(run.rounds, over, measure.key)
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
                [factor * a for a in accuracy],
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
            axis.set_ylabel(f"{measure.told} (%)" if measure.percent else measure.told)
            if measure.percent:
                of_percent(axis)
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
        shown = " and ".join([measure.told] * bool(xs) + ["epsilon"] * bool(es))
        return svg(drawn, f"{shown[:1].upper()}{shown[1:]} over {words}")


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
        whole_numbers(axis)
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
    """Estimated signal to noise of a step: squares averaged over the last rounds."""
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
        whole_numbers(axis)
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
