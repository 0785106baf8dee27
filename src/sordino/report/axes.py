"""Axes of pictures: their numbers, their labels, and marks on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sordino.core.vocabulary import Vocabulary
from sordino.report.canvas import QUIET

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONG = 1e5  # from this count on, digits are grouped


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on the x axis where something new begins, and what is written there."""

    at: float
    text: str = ""


def label_of(words: Vocabulary, over: str) -> str:
    """What the x axis of "round" or "steps" counts."""
    return {"round": words.round, "steps": words.steps_of_one}[over]


def draw_marks(axes: Sequence[Axes], marks: Sequence[Mark]) -> None:
    """A line at each mark but at 0, its text above if there is room. Limits must be set."""
    low, high = axes[0].get_xlim()
    free = low
    for mark in marks:
        for axis in axes if mark.at > low else ():
            axis.axvline(mark.at, color=QUIET, linestyle=":", linewidth=1.1)
        if mark.text and mark.at >= free:
            axes[0].annotate(
                mark.text,
                (mark.at, 1),
                xycoords=("data", "axes fraction"),
                xytext=(1, 1),
                textcoords="offset points",
                size=8.5,
            )
            free = mark.at + (high - low) * 0.018 * (len(mark.text) + 1)


def from_zero(axis: Axes, last: float, label: str) -> None:
    """An x axis of counts; long ones in groups of three digits."""
    axis.set_xlim(0, 1.02 * max(last, 1.0))
    axis.set_xlabel(label)
    if last >= LONG:
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.xaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:,.0f}".replace(",", "\u202f"))
        )


def of_percent(axis: Axes) -> None:
    """A y axis of shares that ends where they end: no number below 0 % or above 100 %.

    What lies beyond them, as estimates may, is shown all the same.
    """
    low, high = axis.dataLim.intervaly
    bottom, top = axis.get_ylim()
    if low >= 0 and high <= 100:
        axis.set_ylim(max(bottom, 0.0), min(top, 100.0))


def whole_numbers(axis: Axes) -> None:
    """A y axis whose numbers are whole."""
    from matplotlib.ticker import MaxNLocator

    axis.yaxis.set_major_locator(MaxNLocator(integer=True))


def logarithmic(axis: Axes, low: float, high: float, which: str = "y") -> None:
    """A logarithmic axis from ``low`` to ``high``, its numbers plain ones, as many as fit."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    (axis.set_yscale if which == "y" else axis.set_xscale)("log")
    (axis.set_ylim if which == "y" else axis.set_xlim)(low, high)
    ruler = axis.yaxis if which == "y" else axis.xaxis
    ruler.set_major_locator(FixedLocator(ticks(low, high)))
    ruler.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
    ruler.set_minor_locator(NullLocator())


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers for a logarithmic axis.

    >>> ticks(0.02, 3.0), ticks(900, 2100), ticks(1e-6, 1e6)
    ([0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0], [1000.0, 1200.0, 1500.0, 2000.0], [1e-06, 0.0001, 0.01,
    1.0, 100.0, 10000.0, 1000000.0])
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for parts in (
        (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0),
        (1.0, 1.5, 2.0, 3.0, 5.0, 7.0),
        (1.0, 2.0, 5.0),
        (1.0, 3.0),
        (1.0,),
    ):
        found = [float(f"{part:g}e{decade}") for decade in decades for part in parts]
        found = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]
