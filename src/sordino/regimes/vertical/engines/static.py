r"""Static local regret: each event steps along the mean loss of the last l examples.

All of them at the weights of the event.

    F_t = (1/l) sum_{i<l} f^{t-i}(w_t)
    w_0 -= eta_0 dF_t/dw_0,      active m:  w_m -= eta_m dF_t/dw_m

(Wang, Wang, Gu and Ling 2025; as in Hazan, Singh and Zhang 2017, but only one step an event; 1/l
also while the window fills.) A passive party answers and is not updated, nor is its gradient
computed. The regret of an event is |dF_t/dw|^2 over the server and the active parties.

What travels is the embedding h of each example of the window, and for active parties v = df/dh of
each, before the mean. With ``half`` both are rounded to 16-bit floats, at every event anew: to the
nearest, of two to the even one, large ones to infinity. ReLU' is that of the numbers before
rounding.

Events are worked off in blocks (``compiled.again.event`` says why); each call begins a block. So
the weights and the last l - 1 examples are all that a later call depends on, and cutting the same
events into other calls changes results by rounding only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.regimes.vertical.compiled.replayed import event
from sordino.regimes.vertical.compiled.replayed.layout import (
    FROM_PITCH,
    GRAM,
    HEAD_PITCH,
    INTO_PITCH,
    SUMS,
    Array,
    aligned,
    laid_out,
)
from sordino.regimes.vertical.engines.net import Chain, Net
from sordino.regimes.vertical.engines.observed import Observed, Rates
from sordino.training.jit import tile

Index = NDArray[np.int64]
Mask = NDArray[np.bool_]
Kept = NDArray[Any]  # float32 or int64

# events: much more, and what is taken from the weights but not yet written to them becomes the work
BLOCK = 64


class Static:
    """One run's weights and window; see the module's docstring.

    Raises:
        ValueError: a network whose parts do not fit, no window, or rates that are not numbers or
            not one for each party.
    """

    def __init__(self, net: Net, length: int, rates: Rates, *, half: bool) -> None:
        _check(net, length, rates)
        self._net, self._length, self._half = net, length, half
        self._layout = layout = laid_out(
            [(party.widths, party.last) for party in net.parties], net.server.widths, length, BLOCK
        )
        self._rates = np.array(
            [-rate / length for rate in (*rates.parties, rates.server)], np.float32
        )
        self._columns = list(pairwise(accumulate(net.features, initial=0)))
        self._run = event.events(layout.rows)
        self._heads = [
            np.zeros((chain.widths[1], chain.widths[0]), np.float32) for chain in net.parties
        ]
        self._head_biases = [np.zeros(chain.widths[1], np.float32) for chain in net.parties]
        self._weights, self._activations, self._slopes = map(
            aligned, (layout.weights, layout.activations, layout.activations)
        )
        self._sums, self._taken, self._gram, self._delta = map(
            aligned, (layout.sums, layout.sums, layout.gram, layout.delta)
        )
        self._line = aligned(int(layout.layers[:, [FROM_PITCH, INTO_PITCH]].max()))
        self._lanes = aligned(tile.widest())
        self._stamp = np.zeros(2, np.int64)
        self._x = np.zeros((layout.capacity, sum(net.features)), np.float32)
        self._y = np.zeros(layout.capacity, np.int64)
        self._kept = 0

    def start(self, server: Array, parties: Sequence[Array]) -> None:
        """Begins anew: these weights (d,) of server and parties, copied, and an empty window.

        Raises:
            ValueError: vectors that are not float32, not of the right length, or not one for each
                party.
        """
        chains = (*self._net.parties, self._net.server)
        vectors = (*parties, server)
        if len(vectors) != len(chains):
            raise ValueError(
                f"weights of {len(parties)} parties for a network of {len(chains) - 1}"
            )
        for place, (chain, vector) in enumerate(zip(chains, vectors, strict=True)):
            if vector.dtype != np.float32 or vector.shape != (chain.dim,):
                raise ValueError(
                    f"weights of {_who(place, chains)}: {vector.dtype} {vector.shape}, not "
                    f"float32 ({chain.dim},)"
                )
        self._kept = 0
        for buffer in (self._weights, self._activations, self._slopes, self._sums, self._taken):
            buffer[:] = 0  # paddings, too: after a run that diverged they may be NaN
        for m, (chain, vector) in enumerate(zip(chains, vectors, strict=True)):
            for ours, theirs in zip(self._parts(m), _parts(chain, vector), strict=True):
                ours[...] = theirs

    def weights(self) -> tuple[Array, tuple[Array, ...]]:
        """Copies of the server's weights and the parties', as :meth:`start` takes them."""
        vectors = [
            np.concatenate([part.ravel() for part in self._parts(m)])
            for m in range(len(self._net.parties) + 1)
        ]
        return vectors[-1], tuple(vectors[:-1])

    def pack(self) -> dict[str, Kept]:
        """All kept but weights: features "x" and labels "y" of the window's examples, by age."""
        return {"x": self._x[: self._kept].copy(), "y": self._y[: self._kept].copy()}

    def unpack(self, server: Array, parties: Sequence[Array], kept: Mapping[str, Kept]) -> None:
        """Goes on from :meth:`weights` and :meth:`pack`, bit for bit, if later calls are the same.

        Raises:
            KeyError: no "x" or no "y".
            ValueError, IndexError: as for :meth:`start` and :meth:`run`, or a window that is too
                long.
        """
        x, y = kept["x"], kept["y"]
        self._accepts(x, y)
        if len(x) >= self._length:
            raise ValueError(
                f"a window of {len(x)} kept examples, where at most {self._length - 1} stay "
                f"of {self._length}"
            )
        self.start(server, parties)
        self._x[: len(x)], self._y[: len(x)], self._kept = x, y, len(x)

    def run(self, x: Array, y: Index, active: Mask) -> Observed:
        """Learns from events, one after another.

        Args:
            x: (n, features) float32, the parties' features side by side, in their order.
            y: (n,) int64, labels.
            active: (n, parties) bool, who updates.

        Raises:
            ValueError: another shape or kind of number.
            IndexError: a label that is none of the classes.
        """
        self._accepts(x, y)
        if active.dtype != np.bool_ or active.shape != (len(x), len(self._net.parties)):
            raise ValueError(
                f"who is active: {active.dtype} {active.shape}, not bool ({len(x)}, "
                f"{len(self._net.parties)})"
            )
        n = len(x)
        seen = Observed(np.zeros(n, np.int64), np.zeros(n), np.zeros(n), np.zeros(3))
        for start in range(0, n, BLOCK):
            self._block(
                x[start : start + BLOCK],
                y[start : start + BLOCK],
                active[start : start + BLOCK],
                seen,
                start,
            )
        return seen

    def _block(self, x: Array, y: Index, active: Mask, seen: Observed, start: int) -> None:
        before, layout, begun = self._kept, self._layout, time.perf_counter()
        rows, stop = before + len(x), start + len(x)
        self._x[before:rows], self._y[before:rows] = x, y
        self._taken[:] = 0
        for m in range(len(self._heads)):
            features, head = self._features(m, rows), torch.from_numpy(self._heads[m])
            sums, gram = self._rows(m, self._sums, rows), self._products(m, rows)
            torch.from_numpy(sums).copy_(
                torch.addmm(torch.from_numpy(self._head_biases[m]), features, head.T)
            )
            torch.from_numpy(gram).copy_(torch.mm(features, features.T) + 1)
        seen.seconds[0] += time.perf_counter() - begun
        rooms = event.Rooms(
            self._weights, self._activations, self._slopes, self._sums, self._taken, self._gram,
            self._delta, self._line, self._lanes, self._stamp,
        )  # fmt: skip
        self._run(
            event.Network(
                layout.layers, layout.parties, layout.server, layout.capacity, self._length,
                self._half,
            ),
            rooms, before, self._y[:rows], np.ascontiguousarray(active), self._rates,
            seen.predictions[start:stop], seen.losses[start:stop], seen.regret[start:stop],
            seen.seconds,
        )  # fmt: skip
        begun = time.perf_counter()
        for m in range(len(self._heads)):
            taken = torch.from_numpy(self._rows(m, self._taken, rows))
            torch.from_numpy(self._heads[m]).addmm_(taken.T, self._features(m, rows))
            torch.from_numpy(self._head_biases[m]).add_(taken.sum(0))
        self._kept = min(rows, self._length - 1)
        self._x[: self._kept] = self._x[rows - self._kept : rows]
        self._y[: self._kept] = self._y[rows - self._kept : rows]
        seen.seconds[1] += time.perf_counter() - begun

    def _accepts(self, x: Array, y: Index) -> None:
        features, classes = sum(self._net.features), self._net.server.widths[-1]
        if x.dtype != np.float32 or x.ndim != 2 or x.shape[1] != features:
            raise ValueError(f"features: {x.dtype} {x.shape}, not float32 (n, {features})")
        if y.dtype != np.int64 or y.shape != (len(x),):
            raise ValueError(f"labels: {y.dtype} {y.shape}, not int64 ({len(x)},)")
        if y.size and not 0 <= int(y.min()) <= int(y.max()) < classes:
            wrong = int(y.min()) if y.min() < 0 else int(y.max())
            raise IndexError(f"a label is {wrong}; there are {classes} classes, from 0 on")

    def _features(self, party: int, rows: int) -> torch.Tensor:
        first, last = self._columns[party]
        return torch.from_numpy(self._x)[:rows, first:last]

    def _rows(self, party: int, buffer: Array, rows: int) -> Array:
        """A party's sums, or what is laid out like them: (rows, outputs of the head), a view."""
        row = self._layout.parties[party]
        pitch = int(row[HEAD_PITCH])
        return buffer[row[SUMS] : row[SUMS] + rows * pitch].reshape(rows, pitch)[
            :, : self._net.parties[party].widths[1]
        ]

    def _products(self, party: int, rows: int) -> Array:
        capacity, at = self._layout.capacity, int(self._layout.parties[party, GRAM])
        return self._gram[at : at + capacity * capacity].reshape(capacity, capacity)[:rows, :rows]

    def _parts(self, which: int) -> list[Array]:
        """Views of a participant's weights and biases by layer; the server comes last."""
        layout, many = self._layout, len(self._net.parties)
        chain = self._net.server if which == many else self._net.parties[which]
        party = which < many
        first, stop = layout.parties[which, :2] if party else (layout.server, len(layout.layers))
        parts = [self._heads[which], self._head_biases[which]] if party else []
        for layer, (inputs, outputs) in zip(range(first, stop), chain.layers[party:], strict=True):
            parts += [
                layout.matrix(layer, self._weights)[:outputs, :inputs],
                layout.bias(layer, self._weights),
            ]
        return parts


