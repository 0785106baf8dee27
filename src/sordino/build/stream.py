"""Where a study's events come from, and which of their features each party holds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sordino import data as datasets
from sordino.data import stream as streams
from sordino.files import open_plain
from sordino.study import VerticalStudy
from sordino.study import streams as sections

Index = NDArray[np.int64]
MARGIN = 0.1  # black around images that are rendered on another grid, as a share of a side: digits touch their edges


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
        return piece if self.order is None else replace(piece, x=np.ascontiguousarray(piece.x[:, self.order]))

    def changes(self, start: int, stop: int) -> Sequence[int]:
        """See :class:`sordino.data.stream.Stream`."""
        return self.stream.changes(start, stop)


def arranged(stream: streams.Stream, parts: Sequence[Index]) -> Arranged:
    """The stream with each party's features in one place."""
    order = np.concatenate(parts)
    features = int(np.prod(stream.shape))
    return Arranged(stream, None if np.array_equal(order, np.arange(features)) else order)


def source(study: VerticalStudy) -> tuple[streams.Stream, str]:
    """The study's stream, drift and all, and a fingerprint of the data behind it."""
    data, found = study.data, None
    if isinstance(data.stream, sections.FileStream):
        found = _file(study)
        unread = study.privacy.unit == "none" and study.privacy.ledger == "run"  # nobody will ask again whose ledger it is
        fingerprint = "file:" + (found.name if unread else _digest(found.path))
        return _drifting(study, found), fingerprint
    scale = None if data.scale == 1.0 else data.scale
    corpus = datasets.load(data.name or "", file=data.file, label=data.label, scale=scale, test_fraction=None)  # no test set is used
    whole: streams.Stream = streams.Replayed(corpus.train, study.seed)
    if isinstance(data.stream, sections.DeformedStream):
        size, margin = (None, 0.0) if data.stream.size is None else ((data.stream.size,) * 2, MARGIN)
        whole = streams.Deformed(corpus.train, study.seed, size, margin=margin)
    return _drifting(study, whole), corpus.train.fingerprint()


def _file(study: VerticalStudy) -> streams.TableStream:
    data = study.data
    if data.file is None:
        return streams.published(data.name or "", scale=data.scale)
    return streams.TableStream(data.file, classes=data.classes or (), label=data.label, entity=data.entity, scale=data.scale)


def _drifting(study: VerticalStudy, stream: streams.Stream) -> streams.Stream:
    drift: streams.Drift
    match study.data.drift:
        case sections.ClassesDrift(kind="classes", every=every):
            drift = streams.ClassDrift(every=every)
        case sections.ClassesDrift(every=every):
            drift = streams.GradualDrift(every=every)
        case sections.SwapDrift(every=every):
            drift = streams.SwapDrift(every=every)
        case sections.FeaturesDrift(every=every, strength=strength, sudden=sudden):
            drift = streams.FeatureDrift(every=every, gain=strength, offset=strength, gradual=not sudden)
        case _:
            return stream
    return streams.drifting(stream, drift, study.seed)


def _digest(path: Path) -> str:
    """SHA-256 of a file: what a budget belongs to."""
    digest = hashlib.sha256()
    with open_plain(path) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def parts(study: VerticalStudy, stream: streams.Stream) -> tuple[Index, ...]:
    """Numbers of the features that each party holds."""
    wanted = study.data.parts
    match wanted:
        case sections.ColumnsParts(groups=groups):
            return streams.Columns(groups).parts(stream.shape, stream.columns)
        case sections.RegionsParts(rows=rows, columns=columns):
            return streams.Regions(rows, columns).parts(stream.shape, stream.columns)
        case _:
            return streams.Slices(study.data.parties).parts(stream.shape, stream.columns)
