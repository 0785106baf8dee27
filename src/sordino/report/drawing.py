"""The one renderer of :class:`~sordino.core.statements.Figure`: data in, SVG text out.

Every figure of a page looks alike because all are drawn here. A regime, a comparison, an audit says
what to show and never how: line widths, margins, where a legend stands and when curves have dots
are decided in this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sordino.core.statements import DASHES, PALETTE, Colour, Figure, Mark, Matrix, Panel, Series
from sordino.report.canvas import (
    BLUE,
    INK,
    QUIET,
    RED,
    SERIES,
    axes_of,
    canvas,
    clean,
    numbers_of,
    saved,
    shortened,
    svg,
)
from sordino.report.canvas import figure as empty

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

COLOURS: Mapping[Colour, str] = {
    **dict(zip(PALETTE, SERIES, strict=True)),
    "red": RED,
    "ink": INK,
    "quiet": QUIET,
}
MARKERS = dict(zip(COLOURS, "osD^vP*X<>h", strict=True))
LINES = dict(zip(DASHES, ("-", "--", ":", "-."), strict=True))
HOLDS = {"before": "steps-pre", "after": "steps-post", "around": "steps-mid"}
FEW_POINTS = 60  # curves with fewer have dots
NAMED = 5  # characters of a name beside a bar, for each inch of the figure
WORDY, LONGEST = 34, 70  # characters of a name in the legend, in columns and on a line of its own


Drawing = tuple["Drawn", list[dict[str, Any]], dict[str, Any] | None]
"""A figure as it was drawn, the axes and series of its panels, and its table."""


def draw(figure: Figure | Matrix) -> str:
    """Return a figure as SVG text."""
    with canvas(figure.key):
        drawn, panels, table = _drawing(figure)
        return svg(drawn, figure.label, panels, table)


def export(figure: Figure | Matrix, kind: str) -> bytes:
    """Return a figure as a file of a kind: "svg", "pdf" or "png"."""
    if kind == "svg":
        return draw(figure).encode()
    with canvas(figure.key):
        return saved(_drawing(figure)[0], kind)


def _drawing(figure: Figure | Matrix) -> Drawing:
    if isinstance(figure, Matrix):
        return _matrix(figure)
    names = _legend(figure)
    longest = max(map(len, names), default=0)
    columns = 1 if longest > WORDY else 2 if longest > WORDY // 2 else 3
    height = 0.9 + figure.height * len(figure.panels)
    if figure.lying:
        height = 1.1 + 0.38 * len(figure.names)
    height += 0.06 + 0.19 * -(-len(names) // columns) if names else 0.0
    drawn, axes = empty(len(figure.panels), height, width=figure.width)
    for axis, panel in zip(axes, figure.panels, strict=True):
        for series in panel.series:
            DRAW[series.kind](axis, series, panel, figure)
        axis.set_ylabel("" if figure.lying else panel.label)
        _limit(axis, panel, figure)
    axes[-1].set_xlabel(figure.x)
    _place(axes, figure)
    for axis, panel in zip(axes, figure.panels, strict=True):
        _mark_levels(axis, panel)
    marks = [mark for panel in figure.panels for mark in panel.marks if mark.axis == "x"]
    _mark_places(axes, marks)
    if figure.note:
        axes[-1].annotate(figure.note, (1, 0.12), xycoords="axes fraction", ha="right", size=9)
    if len(axes) > 1:
        drawn.align_ylabels()
    if names:
        drawn.legend(loc="outside lower left", ncols=columns, columnspacing=1.2, handlelength=1.6)
    return drawn, _numbers_below(axes, figure), _table(figure)


def _legend(figure: Figure) -> list[str]:
    """Names in the legend, as long as there is room for them."""
    found = [series.name for panel in figure.panels for series in panel.series]
    found += [mark.text for panel in figure.panels for mark in panel.marks if mark.legend]
    longest = LONGEST if any(len(name) > WORDY for name in found) else WORDY
    return [_short(name, longest) for name in dict.fromkeys(filter(None, found))]


def _short(name: str, longest: int = LONGEST) -> str:
    return shortened(clean(name, 1000), longest)


# One function for each kind of series


def _look(series: Series) -> dict[str, Any]:
    return {"color": COLOURS[series.colour], "label": _short(series.name) or None}


def _line(axis: Axes, series: Series, panel: Panel, figure: Figure) -> None:
    """A line with dots where there are few points and the band around it; or steps."""
    step, few = series.kind == "step", len(series.x) < FEW_POINTS or any(map(math.isnan, series.y))
    dots = not step and (len(series.x) == 1 or (series.dash == "solid" and few))
    axis.plot(
        series.x,
        series.y,
        **_look(series),
        linestyle=LINES[series.dash],
        drawstyle=HOLDS[series.holds] if step else "default",
        linewidth=1.4 if step else 1.5,
        marker="o" if dots else "",
        markersize=3 if len(series.x) > 1 else 5,
    )
    if series.spread is not None and series.spread[0] != series.spread[1]:
        colour = COLOURS[series.colour]
        axis.fill_between(series.x, *series.spread, color=colour, alpha=0.18, linewidth=0)


def _points(axis: Axes, series: Series, panel: Panel, figure: Figure) -> None:
    """Points with their spreads, and a line through them."""
    opened = [i for i, each in enumerate(series.open) if each]
    axis.errorbar(
        series.x,
        series.y,
        yerr=_ends(series),
        **_look(series),
        linestyle=LINES[series.dash],
        linewidth=1.5,
        marker=MARKERS[series.colour],
        markersize=5.5,
        markevery=[i for i in range(len(series.x)) if i not in opened],
        capsize=3,
        elinewidth=1.2,
    )
    axis.plot(
        [series.x[i] for i in opened],
        [series.y[i] for i in opened],
        "^",
        color=COLOURS[series.colour],
        markersize=7,
        markerfacecolor="none",
    )


def _ends(series: Series) -> tuple[list[float], list[float]] | None:
    """The reach of the spread below each value and above it."""
    if series.spread is None:
        return None
    low, high = series.spread
    return (
        [max(y - end, 0.0) for y, end in zip(series.y, low, strict=True)],
        [max(end - y, 0.0) for y, end in zip(series.y, high, strict=True)],
    )


def _area(axis: Axes, series: Series, panel: Panel, figure: Figure) -> None:
    base, tops = series.base or 0.0, _tops(series)
    axis.fill_between(series.x, base, tops, **_look(series), alpha=0.85, linewidth=0)


def _bars(axis: Axes, series: Series, panel: Panel, figure: Figure) -> None:
    # of several kinds that are not stacked, each has its part of a name's place
    kinds = [one for one in panel.series if one.kind == "bar" and one.base is None]
    thick, shift = (0.6 if figure.lying else 0.7), 0.0
    if len(kinds) > 1 and series.base is None:
        thick = 0.72 / len(kinds)
        shift = (kinds.index(series) - (len(kinds) - 1) / 2) * thick
    places, tops, ends = [x + shift for x in series.x], _tops(series), _ends(series)
    if figure.lying:
        axis.barh(
            places, series.y, thick, left=series.base or 0.0, xerr=ends, **_look(series)
        )  # fmt: skip
        at = list(zip(tops, places, strict=True))
        style: dict[str, Any] = {"xytext": (4, 0), "va": "center"}
    else:
        axis.bar(places, series.y, thick, bottom=series.base or 0.0, yerr=ends, **_look(series))
        at = list(zip(places, tops, strict=True))
        style = {"xytext": (0, 2), "ha": "center"}
    for end, text in zip(at, series.texts, strict=False):
        axis.annotate(text, end, textcoords="offset points", size=9, **style)


def _histogram(axis: Axes, series: Series, panel: Panel, figure: Figure) -> None:
    # one path, however many bins
    axis.stairs(
        _tops(series),
        series.x,
        baseline=(series.base if series.base is not None else 0) if series.filled else None,
        fill=series.filled,
        **_look(series),
        alpha=0.9 if series.filled else None,
        linewidth=None if series.filled else 1.2,
    )


def _dots(axis: Axes, series: Series, panel: Panel, figure: Figure) -> None:
    at = (series.y, series.x) if figure.lying else (series.x, series.y)
    shape = "v" if series.filled else "x"
    axis.plot(*at, shape, **_look(series), markersize=4.5 + 1.5 * (shape == "x"), clip_on=False)


DRAW: dict[str, Callable[[Axes, Series, Panel, Figure], None]] = {
    "line": _line,
    "points": _points,
    "step": _line,
    "area": _area,
    "bar": _bars,
    "histogram": _histogram,
    "dots": _dots,
}


def _tops(series: Series) -> list[float]:
    """Where values end, seen from 0."""
    base = [0.0] * len(series.y) if series.base is None else series.base
    return [low + high for low, high in zip(base, series.y, strict=True)]


# Numbers below the picture, for hover values and as CSV


def _numbers_below(axes: Sequence[Axes], figure: Figure) -> list[dict[str, Any]]:
    """Each panel's axes and series; no series where a table stands for them."""
    colours = {
        series.colour: series.name
        for panel in figure.panels[::-1]
        for series in panel.series[::-1]
        if series.name
    }
    found = []
    for axis, panel in zip(axes, figure.panels, strict=True):
        shown = [] if figure.lying or figure.table else list(panel.series)
        if any(each.name for each in shown):  # what has no name beside them belongs to one with one
            shown = [each for each in shown if each.name]
        series = [
            {
                "name": each.name or colours.get(each.colour, panel.label),
                "x": numbers_of(
                    [(low + high) / 2 for low, high in pairwise(each.x)]
                    if each.kind == "histogram"
                    else each.x
                ),
                "y": numbers_of(each.y, spent=panel.label.startswith("epsilon")),
            }
            for each in shown
            if each.kind != "area" and len(each.x)
        ]
        found.append({**axes_of(axis), "series": series})
    return found


