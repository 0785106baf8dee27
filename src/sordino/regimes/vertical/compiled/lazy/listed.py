r"""Register tiles over rows that a list names: their weighed sum, and their dot products.

With rows m_i of P numbers (i from a list, in any order, with gaps),

    weighed:  out[r, :]  +=  sum_i f[i, r] m_i          R rows of V vectors at once
    dots:     out[i]      =  m_i . b                    N rows at once
    pairs:    out[i, j]   =  m_i . m_j                  4 x 4 rows at once

A list is what a layer behind a ReLU needs (rows of weights whose input is not zero) and what a window of
events is (rows of a ring). N sums of L lanes are brought together pair by pair, in N steps rather than
N log L, because a row of 256 numbers is only 16 multiply-adds long.

Rows start on multiples of L numbers and are whole vectors, filled up with zeros. Offsets count numbers.
As in :mod:`sordino.training.jit.tile` these are numba intrinsics; arrays come as pointers, to float32 and, for lists, to int64.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sordino.training.jit.tile import INDEX, Emitter, Tile, tools


class _Lists(Emitter):
    """Sums of lanes, of several vectors at once."""

    def row(self, at: Any, pitch: Any, from_list: Any, place: Any) -> Any:
        return self.builder.add(at, self.builder.mul(self.number(from_list, place), pitch))

    def gathered(self, values: list[Any]) -> Any:
        """One vector of ``len(values)`` numbers: the sums over the lanes of each."""
        lanes = self.size
        while len(values) > 1:
            values = [self._halved([a, b], lanes) for a, b in zip(values[::2], values[1::2], strict=True)]
            lanes //= 2
        value = values[0]
        while lanes > 1:
            value = self._halved([value], lanes)
            lanes //= 2
        return value

    def _halved(self, values: list[Any], lanes: int) -> Any:
        """First half plus second half of every group of so many lanes, group after group."""
        width = values[0].type.count
        starts = [v * width + group for v in range(len(values)) for group in range(0, width, lanes)]
        parts = []
        for shift in (0, lanes // 2):
            mask = [start + shift + i for start in starts for i in range(lanes // 2)]
            kind = ir.VectorType(ir.IntType(32), len(mask))
            parts.append(self.builder.shuffle_vector(values[0], values[-1], ir.Constant(kind, mask)))
        return self.builder.fadd(*parts)

    def keep(self, value: Any, pointer: Any, index: Any) -> None:
        """Store a vector of any length."""
        self.builder.store(value, self.place(pointer, index, value.type), align=4)


@cache
def weighed(rows: int, vectors: int, size: int, together: int = 1) -> Tile:
    """``tile(m, at, pitch, list, n, f, f_at, f_step, f_row, out, out_at, out_row)``.

    m_i is V vectors at ``at + list[i] pitch``; f[i, r] stands at ``f_at + i f_step + r f_row``. Where R V is small, so many
    rows are taken ``together``, with sums of their own, or each multiply-add would wait for the one before. What stands in
    ``out`` is added last: it comes from further away than the rest, and nothing need wait for it.
    """

    @intrinsic
    def tile(
        typing: Any, m: Any, at: Any, pitch: Any, chosen: Any, n: Any, f: Any, f_at: Any, f_step: Any, f_row: Any,
        out: Any, out_at: Any, out_row: Any,
    ) -> Any:  # fmt: skip
        index = types.intp
        signature = types.void(m, index, index, chosen, index, f, index, index, index, out, index, index)

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = _Lists(builder, size)
            from_m, at, pitch, from_list, n, from_f, f_at, f_step, f_row, into, out_at, out_row = arguments
            sums = [code.accumulators(rows, vectors) for _ in range(together)]
            for group in sums:
                for line in group:
                    for place in line:
                        builder.store(code.zero, place)
            firsts = [builder.add(f_at, code.times(f_row, r)) for r in range(rows)]

            def work(i: Any, group: list[list[Any]]) -> None:
                row, step = code.row(at, pitch, from_list, i), builder.mul(i, f_step)
                found = [code.load(from_m, builder.add(row, INDEX(v * size))) for v in range(vectors)]
                code.accumulate(group, [code.number(from_f, builder.add(first, step)) for first in firsts], found)

            whole = builder.sdiv(n, INDEX(together))
            with tools.for_range(builder, whole) as loop:
                first = code.times(loop.index, together)
                for number, group in enumerate(sums):
                    work(builder.add(first, INDEX(number)), group)
            if together > 1:
                done = code.times(whole, together)
                with tools.for_range(builder, builder.sub(n, done)) as loop:
                    work(builder.add(done, loop.index), sums[0])
            for r in range(rows):
                for v in range(vectors):
                    there = builder.add(builder.add(out_at, code.times(out_row, r)), INDEX(v * size))
                    value = builder.load(sums[0][r][v])
                    for group in sums[1:]:
                        value = builder.fadd(value, builder.load(group[r][v]))
                    code.store(builder.fadd(code.load(into, there), value), into, there)
            return context.get_dummy_value()

        return signature, emit

    return tile


@cache
def dots(rows: int, size: int) -> Tile:
    """``tile(m, at, pitch, list, first, b_at, vectors, out_at)``: N of them, a power of two up to L; b and ``out`` are in ``m``, too."""

    @intrinsic
    def tile(typing: Any, m: Any, at: Any, pitch: Any, chosen: Any, first: Any, b_at: Any, vectors: Any, out_at: Any) -> Any:
        index = types.intp
        signature = types.void(m, index, index, chosen, index, index, index, index)

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = _Lists(builder, size)
            m, at, pitch, from_list, first, b_at, vectors, out_at = arguments
            starts = [code.row(at, pitch, from_list, builder.add(first, INDEX(r))) for r in range(rows)]
            (sums,) = code.accumulators(1, rows)
            for place in sums:
                builder.store(code.zero, place)
            with tools.for_range(builder, vectors) as loop:
                shift = code.times(loop.index, size)
                factor = code.load(m, builder.add(b_at, shift))
                for start, place in zip(starts, sums, strict=True):
                    builder.store(code.fma(code.load(m, builder.add(start, shift)), factor, builder.load(place)), place)
            code.keep(code.gathered([builder.load(place) for place in sums]), m, out_at)
            return context.get_dummy_value()

        return signature, emit

    return tile


@cache
def pairs(size: int) -> Tile:
    """``tile(m, at, pitch, vectors, list, first, other, second, out_at, out_row)``: 16 dots of 4 rows and 4, into ``m``."""
    few = 4

    @intrinsic
    def tile(
        typing: Any, m: Any, at: Any, pitch: Any, vectors: Any, chosen: Any, first: Any, other: Any, second: Any, out_at: Any, out_row: Any
    ) -> Any:
        index = types.intp
        signature = types.void(m, index, index, index, chosen, index, other, index, index, index)

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = _Lists(builder, size)
            m, at, pitch, vectors, from_list, first, from_other, second, out_at, out_row = arguments
            left = [code.row(at, pitch, from_list, builder.add(first, INDEX(r))) for r in range(few)]
            right = [code.row(at, pitch, from_other, builder.add(second, INDEX(r))) for r in range(few)]
            sums = code.accumulators(few, few)
            for line in sums:
                for place in line:
                    builder.store(code.zero, place)
            with tools.for_range(builder, vectors) as loop:
                shift = code.times(loop.index, size)
                found = [code.load(m, builder.add(start, shift)) for start in right]
                for start, line in zip(left, sums, strict=True):
                    value = code.load(m, builder.add(start, shift))
                    for factor, place in zip(found, line, strict=True):
                        builder.store(code.fma(value, factor, builder.load(place)), place)
            for r, line in enumerate(sums):
                value = code.gathered([builder.load(place) for place in line])
                code.keep(value, m, builder.add(out_at, code.times(out_row, r)))
            return context.get_dummy_value()

        return signature, emit

    return tile
