"""The steps of compiled events: before a block, forward, server, active party, after a block.

All of them take the same :class:`~sordino.regimes.vertical.compiled.deferred.state.State`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from numba import types

from sordino.regimes.vertical.compiled.deferred import chain
from sordino.regimes.vertical.compiled.deferred.chain import (
    A_AT,
    A_PITCH,
    IN,
    LIVE,
    OUT,
    S_AT,
    U_AT,
    U_PITCH,
)
from sordino.regimes.vertical.compiled.deferred.scores import entropy, predicted
from sordino.regimes.vertical.compiled.deferred.state import (
    CAPACITY,
    CLOCK,
    COLUMN,
    DOWN,
    END,
    F_AT,
    FEATURES,
    FILLED,
    FIRST,
    FLAGS,
    FLAGS_OF_ONE,
    FOUND_AT,
    FROM,
    GRAM_AT,
    HALF,
    R_AT,
    REGRET,
    RING,
    SEEN,
    SLOT,
    STATE,
    TABLE,
    TO,
    V_AT,
    VALUES_AT,
    WINDOW,
    Z_AT,
    State,
)
from sordino.regimes.vertical.compiled.deferred.strips import (
    DOUBLES,
    FLOATS,
    NUMBER,
    NUMBERS,
    Run,
    clear,
    compiled,
    dot_rows,
)
from sordino.regimes.vertical.compiled.deferred.window import windows
from sordino.regimes.vertical.compiled.half_precision import rounded


class Steps(NamedTuple):
    """The steps of an event, and those before and after a block."""

    before: Run
    ahead: Run
    serve: Run
    learn: Run
    after: Run


@cache
def _before(size: int) -> Run:
    kit = chain.kernels(size)

    def before(
        state: State, x: Any, active: Any, start: int, n: int, every: Any, rows: Any
    ) -> None:
        m, layers, people, fields, when, place, due, _ = state
        server, features = len(people) - 1, fields[FEATURES]
        for b in range(n):
            rows[b] = (fields[CLOCK] + b) % fields[RING]
        for p in range(server + 1):
            person = people[p]
            person[SEEN] = person[FILLED]
            for b in range(n):
                if p == server or active[start + b, p]:
                    at = person[FILLED]
                    when[p, at], place[p, at], due[p, at] = fields[CLOCK] + b, rows[b], 0
                    person[FILLED] += 1
            if p == server:
                continue
            layer, here = layers[person[FIRST]], start * features + person[COLUMN]
            for b in range(n):
                at = layer[A_AT] + rows[b] * layer[A_PITCH]
                a = m[at : at + layer[IN]]
                example = x[here + b * features : here + b * features + layer[IN]]
                for k in range(layer[IN]):
                    a[k] = example[k]
            kit.products(m, layer, x, here, features, person[Z_AT], n, every)
            kit.gram(m, layer, rows, n, place[p], person[FILLED], person[GRAM_AT], fields[CAPACITY])

    return compiled(types.void, STATE, FLOATS, FLAGS, NUMBER, NUMBER, NUMBERS, NUMBERS)(before)


@cache
def _further(size: int) -> Run:
    kit = chain.kernels(size)

    def onward(
        m: Any, layers: Any, q: int, row: int, z_at: int, chosen: Any, values_at: int
    ) -> None:
        a_at = layers[q + 1, A_AT] + row * layers[q + 1, A_PITCH]
        n = kit.receive(m, layers[q], z_at, False, a_at, chosen[q + 1], values_at, 0, 0)
        kit.close(m, layers[q + 1], n, chosen[q + 1], values_at)

    return compiled(types.void, FLOATS, TABLE, NUMBER, NUMBER, NUMBER, TABLE, NUMBER)(onward)


@cache
def _ahead(size: int) -> Run:
    kit, further = chain.kernels(size), _further(size)

    def ahead(state: State, b: int, row: int) -> None:
        """Embeddings of all parties, into the server's input."""
        m, layers, people, fields, _, place, due, chosen = state
        server, into, values_at = len(people) - 1, 0, fields[VALUES_AT]
        top = people[server, FIRST]
        top_at = layers[top, A_AT] + row * layers[top, A_PITCH]
        for p in range(server):
            person = people[p]
            first, end, count = person[FIRST], person[END], person[SEEN]
            pitch = layers[first, U_PITCH]
            z_at, known_at = person[Z_AT] + b * pitch, person[GRAM_AT] + b * fields[CAPACITY]
            kit.correct(
                m, layers[first, U_AT], pitch, place[p], count, due[p], known_at, fields[F_AT], z_at
            )
            for q in range(first + 1, end):
                further(m, layers, q - 1, row, z_at, chosen, values_at)
                z_at = fields[V_AT]
                kit.forward(
                    m, layers[q], row, z_at, chosen[q], values_at, place[p], count, due[p],
                    fields[F_AT],
                )  # fmt: skip
            person[FROM], slot = into, person[SLOT]
            into = kit.receive(
                m, layers[end - 1], z_at, fields[HALF] != 0, top_at + slot, chosen[top],
                fields[FOUND_AT], slot, into,
            )  # fmt: skip
            person[TO] = into
        kit.close(m, layers[top], into, chosen[top], fields[FOUND_AT])

    return compiled(types.void, STATE, NUMBER, NUMBER)(ahead)


