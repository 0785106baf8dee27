"""What a regime is: one way to learn together, in a folder of its own.

The engine knows regimes by this interface only. A new one is a package with a subclass of it, and
one call of :func:`sordino.core.regimes.register`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from sordino.base.errors import StudyError
from sordino.base.registry import Registry
from sordino.core.built import Built
from sordino.core.method import Method
from sordino.core.narration import Advice, Told
from sordino.core.plan import Plan
from sordino.core.study.base import Study
from sordino.core.world import Summing

if TYPE_CHECKING:
    from sordino.core.network import NetworkRegime

S = TypeVar("S", bound=Study)


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
    def build(self, study: S, folder: Path, run: str, payable: Sequence[int] | None) -> Built:
        """The simulation of a study, calibrated. The ledger is opened (or made) in ``folder``.

        Args:
            payable: what each client could pay for when the run began, if it began before: its own
                charges must not be counted twice.
        """

    @abstractmethod
    def told(self, study: S, plan: Plan) -> Sequence[Told]:
        """A plan, for people."""

    @abstractmethod
    def assumptions(self, study: S) -> list[str]:
        """What the guarantee, or the run, rests on."""

    def advise(self, study: S, seen: Callable[[int, int], None]) -> Advice:
        """What else a study could ask for at its price.

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
        """What the promise is about, where it is not what its unit says."""
        return None

    def summing(self, study: S) -> Summing | None:
        """What is summed, where the server learns nothing but sums."""
        return None

    def against(self, study: S) -> str:
        """Against whom the promise holds."""
        return (
            "This holds even if an observer knows everything else and controls all other "
            f"{self.others}."
        )

    def remarks(self, study: S) -> list[str]:
        """What is said before a run."""
        return []
