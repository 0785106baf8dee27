"""Regimes by name. A regime is a package whose modules are looked at when they are asked for:

* ``regime``      ``REGIME``, a :class:`~sordino.engine.regime.Regime`: studies, plans, what runs
  them;
* ``vocabulary``  ``WORDS``, its nouns;
* ``report``      ``TELLER``, what it tells of a run.

Who only draws a page does not wait for what trains. The program's own regimes stand above the
engine: their names are registered when somebody first asks.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sordino.errors import StudyError

if TYPE_CHECKING:
    from sordino.engine.regime import Regime
    from sordino.engine.study.base import Study
    from sordino.engine.teller import Teller
    from sordino.engine.vocabulary import Vocabulary

_packages: dict[str, str] = {}


def register(name: str, package: str) -> None:
    """Make a regime known.

    Args:
        name: as the ``about`` of its methods says it.
        package: where it lies, with dots.
    """
    _packages[name] = package


def names() -> tuple[str, ...]:
    """Of every regime, in the order of registration."""
    importlib.import_module("sordino.regimes")
    return tuple(_packages)


def named(name: str) -> Regime[Any]:
    """The regime of this name.

    Raises:
        StudyError: if there is none.
    """
    if name not in names():
        raise StudyError(f"regime {name!r} is not known. Known: {', '.join(names())}")
    found: Regime[Any] = _part(name, "regime").REGIME
    return found


def known() -> Mapping[str, Regime[Any]]:
    """Every regime by its name."""
    return {name: named(name) for name in names()}


def of(study: Study) -> Regime[Any]:
    """The regime of a study."""
    return named(study.regime)


def vocabulary(name: object) -> Vocabulary:
    """The nouns of a regime; those of the first where it is not known."""
    found: Vocabulary = _part(name, "vocabulary").WORDS
    return found


def teller(name: object) -> Teller:
    """Who tells of runs of a regime; the first regime's where it is not known."""
    found: Teller = _part(name, "report").TELLER
    return found


def _part(name: object, module: str) -> Any:
    first, *_ = names()
    return importlib.import_module(f"{_packages.get(str(name), _packages[first])}.{module}")
