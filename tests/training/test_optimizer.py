"""Local optimizers against torch's own, and Adam without the noise's share of the squares."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sordino.training.optimizer import AdaGrad, Adam, Sgd


def gradients(count: int = 6, d: int = 40) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(d) * (1 + k) for k in range(count)]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Sgd(), lambda p: torch.optim.SGD(p, lr=0.3)),
        (Sgd(momentum=0.8), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.8)),
        (AdaGrad(kind="adagrad", floor=1e-6), lambda p: torch.optim.Adagrad(p, lr=0.3, eps=1e-6)),
        (
            Adam(kind="adam", beta1=0.7, beta2=0.95, floor=1e-4),
            lambda p: torch.optim.Adam(p, lr=0.3, betas=(0.7, 0.95), eps=1e-4),
        ),
    ],
    ids=["sgd", "momentum", "adagrad", "adam"],
)
def test_steps_are_those_of_torch(ours: Any, theirs: Any) -> None:
    start = torch.linspace(-1, 1, 40)
    weights, parameter = start.clone(), torch.nn.Parameter(start.clone())
    steps, optimizer = ours.begin(0.3, weights), theirs([parameter])
    for gradient in gradients():
        before = gradient.clone()
        steps.take(weights, gradient, 0.5)
        assert torch.equal(gradient, before)
        parameter.grad = gradient.clone()
        optimizer.step()
        assert torch.allclose(weights, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_a_second_round_remembers_nothing() -> None:
    weights = torch.zeros(40)
    for kind in (Sgd(momentum=0.9), Adam(kind="adam"), AdaGrad(kind="adagrad")):
        ends = []
        for _ in range(2):
            weights.zero_()
            steps = kind.begin(0.1, weights)
            for gradient in gradients():
                steps.take(weights, gradient, 0.0)
            ends.append(weights.clone())
        assert torch.equal(*ends)


def test_debiased_adam_divides_by_the_signal_and_not_by_the_noise() -> None:
    torch.manual_seed(0)
    d, deviation, signal = 20_000, 1.0, 0.5
    weights = {debias: torch.zeros(d) for debias in (False, True)}
    for debias, w in weights.items():
        steps = Adam(kind="adam", beta1=0.0, beta2=0.999, floor=0.05, debias=debias).begin(1.0, w)
        generator = torch.Generator().manual_seed(2)
        for _ in range(2000):
            noise = deviation * torch.randn(d, generator=generator)
            before = w.mean()
            steps.take(w, signal + noise, deviation**2)
        last = float(before - w.mean())
        root = signal if debias else math.hypot(signal, deviation)
        assert last == pytest.approx(signal / root, rel=0.1)


def test_debiased_adam_keeps_its_floor() -> None:
    weights = torch.zeros(3)
    Adam(kind="adam", floor=0.1, debias=True).begin(1.0, weights).take(
        weights, torch.tensor([0.01, 0.0, -0.01]), 1.0
    )
    assert weights.tolist() == pytest.approx([-0.1, 0.0, 0.1], rel=1e-5)
