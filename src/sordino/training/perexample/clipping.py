r"""Factors that bring every example's gradient inside the bound, as the machine computes it.

    c_i = min(1, s C / N_i),        s = 1 - 2^-9,        |G_i| <= N_i (1 + 2^-13)

Two batches, of which one has an example more than the other, must give sums S and S' with
|S - S'| <= C; not in exact arithmetic, but bit for bit as they come out. Every other example has
the same c_i and G_i in both, bit for bit: nothing that is computed for example i depends on example
j (the layers that :mod:`.plan` takes keep them apart, all else is differentiated by itself), no
branch looks at more than one example, and libraries are called on pieces of one shape
(below). With u = 2^-24 and gamma_k = k u / (1 - k u) (Higham 2002, section 3.1), what remains is:

* *What G_i is.* The array of float32 numbers, or the outer products of stored float32 vectors, that
  goes into the sum. Its own errors against calculus change what is learned, not the bound.
* *Norm.* Squares are added in float32 over at most 1 024 numbers (:func:`squares`), in float64 from
  there on, and never subtracted: off by gamma_1028 of itself, half of that on the norm. A square
  below 2^-126 may vanish, so 2^-126 is added for each. Where a norm does need cancelling terms (a
  Gram matrix) it is taken in float64 and its error bound is added to it (:mod:`.layers`).
* *Factor.* Computed in float64, rounded once: u. It is no denormal number, because C >= 1e-12 and
  examples with N_i > 1e19 contribute nothing.
* *Sum.* A batch is cut by the examples' indices into leaves of at most m = 96
  (:func:`leaves`). A leaf is added up in float32, in pieces or whole, the rest in float64. Product
  and additions are off by gamma_{m+2} sum_i |c_i G_i| in any order of adding, at most m C
  gamma_{m+2} with the differing example and (m - 1) C gamma_{m+2} without. Only the leaf that holds
  it changes (or the leaf that is cut in two because of it, m + 1 examples in all): 1.14e-3 C in
  all. What underflows
  in a product c_i g is at most 2^-126 a number, times |a| < 2^64: no more than 2^-12 C even at
  C = 1e-12 and a million outputs.
* *Sum of parts.* In float64, K <= B parts of a batch of B <= 2^20 (:data:`MOST`): 2 K 2^-53 B C <=
  2.5e-4 C.

Together s (1 + 2^-13.9 + 2 u) + 1.14e-3 + 2.5e-4 < 1 - 4.0e-4, where 2^-13.9 is the norm's error
twice, for a product of two norms. So |S - S'| < C for every shape. A margin of 2^-9 costs two
thousandths of the signal.

**Persons** (:meth:`.sums.ClippedSum._persons`). An "example" may be a person, and G_i the sum over
the person's rows. Rows are worked off in pieces as examples are (below), so their gradients have
bits of their own; these are added up in float64, one after another in the order of the rows, and
rounded to float32 once: G_i, an array like any other, whose norm, factor and product are computed
from it alone, in memory of its own. Whatever was lost before that changes what is learned, and not
the bound. m = 1 in the sum, since each person's product goes to float64 by itself. The batch is cut
by persons, K <= B counts persons, and :data:`MOST` bounds them. A row without a finite gradient
adds nothing to its person. Rows are written out, d numbers each, so this is slower than clipping
rows where gradients need not be (measured for one linear layer: docs/choose.md).

An example whose gradient is not finite (overflow, NaN in its data) has no direction that could be
kept: it contributes nothing, which is inside the bound. The same holds for norms above 1e19, whose
square float32 does not hold. Its rows are set to zero in place, so the others keep their bits.

**Pieces of one public shape: an example's bits do not depend on how many others there are.**
A library may add up the products of a row in another order where a matrix has another number of
rows (one row goes by another routine than two), and take the last few numbers of an array by other
instructions than the rest. A Poisson batch has n or n + 1 examples, as one record is drawn or not:
then all others would be rounded anew, and with weights near the limit of float32 a gradient that is
finite in one batch is not in the other (seen: 1.62 C).

So a batch is worked off in pieces of one number of rows. It follows from the *expected* batch,
which is public. Copies of an example fill up the last piece, with the factor zero. Everything
between a piece's inputs and its sum is then called on one shape, whatever was drawn.

An example's place in its piece moves as well. Torch takes the last numbers of an array, up to 31 of
float32, by other instructions than the rest, which round exponentials in another way. So rows are a
multiple of 32: all arrays have only whole vectors, if one thread works on them. (With 48 rows, the
last 16 of an activation with one number a row were rounded otherwise: 2.99 C.) Half precision has
vectors of 64; a module that computes in it gets one example after another. And for some shapes a
library works on rows in other ways by turns (seen: where rows of ten numbers begin at addresses of
two kinds). So before a number of rows is used, equal examples are put in all places,
on random weights and inputs. Only places in which their gradients are equal to the bit are used,
and if these are too few, there are more rows.

What is assumed of libraries is then that for calls of one shape a row's bits do not depend on the
values of other rows, and that places which are alike for random numbers are alike.

References:
    Abadi et al. 2016, Deep Learning with Differential Privacy, algorithm 1.
    Casacuberta, Shoemate, Vadhan, Wagaman 2022, Widespread Underestimation of Sensitivity in
    Differentially Private Libraries and How to Fix It.
    Higham 2002, Accuracy and Stability of Numerical Algorithms, sections 3.1 and 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.base.errors import StudyError, passing_over
from sordino.base.registry import foreign
from sordino.mechanisms.gaussian import Measuring, Shortening

TOGETHER = 96
"""m, the largest number of examples that are added up in float32."""

VECTOR = 32
"""Numbers of float32 that torch works on at once, at most; rows of a piece are a multiple."""

UNKNOWN = 16.0
"""Expected batch where a caller gives none."""

MARGIN = 1.0 - 2.0**-9
"""s."""

LONGEST = 1e19
"""Longer gradients contribute nothing."""

MOST = 2**20
"""Examples in a batch."""

BLOCK = 1024
"""Squares that are added up in float32."""

VANISHING = 2.0**-126
"""The error of a square or product that is denormal, or flushed to zero, at most."""


@dataclass(frozen=True, slots=True)
class FlatBound:
    """min(1, C / |G_i|) times each gradient."""

    clip: float


@dataclass(frozen=True, slots=True)
class Layers:
    """min(1, C_l / |G_i^l|) times each layer's gradient, all C_l equal (McMahan et al. 2018)."""

    clip: float

    def each(self, layers: int) -> float:
        """C_l = C / sqrt(layers)."""
        return self.clip / math.sqrt(layers)


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """min(1, s C / norm(G_i)) times each gradient, summed in float64.

    In a norm that weighs directions, errors weigh more, too.

    Attributes:
        clip: C.
        norms: (n, d) -> (n,), infinite where a row is not finite.
        margin: s, the room for rounding in this norm.
    """

    clip: float
    norms: Callable[[Tensor], Tensor]
    margin: float

    @classmethod
    def by(cls, mechanism: Measuring, clip: float) -> Measured:
        """The norm of a mechanism. Somebody's own sees one row at a time, and a row on which it
        fails does not contribute.
        """
        if not foreign(mechanism):
            return cls(clip, mechanism.norms, mechanism.margin)

        def norms(rows: Tensor) -> Tensor:
            found = rows.new_full((len(rows),), math.inf, dtype=torch.float64)
            for i, row in enumerate(alone(rows)):
                with passing_over():
                    found[i] = mechanism.norms(row)
            return found

        return cls(clip, norms, mechanism.margin)


