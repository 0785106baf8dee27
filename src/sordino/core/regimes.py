"""Regimes by name. A regime is a package whose modules are looked at when they are asked for:

* ``regime``      ``REGIME``, a :class:`~sordino.core.regimes.Regime`: studies, plans, what runs
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
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from sordino.base.errors import StudyError
from sordino.base.registry import Registry

if TYPE_CHECKING:
    from sordino.core.method import Method
    from sordino.core.network import NetworkRegime
    from sordino.core.plan import Plan
    from sordino.core.prepared import PreparedRun
    from sordino.core.records import Facts, Round
    from sordino.core.statements import Advice, Paragraph, RegimeReport
    from sordino.core.study.base import Study
    from sordino.core.vocabulary import Vocabulary
    from sordino.core.world import Summing

S = TypeVar("S", bound="Study")


class Regime(ABC, Generic[S]):
    """One way to learn together.

    Attributes:
        name: as the ``about`` of its methods says it.
        study: the class of its studies, whatever their method.
        budget: the key below ``[budget]`` that only its studies have, if there is one.
        template: a study file to begin with, if there is one.
        others: who an adversary may have on its side, in the plural.
        tables: registries of tables that only its studies have.
        plain: what a study that protects nobody promises.
    """

    name: ClassVar[str]
    study: ClassVar[type[Study]]
    budget: ClassVar[str] = ""
    template: ClassVar[str] = ""
    tables: ClassVar[tuple[Registry[Any], ...]] = ()
    others: ClassVar[str] = "clients"
    plain: ClassVar[str] = (
        "No privacy guarantee: the clients' updates were computed without noise, and epsilon "
        "is infinite."
    )

    @abstractmethod
    def calibrated(self, study: S) -> S:
        """The same study with its noise filled in.

        Data is loaded only where the price depends on it.
        """

    @abstractmethod
    def plan(self, study: S) -> tuple[Plan, tuple[int, ...]]:
        """The price of a study and the clients' numbers of examples; loads data, trains nothing."""

    @abstractmethod
    def build(
        self, study: S, folder: Path, run: str, affordable_steps: Sequence[int] | None
    ) -> PreparedRun:
        """The simulation of a study, calibrated. The ledger is opened (or made) in ``folder``.

        Args:
            affordable_steps: what each client could pay for when the run began, if it began before:
                its own charges must not be counted twice.
        """

    @abstractmethod
    def told(self, study: S, plan: Plan) -> Sequence[Paragraph]:
        """A plan, for people."""

    @abstractmethod
    def assumptions(self, study: S) -> list[str]:
        """Return what the guarantee, or the run, rests on."""

    def advise(self, study: S, seen: Callable[[int, int], None]) -> Advice:
        """Return what else a study could ask for at its price.

        Args:
            seen: told how many settings were weighed, and how many there are.

        Raises:
            StudyError: if there is nothing to choose between.
        """
        raise StudyError(
            "--advise compares sampling rates and local steps, and methods of regime "
            f"{self.name!r} have no such choice"
        )

    def check(self, method: Method) -> None:
        """Hold a method against what the regime rests on.

        Raises:
            ContractBroken: naming what does not hold.
        """

    @property
    def network(self) -> NetworkRegime:
        """Its studies on a network. Loaded when it is asked for.

        Raises:
            StudyError: where no network carries them.
        """
        raise StudyError(f"regime {self.name!r} does not run on a network. Use `sordino run`")

    def released(self, study: S) -> str | None:
        """Return what the promise is about, where it is not what its unit says."""
        return None

    def summing(self, study: S) -> Summing | None:
        """Return what is summed, where the server learns nothing but sums."""
        return None

    def against(self, study: S) -> str:
        """Against whom the promise holds."""
        return (
            "This holds even if an observer knows everything else and controls all other "
            f"{self.others}."
        )

    def remarks(self, study: S) -> list[str]:
        """Return what is said before a run."""
        return []


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
    found: Regime[Any] = part(name, "regime", "REGIME")
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
    found: type[Facts] = part(name, "records", "FACTS")
    if name is not None and found.__struct_config__.tag != name:
        raise StudyError(f"regime {name!r}: its FACTS must have this name as their tag")
    return found


def row(name: str | None) -> type[Round]:
    """The rows of rounds of a regime; the first one's where none is named.

    Raises:
        StudyError: if there is no such regime.
    """
    found: type[Round] = part(name, "records", "ROUND")
    return found


def vocabulary(name: str | None) -> Vocabulary:
    """The nouns of a regime; those of the first where none is named.

    Raises:
        StudyError: if there is no such regime.
    """
    found: Vocabulary = part(name, "records", "WORDS")
    return found


def teller(name: str | None) -> RegimeReport:
    """Return who tells of runs of a regime; the first one's where none is named.

    Raises:
        StudyError: if there is no such regime.
    """
    found: RegimeReport = part(name, "report", "TELLER")
    return found


def package(name: str | None) -> str:
    """Return where a regime lies, with dots; the first one where none is named.

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


def part(name: str | None, module: str, constant: str) -> Any:
    """Return what a module of a regime says; of a regime of one file, that file.

    Raises:
        StudyError: if there is no such regime, or it does not say this.
    """
    place = package(name)
    found = importlib.import_module(place)
    if hasattr(found, "__path__") and importlib.util.find_spec(f"{place}.{module}") is not None:
        found = importlib.import_module(f"{place}.{module}")
    if not hasattr(found, constant):
        raise StudyError(f"regime {name!r}: {found.__name__} has no {constant}; see own-regime.md")
    return getattr(found, constant)


def calibrated(study: S) -> S:
    """Return the study with its noise filled in."""
    found: S = of(study).calibrated(study)
    return found


def plan(study: Study) -> tuple[Plan, tuple[int, ...]]:
    """Return the price of a study, and the clients' numbers of examples."""
    return of(study).plan(study)


def build(
    study: Study, folder: Path, run: str, affordable_steps: Sequence[int] | None = None
) -> PreparedRun:
    """Return the objects of a calibrated study, with its ledger in ``folder``."""
    return of(study).build(study, folder, run, affordable_steps)
