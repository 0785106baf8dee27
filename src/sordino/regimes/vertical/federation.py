"""Studies of events on a network: sites have different columns of the same rows, and one more site
has the labels.

Rows are aligned: the k-th row of every file is about the same entity. Which event shows which row
follows from the study's seed, or is their order.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.base.entropy import Seeded
from sordino.base.errors import DataError, StudyError
from sordino.base.message import Vector
from sordino.base.parsing import toml_of
from sordino.core import study as studies
from sordino.core.network import (
    Agreement,
    DemoFiles,
    NetworkRegime,
    Shape,
    SiteObjects,
    refuse_limit,
    stand_in,
)
from sordino.core.plan import Plan
from sordino.core.prepared import PreparedRun, named_parameters, open_ledgers
from sordino.core.run.environment import answering, protective
from sordino.core.study.base import Study
from sordino.core.world import ServerSide
from sordino.data import stream as streams
from sordino.data.dataset import Dataset, refuse_non_finite, single
from sordino.data.labels import encode
from sordino.data.table import columns_of, in_order, read_arrays
from sordino.regimes.vertical import plan as prices
from sordino.regimes.vertical.halves import Server
from sordino.regimes.vertical.models import (
    Split,
    half_settings,
    make_party,
    mechanism_of,
    rates,
)
from sordino.regimes.vertical.network import ServerModel, VerticalServer, VerticalSite
from sordino.regimes.vertical.protocol import Vertical
from sordino.regimes.vertical.run import (
    Events,
    appearances,
    built,
    randomizer,
    shaping,
    simulation,
)
from sordino.regimes.vertical.stream import Index, parts, refuse, source, stream_of, whole
from sordino.regimes.vertical.study import VerticalStudy
from sordino.training.flat import Flat

HOLDER = "labels"
"""Name of the site that has the labels, in the files of a demo."""


@dataclass(frozen=True, slots=True, eq=False)
class AgreedStudy:
    """A study of events, with what everybody knows of the data.

    Attributes:
        study: calibrated.
        rows: stand-ins of the agreed number, shape and classes.
        fingerprint: of the data where all of it is public; None where nobody has all of it.
        patience: seconds that a server waits for a site to speak unasked, and for an answer to a
            query.
    """

    study: VerticalStudy
    rows: Dataset
    fingerprint: str | None
    patience: float

    @staticmethod
    def of(agreement: Agreement, study: Study) -> AgreedStudy:
        """Return what an agreement says of a study's data."""
        rows = stand_in(min(agreement.sizes), agreement.data)
        fingerprint = agreement.rehearsal[0] if agreement.rehearsal else None
        return AgreedStudy(_vertical(study), rows, fingerprint, agreement.patience)

    @property
    def stream(self) -> streams.Stream:
        """The stand-ins as a stream."""
        return stream_of(self.study, self.rows)

    @property
    def held(self) -> tuple[Index, ...]:
        """Features of each party."""
        return parts(self.study, self.stream)

    def split(self) -> Split:
        """Return the network, cut."""
        return Split.of(self.study, self.stream, self.held)

    def shaping(self, local: str) -> list[str]:
        """Return what of the data shapes the noise, at a site whose data has this fingerprint."""
        return shaping(self.fingerprint or local, self.held)

    def server(
        self,
        folder: Path,
        run: str,
        pays: Sequence[int] | None,
        *,
        names: Sequence[str] = (),
        data: str | None = None,
    ) -> PreparedRun:
        """Make the objects at the server, which has no data; at a site its ledger books ``names``
        of the data with this fingerprint.
        """
        study, split, stream, held = self.study, self.split(), self.stream, self.held
        torch.set_num_threads(study.execution.threads)
        rules = Vertical(
            split.numbers,
            study.world.missing,
            study.method.resends,
            wait=self.patience,
            patience=self.patience,
        )

        def engine() -> ServerModel:
            server = Server(split.server(), half_settings(study), rates(study).server)
            release = study.privacy.embedding
            noise = None if release is None else mechanism_of(release)
            return ServerModel(rules, server, len(stream.classes), noise)

        local = self.fingerprint or data or "elsewhere"
        prints = {unit: f"{local}/{unit}" for unit in names or prices.units(study)}
        events = simulation(
            study,
            split,
            run,
            engine=engine,
            stream=stream,
            # it estimates accuracy, and tells no labels
            randomizer=randomizer(study, len(stream.classes), partial(Seeded, study.seed)),
            limit=appearances(study, pays),
            ledgers=open_ledgers(
                study,
                folder,
                run,
                prints,
                [*self.shaping(local), *split.digests(operations=not prices.unprotected(study))],
                public=data is None,
            ),
        )
        found = built(study, split, stream, held, events, "messages")
        return replace(found, named=partial(_named, split.flats()["server"], "server"))

    def site(
        self,
        index: int,
        data: Dataset,
        folder: Path,
        run: str,
        pays: Sequence[int] | None,
        epsilon: float = math.inf,
    ) -> tuple[PreparedRun, VerticalSite]:
        """Make the objects at a site.

        Args:
            data: its features (n, f), or the labels at the last site.
            epsilon: what it spends at most, if less than what was agreed to.
        """
        study, split = self.study, self.split()
        holder = index == study.data.parties
        names = (prices.LABELS if holder else prices.party(index), prices.ENTITIES)
        if study.privacy.unit == "entity":
            names = (names[1], names[0])
        fingerprint = data.fingerprint()
        made = self.server(folder, run, pays, names=names, data=fingerprint)
        events = made.simulation
        assert isinstance(events, Events)
        shape = self.shaping(fingerprint)
        party, name, flat = None, "labels", None
        if not holder:
            noise = protective(study, run, shape, folder)
            party = make_party(study, split, index, noise, split.party(index))
            name, flat = f"party{index}", party.flat
        # every column is the site's own here: only its own activity is looked at
        width = int(np.prod(data.shape))
        columns = (slice(0, width),) * study.data.parties
        answers = partial(answering, study, run, shape, folder)
        events = replace(
            events,
            engine=_nobody,
            stream=stream_of(study, data),
            activity=replace(events.activity, columns=columns),
            randomizer=randomizer(study, len(self.rows.classes), answers),
            budget=replace(events.budget, epsilon=min(events.budget.epsilon, epsilon)),
        )
        work = VerticalSite(events, index, party, names, split.numbers)
        return replace(made, named=partial(_named, flat, name)), work


