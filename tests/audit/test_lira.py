"""The likelihood-ratio attack on made-up runs: what it finds, and that its bounds hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from sordino.audit.bounds import gaussian_epsilon
from sordino.audit.lira import (
    FORMS,
    RATES,
    Form,
    Observed,
    confidence,
    curve_of,
    hits_at,
    inferred,
    scored,
)
from sordino.base.errors import StudyError


def made(runs: int, records: int, shift: float, seed: int = 0) -> Observed:
    """Runs in which a record that is there is seen ``shift`` deviations higher."""
    rng = np.random.default_rng(seed)
    coins = rng.random((runs, records)) < 0.5
    own = rng.normal(0.0, 3.0, records)  # some records are hard
    return Observed(own + rng.standard_normal((runs, records)) + shift * coins, coins)


def test_confidence_is_the_logit_of_the_own_labels_probability() -> None:
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(0.0, 5.0, (50, 7)), rng.integers(0, 7, 50)
    p = np.exp(scores - scores.max(1)[:, None])
    own = (p / p.sum(1)[:, None])[np.arange(50), labels]
    assert confidence(scores, labels) == pytest.approx(np.log(own) - np.log1p(-own), rel=1e-6)
    sure = confidence(np.array([[1e4, 0.0]]), np.array([0]))  # where p is 1 to every digit
    assert sure == pytest.approx([1e4])


def test_scores_are_the_likelihood_ratio_of_the_shadow_runs() -> None:
    shadows = made(400, 40, 1.0)
    phi = np.linspace(-1.0, 2.0, 40)
    near = np.array([shadows.phi[shadows.coins[:, j], j].mean() for j in range(40)])
    far = np.array([shadows.phi[~shadows.coins[:, j], j].mean() for j in range(40)])
    spread = [
        math.sqrt(
            sum(
                float(np.var(shadows.phi[mask[:, j], j])) * mask[:, j].sum() for j in range(40)
            )
            / (mask.sum() - 40)
        )
        for mask in (shadows.coins, ~shadows.coins)
    ]  # fmt: skip
    wanted = stats.norm.logpdf(phi, near, spread[0]) - stats.norm.logpdf(phi, far, spread[1])
    assert scored(shadows, phi, "online") == pytest.approx(wanted)
    assert scored(shadows, phi, "offline") == pytest.approx((phi - far) / spread[1])


def test_a_record_that_all_shadow_runs_have_borrows_the_others_difference() -> None:
    shadows = made(16, 30, 2.0)
    shadows.coins[:, 0], shadows.coins[:, 1] = True, False
    for form in FORMS:
        assert np.isfinite(scored(shadows, np.zeros(30), form)).all()


def test_a_curve_goes_through_all_thresholds_and_equal_scores_are_one() -> None:
    alarms, hits = curve_of(np.array([3.0, 2.0, 2.0]), np.array([2.0, 1.0]))
    assert alarms.tolist() == [0.0, 0.0, 0.5, 1.0]
    assert hits == pytest.approx([0.0, 1 / 3, 1.0, 1.0])
    assert hits_at(alarms, hits, 0.4) == pytest.approx(1 / 3)


@pytest.mark.parametrize("form", FORMS)
def test_the_attack_finds_what_is_there_and_does_not_say_too_much(form: Form) -> None:
    seen = made(24, 3000, 2.0)
    found = inferred(seen.take(slice(16)), seen.take(slice(16, None)), form, 1e-5, 0.05)
    true = gaussian_epsilon(2.0, 1e-5)
    assert found.guesses == 8 * 3000
    assert found.area > 0.8
    assert found.hits[0] > 5 * RATES[0]
    assert 0.5 < found.low_run <= found.low <= true
    points = np.array(found.curve)
    assert points[0].tolist() == [0.0, 0.0]
    assert points[-1].tolist() == [1.0, 1.0]
    assert (np.diff(points, axis=0) >= 0.0).all()


def test_bounds_are_wrong_as_seldom_as_they_say() -> None:
    wrong, times = 0, 40
    for seed in range(times):
        seen = made(8, 300, 0.0, seed)
        found = inferred(seen.take(slice(5)), seen.take(slice(5, None)), "online", 1e-5, 0.05)
        wrong += max(found.low, found.low_run) > 0.0
    assert stats.binom.sf(wrong - 1, times, 0.05) > 1e-3


def test_the_threshold_is_chosen_on_shadow_runs_alone() -> None:
    """Other coins of the attacked runs change what is counted, and nothing that is chosen."""
    seen = made(12, 400, 1.5)
    shadows, targets = seen.take(slice(8)), seen.take(slice(8, None))
    turned = Observed(targets.phi, ~targets.coins)
    right = inferred(shadows, targets, "online", 1e-5, 0.05)
    wrong = inferred(shadows, turned, "online", 1e-5, 0.05)
    assert right.area == pytest.approx(1.0 - wrong.area)
    assert wrong.low == wrong.low_run == 0.0


def test_too_few_runs_are_refused() -> None:
    seen = made(4, 10, 1.0)
    with pytest.raises(StudyError, match="at least 4 of them"):
        inferred(seen.take(slice(3)), seen.take(slice(3, None)), "online", 1e-5, 0.05)
    with pytest.raises(StudyError, match="and a run to attack"):
        inferred(seen, seen.take(slice(4, None)), "online", 1e-5, 0.05)
