r"""Register tiles for products with few rows: the examples of a window through one linear layer, there and back.

With rows a_i and slopes d_i, i < n, and a weight w (outputs, inputs), row-major, that all three walk as it lies:

    forward:   s[i, o]   =  sum_k a[i, k] w[o, k]
    combine:   out[i, k] =  sum_o f[i, o] w[o, k]                     (back through the layer, where f are slopes)
    change:    g[o, k]   =  sum_i d[i, o] a[i, k],    w += c g        and the sum of g's squares

Sums are vectors of L numbers in registers. In ``forward`` the lanes of a sum are still to be added up: that is done for L sums
at a time, halves of two on halves of two, until one vector has a sum in each lane (L - 1 additions in place of L log L).

Rows come R at a time. Rows after the n that exist may hold anything; nothing of them gets into the others.
Pitches are distances of rows, in numbers. Inputs come in whole vectors, in pairs where a tile is two wide.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sordino.training.jit.tile import INDEX, Emitter, Tile, buffers, tools

PAIR = 2  # outputs at once, and vectors at once


class _Sums(Emitter):
    """Sums over lanes."""

    def halved(self, a: Any, b: Any, group: int) -> Any:
        """Groups of so many lanes, of a and then of b, folded to half their length."""
        starts = [vector * self.size + at for vector in range(2) for at in range(0, self.size, group)]
        half = group // 2
        low = [start + lane for start in starts for lane in range(half)]
        first, second = (
            self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), self.size), [lane + by for lane in low]))
            for by in (0, half)
        )
        return self.builder.fadd(first, second)

    def totals(self, found: list[Any], group: int) -> Any:
        """The sums of the groups of all these vectors, in their order, in one vector."""
        while len(found) > 1:
            found = [self.halved(a, b, group) for a, b in zip(found[::2], found[1::2], strict=True)]
            group //= 2
        return found[0]


@cache
def forward(rows: int, size: int) -> Tile:
    """``tile(a, at, pitch, w, w_at, w_pitch, vectors, out, out_at, out_pitch)``: L outputs of R rows."""

    @intrinsic
    def tile(
        typing: Any, a: Any, at: Any, pitch: Any, w: Any, w_at: Any, w_pitch: Any, vectors: Any, out: Any, out_at: Any, out_pitch: Any
    ) -> Any:
        index = types.intp
        signature = types.void(a, index, index, w, index, index, index, out, index, index)

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = _Sums(builder, size)
            from_a, from_w, into = buffers(context, builder, signature, arguments, 0, 3, 7)
            _, at, pitch, _, w_at, w_pitch, vectors, _, out_at, out_pitch = arguments
            lines = [builder.add(at, code.times(pitch, r)) for r in range(rows)]
            sums = code.accumulators(rows, PAIR)
            pairs = size // PAIR
            kept = tools.alloca_once(builder, code.vector, size=INDEX(pairs * rows))
            with tools.for_range(builder, INDEX(pairs)) as pair:
                first = builder.add(w_at, builder.mul(code.times(pair.index, PAIR), w_pitch))
                outputs = [builder.add(first, code.times(w_pitch, v)) for v in range(PAIR)]
                for line in sums:
                    for place in line:
                        builder.store(code.zero, place)
                with tools.for_range(builder, vectors) as loop:
                    feature = code.times(loop.index, size)
                    factors = [code.load(from_w, builder.add(start, feature)) for start in outputs]
                    for line, places in zip(lines, sums, strict=True):
                        value = code.load(from_a, builder.add(line, feature))
                        for place, factor in zip(places, factors, strict=True):
                            builder.store(code.fma(value, factor, builder.load(place)), place)
                there = code.times(pair.index, rows)
                for r, places in enumerate(sums):
                    both = code.halved(builder.load(places[0]), builder.load(places[1]), size)
                    builder.store(both, builder.gep(kept, [builder.add(there, INDEX(r))]))
            for r in range(rows):
                found = [builder.load(builder.gep(kept, [INDEX(pair * rows + r)])) for pair in range(pairs)]
                code.store(code.totals(found, size // PAIR), into, builder.add(out_at, code.times(out_pitch, r)))
            return context.get_dummy_value()

        return signature, emit

    return tile


@cache
def combine(rows: int, size: int) -> Tile:
    """``tile(f, at, pitch, n, w, w_at, w_pitch, out, out_at, out_pitch)``: R rows, two vectors wide, sums over n rows of w."""

    @intrinsic
    def tile(
        typing: Any, f: Any, at: Any, pitch: Any, n: Any, w: Any, w_at: Any, w_pitch: Any, out: Any, out_at: Any, out_pitch: Any
    ) -> Any:
        index = types.intp
        signature = types.void(f, index, index, index, w, index, index, out, index, index)

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = Emitter(builder, size)
            from_f, from_w, into = buffers(context, builder, signature, arguments, 0, 4, 7)
            _, at, pitch, n, _, w_at, w_pitch, _, out_at, out_pitch = arguments
            lines = [builder.add(at, code.times(pitch, r)) for r in range(rows)]
            sums = code.accumulators(rows, PAIR)
            for line in sums:
                for place in line:
                    builder.store(code.zero, place)
            with tools.for_range(builder, n) as loop:
                start = builder.add(w_at, builder.mul(loop.index, w_pitch))
                factors = [code.load(from_w, builder.add(start, INDEX(v * size))) for v in range(PAIR)]
                code.accumulate(sums, [code.number(from_f, builder.add(line, loop.index)) for line in lines], factors)
            for r, line in enumerate(sums):
                row = builder.add(out_at, code.times(out_pitch, r))
                for v, place in enumerate(line):
                    code.store(builder.load(place), into, builder.add(row, INDEX(v * size)))
            return context.get_dummy_value()

        return signature, emit

    return tile


@cache
def change(outputs: int, size: int) -> Tile:
    """``tile(d, at, pitch, a, a_at, a_pitch, n, c, w, w_at, w_pitch, squares)``: so many outputs, two vectors wide.

    The squares are added to the L numbers of ``squares``, lane by lane.
    """

    @intrinsic
    def tile(
        typing: Any, d: Any, at: Any, pitch: Any, a: Any, a_at: Any, a_pitch: Any, n: Any, c: Any, w: Any, w_at: Any, w_pitch: Any,
        squares: Any,
    ) -> Any:  # fmt: skip
        index = types.intp
        signature = types.void(d, index, index, a, index, index, index, types.float32, w, index, index, squares)

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = Emitter(builder, size)
            from_d, from_a, into, into_squares = buffers(context, builder, signature, arguments, 0, 3, 8, 11)
            _, at, pitch, _, a_at, a_pitch, n, c, _, w_at, w_pitch, _ = arguments
            sums = code.accumulators(outputs, PAIR)
            for line in sums:
                for place in line:
                    builder.store(code.zero, place)
            with tools.for_range(builder, n) as loop:
                row = builder.add(a_at, builder.mul(loop.index, a_pitch))
                found = [code.load(from_a, builder.add(row, INDEX(v * size))) for v in range(PAIR)]
                slope = builder.add(at, builder.mul(loop.index, pitch))
                code.accumulate(sums, [code.number(from_d, builder.add(slope, INDEX(r))) for r in range(outputs)], found)
            factor, total = code.spread(c), [code.zero] * PAIR
            for r, line in enumerate(sums):
                start = builder.add(w_at, code.times(w_pitch, r))
                for v, place in enumerate(line):
                    value, there = builder.load(place), builder.add(start, INDEX(v * size))
                    total[v] = code.fma(value, value, total[v])
                    code.store(code.fma(factor, value, code.load(into, there)), into, there)
            both = builder.fadd(total[0], total[1])
            code.store(builder.fadd(both, code.load(into_squares, INDEX(0))), into_squares, INDEX(0))
            return context.get_dummy_value()

        return signature, emit

    return tile
