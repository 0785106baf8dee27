r"""Budgets: what may be spent, the refusal of more, and the steps or noise that a promise affords.

**Calibration** goes from a promise to noise or steps, always on the safe side of it.

* :func:`most_steps` is R_c: the most times a step may happen within epsilon. A search over whole
  numbers; epsilon at the answer never exceeds the target, and at the next number it does.
* :func:`noise_multiplier` is the smallest sigma, to four decimals, that keeps the steps within
  epsilon; rounded up, and checked again after rounding.

>>> step = PoissonSampled(sampling_rate=0.015, event=Gaussian(noise_multiplier=1.1))
>>> names = ("rdp-classic", "rdp", "pld")
>>> [most_steps(step, epsilon=2.0, delta=1e-5, accountant=name) for name in names]
[314, 553, 716]

**What proofs leave out of delta** (:func:`left_out`) is chances that something is not as the price
assumes. If a release has the distribution that is priced but for a chance of t, (epsilon, delta)
becomes (epsilon, delta + t (1 + e^epsilon)). Such chances are so small that no delta of use shows
them; but a study may ask for a smaller delta, or for an epsilon so large that e^epsilon makes up
for it.

>>> left_out(1e-5, 8.0, numbers=1e9)
()
>>> left_out(1e-30, 8.0, numbers=1e9)[0][:60]
'privacy.delta = 1e-30 is finer than the proof: the sampler o'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sordino.base.errors import BudgetExceeded, StudyError
from sordino.privacy.accounting import Accountant, Spent, accountant
from sordino.privacy.accounting import accountant as _accountant
from sordino.privacy.event import Event, Gaussian, PoissonSampled, SampledRows
from sordino.privacy.rounding import epsilon_text

MOST = 10**9  # steps beyond which nobody looks
_UNIT = 10_000  # sigma is sought in ten-thousandths
_LARGEST_SIGMA = 10**6


def most_steps(
    event: Event, *, epsilon: float, delta: float, accountant: str, spent: Spent = ()
) -> int:
    """The most further steps of ``event`` with epsilon at most ``epsilon``, after ``spent``.

    Returns 0 where not even one step fits, and never more than a thousand million.

    Raises:
        StudyError: for an infinite epsilon, which any number of steps keeps, or one below 0.
    """
    if epsilon == math.inf:
        raise StudyError("an infinite epsilon has no most steps: every number of steps keeps it")
    if not epsilon >= 0.0:
        raise StudyError(f"epsilon must not be negative; got {epsilon}")
    before, start = list(spent), 1
    for chosen in _in_turn(accountant):
        start = _last(
            _priced(chosen, lambda count: [*before, (event, count)], delta),
            lambda value: value <= epsilon,
            target=epsilon,
            start=start,
            most=MOST,
        )
    return start


def _priced(by: Accountant, spent: Callable[[int], Spent], delta: float) -> Callable[[int], float]:
    return lambda number: by.epsilon(spent(number), delta)


def _in_turn(name: str) -> list[Accountant]:
    """An accountant; before "pld" the Rényi bound, which costs next to nothing and says roughly
    where to look.
    """
    return [accountant(each) for each in (("rdp", "pld") if name == "pld" else (name,))]


Schedule = Sequence[tuple[float, int]]
"""Factors on sigma, and how many steps are taken at each."""


def _gaussian(sigma: float) -> Event:
    return Gaussian(noise_multiplier=sigma)


def noise_multiplier(
    *,
    sampling_rate: float,
    steps: int | Schedule,
    epsilon: float,
    delta: float,
    accountant: str,
    release: Callable[[float], Event] = _gaussian,
    rows: int = 1,
) -> float:
    """The smallest sigma with epsilon at most ``epsilon`` after ``steps``, up to four decimals.

    ``steps`` are all at sigma, or at a schedule of multiples of it. ``release`` says what one is,
    before sampling; a larger sigma must not cost more. ``rows`` of one person fall away together.

    Raises:
        StudyError: if no sigma up to a million is enough, or the promise is no promise.
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise StudyError(f"noise can be calibrated for a finite, positive epsilon; got {epsilon}")
    schedule = ((1.0, steps),) if isinstance(steps, int) else tuple(steps)
    total = sum(count for _, count in schedule)
    if total < 1:
        raise StudyError(f"noise can be calibrated for at least one step; got {total}")

    def spent(units: int) -> list[tuple[Event, int]]:
        released = [(release(units / _UNIT * factor), count) for factor, count in schedule]
        if rows > 1:
            return [(SampledRows(sampling_rate, rows, one), count) for one, count in released]
        return [(PoissonSampled(sampling_rate, one), count) for one, count in released]

    # The search runs over ten-thousandths: the last sigma that is too small is followed by the
    # answer.
    most, start = _LARGEST_SIGMA * _UNIT, _UNIT
    for chosen in _in_turn(accountant):
        start = 1 + _last(
            _priced(chosen, spent, delta),
            lambda value: value > epsilon,
            target=epsilon,
            start=start,
            most=most,
        )
    if start > most:
        raise StudyError(
            f"no noise multiplier up to {_LARGEST_SIGMA} brings {total} steps at sampling_rate "
            f"{sampling_rate} within epsilon = {epsilon}. Lower the steps or the sampling rate, or "
            "allow a larger epsilon"
        )
    return start / _UNIT


