"""Streams of events: their source, the features of each party, active parties, and labels as told.

A site of a network reads its own columns of the same rows (:func:`stream_of`); who is active
follows from the study's seed, and the answers about labels from a key that the holder of labels
keeps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sordino.base.arrays import Array, Bools, Floats, Ints
from sordino.base.entropy import Entropy
from sordino.base.errors import DataError, StudyError, passing_over
from sordino.base.registry import foreign
from sordino.data import stream as streams
from sordino.data.dataset import Dataset, scaled
from sordino.data.stream.piece import Checked, Labelled, Unlabelled, examine, refuse_incomplete
from sordino.mechanisms.response import Key, RandomisedResponse
from sordino.privacy import Allowance
from sordino.privacy.records import Records
from sordino.privacy.records.group import ENTITY, LABEL
from sordino.regimes.vertical.method import ACTIVATIONS, Activation
from sordino.regimes.vertical.regime import ENTITIES, LABELS, RequiredCharges
from sordino.regimes.vertical.study import VerticalStudy


class Arranged:
    """Examples one after another: a stream, with its features in the order of parties, side by
    side, where ``parts`` says which each has; those that nobody holds are left out.
    """

    def __init__(self, stream: streams.Stream, parts: Sequence[Ints] = ()) -> None:
        everything = np.arange(math.prod(stream.shape))
        order = np.concatenate(parts) if parts else everything
        self.stream, self.changes = stream, stream.changes
        self.order = None if np.array_equal(order, everything) else order

    def read(self, start: int, count: int) -> streams.Piece:
        """Return the examples from number ``start`` on; fewer than ``count`` only at the end."""
        piece = self.stream.read(start, count)
        if self.order is None:
            return piece
        return replace(piece, x=np.ascontiguousarray(piece.x[:, self.order]))


def source(
    study: VerticalStudy, *, known: bool = True
) -> tuple[streams.Stream, str, tuple[Records, ...]]:
    """Return the study's stream with its drift, its data's fingerprint, and its members."""
    data, own = study.data, study.privacy.ledger == "run"
    wanted = streams.Wanted(
        name=data.name,
        file=data.file,
        label=data.label,
        entity=data.entity,
        classes=data.classes,
        scale=data.scale,
        seed=study.seed,
        events=study.horizon * study.method.batch,
        identify=known and not own,
        # else nobody will ask again whose ledger it is
        private=study.privacy.unit != "none" or not own,
        one_label=_one_label(study),
    )
    opened: object = data.stream.open(wanted)
    if not isinstance(opened, streams.Opened):
        raise streams.STREAMS.wrong(data.stream, "open", opened, "Opened(stream, fingerprint)")
    records = tuple(
        Records(unit, kind, opened.rows, opened.people)
        for unit, kind in ((ENTITIES, ENTITY), (LABELS, LABEL))
        if opened.rows is not None
    )
    stream, digest = _drifting(study, opened.stream)
    return stream, f"{opened.fingerprint}{digest}", records


def _drifting(study: VerticalStudy, stream: streams.Stream) -> tuple[streams.Stream, str]:
    """Return the stream with the study's drift; what classes of users give is checked, and where
    something is promised, a digest of it stands beside.
    """
    data = study.data
    opens = partial(streams.STREAMS.wrong, data.stream)
    drifts = partial(streams.DRIFTS.wrong, data.drift)
    refuse_incomplete(stream, opens, "open")
    told = Checked(stream, opens) if foreign(stream) else stream
    drift, own = data.drift, foreign(data.drift)
    blind = own and not (drift.by_class or drift.relabels)
    made = drift.applied(Unlabelled(told) if blind else stream, study.seed)
    refuse_incomplete(made, drifts, "applied")
    found: streams.Stream = told if made is stream else made
    if blind:
        found = Checked(Labelled(made, drifts, told), drifts)
    elif made is not stream and (foreign(made) or foreign(stream)):
        found = Checked(made, drifts if foreign(made) else opens)
    promised = study.privacy.unit != "none" and not data.stream.invents
    if promised and (own or foreign(data.stream) or foreign(stream)):
        events = study.horizon * study.method.batch
        wrong, one_label = drifts if own else opens, _one_label(study)
        return found, f"/{examine(found, events, wrong, one_label=one_label)}"
    return found, ""


def _one_label(study: VerticalStudy) -> bool:
    """Return whether an entity's answered label is used for more than one of its events."""
    privacy = study.privacy
    return (
        privacy.unit != "none"
        and privacy.memoised
        and (privacy.unit == "label" or privacy.appearances > 1)
    )


