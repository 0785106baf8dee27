"""What several streams have cost, beside each other: one bar of MiB for each study."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from sordino.core import regimes
from sordino.core.run.reading import Run
from sordino.core.statements import Costs
from sordino.report.canvas import BLUE, GREEN, QUIET, canvas, clean, figure, shortened, svg

TITLE = "Messages and activity"
CAPTION = (
    "MiB sent in all: embeddings up, derivatives down, framing; and the share of events in which a "
    "party was active, on average over parties. Of two methods that err as often, the one with the "
    "shorter bar is the better one.{mean}"
)
MEAN = " Means over seeds."


def of(run: Run) -> Costs | None:
    """What a run has cost; None where its regime counts no messages, or there were none yet."""
    return regimes.teller(run.about.regime).costs(run)


def costs(groups: Sequence[Sequence[Run]], labels: Sequence[str]) -> str | None:
    """Messages of each group's runs, means over them; None where no run tells of any."""
    found = [[each for run in runs if (each := of(run)) is not None] for runs in groups]
    told = [(label, each) for label, each in zip(labels, found, strict=True) if each]
    if not told:
        return None
    lengths = [fmean(each.mebibytes for each in group) for _, group in told]
    with canvas("costs"):
        drawn, (axis,) = figure(1, 1.3 + 0.38 * len(told))
        starts = [0.0] * len(told)
        for key, colour, name in (
            ("up", BLUE, "payload up"),
            ("down", GREEN, "payload down"),
            ("framing", QUIET, "framing"),
        ):
            parts = [fmean(getattr(each, key) for each in group) for _, group in told]
            axis.barh(range(len(told)), parts, left=starts, height=0.6, color=colour, label=name)
            starts = [start + part for start, part in zip(starts, parts, strict=True)]
        for i, (length, (_, group)) in enumerate(zip(lengths, told, strict=True)):
            said = f"{amount(length)} MiB{_active(group)}"
            axis.annotate(
                said, (length, i), xytext=(4, 0), textcoords="offset points", va="center", size=9
            )
        axis.set_yticks(range(len(told)), [shortened(clean(label, 1000), 28) for label, _ in told])
        axis.set_ylim(len(told) - 0.5, -0.5)
        axis.set_xlim(0, 1.6 * max(lengths) or 1.0)
        axis.set_xlabel("MiB")
        axis.grid(False, axis="y")
        axis.tick_params(axis="y", length=0)
        drawn.legend(loc="outside lower left", ncols=3, columnspacing=1.2, handlelength=1.2)
        return svg(drawn, f"Messages of {len(told)} studies")


def cells(runs: Sequence[Run]) -> list[str]:
    """The same of one study, for a table: MiB of payload, activity, seconds of all parties.

    >>> cells([])
    ['-', '-', '-']
    """
    found = [each for run in runs if (each := of(run)) is not None]
    active = [each.activity for each in found if each.activity is not None]
    return [
        f"{fmean(each.up + each.down for each in found):.2f}" if found else "-",
        f"{100 * fmean(active):.1f} %" if active else "-",
        f"{fmean(each.seconds for each in found):.1f}" if found else "-",
    ]


HEAD = ("payload MiB", "active", "party s")


def _active(group: Sequence[Costs]) -> str:
    active = [each.activity for each in group if each.activity is not None]
    return f", active {100 * fmean(active):.1f} %" if active else ""


def amount(mebibytes: float, digits: int = 4) -> str:
    """MiB for people.

    >>> amount(0.99243), amount(4.3111), amount(976.6, 3), amount(12345.6)
    ('0.9924', '4.311', '977', '12\u202f346')
    """
    return (
        f"{mebibytes:.{digits}g}"
        if mebibytes < 999.5
        else f"{mebibytes:,.0f}".replace(",", "\u202f")
    )
