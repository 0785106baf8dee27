r"""Many events in one compiled call: chains of linear layers, and windows of gradients.

At event t every participant that is active (the server always is) steps along an average of its
last l gradients, each taken when its event came (Wang, Wang, Gu and Ling 2025: dlr; ogd is l = 1):

    w -= (eta / W) sum_{i<l} alpha^i g^{t-i},   W = sum_{i<l} alpha^i, also while the window fills,

with zeros for the events at which a party was passive.

Theory of operation
-------------------
*Pending products.* A gradient of one example is an outer product a u^T in every layer: a the
layer's input with a 1 behind it for the bias, u the slope of its output. So steps are not written
into the weights at once. The weights in force are W - sum_j d_j a_j u_j^T over the pending events
j, whose share d_j grows by (eta / W) alpha^(t-j) at every step of their participant, and

    forward    z = W^T a - sum_j d_j s_j u_j          s_j = a_j . a
    backward   v = W u - sum_j d_j r_j a_j            r_j = u_j . u

An event costs products of a vector with a matrix, and no pass over all weights. Behind a ReLU about
half of the inputs are zero: rows of W are taken by a list of the others (``live``).

*Blocks.* No weight is written within a block of 32 events. So what the block's events cannot change
is computed for all of them first, by two matrix products for each party: of their features with W
(``first``), and with the inputs of pending events (``known``). After a block, the shares that
cannot grow any more (age l or more) are folded into W and their events forgotten; at the end of a
call all are folded. So the weights and the last l - 1 inputs and slopes are the whole state, and
cutting the same events into other calls changes results by rounding only.

*Rows.* Each participant has a list of its pending events, the oldest first: ``count`` of them, with
their numbers (``when``) and shares (``due``). Row i of ``inputs[q]`` and ``slopes[q]``, for each of
its layers q, belongs to event i of that list. A block's events enter the lists together, at its
beginning; the first ``seen`` of a list are before the event at hand, whose own row comes next.
Where a party is passive at an event, that row serves as scratch: nothing reads it before it is
written again. Layers differ in size: the arrays have room for the largest, and numba compiles them
once for all networks.

*The regret* |S_t|^2 of the averaged gradient S_t = (1/W) sum_i alpha^i g_{t-i} comes from inner
products <g_i, g_j> = sum over layers of s r, which the corrections need anyway. With
n_j = <g_j, g_j> and e_j = sum_{j<i<=t} alpha^(t-i) <g_i, g_j>, which follows a recursion,

    W^2 |S_t|^2 = sum_j alpha^(t-j) (alpha^(t-j) n_j + 2 e_j)      (j in the window).

No term is ever taken out again, so rounding does not add up.

*Messages* may be of 16 bits: embeddings and their slopes are rounded so; ReLU' is that of the
numbers before rounding. Numbers are float32, shares and sums of the regret float64.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numba import types
from numpy.typing import NDArray

from sordino.base.arrays import Bools, Ints, below
from sordino.base.compiled import compiled
from sordino.regimes.vertical.halves import Arrays, Engine, Played, Weights
from sordino.regimes.vertical.models import Net

Array = NDArray[np.float32]
Kind = TypeVar("Kind", bound=np.generic)

FORWARD, BACKWARD, SERVER = range(3)
"""Those of :mod:`.halves`: compiled code is kept, and knows of changes in this file alone."""
BLOCK = 32
"""Events between two folds: more make longer lists of pending events, fewer make folding dear."""
LINE = 16
"""float32 numbers in a cache line; a vector that crosses one is loaded twice."""

_SUMS = {"reassoc", "contract", "nsz"}
"""Sums may be taken in any order: they become vectors. Infinity and NaN stay what they are."""
_ZERO = np.float32(0)
_CLOCK = time.CLOCK_THREAD_CPUTIME_ID
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.intc(types.intc, types.voidptr))


class Shape(NamedTuple):
    """The network: L layers, in the order of P participants, the server last."""

    inputs: Any  # (L,) int64: inputs of each layer, without the 1
    outputs: Any  # (L,) int64
    relu: Any  # (L,) bool: whether a ReLU follows
    layers: Any  # (P + 1,) int64: layers[p] is the first layer of p, layers[p + 1] the one behind
    slot: Any  # (P,) int64: where a party's embedding begins in the server's input


class State(NamedTuple):
    """Weights and pending events, R rows at most."""

    weights: Any  # (L, inputs + 1, outputs)
    inputs: Any  # (L, R, inputs + 1), the last number of a row is 1
    slopes: Any  # (L, R, outputs)
    when: Any  # (P, R) int64
    due: Any  # (P, R) float64
    count: Any  # (P,) int64
    sums: Any  # (2, R) float64: e and n of the server's list


class Work(NamedTuple):
    """Working memory of one event, or of a block."""

    x: Any  # (P, block, inputs + 1): features, and a 1
    first: Any  # (P, block, outputs): W^T x
    known: Any  # (P, block, R): s of the first layers
    seen: Any  # (P,) int64
    inner: Any  # (L, R): s of all layers
    live: Any  # (L, inputs) int64: inputs that are not behind a closed ReLU
    lives: Any  # (L,) int64: how many
    value: Any  # (L, inputs): what they are
    part: Any  # (P + 1,) int64: where each party's begin in the server's list
    z: Any  # (outputs,)
    v: Any  # (inputs,)
    down: Any  # (inputs,)
    factor: Any  # (R,)
    r: Any  # (R,)
    rows: Any  # (R,) int64: 0, 1, 2 and so on
    product: Any  # (R,) float64: inner products of the newest gradient
    scaled: Any  # (L, R, inputs + 1): inputs of events that are folded, times -d
    stamp: Any  # (2,) int64, for the clock


class Rule(NamedTuple):
    """The window of gradients.

    Attributes:
        length: l, at least 1.
        alpha: weight of a gradient against the next newer one, in (0, 1].
    """

    length: int
    alpha: float


@compiled(fastmath=_SUMS)
def _add(out: Any, factor: Any, matrix: Any, rows: Any, count: int) -> None:
    """``out += sum_i factor[i] matrix[rows[i]]``, i < count; eight rows at a time."""
    width, i = out.size, 0
    while i + 8 <= count:
        f0, f1, f2, f3 = factor[i], factor[i + 1], factor[i + 2], factor[i + 3]
        f4, f5, f6, f7 = factor[i + 4], factor[i + 5], factor[i + 6], factor[i + 7]
        r0, r1, r2, r3 = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        r4, r5, r6, r7 = rows[i + 4], rows[i + 5], rows[i + 6], rows[i + 7]
        for k in range(width):
            one = f0 * matrix[r0, k] + f1 * matrix[r1, k] + f2 * matrix[r2, k]
            two = f3 * matrix[r3, k] + f4 * matrix[r4, k] + f5 * matrix[r5, k]
            out[k] = out[k] + f6 * matrix[r6, k] + f7 * matrix[r7, k] + (one + two)
        i += 8
    while i < count:
        f, r = factor[i], rows[i]
        for k in range(width):
            out[k] += f * matrix[r, k]
        i += 1


@compiled(fastmath=_SUMS)
def _dots(out: Any, matrix: Any, rows: Any, start: int, stop: int, vector: Any) -> None:
    """``out[i] = matrix[rows[i]] . vector``, i from start to stop; four rows at a time."""
    width, i = vector.size, start
    while i + 4 <= stop:
        r0, r1, r2, r3 = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        s0 = s1 = s2 = s3 = _ZERO
        for k in range(width):
            s0 += matrix[r0, k] * vector[k]
            s1 += matrix[r1, k] * vector[k]
            s2 += matrix[r2, k] * vector[k]
            s3 += matrix[r3, k] * vector[k]
        out[i], out[i + 1], out[i + 2], out[i + 3] = s0, s1, s2, s3
        i += 4
    while i < stop:
        s0, r0 = _ZERO, rows[i]
        for k in range(width):
            s0 += matrix[r0, k] * vector[k]
        out[i] = s0
        i += 1


@compiled()
def _half(value: Any) -> Any:
    """Return a float32 as it is after travelling as a 16-bit float.

    Of the 23 bits behind the point 10 are kept: half a unit of the last one (less one, if that bit
    is zero: ties go to the even) is added and the rest cut off. From 65520 on this is infinity.
    Below 2^-14 the unit stays 2^-24, and adding and taking away 1/2, whose last unit that is,
    rounds there. NaN stays NaN.
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


