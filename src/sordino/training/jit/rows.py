r"""Register tiles of a linear layer, on rows in place: examples of a store, bytes or floats.

    dots:     s[i, c]  +=  sum_f w[c, f] t_i[f]   and  |t_i|^2   (all products of two rows at once)
    spread:   out[c, f]  +=  sum_i k[i, c] t_i[f]        (R rows of the gradient, V vectors wide)

A row is named by the offset of its first number, so a batch is a list of offsets and nothing is
gathered. Bytes become t = x - 127.5 in registers, which float32 holds exactly; the division by
127.5 that makes a pixel of it is left to factors on s and k. Floats are taken as they are.

Where L does not divide the number of features, the last vector overlaps the one before it, and the
lanes that were counted already are zero. So rows need L features at least.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sordino.native import Tile, emitted

if TYPE_CHECKING:
    from sordino.native.emit import Emitter, Index


MIDDLE = 127.5  # of the bytes, as :func:`sordino.training.kernels.model_input` has it


def _row(code: Emitter, x: Any, index: Index, rest: int = 0) -> Any:
    """t at ``index``; with ``rest`` only the last so many lanes, the others zero."""
    from llvmlite import ir

    if x.type.pointee == code.vector.element:
        value = code.load(x, index)
    else:
        wide = code.builder.zext(
            code.load(x, index, code.bytes), ir.VectorType(ir.IntType(32), code.size)
        )
        value = code.builder.fsub(code.builder.sitofp(wide, code.vector), code.constant(MIDDLE))
    if not rest:
        return value
    fresh = ir.Constant(
        ir.VectorType(ir.IntType(1), code.size), [0] * (code.size - rest) + [1] * rest
    )
    return code.builder.select(fresh, value, code.zero)


@cache
def dots(examples: int, classes: int, size: int, rest: int) -> Tile:
    """Scores of rows of the store, R classes at once.

    ``tile(x, places, which, w, w_at, start, vectors, features, last, scores, at, step, squares)``
    adds to ``scores[which + e, at + r]`` the products of rows ``places[which + e]`` with R rows of
    w over ``vectors`` vectors from feature ``start``, and after them the ``rest`` if this is the
    ``last`` stretch. The squares are added, too, in float64, unless ``at`` is above zero: then they
    have been already.
    """

    def body(
        code: Emitter, x: Any, places: Any, which: Index, w: Any, w_at: Index, start: Index,
        vectors: Index, features: Index, last: Any, scores: Any, at: Index, step: Index,
        squares: Any,
    ) -> None:  # fmt: skip
        rows = [code.whole(places, there) for there in which.apart(1, examples)]
        lines = w_at.apart(features, classes)
        sums, norms = code.sums(examples, classes), code.sums(1, examples)
        code.clear(sums)
        code.clear(norms)

        def work(feature: Index, rest: int) -> None:
            found = [_row(code, x, row + feature, rest) for row in rows]
            for value, place in zip(found, norms[0], strict=True):
                code.multiply(value, value, place)
            # one vector of w at a time: all of them would push sums out of the registers
            for column, line in zip(zip(*sums, strict=True), lines, strict=True):
                code.outer([[place] for place in column], found, [code.load(w, line + feature)])

        with code.loop(vectors) as number:
            work(start + number * size, 0)
        if rest:
            with code.when(last):
                work(features - size, rest)
        for e, example in enumerate(which.apart(1, examples)):
            for place, there in zip(sums[e], (example * step + at).apart(1, classes), strict=True):
                code.add(code.total(code.builder.load(place)), scores, there)
            with code.when(code.is_zero(at)):
                code.add(code.double(code.total(code.builder.load(norms[0][e]))), squares, example)

    return emitted(size, body, last="boolean")


@cache
def spread(classes: int, vectors: int, size: int, rest: int = 0) -> Tile:
    """``tile(x, places, n, factors, at, step, feature, out, out_at, pitch)``.

    Adds to R rows of ``out``, ``pitch`` apart, V vectors from ``feature`` on, the first n rows of x
    times ``factors[i, at + r]``.
    """

    def body(
        code: Emitter, x: Any, places: Any, n: Index, factors: Any, at: Index, step: Index,
        feature: Index, out: Any, out_at: Index, pitch: Index,
    ) -> None:  # fmt: skip
        lines, sums = (out_at + feature).apart(pitch, classes), code.sums(classes, vectors)
        for line, start in zip(sums, lines, strict=True):
            code.clear([line], [code.load(out, there) for there in code.beside(start, vectors)])
        with code.loop(n) as i:
            row = code.whole(places, i) + feature
            found = [_row(code, x, there, rest) for there in code.beside(row, vectors)]
            code.outer(
                sums,
                [code.number(factors, there) for there in (i * step + at).apart(1, classes)],
                found,
            )
        code.write(sums, out, lines)

    return emitted(size, body)
