"""The picture of a partition: who holds how many examples of which label.

>>> picture = partition_figure([[3, 0], [1, 2]], ["cat", "dog"])
>>> picture.startswith("<svg") and "cat" in picture
True
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sordino.core.vocabulary import Vocabulary, of
from sordino.report.canvas import BLUE, QUIET, canvas, clean, figure, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BUBBLES = 30
MOST_ROWS = 60
SMALLEST, LARGEST = 2.0, 330.0  # areas of bubbles, in square points


def partition_figure(
    counts: Sequence[Sequence[int]],
    classes: Sequence[str],
    words: Vocabulary | None = None,
    clients: Sequence[str] = (),
) -> str:
    """How many examples of each class (column) each client (row) has, as SVG text."""
    words = words or of(None)
    names = [clean(str(name), 24) for name in classes] or [""]
    rows = [[*row, *[0] * len(names)][: len(names)] for row in counts]
    with canvas("partition"):
        many = len(rows) > MOST_BUBBLES
        height = 1.6 + (4.6 if many else 0.3 * max(len(rows), 1))
        drawn, (axis,) = figure(1, height)
        if many:
            _heat(drawn, axis, rows)
        else:
            _bubbles(
                axis,
                rows,
                [clean(name, 24) for name in clients] or [str(i) for i in range(len(rows))],
            )
        if len(names) <= 40:
            turned = sum(len(name) for name in names) > 60
            axis.set_xticks(
                range(len(names)),
                names,
                rotation=35 if turned else 0,
                ha="right" if turned else "center",
                rotation_mode="anchor",
            )
        axis.set_xlim(-0.6, len(names) - 0.4)
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set_ylabel(
            f"{words.clients}, ordered by the label they hold most of" if many else words.client
        )
        table = {"head": [words.client, *names], "rows": _rows(rows, clients, many), "cells": True}
        return svg(drawn, f"Examples of each label at each {words.client}", table)


def _rows(
    rows: Sequence[Sequence[int]], clients: Sequence[str], many: bool
) -> list[list[str | int]]:
    """The counts as a table, in the order in which they are drawn."""
    names = [clean(name, 24) for name in clients] or [str(i) for i in range(len(rows))]
    order = sorted(range(len(rows)), key=lambda i: _place(rows[i])) if many else range(len(rows))
    return [[names[i], *rows[i]] for i in order]


def aggregated(rows: Sequence[Sequence[int]], most: int) -> list[list[float]]:
    """Clients ordered by their commonest label, then averaged in at most ``most`` groups.

    >>> aggregated([[0, 8], [9, 1], [0, 4], [7, 1]], 2)
    [[8.0, 1.0], [0.0, 6.0]]
    """

    ordered = sorted(rows, key=_place)
    groups = min(most, len(ordered))
    edges = [i * len(ordered) // groups for i in range(groups + 1)] if groups else [0]
    parts = [ordered[a:b] for a, b in pairwise(edges)]
    return [[sum(column) / len(part) for column in zip(*part, strict=True)] for part in parts]


def _place(row: Sequence[int]) -> tuple[bool, int, int]:
    top = max(row, default=0)
    return top == 0, (list(row).index(top) if row else 0), -top


def _bubbles(axis: Axes, rows: list[list[int]], clients: Sequence[str]) -> None:
    """Area, not width, is proportional to the count: that is how the eye reads a bubble."""
    most = max((n for row in rows for n in row), default=0) or 1
    spots = [(j, i, n) for i, row in enumerate(rows) for j, n in enumerate(row) if n > 0]
    sizes = [max(LARGEST * n / most, SMALLEST) for _, _, n in spots]
    axis.scatter(
        [j for j, _, _ in spots],
        [i for _, i, _ in spots],
        s=sizes,
        color=BLUE,
        alpha=0.85,
        linewidths=0,
    )
    axis.set_yticks(range(len(rows)), clients)
    for shown in dict.fromkeys(max(round(most * share), 1) for share in (1.0, 0.1, 0.01)):
        axis.scatter(
            [],
            [],
            s=max(LARGEST * shown / most, SMALLEST),
            color=QUIET,
            linewidths=0,
            label=f"{shown}",
        )
    axis.legend(title="examples", loc="center left", bbox_to_anchor=(1.02, 0.5), labelspacing=1.2)


def _heat(drawn: Any, axis: Axes, rows: list[list[int]]) -> None:
    """Darker is more, on a square-root scale, so that few examples are seen; none is empty.

    Clients are put in order, and neighbours averaged until at most MOST_ROWS rows are left: thinner
    ones no eye tells apart.
    """
    import numpy as np
    from matplotlib.colors import PowerNorm

    bands = aggregated(rows, MOST_ROWS)
    most = max((n for row in bands for n in row), default=0) or 1
    axis.grid(False)
    axis.set_facecolor("#fbfbf8")  # on a dark page the darkest cells would vanish
    seen = np.ma.masked_equal(np.array(bands, np.float64, ndmin=2), 0.0)
    extent = (-0.5, len(rows[0]) - 0.5, len(rows) - 0.5, -0.5)
    shown = axis.imshow(
        seen,
        aspect="auto",
        extent=extent,
        cmap="cividis_r",
        norm=PowerNorm(0.5, 0, most),
        interpolation="nearest",
    )
    bar = drawn.colorbar(
        shown,
        ax=axis,
        label="examples" if len(bands) == len(rows) else "examples, mean of neighbours",
        pad=0.02,
    )
    bar.outline.set_visible(False)
