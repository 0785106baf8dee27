r"""An endless stream of images: random base images, bent, turned, stretched and moved a little.

A stream of a billion different examples needs no billion examples. Loosli, Canu, Bottou 2007 made
their "infinite MNIST" so, by deforming 60 000 digits at random (the fields are those of Simard et
al. 2003). Two samples of one base image have different real-valued parameters, so that no two are
equal.

**What is drawn for each sample** (:mod:`sordino.data.stream.warp` says how it is applied): a row;
two fields of a bank of ``fields``, with coefficients elastic side sqrt(3/2) U(-1, 1), so that the
displacement has a root mean square of ``elastic`` sides (side: the mean of height and width, in
pixels); and

    A = [cos r, -sin r; sin r, cos r] [1, h; 0, 1] [e^a, 0; 0, e^b],
    r ~ U(-rotate, rotate) degrees,  h ~ U(-shear, shear),  a, b ~ U(-stretch, stretch),  t ~
    U(-shift, shift) sides.

All parameters of a block of 1000 samples come from one address, (seed, block).

**Fields** are white noise, smoothed by a Gaussian of sigma pixels, on a grid that reaches 3 sigma
beyond the picture so that its edges are like its middle; each divided by its root mean square over
both directions, which is then exactly 1.

**Values** are float32 in [-1, 1]: pixels as (v / 255 - 0.5) / 0.5, floats as if 0 were black and 1
white (scikit-learn's digits lie in [0, 1]). Beyond the edge of the picture there is black.

**Privacy.** A deformed image is a synthetic example, but of a base image that was somebody's.
Counting each as an entity of its own (``entity`` is None) is right for measuring algorithms. It is
no way to get a guarantee for the people behind the base images: for that, replay the data set
itself.

>>> from sordino.data import load
>>> stream = Deformed(load("digits").train, seed=0, size=(28, 28), margin=0.1)
>>> piece = stream.read(1_000_000, 2)
>>> piece.x.shape, piece.y
((2, 784), array([5, 2]))
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.random import Generator

from sordino.base.entropy import Seeded
from sordino.base.errors import DataError, StudyError
from sordino.data.dataset import Array, Dataset, Double, Indices, Names, Single, scaled
from sordino.data.stream.drift import Sampling, classes_drawn
from sordino.data.stream.piece import BLOCK, Piece, blocks


@dataclass(frozen=True, slots=True)
class Strength:
    """Strengths of the deformations of images.

    Attributes:
        elastic: root mean square of the elastic displacement, in sides of the picture.
        smooth: sigma of the Gaussian that smooths the fields, in sides.
        rotate: most degrees.
        stretch: most |ln| of the factors by which height and width change.
        shear: most columns by which a row moves for each row that it is away from the middle.
        shift: most sides by which the picture moves, each way.
        fields: smooth fields in the bank.
    """

    elastic: float = 0.022
    smooth: float = 0.14
    rotate: float = 10.0
    stretch: float = 0.12
    shear: float = 0.12
    shift: float = 0.05
    fields: int = 128


NONE = Strength(elastic=0, rotate=0, stretch=0, shear=0, shift=0, fields=1)
"""No deformation at all: base images as they are, at most on another grid."""


class Stored:
    """Examples of a data set in memory, without end.

    Attributes:
        dataset: the examples that there are.
        seed: of what is drawn.
        drift: of the classes. With one, each event draws its class first, and then a row of this
            class, with replacement; both are addressed by block.
    """

    columns: Names | None = None
    length: int | None = None

    drift: Sampling | None = None

    def __init__(self, dataset: Dataset, seed: int) -> None:
        if not len(dataset):
            raise DataError(
                f"{dataset.name}: a stream needs at least one example, the data set has none"
            )
        self.dataset, self.seed = dataset, seed
        self.name, self.shape, self.classes = dataset.name, dataset.shape, dataset.classes
        counts = np.bincount(dataset.y, minlength=len(dataset.classes))
        self._grouped = np.argsort(dataset.y, kind="stable"), np.cumsum(counts) - counts, counts
        self._block, self._rows = -1, np.empty(0, np.int64)

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        return () if self.drift is None else self.drift.changes(start, stop)

    def drifting(self, drift: Sampling) -> Self:
        """The same examples, their classes drawn by ``drift``."""
        found = copy.copy(self)
        found.drift, found._block = drift, -1
        return found

    def rows(self, block: int) -> Indices:
        """The rows that a block's events draw, (BLOCK,); those of the last one are kept."""
        if block != self._block:
            self._rows, self._block = self._draw(block), block
        return self._rows

    def _draw(self, block: int) -> Indices:
        rng = Seeded(self.seed).at("stream", "rows", block)
        rows, firsts, counts = self._grouped
        if self.drift is None:
            return rng.integers(len(rows), size=BLOCK)
        start = block * BLOCK
        shares = self.drift.probabilities(self.seed, len(counts), start, start + BLOCK)
        last = int(np.flatnonzero(counts)[-1])
        labels = np.minimum(classes_drawn(rng, shares * (counts > 0)), last)
        return np.asarray(rows[firsts[labels] + rng.integers(counts[labels])])


