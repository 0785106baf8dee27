"""Sums and dot products of listed rows of any length, in strips as wide as the registers.

See ``compiled.deferred.listed``. Functions are compiled for one signature each: numba would
otherwise compile a second time for every argument that happens to be written as a number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from numba import cfunc, njit, types

from sordino.native.build import plain
from sordino.regimes.vertical.compiled.deferred import listed
from sordino.training.jit import tile

Run = Callable[..., Any]

# numba's types of arguments
NUMBER, FLOATS, NUMBERS = types.int64, types.float32[::1], types.int64[::1]
DOUBLES = types.float64[::1]
SLACK = 32  # what tiles may read or write behind the end of a list


def bundle(of: Any, *kinds: Any) -> Any:
    """numba's type of a named tuple of such fields."""
    made: Any = types.NamedTuple
    return made(kinds, of)


def compiled(
    returns: Any, *takes: Any, outside: bool = False, sums: bool = False
) -> Callable[[Run], Run]:
    """Compile for these types; ``outside``: called from Python; ``sums``: in any order."""
    options: Any = {
        "no_cpython_wrapper": not outside,
        "no_cfunc_wrapper": True,
        "fastmath": {"reassoc", "nsz"} if sums else False,
    }

    def made(run: Run) -> Run:
        done: Run = njit(returns(*takes), nogil=True, error_model="numpy", **options)(plain(run))
        return done

    return made


@dataclass(frozen=True, slots=True)
class Leaf:
    """A function that compiled code calls by its address.

    Were it set in at each call, its tiles would be compiled anew in every function above it.

    Attributes:
        made: keeps the address good.
    """

    made: Any

    @staticmethod
    def of(run: Run) -> Leaf:
        """Of a function without result; ``m``, ``f``: float32, all else int64."""
        pointer: Any = types.CPointer
        kinds = {
            "m": types.float32,
            "f": types.float32,
            "chosen": types.int64,
            "other": types.int64,
        }
        takes = [
            pointer(kinds[name]) if name in kinds else types.int64
            for name in inspect.signature(run).parameters
        ]
        return Leaf(cfunc(types.void(*takes))(plain(run)))

    @property
    def call(self) -> Run:
        """For compiled code; arrays are given as ``array.ctypes``."""
        call: Run = self.made.ctypes
        return call


@cache
def clear() -> Run:
    """``run(m, at, n)``: zeros."""

    def run(m: Any, at: int, n: int) -> None:
        for i in range(n):
            m[at + i] = 0

    return compiled(types.void, FLOATS, NUMBER, NUMBER)(run)


@cache
def add_rows(size: int) -> Leaf:
    """``run(m, at, pitch, vectors, list, n, f, f_at, out_at)``: ``m[out_at:] += sum_i f_i m_i``."""
    wide = 16 if tile.registers(size) >= 16 else 8
    most = listed.weighed(1, wide, size)
    eight, four, two, one = (
        listed.weighed(1, v, size, t) for v, t in ((8, 1), (4, 2), (2, 4), (1, 4))
    )

    def run(
        m: Any, at: int, pitch: int, vectors: int, chosen: Any, n: int, f: Any, f_at: int,
        out_at: int,
    ) -> None:  # fmt: skip
        v = 0
        while v + wide <= vectors:
            most(m, at + v * size, pitch, chosen, n, f, f_at, 1, 0, m, out_at + v * size, 0)
            v += wide
        if v + 8 <= vectors:
            eight(m, at + v * size, pitch, chosen, n, f, f_at, 1, 0, m, out_at + v * size, 0)
            v += 8
        if v + 4 <= vectors:
            four(m, at + v * size, pitch, chosen, n, f, f_at, 1, 0, m, out_at + v * size, 0)
            v += 4
        if v + 2 <= vectors:
            two(m, at + v * size, pitch, chosen, n, f, f_at, 1, 0, m, out_at + v * size, 0)
            v += 2
        if v < vectors:
            one(m, at + v * size, pitch, chosen, n, f, f_at, 1, 0, m, out_at + v * size, 0)

    return Leaf.of(run)


@cache
def dot_rows(size: int) -> Leaf:
    """``run(m, at, pitch, list, n, b_at, vectors, out_at)``: n dots ``m_i . b``, and up to 7."""
    eight = listed.dots(8, size)

    def run(
        m: Any, at: int, pitch: int, chosen: Any, n: int, b_at: int, vectors: int, out_at: int
    ) -> None:
        for i in range(0, n, 8):
            eight(m, at, pitch, chosen, i, b_at, vectors, out_at + i)

    return Leaf.of(run)


@cache
def product(size: int) -> Leaf:
    """Many rows of :func:`add_rows` at once.

    ``run(m, at, pitch, vectors, list, n, f, f_at, f_step, f_row, out_at, out_row, rows)``.

    Row r has its factors at ``f_at + r f_row + i f_step``.
    """
    most = 4 if tile.registers(size) >= 16 else 2
    wide, two, one = (listed.weighed(4, v, size) for v in (most, 2, 1))
    single = listed.weighed(1, 1, size, 4)

    def run(
        m: Any, at: int, pitch: int, vectors: int, chosen: Any, n: int, f: Any, f_at: int,
        f_step: int, f_row: int, out_at: int, out_row: int, rows: int,
    ) -> None:  # fmt: skip
        whole = rows // 4 * 4
        for r in range(0, whole, 4):
            v, here, there = 0, f_at + r * f_row, out_at + r * out_row
            while v + most <= vectors:
                wide(
                    m, at + v * size, pitch, chosen, n, f, here, f_step, f_row, m, there + v * size,
                    out_row,
                )  # fmt: skip
                v += most
            if v + 2 <= vectors:
                two(
                    m, at + v * size, pitch, chosen, n, f, here, f_step, f_row, m, there + v * size,
                    out_row,
                )  # fmt: skip
                v += 2
            if v < vectors:
                one(
                    m, at + v * size, pitch, chosen, n, f, here, f_step, f_row, m, there + v * size,
                    out_row,
                )  # fmt: skip
        for r in range(whole, rows):
            for v in range(vectors):
                single(
                    m, at + v * size, pitch, chosen, n, f, f_at + r * f_row, f_step, 0, m,
                    out_at + r * out_row + v * size, 0,
                )  # fmt: skip

    return Leaf.of(run)


@cache
def all_pairs(size: int) -> Leaf:
    """Dots of n rows with ``count`` rows, both up to the next four.

    ``run(m, at, pitch, vectors, list, n, other, count, out_at, out_row)``.
    """
    four = listed.pairs(size)

    def run(
        m: Any, at: int, pitch: int, vectors: int, chosen: Any, n: int, other: Any, count: int,
        out_at: int, out_row: int
    ) -> None:  # fmt: skip
        for b in range(0, n, 4):
            for i in range(0, count, 4):
                four(m, at, pitch, vectors, chosen, b, other, i, out_at + b * out_row + i, out_row)

    return Leaf.of(run)
