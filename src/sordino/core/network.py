"""A regime on a network: the agreement between a server and its sites, and the objects that each
process of a federation makes of one study.

A network (:mod:`sordino.network`) knows no regime. It asks the regime of the agreed study for a
:class:`NetworkRegime` (:attr:`sordino.core.regimes.Regime.network`), and plays the
:class:`~sordino.core.world.ServerSide` and the :class:`~sordino.core.world.SiteSide` that it gives.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from pydantic import Field, model_validator

from sordino.base.errors import DataError, StudyError
from sordino.base.files import toml_of
from sordino.base.frozen import Frozen
from sordino.base.registry import AtLeastOne, Section
from sordino.core import study as studies
from sordino.core.plan import Disk, Plan
from sordino.core.prepared import Affordable, PreparedRun
from sordino.core.statements import SiteScope
from sordino.core.study.base import Study
from sordino.core.study.data import refuse_classes
from sordino.core.world import Arrays
from sordino.data.dataset import Dataset, Labels, Span

T = TypeVar("T", bound=Study)
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,59}$")]
TransportName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]


class SiteEntry(Section):
    """A site: its name, as in its certificate, and how many examples it has. Both are public."""

    name: Name
    examples: int = Field(ge=1, le=10**9)


class Shape(Section):
    """The form of an example, as files have it: its shape, and how its numbers are kept. The study
    may have rules for columns (``data.ranges`` and others), which sites apply.

    Attributes:
        classes: names of the classes; none where labels are numbers.
        columns: names of the features, where they have any: a file whose columns have names has
            these, in whatever order.
    """

    shape: tuple[AtLeastOne, ...]
    type: Literal["uint8", "float32"] = "float32"
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_classes(self) -> Shape:
        if self.classes:
            refuse_classes(self.classes)
        return self


class Agreement(Section):
    """The terms that a federation has agreed to.

    Attributes:
        name: of the federation.
        server: host and port that sites connect to: the server's own, or the broker's.
        transport: how frames travel: ``websocket``, or what a package beside this one adds. With
            ``mqtt`` everybody, the server too, is a client of a broker.
        minimum: sites that must be there; with fewer the run waits.
        patience: seconds without a connection after which a site counts as gone. Of events also
            those that the server waits for a site to speak, and then for the answer to its query.
        answer_within: seconds in which a site that is connected answers; one that does not is out
            until it connects again. Where the study sets a deadline, that comes first.
        data: of examples.
        site: in the order of the clients' numbers.
        modules: digests of code that the study names, which every site has of its own.
        rehearsal: fingerprints of everybody's data and of the test set, where all of it is public.
            Noise then comes from the study's seed, as in a simulation, and protects nobody.
    """

    name: Name
    server: str = Field(pattern=r"^[A-Za-z0-9_.:\[\]-]+:\d{1,5}$")
    transport: TransportName = "websocket"
    minimum: AtLeastOne = 1
    patience: float = Field(5.0, gt=0, le=86_400)
    answer_within: float = Field(21_600.0, gt=0, le=864_000)
    data: Shape
    site: tuple[SiteEntry, ...] = Field(min_length=1)
    modules: dict[str, str] = Field(default_factory=dict)
    rehearsal: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> Agreement:
        names = [each.name for each in self.site]
        if len({each.lower() for each in names}) < len(names):
            raise ValueError("two sites have the same name, or names that differ in case alone")
        if not self.data.shape:
            raise ValueError("data.shape is empty; examples of 30 features have the shape [30]")
        columns = self.data.columns
        if columns and self.data.shape != (len(columns),):
            raise ValueError(
                f"data.columns: {len(columns)} names, and data.shape = {list(self.data.shape)}"
            )
        if twice := [each for each, times in Counter(columns).items() if times > 1]:
            raise ValueError(f"data.columns: two columns have the same name, {twice[0]!r}")
        if self.minimum > len(names):
            raise ValueError(f"minimum = {self.minimum}, and there are {len(names)} sites")
        if not 0 < self.port < 65_536:
            raise ValueError(f"server = '{self.server}': the port must lie in 1..65535")
        return self

    def at(self, address: str | None) -> Agreement:
        """Return the same terms with the server, or the broker, at this host and port now.

        Raises:
            StudyError: if that is no host and port.
        """
        if address is None:
            return self
        try:
            return Agreement(**{**self.model_dump(), "server": address})
        except StudyError:
            raise StudyError(
                f"--address {address}: give a host and a port in 1..65535, such as 127.0.0.1:8443"
            ) from None

    @property
    def host(self) -> str:
        """Of the server, without brackets."""
        return self.server.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Of the server."""
        return int(self.server.rpartition(":")[2])

    @property
    def names(self) -> tuple[str, ...]:
        """Of the sites."""
        return tuple(each.name for each in self.site)

    @property
    def sizes(self) -> tuple[int, ...]:
        """n_i of every site."""
        return tuple(each.examples for each in self.site)


