"""Studies that differ in one key: a line of a picture for each method, a point for each value.

>>> goal("0.75"), goal("loss=0.5")
(Goal(key='accuracy', value=0.75), Goal(key='loss', value=0.5))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sordino.base.errors import StudyError
from sordino.clients.study import HorizontalStudy
from sordino.comparison.record import OverOf, PointOf
from sordino.comparison.schedule import Side
from sordino.core.run.reading import Run
from sordino.core.study.base import Study
from sordino.report.sweep import EDGES, EPSILON, Goal, Lines, Sweep

if TYPE_CHECKING:
    from sordino.comparison.result import Member

KEYS: dict[str, Callable[[Study], float]] = {
    EPSILON: lambda study: math.inf if study.privacy.epsilon is None else study.privacy.epsilon,
    EDGES: lambda study: (
        float(study.data.clients) if isinstance(study, HorizontalStudy) else float("nan")
    ),
}


@dataclass(frozen=True, slots=True)
class Over:
    """A key to draw over, and for a figure of how long it took, a goal."""

    key: str
    goal: Goal | None = None

    def value(self, side: Side) -> float:
        """Of the key, in a study."""
        return KEYS[self.key](side.study)


def over(key: str | None, until: str | None, sides: Sequence[Side]) -> Over | None:
    """Return the meaning of ``--over`` and ``--until``.

    Raises:
        StudyError: if that cannot be drawn of these studies.
    """
    if key is None:
        if until is not None:
            raise StudyError(f"--until goes with --over {EDGES}")
        return None
    if key not in KEYS:
        raise StudyError(f"--over must be one of {', '.join(KEYS)}; got {key!r}")
    if (key == EDGES) != (until is not None):
        raise StudyError(
            f"--over {EDGES} draws how long it took: give a threshold with it, for example "
            "--until 0.75"
            if key == EDGES
            else f"--over {key} draws final accuracies: --until goes with --over {EDGES}"
        )
    asked = Over(key, None if until is None else goal(until))
    if without := next((side for side in sides if math.isnan(asked.value(side))), None):
        raise StudyError(
            f"--over {key}: {without.path} has no {key}; give studies that do, or --over {EPSILON}"
        )
    values = {asked.value(side) for side in sides}
    if len({value for value in values if math.isfinite(value)}) < 2:
        told = ", ".join(f"{value:g}" for value in sorted(values))
        raise StudyError(
            f"--over {key}: the studies do not differ in it (it is {told}); there is nothing "
            "to draw over"
        )
    taken: dict[tuple[str, float], Side] = {}
    for side in sides:
        place = line(side.study), asked.value(side)
        if place in taken:
            raise StudyError(
                f"--over {key}: {taken[place].path} and {side.path} both have method {place[0]} "
                f"and {key} = {place[1]:g}; a line holds one study at each value"
            )
        taken[place] = side
    return asked


def goal(text: str) -> Goal:
    """A threshold: a share of the test set, or ``loss=`` a loss.

    Raises:
        StudyError: if it is none.
    """
    key, _, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if key in ("", "accuracy") and 0 < number <= 1:
        return Goal("accuracy", number)
    if key == "loss" and 0 < number < math.inf:
        return Goal("loss", number)
    raise StudyError(
        f"--until must be an accuracy such as 0.75 or a loss such as loss=0.5; got {text!r}"
    )


def line(study: Study) -> str:
    """Which line a study belongs to."""
    return study.method.title + (", paper's form: NOT private" if study.form == "paper" else "")


def lines(asked: Over, members: Sequence[Member]) -> Lines:
    """The runs of each method at each value."""
    found: dict[str, dict[float, list[Run]]] = {}
    for member in members:
        if member.runs:
            found.setdefault(line(member.side.study), {})[asked.value(member.side)] = list(
                member.runs.values()
            )
    return found


def sweep(asked: Over | None, members: Sequence[Member]) -> Sweep | None:
    """The picture that was asked for."""
    return None if asked is None else Sweep(asked.key, lines(asked, members), asked.goal)


def recorded(asked: Over, members: Sequence[Member]) -> OverOf:
    """Its numbers by seed, for ``comparison.json``; None where the goal was not reached."""
    points = tuple(
        PointOf(
            method=line(member.side.study),
            value=asked.value(member.side),
            by_seed={
                str(seed): run.accuracy if asked.goal is None else asked.goal.of(run)
                for seed, run in member.runs.items()
            },
        )
        for member in members
    )
    return OverOf(
        key=asked.key,
        until=None if asked.goal is None else {asked.goal.key: asked.goal.value},
        points=points,
    )
