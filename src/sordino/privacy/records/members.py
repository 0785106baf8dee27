"""Who is in which of the sets that are opened together, and what groups that makes of each entity.

Shapes: one entry a row of all sets together, (n,).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sordino.base.errors import LedgerError
from sordino.privacy.records.classes import Group
from sordino.privacy.records.group import CLIENT, SAMPLE
from sordino.privacy.records.identity import Records

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Membership:
    """Entities by what they are in.

    Attributes:
        entities: those that are in a set, ascending, (e,).
        patterns: number of the pattern of each, (e,).
        pairs: of each pattern, the sets (by place) and how many rows the entity has there.
    """

    entities: Places
    patterns: Places
    pairs: tuple[tuple[tuple[int, int], ...], ...]


def membership(entity: Places, at: Places, sets: int) -> Membership:
    """Of rows: the entity of each, and the place of its set."""
    codes, rows = np.unique(entity * sets + at, return_counts=True)
    whose, where = np.divmod(codes, sets)
    entities, starts, counts = np.unique(whose, return_index=True, return_counts=True)
    words = _words(where, rows)
    sums = np.add.reduceat(words, starts) if len(starts) else words
    _, first, patterns = np.unique(sums, return_index=True, return_inverse=True)
    _check(patterns, first, starts, counts, where, rows)
    ends = starts + counts
    pairs = tuple(
        tuple(zip(where[a:b].tolist(), rows[a:b].tolist(), strict=True))
        for a, b in zip(starts[first], ends[first], strict=True)
    )
    return Membership(entities, patterns.astype(np.int64), pairs)


def _words(where: Places, rows: Places) -> npt.NDArray[np.uint64]:
    z = (where.astype(np.uint64) << np.uint64(32)) + rows.astype(np.uint64) + np.uint64(1)
    for constant in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(constant)
    return z ^ (z >> np.uint64(31))


def _check(
    patterns: Places, first: Places, starts: Places, counts: Places, where: Places, rows: Places
) -> None:
    """Equal sums must mean equal pairs: each entity is compared with the first of its pattern."""
    like = first[patterns]
    if not np.array_equal(counts, counts[like]):
        raise ArithmeticError("two patterns of membership have one sum")
    within = np.arange(len(where)) - np.repeat(starts, counts)
    twin = np.repeat(starts[like], counts) + within
    if not (np.array_equal(where, where[twin]) and np.array_equal(rows, rows[twin])):
        raise ArithmeticError("two patterns of membership have one sum")


def groups(
    pairs: Sequence[tuple[int, int]],
    numbers: Sequence[int],
    records: Sequence[Records],
    person: bool,
) -> frozenset[Group]:
    """Return what a pattern comes to; the other lists are of the sets, by place.

    Rows that look the same are different records, each in one set: one group of alternatives. Rows
    of one person add up, and everybody counts as one who has the most rows that are allowed. Sets
    of which one release is the sum are one group, of all its units there; each other set is a group
    of its own.

    Raises:
        LedgerError: if a person has more rows in a set than are allowed.
    """
    found: set[Group] = set()
    for kind in dict.fromkeys(records[place].kind for place, _ in pairs):
        own = [(place, rows) for place, rows in pairs if records[place].kind == kind]
        if not person:
            found.add((tuple(sorted(numbers[place] for place, _ in own)), 1))
            continue
        summed, size = list[int](), 0
        for place, rows in own:
            one, number = records[place], numbers[place]
            if kind == CLIENT:
                summed, size = [*summed, number], size + one.units
                continue
            if rows > one.most:
                raise _too_many(one, rows)
            if one.summed:
                summed, size = [*summed, number], size + one.most * one.units
            else:
                found.add(((number,), one.most))
        if summed:
            found.add((tuple(sorted(summed)), size))
    return frozenset(found)


def _too_many(one: Records, rows: int) -> LedgerError:
    """The refusal of a person with more rows than the price of the set allows."""
    what = "rows" if one.kind == SAMPLE else "entities"
    remedy = ", or raise data.person_rows" if one.kind == SAMPLE and one.people is not None else ""
    return LedgerError(
        f"{one.unit}: one person, as the ledger knows people by name or by `sordino ledger link`, "
        f"counts as {rows} {what} here, and everybody is priced as {one.most}. Leave out all but "
        f"{one.most} of them{remedy}"
    )