@compiled()
def _spend(seconds: Any, what: int, since: int, stamp: Any) -> int:
    """Add the time since then, in nanoseconds of the processor time of this thread (POSIX); return
    now."""
    _clock_gettime(_CLOCK, stamp.ctypes)
    now = int(stamp[0] * 1_000_000_000 + stamp[1])
    seconds[what] += (now - since) * 1e-9
    return now


@compiled()
def _correct(z: Any, matrix: Any, count: int, due: Any, inner: Any, factor: Any, rows: Any) -> None:
    """``z -= sum_j d_j inner_j matrix_j``, over the pending events."""
    for i in range(count):
        factor[i] = -np.float32(due[i]) * inner[i]
    _add(z, factor, matrix, rows, count)


@compiled()
def _forward(
    z: Any, weights: Any, bias: int, live: Any, value: Any, lives: int, inputs: Any, slopes: Any,
    row: int, due: Any, inner: Any, factor: Any, rows: Any,
) -> None:  # fmt: skip
    """Compute z of a layer whose input is in the event's row, and note s of the events up to it.

    ``bias`` is the row of the weights that has it.
    """
    for k in range(z.size):
        z[k] = weights[bias, k]
    _add(z, value, weights, live, lives)
    _dots(inner, inputs, rows, 0, row + 1, inputs[row, : bias + 1])
    _correct(z, slopes, row, due, inner, factor, rows)


