r"""Register tiles: the inner loops of a convolution, in LLVM's intermediate language.

A tile holds R x V accumulators, each a vector of L numbers, in registers from the first
multiply-add to the last. That is what a loop in Python syntax cannot ask of a compiler,
and it is worth a factor of three: arithmetic then waits neither for loads nor for stores
(115 of the 118 GFLOP/s that one core of the machine measured has).

    product:   out[r, :]  =  bias + sum_k a[r step + k] b[k, :]
    outer:     out[r, :]  =  sum_p a[p + r] g[p, :]           and the sum of its squares

Both broadcast one number of ``a`` and multiply it with V vectors. Arrays come as flat
buffers with offsets in numbers, so that overlapping windows of one image are rows like any
others.

The functions returned are numba intrinsics: they can be called from compiled code only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

FLOAT, INDEX = ir.FloatType(), ir.IntType(64)
tools: Any = cgutils  # partly annotated
Tile = Callable[..., Any]


@cache
def _wide() -> bool:
    return bool(llvmlite.binding.get_host_cpu_features().get("avx512f", False))


def registers(size: int) -> int:
    """How many accumulators of ``size`` numbers the machine's vector registers hold, with room to work."""
    return 28 if _wide() else 96 // size


def widest() -> int:
    """Numbers in the machine's widest vector: where rows need not be whole vectors, the best L."""
    return 16 if _wide() else 8


def lanes(channels: int) -> int | None:
    """L for rows of this many channels: 16, 8, or None where tiles do not fit."""
    return next((size for size in (16, 8) if channels % size == 0), None)


def vectors(blocks: int) -> int:
    """V, side by side, for rows of this many vectors."""
    return 2 if blocks % 2 == 0 and _wide() else 1


class Emitter:
    """Vectors of L numbers in flat buffers, for the functions that write tiles."""

    def __init__(self, builder: Any, size: int) -> None:
        self.builder, self.size = builder, size
        self.vector = ir.VectorType(FLOAT, size)
        self.bytes = ir.VectorType(ir.IntType(8), size)
        self.zero = ir.Constant(self.vector, [0.0] * size)

    def times(self, value: Any, constant: int) -> Any:
        return self.builder.mul(value, INDEX(constant))

    def number(self, pointer: Any, index: Any) -> Any:
        return self.builder.load(self.builder.gep(pointer, [index]))

    def place(self, pointer: Any, index: Any, kind: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(pointer, [index]), kind.as_pointer())

    def load(self, pointer: Any, index: Any) -> Any:
        return self.builder.load(self.place(pointer, index, self.vector), align=4)

    def store(self, value: Any, pointer: Any, index: Any) -> None:
        self.builder.store(value, self.place(pointer, index, self.vector), align=4)

    def byte(self, number: int) -> Any:
        return ir.Constant(self.bytes, [number] * self.size)

    def spread(self, number: Any) -> Any:
        single = self.builder.insert_element(ir.Constant(self.vector, ir.Undefined), number, ir.IntType(32)(0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.size), [0] * self.size)
        return self.builder.shuffle_vector(single, single, mask)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(tools.get_or_insert_function(self.builder.module, kind, f"llvm.fma.v{self.size}f32"), [a, b, c])

    def total(self, value: Any) -> Any:
        kind = ir.FunctionType(FLOAT, [FLOAT, self.vector])
        reduce = tools.get_or_insert_function(self.builder.module, kind, f"llvm.vector.reduce.fadd.v{self.size}f32")
        return self.builder.call(reduce, [FLOAT(0.0), value], fastmath=["reassoc"])

    def accumulators(self, rows: int, vectors: int) -> list[list[Any]]:
        return [[tools.alloca_once(self.builder, self.vector) for _ in range(vectors)] for _ in range(rows)]

    def accumulate(self, sums: list[list[Any]], numbers: list[Any], factors: list[Any]) -> None:
        for line, number in zip(sums, numbers, strict=True):
            wide = self.spread(number)
            for place, factor in zip(line, factors, strict=True):
                self.builder.store(self.fma(wide, factor, self.builder.load(place)), place)


