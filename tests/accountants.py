"""The contract of accountants, as a function that anybody's accountant can be held against."""

from __future__ import annotations

import math
from collections.abc import Callable

from sordino.privacy.accounting import Accountant
from sordino.privacy.event import (
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    Nothing,
    PoissonSampled,
    Pure,
    Repeated,
)

DELTA = 1e-5


class ContractBroken(AssertionError):
    """An accountant that cannot be trusted."""


def gaussian_delta(sigma: float, epsilon: float) -> float:
    """The exact delta of one Gaussian release (Balle and Wang 2018, theorem 8, sensitivity 1)."""

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2.0))

    return phi(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * phi(
        -0.5 / sigma - epsilon * sigma
    )


def pure_delta(own: float, epsilon: float) -> float:
    """The exact delta of one pure release of ``own`` at its worst (Kairouz et al. 2015)."""
    return max(0.0, -math.expm1(epsilon - own)) / (1.0 + math.exp(-own))


Price = Callable[..., float]  # of (event, count) pairs, at DELTA unless delta is given


def check_accountant(accountant: Accountant) -> None:
    """Hold an accountant to its contract.

    Raises:
        ContractBroken: naming what does not hold.
    """

    def price(*spent: tuple[Event, int], delta: float = DELTA) -> float:
        return accountant.epsilon(spent, delta)

    step, other = _sampled(), Gaussian(noise_multiplier=20.0)
    _check_ends(accountant, price, step)
    _check_slopes(price, step)
    for spent in (((step, 100),), ((other, 7),), ((step, 50), (other, 3))):
        for delta in (1e-3, 1e-5, 1e-8):
            back = accountant.delta(spent, price(*spent, delta=delta))
            _must(back <= delta * (1 + 1e-6), f"delta at epsilon({delta}) is {back}")
    _check_mixes(price, step, other)
    _check_gaussian(price)
    _check_pure(price)
    try:
        price(("unknown", 1))  # type: ignore[arg-type]
    except TypeError:
        pass
    else:
        raise ContractBroken("an unknown event was priced")


def _sampled(rate: float = 0.02, sigma: float = 1.2) -> PoissonSampled:
    return PoissonSampled(sampling_rate=rate, event=Gaussian(noise_multiplier=sigma))


def _check_ends(accountant: Accountant, price: Price, step: Event) -> None:
    """Check that no data costs nothing, and that what has no bound is infinite."""
    _must(price() == 0.0, "nothing costs nothing")
    _must(price((step, 0)) == 0.0, "what did not happen costs nothing")
    _must(price((Nothing(), 5)) == 0.0, "using no data costs nothing")
    _must(accountant.delta((), 0.0) == 0.0, "nothing released has delta 0")
    raw = NonPrivate(reason="raw")
    _must(accountant.delta(((raw, 1),), 5.0) == 1.0, "no bound has delta 1")
    for unbounded in (raw, Gaussian(noise_multiplier=0.0), Composed(events=(step, raw))):
        _must(math.isinf(price((step, 3), (unbounded, 1))), f"{unbounded} has no bound")


def _check_slopes(price: Price, step: Event) -> None:
    """More releases, more data in a sample, less noise or a smaller delta cost more."""
    _rises("count", lambda n: price((step, int(n))), (1, 2, 10, 100, 1000))
    _rises("q", lambda q: price((_sampled(rate=q), 100)), (0.01, 0.02, 0.1, 1.0))
    # The second from next to no noise, where epsilon runs into the millions, to more than anybody
    # adds.
    for values in ((0.1, 0.5, 1.0, 1.5), (1e-3, 1, 30, 1e5)):
        _rises("1/sigma", lambda s: price((_sampled(sigma=1 / s), 100)), values)
    _rises("1/delta", lambda x: price((step, 100), delta=1 / x), (1e2, 1e4, 1e6))


def _check_gaussian(price: Price) -> None:
    """Precisions add, and the exact delta of Gaussian releases is not above DELTA."""
    pair = Composed(events=(Gaussian(noise_multiplier=2.0), Gaussian(noise_multiplier=1.5)))
    twice = PoissonSampled(sampling_rate=0.02, event=pair)
    _must(
        math.isclose(price((twice, 9)), price((_sampled(), 9)), rel_tol=1e-9),
        "two releases from one sample are one whose precisions add",
    )
    for sigma, count in ((0.7, 1), (3.0, 1), (5.0, 25), (30.0, 400)):
        shown = price((Gaussian(noise_multiplier=sigma), count))
        # k releases at sigma are one at sigma / sqrt(k): an exact delta to hold the bound against
        _must(
            gaussian_delta(sigma / math.sqrt(count), shown) <= DELTA * (1 + 1e-9),
            f"the bound at sigma {sigma}, {count} times, is broken",
        )


def _check_mixes(price: Price, step: Event, other: Event) -> None:
    mild = _sampled(sigma=2.0)
    mix = price((step, 50), (mild, 300), (other, 3))
    _must(
        mix
        == price((other, 3), (mild, 300), (step, 50))
        == price((mild, 300), (other, 3), (step, 50)),
        "order changes nothing",
    )
    _must(
        mix >= max(price((step, 50)), price((mild, 300)), price((other, 3))),
        "a mix costs no less than each of its parts",
    )
    both = price((step, 50), (other, 3))
    _must(both >= max(price((step, 50)), price((other, 3))), "more releases cost no less")
    for same in (
        price((other, 3), (step, 50)),
        price((step, 20), (other, 3), (step, 30)),
        price(
            (Composed(events=(Repeated(event=step, count=50), Repeated(event=other, count=3))), 1)
        ),
        price((Composed(events=(Repeated(event=step, count=16), other)), 3), (step, 2)),
        price(
            (
                Repeated(
                    event=Composed(events=(Repeated(event=step, count=8), step, step)), count=5
                ),
                1,
            ),
            (other, 3),
        ),
        price((_sampled(rate=0.2), 0), (step, 50), (other, 3)),
    ):
        _must(same == both, "order, nesting and splitting change nothing")


def _check_pure(price: Price) -> None:
    def tossed(epsilon: float, rate: float = 0.02, *beside: Event) -> Event:
        return PoissonSampled(
            sampling_rate=rate, event=Composed(events=(Pure(epsilon=epsilon), *beside))
        )

    gauss = Gaussian(noise_multiplier=1.2)
    _must(price((Pure(epsilon=0.0), 9)) == 0.0, "a pure release of epsilon 0 costs nothing")
    _rises("epsilon of a release", lambda e: price((tossed(e), 100)), (0.1, 1.0, 3.0, 300.0))
    _rises("q", lambda q: price((tossed(0.5, q), 100)), (0.01, 0.1, 0.9, 1.0))
    _rises("count", lambda n: price((tossed(0.5), int(n))), (1, 10, 100, 1000))
    for own in (0.01, 0.5, 2.0, 20.0):
        _must(
            pure_delta(own, price((Pure(epsilon=own), 1))) <= DELTA * (1 + 1e-9),
            f"the bound of one pure release of {own} is broken",
        )
    alone = _sampled()
    _must(
        price((alone, 100)) <= price((alone, 100), (tossed(0.1), 10)),
        "a pure release beside others costs no less",
    )
    _must(
        price((alone, 100)) < price((tossed(0.1, 0.02, gauss), 100)),
        "a pure release of the same sample is not free",
    )


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise ContractBroken(what)


def _rises(name: str, price: Callable[[float], float], values: tuple[float, ...]) -> None:
    answers = [price(value) for value in values]
    _must(
        answers == sorted(answers) and answers[0] < answers[-1],
        f"epsilon does not rise with {name}: {answers}",
    )