@cache
def _deeper(size: int) -> Run:
    kit, empty = chain.kernels(size), clear()

    def below(
        m: Any, layers: Any, q: int, fields: Any, row: int, place: Any, count: int, due: Any,
        chosen: Any, r_at: int
    ) -> None:  # fmt: skip
        """The slopes of the layer before ``q``, in the same chain, into its ring."""
        found, live, layer = fields[VALUES_AT], layers[q, LIVE], layers[q - 1]
        kit.backward(
            m, layers[q], row, r_at, fields[V_AT], fields[F_AT], chosen, live, place, count, due,
            found,
        )  # fmt: skip
        u_at = layer[U_AT] + row * layer[U_PITCH]
        empty(m, u_at, layer[U_PITCH])
        for i in range(live):
            m[u_at + chosen[i]] = m[found + i]

    return compiled(
        types.void,
        FLOATS,
        TABLE,
        NUMBER,
        NUMBERS,
        NUMBER,
        NUMBERS,
        NUMBER,
        DOUBLES,
        NUMBERS,
        NUMBER,
    )(below)


@cache
def _slopes(size: int) -> Run:
    dot = dot_rows(size).call

    def inner(m: Any, layer: Any, row: int, place: Any, count: int, r_at: int) -> None:
        """r of all events up to this one."""
        wide = layer[U_PITCH]
        dot(
            m.ctypes, layer[U_AT], wide, place.ctypes, count + 1, layer[U_AT] + row * wide,
            wide // size, r_at,
        )  # fmt: skip

    return compiled(types.void, FLOATS, NUMBERS, NUMBER, NUMBERS, NUMBER, NUMBER)(inner)


@cache
def _serve(size: int) -> Run:
    kit, further, deeper, slopes = chain.kernels(size), _further(size), _deeper(size), _slopes(size)
    meet = windows().meet

    def serve(
        state: State, row: int, label: int, active: Any, product: Any, part: Any, out: Any
    ) -> int:
        """The server: loss into ``out``, slopes, those sent down; returns the class predicted."""
        m, layers, people, fields, when, place, due, chosen = state
        server, depth = len(people) - 1, len(layers)
        top, count, z_at = people[server, FIRST], people[server, SEEN], fields[V_AT]
        r_at = fields[R_AT]
        mine, shares, whens = place[server], due[server], when[server]
        for q in range(top, depth):
            values_at = fields[FOUND_AT] if q == top else fields[VALUES_AT]
            if q > top:
                further(m, layers, q - 1, row, z_at, chosen, values_at)
            kit.forward(
                m, layers[q], row, z_at, chosen[q], values_at, mine, count, shares, fields[F_AT]
            )
        last = layers[depth - 1]
        best = predicted(m, z_at, last[OUT])
        out[0] = entropy(m, z_at, last[OUT], last[U_PITCH], label, last[U_AT] + row * last[U_PITCH])
        needed = 0
        for p in range(server):
            people[p, DOWN] = needed
            if active[p]:
                for i in range(people[p, FROM], people[p, TO]):
                    part[needed] = chosen[top, i]
                    needed += 1
        for i in range(count + 1):
            product[i] = 0
        for q in range(depth - 1, top - 1, -1):
            if fields[REGRET] or q > top or needed:
                slopes(m, layers[q], row, mine, count, r_at)
            if fields[REGRET]:
                meet(product, m, layers[q, S_AT], r_at, whens, count + 1, whens[0])
            if q > top:
                deeper(m, layers, q, fields, row, mine, count, shares, chosen[q], r_at)
            elif needed:
                kit.backward(
                    m, layers[q], row, r_at, fields[V_AT], fields[F_AT], part, needed, mine, count,
                    shares, fields[FOUND_AT],
                )  # fmt: skip
        return int(best)

    return compiled(NUMBER, STATE, NUMBER, NUMBER, FLAGS_OF_ONE, DOUBLES, NUMBERS, DOUBLES)(serve)


