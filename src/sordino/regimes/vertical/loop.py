r"""Many events in one compiled call: chains of linear layers, and windows of gradients.

At event t every participant that is active (the server always is) steps along an average of its
last l gradients, each taken when its event came (Wang, Wang, Gu and Ling 2025: dlr; ogd is l = 1):

    w -= (eta / W) sum_{i<l} alpha^i g^{t-i},   W = sum_{i<l} alpha^i, also while the window fills,

with zeros for the events at which a party was passive.

Theory of operation
-------------------
*Pending events.* A gradient of one example is an outer product a u^T in every layer: a the layer's
input with a 1 behind it for the bias, u the slope of its output. So steps are not written into the
weights at once. The weights in force are W - sum_j d_j a_j u_j^T over the pending events j, whose
share d_j grows by (eta / W) alpha^(t-j) at every step of their participant, and

    forward    z = W^T a - sum_j d_j s_j u_j          s_j = a_j . a
    backward   v = W u - sum_j d_j r_j a_j            r_j = u_j . u

An event costs products of a vector with a matrix, and no pass over all weights. Behind a ReLU about
half of the inputs are zero: rows of W are taken by a list of those that count (``live``).

*Blocks.* No weight is written within a block of 32 events. So what the block's events cannot change
is computed for all of them first: the products of the parties' features with W and with the inputs
of pending events. After a block, the shares that cannot grow any more (age l or more) are folded
into W and their events forgotten; at the end of a call all are folded. So the weights and the last
l - 1 inputs and slopes are the whole state, and cutting the same events into other calls changes
results by rounding only.

The arrays of ``State`` and ``Room`` live as long as their :class:`Loop`; so what runs within an
event counts no references to them (``_nrt=False``), which would take longer than the arithmetic.

*Who is pending.* Each participant has a list of the events that it was active at, the oldest first:
``when`` (event numbers), ``rows`` (where the rings ``inputs`` and ``slopes`` hold them) and ``due``
(d_j). ``count`` tells how many there are; ``seen`` how many of them are before the event at hand,
for a block's events enter the list together.

*The regret* |S_t|^2 of the averaged gradient S_t = (1/W) sum_i alpha^i g_{t-i} comes from inner
products <g_i, g_j> = sum over layers of s r, which the corrections need anyway. With
n_j = <g_j, g_j> and e_j = sum_{j<i<=t} alpha^(t-i) <g_i, g_j>, which follows a recursion,

    W^2 |S_t|^2 = sum_j alpha^(t-j) (alpha^(t-j) n_j + 2 e_j)      (j in the window).

No term is ever taken out again, so rounding does not add up.

*On the way* embeddings and their slopes may be rounded to 16-bit floats; ReLU' is that of the
numbers before rounding.

Numbers are float32, shares and sums of the regret float64. Networks, windows and rates are data:
nothing is compiled again for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numba import types
from numpy.typing import NDArray

from sordino.base.compiled import compiled
from sordino.regimes.vertical.engines.net import Net
from sordino.regimes.vertical.engines.observed import Observed, Rates

Array = NDArray[np.float32]
Kept = NDArray[Any]
Kind = TypeVar("Kind", bound=np.generic)

BLOCK = 32
"""Events between two folds: more make longer lists of pending events, fewer make folding dear."""
LINE = 16
"""float32 numbers in a cache line; a vector that crosses one is loaded twice."""

# Columns of the table of layers: inputs, outputs, whether a ReLU follows, and where weights
# (inputs + 1, outputs), the ring of inputs and the ring of slopes begin.
IN, OUT, RELU, W_AT, A_AT, U_AT = range(6)
# Columns of the table of participants, the server last: first layer and the one behind the last,
# where the features begin in x and the embedding in the server's input, and the two counts.
FIRST, END, COLUMN, SLOT, COUNT, SEEN = range(6)
# Where the time goes.
FORWARD, BACKWARD, SERVER = range(3)

_SUMS = {"reassoc", "contract", "nsz"}
"""Sums may be taken in any order: they become vectors. Infinity and NaN stay what they are."""
_NONE, _ONE = np.float32(0), np.float32(1)
_CLOCK = time.CLOCK_MONOTONIC
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.intc(types.intc, types.voidptr))


class State(NamedTuple):
    """All that events work on; L layers, P participants, R rows of the rings."""

    layers: Any  # (L, 6) int64
    people: Any  # (P, 6) int64
    weights: Any  # flat, see the table of layers
    inputs: Any
    slopes: Any
    when: Any  # (P, R) int64
    rows: Any  # (P, R) int64
    due: Any  # (P, R) float64
    sums: Any  # (2, R) float64: e and n of the server's list


class Room(NamedTuple):
    """Working memory of one event, or of a block."""

    x: Any  # (block, features)
    first: Any  # (P, block, outputs): z of the first layers, without the bias
    known: Any  # (P, block, R): s of the first layers
    near: Any  # (L, R): s of all layers
    live: Any  # (L, inputs) int64: inputs that are not behind a closed ReLU
    lives: Any  # (L,) int64: how many
    value: Any  # (L, inputs): what they are
    part: Any  # (P, 2) int64: each party's in the server's list
    z: Any  # (widest,)
    v: Any  # (widest,)
    down: Any  # (widest,)
    factor: Any  # (R,)
    r: Any  # (R,)
    inputs: Any  # flat: of the events that are folded, times -d, with the bias' column
    slopes: Any  # flat: likewise, as they are
    product: Any  # (R,) float64: inner products of the newest gradient
    stamp: Any  # (2,) int64, for the clock


class Rule(NamedTuple):
    """The window of gradients.

    Attributes:
        length: l, at least 1.
        alpha: weight of a gradient against the next newer one, in (0, 1].
    """

    length: int
    alpha: float


@compiled(_nrt=False, fastmath=_SUMS)
def _add(out: Any, factor: Any, matrix: Any, rows: Any, start: int, stop: int) -> None:
    """``out += sum_i factor[i] matrix[rows[i]]``, i from start to stop."""
    width, i = out.size, start
    while i + 8 <= stop:
        f0, f1, f2, f3 = factor[i], factor[i + 1], factor[i + 2], factor[i + 3]
        f4, f5, f6, f7 = factor[i + 4], factor[i + 5], factor[i + 6], factor[i + 7]
        r0, r1, r2, r3 = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        r4, r5, r6, r7 = rows[i + 4], rows[i + 5], rows[i + 6], rows[i + 7]
        for k in range(width):
            one = f0 * matrix[r0, k] + f1 * matrix[r1, k] + f2 * matrix[r2, k]
            two = f3 * matrix[r3, k] + f4 * matrix[r4, k] + f5 * matrix[r5, k]
            out[k] = out[k] + f6 * matrix[r6, k] + f7 * matrix[r7, k] + (one + two)
        i += 8
    while i < stop:
        f, r = factor[i], rows[i]
        for k in range(width):
            out[k] += f * matrix[r, k]
        i += 1


@compiled(_nrt=False, fastmath=_SUMS)
def _dots(out: Any, matrix: Any, rows: Any, start: int, stop: int, vector: Any) -> None:
    """``out[i] = matrix[rows[i]] . vector``, i from start to stop."""
    width, i = vector.size, start
    while i + 4 <= stop:
        r0, r1, r2, r3 = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        s0 = s1 = s2 = s3 = _NONE
        for k in range(width):
            s0 += matrix[r0, k] * vector[k]
            s1 += matrix[r1, k] * vector[k]
            s2 += matrix[r2, k] * vector[k]
            s3 += matrix[r3, k] * vector[k]
        out[i], out[i + 1], out[i + 2], out[i + 3] = s0, s1, s2, s3
        i += 4
    while i < stop:
        s0, r0 = _NONE, rows[i]
        for k in range(width):
            s0 += matrix[r0, k] * vector[k]
        out[i] = s0
        i += 1


@compiled(inline="always")
def _matrix(numbers: Any, at: int, rows: int, columns: int) -> Any:
    """A matrix that begins there in a flat vector, a view."""
    return numbers[at : at + rows * columns].reshape(rows, columns)


@compiled(_nrt=False, forceinline=True)
def _half(value: Any) -> Any:
    """A float32 as it is after travelling as a 16-bit float.

    Of the 23 bits behind the point 10 are kept: half a unit of the last one (less one, if that bit
    is zero: ties go to the even) is added and the rest cut off. From 65520 on this is infinity.
    Below 2^-14 the unit stays 2^-24, and adding and taking away 1/2, whose own unit that is, rounds
    there. NaN stays NaN.
    """
    bits = np.float32(value).view(np.uint32)
    sign, size = np.uint32(bits & np.uint32(0x80000000)), np.uint32(bits & np.uint32(0x7FFFFFFF))
    found = size  # of NaN
    if size < np.uint32(0x38800000):  # 2^-14
        shifted = np.float32(size.view(np.float32) + np.float32(0.5))
        found = np.float32(shifted - np.float32(0.5)).view(np.uint32)
    elif size < np.uint32(0x477FF000):  # 65520
        even = np.uint32(np.uint32(size >> np.uint32(13)) & np.uint32(1))
        found = np.uint32(np.uint32(size + np.uint32(0xFFF) + even) & np.uint32(0xFFFFE000))
    elif size <= np.uint32(0x7F800000):
        found = np.uint32(0x7F800000)  # infinity
    return np.uint32(found | sign).view(np.float32)


@compiled(_nrt=False, forceinline=True)
def _now(stamp: Any) -> int:
    """Nanoseconds of the monotonic clock (POSIX); 25 a call."""
    _clock_gettime(_CLOCK, stamp.ctypes)
    return int(stamp[0] * 1_000_000_000 + stamp[1])


@compiled(_nrt=False, forceinline=True)
def _spend(spent: Any, what: int, since: int, stamp: Any) -> int:
    """Count the time since then; now."""
    now = _now(stamp)
    spent[what] += now - since
    return now


@compiled(_nrt=False, forceinline=True)
def _correct(
    z: Any, ring: Any, rows: Any, count: int, due: Any, inner: Any, factor: Any
) -> None:  # fmt: skip
    """``z -= sum_j d_j inner_j ring_j``."""
    for i in range(count):
        factor[i] = -np.float32(due[i]) * inner[i]
    _add(z, factor, ring, rows, 0, count)


@compiled(_nrt=False, forceinline=True)
def _enter(
    a: Any, z: Any, relu: bool, half: bool, live: Any, value: Any, at: int, slot: int
) -> int:  # fmt: skip
    """Outputs z become inputs ``a[slot:]`` of the next layer, listed from ``at``; where it ends.

    One that is rounded to zero on its way stays in the list: its slope is not zero.
    """
    for k in range(z.size):
        number = _half(z[k]) if half else z[k]
        closed = relu and z[k] <= 0
        a[slot + k] = _NONE if closed else number
        live[at], value[at] = slot + k, a[slot + k]
        at += 0 if closed else 1
    return at


@compiled()
def _before(state: State, room: Room, x: Any, active: Any, clock: int) -> None:
    """A block's events enter the lists of those who are active, and features their rings."""
    layers, people, capacity = state.layers, state.people, state.rows.shape[1]
    room.x[: len(x), : x.shape[1]] = x  # how a library rounds depends on where numbers lie
    server = people.shape[0] - 1
    for p in range(server + 1):
        person, layer = people[p], layers[people[p, FIRST]]
        person[SEEN] = person[COUNT]
        a = _matrix(state.inputs, layer[A_AT], capacity, layer[IN])
        for b in range(len(x)):
            if p == server or active[b, p]:
                at, row = person[COUNT], (clock + b) % capacity
                state.when[p, at], state.rows[p, at], state.due[p, at] = clock + b, row, 0
                person[COUNT] += 1
                if p < server:
                    a[row] = x[b, person[COLUMN] : person[COLUMN] + layer[IN]]


