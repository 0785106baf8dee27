"""A stream: labelled examples one after another, perhaps without end, read by stretches.

An online learner sees example t, predicts, learns, and goes on to t + 1. A run that was killed goes
on at the example where it stopped, so a stream is not an iterator: :meth:`Stream.read` takes the
number of the first example, and gives the same numbers however the reading was cut into pieces.
What is random is addressed by the seed and the number of a block of :data:`BLOCK` examples, so that
any start costs no more than one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sordino.base.errors import StudyError

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

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    entity: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.y)


class Stream(Protocol):
    """Examples numbered from 0."""

    @property
    def name(self) -> str:
        """The name in reports."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example before it was made flat: (channels, height, width) or (features,)."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """A name for each class number."""
        ...

    @property
    def length(self) -> int | None:
        """Number of examples; None: endless, or a file whose end nobody has seen yet."""
        ...

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the features of a table."""
        ...

    def read(self, start: int, count: int) -> Piece:
        """Examples ``start`` to ``start + count``; fewer only at the end.

        Any start; going forward is fast.
        """
        ...

    def changes(self, start: int, stop: int) -> tuple[int, ...]:
        """The examples in [start, stop) at which the distribution changes abruptly, in order.

        Changes closer together than :data:`SELDOM` examples are left out: too many to mark. So are
        gradual ones.
        """
        ...


class DerivedStream:
    """A stream over another one; its examples are of the same shape and classes."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.name, self.shape, self.classes = stream.name, stream.shape, stream.classes
        self.columns = stream.columns

    @property
    def length(self) -> int | None:
        """Length of the stream below, as far as it knows."""
        return self.stream.length


def room(start: int, count: int, length: int | None) -> int:
    """Return how many of ``count`` examples from ``start`` there are.

    Raises:
        StudyError: for a negative start or count.
    """
    if start < 0 or count < 0:
        raise StudyError(
            f"a stream is read from an example 0, 1, 2, ... on; asked for {count} examples "
            f"from {start}"
        )
    return count if length is None else max(0, min(count, length - start))


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


def check_length(length: int | None, place: str) -> None:
    """A stream's length is positive."""
    if length is not None and length < 1:
        raise StudyError(
            f"{place}: length must be at least 1, got {length}; leave it out for an endless stream"
        )


def joined(pieces: Sequence[Piece], features: int) -> Piece:
    """One after another, as one piece; of nothing, an empty one."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        return Piece(np.empty((0, features), np.float32), np.empty(0, np.int64))
    owners = [piece.entity for piece in pieces if piece.entity is not None]
    entity = np.concatenate(owners) if len(owners) == len(pieces) else None
    return Piece(
        np.concatenate([p.x for p in pieces]), np.concatenate([p.y for p in pieces]), entity
    )
