r"""Accountants: from facts to an upper bound on epsilon.

By name, all for one record's contribution that is there or replaced by none
(:mod:`sordino.privacy.event`):

* ``pld``: the closed form for Gaussians, privacy loss distributions for sampled ones
  (:mod:`~sordino.privacy.loss`), exact sums for pure releases (:mod:`~sordino.privacy.pure`), and
  ``rdp`` where that is lower. The tightest; the default.
* ``rdp``: Rényi divergences with the improved conversion (:mod:`~sordino.privacy.renyi`).
* ``rdp-classic``: the same over integer orders with the classic conversion, which the ALI-DPFL
  and ALS-DPFL papers use.

Facts are first flattened: equal steps are merged, so that k of them are composed once by k-fold
self-composition, and their order and nesting cannot matter. What is released from the *same*
sample (a sampled :class:`~sordino.privacy.event.Composed`) is one Gaussian whose precisions
1/sigma^2 add, and one pure release whose epsilons add. Answers are remembered: the same history
costs nothing twice. What pure releases come to by basic composition needs no delta, and these three
never show more than that.

``quick`` asks for a bound that may be looser (by less than a hundredth in 220 random histories)
and costs a fifth. Both are upper bounds. A run shows the quick one round by round.

>>> step = PoissonSampled(sampling_rate=0.015, event=Gaussian(noise_multiplier=1.1))
>>> [round(accountant(name).epsilon([(step, 317)], 1e-5), 2) for name in NAMES]
[1.36, 1.61, 2.01]
>>> accountant("pld").epsilon([(NonPrivate(reason="no noise"), 1)], 1e-5)
inf
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Protocol

from sordino.base.errors import StudyError, did_you_mean
from sordino.privacy import parts, pure
from sordino.privacy.event import (
    Chosen,
    Composed,
    Event,
    Gaussian,
    Grouped,
    NonPrivate,
    Nothing,
    PoissonSampled,
    Pure,
    Repeated,
    SampledRows,
    Selected,
    Trials,
)
from sordino.privacy.pure import Kind, Steps, priced_rate

Spent = Iterable[tuple[Event, int]]

_NO_NOISE = 1e-100  # a sigma up to this counts as none: its square leaves the floating numbers
_NO_BOUND = 1e100  # an epsilon from this on, likewise


class Accountant(Protocol):
    """Turns facts into an upper bound."""

    def __hash__(self) -> int: ...
    @property
    def name(self) -> str:
        """The name in studies."""

    @property
    def bound(self) -> str:
        """The theorem behind the bound and its authors, for a report."""

    def epsilon(self, spent: Spent, delta: float, *, quick: bool = False) -> float:
        """The smallest epsilon that it can prove at ``delta``; infinite where it can prove none."""

    def delta(self, spent: Spent, epsilon: float) -> float:
        """The smallest delta that it can prove at ``epsilon``; 1 where it can prove none."""


def flatten(spent: Spent, order: float | None = None) -> Steps | None:
    """Merge equal steps; None if something in it has no bound.

    Or none by an accountant that is not of this one order.

    Raises:
        TypeError: for an event that no accountant here can price, naming it.
    """
    totals: dict[Kind, int] = {}
    bounded = True
    for event, count in spent:
        if count < 0:
            raise StudyError(f"an event cannot have happened {count} times")
        if count:
            bounded &= _add(totals, event, count, order)
    return tuple(sorted(totals.items())) if bounded else None


def _add(totals: dict[Kind, int], event: Event, count: int, order: float | None) -> bool:
    """Put an event's steps into the totals; False if it has no bound."""
    match event:
        case Nothing():
            return True
        case NonPrivate():
            return False
        case Chosen(order=chosen, event=inside):
            return _add(totals, inside, count, order) and chosen == order
        case Gaussian() | Pure():
            return _put(totals, _joint(event, 1.0), count)
        case PoissonSampled(sampling_rate=rate, event=inside):
            while isinstance(inside, PoissonSampled):  # a sample of a sample is a smaller sample
                rate, inside = rate * inside.sampling_rate, inside.event
            return _put(totals, _joint(inside, priced_rate(rate)), count)
        case SampledRows(sampling_rate=rate, rows=rows, event=inside):
            one = _joint(inside, priced_rate(rate))
            known = one.rate < 1.0 and one.gaussian and not one.pure
            kind = replace(one, rows=rows)
            return _put(totals, kind if known else kind.together, count)
        case Repeated(event=inside, count=times):
            return not times or _add(totals, inside, count * times, order)
        case Composed(events=events):
            bounded = [_add(totals, inside, count, order) for inside in events]
            return all(bounded)
        case _:
            raise TypeError(f"no accountant here can price {event!r}")


