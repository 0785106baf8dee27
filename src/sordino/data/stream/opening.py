"""Ways to open a stream: each is a class, the ``data.stream`` table of a study.

A stream of your own is a class with a registration, or ``kind = "package.module:Class"`` in a study
(docs/own-tables.md).

**SUSY and HIGGS** are five and eleven million simulated collisions, from the UCI repository's files
(Baldi, Sadowski, Whiteson 2014). The first column is the class (1: signal, 0: background), then
come 18 or 28 features; there is no header. Both files are found where other data is
(:func:`sordino.data.sets.find`), under the names SUSY.csv.gz and HIGGS.csv.gz or unpacked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from sordino.base.errors import DataError
from sordino.base.files import open_plain
from sordino.base.registry import Registry, Section
from sordino.base.siphash import stacked
from sordino.data import identity
from sordino.data.dataset import Corpus, Indices, Labels, Names, Single, Words
from sordino.data.labels import notice_classes
from sordino.data.readers import load
from sordino.data.sets import PUBLISHED, find, is_published
from sordino.data.stream.piece import Stream
from sordino.data.stream.stored import Deformed, Replayed
from sordino.data.stream.table import TableStream
from sordino.data.table import ReadOptions

MARGIN = 0.1
"""Black around images on another grid, as a share of a side: digits touch their edges."""

_AT_ONCE = 1 << 16  # rows read at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A study's request for a stream. All of it is public.

    Attributes:
        name: of a published data set; None with a file.
        file: the user's own.
        label: its column of labels.
        entity: its column that says whose each row is; None if every row is an entity of its own.
        classes: its labels, where they are not to be looked up.
        scale: a public constant by which features are divided.
        seed: of what is drawn.
        events: how many examples will be read at most.
        identify: whether a ledger asks who is in the data.
        private: whether a budget is bound to the data, whose content must then be fingerprinted.
        one_label: whether every entity must have one label, since its label is answered once for
            all its events.
    """

    name: str | None
    file: Path | None
    label: str
    entity: str | None
    classes: Names | None
    scale: float
    seed: int
    events: int
    identify: bool
    private: bool
    one_label: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A stream, and what a ledger has to know of the data behind it.

    Attributes:
        stream: what is read.
        fingerprint: what a budget belongs to.
        rows: what each row is recognised by, (n, 2 m); None where nobody asks.
        people: whose each row is, (n, w); None if every row is an entity of its own.
    """

    stream: Stream
    fingerprint: str
    rows: Words | None = None
    people: Words | None = None


class Streaming(Section):
    """A source of events: the ``data.stream`` table of a study, whose name alone will do."""

    in_order: ClassVar[bool] = False  # whether it reads a file in its own order, row by row
    repeats: ClassVar[bool] = False  # whether the same rows come again and again
    # whether its examples are nobody's rows, each an entity of its own
    invents: ClassVar[bool] = False

    kind: str

    def open(self, wanted: Wanted) -> Opened:
        """The stream.

        Raises:
            DataError: if the data cannot be read.
        """
        raise NotImplementedError


STREAMS = Registry(base=Streaming, noun="stream", place="data.stream", needs=("open",))


@STREAMS.register
class Replay(Streaming):
    """The data set in random order, epoch after epoch."""

    repeats: ClassVar[bool] = True

    kind: Literal["replay"] = "replay"

    def open(self, wanted: Wanted) -> Opened:
        corpus = _corpus(wanted)
        if wanted.one_label and corpus.train.client is not None:
            refuse_two_labels(
                str(wanted.file or wanted.name),
                corpus.train.client,
                corpus.train.y,
                corpus.train.classes,
            )
        return Opened(
            Replayed(corpus.train, wanted.seed), corpus.train.fingerprint(), corpus.train.words
        )


@STREAMS.register
class Deform(Streaming):
    """Endless deformed images; ``size`` renders them on a grid of so many pixels a side.

    Attributes:
        size: pixels of an image's side; as in the data set unless given
    """

    invents: ClassVar[bool] = True

    kind: Literal["deformed"] = "deformed"
    size: int | None = Field(None, ge=4)

    def open(self, wanted: Wanted) -> Opened:
        corpus = _corpus(wanted)
        size, margin = (None, 0.0) if self.size is None else ((self.size, self.size), MARGIN)
        stream = Deformed(corpus.train, wanted.seed, size, margin=margin)
        return Opened(stream, corpus.train.fingerprint(), corpus.train.words)


@STREAMS.register
class Rows(Streaming):
    """The rows of the file, in its order, once."""

    in_order: ClassVar[bool] = True

    kind: Literal["file"] = "file"

    def open(self, wanted: Wanted) -> Opened:
        stream = _table(wanted)
        if wanted.events and not len(stream.read(0, 1)):
            raise DataError(f"{stream.path}: there are no rows")
        fingerprint = stream.name
        if wanted.private:  # a budget belongs to the content
            with open_plain(stream.path) as file:
                fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
        return Opened(stream, f"file:{fingerprint}", *_gone_through(wanted))


def _corpus(wanted: Wanted) -> Corpus:
    how = ReadOptions(
        label=wanted.label,
        scale=wanted.scale,
        identify=wanted.identify,
        target="classes",
        classes=wanted.classes,
    )
    # No test set is used.
    found = load(wanted.name or "", file=wanted.file, test_fraction=None, how=how)
    if wanted.file is not None and wanted.classes is None and wanted.private:
        notice_classes(found.train.classes)
    if found.train.span is not None:
        raise DataError(
            f"data.name = {wanted.name!r}: its labels are numbers, and those of events are classes"
        )
    return found


def _table(wanted: Wanted) -> TableStream:
    if wanted.file is None:
        return published(wanted.name or "", scale=wanted.scale, seed=wanted.seed)
    return TableStream(
        wanted.file,
        classes=wanted.classes or (),
        label=wanted.label,
        entity=wanted.entity,
        scale=wanted.scale,
        seed=wanted.seed,
    )


def _gone_through(wanted: Wanted) -> tuple[Words | None, Words | None]:
    """Read the rows that become events once, before anything is charged: one that cannot be read
    would end a run in the middle, and the place of the end would tell of it.

    Returns:
        What they are recognised by, (n, 2 m), and whose they are, (n, w), if that is asked.

    Raises:
        DataError: for a row that cannot be read, or an entity with two labels where it may have
            one.
    """
    published_rows = wanted.file is None and is_published(wanted.name or "")
    if not wanted.private or (published_rows and not wanted.identify):
        return None, None
    stream, none = _table(wanted), np.empty((0, 1), np.uint64)
    found, people = [(none,) * (3 if wanted.entity is None else 4)], [none]
    classes = identity.column(stream.classes)

    def seen(x: Single, y: Labels, others: Sequence[list[str]]) -> None:
        # versions until 2026-11-24 took classes for labels as written, and left the entity out
        found.append((identity.features(x), classes[y], *map(identity.column, others)))
        people.extend(map(identity.persons, others[1:]))

    stream.seen = seen if wanted.identify else None
    owners, labels = list[Indices](), list[Indices]()
    for start in range(0, wanted.events, _AT_ONCE):
        piece = stream.read(start, min(_AT_ONCE, wanted.events - start))
        if not len(piece):
            break
        if piece.entity is not None:
            owners.append(piece.entity)
            labels.append(piece.y)
    if wanted.one_label and owners:
        refuse_two_labels(
            str(stream.path), np.concatenate(owners), np.concatenate(labels), stream.classes
        )
    if not wanted.identify:
        return None, None
    own, former, label, *owner = (
        stacked(each)[: wanted.events] for each in zip(*found, strict=True)
    )
    rows = identity.words(own, label, *(owner or [identity.NOTHING]), former)
    return rows, None if wanted.entity is None else stacked(people)[: wanted.events]


def refuse_two_labels(place: str, entity: Indices, labels: Labels, classes: Names) -> None:
    """Refuse rows of one entity with different labels, where its label is answered once for all.

    Args:
        place: the file or data set, for the message.
        entity: of each row (n,).
        labels: class numbers (n,).
        classes: their names.

    Raises:
        DataError: names the two rows and their labels.
    """
    order = np.argsort(entity, kind="stable")
    owners, answers = entity[order], labels[order]
    differ = np.flatnonzero((owners[1:] == owners[:-1]) & (answers[1:] != answers[:-1]))
    if not len(differ):
        return
    one, other = (int(order[differ[0] + step]) for step in (0, 1))
    raise DataError(
        f"{place}: rows {one} and {other} (the first is 0) are of one entity and have the labels "
        f"{classes[labels[one]]!r} and {classes[labels[other]]!r}, and privacy.memoised answers an "
        "entity's label once for all: set memoised = false, and appearances to the events that "
        "one entity may take part in"
    )


def published(
    name: str, *, rows: int | None = None, scale: float = 1.0, seed: int = 0
) -> TableStream:
    """The stream ``susy`` or ``higgs``.

    Args:
        name: which.
        rows: how many there must be, if it is not the whole file.
        scale: a public constant by which features are divided.
        seed: of what a drift draws.

    Raises:
        DataError: if it is not known or not found, with every way to get it.
    """
    known = PUBLISHED.get(name)
    if known is None or known.rows is None:
        streamed = [each.name for each in PUBLISHED.values() if each.rows is not None]
        raise DataError(f"unknown stream {name!r}; known: {', '.join(streamed)}")
    return TableStream(
        known.file(find(name), known.layouts[0][0]), classes=known.classes,
        header=("label", *known.columns), rows=known.rows if rows is None else rows, scale=scale,
        name=name, seed=seed,
    )  # fmt: skip
