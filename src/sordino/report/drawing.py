"""The one renderer of :class:`~sordino.core.figures.Figure`: data in, SVG text out.

Every figure of a page looks alike because all are drawn here. A regime, a comparison, an audit says
what to show and never how: line widths, margins, where a legend stands and when curves have dots
are decided in this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sordino.core.figures import Figure, Mark, Matrix, Panel, Series
from sordino.report import canvas
from sordino.report.axes import from_zero, logarithmic, of_percent, whole_numbers
from sordino.report.canvas import clean, shortened
from sordino.report.matrix import draw_matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "blue": canvas.BLUE,
    "orange": canvas.ORANGE,
    "green": canvas.GREEN,
    "purple": canvas.PURPLE,
    "sky": canvas.SKY,
    "ink": canvas.INK,
    "quiet": canvas.QUIET,
}
HOLDS: dict[str, Literal["pre", "post", "mid"]] = {
    "before": "pre",
    "after": "post",
    "around": "mid",
}
DASHES = {"dotted": ":", "dashed": "--", "solid": "-"}
FEW_POINTS = 60  # curves with fewer have dots
FEW_BARS = 12  # so many have their numbers above them
NAMED = 28  # characters of a name beside a bar


def draw(figure: Figure | Matrix) -> str:
    """Return a figure as SVG text."""
    if isinstance(figure, Matrix):
        return draw_matrix(figure)
    with canvas.canvas(figure.key):
        drawn, axes = canvas.figure(len(figure.panels), figure.height or _height(figure))
        for axis, panel in zip(axes, figure.panels, strict=True):
            for series in panel.series:
                DRAW[series.kind](axis, series, figure)
            axis.set_ylabel("" if figure.lying else panel.label)
            _limit(axis, panel, figure)
        axes[-1].set_xlabel(figure.x)
        _place(axes, figure)
        for axis, panel in zip(axes, figure.panels, strict=True):
            _mark_levels(axis, panel, figure)
        _mark_places(axes, [mark for mark in _marks(figure) if mark.axis == "x"])
        if figure.note:
            axes[-1].annotate(
                figure.note, (1, 0.12), xycoords="axes fraction", ha="right", size=9
            )  # fmt: skip
        if len(axes) > 1:
            drawn.align_ylabels()
        if any(axis.get_legend_handles_labels()[1] for axis in axes):
            drawn.legend(
                loc="outside lower left", ncols=3, columnspacing=1.2, handlelength=1.6
            )  # fmt: skip
        return canvas.svg(drawn, figure.label, _table(figure))


def _height(figure: Figure) -> float:
    """Inches."""
    named = any(series.name for panel in figure.panels for series in panel.series)
    if figure.lying:
        return 1.1 + 0.38 * len(figure.names) + 0.2 * named
    return 0.9 + 1.6 * len(figure.panels) + 0.25 * named


def _marks(figure: Figure) -> Iterator[Mark]:
    for panel in figure.panels:
        yield from panel.marks


# One function for each kind of series


def _line(axis: Axes, series: Series, figure: Figure) -> None:
    gaps = any(math.isnan(y) for y in series.y)
    dots = not series.dashed and (len(series.x) < FEW_POINTS or gaps)
    axis.plot(
        series.x,
        series.y,
        color=COLOURS[series.colour],
        linestyle="--" if series.dashed else "-",
        linewidth=1.5,
        marker="o" if dots else "",
        markersize=3,
        label=series.name or None,
    )


def _step(axis: Axes, series: Series, figure: Figure) -> None:
    axis.step(
        series.x,
        series.y,
        where=HOLDS[series.holds],
        color=COLOURS[series.colour],
        linestyle="--" if series.dashed else "-",
        linewidth=1.4,
        label=series.name or None,
    )


def _area(axis: Axes, series: Series, figure: Figure) -> None:
    axis.fill_between(
        series.x,
        series.base or 0.0,
        _tops(series),
        color=COLOURS[series.colour],
        alpha=0.85,
        linewidth=0,
        label=series.name or None,
    )


def _bars(axis: Axes, series: Series, figure: Figure) -> None:
    look: dict[str, Any] = {"color": COLOURS[series.colour], "label": series.name or None}
    if figure.lying:
        beside = [0.0] * len(series.y) if series.base is None else series.base
        # of several kinds that are not stacked, each has its part of a name's place
        kinds = [one for one in figure.panels[0].series if one.base is None]
        part = kinds.index(series) if series.base is None else 0
        thick = 0.72 / len(kinds) if len(kinds) > 1 else 0.6
        shift = (part - (len(kinds) - 1) / 2) * thick if len(kinds) > 1 else 0.0
        places = [x + shift for x in series.x]
        axis.barh(places, series.y, left=beside, height=thick, **look)
        ends = [(end, at) for end, at in zip(_tops(series), places, strict=True)]
        style: dict[str, Any] = {"xytext": (4, 0), "va": "center"}
    else:
        axis.bar(series.x, series.y, bottom=series.base or 0.0, width=0.7, **look)
        ends = list(zip(series.x, _tops(series), strict=True))
        style = {"xytext": (0, 2), "ha": "center"}
    for end, text in zip(ends, series.texts, strict=False):
        axis.annotate(text, end, textcoords="offset points", size=9, **style)


def _histogram(axis: Axes, series: Series, figure: Figure) -> None:
    # one path, however many bins
    axis.stairs(
        _tops(series),
        series.x,
        baseline=(series.base if series.base is not None else 0) if series.filled else None,
        fill=series.filled,
        color=COLOURS[series.colour],
        alpha=0.9 if series.filled else None,
        linewidth=None if series.filled else 1.2,
        label=series.name or None,
    )


def _dots(axis: Axes, series: Series, figure: Figure) -> None:
    axis.plot(
        series.x,
        series.y,
        "v",
        color=COLOURS[series.colour],
        markersize=4.5,
        clip_on=False,
        label=series.name or None,
    )


DRAW: dict[str, Callable[[Axes, Series, Figure], None]] = {
    "line": _line,
    "step": _step,
    "area": _area,
    "bar": _bars,
    "histogram": _histogram,
    "dots": _dots,
}


def _tops(series: Series) -> list[float]:
    """Where values end, seen from 0."""
    base = [0.0] * len(series.y) if series.base is None else series.base
    return [low + high for low, high in zip(base, series.y, strict=True)]


# Axes


def _limit(axis: Axes, panel: Panel, figure: Figure) -> None:
    """The axis of values: x where bars lie, else y."""
    values = [y for series in panel.series for y in _tops(series) if math.isfinite(y)]
    values += [mark.at for mark in panel.marks if mark.axis == ("x" if figure.lying else "y")]
    bottom, top = panel.limits
    if figure.lying:
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
    if panel.percent:
        of_percent(axis)
    if panel.whole:
        whole_numbers(axis)


def _place(axes: Sequence[Axes], figure: Figure) -> None:
    """The other axis: of places, or of counts from 0 on."""
    axis, names = axes[-1], [shortened(clean(name, 1000), NAMED) for name in figure.names]
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
        from_zero(axis, figure.end, figure.x)
    else:
        axis.set_xlim(*figure.limits)
        whole = all(one.kind == "histogram" for panel in figure.panels for one in panel.series)
        if whole and figure.limits[1] < 24:
            axis.set_xticks(range(math.ceil(figure.limits[0]), int(figure.limits[1]) + 1))


# Marks


def _mark_levels(axis: Axes, panel: Panel, figure: Figure) -> None:
    """Lines across at values: a budget, a bound, a mean."""
    for mark in panel.marks:
        if mark.axis == "x":
            continue
        named = mark.text if mark.legend else None
        axis.axhline(
            mark.at, color=canvas.INK, linestyle=DASHES[mark.style], linewidth=1, label=named
        )
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
                color=canvas.QUIET if dotted else canvas.INK,
                linestyle=DASHES[mark.style],
                linewidth=1.1,
                label=label if axis is axes[0] else None,
            )
        if label:
            named.add(label)
        if label and not within:  # its name alone, in the legend
            axes[0].plot(
                [], [], color=canvas.INK, linestyle=DASHES[mark.style], linewidth=1.1, label=label
            )
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


def _table(figure: Figure) -> dict[str, Any] | None:
    if figure.table is None:
        return None
    head, rows = figure.table
    return {"head": list(head), "rows": [list(row) for row in rows]}
