"""A client's bounded update: plain training in a loop of its own, the bound whatever the data, and
no work before the charge.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import own_kinds
import pytest
import torch
from pydantic import PrivateAttr

from permitted import permits
from sordino.base.entropy import Seeded
from sordino.base.errors import LocalProtocolError, StudyError
from sordino.base.message import Train
from sordino.mechanisms.gaussian import CountedGaussian
from sordino.privacy import Permit
from sordino.privacy.event import Gaussian, PoissonSampled
from sordino.training import models
from sordino.training.client import ModelKernels
from sordino.training.flat import Flat
from sordino.training.local import LocalClient, NoisyModelClient
from sordino.training.loss import Loss, cross_entropy, multiclass_hinge
from sordino.training.optimizer import Adam, Optimizer, Sgd, Steps
from sordino.training.perexample import sums
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

N, Q, ETA = 25, 0.2, 0.4


def client(**changes: Any) -> LocalClient:
    rng = np.random.default_rng(3)
    flat = Flat(models.build("mlp", (6,), 3, rng))
    told: dict[str, Any] = {
        "index": 2,
        "unit": "client:0",
        "examples": Examples(
            torch.from_numpy(rng.standard_normal((N, 6)).astype(np.float32)),
            torch.from_numpy(rng.integers(0, 3, N)),
        ),
        "mechanism": CountedGaussian(clip=1.0, noise_multiplier=1.0),
        "sampling_rate": Q,
        "learning_rate": ETA,
        "batch": 10,
        "proximal": 0.0,
        "optimizer": Sgd(),
        "kernels": ModelKernels(
            flat, ClippedSum(flat, cross_entropy), MeanGradient(flat, cross_entropy)
        ),
        "entropy": Seeded(5),
    }
    return LocalClient(**{**told, **changes})


def task(one: LocalClient, clip: float | None = 100.0, **changes: Any) -> Train:
    weights = np.random.default_rng(8).standard_normal(one.kernels.flat.dim).astype(
        np.float32
    ) * np.float32(0.1)
    told: dict[str, Any] = {
        "round": 4,
        "steps": 7,
        "weights": weights,
        "clip": clip,
        "noise_multiplier": 1.3,
    }
    return Train(**{**told, **changes})


def paid(one: LocalClient, asked: Train) -> list[Permit]:
    return permits(one.price(asked), asked.round)


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_training_is_plain_sgd_with_a_proximal_term(mu: float) -> None:
    one = client(proximal=mu)
    asked = task(one)
    moved = one.train(asked)
    draw = Seeded(5).at("client", 2, "round", 4, "batches")
    order = np.concatenate([draw.permutation(N) for _ in range(3)])
    flat = Flat(models.build("mlp", (6,), 3, np.random.default_rng(0))).load(
        torch.from_numpy(asked.weights)
    )
    start = flat.weights.clone()
    for step in range(7):
        batch = order[10 * step : 10 * step + 10]
        loss = torch.nn.functional.cross_entropy(
            flat.module(one.examples.x[batch]), one.examples.y[batch]
        )
        loss = loss + 0.5 * mu * sum(
            (p - s).square().sum()
            for p, s in zip(flat.module.parameters(), _parts(flat, start), strict=True)
        )
        grads = torch.autograd.grad(loss, list(flat.module.parameters()))
        with torch.no_grad():
            flat.weights.sub_(torch.cat([g.reshape(-1) for g in grads]), alpha=ETA)
    assert torch.allclose(moved, flat.weights - start, atol=1e-5)


def _parts(flat: Flat, vector: torch.Tensor) -> list[torch.Tensor]:
    return [slot.logical(vector) for slot in flat.layout]


@pytest.mark.parametrize(
    ("loss", "pixels", "label"),
    [
        pytest.param(loss, at, label, marks=[pytest.mark.nightly] if (at + label) % 2 else [])
        for loss in (cross_entropy, multiclass_hinge)
        for at in (False, True)
        for label in (0, 5)
    ],
)
def test_all_steps_in_one_call_have_the_bits_of_steps_one_by_one(
    monkeypatch: pytest.MonkeyPatch, loss: Loss, pixels: bool, label: int
) -> None:
    """A label that is no class spoils the client's update either way."""
    rng = np.random.default_rng(4)
    flat = Flat(models.build("logistic", (1, 7, 9), 5, rng))
    x = rng.integers(0, 256, (N, 1, 7, 9)) if pixels else rng.standard_normal((N, 1, 7, 9))
    y = np.where(np.arange(N) == 3, label, rng.integers(0, 5, N))
    rows = torch.from_numpy(x.astype(np.uint8 if pixels else np.float32)), torch.from_numpy(y)
    kernels = ModelKernels(flat, ClippedSum(flat, loss), MeanGradient(flat, loss))
    one = client(examples=Examples(*rows), kernels=kernels)
    asked = task(one)
    called = one.answer(asked, paid(one, asked))
    monkeypatch.setattr(MeanGradient, "steps", lambda *_: False)
    assert one.answer(asked, paid(one, asked)) == called
    assert called.inside == bool(called.delta.any()) == (label == 0)


