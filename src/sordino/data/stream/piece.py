"""A stream: labelled examples one after another, perhaps without end, read by stretches.

An online learner sees example t, predicts, learns, and goes on to t + 1. A run that was killed goes
on at the example where it stopped, so a stream is not an iterator: :meth:`Stream.read` takes the
number of the first example, and gives the same numbers however the reading was cut into pieces.
What is random is addressed by the seed and the number of a block of :data:`BLOCK` examples, so that
any start costs no more than one block.

Streams that somebody else writes are looked at before anything uses what they give
(:class:`Checked`, :func:`examine`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sordino.base.errors import StudyError
from sordino.data.dataset import Indices, Labels, Names, Shape, Single

BLOCK = 1000
"""Examples that share an address of randomness."""

SELDOM = 500
"""Changes of the distribution closer together than this are too many to mark in a report."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Consecutive examples; its arrays are its own, nothing else reads or writes them.

    Attributes:
        x: (n, features) float32, flat model input, already scaled by public constants.
        y: (n,) int64, class numbers.
        entity: (n,) int64, whose row it is, numbers from 0; None: every example is an entity of its
            own.
    """

    x: Single
    y: Labels
    entity: Indices | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, at: Indices | slice) -> Piece:
        """Some of the examples: copied if ``at`` is an array, and not if it is a slice."""
        entity = None if self.entity is None else self.entity[at]
        return Piece(self.x[at], self.y[at], entity)


class Stream(Protocol):
    """Examples numbered from 0."""

    @property
    def name(self) -> str:
        """The name in reports."""

    @property
    def shape(self) -> Shape:
        """Of one example before it was made flat: (channels, height, width) or (features,)."""

    @property
    def classes(self) -> Names:
        """A name for each class number."""

    @property
    def length(self) -> int | None:
        """Number of examples; None: endless, or a file whose end nobody has seen yet."""

    @property
    def columns(self) -> Names | None:
        """Names of the features of a table."""

    def read(self, start: int, count: int) -> Piece:
        """Examples ``start`` to ``start + count``; fewer only at the end.

        Any start; going forward is fast.
        """

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """The examples in [start, stop) at which the distribution changes abruptly, in order.

        Changes closer together than :data:`SELDOM` examples are left out: too many to mark. So are
        gradual ones.
        """


Changes = Callable[[int, int], tuple[int, ...]]
"""As :meth:`Stream.changes`."""


class DerivedStream:
    """A stream over another one; its examples are of the same shape and classes.

    Args:
        added: the changes that the stream below does not have.
    """

    def __init__(self, stream: Stream, added: Changes | None = None) -> None:
        self.stream, self.added = stream, added
        self.name, self.shape, self.classes = stream.name, stream.shape, stream.classes
        self.columns = stream.columns

    @property
    def length(self) -> int | None:
        """Length of the stream below, as far as it knows."""
        return self.stream.length

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """All changes in [start, stop), in order."""
        added = () if self.added is None else self.added(start, stop)
        return tuple(sorted({*self.stream.changes(start, stop), *added}))


def blocks(start: int, count: int) -> Iterator[tuple[int, int, int]]:
    """(block, first, last + 1 inside of it) of the examples ``start`` to ``start + count``."""
    stop = start + count
    while start < stop:
        block, first = divmod(start, BLOCK)
        last = min(first + stop - start, BLOCK)
        yield block, first, last
        start += last - first


def multiples(every: int, start: int, stop: int) -> tuple[int, ...]:
    """The changes in [start, stop) after each ``every`` examples, if they can be marked."""
    first = max(1, -(-start // every))
    return tuple(range(first * every, stop, every)) if every >= SELDOM else ()


def joined(pieces: Sequence[Piece], features: int, *, entities: bool) -> Piece:
    """One after another, as one piece; ``entities`` says whether they tell whose each row is."""
    if len(pieces) == 1:
        return pieces[0]
    none = np.empty(0, np.int64)
    x = [np.empty((0, features), np.float32), *(piece.x for piece in pieces)]
    owners = [none, *(piece.entity for piece in pieces if piece.entity is not None)]
    return Piece(
        np.concatenate(x),
        np.concatenate([none, *(piece.y for piece in pieces)]),
        np.concatenate(owners) if entities else None,
    )


PARTS = ("name", "shape", "classes", "length", "columns", "read", "changes")
AGAIN = 16
"""Examples of the first block that are read once more, by themselves."""
Wrong = Callable[[str, object, str], StudyError]
"""An error that names the class, of: the call, what it gave, what it must give."""


class Checked(DerivedStream):
    """A stream of somebody's own whose pieces are looked at; ``wrong`` makes what is raised."""

    def __init__(self, stream: Stream, wrong: Wrong) -> None:
        super().__init__(stream)
        self.wrong = wrong

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        given: object = self.stream.changes(start, stop)
        if not isinstance(given, tuple | list) or not all(
            isinstance(each, int | np.integer) for each in given
        ):
            raise self.wrong("changes", given, "the numbers of examples, a tuple")
        return tuple(map(int, given))

    def read(self, start: int, count: int) -> Piece:
        """Return the examples from ``start`` on.

        Raises:
            StudyError: if it is no piece of at most ``count`` such examples.
        """
        given: object = self.stream.read(start, count)
        features = int(np.prod(self.shape))
        if not isinstance(given, Piece):
            raise self.wrong("read", given, "a Piece")
        for what, values, shape, kind in (
            ("x", given.x, (len(given.y), features), np.float32),
            ("y", given.y, (len(given.y),), np.int64),
            ("entity", given.entity, (len(given.y),), np.int64),
        ):
            if what == "entity" and values is None:
                continue
            if (
                not isinstance(values, np.ndarray)
                or values.shape != shape
                or values.dtype != kind
                or len(values) > count
            ):
                told = type(values).__name__
                if isinstance(values, np.ndarray):
                    told = f"{values.dtype.name} of shape {values.shape}"
                wanted = f"{np.dtype(kind).name} of shape {shape}, at most {count} examples"
                raise self.wrong(f"{what} of a Piece that read", told, wanted)
        if not np.isfinite(given.x).all():
            raise self.wrong("x of a Piece that read", "NaN or infinity", "finite numbers")
        if len(given.y) and not (given.y.min() >= 0 and given.y.max() < len(self.classes)):
            raise self.wrong(
                "y of a Piece that read",
                f"classes {given.y.min()} to {given.y.max()}",
                f"class numbers from 0 to {len(self.classes) - 1}",
            )
        return given


