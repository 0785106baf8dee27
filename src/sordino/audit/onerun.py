r"""Lower bounds of epsilon from one run with many canaries.

Each of m canaries is in the run or not, by a fair coin of its own. The adversary guesses some of
the coins, r of them, and is right v times.

**(epsilon, delta)** (Steinke, Nasr, Jagielski 2023, their main theorem). If the run is (epsilon,
delta)-private for each canary, then with W ~ Binomial(r, p), p = e^epsilon / (1 + e^epsilon),

    P(right >= v)  <=  P(W >= v)  +  2 m delta  max over i = 1..v of  P(v - i <= W < v) / i.

**f** (Mahloujifar, Melis, Chaudhuri 2024). Let b(r) be the least probability that an event can have
without a record which has probability r with it, and the other way round. Suppose that
P(right >= v) = alpha. Then the sequences

    h_v = alpha (r - v)/m,         r_v = alpha v/m
    h_i = max(h_{i+1}, b(r_{i+1})),    r_i = r_{i+1} + i/(r - i) (h_i - h_{i+1}),   i = v-1 .. 0

bound from below what guesses of fewer hits must have in probability; where h_0 + r_0 exceeds r/m,
alpha is impossible and so is every larger one. b follows from all that a ledger can say, delta at
every epsilon, and not from one of its points alone:

    b(r)  =  max over epsilon of  e^-epsilon (r - delta(epsilon))
             and  1 - delta(epsilon) - e^epsilon (1 - r).

What is sought is then how much noise the ledger would have to believe in for its curve to be
refuted; and that noise's epsilon at delta is told. It is much tighter.

The first needs nothing but the promise at delta. The second refutes a whole curve; the epsilon that
it tells takes the true curve to be of the ledger's kind.

>>> round(one_run(100, 100, 100, 0.0, 0.05), 4)  # p^100 = 0.05
3.493

References:
    Steinke, Nasr, Jagielski 2023, Privacy Auditing with One (1) Training Run.
    Mahloujifar, Melis, Chaudhuri 2024, Auditing f-Differential Privacy in One Run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sordino.audit.bounds import Scores, bisected, gaussian_epsilon
from sordino.base.errors import StudyError

MOST = 50.0
"""Epsilons above it are not told apart."""
CURVES = 0.75
"""Share of the chance of error that the refutation of a whole curve has: it tells more."""
WIDE = 0.25
"""Share of the canaries that are guessed against (epsilon, delta) alone: of few guesses, the part
with delta would leave nothing.
"""
_STEPS = 24
Other = Callable[[float], float]
"""b."""


def chance(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Return a bound on the chance of v right guesses of r, with m canaries."""
    from scipy.special import bdtr, bdtrc  # type: ignore[import-untyped]

    _checked(m, r, v)
    if v == 0:
        return 1.0
    p = 1.0 / (1.0 + math.exp(-epsilon))
    above = float(bdtrc(v - 1, r, p))
    if delta == 0.0:
        return above
    below = bdtr(np.arange(v), r, p)  # P(W <= 0), ..., P(W <= v - 1)
    # P(v - i <= W < v) for i = 1, ..., v
    parts = below[-1] - np.concatenate([below[:-1][::-1], [0.0]])
    return min(above + 2.0 * m * delta * float((parts / np.arange(1, v + 1)).max()), 1.0)


def one_run(m: int, r: int, v: int, delta: float, alpha: float) -> float:
    """epsilon at ``delta`` that the true one is below with probability at most alpha.

    Args:
        m: canaries.
        r: guesses; which are made must not depend on the coins.
        v: right ones.
        delta: of the promise.
        alpha: in (0, 1).
    """
    return bisected(lambda epsilon: chance(m, r, v, epsilon, delta) <= alpha, MOST)


def gaussian(mu: float) -> Other:
    """b of a Gaussian release whose sensitivity is mu deviations."""
    from scipy.special import ndtr, ndtri

    return lambda r: float(ndtr(ndtri(r) - mu))