@compiled(_nrt=False, forceinline=True)
def _forward(state: State, room: Room, p: int, q: int, row: int, z: Any) -> None:
    """z of the input in this row of layer q's ring; s of pending events and of this one."""
    layer, capacity, count = state.layers[q], state.rows.shape[1], state.people[p, SEEN]
    a = _matrix(state.inputs, layer[A_AT], capacity, layer[IN])
    u = _matrix(state.slopes, layer[U_AT], capacity, layer[OUT])
    w = _matrix(state.weights, layer[W_AT], layer[IN] + 1, layer[OUT])
    inner, mine = room.near[q], state.rows[p]
    for k in range(z.size):
        z[k] = w[layer[IN], k]
    _add(z, room.value[q], w, room.live[q], 0, room.lives[q])
    if count < state.people[p, COUNT]:  # else it is passive
        _dots(inner, a, mine, 0, count + 1, a[row])
        inner[count] += _ONE
    else:
        _dots(inner, a, mine, 0, count, a[row])
    for i in range(count):
        inner[i] += _ONE
    _correct(z, u, mine, count, state.due[p], inner, room.factor)


@compiled(_nrt=False, forceinline=True)
def _embed(state: State, room: Room, b: int, row: int, half: bool) -> None:
    """Embeddings of all parties, into the server's input."""
    layers, people, capacity = state.layers, state.people, state.rows.shape[1]
    server = people.shape[0] - 1
    top, at = people[server, FIRST], 0
    above = _matrix(state.inputs, layers[top, A_AT], capacity, layers[top, IN])[row]
    for p in range(server):
        first, end, count = people[p, FIRST], people[p, END], people[p, SEEN]
        layer = layers[first]
        z, inner = room.first[p, b, : layer[OUT]], room.near[first]
        w = _matrix(state.weights, layer[W_AT], layer[IN] + 1, layer[OUT])
        for k in range(z.size):
            z[k] += w[layer[IN], k]
        for i in range(min(count + 1, people[p, COUNT])):
            inner[i] = room.known[p, b, state.rows[p, i]] + _ONE
        u = _matrix(state.slopes, layer[U_AT], capacity, layer[OUT])
        _correct(z, u, state.rows[p], count, state.due[p], inner, room.factor)
        for q in range(first + 1, end):
            a = _matrix(state.inputs, layers[q, A_AT], capacity, layers[q, IN])[row]
            room.lives[q] = _enter(a, z, True, False, room.live[q], room.value[q], 0, 0)
            z = room.z[: layers[q, OUT]]
            _forward(state, room, p, q, row, z)
        room.part[p, 0] = at
        relu, slot = layers[end - 1, RELU] != 0, people[p, SLOT]
        at = _enter(above, z, relu, half, room.live[top], room.value[top], at, slot)
        room.part[p, 1] = at
    room.lives[top] = at


