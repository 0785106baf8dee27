r"""The loops behind :mod:`.piecewise`, compiled: the first V levels of Haar cascades on contributions in pieces.

For turned pieces a *pyramid* over 2^V numbers is unrolled and the compiler runs it for a
register of lines at a time: 31 sums and 31 differences for 32 loads, no shuffles, and squares
added in pairs, as the sums are, so that float32 loses next to nothing (a ninth of a nanosecond
a number, against one and a half for writing the row and halving it). For outer pieces one line
is halved, in float64: its numbers and their factors may both be far from one.

``coarse`` (n, groups) gets sums of groups; ``fine`` (n, V) sums of squared differences, finest first.
All are float32 but ``fine``, which is float64.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit

from sordino.mechanism.haar.compiled import Run, halve_energy

_ANY_ORDER = {"reassoc", "contract"}  # of sums, and that is all: infinities and NaN must come through


@cache
def _add(depth: int) -> Run:
    """Nested pairs ((e_1, e_2), e_3) of energies, added."""
    lower = _add(depth - 1) if depth > 1 else None

    def number(e: Any, f: Any) -> Any:
        return e + f

    def pair(e: Any, f: Any) -> Any:
        return lower(e[0], f[0]), e[1] + f[1]  # type: ignore[misc]

    return njit(fastmath=_ANY_ORDER, forceinline=True)(pair if lower else number)


@cache
def _pyramid(depth: int) -> Run:
    """Of 2^V numbers, ``step`` apart: their sum and the energies of V levels."""
    if depth == 1:

        def two(x: Any, at: Any, step: Any) -> Any:
            left, right = x[at], x[at + step]
            difference = left - right
            return left + right, difference * difference

        return njit(fastmath=_ANY_ORDER, forceinline=True)(two)
    half, add, jump = _pyramid(depth - 1), _add(depth - 1), np.uint64(1 << (depth - 1))

    def run(x: Any, at: Any, step: Any) -> Any:
        (left, e), (right, f) = half(x, at, step), half(x, at + jump * step, step)
        difference = left - right
        return left + right, (add(e, f), difference * difference)

    return njit(fastmath=_ANY_ORDER, forceinline=True)(run)


@cache
def _put(depth: int) -> Run:
    lower = _put(depth - 1) if depth > 1 else None

    def number(e: Any, out: Any) -> None:
        out[0] += np.float64(e)

    def pair(e: Any, out: Any) -> None:
        lower(e[0], out)  # type: ignore[misc]
        out[depth - 1] += np.float64(e[1])

    return njit(pair if lower else number)  # type: ignore[no-any-return]


def _zeros(depth: int) -> Any:
    return np.float32(0) if depth == 1 else (_zeros(depth - 1), np.float32(0))


@cache
def turned(depth: int) -> Run:
    """``run(values, outputs, lead, groups, first, step, coarse, fine)`` for values (n, K O), O lines side by side."""
    pyramid, add, put, zeros, span = _pyramid(depth), _add(depth), _put(depth), _zeros(depth), 1 << depth

    def run(values: Any, outputs: int, lead: int, groups: int, first: int, step: int, coarse: Any, fine: Any) -> None:
        many, lines = span * outputs, np.uint64(outputs)  # an index that cannot be negative makes wide vectors
        near, sums = np.empty(many, np.float32), np.empty(outputs, np.float32)
        for row in range(values.shape[0]):
            for group in range(groups):
                far, energies = values[row, lead * outputs + many * group : lead * outputs + many * (group + 1)], zeros
                for k in range(many):  # read in order first: jumps to memory that is not in the cache take three times as long
                    near[k] = far[k]
                for line in range(lines):
                    sums[line], more = pyramid(near, line, lines)
                    energies = add(energies, more)
                put(energies, fine[row])
                for line in range(outputs):
                    coarse[row, first + line * step + group] = sums[line]

    return njit(nogil=True, fastmath=_ANY_ORDER)(run)


def _outer(left: Any, right: Any, depth: int, lead: int, groups: int, first: int, step: int, coarse: Any, fine: Any) -> None:
    length = groups << depth
    numbers, sums, spare = np.empty(length), np.empty(length // 2), np.empty(length // 2)
    for row in range(left.shape[0]):
        square, factors, source = 0.0, left[row], right[row, lead : lead + length]
        for line in range(len(factors)):
            square += np.float64(factors[line]) * np.float64(factors[line])
        for k in range(length):
            numbers[k] = source[k]
        fine[row, 0] += square * halve_energy(numbers, length, sums)
        for level in range(1, depth):
            fine[row, level] += square * halve_energy(sums, length >> level, spare)
            sums, spare = spare, sums
        for line in range(len(factors)):
            factor, there = np.float64(factors[line]), coarse[row, first + line * step : first + line * step + groups]
            for group in range(groups):
                there[group] = factor * sums[group]


def _gather(values: Any, outputs: int, runs: Any, dense: Any) -> None:
    for row in range(values.shape[0]):
        for number in range(runs.shape[0]):
            line, start, many, to = runs[number]
            here, there = values[row, start * outputs + line :], dense[row, to : to + many]
            for k in range(many):
                there[k] = here[k * outputs]


def _multiply(left: Any, right: Any, runs: Any, dense: Any) -> None:
    for row in range(left.shape[0]):
        for number in range(runs.shape[0]):
            line, start, many, to = runs[number]
            here, there, factor = right[row, start : start + many], dense[row, to : to + many], left[row, line]
            for k in range(many):
                there[k] = factor * here[k]


def _finish(dense: Any, depth: int, places: Any, starts: Any, layout: Any, blocks: Any, coarse: Any, fine: Any, out: Any) -> None:
    half = max(dense.shape[1], coarse.shape[1] + 1) // 2
    sums, spare = np.empty(half, np.float32), np.empty(half, np.float32)
    for row in range(dense.shape[0]):
        group = 0
        for block in range(blocks.shape[0]):
            size, (at, many) = blocks[block, 1], layout[block]
            levels, length = 0, size
            while length > 1:
                levels, length = levels + 1, (length + 1) // 2
            share, length = 1.0, (starts[block + 1] - starts[block]) << depth
            here = dense[row, starts[block] << depth : starts[block + 1] << depth]
            for level in range(1, depth + 1):
                energy = halve_energy(here, length, spare) if level == 1 else halve_energy(sums, length, spare)
                sums, spare, length = spare, sums, length // 2
                if level <= levels:  # a block smaller than a group has fewer, and the rest is its sum again and again
                    share *= 0.5
                    out[row, group + levels + 1 - level] = share * (energy + fine[row, block, level - 1])
            for number in range(starts[block], starts[block + 1]):
                coarse[row, places[number]] = sums[number - starts[block]]
            here, length = coarse[row, at : at + many], many
            base = here[0]
            for level in range(depth + 1, levels + 1):
                energy = halve_energy(here, length, spare) if level == depth + 1 else halve_energy(sums, length, spare)
                sums, spare, length = spare, sums, (length + 1) // 2
                share *= 0.5
                out[row, group + levels + 1 - level] = share * energy
                base = sums[0]
            out[row, group] = share * np.float64(base) * np.float64(base)
            group += levels + 1


outer: Run = njit(nogil=True)(_outer)
"""``outer(left, right, V, lead, groups, first, step, coarse, fine)`` for lines left[:, o] right (n, O), (n, K)."""

gather: Run = njit(nogil=True)(_gather)
"""``gather(values, O, runs, dense)``: runs (see :class:`.split.Split`) of values (n, K O) to their places in dense (n, written)."""

multiply: Run = njit(nogil=True)(_multiply)
"""``multiply(left, right, runs, dense)``: the same of lines left[:, o] right."""

finish: Run = njit(nogil=True)(_finish)
"""``finish(dense, V, places, starts, coarse layout, blocks, coarse, fine, out)``: V levels of what was written, then the levels above.

``fine`` is (n, blocks, V) and ``out`` (n, groups), the energies in the order of :mod:`.compiled`.
"""
