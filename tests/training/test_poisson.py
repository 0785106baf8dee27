"""Poisson samples, by a number for every index and by gaps: the same distribution, to the edges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from sordino.base.entropy import Seeded
from sordino.training import client as bench
from sordino.training.client import poisson

Z = 6.1  # standard errors, two-sided: one false alarm in 1e9
Draw = Callable[[int, float, np.random.Generator], NDArray[np.int64]]


def by_numbers(count: int, rate: float, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.flatnonzero(rng.random(count) < rate)


def shortsighted(count: int, rate: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Broken: the first index is a gap too far."""
    return bench._by_gaps(count, rate, rng) + 1


def looks_poisson(draw: Draw, count: int, rate: float, repeats: int) -> bool:
    """Sizes, every index alone, and neighbours: how often, against what independent draws would
    give.
    """
    rng = Seeded(1).at(count)
    seen = np.zeros((repeats, count + 1), np.float32)
    for row in seen:
        row[draw(count, rate, rng)] = 1
    if seen[:, count].any():
        return False
    seen = seen[:, :count]
    sizes, variance = seen.sum(1), count * rate * (1 - rate)
    mean_fits = abs(sizes.mean() - count * rate) < Z * (variance / repeats) ** 0.5
    # the variance of a sample variance of nearly normal sizes is 2 sigma^4 / repeats; small means
    # have a little more
    spread_fits = abs(sizes.var() / variance - 1) < Z * ((2 + 1 / variance) / repeats) ** 0.5
    alone = (
        np.abs(seen.mean(0) - rate).max()
        < 1.3 * Z * (rate * (1 - rate) / repeats) ** 0.5 + 3 / repeats
    )
    pairs = [(seen[:, :-lag] * seen[:, lag:]).mean() for lag in (1, 2, 5)]
    deviation = (rate**2 * (1 + 2 * rate) / (repeats * (count - 5))) ** 0.5
    return bool(
        mean_fits
        and spread_fits
        and alone
        and all(abs(pair - rate**2) < Z * deviation for pair in pairs)
    )


@pytest.mark.parametrize(("count", "rate"), [(60, 0.2), (400, 0.05), (50, 0.9), (7, 0.3)])
def test_gaps_and_numbers_have_one_distribution(count: int, rate: float) -> None:
    repeats = 5000  # 4000 see a rate of 1.1 times, of seven, with all but a millionth of the chance
    assert looks_poisson(by_numbers, count, rate, repeats)
    assert looks_poisson(bench._by_gaps, count, rate, repeats)
    assert not looks_poisson(shortsighted, count, rate, repeats)
    assert not looks_poisson(lambda n, q, rng: by_numbers(n, 1.1 * q, rng), count, rate, repeats)
    assert not looks_poisson(
        lambda n, q, rng: np.sort(rng.choice(n, round(n * q), replace=False)), count, rate, repeats
    )


def test_small_rates_of_many_are_poisson() -> None:
    rng = Seeded(2).at("x")
    count, rate, repeats = 12_000, 0.001, 20_000
    draws = [poisson(count, rate, rng).numpy() for _ in range(repeats)]
    sizes = np.array([len(one) for one in draws])
    variance = count * rate * (1 - rate)
    assert abs(sizes.mean() - count * rate) < Z * (variance / repeats) ** 0.5
    assert abs(sizes.var() / variance - 1) < Z * ((2 + 1 / variance) / repeats) ** 0.5
    places = np.concatenate(draws)
    assert places.min() >= 0
    assert places.max() < count
    tenths = np.bincount(places * 10 // count, minlength=10) / repeats
    assert np.abs(tenths - variance / 10).max() < 1.2 * Z * (variance / 10 / repeats) ** 0.5
    assert all((np.diff(one) > 0).all() for one in draws)


def test_runs_out_of_gaps_and_draws_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """More chosen than were expected: the sample goes on where it was."""

    class Ones:
        left = 300

        def geometric(self, rate: float, size: int) -> NDArray[np.int64]:
            return np.ones(size, np.int64)

    assert bench._by_gaps(2000, 0.01, Ones()).tolist() == list(range(2000))  # type: ignore[arg-type]


@pytest.mark.parametrize("gap", [0, 2**63 - 1])
def test_the_longest_gaps_do_not_wrap_and_the_shortest_do_not_repeat(gap: int) -> None:
    class Edge:
        def geometric(self, rate: float, size: int) -> NDArray[np.int64]:
            return np.resize(np.array([1, gap, 2**63 - 1]), size)

    wanted = [0] if gap else [0, 1]
    assert bench._by_gaps(2000, 0.01, Edge()).tolist() == wanted  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 1, 2, 5000, 10**6])
@pytest.mark.parametrize("rate", [0.0, 5e-324, 1e-300, 1e-18])
def test_rates_that_choose_nobody(count: int, rate: float) -> None:
    rng = Seeded(3).at("x")
    assert all(len(poisson(count, rate, rng)) == 0 for _ in range(20))


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_a_rate_of_one_chooses_all(count: int) -> None:
    assert poisson(count, 1.0, Seeded(4).at("x")).tolist() == list(range(count))


def test_one_example() -> None:
    rng = Seeded(5).at("x")
    draws: list[Draw] = [lambda n, q, rng: poisson(n, q, rng).numpy(), bench._by_gaps]
    for draw in draws:
        assert (
            abs(np.mean([len(draw(1, 0.3, rng)) for _ in range(20_000)]) - 0.3)
            < Z * (0.21 / 20_000) ** 0.5
        )


def test_the_same_generator_gives_the_same_batch_of_whole_numbers() -> None:
    first, again = (poisson(12_000, 0.01, Seeded(6).at("x")) for _ in range(2))
    assert first.dtype == again.dtype
    assert first.tolist() == again.tolist()


@pytest.mark.parametrize("rate", [1e-12, 3e-12, 1e-20, 0.3, 1.0])
def test_nobody_is_drawn_more_often_than_is_booked(rate: float) -> None:
    """Of the 2^53 numbers that a generator makes, at most q 2^53 draw a record."""
    most = int(rate * 2.0**53)
    first = max(most - 5, 0)  # all numbers before it do

    class Near:
        """Makes the numbers around q, one for each record."""

        def random(self, count: int) -> NDArray[np.float64]:
            return np.minimum(first + np.arange(count), 2**53 - 1).astype(np.float64) * 2.0**-53

    drawn = poisson(11, rate, Near())  # type: ignore[arg-type]
    assert first + len(drawn) <= rate * 2.0**53 or rate == 1.0
