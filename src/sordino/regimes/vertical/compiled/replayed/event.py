r"""Events with a window: its examples, through parties and server, at each event's weights.

Most of a layer's arithmetic is the three products of ``compiled.again.tiles``. The parties' first
layers, their heads, do without: an example x_i stays the same while it is in the window, so its
sums z_i = W x_i + b need no product with W. When the weights are changed by the slopes u_j of the
window,

    W' = W - c sum_j u_j x_j^T,   b' = b - c sum_j u_j
    ==>   z_i' = z_i - c sum_j G_ij u_j,    G_ij = x_i . x_j + 1,

and |dF/d(W, b)|^2 = sum_i u_i . (sum_j G_ij u_j), up to the factor of the mean. For a block of
events all z at the weights before the block, and G, are two matrix products made beforehand. Within
the block W is not touched; U_j = - c sum_t u_j^t is kept for each example, z of a new one is z_i +
sum_j G_ij U_j, and after the block W + sum_j U_j x_j^T is one product, too. Sums begin anew with
each block, so rounding does not build up over more events than a block has.

Slopes are those of each example's own loss; the mean's 1/l is in the rates c = eta/l and in the
regret.

Shapes: rows are numbered in order of arrival, those of the window before the block first: labels
(rows,); active (events, M); rates (M + 1,), the server's last; predictions, losses, regret
(events,); seconds (3,); all else as ``compiled.again.layout`` says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sordino.regimes.vertical.compiled.replayed import layout as at
from sordino.regimes.vertical.compiled.replayed.numbers import (
    added,
    compiled,
    copied,
    dot,
    entropy,
    halved,
    masked,
    now,
    rectified,
)
from sordino.regimes.vertical.compiled.replayed.tiles import PAIR, change, combine, forward
from sordino.training.jit import tile

Run = Callable[..., Any]


@cache
def _through(rows: int) -> Run:
    """A chain's layers, one after another."""
    size = tile.widest()
    product = forward(rows, size)

    def run(layers: Any, first: int, stop: int, n: int, w: Any, x: Any) -> None:
        for which in range(first, stop):
            table = layers[which]
            pitch, into = table[at.INTO_PITCH], table[at.INTO]
            for row in range(0, n, rows):
                a, out = table[at.FROM] + row * table[at.FROM_PITCH], into + row * pitch
                for o in range(0, table[at.LINES], size):
                    start = table[at.WEIGHT] + o * table[at.FROM_PITCH]
                    product(
                        x, a, table[at.FROM_PITCH], w, start, table[at.FROM_PITCH],
                        table[at.FROM_PITCH] // size, x, out + o, pitch,
                    )  # fmt: skip
            bias = w[table[at.BIAS] : table[at.BIAS] + pitch]
            for i in range(n):
                added(x[into + i * pitch : into + (i + 1) * pitch], bias, np.float32(1))
            if table[at.BEFORE]:
                rectified(x[into : into + n * pitch])

    return compiled(run)


@cache
def _back(rows: int) -> Run:
    """From slopes of a chain's outputs to its inputs', changing weights; sum of squares."""
    size = tile.widest()
    tall = 8 if tile.registers(size) > 20 else 4
    back, update = combine(rows, size), change(tall, size)

    def run(
        layers: Any, first: int, stop: int, n: int, rate: Any, w: Any, x: Any, slopes: Any,
        line: Any, lanes: Any,
    ) -> float:  # fmt: skip
        total = 0.0
        for which in range(stop - 1, first - 1, -1):
            table = layers[which]
            pitch, into, inner = table[at.INTO_PITCH], table[at.INTO], table[at.FROM_PITCH]
            start = table[at.FROM]
            # a strip of the weight, as wide as a tile, for both products while it is in the cache
            for k in range(0, inner, PAIR * size):
                for row in range(0, n, rows):
                    d, out = into + row * pitch, start + row * inner
                    back(
                        slopes, d, pitch, table[at.OUTPUTS], w, table[at.WEIGHT] + k, inner, slopes,
                        out + k, inner,
                    )  # fmt: skip
                lanes[:] = 0
                for o in range(0, table[at.LINES], tall):
                    update(
                        slopes, into + o, pitch, x, start + k, inner, n, rate, w,
                        table[at.WEIGHT] + o * inner + k, inner, lanes,
                    )  # fmt: skip
                for lane in range(size):
                    total += lanes[lane]
            gradient = line[:pitch]
            gradient[:] = 0
            for i in range(n):
                added(gradient, slopes[into + i * pitch : into + (i + 1) * pitch], np.float32(1))
            total += dot(gradient, gradient)
            added(w[table[at.BIAS] : table[at.BIAS] + pitch], gradient, rate)
            if table[at.BEHIND]:
                masked(slopes[start : start + n * inner], x[start : start + n * inner])
        return total

    return compiled(run)


