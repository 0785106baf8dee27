r"""Classes: entities with equal histories, and what joining and merging them comes to.

An entity is a record, or a person with several. Ten million of them have few different histories,
so the ledger keeps a history for each *class* and a class for each entity. A history has three
parts:

    frozen   what was booked in sets that nobody will charge any more:
             (event, kind, size) -> how often
    ways     besides, one of these, it is not known which
    live     groups of sets that still can be charged: (sets, size)

A group (sets, size) says: this entity is ``size`` units in one of these sets, it is not known
which. Rows that look the same are told apart by nothing; each is in one set of a run. So an entity
has a history for each way to choose a set of every group, and its price is the largest of theirs.
A run that asks for one of its sets knows which: within a run, equal rows do not add up. Of a
person, who may be in all sets of a group, what was charged on them counts by its largest, event by
event.

**size** is how many units of one release an entity is: rows of a person in one set, or clients that
hold some of them.

**Everything here may over-count and never under-counts.** A class *covers* another if it has no
smaller count in any column, and no fewer groups. Merging classes gives one that covers both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import and_, or_

import numpy as np
import numpy.typing as npt

from sordino.privacy.event import Event, encode
from sordino.privacy.records.group import Column, bare, weight, whole

Group = tuple[tuple[int, ...], int]
"""Numbers of sets in ascending order, and the size."""

Frozen = tuple[tuple[Column, int], ...]
MOST_WAYS = 16
"""Ways of one class; more become ones that cover them."""
Counts = Counter[Column]
"""``|`` is the larger count, column by column, and ``+`` the sum."""


@dataclass(frozen=True, slots=True)
class Class:
    """A history that some entities share.

    Attributes:
        frozen: sorted; see the chapter above.
        live: likewise.
        ways: likewise; none, or several.
        person: whether the entity is a person, in all sets of a group; else it is a row.
        named: whether runs name persons: it is one, or a row of one, who is priced in its place.
    """

    frozen: Frozen = ()
    live: frozenset[Group] = frozenset()
    person: bool = False
    named: bool = False
    ways: tuple[Frozen, ...] = ()

    @property
    def kind(self) -> tuple[bool, bool]:
        """Its kind: a person, a row of one, or a row without."""
        return self.person, self.named

    @property
    def counts(self) -> Counts:
        """The frozen part."""
        return Counter(dict(self.frozen))

    @property
    def several(self) -> list[Counts]:
        """The frozen part, each way to have it."""
        return [self.counts + Counter(dict(way)) for way in self.ways] or [self.counts]

    @property
    def most(self) -> Counts:
        """Counts that cover every way."""
        return reduce(or_, self.several)

    @property
    def sets(self) -> frozenset[int]:
        """Every set of its groups."""
        return frozenset(one for group, _ in self.live for one in group)


Totals = Callable[[int], tuple[str, Mapping[Event, int]]]
"""Kind of a set, and what was charged on it since it was opened."""


_text = lru_cache(maxsize=1 << 16)(encode)


def frozen(counts: Counts) -> Frozen:
    """Counts as a value, sorted."""

    def place(entry: tuple[Column, int]) -> tuple[str, int, str]:
        (event, kind, size), _ = entry
        return kind, size, _text(event)

    return tuple(sorted((+counts).items(), key=place))


Choice = tuple[tuple[int, ...], ...]
"""Of each group of a class, in their order, the sets whose charges count; by the largest."""


def apart(groups: Iterable[Group], person: bool, seen: Collection[int]) -> list[Group]:
    """Return the groups in order, where ``seen`` are sets that the entity is taken to be in: each
    of them is a group of its own, so that their charges add up.
    """
    found: list[Group] = []
    for sets, size in sorted(groups):
        own = () if person else [each for each in sets if each in seen]
        found += [((each,), size) for each in own] or [(sets, size)]
    return found


def choices(groups: Sequence[Group], person: bool) -> list[Choice]:
    """Return the ways to be in one set of each group; a person is in all of them."""
    found: list[Choice] = [()]
    for sets, _ in groups:
        parts = [sets] if person else [(each,) for each in sets]
        if len(found) * len(parts) > MOST_WAYS:
            parts = [sets]
        found = [(*one, part) for one in found for part in parts]
    return found


def of_groups(groups: Iterable[Group], totals: Totals) -> Counts:
    """Return the counts of several groups, which add up; of a group the largest of its sets, event
    by event.

    Of several units in one set, each release that was counted is a whole one.
    """
    found = Counts()
    for sets, size in groups:
        counted = whole if size > 1 and len(sets) == 1 else bare
        largest = Counts()
        for kind, spent in map(totals, sets):
            largest |= Counter(
                {(counted(event), kind, size): count for event, count in spent.items()}
            )
        found += largest
    return found


def histories(of: Class, totals: Totals, seen: Collection[int] = ()) -> list[Counts]:
    """All that an entity of this class may have been in, each way; ``seen`` as of
    :func:`apart`.
    """
    ordered = apart(of.live, of.person, seen)
    sizes = [size for _, size in ordered]
    ways = choices(ordered, of.person)
    now = [of_groups(zip(way, sizes, strict=True), totals) for way in ways]
    if len(now) > 1:
        now = maximal(now, MOST_WAYS)
    found = [before + each for before in of.several for each in now]
    return found if len(found) == 1 else maximal(found, MOST_WAYS)


def closed(of: Class, sets: frozenset[int], totals: Totals) -> Class:
    """The class once these sets are charged no more. Groups with another set stay live."""
    done = {group for group in of.live if sets.issuperset(group[0])}
    if not done:
        return of
    before = replace(of, live=frozenset(done))
    return replace(_of_ways(before, histories(before, totals)), live=of.live - done)


def _of_ways(of: Class, ways: Sequence[Counts]) -> Class:
    """The class with one of these histories as its frozen part."""
    if len(ways) == 1:
        return replace(of, frozen=frozen(ways[0]), ways=())
    sure = reduce(and_, ways)
    return replace(
        of,
        frozen=frozen(sure),
        ways=tuple(sorted((frozen(each - sure) for each in ways), key=repr)),
    )


def covered(of: Class) -> Class:
    """A class that covers this one, with one frozen part."""
    return replace(of, frozen=frozen(of.most), ways=()) if of.ways else of


def either(one: Class, other: Class) -> Class:
    """A class that covers both: for entities of one or of the other."""
    one, other = covered(one), covered(other)
    return Class(
        frozen=frozen(one.counts | other.counts),
        live=one.live | other.live,
        person=one.person or other.person,
        named=one.named or other.named,
    )


def bridged(one: Class, other: Class) -> Class:
    """For a record known under two names: it was in all that either was in, one row in each."""
    one, other = covered(one), covered(other)
    return replace(either(one, other), frozen=frozen(one.counts + other.counts))


def coarser(classes: Sequence[Class], most_classes: int) -> tuple[list[Class], list[int]]:
    """At most so many classes that cover these, and the place of each among them.

    The nearest are merged first, and persons, their rows and other rows never with each other: what
    a row's class says of its name would be lost. So each of these may keep one class.
    """
    if len(classes) <= most_classes:
        return list(classes), list(range(len(classes)))
    order = sorted(range(len(classes)), key=lambda i: _place(classes[i]))
    parts: list[tuple[Class, list[int]]] = [(classes[i], [i]) for i in order]
    while len(parts) > most_classes:
        pairs = [(parts[i][0], parts[i + 1][0]) for i in range(len(parts) - 1)]
        alike = [i for i, (one, other) in enumerate(pairs) if one.kind == other.kind]
        if not alike:
            break
        gaps = sorted(alike, key=lambda i: _distance(*pairs[i]))
        taken: set[int] = set()
        for i in gaps:
            if len(taken) // 2 >= len(parts) - most_classes:
                break
            if i not in taken and i + 1 not in taken:
                taken |= {i, i + 1}
                parts[i] = either(parts[i][0], parts[i + 1][0]), parts[i][1] + parts[i + 1][1]
                parts[i + 1] = parts[i + 1][0], []
        parts = [part for part in parts if part[1]]
    places = [0] * len(classes)
    for at, (_, members) in enumerate(parts):
        for i in members:
            places[i] = at
    return [one for one, _ in parts], places


def _place(of: Class) -> tuple[tuple[bool, bool], list[Group], float]:
    return of.kind, sorted(of.live), weight(of.most)


def _distance(one: Class, other: Class) -> tuple[int, float]:
    return one.live != other.live, abs(weight(one.most) - weight(other.most))


def maximal(histories: Iterable[Counts], at_most: int) -> list[Counts]:
    """Histories that cover all of these, at most so many; none that another covers."""
    distinct = {frozen(counts): counts for counts in histories}
    kept = sorted(distinct.values(), key=weight, reverse=True)
    if len(kept) <= 1024:
        found: list[Counts] = []
        for counts in kept:
            if not any(counts <= other for other in found):
                found.append(counts)
        kept = found
    step = max(1, -(-len(kept) // at_most))
    return [reduce(or_, kept[start : start + step]) for start in range(0, len(kept), step)]


Numbers = npt.NDArray[np.uint32]


class Pool:
    """Classes by number; :meth:`settled` says what became of them."""

    def __init__(self, classes: Sequence[Class] = ()) -> None:
        self.classes = list(classes)
        self._numbers = {one: number for number, one in enumerate(self.classes)}
        self.blank = self.put(Class())

    def put(self, one: Class) -> int:
        """The number of a class."""
        number = self._numbers.setdefault(one, len(self.classes))
        if number == len(self.classes):
            self.classes.append(one)
        return number

    def halve(self, classes: Numbers) -> bool:
        """Merge the nearest until half of those in use are left; in place.

        False if nothing can be merged.
        """
        used = np.unique(classes)
        merged, places = coarser([self.classes[i] for i in used.tolist()], len(used) // 2)
        if len(merged) == len(used):
            return False
        fresh = np.zeros(len(self.classes), np.uint32)
        fresh[used] = [self.put(merged[place]) for place in places]
        classes[:] = fresh[classes]
        return True

    def settled(self, classes: Numbers, at_most: int) -> tuple[Numbers, list[Class], list[int]]:
        """(The class of each entity, the classes, their entities' numbers); the blank one first."""
        sizes = np.bincount(classes, minlength=len(self.classes))
        used = [self.blank, *(i for i in np.flatnonzero(sizes).tolist() if i != self.blank)]
        merged, places = coarser([self.classes[i] for i in used[1:]], at_most - 1)
        tidy = Pool([self.classes[self.blank]])
        fresh = np.zeros(len(self.classes), np.uint32)
        fresh[used] = [0, *(tidy.put(merged[place]) for place in places)]
        again: Numbers = classes if np.array_equal(fresh[used], used) else fresh[classes]
        return again, tidy.classes, np.bincount(again, minlength=len(tidy.classes)).tolist()
