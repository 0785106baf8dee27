"""Images from gradients: exactly where nothing hides them, not at all where the study's noise
does.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from permitted import permits
from sordino import data
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Train
from sordino.clients.study import HorizontalStudy
from sordino.core import study as studies
from sordino.mechanisms.gaussian import Gaussian
from sordino.mechanisms.knorm import exponential_norm
from sordino.training import client as clients
from sordino.training import models
from sordino.training.client import ModelKernels, PrivateClient
from sordino.training.flat import Flat
from sordino.training.loss import loss_for
from sordino.training.optimizer import Sgd
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient
from sordino_papers.inversion import scenes as inversion
from sordino_papers.inversion.scenes import (
    Attack,
    Level,
    Matrix,
    Target,
    correlation,
    first_layer,
    mean_slopes,
    psnr,
    rank_one,
)

LINEAR = ("logistic", "svm")
CORPUS = data.load("digits")
X, Y = torch.from_numpy(data.scaled(CORPUS.train.x)), torch.from_numpy(CORPUS.train.y)
PUBLIC = torch.from_numpy(data.scaled(CORPUS.test.x)), torch.from_numpy(CORPUS.test.y)
PLACES = [
    int(np.flatnonzero(CORPUS.train.y == label)[turn]) for turn in range(8) for label in range(10)
]


def ratio(seen: Matrix) -> Matrix:
    """x from the row whose bias has the largest gradient."""
    row: Matrix = seen[int(np.argmax(np.abs(seen[:, -1])))]
    found: Matrix = row[:-1] / row[-1]
    return found


def rows(seen: Matrix) -> Matrix:
    """x from all rows, by least squares given the biases' gradients."""
    row: Matrix = seen[:, -1] @ seen
    found: Matrix = row[:-1] / row[-1]
    return found


def level(sigma: float | None = 0.0, claimed: float | None = None) -> Level:
    return Level(sigma=sigma, claimed=claimed, once=math.inf, whole=math.inf)


@cache
def attack(model: str) -> Attack:
    flat, loss = Flat(models.build(model, (1, 8, 8), 10, Seeded(0).at("model"))), loss_for(model)
    return Attack(
        clipped=ClippedSum(flat, loss),
        noise=Gaussian(clip=1.0, noise_multiplier=1.0),
        layer=first_layer(flat, (1, 8, 8), model),
        slopes=mean_slopes(flat, loss, *PUBLIC, 10),
        dimension=flat.dim,
    )


def alone(places: list[int]) -> list[Target]:
    return [Target(X[[place]], Y[[place]], 1.0) for place in places]


def together(places: list[int]) -> list[Target]:
    """The same batch once for each of its examples."""
    batches = [[place, *(other for other in places if other != place)] for place in places]
    return [Target(X[batch], Y[batch], float(len(batch))) for batch in batches]


def noise(number: int) -> np.random.Generator:
    return Seeded(3).at("noise", number)


def mean_correlation(model: str, targets: list[Target], sigma: float) -> float:
    return float(np.mean(attack(model).attempt(targets, level(sigma), noise).correlations))


@pytest.mark.parametrize("model", [*LINEAR, "mlp"])
def test_one_example_without_noise_is_there_in_full(model: str) -> None:
    found = attack(model).attempt(alone(PLACES[:20]), level(), noise)
    assert min(found.correlations) > 0.999
    assert min(found.psnr) > 60.0
    first = X[PLACES[0]].flatten().numpy()
    # pixels themselves, not only their pattern
    assert found.images[0] == pytest.approx(first, abs=1e-3)


@pytest.mark.parametrize(("model", "least"), [("logistic", 0.99), ("svm", 0.75)])
def test_examples_of_distinct_labels_are_told_apart(model: str, least: float) -> None:
    places = PLACES[3:8]
    found = np.mean(attack(model).attempt(together(places), level(), noise).correlations)
    assert found > least
    seen = attack(model).layer.of(attack(model).release(together(places)[0], level(), noise(0)))
    single = np.mean(
        [
            correlation(ratio(seen), X[place].flatten().numpy().astype(np.float64))
            for place in places
        ]
    )
    assert found > single + 0.1


