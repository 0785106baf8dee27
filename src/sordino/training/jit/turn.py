"""Transposes of many small matrices, a block of registers at a time.

Moving one number at a time costs as much as writing out the whole gradient of an example otherwise
does; here L vectors are loaded, shuffled, and stored.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.native import Tile, compiled, emitted
from sordino.training.jit import tile

if TYPE_CHECKING:
    from sordino.native.emit import Emitter, Index


def _transposed(code: Emitter, rows: list[Any]) -> list[Any]:
    """The columns of L vectors of L numbers: vectors of both halves interleaved, log2 L times."""
    size = code.size
    order = [lane + half for lane in range(size) for half in (0, size)]
    for _ in range(size.bit_length() - 1):
        pairs = zip(rows[: size // 2], rows[size // 2 :], strict=True)
        rows = [code.lanes(a, b, part) for a, b in pairs for part in (order[:size], order[size:])]
    return rows


@cache
def block(size: int) -> Tile:
    """``tile(x, at, pitch, out, out_at, out_pitch)``: L rows of L numbers become columns."""

    def body(
        code: Emitter, x: Any, at: Index, pitch: Index, out: Any, out_at: Index, out_pitch: Index
    ) -> None:
        rows = [code.load(x, there) for there in at.apart(pitch, size)]
        for row, there in zip(_transposed(code, rows), out_at.apart(out_pitch, size), strict=True):
            code.store(row, out, there)

    return emitted(size, body)


@cache
def _turn(size: int) -> Any:
    move = block(size)

    def run(x: Any, out: Any, pitch: int) -> None:
        n, rows, columns = x.shape
        for i in range(n):
            for row in range(0, rows, size):
                for column in range(0, columns, size):
                    at = (i * rows + row) * columns + column
                    move(x, at, columns, out, i * pitch + column * rows + row, rows)

    return compiled(run)


def turn(x: NDArray[np.float32], out: NDArray[np.float32]) -> bool:
    """The transposes of matrices x (n, rows, columns) into ``out`` (n, rows columns).

    Neither has gaps inside a matrix; ``out`` may be a stretch of longer rows. False, and nothing
    is done, where the matrices cannot be cut into blocks.
    """
    size = tile.lanes(int(np.gcd(x.shape[1], x.shape[2])))
    if size is None or not x.flags.c_contiguous or out.strides[1] != out.itemsize:
        return False
    _turn(min(size, tile.widest()))(x, out, out.strides[0] // out.itemsize)
    return True
