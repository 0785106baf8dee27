r"""Records by keyed digests of what stands in their rows, and their membership of sets.

A reader of data (:mod:`sordino.data.identity`) boils a row down to words of 64 bits: one over all
of its values, one over its features, one over all but the label, and with ``data.person`` one for
the person; and more, by which the ledgers of versions before know it, where those are others. Here
they become digests under a key of the ledger's own: SipHash-2-4 (Aumasson and Bernstein 2012), a
keyed pseudorandom function. Without the key a digest says nothing about a value. The key stands in
the ledger: whoever has the whole file can try out guesses, so it is to be kept like the data.

**Collisions over-count.** Two rows with one digest are taken for one record, whose price is then
that of both. Among n rows some two that differ share a digest with probability below 4.5 n^2 /
2^64 (three digests a row): 2.5 10^-5 for ten million.

Shapes: words of rows (n, 2 m), of persons (n, w). Who shares a word with another is the same.

>>> first, second = digests(bytes(16), np.array([1, 2], dtype=np.uint64))
>>> bool(first != second)
True

**Membership** says of each entity in which of the sets that are opened together it is, and which
groups that makes. Its arrays have one entry a row of all sets together, (n,).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sordino.base.arrays import Ints
from sordino.base.errors import LedgerError
from sordino.base.siphash import Words, siphash, stacked
from sordino.privacy.records.classes import Group
from sordino.privacy.records.group import CLIENT, LABEL, SAMPLE

KEY = 16
"""Bytes of a ledger's key."""

PEOPLE = np.uint64(0x70656F706C65)  # persons are hashed apart from rows


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """The records of one unit of a run.

    Attributes:
        unit: its name in the run, such as "client:3".
        kind: what a charge on it protects: "sample", "person", "client", "entity" or "label". Of a
            "person" all rows here are one unit.
        rows: pairs of words of all values, or all but the label, and of the features, (n, 2 m);
            today's pair of all values is the first.
        people: words of persons, (n, w), or None; then every row is a person's of its own.
        most: rows that one person may have here: a public bound, at which everybody is priced. A
            price by the rows that somebody has would tell how many these are.
        summed: whether one release is the sum over these rows and those of other units that say so;
            else the releases of each unit are its own. Whole clients are always taken for summed.
        units: how many units of the run hold exactly these rows; the ledger counts them.
        aside: whether these rows only test: no promise to rows that train is held for them.
    """

    unit: str
    kind: str
    rows: Words
    people: Words | None = None
    most: int = 1
    summed: bool = False
    units: int = 1
    aside: bool = False

    @classmethod
    def together(cls, parts: Sequence[Records]) -> Records:
        """The records of several parts of one unit, whose facts are those of the first."""
        people = [part.people for part in parts if part.people is not None]
        return replace(
            parts[0],
            rows=stacked([part.rows for part in parts]),
            people=stacked(people) if people else None,
        )

    def under(self, key: bytes) -> Records:
        """Return the same with digests under a key for words."""
        people = None if self.people is None else digests(key, self.people ^ PEOPLE)
        return replace(self, rows=digests(key, self.rows), people=people)

    @property
    def names(self) -> tuple[str, ...]:
        """The set's names in the ledger, its kind and a digest of its members in any order: today's
        first, and then those that versions before gave it.
        """
        named, found = self.people is not None, list[str]()
        for who in [self.rows[:, :0]] if self.people is None else self.people.T[:, :, None]:
            for pair in range(0, self.rows.shape[1], 2):
                facts = f"{self.kind}/{named}/{len(self.rows)}".encode()
                digest = hashlib.blake2b(facts, digest_size=12)
                members = [*who.T, *self.rows.T[pair : pair + 2 - named]]
                for words in members:
                    digest.update(np.sort(words).tobytes())
                found.append(f"{self.kind}s {digest.hexdigest()}")
        return tuple(dict.fromkeys(found))


def digests(key: bytes, words: Words) -> Words:
    """SipHash-2-4 of each word by itself."""
    first, second = np.frombuffer(key, dtype="<u8").tolist()
    return siphash((first, second), words.reshape(-1)).reshape(words.shape)


Pattern = tuple[tuple[int, int], ...]
"""Sets that an entity is in, by place, and how many rows it has there."""


def membership(entity: Ints, at: Ints, sets: int) -> tuple[Ints, Ints, list[Pattern]]:
    """Return the entities that are in a set, ascending, (e,), the number of each one's pattern,
    (e,), and the patterns; of rows ``entity`` is whose each is, and ``at`` the place of its set.
    """
    codes, rows = np.unique(entity * sets + at, return_counts=True)
    whose, where = np.divmod(codes, sets)
    entities, starts, counts = np.unique(whose, return_index=True, return_counts=True)
    # The number of what comes before and the next pair make the next number: equal lists have one.
    # Sets come first in it: the classes that patterns lead to stand in their order in the ledger of
    # a run, which others see. By rows it would tell who has the fewest.
    kinds, pair = np.unique(where * (int(rows.max(initial=0)) + 1) + rows, return_inverse=True)
    numbers = pair[starts]
    for place in range(1, int(counts.max(initial=1))):
        more = np.flatnonzero(counts > place)
        words = numbers[more] * len(kinds) + pair[starts[more] + place]
        numbers[more] = np.unique(words, return_inverse=True)[1] + numbers.max() + 1
    _, first, patterns = np.unique(numbers, return_index=True, return_inverse=True)
    ends = starts + counts
    pairs = [
        tuple(zip(where[a:b].tolist(), rows[a:b].tolist(), strict=True))
        for a, b in zip(starts[first], ends[first], strict=True)
    ]
    return entities, patterns.astype(np.int64), pairs


def groups(
    pairs: Pattern, numbers: Sequence[int], records: Sequence[Records], person: bool
) -> frozenset[Group]:
    """Return what a pattern comes to; the other lists are of the sets, by place.

    Rows that look the same are different records, each in one set: one group of alternatives; what
    is booked for labels says nothing about a whole row, and stands by itself. Rows of one person
    add up, and everybody counts as one who has the most rows that are allowed. Sets of which one
    release is the sum are one group, of all its units there; each other set is a group of its own.

    Raises:
        LedgerError: if a person has more rows in a set than are allowed.
    """
    if not person:
        alike: dict[bool, list[int]] = {}
        for place, _ in pairs:
            alike.setdefault(records[place].kind == LABEL, []).append(numbers[place])
        return frozenset((tuple(sorted(each)), 1) for each in alike.values())
    found = set[Group]()
    for kind in dict.fromkeys(records[place].kind for place, _ in pairs):
        summed, size = list[int](), 0
        for place, rows in pairs:
            one, number = records[place], numbers[place]
            if one.kind != kind:
                continue
            if kind == CLIENT:
                summed, size = [*summed, number], size + one.units
                continue
            alone = one.people is not None and kind != SAMPLE  # all rows of a name have one price
            if rows > one.most and not alone:
                raise LedgerError(
                    f"{one.unit}: one person, as the ledger knows people, counts as {rows} rows "
                    f"here, and everybody is priced as {one.most}. Leave out all but {one.most} of "
                    "them, or raise data.person_rows"
                )
            if one.summed:
                summed, size = [*summed, number], size + one.most * one.units
            else:
                found.add(((number,), one.most))
        if summed:
            found.add((tuple(sorted(summed)), size))
    return frozenset(found)
