"""From a drawing to SVG text: the same bytes for the same drawing, and nothing is fetched.

matplotlib draws; this module fixes what would make two reports of one run differ (dates, random
ids, the reader's own matplotlibrc) and removes what points outside (document type, metadata).
Letters stay letters, so that they can be searched, read aloud, and shown in the page's font.

Colours are those of Okabe and Ito (2008), which people with any colour vision can tell apart.
Inside a page they are looked up in the page's style, so that one picture serves light and dark:

>>> inline('<g style="stroke: #2a2f36"/>')
'<g style="stroke: var(--ink, #2a2f36)"/>'

The numbers of a picture stand in its ``<metadata>`` as JSON, for hover values and to download as
CSV: for each panel its box, its axes and its series, or one table where series would not tell it.

>>> with canvas("numbers"):
...     drawn, (axis,) = figure(1, 2.0)
...     _ = axis.plot([1, 2], [50.0, 60.0], label="test"), axis.set_ylabel("accuracy (%)")
...     found = panel(axis, (0.0, 0.0, 1.0, 1.0), {})
>>> found["series"]
[{'name': 'test', 'x': [1, 2], 'y': [50, 60]}]
"""

from __future__ import annotations

import io
import json
import math
import re
import threading
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.privacy.rounding import epsilon_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, QUIET, GRID = "#2a2f36", "#6b7280", "#d9dde3"
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
RED, PURPLE, SKY = "#b3261e", "#aa4499", "#56b4e9"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, "#e69f00", "#332288", "#888888")

MOST_TOLD = 1 << 30
"""Characters of the numbers in a picture: as many as there are."""

NAMES = {
    INK: "ink",
    QUIET: "quiet",
    GRID: "grid",
    RED: "red",
    **{colour: f"series-{i}" for i, colour in enumerate(SERIES)},
}

RC: dict[str, object] = {
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "axes.unicode_minus": True,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 11,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # a class called "$x" is a name and no formula
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
}


_DRAWING = threading.RLock()


@contextmanager
def canvas(salt: str) -> Iterator[None]:
    """Our style, whatever the reader's is. ``salt`` keeps ids of a page's pictures apart.

    One picture at a time: matplotlib's settings are those of the whole process, and a live page
    draws in a thread of its own.
    """
    from matplotlib import style

    with _DRAWING, style.context({**RC, "svg.hashsalt": salt}, after_reset=True):
        yield


def figure(rows: int, height: float, *, width: float = 5.6) -> tuple[Figure, list[Axes]]:
    """An empty drawing of ``rows`` panels one above the other, with a common x axis.

    Sizes in inches.
    """
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height), layout="constrained")
    made = drawn.subplots(rows, 1, sharex=True, squeeze=False)
    return drawn, [made[i, 0] for i in range(rows)]


def svg(drawn: Figure, label: str, table: Mapping[str, Any] | None = None) -> str:
    """The drawing as one ``<svg>`` element.

    Args:
        label: what a screen reader says.
        table: "head" and "rows" of the numbers, where lines and bars do not tell them; "cells" if
            the picture has a place for each, columns along x and rows along y.
    """
    from xml.sax.saxutils import escape

    axes = [axis for axis in drawn.axes if axis.get_label() != "<colorbar>"]
    for i, axis in enumerate(axes):
        axis.patch.set_gid(f"{GID}{i}")
    file = io.StringIO()
    drawn.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    told = escape(clean(metadata(axes, text, table), MOST_TOLD))
    title = f"\n <title>{escape(clean(label))}</title>\n <metadata>{told}</metadata>"
    return (
        re.sub(
            r"<svg ([^>]*)>", lambda found: f'<svg role="img" {found[1]}>{title}', text, count=1
        ).rstrip()
        + "\n"
    )


def inline(picture: str) -> str:
    """The picture as part of a page: colours from its style sheet, no ids but those in use."""
    used = set(re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", picture))
    kept = {name for pair in used for name in pair if name}
    # ids are unique in a page
    picture = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in kept else "", picture)
    for colour, name in NAMES.items():
        picture = picture.replace(f": {colour}", f": var(--{name}, {colour})")
    return picture


def clean(text: str, longest: int = 60) -> str:
    """``text`` as a picture can hold it: no control characters, not endless.

    >>> clean("a" + chr(0) + "b")
    'ab'
    """
    kept = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cs", "Cn", "Co", "Cf"))
    return kept if len(kept) <= longest else kept[: longest - 1] + "…"


def shortened(text: str, longest: int) -> str:
    """``text`` with its middle left out, since names of runs mostly differ at their end.

    >>> shortened("Dirichlet, tau = 2", 11)
    'Diric…u = 2'
    """
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 2
    return text[: longest - 1 - tail] + "…" + text[len(text) - tail :]


GID = "panel-"
"""Prefix of the name of a panel's background in a picture."""
DIGITS = 6
Box = tuple[float, float, float, float]
Line = tuple[str, str, Any, Any]  # name, colour, xs, ys


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


def _series(axis: Axes) -> Iterator[Line]:
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


def _bars(bars: Any, name: str, colour: str) -> Line:
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