def of_curve(epsilons: NDArray[np.float64], deltas: NDArray[np.float64]) -> Other:
    """b of a promise of delta (k,) at each epsilon (k,)."""
    shrunk, grown = np.exp(-epsilons), np.exp(epsilons)

    def least(r: float) -> float:
        own, others = (shrunk * (r - deltas)).max(), (1.0 - deltas - grown * (1.0 - r)).max()
        return max(float(own), float(others), 0.0)

    return least


def refuted(m: int, r: int, v: int, other: Other, alpha: float) -> bool:
    """Return whether v right guesses of r are less probable than alpha here."""
    _checked(m, r, v)
    if v == 0:
        return False
    hit, miss = alpha * v / m, alpha * (r - v) / m
    for i in range(v - 1, -1, -1):
        grown = max(miss, other(hit))
        hit += i / (r - i) * (grown - miss)
        miss = grown
        if hit + miss > r / m:
            return True
    return False


class Family(Protocol):
    """Promises by how much noise there is."""

    def other(self, noise: float) -> Other:
        """b at this noise."""
        ...

    def epsilon(self, noise: float) -> float:
        """epsilon at the delta that is told."""
        ...


@dataclass(frozen=True, slots=True)
class Gaussians:
    """Gaussian releases; ``noise`` is deviation over sensitivity.

    Attributes:
        delta: at which epsilon is told.
    """

    delta: float

    def other(self, noise: float) -> Other:
        return gaussian(1.0 / noise)

    def epsilon(self, noise: float) -> float:
        return gaussian_epsilon(1.0 / noise, self.delta)


def least_noise(refuted_at: Callable[[float], bool]) -> float:
    """The least noise in [1/32, 1e6] that is refuted, where all larger is; infinite if none is."""
    low, high = math.log(1.0 / 32.0), math.log(1e6)
    if not refuted_at(math.exp(high)):
        return math.inf
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if refuted_at(math.exp(middle)) else (middle, high)
    return math.exp(high)


def _checked(m: int, r: int, v: int) -> None:
    if not 0 <= v <= r <= m:
        raise StudyError(f"of {m} canaries, {r} guesses cannot be right {v} times")


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun:
    """The outcome of one run.

    Attributes:
        canaries: m.
        guesses, right: those behind ``low``.
        low: lower bound of epsilon from the promise of (epsilon, delta) alone.
        low_curve: the same if the run's trade-off is of the family that was asked about.
        alpha: either of the two is wrong with at most this probability.
    """

    canaries: int
    guesses: int
    right: int
    low: float
    low_curve: float
    alpha: float


def guessed(scores: Scores, coins: NDArray[np.bool_], r: int) -> int:
    """Return how many of r guesses are right: "in" for the r/2 highest scores, else "out"."""
    order = np.argsort(scores, kind="stable")
    lowest, highest = order[: r // 2], order[len(order) - (r - r // 2) :]
    return int((~coins[lowest]).sum() + coins[highest].sum())


def audited(
    scores: Scores,
    coins: NDArray[np.bool_],
    delta: float,
    alpha: float,
    family: Family,
    shares: Sequence[float],
) -> OneRun:
    """Lower bounds from scores (m,) of canaries that were in where ``coins`` (m,) say so.

    Args:
        scores: higher where a canary seems to be in.
        coins: fair and independent, and not used for the scores.
        delta: at which epsilons are told.
        alpha: divided among both bounds and the numbers of guesses.
        family: of promises; the one with the least noise that is refuted is told.
        shares: parts of m that are tried as r against curves, fixed in advance.
    """
    m, each = len(scores), CURVES * alpha / len(shares)
    numbers = [max(int(share * m), 1) for share in shares]
    tried = [(r, guessed(scores, coins, r)) for r in numbers]
    wide = max(int(WIDE * m), 1)
    right = guessed(scores, coins, wide)

    def any_refutes(noise: float) -> bool:
        other = family.other(noise)
        return any(refuted(m, r, v, other, each) for r, v in tried)

    noise = least_noise(any_refutes)
    return OneRun(
        canaries=m,
        guesses=wide,
        right=right,
        low=one_run(m, wide, right, delta, (1.0 - CURVES) * alpha),
        low_curve=0.0 if math.isinf(noise) else family.epsilon(noise),
        alpha=alpha,
    )
