"""Regimes by name. A regime is a package whose modules are looked at when they are asked for:

* ``regime``      ``REGIME``, a :class:`~sordino.core.regimes.Regime`: studies, plans, what runs
  them;
* ``records``     ``FACTS``, ``ROUND`` and ``WORDS``: its part of ``run.json``, its row of the log,
  its nouns;
* ``report``      ``TELLER``, what it tells of a run;
* ``audit``       ``ROWS``, how its runs are attacked; it may be left out.

A regime of one file has all of this in one module. Who only draws a page does not wait for what
trains. The program's own regimes stand above the engine: their names are registered when somebody
first asks.

The log calls what the server counts "round" and what privacy is paid for "steps", whatever the
regime. People should not have to: a run says in ``run.json`` which regime it is of, and pages,
panels and sentences take their nouns from its :class:`Vocabulary`. What "accuracy" is differs as
well: of a model on a test set, or of predictions over a stream, each made before its event was
learned from.

>>> vocabulary("asynchronous").rounds, vocabulary("synchronous").rounds
('updates', 'rounds')
>>> shared([vocabulary("asynchronous"), vocabulary("synchronous")]).rounds
'rounds or updates'
>>> shared([vocabulary("vertical"), vocabulary("synchronous")]).accuracy.share
'Share of the test set, or of a stream, classified correctly'
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from sordino.base.errors import StudyError

if TYPE_CHECKING:
    from sordino.core.method import Method
    from sordino.core.network import NetworkRegime
    from sordino.core.plan import Plan
    from sordino.core.prepared import Affordable, PreparedRun
    from sordino.core.records import Facts, Round
    from sordino.core.statements import Advice, Paragraph, RegimeReport
    from sordino.core.study.base import Study
    from sordino.core.world import Snapshot, Summing

S = TypeVar("S", bound="Study")


class Regime(ABC, Generic[S]):
    """One way to learn together.

    Attributes:
        name: as the ``about`` of its methods says it.
        study: the class of its studies, whatever their method.
        budget: the key below ``[budget]`` that only its studies have, if there is one.
        template: a study file to begin with, if there is one.
        others: who an adversary may have on its side, in the plural.
        plain: what a study that protects nobody promises.
    """

    name: ClassVar[str]
    study: ClassVar[type[Study]]
    budget: ClassVar[str] = ""
    template: ClassVar[str] = ""
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

    def complete(self, study: S, moment: Snapshot) -> bool:
        """Return whether all that was planned has been done, by whoever did most, so that nobody
        else decided how much it is.
        """
        return moment.number >= study.horizon

    @abstractmethod
    def plan(self, study: S) -> tuple[Plan, tuple[int, ...]]:
        """The price of a study and the clients' numbers of examples; loads data, trains nothing."""

    @abstractmethod
    def build(self, study: S, folder: Path, run: str, affordable_steps: Affordable) -> PreparedRun:
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
    def network(self) -> type[NetworkRegime[Any]]:
        """The class of its studies on a network. Loaded when it is asked for.

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


def part(name: str | None, module: str, constant: str) -> Any:
    """Return what a module of a regime says, of the first one where none is named; of a regime of
    one file, that file.

    Raises:
        StudyError: if there is no such regime, or it does not say this.
    """
    first, *_ = names()
    place = _packages.get(first if name is None else name)
    if place is None:
        raise StudyError(
            f"regime {name!r} is not known. Known: {', '.join(_packages)}. One of your own is "
            "known when its module is imported, as a method's is by the study that names it; for "
            "a report, say where it lies with --modules FOLDER"
        )
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


def build(study: Study, folder: Path, run: str, affordable_steps: Affordable = None) -> PreparedRun:
    """Return the objects of a calibrated study, with its ledger in ``folder``."""
    return of(study).build(study, folder, run, affordable_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The measure of a regime.

    Attributes:
        name: in a list of numbers.
        told: in a sentence or a table of final numbers.
        share: what it is a share of, the start of a caption.
        final: likewise, of a run that is over.
        curve: what is drawn over the course of a run: key of the rows, label of the axis.
        curve_is: likewise, the start of a caption; ``{round}`` stands for what is counted.
        streamed: whether it is of a stream, so that one number tells all of a run, and no row has a
            best one.
        key: of the rows and of the result.
        percent: whether it is a share.
        falling: whether less is better.
    """

    name: str
    told: str
    share: str
    final: str
    curve: tuple[str, str]
    curve_is: str
    streamed: bool = False
    key: str = "accuracy"
    percent: bool = True
    falling: bool = False