@compiled()
def _enter(
    z: Any, a: Any, live: Any, value: Any, at: int, slot: int, half: bool, relu: bool
) -> int:  # fmt: skip
    """Make outputs z inputs ``a[slot:]`` of the next layer; list those that count, from ``at`` on.

    One that is rounded to zero on its way stays in the list: its slope is not zero. Return where
    the list ends.
    """
    for k in range(z.size):
        number, closed = _half(z[k]) if half else z[k], relu and z[k] <= 0
        a[slot + k] = _ZERO if closed else number
        live[at], value[at] = slot + k, number
        at += 0 if closed else 1
    return at


@compiled()
def _scores(z: Any, label: int, u: Any, losses: Any, b: int) -> int:
    """Note the loss of these scores and its slopes u; return the class predicted."""
    best, top, others = 0, z[0], 0.0
    for c in range(1, z.size):  # the first of the highest; NaN is higher than all, as for torch
        if z[best] == z[best] and not z[c] <= z[best]:
            best = c
        top = max(top, z[c])
    for c in range(z.size):
        if c != label:
            others += exp(np.float64(z[c]) - np.float64(top))
    height = np.float64(z[label]) - np.float64(top)
    whole = others + exp(height)
    losses[b] = log(whole) - height
    for c in range(z.size):
        u[c] = np.float32(exp(np.float64(z[c]) - np.float64(top)) / whole)
    u[label] = np.float32(-others / whole)
    return best


@compiled()
def _meet(
    r: Any, slopes: Any, u: Any, row: int, rows: Any, inner: Any, when: Any, oldest: int,
    product: Any,
) -> None:  # fmt: skip
    """Compute r of a layer for the events up to this one, and their part of inner products."""
    _dots(r, slopes, rows, 0, row + 1, u)
    for i in range(row + 1):
        product[when[i] - oldest] += np.float64(inner[i]) * np.float64(r[i])


@compiled()
def _lower(down: Any, weights: Any, live: Any, low: int, high: int, u: Any, v: Any) -> None:
    """Compute v of the listed inputs from low to high; ``v``: what pending events add."""
    _dots(down, weights, live, low, high, u)
    for i in range(low, high):
        down[i] += v[live[i]]


@compiled()
def _step(when: Any, due: Any, count: int, event: int, rate: float, powers: Any) -> None:
    """Let shares of pending events grow; ``powers``: alpha^age, zero from age l on."""
    for i in range(count):
        due[i] += rate * powers[event - when[i]]


# In one order: a sum that is a vector becomes none where the arrays lie close in memory, so that
# its last bits would follow from that.
@compiled()
def _square(sums: Any, product: Any, count: int, alpha: float, powers: Any) -> float:
    """Return W^2 |S|^2 after an event, the last of so many in the server's list."""
    newer, squares, total = sums[0], sums[1], 0.0
    newer[count - 1], squares[count - 1] = 0, product[count - 1]
    for i in range(count):
        newer[i] = alpha * newer[i] + (product[i] if i < count - 1 else 0.0)
        power = powers[count - 1 - i]
        total += power * (power * squares[i] + 2 * newer[i])
    return total