@dataclass(frozen=True, slots=True, eq=False)
class Shortened:
    """Gradients as a mechanism shortens them, summed in float64.

    Attributes:
        clip: C.
        rows: (n, d) -> (n, d) in float64 within the bound, and norms (n,) before, which are
            infinite where a row is not finite.
    """

    clip: float
    rows: Callable[[Tensor], tuple[Tensor, Tensor]]

    @classmethod
    def by(cls, mechanism: Shortening, clip: float) -> Shortened:
        """The way of a mechanism. Somebody's own sees one row at a time, and a row on which it
        fails, or of which it makes what is not finite, is zero.
        """
        if not foreign(mechanism):
            return cls(clip, mechanism.shortened_rows)

        def shortened(rows: Tensor) -> tuple[Tensor, Tensor]:
            short = torch.zeros_like(rows, dtype=torch.float64)
            norms = rows.new_full((len(rows),), math.inf, dtype=torch.float64)
            for i, row in enumerate(alone(rows)):
                with passing_over():
                    made, norm = mechanism.shortened_rows(row)
                    if bool(made.isfinite().all()):
                        norms[i], short[i] = norm, made
            return short, norms

        return cls(clip, shortened)


Bound = FlatBound | Layers | Measured | Shortened


@dataclass(frozen=True, slots=True, eq=False)
class ClippedBatch:
    """Raw quantities of one batch. They depend on single examples: they never leave a client.

    Attributes:
        norms: |G_i| before clipping (n,); infinite where a gradient is not finite.
        clip: C.
        loss: losses (n,).
    """

    norms: Tensor
    clip: float
    loss: Tensor

    @property
    def clipped(self) -> int:
        """The number of examples with a norm above C."""
        return int((self.norms > self.clip).sum())


