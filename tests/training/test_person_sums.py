"""Sums over persons, whose rows are clipped together: held against sums in float64, and how far one
person moves them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from structures import INPUTS, STRUCTURES, WEIGHTS
from test_clients import ETA, Q, client, task
from test_sensitivity import ALLOWED, CLIPS, Batch, bounds, length
from torch import Tensor

from permitted import permits
from sordino.base.entropy import Seeded
from sordino.mechanisms.contract import looks_standard_normal
from sordino.mechanisms.gaussian import Gaussian
from sordino.privacy import PoissonSampled
from sordino.training import client as clients
from sordino.training.perexample.clipping import Bound, FlatBound
from sordino.training.perexample.sums import ClippedSum, Examples


def persons(counts: list[int]) -> Tensor:
    return torch.tensor([0, *np.cumsum(counts)])


def summed(
    kernel: ClippedSum, batch: Batch, starts: Tensor, chosen: list[int], bound: Bound
) -> Tensor:
    out = torch.full((batch.flat.dim,), torch.nan, dtype=torch.float64)
    kernel.of(Examples(batch.x, batch.y, starts), torch.tensor(chosen), bound, out)
    return out


def without(batch: Batch, rows: range) -> Batch:
    for row in rows:
        batch = batch.without(row)
    return batch


@pytest.mark.parametrize("name", ["linear", "mlp", "conv, Gram", "lstm", "tokens"])
def test_a_persons_rows_are_added_up_and_then_shortened(name: str) -> None:
    """As by each row's own gradient, in float64; rows that cannot be computed are left out."""
    counts = [1, 40, 3, 70]
    batch = Batch.of(name, "random", WEIGHTS[0], sum(counts), 3)
    starts, kernel = persons(counts), ClippedSum(batch.flat, batch.loss)
    gone = batch.without(2).without(113)
    rows = kernel.rows(batch.x, batch.y).double()
    rows[[2, 113]] = 0.0
    total, norms = torch.zeros(batch.flat.dim, dtype=torch.float64), []
    clip = float(rows[1:41].sum(0).norm()) / 2
    for i in (1, 2, 3):
        own = rows[starts[i] : starts[i + 1]].sum(0)
        norms.append(float(own.norm()))
        total += own * min(1.0, clip / norms[-1])
    out = torch.empty_like(total)
    found = kernel.of(
        Examples(gone.x, gone.y, starts), torch.tensor([1, 2, 3]), FlatBound(clip), out
    )
    assert torch.allclose(out, total, rtol=0, atol=0.01 * clip)
    assert found.norms.tolist() == pytest.approx(norms, rel=1e-3)
    assert found.clipped == sum(norm > clip for norm in norms) >= 1


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if at % 5 else [])
        for at, name in enumerate(STRUCTURES)
    ],
)
def test_no_person_moves_a_sum_further_than_the_clip(name: str) -> None:
    """Who falls away has rows of all kinds, or many alike, or such as take each other away; the
    rows stay as nothing in their places, or are not drawn.
    """
    number = list(STRUCTURES).index(name)
    rng = np.random.default_rng(number)
    kind = "random" if name.startswith("tokens") else INPUTS[number % len(INPUTS)]
    counts = [1, 35, 2, 4]
    batch = Batch.of(name, kind, WEIGHTS[number % len(WEIGHTS)], sum(counts), number)
    batch.x[2:36], batch.y[2:36] = batch.x[1], batch.y[1]
    if batch.x.is_floating_point():
        batch.x[39] = -batch.x[38]
    starts, kernel = persons(counts), ClippedSum(batch.flat, batch.loss)
    for bound, basis, measure in bounds(batch.flat, float(rng.choice(CLIPS)), number):
        whole = summed(kernel, batch, starts, [0, 1, 2, 3], bound)
        assert torch.isfinite(whole).all()
        for who in rng.choice(4, 2, replace=False).tolist():
            others = [i for i in range(4) if i != who]
            absent = without(batch, range(int(starts[who]), int(starts[who + 1])))
            for less in (
                summed(kernel, absent, starts, [0, 1, 2, 3], bound),
                summed(kernel, batch, starts, others, bound),
            ):
                assert length(whole - less, basis, measure) <= bound.clip * ALLOWED


