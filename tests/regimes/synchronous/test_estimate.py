"""The debiased estimators against a problem whose constants are known exactly.

Client i has the loss F_i(w) = mu/2 (w - c_i)^T S (w - c_i), S diagonal with as many +1 as -1: a
saddle whose gradients change by mu per unit of distance in every direction, and whose trace is
zero, as the models that we measured nearly have it (docs/estimators.md). Noise is added as DP-SGD
adds it; nothing is clipped and nothing sampled, so the correction for sampling is made negligible.
"""

from dataclasses import replace

import numpy as np
import pytest

from sordino.base.message import Statistics, Update
from sordino.regimes.synchronous.method import Terms
from sordino.regimes.synchronous.methods import (
    clipped_fraction,
    signal_to_noise,
    slope,
    smooth,
    squared_curvature,
    squared_divergence,
)

D, N, TAU, ETA, MU = 4000, 10, 2, 0.5, 0.4
SIGNS = np.where(np.arange(D) % 2, 1.0, -1.0)
TERMS = Terms(
    dimension=D,
    sizes=(6000,) * N,
    weights=(1.0 / N,) * N,
    sampling_rate=0.015,
    learning_rate=ETA,
    clip=1.0,
    noise=1.1,
    rounds=10,
    steps=100,
)


def play(seed: int, spread: float = 0.02) -> tuple[list[Update], np.ndarray]:
    """One round of noisy gradient descent at every client; returns answers and the centres."""
    rng = np.random.default_rng(seed)
    centres = 0.01 * rng.standard_normal(D) + spread * rng.standard_normal((N, D))
    answers = []
    for i in range(N):
        w, s = np.zeros(D), TERMS.deviation(i)
        gradients, places = [], []
        for _ in range(TAU):
            places.append(w)
            g = MU * SIGNS * (w - centres[i]) + s * rng.standard_normal(D)
            gradients.append(g)
            w = w - ETA * g
        moved = places[-1] - places[0]
        seen = Statistics(
            energy=float(np.mean([g @ g for g in gradients])),
            first=float(gradients[0] @ gradients[0]),
            change=float(((gradients[-1] - gradients[0]) ** 2).sum()),
            moved=float(moved @ moved),
            slope_first=float(gradients[0] @ moved),
            slope_last=float(gradients[-1] @ moved),
        )
        weights, first = w.astype(np.float32), gradients[0].astype(np.float32)
        answers.append(
            Update(client=i, round=1, steps=TAU, weights=weights, statistics=seen, first=first)
        )
    return answers, centres


# the same noise, no correction for sampling
TINY = replace(TERMS, clip=1e-9, noise=TERMS.noise * 1e9)


def test_curvature_is_unbiased_and_the_naive_one_is_not() -> None:
    seen = [squared_curvature(play(seed)[0], TINY) for seed in range(30)]
    values = np.array([s for s in seen if s is not None])
    assert values.mean() == pytest.approx(MU**2, abs=5 * values.std() / 30**0.5)
    assert values.std() / 30**0.5 < 0.1 * MU**2  # the comparison means something
    naive = squared_curvature(play(0)[0], replace(TINY, noise=0.0))
    assert naive is not None
    assert naive > 5 * MU**2


def test_divergence_is_unbiased() -> None:
    seen, truth = [], []
    for seed in range(30):
        answers, centres = play(seed)
        seen.append(squared_divergence(answers, TINY))
        truth.append(MU**2 * ((centres - centres.mean(0)) ** 2).sum(1).mean())
    error = np.array(seen, float) - np.array(truth)
    assert abs(error.mean()) < 5 * error.std() / 30**0.5
    assert error.std() < 0.25 * np.mean(truth)
    naive = squared_divergence(play(0)[0], replace(TINY, noise=0.0))
    assert naive is not None
    assert naive > 2 * truth[0]


