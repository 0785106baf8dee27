"""Canaries in one run of a study: near the ledger's epsilon where all is well, above it if not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from permitted import permits
from sordino.audit.canaries import (
    ABSENT,
    MembersSum,
    PlantedSum,
    Watched,
    black_box,
    likelihoods,
    own_mechanism,
    quieter,
    white_box,
)
from sordino.audit.intervals import rows
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Train
from sordino.clients.study import HorizontalStudy
from sordino.core import study as studies
from sordino.mechanisms import grid
from sordino.mechanisms.gaussian import Gaussian
from sordino.privacy import Event, NonPrivate, Pure, Repeated
from sordino.privacy import Gaussian as Booked
from sordino.training import models
from sordino.training.client import ModelKernels, PrivateClient
from sordino.training.flat import Flat
from sordino.training.loss import loss_for
from sordino.training.optimizer import Sgd
from sordino.training.perexample.clipping import FlatBound
from sordino.training.perexample.sums import Examples, MeanGradient

STUDY = Path(__file__).parents[2] / "examples/audit/samples.toml"


def ready(*changes: str) -> HorizontalStudy:
    study = studies.read(STUDY, changes)
    assert isinstance(study, HorizontalStudy)
    return study


@pytest.mark.parametrize("epsilon", [2.0, pytest.param(8.0, marks=pytest.mark.nightly)])
def test_one_run_comes_near_the_ledger_and_not_above(epsilon: float) -> None:
    found = white_box(ready(f"privacy.epsilon={epsilon}"), 16_000, 0.05, "x")
    assert found.ledger == pytest.approx(epsilon, rel=1e-3)
    assert found.verdict == "holds"
    assert found.ledger <= 2.75 * found.low  # 2.01 to 2.71 at four seeds


def test_half_the_noise_that_is_booked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = grid.add_gaussian

    def quiet(*given: Any, noise_multiplier: float, **more: Any) -> Any:
        return own(*given, noise_multiplier=0.5 * noise_multiplier, **more)

    monkeypatch.setattr(grid, "add_gaussian", quiet)
    # of 8000 one in ten does not find it
    seen = white_box(ready("privacy.epsilon=2"), 24000, 0.05, "x")
    assert seen.ledger == pytest.approx(2.0, rel=1e-3)
    assert seen.verdict == "BROKEN"


IN_ORDER = (
    "privacy={unit='sample',epsilon=2.0,delta=1e-5,clip=1.0,sampling='passes',batches=5,"
    "correlation='CORRELATION'}",
    "budget.rounds=30",
)


@pytest.mark.parametrize(
    "correlation",
    [
        "blt",
        pytest.param("none", marks=pytest.mark.nightly),
        pytest.param("banded", marks=pytest.mark.nightly),
    ],
)
def test_passes_come_near_the_ledger_and_half_their_noise_is_found(
    correlation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adversary multiplies what is released by C, and knows who comes when."""
    study = ready(*(each.replace("CORRELATION", correlation) for each in IN_ORDER))
    found = white_box(study, 8000, 0.05, "x")
    assert found.verdict == "holds"
    assert found.ledger == pytest.approx(2.0, rel=2e-3)
    assert found.ledger <= 3.5 * found.low
    own = grid.Grid._fill

    def quiet(self: grid.Grid, *given: Any) -> None:
        own(grid.Grid(self.step, 0.5 * self.deviation), *given)

    monkeypatch.setattr(grid.Grid, "_fill", quiet)
    assert white_box(study, 8000, 0.05, "x").verdict == "BROKEN"


def test_the_model_at_the_end_tells_of_canaries_without_noise_and_not_with_it() -> None:
    assert black_box(ready("budget.rounds=20"), 100, 0.05, "x").verdict == "holds"
    bare = ("privacy.epsilon=inf", "privacy.noise_multiplier=1e-3", "privacy.clip=10")
    seen = black_box(ready(*bare, "budget.rounds=200", "data.clients=1"), 200, 0.05, "x")
    assert seen.ledger > 1e3
    assert seen.plain > 1.0


