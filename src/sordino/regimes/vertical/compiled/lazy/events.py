r"""Events of one example each, many in one call: forward, backward and a windowed update of every active participant.

The update of event t takes (eta / W) alpha^i times the gradient of event t - i, for all i below the length l of the window. A gradient
of one example is an outer product, so nothing of the size of the weights is touched: event j's share d_j grows by
(eta / W) alpha^(t - j) with each update of a participant, and ``compiled.lazy.chain`` works with what is due. A party that
is passive keeps no gradient of that event and its shares do not grow.

Events come in blocks of B. What no event of the block can change is done for all of them at once: the products of the parties' inputs
with their first layer's weights, and with the inputs of all pending events. After a block, the shares that cannot grow any more (age
l or more) are folded into the weights, one product of rank B; at the end of a call all are, so that the weights are those in force.

    window  shares, and the square of the averaged gradient
    steps   what a block, an event and a participant do

Here is their order.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sordino.regimes.vertical.compiled.clock import nanoseconds
from sordino.regimes.vertical.compiled.lazy.steps import BLOCK, CLOCK, FILLED, REALS, REGRET, SEEN, STATE, WINDOW, steps
from sordino.regimes.vertical.compiled.lazy.strips import DOUBLES, FLOATS, NUMBERS, Run, compiled
from sordino.regimes.vertical.compiled.lazy.window import windows


@cache
def events(size: int) -> Run:
    """The whole; see the module's docstring. ``size`` is L."""
    do, (grow, _, square) = steps(size), windows()

    def run(
        m: Any, layers: Any, people: Any, fields: Any, when: Any, place: Any, due: Any, chosen: Any,
        x: Any, y: Any, active: Any, rates: Any, back: Any, every: Any, rows: Any, part: Any, stamp: Any, sums: Any, product: Any,
        predictions: Any, losses: Any, regrets: Any, spent: Any,
    ) -> None:  # fmt: skip
        """Nanoseconds of the parties' forward passes, of their updates and of the server are added to ``spent``."""
        server, total, block, window = len(people) - 1, len(y), fields[BLOCK], fields[WINDOW]
        whole, alpha = 0.0, back[window]
        for i in range(window):
            whole += back[i]
        tock = nanoseconds(stamp)
        for start in range(0, total, block):
            n = min(block, total - start)
            tick = tock
            do.before(m, layers, people, fields, when, place, due, chosen, x, active, start, n, every, rows)
            tock = nanoseconds(stamp)
            spent[0] += tock - tick
            for b in range(n):
                t, row, event, tick = start + b, rows[b], fields[CLOCK] + b, tock
                do.ahead(m, layers, people, fields, when, place, due, chosen, b, row)
                tock = nanoseconds(stamp)
                spent[0] += tock - tick
                tick = tock
                predictions[t] = do.serve(
                    m, layers, people, fields, when, place, due, chosen, row, y[t], active[t], product, part, losses[t : t + 1]
                )
                people[server, SEEN] += 1
                count = people[server, SEEN]
                grow(window, rates[server], back, event, when[server], due[server], count)
                tock = nanoseconds(stamp)
                spent[2] += tock - tick
                tick = tock
                do.learn(m, layers, people, fields, when, place, due, chosen, b, row, active[t], rates, back, product, part)
                if fields[REGRET]:
                    age = event - when[server, 0]
                    regrets[t] = square(window, alpha, back, product, sums[0], sums[1], age) / (whole * whole)
                tock = nanoseconds(stamp)
                spent[1] += tock - tick
            fields[CLOCK] += n
            for p in range(server + 1):
                tick = tock
                done = do.after(m, layers, people, fields, when, place, due, chosen, p, start + n == total)
                if p == server:
                    for i in range(people[p, FILLED]):
                        sums[0, i], sums[1, i] = sums[0, i + done], sums[1, i + done]
                tock = nanoseconds(stamp)
                spent[2 if p == server else 1] += tock - tick

    return compiled(
        "void", *STATE, FLOATS, NUMBERS, "boolean[:, ::1]", DOUBLES, DOUBLES, NUMBERS, NUMBERS, NUMBERS, NUMBERS, REALS, DOUBLES,
        NUMBERS, DOUBLES, DOUBLES, NUMBERS, outside=True,
    )(run)  # fmt: skip