def buffers(context: Any, builder: Any, signature: Any, arguments: Any, *which: int) -> list[Any]:
    """Pointers to the data of these array arguments."""
    return [context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in which]


@cache
def product(rows: int, vectors: int, size: int, add: bool = False) -> Tile:
    """``tile(a, at, step, runs, run, pitch, b, b_at, bias, bias_at, out, out_at, out_step)``.

    k walks ``runs`` runs of ``run`` consecutive numbers, ``pitch`` apart; b is (runs run, V L) without gaps.
    With ``add`` the rows are added to what stands in ``out``, one after another, so they may overlap; no bias then.
    """
    width = vectors * size

    @intrinsic
    def tile(
        typing: Any, a: Any, at: Any, step: Any, runs: Any, run: Any, pitch: Any, b: Any, b_at: Any,
        bias: Any, bias_at: Any, out: Any, out_at: Any, out_step: Any,
    ) -> Any:  # fmt: skip
        index = types.intp
        signature = types.void(a, index, index, index, index, index, b, index, bias, index, out, index, index)

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = Emitter(builder, size)
            from_a, from_b, from_bias, into = buffers(context, builder, signature, arguments, 0, 6, 8, 10)
            _, at, step, runs, run, pitch, _, b_at, _, bias_at, _, out_at, out_step = arguments
            sums = code.accumulators(rows, vectors)
            for v in range(vectors):
                start = code.zero if add else code.load(from_bias, builder.add(bias_at, INDEX(v * size)))
                for line in sums:
                    builder.store(start, line[v])
            starts = [builder.add(at, code.times(step, r)) for r in range(rows)]
            with tools.for_range(builder, runs) as outer_loop:
                down, weights = builder.mul(outer_loop.index, pitch), builder.mul(outer_loop.index, run)
                with tools.for_range(builder, run) as inner_loop:
                    row = builder.add(b_at, code.times(builder.add(weights, inner_loop.index), width))
                    factors = [code.load(from_b, builder.add(row, INDEX(v * size))) for v in range(vectors)]
                    k = builder.add(down, inner_loop.index)
                    code.accumulate(sums, [code.number(from_a, builder.add(k, start)) for start in starts], factors)
            for r, line in enumerate(sums):
                for v, place in enumerate(line):
                    there, value = builder.add(builder.add(out_at, code.times(out_step, r)), INDEX(v * size)), builder.load(place)
                    code.store(builder.fadd(value, code.load(into, there)) if add else value, into, there)
            return context.get_dummy_value()

        return signature, emit

    return tile


@cache
def outer(rows: int, vectors: int, size: int) -> Tile:
    """``tile(a, at, a_example, a_row, a_step, g, g_at, g_example, g_step, n, high, wide, out, out_at, out_step)``.

    p walks ``n`` examples of ``high`` rows of ``wide`` positions; the positions of g lie without gaps.
    Returns the sum of the squares of what it wrote.
    """

    @intrinsic
    def tile(
        typing: Any, a: Any, at: Any, a_example: Any, a_row: Any, a_step: Any, g: Any, g_at: Any, g_example: Any, g_step: Any,
        n: Any, high: Any, wide: Any, out: Any, out_at: Any, out_step: Any,
    ) -> Any:  # fmt: skip
        index = types.intp
        signature = types.float32(a, *[index] * 4, g, *[index] * 6, out, index, index)

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = Emitter(builder, size)
            from_a, from_g, into = buffers(context, builder, signature, arguments, 0, 5, 12)
            _, at, a_example, a_row, a_step, _, g_at, g_example, g_step, n, high, wide, _, out_at, out_step = arguments
            sums = code.accumulators(rows, vectors)
            for line in sums:
                for place in line:
                    builder.store(code.zero, place)
            with tools.for_range(builder, n) as examples:
                image = builder.add(at, builder.mul(examples.index, a_example))
                slope = builder.add(g_at, builder.mul(examples.index, g_example))
                with tools.for_range(builder, high) as down:
                    line_at = builder.add(image, builder.mul(down.index, a_row))
                    first = builder.mul(down.index, wide)
                    with tools.for_range(builder, wide) as across:
                        there = builder.add(slope, builder.mul(builder.add(first, across.index), g_step))
                        factors = [code.load(from_g, builder.add(there, INDEX(v * size))) for v in range(vectors)]
                        here = builder.add(line_at, builder.mul(across.index, a_step))
                        numbers = [code.number(from_a, builder.add(here, INDEX(r))) for r in range(rows)]
                        code.accumulate(sums, numbers, factors)
            squares = code.zero
            for r, line in enumerate(sums):
                for v, place in enumerate(line):
                    value = builder.load(place)
                    squares = code.fma(value, value, squares)
                    code.store(value, into, builder.add(builder.add(out_at, code.times(out_step, r)), INDEX(v * size)))
            return code.total(squares)

        return signature, emit

    return tile


