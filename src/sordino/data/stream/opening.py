r"""Ways to open a stream: each is a class, the ``data.stream`` table of a study.

A stream of your own is a class with a registration, or ``kind = "package.module:Class"`` in a study
(docs/own-tables.md).

**SUSY and HIGGS** are five and eleven million simulated collisions, from the UCI repository's files
(Baldi, Sadowski, Whiteson 2014). The first column is the class (1: signal, 0: background), then
come 18 or 28 features; there is no header. Both files are found where other data is
(:func:`sordino.data.sets.find`), under the names SUSY.csv.gz and HIGGS.csv.gz or unpacked.

**Deformed images** are an endless stream: random base images, bent, turned, stretched and moved a
little. A stream of a billion different examples needs no billion examples. Loosli, Canu, Bottou
2007 made their "infinite MNIST" so, by deforming 60 000 digits at random (the fields are those of
Simard et al. 2003). Two samples of one base image have different real-valued parameters, so that no
two are equal.

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
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.random import Generator
from pydantic import Field

from sordino.base.entropy import Seeded
from sordino.base.errors import DataError, StudyError
from sordino.base.files import open_plain
from sordino.base.registry import Registry, Section
from sordino.base.siphash import stacked
from sordino.data import identity
from sordino.data.dataset import (
    Array,
    Dataset,
    Double,
    Indices,
    Labels,
    Names,
    Single,
    Words,
    scaled,
)
from sordino.data.labels import notice_classes
from sordino.data.readers import load
from sordino.data.sets import PUBLISHED, find, is_published
from sordino.data.stream.drift import Sampling, classes_drawn
from sordino.data.stream.piece import BLOCK, Piece, Stream, blocks
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
        train, place = _rows(wanted), str(wanted.file or wanted.name)
        if wanted.one_label and train.client is not None:
            refuse_two_labels(place, train.client, train.y, train.classes)
        return Opened(Replayed(train, wanted.seed), train.fingerprint(), train.words)


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
        train = _rows(wanted)
        size, margin = (None, 0.0) if self.size is None else ((self.size, self.size), MARGIN)
        stream = Deformed(train, wanted.seed, size, margin=margin)
        return Opened(stream, train.fingerprint(), train.words)


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


def _rows(wanted: Wanted) -> Dataset:
    how = ReadOptions(
        label=wanted.label,
        scale=wanted.scale,
        identify=wanted.identify,
        target="classes",
        classes=wanted.classes,
    )
    # No test set is used.
    found = load(wanted.name or "", file=wanted.file, test_fraction=None, how=how).train
    if wanted.file is not None and wanted.classes is None and wanted.private:
        notice_classes(found.classes)
    if found.span is not None:
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