class Deformed(Stored):
    """Deformed images without end.

    Attributes:
        dataset: base images, (n, channels, height, width).
        seed: of rows, fields and parameters.
        size: (height, width) of the samples; None: as the base images.
        strength: how much they are deformed.
        margin: black on each side of the picture, as a share of the sample, below a half: digits
            that touch the edge need 0.1.
    """

    def __init__(
        self,
        dataset: Dataset,
        seed: int,
        size: tuple[int, int] | None = None,
        *,
        strength: Strength | None = None,
        margin: float = 0.0,
    ) -> None:
        super().__init__(dataset, seed)
        if len(dataset.shape) != 3:
            raise DataError(
                f"{dataset.name}: only images (channels, height, width) can be deformed, its "
                f"examples have shape {dataset.shape}"
            )
        channels, *picture = dataset.shape
        height, width = size = (picture[0], picture[1]) if size is None else size
        if min(height, width) < 1 or channels * height * width >= 1 << 24:
            raise StudyError(
                f"{dataset.name}: size must be (height, width), at least one pixel and below "
                f"2^24 in all; got {size}"
            )
        self.strength = Strength() if strength is None else strength
        self.shape = (channels, height, width)
        self._side = (picture[0] + picture[1]) / 2
        self._grid = grid((picture[0], picture[1]), size) / np.float32(1 - 2 * margin)
        sigma = (self.strength.smooth * height, self.strength.smooth * width)
        self._fields = smooth_fields(
            Seeded(seed).at("stream", "fields"), self.strength.fields, size, sigma
        )
        self._gain = np.float32(2 / 255 if dataset.x.dtype == np.uint8 else 2)
        self._at, self._drawn = -1, tuple[Array, ...]()

    def read(self, start: int, count: int) -> Piece:
        from sordino.data.stream.warp import render  # loads numba

        x, y = np.empty((count, math.prod(self.shape)), np.float32), np.empty(count, np.int64)
        done = 0
        for block, first, last in blocks(start, count):
            rows = self.rows(block)[first:last]
            pair, affine, mix = (values[first:last] for values in self._parameters(block))
            out = x[done : done + last - first]
            render(
                self.dataset.x, rows, self._gain, np.float32(-1), np.float32(-1), self._grid,
                self._fields, pair, affine, mix, out,
            )  # fmt: skip
            y[done : done + last - first] = self.dataset.y[rows]
            done += last - first
        return Piece(x, y)

    def _parameters(self, block: int) -> tuple[Array, ...]:
        if block != self._at:
            rng = Seeded(self.seed).at("stream", "deformed", block)
            self._drawn, self._at = parameters(rng, self.strength, self._side), block
        return self._drawn