@pytest.mark.parametrize("model", LINEAR)
def test_more_noise_leaves_less(model: str) -> None:
    """Means over 40 images with the same noise, scaled: each is well below the one before."""
    left = [
        mean_correlation(model, alone(PLACES[:40]), sigma)
        for sigma in (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
    ]
    assert all(b < a for a, b in pairwise(left)), left
    assert left[1] > 0.98
    assert 0.3 < left[3] < 0.8
    together_left = [
        mean_correlation(model, together(PLACES[3:8]), sigma) for sigma in (0.0, 0.03, 0.3, 3.0)
    ]
    assert all(b < a for a, b in pairwise(together_left)), together_left


@pytest.mark.parametrize("model", LINEAR)
def test_noise_of_a_private_study_leaves_less_than_the_label_alone_tells(model: str) -> None:
    """sigma 2 leaves a correlation of about 1 / (2 sqrt(64)); over 80 images chance deviates by
    0.125 / sqrt(80) = 0.014.
    """
    targets = alone(PLACES[:80])
    found = attack(model).attempt(targets, level(2.0), noise)
    guesses = [
        correlation(
            PUBLIC[0][PUBLIC[1] == target.y].mean(0).flatten().numpy().astype(np.float64),
            target.x.flatten().numpy().astype(float),
        )
        for target in targets
    ]
    assert np.mean(guesses) > 0.8
    assert abs(np.mean(found.correlations)) < 0.031 + 6 * 0.014
    assert max(found.correlations) < np.mean(guesses)
    others = [
        correlation(image, targets[i - 10].x.flatten().numpy().astype(float))
        for i, image in enumerate(found.images)
    ]
    # no nearer to its own example than to another of its label
    assert abs(np.mean(found.correlations) - np.mean(others)) < 0.06


def test_the_best_fit_beats_a_single_row_under_noise() -> None:
    rng = np.random.default_rng(0)

    def mean(estimate: object, sigma: float) -> float:
        assert callable(estimate)
        found = []
        for _ in range(200):
            x, g = rng.random(64), rng.standard_normal(10)
            clean: Matrix = np.outer(g, [*x, 1.0])
            seen = clean / np.linalg.norm(clean) + sigma * rng.standard_normal(clean.shape)
            found.append(correlation(estimate(seen), x))
        return float(np.mean(found))

    for sigma in (0.01, 0.03, 0.05):
        single, all_rows, best = (mean(estimate, sigma) for estimate in (ratio, rows, rank_one))
        assert best > all_rows > single, sigma


def test_what_is_attacked_is_what_a_client_sends() -> None:
    one, many = attack("logistic"), X[:30]
    flat = Flat(models.build("logistic", (1, 8, 8), 10, Seeded(0).at("model")))
    loss, mechanism = loss_for("logistic"), Gaussian(clip=1.0, noise_multiplier=0.7)
    client = PrivateClient(
        index=0,
        unit="client:0",
        examples=Examples(many, Y[:30]),
        mechanism=mechanism,
        sampling_rate=1.0,
        learning_rate=0.1,
        optimizer=Sgd(),
        kernels=ModelKernels(flat, ClippedSum(flat, loss), MeanGradient(flat, loss)),
        entropy=Seeded(4),
    )
    task = Train(round=1, steps=1, weights=flat.weights.numpy().copy(), wants_first=True)
    with mock.patch.object(clients, "hidden", return_value=()):
        sent = client.answer(task, permits(client.price(task))).first
    seen = one.release(
        Target(many, Y[:30], 30.0),
        level(0.7),
        Seeded(4).stream("client", 0, "round", 1, "noise").over(1, ()),
    )
    assert sent is not None
    assert seen.numpy() == pytest.approx(sent, abs=1e-6)


def test_an_example_without_gradient_gives_nothing() -> None:
    """A well classified example of an SVM: grey, no NaN."""
    one = attack("svm")
    flat = Flat(models.build("svm", (1, 8, 8), 10, Seeded(0).at("model")))
    flat.load(torch.zeros(flat.dim)).layout[1].of(flat.weights)[3] = 5.0  # everything is a 3
    sure = Attack(
        clipped=ClippedSum(flat, loss_for("svm")),
        noise=one.noise,
        layer=one.layer,
        slopes=one.slopes,
        dimension=flat.dim,
    )
    found = sure.attempt(alone([PLACES[3]]), level(), noise)
    assert found.correlations == (0.0,)
    assert np.isfinite(found.images).all()
    assert not found.images.any()


class Skewed(nn.Module):
    """A linear layer that does not see the pixels as they are, beside one that has no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(64, 10), nn.Linear(64, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        found: torch.Tensor = self.one(2.0 * x) + self.other(x)
        return found


def test_only_a_linear_first_layer_can_be_read() -> None:
    assert attack("logistic").layer.scores
    assert attack("svm").layer.scores
    assert not attack("mlp").layer.scores
    for module, shape in (
        (models.build("cnn", (1, 28, 28), 10, np.random.default_rng(0)), (1, 28, 28)),
        (Skewed(), (1, 8, 8)),
    ):
        with pytest.raises(StudyError, match="linear first layer with biases"):
            first_layer(Flat(module), shape, "this")


def test_noise_of_exponential_norm_has_that_norm_and_no_direction() -> None:
    """4 000 draws: the mean norm is known to 1.6 %, each mean coordinate to 0.03; false alarms
    below 1 in 1e6.
    """
    drawn = torch.stack([exponential_norm(7, 3.0, Seeded(1).at(i)) for i in range(4000)])
    norms = torch.linalg.vector_norm(drawn, dim=1)
    assert float(norms.mean()) == pytest.approx(3.0, rel=0.08)
    assert float((norms > 3.0).float().mean()) == pytest.approx(math.exp(-1.0), abs=0.04)
    assert float((drawn / norms.unsqueeze(1)).mean(0).abs().max()) < 0.032


def test_quality_forgives_brightness_and_contrast_only() -> None:
    x = np.random.default_rng(0).random(50)
    assert correlation(1e200 * x - 1e199, x) == pytest.approx(1.0)
    assert correlation(-x, x) == pytest.approx(-1.0)
    assert psnr(-x, x) == psnr(np.ones(50), x)  # a negative is worth no more than a flat guess
    noisy = [
        psnr(x + s * np.random.default_rng(1).standard_normal(50), x) for s in (0.01, 0.1, 1.0)
    ]
    assert noisy == sorted(noisy, reverse=True)


def test_the_own_noise_of_mapas_paper_form_is_mapas(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        """
        name = "MAPA"
        data = { name = "digits", clients = 2 }
        model = { name = "logistic" }
        method = { name = "mapa", form = "paper", iteration_epsilon = 0.5 }
        privacy = { unit = "sample", epsilon = 2.0, delta = 1e-3 }
        budget = { updates = 10 }
        """
    )
    study = studies.read(path)
    assert isinstance(study, HorizontalStudy)
    (level,) = inversion.attacked(study, [inversion.NoiseLevel()]).levels
    assert (level.claimed, level.sigma, level.own) == (0.5, None, True)
    assert math.isinf(level.once)
