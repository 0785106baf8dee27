"""The pictures of a run in which gradients are applied as they arrive.

Like :mod:`sordino.report.figures`: numbers in, SVG text out, None where there is nothing to show.
The x axis counts updates; dotted lines are borders of stages, numbered above the picture.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sordino.clients.records import Stage, horizontal
from sordino.clients.report import client_budgets
from sordino.core.records import Row, Stale, known, number
from sordino.core.runs import Run
from sordino.regimes.asynchronous.records import AsynchronousRound
from sordino.report.axes import DECADES, Mark, draw_marks, logarithmic
from sordino.report.band import points
from sordino.report.canvas import BLUE, GREEN, INK, ORANGE, QUIET, canvas, figure, svg
from sordino.report.figures import learning

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS = 30
MOST_BINS = 60
MOST_STEPS = 400
MOST_COUNTED = 10**7  # staleness and counts beyond these were never measured
MOST_UPDATES = 10**9


def stages(run: Run) -> list[Stage]:
    """The stages that the run has come to, as planned."""
    planned = known(horizontal(run).stages) or ()
    return [
        stage
        for stage in planned
        if (start := known(stage.start)) is not None and start < max(run.number, 1)
    ]


def numbered(stage: Stage) -> str:
    """A stage's number."""
    return "?" if (found := known(stage.number)) is None else str(found)


def marks(run: Run) -> list[Mark]:
    """Where stages begin, numbered; none where there is only one."""
    begun = stages(run)
    if len(begun) < 2:
        return []
    return [Mark(float(known(stage.start) or 0), numbered(stage)) for stage in begun]


def progress(run: Run) -> str | None:
    """Accuracy and epsilon over updates."""
    return learning(run, "round", marks(run))


def norms(run: Run) -> str | None:
    """Length of the gradients, noise taken off, against the clipping bound."""
    xs, ys = points(run.rounds, "round", "norm")
    if not xs:
        return None
    seen = [(x, y) for x, y in zip(xs, ys, strict=True) if y > 0]
    limits = bounds(run)
    heights = [y for _, y in seen] + [clip for _, clip in limits]
    with canvas("norms"):
        drawn, (axis,) = figure(1, 2.7)
        spread = bool(heights) and max(heights) > DECADES * min(heights)
        low, high = (
            (min(heights) / 2, 1.6 * max(heights))
            if spread
            else (0.0, 1.12 * max(heights, default=1.0))
        )
        axis.set_ylim(low, high)
        if spread:
            logarithmic(axis, low, high)
        unseen = [x for x, y in zip(xs, ys, strict=True) if y <= 0]
        axis.plot(
            *_gapped(xs, ys),
            color=BLUE,
            linewidth=1.4,
            marker="o",
            markersize=2.6,
            label="without noise",
        )
        if limits:
            corners = [*limits, (float(run.number), limits[-1][1])]
            axis.step(
                *zip(*corners, strict=True),
                where="post",
                color=ORANGE,
                linestyle="--",
                linewidth=1.5,
                label="clipping bound G_s",
            )
        _end(axis, run)
        if unseen:
            axis.plot(
                unseen,
                [low] * len(unseen),
                "v",
                color=QUIET,
                markersize=4.5,
                clip_on=False,
                label="nothing above the noise",
            )
        axis.set_ylabel("norm")
        if limits or unseen:
            drawn.legend(loc="outside lower left", ncols=3, columnspacing=1.0, handlelength=1.6)
        draw_marks([axis], marks(run))
        return svg(drawn, f"Gradient norm{' and clipping bound' if limits else ''} over updates")