def _arrived(party: Any, newest: int, capacity: int, sums: Any, taken: Any, gram: Any) -> None:
    """The sums of a new example: those at the block's start, and all changes since."""
    pitch = party[at.HEAD_PITCH]
    row = sums[party[at.SUMS] + newest * pitch : party[at.SUMS] + (newest + 1) * pitch]
    products = gram[
        party[at.GRAM] + newest * capacity : party[at.GRAM] + newest * capacity + newest
    ]
    for j in range(newest):
        added(
            row, taken[party[at.SUMS] + j * pitch : party[at.SUMS] + (j + 1) * pitch], products[j]
        )


arrived = compiled(_arrived)


@cache
def _headed(rows: int) -> Run:
    """A head's change by its slopes; the sum of the squares of its gradient."""
    size = tile.widest()
    product = combine(rows, size)

    def run(
        party: Any, oldest: int, n: int, capacity: int, rate: Any, slopes: Any, sums: Any,
        taken: Any, gram: Any, delta: Any,
    ) -> float:  # fmt: skip
        total, pitch = 0.0, party[at.HEAD_PITCH]
        for row in range(0, n, rows):
            factors = party[at.GRAM] + (oldest + row) * capacity + oldest
            for k in range(0, pitch, PAIR * size):
                product(
                    gram, factors, capacity, n, slopes, party[at.HEAD] + k, pitch, delta,
                    row * pitch + k, pitch,
                )  # fmt: skip
        for i in range(n):
            u = slopes[party[at.HEAD] + i * pitch : party[at.HEAD] + (i + 1) * pitch]
            total += dot(u, delta[i * pitch : (i + 1) * pitch])
        here = party[at.SUMS] + oldest * pitch
        added(sums[here : here + n * pitch], delta[: n * pitch], rate)
        added(
            taken[here : here + n * pitch],
            slopes[party[at.HEAD] : party[at.HEAD] + n * pitch],
            rate,
        )
        return total if not total < 0 else 0.0  # a sum of squares in exact arithmetic

    return compiled(run)


class Network(NamedTuple):
    """What stays the same.

    Attributes:
        layers, parties, server, capacity: see
            :class:`~sordino.regimes.vertical.compiled.replayed.layout.Layout`.
        length: of the window.
        half: whether embeddings and their slopes travel as 16-bit floats.
    """

    layers: Any
    parties: Any
    server: int
    capacity: int
    length: int
    half: bool


class Rooms(NamedTuple):
    """Buffers.

    Attributes:
        weights, activations, sums, gram: see
            :mod:`~sordino.regimes.vertical.compiled.replayed.layout`.
        slopes: as activations.
        taken: U, as sums.
        delta, line, lanes: one product, one bias' gradient, one vector's squares.
        stamp: for the clock.
    """

    weights: Any
    activations: Any
    slopes: Any
    sums: Any
    taken: Any
    gram: Any
    delta: Any
    line: Any
    lanes: Any
    stamp: Any


