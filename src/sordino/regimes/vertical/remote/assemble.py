"""The objects of a study of events at its server and at each of its sites."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.base.entropy import Seeded
from sordino.base.message import Vector
from sordino.core.prepared import PreparedRun, named_parameters, open_ledgers
from sordino.core.run.environment import answering, protective
from sordino.data import stream as streams
from sordino.data.dataset import Dataset
from sordino.regimes.vertical.activity import Activity
from sordino.regimes.vertical.assemble import (
    activity,
    built,
    common,
    limit_of,
    responding,
    shaping,
)
from sordino.regimes.vertical.cut import Split, halved, one_party, rates, single
from sordino.regimes.vertical.engines import split as halves
from sordino.regimes.vertical.plan import ENTITIES, LABELS, party, promised, units
from sordino.regimes.vertical.protocol import Vertical
from sordino.regimes.vertical.remote.half import Half
from sordino.regimes.vertical.remote.rows import stream_of
from sordino.regimes.vertical.remote.site import Taking
from sordino.regimes.vertical.simulation import Events
from sordino.regimes.vertical.source import Index, parts
from sordino.regimes.vertical.study import VerticalStudy
from sordino.training.flat import Flat


@dataclass(frozen=True, slots=True, eq=False)
class Common:
    """What everybody knows of the data: stand-ins for all rows, and who holds which features.

    Attributes:
        rows: of the agreed number, shape and classes.
        fingerprint: of the data where all of it is public; None where nobody has all of it.
        patience: seconds that a server waits for a site to speak unasked, and for an answer to a
            query.
    """

    study: VerticalStudy
    rows: Dataset
    fingerprint: str | None
    patience: float

    @property
    def stream(self) -> streams.Stream:
        """The stand-ins as a stream."""
        return stream_of(self.study, self.rows)

    @property
    def held(self) -> tuple[Index, ...]:
        """Features of each party."""
        return parts(self.study, self.stream)

    def split(self) -> Split:
        """The network, cut."""
        return Split.of(self.study, self.stream, self.held)

    def shaping(self, own: str) -> list[str]:
        """What of the data shapes the noise; at a site whose data has the fingerprint ``own``."""
        return shaping(self.fingerprint or own, self.held)


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """A site's objects.

    Attributes:
        built: what a run of it needs; its simulation and first moment are a server's.
        world: its work.
    """

    built: PreparedRun
    world: Taking
    named: Callable[[Vector], dict[str, NDArray[Any]]]


def conducted(
    common_: Common,
    folder: Path,
    run: str,
    pays: Sequence[int] | None,
    *,
    names: Sequence[str] = (),
    data: str | None = None,
) -> PreparedRun:
    """The objects at the server, which has no data; at a site its ledger books ``names`` of the
    data with this fingerprint.
    """
    study, split = common_.study, common_.split()
    torch.set_num_threads(study.execution.threads)
    stream, held = common_.stream, common_.held
    wait = common_.patience
    rules = Vertical(
        split.numbers, study.world.missing, study.method.resends, wait=wait, patience=wait
    )

    def engine() -> Half:
        server = halves.Server(split.server(), halved(study), rates(study).server)
        release = study.privacy.embedding
        noise = None if release is None else single(release)
        return Half(rules, server, len(stream.classes), noise)

    own = common_.fingerprint or data or "elsewhere"
    prints = {unit: f"{own}/{unit}" for unit in names or units(study)}
    simulation = Events(
        engine=engine,
        stream=stream,
        activity=activity(study, split.columns),
        # accuracy alone
        respond=responding(study, len(stream.classes), partial(Seeded, study.seed)),
        limit=limit_of(study, pays),
        ledgers=open_ledgers(study, folder, run, prints, common_.shaping(own), public=data is None),
        units=(promised(study),) if study.privacy.unit != "none" else (),
        **common(study, split, run),
    )
    found = built(study, split, stream, held, simulation, "messages")
    return replace(found, named=partial(_half, split.flats()["server"], "server"))


def taken(
    common_: Common,
    site: int,
    own: Dataset,
    folder: Path,
    run: str,
    pays: Sequence[int] | None,
    epsilon: float = math.inf,
) -> Taken:
    """The objects at a site.

    Args:
        own: its features (n, f), or the labels at the last site.
        epsilon: what it spends at most, if less than what was agreed to.
    """
    study, split = common_.study, common_.split()
    holder = site == study.data.parties
    names = (LABELS if holder else party(site), ENTITIES)
    if study.privacy.unit == "entity":
        names = (names[1], names[0])
    print_ = own.fingerprint()
    made = conducted(common_, folder, run, pays, names=names, data=print_)
    whole = made.simulation
    assert isinstance(whole, Events)
    shape = common_.shaping(print_)
    half = None
    if not holder:
        noise = protective(study, run, shape, folder)
        half = one_party(study, split, site, noise, split.party(site))
    respond = responding(
        study, len(common_.rows.classes), partial(answering, study, run, shape, folder)
    )
    events = replace(
        whole,
        engine=_nobody,
        stream=stream_of(study, own),
        # every column is the site's own here: only its own activity is looked at
        activity=_alone(whole.activity, own),
        respond=respond,
        budget=replace(whole.budget, epsilon=min(whole.budget.epsilon, epsilon)),
    )
    world = Taking(events, site, half, names, split.numbers)
    name = "labels" if half is None else f"party{site}"
    flat = None if half is None else half.flat
    return Taken(made, world, partial(_half, flat, name))


def _alone(whole: Activity, own: Dataset) -> Activity:
    width = int(np.prod(own.shape))
    return replace(whole, columns=(slice(0, width),) * len(whole.columns))


def _nobody() -> NoReturn:
    raise TypeError("a site plays no events by itself")


def _half(flat: Flat | None, who: str, vector: Vector) -> dict[str, NDArray[Any]]:
    """One half's weights by name."""
    if flat is None:
        return {}
    return {f"{who}.{name}": values for name, values in named_parameters(flat, vector).items()}
