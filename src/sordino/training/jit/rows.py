r"""Register tiles of a linear layer, on rows that stay where they are: examples of a store, bytes or floats.

    dots:     s[i, c]  +=  sum_f w[c, f] t_i[f]   and  |t_i|^2        (all products of two rows at once)
    spread:   out[c, f]  +=  sum_i k[i, c] t_i[f]                     (R rows of the gradient, V vectors wide)

A row is named by the offset of its first number, so a batch is a list of offsets and nothing is
gathered. Bytes become t = x - 127.5 in registers, which float32 holds exactly; the division by 127.5
that makes a pixel of it is left to factors on s and k. Floats are taken as they are.

Where L does not divide the number of features, the last vector overlaps the one before it, and the
lanes that were counted already are zero. So rows need L features at least.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sordino.training.jit.tile import INDEX, Emitter, Tile, buffers, tools

MIDDLE = 127.5  # of the bytes, as :func:`sordino.training.bench.model_input` has it
DOUBLE = ir.DoubleType()


class _Rows(Emitter):
    """Vectors of a row, bytes or floats."""

    def __init__(self, builder: Any, size: int, kind: Any) -> None:
        super().__init__(builder, size)
        self._bytes = kind.dtype == types.uint8

    def row(self, pointer: Any, index: Any, rest: int = 0) -> Any:
        """t at ``index``; with ``rest`` only the last so many lanes, the others zero."""
        value = self._pixels(pointer, index) if self._bytes else self.load(pointer, index)
        if not rest:
            return value
        fresh = ir.Constant(ir.VectorType(ir.IntType(1), self.size), [0] * (self.size - rest) + [1] * rest)
        return self.builder.select(fresh, value, self.zero)

    def _pixels(self, pointer: Any, index: Any) -> Any:
        raw = self.builder.load(self.place(pointer, index, self.bytes), align=1)
        whole = self.builder.zext(raw, ir.VectorType(ir.IntType(32), self.size))
        return self.builder.fsub(self.builder.sitofp(whole, self.vector), ir.Constant(self.vector, [MIDDLE] * self.size))

    def add(self, value: Any, pointer: Any, index: Any) -> None:
        there = self.builder.gep(pointer, [index])
        self.builder.store(self.builder.fadd(self.builder.load(there), value), there)


@cache
def dots(examples: int, classes: int, size: int, rest: int) -> Tile:
    """``tile(x, places, which, w, w_at, start, vectors, features, last, scores, at, step, squares)``.

    Adds to ``scores[which + e, at + r]`` the products of rows ``places[which + e]`` with R rows of w over ``vectors`` vectors
    from feature ``start``, and after them the ``rest`` if this is the ``last`` stretch. The squares are added, too, in float64,
    unless ``at`` is above zero: then they have been already.
    """

    @intrinsic
    def tile(
        typing: Any, x: Any, places: Any, which: Any, w: Any, w_at: Any, start: Any, vectors: Any, features: Any, last: Any,
        scores: Any, at: Any, step: Any, squares: Any,
    ) -> Any:  # fmt: skip
        index = types.intp
        signature = types.void(x, places, index, w, *[index] * 4, types.boolean, scores, index, index, squares)

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = _Rows(builder, size, signature.args[0])
            from_x, from_places, from_w, into, into_squares = buffers(context, builder, signature, arguments, 0, 1, 3, 9, 12)
            _, _, which, _, w_at, start, vectors, features, last, _, at, step, _ = arguments
            rows = [code.number(from_places, builder.add(which, INDEX(e))) for e in range(examples)]
            lines = [builder.add(w_at, code.times(features, r)) for r in range(classes)]
            sums, norms = code.accumulators(examples, classes), code.accumulators(1, examples)[0]
            for place in [*norms, *(place for line in sums for place in line)]:
                builder.store(code.zero, place)

            def work(feature: Any, rest: int) -> None:
                found = [code.row(from_x, builder.add(row, feature), rest) for row in rows]
                for value, place in zip(found, norms, strict=True):
                    builder.store(code.fma(value, value, builder.load(place)), place)
                for r, line in enumerate(lines):
                    factor = code.load(from_w, builder.add(line, feature))
                    for e, value in enumerate(found):
                        builder.store(code.fma(value, factor, builder.load(sums[e][r])), sums[e][r])

            with tools.for_range(builder, vectors) as loop:
                work(builder.add(start, code.times(loop.index, size)), 0)
            if rest:
                with builder.if_then(tools.as_bool_bit(builder, last)):
                    work(builder.sub(features, INDEX(size)), rest)
            for e in range(examples):
                example = builder.add(which, INDEX(e))
                line = builder.add(builder.mul(example, step), at)
                for r in range(classes):
                    code.add(code.total(builder.load(sums[e][r])), into, builder.add(line, INDEX(r)))
                with builder.if_then(builder.icmp_signed("==", at, INDEX(0))):
                    code.add(builder.fpext(code.total(builder.load(norms[e])), DOUBLE), into_squares, example)
            return context.get_dummy_value()

        return signature, emit

    return tile


@cache
def spread(classes: int, vectors: int, size: int, rest: int = 0) -> Tile:
    """``tile(x, places, n, factors, at, step, feature, out, out_at, pitch)``.

    Adds to R rows of ``out``, ``pitch`` apart, V vectors from ``feature`` on, the first n rows of x times ``factors[i, at + r]``.
    """

    @intrinsic
    def tile(
        typing: Any, x: Any, places: Any, n: Any, factors: Any, at: Any, step: Any, feature: Any, out: Any, out_at: Any, pitch: Any
    ) -> Any:
        index = types.intp
        signature = types.void(x, places, index, factors, index, index, index, out, index, index)

        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = _Rows(builder, size, signature.args[0])
            from_x, from_places, from_factors, into = buffers(context, builder, signature, arguments, 0, 1, 3, 7)
            _, _, n, _, at, step, feature, _, out_at, pitch = arguments
            first = builder.add(out_at, feature)
            there = [
                [builder.add(builder.add(first, code.times(pitch, r)), INDEX(v * size)) for v in range(vectors)] for r in range(classes)
            ]
            sums = code.accumulators(classes, vectors)
            for r, line in enumerate(sums):
                for v, place in enumerate(line):
                    builder.store(code.load(into, there[r][v]), place)
            with tools.for_range(builder, n) as loop:
                row = builder.add(code.number(from_places, loop.index), feature)
                found = [code.row(from_x, builder.add(row, INDEX(v * size)), rest) for v in range(vectors)]
                line = builder.add(builder.mul(loop.index, step), at)
                code.accumulate(sums, [code.number(from_factors, builder.add(line, INDEX(r))) for r in range(classes)], found)
            for r, line in enumerate(sums):
                for v, place in enumerate(line):
                    code.store(builder.load(place), into, there[r][v])
            return context.get_dummy_value()

        return signature, emit

    return tile