@compiled()
def _before(shape: Shape, state: State, work: Work, x: Any, active: Any, clock: int) -> None:
    """Enter a block's events into the lists of those who are active, and features into rows."""
    parties, column = shape.slot.size, 0
    for p in range(parties + 1):
        q = shape.layers[p]
        work.seen[p] = state.count[p]
        for b in range(active.shape[0]):
            if p < parties:
                for k in range(shape.inputs[q]):
                    work.x[p, b, k] = x[b, column + k]
            if p == parties or active[b, p]:
                i = state.count[p]
                state.when[p, i], state.due[p, i] = clock + b, 0
                state.count[p] += 1
                if p < parties:
                    for k in range(shape.inputs[q]):
                        state.inputs[q, i, k] = x[b, column + k]
        column += shape.inputs[q]


@compiled()
def _events(
    shape: Shape, state: State, work: Work, y: Any, active: Any, clock: int, rates: Any,
    powers: Any, alpha: float, half: bool, predictions: Any, losses: Any, regrets: Any,
    seconds: Any,
) -> None:  # fmt: skip
    """Play a block's events, one after another: forward through all layers, and back."""
    weights, inputs, slopes = state.weights, state.inputs, state.slopes
    layers, server, top = shape.layers, shape.slot.size, shape.layers[shape.slot.size]
    inner, live, value, lives, seen = work.inner, work.live, work.value, work.lives, work.seen
    whole, spare = powers.sum(), np.zeros(3)
    tick = _spend(spare, 0, 0, work.stamp)
    for b in range(y.size):
        end = 0  # of the server's list of inputs
        for p in range(server + 1):
            row, first, last = seen[p], layers[p], layers[p + 1] - 1
            for q in range(first, last + 1):
                z = work.z[: shape.outputs[q]]
                if q == first and p < server:
                    z[:] = work.first[p, b, : z.size]
                    inner[q, : row + 1] = work.known[p, b, : row + 1]
                    _correct(z, slopes[q], row, state.due[p], inner[q], work.factor, work.rows)
                else:
                    _forward(
                        z, weights[q], shape.inputs[q], live[q], value[q], lives[q], inputs[q],
                        slopes[q], row, state.due[p], inner[q], work.factor, work.rows,
                    )  # fmt: skip
                if q < last:
                    lives[q + 1] = _enter(
                        z, inputs[q + 1, row], live[q + 1], value[q + 1], 0, 0, False, True
                    )
                elif p < server:
                    work.part[p] = end
                    end = _enter(
                        z, inputs[top, seen[server]], live[top], value[top], end, shape.slot[p],
                        half, shape.relu[q],
                    )  # fmt: skip
                    lives[top] = work.part[p + 1] = end
                else:
                    predictions[b] = _scores(z, y[b], slopes[q, row], losses, b)
            if p == server - 1:
                tick = _spend(seconds, FORWARD, tick, work.stamp)
        work.product[: seen[server] + 1] = 0
        oldest = state.when[server, 0]
        for back in range(server + 1):  # the server first
            p = server - back
            if p < server and not active[b, p]:
                continue
            row, first = seen[p], layers[p]
            for q in range(layers[p + 1] - 1, first - 1, -1):
                u = slopes[q, row, : shape.outputs[q]]
                _meet(
                    work.r, slopes[q], u, row, work.rows, inner[q], state.when[p], oldest,
                    work.product,
                )  # fmt: skip
                if q == first and p < server:
                    continue
                v = work.v[: shape.inputs[q]]
                v[:] = 0
                _correct(v, inputs[q], row, state.due[p], work.r, work.factor, work.rows)
                if q > first:
                    _lower(work.down, weights[q], live[q], 0, lives[q], u, v)
                    earlier = slopes[q - 1, row]
                    earlier[: shape.inputs[q]] = 0
                    for i in range(lives[q]):
                        earlier[live[q, i]] = work.down[i]
                    continue
                for m in range(server):  # the slopes of embeddings, on their way to parties
                    if active[b, m]:
                        low, high, q_m = work.part[m], work.part[m + 1], layers[m + 1] - 1
                        _lower(work.down, weights[q], live[q], low, high, u, v)
                        earlier = slopes[q_m, seen[m]]
                        earlier[: shape.outputs[q_m]] = 0
                        for i in range(low, high):
                            slope = work.down[i]
                            earlier[live[q, i] - shape.slot[m]] = _half(slope) if half else slope
            seen[p] += 1
            _step(state.when[p], state.due[p], seen[p], clock + b, rates[p], powers)
            if p == server:
                tick = _spend(seconds, SERVER, tick, work.stamp)
        count = seen[server]
        regrets[b] = _square(state.sums, work.product, count, alpha, powers) / (whole * whole)
        tick = _spend(seconds, BACKWARD, tick, work.stamp)


