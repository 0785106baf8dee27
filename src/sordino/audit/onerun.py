r"""Lower bounds of epsilon from one run with many canaries.

Each of m canaries is in the run or not, by a fair coin of its own. The adversary guesses some of
the coins, r of them, and is right v times.

**(epsilon, delta)** (Steinke, Nasr, Jagielski 2023, theorem 5.2). If the run is (epsilon,
delta)-private for each canary, then with W ~ Binomial(r, p), p = e^epsilon / (1 + e^epsilon),

    P(right >= v)  <=  P(W >= v)  +  2 m delta  max over i = 1..v of  P(v - i <= W < v) / i.

**f** (Mahloujifar, Melis, Chaudhuri 2024, theorem 9 and algorithm 2). If the run's trade-off is no
worse than that of a Gaussian release with mu, then no event of probability r on one side has less
than b(r) = Phi(Phi^-1(r) - mu) on the other. Suppose P(right >= v) = alpha. Then the sequences

    h_v = alpha (r - v)/m,         r_v = alpha v/m
    h_i = max(h_{i+1}, b(r_{i+1})),    r_i = r_{i+1} + i/(r - i) (h_i - h_{i+1}),   i = v-1 .. 0

bound from below what guesses of fewer hits must have in probability; where h_0 + r_0 exceeds r/m,
alpha is impossible and so is every larger one. It is much tighter: about what the same canaries
would tell if each had runs of its own.

The first needs nothing but the promise. The second needs that the promise be a Gaussian's: exact
for unsampled Gaussian steps, near for many sampled ones.

>>> round(one_run(100, 100, 100, 0.0, 0.05), 4)  # p^100 = 0.05
3.493
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.audit.bounds import Scores, bisected, gaussian_epsilon
from sordino.errors import StudyError

MOST = 50.0
"""Epsilons above it are not told apart."""
MOST_MU = 12.0


def chance(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """How probable v right guesses of r are at most, with m canaries and this promise."""
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


def refuted(m: int, r: int, v: int, mu: float, alpha: float) -> bool:
    """Whether v right guesses of r are less probable than alpha under a Gaussian's trade-off."""
    from scipy.special import ndtr, ndtri

    _checked(m, r, v)
    if v == 0:
        return False
    hit, miss = alpha * v / m, alpha * (r - v) / m
    for i in range(v - 1, -1, -1):
        grown = max(miss, float(ndtr(ndtri(hit) - mu)))
        hit += i / (r - i) * (grown - miss)
        miss = grown
        if hit + miss > r / m:
            return True
    return False


def one_run_mu(m: int, r: int, v: int, alpha: float) -> float:
    """mu of a Gaussian trade-off that the true one is below with probability at most alpha."""
    return bisected(lambda mu: refuted(m, r, v, mu, alpha), MOST_MU)


def _checked(m: int, r: int, v: int) -> None:
    if not 0 <= v <= r <= m:
        raise StudyError(f"of {m} canaries, {r} guesses cannot be right {v} times")


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun:
    """What one run told.

    Attributes:
        canaries: m.
        guesses, right: of the number of guesses with the highest bound.
        low: lower bound of epsilon from the promise of (epsilon, delta) alone.
        low_gaussian: the same if the run's trade-off is a Gaussian's.
        alpha: each of the two is wrong with at most this probability.
    """

    canaries: int
    guesses: int
    right: int
    low: float
    low_gaussian: float
    alpha: float


def guessed(scores: Scores, coins: NDArray[np.bool_], r: int) -> int:
    """How often r guesses are right: "in" for the r/2 highest scores, "out" for the lowest."""
    order = np.argsort(scores, kind="stable")
    lowest, highest = order[: r // 2], order[len(order) - (r - r // 2) :]
    return int((~coins[lowest]).sum() + coins[highest].sum())


def audited(
    scores: Scores,
    coins: NDArray[np.bool_],
    delta: float,
    alpha: float,
    shares: Sequence[float] = (0.02, 0.05, 0.1),
) -> OneRun:
    """Lower bounds from scores (m,) of canaries that were in where ``coins`` (m,) say so.

    Args:
        scores: higher where a canary seems to be in.
        coins: fair and independent, and not used for the scores.
        delta: at which epsilons are told.
        alpha: divided among the numbers of guesses.
        shares: parts of m that are tried as r, fixed in advance.
    """
    m, each = len(scores), alpha / len(shares)
    numbers = [max(int(share * m), 1) for share in shares]
    tried = [(r, guessed(scores, coins, r)) for r in numbers]
    plain = [one_run(m, r, v, delta, each) for r, v in tried]
    mus = [one_run_mu(m, r, v, each) for r, v in tried]
    best = int(np.argmax(mus)) if max(mus) > 0.0 else int(np.argmax(plain))
    return OneRun(
        canaries=m,
        guesses=tried[best][0],
        right=tried[best][1],
        low=max(plain),
        low_gaussian=gaussian_epsilon(max(mus), delta),
        alpha=alpha,
    )
