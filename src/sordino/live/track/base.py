"""The interface of trackers, and those that there are.

A tracker gets what the log has and nothing else: numbers of rounds, and of ``run.json`` what was
promised. What a simulation knows of its clients (examples, labels) stands in ``run.json`` as well
and is not handed on.

>>> scalars(Round(round=2, accuracy=0.5, epsilon=math.inf, extra={"tau": 2, "active": [1.0]}))
{'accuracy': 0.5, 'tau': 2.0}
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, cast

from sordino.base import modules
from sordino.base.errors import StudyError
from sordino.base.files import folder_below
from sordino.base.registry import did_you_mean
from sordino.core.records import About, Round, Row, known, number, plain
from sordino.core.run import log
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
    """Return the maker of the tracker of this name, or at ``package.module:Class``.

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
    """Return the study's values of the keys in :data:`TOLD`."""
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


Say = Callable[[str], None]


class Tracking:
    """Hands a run on to trackers; ``begin`` and ``row`` fit :func:`sordino.core.run.session.begin`.

    ``end(None)`` closes what was not ended as interrupted.

    Args:
        names: of known trackers, or ``package.module:Class``, or the class itself.
        warn: is told once of a tracker that has failed; it gets no more rows then.

    Raises:
        StudyError: if a name is not known, a package is missing, or two have one name.
    """

    def __init__(self, names: Sequence[str | Maker] = (), warn: Say = lambda _: None) -> None:
        self._makers: dict[str, Maker] = {}
        for each in dict.fromkeys(names):
            name, made = (each, maker(each)) if isinstance(each, str) else (_called(each), each)
            if name in self._makers:
                raise StudyError(f"track: two trackers are called {name!r}, and so is their store")
            self._makers[name] = made
        self._warn = warn
        self._open: dict[str, tuple[Tracker, int]] = {}

    def begin(self, going: Going) -> None:
        """Open the stores, and tell each what the log of a resumed run has and it has not."""
        for name, made in self._makers.items():
            with self._guarded(name):
                # a folder of somebody else's, with a link in it, sends no store elsewhere
                tracker = made(folder_below(going.folder, STORE, name.replace(":", ".")))
                self._open[name] = tracker, int(tracker.begin(going))
        for row in _told(going) if self._open else ():
            self.row(row)

    def row(self, row: Row) -> None:
        """One row of the log; trackers get those of rounds that they do not hold."""
        if not isinstance(row, Round):
            return
        for name, (tracker, last) in list(self._open.items()):
            if step(row) > last:
                with self._guarded(name):
                    tracker.row(row)
                    self._open[name] = tracker, step(row)

    def end(self, outcome: Outcome | None) -> None:
        """Close the stores."""
        for name, (tracker, _) in list(self._open.items()):
            with self._guarded(name):
                tracker.end(outcome)
        self._open.clear()

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Drop a tracker that fails, with a warning."""
        try:
            yield
        except (Exception, SystemExit) as error:  # a package of others may raise anything
            self._open.pop(name, None)
            self._warn(
                f"--track {name} has failed and is left out from here on; the run goes on "
                f"({type(error).__name__}: {error})"
            )


def _called(own: Maker) -> str:
    """The name of the folder of a tracker that is given as a class."""
    return str(getattr(own, "__name__", type(own).__name__)).strip("<>")


def _told(going: Going) -> Sequence[Round]:
    """The rounds that the log of a resumed run has and that will not be repeated."""
    if not going.rounds_done:
        return ()
    return [
        row
        for row in log.rows(going.folder, going.about.regime)
        if isinstance(row, Round) and step(row) <= going.rounds_done
    ]
