"""Streams of labelled examples for online learning: stored data replayed, images deformed without end, files row by row.

>>> from sordino.data import load
>>> stream = drifting(Deformed(load("digits").train, seed=0, size=(28, 28), margin=0.1), ClassDrift(every=50), seed=0)
>>> piece = stream.read(0, 100)
>>> piece.x.shape, stream.shape, [len(part) for part in Slices(4).parts(stream.shape, stream.columns)]
((100, 784), (1, 28, 28), [196, 196, 196, 196])
"""

from sordino.data.stream.changed import Shifted, Swapped, drifting
from sordino.data.stream.deform import NONE, Deformed, Strength
from sordino.data.stream.drift import ClassDrift, Drift, FeatureDrift, GradualDrift, Sampling, Stationary, SwapDrift
from sordino.data.stream.piece import BLOCK, SELDOM, Piece, Stream
from sordino.data.stream.published import published
from sordino.data.stream.replay import Replayed
from sordino.data.stream.table import TableStream
from sordino.data.stream.vertical import Columns, Regions, Slices, Vertical

__all__ = [
    "BLOCK",
    "NONE",
    "SELDOM",
    "ClassDrift",
    "Columns",
    "Deformed",
    "Drift",
    "FeatureDrift",
    "GradualDrift",
    "Piece",
    "Regions",
    "Replayed",
    "Sampling",
    "Shifted",
    "Slices",
    "Stationary",
    "Stream",
    "Strength",
    "SwapDrift",
    "Swapped",
    "TableStream",
    "Vertical",
    "drifting",
    "published",
]
