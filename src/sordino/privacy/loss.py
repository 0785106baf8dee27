r"""The privacy loss of composed, Poisson-sampled steps: four upper bounds, each where it is good.

A history is a list of kinds of steps and how often each was taken: k times a Gaussian of noise
multiplier sigma on a Poisson sample of rate q, or a pure release on one. One record's
contribution, replaced by none, moves the noise-scaled answer of a Gaussian step by 1/sigma if the
record was drawn and by nothing otherwise. The question is delta(epsilon), the hockey-stick
divergence of the two sides, and its inverse.

**Not sampled.** k Gaussians are one of mu^2 = k/sigma^2, and delta is known exactly (Balle and
Wang 2018, theorem 8): delta = Phi(a) - e^epsilon Phi(b), with a = mu/2 - epsilon/mu and
b = -mu/2 - epsilon/mu. Since e^epsilon phi(b) = phi(a), it equals Phi(a) - phi(a) M(-b) with
Mills' ratio M, and no large number is ever formed.

**Sampled.** Privacy loss distributions (Koskela, Jälkö and Honkela 2020), discretised by
connecting the dots (Doroshenko et al. 2022), which only ever raises delta. The grid g follows
the loss of a step: a grid adds at most g^2/4 to the variance of one step's loss, so g is kept
to 1/64 of its standard deviation ("fine") or to 1/16 ("quick"), where the arithmetic allows.
Composition by FFT rounds: against the closed form the error in delta was below 1e-17 for each step
composed; a hundred times that is added to delta, so that rounding cannot make an epsilon too small.

**Sampled, and hardly any noise** (sigma < 0.05: the literal forms of some papers, whose epsilon
is 10^11). No grid holds such losses. But the number K of steps that drew the record is
binomial, and the hockey-stick divergence is jointly convex, so
delta(epsilon) <= E_K [delta of a Gaussian with mu^2 = K / sigma^2]: nothing is gained from
not knowing *which* steps, which at such noise is worth next to nothing anyway.

Where a history holds both kinds, each part gets half of delta and the epsilons add.

**Pure.** k equal releases are priced exactly (:mod:`sordino.privacy.pure`); beside other steps
their k-fold loss goes to the grid as a whole. Of a Gaussian and a pure release from *one* sample
this module knows nothing.

>>> round(epsilon(((Kind(1.0, sigma=5.0), 25),), 1e-5), 3)  # one Gaussian of sigma 1
4.377
>>> f"{epsilon(((Kind(0.01, sigma=1.05e-5), 1000),), 1e-5):.2g}"  # a literal wavelet mechanism
'1.2e+11'
>>> round(epsilon(((Kind(1.0, epsilon=0.1), 15_000),), 1e-5))
126

References: Balle and Wang 2018, "Improving the Gaussian mechanism for differential privacy";
Koskela, Jälkö and Honkela 2020, "Computing tight differential privacy guarantees using FFT";
Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, "Connect the dots"; Zhu, Dong and Wang
2022, "Optimal accounting of differential privacy via characteristic function" (dominating
pairs compose, also adaptively).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from sordino.privacy import grid as grids
from sordino.privacy import pure
from sordino.privacy.grid import Losses, Side, functions
from sordino.privacy.pure import Kind, Steps

_FINE, _QUICK = 1 / 64, 1 / 16  # grid over the standard deviation of one step's loss
_SMALLEST_GRID = 2.0**-15  # below it, rounding in the cells outweighs what they gain
_LARGEST_GRID = 512.0  # e^grid must be a number
_MOST_CELLS = 2e5  # in one step
_MOST_COMPOSED = 3e5  # after composition, roughly
_BLOCK = 4096
_ROUNDING = 1e-15  # added to delta for each step composed
_LITTLE_NOISE = 0.05
_BUCKETS = 400


def epsilon(steps: Steps, delta: float, *, quick: bool = False) -> float:
    """An upper bound on epsilon at ``delta``; infinite where this arithmetic gives none."""
    if not _known(steps):
        return math.inf
    harsh, mild = _split(steps)
    if not harsh:
        return _mild_epsilon(mild, delta, quick)
    if not mild:
        return _invert(lambda value: _harsh_delta(harsh, value), delta)
    return epsilon(harsh, delta / 2) + epsilon(mild, delta / 2, quick=quick)


def delta(steps: Steps, epsilon: float) -> float:
    """An upper bound on delta at ``epsilon``."""
    if not _known(steps):
        return 1.0
    harsh, mild = _split(steps)
    if not harsh:
        return _mild_delta(mild, epsilon)
    if not mild:
        return min(1.0, _harsh_delta(harsh, epsilon))
    # Any split of epsilon is a bound; the harsh part is what costs.
    return min(
        1.0,
        min(
            _harsh_delta(harsh, (1 - part) * epsilon) + _mild_delta(mild, part * epsilon)
            for part in (0.01, 0.1, 0.5)
        ),
    )


def _known(steps: Steps) -> bool:
    return all(kind.gaussian or kind.pure for kind, _ in steps)


def _split(steps: Steps) -> tuple[Steps, Steps]:
    """Gaussians with hardly any noise, and the other steps; unsampled ones are merged."""
    precision = sum(
        count * (1.0 / kind.sigma) * (1.0 / kind.sigma) for kind, count in steps if kind.rate == 1.0
    )
    whole = ((Kind(1.0, 1.0 / math.sqrt(precision)), 1),) if precision else ()
    merged = (*whole, *((kind, count) for kind, count in steps if kind.rate < 1.0 or kind.pure))
    harsh = tuple((kind.together, count) for kind, count in merged if kind.sigma < _LITTLE_NOISE)
    return harsh, tuple(step for step in merged if step[0].sigma >= _LITTLE_NOISE)


# --- Gaussians that are not sampled -----------------------------------------------------------


def gaussian_delta(mu: Any, epsilon: float) -> Any:
    """delta of Gaussians at distance ``mu`` (number or array), never too small."""
    erfcx, ndtr = functions().erfcx, functions().ndtr
    mu = np.asarray(mu, dtype=np.float64)
    safe = np.where(mu > 0.0, mu, 1.0)
    a, b = safe / 2 - epsilon / safe, -safe / 2 - epsilon / safe
    mills = math.sqrt(math.pi / 2) * erfcx(-b / math.sqrt(2))
    tail = np.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    # Far below the mean both terms are tiny: their common factor is taken out before subtracting.
    below = math.sqrt(math.pi / 2) * erfcx(np.maximum(-a, 0.0) / math.sqrt(2))
    value = np.where(a < 0.0, tail * (below - mills), ndtr(a) - tail * mills)
    slack = 1e-15 * np.where(a < 0.0, tail * below, 1.0)
    return np.where(mu > 0.0, np.clip(value + slack, 0.0, 1.0), 0.0)


def _invert(delta_at: Callable[[float], float], delta: float) -> float:
    """The smallest epsilon (twelve digits, from above) at which a falling bound is ``delta``."""
    if delta_at(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_at(high) > delta:
        low, high = high, 2.0 * high
        if math.isinf(high):
            return math.inf
    while high - low > 1e-12 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if delta_at(middle) <= delta else (middle, high)
    return high


# --- Sampled, with hardly any noise -----------------------------------------------------------


def _harsh_delta(steps: Steps, epsilon: float) -> float:
    """E over the number of steps that drew the record; several kinds count as the worst."""
    fixed = sum((1.0 / kind.sigma) * (1.0 / kind.sigma) for kind, _ in steps if kind.rate == 1.0)
    drawn = [step for step in steps if step[0].rate < 1.0]
    if not drawn:
        return float(gaussian_delta(math.sqrt(fixed), epsilon))
    rate, sigma = max(kind.rate for kind, _ in drawn), min(kind.sigma for kind, _ in drawn)
    count = sum(k for _, k in drawn)
    reached, mass = _inclusions(rate, count)
    return float(
        mass @ gaussian_delta((fixed + reached * (1.0 / sigma) * (1.0 / sigma)) ** 0.5, epsilon)
    )


@lru_cache(maxsize=64)
def _inclusions(rate: float, count: int) -> tuple[Any, Any]:
    """Numbers of inclusions and probabilities under Bin(count, rate), rounded up by bucket."""
    from scipy.special import bdtrc  # type: ignore[import-untyped]

    spread = 8.0 * math.sqrt(count * rate * (1.0 - rate)) + 40.0  # the upper tail is below 1e-15
    low, high = max(0.0, count * rate - spread), min(float(count), count * rate + spread)
    reached = np.unique(np.append(np.ceil(np.linspace(low, high, _BUCKETS)), float(count)))
    # The margin covers the library's error in the tail, which was seen to reach some 1e-9.
    above = np.append(np.minimum(1.0, (1 + 1e-6) * bdtrc(reached[:-1], count, rate)), 0.0)
    mass = -np.diff(np.concatenate(([1.0], above)))
    return reached, mass


# --- Sampled: privacy loss distributions ------------------------------------------------------


def _mild_epsilon(steps: Steps, delta: float, quick: bool) -> float:
    if not steps:
        return 0.0
    if (exact := _exact(steps)) is not None:
        return _invert(exact, delta)
    left = delta - _ROUNDING * _composed_steps(steps)
    composed = _composed(steps, _QUICK if quick else _FINE) if left > 0.0 else None
    return math.inf if composed is None else composed.epsilon(left)


def _mild_delta(steps: Steps, epsilon: float) -> float:
    if not steps:
        return 0.0
    if (exact := _exact(steps)) is not None:
        return exact(epsilon)
    if (composed := _composed(steps, _FINE)) is None:
        return 1.0
    return min(1.0, composed.delta(epsilon) + _ROUNDING * _composed_steps(steps))


def _exact(steps: Steps) -> Callable[[float], float] | None:
    """delta by epsilon, where there is one kind of step and a closed form for it."""
    kind, count = steps[0]
    if len(steps) > 1 or not (kind.pure or kind.rate == 1.0):
        return None
    if kind.pure:
        return lambda epsilon: pure.delta(kind, count, epsilon)
    return lambda epsilon: float(gaussian_delta(1.0 / kind.sigma, epsilon))


def _composed_steps(steps: Steps) -> int:
    """Return how many steps are composed on the grid; pure ones are composed before."""
    return sum(1 if kind.pure else count for kind, count in steps)


def _variance(kind: Kind) -> float:
    """About the variance of one Gaussian step's loss."""
    rate = kind.rate
    # of the loss of a step that drew the record; its variance is twice that
    mean = 0.5 / (kind.sigma * kind.sigma)
    if rate == 1.0:
        return 2 * mean
    if kind.rows == 1:
        return min(rate * rate * math.expm1(2 * mean), rate * (mean * mean + 2 * mean))
    return grids.Mixture(rate, kind.sigma, kind.rows).variance


