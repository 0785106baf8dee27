"""Pictures of an entry, as data: numbers over points, curves, and bars, each with the spread over
seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite
from statistics import fmean

from sordino.extend.runs import Figure, Panel, Picture, Series, band, look, picture_of
from sordino_papers.cells import Place
from sordino_papers.entry import Published, Shown
from sordino_papers.results import Results
from sordino_papers.tables import label_of

MOST_CURVES = 24


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
            figure = drawn(results, i, shown, panel, title)
            if figure is not None:
                found.append(picture_of(figure))
    return found


def _caption(shown: Shown) -> str:
    if shown.measure.curved:
        return "Mean over seeds; a band reaches from the lowest to the highest."
    bars = "A point is the mean over seeds, its bar reaches from the lowest to the highest."
    return f"{bars} Crosses are figures of the paper."


def _dots(results: Results, i: int, shown: Shown, panel: str, title: str) -> Figure | None:
    entry = results.grid.entry
    places = _places(results)
    series: list[Series] = []
    for label, index, form, key in _lines(results):
        dots = [
            (x, values)
            for point, x in places.items()
            if (values := _values(results, shown, Place(panel, key[1], key[0], point)))
        ]
        if not dots:
            continue
        colour = look(index)[0]
        series.append(
            Series(
                kind="bar" if shown.kind == "bars" else "points",
                name=label,
                colour=colour,
                dash=look(8 * form)[1],
                x=[x for x, _ in dots],
                y=[fmean(values) for _, values in dots],
                spread=([min(values) for _, values in dots], [max(values) for _, values in dots]),
            )
        )
        printed = () if form else _printed(entry.published, i, panel, key[0], places)
        if printed and shown.kind != "bars":
            xs, ys = zip(*printed, strict=True)
            series.append(Series(kind="dots", filled=False, colour=colour, x=xs, y=ys))
    if not series:
        return None
    x, at = entry.x, list(places.values())
    log = x is not None and x.log and min(at) > 0
    room = 0.6 if shown.kind == "bars" or len(at) == 1 else 0.05 * (max(at) - min(at))
    ends = (min(at) / 1.2, max(at) * 1.2) if log else (min(at) - room, max(at) + room)
    return Figure(
        key=f"{entry.name}-{i}-{panel}",
        title=title,
        caption=_caption(shown),
        label=title,
        x="" if x is None else x.label,
        limits=ends,
        log=log,
        ticks=() if x is None or log else [(place, name) for name, place in places.items()],
        panels=[_panel(shown, series)],
        height=2.2,
    )


def _panel(shown: Shown, series: Sequence[Series]) -> Panel:
    percent = shown.measure.percent
    label = shown.measure.told + (" (%)" if percent else "")
    return Panel(label=label, series=series, percent=percent)


def _curves(results: Results, i: int, shown: Shown, panel: str, title: str) -> Figure | None:
    entry, many = results.grid.entry, len(results.grid.points)
    scale = 100.0 if shown.measure.percent else 1.0
    series = []
    for label, index, form, key in _lines(results):
        for j, point in enumerate(results.grid.points):
            found = results.values(shown.measure, Place(panel, key[1], key[0], point))
            curves = [
                ([x for x, _ in value], [scale * y for _, y in value])
                for value in found.values()
                if isinstance(value, tuple)
            ]
            curve, number = band(curves), index * many + j
            if curve.x:
                name = ", ".join(filter(None, (label, point)))
                colour, dash = look(number)[0], look(number + 8 * form)[1]
                series.append(replace(curve, name=name, colour=colour, dash=dash))
    if not series:
        return None
    return Figure(
        key=f"{entry.name}-{i}-{panel}",
        title=title,
        caption=_caption(shown),
        label=title,
        x=getattr(shown.measure, "over", "round"),
        panels=[_panel(shown, series[:MOST_CURVES])],
        height=2.2,
    )


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


def _values(results: Results, shown: Shown, place: Place) -> list[float]:
    """What is shown, of each seed; empty where there is nothing."""
    cell = results.grid.at(place)
    if cell is None or cell.place != place:
        return []
    scale = 100.0 if shown.measure.percent else 1.0
    return [
        scale * value for value in results.numbers(shown.measure, place).values() if isfinite(value)
    ]


def _printed(
    published: Sequence[Published], i: int, panel: str, series: str, places: dict[str, float]
) -> list[tuple[float, float]]:
    return [
        (places[each.x], each.value)
        for each in published
        if (each.shown, each.panel, each.series) == (i, panel, series) and each.x in places
    ]
