"""The picture of ``sordino audit --attack lira``: hits over false alarms, both on logarithmic axes.

What an attacker can do who may hardly ever be wrong stands at the left end, which a picture with
linear axes does not show.
"""

from __future__ import annotations

from collections.abc import Sequence

from sordino.audit.lira import Inferred
from sordino.report.canvas import QUIET, SERIES, canvas, figure, svg

LEAST = 1e-4
"""End of both axes."""


def lira_figure(found: Sequence[Inferred]) -> str:
    """The picture as SVG text, a line for each form of the attack."""
    with canvas("lira"):
        drawn, (axis,) = figure(1, 4.6)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlim(LEAST, 1.0)
        axis.set_ylim(LEAST, 1.0)
        axis.set_xlabel("rate of false alarms")
        axis.set_ylabel("rate of hits")
        axis.plot([LEAST, 1.0], [LEAST, 1.0], color=QUIET, linewidth=1.0, linestyle="--")
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
