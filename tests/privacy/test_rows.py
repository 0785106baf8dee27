"""Several rows of one person, drawn by themselves: the pair of mixtures against quadrature, against
dp-accounting, against gradients of any kind, and against what a client really sends.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import integrate, optimize, stats  # type: ignore[import-untyped]

from permitted import permits
from sordino.base.entropy import Seeded
from sordino.base.message import Train
from sordino.mechanisms.gaussian import Gaussian as Noise
from sordino.privacy import (
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    PoissonSampled,
    Pure,
    SampledRows,
    Selected,
    accountant,
    decode,
    encode,
    noise_multiplier,
)
from sordino.privacy.event import MOST_ROWS, Poisson
from sordino.privacy.pure import Kind
from sordino.privacy.records.group import bare, grouped, of_rows, replaced, whole
from sordino.privacy.renyi import rows_divergence
from sordino.training import models
from sordino.training.client import ModelKernels, PrivateClient
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.optimizer import Sgd
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

Step = tuple[float, float, int]  # q, sigma, k
STEPS: list[Step] = [(0.1, 1.6, 2), (0.1, 6.27, 10), (0.5, 1.0, 4), (0.01, 0.8, 3), (0.9, 5.0, 3)]


def rows(step: Step) -> SampledRows:
    q, sigma, k = step
    return SampledRows(q, k, Gaussian(noise_multiplier=sigma))


def log_ratio(step: Step, x: Any) -> Any:
    """Of the person's rows there against not there, at the noise x."""
    q, sigma, k = step
    drawn = [stats.binom.logpmf(j, k, q) + (j * x - j * j / 2) / sigma**2 for j in range(k + 1)]
    return np.logaddexp.reduce(drawn, axis=0)


def reached(step: Step, loss: float) -> float:
    """The noise at which the ratio's logarithm is ``loss``; minus infinity where it is larger."""
    q, sigma, k = step
    if loss <= k * math.log1p(-q):
        return -math.inf
    far = 50.0 * sigma + k + abs(loss) * sigma**2
    return float(optimize.brentq(lambda x: log_ratio(step, x) - loss, -far, far, xtol=1e-13))


def masses(step: Step, x: float) -> tuple[float, float]:
    """Of noise beyond x: with the rows, and without."""
    q, sigma, k = step
    chances = stats.binom.pmf(range(k + 1), k, q)
    return float(chances @ stats.norm.sf(x, range(k + 1), sigma)), float(stats.norm.sf(x, 0, sigma))


def hockey_stick(step: Step, a: float, b: float, *, turned: bool) -> float:
    """The integral of (a p - b p')+ for the pair, or (``turned``) for the pair the other way."""
    if not turned:
        with_rows, without = masses(step, reached(step, math.log(b / a)))
        return a * with_rows - b * without
    with_rows, without = masses(step, reached(step, math.log(a / b)))
    return a * (1.0 - without) - b * (1.0 - with_rows)


def of_two(one: Step, other: Step, epsilon: float, *, turned: bool) -> float:
    """The divergence of two steps: quadrature over the first, the second as above."""

    def excess(x: float) -> float:
        density = stats.norm.pdf(x, 0.0, one[1])
        ratio = math.exp(log_ratio(one, x))
        a, b = (1.0, ratio) if turned else (ratio, 1.0)
        return float(density * hockey_stick(other, a, math.exp(epsilon) * b, turned=turned))

    far = 9.0 * one[1]
    points = [*range(one[2] + 1)]
    return float(integrate.quad(excess, -far, one[2] + far, points=points, limit=400)[0])


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0])
def test_one_step_is_the_worse_of_both_directions(step: Step, epsilon: float) -> None:
    e = math.exp(epsilon)
    exact = max(hockey_stick(step, 1.0, e, turned=turned) for turned in (False, True))
    shown = accountant("pld").delta([(rows(step), 1)], epsilon)
    assert exact * (1 - 1e-9) - 1e-15 <= shown <= exact * 1.01 + 1e-12
    assert accountant("rdp").delta([(rows(step), 1)], epsilon) >= exact


