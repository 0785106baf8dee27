"""Randomised response: probabilities as they are realised, the price, and answers that stay the
same without a table.
"""

import itertools
import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2  # type: ignore[import-untyped]

from sordino.base.entropy import Seeded
from sordino.base.errors import DataError, StudyError
from sordino.mechanisms.response import STEPS, RandomisedResponse, secret
from sordino.privacy import Pure, Repeated, accountant

FALSE_ALARM = 1e-9
WRONG = (2 / 3, 3 / 2)


def masses(mechanism: RandomisedResponse, label: int) -> list[int]:
    """How many of the 2^53 uniforms give each answer to ``label``, found by asking: answers change
    K - 1 times at most.
    """

    def answer(step: int) -> int:
        return int(mechanism._answers(np.array([label]), np.array([step]))[0])

    found, start = [0] * mechanism.classes, 0
    while start < STEPS:
        here, low, high = answer(start), start, STEPS  # low answers as start does, high does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if answer(middle) == here else (low, middle)
        found[here] += high - start
        start = high
    return found


def goodness(observed: Any, expected: Any) -> float:
    """The probability of a chi-square as large as this one's."""
    observed, expected = np.ravel(observed), np.ravel(expected)
    assert expected.min() > 20
    return float(chi2.sf(((observed - expected) ** 2 / expected).sum(), observed.size - 1))


def table(labels: Any, answers: Any, classes: int) -> Any:
    """Counts (K, K) of answers by label."""
    return np.bincount(labels * classes + answers, minlength=classes**2).reshape(classes, classes)


def fits(counts: Any, epsilon: float) -> bool:
    """Whether answers could be those of this epsilon, whatever the label; written anew from Kairouz
    et al.'s formula.
    """
    classes = len(counts)
    share = (np.ones((classes, classes)) + np.eye(classes) * math.expm1(epsilon)) / (
        math.exp(epsilon) + classes - 1
    )
    return all(
        goodness(row, row.sum() * expected) > FALSE_ALARM / classes
        for row, expected in zip(counts, share, strict=True)
    )


# --- one answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "classes"),
    [
        (1e-9, 2),
        (1e-12, 10),
        (0.1, 3),
        (1.0, 2),
        (2.0, 10),
        (5.0, 4),
        (9.0, 3),
        (36.0, 2),
        (50.0, 10),
        (700.0, 3),
    ],
)
def test_no_answer_is_likelier_by_more_than_epsilon_as_realised(
    epsilon: float, classes: int
) -> None:
    """Brute force over all labels, all their neighbours and all answers, in exact arithmetic."""
    mechanism = RandomisedResponse(epsilon=epsilon, classes=classes)
    realised = [masses(mechanism, label) for label in range(classes)]
    worst = max(
        Fraction(a[r], b[r]) for a, b in itertools.permutations(realised, 2) for r in range(classes)
    )
    with mpmath.workdps(400):
        told = mpmath.exp(mpmath.mpf(epsilon))
        assert mpmath.mpf(worst.numerator) / worst.denominator <= told
        p, q = told / (told + classes - 1), 1 / (told + classes - 1)
        for label, row in enumerate(realised):
            assert sum(row) == STEPS
            assert row[label] <= STEPS * p
            # the slack that is stated
            assert STEPS * p - row[label] < classes - 1 + mpmath.mpf(10) ** -20
            # the others are exactly alike
            assert len({mass for other, mass in enumerate(row) if other != label}) == 1
            assert all(
                STEPS * q <= mass < STEPS * q + 1
                for other, mass in enumerate(row)
                if other != label
            )
    assert (mechanism.keep, mechanism.other) == (realised[0][0] / STEPS, realised[0][1] / STEPS)
    assert mechanism.event() == Pure(epsilon=epsilon)
    # nothing is given away either, and the test would see two thirds of epsilon booked
    if 0.1 <= epsilon <= 9.0:
        assert math.log(worst) == pytest.approx(epsilon, abs=1e-11)
        assert math.log(worst) > 0.99 * epsilon


@given(epsilon=st.floats(1e-6, 1e3), classes=st.integers(2, 2000))
def test_the_realised_ratio_is_never_above_the_one_booked(epsilon: float, classes: int) -> None:
    mechanism = RandomisedResponse(epsilon=epsilon, classes=classes)
    kept, other = Fraction(mechanism.keep) * STEPS, Fraction(mechanism.other) * STEPS
    assert kept + (classes - 1) * other == STEPS
    with mpmath.workdps(500):
        assert mpmath.mpf(int(kept)) / int(other) <= mpmath.exp(mpmath.mpf(epsilon))