def _put(totals: dict[Kind, int], kind: Kind, count: int) -> bool:
    # What was not sampled is of no common sample: its parts are counted by themselves.
    parts = (
        (Kind(1.0, kind.sigma), Kind(1.0, epsilon=kind.epsilon)) if kind.rate == 1.0 else (kind,)
    )
    for part in parts:
        if not (part.pure and part.gaussian):  # else nothing was released
            totals[part] = totals.get(part, 0) + count
    return kind.sigma > _NO_NOISE and kind.epsilon < _NO_BOUND


def _joint(event: Event, rate: float) -> Kind:
    """The one Gaussian and one pure release of one sample's releases; sigma is 0: no bound."""
    match event:
        case Nothing():
            return Kind(rate)
        case NonPrivate():
            return Kind(rate, 0.0)
        case Gaussian(noise_multiplier=sigma):
            return Kind(rate, sigma if sigma > _NO_NOISE else 0.0)
        case Pure(epsilon=epsilon):
            return Kind(rate, epsilon=epsilon)
        case Repeated(count=0):
            return Kind(rate)
        case Repeated(event=inside, count=times):
            one = _joint(inside, rate)
            return Kind(rate, one.sigma / math.sqrt(times), one.epsilon * times)
        case Composed(events=events):
            kinds = [_joint(inside, rate) for inside in events]
            if any(kind.sigma == 0.0 for kind in kinds):
                return Kind(rate, 0.0)
            precision = math.fsum((1.0 / kind.sigma) * (1.0 / kind.sigma) for kind in kinds)
            return Kind(
                rate,
                1.0 / math.sqrt(precision) if precision else math.inf,
                math.fsum(kind.epsilon for kind in kinds),
            )
        case _:
            raise TypeError(f"no accountant here can price {event!r} inside a sample")


def _apart(spent: Spent) -> Iterator[tuple[Event, int]]:
    """A history without compositions: groups and selections in them stand by themselves."""
    for event, count in spent:
        match event:
            case Repeated(event=inside, count=times):
                yield from _apart([(inside, count * times)])
            case Composed(events=events):
                yield from _apart([(inside, count) for inside in events])
            case _:
                yield event, count


Arithmetic = Callable[[Steps, float], float]


@dataclass(frozen=True, slots=True)
class _Named:
    """An accountant by its arithmetic on flattened, non-empty facts."""

    name: str
    bound: str
    fine: Arithmetic
    deltas: Arithmetic
    rough: Arithmetic | None = None
    order: float | None = None

    def epsilon(self, spent: Spent, delta: float, *, quick: bool = False) -> float:
        if not 0.0 < delta < 1.0:
            raise StudyError(f"delta must lie between 0 and 1; got {delta}")
        history = tuple(_apart(spent))
        if any(isinstance(event, Selected) and count for event, count in history):
            return parts.selected_epsilon(self, history, delta, quick=quick)
        if any(isinstance(event, Grouped) for event, _ in history):
            return parts.grouped_epsilon(self, history, delta, quick=quick)
        steps = flatten(history, self.order)
        if steps is None:
            return math.inf
        price = self.rough if quick and self.rough is not None else self.fine
        return price(steps, delta) if steps else 0.0

    def delta(self, spent: Spent, epsilon: float) -> float:
        if not epsilon >= 0.0:
            raise StudyError(f"epsilon must not be negative; got {epsilon}")
        history = tuple(_apart(spent))
        if any(isinstance(event, Selected) and count for event, count in history):
            return parts.selected_delta(self, history, epsilon)
        if any(isinstance(event, Grouped) for event, _ in history):
            return parts.grouped_delta(self, history, epsilon)
        steps = flatten(history, self.order)
        if steps == () or (steps is not None and math.isinf(epsilon)):
            return 0.0
        return 1.0 if steps is None else self.deltas(steps, epsilon)


def _parts(steps: Steps) -> tuple[float, Steps]:
    """Return the sum of the pure steps at delta 0, and the other steps."""
    return math.fsum(pure.most(kind, count) for kind, count in steps if kind.pure), tuple(
        step for step in steps if not step[0].pure
    )