@compiled()
def _scale(shape: Shape, state: State, work: Work, folded: Any) -> None:
    """Gather the inputs of the first events of each list, times -d; they are due no more."""
    for p in range(folded.size):
        for q in range(shape.layers[p], shape.layers[p + 1]):
            for i in range(folded[p]):
                share = -np.float32(state.due[p, i])
                for k in range(shape.inputs[q] + 1):
                    work.scaled[q, i, k] = share * state.inputs[q, i, k]
        state.due[p, : folded[p]] = 0


@compiled()
def _forget(shape: Shape, state: State, done: Any) -> None:
    """Take the first events out of each list."""
    for p in range(done.size):
        gone = done[p]
        state.count[p] -= gone
        for i in range(state.count[p] if gone else 0):
            state.when[p, i], state.due[p, i] = state.when[p, i + gone], state.due[p, i + gone]
            for q in range(shape.layers[p], shape.layers[p + 1]):
                for k in range(shape.inputs[q]):
                    state.inputs[q, i, k] = state.inputs[q, i + gone, k]
                for k in range(shape.outputs[q]):
                    state.slopes[q, i, k] = state.slopes[q, i + gone, k]
    for i in range(state.count[-1]):
        state.sums[0, i], state.sums[1, i] = state.sums[0, i + gone], state.sums[1, i + gone]