def _nobody() -> NoReturn:
    raise TypeError("a site plays no events by itself")


def _named(flat: Flat | None, who: str, vector: Vector) -> dict[str, NDArray[Any]]:
    """Return one half's weights by name."""
    if flat is None:
        return {}
    return {f"{who}.{name}": values for name, values in named_parameters(flat, vector).items()}


def _vertical(study: Study) -> VerticalStudy:
    assert isinstance(study, VerticalStudy)
    refuse(study)
    return study


class VerticalNetwork(NetworkRegime):
    """Every site is a party; the last one holds the labels."""

    others = "Each sees the derivatives that the server sends to it alone"
    data_ledger = False

    def agreed(self, agreement: Agreement, study: Study) -> Study:
        """Fill in the study's noise for these sites; refuse a study that cannot run."""
        own = _vertical(study)
        sites, rows = len(agreement.site), agreement.sizes
        if sites != own.data.parties + 1:
            raise StudyError(
                f"data.parties = {own.data.parties}, and the federation has {sites} sites: one "
                "for each party, and a last one that holds the labels"
            )
        if len(set(rows)) > 1:
            raise StudyError(f"sites have {min(rows)} to {max(rows)} rows, and must have the same")
        if not agreement.rehearsal:
            privacy = own.privacy.model_copy(update={"entropy": "system"})
            own = own.model_copy(update={"privacy": privacy})
            studies.parse(toml_of(studies.write(own)), source="the study")
        own = prices.calibrate(own)
        with tempfile.TemporaryDirectory() as folder:
            trial = AgreedStudy.of(agreement, own).server(Path(folder), "trial", None)
            trial.simulation.ledgers.close()
        return own

    def widest(self, agreement: Agreement, study: Study) -> int:
        """Return how many numbers the longest vector of a message has."""
        split = AgreedStudy.of(agreement, study).split()
        return max(*split.numbers, *(flat.dim for flat in split.flats().values()))

    def server(
        self,
        agreement: Agreement,
        study: Study,
        folder: Path,
        run: str,
        affordable_steps: Sequence[int] | None,
        test: Dataset | None,
    ) -> PreparedRun:
        """Make the objects at the server, with its ledger in ``folder``."""
        return AgreedStudy.of(agreement, study).server(folder, run, affordable_steps)

    def world(self, simulation: Any, moment: Any) -> tuple[ServerSide[Any], Any]:
        """Return the federation as the kernel sees it, from a moment, which is copied."""
        state = moment.state.copied()
        return VerticalServer(simulation, state), replace(moment, state=state)

    def site(
        self,
        agreement: Agreement,
        study: Study,
        index: int,
        data: Dataset,
        limited: Study,
        folder: Path,
        run: str,
        affordable_steps: Sequence[int] | None,
    ) -> SiteObjects:
        """Make the objects at site ``index``. What is released is as agreed; the site's own study
        only sets its limit.
        """
        limit = limited.privacy.epsilon or math.inf
        made, work = AgreedStudy.of(agreement, study).site(
            index, data, folder, run, affordable_steps, limit
        )
        made = replace(made, study=limited)
        return SiteObjects(made, work, work.units[index], work.budget, work.affordable_steps)

    def limited(self, study: Study, index: int, ledger: Path | None, limit: float | None) -> Study:
        """Return the agreed study with a site's own limit; ledgers are of the run only."""
        study = _vertical(study)
        refuse_limit(study, limit)
        if limit is not None and (why := self.unbounded(study, index)) is not None:
            raise StudyError(f"--epsilon-limit: no limit holds for what this site has: {why}")
        if ledger is not None:
            raise StudyError(
                "--ledger: sites of events have a ledger of the run only. Leave it out"
            )
        if limit is None or study.privacy.epsilon is None or limit >= study.privacy.epsilon:
            return study
        told = min(prices.label_epsilon(study), limit)  # is not used: releases are as agreed
        changed = {"epsilon": limit, "label_epsilon": told}
        return study.model_copy(update={"privacy": study.privacy.model_copy(update=changed)})

    def read(self, path: Path, agreement: Agreement, index: int, study: Study) -> Dataset:
        """Read a site's own file, as agreed: its columns, or the labels."""
        own = _vertical(study)
        common = AgreedStudy.of(agreement, study)
        held, classes = common.held, agreement.data.classes
        rows = agreement.site[index].examples
        if index == own.data.parties:
            labels = _column(path, own.data.label)
            x = np.zeros((len(labels), 1), np.float32)
            y = _numbered(labels, classes, path) if len(labels) == rows else np.zeros(0, np.int64)
        else:
            names = agreement.data.columns
            x = _features(path, agreement.data.type, [names[at] for at in held[index] if names])
            y = np.zeros(len(x), np.int64)
            if x.shape[1] != len(held[index]):
                raise DataError(
                    f"{path}: it has {x.shape[1]} columns; this party agreed to have "
                    f"{len(held[index])}"
                )
        if len(x) != rows:
            raise DataError(f"{path}: it has {len(x)} rows, and this site agreed to have {rows}")
        return Dataset(agreement.names[index], x, y, classes)

    def test(self, agreement: Agreement, study: Study, path: Path | None) -> Dataset | None:
        """Refuse a test set: a stream has none."""
        if path is not None:
            raise StudyError(
                "--test: an example of a stream is predicted before it is learned from"
            )
        return None

    def demo(self, study: Study) -> DemoFiles:
        """Divide the study's data into a file for each site."""
        own = _vertical(study)
        if own.data.scale != 1.0:
            raise StudyError("data.scale: let each site scale its own columns, and leave it out")
        stream, fingerprint, _ = source(own, known=False)
        held = parts(own, stream)
        x, y = whole(own, stream)
        count = own.data.parties
        return DemoFiles(
            shape=Shape(
                shape=stream.shape,
                type="uint8" if x.dtype == np.uint8 else "float32",
                classes=stream.classes,
                columns=stream.columns or (),
            ),
            names=(*["party"] * count, HOLDER),
            examples=(len(y),) * (count + 1),
            files=(
                *({"x": np.ascontiguousarray(x[:, part])} for part in held),
                {"y": np.array(stream.classes)[y]},
            ),
            prints=(fingerprint,),
        )

    def plan(self, agreement: Agreement, study: Study, index: int, limited: Study) -> Plan:
        """Return what the study costs a site."""
        return prices.price(_vertical(study))

    def released(self, study: Study, index: int) -> str:
        """Return what leaves a site each time that it is asked, for people."""
        own = _vertical(study)
        if index == own.data.parties:
            private = own.privacy.unit != "none"
            return f"the label of an event, {'by randomised response' if private else 'as it is'}"
        noise = "with noise on it" if own.privacy.embedding is not None else "WITHOUT any noise"
        return f"an embedding of its columns of an event, {noise}, and whether it is active"

    def unbounded(self, study: Study, index: int) -> str | None:
        """Return why what a site releases has no finite price, where the study protects labels."""
        own = _vertical(study)
        if own.privacy.unit != "label" or index == own.data.parties:
            return None
        return prices.unprotected(own) or "this study promises nothing about features"