class DemoFiles(Frozen, eq=False):
    """A study's data, divided into a file for each site as a simulation divides it.

    Attributes:
        shape: of all examples.
        names: of the sites, ``examples`` how many rows each has, ``files`` the arrays of its file.
        prints: fingerprints of all data, for a rehearsal.
        study: about these files: rules for columns that were applied to them stand in it no more.
        test: arrays that the server measures models on, if there are any.
    """

    shape: Shape
    names: tuple[str, ...]
    examples: tuple[int, ...]
    files: tuple[Arrays, ...]
    prints: tuple[str, ...]
    study: Any
    test: Arrays | None = None


class Standing(Frozen, kw_only=True):
    """The spending of a site's rows before it joins, and what is left: for this site alone.

    Attributes:
        spent: the highest epsilon of any of its rows, by all runs of its ledger.
        pays: charges that the rest of its limit pays for; None without a limit.
        planned: charges of this site that the study plans.
        charged: what is charged, in the plural.
        rounds: the most rounds, or events as ``turns`` says, that ``pays`` lets it take part in;
            None where the charges are that.
        total: epsilon after as many of the planned charges as it pays for.
        noise: the noise multiplier of this site.
        refused: why no run over its rows can begin now; empty where one can.
        known: how many of its rows its ledger knows; ``held`` how many different rows it knows in
            all.
    """

    spent: float
    pays: int | None
    planned: int
    charged: str
    rounds: int | None
    total: float
    noise: float
    known: int = 0
    held: int = 0
    turns: str = "round"
    refused: str = ""


class NetworkRegime(ABC, Generic[T]):
    """A study that sites of a network have agreed to.

    Attributes:
        agreement: of the federation.
        study: what it is about; calibrated, but in :meth:`agreed`.
        others: what the other sites see, for people.
        data_ledger: whether a site's ledger may be that of its data.

    Raises:
        StudyError: if no network carries the study.
    """

    others: ClassVar[str]
    data_ledger: ClassVar[bool] = True

    def __init__(self, agreement: Agreement, study: T) -> None:
        self.agreement, self.study = agreement, study
        self.refuse(study)

    @classmethod
    def refuse(cls, study: T) -> None:
        """Refuse a study that no network carries.

        Raises:
            StudyError: naming the key.
        """

    def agreed(self) -> T:
        """Return the study with its noise filled in, for these sites. Its objects are made once,
        in a folder that is thrown away, so that a study that cannot run is refused before kits are
        handed out.

        Raises:
            SordinoError: if the agreement and the study do not fit, or the study cannot run.
        """
        full = self.calibrated()
        with tempfile.TemporaryDirectory() as folder:
            trial = type(self)(self.agreement, full).server(Path(folder), "trial", None, None)
            trial.simulation.ledgers.close()
        return full

    @abstractmethod
    def calibrated(self) -> T:
        """Return the study with its noise filled in, for these sites; refuse what does not fit."""

    @abstractmethod
    def widest(self) -> int:
        """Return how many numbers the longest vector of a message has."""

    @abstractmethod
    def server(
        self, folder: Path, run: str, steps: Affordable, test: Dataset | None
    ) -> PreparedRun:
        """Make the objects at the server, with its ledger in ``folder``.

        Args:
            steps: what sites could pay for when the run began, if it began before.
        """

    @abstractmethod
    def site(
        self, index: int, data: Dataset, limited: T, folder: Path, run: str, steps: Affordable
    ) -> PreparedRun:
        """Make the objects at site ``index``, with its ledger in ``folder``; ``limited`` is the
        study with this site's own limit (:meth:`limited`), ``steps`` as of :meth:`server`.

        The simulation is a :class:`~sordino.core.world.SiteSide`, with ``units`` and ``budgets`` of
        all sites.
        """

    @abstractmethod
    def limited(self, index: int, ledger: Path | None, limit: float | None) -> T:
        """Return the study as a site runs it: with its own ledger and its own limit.

        Args:
            ledger: a folder with the ledger of its data; None for a ledger of this run.
            limit: epsilon that it spends at most, whatever was agreed to.

        Raises:
            StudyError: if they do not fit the study.
        """

    @abstractmethod
    def read(self, path: Path, index: int, limited: T) -> Dataset:
        """Read a site's own file, as agreed.

        Raises:
            DataError: naming what differs.
        """

    @abstractmethod
    def test(self, path: Path | None) -> Dataset | None:
        """Return what the server measures models on: a file, or what the study names.

        Raises:
            StudyError: if it does not fit.
        """

    @classmethod
    @abstractmethod
    def demo(cls, study: T) -> DemoFiles:
        """Divide a study's data as a simulation divides it.

        Raises:
            StudyError: if a network cannot carry the study.
        """

    @abstractmethod
    def plan(self, index: int, limited: T) -> Plan:
        """Return what the study costs a site."""

    @abstractmethod
    def disk(self) -> Disk | None:
        """Return what the study takes on the disks of server and sites; None where that is not
        known.
        """

    @abstractmethod
    def standing(self, index: int, limited: T, data: Dataset) -> Standing:
        """Return what a site's rows have spent and what is left, without a change of its ledger."""

    def recognised(self, limited: T, data: Dataset) -> tuple[int, int]:
        """Return how many of a site's rows its ledger knows, and how many it knows in all."""
        return 0, 0

    @abstractmethod
    def released(self, index: int) -> str:
        """Return what leaves a site each time that it is asked, for people."""

    def own(self, index: int) -> SiteScope:
        """Return what a site's promise is about: what it releases itself."""
        return SiteScope(index, "Everything that this site sends", self.unbounded(index))

    def unbounded(self, index: int) -> str | None:
        """Return why what a site releases has no finite price though the study protects somebody,
        or None.
        """
        return None


