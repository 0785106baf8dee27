"""Streams of labelled examples for online learning.

Stored data is replayed, images are deformed without end, files are read row by row.

>>> from sordino.data import load
>>> images = Deformed(load("digits").train, seed=0, size=(28, 28), margin=0.1)
>>> stream = ClassDrift(every=50).applied(images, seed=0)
>>> stream.read(0, 100).x.shape, stream.shape
((100, 784), (1, 28, 28))
"""

from sordino.data.stream.drift import DRIFTS as DRIFTS
from sordino.data.stream.drift import ClassDrift as ClassDrift
from sordino.data.stream.drift import Drift as Drift
from sordino.data.stream.drift import FeatureDrift as FeatureDrift
from sordino.data.stream.drift import GradualDrift as GradualDrift
from sordino.data.stream.drift import NoDrift as NoDrift
from sordino.data.stream.drift import Shifted as Shifted
from sordino.data.stream.drift import SwapDrift as SwapDrift
from sordino.data.stream.drift import Swapped as Swapped
from sordino.data.stream.opening import STREAMS as STREAMS
from sordino.data.stream.opening import Opened as Opened
from sordino.data.stream.opening import Streaming as Streaming
from sordino.data.stream.opening import Wanted as Wanted
from sordino.data.stream.opening import published as published
from sordino.data.stream.piece import Piece as Piece
from sordino.data.stream.piece import Stream as Stream
from sordino.data.stream.stored import NONE as NONE
from sordino.data.stream.stored import Deformed as Deformed
from sordino.data.stream.stored import Replayed as Replayed
from sordino.data.stream.stored import Strength as Strength
from sordino.data.stream.table import TableStream as TableStream