@compiled(_nrt=False, forceinline=True)
def _meet(state: State, room: Room, p: int, q: int, row: int, regret: bool) -> None:
    """r of layer q for all events up to this one, and their part of the inner products."""
    layer, capacity, count = state.layers[q], state.rows.shape[1], state.people[p, SEEN] + 1
    u = _matrix(state.slopes, layer[U_AT], capacity, layer[OUT])
    _dots(room.r, u, state.rows[p], 0, count, u[row])
    if regret:
        oldest = state.when[state.people.shape[0] - 1, 0]
        when, product, inner, r = state.when[p], room.product, room.near[q], room.r
        for i in range(count):
            product[when[i] - oldest] += np.float64(inner[i]) * np.float64(r[i])


@compiled(_nrt=False, forceinline=True)
def _late(state: State, room: Room, p: int, q: int) -> None:
    """What pending events add to v of layer q, into ``room.v``; r must be known."""
    layer, capacity, v = state.layers[q], state.rows.shape[1], room.v[: state.layers[q, IN]]
    a = _matrix(state.inputs, layer[A_AT], capacity, layer[IN])
    v[:] = 0
    _correct(v, a, state.rows[p], state.people[p, SEEN], state.due[p], room.r, room.factor)


@compiled(_nrt=False, forceinline=True)
def _lower(state: State, room: Room, q: int, row: int, low: int, high: int) -> None:
    """v of the listed inputs of layer q from low to high, into ``room.down``."""
    layer, live, down, v = state.layers[q], room.live[q], room.down, room.v
    u = _matrix(state.slopes, layer[U_AT], state.rows.shape[1], layer[OUT])[row]
    w = _matrix(state.weights, layer[W_AT], layer[IN] + 1, layer[OUT])
    _dots(down, w, live, low, high, u)
    for i in range(low, high):
        down[i] += v[live[i]]