def _table(figure: Figure) -> dict[str, Any] | None:
    """The table that the figure brings; of lying bars, a row for each name beside them."""
    if figure.table is not None:
        head, rows = figure.table
        return {"head": list(head), "rows": [list(row) for row in rows]}
    if not figure.lying:
        return None
    series = figure.panels[0].series
    columns = [[clean(name, 1000) for name in figure.names], *(numbers_of(one.y) for one in series)]
    return {
        "head": ["", *(one.name or figure.x for one in series)],
        "rows": [list(row) for row in zip(*columns, strict=True)],
    }


# Axes


def _limit(axis: Axes, panel: Panel, figure: Figure) -> None:
    """The axis of values: x where bars lie, else y."""
    from matplotlib.ticker import MaxNLocator

    values = [y for series in panel.series for y in _tops(series) if math.isfinite(y)]
    values += [y for series in panel.series for ends in series.spread or () for y in ends]
    values += [mark.at for mark in panel.marks if mark.axis == ("x" if figure.lying else "y")]
    bottom, top = panel.limits
    if figure.lying and figure.log:
        axis.set_xscale("log")
        axis.set_xlim(bottom, top)
    elif figure.lying:
        words = any(series.texts for series in panel.series)
        end = (1.6 if words else 1.08) * max(values, default=0.0)
        axis.set_xlim(bottom or 0.0, top or end or 1.0)
    elif panel.log:
        seen = [value for value in values if value > 0] or [1.0]
        logarithmic(axis, bottom or 0.6 * min(seen), top or 1.6 * max(seen))
    elif bottom is not None or top is not None:
        highest, lowest = max(values, default=0.0), min(values, default=0.0)
        axis.set_ylim(
            min(bottom, 1.05 * lowest) if bottom is not None else None,
            (1.1 * highest if highest > 0 else 1.0) if top is None else top,
        )
    low, high = axis.dataLim.intervaly
    if panel.percent and low >= 0 and high <= 100:  # estimates beyond shares are shown as they are
        bottom, top = axis.get_ylim()
        axis.set_ylim(max(bottom, 0.0), min(top, 100.0))
    if panel.whole:
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))


