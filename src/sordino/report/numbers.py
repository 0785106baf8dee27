"""The numbers that a picture is drawn from, inside it: for hover values, and to download as CSV.

They stand in the picture's ``<metadata>`` as JSON: for each panel its box in the picture, its axes
and its series, or one table where series would not tell it.

>>> with canvas("numbers"):
...     drawn, (axis,) = figure(1, 2.0)
...     _ = axis.plot([1, 2], [50.0, 60.0], label="test"), axis.set_ylabel("accuracy (%)")
...     found = panel(axis, (0.0, 0.0, 1.0, 1.0), {})
>>> found["series"]
[{'name': 'test', 'x': [1, 2], 'y': [50, 60]}]
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.privacy.rounding import epsilon_text
from sordino.report.canvas import canvas, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["GID", "boxes", "canvas", "figure", "metadata", "panel"]

GID = "panel-"
"""What a panel's background is called in a picture, before its number."""
DIGITS = 6
Box = tuple[float, float, float, float]
Series = tuple[str, str, Any, Any]  # name, colour, xs, ys


def boxes(picture: str) -> list[Box]:
    """Left, top, right and bottom of each panel in the picture."""
    found = []
    for path in re.findall(rf'<g id="{GID}\d+">\s*<path d="([^"]*)"', picture):
        numbers = [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?", path)]
        xs, ys = numbers[::2], numbers[1::2]
        found.append((min(xs), min(ys), max(xs), max(ys)))
    return found


def metadata(axes: Sequence[Axes], picture: str, table: Mapping[str, Any] | None) -> str:
    """The JSON; ``table`` has a head and rows, and stands for all series."""
    colours: dict[str, str] = {}
    for axis in axes:
        for name, colour, _, _ in _series(axis):
            if name:
                colours.setdefault(colour, name)
    panels = [panel(axis, box, colours) for axis, box in zip(axes, boxes(picture), strict=False)]
    table = _lying(axes[0]) if table is None and axes else table
    if table is not None:
        panels = [{**each, "series": []} for each in panels]
    told = {"panels": panels, **({} if table is None else {"table": table})}
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def panel(axis: Axes, box: Box, colours: Mapping[str, str]) -> dict[str, Any]:
    """One panel: its box, its axes, its series; ``colours`` name those without a name here."""
    label = axis.get_ylabel()
    spent = label.startswith("epsilon")
    found = list(_series(axis))
    if any(name for name, *_ in found):  # what has no name beside them belongs to one that has
        found = [each for each in found if each[0]]
    series = []
    for name, colour, xs, ys in found:
        series.append(
            {
                "name": name or colours.get(colour, label),
                "x": _numbers(xs),
                "y": _numbers(ys, spent=spent),
            }
        )
    return {
        "box": [round(each, 2) for each in box],
        "x": {"label": axis.get_xlabel(), **_scale(axis.get_xscale(), axis.get_xlim())},
        "y": {"label": label, **_scale(axis.get_yscale(), axis.get_ylim())},
        "series": series,
    }


def _scale(kind: str, limits: tuple[float, float]) -> dict[str, Any]:
    return {"log": kind == "log", "lim": [float(f"{each:.8g}") for each in limits]}


def _series(axis: Axes) -> Iterator[Series]:
    """Lines, stairs and upright bars, in data coordinates."""
    from matplotlib.colors import to_hex
    from matplotlib.container import BarContainer
    from matplotlib.patches import StepPatch

    for line in axis.lines:
        if line.get_transform() == axis.transData and np.size(line.get_xdata()):
            yield (
                _shown(line.get_label()),
                to_hex(line.get_color()),
                line.get_xdata(),
                line.get_ydata(),
            )
    for patch in axis.patches:
        if isinstance(patch, StepPatch):
            values, edges, baseline = patch.get_data()
            middles = (np.asarray(edges)[1:] + np.asarray(edges)[:-1]) / 2
            heights = np.asarray(values) - (0 if baseline is None else np.asarray(baseline))
            yield _shown(patch.get_label()), to_hex(patch.get_facecolor()), middles, heights
    for bars in axis.containers:
        if isinstance(bars, BarContainer) and len(bars) and bars.orientation != "horizontal":
            yield _bars(bars, _shown(bars.get_label()), to_hex(bars[0].get_facecolor()))


def _bars(bars: Any, name: str, colour: str) -> Series:
    places = [bar.get_x() + bar.get_width() / 2 for bar in bars]
    return name, colour, places, [bar.get_height() for bar in bars]


def _lying(axis: Axes) -> dict[str, Any] | None:
    """Horizontal bars as a table: a row for each name beside them; None without any."""
    from matplotlib.container import BarContainer

    kinds = [
        each
        for each in axis.containers
        if isinstance(each, BarContainer) and each.orientation == "horizontal"
    ]
    names = [str(each.get_text()) for each in axis.get_yticklabels()]
    if not kinds or any(len(each) != len(names) for each in kinds):
        return None
    head = ["", *(_shown(each.get_label()) or axis.get_xlabel() for each in kinds)]
    widths = [_numbers([bar.get_width() for bar in each]) for each in kinds]
    return {"head": head, "rows": [list(row) for row in zip(names, *widths, strict=True)]}


def _shown(label: object) -> str:
    """A name; matplotlib's own for what has none begin with an underscore."""
    text = str(label)
    return "" if text.startswith("_") else text


def _numbers(values: Any, *, spent: bool = False) -> list[float | None]:
    """Numbers as JSON has them; an epsilon is rounded up."""
    found: list[float | None] = []
    for value in np.asarray(values, dtype=float).tolist():
        if not math.isfinite(value):
            found.append(None)
            continue
        shown = float(epsilon_text(value, DIGITS) if spent else f"{value:.{DIGITS}g}")
        found.append(int(shown) if shown == int(shown) and abs(shown) < 1e15 else shown)
    return found
