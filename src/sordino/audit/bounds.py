r"""Lower bounds of epsilon from guesses, at a stated confidence: in two worlds, and in one run.

**Two worlds.** An adversary sees a release and says whether a record was in it. Over n releases
with the record and n without, it is right k_1 times with it and wrong k_0 times without it. Clopper
and Pearson's bounds (1934) hold for any n: the share of hits p_1 is at least the alpha quantile of
Beta(k_1, n - k_1 + 1), the share of false alarms p_0 at most the 1 - alpha quantile of
Beta(k_0 + 1, n - k_0). Both hold together with probability 1 - 2 alpha. A release that keeps its
promise has, for every way of guessing (Kairouz, Oh, Viswanath 2015; Dong, Roth, Su 2022),

    any           p_1 <= e^epsilon p_0 + delta,    1 - p_0 <= e^epsilon (1 - p_1) + delta
    pure          the same with delta = 0
    Gaussian      p_1 <= Phi(Phi^-1(p_0) + mu),    mu = sensitivity / deviation

and whatever epsilon or mu contradicts the bounds of p_0 and p_1 is refuted. The first needs no
knowledge of the mechanism and more releases than 1/delta; the others refute a stated mechanism,
with far fewer releases. A mu is told as the epsilon that it has at delta (Balle and Wang 2018,
theorem 8):

    delta  =  Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

The threshold of the guess is chosen on other releases than those that are counted.

>>> round(gaussian_epsilon(1.0, 1e-5), 3)
4.377
>>> [round(bound, 4) for bound in (at_least(0, 100, 0.05), at_most(0, 100, 0.05))]
[0.0, 0.0295]

**One run** with many canaries. Each of m canaries is in the run or not, by a fair coin of its own.
The adversary guesses some of the coins, r of them, and is right v times.

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
    Clopper, Pearson 1934, The Use of Confidence or Fiducial Limits Illustrated in the Case of the
    Binomial. Kairouz, Oh, Viswanath 2015, The Composition Theorem for Differential Privacy. Balle,
    Wang 2018, Improving the Gaussian Mechanism for Differential Privacy. Dong, Roth, Su 2022,
    Gaussian Differential Privacy. Nasr et al. 2023, Tight Auditing of Differentially Private
    Machine Learning. Steinke, Nasr, Jagielski 2023, Privacy Auditing with One (1) Training Run.
    Mahloujifar, Melis, Chaudhuri 2024, Auditing f-Differential Privacy in One Run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from sordino.base.arrays import Array, Bools, Floats
from sordino.base.errors import StudyError
from sordino.privacy import loss
from sordino.privacy.pure import Kind

Scores = Floats
Curve = Literal["any", "pure", "gaussian"]
"""Which trade-off between hits and false alarms a release promises."""

CANDIDATES = 64
"""Thresholds that are tried."""
MOST = 50.0
"""Epsilons of one run above it are not told apart."""
CURVES = 0.75
"""Share of the chance of error that the refutation of a whole curve has: it tells more."""
WIDE = 0.25
"""Share of the canaries that are guessed against (epsilon, delta) alone: of few guesses, the part
with delta would leave nothing.
"""
HELD = 0.25
"""Share of the releases in two worlds that choose the threshold, and are not counted."""
TradeOff = Callable[[float], float]
"""b."""


def at_least(count: int, of: int, alpha: float) -> float:
    """A share that the true one is below with probability at most alpha, after ``count`` of n."""
    from scipy.special import betaincinv  # type: ignore[import-untyped]

    return 0.0 if count == 0 else float(betaincinv(count, of - count + 1, alpha))


def at_most(count: int, of: int, alpha: float) -> float:
    """A share that the true one is above with probability at most alpha, after ``count`` of n."""
    return 1.0 - at_least(of - count, of, alpha)


def bisected(refuted: Callable[[float], bool], high: float, steps: int = 60) -> float:
    """The largest number in [0, high] that is refuted, where all smaller ones are; 0 if none is."""
    low = 0.0
    for _ in range(steps):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def gaussian_epsilon(mu: float, delta: float) -> float:
    """epsilon of a Gaussian release whose sensitivity is mu deviations, at delta."""
    return loss.epsilon(((Kind(1.0, sigma=1.0 / mu), 1),), delta) if mu > 0.0 else 0.0


def gaussian_mu(epsilon: float, delta: float) -> float:
    """mu of the Gaussian release that has this epsilon at delta."""
    return bisected(
        lambda mu: float(loss.gaussian_delta(mu, epsilon)) <= delta, 10.0 + 2.0 * epsilon
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of right and wrong guesses.

    Attributes:
        hits: guesses of "in" among ``inside`` releases with the record.
        alarms: guesses of "in" among ``outside`` releases without it.
        inside, outside: how many releases there were.
    """

    hits: int
    inside: int
    alarms: int
    outside: int

    def bound(self, curve: Curve, delta: float, alpha: float) -> float:
        """epsilon at ``delta`` that the true one is below with probability at most alpha."""
        if curve == "gaussian":
            return gaussian_epsilon(self.mu(alpha), delta)
        low, high = self._rates(alpha)
        least, found = 0.0 if curve == "pure" else delta, 0.0
        # both inequalities share the two bounds, so the better one costs no more
        for above, below in ((low, high), (1.0 - high, 1.0 - low)):
            if above > least and above - least > below:
                found = max(found, math.log((above - least) / below))
        return found

    def mu(self, alpha: float) -> float:
        """mu of a Gaussian release, likewise; 0 if nothing is told."""
        from scipy.special import ndtri

        low, high = self._rates(alpha)
        if low <= 0.0 or high >= 1.0:
            return 0.0
        return max(float(ndtri(low) - ndtri(high)), 0.0)

    def _rates(self, alpha: float) -> tuple[float, float]:
        """At least this rate of hits, and at most this rate of false alarms."""
        low = at_least(self.hits, self.inside, alpha / 2.0)
        return low, at_most(self.alarms, self.outside, alpha / 2.0)


