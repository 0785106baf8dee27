"""Pictures of an entry: numbers over points, curves, and bars, each with the spread over seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING

from sordino.extend.pages import (
    SERIES,
    Band,
    Picture,
    band,
    canvas,
    clean,
    figure,
    logarithmic,
    markup,
    of_percent,
    shortened,
    svg,
)
from sordino_papers.cells import Place
from sordino_papers.entry import Published, Shown
from sordino_papers.measures import Curve
from sordino_papers.results import Results
from sordino_papers.tables import label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "osD^vP*X"
DASHES = ("-", "--", ":", "-.")
LONGEST = 34
MOST_CURVES = 24


@dataclass(frozen=True, slots=True)
class Dot:
    """A number over a point: its mean over seeds, the lowest and the highest."""

    x: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """Curve of one series in one form."""

    label: str
    index: int
    form: int
    dots: Sequence[Dot] = ()
    curve: Band | None = None
    printed: Sequence[tuple[float, float]] = ()


def pictures(results: Results) -> list[Picture]:
    """The pictures of an entry: one for each thing that is shown as one, and each panel."""
    entry, found = results.grid.entry, []
    labels = {each.key: each.label for each in entry.panel}
    for i, shown in enumerate(entry.shown):
        if shown.kind == "table":
            continue
        for panel in results.grid.panels:
            title = ", ".join(filter(None, (shown.title or shown.measure.told, labels.get(panel))))
            drawn = _curves if shown.measure.curved else _dots
            picture = drawn(results, i, shown, panel, title)
            if picture is not None:
                found.append(Picture(title, markup(picture), _caption(shown)))
    return found


def _caption(shown: Shown) -> str:
    if shown.measure.curved:
        return "Mean over seeds; a band reaches from the lowest to the highest."
    bars = "A point is the mean over seeds, its bar reaches from the lowest to the highest."
    return f"{bars} Crosses are figures of the paper."


def _dots(results: Results, i: int, shown: Shown, panel: str, title: str) -> str | None:
    entry = results.grid.entry
    places = _places(results)
    scale = 100.0 if shown.measure.percent else 1.0
    lines = [
        Line(
            label,
            index,
            form,
            [
                dot
                for point, x in places.items()
                if (dot := _dot(results, shown, Place(panel, key[1], key[0], point), x, scale))
            ],
            printed=_printed(entry.published, i, panel, key[0], places) if not form else (),
        )
        for label, index, form, key in _lines(results)
    ]
    lines = [line for line in lines if line.dots]
    if not lines:
        return None
    with canvas(f"{entry.name}-{i}-{panel}"):
        drawn, (axis,) = figure(1, 3.1 + 0.19 * -(-len(lines) // 2))
        for line in lines:
            _draw_dots(axis, line, bars=shown.kind == "bars", many=len(lines))
        _ticks(axis, results, places)
        axis.set_ylabel(shown.measure.told + (" (%)" if shown.measure.percent else ""))
        if shown.measure.percent:
            of_percent(axis)
        drawn.legend(loc="outside lower left", ncols=2)
        return svg(drawn, title)


def _curves(results: Results, i: int, shown: Shown, panel: str, title: str) -> str | None:
    entry = results.grid.entry
    scale = 100.0 if shown.measure.percent else 1.0
    lines = []
    for label, index, form, key in _lines(results):
        for j, point in enumerate(results.grid.points):
            found = results.values(shown.measure, Place(panel, key[1], key[0], point))
            curves = [_scaled(value, scale) for value in found.values() if isinstance(value, tuple)]
            named = ", ".join(filter(None, (label, point)))
            many = len(results.grid.points)
            lines.append(Line(named, index * many + j, form, curve=band(curves)))
    lines = [line for line in lines if line.curve is not None and line.curve.xs][:MOST_CURVES]
    if not lines:
        return None
    over = getattr(shown.measure, "over", "round")
    with canvas(f"{entry.name}-{i}-{panel}"):
        drawn, (axis,) = figure(1, 3.1 + 0.19 * -(-len(lines) // 2))
        for line in lines:
            assert line.curve is not None
            colour = SERIES[line.index % len(SERIES)]
            dash = DASHES[(line.form + line.index // len(SERIES)) % len(DASHES)]
            name = shortened(clean(line.label, 1000), LONGEST)
            axis.plot(line.curve.xs, line.curve.mean, color=colour, linestyle=dash, label=name)
            if line.curve.low != line.curve.high:
                low, high = line.curve.low, line.curve.high
                axis.fill_between(line.curve.xs, low, high, color=colour, alpha=0.16, linewidth=0)
        axis.set_xlabel(over)
        axis.set_ylabel(shown.measure.told + (" (%)" if shown.measure.percent else ""))
        drawn.legend(loc="outside lower left", ncols=2)
        return svg(drawn, title)


def _lines(results: Results) -> Iterator[tuple[str, int, int, tuple[str, str]]]:
    """Each series in each form that is run: label, numbers of both, and their keys."""
    entry = results.grid.entry
    run = {(cell.place.series, cell.place.form) for cell in results.grid.cells}
    for index, series in enumerate(entry.series):
        for form, each in enumerate(entry.form):
            if (series.key, each.key) in run:
                label = label_of(entry, series.label, each.key)
                yield label, index, form, (series.key, each.key)


def _places(results: Results) -> dict[str, float]:
    """Where each point stands on the axis: as it says itself, else one after another."""
    points = results.grid.entry.x.values if results.grid.entry.x else ()
    kept = [point for point in points if point.label in results.grid.points]
    told = all(point.at is not None for point in kept)
    return {
        point.label: float(point.at if told and point.at is not None else i)
        for i, point in enumerate(kept)
    } or {"": 0.0}


def _dot(results: Results, shown: Shown, place: Place, x: float, scale: float) -> Dot | None:
    cell = results.grid.at(place)
    if cell is None or cell.place != place:
        return None
    values = [
        scale * value
        for value in results.values(shown.measure, place).values()
        if not isinstance(value, tuple) and isfinite(value)
    ]
    return Dot(x, fmean(values), min(values), max(values)) if values else None


def _printed(
    published: Sequence[Published], i: int, panel: str, series: str, places: dict[str, float]
) -> list[tuple[float, float]]:
    return [
        (places[each.x], each.value)
        for each in published
        if (each.shown, each.panel, each.series) == (i, panel, series) and each.x in places
    ]


def _draw_dots(axis: Axes, line: Line, *, bars: bool, many: int) -> None:
    colour = SERIES[line.index % len(SERIES)]
    name = shortened(clean(line.label, 1000), LONGEST)
    xs, ys = [dot.x for dot in line.dots], [dot.mean for dot in line.dots]
    ends = [
        [dot.mean - dot.low for dot in line.dots],
        [dot.high - dot.mean for dot in line.dots],
    ]
    if bars:
        width = 0.8 / many
        shift = (line.index - (many - 1) / 2) * width
        axis.bar([x + shift for x in xs], ys, width, yerr=ends, color=colour, label=name)
        return
    axis.errorbar(
        xs,
        ys,
        yerr=ends,
        color=colour,
        linestyle=DASHES[line.form % len(DASHES)],
        marker=MARKERS[line.index % len(MARKERS)],
        markersize=5,
        capsize=3,
        linewidth=1.5,
        label=name,
    )
    if line.printed:
        axis.plot(
            *zip(*line.printed, strict=True),
            color=colour,
            linestyle="none",
            marker="x",
            markersize=6,
        )


def _ticks(axis: Axes, results: Results, places: dict[str, float]) -> None:
    x = results.grid.entry.x
    if x is None:
        axis.set_xticks([])
        return
    axis.set_xlabel(x.label)
    at = list(places.values())
    if x.log and min(at) > 0:
        logarithmic(axis, min(at) / 1.2, max(at) * 1.2, "x")
    else:
        axis.set_xticks(at, list(places))


def _scaled(curve: Curve, scale: float) -> tuple[list[float], list[float]]:
    return [x for x, _ in curve], [scale * y for _, y in curve]