@pytest.mark.parametrize("step", STEPS)
def test_the_two_directions_differ(step: Step) -> None:
    found = [hockey_stick(step, 1.0, math.exp(0.5), turned=turned) for turned in (False, True)]
    assert abs(found[0] - found[1]) > 0.02 * max(found)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_steps_of_different_noise_and_rows_compose(epsilon: float) -> None:
    one, other = (0.2, 1.5, 3), (0.1, 1.0, 2)
    exact = max(of_two(one, other, epsilon, turned=turned) for turned in (False, True))
    shown = accountant("pld").delta([(rows(one), 1), (rows(other), 1)], epsilon)
    assert exact * (1 - 1e-6) <= shown <= exact * 1.01


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("order", [1.3, 2.0, 8.0, 64.0])
def test_renyi_divergences_are_bounded_in_both_directions(step: Step, order: float) -> None:
    q, sigma, k = step
    grid, width = np.linspace(-40 * sigma, (order + 2) * k + 40 * sigma, 400_001, retstep=True)
    log_p = stats.norm.logpdf(grid, 0, sigma)
    for power in (order, 1.0 - order):
        terms = log_p + power * log_ratio(step, grid)
        exact = (np.logaddexp.reduce(terms) + math.log(width)) / (order - 1.0)
        shown = rows_divergence(Kind(q, sigma, rows=k), order)
        assert shown >= exact * (1 - 1e-6)
    assert shown <= 1.01 * max(
        (np.logaddexp.reduce(log_p + power * log_ratio(step, grid)) + math.log(width))
        / (order - 1.0)
        for power in (order, 1.0 - order)
    )


