r"""Register tiles over rows that a list names: their weighed sum, and their dot products.

With rows m_i of P numbers (i from a list, in any order, with gaps),

    weighed:  out[r, :]  +=  sum_i f[i, r] m_i          R rows of V vectors at once
    dots:     out[i]      =  m_i . b                    N rows at once
    pairs:    out[i, j]   =  m_i . m_j                  4 x 4 rows at once

A list is what a layer behind a ReLU needs (rows of weights whose input is not zero) and what a
window of events is (rows of a ring). N sums of L lanes are brought together pair by pair, in N
steps rather than N log L, because a row of 256 numbers is only 16 multiply-adds long.

Rows start on multiples of L numbers and are whole vectors, filled up with zeros. Offsets count
numbers. Arrays come as pointers, to float32 and, for lists, to int64.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sordino.native import Tile, emitted

if TYPE_CHECKING:
    from sordino.native.emit import Emitter, Index, Sums


def _rows(
    code: Emitter, at: Index, pitch: Index, listed: Any, first: Index, count: int
) -> list[Index]:
    """Where so many rows begin, the first the one that stands at ``first`` in the list."""
    return [at + code.whole(listed, there) * pitch for there in first.apart(1, count)]


@cache
def weighed(rows: int, vectors: int, size: int, together: int = 1) -> Tile:
    """``tile(m, at, pitch, list, n, f, f_at, f_step, f_row, out, out_at, out_row)``.

    m_i is V vectors at ``at + list[i] pitch``; f[i, r] stands at ``f_at + i f_step + r f_row``.
    Where R V is small, so many rows are taken ``together``, with sums of their own, or each
    multiply-add would wait for the one before. What stands in ``out`` is added last: it comes from
    further away than the rest, and nothing need wait for it.
    """

    def body(
        code: Emitter, m: Any, at: Index, pitch: Index, chosen: Any, n: Index, f: Any, f_at: Index,
        f_step: Index, f_row: Index, out: Any, out_at: Index, out_row: Index,
    ) -> None:  # fmt: skip
        groups = [code.sums(rows, vectors) for _ in range(together)]
        firsts = f_at.apart(f_row, rows)
        for group in groups:
            code.clear(group)

        def work(i: Index, group: Sums) -> None:
            (row,) = _rows(code, at, pitch, chosen, i, 1)
            step, found = i * f_step, [code.load(m, there) for there in code.beside(row, vectors)]
            code.outer(group, [code.number(f, first + step) for first in firsts], found)

        whole = n // together
        with code.loop(whole) as number:
            for group, i in zip(groups, (number * together).apart(1, together), strict=True):
                work(i, group)
        if together > 1:
            done = whole * together
            with code.loop(n - done) as i:
                work(done + i, groups[0])
        for r, start in enumerate(out_at.apart(out_row, rows)):
            for v, there in enumerate(code.beside(start, vectors)):
                value = code.builder.load(groups[0][r][v])
                for group in groups[1:]:
                    value = code.builder.fadd(value, code.builder.load(group[r][v]))
                code.store(code.builder.fadd(code.load(out, there), value), out, there)

    return emitted(size, body)


@cache
def dots(rows: int, size: int) -> Tile:
    """``tile(m, at, pitch, list, first, b_at, vectors, out_at)``: N dots, a power of two."""

    def body(
        code: Emitter, m: Any, at: Index, pitch: Index, chosen: Any, first: Index, b_at: Index,
        vectors: Index, out_at: Index,
    ) -> None:  # fmt: skip
        starts, sums = _rows(code, at, pitch, chosen, first, rows), code.sums(1, rows)
        code.clear(sums)
        with code.loop(vectors) as number:
            shift = number * size
            factor = code.load(m, b_at + shift)
            code.outer(sums, [factor], [code.load(m, start + shift) for start in starts])
        code.store(code.gathered([code.builder.load(place) for place in sums[0]], size), m, out_at)

    return emitted(size, body)


@cache
def pairs(size: int) -> Tile:
    """``tile(m, at, pitch, vectors, list, first, other, second, out_at, out_row)``: 4 x 4 dots."""
    few = 4

    def body(
        code: Emitter, m: Any, at: Index, pitch: Index, vectors: Index, chosen: Any, first: Index,
        other: Any, second: Index, out_at: Index, out_row: Index,
    ) -> None:  # fmt: skip
        left = _rows(code, at, pitch, chosen, first, few)
        right = _rows(code, at, pitch, other, second, few)
        sums = code.sums(few, few)
        code.clear(sums)
        with code.loop(vectors) as number:
            shift = number * size
            columns = [code.load(m, start + shift) for start in right]
            code.outer(sums, [code.load(m, start + shift) for start in left], columns)
        for line, there in zip(sums, out_at.apart(out_row, few), strict=True):
            code.store(code.gathered([code.builder.load(place) for place in line], size), m, there)

    return emitted(size, body)
