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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.privacy.rounding import epsilon_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, QUIET, GRID = "#2a2f36", "#6b7280", "#d9dde3"
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
RED, PURPLE, SKY = "#b3261e", "#aa4499", "#56b4e9"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, "#e69f00", "#332288", "#888888")

NAMES = {
    INK: "ink",
    QUIET: "quiet",
    GRID: "grid",
    RED: "red",
    **{colour: f"series-{i}" for i, colour in enumerate(SERIES)},
}

STYLE = Path(__file__).with_name("sordino.mplstyle")
_DRAWING = threading.RLock()


@contextmanager
def canvas(salt: str) -> Iterator[None]:
    """Our style, whatever the reader's is. ``salt`` keeps ids of a page's pictures apart.

    One picture at a time: matplotlib's settings are those of the whole process, and a live page
    draws in a thread of its own.
    """
    from matplotlib import style

    with _DRAWING, style.context([STYLE, {"svg.hashsalt": salt}], after_reset=True):
        yield


def figure(rows: int, height: float, *, width: float = 5.6) -> tuple[Figure, list[Axes]]:
    """An empty drawing of ``rows`` panels one above the other, with a common x axis.

    Sizes in inches.
    """
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height), layout="constrained")
    return drawn, list(drawn.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])


def svg(
    drawn: Figure,
    label: str,
    panels: Sequence[Mapping[str, Any]] = (),
    table: Mapping[str, Any] | None = None,
) -> str:
    """The drawing as one ``<svg>`` element.

    Args:
        label: what a screen reader says.
        panels: of each panel its axes and its series, as :func:`axes_of` and numbers.
        table: "head" and "rows" of the numbers, where series do not tell them; "cells" if the
            picture has a place for each, columns along x and rows along y.
    """
    from xml.sax.saxutils import escape

    for i, axis in enumerate(each for each in drawn.axes if each.get_label() != "<colorbar>"):
        axis.patch.set_gid(f"{GID}{i}")
    file = io.StringIO()
    drawn.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    numbers: dict[str, Any] = {
        "panels": [{"box": box, **each} for box, each in zip(boxes(text), panels, strict=False)]
    }
    if table is not None:
        numbers["table"] = table
    told = json.dumps(numbers, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    named, drawing = text.removeprefix("<svg ").split(">", 1)
    return (
        f'<svg role="img" {named}>\n <title>{escape(clean(label))}</title>'
        f"\n <metadata>{escape(clean(told, len(told)))}</metadata>{drawing.rstrip()}\n"
    )


def saved(drawn: Figure, kind: str) -> bytes:
    """The drawing as a file: "pdf" or "png", of equal bytes for equal drawings."""
    file = io.BytesIO()
    made = ("CreationDate", "Creator", "Producer") if kind == "pdf" else ("Software",)
    drawn.savefig(file, format=kind, metadata=dict.fromkeys(made), dpi=200, facecolor="white")
    return file.getvalue()


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


def boxes(picture: str) -> list[list[float]]:
    """Left, top, right and bottom of each panel in the picture."""
    found = []
    for path in re.findall(rf'<g id="{GID}\d+">\s*<path d="([^"]*)"', picture):
        numbers = [round(float(each), 2) for each in re.findall(r"-?\d+(?:\.\d+)?", path)]
        xs, ys = numbers[::2], numbers[1::2]
        found.append([min(xs), min(ys), max(xs), max(ys)])
    return found


def axes_of(axis: Axes) -> dict[str, Any]:
    """The axes of a panel: labels, ends, and which are logarithmic."""
    return {
        name: {
            "label": ruler.get_label_text(),
            "log": ruler.get_scale() == "log",
            "lim": [float(f"{each:.8g}") for each in ruler.get_view_interval()],
        }
        for name, ruler in (("x", axis.xaxis), ("y", axis.yaxis))
    }


def numbers_of(values: Sequence[float], *, spent: bool = False) -> list[float | None]:
    """Numbers as JSON has them; an epsilon is rounded up.

    >>> numbers_of([1.0, math.nan, 0.12345678]), numbers_of([0.12345678], spent=True)
    ([1, None, 0.123457], [0.123457])
    """
    found: list[float | None] = []
    for value in map(float, values):
        if not math.isfinite(value):
            found.append(None)
            continue
        shown = float(epsilon_text(value, DIGITS) if spent else f"{value:.{DIGITS}g}")
        found.append(int(shown) if shown == int(shown) and abs(shown) < 1e15 else shown)
    return found
