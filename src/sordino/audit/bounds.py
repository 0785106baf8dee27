r"""Lower bounds of epsilon from guesses in two worlds, at a stated confidence.

An adversary sees a release and says whether a record was in it. Over n releases with the record and
n without, it is right k_1 times with it and wrong k_0 times without it. Clopper and Pearson's
bounds (1934) hold for any n: the share of hits p_1 is at least the alpha quantile of
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

References:
    Clopper, Pearson 1934, The Use of Confidence or Fiducial Limits Illustrated in the Case of the
    Binomial. Kairouz, Oh, Viswanath 2015, The Composition Theorem for Differential Privacy. Balle,
    Wang 2018, Improving the Gaussian Mechanism for Differential Privacy. Dong, Roth, Su 2022,
    Gaussian Differential Privacy. Nasr et al. 2023, Tight Auditing of Differentially Private
    Machine Learning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sordino.base.errors import StudyError

Scores = NDArray[np.float64]
Curve = Literal["any", "pure", "gaussian"]
"""Which trade-off between hits and false alarms a release promises."""

CANDIDATES = 64
"""Thresholds that are tried."""
_STEPS = 60  # of a bisection: to the last bit that matters


def at_least(count: int, of: int, alpha: float) -> float:
    """A share that the true one is below with probability at most alpha, after ``count`` of n."""
    from scipy.special import betaincinv  # type: ignore[import-untyped]

    return 0.0 if count == 0 else float(betaincinv(count, of - count + 1, alpha))


def at_most(count: int, of: int, alpha: float) -> float:
    """A share that the true one is above with probability at most alpha, after ``count`` of n."""
    return 1.0 - at_least(of - count, of, alpha)


def bisected(refuted: Callable[[float], bool], high: float) -> float:
    """The largest number in [0, high] that is refuted, where all smaller ones are; 0 if none is."""
    low = 0.0
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta of a Gaussian release whose sensitivity is mu deviations, at epsilon."""
    from scipy.special import log_ndtr, ndtr

    if mu <= 0.0:
        return 0.0
    second = epsilon + float(log_ndtr(-mu / 2.0 - epsilon / mu))
    return float(ndtr(mu / 2.0 - epsilon / mu)) - math.exp(min(second, 0.0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """epsilon of a Gaussian release whose sensitivity is mu deviations, at delta."""
    if mu <= 0.0:
        return 0.0
    # beyond it, Phi(mu/2 - epsilon/mu) alone is below delta
    high = mu * (mu / 2.0 + math.sqrt(2.0 * math.log(1.0 / delta)))
    return bisected(lambda epsilon: gaussian_delta(mu, epsilon) > delta, high)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """mu of the Gaussian release that has this epsilon at delta."""
    return bisected(lambda mu: gaussian_delta(mu, epsilon) <= delta, 10.0 + 2.0 * epsilon)


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
        return (
            gaussian_epsilon(self.mu(alpha), delta)
            if curve == "gaussian"
            else self._ratio(0.0 if curve == "pure" else delta, alpha)
        )

    def mu(self, alpha: float) -> float:
        """mu of a Gaussian release, likewise; 0 if nothing is told."""
        from scipy.special import ndtri

        low = at_least(self.hits, self.inside, alpha / 2.0)
        high = at_most(self.alarms, self.outside, alpha / 2.0)
        if low <= 0.0 or high >= 1.0:
            return 0.0
        return max(float(ndtri(low) - ndtri(high)), 0.0)

    def _ratio(self, delta: float, alpha: float) -> float:
        """The better of both inequalities; they share the two bounds, so neither costs more."""
        low = at_least(self.hits, self.inside, alpha / 2.0)
        high = at_most(self.alarms, self.outside, alpha / 2.0)
        found = 0.0
        for above, below in ((low, high), (1.0 - high, 1.0 - low)):
            if above > delta and above - delta > below:
                found = max(found, math.log((above - delta) / below))
        return found


def counted(inside: Scores, outside: Scores, threshold: float) -> Counts:
    """Guess "in" where a score is above the threshold."""
    return Counts(
        int((inside > threshold).sum()),
        len(inside),
        int((outside > threshold).sum()),
        len(outside),
    )


def best_threshold(
    inside: Scores, outside: Scores, curve: Curve, delta: float, alpha: float
) -> float:
    """The threshold (of some quantiles of all scores) with the highest bound on these releases."""
    both = np.concatenate([inside, outside])
    shares = 0.5 * (1.0 - np.cos(np.linspace(0.0, np.pi, CANDIDATES)))  # denser at the ends
    found: NDArray[Any] = np.unique(np.quantile(both, shares, method="inverted_cdf"))
    bounds = [counted(inside, outside, t).bound(curve, delta, alpha) for t in found]
    return float(found[int(np.argmax(bounds))])


def two_worlds(
    inside: Scores, outside: Scores, curve: Curve, delta: float, alpha: float, held: float = 0.25
) -> float:
    """A lower bound of epsilon from scores (n,) of releases with and without a record.

    Args:
        inside, outside: scores of independent releases; higher where the record seems to be in.
        curve: what the mechanism promises.
        delta: at which epsilon is told; not used by "pure".
        alpha: the bound is wrong with at most this probability.
        held: share of the releases that choose the threshold, and are not counted.

    Raises:
        StudyError: for fewer than eight releases in a world, or scores that are no numbers.
    """
    if min(len(inside), len(outside)) < 8:
        raise StudyError("an audit in two worlds needs at least 8 releases in each")
    if np.isnan(inside).any() or np.isnan(outside).any():
        raise StudyError("a score of an audit is not a number")
    first, second = int(len(inside) * held), int(len(outside) * held)
    threshold = best_threshold(inside[:first], outside[:second], curve, delta, alpha)
    return counted(inside[first:], outside[second:], threshold).bound(curve, delta, alpha)
