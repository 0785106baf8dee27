"""Where a stream comes from: each way is a class, the ``data.stream`` table of a study.

A stream of your own is a class with a registration, or ``kind = "package.module:Class"`` in a study
(docs/own-tables.md).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from sordino.data import identity
from sordino.data.dataset import Corpus
from sordino.data.readers import load
from sordino.data.stream.deform import Deformed
from sordino.data.stream.piece import Stream
from sordino.data.stream.published import published
from sordino.data.stream.replay import Replayed
from sordino.data.stream.table import TableStream
from sordino.files import open_plain
from sordino.registry import Registry
from sordino.section import Section

MARGIN = 0.1
"""Black around images on another grid, as a share of a side: digits touch their edges."""

_AT_ONCE = 1 << 16  # rows read at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a study asks a stream for. All of it is public.

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
    """

    name: str | None
    file: Path | None
    label: str
    entity: str | None
    classes: tuple[str, ...] | None
    scale: float
    seed: int
    events: int
    identify: bool
    private: bool


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A stream, and what a ledger has to know of the data behind it.

    Attributes:
        stream: what is read.
        fingerprint: what a budget belongs to.
        rows: what each row is recognised by, (n, 2); None where nobody asks.
        people: whose each row is, (n,); None if every row is an entity of its own.
    """

    stream: Stream
    fingerprint: str
    rows: identity.Words | None = None
    people: identity.Words | None = None


class Streaming(Section):
    """Where events come from: the ``data.stream`` table of a study, whose name alone will do."""

    in_order: ClassVar[bool] = False  # whether it reads a file in its own order, row by row
    repeats: ClassVar[bool] = False  # whether the same rows come again and again
    invents: ClassVar[bool] = (
        False  # whether its examples are nobody's rows, each an entity of its own
    )

    kind: str

    def open(self, wanted: Wanted) -> Opened:
        """The stream.

        Raises:
            DataError: if the data cannot be read.
        """
        raise NotImplementedError


STREAMS = Registry(
    base=Streaming,
    noun="stream",
    key="kind",
    place="data.stream",
    page="docs/own-tables.md",
    brief=True,
    needs=("open",),
)


@STREAMS.register
class Replay(Streaming):
    """The data set in random order, epoch after epoch."""

    repeats: ClassVar[bool] = True

    kind: Literal["replay"] = "replay"

    def open(self, wanted: Wanted) -> Opened:
        """See :class:`Streaming`."""
        corpus = _corpus(wanted)
        return Opened(
            Replayed(corpus.train, wanted.seed), corpus.train.fingerprint(), corpus.train.words
        )


@STREAMS.register
class Deform(Streaming):
    """Endless deformed images; ``size`` renders them on a grid of so many pixels a side."""

    invents: ClassVar[bool] = True

    kind: Literal["deformed"] = "deformed"
    size: int | None = Field(None, ge=4)

    def open(self, wanted: Wanted) -> Opened:
        """See :class:`Streaming`."""
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
        """See :class:`Streaming`."""
        stream = _table(wanted, wanted.scale)
        fingerprint = "file:" + (_digest(stream.path) if wanted.private else stream.name)
        return Opened(stream, fingerprint, *(_known(wanted) if wanted.identify else ()))


def _corpus(wanted: Wanted) -> Corpus:
    scale = None if wanted.scale == 1.0 else wanted.scale
    # No test set is used.
    return load(
        wanted.name or "",
        file=wanted.file,
        label=wanted.label,
        scale=scale,
        test_fraction=None,
        identify=wanted.identify,
    )


def _table(wanted: Wanted, scale: float) -> TableStream:
    if wanted.file is None:
        return published(wanted.name or "", scale=scale)
    return TableStream(
        wanted.file,
        classes=wanted.classes or (),
        label=wanted.label,
        entity=wanted.entity,
        scale=scale,
    )


def _known(wanted: Wanted) -> tuple[identity.Words, identity.Words | None]:
    """What rows that become events are recognised by, (n, 2), unscaled; whose they are, (n,)."""
    stream, found, owners = _table(wanted, 1.0), [], []
    for start in range(0, wanted.events, _AT_ONCE):
        piece = stream.read(start, min(_AT_ONCE, wanted.events - start))
        if not len(piece):
            break
        labels = np.array(stream.classes)[piece.y]
        found.append(identity.words(piece.x, labels))
        if piece.entity is not None:
            owners.append(piece.entity.astype(np.uint64))
    rows = np.concatenate(found) if found else np.empty((0, 2), np.uint64)
    return rows, np.concatenate(owners) if owners else None


def _digest(path: Path) -> str:
    """SHA-256 of a file: what a budget belongs to."""
    digest = hashlib.sha256()
    with open_plain(path) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