@compiled(_nrt=False, forceinline=True)
def _back(state: State, room: Room, p: int, q: int, row: int) -> None:
    """The slopes of the layer before q in the same chain, into its ring; r must be known."""
    below, capacity = state.layers[q - 1], state.rows.shape[1]
    _late(state, room, p, q)
    _lower(state, room, q, row, 0, room.lives[q])
    u = _matrix(state.slopes, below[U_AT], capacity, below[OUT])[row]
    u[:] = 0
    for i in range(room.lives[q]):
        u[room.live[q, i]] = room.down[i]


@compiled(_nrt=False, forceinline=True)
def _scores(z: Any, label: int, u: Any, losses: Any, t: int) -> int:
    """The loss of these scores, its slopes u, and the class predicted."""
    best, top, others = 0, z[0], 0.0
    for c in range(1, z.size):  # the first of the highest; NaN is higher than all, as for torch
        if z[best] == z[best] and not z[c] <= z[best]:
            best = c
        top = max(top, z[c])
    for c in range(z.size):
        if c != label:
            others += math.exp(np.float64(z[c]) - np.float64(top))
    height = np.float64(z[label]) - np.float64(top)
    whole = others + math.exp(height)
    losses[t] = math.log(whole) - height
    for c in range(z.size):
        u[c] = np.float32(math.exp(np.float64(z[c]) - np.float64(top)) / whole)
    u[label] = np.float32(-others / whole)
    return best


@compiled(_nrt=False, forceinline=True)
def _serve(
    state: State, room: Room, row: int, t: int, y: Any, active: Any, half: bool, regret: bool,
    predictions: Any, losses: Any,
) -> None:  # fmt: skip
    """The server: prediction, loss, slopes; each active party's last slopes, into its ring."""
    layers, people, capacity = state.layers, state.people, state.rows.shape[1]
    server = people.shape[0] - 1
    top, end = people[server, FIRST], people[server, END]
    z = room.z[: layers[top, OUT]]
    _forward(state, room, server, top, row, z)
    for q in range(top + 1, end):
        a = _matrix(state.inputs, layers[q, A_AT], capacity, layers[q, IN])[row]
        room.lives[q] = _enter(a, z, True, False, room.live[q], room.value[q], 0, 0)
        z = room.z[: layers[q, OUT]]
        _forward(state, room, server, q, row, z)
    last = _matrix(state.slopes, layers[end - 1, U_AT], capacity, layers[end - 1, OUT])[row]
    predictions[t] = _scores(z, y[t], last, losses, t)
    room.product[: people[server, SEEN] + 1] = 0
    for q in range(end - 1, top - 1, -1):
        _meet(state, room, server, q, row, regret)
        if q > top:
            _back(state, room, server, q, row)
    if active.any():
        _late(state, room, server, top)
    for p in range(server):
        if active[p]:
            _lower(state, room, top, row, room.part[p, 0], room.part[p, 1])
            layer = layers[people[p, END] - 1]
            u = _matrix(state.slopes, layer[U_AT], capacity, layer[OUT])[row]
            u[:] = 0
            for i in range(room.part[p, 0], room.part[p, 1]):
                slope = room.down[i]
                u[room.live[top, i] - people[p, SLOT]] = _half(slope) if half else slope