def _place(axes: Sequence[Axes], figure: Figure) -> None:
    """The other axis: of places, or of counts from 0 on, long ones in groups of three digits."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis, room = axes[-1], round(NAMED * figure.width)
    names = [_short(name, room) for name in figure.names]
    if figure.lying:
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.grid(False, axis="y")
        axis.tick_params(axis="y", length=0)
    elif names:
        axis.set_xticks(range(len(names)), names, fontsize=9 if len(names) < 21 else 7.5)
        axis.grid(False, axis="x")
        axis.set_xlim(*(figure.limits or (-0.6, len(names) - 0.4)))
    elif figure.limits is None:
        axis.set_xlim(0, 1.02 * max(figure.end, 1.0))
        axis.set_xlabel(figure.x)
        if figure.end >= LONG:
            axis.xaxis.set_major_locator(MaxNLocator(5))
            axis.xaxis.set_major_formatter(
                FuncFormatter(lambda value, _: f"{value:,.0f}".replace(",", "\u202f"))
            )
    elif figure.log:
        logarithmic(axis, *figure.limits, "x")
    else:
        axis.set_xlim(*figure.limits)
        whole = all(one.kind == "histogram" for panel in figure.panels for one in panel.series)
        if whole and figure.limits[1] < 24:
            axis.set_xticks(range(math.ceil(figure.limits[0]), int(figure.limits[1]) + 1))
    if figure.ticks:
        axis.set_xticks([at for at, _ in figure.ticks], [text for _, text in figure.ticks])
        axis.minorticks_off()


# Marks


def _mark_levels(axis: Axes, panel: Panel) -> None:
    """Lines across at values: a budget, a bound, a mean."""
    for mark in panel.marks:
        if mark.axis == "x":
            continue
        named = mark.text if mark.legend else None
        axis.axhline(mark.at, color=INK, linestyle=LINES[mark.style], linewidth=1, label=named)
        if mark.text and not mark.legend:
            axis.annotate(
                mark.text,
                (0.01, mark.at),
                xycoords=("axes fraction", "data"),
                xytext=(0, -3),
                textcoords="offset points",
                va="top",
            )


def _mark_places(axes: Sequence[Axes], marks: Sequence[Mark]) -> None:
    """Lines at places, through all panels; texts above, as many as there is room for."""
    low, high = axes[0].get_xlim()
    free, named = low, set()
    for mark in marks:
        dotted = mark.style == "dotted"
        label = mark.text if mark.legend and mark.text not in named else None
        within = low < mark.at <= high
        for axis in axes if within else ():
            axis.axvline(
                mark.at,
                color=QUIET if dotted else INK,
                linestyle=LINES[mark.style],
                linewidth=1.1,
                label=label if axis is axes[0] else None,
            )
        if label:
            named.add(label)
        if label and not within:  # its name alone, in the legend
            axes[0].plot([], [], color=INK, linestyle=LINES[mark.style], linewidth=1.1, label=label)
        if mark.text and not mark.legend and low <= mark.at <= high and mark.at >= free:
            axes[0].annotate(
                mark.text,
                (mark.at, 1),
                xycoords=("data", "axes fraction"),
                xytext=(1, 1),
                textcoords="offset points",
                size=8.5,
            )
            free = mark.at + (high - low) * 0.018 * (len(mark.text) + 1)


LONG = 1e5  # from this count on, digits are grouped


def logarithmic(axis: Axes, low: float, high: float, which: str = "y") -> None:
    """A logarithmic axis from ``low`` to ``high``, its numbers plain ones, as many as fit."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    (axis.set_yscale if which == "y" else axis.set_xscale)("log")
    (axis.set_ylim if which == "y" else axis.set_xlim)(low, high)
    ruler = axis.yaxis if which == "y" else axis.xaxis
    ruler.set_major_locator(FixedLocator(ticks(low, high)))
    ruler.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
    ruler.set_minor_locator(NullLocator())


def ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis, seven at most.

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
        if len(found) <= 7:
            return found
    return found[:: math.ceil(len(found) / 7)]


MOST_ROWS = 60
MOST_NUMBERS = 12  # rows of shares whose counts are written out
SMALLEST, LARGEST = 2.0, 330.0  # areas of bubbles, in square points
PAPER = "#fbfbf8"  # behind a map: on a dark page the darkest cells would vanish


def _matrix(shown: Matrix) -> Drawing:
    """Shares as a map; numbers as dots while there are few rows, else as a map of averaged rows."""
    names = [clean(str(name), 24) for name in shown.columns] or [""]
    rows = [[*row, *[0] * len(names)][: len(names)] for row in shown.counts]
    called = [clean(name, 24) for name in shown.rows] or [str(i) for i in range(len(rows))]
    if shown.kind == "shares":
        height = min(max(0.4 * len(names) + 1.4, 2.4), 5.6)
    else:
        height = 1.6 + (4.6 if shown.many else 0.3 * max(len(rows), 1))
    drawn, (axis,) = empty(1, height)
    table, crowded = None, 40
    if shown.kind == "shares":
        _shares(axis, rows, called)
    else:
        if shown.many:
            _heat(drawn, axis, rows)
        else:
            _bubbles(axis, rows, called)
        axis.set_xlim(-0.6, len(names) - 0.4)
        axis.set_ylim(len(rows) - 0.4, -0.6)
        order, crowded = range(len(rows)), 60
        cells = [
            [called[i], *rows[i]]
            for i in (sorted(order, key=lambda i: _commonest(rows[i])) if shown.many else order)
        ]
        table = {"head": [shown.corner, *names], "rows": cells, "cells": True}
    if len(names) <= 40:
        turned = sum(map(len, names)) > crowded
        place: dict[str, Any] = (
            {"rotation": 38, "ha": "right"} if turned else {"rotation": 0, "ha": "center"}
        )
        axis.set_xticks(range(len(names)), names, rotation_mode="anchor", **place)
    axis.set_xlabel(shown.x)
    axis.set_ylabel(shown.y)
    return drawn, [axes_of(axis) | {"series": []}], table


