"""Regimes by name. A regime is a package whose modules are looked at when they are asked for:

* ``regime``      ``REGIME``, a :class:`~sordino.core.regime.Regime`: studies, plans, what runs
  them;
* ``records``     ``FACTS`` and ``ROUND``, its part of ``run.json`` and its row of the log;
* ``vocabulary``  ``WORDS``, its nouns;
* ``report``      ``TELLER``, what it tells of a run;
* ``audit``       ``ROWS``, how its runs are attacked; it may be left out.

A regime of one file has all of this in one module. Who only draws a page does not wait for what
trains. The program's own regimes stand above the engine: their names are registered when somebody
first asks.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sordino.base.errors import StudyError

if TYPE_CHECKING:
    from sordino.core.records import Facts, Round
    from sordino.core.regime import Regime
    from sordino.core.study.base import Study
    from sordino.core.teller import Teller
    from sordino.core.vocabulary import Vocabulary

_packages: dict[str, str] = {}


def register(name: str, package: str) -> None:
    """Make a regime known.

    Args:
        name: as the ``about`` of its methods says it.
        package: where it lies, with dots; a module, where it is all in one file.

    Raises:
        StudyError: if another one has this name.
    """
    found = names()  # the program's own come first
    if name in found and _packages[name] != package:
        raise StudyError(
            f"{package}: the regime {name!r} is {_packages[name]} already; choose another name"
        )
    _packages[name] = package


def names() -> tuple[str, ...]:
    """Of every regime, in the order of registration."""
    importlib.import_module("sordino.regimes")
    return tuple(_packages)


def forget(name: str) -> None:
    """Undo a registration: for tests."""
    _packages.pop(name, None)


def named(name: str) -> Regime[Any]:
    """The regime of this name.

    Raises:
        StudyError: if there is none.
    """
    found: Regime[Any] = _part(name, "regime", "REGIME")
    return found


def known() -> Mapping[str, Regime[Any]]:
    """Every regime by its name."""
    return {name: named(name) for name in names()}


def of(study: Study) -> Regime[Any]:
    """The regime of a study."""
    return named(study.regime)


def facts(name: str | None) -> type[Facts]:
    """The part of ``run.json`` that is a regime's; the first one's where none is named.

    Raises:
        StudyError: if there is no such regime.
    """
    found: type[Facts] = _part(name, "records", "FACTS")
    if name is not None and found.__struct_config__.tag != name:
        raise StudyError(f"regime {name!r}: its FACTS must have this name as their tag")
    return found


def row(name: str | None) -> type[Round]:
    """The rows of rounds of a regime; the first one's where none is named.

    Raises:
        StudyError: if there is no such regime.
    """
    found: type[Round] = _part(name, "records", "ROUND")
    return found


def vocabulary(name: str | None) -> Vocabulary:
    """The nouns of a regime; those of the first where none is named.

    Raises:
        StudyError: if there is no such regime.
    """
    found: Vocabulary = _part(name, "vocabulary", "WORDS")
    return found


def teller(name: str | None) -> Teller:
    """Who tells of runs of a regime; the first one's where none is named.

    Raises:
        StudyError: if there is no such regime.
    """
    found: Teller = _part(name, "report", "TELLER")
    return found


def package(name: str | None) -> str:
    """Where a regime lies, with dots; the first one where none is named.

    Raises:
        StudyError: if there is no such regime.
    """
    first, *_ = names()
    found = _packages.get(first if name is None else name)
    if found is None:
        raise StudyError(
            f"regime {name!r} is not known. Known: {', '.join(_packages)}. One of your own is "
            "known when its module is imported, as a method's is by the study that names it; for "
            "a report, say where it lies with --modules FOLDER"
        )
    return found


def _part(name: str | None, module: str, constant: str) -> Any:
    """What a module of a regime says; of a regime of one file, that file."""
    place = package(name)
    found = importlib.import_module(place)
    if hasattr(found, "__path__"):
        found = importlib.import_module(f"{place}.{module}")
    if not hasattr(found, constant):
        raise StudyError(f"regime {name!r}: {found.__name__} has no {constant}; see own-regime.md")
    return getattr(found, constant)
