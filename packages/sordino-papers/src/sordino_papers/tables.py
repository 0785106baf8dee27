"""The numbers of an entry as people read them: the same cells on the page and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sordino.extend.runs import Table, words
from sordino_papers.cells import Grid, Place
from sordino_papers.entry import Entry, Published, Shown
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
        points = [point.label for point in entry.x.values if point.label in grid.points]
        for panel in grid.panels:
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


def statistics(form: Judged, percent: bool) -> list[str]:
    """The comparisons of a claim in one form, in words; says so where there are none."""
    told = [statistic(each, percent) for each in form.comparisons]
    return told or ["nothing that it speaks of is run at this scale on the data that is here"]


def statistic(each: Comparison, percent: bool) -> str:
    """A comparison in words: its mean, its interval, what it is held against."""
    scale, unit = (100.0, " points") if percent else (1.0, "")
    if each.mean is None:
        why = "no finite mean" if each.count else "no runs to compare"
        return f"{each.what}: {why}"
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