def counted(inside: Scores, outside: Scores, threshold: float) -> Counts:
    """Guess "in" where a score is above the threshold."""
    return Counts(
        int((inside > threshold).sum()), len(inside), int((outside > threshold).sum()), len(outside)
    )


def best_threshold(
    inside: Scores, outside: Scores, curve: Curve, delta: float, alpha: float
) -> float:
    """The threshold (of some quantiles of all scores) with the highest bound on these releases."""
    both = np.concatenate([inside, outside])
    shares = 0.5 * (1.0 - np.cos(np.linspace(0.0, np.pi, CANDIDATES)))  # denser at the ends
    found: Array = np.unique(np.quantile(both, shares, method="inverted_cdf"))
    bounds = [counted(inside, outside, t).bound(curve, delta, alpha) for t in found]
    return float(found[int(np.argmax(bounds))])


def two_worlds(inside: Scores, outside: Scores, curve: Curve, delta: float, alpha: float) -> float:
    """A lower bound of epsilon from scores (n,) of releases with and without a record.

    Args:
        inside, outside: scores of independent releases; higher where the record seems to be in.
        curve: what the mechanism promises.
        delta: at which epsilon is told; not used by "pure".
        alpha: the bound is wrong with at most this probability.

    Raises:
        StudyError: for fewer than eight releases in a world, or scores that are no numbers.
    """
    if min(len(inside), len(outside)) < 8:
        raise StudyError("an audit in two worlds needs at least 8 releases in each")
    if np.isnan(inside).any() or np.isnan(outside).any():
        raise StudyError("a score of an audit is not a number")
    first, second = int(len(inside) * HELD), int(len(outside) * HELD)
    threshold = best_threshold(inside[:first], outside[:second], curve, delta, alpha)
    return counted(inside[first:], outside[second:], threshold).bound(curve, delta, alpha)


def chance(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Return a bound on the chance of v right guesses of r, with m canaries."""
    from scipy.special import bdtr, bdtrc

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


def of_curve(epsilons: Floats, deltas: Floats) -> TradeOff:
    """b of a promise of delta (k,) at each epsilon (k,)."""
    shrunk, grown = np.exp(-epsilons), np.exp(epsilons)

    def least(r: float) -> float:
        own, others = (shrunk * (r - deltas)).max(), (1.0 - deltas - grown * (1.0 - r)).max()
        return max(float(own), float(others), 0.0)

    return least


def refuted(m: int, r: int, v: int, other: TradeOff, alpha: float) -> bool:
    """Return whether v right guesses of r are less probable than alpha here."""
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


def least_noise(refuted_at: Callable[[float], bool]) -> float:
    """The least noise in [1/32, 1e6] that is refuted, where all larger is; infinite if none is."""
    high = math.log(1e6)
    if not refuted_at(math.exp(high)):
        return math.inf
    width = high - math.log(1.0 / 32.0)
    return math.exp(high - bisected(lambda less: refuted_at(math.exp(high - less)), width, 24))


class OneRun(NamedTuple):
    """Lower bounds from one run; either of them is wrong with at most the stated probability.

    Attributes:
        low: from the promise of (epsilon, delta) alone.
        low_curve: the same if the run's trade-off is of the family that was asked about.
    """

    low: float
    low_curve: float


def guessed(scores: Scores, coins: Bools, r: int) -> int:
    """Return how many of r guesses are right: "in" for the r/2 highest scores, else "out"."""
    order = np.argsort(scores, kind="stable")
    lowest, highest = order[: r // 2], order[len(order) - (r - r // 2) :]
    return int((~coins[lowest]).sum() + coins[highest].sum())


def audited(
    scores: Scores,
    coins: Bools,
    delta: float,
    alpha: float,
    curve: Callable[[float], TradeOff],
    epsilon: Callable[[float], float],
    shares: Sequence[float],
) -> OneRun:
    """Lower bounds from scores (m,) of canaries that were in where ``coins`` (m,) say so.

    Args:
        scores: higher where a canary seems to be in.
        coins: fair and independent, and not used for the scores.
        delta: at which epsilons are told.
        alpha: divided among both bounds and the numbers of guesses.
        curve: b of promises by how much noise there is; the least noise that is refuted is told.
        epsilon: of these promises, at ``delta``.
        shares: parts of m that are tried as r against curves, fixed in advance.
    """
    m, each = len(scores), CURVES * alpha / len(shares)
    numbers = [max(int(share * m), 1) for share in shares]
    tried = [(r, guessed(scores, coins, r)) for r in numbers]
    wide = max(int(WIDE * m), 1)
    right = guessed(scores, coins, wide)

    def any_refutes(noise: float) -> bool:
        other = curve(noise)
        return any(refuted(m, r, v, other, each) for r, v in tried)

    noise = least_noise(any_refutes)
    low = one_run(m, wide, right, delta, (1.0 - CURVES) * alpha)
    return OneRun(low, 0.0 if math.isinf(noise) else epsilon(noise))