def _features(path: Path, kind: str, wanted: Sequence[str]) -> NDArray[Any]:
    """All columns of a party's file, (n, f): those that are wanted, where columns have names."""
    columns: list[str] = []
    if path.suffix.lower() == ".npz":
        arrays, names = read_arrays(path, ("x",))
        if "x" not in arrays:
            raise DataError(f"{path}: no array 'x'; found {', '.join(names)}")
        x = arrays["x"]
    else:
        found = columns_of(path)
        columns = in_order(list(found), wanted, str(path), "the agreed ones")
        x = np.stack([found[name] for name in columns], axis=1)
    if x.ndim != 2 or x.dtype.kind not in "uif":
        raise DataError(f"{path}: features must be numbers, a row for each event")
    if kind == "uint8":
        if x.dtype != np.uint8:
            raise DataError(f"{path}: agreed are pixels (uint8), found {x.dtype}")
        return x
    found_x = single(x)
    refuse_non_finite(found_x, str(path), columns)
    return found_x


def _column(path: Path, label: str) -> NDArray[Any]:
    """The labels in a file, (n,)."""
    if path.suffix.lower() == ".npz":
        arrays, found = read_arrays(path, ("y",))
        wanted = "y"
    else:
        arrays = columns_of(path)
        found, wanted = list(arrays), label
    if wanted not in arrays:
        raise DataError(f"{path}: no {wanted!r} for the labels; found {', '.join(found)}")
    return arrays[wanted]


def _numbered(labels: NDArray[Any], classes: Sequence[str], path: Path) -> NDArray[np.int64]:
    found = encode((labels,), str(path), "classes")  # so that 1.0 and True mean class 1
    (y,), names = found.parts, found.classes
    where = {name: number for number, name in enumerate(classes)}
    if unknown := [names[number] for number in np.unique(y) if names[number] not in where]:
        raise DataError(
            f"{path}: label {unknown[0]!r} is none of the agreed classes ({', '.join(classes)})"
        )
    return np.array([where.get(name, -1) for name in names], np.int64)[y]