def factors(norms: Tensor, clip: float, margin: float, dtype: torch.dtype) -> Tensor:
    """c_i (n,) of norms (n,) in float64; a norm of zero gives 1, an infinite one 0.

    ``dtype`` is that of the sums to come.
    """
    return torch.reciprocal(norms).mul_(clip * margin).clamp_max_(1.0).to(dtype)


def squares(rows: Tensor) -> Tensor:
    """|row|^2 (n,) of rows (n, k) in float64, off by a part in 16 000 at most."""
    if rows.dtype != torch.float32:
        exact: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square_()
        return exact.add_(rows.shape[1] * torch.finfo(torch.float64).tiny)
    n, k = rows.shape
    if rows.device.type == "cpu":
        from sordino.training.perexample import loops

        found = torch.empty(n, dtype=torch.float64)
        loops.squares(rows.contiguous().numpy(), found.numpy())
        return found
    whole = k - k % BLOCK if k > BLOCK else 0
    found = torch.full((n,), k * VANISHING, dtype=torch.float64, device=rows.device)
    if whole:
        blocks = torch.linalg.vector_norm(rows[:, :whole].reshape(n, whole // BLOCK, BLOCK), dim=2)
        found += blocks.to(torch.float64).square_().sum(1)
    if whole < k:
        found += torch.linalg.vector_norm(rows[:, whole:], dim=1).to(torch.float64).square_()
    return found


def summable(expected: float) -> None:
    """Refuse expected batches so large that a Poisson batch could exceed :data:`MOST`.

    Its size is nobody's business, so it is not looked at later. With half of :data:`MOST` expected,
    the chance that it is exceeded is below exp(-2^17) (Bernstein), which no delta shows.

    Raises:
        StudyError: for a larger one.
    """
    if expected > MOST / 2:
        raise StudyError(
            f"batches of {expected:g} examples are expected, and at most {MOST // 2} can be summed "
            "within the proven bound: lower privacy.sampling_rate, or method.batch"
        )


def leaves(chosen: Tensor) -> Iterator[Tensor]:
    """Indices (b,) in parts of at most :data:`TOGETHER`, ascending.

    The numbers from 0 on are cut in halves until few enough lie in each: so a part depends on
    nothing but its own indices, and one more of them changes no other part.

    >>> [len(part) for part in leaves(torch.arange(700))]
    [64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 60]
    """
    if len(chosen) <= TOGETHER:
        yield from [chosen] if len(chosen) else []
        return
    ordered = chosen.sort(stable=True).values
    yield from _halved(ordered, 0, 1 << int(ordered[-1]).bit_length())


def _halved(ordered: Tensor, low: int, high: int) -> Iterator[Tensor]:
    if len(ordered) <= TOGETHER or high - low == 1:
        yield from [ordered] if len(ordered) else []
        return
    middle = (low + high) // 2
    cut = int(torch.searchsorted(ordered, middle))
    yield from _halved(ordered[:cut], low, middle)
    yield from _halved(ordered[cut:], middle, high)


def joined(parts: list[ClippedBatch], clip: float, like: Tensor, chosen: Tensor) -> ClippedBatch:
    """Join the quantities of the leaves of one batch, in the order of ``chosen`` (b,)."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return ClippedBatch(like.new_zeros(0), clip, like.new_zeros(0))
    place = chosen.argsort(stable=True).argsort().to(parts[0].norms.device)
    return ClippedBatch(
        torch.cat([part.norms for part in parts])[place],
        clip,
        torch.cat([part.loss for part in parts])[place],
    )


def put(place: Tensor, part: Tensor, fresh: bool) -> None:
    """A part of a sum into float64 ``place``, overwritten if ``fresh``, else added to."""
    if fresh:
        place.copy_(part)
    else:
        place.add_(part)


def add_rows(place: Tensor, rows: Tensor, factor: Tensor, fresh: bool) -> None:
    """sum_i factor_i rows_i of rows (n, k) into ``place`` (k,), in the factors' type.

    In float32 there are at most :data:`TOGETHER`.
    """
    if factor.dtype == torch.float64 and rows.dtype == torch.float32 and rows.device.type == "cpu":
        if fresh:
            place.zero_()
        from sordino.training.perexample import loops

        loops.add_rows(rows.contiguous().numpy(), factor.numpy(), place.numpy())
        return
    put(place, torch.mv(rows.to(factor.dtype).t(), factor), fresh)


def alone(rows: Tensor) -> Iterator[Tensor]:
    """Rows (n, d), one (1, d) after another, each in memory of its own: a library's product of
    several rows rounds a row by its place.

    >>> [tuple(row.shape) for row in alone(torch.zeros(3, 2))]
    [(1, 2), (1, 2), (1, 2)]
    """
    return (rows[i : i + 1].clone() for i in range(len(rows)))


def kept(keep: Tensor, numbers: Tensor) -> Tensor:
    """``numbers`` (n, ...) where ``keep`` (n,), else zeros: zero times infinity is not zero."""
    there = keep.view(-1, *[1] * (numbers.ndim - 1))
    return torch.where(there, numbers, numbers.new_zeros(()))


def finite(norms: Tensor) -> Tensor:
    """Which examples contribute (n,); NaN does not."""
    return norms <= LONGEST


def root(squared: Tensor) -> Tensor:
    """Norms (n,) of squares (n,), infinite where an example cannot contribute."""
    norms = squared.sqrt()
    return torch.where(finite(norms), norms, math.inf)


def rows_of(expected: float, most: int) -> int:
    """Rows of a piece for an ``expected`` batch, at most ``most``, for memory, if that is a vector.

    One piece holds nine Poisson batches of ten, but for expected batches of 83 to 96. Larger ones
    are cut into leaves of 48 to 96 examples
    (:func:`~sordino.training.perexample.clipping.leaves`), a piece each.

    >>> [rows_of(expected, 1000) for expected in (0.5, 12, 64, 5000)], rows_of(64, 40)
    ([32, 32, 96, 96], 32)
    """
    wanted = VECTOR * math.ceil((expected + 1.5 * math.sqrt(expected)) / VECTOR)
    return max(min(wanted, TOGETHER, most - most % VECTOR), VECTOR)


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