def test_slope_is_the_secant_of_the_loss() -> None:
    """(F(w') - F(w_0)) / ||w' - w_0||, known in closed form for a quadratic."""
    seen, truth = [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        centre = 0.05 * rng.standard_normal(D)
        w, s, gradients, places = np.zeros(D), TERMS.deviation(0), [], []
        for _ in range(TAU):
            places.append(w)
            gradients.append(MU * SIGNS * (w - centre) + s * rng.standard_normal(D))
            w = w - ETA * gradients[-1]
        moved = places[-1]
        loss = [MU / 2 * (SIGNS * (p - centre) ** 2).sum() for p in (places[-1], places[0])]
        truth.append((loss[0] - loss[1]) / np.linalg.norm(moved))
        stats = Statistics(
            energy=0.0,
            first=0.0,
            change=0.0,
            moved=float(moved @ moved),
            slope_first=float(gradients[0] @ moved),
            slope_last=float(gradients[-1] @ moved),
        )
        answers = [
            Update(client=0, round=1, steps=TAU, weights=np.zeros(1, np.float32), statistics=stats)
        ]
        seen.append(slope(answers, TINY))
    error = np.array(seen, float) - np.abs(truth)
    assert abs(error.mean()) < 5 * error.std() / 30**0.5
    assert np.mean(np.abs(truth)) > 10 * abs(error.mean())


def test_nothing_to_compare_is_no_estimate() -> None:
    answers, _ = play(0)
    single = [
        Update(client=0, round=1, steps=1, weights=a.weights, statistics=a.statistics)
        for a in answers[:1]
    ]
    assert squared_curvature(single, TERMS) is None
    assert slope([], TERMS) is None
    assert squared_divergence(answers[:1], TERMS) is None
    assert clipped_fraction(answers, TERMS) is None
    assert signal_to_noise(answers, replace(TERMS, noise=0.0)) is None


def test_signal_to_noise_is_that_of_one_step() -> None:
    answers, centres = play(1, spread=0.0)
    signal = MU * np.linalg.norm(centres[0])
    noise = TERMS.deviation(0) * D**0.5
    assert signal_to_noise(answers, TERMS) == pytest.approx(signal / noise, rel=0.35)


def test_squares_of_signal_to_noise_average_to_zero_where_there_is_no_signal() -> None:
    """Cut off at zero they could not; the figure averages them over rounds."""
    rng, squares = np.random.default_rng(5), []
    for _ in range(400):
        energy = TERMS.deviation(0) ** 2 * float(rng.chisquare(TERMS.dimension))
        seen = Statistics(
            energy=energy, first=0.0, change=0.0, moved=0.0, slope_first=0.0, slope_last=0.0
        )
        ratio = signal_to_noise(
            [Update(client=0, round=1, steps=1, weights=np.zeros(1, np.float32), statistics=seen)],
            TERMS,
        )
        assert ratio is not None
        squares.append(ratio * abs(ratio))
    spread = (2.0 / TERMS.dimension) ** 0.5  # of one of them: chi-square over its mean
    assert min(squares) < 0.0 < max(squares)
    assert abs(np.mean(squares)) < 5 * spread / len(squares) ** 0.5


def test_on_a_bowl_the_first_steps_noise_feeds_back() -> None:
    """The known limit: where the trace is not zero, E1 is high by 2 eta d s^2 tr(H)/d per squared
    distance.
    """
    rng, s, seen = np.random.default_rng(0), TERMS.deviation(0), []
    for _ in range(40):
        first = s * rng.standard_normal(D)
        moved = -ETA * first
        last = MU * moved + s * rng.standard_normal(D)
        seen.append((((last - first) ** 2).sum() - 2 * D * s**2) / (moved @ moved))
    assert np.mean(seen) == pytest.approx(MU**2 + 2 * MU / ETA, rel=0.05)


@pytest.mark.parametrize("new", [None, float("nan"), float("inf"), float("-inf")])
def test_an_average_keeps_its_last_finite_value(new: float | None) -> None:
    assert smooth(0.5, new) == 0.5
    assert smooth(None, new) is None
    assert smooth(1.0, 0.5) == pytest.approx(0.9)