def _parts(chain: Chain, vector: Array) -> list[Array]:
    parts, at = [], 0
    for inputs, outputs in chain.layers:
        middle, end = at + inputs * outputs, at + (inputs + 1) * outputs
        parts += [vector[at:middle].reshape(outputs, inputs), vector[middle:end]]
        at = end
    return parts


def _who(place: int, chains: Sequence[Chain]) -> str:
    return "the server" if place == len(chains) - 1 else f"party {place}"


def _check(net: Net, length: int, rates: Rates) -> None:
    if not net.parties:
        raise ValueError("a network without parties")
    for place, chain in enumerate(chains := (*net.parties, net.server)):
        if len(chain.widths) < 2 or min(chain.widths) < 1:
            raise ValueError(
                f"the widths {chain.widths} of {_who(place, chains)} are not those of a layer"
            )
    if net.server.last or net.server.widths[0] != sum(net.embeddings):
        raise ValueError(
            f"a server of widths {net.server.widths} for embeddings {net.embeddings}, or one "
            "that ends with a ReLU"
        )
    if length < 1:
        raise ValueError(f"a window of {length} examples; one at least")
    if len(rates.parties) != len(net.parties):
        raise ValueError(f"{len(rates.parties)} rates for {len(net.parties)} parties")
    if not all(math.isfinite(rate) and rate >= 0 for rate in (rates.server, *rates.parties)):
        raise ValueError(f"rates are finite and not negative: {rates}")