@cache
def largest(rows: int, columns: int, size: int) -> Tile:
    """``tile(x, at, pitch, step, floor, out, out_at, which)``: the largest of a window, L channels at once.

    ``which`` (uint8) gets its place in the window, row by row, or 255 where nothing is above ``floor``; the first of
    equals wins, and NaN beats everything. ``floor`` is minus infinity, or 0 for a rectified maximum.
    """

    @intrinsic
    def tile(typing: Any, x: Any, at: Any, pitch: Any, step: Any, floor: Any, out: Any, out_at: Any, which: Any) -> Any:
        index = types.intp
        signature = types.void(x, index, index, index, types.float32, out, index, which)

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = Emitter(builder, size)
            source, into, places = buffers(context, builder, signature, arguments, 0, 5, 7)
            _, at, pitch, step, floor, _, out_at, _ = arguments
            best, place = code.spread(floor), code.byte(255)
            for number, there in enumerate(_window(code, at, rows, columns, pitch, step)):
                value = code.load(source, there)
                larger = builder.or_(builder.fcmp_ordered(">", value, best), builder.fcmp_unordered("uno", value, value))
                best, place = builder.select(larger, value, best), builder.select(larger, code.byte(number), place)
            code.store(best, into, out_at)
            builder.store(place, code.place(places, out_at, code.bytes), align=1)
            return context.get_dummy_value()

        return signature, emit

    return tile


@cache
def returned(rows: int, columns: int, size: int) -> Tile:
    """``tile(g, which, at, pitch, step, out, out_at)`` adds each channel's gradient where its largest was."""

    @intrinsic
    def tile(typing: Any, g: Any, which: Any, at: Any, pitch: Any, step: Any, out: Any, out_at: Any) -> Any:
        index = types.intp
        signature = types.void(g, which, index, index, index, out, index)

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = Emitter(builder, size)
            slopes, places, into = buffers(context, builder, signature, arguments, 0, 1, 5)
            _, _, at, pitch, step, _, out_at = arguments
            slope, place = code.load(slopes, at), builder.load(code.place(places, at, code.bytes), align=1)
            for number, there in enumerate(_window(code, out_at, rows, columns, pitch, step)):
                chosen = builder.icmp_unsigned("==", place, code.byte(number))
                code.store(builder.fadd(code.load(into, there), builder.select(chosen, slope, code.zero)), into, there)
            return context.get_dummy_value()

        return signature, emit

    return tile


def _window(code: Emitter, at: Any, rows: int, columns: int, pitch: Any, step: Any) -> list[Any]:
    places = [(code.times(pitch, row), code.times(step, column)) for row in range(rows) for column in range(columns)]
    return [code.builder.add(at, code.builder.add(down, across)) for down, across in places]
