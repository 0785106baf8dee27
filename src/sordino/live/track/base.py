"""What a tracker is, and which there are.

A tracker gets what the log has and nothing else: numbers of rounds, and of ``run.json`` what was
promised. What a simulation knows of its clients (examples, labels) stands in ``run.json`` as well
and is not handed on.

>>> scalars(Round(round=2, accuracy=0.5, epsilon=math.inf, extra={"tau": 2, "active": [1.0]}))
{'accuracy': 0.5, 'tau': 2.0}
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

from sordino.base import modules
from sordino.base.errors import StudyError
from sordino.base.registry import did_you_mean
from sordino.core.records import About, Round, known, number, plain
from sordino.core.run.session import Going, Outcome

STORE = "tracking"
"""The folder in a run folder that holds the stores."""
TOLD = (
    "run",
    "name",
    "method",
    "form",
    "regime",
    "unit",
    "adjacency",
    "epsilon_budget",
    "delta",
    "accountant",
    "noise_multiplier",
    "learning_rate",
    "batch",
    "clip",
    "sampling_rate",
    "R_c",
    "R_s",
)
"""Keys of ``run.json`` that a tracker gets; constants of the study, and no measurement of data."""


class Tracker(Protocol):
    """Is told how a run goes on, and stores it."""

    def begin(self, going: Going) -> int:
        """Open the store of this run.

        Returns:
            the last round that it holds already: 0 of a new one. No row up to it is told again.
        """
        ...

    def row(self, row: Round) -> None:
        """One row of the log, of a round that the store does not hold yet."""
        ...

    def end(self, outcome: Outcome | None) -> None:
        """Close the store; ``outcome`` is None where the run was interrupted or has failed."""
        ...


Maker = Callable[[Path], Tracker]
"""Makes the tracker whose store is a folder, which need not be there yet."""

_KNOWN: dict[str, tuple[str, Maker]] = {}


def register(name: str, package: str) -> Callable[[Maker], Maker]:
    """Make a tracker known by a name; ``package`` is what it needs, as it is imported."""

    def registered(made: Maker) -> Maker:
        _KNOWN[name] = (package, made)
        return made

    return registered


def known_names() -> tuple[str, ...]:
    """The names of the trackers of this program, in alphabetical order."""
    return tuple(sorted(_KNOWN))


def maker(name: str) -> Maker:
    """Who makes the tracker of this name, or at ``package.module:Class``.

    Raises:
        StudyError: if there is none, or the package that it needs is not installed.
    """
    if ":" in name:
        try:
            found: Any = modules.attribute(name)
        except Exception as error:  # a user's module may raise anything
            raise StudyError(f"--track {name}: {modules.told_of(error)}") from error
        return cast(Maker, found)
    if name not in _KNOWN:
        hint = did_you_mean(name, _KNOWN) or "."
        raise StudyError(
            f"--track {name}: this tracker is not known{hint} Known: {', '.join(known_names())}, "
            "or your own as package.module:Class"
        )
    package, made = _KNOWN[name]
    if find_spec(package) is None:
        raise StudyError(
            f"--track {name}: the package {package} is not installed. Install it with: "
            "pip install 'sordino[track]'"
        )
    return made


def step(row: Round) -> int:
    """The number of a row's round, update or event."""
    return known(row.round) or 0


def scalars(row: Round) -> dict[str, float]:
    """The finite numbers of a row by key; an infinite epsilon is no number to draw."""
    found = {key: number(value) for key, value in plain(row).items() if key != "round"}
    return {
        key: value for key, value in found.items() if value is not None and math.isfinite(value)
    }


def constants(about: About) -> dict[str, str | float]:
    """What the study says, of the keys in :data:`TOLD`."""
    found = plain(about)
    return {
        key: value
        for key in TOLD
        if isinstance(value := found.get(key), str | int | float) and not isinstance(value, bool)
    }


def results(outcome: Outcome) -> Mapping[str, float]:
    """The finite numbers of how a run ended: of the model that is handed out."""
    found = {
        "final_accuracy": outcome.accuracy,
        "final_epsilon": outcome.epsilon,
        "rounds": float(outcome.rounds),
        "steps": float(outcome.steps),
    }
    return {
        key: value for key, value in found.items() if value is not None and math.isfinite(value)
    }


def settle(**settings: str) -> None:
    """Set environment variables that a tracker's package reads, unless the user has set them."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)