@compiled(_nrt=False, forceinline=True)
def _learn(state: State, room: Room, p: int, row: int, regret: bool) -> None:
    """The slopes of an active party's layers, from the last one on down."""
    first = state.people[p, FIRST]
    for q in range(state.people[p, END] - 1, first - 1, -1):
        if regret or q > first:
            _meet(state, room, p, q, row, regret)
        if q > first:
            _back(state, room, p, q, row)


@compiled(_nrt=False, forceinline=True, fastmath={"contract"})
def _step(state: State, p: int, event: int, rate: float, powers: Any) -> None:
    """Shares of all pending events grow; ``powers``: alpha^age, zero from age l on."""
    person, when, due = state.people[p], state.when[p], state.due[p]
    person[SEEN] += 1
    for i in range(person[SEEN]):
        due[i] += rate * powers[event - when[i]]


@compiled(_nrt=False, forceinline=True, fastmath=_SUMS)
def _square(state: State, room: Room, count: int, alpha: float, powers: Any) -> float:
    """W^2 |S|^2 after an event, the last of so many in the server's list."""
    newer, own, total = state.sums[0], state.sums[1], 0.0
    newer[count - 1], own[count - 1] = 0, room.product[count - 1]
    for i in range(count):
        newer[i] = alpha * newer[i] + (room.product[i] if i < count - 1 else 0.0)
        power = powers[count - 1 - i]
        total += power * (power * own[i] + 2 * newer[i])
    return total


@compiled()
def _after(state: State, room: Room, clock: int, window: int, whole: bool, folded: Any) -> None:
    """Gather what is to be folded: what is final, or all. Forget the events that no step needs."""
    people, capacity, done = state.people, state.rows.shape[1], 0
    for p in range(people.shape[0]):
        person, rows, when, due = people[p], state.rows[p], state.when[p], state.due[p]
        kept, done = person[COUNT], 0
        while done < kept and when[done] <= clock - window:
            done += 1
        folded[p] = kept if whole else done
        for q in range(person[FIRST], person[END]):
            layer = state.layers[q]
            wide, out = layer[IN], layer[OUT]
            a = _matrix(state.inputs, layer[A_AT], capacity, wide)
            u = _matrix(state.slopes, layer[U_AT], capacity, out)
            inputs = _matrix(room.inputs, layer[A_AT], capacity, wide + 1)
            slopes = _matrix(room.slopes, layer[U_AT], capacity, out)
            for i in range(folded[p]):
                share, here = -np.float32(due[i]), rows[i]
                for k in range(wide):
                    inputs[i, k] = share * a[here, k]
                inputs[i, wide] = share
                for k in range(out):
                    slopes[i, k] = u[here, k]
        due[: folded[p]] = 0
        person[COUNT] = kept - done
        for i in range(kept - done if done else 0):
            when[i], rows[i], due[i] = when[i + done], rows[i + done], due[i + done]
    for i in range(people[people.shape[0] - 1, COUNT]):
        for k in range(2):
            state.sums[k, i] = state.sums[k, i + done]


@compiled(_nrt=False)
def _events(
    state: State, room: Room, y: Any, active: Any, clock: int, rates: Any, powers: Any,
    alpha: float, half: bool, regret: bool, predictions: Any, losses: Any, regrets: Any,
    spent: Any,
) -> None:  # fmt: skip
    """A block's events, one after another; ``spent`` in nanoseconds."""
    server, capacity, stamp, whole = len(state.people) - 1, state.rows.shape[1], room.stamp, 0.0
    for power in powers:
        whole += power
    tick = _now(stamp)
    for b in range(len(y)):
        event, row, here = clock + b, (clock + b) % capacity, active[b]
        _embed(state, room, b, row, half)
        tick = _spend(spent, FORWARD, tick, stamp)
        _serve(state, room, row, b, y, here, half, regret, predictions, losses)
        _step(state, server, event, rates[server], powers)
        tick = _spend(spent, SERVER, tick, stamp)
        for p in range(server):
            if here[p]:
                _learn(state, room, p, row, regret)
                _step(state, p, event, rates[p], powers)
        if regret:
            count = state.people[server, SEEN]
            regrets[b] = _square(state, room, count, alpha, powers) / (whole * whole)
        tick = _spend(spent, BACKWARD, tick, stamp)