@pytest.mark.parametrize(
    ("rows_of_one", "sigma"),
    [
        (1, 1.0226),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in ((2, 1.60), (3, 2.17))),
        (10, 6.27),
    ],
)
def test_dp_accounting_agrees(rows_of_one: int, sigma: float) -> None:
    """30 steps, q = 0.1, epsilon 4, delta 1e-5, by its losses rounded up and down."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    chances = [
        math.comb(rows_of_one, j) * 0.1**j * 0.9 ** (rows_of_one - j)
        for j in range(rows_of_one + 1)
    ]
    ceiling, floor = (
        pld.from_mixture_gaussian_mechanism(
            sigma,
            [*range(rows_of_one + 1)],
            chances,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            value_discretization_interval=5e-3,
        )
        .self_compose(30)
        .get_epsilon_for_delta(1e-5)
        for pessimistic in (True, False)
    )
    ours = accountant("pld").epsilon([(rows((0.1, sigma, rows_of_one)), 30)], 1e-5)
    assert floor <= ours <= ceiling * 1.02
    assert ours == pytest.approx(4.0, rel=0.02)
    asked = noise_multiplier(
        sampling_rate=0.1, steps=30, epsilon=4.0, delta=1e-5, accountant="pld", rows=rows_of_one
    )
    assert sigma * 0.98 <= asked <= sigma * 1.0001


def test_no_gradients_are_dearer_than_equal_ones() -> None:
    """Any vectors of length up to one each, in the plane, by a sum over a grid: Kahane."""
    rng, q, sigma, k = np.random.default_rng(3), 0.4, 1.0, 3
    axis, width = np.linspace(-9.0, 9.0, 361, retstep=True)
    x = np.stack(np.meshgrid(axis, axis), axis=-1)
    density = np.exp(-0.5 * (x**2).sum(-1)) / (2 * math.pi)
    for epsilon in (0.2, 1.0):
        e = math.exp(epsilon)
        most = [hockey_stick((q, sigma, k), 1.0, e, turned=turned) for turned in (False, True)]
        for _ in range(12):
            u = rng.normal(size=(k, 2))
            u /= np.maximum(1.0, np.linalg.norm(u, axis=1, keepdims=True) / rng.uniform(0.3, 1.0))
            ratio = np.zeros(x.shape[:2])
            for drawn in itertools.product((0, 1), repeat=k):
                s = np.array(drawn) @ u
                chance = q ** sum(drawn) * (1 - q) ** (k - sum(drawn))
                ratio += chance * np.exp(x @ s - 0.5 * s @ s)
            one, other = np.maximum(ratio - e, 0.0), np.maximum(1.0 - e * ratio, 0.0)
            found = [float((density * each).sum() * width**2) for each in (one, other)]
            assert found[0] <= most[0] * (1 + 1e-4)
            assert found[1] <= most[1] * (1 + 1e-4)


def test_one_row_is_a_row_and_more_rows_cost_more() -> None:
    for name in ("pld", "rdp", "rdp-classic"):
        price = accountant(name).epsilon
        one = PoissonSampled(0.05, Gaussian(noise_multiplier=9.0))
        assert price([(whole(one), 40)], 1e-5) == price([(one, 40)], 1e-5)
        found = [price([(of_rows(one, k), 40)], 1e-5) for k in (1, 2, 5, 30, 200)]
        assert found == sorted(set(found))
        group = [price([(grouped(one, k), 40)], 1e-5) for k in (1, 2, 5, 30)]
        assert all(a <= b for a, b in zip(found, group, strict=False))
    assert math.isinf(price([(of_rows(one, MOST_ROWS + 1), 1)], 1e-5))


def test_hardly_any_noise_and_full_samples_have_the_price_of_the_group() -> None:
    price = accountant("pld").epsilon
    for q, sigma in ((0.1, 0.01), (1.0, 3.0)):
        one = PoissonSampled(q, Gaussian(noise_multiplier=sigma))
        assert price([(of_rows(one, 3), 5)], 1e-5) == pytest.approx(
            price([(grouped(one, 3), 5)], 1e-5), rel=1e-6
        )


@pytest.mark.parametrize(
    "inside", [Pure(epsilon=0.5), Composed((Gaussian(noise_multiplier=4.0), Pure(epsilon=0.5)))]
)
def test_what_is_not_gaussian_has_the_price_of_the_group(inside: Event) -> None:
    one = PoissonSampled(0.1, inside)
    for name in ("pld", "rdp"):
        price = accountant(name).epsilon
        assert price([(of_rows(one, 3), 5)], 1e-5) == pytest.approx(
            price([(grouped(one, 3), 5)], 1e-5), rel=1e-9
        )


def test_what_is_known_of_rows_of_each_event() -> None:
    one = PoissonSampled(0.1, Gaussian(noise_multiplier=2.0))
    for event in (one, Composed((one, Pure(epsilon=1.0))), Selected(one, Poisson(mean=3.0))):
        assert bare(whole(event)) == event
        assert decode(encode(of_rows(event, 4))) == of_rows(event, 4)
    assert of_rows(PoissonSampled(0.5, one), 3) == SampledRows(0.05, 3, one.event)
    assert grouped(of_rows(one, 3), 2) == of_rows(one, 6)
    assert isinstance(of_rows(PoissonSampled(0.1, NonPrivate(reason="x")), 2), SampledRows)
    # a person at three clients, each of which may change into something else
    price = accountant("rdp").epsilon
    assert price([(replaced(of_rows(one, 3)), 5)], 1e-5) > 2 * price([(of_rows(one, 3), 5)], 1e-5)


# What a client really sends, for a person whose rows all have one gradient, the worst case.

Q, SIGMA, ROWS, TRIALS = 0.3, 2.0, 5, 1500


def released(there: bool, seed: int) -> NDArray[np.float64]:
    """One step's noisy sum of many runs, along the gradient that the person's rows share, in C."""
    flat = Flat(models.build("logistic", (1, 2), 2, np.random.default_rng(0)))
    x = torch.ones(ROWS, 1, 2) * (50.0 if there else math.nan)  # what is not finite adds nothing
    one = PrivateClient(
        index=0,
        unit="client:0",
        optimizer=Sgd(),
        examples=Examples(x, torch.zeros(ROWS, dtype=torch.int64)),
        mechanism=Noise(clip=1.0, noise_multiplier=SIGMA),
        sampling_rate=Q,
        learning_rate=1.0,
        kernels=ModelKernels(
            flat, ClippedSum(flat, cross_entropy), MeanGradient(flat, cross_entropy)
        ),
        entropy=Seeded(0),
    )
    asked = Train(round=1, steps=1, weights=np.zeros(flat.dim, np.float32), wants_first=True)
    booked = permits(one.price(asked))
    total = torch.empty(flat.dim, dtype=torch.float64)
    finite = Examples(torch.full_like(x, 50.0), one.examples.y)
    one.kernels.clipped.of(finite, torch.arange(1), _bound(), total, expected=Q * ROWS)
    direction = (total / torch.linalg.vector_norm(total)).numpy()
    found = [
        replace(one, entropy=Seeded(seed + i)).answer(asked, booked).weights @ direction
        for i in range(TRIALS)
    ]
    return -np.array(found, dtype=np.float64) * Q * ROWS


def _bound() -> Any:
    from sordino.training.client import bound_of

    return bound_of(Noise(clip=1.0, noise_multiplier=SIGMA))


def test_a_release_tells_more_than_a_rows_price_and_no_more_than_the_persons() -> None:
    """A threshold on the release, half of the trials each; Clopper and Pearson at 1e-4."""
    with_rows, without = released(True, 0), released(False, 10**6)
    one = PoissonSampled(Q, Gaussian(noise_multiplier=SIGMA))
    price, delta, best = accountant("pld"), 0.02, 0.0
    for threshold in (2.0, 3.0, 4.0, 5.0):
        hits, false = int((with_rows > threshold).sum()), int((without > threshold).sum())
        seen = stats.beta.ppf(1e-4, hits, TRIALS - hits + 1)
        missed = stats.beta.ppf(1 - 1e-4, false + 1, TRIALS - false)
        if seen > delta:
            best = max(best, math.log((seen - delta) / missed))
    assert best > price.epsilon([(one, 1)], delta)
    assert best < price.epsilon([(of_rows(one, ROWS), 1)], delta)
    moved = with_rows.mean() - without.mean()
    assert moved == pytest.approx(Q * ROWS, abs=6.0 * 3.0 / math.sqrt(TRIALS))
