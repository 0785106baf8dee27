"""Digests to entities to classes, as sorted arrays: 28 bytes a record, 12 more for a person's.

A row leads to an entity by two digests, of all its values and of its features; either is enough.
Rows that share one are one entity, and so are all that hang together that way (the components of
the graph of digests). A person's digest leads to an entity of its own.

Shapes: digests (k,) sorted, owners (k,), classes (entities,).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Book:
    """Sorted digests, and the entity that each leads to."""

    digests: Words
    owners: Numbers

    @classmethod
    def empty(cls) -> Book:
        """Nobody yet."""
        return cls(np.empty(0, np.uint64), np.empty(0, np.uint32))

    def find(self, wanted: Words) -> Places:
        """The entity of each digest, (n,); -1 where there is none. ``wanted`` is best sorted."""
        if not len(self.digests):
            return np.full(len(wanted), -1, np.int64)
        at = np.minimum(np.searchsorted(self.digests, wanted), len(self.digests) - 1)
        return np.where(self.digests[at] == wanted, self.owners[at].astype(np.int64), -1)

    def with_more(self, digests: Words, owners: Places) -> Book:
        """The book with new digests, sorted and none of them known."""
        if not len(digests):
            return self
        if not len(self.digests):
            return Book(digests, owners.astype(np.uint32))
        at = np.searchsorted(self.digests, digests)
        return Book(
            np.insert(self.digests, at, digests),
            np.insert(self.owners, at, owners.astype(np.uint32)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """Everybody.

    Attributes:
        rows: digests of rows; ``people`` of persons.
        classes: number of the class of each entity.
    """

    rows: Book
    people: Book
    classes: Numbers

    @classmethod
    def empty(cls) -> Index:
        """Nobody yet."""
        return cls(Book.empty(), Book.empty(), np.empty(0, np.uint32))

    def grown(self, count: int, first_class: int) -> Index:
        """The index with so many entities more, all of one class."""
        return (
            replace(
                self, classes=np.concatenate([self.classes, np.full(count, first_class, np.uint32)])
            )
            if count
            else self
        )


def rows_found(
    index: Index, rows: Words, new_class: int
) -> tuple[Index, Places, dict[int, list[int]]]:
    """(The index with these rows, each row's entity, entities that are one: first -> others).

    The others stay in ``classes``, and nothing leads to them any more.
    """
    count = len(rows)
    if not count:
        return index, np.empty(0, np.int64), {}
    distinct, places = np.unique(rows.T.reshape(-1), return_inverse=True)
    known = index.rows.find(distinct)
    one, two = places[:count], places[count:]
    if (known >= 0).all() and np.array_equal(known[one], known[two]):
        return index, known[one], {}
    owners, merged, total = _components(known, one, two, len(index.classes))
    fresh = known < 0
    index = index.grown(total - len(index.classes), new_class)
    book = index.rows.with_more(distinct[fresh], owners[fresh])
    if merged:
        redirect = np.arange(total, dtype=np.uint32)
        for first, others in merged.items():
            redirect[others] = first
        book = Book(book.digests, redirect[book.owners])
    return replace(index, rows=book), owners[one], merged


def _components(
    known: Places, one: Places, two: Places, entities: int
) -> tuple[Places, dict[int, list[int]], int]:
    """The entity of each distinct digest, entities that are joined, and how many there are."""
    from scipy.sparse import coo_matrix  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    nodes, found = len(known), np.flatnonzero(known >= 0)
    old, old_places = np.unique(known[found], return_inverse=True)
    differ = one != two
    left = np.concatenate([one[differ], found])
    right = np.concatenate([two[differ], nodes + old_places])
    size = nodes + len(old)
    graph: Any = coo_matrix((np.ones(len(left), np.int8), (left, right)), shape=(size, size))
    count, labels = connected_components(graph, directed=False)
    entity = np.full(count, -1, np.int64)
    entity[labels[nodes:][::-1]] = old[::-1]  # the smallest number is written last, and stays
    moved = np.flatnonzero(entity[labels[nodes:]] != old)
    merged: dict[int, list[int]] = {}
    for i in moved.tolist():
        merged.setdefault(int(entity[labels[nodes + i]]), []).append(int(old[i]))
    nameless = np.flatnonzero(entity < 0)
    entity[nameless] = entities + np.arange(len(nameless))
    return entity[labels[:nodes]], merged, entities + len(nameless)


def people_found(index: Index, people: Words, new_class: int) -> tuple[Index, Places]:
    """(the index with these persons in it, the entity of each)."""
    distinct, places = np.unique(people, return_inverse=True)
    owners = index.people.find(distinct)
    fresh = owners < 0
    owners[fresh] = len(index.classes) + np.arange(int(fresh.sum()))
    book = index.people.with_more(distinct[fresh], owners[fresh])
    return replace(index.grown(int(fresh.sum()), new_class), people=book), owners[places]
