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
from sordino_papers.entry import Shown
from sordino_papers.results import Results
from sordino_papers.tables import label_of

MOST_CURVES = 24


def pictures(results: Results) -> list[Picture]:
    """The pictures of an entry: one for each thing that is shown as one, and each panel."""
    found = []
    for i, shown in enumerate(results.grid.entry.shown):
        for panel in results.grid.panels if shown.kind != "table" else ():
            series = (_curves if shown.measure.curved else _dots)(results, i, shown, panel)
            if series:
                found.append(picture_of(_figure(results, i, shown, panel, series)))
    return found


def _figure(results: Results, i: int, shown: Shown, panel: str, series: Sequence[Series]) -> Figure:
    entry, measure = results.grid.entry, shown.measure
    labels = {each.key: each.label for each in entry.panel}
    title = ", ".join(filter(None, (shown.title or measure.told, labels.get(panel))))
    label = measure.told + (" (%)" if measure.percent else "")
    figure = Figure(
        key=f"{entry.name}-{i}-{panel}",
        title=title,
        caption="Mean over seeds; a band reaches from the lowest to the highest.",
        label=title,
        x=getattr(measure, "over", "round"),
        panels=[Panel(label=label, series=series, percent=measure.percent)],
        height=2.2,
    )
    if measure.curved:
        return figure
    x, places = entry.x, _places(results)
    at = list(places.values())
    log = x is not None and x.log and min(at) > 0
    room = 0.6 if shown.kind == "bars" or len(at) == 1 else 0.05 * (max(at) - min(at))
    return replace(
        figure,
        caption="A point is the mean over seeds, its bar reaches from the lowest to the highest. "
        "Crosses are figures of the paper.",
        x="" if x is None else x.label,
        limits=(min(at) / 1.2, max(at) * 1.2) if log else (min(at) - room, max(at) + room),
        log=log,
        ticks=() if x is None or log else [(place, name) for name, place in places.items()],
    )


def _dots(results: Results, i: int, shown: Shown, panel: str) -> list[Series]:
    entry, places = results.grid.entry, _places(results)
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
        printed = [
            (places[each.x], each.value)
            for each in entry.published
            if (each.shown, each.panel, each.series) == (i, panel, key[0]) and each.x in places
        ]
        if printed and not form and shown.kind != "bars":
            xs, ys = zip(*printed, strict=True)
            series.append(Series(kind="dots", filled=False, colour=colour, x=xs, y=ys))
    return series


def _curves(results: Results, i: int, shown: Shown, panel: str) -> list[Series]:
    many = len(results.grid.points)
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
    return series[:MOST_CURVES]


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
    """The values that are shown, of each seed; empty where there is nothing."""
    cell = results.grid.at(place)
    if cell is None or cell.place != place:
        return []
    scale = 100.0 if shown.measure.percent else 1.0
    return [
        scale * value for value in results.numbers(shown.measure, place).values() if isfinite(value)
    ]
