"""What a few seeds can show: the numbers of an independent implementation, and words that promise
no more.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel  # type: ignore[import-untyped]

from sordino.comparison.result import CONFIDENCE, Paired, paired, spread, verdict
from sordino.core.regimes import OF_NUMBERS

COUNTS = st.integers(2, 8).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 10000), min_size=n, max_size=n)] * 2)
)


@given(COUNTS)
def test_interval_is_that_of_the_paired_t_test(counts: tuple[list[int], list[int]]) -> None:
    first, second = ([count / 10000 for count in each] for each in counts)
    found = paired(dict(enumerate(first)), dict(enumerate(second)))
    if len({b - a for a, b in zip(*counts, strict=True)}) == 1:
        assert found.interval is None
        return
    wanted = ttest_rel(second, first).confidence_interval(CONFIDENCE)
    assert found.interval == pytest.approx((wanted.low, wanted.high), rel=1e-9, abs=1e-12)


def test_only_seeds_that_both_have_are_pairs() -> None:
    found = paired({0: 0.5, 1: 0.6, 3: 0.7}, {3: 0.5, 1: 0.75, 2: 0.9})
    assert found.seeds == (1, 3)
    assert found.differences == pytest.approx((0.15, -0.2))
    assert found.mean == pytest.approx(-0.025)


def test_spread_of_few() -> None:
    assert spread([]) == spread([]).__class__(None, None, 0)
    assert (spread([0.5]).mean, spread([0.5]).sd) == (0.5, None)


def of(*differences: float) -> Paired:
    zero = dict.fromkeys(range(len(differences)), 0.0)
    return paired(zero, dict(enumerate(differences)))


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ((), "no seed has finished in both"),
        ((0.3,), "nothing can be concluded"),
        ((0.012, 0.016, 0.02), "B is better in every seed, by 1.2 to 2.0 points"),
        ((-0.012, -0.016, -0.02), "B is worse in every seed, by 1.2 to 2.0 points"),
        (
            (0.01, 0.09, 0.02),
            "B is ahead in every seed, by 1.0 to 9.0 points, but 3 seeds cannot show",
        ),
        ((-0.01, -0.09, -0.02), "B is behind in every seed"),
        ((-0.01, 0.09, 0.02), "no difference that 3 seeds can show"),
        ((0.0, 0.0), "exactly the same"),
        ((0.25, 0.25), "B is better by the same 25.0 points in all 2 seeds: without a spread"),
        (
            (-0.001, *[0.05 + 0.001 * i for i in range(20)]),
            "B is better on average, not in every seed",
        ),
    ],
)
def test_words(differences: tuple[float, ...], said: str) -> None:
    assert verdict("B", of(*differences)).startswith(said) or said in verdict("B", of(*differences))


def test_of_errors_less_is_better() -> None:
    less = of(-3.0, -3.5, -4.0)
    assert verdict("B", less, OF_NUMBERS) == "B is better in every seed, by 3 to 4"
    assert verdict("B", less).startswith("B is worse in every seed")
    assert verdict("B", of(0.0, 0.0), OF_NUMBERS) == "exactly the same RMSE in every seed"