def test_a_canary_adds_its_gradient_where_it_is_drawn_and_nothing_where_it_is_not_in() -> None:
    flat = Flat(models.build("logistic", (1, 4, 4), 3, Seeded(0).at("model")))
    loss = loss_for("logistic")
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((8, 1, 4, 4)).astype(np.float32))
    examples = Examples(x, torch.tensor([0, 0, 0, 0, 0, 0, ABSENT, 0]))
    places = torch.tensor([4, 9, 20])
    planted = PlantedSum(flat, loss, 5, places)
    with_all, real = (torch.empty(flat.dim, dtype=torch.float64) for _ in range(2))
    planted.of(examples, torch.arange(5), FlatBound(0.5), real)
    clipped = planted.of(examples, torch.arange(8), FlatBound(0.5), with_all)
    assert torch.equal(planted.others, real[places])
    expected = torch.zeros_like(real)
    expected[places[[0, 2]]] = 0.5
    assert torch.equal(with_all - real, (real + expected) - real)
    assert len(clipped.norms) == 7
    # examples as canaries: those that are not in are left out
    own, some = MembersSum(flat, loss), torch.empty_like(real)
    own.of(examples, torch.arange(8), FlatBound(0.5), with_all)
    own.of(examples, torch.tensor([0, 1, 2, 3, 4, 5, 7]), FlatBound(0.5), some)
    assert torch.allclose(with_all, some)


def test_what_is_seen_is_what_the_client_released() -> None:
    flat = Flat(models.build("logistic", (1, 4, 4), 3, Seeded(0).at("model")))
    loss, rng = loss_for("logistic"), np.random.default_rng(1)
    x = torch.from_numpy(rng.standard_normal((6, 1, 4, 4)).astype(np.float32))
    examples = Examples(x, torch.tensor([0, 0, 0, 0, 0, ABSENT]))
    places, noise = torch.tensor([4, 9]), Gaussian(clip=1.0, noise_multiplier=1e-4)
    planted = PlantedSum(flat, loss, 4, places)
    watched = Watched(noise, planted.without, places)
    client = PrivateClient(
        index=0,
        unit="client:0",
        examples=examples,
        mechanism=watched,
        sampling_rate=1.0,
        learning_rate=0.1,
        optimizer=Sgd(),
        kernels=ModelKernels(flat, planted, MeanGradient(flat, loss)),
        entropy=Seeded(3),
    )
    start = flat.weights.clone()
    task = Train(round=1, steps=6, weights=start.numpy())
    weights = client.answer(task, permits(client.price(task))).weights
    assert len(watched.seen) == 6
    for rest, deviation in watched.seen:
        assert rest == pytest.approx([1.0, 0.0], abs=1e-3)
        assert deviation == noise.noise_multiplier
    assert not np.array_equal(weights, start.numpy())


def test_likelihoods_are_those_of_a_mixture() -> None:
    rest, s, q = np.array([0.3, 2.0]), 0.8, 0.2
    density = [np.exp(-((rest - mean) ** 2) / (2 * s * s)) for mean in (0.0, 1.0)]
    wanted = np.log((1 - q) + q * density[1] / density[0])
    assert likelihoods([(rest, s), (rest, s)], q) == pytest.approx(2.0 * wanted)
    assert likelihoods([(rest, s)], 1.0) == pytest.approx(np.log(density[1] / density[0]))


def test_only_what_has_noise_becomes_quieter() -> None:
    assert quieter(Booked(noise_multiplier=2.0), 3.0) == Booked(noise_multiplier=6.0)
    twice = Repeated(event=Pure(epsilon=1.0), count=2)
    assert quieter(twice, 2.0) == Repeated(event=Pure(epsilon=0.5), count=2)
    with pytest.raises(TypeError, match="NonPrivate"):
        quieter(NonPrivate(reason="raw"), 2.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["privacy.noise=shared"], "privacy.noise"),
        (["method.name=adap-dpfl", "privacy.accountant=rdp@8"], "chooses it on the way"),
        (['privacy.mechanism={ kind = "haar" }'], "needs the same noise on every number"),
        (
            ['method={ name = "ali-dpfl", form = "paper", learning_rate = 0.5 }'],
            "no epsilon is promised",
        ),
    ],
)
def test_studies_without_dirac_canaries_are_refused(changes: list[str], message: str) -> None:
    with pytest.raises(StudyError) as refused:
        [row(0.05) for row in rows(ready(*changes), 10, "x")]
    assert message in str(refused.value)


def test_a_studys_own_mechanism_is_made_as_its_run_makes_it() -> None:
    literal = studies.read(
        STUDY,
        ['privacy.mechanism={ kind = "haar", form = "paper" }', "privacy.noise_multiplier=2.0",
         "model.name=logistic"],
    )  # fmt: skip
    assert isinstance(literal, HorizontalStudy)
    found = own_mechanism(literal)
    assert not found.sound
    claimed, booked = found.claimed, found.booked
    assert _sigma(claimed) == pytest.approx(2.0)
    assert _sigma(booked) < 0.01
    assert math.isfinite(found.draw(True, 1, np.random.default_rng(0))[0])


def _sigma(event: Event) -> float:
    assert isinstance(event, Booked)
    return event.noise_multiplier
