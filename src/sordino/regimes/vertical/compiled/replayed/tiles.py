r"""Register tiles for products with few rows: a window's examples through one linear layer.

With rows a_i and slopes d_i, i < n, and a weight w (outputs, inputs), row-major, that all three
walk as it lies:

    forward:   s[i, o]   =  sum_k a[i, k] w[o, k]
    combine:   out[i, k] =  sum_o f[i, o] w[o, k]        (back through the layer: f are slopes)
    change:    g[o, k]   =  sum_i d[i, o] a[i, k],    w += c g        and the sum of g's squares

Sums are vectors of L numbers in registers. In ``forward`` the lanes of a sum are still to be added
up: that is done for L sums at a time, halves of two on halves of two, until one vector has a sum in
each lane (L - 1 additions in place of L log L).

Rows come R at a time. Rows after the n that exist may hold anything; nothing of them gets into the
others. Pitches are distances of rows, in numbers. Inputs come in whole vectors, in pairs where a
tile is two wide.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sordino.native import Tile, emitted

if TYPE_CHECKING:
    from sordino.native.emit import Emitter, Index


PAIR = 2  # outputs at once, and vectors at once


@cache
def forward(rows: int, size: int) -> Tile:
    """``tile(a, at, pitch, w, w_at, w_pitch, vectors, out, out_at, out_pitch)``: (R, L) outputs."""
    pairs = size // PAIR

    def body(
        code: Emitter, a: Any, at: Index, pitch: Index, w: Any, w_at: Index, w_pitch: Index,
        vectors: Index, out: Any, out_at: Index, out_pitch: Index,
    ) -> None:  # fmt: skip
        lines, sums, kept = at.apart(pitch, rows), code.sums(rows, PAIR), code.room(pairs * rows)
        with code.loop(pairs) as pair:
            outputs = (w_at + pair * PAIR * w_pitch).apart(w_pitch, PAIR)
            code.clear(sums)
            with code.loop(vectors) as number:
                feature = number * size
                factors = [code.load(w, start + feature) for start in outputs]
                code.outer(sums, [code.load(a, line + feature) for line in lines], factors)
            for places, there in zip(sums, (pair * rows).apart(1, rows), strict=True):
                first, second = (code.builder.load(place) for place in places)
                code.builder.store(
                    code.folded(first, second, size), code.builder.gep(kept, [there.value])
                )
        for r, there in enumerate(out_at.apart(out_pitch, rows)):
            found = [code.number(kept, pair * rows + r) for pair in range(pairs)]
            code.store(code.gathered(found, size // PAIR), out, there)

    return emitted(size, body)


@cache
def combine(rows: int, size: int) -> Tile:
    """R rows, two vectors wide, sums over n rows of w.

    ``tile(f, at, pitch, n, w, w_at, w_pitch, out, out_at, out_pitch)``.
    """

    def body(
        code: Emitter, f: Any, at: Index, pitch: Index, n: Index, w: Any, w_at: Index,
        w_pitch: Index, out: Any, out_at: Index, out_pitch: Index,
    ) -> None:  # fmt: skip
        lines, sums = at.apart(pitch, rows), code.sums(rows, PAIR)
        code.clear(sums)
        with code.loop(n) as i:
            factors = [code.load(w, there) for there in code.beside(w_at + i * w_pitch, PAIR)]
            code.outer(sums, [code.number(f, line + i) for line in lines], factors)
        code.write(sums, out, out_at.apart(out_pitch, rows))

    return emitted(size, body)


@cache
def change(outputs: int, size: int) -> Tile:
    """So many outputs, two vectors wide.

    ``tile(d, at, pitch, a, a_at, a_pitch, n, c, w, w_at, w_pitch, squares)``.

    The squares are added to the L numbers of ``squares``, lane by lane.
    """

    def body(
        code: Emitter, d: Any, at: Index, pitch: Index, a: Any, a_at: Index, a_pitch: Index,
        n: Index, c: Any, w: Any, w_at: Index, w_pitch: Index, squares: Any,
    ) -> None:  # fmt: skip
        sums = code.sums(outputs, PAIR)
        code.clear(sums)
        with code.loop(n) as i:
            found = [code.load(a, there) for there in code.beside(a_at + i * a_pitch, PAIR)]
            code.outer(
                sums, [code.number(d, there) for there in (at + i * pitch).apart(1, outputs)], found
            )
        factor, total = code.spread(c), [code.zero] * PAIR
        for line, start in zip(sums, w_at.apart(w_pitch, outputs), strict=True):
            for v, there in enumerate(code.beside(start, PAIR)):
                value = code.builder.load(line[v])
                total[v] = code.fma(value, value, total[v])
                code.store(code.fma(factor, value, code.load(w, there)), w, there)
        both = code.builder.fadd(*total)
        code.store(code.builder.fadd(both, code.load(squares, 0)), squares, 0)

    return emitted(size, body, c="float32")
