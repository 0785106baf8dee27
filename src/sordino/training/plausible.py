r"""Lengths of honest answers, exceeded once in 10^9.

A client's gradients are sums of contributions of length at most C over Poisson samples, with noise:

    || sum_j ( sum_{s in B_j} v_s + z_j ) ||  <=  C sum_j |B_j|  +  || sum_j z_j ||

The sizes of tau batches add up to a Binomial(tau n, q), which exceeds its mean by more than

    L/3 + sqrt( (L/3)^2 + 2 L tau n q (1 - q) ),      L = ln(1/chance),

with at most that chance (Bernstein's inequality), and is at most tau n. In a public order their
sizes are bounded (:meth:`~sordino.training.passes.Passes.most`). The mechanism says how long
the noise can be (:class:`~sordino.mechanisms.gaussian.Tailed`); one that does not is not bounded.

What is longer was not computed as agreed, or by a chance below 10^-9. What is shorter proves
nothing: an answer of that length may point anywhere.

Whatever was agreed, a model takes no answer of more than :data:`LONGEST`: with one that is much
longer, its scores are not finite in single precision any more, or no frame carries it, and honest
sites would be taken for the culprits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sordino.base.message import Vector
from sordino.mechanisms.gaussian import Bounded, Tailed

CHANCE = 1e-9
ROUNDING = 1e-3
"""Relative room for the rounding of float32."""
LONGEST, SENDABLE = 1e8, 1e19
"""Length of an answer that a model takes, and of a model whose square is finite in float32."""


@dataclass(frozen=True, slots=True)
class Length:
    """The length of an answer, and the longest plausible one.

    Attributes:
        found: Euclidean length of what it says.
        most: what an honest answer exceeds with a chance of at most 10^-9.
    """

    found: float
    most: float

    @property
    def plausible(self) -> bool:
        """True where it may be honest."""
        return self.found <= self.most


def bearable(growth: float) -> float:
    """The length of an answer that a model takes, where answers of length 1 could make the model
    ``growth`` long in a whole run.
    """
    return min(LONGEST, 0.5 * SENDABLE / growth) if growth > 0.0 else LONGEST


def length(vector: Vector, start: Vector | None = None) -> float:
    """||vector - start|| of vectors (d,); what float32 loses is less than :data:`ROUNDING`."""
    with np.errstate(over="ignore"):
        moved = vector if start is None else vector - start
        return math.sqrt(float(np.dot(moved, moved)))


def drawn(count: int, rate: float, times: int, chance: float) -> float:
    """Examples in so many Poisson batches that are exceeded with at most this chance."""
    trials, tail = times * count, math.log(1.0 / chance) / 3.0
    spread = tail + math.sqrt(tail**2 + 6.0 * tail * trials * rate * (1.0 - rate))
    return min(trials * rate + spread, float(trials))


def sums(mechanism: Bounded, dimension: int, examples: float, times: int) -> float | None:
    """Length that the total of so many noisy sums of clipped gradients (d,), of so many
    ``examples`` together, exceeds with a chance of at most :data:`CHANCE` / 2; None where the
    mechanism does not say.
    """
    if not isinstance(mechanism, Tailed):
        return None
    noise = mechanism.noise_within(dimension, times, CHANCE / 2.0)
    return (mechanism.longest * examples + noise) * (1.0 + ROUNDING)