@cache
def _ahead(rows: int) -> Run:
    """A party's embeddings of n examples into the server's input, which begins at ``joined``."""
    through = _through(rows)

    def run(
        layers: Any, party: Any, oldest: int, n: int, w: Any, x: Any, sums: Any, joined: int,
        join_pitch: int,
    ) -> None:  # fmt: skip
        size, here = n * party[at.HEAD_PITCH], party[at.SUMS] + oldest * party[at.HEAD_PITCH]
        head = x[party[at.HEAD] : party[at.HEAD] + size]
        copied(head, sums[here : here + size])
        if party[at.HEAD_RELU]:
            rectified(head)
        through(layers, party[at.FIRST], party[at.STOP], n, w, x)
        for i in range(n):
            start = party[at.EMBEDDING] + i * party[at.EMBEDDING_PITCH]
            place = joined + i * join_pitch + party[at.COLUMN]
            copied(x[place : place + party[at.WIDTH]], x[start : start + party[at.WIDTH]])

    return compiled(run)


def _sent(party: Any, n: int, x: Any, slopes: Any, joined: int, join_pitch: int) -> None:
    """The slopes of the server's input down to a party's last layer."""
    pitch = party[at.EMBEDDING_PITCH]
    for i in range(n):
        start, place = party[at.EMBEDDING] + i * pitch, joined + i * join_pitch + party[at.COLUMN]
        copied(slopes[start : start + party[at.WIDTH]], slopes[place : place + party[at.WIDTH]])
    if party[at.LAST_RELU]:
        start = party[at.EMBEDDING]
        masked(slopes[start : start + n * pitch], x[start : start + n * pitch])


sent = compiled(_sent)


@cache
def events(rows: int) -> Run:
    """``run``: a block of events, R rows of the window at a time."""
    through, back, headed, ahead = _through(rows), _back(rows), _headed(rows), _ahead(rows)

    def run(
        network: Network, rooms: Rooms, before: int, labels: Any, active: Any, rates: Any,
        predictions: Any, losses: Any, regret: Any, seconds: Any,
    ) -> None:  # fmt: skip
        layers, parties, server, capacity, length, half = network
        w, x, slopes, sums, taken, gram, delta, line, lanes, stamp = rooms
        many, stop = parties.shape[0], layers.shape[0]
        entry, exit_ = layers[server], layers[stop - 1]
        joined, join_pitch, scores = entry[at.FROM], entry[at.FROM_PITCH], exit_[at.INTO]
        score_pitch = exit_[at.INTO_PITCH]
        last = now(stamp)
        for event in range(predictions.size):
            newest = before + event
            oldest = newest + 1 - length if newest >= length else 0
            n = newest + 1 - oldest
            for m in range(many):
                arrived(parties[m], newest, capacity, sums, taken, gram)
                ahead(layers, parties[m], oldest, n, w, x, sums, joined, join_pitch)
            if half:
                halved(x[joined : joined + n * join_pitch])
            point = now(stamp)
            seconds[0] += point - last
            last = point

            through(layers, server, stop, n, w, x)
            out = x[scores : scores + n * score_pitch]
            slope = slopes[scores : scores + n * score_pitch]
            best, loss = entropy(
                out, slope, n, exit_[at.OUTPUTS], score_pitch, labels[oldest : newest + 1]
            )
            predictions[event], losses[event] = best, loss
            total = back(layers, server, stop, n, rates[many], w, x, slopes, line, lanes)
            if half:
                halved(slopes[joined : joined + n * join_pitch])
            point = now(stamp)
            seconds[2] += point - last
            last = point

            for m in range(many):
                if not active[event, m]:
                    continue
                party = parties[m]
                sent(party, n, x, slopes, joined, join_pitch)
                total += back(
                    layers, party[at.FIRST], party[at.STOP], n, rates[m], w, x, slopes, line, lanes
                )
                total += headed(
                    party, oldest, n, capacity, rates[m], slopes, sums, taken, gram, delta
                )
            regret[event] = total / (np.float64(length) * np.float64(length))
            point = now(stamp)
            seconds[1] += point - last
            last = point

    return compiled(run)