@cache
def _learn(size: int) -> Run:
    empty, deeper, slopes, (grow, meet, _) = clear(), _deeper(size), _slopes(size), windows()

    def learn(
        state: State, b: int, row: int, active: Any, rates: Any, back: Any, product: Any, part: Any
    ) -> None:
        """The slopes of all active parties, and their updates."""
        m, layers, people, fields, when, place, due, chosen = state
        server, r_at, event = len(people) - 1, fields[R_AT], fields[CLOCK] + b
        oldest = when[server, 0]
        for p in range(server):
            if not active[p]:
                continue
            person, mine, shares, whens = people[p], place[p], due[p], when[p]
            first, end, count, down = person[FIRST], person[END], person[SEEN], person[DOWN]
            layer, n = layers[end - 1], person[TO] - person[FROM]
            u_at, sent = layer[U_AT] + row * layer[U_PITCH], fields[FOUND_AT] + down
            empty(m, u_at, layer[U_PITCH])
            slope, value = m[u_at : u_at + layer[OUT]], m[sent : sent + n]
            where = part[down : down + n]
            for i in range(n):
                slope[where[i] - person[SLOT]] = rounded(value[i]) if fields[HALF] else value[i]
            for q in range(end - 1, first - 1, -1):
                if fields[REGRET] or q > first:
                    slopes(m, layers[q], row, mine, count, r_at)
                if fields[REGRET]:
                    known_at = (
                        layers[q, S_AT] if q > first else person[GRAM_AT] + b * fields[CAPACITY]
                    )
                    meet(product, m, known_at, r_at, whens, count + 1, oldest)
                if q > first:
                    deeper(m, layers, q, fields, row, mine, count, shares, chosen[q], r_at)
            person[SEEN] = count + 1
            grow(fields[WINDOW], rates[p], back, event, whens, shares, count + 1)

    return compiled(
        types.void, STATE, NUMBER, NUMBER, FLAGS_OF_ONE, DOUBLES, DOUBLES, DOUBLES, NUMBERS
    )(learn)


@cache
def _after(size: int) -> Run:
    kit = chain.kernels(size)

    def after(state: State, p: int, whole: bool) -> int:
        """Fold what is final, or all; forget events that no update needs, and count them."""
        m, layers, people, fields, when, place, due, _ = state
        person, done = people[p], 0
        kept = person[FILLED]
        while done < kept and when[p, done] <= fields[CLOCK] - fields[WINDOW]:
            done += 1
        folded = kept if whole else done
        if folded:
            for q in range(person[FIRST], person[END]):
                kit.fold(m, layers[q], place[p], folded, due[p], fields[V_AT])
        for i in range(folded):
            due[p, i] = 0
        person[FILLED] = kept - done
        for i in range(kept - done):
            when[p, i], place[p, i] = when[p, i + done], place[p, i + done]
            due[p, i] = due[p, i + done]
        return done

    return compiled(NUMBER, STATE, NUMBER, types.boolean)(after)


@cache
def steps(size: int) -> Steps:
    """All of them; ``size`` is L."""
    return Steps(_before(size), _ahead(size), _serve(size), _learn(size), _after(size))
