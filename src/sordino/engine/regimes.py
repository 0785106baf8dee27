"""Regimes by name. The program's own stand above the engine, and are imported when somebody first asks."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sordino.errors import StudyError

if TYPE_CHECKING:
    from sordino.engine.regime import Regime
    from sordino.engine.study.base import Study

_known: dict[str, Regime[Any]] = {}


def register(regime: Regime[Any]) -> None:
    """Make a regime known by its name."""
    _known[regime.name] = regime


def known() -> Mapping[str, Regime[Any]]:
    """Every regime by its name."""
    importlib.import_module("sordino.regimes")
    return MappingProxyType(_known)


def named(name: str) -> Regime[Any]:
    """The regime of this name.

    Raises:
        StudyError: if there is none.
    """
    found = known()
    if name not in found:
        raise StudyError(f"regime {name!r} is not known. Known: {', '.join(found)}")
    return found[name]


def of(study: Study) -> Regime[Any]:
    """The regime of a study."""
    return named(study.regime)