def _grid(steps: Steps, share: float) -> float | None:
    """A power of two, so that equal steps in different histories share their distribution.

    None where all that can be afforded is coarser than the losses: such a bound would say nothing.
    """
    total = sum(k * (pure.variance(kind) if kind.pure else _variance(kind)) for kind, k in steps)
    widest = max(
        pure.span(kind, k) / 2
        if kind.pure
        else 0.5 * (kind.rows / kind.sigma) ** 2 + 10.0 * kind.rows / kind.sigma
        for kind, k in steps
    )
    deviation = math.sqrt(total / _composed_steps(steps))
    wanted = share * deviation
    affordable = max(_SMALLEST_GRID, 30.0 * math.sqrt(total) / _MOST_COMPOSED, widest / _MOST_CELLS)
    if affordable > min(deviation, _LARGEST_GRID):
        return None
    return 2.0 ** math.floor(math.log2(min(max(wanted, affordable), _LARGEST_GRID)))


@lru_cache(maxsize=1)  # asked for one epsilon after another
def _composed(steps: Steps, share: float) -> Losses | None:
    """The distribution of the loss of all steps together; None without a useful grid."""
    grid = _grid(steps, share)
    if grid is None:
        return None
    whole: Losses | None = None
    for kind, count in steps:
        part = _pure(kind, count, grid) if kind.pure else _power(_gaussian(kind, grid), count)
        if part is None:
            return None
        whole = part if whole is None else whole.compose(part)
    return whole


def _gaussian(kind: Kind, grid: float) -> Losses:
    """The loss of one Gaussian step, of one row or of several."""
    if kind.rows == 1:
        return grids.gaussian(kind.rate, kind.sigma, grid)
    return grids.mixture(kind.rate, kind.sigma, kind.rows, grid)


def _pure(kind: Kind, count: int, grid: float) -> Losses | None:
    """The loss of all pure steps of a kind on the grid, in both directions."""
    sides = [pure.on_grid(kind, count, grid, with_record=side) for side in (True, False)]
    made = [Side(grid, *side) for side in sides if side is not None]
    return Losses(*made) if len(made) == 2 else None


def _power(part: Losses, count: int) -> Losses:
    """The loss of ``count`` equal steps, in blocks.

    No transform is raised to a higher power than was looked at for its rounding.
    """
    if count <= _BLOCK:
        return part.power(count) if count > 1 else part
    blocks, rest = divmod(count, _BLOCK)
    whole = _power(part.power(_BLOCK), blocks)
    return whole.compose(_power(part, rest)) if rest else whole
