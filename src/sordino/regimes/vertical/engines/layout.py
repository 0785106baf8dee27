"""Where a fused network's numbers lie: one aligned float32 buffer, and tables for events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.regimes.vertical.compiled.deferred import chain, state
from sordino.regimes.vertical.compiled.deferred.strips import SLACK
from sordino.regimes.vertical.engines.net import Net

Array = NDArray[np.float32]
Table = NDArray[np.int64]

LINE = 64  # bytes of a cache line: a vector that crosses one is loaded twice


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The plan of the buffer.

    Attributes:
        layers: a row for each layer, the columns of ``compiled.deferred.chain``; the server's come
            last.
        people: a row for each participant, the columns of ``compiled.deferred.state``; the server's
            comes last.
        fields: places and sizes, those of ``compiled.deferred.state``.
        size: floats in the buffer.
        widest: the longest list of inputs, with slack.
    """

    layers: Table
    people: Table
    fields: Table
    size: int
    widest: int

    @staticmethod
    def of(net: Net, window: int, block: int, unit: int) -> Layout:
        """For a window of events, ``block`` at a time, rows on multiples of ``unit`` floats."""
        chains = (*net.parties, net.server)
        ring = window - 1 + block
        capacity, widest = _up(ring + SLACK, unit), max(max(one.widths) for one in chains) + SLACK
        layers = np.zeros((sum(len(one.layers) for one in chains), chain.COLUMNS), np.int64)
        people = np.zeros((len(chains), state.COLUMNS), np.int64)
        fields = np.zeros(state.FIELDS, np.int64)
        end = q = column = slot = 0

        def take(count: int) -> int:
            nonlocal end
            start, end = end, end + _up(count, unit)
            return start

        for p, one in enumerate(chains):
            first, last = q, p == len(chains) - 1
            for number, (inputs, outputs) in enumerate(one.layers):
                pitch, wide = _up(inputs + 1, unit), _up(outputs, unit)
                relu = one.last or number < len(one.layers) - 1
                layers[q, [chain.IN, chain.OUT, chain.RELU, chain.A_PITCH, chain.U_PITCH]] = (
                    inputs,
                    outputs,
                    relu,
                    pitch,
                    wide,
                )
                layers[q, [chain.W_AT, chain.A_AT]] = take(pitch * wide), take(ring * pitch)
                layers[q, [chain.U_AT, chain.S_AT]] = take(ring * wide), take(capacity)
                q += 1
            people[p, [state.FIRST, state.END, state.COLUMN, state.SLOT]] = first, q, column, slot
            if not last:
                people[p, state.Z_AT] = take(block * int(layers[first, chain.U_PITCH]))
                people[p, state.GRAM_AT] = take((block + 3) * capacity)
                column, slot = column + one.widths[0], slot + one.widths[-1]
        fields[state.V_AT] = take(
            ring * int(layers[:, chain.A_PITCH].max()) + int(layers[:, chain.U_PITCH].max())
        )
        fields[[state.F_AT, state.R_AT]] = take(capacity), take(capacity)
        fields[[state.VALUES_AT, state.FOUND_AT]] = take(widest), take(widest)
        fields[[state.BLOCK, state.RING, state.CAPACITY, state.FEATURES, state.WINDOW]] = (
            block,
            ring,
            capacity,
            column,
            window,
        )
        return Layout(layers, people, fields, end, widest)


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def buffer(size: int) -> Array:
    """Zeros that start on a cache line."""
    room = np.zeros(size + LINE // 4, np.float32)
    skip = (-room.ctypes.data % LINE) // 4
    return room[skip : skip + size]
