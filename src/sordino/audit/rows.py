"""Attacks on whole runs: each regime says in its module ``audit`` what can be planted in one."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from sordino.audit.intervals import Interval
from sordino.base.errors import StudyError
from sordino.core import records, regimes
from sordino.core.prepared import PreparedRun
from sordino.core.simulation import Snapshot
from sordino.core.study.base import Study

S = TypeVar("S", bound=Study)
Row = Callable[[float], Interval]
"""Makes a row of the table, whose lower bounds are wrong with at most this probability."""


class Rows(Protocol):
    """``ROWS`` of a regime's module ``audit``."""

    def __call__(self, study: Any, canaries: int, name: str, /) -> Sequence[Row]:
        """The rows of one study, with at most so many canaries in a run.

        Raises:
            StudyError: if nothing can be planted in it.
        """
        ...


def alone(study: S) -> S:
    """The study with a ledger of its run: an attack spends nothing of a lasting one's budget."""
    privacy = study.privacy.model_copy(update={"ledger": "run"})
    return study.model_copy(update={"privacy": privacy})


def rows(study: Study, canaries: int, name: str) -> Sequence[Row]:
    """Attacks with canaries on a study; ``name`` is what its rows are called.

    Raises:
        StudyError: if its regime has none, or they do not fit it.
    """
    package = regimes.package(study.regime)
    found = importlib.import_module(package)
    if hasattr(found, "__path__") and importlib.util.find_spec(f"{package}.audit") is not None:
        found = importlib.import_module(f"{package}.audit")
    made: Rows | None = getattr(found, "ROWS", None)
    if made is None:
        raise StudyError(
            f"method.name = {study.method.name!r}: --attack canaries does not know how to plant "
            f"anything in regime {study.regime!r}; its package may have a module `audit` with ROWS"
        )
    return made(study, canaries, name)


class _Nobody:
    """Nobody watches, and nothing is kept."""

    def row(self, row: records.Row) -> None: ...

    def save(self, moment: Snapshot) -> None: ...


def played(built: PreparedRun) -> None:
    """Play a run to its end by the ordinary kernel, charged to its ledger; no model is kept."""
    built.simulation.run(built.first, _Nobody())
