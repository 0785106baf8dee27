"""Studies of events on a network: sites have different columns of the same rows, and one more site
has the labels.

Rows are aligned: the k-th row of every file is about the same entity. Which event shows which row
follows from the study's seed, or is their order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.base.errors import DataError, StudyError
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
from sordino.core.prepared import PreparedRun
from sordino.core.study.base import Study
from sordino.core.world import ServerSide
from sordino.data.dataset import Dataset, refuse_non_finite, single
from sordino.data.labels import encode_labels
from sordino.data.source import read_arrays
from sordino.data.table import columns_of, in_order
from sordino.regimes.vertical import plan as prices
from sordino.regimes.vertical.remote.assemble import Common, conducted, taken
from sordino.regimes.vertical.remote.rows import refuse, whole
from sordino.regimes.vertical.remote.server import Conducting
from sordino.regimes.vertical.source import parts, source
from sordino.regimes.vertical.study import VerticalStudy

LABELS = "labels"


def _own(study: Study) -> VerticalStudy:
    assert isinstance(study, VerticalStudy)
    refuse(study)
    return study


def _common(agreement: Agreement, study: Study) -> Common:
    rows = stand_in(min(agreement.sizes), agreement.data)
    print_ = agreement.rehearsal[0] if agreement.rehearsal else None
    return Common(_own(study), rows, print_, agreement.patience)


class VerticalNetwork(NetworkRegime):
    """Every site is a party; the last one holds the labels."""

    others = "Each sees the derivatives that the server sends to it alone"
    data_ledger = False

    def agreed(self, agreement: Agreement, study: Study) -> Study:
        """See :class:`~sordino.core.network.NetworkRegime`."""
        own = _own(study)
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
            built = conducted(_common(agreement, own), Path(folder), "trial", None)
            built.simulation.ledgers.close()
        return own

    def widest(self, agreement: Agreement, study: Study) -> int:
        """See :class:`~sordino.core.network.NetworkRegime`."""
        split = _common(agreement, study).split()
        return max(*split.numbers, *(flat.dim for flat in split.flats().values()))

    def server(
        self,
        agreement: Agreement,
        study: Study,
        folder: Path,
        run: str,
        payable: Sequence[int] | None,
        test: Dataset | None,
    ) -> PreparedRun:
        """See :class:`~sordino.core.network.NetworkRegime`."""
        return conducted(_common(agreement, study), folder, run, payable)

    def world(self, simulation: Any, moment: Any) -> tuple[ServerSide[Any], Any]:
        """See :class:`~sordino.core.network.NetworkRegime`."""
        state = moment.state.copied()
        return Conducting(simulation, state), replace(moment, state=state)

    def site(
        self,
        agreement: Agreement,
        study: Study,
        index: int,
        data: Dataset,
        limited: Study,
        folder: Path,
        run: str,
        payable: Sequence[int] | None,
    ) -> SiteObjects:
        """See :class:`~sordino.core.network.NetworkRegime`. What is released is as agreed; the
        site's own study only sets its limit.
        """
        limit = limited.privacy.epsilon or float("inf")
        found = taken(_common(agreement, study), index, data, folder, run, payable, limit)
        built = replace(found.built, study=limited, named=found.named)
        world = found.world
        return SiteObjects(built, world, world.units[index], world.budget, world.payable)

    def limited(self, study: Study, index: int, ledger: Path | None, limit: float | None) -> Study:
        """See :class:`~sordino.core.network.NetworkRegime`."""
        study = _own(study)
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
        """See :class:`~sordino.core.network.NetworkRegime`."""
        own = _own(study)
        common = _common(agreement, study)
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
        """See :class:`~sordino.core.network.NetworkRegime`."""
        if path is not None:
            raise StudyError(
                "--test: an example of a stream is predicted before it is learned from"
            )
        return None

    def demo(self, study: Study) -> DemoFiles:
        """See :class:`~sordino.core.network.NetworkRegime`."""
        own = _own(study)
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
            names=(*["party"] * count, LABELS),
            examples=(len(y),) * (count + 1),
            files=(
                *({"x": np.ascontiguousarray(x[:, part])} for part in held),
                {"y": np.array(stream.classes)[y]},
            ),
            prints=(fingerprint,),
        )

    def plan(self, agreement: Agreement, study: Study, index: int, limited: Study) -> Plan:
        """See :class:`~sordino.core.network.NetworkRegime`."""
        return prices.price(_own(study))

    def released(self, study: Study, index: int) -> str:
        """See :class:`~sordino.core.network.NetworkRegime`."""
        own = _own(study)
        if index == own.data.parties:
            private = own.privacy.unit != "none"
            return f"the label of an event, {'by randomised response' if private else 'as it is'}"
        noise = "with noise on it" if own.privacy.embedding is not None else "WITHOUT any noise"
        return f"an embedding of its columns of an event, {noise}, and whether it is active"

    def unbounded(self, study: Study, index: int) -> str | None:
        """See :class:`~sordino.core.network.NetworkRegime`."""
        own = _own(study)
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
    (y,), names = encode_labels((labels,), str(path))  # so that 1.0 and True mean class 1
    where = {name: number for number, name in enumerate(classes)}
    if unknown := [names[number] for number in np.unique(y) if names[number] not in where]:
        raise DataError(
            f"{path}: label {unknown[0]!r} is none of the agreed classes ({', '.join(classes)})"
        )
    return np.array([where.get(name, -1) for name in names], np.int64)[y]
