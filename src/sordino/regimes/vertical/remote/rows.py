"""Rows that sites hold side by side, as the stream of a study."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.base.errors import StudyError
from sordino.data import stream as streams
from sordino.data.dataset import Dataset, scaled
from sordino.regimes.vertical.study import VerticalStudy


class Listed:
    """Rows of a data set in their own order, once, each an entity of its own."""

    columns: tuple[str, ...] | None = None

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.length = dataset, len(dataset)
        self.name, self.shape, self.classes = dataset.name, dataset.shape, dataset.classes

    def read(self, start: int, count: int) -> streams.Piece:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        here = slice(start, min(start + count, self.length))
        x = scaled(self.dataset.x[here]).reshape(-1, math.prod(self.shape))
        return streams.Piece(np.ascontiguousarray(x), self.dataset.y[here].copy())

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """See :class:`~sordino.data.stream.piece.Stream`."""
        return ()


def refuse(study: VerticalStudy) -> None:
    """Refuse a study whose stream needs more than each site has.

    Raises:
        StudyError: naming the key.
    """
    data, why = study.data, None
    if data.stream.kind not in ("replay", "file"):
        why = f"data.stream = '{data.stream.kind}' makes new examples of whole ones: use 'replay'"
    elif data.drift.kind != "none":
        why = f"data.drift = '{data.drift.kind}' changes whole examples: use 'none'"
    elif data.entity is not None:
        why = "data.entity: no site tells the others yet whose a row is. Leave it out"
    elif study.privacy.ledger != "run":
        why = "privacy.ledger: sites of events have a ledger of the run. Set it to 'run'"
    if why is not None:
        raise StudyError(f"{why}. Here each site has its own columns of the same rows")


def stream_of(study: VerticalStudy, dataset: Dataset) -> streams.Stream:
    """The study's stream over these rows: its own, or stand-ins."""
    if study.data.stream.in_order:
        return Listed(dataset)
    return streams.Replayed(dataset, study.seed)


def whole(study: VerticalStudy, stream: streams.Stream) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """All rows of a stream that stands in one place, (n, f), and their labels (n,)."""
    if isinstance(stream, streams.Replayed):
        data = stream.dataset
        return data.x.reshape(len(data), -1), data.y
    piece = stream.read(0, study.horizon * study.method.batch)
    return piece.x, piece.y
