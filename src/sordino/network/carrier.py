"""What a network has to know of a kind of studies: what each process of a federation builds, and
what it reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from sordino.base.errors import StudyError
from sordino.core.built import Built
from sordino.core.plan import Plan
from sordino.core.promise import Own
from sordino.core.study.base import Study
from sordino.core.world import World
from sordino.data.dataset import Dataset
from sordino.network.agreement import Agreed, Agreement, Shape
from sordino.privacy import Budget

Opened = tuple[World[Any], Any]
"""The federation as the kernel sees it, and the moment to begin at."""


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """A study's data as it lies at its sites.

    Attributes:
        shape: of all examples.
        names: of the sites, ``examples`` how many rows each has, ``files`` the arrays of its file.
        prints: fingerprints of all data, for a rehearsal.
        test: arrays that the server measures models on, if there are any.
    """

    shape: Shape
    names: tuple[str, ...]
    examples: tuple[int, ...]
    files: tuple[dict[str, NDArray[Any]], ...]
    prints: tuple[str, ...]
    test: dict[str, NDArray[Any]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """A site's objects.

    Attributes:
        built: what its run needs.
        world: its work.
        budget: what it spends at most.
    """

    built: Built
    world: Any
    budget: Budget


class Carrier(ABC):
    """One kind of studies on a network.

    Attributes:
        others: what the other sites see, for people.
        of_data: whether a site's ledger may be that of its data.
    """

    others: ClassVar[str]
    of_data: ClassVar[bool] = True

    @abstractmethod
    def calibrated(self, agreement: Agreement, study: Study) -> Study:
        """The study with its noise filled in, for these sites.

        Raises:
            StudyError: if the agreement and the study do not fit.
        """

    @abstractmethod
    def refuse_hopeless(self, agreement: Agreement, study: Study) -> None:
        """Make a calibrated study's objects once, in a folder that is thrown away: what cannot run
        is said here, before kits are handed out.

        Raises:
            SordinoError: whatever is wrong with it.
        """

    @abstractmethod
    def widest(self, agreement: Agreement, study: Study) -> int:
        """Numbers in the longest vector of a message."""

    @abstractmethod
    def served(
        self,
        agreed: Agreed,
        study: Study,
        folder: Path,
        run: str,
        payable: Sequence[int] | None,
        test: Dataset | None,
    ) -> Built:
        """The objects at the server, with its ledger in ``folder``."""

    def world(self, simulation: Any) -> Callable[[Any], Opened]:
        """What the kernel plays, from a moment."""
        return lambda moment: (simulation, moment)

    @abstractmethod
    def joined(
        self,
        agreed: Agreed,
        index: int,
        own: Dataset,
        study: Study,
        folder: Path,
        run: str,
        payable: Sequence[int] | None,
    ) -> Joined:
        """The objects at a site, with its ledger in ``folder``; ``study`` has its own limit."""

    @abstractmethod
    def own_study(
        self, agreed: Agreed, index: int, ledger: Path | None, limit: float | None
    ) -> Study:
        """The agreed study as a site runs it: with its own ledger and its own limit.

        Args:
            ledger: a folder with the ledger of its data; None for a ledger of this run.
            limit: epsilon that it spends at most, whatever was agreed to.

        Raises:
            StudyError: if they do not fit the study.
        """

    @abstractmethod
    def read_own(self, path: Path, agreement: Agreement, index: int, study: Study) -> Dataset:
        """A site's own file, as agreed.

        Raises:
            DataError: naming what differs.
        """

    @abstractmethod
    def test(self, agreed: Agreed, path: Path | None) -> Dataset | None:
        """What the server measures models on: a file, or what the study names.

        Raises:
            StudyError: if it does not fit.
        """

    @abstractmethod
    def divided(self, study: Study) -> Division:
        """The study's data, divided as a simulation divides it.

        Raises:
            StudyError: if a network cannot carry the study.
        """

    @abstractmethod
    def plan(self, agreed: Agreed, study: Study, index: int) -> Plan:
        """What the study costs a site."""

    @abstractmethod
    def released(self, study: Study, index: int) -> str:
        """What leaves a site each time that it is asked, for people."""

    def own(self, study: Study, index: int) -> Own:
        """What a site's promise is about: what it releases itself."""
        return Own("Everything that this site sends", self.unbounded(study, index))

    def unbounded(self, study: Study, index: int) -> str | None:
        """Why what a site releases has no finite price though the study protects somebody, or
        None.
        """
        return None


def refuse_limit(study: Study, limit: float | None) -> None:
    """Refuse a limit where it would mean nothing.

    Raises:
        StudyError: naming it.
    """
    if limit is not None and study.privacy.unit == "none":
        raise StudyError(
            "--epsilon-limit: this study protects nobody (privacy.unit = 'none'), and no limit "
            "holds. Do not join, or agree on a study with a guarantee"
        )
    if limit is not None and study.form != "sound":
        raise StudyError(
            "--epsilon-limit: this study is of a paper's literal form, which has no proven bound, "
            "and no limit holds. Do not join, or agree on the sound form"
        )
    if limit is not None and not limit > 0:
        raise StudyError(f"--epsilon-limit: it must be positive; got {limit}")


def carrier(study: Study) -> Carrier:
    """What carries a study. What does not is not loaded: a site's memory may be small."""
    if study.regime == "vertical":
        from sordino.network.vertical import Vertical

        return Vertical()
    from sordino.network.horizontal import Horizontal

    return Horizontal()