ON_TEST_SET = Accuracy(
    name="test accuracy",
    told="accuracy",
    share="Share of the test set classified correctly",
    final="Accuracy on the test set of the models handed out",
    curve=("accuracy", "accuracy (%)"),
    curve_is="Accuracy on the test set after each {round}",
)


OF_NUMBERS = Accuracy(
    name="test RMSE",
    told="RMSE",
    share="Root mean squared error on the test set, in units of the label",
    final="Root mean squared error on the test set of the models handed out",
    curve=("rmse", "RMSE"),
    curve_is="Root mean squared error on the test set after each {round}",
    key="rmse",
    percent=False,
    falling=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The nouns of a regime.

    Attributes:
        regime: its name.
        round, rounds: what the server counts.
        closed: what has happened to one that counts.
        steps: what privacy is paid for.
        steps_of_one: the same, of the participant that did most: the label of an axis.
        client, a_client, clients: who takes part.
        told: what a line of progress takes from a row: key, format ("" for as it stands).
        trail: key whose last values a panel draws.
        counted: kinds of rows that are counted, and what they are called.
        lacking: key that a line of progress tells where it is not 0.
        steps_end: whether a run ends when the steps are used up.
        accuracy: what it measures.
    """

    regime: str
    round: str = "round"
    rounds: str = "rounds"
    closed: str = "closed"
    steps: str = "local steps"
    steps_of_one: str = "local steps of one client"
    client: str = "client"
    a_client: str = "a client"
    clients: str = "clients"
    told: tuple[tuple[str, str], ...] = (("steps", ""),)
    trail: str = "accuracy"
    counted: Mapping[str, str] = field(default_factory=dict)
    lacking: str = ""
    steps_end: bool = False
    accuracy: Accuracy = ON_TEST_SET

    def many(self, count: float) -> str:
        """So many rounds.

        >>> vocabulary("asynchronous").many(1), vocabulary("asynchronous").many(200)
        ('1 update', '200 updates')
        """
        return f"{count:.15g} {self.round if count == 1 else self.rounds}"


OF_EITHER = replace(
    ON_TEST_SET,
    name="accuracy",
    share="Share of the test set, or of a stream, classified correctly",
    final="Accuracy on the test set of the models handed out, or over the whole stream",
    curve_is="Accuracy on the test set, or in the events of the last five rows of the log",
)


def of_numbers(words: Vocabulary) -> Vocabulary:
    """The same words for a run whose labels are numbers."""
    return replace(words, accuracy=OF_NUMBERS)


def shared(vocabularies: Iterable[Vocabulary]) -> Vocabulary:
    """Words for several runs on one page."""
    given = list(vocabularies)
    found = {each.regime: each for each in given}
    kinds = [found[name] for name in names() if name in found]
    measured = {each.accuracy.name for each in given}
    if len(kinds) < 2:
        alike = len(kinds) == len(measured) == 1
        return kinds[0] if alike else vocabulary(kinds[0].regime if kinds else None)
    nouns: dict[str, Any] = {
        noun: _or(getattr(each, noun) for each in kinds)
        for noun in ("round", "rounds", "steps", "client", "a_client", "clients")
    }
    return replace(
        kinds[0],
        regime="mixed",
        **nouns,
        steps_of_one=_or((each.steps_of_one for each in kinds), ", or "),
        accuracy=kinds[0].accuracy if len(measured) == 1 else OF_EITHER,
    )


def _or(words: Iterable[str], last: str = " or ") -> str:
    """
    >>> _or(["rounds", "updates", "events"])
    'rounds, updates or events'
    """
    *first, final = words
    return f"{', '.join(first)}{last}{final}" if first else final