def with_secret_noise(agreement: Agreement, study: T) -> T:
    """Return the study with noise from the system, unless this is a rehearsal.

    Raises:
        StudyError: if its other keys do not allow it.
    """
    if agreement.rehearsal or study.privacy.entropy == "system":
        return study
    secret = study.with_privacy({"entropy": "system"})
    studies.parse(toml_of(studies.write(secret)), source="the study")
    return secret


def refuse_limit(study: Study, limit: float | None) -> None:
    """Refuse a limit where it would mean nothing.

    Raises:
        StudyError: naming it.
    """
    if limit is None:
        return
    if study.privacy.unit == "none":
        raise StudyError(
            "--epsilon-limit: this study protects nobody (privacy.unit = 'none'), and no limit "
            "holds. Do not join, or agree on a study with a guarantee"
        )
    if study.form != "sound":
        raise StudyError(
            "--epsilon-limit: this study is of a paper's literal form, which has no proven bound, "
            "and no limit holds. Do not join, or agree on the sound form"
        )
    if not limit > 0:
        raise StudyError(f"--epsilon-limit: it must be positive; got {limit}")


def numbered(found: Dataset, classes: Sequence[str], path: Path) -> Labels:
    """Return labels as the federation numbers them.

    Raises:
        DataError: for a label that is none of the agreed classes.
    """
    where = {name: number for number, name in enumerate(classes)}
    # class numbers begin with 0 whether any row has it or not
    there = {found.classes[number] for number in np.unique(found.y)}
    if unknown := sorted(there - where.keys()):
        raise DataError(
            f"{path}: label {unknown[0]!r} is none of the agreed classes ({', '.join(classes)})"
        )
    numbers = np.array([where.get(name, -1) for name in found.classes], np.int64)
    labels: Labels = numbers[found.y]
    return labels


def stand_in(rows: int, shape: Shape, span: Span | None = None) -> Dataset:
    """Return a client's data where it is not: so many rows, and no memory (one zero, seen many
    times). So the server and every site make the same objects of the same study, and each computes
    only on what it has.

    Args:
        span: low and high of labels that are numbers.
    """

    def zeros(shape: tuple[int, ...], kind: str) -> Any:
        zero = np.zeros((), np.dtype(kind))
        return np.lib.stride_tricks.as_strided(zero, shape, (0,) * len(shape))

    x = zeros((rows, *shape.shape), shape.type)
    y = zeros((rows,), "int64" if span is None else "float32")
    return Dataset("elsewhere", x, y, shape.classes, span=span)
