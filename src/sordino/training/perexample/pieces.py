r"""Pieces of one public shape: an example's bits do not depend on how many others there are.

A library may add up the products of a row in another order where a matrix has another number of
rows (one row goes by another routine than two), and take the last few numbers of an array by other
instructions than the rest. A Poisson batch has n or n + 1 examples, as one record is drawn or not:
then all others would be rounded anew, and with weights near the limit of float32 a gradient that is
finite in one batch is not in the other (seen: 1.62 C).

So a batch is worked off in pieces of one number of rows. It follows from the *expected* batch,
which is public. Copies of an example fill up the last piece, with the factor zero. Everything
between a piece's inputs and its sum is then called on one shape, whatever was drawn.

An example's place in its piece moves as well. Torch takes the last numbers of an array, up to 31,
by other instructions than the rest, which round exponentials in another way. So rows are a multiple
of 16: arrays of rows of even length have only whole vectors, if one thread works on them. And for
some shapes a library works on rows in other ways by turns (seen: where rows of ten numbers begin at
addresses of two kinds). So before a number of rows is used, equal examples are put in all places,
on random weights and inputs. Only places in which their gradients are equal to the bit are used,
and if these are too few, there are more rows.

What is assumed of libraries is then that for calls of one shape a row's bits do not depend on the
values of other rows, and that places which are alike for random numbers are alike.
"""

from __future__ import annotations

import math

from torch import Tensor

TOGETHER = 112
"""m, the largest number of examples that are added up in float32."""

VECTOR, HALF = 32, 16
"""Numbers that torch works on at once, at most; rows of which most arrays have whole vectors."""

UNKNOWN = 16.0
"""Expected batch where a caller gives none."""


def rows_of(expected: float, most: int) -> int:
    """Rows of a piece for an ``expected`` batch, at most ``most``, for memory, if that is a vector.

    One piece holds nine Poisson batches of ten; larger batches are cut into leaves of 56 to 112
    examples (:func:`~sordino.training.perexample.clipping.leaves`), a piece each.

    >>> [rows_of(expected, 1000) for expected in (0.5, 12, 64, 5000)], rows_of(64, 40)
    ([32, 32, 80, 112], 32)
    """
    wanted = HALF * math.ceil((expected + 1.5 * math.sqrt(expected)) / HALF)
    return max(min(wanted, TOGETHER, most - most % HALF), VECTOR)


def filled(some: Tensor, rows: int, places: Tensor) -> Tensor:
    """``some`` (k, ...) at the first k ``places`` of so many rows, and copies of the first one.

    In memory of its own: libraries look at strides and addresses, too.
    """
    count = len(some)
    whole = some.new_empty(rows, *some.shape[1:])
    if int(places[count - 1]) == count - 1:  # the places are the first ones
        whole[:count], whole[count:] = some, some[:1]
    else:
        whole[:] = some[:1]
        whole[places[:count]] = some
    return whole


def parts(rows: int, most: int) -> list[slice]:
    """Parts of one size, as few as have at most ``most`` rows each.

    >>> parts(20, 8)
    [slice(0, 5, None), slice(5, 10, None), slice(10, 15, None), slice(15, 20, None)]
    """
    size = next(size for size in range(min(max(most, 1), rows), 0, -1) if rows % size == 0)
    return [slice(start, start + size) for start in range(0, rows, size)]
