"""Where a study's events come from, and which of their features each party holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sordino.data import stream as streams
from sordino.privacy.records import Records
from sordino.privacy.records.group import ENTITY, LABEL
from sordino.regimes.vertical.plan import ENTITIES, LABELS
from sordino.regimes.vertical.study import VerticalStudy

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Arranged:
    """A stream with its features in the order of parties, side by side.

    Attributes:
        stream: what is read.
        order: features in their new order, those that nobody holds left out; None for as they come.
    """

    stream: streams.Stream
    order: Index | None

    def read(self, start: int, count: int) -> streams.Piece:
        """See :class:`sordino.data.stream.Stream`."""
        piece = self.stream.read(start, count)
        return (
            piece
            if self.order is None
            else replace(piece, x=np.ascontiguousarray(piece.x[:, self.order]))
        )

    def changes(self, start: int, stop: int) -> Sequence[int]:
        """See :class:`sordino.data.stream.Stream`."""
        return self.stream.changes(start, stop)


def arranged(stream: streams.Stream, parts: Sequence[Index]) -> Arranged:
    """The stream with each party's features in one place."""
    order = np.concatenate(parts)
    features = int(np.prod(stream.shape))
    return Arranged(stream, None if np.array_equal(order, np.arange(features)) else order)


def source(
    study: VerticalStudy, *, known: bool = True
) -> tuple[streams.Stream, str, tuple[Records, ...]]:
    """The study's stream with its drift, its data's fingerprint, and its members if asked."""
    data, own = study.data, study.privacy.ledger == "run"
    opened = data.stream.open(
        streams.Wanted(
            name=data.name,
            file=data.file,
            label=data.label,
            entity=data.entity,
            classes=data.classes,
            scale=data.scale,
            seed=study.seed,
            events=study.horizon * study.method.batch,
            identify=known and not own,
            private=study.privacy.unit != "none"
            or not own,  # else nobody will ask again whose ledger it is
        )
    )
    records = (
        ()
        if opened.rows is None
        else (
            Records(ENTITIES, ENTITY, opened.rows, opened.people),
            Records(LABELS, LABEL, opened.rows, opened.people),
        )
    )
    return data.drift.applied(opened.stream, study.seed), opened.fingerprint, records


def parts(study: VerticalStudy, stream: streams.Stream) -> tuple[Index, ...]:
    """Numbers of the features that each party holds."""
    return study.data.parts.parts(stream.shape, stream.columns, study.data.parties)
