"""The pictures of ``sordino audit``.

Where the true epsilon of every row lies: a bar from the lower bound to the ledger's epsilon, on a
logarithmic axis. A cross stands at what a paper's literal form claims where the attack has shown
more.

What shadow runs tell of membership: hits over false alarms, both on logarithmic axes, since an
attacker who may hardly ever be wrong stands at the left end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sordino.audit.intervals import Interval
from sordino.audit.lira import Inferred
from sordino.report.canvas import BLUE, INK, QUIET, RED, SERIES, canvas, clean, figure, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST, MOST = 0.1, 1000.0
"""Ends of the axis; what is beyond stands there with an arrow."""
ROW = 0.3  # inches
FEWEST = 1e-4
"""End of both axes of rates."""


def interval_words(one: Interval) -> str:
    """An interval in words.

    >>> interval_words(Interval(name="x", unit="sample", sound=True, how="two worlds", low=0.934,
    ...     plain=0.5, claimed=1.0, ledger=math.inf, releases=8, delta=0.0, binding=True))
    '[0.934, ∞]'
    """
    return f"[{lower_text(max(one.low, one.plain))}, {upper_text(one.ledger)}]"


def lower_text(value: float) -> str:
    """A lower bound, rounded down to three digits.

    >>> lower_text(1.9999), lower_text(0.0), lower_text(29.97)
    ('1.99', '0', '29.9')
    """
    if value <= 0.0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.floor(value / unit * (1.0 + 1e-12)) * unit:.3g}"


def upper_text(value: float) -> str:
    """An upper bound, rounded up."""
    from sordino.privacy.rounding import epsilon_text

    return epsilon_text(value, infinite="∞")


def intervals_figure(intervals: Sequence[Interval]) -> str:
    """The picture as SVG text, first row at the top."""
    with canvas("audit"):
        drawn, (axis,) = figure(1, 1.0 + ROW * len(intervals), width=9.0)
        axis.set_xscale("log")
        axis.set_xlim(LEAST, MOST)
        axis.set_ylim(len(intervals) - 0.4, -0.6)
        axis.set_yticks(range(len(intervals)), [clean(one.name) for one in intervals])
        axis.set_xticks([0.1, 1.0, 10.0, 100.0, 1000.0], ["≤ 0.1", "1", "10", "100", "≥ 1000"])
        axis.set_xlabel("epsilon: from the attack's lower bound to the ledger's")
        axis.minorticks_off()
        for place, one in enumerate(intervals):
            _bar(axis, place, one)
        head = ["row", "lower bound", "assuming nothing", "claimed", "ledger", "verdict"]
        rows = [
            [one.name, one.low, one.plain, one.claimed, one.ledger, one.verdict]
            for one in intervals
        ]
        told = {"head": head, "rows": [[str(cell) for cell in row] for row in rows]}
        return svg(drawn, "Lower bounds of epsilon by attacks, and the ledger's epsilons", told)


def _bar(axis: Axes, place: int, one: Interval) -> None:
    low = min(max(one.low, one.plain, LEAST), MOST)
    high = min(max(one.ledger, LEAST), MOST)
    wrong = one.verdict in ("BROKEN", "not caught")
    colour = RED if wrong or not one.sound else BLUE
    axis.plot([low, high], [place, place], color=colour, linewidth=4.0, solid_capstyle="butt")
    axis.plot([low], [place], color=colour, marker="|", markersize=11, markeredgewidth=2.2)
    if one.ledger > MOST:
        axis.plot([MOST], [place], color=colour, marker=">", markersize=8, clip_on=False)
    if not one.sound:
        axis.plot([one.claimed], [place], color=INK, marker="x", markersize=7, linestyle="none")
    axis.annotate(
        f"{interval_words(one)}  {one.verdict}",
        (1.01, place),
        xycoords=("axes fraction", "data"),
        color=RED if wrong else QUIET,
        fontsize=8.5,
        va="center",
    )


def lira_figure(found: Sequence[Inferred]) -> str:
    """The picture as SVG text, a line for each form of the attack."""
    with canvas("lira"):
        drawn, (axis,) = figure(1, 4.6)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlim(FEWEST, 1.0)
        axis.set_ylim(FEWEST, 1.0)
        axis.set_xlabel("rate of false alarms")
        axis.set_ylabel("rate of hits")
        axis.plot([FEWEST, 1.0], [FEWEST, 1.0], color=QUIET, linewidth=1.0, linestyle="--")
        for colour, one in zip(SERIES, found, strict=False):
            alarms, hits = zip(*one.curve, strict=True)
            label = f"{one.form}: area {one.area:.3f}"
            axis.plot(alarms, hits, color=colour, label=label)
        axis.legend(loc="lower right")
        rows = [[one.form, *point] for one in found for point in one.curve]
        told = {
            "head": ["form", "false alarms", "hits"],
            "rows": [[str(cell) for cell in row] for row in rows],
        }
        return svg(drawn, "Membership inference: hits over false alarms", told)
