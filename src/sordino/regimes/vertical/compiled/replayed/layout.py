"""Where everything of a cut network lies in the flat buffers that ``compiled.again.event`` walks.

The first layer of each party stands apart (its *head*: see there). All other layers lie in
``weights``, one after another, padded with zeros: rows of a weight to whole vectors of L numbers,
its columns to pairs of them, and a bias to the pitch of what it is added to. Padding stays zero:
its slopes and activations are zeros.

``activations`` has the rows of the window for each layer's output and for the server's input, and
slopes lie the same way in a buffer of their own. Offsets, pitches and counts are in numbers; the
tables have a row for each layer or party, and the columns that the constants name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sordino.training.jit import tile

Array = NDArray[np.float32]
Index = NDArray[np.int64]
Widths = tuple[int, ...]

# of a layer: input and its pitch, weight, outputs, rows of the weight, bias, output and its pitch;
# a ReLU before, and after
FROM, FROM_PITCH, WEIGHT, OUTPUTS, LINES, BIAS, INTO, INTO_PITCH, BEHIND, BEFORE = range(10)
# of a party: layers after the head; the head's sums, products and output, its pitch; whether a ReLU
# follows the head, and the last layer;
# the embedding, its pitch and width, and its place in the server's input
(
    FIRST, STOP, SUMS, GRAM, HEAD, HEAD_PITCH, HEAD_RELU, LAST_RELU, EMBEDDING, EMBEDDING_PITCH,
    WIDTH, COLUMN,
) = range(12)  # fmt: skip


def aligned(count: int) -> Array:
    """Zeros that begin at a line of the cache: vectors across two lines cost half the speed."""
    raw = np.zeros(count + 16, np.float32)
    start = (-raw.ctypes.data // 4) % 16
    return raw[start : start + count]


def rows_at_once(length: int) -> int:
    """R for a window of this length: two vectors of each row's sums fit into registers."""
    return 10 if length > 5 and tile.registers(tile.widest()) > 20 else 5


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """See the module's docstring.

    Attributes:
        layers: the table of layers, those of the parties first.
        parties: the table of parties.
        server: the server's first layer; its others follow.
        weights, activations, sums, gram: sizes of the buffers.
        delta: numbers in one row of the largest head.
        rows: R.
        capacity: rows, of the window before a block of events and of the block.
    """

    layers: Index
    parties: Index
    server: int
    weights: int
    activations: int
    sums: int
    gram: int
    delta: int
    rows: int
    capacity: int

    def matrix(self, layer: int, weights: Array) -> Array:
        """A layer's weight (rows, pitch), with its padding."""
        row = self.layers[layer]
        size = int(row[LINES] * row[FROM_PITCH])
        return weights[row[WEIGHT] : row[WEIGHT] + size].reshape(row[LINES], row[FROM_PITCH])

    def bias(self, layer: int, weights: Array) -> Array:
        """A layer's bias (outputs,)."""
        row = self.layers[layer]
        return weights[row[BIAS] : row[BIAS] + row[OUTPUTS]]


class _Maker:
    def __init__(self, depth: int, size: int) -> None:
        self._depth, self._size = depth, size
        self._weights = self._activations = 0
        self.layers: list[list[int]] = []

    def pitch(self, width: int) -> int:
        pair = 2 * self._size
        return -(-width // pair) * pair

    def room(self, width: int) -> int:
        """A place for the window's activations of this width."""
        at = self._activations
        self._activations += self._depth * self.pitch(width)
        return at

    def chain(self, widths: Widths, into: int, behind: bool, last: bool) -> int:
        """Layers from an input that has its place; where the last one's output lies."""
        for place, (inputs, outputs) in enumerate(pairwise(widths), 1):
            before = last or place < len(widths) - 1
            at, lines = self._weights, -(-outputs // self._size) * self._size
            bias = at + lines * self.pitch(inputs)
            self._weights = bias + self.pitch(outputs)
            start, into = into, self.room(outputs)
            self.layers.append(
                [
                    start,
                    self.pitch(inputs),
                    at,
                    outputs,
                    lines,
                    bias,
                    into,
                    self.pitch(outputs),
                    behind,
                    before,
                ]
            )
            behind = before
        return into

    @property
    def sizes(self) -> tuple[int, int]:
        return self._weights, self._activations


def laid_out(
    parties: Sequence[tuple[Widths, bool]], server: Widths, length: int, block: int
) -> Layout:
    """The layout for parties (widths, and whether a ReLU comes last) and windows of ``length``."""
    rows, capacity = rows_at_once(length), length - 1 + block
    depth = -(-length // rows) * rows
    maker = _Maker(depth, tile.widest())
    table, sums, gram, column = [], 0, 0, 0
    for widths, last in parties:
        first, head = len(maker.layers), maker.room(widths[1])
        embedding, pitch = maker.chain(widths[1:], head, True, last), maker.pitch(widths[1])
        deep = len(widths) > 2
        table.append(
            [
                first,
                len(maker.layers),
                sums,
                gram,
                head,
                pitch,
                deep or last,
                last,
                embedding,
                maker.pitch(widths[-1]),
                widths[-1],
                column,
            ]
        )
        sums, gram = sums + capacity * pitch, gram + (capacity + rows) * capacity
        column += widths[-1]
    first = len(maker.layers)
    maker.chain(server, maker.room(server[0]), False, False)
    weights, activations = maker.sizes
    delta = depth * max(maker.pitch(widths[1]) for widths, _ in parties)
    return Layout(
        np.array(maker.layers, np.int64), np.array(table, np.int64), first, weights, activations,
        sums, gram, delta, rows, capacity,
    )  # fmt: skip
