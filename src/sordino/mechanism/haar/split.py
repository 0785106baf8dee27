r"""Which numbers of contributions in pieces must be written out for a Haar cascade, and which need not be.

Cut every block into groups of 2^V consecutive numbers, the last filled up with zeros. V levels
of the cascade stay inside the groups; the others see the sums of groups only, 2^V times fewer
numbers. For the groups that lie inside one line of a piece (see :mod:`sordino.mechanism.pieces`)
those V levels can be had from the piece as it is, if 2^V divides its K: then every line is cut
at the same places,

    turned    all lines at once, side by side, without moving a number
    outer     for the one line of which all others are multiples

and the rest (groups across two lines, biases, small layers) is written out, group by group.
Of the small network's 26 010 numbers these are 96, beside 1 626 sums of groups of 16.

>>> found = split(((0, 266),), (Place(offset=0, outputs=1, inner=10), Place(offset=10, outputs=4, inner=64)))
>>> found.depth, found.inside[0].lead, found.inside[0].groups         # groups of 8: seven inside each line, after 6 numbers
(3, 6, 7)
>>> found.places.tolist()
[0, 1, 9, 17, 25, 33]
>>> [runs[:3].tolist() for runs in found.runs]                        # line, number in it, how many, where to
[[[0, 0, 10, 0]], [[0, 0, 6, 10], [0, 62, 2, 16], [1, 0, 6, 18]]]
>>> found.gaps                                                        # after the last of 266 numbers: zero
((42, 48),)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DEEPEST = 5
WORTH = 0.5  # where more than this share of the numbers is written, rows cost no more

Integers = NDArray[np.int64]
Block = tuple[int, int]


class Place(NamedTuple):
    """What is known of a piece without its numbers: O lines of K."""

    offset: int
    outputs: int
    inner: int

    @property
    def end(self) -> int:
        """One past its last number in the vector."""
        return self.offset + self.outputs * self.inner


class Inside(NamedTuple):
    """The groups that lie inside the lines of one piece.

    Attributes:
        piece, block: numbers of both.
        lead: numbers before the first group in every line.
        groups: in every line.
        first: number of the first group among those of all blocks.
        step: groups from one line to the next.
    """

    piece: int
    block: int
    lead: int
    groups: int
    first: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """Where the numbers of a vector go.

    Attributes:
        depth: V.
        inside: what need not be written.
        places: numbers of the groups that are written, ascending.
        starts: the first written group of each block, and their count, (blocks + 1,).
        runs: for each piece (runs, 4): line, first number in it, how many, and where they go among the written.
        gaps: stretches of the written that no piece fills: they are zero.
        coarse: offsets and sizes (blocks, 2) of the blocks of sums of groups.
    """

    depth: int
    inside: tuple[Inside, ...]
    places: Integers
    starts: Integers
    runs: tuple[Integers, ...]
    gaps: tuple[tuple[int, int], ...]
    coarse: Integers

    @property
    def written(self) -> int:
        """How many numbers are written out, zeros between them included."""
        return len(self.places) << self.depth

    @property
    def groups(self) -> int:
        """How many groups all blocks have."""
        return int(self.coarse[-1].sum())


@lru_cache(maxsize=64)
def split(blocks: tuple[Block, ...], places: tuple[Place, ...]) -> Split | None:
    """The split with the fewest numbers to write, sums of groups included; None where it would not be worth it."""
    best: tuple[int, int, tuple[Inside, ...]] | None = None
    for depth in range(DEEPEST, 0, -1):
        inside = tuple(_inside(blocks, places, depth))
        groups = int(_coarse(blocks, depth)[-1].sum())
        written = groups - sum(one.groups * places[one.piece].outputs for one in inside)
        cost = (written << depth) + groups
        if best is None or cost < best[0]:
            best = cost, depth, inside
    if best is None or best[0] > WORTH * sum(blocks[-1]):
        return None
    return _split(blocks, places, *best[1:])


def _coarse(blocks: Sequence[Block], depth: int) -> Integers:
    sizes = np.array([-(-size >> depth) for _, size in blocks], np.int64)
    return np.stack([np.cumsum(sizes) - sizes, sizes], axis=1)


def _inside(blocks: Sequence[Block], places: Sequence[Place], depth: int) -> list[Inside]:
    span, coarse, found = 1 << depth, _coarse(blocks, depth), []
    for number, place in enumerate(places):
        if place.outputs == 1 or place.inner % span:
            continue
        block = next((b for b, (offset, size) in enumerate(blocks) if offset <= place.offset and place.end <= offset + size), None)
        if block is None:
            continue  # the blocks cut it in two
        at = place.offset - blocks[block][0]
        lead = -at % span
        groups = (place.inner - lead) // span
        if groups:
            found.append(Inside(number, block, lead, groups, int(coarse[block, 0]) + (at + lead) // span, place.inner // span))
    return found


def _split(blocks: Sequence[Block], places: Sequence[Place], depth: int, inside: tuple[Inside, ...]) -> Split:
    coarse = _coarse(blocks, depth)
    rest = np.ones(int(coarse[-1].sum()), bool)
    for one in inside:
        lines = one.first + one.step * np.arange(places[one.piece].outputs)
        rest[(lines[:, None] + np.arange(one.groups)).ravel()] = False
    chosen = np.flatnonzero(rest)
    runs: list[list[tuple[int, int, int, int]]] = [[] for _ in places]
    filled = np.zeros(len(chosen) << depth, bool)
    for (offset, size), (first, many) in zip(blocks, coarse.tolist(), strict=True):
        for start, end in _stretches(rest[first : first + many]):
            at = offset + (start << depth)
            to = int(np.searchsorted(chosen, first + start)) << depth
            for number, line, k, length, where in _runs(places, at, min(offset + (end << depth), offset + size)):
                runs[number].append((line, k, length, where - at + to))
                filled[where - at + to : where - at + to + length] = True
    return Split(
        depth=depth,
        inside=inside,
        places=chosen,
        starts=np.searchsorted(chosen, [*coarse[:, 0], len(rest)]).astype(np.int64),
        runs=tuple(np.array(own, np.int64).reshape(-1, 4) for own in runs),
        gaps=tuple(_stretches(~filled)),
        coarse=coarse,
    )


def _stretches(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where it is true without a break."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def _runs(places: Sequence[Place], start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Numbers start to end of the vector by pieces and lines: piece, line, first number in the line, how many, where in the vector."""
    for number, place in enumerate(places):
        at, until = max(start, place.offset), min(end, place.end)
        while at < until:
            line, k = divmod(at - place.offset, place.inner)
            many = min(place.inner - k, until - at)
            yield number, line, k, many, at
            at += many