def staleness(run: Run) -> str | None:
    """How many gradients were so many updates behind."""
    applied, refused = histogram(run), too_stale(run)
    if not applied and not refused:
        return None
    bound = number(horizontal(run).staleness)
    longest = max([*applied, *refused])
    largest = shown_to(applied + refused, bound)
    width = max(math.ceil((largest + 1) / MOST_BINS), 1)
    edges = [i * width - 0.5 for i in range(largest // width + 2)]
    with canvas("staleness"):
        drawn, (axis,) = figure(1, 2.7)
        for counts, colour, name in (
            (applied, BLUE, "applied"),
            (refused, ORANGE, "too stale, not applied"),
        ):
            if counts:
                axis.stairs(
                    _binned(counts, width, len(edges) - 1),
                    edges,
                    fill=True,
                    color=colour,
                    alpha=0.9,
                    label=name,
                )
        axis.set_xlim(-0.5 - 0.02 * largest, 1.06 * max(largest, 1) + 0.5)
        if applied:
            mean = sum(tau * n for tau, n in applied.items()) / applied.total()
            axis.axvline(mean, color=INK, linewidth=1.4, label=f"mean {mean:.3g}")
        if bound is not None and math.isfinite(bound):
            within = bound <= 1.6 * max(largest, 1)
            if within:
                axis.set_xlim(right=1.06 * max(largest, bound, 1) + 0.5)
            line = axis.axvline(
                bound + 0.5, color=INK, linestyle="--", linewidth=1.2, label=f"tau_max {bound:.0f}"
            )
            if not within:
                line.set_data([], [])
                line.set_label(f"tau_max {bound:.0f}, to the right of this")
        if largest < 20:
            axis.set_xticks(range(largest + 1))
        _whole(axis)
        axis.set_xlabel("staleness tau, in updates")
        axis.set_ylabel("gradients")
        if longest > largest:
            beyond = sum(n for tau, n in (applied + refused).items() if tau > largest)
            axis.annotate(
                f"{beyond} more, up to {longest} →",
                (1, 0.12),
                xycoords="axes fraction",
                ha="right",
                size=9,
            )
        drawn.legend(loc="outside lower left", ncols=4, columnspacing=1.2, handlelength=1.6)
        return svg(drawn, "How stale gradients were")


def histogram(run: Run) -> Counter[int]:
    """Applied gradients by staleness, over the whole run."""
    found: Counter[int] = Counter()
    for row in run.rounds:
        for tau, count in known(row.histogram) or () if isinstance(row, AsynchronousRound) else ():
            if max(tau, count) < MOST_COUNTED:
                found[tau] += count
    return found


def shown_to(counts: Counter[int], bound: float | None) -> int:
    """Where an axis ends: at the largest staleness, or short of few that lie far beyond.

    >>> few = Counter({4: 995, 900: 5})
    >>> shown_to(Counter({4: 99, 9: 1}), 5), shown_to(few, 5), shown_to(few, 20)
    (9, 8, 20)
    """
    largest, left = max(counts), 0.01 * counts.total()
    usual = largest
    while (left := left - counts[usual]) >= 0:
        usual -= 1
    if largest <= 3 * max(usual, 1):
        return largest
    beyond = 0 if bound is None or math.isinf(bound) else int(bound)
    return max(2 * usual, min(beyond, largest), 1)


def too_stale(run: Run) -> Counter[int]:
    """Gradients that were not applied, by staleness."""
    taus = (known(row.staleness) for row in run.others if isinstance(row, Stale))
    return Counter(tau for tau in taus if tau is not None and tau < MOST_COUNTED)


def presence(run: Run) -> str | None:
    """Edges that were away for a while or left for good; None if all stayed to the end."""
    count = len(run.clients)
    lost, joined, left = (sorted(_places(run, kind)) for kind in ("lost", "joined", "left"))
    if not lost and (not left or left[0] > 0.98 * run.number):
        return None
    last = max(run.number, *lost[-1:], *left[-1:], 1)
    stride = max(math.ceil(last / MOST_STEPS), 1)
    xs = [*range(0, last, stride), last]
    gone = [bisect_right(left, x) for x in xs]
    away = [max(bisect_right(lost, x) - bisect_right(joined, x), 0) for x in xs]
    with canvas("presence"):
        drawn, (axis,) = figure(1, 2.4)
        steps = [*xs, last + stride]
        both = [a + g for a, g in zip(away, gone, strict=True)]
        if left:
            axis.stairs(gone, steps, fill=True, color=QUIET, label="left for good: budget spent")
        if lost:
            axis.stairs(
                both, steps, baseline=gone, fill=True, color=ORANGE, label="away for a while"
            )
        top = max([*both, 1])
        if count and top > 0.6 * count:
            top = max(top, count)
            axis.axhline(count, color=INK, linestyle="--", linewidth=1, label=f"all {count}")
        axis.set_ylim(0, 1.1 * top)
        _whole(axis)
        axis.set_ylabel(f"edges, of {count}")
        _end(axis, run)
        drawn.legend(loc="outside lower left", ncols=3, columnspacing=1.2, handlelength=1.6)
        draw_marks([axis], marks(run))
        return svg(drawn, "Edges that were away or had left, over updates")


def spending(run: Run) -> str | None:
    """Epsilon of each edge against its budget; None without a result, and for one edge."""
    stated = known(run.result.spent) or ()
    spent = [
        value for each in stated if (value := number(each)) is not None and math.isfinite(value)
    ]
    if not run.private or len(spent) < 2 or len(spent) != len(stated):
        return None
    budgets = client_budgets(run, len(spent))
    with canvas("spending"):
        drawn, (axis,) = figure(1, 2.7)
        few = len(spent) <= MOST_BARS
        pairs = list(zip(budgets, spent, strict=True))
        if not few:
            pairs.sort(reverse=True)
        if few:
            axis.bar(
                range(len(pairs)), [used for _, used in pairs], width=0.7, color=BLUE, label="spent"
            )
            axis.hlines(
                [own for own, _ in pairs],
                [i - 0.42 for i in range(len(pairs))],
                [i + 0.42 for i in range(len(pairs))],
                color=INK,
            )
            axis.plot([], [], color=INK, label="its budget")
            axis.set_xticks(
                range(len(pairs)),
                [str(i) for i in range(len(pairs))],
                fontsize=9 if len(pairs) < 21 else 7.5,
            )
            axis.set_xlabel("edge")
            axis.grid(False, axis="x")
        else:
            edges = [i - 0.5 for i in range(len(pairs) + 1)]
            axis.stairs(
                [used for _, used in pairs], edges, fill=True, color=BLUE, alpha=0.85, label="spent"
            )
            axis.stairs(
                [own for own, _ in pairs],
                edges,
                baseline=None,
                color=INK,
                linewidth=1.2,
                label="its budget",
            )
            axis.set_xlabel(f"{len(pairs)} edges, ordered by budget and by what they spent")
        axis.set_xlim(-0.6, len(pairs) - 0.4)
        axis.set_ylim(0, 1.1 * max(*budgets, *spent))
        axis.set_ylabel("epsilon")
        drawn.legend(loc="outside lower left", ncols=2, columnspacing=1.2, handlelength=1.6)
        return svg(drawn, "Epsilon spent by each edge, and its budget")


def rates(run: Run) -> str | None:
    """The learning rate; None where it never changes."""
    xs, ys = points(run.rounds, "round", "rate")
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if y > 0]
    if not pairs or max(y for _, y in pairs) <= min(y for _, y in pairs) * (1 + 1e-9):
        return None
    with canvas("rates"):
        drawn, (axis,) = figure(1, 2.4)
        logarithmic(axis, 0.7 * min(y for _, y in pairs), 1.4 * max(y for _, y in pairs))
        axis.plot(
            [x for x, _ in pairs],
            [y for _, y in pairs],
            color=GREEN,
            drawstyle="steps-pre" if len(stages(run)) > 1 else "default",
        )
        axis.set_ylabel("learning rate")
        _end(axis, run)
        draw_marks([axis], marks(run))
        return svg(drawn, "Learning rate over updates")


def bounds(run: Run) -> list[tuple[float, float]]:
    """Where each stage begins, and its bound; only finite ones."""
    found = [(number(stage.start), number(stage.clip)) for stage in stages(run)]
    return [
        (x, clip) for x, clip in found if x is not None and clip is not None and 0 < clip < math.inf
    ]


def _gapped(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """The curve with a gap where nothing was seen."""
    return list(xs), [y if y > 0 else math.nan for y in ys]


def _binned(counts: Mapping[int, int], width: int, bins: int) -> list[int]:
    found = [0] * bins
    for tau, n in counts.items():
        if tau // width < bins:
            found[tau // width] += n
    return found


def _places(run: Run, kind: str) -> list[int]:
    """Updates done when rows of a kind were logged."""
    found = [known(row.round) for row in run.others if isinstance(row, Row) and row.kind == kind]
    return [at for at in found if at is not None and at < MOST_UPDATES]


def _end(axis: Axes, run: Run) -> None:
    axis.set_xlim(0, 1.02 * max(run.number, 1))
    axis.set_xlabel(run.vocabulary.round)


def _whole(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
