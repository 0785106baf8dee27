r"""Events of one example each, many in one call: forward, backward and a windowed update.

The update of event t takes (eta / W) alpha^i times the gradient of event t - i, for all i below the
length l of the window. A gradient of one example is an outer product, so nothing of the size of the
weights is touched: event j's share d_j grows by (eta / W) alpha^(t - j) with each update of a
participant, and ``compiled.deferred.chain`` works with what is due. A party that is passive keeps
no gradient of that event and its shares do not grow.

Events come in blocks of B. What no event of the block can change is done for all of them at once:
the products of the parties' inputs with their first layer's weights, and with the inputs of all
pending events. After a block, the shares that cannot grow any more (age l or more) are folded into
the weights, one product of rank B; at the end of a call all are, so that the weights are those in
force.

    window  shares, and the square of the averaged gradient
    steps   what a block, an event and a participant do

Here is their order.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from numba import types

from sordino.regimes.vertical.compiled.clock import nanoseconds
from sordino.regimes.vertical.compiled.deferred.state import (
    BLOCK,
    CLOCK,
    FILLED,
    FLAGS,
    REALS,
    REGRET,
    SEEN,
    STATE,
    WINDOW,
    State,
)
from sordino.regimes.vertical.compiled.deferred.steps import steps
from sordino.regimes.vertical.compiled.deferred.strips import (
    DOUBLES,
    FLOATS,
    NUMBERS,
    Run,
    bundle,
    compiled,
)
from sordino.regimes.vertical.compiled.deferred.window import windows


class Work(NamedTuple):
    """Room for one call. Arrays, here and in compiled code.

    Attributes:
        every: 0, 1, 2 and so on, as many as the longest list of inputs.
        rows: rows of the rings that a block's events get.
        part: inputs of the server that are sent down.
        stamp: for the clock.
        sums: see :mod:`.window`.
        product: inner products of the newest gradient and those pending.
    """

    every: Any
    rows: Any
    part: Any
    stamp: Any
    sums: Any
    product: Any


WORK = bundle(Work, NUMBERS, NUMBERS, NUMBERS, NUMBERS, REALS, DOUBLES)


@cache
def events(size: int) -> Run:
    """The whole; see the module's docstring. ``size`` is L."""
    do, (grow, _, square) = steps(size), windows()

    def run(
        state: State, x: Any, y: Any, active: Any, rates: Any, back: Any, work: Work,
        predictions: Any, losses: Any, regrets: Any, spent: Any,
    ) -> None:  # fmt: skip
        """Adds nanoseconds of the parties' forward passes, updates, and the server to ``spent``."""
        people, fields, when, due = state.people, state.fields, state.when, state.due
        every, rows, part, stamp, sums = work.every, work.rows, work.part, work.stamp, work.sums
        product = work.product
        server, total, block, window = len(people) - 1, len(y), fields[BLOCK], fields[WINDOW]
        whole, alpha = 0.0, back[window]
        for i in range(window):
            whole += back[i]
        tock = nanoseconds(stamp)
        for start in range(0, total, block):
            n = min(block, total - start)
            tick = tock
            do.before(state, x, active, start, n, every, rows)
            tock = nanoseconds(stamp)
            spent[0] += tock - tick
            for b in range(n):
                t, row, event, tick = start + b, rows[b], fields[CLOCK] + b, tock
                do.ahead(state, b, row)
                tock = nanoseconds(stamp)
                spent[0] += tock - tick
                tick = tock
                predictions[t] = do.serve(
                    state, row, y[t], active[t], product, part, losses[t : t + 1]
                )
                people[server, SEEN] += 1
                count = people[server, SEEN]
                grow(window, rates[server], back, event, when[server], due[server], count)
                tock = nanoseconds(stamp)
                spent[2] += tock - tick
                tick = tock
                do.learn(state, b, row, active[t], rates, back, product, part)
                if fields[REGRET]:
                    age = event - when[server, 0]
                    regrets[t] = square(window, alpha, back, product, sums[0], sums[1], age) / (
                        whole * whole
                    )
                tock = nanoseconds(stamp)
                spent[1] += tock - tick
            fields[CLOCK] += n
            for p in range(server + 1):
                tick = tock
                done = do.after(state, p, start + n == total)
                if p == server:
                    for i in range(people[p, FILLED]):
                        sums[0, i], sums[1, i] = sums[0, i + done], sums[1, i + done]
                tock = nanoseconds(stamp)
                spent[2 if p == server else 1] += tock - tick

    return compiled(
        types.void, STATE, FLOATS, NUMBERS, FLAGS, DOUBLES, DOUBLES, WORK, NUMBERS, DOUBLES,
        DOUBLES, NUMBERS, outside=True
    )(run)  # fmt: skip
