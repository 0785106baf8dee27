"""dp-accounting as a referee of what real runs book: every method, in every form and regime that it
has, priced by somebody else.

The events are translated here, anew: nothing of our own flattening or merging is used. An epsilon
of ours must lie

* not below ``floor``: dp-accounting's loss distribution with every loss rounded *down*, which no
  valid bound can be below;
* not above ``ceiling``, its upper bound on a grid of 2e-4, by more than 0.5 % and 0.002: nothing is
  wasted.

Where an event has no finite price, ours must be infinite, whatever the accountant.
"""

from __future__ import annotations

import math
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cases import DELTA, METHODS, PAPER, study_of
from sordino.core.method import known
from sordino.core.run import session
from sordino.privacy import Ledger, accountant
from sordino.privacy.event import (
    Chosen,
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    Nothing,
    PoissonSampled,
    Pure,
    Repeated,
)

GRID = 2e-4
History = tuple[tuple[Event, int], ...]


@cache
def histories(name: str, folder: Path) -> frozenset[History]:
    """Every different history that a run of a case booked."""
    place = folder / name.replace("/", "-")
    place.mkdir(exist_ok=True)
    study = study_of(METHODS[name], place)
    session.begin(study, place / "run", lambda _: None, lambda _: None)
    with Ledger.open(place / "run" / "ledger.sqlite", readonly=True) as ledger:
        return frozenset(ledger.spent(unit) for unit in ledger.units())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("referee")


def parts(history: History) -> list[tuple[Event, int]]:
    """Single events: nothing nested but what is sampled."""
    found: list[tuple[Event, int]] = []
    for event, count in history:
        match event:
            case Repeated(event=inside, count=times):
                found += parts(((inside, count * times),))
            case Composed(events=events):
                found += parts(tuple((inside, count) for inside in events))
            case Nothing():
                pass
            case _:
                found.append((event, count))
    return [(event, count) for event, count in found if count]


def bounded(history: History) -> bool:
    return not any(isinstance(event, NonPrivate) for event, _ in parts(history))


def of_one_sample(event: Event) -> tuple[float, float]:
    """The one noise multiplier and the one epsilon of what is released from a sample; infinite or 0
    where there is none.
    """
    precision, epsilon = 0.0, 0.0
    for inside, count in parts(((event, 1),)):
        match inside:
            case Gaussian(noise_multiplier=sigma):
                precision += count / sigma**2
            case Pure(epsilon=each):
                epsilon += count * each
            case _:
                raise TypeError(inside)
    return (1 / math.sqrt(precision) if precision else math.inf), epsilon


@cache
def priced(history: History, *, optimistic: bool) -> float:
    """Epsilon by a loss distribution rounded down or up; a sampled pure release is taken as a pure
    one of log(1 + q (e^epsilon - 1)).
    """
    from dp_accounting.pld import privacy_loss_distribution as pld

    whole = pld.identity(value_discretization_interval=GRID, pessimistic_estimate=not optimistic)
    how: dict[str, Any] = {
        "value_discretization_interval": GRID,
        "pessimistic_estimate": not optimistic,
    }
    for event, count in parts(history):
        rate, inside = (
            (event.sampling_rate, event.event)
            if isinstance(event, PoissonSampled)
            else (1.0, event)
        )
        sigma, epsilon = of_one_sample(inside)
        assert math.isinf(sigma) or not epsilon, "one of both"
        if epsilon:  # the bit of randomised response is the dearest of all pure releases
            amplified = math.log1p(rate * math.expm1(epsilon))
            one = pld.from_randomized_response(2 / (1 + math.exp(amplified)), 2, **how)
        else:
            one = pld.from_gaussian_mechanism(
                sigma, sampling_prob=rate, use_connect_dots=not optimistic, **how
            )
        whole = whole.compose(one.self_compose(count))
    return float(whole.get_epsilon_for_delta(DELTA))


def judged(history: History, ours: float, *, tight: bool = True) -> None:
    pure = any(
        of_one_sample(event.event)[1]
        for event, _ in parts(history)
        if isinstance(event, PoissonSampled)
    )
    floor = 0.0 if pure else priced(history, optimistic=True)
    assert floor <= ours
    if tight:
        ceiling = priced(history, optimistic=False)
        assert ours <= 1.005 * ceiling + 0.002


def test_every_method_and_form_is_judged() -> None:
    asked = {
        (method, "paper" if PAPER in changes else "sound")
        for _, method, changes in METHODS.values()
    }
    # other tests register theirs
    own = {name: kind for name, kind in known().items() if kind.__module__.startswith("sordino.")}
    for name, kind in own.items():
        for form in kind.about.forms:
            assert (name, "sound" if form == "plain" else form) in asked, (name, form)


@pytest.mark.parametrize("name", METHODS)
def test_what_a_run_books_costs_what_the_referee_says(name: str, folder: Path) -> None:
    booked = histories(name, folder)
    private = "privacy.unit=none" not in METHODS[name][2]
    assert booked
    assert not private or all(booked)
    for history in booked:
        prices = {
            each: accountant(each).epsilon(history, DELTA) for each in ("pld", "rdp", "rdp-classic")
        }
        if not bounded(history):
            assert set(prices.values()) == {math.inf}
        elif any(isinstance(event, Chosen) for event, _ in history):
            assert set(prices.values()) == {math.inf}  # noise was chosen along the way
            assert of_one_order(history) == pytest.approx(
                accountant("rdp@8").epsilon(history, DELTA), rel=1e-6
            )
        # beyond any grid: at least the mean loss of the unsampled Gaussians
        elif prices["pld"] > 100:
            assert prices["pld"] >= sum(
                count / (2 * of_one_sample(event)[0] ** 2) for event, count in parts(history)
            )
        elif history:
            judged(history, prices["pld"])
            judged(history, prices["rdp"], tight=False)
            assert prices["pld"] <= prices["rdp"] * (1 + 1e-9) <= prices["rdp-classic"] * (1 + 2e-9)
            if (theirs := by_renyi(history)) is not None:
                assert 0.98 * theirs <= prices["rdp"] <= 1.001 * theirs


def test_several_runs_over_the_same_records_compose(folder: Path) -> None:
    names = ("dp-sgd", "ali-dpfl", "dynamic-dp-sgd", "mapa", "audp")
    whole = tuple(entry for name in names for entry in next(iter(histories(name, folder))))
    judged(whole, accountant("pld").epsilon(whole, DELTA))


def by_renyi(history: History) -> float | None:
    """dp-accounting's Rényi accountant; None for pure releases, which it books otherwise."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    theirs = RdpAccountant()
    for event, count in parts(history):
        rate, inside = (
            (event.sampling_rate, event.event)
            if isinstance(event, PoissonSampled)
            else (1.0, event)
        )
        sigma, epsilon = of_one_sample(inside)
        if epsilon:
            return None
        theirs.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)), count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(theirs.get_epsilon(DELTA))


def of_one_order(history: History) -> float:
    """The same for noise that was chosen along the way: one order, fixed before."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    theirs = RdpAccountant([8.0])
    for event, count in parts(history):
        inside = event.event if isinstance(event, Chosen) else event
        rate, inside = (
            (inside.sampling_rate, inside.event)
            if isinstance(inside, PoissonSampled)
            else (1.0, inside)
        )
        theirs.compose(
            dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(of_one_sample(inside)[0])), count
        )
    return float(theirs.get_epsilon(DELTA))
