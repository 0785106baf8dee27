"""From a promise to noise or steps, always on the safe side of it.

* :func:`most_steps` is R_c: the most times a step may happen within epsilon. Integer bisection;
  epsilon at the answer never exceeds the target.
* :func:`noise_multiplier` is the smallest sigma, to four decimals, that keeps the steps within
  epsilon; rounded up, and checked again after rounding.

>>> step = PoissonSampled(sampling_rate=0.015, event=Gaussian(noise_multiplier=1.1))
>>> [most_steps(step, epsilon=2.0, delta=1e-5, accountant=name) for name in ("rdp-classic", "rdp", "pld")]
[314, 553, 716]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sordino.errors import StudyError
from sordino.privacy.accounting import Spent
from sordino.privacy.accounting import accountant as _accountant
from sordino.privacy.event import Event, Gaussian, PoissonSampled

MOST = 10**9  # steps beyond which nobody looks
_DECIMALS = 4
_LARGEST_SIGMA = 1e6


def most_steps(event: Event, *, epsilon: float, delta: float, accountant: str, spent: Spent = ()) -> int:
    """The most further steps of ``event`` with epsilon at most ``epsilon``, after ``spent``.

    Returns 0 where not even one step fits.

    Raises:
        StudyError: for an infinite epsilon, which any number of steps keeps.
    """
    if math.isinf(epsilon):
        raise StudyError("an infinite epsilon has no most steps: every number of steps keeps it")
    before, chosen = list(spent), _accountant(accountant)

    def within(count: int, *, quick: bool) -> bool:
        return chosen.epsilon([*before, (event, count)], delta, quick=quick) <= epsilon

    # The quick bound gives a number that is safe and nearly right; the fine one adds the last steps.
    low = _largest(lambda count: within(count, quick=True), 0)
    return _largest(lambda count: within(count, quick=False), low)


def _largest(fits: Callable[[int], bool], low: int) -> int:
    """The largest number from ``low`` (which fits) that fits: doubling strides up, then bisection."""
    stride = 1
    while fits(low + stride):
        low, stride = low + stride, 2 * stride
        if low > MOST:
            return low
    high = low + stride
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def noise_multiplier(*, sampling_rate: float, steps: int, epsilon: float, delta: float, accountant: str) -> float:
    """The smallest sigma with epsilon at most ``epsilon`` after ``steps``, rounded up to four decimals.

    Raises:
        StudyError: if no sigma up to a million is enough, or the promise is no promise.
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise StudyError(f"noise can be calibrated for a finite, positive epsilon; got {epsilon}")
    if steps < 1:
        raise StudyError(f"noise can be calibrated for at least one step; got {steps}")
    chosen = _accountant(accountant)

    def fits(sigma: float, *, quick: bool = True) -> bool:
        event = PoissonSampled(sampling_rate=sampling_rate, event=Gaussian(noise_multiplier=sigma))
        return chosen.epsilon([(event, steps)], delta, quick=quick) <= epsilon

    low, high = 0.1, 1.0
    while not fits(high):
        low, high = high, high * 2.0
        if high > _LARGEST_SIGMA:
            raise StudyError(
                f"no noise multiplier up to {_LARGEST_SIGMA:g} brings {steps} steps at q = {sampling_rate} within epsilon = {epsilon}"
            )
    unit = 10.0**-_DECIMALS
    while high - low > unit / 2:
        middle = (low + high) / 2.0
        low, high = (low, middle) if fits(middle) else (middle, high)
    sigma = round(math.ceil(high / unit) * unit, _DECIMALS)
    while not fits(sigma, quick=False):
        sigma = round(sigma + unit, _DECIMALS)
    while fits(round(sigma - unit, _DECIMALS), quick=False):
        sigma = round(sigma - unit, _DECIMALS)
    return sigma


def epsilon_after(event: Event, steps: Sequence[int], *, delta: float, accountant: str) -> tuple[float, ...]:
    """epsilon after each of these numbers of steps; the last by the fine bound, the others by the quick one."""
    chosen = _accountant(accountant)
    return tuple(chosen.epsilon([(event, count)], delta, quick=count != steps[-1]) for count in steps)
