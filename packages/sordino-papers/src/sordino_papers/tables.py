"""The numbers of an entry as people read them: the same cells on the page and in Markdown; and its
pictures, as data: numbers over points, curves, and bars, each with the spread over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite
from statistics import fmean

from sordino.extend.runs import Figure, Panel, Picture, Series, Table, band, look, picture_of, words
from sordino_papers.cells import Grid, Place
from sordino_papers.entry import Entry, Shown
from sordino_papers.measures import Measure
from sordino_papers.results import Number, Results, number
from sordino_papers.verdicts import Comparison, Judged

AS_PRINTED = "as printed"


def tables(results: Results) -> list[Table]:
    """Every table of an entry: for each thing that is shown and each panel, series by points."""
    found = []
    entry, grid = results.grid.entry, results.grid
    labels = {each.key: each.label for each in entry.panel}
    for i, shown in enumerate(entry.shown):
        if shown.measure.curved:
            continue
        named = shown.title or shown.measure.told
        if entry.x is None:  # panels beside each other
            columns = [(panel, "") for panel in grid.panels]
            head = ["", *(labels.get(panel, shown.measure.told) for panel in grid.panels)]
            found.append(Table(named, head, _rows(results, i, shown, columns)))
            continue
        for panel in grid.panels:
            points = grid.points_of(panel)
            title = ", ".join(filter(None, (named, labels.get(panel))))
            columns = [(panel, point) for point in points]
            rows = _rows(results, i, shown, columns)
            found.append(Table(title, [entry.x.label, *points], rows))
    return found


def _rows(
    results: Results, i: int, shown: Shown, columns: Sequence[tuple[str, str]]
) -> list[list[str]]:
    grid, entry = results.grid, results.grid.entry
    rows = []
    for series in entry.series:
        if series.key == shown.minus or (shown.only and series.key not in shown.only):
            continue
        for form in entry.form:
            places = [Place(panel, form.key, series.key, point) for panel, point in columns]
            cells = {cell.place for cell in grid.cells}
            if not any(place in cells for place in places):
                continue
            told = [_cell(results, shown, place) for place in places]
            rows.append([label_of(entry, series.label, form.key), *told])
        printed = [_printed(entry, i, panel, series.key, point) for panel, point in columns]
        if any(printed):
            rows.append([f"{series.label}, {AS_PRINTED}", *(each or "-" for each in printed)])
    return rows


def label_of(entry: Entry, label: str, form: str) -> str:
    """A series in one of its forms, in words."""
    if form == entry.form[0].key:
        return label
    named = next(each for each in entry.form if each.key == form)
    return f"{label}, {named.label or f'form {form}'}"


def _cell(results: Results, shown: Shown, place: Place) -> str:
    cell, measure = results.grid.at(place), shown.measure
    if cell is None or cell.place != place:
        return "-"
    found = results.numbers(measure, place)
    if shown.minus:
        other = results.numbers(measure, replace(place, series=shown.minus))
        found = {seed: found[seed] - other[seed] for seed in found.keys() & other.keys()}
    return shown_as(number(measure.told, found), measure)


def shown_as(found: Number, measure: Measure) -> str:
    """Mean and standard deviation."""
    if found.mean is None:
        return "-"
    if measure.percent:
        tail = "" if found.sd is None else f" ± {100 * found.sd:.1f}"
        return f"{100 * found.mean:.1f}{tail}"
    return words.plain(found.mean) + ("" if found.sd is None else f" ± {words.plain(found.sd)}")


def _printed(entry: Entry, i: int, panel: str, series: str, point: str) -> str:
    for each in entry.published:
        if (each.shown, each.panel, each.series, each.x) == (i, panel, series, point):
            return f"{each.value:g}"
    return ""


def epsilons(results: Results) -> Table:
    """Claimed and true epsilon of each series and form, over its points and seeds."""
    rows, cells = [], results.grid.cells
    for label, _, _, key in _lines(results):
        mine = [cell for cell in cells if (cell.place.series, cell.place.form) == key]
        found = [results.epsilons(cell) for cell in mine]
        if any(true is not None for _, true in found):
            rows.append([label, *(_range([each[i] for each in found]) for i in (0, 1))])
    if all(row[1] == words.bound(math.inf) for row in rows):  # nothing claims to be private
        rows = []
    return Table("Epsilon", ("series", "epsilon claimed", "epsilon true"), rows)


def _range(values: Sequence[float | None]) -> str:
    told = sorted({value for value in values if value is not None})
    if not told:
        return "-"
    low, high = words.bound(told[0]), words.bound(told[-1])
    return low if low == high else f"{low} to {high}"


def data_of(grid: Grid) -> str:
    """On what it was run, in words."""
    taken = dict.fromkeys(
        each.name + ("" if each.papers else " (not the paper's data)")
        for each in grid.data.values()
        if each is not None
    )
    return "; ".join(taken)


def statistics(form: Judged) -> list[str]:
    """The comparisons of a claim in one form, in words; says so where there are none."""
    told = [statistic(each) for each in form.comparisons]
    return told or ["nothing that it speaks of is run at this scale on the data that is here"]


def statistic(each: Comparison) -> str:
    """A comparison in words: its mean and interval, what is asked, the paper's number."""
    if each.mean is None:
        return f"{each.what}: {'no finite mean' if each.count else 'no runs to compare'}"
    told = [f"{each.what}: {size(each.mean, each)}"]
    if each.low is None or each.high is None:
        return f"{told[0]}, n = {each.count}: no interval"
    if each.count > 1:
        span = size(each.low, each, bare=True), size(each.high, each, bare=True)
        told[0] += f" [{span[0]}, {span[1]}]"
    told += [f"asked {_asked(each)}"]
    if each.printed is not None:
        told.append(f"paper {size(each.printed, each)}")
    return ", ".join([*told, f"n = {each.count}"] if each.count > 1 else told)


def _asked(each: Comparison) -> str:
    ends = [None if end is None else size(end, each, bare=True) for end in (each.above, each.below)]
    if None not in ends:
        return f"from {ends[0]} to {ends[1]}"
    return f"above {ends[0]}" if ends[1] is None else f"below {ends[1]}"


def size(value: float, each: Comparison, *, bare: bool = False) -> str:
    """A number of a comparison in words: points of a share, times of a ratio."""
    if each.unit in ("points", "%"):
        number = 100 * value
    else:
        number = math.exp(value) if each.unit == "times" else value
    told = f"{number:.0f}" if abs(number) >= 1000 else f"{number:.3g}"
    told = "0" if abs(number) < 5e-3 and each.unit else told
    return told if bare or not each.unit else f"{told} {each.unit}"


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
