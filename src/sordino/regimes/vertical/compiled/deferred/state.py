"""What all steps of compiled events work on.

The buffer ``m``, tables of layers and participants, ``fields``, and for each participant its
pending events (``when``: their numbers, ``place``: their rows in the rings, ``due``: their shares),
and for each layer the inputs ``chosen``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from sordino.regimes.vertical.compiled.deferred.strips import FLOATS, NUMBERS, bundle

# Columns of the table of participants, the server last: first layer and the one behind the last;
# where its features begin in x and its embedding in the server's input; where a block's products
# and its inner products are; how many events are pending, how many of them are older than the event
# at hand; where its part of the server's list of inputs begins and ends, and that of slopes sent
# down.
FIRST, END, COLUMN, SLOT, Z_AT, GRAM_AT, FILLED, SEEN, FROM, TO, DOWN = range(11)
COLUMNS = 11
# Columns of the one row of places for working numbers and of sizes.
V_AT, F_AT, R_AT, VALUES_AT, FOUND_AT = range(5)
BLOCK, RING, CAPACITY, FEATURES, WINDOW, HALF, REGRET, CLOCK = range(5, 13)
FIELDS = 13

TABLE, REALS = types.int64[:, ::1], types.float64[:, ::1]
FLAGS, FLAGS_OF_ONE = types.boolean[:, ::1], types.boolean[::1]


class State(NamedTuple):
    """See the module's docstring. Arrays, here and in compiled code."""

    m: Any
    layers: Any
    people: Any
    fields: Any
    when: Any
    place: Any
    due: Any
    chosen: Any


STATE = bundle(State, FLOATS, TABLE, TABLE, NUMBERS, TABLE, TABLE, REALS, TABLE)
