"""The numbers of an entry as people read them: the same cells on the page and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sordino.report import words
from sordino.report.studies import Table
from sordino.reproduction.cells import Grid, Place
from sordino.reproduction.entry import Entry, Published, Shown
from sordino.reproduction.measures import Measure
from sordino.reproduction.results import Number, Results, number
from sordino.reproduction.verdicts import Comparison

AS_PRINTED = "as printed"


@dataclass(frozen=True, slots=True)
class Named:
    """A table with its title."""

    title: str
    table: Table


def tables(results: Results) -> list[Named]:
    """Every table of an entry: for each thing that is shown and each panel, series by points."""
    found = []
    entry, grid = results.grid.entry, results.grid
    labels = {each.key: each.label for each in entry.panel}
    for i, shown in enumerate(entry.shown):
        if shown.measure.curved:
            continue
        for panel in grid.panels:
            title = ", ".join(filter(None, (shown.title or shown.measure.told, labels.get(panel))))
            found.append(Named(title, _table(results, i, shown, panel)))
    return found


def _table(results: Results, i: int, shown: Shown, panel: str) -> Table:
    grid, entry = results.grid, results.grid.entry
    # a point that was left out has its column where the paper prints something there
    asked = [point.label for point in entry.x.values] if entry.x else [""]
    points = [point for point in asked if point in grid.points]
    head = (
        [entry.x.label if entry.x else "", *points] if points != [""] else ["", shown.measure.told]
    )
    rows = []
    for series in entry.series:
        for form in entry.form:
            places = [Place(panel, form.key, series.key, point) for point in points]
            cells = {cell.place for cell in grid.cells}
            if not any(place in cells for place in places):
                continue
            told = [_cell(results, shown.measure, place) for place in places]
            rows.append([label_of(entry, series.label, form.key), *told])
        printed = [_printed(entry, i, panel, series.key, point) for point in points]
        if any(printed):
            rows.append([f"{series.label}, {AS_PRINTED}", *(each or "-" for each in printed)])
    return Table(head, rows)


def label_of(entry: Entry, label: str, form: str) -> str:
    """A series in one of its forms, in words."""
    if form == entry.form[0].key:
        return label
    named = next(each for each in entry.form if each.key == form)
    return f"{label}, {named.label or f'form {form}'}"


def _cell(results: Results, measure: Measure, place: Place) -> str:
    cell = results.grid.at(place)
    if cell is None or cell.place != place:
        return "-"
    found = {
        seed: value
        for seed, value in results.values(measure, place).items()
        if not isinstance(value, tuple)
    }
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
            return figure(each)
    return ""


def figure(published: Published) -> str:
    """A figure of the paper; ~ marks one that was read off a picture."""
    return f"{'~' if published.digitised else ''}{published.value:g}"


def epsilons(results: Results) -> Table:
    """Claimed and true epsilon of each series and form, over its points and seeds."""
    rows = []
    entry = results.grid.entry
    for series in entry.series:
        for form in entry.form:
            cells = [
                cell
                for cell in results.grid.cells
                if (cell.place.series, cell.place.form) == (series.key, form.key)
            ]
            found = [results.epsilons(cell) for cell in cells]
            if not any(true is not None for _, true in found):
                continue
            rows.append(
                [
                    label_of(entry, series.label, form.key),
                    _range([claimed for claimed, _ in found]),
                    _range([true for _, true in found]),
                ]
            )
    return Table(("series", "epsilon claimed", "epsilon true"), rows)


def _range(values: Sequence[float | None]) -> str:
    told = sorted({value for value in values if value is not None})
    if not told:
        return "-"
    low, high = words.bound(told[0]), words.bound(told[-1])
    return low if low == high else f"{low} to {high}"


def data_of(grid: Grid) -> str:
    """On what it was run, in words."""
    names = list(dict.fromkeys(each.name for each in grid.data.values() if each is not None))
    if not names:
        return ""
    other = [each for each in grid.data.values() if each is not None and not each.papers]
    return ", ".join(names) + (" (not the paper's data)" if other else "")


def statistic(each: Comparison, percent: bool) -> str:
    """A comparison in words: its mean, its interval, what it is held against."""
    scale, unit = (100.0, " points") if percent else (1.0, "")
    if each.mean is None:
        return f"{each.what}: no runs to compare"
    mean = f"{scale * each.mean:.3g}{unit}"
    if each.low is None or each.high is None:
        return f"{each.what}: {mean}, n = {each.count}: no interval"
    span = f"[{scale * each.low:.3g}, {scale * each.high:.3g}]"
    return f"{each.what}: {mean} {span}, {_held(each, scale)}, n = {each.count}"


def _held(each: Comparison, scale: float) -> str:
    if isinstance(each.level, tuple):
        low, high = each.level
        return f"asked within [{scale * low:.3g}, {scale * high:.3g}]"
    return f"asked above {scale * each.level:.3g}"
