"""Where a study's events come from, and which of their features each party holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sordino.base.errors import StudyError
from sordino.data import stream as streams
from sordino.data.stream.checked import (
    Checked,
    Labelled,
    Untold,
    examine,
    is_foreign,
    is_own,
    refuse_incomplete,
)
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
    opened: object = data.stream.open(
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
            one_label=_one_label(study),
        )
    )
    if not isinstance(opened, streams.Opened):
        raise streams.STREAMS.wrong(data.stream, "open", opened, "Opened(stream, fingerprint)")
    records = (
        ()
        if opened.rows is None
        else (
            Records(ENTITIES, ENTITY, opened.rows, opened.people),
            Records(LABELS, LABEL, opened.rows, opened.people),
        )
    )
    return _drifting(study, opened.stream), str(opened.fingerprint), records


def _drifting(study: VerticalStudy, stream: streams.Stream) -> streams.Stream:
    """The stream with the study's drift; where either is of a class of somebody's own, what it
    gives is looked at.
    """
    data = study.data
    opens, drifts = (
        partial(streams.STREAMS.wrong, data.stream),
        partial(streams.DRIFTS.wrong, data.drift),
    )
    refuse_incomplete(stream, opens, "open")
    told = Checked(stream, opens) if is_foreign(stream) else stream
    drift, own = data.drift, is_own(data.drift)
    blind = own and not (drift.by_class or drift.relabels)
    made = drift.applied(Untold(told, drifts) if blind else stream, study.seed)
    refuse_incomplete(made, drifts, "applied")
    found: streams.Stream = told if made is stream else made
    if blind:
        found = Checked(Labelled(made, drifts, told), drifts)
    elif is_foreign(made) and made is not stream:
        found = Checked(made, drifts)
    promised = study.privacy.unit != "none" and not data.stream.invents
    if promised and (own or is_own(data.stream) or is_foreign(stream)):
        events = study.horizon * study.method.batch
        examine(found, events, drifts if own else opens, one_label=_one_label(study))
    return found


def _one_label(study: VerticalStudy) -> bool:
    """Whether an entity's answered label is used for more than one of its events."""
    privacy = study.privacy
    return (
        privacy.unit != "none"
        and privacy.memoised
        and (privacy.unit == "label" or privacy.appearances > 1)
    )


def parts(study: VerticalStudy, stream: streams.Stream) -> tuple[Index, ...]:
    """Numbers of the features that each party holds (f_m,), into the flat vector of an example.

    Raises:
        StudyError: where a feature is held by two parties, or what was given are no such numbers.
    """
    data = study.data
    given: object = data.parts.parts(stream.shape, stream.columns, data.parties)
    place = f"data.parts kind '{data.parts.kind}'"
    if not isinstance(given, tuple | list) or len(given) != data.parties:
        raise StudyError(
            f"{place} must give an array of feature numbers for each of {data.parties} parties"
        )
    held = tuple(np.asarray(part) for part in given)
    features = math.prod(stream.shape)
    for party, part in enumerate(held):
        if (
            part.ndim != 1
            or not len(part)
            or not np.issubdtype(part.dtype, np.integer)
            or part.min() < 0
            or part.max() >= features
        ):
            raise StudyError(
                f"{place} must give party {party} at least one feature, by numbers from 0 to "
                f"{features - 1}"
            )
    _refuse_shared(place, held, stream.columns)
    return tuple(part.astype(np.int64, copy=False) for part in held)


def _refuse_shared(place: str, held: Sequence[Index], columns: tuple[str, ...] | None) -> None:
    """Refuse a feature that stands twice, at two parties or at one."""
    holder: dict[int, int] = {}
    for party, part in enumerate(held):
        for number in part.tolist():
            if number in holder:
                named = repr(columns[number]) if columns is not None else str(number)
                where = (
                    f"twice at party {party}"
                    if holder[number] == party
                    else f"at party {holder[number]} and at party {party}"
                )
                raise StudyError(
                    f"{place} puts feature {named} {where}; each feature belongs to one party, once"
                )
            holder[number] = party
