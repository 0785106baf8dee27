"""Rules for claims of a paper that runs can answer: one class for each kind.

The first field of a class is the key that selects it in a file of the catalogue. ``panel`` and
``x`` restrict a rule to some panels and points, all where left out. :mod:`.verdicts` judges.
"""

from __future__ import annotations

from typing import Literal

from sordino_papers.schema import Part

Over = Literal["each", "mean"]
"""Scope of a rule: each panel and point, or the mean over them."""


class Better(Part, frozen=True):
    """``better = "a", than = ["b", "c"]``: a is better than each, by more than ``by``.

    ``times`` asks for a ratio instead: a number that is at least so many times as good.
    """

    better: str
    than: tuple[str, ...]
    by: float = 0.0
    times: float | None = None
    over: Over = "each"
    panel: tuple[str, ...] = ()
    x: tuple[str, ...] = ()


class NoWorse(Part, frozen=True):
    """``no_worse = "a", than = [...], margin = 0.01``: a is at most so much worse than each."""

    no_worse: str
    than: tuple[str, ...]
    margin: float
    over: Over = "each"
    panel: tuple[str, ...] = ()
    x: tuple[str, ...] = ()


class Equal(Part, frozen=True):
    """``equal = "a", to = [...], margin = 0.01``: a differs from each by less than the margin."""

    equal: str
    to: tuple[str, ...]
    margin: float
    over: Over = "each"
    panel: tuple[str, ...] = ()
    x: tuple[str, ...] = ()


class Rises(Part, frozen=True):
    """``rises = ["a"]``: the number grows from the first point of ``x`` to the last, by more than
    ``by``; with ``steps = "each"`` between all neighbours. A curve grows from its first to its
    last quarter.
    """

    rises: tuple[str, ...]
    by: float = 0.0
    steps: Literal["ends", "each"] = "ends"
    panel: tuple[str, ...] = ()
    x: tuple[str, ...] = ()


class Falls(Part, frozen=True):
    """``falls = ["a"]``: as ``rises``, downwards."""

    falls: tuple[str, ...]
    by: float = 0.0
    steps: Literal["ends", "each"] = "ends"
    panel: tuple[str, ...] = ()
    x: tuple[str, ...] = ()


class Flat(Part, frozen=True):
    """``flat = ["a"], margin = 0.02``: the number at every point is within the margin of that at
    the first.
    """

    flat: tuple[str, ...]
    margin: float
    panel: tuple[str, ...] = ()
    x: tuple[str, ...] = ()


class Within(Part, frozen=True):
    """``within = ["a"], low = 2, high = 3``: the mean number lies there; either may be left out.

    Of a curve, the mean of its last quarter.
    """

    within: tuple[str, ...]
    low: float | None = None
    high: float | None = None
    panel: tuple[str, ...] = ()
    x: tuple[str, ...] = ()


class Peaks(Part, frozen=True):
    """``peaks = ["a"], at = ["2", "3"]``: the best point is among these, better than every other
    by more than ``by``.
    """

    peaks: tuple[str, ...]
    at: tuple[str, ...]
    by: float = 0.0
    panel: tuple[str, ...] = ()


class Wins(Part, frozen=True):
    """``wins = ["tau2", "tau3"], among = [...]``: one of these is the best of all in more than
    ``share`` of the cases, where each panel, point and seed is a case.
    """

    wins: tuple[str, ...]
    among: tuple[str, ...]
    share: float = 0.5
    panel: tuple[str, ...] = ()
    x: tuple[str, ...] = ()


Rule = Better | NoWorse | Equal | Rises | Falls | Flat | Within | Peaks | Wins
RULES: tuple[type[Rule], ...] = (Better, NoWorse, Equal, Rises, Falls, Flat, Within, Peaks, Wins)
