"""From a drawing to SVG text: the same bytes for the same drawing, and nothing is fetched.

matplotlib draws; this module fixes what would make two reports of one run differ (dates, random
ids, the reader's own matplotlibrc) and removes what points outside (document type, metadata).
Letters stay letters, so that they can be searched, read aloud, and shown in the page's font.

Colours are those of Okabe and Ito (2008), which people with any colour vision can tell apart.
Inside a page they are looked up in the page's style, so that one picture serves light and dark:

>>> inline('<g style="stroke: #2a2f36"/>')
'<g style="stroke: var(--ink, #2a2f36)"/>'
"""

from __future__ import annotations

import io
import re
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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

    from sordino.report import numbers

    axes = [axis for axis in drawn.axes if axis.get_label() != "<colorbar>"]
    for i, axis in enumerate(axes):
        axis.patch.set_gid(f"{numbers.GID}{i}")
    file = io.StringIO()
    drawn.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    told = escape(clean(numbers.metadata(axes, text, table), MOST_TOLD))
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
