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

from functools import cache
from typing import TYPE_CHECKING, Any

from sordino.native import Tile, emitted, processor

if TYPE_CHECKING:
    from sordino.native.emit import Emitter, Index


@cache
def _wide() -> bool:
    return processor.has("avx512f")


def registers(size: int) -> int:
    """How many accumulators of ``size`` numbers fit the vector registers, with room to work."""
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


@cache
def product(rows: int, vectors: int, size: int, add: bool = False) -> Tile:
    """``tile(a, at, step, runs, run, pitch, b, b_at, bias, bias_at, out, out_at, out_step)``.

    k walks ``runs`` runs of ``run`` consecutive numbers, ``pitch`` apart; b is (runs run, V L)
    without gaps. With ``add`` the rows are added to what stands in ``out``, one after another, so
    they may overlap; no bias then.
    """

    def body(
        code: Emitter, a: Any, at: Index, step: Index, runs: Index, run: Index, pitch: Index,
        b: Any, b_at: Index, bias: Any, bias_at: Index, out: Any, out_at: Index, out_step: Index,
    ) -> None:  # fmt: skip
        sums = code.sums(rows, vectors)
        code.clear(
            sums,
            None if add else [code.load(bias, there) for there in code.beside(bias_at, vectors)],
        )
        starts = at.apart(step, rows)
        with code.loop(runs) as part:
            down, weights = part * pitch, part * run
            with code.loop(run) as within:
                row = b_at + (weights + within) * (vectors * size)
                factors = [code.load(b, there) for there in code.beside(row, vectors)]
                code.outer(
                    sums, [code.number(a, start + (down + within)) for start in starts], factors
                )
        code.write(sums, out, out_at.apart(out_step, rows), code.builder.fadd if add else None)

    return emitted(size, body)


@cache
def outer(rows: int, vectors: int, size: int) -> Tile:
    """A tile of the outer products of inputs and slopes, summed over positions p.

    ``tile(a, at, a_example, a_row, a_step, g, g_at, g_example, g_step, n, high, wide, out, out_at,
    out_step)``: p walks ``n`` examples of ``high`` rows of ``wide`` positions; the positions of g
    lie without gaps. Returns the sum of the squares of what it wrote.
    """

    def body(
        code: Emitter, a: Any, at: Index, a_example: Index, a_row: Index, a_step: Index, g: Any,
        g_at: Index, g_example: Index, g_step: Index, n: Index, high: Index, wide: Index, out: Any,
        out_at: Index, out_step: Index,
    ) -> Any:  # fmt: skip
        sums, squares = code.sums(rows, vectors), code.zero
        code.clear(sums)
        with code.loop(n) as example:
            image, slope = at + example * a_example, g_at + example * g_example
            with code.loop(high) as down:
                line, first = image + down * a_row, down * wide
                with code.loop(wide) as across:
                    there = slope + (first + across) * g_step
                    factors = [code.load(g, place) for place in code.beside(there, vectors)]
                    code.outer(
                        sums,
                        [code.number(a, here) for here in (line + across * a_step).apart(1, rows)],
                        factors,
                    )

        def squared(value: Any, _: Any) -> Any:
            nonlocal squares
            squares = code.fma(value, value, squares)
            return value

        code.write(sums, out, out_at.apart(out_step, rows), squared)
        return code.total(squares)

    return emitted(size, body, "float32")


@cache
def largest(rows: int, columns: int, size: int) -> Tile:
    """The largest of a window, L channels at once.

    ``tile(x, at, pitch, step, out, out_at, which, floor)``.

    ``which`` (uint8) gets its place in the window, row by row, or 255 where nothing is above
    ``floor``; the first of equals wins, and NaN beats everything. ``floor`` is minus infinity, or 0
    for a rectified maximum.
    """

    def body(
        code: Emitter, x: Any, at: Index, pitch: Index, step: Index, out: Any, out_at: Index,
        which: Any, floor: Any,
    ) -> None:  # fmt: skip
        best, place, builder = code.spread(floor), code.byte(255), code.builder
        for number, there in enumerate(_window(at, rows, columns, pitch, step)):
            value = code.load(x, there)
            larger = builder.or_(
                builder.fcmp_ordered(">", value, best), builder.fcmp_unordered("uno", value, value)
            )
            best = builder.select(larger, value, best)
            place = builder.select(larger, code.byte(number), place)
        code.store(best, out, out_at)
        code.store(place, which, out_at)

    return emitted(size, body, floor="float32")


@cache
def returned(rows: int, columns: int, size: int) -> Tile:
    """``tile(out, at, pitch, step, g, g_at, which, floor)`` adds gradients where largest were."""

    def body(
        code: Emitter, out: Any, at: Index, pitch: Index, step: Index, g: Any, g_at: Index,
        which: Any, floor: Any,
    ) -> None:  # fmt: skip
        slope, place, builder = code.load(g, g_at), code.load(which, g_at, code.bytes), code.builder
        for number, there in enumerate(_window(at, rows, columns, pitch, step)):
            chosen = builder.icmp_unsigned("==", place, code.byte(number))
            code.store(
                builder.fadd(code.load(out, there), builder.select(chosen, slope, code.zero)),
                out,
                there,
            )

    return emitted(size, body, floor="float32")


def _window(at: Index, rows: int, columns: int, pitch: Index, step: Index) -> list[Index]:
    return [across for down in at.apart(pitch, rows) for across in down.apart(step, columns)]
