"""Streams of labelled examples for online learning.

Stored data is replayed, images are deformed without end, files are read row by row.

>>> from sordino.data import load
>>> images = Deformed(load("digits").train, seed=0, size=(28, 28), margin=0.1)
>>> stream = ClassDrift(every=50).applied(images, seed=0)
>>> stream.read(0, 100).x.shape, stream.shape
((100, 784), (1, 28, 28))
>>> [len(part) for part in Slices().parts(stream.shape, stream.columns, 4)]
[196, 196, 196, 196]
"""

from sordino.data.stream.drift import (
    DRIFTS,
    ClassDrift,
    Drift,
    FeatureDrift,
    GradualDrift,
    NoDrift,
    Sampling,
    Shifted,
    SwapDrift,
    Swapped,
)
from sordino.data.stream.opening import (
    STREAMS,
    Deform,
    Opened,
    Replay,
    Rows,
    Streaming,
    Wanted,
    published,
)
from sordino.data.stream.piece import BLOCK, SELDOM, Piece, Stream
from sordino.data.stream.stored import NONE, Deformed, Replayed, Strength
from sordino.data.stream.table import TableStream
from sordino.data.stream.vertical import DIVISIONS, Columns, Division, Regions, Slices

__all__ = [
    "BLOCK",
    "DIVISIONS",
    "DRIFTS",
    "NONE",
    "SELDOM",
    "STREAMS",
    "ClassDrift",
    "Columns",
    "Deform",
    "Deformed",
    "Division",
    "Drift",
    "FeatureDrift",
    "GradualDrift",
    "NoDrift",
    "Opened",
    "Piece",
    "Regions",
    "Replay",
    "Replayed",
    "Rows",
    "Sampling",
    "Shifted",
    "Slices",
    "Stream",
    "Streaming",
    "Strength",
    "SwapDrift",
    "Swapped",
    "TableStream",
    "Wanted",
    "published",
]