NO_LABEL = -1
"""The class of every example, as a drift sees it that declares nothing about labels."""


class Unlabelled(DerivedStream):
    """A stream whose labels a drift does not see: all are :data:`NO_LABEL`."""

    def read(self, start: int, count: int) -> Piece:
        piece = self.stream.read(start, count)
        return Piece(piece.x, np.full_like(piece.y, NO_LABEL), piece.entity)


class Labelled(Checked):
    """A drift's stream over an unlabelled one, with the labels of the ``labelled`` one."""

    def __init__(self, stream: Stream, wrong: Wrong, labelled: Stream) -> None:
        super().__init__(stream, wrong)
        self.labelled = labelled

    def read(self, start: int, count: int) -> Piece:
        """Return the examples from ``start`` on.

        Raises:
            StudyError: if the examples are not those of the stream, in its order.
        """
        given: object = self.stream.read(start, count)
        below = self.labelled.read(start, count)
        if not isinstance(given, Piece) or not (
            np.array_equal(given.y, np.full_like(below.y, NO_LABEL))
            and _same_entities(given.entity, below.entity)
        ):
            raise self.wrong(
                "read",
                "other examples or labels than the stream has there",
                f"its examples in their order, with the label {NO_LABEL} that stands for all; or "
                "declare by_class = True (examples are chosen by class) or relabels = True "
                "(labels change)",
            )
        return Piece(given.x, below.y, below.entity)


def examine(stream: Stream, events: int, wrong: Wrong, *, one_label: bool) -> str:
    """Go through a stream of somebody's own before a promise about its entities is made, and return
    a digest (hex) of its events: a run goes on with the same ones alone.

    A price is that of an entity's appearances, and speaks of its own rows. So an entity that comes
    again must be known by its number, must keep its label where that is answered once for all, and
    an example must not depend on those around it.

    Raises:
        StudyError: naming what is not so.
    """
    seen: set[bytes] = set()
    labels: dict[int, int] = {}
    digest = hashlib.sha256()
    for start in range(0, events, BLOCK):
        piece = stream.read(start, min(BLOCK, events - start))
        for part in (piece.x, piece.y, *(() if piece.entity is None else (piece.entity,))):
            digest.update(np.ascontiguousarray(part).data)
        # of the first block only: some streams go back by beginning again
        for i in range(0, 0 if start else len(piece), max(len(piece) // AGAIN, 1)):
            alone = stream.read(start + i, 1)
            if not len(alone) or not np.array_equal(alone.x[0], piece.x[i]):
                raise wrong(
                    f"read({start + i}, 1)",
                    "another example than as part of a longer piece",
                    "the same numbers however the reading is cut: an example that depends on "
                    "those around it tells of them at no price",
                )
        for i, (row, label) in enumerate(zip(piece.x, piece.y.tolist(), strict=True)):
            if piece.entity is None:
                word = hashlib.sha256(row.tobytes() + bytes(str(label), "ascii")).digest()
                if word in seen:
                    raise wrong(
                        "entity of a Piece that read",
                        f"None, and example {start + i} came before",
                        "whose each example is, as numbers, where one may come again: each "
                        "appearance has a price",
                    )
                seen.add(word)
            elif one_label and labels.setdefault(int(piece.entity[i]), label) != label:
                raise wrong(
                    "read",
                    f"entity {piece.entity[i]} with two labels",
                    "one label for each entity, since privacy.memoised answers it once for all",
                )
        if len(piece) < min(BLOCK, events - start):
            break
    return digest.hexdigest()


def refuse_incomplete(given: object, wrong: Wrong, call: str) -> None:
    """Refuse what ``call`` gave if it is no stream.

    Raises:
        StudyError: naming what it lacks.
    """
    if missing := [part for part in PARTS if not hasattr(given, part)]:
        raise wrong(call, given, f"a stream, and this has no {', no '.join(missing)}")


def _same_entities(given: Indices | None, below: Indices | None) -> bool:
    if given is None or below is None:
        return given is below
    return np.array_equal(given, below)