def parameters(rng: Generator, strength: Strength, side: float) -> tuple[Indices, Single, Single]:
    """Draw ``pair``, ``affine`` and ``mix`` of a block of samples, as
    :func:`sordino.data.stream.warp.render` takes them.
    """
    pair = rng.integers(strength.fields, size=(BLOCK, 2))
    # Two different fields, where there are two: the second is chosen among the others.
    if strength.fields > 1:
        pair[:, 1] = (
            pair[:, 0] + 1 + rng.integers(strength.fields - 1, size=BLOCK)
        ) % strength.fields
    mix = rng.uniform(-1, 1, (BLOCK, 2)) * (strength.elastic * side * math.sqrt(1.5))
    turn, shear, high, wide, down, across = rng.uniform(-1, 1, (6, BLOCK))
    turn, shear = np.radians(strength.rotate * turn), strength.shear * shear
    high, wide = np.exp(strength.stretch * high), np.exp(strength.stretch * wide)
    cos, sin = np.cos(turn), np.sin(turn)
    matrix = [cos * high, (cos * shear - sin) * wide, sin * high, (sin * shear + cos) * wide]
    affine = np.stack(
        [*matrix, strength.shift * side * down, strength.shift * side * across], axis=1
    )
    return pair, affine.astype(np.float32), mix.astype(np.float32)


def grid(picture: tuple[int, int], size: tuple[int, int]) -> Single:
    """Return where pixels of ``size`` lie in ``picture``, from its centre, (2, height x width)."""
    rows, columns = (
        (np.arange(n) + 0.5) * side / n - side / 2 for side, n in zip(picture, size, strict=True)
    )
    return np.stack([np.repeat(rows, size[1]), np.tile(columns, size[0])]).astype(np.float32)


def smooth_fields(
    rng: Generator, count: int, size: tuple[int, int], sigma: tuple[float, float]
) -> Single:
    """Return fields (count, 2, height x width) of root mean square 1; ``sigma`` in pixels."""
    noise = rng.standard_normal(
        (count, 2, *(n + 2 * _reach(s) for n, s in zip(size, sigma, strict=True)))
    )
    down, across = (_gaussian(n, s) for n, s in zip(size, sigma, strict=True))
    fields = down @ noise @ across.T
    fields /= np.sqrt((fields**2).mean(axis=(1, 2, 3), keepdims=True))
    return fields.reshape(count, 2, -1).astype(np.float32)


def _reach(sigma: float) -> int:
    return int(np.ceil(3 * sigma))


def _gaussian(n: int, sigma: float) -> Double:
    """Return the matrix (n, n + 2 reach) that smooths by a Gaussian."""
    apart = np.arange(n + 2 * _reach(sigma)) - _reach(sigma) - np.arange(n)[:, None]
    return np.asarray(np.exp(-0.5 * (apart / sigma) ** 2))


class Replayed(Stored):
    """Rows of a data set, epoch after epoch, each in an order of its own.

    Without drift, event t shows row pi_e(t mod n), where pi_e is a random permutation that belongs
    to epoch e = floor(t / n). With a drift of the classes, each event draws a row of the wanted
    class, with replacement.

    Repeated rows are the same person's: ``entity`` is the row's number, or the data set's own
    ``client`` where it says whose each row is.

    >>> from sordino.data import load
    >>> stream = Replayed(load("digits").train, seed=0)
    >>> stream.read(1430, 20).x.shape, stream.length
    ((20, 64), None)
    >>> (stream.read(1430, 20).x[5:] == stream.read(1435, 15).x).all()
    np.True_
    """

    def __init__(self, dataset: Dataset, seed: int) -> None:
        super().__init__(dataset, seed)
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def read(self, start: int, count: int) -> Piece:
        rows = self._permuted(start, count) if self.drift is None else self._drawn(start, count)
        data = self.dataset
        # Fancy indexing has copied; scaled copies pixels once more and leaves floats alone.
        x = scaled(data.x[rows]).reshape(count, math.prod(self.shape))
        return Piece(x, data.y[rows], rows if data.client is None else data.client[rows])

    def _drawn(self, start: int, count: int) -> Indices:
        parts = [self.rows(block)[first:last] for block, first, last in blocks(start, count)]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _permuted(self, start: int, count: int) -> Indices:
        rows, done, n = np.empty(count, np.int64), 0, len(self.dataset)
        while done < count:
            epoch, at = divmod(start + done, n)
            if epoch != self._epoch:
                self._order = Seeded(self.seed).at("stream", "epoch", epoch).permutation(n)
                self._epoch = epoch
            step = min(n - at, count - done)
            rows[done : done + step] = self._order[at : at + step]
            done += step
        return rows
