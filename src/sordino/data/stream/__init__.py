"""Streams of labelled examples for online learning.

Stored data is replayed, images are deformed without end, files are read row by row.

>>> from sordino.data import load
>>> from sordino.data.stream.drift import ClassDrift
>>> images = Deformed(load("digits").train, seed=0, size=(28, 28), margin=0.1)
>>> stream = ClassDrift(every=50).applied(images, seed=0)
>>> stream.read(0, 100).x.shape, stream.shape
((100, 784), (1, 28, 28))
"""

from sordino.data.stream.drift import DRIFTS as DRIFTS
from sordino.data.stream.drift import Drift as Drift
from sordino.data.stream.opening import STREAMS as STREAMS
from sordino.data.stream.opening import Deformed as Deformed
from sordino.data.stream.opening import Opened as Opened
from sordino.data.stream.opening import Replayed as Replayed
from sordino.data.stream.opening import Streaming as Streaming
from sordino.data.stream.opening import Wanted as Wanted
from sordino.data.stream.piece import Piece as Piece
from sordino.data.stream.piece import Stream as Stream
