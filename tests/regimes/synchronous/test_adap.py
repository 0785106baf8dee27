"""Adap DP-FL: sigma falls by its rule, and what is booked for the loss is what is released."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.message import Statistics, Train, Update
from sordino.mechanisms.contract import check_noise
from sordino.mechanisms.gaussian import Gaussian
from sordino.privacy import Chosen, Composed, NonPrivate, PoissonSampled, accountant
from sordino.privacy import Gaussian as Booked
from sordino.regimes.synchronous.method import Remaining, Terms
from sordino.regimes.synchronous.methods import AdapDpfl, AdapMemory
from sordino.training import models
from sordino.training.client import ModelKernels, PrivateClient
from sordino.training.extra_releases import loss_sum, noisy_loss
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.optimizer import Sgd
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

Q, N = 0.2, 50


def terms(epsilon: float = 3.0, accountant: str = "rdp@8") -> Terms:
    told = {
        "dimension": 4,
        "sizes": (N,),
        "weights": (1.0,),
        "sampling_rate": Q,
        "learning_rate": 0.1,
        "clip": 1.0,
        "noise": 2.0,
    }
    return Terms(
        **told,  # type: ignore[arg-type]
        rounds=9,
        steps=99,
        sigma=2.0,
        epsilon=epsilon,
        delta=1e-5,
        accountant=accountant,
    )


def told(loss: float) -> Update:
    statistics = Statistics(
        energy=1.0, first=1.0, change=0.0, moved=0.0, slope_first=0.0, slope_last=0.0, loss=loss
    )
    return Update(
        client=0, round=1, steps=1, weights=np.zeros(4, np.float32), statistics=statistics
    )


def test_sigma_falls_after_so_many_falls_in_a_row_and_not_below_its_floor() -> None:
    method, memory, path = AdapDpfl(patience=2, decay=0.5, floor=0.4), AdapMemory(), []
    for loss in (3.0, 2.5, 2.0, 1.5, 1.6, 1.5, 1.4, 1.3, 1.2):
        memory = method.fold(memory, terms(), [told(loss)])
        path.append(memory.factor)
    assert path == [1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.4, 0.4, 0.4]
    assert dict(memory.spent) == {1.0: 3, 0.5: 4, 0.4: 2}
    assert method.round_noise(memory, terms(), 1).noise_multiplier == pytest.approx(0.8)


@given(
    epsilon=st.floats(0.5, 20.0),
    falls=st.lists(st.booleans(), min_size=1, max_size=40),
    tau=st.integers(1, 3),
)
def test_what_is_let_through_never_passes_the_filter(
    epsilon: float, falls: list[bool], tau: int
) -> None:
    method, memory, loss = AdapDpfl(tau=tau, patience=1, decay=0.7, floor=0.1), AdapMemory(), 1.0
    spent = []
    for fell in falls:
        if method.choose(memory, terms(epsilon), Remaining(1, None)).tau == 0:
            break
        sigma = method.round_noise(memory, terms(), 1).noise_multiplier
        both = Composed(events=(Booked(noise_multiplier=sigma), Booked(noise_multiplier=8.0)))
        spent += [(PoissonSampled(sampling_rate=Q, event=both), 1)]
        spent += [(PoissonSampled(sampling_rate=Q, event=Booked(noise_multiplier=sigma)), tau - 1)]
        loss += -0.01 if fell else 0.01
        memory = method.fold(memory, terms(), [told(loss)])
    assert accountant("rdp@8").epsilon(spent, 1e-5) <= epsilon or not spent


def client(labels: int = 3) -> PrivateClient:
    rng = np.random.default_rng(0)
    flat = Flat(models.build("logistic", (5,), labels, rng))
    x = torch.from_numpy(rng.standard_normal((N, 5)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, labels, N))
    return PrivateClient(
        index=0,
        unit="client:0",
        examples=Examples(x, y),
        mechanism=Gaussian(clip=1.0, noise_multiplier=2.0),
        sampling_rate=Q,
        learning_rate=0.1,
        optimizer=Sgd(),
        kernels=ModelKernels(
            flat, ClippedSum(flat, cross_entropy), MeanGradient(flat, cross_entropy)
        ),
        entropy=Seeded(1),
    )


def task(one: PrivateClient, **changes: Any) -> Train:
    return Train(
        round=1,
        steps=3,
        weights=np.zeros(one.kernels.flat.dim, np.float32),
        loss_bound=1.5,
        **changes,
    )


def test_a_loss_is_priced_with_the_gradient_of_the_same_sample() -> None:
    one = client()
    gradient = Booked(noise_multiplier=2.0)
    both = Composed(events=(gradient, Booked(noise_multiplier=8.0)))
    assert one.price(task(one, loss_noise=8.0)) == (
        (PoissonSampled(sampling_rate=Q, event=both), 1),
        (PoissonSampled(sampling_rate=Q, event=gradient), 2),
    )
    assert one.price(task(one, loss_noise=8.0, order=8.0))[1] == (
        Chosen(order=8.0, event=PoissonSampled(sampling_rate=Q, event=gradient)),
        2,
    )
    raw = one.price(task(one))
    assert raw[0] == (PoissonSampled(sampling_rate=Q, event=gradient), 3)
    assert isinstance(raw[1][0], NonPrivate)


def test_a_loss_has_the_noise_that_is_booked() -> None:
    nothing = float(loss_sum(torch.zeros(0), 1.5))

    def draw(rng: np.random.Generator) -> torch.Tensor:
        return torch.tensor([noisy_loss(nothing, 1.5, 8.0, rng) for _ in range(10_000)])

    check_noise(draw, 8.0, 1.5)


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=8),
    st.floats(0.1, 10.0),
)
def test_one_example_moves_a_loss_by_no_more_than_its_bound(
    losses: list[float], bound: float
) -> None:
    values = [float(loss_sum(torch.tensor(part), bound)) for part in (losses, losses[1:])]
    assert abs(values[0] - values[1]) <= bound * (1 + 1e-5)


def test_a_loss_is_never_above_its_bound() -> None:
    """0.1 in float32 is more than 0.1, which is what is priced."""
    for bound in (0.1, 1e-12, 0.7):
        assert float(loss_sum(torch.tensor([1e9, torch.nan]), bound)) <= 2 * bound
    for bound in (1e-46, 1e39):
        with pytest.raises(StudyError, match="loss_bound"):
            AdapDpfl(learning_rate=0.1, loss_bound=bound)