def parts(study: VerticalStudy, stream: streams.Stream) -> tuple[Ints, ...]:
    """Return numbers of the features that each party holds (f_m,), into the vector of an example.

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
    features, taken = math.prod(stream.shape), set[int]()
    for party, part in enumerate(held):
        whole = part.ndim == 1 and len(part) and np.issubdtype(part.dtype, np.integer)
        if not whole or part.min() < 0 or part.max() >= features:
            raise StudyError(
                f"{place} must give party {party} at least one feature, by numbers from 0 to "
                f"{features - 1}"
            )
        for number in part.tolist():
            if number in taken:
                named = str(number) if stream.columns is None else repr(stream.columns[number])
                raise StudyError(
                    f"{place} puts feature {named} at party {party}, and has given it before; each "
                    "feature belongs to one party, once"
                )
            taken.add(number)
    return tuple(part.astype(np.int64, copy=False) for part in held)


class Listed:
    """Rows of a data set in their own order, once, each an entity of its own."""

    columns: tuple[str, ...] | None = None

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.length = dataset, len(dataset)
        self.name, self.shape, self.classes = dataset.name, dataset.shape, dataset.classes

    def read(self, start: int, count: int) -> streams.Piece:
        """Return rows one after another."""
        here = slice(start, min(start + count, self.length))
        x = scaled(self.dataset.x[here]).reshape(-1, math.prod(self.shape))
        return streams.Piece(np.ascontiguousarray(x), self.dataset.y[here].copy())

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """Return nothing: nobody knows of a change."""
        return ()


def stream_of(study: VerticalStudy, dataset: Dataset) -> streams.Stream:
    """Return the study's stream over these rows: a site's, or stand-ins."""
    if study.data.stream.in_order:
        return Listed(dataset)
    return streams.Replayed(dataset, study.seed)


def whole(study: VerticalStudy, stream: streams.Stream) -> tuple[Array, Ints]:
    """Return all rows of a stream that is in one place, (n, f), and their labels (n,)."""
    if isinstance(stream, streams.Replayed):
        data = stream.dataset
        return data.x.reshape(len(data), -1), data.y
    piece = stream.read(0, study.horizon * study.method.batch)
    return piece.x, piece.y


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Active parties, and parties whose answer does not come; drawn for whole blocks.

    Attributes:
        activation: the method's rule.
        columns: each party's place in the features.
        dropout: probability that a passive party does not answer.
        entropy: randomness, addressed by the numbers of blocks.
        block: events in one.
    """

    activation: Activation
    columns: tuple[slice, ...]
    dropout: float
    entropy: Entropy
    block: int

    def drawn(self, x: NDArray[np.float32], start: int, n: int) -> tuple[Bools, Bools]:
        """Return active and silent parties (n, M) of ``n`` events of one block, with their rows x.

        An event on whose features somebody's own rule fails has all parties active: an error would
        tell of it.
        """
        active, own = None, self.activation.looks and foreign(self.activation)
        with passing_over() if own else nullcontext():
            active = self.asked(x, start, n)
        if active is None:
            events = enumerate(np.split(x, n)) if n > 1 else ()
            found = [self.drawn(each, start + i, 1)[0] for i, each in events]
            active = np.concatenate(found) if found else np.ones((n, len(self.columns)), bool)
        return active, ~active & self.silent(start, n)

    def asked(self, x: NDArray[np.float32], start: int, n: int) -> Bools:
        """Return what the rule says (n, M) of events.

        Raises:
            StudyError: if it is no such answer.
        """
        parties = len(self.columns)

        def means() -> NDArray[np.float32]:
            if not self.activation.looks:
                raise StudyError(
                    f"method.activation.kind = {self.activation.kind!r}: it asks for the means of "
                    "features and does not declare looks = True. Who is active tells of features "
                    "then, at a price: add looks: ClassVar[bool] = True to the class. See "
                    "docs/own-tables.md"
                )
            return np.stack([x[:, columns].reshape(n, -1).mean(1) for columns in self.columns], 1)

        def uniform() -> Floats:
            return self._uniform("activation", start, n)

        shape = n, parties
        active: object = self.activation.active(shape, uniform, means)
        if isinstance(active, np.ndarray) and active.shape == shape and active.dtype == np.bool_:
            return active
        wanted = f"truth values of shape {shape}"
        raise ACTIVATIONS.wrong(self.activation, "active", active, wanted)

    def silent(self, start: int, n: int) -> Bools:
        """Return the parties that would not answer if they were queried (n, M)."""
        if not self.dropout:
            return np.zeros((n, len(self.columns)), bool)
        return self._uniform("silence", start, n) < self.dropout

    def _uniform(self, what: str, start: int, n: int) -> Floats:
        place, offset = divmod(start, self.block)
        drawn = self.entropy.at(what, place).random((self.block, len(self.columns)))
        return drawn[offset : offset + n]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelRandomizer:
    """The one place that tells labels: as they are, or by randomised response.

    Attributes:
        mechanism: of the answers; None where labels are told as they are, which is booked as not
            private.
        key: of the answers.
        memoised: an answer is drawn once for an entity, and not at each event.
        required: charges of one answer.
    """

    mechanism: RandomisedResponse | None
    key: Key
    memoised: bool
    required: RequiredCharges

    def __call__(self, labels: Ints, entities: Ints, places: Ints, paid: Allowance) -> Ints:
        """Return responses (n,) to the labels of these entities, at their places (n,) in the
        stream.

        Raises:
            LocalProtocolError: if they are not ``paid`` for; nothing has been told then.
        """
        for unit, event in self.required:
            paid.covers(unit, event, 1 if self.memoised else None)
        if self.mechanism is None:
            return labels
        drawn = None if self.memoised else places
        return self.mechanism.respond_for(labels, entities, self.key, drawn)

    def accuracy(self, agreement: float) -> float:
        """Estimate the share of right predictions from the share that agrees with the answers."""
        return agreement if self.mechanism is None else self.mechanism.accuracy(agreement)


def remember(told: dict[int, int], entities: Ints, answers: Ints) -> None:
    """Hold a stream to its promise of one label for each entity, and fill ``told``.

    Other answers would tell of the change, which nothing bounds.

    Raises:
        DataError: if it breaks it; nothing of this block has been used then.
    """
    for entity, answer in zip(entities.tolist(), answers.tolist(), strict=True):
        if told.setdefault(entity, answer) != answer:
            raise DataError(
                f"entity {entity} has two labels in this stream, and privacy.memoised tells its "
                "label once for all: set memoised = false, and appearances to the events that one "
                "entity may take part in"
            )
