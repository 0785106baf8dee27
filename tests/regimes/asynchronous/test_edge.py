"""What an edge sends: sensitivity by brute force, the law of its noise, and that it works for
nothing that is not booked.
"""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from scipy import stats  # type: ignore[import-untyped]
from torch import nn

from permitted import permit
from sordino.base.entropy import Seeded
from sordino.base.errors import LocalProtocolError
from sordino.base.message import Compute
from sordino.mechanisms.gaussian import Gaussian
from sordino.privacy import Event, NonPrivate, Permit, PoissonSampled
from sordino.privacy import Gaussian as GaussianEvent
from sordino.regimes.asynchronous.assemble import LiteralEdge, PlainEdge, PrivateEdge
from sordino.training.client import ModelKernels
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

N, FEATURES, CLASSES = 40, 6, 3
D = FEATURES * CLASSES + CLASSES


def bench() -> ModelKernels:
    torch.manual_seed(1)
    flat = Flat(nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES)))
    return ModelKernels(flat, ClippedSum(flat, cross_entropy), MeanGradient(flat, cross_entropy))


def examples(n: int = N, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    return Examples(
        torch.from_numpy(rng.standard_normal((n, FEATURES)).astype(np.float32)),
        torch.from_numpy(rng.integers(0, CLASSES, n)),
    )


def private(
    data: Examples, *, z: float = 1.0, rate: float = 1.0, decay: float = 0.0, clip: float = 0.5
) -> PrivateEdge:
    return PrivateEdge(
        index=0,
        unit="client:0",
        examples=data,
        sampling_rate=rate,
        regularisation=decay,
        kernels=bench(),
        draws=Seeded(0).stream("edge"),
        scratch=torch.empty(D, dtype=torch.float64),
        mechanism=Gaussian(clip=clip, noise_multiplier=z),
    )


def paid(event: Event, first: int = 1, count: int = 10_000) -> Permit:
    return permit(event, count, first)


def task(number: int = 1, clip: float | None = 0.5, weights: np.ndarray | None = None) -> Compute:
    return Compute(
        task=number,
        version=3,
        weights=np.zeros(D, np.float32) if weights is None else weights,
        clip=clip,
    )


def test_it_computes_nothing_that_is_not_booked() -> None:
    edge = private(examples())
    good = paid(edge.price, first=5, count=3)
    for number in (5, 6, 7):
        assert edge.answer(task(number), good).task == number
    for bad, number in (
        (None, 5),
        (good, 4),
        (good, 8),
        (paid(GaussianEvent(noise_multiplier=1.0)), 5),
    ):
        with pytest.raises(LocalProtocolError, match="the ledger charged"):
            edge.answer(task(number), bad)
    for clip in (None, 0.0, -1.0, math.inf, math.nan):
        with pytest.raises(LocalProtocolError, match="clip"):
            edge.answer(task(5, clip=clip), good)


def test_one_example_moves_a_gradient_by_at_most_what_is_booked() -> None:
    """Every neighbour that lacks one example, at every stage's clip; with next to no noise."""
    whole = examples(12)
    for clip in (0.5, 0.05, 3.0):
        edge = private(whole, clip=clip, z=1e-7)
        full = edge.answer(task(clip=clip), paid(edge.price)).gradient * edge.expected_batch
        worst = 0.0
        for gone in range(12):
            keep = [i for i in range(12) if i != gone]
            less = private(Examples(whole.x[keep], whole.y[keep]), clip=clip, z=1e-7)
            part = less.answer(task(clip=clip), paid(less.price)).gradient * less.expected_batch
            worst = max(worst, float(np.linalg.norm(full.astype(np.float64) - part)))
        assert worst <= clip * (1 + 1e-5)
        assert worst > 0.3 * clip  # the bound is not idle


def residuals(z: float) -> np.ndarray:
    """Noise of 400 gradients of one model, in units of C / b."""
    edge = private(examples(), z=z)
    silent = private(examples(), z=1e-9)
    clean = silent.answer(task(), paid(silent.price)).gradient
    found = [
        edge.answer(task(number), paid(edge.price)).gradient - clean for number in range(1, 401)
    ]
    return np.concatenate(found) * edge.expected_batch / 0.5


def test_the_noise_is_what_is_booked_and_not_two_thirds_or_three_halves_of_it() -> None:
    edge = private(examples(), z=1.3)
    assert edge.price == PoissonSampled(
        sampling_rate=1.0, event=GaussianEvent(noise_multiplier=1.3)
    )
    assert stats.kstest(residuals(1.3) / 1.3, "norm").pvalue > 1e-4
    for wrong in (1.3 * 2 / 3, 1.3 * 3 / 2):
        assert stats.kstest(residuals(wrong) / 1.3, "norm").pvalue < 1e-12
    assert edge.noise == pytest.approx(D * (1.3 / N) ** 2)


def test_an_empty_batch_releases_noise_over_the_expected_batch() -> None:
    edge = private(examples(), rate=1e-9, z=2.0)
    found = (
        np.concatenate([edge.answer(task(i), paid(edge.price)).gradient for i in range(1, 200)])
        * edge.expected_batch
        / 0.5
    )
    assert stats.kstest(found / 2.0, "norm").pvalue > 1e-4


def test_the_regulariser_is_added_after_the_noise() -> None:
    weights = np.linspace(-1, 1, D).astype(np.float32)
    plain, pulled = private(examples()), private(examples(), decay=0.1)
    a = plain.answer(task(weights=weights), paid(plain.price)).gradient
    b = pulled.answer(task(weights=weights), paid(pulled.price)).gradient
    assert b - a == pytest.approx(0.1 * weights, abs=1e-6)


def test_a_plain_edge_sends_the_mean_gradient() -> None:
    data = examples()
    draws = Seeded(0).stream("edge")
    edge = PlainEdge(
        index=2,
        unit="client:0",
        examples=data,
        sampling_rate=1.0,
        regularisation=0.0,
        kernels=bench(),
        draws=draws,
        scratch=torch.empty(D, dtype=torch.float64),
    )
    with pytest.raises(LocalProtocolError, match="the ledger charged None"):
        edge.answer(task(clip=None), None)
    found = edge.answer(task(clip=None), paid(edge.price))
    model = nn.Linear(FEATURES, CLASSES)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    loss = nn.functional.cross_entropy(model(data.x), data.y)
    expected = torch.cat(
        [part.flatten() for part in torch.autograd.grad(loss, [model.weight, model.bias])]
    ).numpy()
    assert found.gradient == pytest.approx(expected, abs=1e-6)
    assert (found.client, found.version) == (2, 3)


@pytest.mark.parametrize("form", ["sound", "paper"])
def test_another_sum_for_the_same_task_has_other_noise(form: str) -> None:
    """As after a kill, with a library that computes another sum: no noise is used twice."""
    data = examples()
    one = private(data) if form == "sound" else literal(data)
    asked = task(1)

    def answered(shift: float) -> np.ndarray[Any, Any]:
        sums = one.kernels.clipped if form == "sound" else one.kernels.mean
        exact = sums.of

        def shifted(*args: Any, **options: Any) -> Any:
            found = exact(*args, **options)
            args[3 if form == "sound" else 2].add_(shift)
            return found

        with mock.patch.object(type(sums), "of", staticmethod(shifted)):
            return one.answer(asked, paid(one.price)).gradient

    first, again, other = answered(0.0), answered(0.0), answered(1e-6)
    assert np.array_equal(first, again)
    assert np.abs(other - first).max() > 1e-3


def literal(data: Examples, *, epsilon: float = 0.1, batch: int = N) -> LiteralEdge:
    return LiteralEdge(
        index=0,
        unit="client:0",
        examples=data,
        sampling_rate=batch / len(data),
        regularisation=0.0,
        kernels=bench(),
        draws=Seeded(0).stream("edge"),
        scratch=torch.empty(D, dtype=torch.float64),
        iteration_epsilon=epsilon,
        batch_size=batch,
        noised=D,
        reason="because",
    )


def test_the_papers_form_draws_batches_of_one_size_with_replacement() -> None:
    edge = literal(examples(), batch=12)
    drawn = [edge.batch(task(number)) for number in range(1, 400)]
    assert {len(batch) for batch in drawn} == {12}
    assert any(len(set(batch.tolist())) < 12 for batch in drawn)
    assert set(torch.cat(drawn).tolist()) == set(range(N))


def test_the_papers_form_is_booked_as_not_private_and_has_its_variance() -> None:
    alike = Examples(torch.ones(N, FEATURES), torch.zeros(N, dtype=torch.int64))
    edge = literal(alike)
    assert edge.price == NonPrivate(reason="because")
    squares = []
    clean = None
    for number in range(1, 2001):
        gradient = edge.answer(task(number, clip=0.5), paid(edge.price)).gradient.astype(np.float64)
        clean = gradient if clean is None else clean + gradient
        squares.append(gradient)
    centred = np.array(squares) - clean / 2000  # type: ignore[operator]
    lengths = np.linalg.norm(centred, axis=1)
    # 2 DS^2 / eps_0^2, whatever d
    assert np.mean(lengths**2) == pytest.approx(edge.noise * 0.5**2, rel=0.2)
    assert stats.kstest(lengths, "expon", args=(0, 2 * 0.5 / N / 0.1)).pvalue > 1e-4


def test_one_example_moves_the_papers_average_by_more_than_it_claims() -> None:
    """Its sensitivity is twice the bound on the average: 2 R, not DS = 2 R / b."""
    n = 12
    x = torch.zeros(n, FEATURES)
    x[:, 0] = 1.0
    y = torch.zeros(n, dtype=torch.int64)
    loud = x.clone()
    loud[0] = -100.0

    def sent(data: torch.Tensor) -> np.ndarray:
        edge = literal(Examples(data, y), epsilon=1e12, batch=n)
        drawn = next(k for k in range(1, 100) if 0 in edge.batch(task(k)))
        return edge.answer(task(drawn, clip=0.5), paid(edge.price)).gradient

    moved = float(np.linalg.norm(sent(x) - sent(loud)))
    claimed = 2 * 0.5 / n
    assert moved > 5 * claimed


def test_the_sample_that_is_drawn_is_the_sample_that_is_booked() -> None:
    edge = private(examples(), rate=0.3)
    assert isinstance(edge.price, PoissonSampled)
    tasks, each = 4000, edge.price.sampling_rate
    drawn = sum(len(edge.batch(task(number))) for number in range(1, tasks + 1))
    trials = tasks * len(edge.examples)
    assert abs(drawn - trials * each) < 5.0 * (trials * each * (1.0 - each)) ** 0.5


def test_the_noise_follows_the_clip_of_the_task() -> None:
    edge = private(examples(), z=1.3, rate=1e-9, clip=0.5)
    for clip in (0.1, 2.0):
        numbers = np.concatenate(
            [edge.answer(task(k, clip), paid(edge.price)).gradient for k in range(1, 400)]
        )
        wanted = 1.3 * clip / edge.expected_batch
        assert abs(numbers.std() / wanted - 1.0) < 5.0 / (2.0 * numbers.size) ** 0.5