def _or_basic(price: Arithmetic) -> Arithmetic:
    """The price, or that of the other steps and what the pure ones come to, where that is less."""

    def at_most(steps: Steps, delta: float) -> float:
        worst, others = _parts(steps)
        shown = price(steps, delta)
        return min(shown, worst + (price(others, delta) if others else 0.0)) if worst else shown

    return lru_cache(maxsize=65536)(at_most)


def _or_basic_delta(deltas: Arithmetic) -> Arithmetic:
    """The same for delta at an epsilon."""

    def at_most(steps: Steps, epsilon: float) -> float:
        worst, others = _parts(steps)
        shown = deltas(steps, epsilon)
        if not 0.0 < worst <= epsilon:
            return shown
        return min(shown, deltas(others, epsilon - worst) if others else 0.0)

    return at_most


def _lowest(steps: Steps, delta: float, *, quick: bool = False) -> float:
    from sordino.privacy import loss, renyi

    # Rounding in the FFT leaves nothing to say about a delta near 1e-15, and grids have a floor:
    # there the Rényi bound is the better one. The lower of two upper bounds is an upper bound.
    return min(loss.epsilon(steps, delta, quick=quick), renyi.improved_epsilon(steps, delta))


def _lowest_delta(steps: Steps, epsilon: float) -> float:
    from sordino.privacy import loss, renyi

    return min(loss.delta(steps, epsilon), renyi.improved_delta(steps, epsilon))


@dataclass(frozen=True, slots=True)
class _Best:
    """An accountant of whole runs of which only the best is released, by that of one run."""

    name: str
    inner: Accountant
    trials: Trials

    @property
    def bound(self) -> str:
        return (
            f"the best of a random number of runs, {parts.expected(self.trials):g} expected "
            f"(Koskela et al. 2024; Papernot and Steinke 2022), one run by {self.inner.bound}"
        )

    def epsilon(self, spent: Spent, delta: float, *, quick: bool = False) -> float:
        return parts.best_epsilon(self.inner, tuple(spent), self.trials, delta, quick=quick)

    def delta(self, spent: Spent, epsilon: float) -> float:
        return parts.best_delta(self.inner, tuple(spent), self.trials, epsilon)


NAMES = ("pld", "rdp", "rdp-classic")
_FIXED = re.compile(r"rdp@([0-9]+(?:\.[0-9]+)?)")


def fixed_order(name: str) -> float | None:
    """alpha of an accountant of one order; None for the others."""
    found = _FIXED.fullmatch(name)
    return float(found[1]) if found and 1.0 < float(found[1]) <= 1024.0 else None


def accountant(name: str) -> Accountant:
    """The accountant of this name.

    Raises:
        StudyError: if there is none.
    """
    return _made(name)


@lru_cache(maxsize=1024)
def _made(name: str) -> Accountant:
    from sordino.privacy import renyi  # arrays take a while to import

    if (order := fixed_order(name)) is not None:
        return _Named(
            name,
            f"Rényi divergence of the one order {order:g}, fixed in advance (Feldman and Zrnic "
            "2021)",
            lru_cache(maxsize=65536)(partial(renyi.fixed_epsilon, order=order)),
            partial(renyi.fixed_delta, order=order),
            order=order,
        )
    if (found := parts.named(name)) is not None:
        return _Best(name, accountant(found[0]), found[1])
    match name:
        case "pld":
            return _Named(
                name,
                "privacy loss distributions, rounded up (Doroshenko et al. 2022)",
                _or_basic(_lowest),
                _or_basic_delta(_lowest_delta),
                rough=_or_basic(partial(_lowest, quick=True)),
            )
        case "rdp":
            return _Named(
                name,
                "Rényi divergences, improved conversion (Canonne et al. 2020)",
                _or_basic(renyi.improved_epsilon),
                _or_basic_delta(renyi.improved_delta),
            )
        case "rdp-classic":
            return _Named(
                name,
                "Rényi divergences of integer order, classic conversion (Mironov 2017)",
                _or_basic(renyi.classic_epsilon),
                _or_basic_delta(renyi.classic_delta),
            )
    hint = did_you_mean(name, NAMES) or "."
    raise StudyError(
        f"accountant {name!r} is not known{hint} Known: {', '.join(NAMES)}, rdp@8 (or "
        "another order above 1)"
    )
