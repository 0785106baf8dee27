"""Figures of counts by row and column: who holds which labels, what is taken for what."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sordino.core.figures import Matrix
from sordino.report.canvas import BLUE, INK, QUIET, canvas, clean, figure, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 60
MOST_NUMBERS = 12  # rows of shares whose counts are written out
SMALLEST, LARGEST = 2.0, 330.0  # areas of bubbles, in square points
PAPER = "#fbfbf8"  # behind a map: on a dark page the darkest cells would vanish


def draw_matrix(shown: Matrix) -> str:
    """Return a figure of counts as SVG text."""
    return _shares(shown) if shown.kind == "shares" else _numbers(shown)


def _numbers(shown: Matrix) -> str:
    """Dots while there are few rows, else a map of averaged rows."""
    names = [clean(str(name), 24) for name in shown.columns] or [""]
    rows = [[*row, *[0] * len(names)][: len(names)] for row in shown.counts]
    called = [clean(name, 24) for name in shown.rows] or [str(i) for i in range(len(rows))]
    many = shown.many
    with canvas(shown.key):
        height = 1.6 + (4.6 if many else 0.3 * max(len(rows), 1))
        drawn, (axis,) = figure(1, height)
        if many:
            _heat(drawn, axis, rows)
        else:
            _bubbles(axis, rows, called)
        if len(names) <= 40:
            _name_columns(axis, names, sum(map(len, names)) > 60)
        axis.set_xlim(-0.6, len(names) - 0.4)
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set_xlabel(shown.x)
        axis.set_ylabel(shown.y)
        order = (
            sorted(range(len(rows)), key=lambda i: _place(rows[i])) if many else range(len(rows))
        )
        table = {
            "head": [shown.corner, *names],
            "rows": [[called[i], *rows[i]] for i in order],
            "cells": True,
        }
        return svg(drawn, shown.label, table)


def _shares(shown: Matrix) -> str:
    """A map of each row's shares, with the counts written out while there are few."""
    rows, names = ([clean(name, 24) for name in each] for each in (shown.rows, shown.columns))
    shares = [[n / max(sum(row), 1) for n in row] for row in shown.counts]
    with canvas(shown.key):
        side = 0.4 * len(names) + 1.4
        drawn, (axis,) = figure(1, min(max(side, 2.4), 5.6))
        axis.grid(visible=False)
        axis.set_facecolor(PAPER)
        axis.imshow(shares, cmap="cividis_r", vmin=0, vmax=1, interpolation="nearest")
        for i, row in enumerate(shown.counts if len(names) <= MOST_NUMBERS else ()):
            for j, n in enumerate(row):
                colour = "#ffffff" if shares[i][j] > 0.55 else "#1b1e22"
                axis.text(j, i, str(n), ha="center", va="center", size=8.5, color=colour)
        _name_columns(axis, names, sum(map(len, names)) > 40)
        axis.set_yticks(range(len(rows)), rows)
        axis.tick_params(length=0, labelcolor=INK)
        axis.set_xlabel(shown.x)
        axis.set_ylabel(shown.y)
        return svg(drawn, shown.label)


def _name_columns(axis: Axes, names: Sequence[str], turned: bool) -> None:
    axis.set_xticks(
        range(len(names)),
        list(names),
        rotation=38 if turned else 0,
        ha="right" if turned else "center",
        rotation_mode="anchor",
    )


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
    axis.set_facecolor(PAPER)
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