class Loop:
    """Weights and window of one network, with room of its own: one object serves one thread.

    ``half`` says whether embeddings and their slopes travel as 16-bit floats, ``regret`` whether
    |S_t|^2 is computed. Another ``block`` changes results by float32's rounding only.
    """

    def __init__(
        self,
        net: Net,
        rule: Rule,
        rates: Rates,
        *,
        half: bool,
        regret: bool = True,
        block: int = BLOCK,
    ) -> None:
        if sum(net.embeddings) != net.server.widths[0]:
            raise ValueError(
                f"the parties' embeddings make up {sum(net.embeddings)} numbers, the server "
                f"takes {net.server.widths[0]}"
            )
        if net.server.last:
            raise ValueError("the server ends in scores, not in a ReLU")
        if len(rates.parties) != len(net.parties):
            raise ValueError(f"{len(net.parties)} parties, but rates for {len(rates.parties)}")
        self.net, self.rule, self._clock = net, rule, 0
        self._half, self._regret, self._block = half, regret, block
        powers = rule.alpha ** np.arange(rule.length, dtype=np.float64)
        self._rates = np.array([*rates.parties, rates.server], np.float64) / powers.sum()
        self._powers = np.append(powers, np.zeros(block))
        self._state = _state(net, rule.length - 1 + block)
        self._room = _room(self._state, block, sum(net.features))
        self._folded = np.zeros(len(self._state.people), np.int64)
        self._firsts = list(self._first_layers())
        self._folds = [[self._fold(layer) for layer in layers] for layers in self._layers()]

    def start(self, server: Array, parties: Sequence[Array]) -> None:
        """Begin with copies of these flat weights, and an empty window."""
        chains = (*self.net.parties, self.net.server)
        for p, (vector, chain) in enumerate(zip((*parties, server), chains, strict=True)):
            _check(f"weights {p}", vector, np.float32, (chain.dim,))
        self._clock, self._state.people[:, COUNT] = 0, 0
        for vector, layers in zip((*parties, server), self._layers(), strict=True):
            at = 0
            for layer in layers:
                inputs, outputs = int(layer[IN]), int(layer[OUT])
                here = vector[at : at + (inputs + 1) * outputs]
                dense = self._dense(layer)
                dense[:inputs] = here[: inputs * outputs].reshape(outputs, inputs).T
                dense[inputs] = here[inputs * outputs :]
                at += here.size

    @torch.inference_mode()
    def run(self, x: Array, y: NDArray[np.int64], active: NDArray[np.bool_]) -> Observed:
        """Play n events, one after another.

        Args:
            x: (n, features), the parties' features side by side.
            y: (n,), labels.
            active: (n, parties), who learns.

        Raises:
            ValueError: other types or shapes; nothing has changed then.
            IndexError: a label that is no class, likewise.
        """
        n, classes = len(x), self.net.server.widths[-1]
        _check("features", x, np.float32, (n, sum(self.net.features)))
        _check("labels", y, np.int64, (n,))
        _check("active", active, np.bool_, (n, len(self.net.parties)))
        if n and not (y.min() >= 0 and y.max() < classes):
            raise IndexError(f"labels must lie in 0..{classes - 1}, found {y.min()}..{y.max()}")
        seen = Observed(np.zeros(n, np.int64), np.zeros(n), np.zeros(n), np.zeros(3))
        x, y, active = _plain(x), _plain(y), _plain(active)
        for start in range(0, n, self._block):
            part = slice(start, min(start + self._block, n))
            self._play(x[part], y[part], active[part], seen, part)
        return seen

    def _play(
        self, x: Array, y: NDArray[np.int64], active: NDArray[np.bool_], seen: Observed, part: slice
    ) -> None:
        """Play a block."""
        state, room, n, spent = self._state, self._room, len(x), np.zeros(3, np.int64)
        begun = time.perf_counter()
        _before(state, room, x, active, self._clock)
        for layer in self._firsts:
            given = layer.x[:n]
            torch.mm(given, layer.weights, out=layer.first[:n])
            torch.mm(given, layer.inputs, out=layer.known[:n])
        forward = time.perf_counter()
        _events(
            state, room, y, active, self._clock, self._rates, self._powers, self.rule.alpha,
            self._half, self._regret, seen.predictions[part], seen.losses[part],
            seen.regret[part], spent,
        )  # fmt: skip
        self._clock += n
        last, length = part.stop == len(seen.losses), self.rule.length
        played = time.perf_counter()
        _after(state, room, self._clock, length, last, self._folded)
        for p, layers in enumerate(self._folds):
            if count := int(self._folded[p]):
                for weights, inputs, slopes in layers:
                    weights.addmm_(inputs[:count].T, slopes[:count])
            if p == len(self._folds) - 2:
                parties = time.perf_counter()
        ends = np.array([forward - begun, parties - played, time.perf_counter() - parties])
        seen.seconds[:] += spent / 1e9 + ends

    def weights(self) -> tuple[Array, tuple[Array, ...]]:
        """Copies of the flat weights in force: the server's, and each party's."""
        *parties, server = (
            np.concatenate(
                [
                    part
                    for dense in map(self._dense, layers)
                    for part in (dense[:-1].T.ravel(), dense[-1])
                ]
            )
            for layers in self._layers()
        )
        return server, tuple(parties)

    def pack(self) -> dict[str, Kept]:
        """The window, for a checkpoint: with the weights it is the whole state.

        ``clock`` is how many events there were; ``when.p`` which of the last l - 1 participant p
        (the server is the last) was active at; ``a.q`` and ``u.q`` the inputs of layer q at those
        and the slopes of its outputs; ``sums`` the bits of float64 numbers.
        """
        state = self._state
        counts = state.people[:, COUNT]
        kept: dict[str, Kept] = {
            "clock": np.array([self._clock]),
            "sums": state.sums[:, : counts[-1]].copy().view(np.int64),
        }
        for p, count in enumerate(counts):
            kept[f"when.{p}"] = state.when[p, :count].copy()
        for q, (rows, inputs, slopes) in enumerate(self._rings()):
            kept[f"a.{q}"], kept[f"u.{q}"] = inputs[rows], slopes[rows]
        return kept

    def unpack(self, server: Array, parties: Sequence[Array], kept: Mapping[str, Kept]) -> None:
        """Go on from weights and window, bit for bit if later calls are the same.

        Raises:
            ValueError: a window of another network or rule; nothing has changed then.
        """
        clock, whens = self._window(kept)
        self.start(server, parties)
        state, self._clock = self._state, clock
        for p, when in enumerate(whens):
            state.people[p, COUNT] = count = len(when)
            state.when[p, :count], state.due[p, :count] = when, 0
            state.rows[p, :count] = when % state.rows.shape[1]
        state.sums[:, : len(whens[-1])] = kept["sums"].view(np.float64)
        for q, (rows, inputs, slopes) in enumerate(self._rings()):
            inputs[rows], slopes[rows] = kept[f"a.{q}"], kept[f"u.{q}"]

    def _window(self, kept: Mapping[str, Kept]) -> tuple[int, list[NDArray[np.int64]]]:
        """The number of events and the lists of those in the window, if all is as it must be.

        Compiled code checks no index: what comes from a file is checked here.
        """
        people = range(len(self._state.people))
        names = {"clock", "sums", *(f"when.{p}" for p in people)}
        names |= {f"{kind}.{q}" for q in range(len(self._state.layers)) for kind in "au"}
        if set(kept) != names:
            raise ValueError(
                f"a window of this network has {', '.join(sorted(names))}; found "
                f"{', '.join(sorted(kept))}"
            )
        _check("clock", kept["clock"], np.int64, (1,))
        clock, whens = int(kept["clock"][0]), [kept[f"when.{p}"] for p in people]
        count = min(clock, self.rule.length - 1)
        _check("sums", kept["sums"], np.int64, (2, count))
        for p, when in enumerate(whens):
            _check(f"when.{p}", when, np.int64, (count if p == people[-1] else len(when),))
            there = np.isin(when, np.arange(clock - count, clock)).all()
            if not (there and (np.diff(when) > 0).all()):
                raise ValueError(
                    f"when.{p} must name events {clock - count} to {clock - 1} in their "
                    f"order, found {when.tolist()}"
                )
        for p, q, layer in (
            (p, q, self._state.layers[q])
            for p, person in enumerate(self._state.people)
            for q in range(person[FIRST], person[END])
        ):
            _check(f"a.{q}", kept[f"a.{q}"], np.float32, (len(whens[p]), int(layer[IN])))
            _check(f"u.{q}", kept[f"u.{q}"], np.float32, (len(whens[p]), int(layer[OUT])))
        return clock, whens

    def _layers(self) -> Iterator[NDArray[np.int64]]:
        """Each participant's rows of the table of layers."""
        for person in self._state.people:
            yield self._state.layers[person[FIRST] : person[END]]

    def _dense(self, layer: NDArray[np.int64]) -> Array:
        """A layer's weights, (inputs + 1, outputs), the bias last; a view."""
        return _view(self._state.weights, layer[W_AT], layer[IN] + 1, layer[OUT])

    def _rings(self) -> Iterator[tuple[NDArray[np.int64], Array, Array]]:
        """Of each layer: rows of its participant's pending events, inputs and slopes, views."""
        state, capacity = self._state, self._state.rows.shape[1]
        for p, layers in enumerate(self._layers()):
            for layer in layers:
                yield (
                    state.rows[p, : state.people[p, COUNT]],
                    _view(state.inputs, layer[A_AT], capacity, layer[IN]),
                    _view(state.slopes, layer[U_AT], capacity, layer[OUT]),
                )

    def _first_layers(self) -> Iterator[_First]:
        """What the products before a block read and write, of each party."""
        for p, person in enumerate(self._state.people[:-1]):
            layer, column = self._state.layers[person[FIRST]], int(person[COLUMN])
            inputs, dense = int(layer[IN]), torch.from_numpy(self._dense(layer))
            ring = _view(self._state.inputs, layer[A_AT], self._state.rows.shape[1], inputs)
            yield _First(
                torch.from_numpy(self._room.x[:, column : column + inputs]),
                dense[:inputs],
                torch.from_numpy(ring).T, torch.from_numpy(self._room.first[p, :, : layer[OUT]]),
                torch.from_numpy(self._room.known[p])[:, : self._state.rows.shape[1]],
            )  # fmt: skip

    def _fold(self, layer: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A layer's weights, and what is folded into them: inputs by their shares, and slopes."""
        capacity = self._state.rows.shape[1]
        inputs = _view(self._room.inputs, layer[A_AT], capacity, layer[IN] + 1)
        slopes = _view(self._room.slopes, layer[U_AT], capacity, layer[OUT])
        return (
            torch.from_numpy(self._dense(layer)), torch.from_numpy(inputs),
            torch.from_numpy(slopes),
        )  # fmt: skip


class _First(NamedTuple):
    """A party's first layer, in the products of a block."""

    x: torch.Tensor
    weights: torch.Tensor
    inputs: torch.Tensor
    first: torch.Tensor
    known: torch.Tensor


def _state(net: Net, capacity: int) -> State:
    """Zeros for so many pending events, and the tables."""
    chains = (*net.parties, net.server)
    layers = np.zeros((sum(len(chain.layers) for chain in chains), 6), np.int64)
    people = np.zeros((len(chains), 6), np.int64)
    q, column, slot, ends = 0, 0, 0, [0, 0, 0]
    for p, chain in enumerate(chains):
        people[p, [FIRST, END, COLUMN, SLOT]] = q, q + len(chain.layers), column, slot
        column, slot = column + chain.widths[0], slot + chain.widths[-1]
        for number, (inputs, outputs) in enumerate(chain.layers):
            relu = chain.last or number < len(chain.layers) - 1
            layers[q] = (inputs, outputs, relu, *ends)
            sizes = ((inputs + 1) * outputs, capacity * (inputs + 1), capacity * outputs)
            ends = [end + -(-size // LINE) * LINE for end, size in zip(ends, sizes, strict=True)]
            q += 1
    many = (len(chains), capacity)
    flat = [_aligned(end) for end in ends]
    return State(
        layers, people, weights=flat[0], inputs=flat[1], slopes=flat[2],
        when=np.zeros(many, np.int64), rows=np.zeros(many, np.int64), due=np.zeros(many),
        sums=np.zeros((2, capacity)),
    )  # fmt: skip


def _room(state: State, block: int, features: int) -> Room:
    """Working memory for these tables."""
    (people, capacity), layers = state.rows.shape, len(state.layers)
    widest = int(state.layers[:, [IN, OUT]].max()) + 1

    def floats(*shape: int) -> Array:
        """Rows begin on cache lines."""
        whole = -(-shape[-1] // LINE) * LINE
        return _aligned(math.prod(shape[:-1]) * whole).reshape(*shape[:-1], whole)

    return Room(
        x=floats(block, features), first=floats(people, block, widest),
        known=floats(people, block, capacity),
        near=floats(layers, capacity), live=np.zeros((layers, widest), np.int64),
        lives=np.zeros(layers, np.int64), value=floats(layers, widest),
        part=np.zeros((people, 2), np.int64), z=floats(widest), v=floats(widest),
        down=floats(widest), factor=floats(capacity), r=floats(capacity),
        inputs=floats(state.inputs.size), slopes=floats(state.slopes.size),
        product=np.zeros(capacity), stamp=np.zeros(2, np.int64),
    )  # fmt: skip


def _aligned(size: int) -> Array:
    """Zeros that begin on a cache line."""
    numbers = np.zeros(size + LINE, np.float32)
    skip = -numbers.ctypes.data // 4 % LINE
    return numbers[skip : skip + size]


def _view(numbers: Array, at: int, rows: int, columns: int) -> Array:
    return numbers[at : at + rows * columns].reshape(rows, columns)


def _plain(values: NDArray[Kind]) -> NDArray[Kind]:
    """As compiled code takes it: without gaps, writable."""
    return np.require(values, requirements=["C", "W"])


def _check(name: str, values: Kept, kind: type[np.generic], shape: tuple[int, ...]) -> None:
    if values.dtype != kind or values.shape != shape:
        raise ValueError(
            f"{name} must be {np.dtype(kind)} of shape {shape}, found {values.dtype} of shape "
            f"{values.shape}"
        )
