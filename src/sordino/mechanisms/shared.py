r"""Noise in whole numbers that several clients share, on a sum that is opened modulo 2^bits.

Every client i of n adds its part of the noise before anybody adds anything up:

    v_i = round_g(clamp(S_i, R_i)) + round(s_i Z_i)   modulo 2^bits,      Z_i standard normal,

and only sum_i v_i modulo 2^bits is opened. It is lifted to numbers in [-2^(bits-1), 2^(bits-1)) and
multiplied by the step g, a power of two. S_i is a vector of which one record moves at most C (L2).

**What a record moves.** Clamping is a contraction. Of d numbers, with u uniform in [0, 1)^d,

    nearest:      | round(a/g) - round(b/g) |  <=  C/g + sqrt(d)
    stochastic:   | floor(a/g + u) - floor(b/g + u) |^2
                      <=  (C/g)^2 + d/4 + sqrt(2 ln(1/beta)) (C/g + sqrt(d)/2)

the second but for a chance of beta = 2^-100 (Kairouz, Liu, Steinke 2021, proposition 25, here for
the difference, which is itself a stochastic rounding of (a - b)/g: proof in docs/mathematics.md).
The smaller bound counts; C' is that bound in steps, with a margin for products in float64.

**Its price** is booked for H honest contributions: s_i = sigma C' / sqrt(H). The sum of H numbers
round(s_i Z_i) has, at every whole number and within a factor of 1 +- e,

    e <= (1 + 2.01 exp(-pi^2 s_i^2))^(H-1) - 1,

the probabilities of round(N(0, (sigma C')^2) + U_2 + ... + U_H) with U_j uniform on [-1/2, 1/2]
(docs/mathematics.md). So an opened sum is post-processing of a continuous Gaussian mechanism of
multiplier sigma on whole vectors: subsampling and adaptive composition are priced as for that one.
More contributions, and whatever dishonest ones add, are independent of it: post-processing again.
With s_i >= 4, e is below (H - 1) 10^-68, and T releases of d numbers add less to delta than 10^-40
for any T d H below 10^27. That, beta and the sampler's 2^-95 a number (:mod:`.draws`) are below
the last digit of every delta of use, and are not booked (:meth:`SharedNoise.unbooked`).

**Overflow** changes no price: reduction modulo 2^bits is post-processing. It would spoil the model.
|sum| is at most sum_i R_i/g + 3n/2 + |N(0, n s_i^2)|, and g is the finest step for which all sums
of a run stay below 2^(bits-1) but for a chance of 2^-40.

Shapes: vectors (d,), float64; residues (d,), uint64 below 2^bits. C and R in units of the vector.

>>> grid = SharedNoise(most=(100.0,) * 10, dimension=1000, honest=10, rounds=100).grid(1.0, 2.0)
>>> grid.step == 2.0**-20, grid.rounding, round(grid.deviation)
(True, 'stochastic', 663181)

References:
    Kairouz, Liu, Steinke 2021, The Distributed Discrete Gaussian Mechanism for Federated Learning
    with Secure Aggregation.
    Bonawitz et al. 2017, Practical Secure Aggregation for Privacy-Preserving Machine Learning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.random import Generator

from sordino.base.arrays import Floats, Ints
from sordino.base.errors import StudyError
from sordino.base.residues import Residues, lifted, reduced

if TYPE_CHECKING:  # whoever only plans a sum does not wait for torch
    from torch import Tensor

Rounding = Literal["nearest", "stochastic"]

FEWEST_BITS, MOST_BITS = 16, 63
SMALLEST = 4.0
"""Smallest s_i: sums of rounded Gaussians are then Gaussians, but for e (see above)."""
OVERFLOW = -40.0
"""log2 of the chance that any number of any sum of a run wraps."""
LOG_BETA = -100.0 * math.log(2.0)
"""ln beta."""
_LARGEST = 2.0**20  # of s_i: 13.4 s_i, the most that the sampler draws, is exact in float32
_FARTHEST = 2.0**51  # of R / g: exact in float64, with bits to spare
_FINEST = 2.0**-32  # g / C
_SURE = -1000.0  # smaller chances are not told apart
_COARSEST = 2.0  # what rounding may multiply the noise by


def moved(length: float, dimension: int) -> tuple[float, Rounding]:
    """Return how far a record moves a rounded vector (d,) of which it moves ``length``, both in
    steps.

    The smaller of both bounds, and which rounding it holds for.
    """
    root = math.sqrt(dimension)
    nearest = length + root
    spread = math.sqrt(-2.0 * LOG_BETA) * (length + 0.5 * root)
    stochastic = math.sqrt(length**2 + 0.25 * dimension + spread)
    return (nearest, "nearest") if nearest <= stochastic else (stochastic, "stochastic")


def departure(deviation: float, honest: int) -> float:
    """e: by which factor 1 +- e the sum of noises differs from what is booked, at any number."""
    return math.expm1((honest - 1) * math.log1p(2.01 * math.exp(-((math.pi * deviation) ** 2))))


@dataclass(frozen=True, slots=True)
class SharedGrid:
    """The grid of one round's contributions, and the noise that each adds.

    Attributes:
        step: g, a power of two (units of the vector).
        deviation: s_i, of one contribution's noise, in steps.
        reach: R_i of every client, in steps, whole.
        bits: of the modulus 2^bits.
        rounding: of contributions.
        moved: C', what a record moves a rounded contribution by, in steps.
        growth: C' over C / g: what rounding multiplies the noise by.
        overflow: log2 of a bound of the chance that any number of any sum of the run wraps.
    """

    step: float
    deviation: float
    reach: tuple[float, ...]
    bits: int
    rounding: Rounding
    moved: float
    growth: float
    overflow: float

    def contribution(
        self,
        client: int,
        total: Tensor | Floats,
        noise: Generator,
        rounding: Generator,
        weight: float = 1.0,
    ) -> Residues:
        """Residues (d,) of ``weight`` times a bounded vector (d,), with this client's noise.

        What is no number counts as zero. ``total`` stays as it is.

        Args:
            client: whose R_i holds.
            total: of which one record moves at most C.
            noise: where the noise is drawn from; what it gives protects ``total``.
            rounding: where u is drawn from.
            weight: w_i in [0, 1].
        """
        exact = np.asarray(total, dtype=np.float64)
        whole = self.rounded(exact * weight, self.reach[client], rounding)
        return reduced(whole + self.drawn(exact.size, noise), self.bits)

    def rounded(self, vector: Floats, reach: float, rng: Generator) -> Ints:
        """Whole steps (d,) of a vector (d,), clamped to +-``reach`` steps."""
        most = reach * self.step  # exact
        steps = np.clip(np.nan_to_num(vector, nan=0.0), -most, most) / self.step
        if self.rounding == "nearest":
            return np.rint(steps).astype(np.int64)
        below = np.floor(steps)
        from sordino.mechanisms.grid import random_words

        # 53 bits of a word each; a generator that encrypts hands out words in bulk, not numbers
        u = (random_words(steps.size, rng) >> np.uint64(11)) * 2.0**-53
        return below.astype(np.int64) + (u < steps - below)

    def drawn(self, dimension: int, rng: Generator) -> Ints:
        """Noise round(s_i Z) (d,) by the exact sampler."""
        import torch

        from sordino.mechanisms.grid import Grid

        nothing = torch.zeros(dimension, dtype=torch.float64)
        return Grid(1.0, self.deviation).release(nothing, rng).numpy().astype(np.int64)

    def opened(self, residues: Residues) -> Floats:
        """The sum (d,) that residues (d,) stand for, in units of the vector."""
        return lifted(residues, self.bits).astype(np.float64) * self.step


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNoise:
    """The public facts of a whole run: everything that a round's grid follows from.

    Attributes:
        most: of every client, the most that a number of its contribution can be, in units of C: R_i
            is that times C.
        dimension: d.
        honest: H, contributions whose noise nobody knows.
        rounds: T, for the chance of overflow.
        bits: of the modulus 2^bits.
    """

    most: tuple[float, ...]
    dimension: int
    honest: int
    rounds: int
    bits: int = 32

    def grid(self, clip: float, noise_multiplier: float) -> SharedGrid:
        """The finest grid that a round with this C and sigma can have.

        Raises:
            StudyError: where every grid that the modulus can hold is so coarse that the noise's
                sum is no Gaussian, or that rounding would double the noise.
        """
        return _grid(self, clip, noise_multiplier)

    def unbooked(self, grid: SharedGrid) -> float:
        """The chance that some sum of a run is not as its price assumes, samplers aside."""
        sums = 2.0 * self.rounds * self.dimension * departure(grid.deviation, self.honest)
        return self.rounds * math.exp(LOG_BETA) + sums


@lru_cache(maxsize=1024)  # schedules ask for many
def _grid(rule: SharedNoise, clip: float, noise_multiplier: float) -> SharedGrid:
    found = _finest(rule, clip, noise_multiplier, rule.bits)
    if found is not None:
        return found
    for bits in range(rule.bits + 1, MOST_BITS + 1):
        if _finest(rule, clip, noise_multiplier, bits) is not None:
            raise StudyError(
                f"privacy.bits = {rule.bits}: the modulus is too small for sums of "
                f"{len(rule.most)} clients and their noise; {bits} bits are enough"
            )
    raise StudyError(
        f"clip = {clip:g} and noise_multiplier = {noise_multiplier:g} fit no modulus of up to "
        f"{MOST_BITS} bits: a client's part of the noise would be below {SMALLEST:g} steps of the "
        "grid, or rounding would double it"
    )


def _finest(
    rule: SharedNoise, clip: float, noise_multiplier: float, bits: int
) -> SharedGrid | None:
    """The finest grid within this modulus; None if none is fine enough."""
    share = noise_multiplier * clip / math.sqrt(rule.honest)
    if not (share > 0.0 and 2.0**-900 < clip < 2.0**900 and 2.0**-900 < share < 2.0**900):
        return None
    step = 2.0 ** math.floor(math.log2(max(share / _LARGEST, clip * _FINEST)))
    while clip / step >= 2.0**-20:
        made = _made(rule, clip, noise_multiplier, bits, step)
        if made.growth > _COARSEST or made.deviation < SMALLEST:
            return None  # and a coarser one has a larger part of it, and less noise in steps
        fits = made.overflow <= OVERFLOW and max(made.reach) <= _FARTHEST
        if fits and made.deviation <= _LARGEST:
            return made
        step *= 2.0
    return None


def _made(
    rule: SharedNoise, clip: float, noise_multiplier: float, bits: int, step: float
) -> SharedGrid:
    reach = tuple(float(math.ceil(clip * each / step)) for each in rule.most)
    # Products with weights are off by 2^-53 of R, and u has 53 bits: twice for two vectors.
    slack = math.sqrt(rule.dimension) * (max(reach) + 1.0) * 2.0**-51
    bound, rounding = moved(clip / step + slack, rule.dimension)
    # a few units in the last place more, so that rounding here never makes the noise too small
    deviation = noise_multiplier * bound / math.sqrt(rule.honest) * (1.0 + 2.0**-48)
    return SharedGrid(
        step=step,
        deviation=deviation,
        reach=reach,
        bits=bits,
        rounding=rounding,
        moved=bound,
        growth=bound * step / clip,
        overflow=_overflow(rule, reach, bits, deviation),
    )


def _overflow(rule: SharedNoise, reach: Sequence[float], bits: int, deviation: float) -> float:
    """log2 of a bound of the chance of any overflow: d T P(|N(0, n s_i^2)| > what is left)."""
    n = len(rule.most)
    left = 2.0 ** (bits - 1) - 1.0 - math.fsum(reach) - 1.5 * n
    if left <= 0.0:
        return 0.0
    # P(|N(0, 1)| > z) <= exp(-z^2 / 2)
    tail = -0.5 * (left / (math.sqrt(n) * deviation)) ** 2 / math.log(2.0)
    chance = math.log2(max(rule.dimension, 1)) + math.log2(rule.rounds) + tail
    return min(max(chance, _SURE), 0.0)