@pytest.mark.parametrize("name", ["linear", "mlp", "conv, Gram", "lstm", "float64"])
def test_a_person_has_the_same_bits_whoever_else_is_drawn(name: str) -> None:
    """Though their rows stand in other places of other pieces."""
    counts = [5, 90, 33, 1, 64, 7]
    batch = Batch.of(name, "random", WEIGHTS[0], sum(counts), 1)
    starts, kernel = persons(counts), ClippedSum(batch.flat, batch.loss)
    alone = [summed(kernel, batch, starts, [i], FlatBound(1e-3)) for i in range(6)]
    for chosen in ([1, 2], [0, 1, 2], [0, 3, 4, 5], [2, 3, 4, 5], [0, 1, 2, 3, 4, 5]):
        # sums of float64 round; so add up what each is alone in the same order
        total = torch.zeros_like(alone[0])
        for i in chosen:
            total += alone[i]
        assert torch.equal(total, summed(kernel, batch, starts, chosen, FlatBound(1e-3)))


def test_persons_of_large_batches() -> None:
    """More than are added up in one leaf, and more rows of one than are in a piece."""
    counts = np.random.default_rng(0).integers(1, 6, 400).tolist()
    batch = Batch.of("mlp", "random", WEIGHTS[0], sum(counts), 1)
    starts, kernel = persons(counts), ClippedSum(batch.flat, batch.loss)
    chosen = [i for i in range(400) if i % 3]
    whole = summed(kernel, batch, starts, chosen, FlatBound(0.1))
    parts = sum(
        summed(kernel, batch, starts, chosen[at : at + 50], FlatBound(0.1))
        for at in range(0, len(chosen), 50)
    )
    assert torch.allclose(whole, torch.as_tensor(parts), rtol=1e-9, atol=1e-12)
    for who in (1, 200, 398):
        less = summed(kernel, batch, starts, [i for i in chosen if i != who], FlatBound(0.1))
        assert float((whole - less).norm()) <= 0.1 * ALLOWED


def test_a_client_of_persons_books_and_draws_persons(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it books is the event of one person, at the rate at which persons are drawn; the noise
    beside that person's sum is as booked.
    """
    monkeypatch.setattr(clients, "hidden", lambda *parts: ())  # else another sum has other noise
    one = client(mechanism=Gaussian(clip=0.5, noise_multiplier=1.2))
    starts = persons([20, 1, 30, 9])
    many = replace(one, examples=Examples(one.examples.x, one.examples.y, starts))
    assert many.expected_batch == pytest.approx(Q * 4)
    asked = task(many)
    booked = PoissonSampled(sampling_rate=Q, event=Gaussian(clip=1, noise_multiplier=1.2).event())
    assert many.price(asked) == ((booked, 1),)
    drawn, scale = 0, ETA * 1.2 * 0.5 / (Q * 4)
    for seed in range(20):
        here = replace(many, entropy=Seeded(seed))
        absent = one.examples.x.clone()
        absent[21:51] = torch.nan
        other = replace(here, examples=Examples(absent, one.examples.y, starts))
        a, b = (each.answer(asked, permits(each.price(asked))).weights for each in (here, other))
        moved = float(np.linalg.norm(a - b))
        assert moved <= ETA * 0.5 / (Q * 4) * (1 + 1e-4)
        drawn += moved > 0.9 * ETA * 0.5 / (Q * 4)
        none = replace(
            here, examples=Examples(torch.full_like(absent, torch.nan), one.examples.y, starts)
        )
        noise = (asked.weights - none.answer(asked, permits(none.price(asked))).weights) / scale
        assert looks_standard_normal(torch.from_numpy(noise))
        for wrong in (2 / 3, 3 / 2):
            assert not looks_standard_normal(torch.from_numpy(noise * wrong))
    assert 1 <= drawn <= 10  # as one draw each at rate 0.2, and not as one of 30 rows
