r"""Accountants: from facts to an upper bound on epsilon.

Three, by name, all for adding or removing one record:

* ``pld``: privacy loss distributions (Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022),
  discretised pessimistically, so that the answer is an upper bound. The tightest; the default.
* ``rdp``: Rényi divergences (Mironov, Talwar and Zhang 2019) with the improved conversion of
  Balle et al. 2020 (Canonne, Kamath and Steinke 2020, proposition 12).
* ``rdp-classic``: integer orders and eps = eps_alpha + log(1/delta)/(alpha - 1) (Mironov 2017,
  proposition 3), which the ALI-DPFL and ALS-DPFL papers use.

The distributions and divergences are dp-accounting's; it is imported when first needed.
Equal events are merged before composing, and an event that happened k times is composed once
by k-fold self-composition. Answers are remembered: the same history costs nothing twice.

``quick`` asks for a bound that may be looser by a part in a thousand and costs a fifth: PLD on
a grid of 1e-3 instead of 2e-4. Both are upper bounds. A run shows the quick one round by round.

>>> step = PoissonSampled(sampling_rate=0.015, event=Gaussian(noise_multiplier=1.1))
>>> [round(accountant(name).epsilon([(step, 317)], 1e-5), 2) for name in NAMES]
[1.36, 1.61, 2.01]
>>> accountant("pld").epsilon([(NonPrivate(reason="no noise"), 1)], 1e-5)
inf
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from sordino.errors import StudyError
from sordino.privacy.event import Composed, Event, Gaussian, NonPrivate, PoissonSampled, Repeated

Spent = Iterable[tuple[Event, int]]
Steps = tuple[tuple[float, float, int], ...]  # (sampling rate, sigma, count), sorted; rate 1 means not sampled

_FINE, _QUICK = 2e-4, 1e-3  # grids of the privacy loss; 2e-4 gives the same steps as 1e-4 wherever we looked
_CLASSIC_ORDERS = (*range(2, 64), 128, 256, 512)


class Accountant(Protocol):
    """Turns facts into an upper bound."""

    @property
    def name(self) -> str:
        """How studies name it."""
        ...

    def epsilon(self, spent: Spent, delta: float, *, quick: bool = False) -> float:
        """The smallest epsilon that it can prove at ``delta``; infinite where it can prove none."""
        ...


def flatten(spent: Spent) -> Steps | None:
    """Merge equal steps; None if something in it has no bound.

    Raises:
        TypeError: for an event that no accountant here can price.
    """
    totals: dict[tuple[float, float], int] = {}
    for event, count in spent:
        if count < 0:
            raise StudyError(f"an event cannot have happened {count} times")
        if count and not _add(totals, event, count, rate=1.0):
            return None
    return tuple(sorted((rate, sigma, count) for (rate, sigma), count in totals.items() if count))


def _add(totals: dict[tuple[float, float], int], event: Event, count: int, *, rate: float) -> bool:
    match event:
        case NonPrivate():
            return False
        case Gaussian(noise_multiplier=sigma):
            totals[rate, sigma] = totals.get((rate, sigma), 0) + count
            return sigma > 0.0
        case PoissonSampled(sampling_rate=inner, event=Gaussian() as sampled):
            return _add(totals, sampled, count, rate=rate * inner)
        case PoissonSampled(sampling_rate=inner, event=NonPrivate() as sampled):
            return _add(totals, sampled, count, rate=rate * inner)
        case Repeated(event=inside, count=times):
            return not times or _add(totals, inside, count * times, rate=rate)
        case Composed(events=events):
            bounded = [_add(totals, inside, count, rate=rate) for inside in events]
            return all(bounded)
        case _:
            raise TypeError(f"no accountant here can price {event!r}")


@dataclass(frozen=True, slots=True)
class Pld:
    """Privacy loss distributions; see the module."""

    name: str = "pld"

    def epsilon(self, spent: Spent, delta: float, *, quick: bool = False) -> float:
        """See :class:`Accountant`."""
        return _priced(lambda steps, at: _pld_epsilon(steps, at, _QUICK if quick else _FINE), spent, delta)

    def delta(self, spent: Spent, epsilon: float) -> float:
        """The smallest delta at ``epsilon``; 1 where there is no bound."""
        steps = flatten(spent)
        return 1.0 if steps is None else _pld_delta(steps, epsilon)


@dataclass(frozen=True, slots=True)
class Rdp:
    """Rényi divergences, improved conversion; see the module."""

    name: str = "rdp"

    def epsilon(self, spent: Spent, delta: float, *, quick: bool = False) -> float:
        """See :class:`Accountant`."""
        return _priced(_rdp_epsilon, spent, delta)


@dataclass(frozen=True, slots=True)
class RdpClassic:
    """Rényi divergences of integer order, classic conversion; see the module."""

    name: str = "rdp-classic"

    def epsilon(self, spent: Spent, delta: float, *, quick: bool = False) -> float:
        """See :class:`Accountant`."""
        return _priced(_classic_epsilon, spent, delta)


_ALL: dict[str, Accountant] = {a.name: a for a in (Pld(), Rdp(), RdpClassic())}
NAMES = tuple(_ALL)


def accountant(name: str) -> Accountant:
    """The accountant of this name.

    Raises:
        StudyError: if there is none.
    """
    if name not in _ALL:
        close = difflib.get_close_matches(name, NAMES, n=1)
        raise StudyError(f"accountant {name!r} is not known{f'; did you mean {close[0]!r}?' if close else ''}. Known: {', '.join(NAMES)}")
    return _ALL[name]


def _priced(price: Any, spent: Spent, delta: float) -> float:
    if not 0.0 < delta < 1.0:
        raise StudyError(f"delta must lie between 0 and 1; got {delta}")
    steps = flatten(spent)
    if steps is None:
        return math.inf
    return float(price(steps, delta)) if steps else 0.0


@lru_cache(maxsize=64)
def _pld_step(rate: float, sigma: float, grid: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_gaussian_mechanism(
        standard_deviation=sigma,
        sampling_prob=rate,
        value_discretization_interval=grid,
        pessimistic_estimate=True,
        use_connect_dots=True,
    )


@lru_cache(maxsize=16)
def _pld_composed(steps: Steps, grid: float) -> Any:
    whole = None
    for rate, sigma, count in steps:
        part = _pld_step(rate, sigma, grid)
        part = part.self_compose(count) if count > 1 else part
        whole = part if whole is None else whole.compose(part)
    return whole


@lru_cache(maxsize=65536)
def _pld_epsilon(steps: Steps, delta: float, grid: float) -> float:
    return float(_pld_composed(steps, grid).get_epsilon_for_delta(delta))


def _pld_delta(steps: Steps, epsilon: float) -> float:
    return float(_pld_composed(steps, _FINE).get_delta_for_epsilon(epsilon)) if steps else 0.0


@lru_cache(maxsize=64)
def _renyi(rate: float, sigma: float, orders: tuple[float, ...]) -> tuple[float, ...]:
    """Rényi divergence of one step at each order."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    # A fractional order whose series does not converge is left out, which keeps the bound; no need to warn of each.
    logging.getLogger("absl").setLevel(logging.ERROR)

    step = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)) if rate < 1.0 else dp.GaussianDpEvent(sigma)
    ledger = RdpAccountant(orders=list(orders))
    ledger.compose(step)
    return tuple(float(value) for value in ledger._rdp)


@lru_cache(maxsize=1)
def _fine_orders() -> tuple[float, ...]:
    return (*(1 + x / 10 for x in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)


def _total(steps: Steps, orders: tuple[float, ...]) -> list[float]:
    total = [0.0] * len(orders)
    for rate, sigma, count in steps:
        for i, value in enumerate(_renyi(rate, sigma, orders)):
            total[i] += count * value
    return total


@lru_cache(maxsize=65536)
def _rdp_epsilon(steps: Steps, delta: float) -> float:
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    orders = _fine_orders()
    epsilon, _ = compute_epsilon(orders, _total(steps, orders), delta)
    return float(epsilon)


@lru_cache(maxsize=65536)
def _classic_epsilon(steps: Steps, delta: float) -> float:
    total = _total(steps, tuple(float(order) for order in _CLASSIC_ORDERS))
    return float(min(value + math.log(1.0 / delta) / (order - 1) for order, value in zip(_CLASSIC_ORDERS, total, strict=True)))