def _last(
    value: Callable[[int], float],
    near: Callable[[float], bool],
    *,
    target: float,
    start: int,
    most: int,
) -> int:
    """The last n in 0..most with ``near(value(n))``: all before it are near, none after it.

    Strides from ``start`` until the border is between two numbers, then false position on
    logarithms (Illinois: an end that stays for a second turn counts half), until they are
    neighbours. Both neighbours were asked: the answer is near, the next is not.
    """
    low, high, n, stride = 0, most + 1, min(max(1, start), most), 1.1
    gaps: dict[int, float] = {}  # log(value / target) at the two ends
    moved_low = None
    while high - low > 1:
        now = value(n)
        again = moved_low == near(now)
        moved_low = near(now)
        low, high = (n, high) if moved_low else (low, n)
        stays = high if moved_low else low
        gaps = {n: _log(now, target), stays: gaps.get(stays, math.nan) * (0.5 if again else 1.0)}
        if high > most:
            n, stride = max(n + 1, int(n * stride)), stride * stride
        elif low == 0:
            n, stride = int(n / stride), stride * stride
        else:
            n = _crossing(low, high, gaps[low], gaps[high])
        n = min(max(n, low + 1), high - 1)
    return low


def _log(value: float, target: float) -> float:
    return math.log(value / target) if 0.0 < value < math.inf and target > 0.0 else math.nan


def _crossing(low: int, high: int, gap_low: float, gap_high: float) -> int:
    """Where a straight line on logarithms crosses the target; the middle if there is none."""
    share = gap_low / (gap_low - gap_high) if gap_low != gap_high else math.nan
    return round(low * (high / low) ** share) if 0.0 <= share <= 1.0 else (low + high) // 2


def epsilon_after(
    event: Event, steps: Sequence[int], *, delta: float, accountant: str
) -> tuple[float, ...]:
    """epsilon after each of these numbers of steps; the last by the fine bound, others quickly."""
    chosen = _accountant(accountant)
    return tuple(
        chosen.epsilon([(event, count)], delta, quick=count != steps[-1]) for count in steps
    )


@dataclass(frozen=True, slots=True)
class Budget:
    """The promise that a ledger is held against.

    Attributes:
        epsilon: at most; infinite for a run that promises nothing.
        delta: in (0, 1).
        accountant: name of who does the arithmetic.
    """

    epsilon: float
    delta: float
    accountant: str = "pld"

    def __post_init__(self) -> None:
        if not self.epsilon >= 0.0:
            raise StudyError(
                f"epsilon must be a number from 0, or infinite for no promise; got {self.epsilon}"
            )
        if not 0.0 < self.delta < 1.0:
            raise StudyError(f"delta must lie between 0 and 1; got {self.delta}")
        accountant(self.accountant)

    def remaining_steps(self, event: Event, spent: Spent) -> int | None:
        """Return how often ``event`` may still happen after ``spent``; None: without limit."""
        if math.isinf(self.epsilon):
            return None
        return most_steps(
            event, epsilon=self.epsilon, delta=self.delta, accountant=self.accountant, spent=spent
        )

    def admit(self, unit: str, spent: Spent) -> None:
        """Refuse a history that passes the budget, asking the cheapest bound first.

        What "pld" shows is never above the improved Rényi bound, which takes a hundredth of its
        time.

        Raises:
            BudgetExceeded: see :meth:`check`.
        """
        history = list(spent)
        if (
            self.accountant != "pld"
            or accountant("rdp").epsilon(history, self.delta) > self.epsilon
        ):
            self.check(unit, history)

    def check(self, unit: str, spent: Spent) -> float:
        """A bound on the epsilon of a history, or the refusal of one that passes the budget.

        The quick bound decides where it can; where it comes out over the budget, the fine one does.

        Raises:
            BudgetExceeded: naming the unit, the epsilon it would reach and the remedy.
        """
        history, chosen = list(spent), accountant(self.accountant)
        quick = chosen.epsilon(history, self.delta, quick=True)
        if quick <= self.epsilon:
            return quick
        value = chosen.epsilon(history, self.delta)
        if value > self.epsilon:
            raise BudgetExceeded(self._refusal(unit, value))
        return value

    def _refusal(self, unit: str, value: float) -> str:
        pairs = ((epsilon_text(value, d), epsilon_text(self.epsilon, d)) for d in range(4, 18))
        found, most = next((a, b) for a, b in pairs if a != b)
        remedy = "Lower rounds or local steps, or raise noise_multiplier"
        if math.isinf(value):
            remedy = (
                "No bound is known for this release: only a run without a guarantee (infinite "
                "epsilon) can make it"
            )
        return (
            f"{unit}: this release would bring epsilon to {found}, over the budget of {most} "
            f"(delta {self.delta:g}, {self.accountant}). {remedy}"
        )


SAMPLER = 2.0**-95
"""Of one number of noise; see :mod:`sordino.mechanisms.draws`."""
SHOWN = 1e-3
"""Part of delta that is not worth a word."""


def left_out(
    delta: float | None, epsilon: float | None, *, numbers: float, more: float = 0.0
) -> tuple[str, ...]:
    """A warning where what is left out of delta is no small part of it.

    Args:
        numbers: of noise, in all releases that are priced together.
        more: other chances that are left out.
    """
    chance = SAMPLER * numbers + more
    if delta is None or epsilon is None or math.isinf(epsilon) or not chance:
        return ()
    beyond = math.exp(min(math.log(chance) + math.log1p(math.exp(min(epsilon, 700.0))), 700.0))
    if beyond <= SHOWN * delta:
        return ()
    bound = f"delta = {delta + beyond:.3g}" if delta + beyond < 1.0 else "no delta below 1"
    return (
        f"privacy.delta = {delta:g} is finer than the proof: the sampler of the noise, and what "
        f"else is left out of delta, may add {min(beyond, 1.0):.2g} at epsilon = "
        f"{epsilon_text(epsilon)}. What is proved is {bound} (docs/mathematics.md). Raise "
        "privacy.delta, or lower privacy.epsilon",
    )