@pytest.mark.parametrize(("epsilon", "classes"), [(1.0, 2), (2.0, 10), (0.7, 5)])
def test_answers_have_the_epsilon_that_is_booked_and_no_other(epsilon: float, classes: int) -> None:
    mechanism = RandomisedResponse(epsilon=epsilon, classes=classes)
    labels = np.arange(30_000 * classes) % classes
    by_draw = mechanism.respond(labels, Seeded(1).at("answers"))
    by_key = mechanism.respond_for(labels, np.arange(len(labels)), secret(Seeded(1).at("key")))
    for answers in (by_draw, by_key):
        counts = table(labels, answers, classes)
        assert fits(counts, epsilon)
        for wrong in WRONG:
            assert not fits(counts, epsilon * wrong)


def test_hardly_any_noise_and_one_class_break_nothing() -> None:
    labels = np.arange(1000) % 10
    for epsilon in (50.0, 1e4, 1e308):
        assert np.array_equal(
            RandomisedResponse(epsilon=epsilon, classes=10).respond(labels, Seeded(2).at("x")),
            labels,
        )
    edge = np.array([0, STEPS - 1])
    sure = RandomisedResponse(epsilon=50.0, classes=10)
    assert sure._answers(np.array([9, 9]), edge).tolist() == [9, 8]
    alone = RandomisedResponse(epsilon=1.0, classes=1)
    assert alone._answers(np.zeros(2, dtype=np.int64), edge).tolist() == [0, 0]
    assert alone.event() == Pure(epsilon=0.0)
    assert alone.accuracy(1.0) == 1.0
    assert accountant("pld").epsilon([(alone.event(), 100)], 1e-5) == 0.0


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.int64, np.uint64])
def test_labels_of_every_width_are_answered_alike_and_left_alone(dtype: Any) -> None:
    mechanism = RandomisedResponse(epsilon=0.5, classes=250)
    labels = (np.arange(5000) % 250).astype(dtype)
    kept = labels.copy()
    answers = mechanism.respond(labels, Seeded(3).at("x"))
    assert np.array_equal(labels, kept)
    assert np.array_equal(answers, mechanism.respond(kept.astype(np.int64), Seeded(3).at("x")))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"epsilon": 0.0}, "must be a positive number"),
        ({"epsilon": math.inf}, "must be a positive number"),
        ({"epsilon": math.nan}, "must be a positive number"),
        ({"classes": 0}, "from 1; got 0"),
        ({"epsilon": 1e-15}, "too small to be drawn for 10 classes"),
        ({"classes": 2**60}, "too small to be drawn"),
    ],
)
def test_refuses_what_is_no_mechanism(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(StudyError, match=says):
        RandomisedResponse(**{"epsilon": 1.0, "classes": 10, **wrong})


def test_refuses_labels_and_numbers_that_are_none() -> None:
    mechanism, rng = RandomisedResponse(epsilon=1.0, classes=3), Seeded(0).at("x")
    with pytest.raises(DataError, match="label 3 at place 1 is none of 3 classes"):
        mechanism.respond(np.array([0, 3]), rng)
    with pytest.raises(DataError, match="label -1 at place 0"):
        mechanism.respond(np.array([-1]), rng)
    with pytest.raises(DataError, match="must be whole numbers"):
        mechanism.respond(np.array([0.0]), rng)

    for numbers in (np.array([1.0]), np.array([1, 2])):
        with pytest.raises(DataError, match="visits must be 1 whole numbers"):
            mechanism.respond_for(np.array([0]), np.array([7]), (1, 2), visits=numbers)


# --- the price of many ----------------------------------------------------------------------------


def composed_delta(mechanism: RandomisedResponse, count: int, epsilon: float) -> float:
    """delta of ``count`` answers to one label against another, from the trinomial of own, other and
    neither, as realised.
    """
    p, q = mechanism.keep, mechanism.other
    rest = max(0.0, 1.0 - p - q) if mechanism.classes > 2 else 0.0
    step, found = math.log(p / q), 0.0
    for own in range(count + 1):
        for other in range(count + 1 - own):
            neither = count - own - other
            if rest == 0.0 and neither:
                continue
            ways = math.comb(count, own) * math.comb(count - own, other)
            found += (
                ways
                * p**own
                * q**other
                * rest**neither
                * max(0.0, -math.expm1(epsilon - (own - other) * step))
            )
    return found


@pytest.mark.parametrize("epsilon", [0.25, 1.0])
@pytest.mark.parametrize("count", [1, 12, 60])
def test_two_classes_are_priced_exactly_and_more_never_too_low(epsilon: float, count: int) -> None:
    price = accountant("pld")
    for classes in (2, 10):
        mechanism = RandomisedResponse(epsilon=epsilon, classes=classes)
        spent = [(Repeated(event=mechanism.event(), count=count), 1)]
        assert price.epsilon(spent, 1e-300) == pytest.approx(count * epsilon)
        for x in (0.0, 0.3 * count * epsilon, 0.8 * count * epsilon):
            exact = composed_delta(mechanism, count, x)
            assert price.delta(spent, x) >= exact * (1 - 1e-9)
            if classes == 2:
                assert price.delta(spent, x) == pytest.approx(exact, rel=1e-8)
            else:
                # a third answer that both labels give alike tells nothing
                assert exact < price.delta(spent, x)


def test_dp_accountings_randomised_response_agrees() -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    def theirs(classes: int, upper: bool) -> Any:
        # theirs draws from all classes this often
        drawn = classes * RandomisedResponse(epsilon=epsilon, classes=classes).other
        return pld.from_randomized_response(
            drawn, classes, pessimistic_estimate=upper, value_discretization_interval=1e-4
        )

    epsilon, count = 0.25, 40
    ours = accountant("pld")
    spent = [(RandomisedResponse(epsilon=epsilon, classes=2).event(), count)]
    for classes in (2, 10):
        low, high = (theirs(classes, upper).self_compose(count) for upper in (False, True))
        for x in (1.0, 3.0, 6.0):
            assert low.get_delta_for_epsilon(x) <= ours.delta(spent, x)
            assert (
                low.get_delta_for_epsilon(x)
                > ours.delta([(Pure(epsilon=epsilon * 2 / 3), count)], x)
                or classes > 2
            )
            if classes == 2:
                assert (
                    ours.delta(spent, x)
                    <= high.get_delta_for_epsilon(x)
                    <= low.get_delta_for_epsilon(x) * 1.05
                )


# --- what can be learned --------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "classes"), [(0.5, 2), (1.0, 10), (3.0, 10)])
@pytest.mark.parametrize("right", [0.0, 0.37, 1.0])
def test_accuracy_is_unbiased_and_has_its_deviation(
    epsilon: float, classes: int, right: float
) -> None:
    mechanism, runs, n = RandomisedResponse(epsilon=epsilon, classes=classes), 400, 500
    labels = np.arange(n) % classes
    predictions = np.where(np.arange(n) < round(right * n), labels, (labels + 1) % classes)
    share, rng = float((predictions == labels).mean()), Seeded(9).at("accuracy")
    found = np.array(
        [
            mechanism.accuracy(float((predictions == mechanism.respond(labels, rng)).mean()))
            for _ in range(runs)
        ]
    )
    p, q = mechanism.keep, mechanism.other
    expected = math.sqrt((share * p * (1.0 - p) + (1.0 - share) * q * (1.0 - q)) / n) / (p - q)
    assert abs(found.mean() - share) < 6.1 * expected / math.sqrt(runs)
    spread = found.var() / expected**2
    assert chi2.sf(runs * spread, runs - 1) > FALSE_ALARM
    assert chi2.cdf(runs * spread, runs - 1) > FALSE_ALARM
    # so wrong deviations would have been seen
    assert chi2.sf(runs * spread * WRONG[1] ** 2, runs - 1) < FALSE_ALARM
    assert chi2.cdf(runs * spread * WRONG[0] ** 2, runs - 1) < FALSE_ALARM
    if right == 0.0:
        assert found.min() < 0.0  # not clipped, which would bias it


# --- asked again ----------------------------------------------------------------------------------

KEY = (0x0123456789ABCDEF, 0xFEDCBA9876543210)


@given(order=st.permutations(list(range(12))), cuts=st.integers(0, 12), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_an_entitys_answer_is_the_same_whenever_it_is_asked_for(
    order: list[int], cuts: int, seed: int
) -> None:
    mechanism, key = RandomisedResponse(epsilon=0.5, classes=7), secret(Seeded(seed).at("key"))
    entities = np.array([0, 1, -1, 5, 2**40, -(2**63), 7, 8, 9, 2**63 - 1, 10, 11])
    labels = np.arange(12) % 7
    whole = mechanism.respond_for(labels, entities, key)
    shuffled = np.array(order)
    for part in (shuffled[:cuts], shuffled[cuts:]):
        assert np.array_equal(mechanism.respond_for(labels[part], entities[part], key), whole[part])
    assert np.array_equal(
        mechanism.respond_for(
            labels, entities.view(np.uint64), key, visits=np.zeros(12, dtype=np.int8)
        ),
        whole,
    )


def test_averaging_reveals_nothing_new_where_fresh_answers_give_the_label_away() -> None:
    mechanism = RandomisedResponse(epsilon=0.5, classes=5)
    labels, entities = np.full(2000, 3), np.zeros(2000, dtype=np.int64)
    assert len(set(mechanism.respond_for(labels, entities, KEY).tolist())) == 1
    fresh = mechanism.respond_for(labels, entities, KEY, visits=np.arange(2000))
    assert int(np.bincount(fresh).argmax()) == 3


@pytest.mark.parametrize("other", ["visit", "key", "epsilon", "classes"])
def test_another_visit_key_or_mechanism_has_draws_of_its_own(other: str) -> None:
    """Two answers about one label are jointly distributed as two independent ones; with shared
    draws they would not be.
    """
    n, one = 40_000, RandomisedResponse(epsilon=1.0, classes=3)
    labels, entities = np.full(n, 1), np.arange(n)
    two = RandomisedResponse(
        epsilon=1.0 + 1e-9 * (other == "epsilon"), classes=4 if other == "classes" else 3
    )
    key = (KEY[0] ^ 1, KEY[1]) if other == "key" else KEY
    visits = np.full(n, int(other == "visit"))
    first = one.respond_for(labels, entities, KEY, visits=np.zeros(n, dtype=np.int64))
    second = two.respond_for(labels, entities, key, visits=visits)
    joint = np.bincount(first * 4 + second, minlength=12).reshape(3, 4)[:, : two.classes]
    law = [np.where(np.arange(m.classes) == 1, m.keep, m.other) for m in (one, two)]
    assert goodness(joint, n * np.outer(*law)) > FALSE_ALARM
    shared = np.bincount(first * 4 + first, minlength=12).reshape(3, 4)[:, : two.classes]
    assert goodness(shared, n * np.outer(*law)) < FALSE_ALARM  # the test sees equal draws


def test_shared_draws_for_a_label_that_changes_have_no_epsilon() -> None:
    """Why an unequal pair must be impossible: it is proof that the label changed. With separate
    visits it is none, for 2 epsilon.
    """
    n, epsilon = 40_000, 1.0
    mechanism = RandomisedResponse(epsilon=epsilon, classes=2)
    entities, zero, one = np.arange(n), np.zeros(n, dtype=np.int64), np.ones(n, dtype=np.int64)

    def pairs(first: Any, second: Any, *visits: Any) -> Any:
        one_by_one = zip((first, second), visits, strict=True)
        left, right = (
            mechanism.respond_for(label, entities, KEY, visit) for label, visit in one_by_one
        )
        return table(left, right, 2)

    shared = [pairs(zero, second, None, None) for second in (zero, one)]
    assert shared[0][0, 1] == shared[0][1, 0] == 0
    assert shared[1][0, 1] > n / 2
    apart = [pairs(zero, second, zero, one) for second in (zero, one)] + [
        pairs(one, one, zero, one),
        pairs(one, zero, zero, one),
    ]
    for more, less in itertools.permutations(apart, 2):
        assert np.all(
            more
            <= math.exp(2 * epsilon) * less + 6.1 * np.sqrt(more + math.exp(4 * epsilon) * less)
        )
    # the bound is reached by opposite labels, so two thirds of it would have been seen to fail
    assert np.any(
        apart[0]
        > math.exp(4 / 3 * epsilon) * apart[2]
        + 6.1 * np.sqrt(apart[0] + math.exp(8 / 3 * epsilon) * apart[2])
    )