class Loop(Engine):
    """Weights and window of one network, with room of its own: one object serves one thread.

    ``rates`` are those of each party and of the server. ``half`` says that embeddings and their
    slopes travel as 16-bit floats. Another ``block`` changes results by float32's rounding only.
    """

    def __init__(
        self, net: Net, rule: Rule, rates: Sequence[float], *, half: bool, block: int = BLOCK
    ) -> None:
        self.net, self.rule, self._clock = net, rule, 0
        self._half, self._block = half, block
        powers = rule.alpha ** np.arange(rule.length, dtype=np.float64)
        self._rates = np.array(rates, np.float64) / powers.sum()
        self._powers = np.append(powers, np.zeros(block))
        self._shape = _shape(net)
        self._state, self._work = _room(self._shape, rule.length - 1 + block, block)
        self._layers = [self._tensors(q) for q in range(len(self._shape.inputs))]

    def start(self, weights: Mapping[str, Array]) -> None:
        """Begin with copies of these flat weights, and an empty window."""
        self._clock, self._state.count[:] = 0, 0
        for _, name, layers in self._participants():
            at = 0
            for q in layers:
                own = self._layers[q].weights.numpy()
                inputs, outputs = len(own) - 1, own.shape[1]
                part = weights[name][at : at + own.size]
                own[:inputs] = part[: inputs * outputs].reshape(outputs, inputs).T
                own[inputs] = part[inputs * outputs :]
                at += part.size

    @torch.inference_mode()
    def play(self, x: Array, y: Ints, active: Bools) -> Played:
        """Play n events, one after another.

        Args:
            x: (n, features), the parties' features side by side.
            y: (n,), labels.
            active: (n, parties), who learns.

        Raises:
            IndexError: for a label that is no class: compiled code checks no index.
        """
        n, classes = len(x), self.net[-1].widths[-1]
        if n and not 0 <= y.min() <= y.max() < classes:
            raise IndexError(f"labels must lie in 0..{classes - 1}, found {y.min()}..{y.max()}")
        played = Played.room(n)
        x, y, active = _plain(x), _plain(y), _plain(active)
        for start in range(0, n, self._block):
            part = slice(start, min(start + self._block, n))
            self._play(x[part], y[part], active[part], played, part)
        return played

    def _play(self, x: Array, y: Ints, active: Bools, played: Played, part: slice) -> None:
        """Play a block."""
        shape, state, work = self._shape, self._state, self._work
        seconds, begun = played.seconds, time.thread_time()
        *parties, server = self._participants()
        _before(shape, state, work, x, active, self._clock)
        for p, _, layers in parties:
            self._layers[layers[0]].multiply(len(x), int(state.count[p]))
        seconds[FORWARD] += time.thread_time() - begun
        _events(
            shape, state, work, y, active, self._clock, self._rates, self._powers, self.rule.alpha,
            self._half, played.predictions[part], played.losses[part], played.regret[part],
            seconds,
        )  # fmt: skip
        self._clock += len(x)
        begun, oldest = time.thread_time(), self._clock - self.rule.length
        done = np.array(
            [
                np.searchsorted(when[:count], oldest, side="right")
                for when, count in zip(state.when, state.count, strict=True)
            ]
        )
        folded = state.count.copy() if part.stop == len(played.losses) else done
        _scale(shape, state, work, folded)
        for p, _, layers in parties:
            self._fold(layers, int(folded[p]))
        middle = time.thread_time()
        self._fold(server[2], int(folded[-1]))
        _forget(shape, state, done)
        seconds[BACKWARD] += middle - begun
        seconds[SERVER] += time.thread_time() - middle

    def _fold(self, layers: range, count: int) -> None:
        """Write the first events of a participant's list into its weights."""
        for layer in (self._layers[q] for q in layers if count):
            layer.weights.addmm_(layer.scaled[:count].T, layer.slopes[:count])

    def weights(self) -> Weights:
        """Return copies of the flat weights in force, the server's first."""
        found = {}
        for _, name, layers in self._participants():
            own = [self._layers[q].weights.numpy() for q in layers]
            parts = [part for each in own for part in (each[:-1].T.ravel(), each[-1])]
            found[name] = np.concatenate(parts)
        return {"server": found.pop("server"), **found}

    def pack(self) -> Arrays:
        """Return weights and window, the whole state.

        ``clock`` is how many events there were; ``when.p`` which of the last l - 1 participant p
        (the server is the last) was active at; ``a.q`` and ``u.q`` the inputs of layer q at those
        and the slopes of its outputs; ``sums`` the bits of float64 numbers.
        """
        state = self._state
        window: Arrays = {
            "clock": np.array([self._clock]),
            "sums": state.sums[:, : state.count[-1]].copy().view(np.int64),
        }
        for p, _, layers in self._participants():
            count = state.count[p]
            window[f"when.{p}"] = state.when[p, :count].copy()
            for q in layers:
                window[f"a.{q}"] = self._layers[q].inputs.numpy()[:count, :-1].copy()
                window[f"u.{q}"] = self._layers[q].slopes.numpy()[:count].copy()
        return self.weights() | {f"window.{name}": values for name, values in window.items()}

    def unpack(self, kept: Mapping[str, NDArray[Any]]) -> None:
        """Go on from weights and window, bit for bit if later calls are the same.

        Raises:
            ValueError: for a window of another network or rule: compiled code checks no index.
        """
        window, state = below("window.", kept), self._state
        self.start(kept)
        self._clock = int(window["clock"][0])
        earliest = self._clock - min(self._clock, self.rule.length - 1)
        for p, _, layers in self._participants():
            when = window[f"when.{p}"]
            count = len(when)
            if not np.isin(when, np.arange(earliest, self._clock)).all() or np.any(
                np.diff(when) <= 0
            ):
                raise ValueError(
                    f"when.{p} must name events {earliest} to {self._clock - 1} in their order, "
                    f"found {when.tolist()}"
                )
            state.count[p], state.when[p, :count], state.due[p, :count] = count, when, 0
            for q in layers:
                self._layers[q].inputs.numpy()[:count, :-1] = window[f"a.{q}"]
                self._layers[q].slopes.numpy()[:count] = window[f"u.{q}"]
        state.sums[:, :count] = window["sums"].view(np.float64)

    def _participants(self) -> Iterator[tuple[int, str, range]]:
        """Yield each participant's number, name and layers."""
        layers, server = self._shape.layers.tolist(), len(self._shape.slot)
        for p, q in enumerate(layers[:-1]):
            yield p, "server" if p == server else f"party{p}", range(q, layers[p + 1])

    def _tensors(self, q: int) -> _Layer:
        """Return the arrays of layer q."""
        inputs, outputs = int(self._shape.inputs[q]), int(self._shape.outputs[q])
        p = int(np.searchsorted(self._shape.layers, q, side="right")) - 1
        state, work = self._state, self._work
        parts = (
            state.weights[q, : inputs + 1, :outputs],
            state.inputs[q, :, : inputs + 1],
            state.slopes[q, :, :outputs],
            work.scaled[q, :, : inputs + 1],
            work.x[p, :, : inputs + 1],
            work.first[p, :, :outputs],
            work.known[p],
        )
        state.inputs[q, :, inputs] = 1
        if q == self._shape.layers[p]:
            work.x[p, :, inputs] = 1
        return _Layer(*map(torch.from_numpy, parts))


