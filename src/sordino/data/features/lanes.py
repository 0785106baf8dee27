r"""The steps of a scattering transform on fields of sixteen images side by side (:mod:`.fourier`).

    spectrum   the Fourier transform of a real field
    waves      moduli of convolutions with one scale's wavelets, and what is left when smoothed
    smoothed   a real field, smoothed by two small matrices

No step mixes lanes. Shapes: a real field is (height, width, 16), a spectrum (height, width, 2, 16).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sordino.data.features.fourier import LANES, along
from sordino.native import Kernel, Tile, compiled, emitted

if TYPE_CHECKING:
    from sordino.native.emit import Emitter, Index

_BLOCK = 8
"""Sums that are held in registers at once."""


@cache
def spectrum(height: int, width: int) -> Kernel:
    """``run(u, out)``: Fourier transforms of real fields u (n, h, w, 16), (n, h, w, 2, 16)."""
    across = along(width, height, 1, width, -1, real=True)
    down = along(height, width, width, 1, -1)
    size = height * width * LANES

    def run(u: Any, out: Any) -> None:
        for i in range(len(u)):
            across(u, i * size, out, 2 * i * size)
            down(out, 2 * i * size, out, 2 * i * size)

    return compiled(run)


@cache
def smoothed(height: int, width: int, rows: int, columns: int) -> Kernel:
    """``run(u, left, right, room, out)``: left @ u @ right^T of real fields u (n, h, w, 16).

    left is (rows, h), right (columns, w), out (n, rows, columns, 16); room holds h * columns * 16.
    """
    right_by, left_by = _smooth(height, width, rows, columns)
    size, kept = height * width * LANES, rows * columns * LANES

    def run(u: Any, left: Any, right: Any, room: Any, out: Any) -> None:
        for i in range(len(u)):
            right_by(right, u, i * size, room, 0)
            left_by(left, room, 0, out, i * kept)

    return compiled(run)


@cache
def waves(height: int, width: int, parts: int, rows: int, columns: int) -> Kernel:
    """``run(x, psi, left, right, room, u, out)``: what one scale's wavelets make of spectra.

    Args of ``run(x, psi, left, right, room, u, out, first, pitch)``:
        x: spectra (n, h, w, 2, 16).
        psi: real filters in Fourier space (angles, h, w), divided by h w.
        left: (rows, h / parts), as for :func:`smoothed`; right: (columns, w / parts).
        room: at least max(2 h w / parts^2, columns h / parts) * 16 numbers.
        u: the last spectrum's moduli (angles, h / parts, w / parts, 16).
        out: moduli smoothed (K, rows, columns, 16), those of spectrum i from first + i pitch on.
    """
    h, w = height // parts, width // parts
    fold = folded(h, w, parts)
    across, down = along(w, h, 1, w, 1), along(h, w, w, 1, 1, moduli=True)
    right_by, left_by = _smooth(h, w, rows, columns)
    whole, part, kept = height * width, h * w * LANES, rows * columns * LANES

    def run(
        x: Any, psi: Any, left: Any, right: Any, room: Any, u: Any, out: Any, first: int, pitch: int
    ) -> None:
        angles = len(psi)
        for i in range(len(x)):
            for angle in range(angles):
                fold(x, 2 * i * whole * LANES, psi, angle * whole, room)
                across(room, 0, room, 0)
                down(room, 0, u, angle * part)
                right_by(right, u, angle * part, room, 0)
                left_by(left, room, 0, out, (first + i * pitch + angle) * kept)

    return compiled(run)


def _smooth(height: int, width: int, rows: int, columns: int) -> tuple[Tile, Tile]:
    return (
        product(width, columns, height, (1, width), (1, columns)),
        product(height, rows, columns, (columns, 1), (columns, 1)),
    )


@cache
def folded(h: int, w: int, parts: int) -> Tile:
    """``tile(x, at, psi, first, out)``: products of a spectrum (parts h, parts w) with a filter.

    What lies h rows or w columns apart is added up. The filter's numbers start at ``first``.
    """
    far = parts * w

    def body(code: Emitter, x: Any, at: Index, psi: Any, first: Index, out: Any) -> None:
        with code.loop(h) as r, code.loop(w) as c:
            place, total = r * far + c, [code.zero, code.zero]
            for down in range(parts):
                for right in range(parts):
                    here = place + (down * h * far + right * w)
                    factor = code.spread(code.number(psi, first + here))
                    for part in range(2):
                        there = at + here * (2 * LANES) + part * LANES
                        value = code.load(x, there)
                        total[part] = (
                            code.fma(value, factor, total[part])
                            if down or right
                            else code.builder.fmul(value, factor)
                        )
            for part in range(2):
                code.store(total[part], out, (r * w + c) * (2 * LANES) + part * LANES)

    return emitted(LANES, body)


@cache
def product(n: int, m: int, lines: int, given: tuple[int, int], made: tuple[int, int]) -> Tile:
    """``tile(matrix, x, at, out, to)``: a matrix (m, n) times every line of a real field.

    Args:
        n: numbers of a line of x.
        m: numbers of a line of the result.
        lines: how many.
        given: places from one number of x to the next of its line, and from line to line.
        made: the same of the result.
    """

    def body(code: Emitter, matrix: Any, x: Any, at: Index, out: Any, to: Index) -> None:
        with code.loop(lines) as line:
            start = at + line * (given[1] * LANES)
            there = to + line * (made[1] * LANES)
            for first in range(0, m, _BLOCK):
                rows = range(first, min(first + _BLOCK, m))
                sums = code.sums(len(rows), 1)
                code.clear(sums)
                with code.loop(n) as k:
                    numbers = [code.number(matrix, k + row * n) for row in rows]
                    code.outer(sums, numbers, [code.load(x, start + k * (given[0] * LANES))])
                code.write(sums, out, [there + row * made[0] * LANES for row in rows])

    return emitted(LANES, body)