def _shares(axis: Axes, rows: list[list[int]], names: Sequence[str]) -> None:
    """Each row's shares, with the counts written out while there are few."""
    shares = [[n / max(sum(row), 1) for n in row] for row in rows]
    axis.grid(visible=False)
    axis.set_facecolor(PAPER)
    axis.imshow(shares, cmap="cividis_r", vmin=0, vmax=1, interpolation="nearest")
    for i, row in enumerate(rows if len(names) <= MOST_NUMBERS else ()):
        for j, n in enumerate(row):
            colour = "#ffffff" if shares[i][j] > 0.55 else "#1b1e22"
            axis.text(j, i, str(n), ha="center", va="center", size=8.5, color=colour)
    axis.set_yticks(range(len(rows)), names)
    axis.tick_params(length=0, labelcolor=INK)


def aggregated(rows: Sequence[Sequence[int]], most: int) -> list[list[float]]:
    """Clients ordered by their commonest label, then averaged in at most ``most`` groups.

    >>> aggregated([[0, 8], [9, 1], [0, 4], [7, 1]], 2)
    [[8.0, 1.0], [0.0, 6.0]]
    """
    ordered = sorted(rows, key=_commonest)
    groups = min(most, len(ordered))
    edges = [i * len(ordered) // groups for i in range(groups + 1)] if groups else [0]
    parts = [ordered[a:b] for a, b in pairwise(edges)]
    return [[sum(column) / len(part) for column in zip(*part, strict=True)] for part in parts]


def _commonest(row: Sequence[int]) -> tuple[bool, int, int]:
    top = max(row, default=0)
    return top == 0, (list(row).index(top) if row else 0), -top


def _bubbles(axis: Axes, rows: list[list[int]], clients: Sequence[str]) -> None:
    """Area, not width, is proportional to the count: that is how the eye reads a bubble."""
    most = max((n for row in rows for n in row), default=0) or 1
    spots = [(j, i, n) for i, row in enumerate(rows) for j, n in enumerate(row) if n > 0]
    axis.scatter(
        [j for j, _, _ in spots],
        [i for _, i, _ in spots],
        s=[max(LARGEST * n / most, SMALLEST) for _, _, n in spots],
        color=BLUE,
        alpha=0.85,
        linewidths=0,
    )
    axis.set_yticks(range(len(rows)), clients)
    for shown in dict.fromkeys(max(round(most * share), 1) for share in (1.0, 0.1, 0.01)):
        axis.scatter(
            [],
            [],
            s=max(LARGEST * shown / most, SMALLEST),
            color=QUIET,
            linewidths=0,
            label=f"{shown}",
        )
    axis.legend(title="examples", loc="center left", bbox_to_anchor=(1.02, 0.5), labelspacing=1.2)


def _heat(drawn: Any, axis: Axes, rows: list[list[int]]) -> None:
    """Darker is more, on a square-root scale, so that few examples are seen; none is empty.

    Clients are put in order, and neighbours averaged until at most MOST_ROWS rows are left: thinner
    ones no eye tells apart.
    """
    import numpy as np
    from matplotlib.colors import PowerNorm

    bands = aggregated(rows, MOST_ROWS)
    most = max((n for row in bands for n in row), default=0) or 1
    axis.grid(False)
    axis.set_facecolor(PAPER)
    seen = np.ma.masked_equal(np.array(bands, np.float64, ndmin=2), 0.0)
    extent = (-0.5, len(rows[0]) - 0.5, len(rows) - 0.5, -0.5)
    shown = axis.imshow(
        seen,
        aspect="auto",
        extent=extent,
        cmap="cividis_r",
        norm=PowerNorm(0.5, 0, most),
        interpolation="nearest",
    )
    bar = drawn.colorbar(
        shown,
        ax=axis,
        label="examples" if len(bands) == len(rows) else "examples, mean of neighbours",
        pad=0.02,
    )
    bar.outline.set_visible(False)