@pytest.mark.parametrize("clip", [1e-3, 0.1, 50.0])
def test_a_contribution_is_never_longer_than_its_bound(clip: float) -> None:
    one = client()
    asked = task(one, clip)
    raw = one.train(asked)
    answer = one.answer(asked, paid(one, asked))
    length = float(np.linalg.norm(answer.delta.astype(np.float64)))
    assert length <= clip
    assert answer.inside == (float(raw.norm()) <= clip)
    if not answer.inside:
        assert length == pytest.approx(clip, rel=1e-4)
    cosine = float(
        torch.nn.functional.cosine_similarity(raw, torch.from_numpy(answer.delta), dim=0)
    )
    assert cosine == pytest.approx(1.0, abs=1e-5)


def test_a_broken_example_contributes_nothing() -> None:
    one = client()
    one.examples.x[:] = torch.inf
    asked = task(one)
    answer = one.answer(asked, paid(one, asked))
    assert not answer.inside
    assert not answer.delta.any()


class Careful(Optimizer):
    """Fails on long gradients, or leaves the program."""

    kind: Literal["careful"] = "careful"
    leaves: bool = False

    def begin(self, learning_rate: float, like: torch.Tensor) -> Steps:
        error = BaseException if self.leaves else FloatingPointError

        class Own:
            def take(self, weights: torch.Tensor, gradient: torch.Tensor, variance: float) -> None:
                if not float(gradient.norm()) < 1e3:
                    raise error("diverged")
                weights.sub_(gradient, alpha=learning_rate)

        return Own()


@pytest.mark.parametrize("which", ["model", "optimizer", "optimizer that leaves"])
def test_own_code_that_fails_on_a_client_ends_no_run(which: str) -> None:
    """The round in which it ended was one in which that client had been drawn."""
    one = client(optimizer=Careful(leaves=which.endswith("leaves")))
    if which == "model":  # on 25 rows at once
        flat = Flat(own_kinds.Halves((6,), 3))
        mean = MeanGradient(flat, cross_entropy)
        one = client(batch=N, kernels=ModelKernels(flat, ClippedSum(flat, cross_entropy), mean))
    else:
        one.examples.x.mul_(1e6)
    asked = task(one)
    answer = one.answer(asked, paid(one, asked))
    assert not answer.inside
    assert not answer.delta.any()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't")])
def test_a_machine_without_memory_is_no_client_that_adds_nothing(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(MeanGradient, "of", fails)
    one = client(proximal=0.1)
    asked = task(one)
    with pytest.raises(type(error)):
        one.answer(asked, paid(one, asked))


def test_price_is_one_sampled_gaussian_and_work_waits_for_it() -> None:
    one = client()
    asked = task(one)
    assert one.price(asked) == (
        (PoissonSampled(sampling_rate=Q, event=Gaussian(noise_multiplier=1.3)), 1),
    )
    with pytest.raises(LocalProtocolError):
        one.answer(asked, [])
    with pytest.raises(LocalProtocolError):
        one.answer(asked, paid(one, task(one, noise_multiplier=2.0)))
    with pytest.raises(LocalProtocolError, match="bounded"):
        one.price(task(one, clip=None))


def test_a_client_without_examples_moves_nowhere() -> None:
    one = client(examples=Examples(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64)))
    assert not one.train(task(one)).any()


@pytest.mark.parametrize("optimizer", [Sgd(), Sgd(momentum=0.9), Adam(kind="adam")])
def test_a_noisy_model_stays_within_what_its_price_rests_on(
    optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PE-DPFL's paper form: two data sets lead to models at most 2 eta C tau apart, whatever the
    steps; Adam's alone would not.
    """
    from dataclasses import fields

    base = client(optimizer=optimizer, gradient_clip=0.01)
    work = {
        field.name: getattr(base, field.name)
        for field in fields(base)
        if field.name not in ("mechanism", "sampling_rate", "blocks")
    }
    one = NoisyModelClient(**work, noise_multiplier=1e-9)
    asked = task(one)  # type: ignore[arg-type]
    assert one.price(asked)[0][0] == Gaussian(noise_multiplier=1e-9 / (N * asked.steps))
    sent = one.answer(asked, paid(one, asked)).weights - asked.weights  # type: ignore[arg-type]
    assert np.linalg.norm(sent) <= ETA * 0.01 * asked.steps * (1 + 1e-4)
    monkeypatch.setattr(sums, "exact_products", lambda: False)
    with pytest.raises(StudyError, match="set_float32_matmul_precision"):  # it is of no rows
        one.answer(asked, paid(one, asked))  # type: ignore[arg-type]


class Remembering(Optimizer):
    """Remembers that it took long steps."""

    kind: Literal["remembering"] = "remembering"
    _seen: list[float] = PrivateAttr(default_factory=list)

    def begin(self, learning_rate: float, like: torch.Tensor) -> Steps:
        seen = self._seen

        class Own:
            def take(self, weights: torch.Tensor, gradient: torch.Tensor, variance: float) -> None:
                if float(gradient.norm()) > 100.0:
                    seen.append(1.0)
                weights.sub_(gradient, alpha=learning_rate * (-1.0 if seen else 1.0))

        return Own()


def test_an_optimizer_keeps_nothing_of_one_client_for_the_next() -> None:
    shared, moved = Remembering(), []
    for scale in (1.0, 1e4):
        first, second = (client(optimizer=shared, index=i) for i in (0, 1))
        first.examples.x.mul_(scale)
        for one in (first, second):
            asked = task(one)
            delta = one.answer(asked, paid(one, asked)).delta
        moved.append(delta)
    assert np.array_equal(moved[0], moved[1])