class _Layer(NamedTuple):
    """A layer's parts of the arrays, without gaps; ``x``, ``first``, ``known``: of a party's first
    layer.
    """

    weights: torch.Tensor
    inputs: torch.Tensor
    slopes: torch.Tensor
    scaled: torch.Tensor
    x: torch.Tensor
    first: torch.Tensor
    known: torch.Tensor

    def multiply(self, events: int, pending: int) -> None:
        """Multiply a block's features with the weights, and with the inputs of pending events."""
        torch.mm(self.x[:events], self.weights, out=self.first[:events])
        torch.mm(self.x[:events], self.inputs[:pending].T, out=self.known[:events, :pending])


def _shape(net: Net) -> Shape:
    sizes = [size for chain in net for size in chain.layers]
    counts = [len(chain.layers) for chain in net]
    relu = [
        chain.last or number < count
        for chain, count in zip(net, counts, strict=True)
        for number in range(1, count + 1)
    ]
    return Shape(
        np.array([inputs for inputs, _ in sizes]),
        np.array([outputs for _, outputs in sizes]),
        np.array(relu),
        np.cumsum([0, *counts]),
        np.cumsum([0, *(chain.widths[-1] for chain in net[:-2])]),
    )


def _room(shape: Shape, rows: int, block: int) -> tuple[State, Work]:
    """Return zeros for so many pending events, and working memory."""
    people, layers = len(shape.slot) + 1, len(shape.inputs)
    inputs, outputs = int(shape.inputs.max()) + 1, int(shape.outputs.max())
    state = State(
        weights=_floats(layers, inputs, outputs),
        inputs=_floats(layers, rows, inputs),
        slopes=_floats(layers, rows, outputs),
        when=np.zeros((people, rows), np.int64),
        due=np.zeros((people, rows)),
        count=np.zeros(people, np.int64),
        sums=np.zeros((2, rows)),
    )
    work = Work(
        x=_floats(people, block, inputs), first=_floats(people, block, outputs),
        known=_floats(people, block, rows), seen=np.zeros(people, np.int64),
        inner=_floats(layers, rows), live=np.zeros((layers, inputs), np.int64),
        lives=np.zeros(layers, np.int64), value=_floats(layers, inputs),
        part=np.zeros(people, np.int64), z=_floats(outputs), v=_floats(inputs),
        down=_floats(inputs), factor=_floats(rows), r=_floats(rows), rows=np.arange(rows),
        product=np.zeros(rows), scaled=_floats(layers, rows, inputs), stamp=np.zeros(2, np.int64),
    )  # fmt: skip
    return state, work


def _floats(*shape: int) -> Array:
    """Return zeros whose rows begin on cache lines."""
    *outer, width = shape
    whole = -(-width // LINE) * LINE
    numbers = np.zeros(int(np.prod(outer)) * whole + LINE, np.float32)
    skip = -numbers.ctypes.data // 4 % LINE
    return numbers[skip : numbers.size - LINE + skip].reshape(*outer, whole)


def _plain(values: NDArray[Kind]) -> NDArray[Kind]:
    """Return an array as compiled code takes it: without gaps, writable."""
    return np.require(values, requirements=["C", "W"])
