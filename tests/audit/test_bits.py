"""A distinguisher of released bits: it knows everything but one record and the noise, and may look
at every digit.

In each trial a release is made with or without one record, by a fair coin. The attacker knows the
sum with it and without it, takes each off the release in turn, and guesses the one whose residual
looks more like what a sampler makes. The noise is so large that by the *size* of the release nobody
is told: all that could be told is in digits. Against noise of 24-bit uniforms such guesses were
right in 300 of 300 trials, from gradients, weights, aggregates and edges alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from permitted import permit, permits
from sordino.base.entropy import Entropy, Seeded, System
from sordino.base.message import Compute, Contribution, Train
from sordino.base.residues import added, unpacked
from sordino.mechanisms.gaussian import CountedGaussian, Gaussian, Single
from sordino.mechanisms.haar.basis import Basis
from sordino.mechanisms.haar.gaussian import HaarGaussian
from sordino.mechanisms.shared import SharedNoise
from sordino.regimes.asynchronous.assemble import PrivateEdge
from sordino.regimes.synchronous.aggregate import PrivateSum
from sordino.regimes.synchronous.method import RoundNoise
from sordino.training.client import ModelKernels, PrivateClient
from sordino.training.flat import Flat
from sordino.training.local import Part, SummedClient
from sordino.training.loss import cross_entropy
from sordino.training.optimizer import Sgd
from sordino.training.perexample.sums import ClippedSum, Examples, MeanGradient

TRIALS = 400
# one release at epsilon 0.13 for delta 1e-5: by its size, next to nothing is told
SIGMA, CLIP = 30.0, 1.0
FEATURES, CLASSES, N = 300, 10, 4
D = FEATURES * CLASSES

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Known:
    """What an attacker sees and knows: a release, the sum without the record and with it, and the
    noise's deviation.
    """

    released: Vector
    without: Vector
    with_it: Vector
    deviation: float


def bench() -> ModelKernels:
    torch.manual_seed(1)
    flat = Flat(nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES, bias=False)))
    return ModelKernels(flat, ClippedSum(flat, cross_entropy), MeanGradient(flat, cross_entropy))


def examples(there: bool) -> Examples:
    """A few examples; the first contributes nothing where it is not there."""
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.standard_normal((N, FEATURES)).astype(np.float32))
    if not there:
        x[0] = math.nan
    return Examples(x, torch.from_numpy(rng.integers(0, CLASSES, N)))


def sums(own: ModelKernels) -> tuple[Vector, Vector]:
    """Clipped sums without and with the record, at weights 0."""
    own.flat.load(torch.zeros(D))
    found = []
    for there in (False, True):
        out = torch.zeros(D, dtype=torch.float64)
        data = examples(there)
        own.clipped(data.x, data.y, CLIP, out)
        found.append(out.numpy().astype(np.float64))
    return found[0], found[1]


def by_weights(entropy: Entropy) -> Callable[[int, bool], Known]:
    """A client's new weights, and nothing else."""
    own, noise = bench(), CountedGaussian(clip=CLIP, noise_multiplier=SIGMA)
    without, with_it = sums(own)
    base = PrivateClient(
        index=0, unit="client:0", examples=examples(True), mechanism=noise, sampling_rate=1.0,
        learning_rate=0.5, optimizer=Sgd(), kernels=own, entropy=entropy,
    )  # fmt: skip
    clients = {there: replace(base, examples=examples(there)) for there in (False, True)}

    def trial(number: int, there: bool) -> Known:
        task = Train(round=number, steps=1, weights=np.zeros(D, np.float32))
        paid = permits(base.price(task), number)
        weights = clients[there].answer(task, paid).weights.astype(np.float64)
        return Known(-weights * N / 0.5, without, with_it, noise.vector_multiplier * CLIP)

    return trial


def by_gradient(entropy: Entropy) -> Callable[[int, bool], Known]:
    """An edge's gradient."""
    own, noise = bench(), Gaussian(clip=CLIP, noise_multiplier=SIGMA)
    without, with_it = sums(own)
    edges = {
        there: PrivateEdge(
            index=0, unit="client:0", examples=examples(there), sampling_rate=1.0,
            regularisation=0.0, kernels=own, draws=entropy.stream("edge"),
            scratch=torch.empty(D, dtype=torch.float64), mechanism=noise,
        )
        for there in (False, True)
    }  # fmt: skip
    paid = permit(edges[True].price, 10 * TRIALS)

    def trial(number: int, there: bool) -> Known:
        task = Compute(task=number, version=0, weights=np.zeros(D, np.float32), clip=CLIP)
        return Known(
            edges[there].answer(task, paid).gradient.astype(np.float64) * N,
            without,
            with_it,
            SIGMA * CLIP,
        )

    return trial


def by_aggregate(entropy: Entropy) -> Callable[[int, bool], Known]:
    """The mean of clients' updates."""
    rng = np.random.default_rng(4)
    deltas = [
        rng.standard_normal(D).astype(np.float32) / np.float32(2.0 * math.sqrt(D)) for _ in range(N)
    ]
    one = PrivateSum(
        mechanism=Gaussian(clip=CLIP, noise_multiplier=SIGMA),
        shares=(1.0,) * N,
        units=("client:0",),
        sampling_rate=1.0,
        entropy=entropy,
    )
    answers = [
        Contribution(client=i, round=1, steps=1, delta=delta, inside=True)
        for i, delta in enumerate(deltas)
    ]
    contract = RoundNoise(CLIP, SIGMA)
    whole: Vector = np.sum([delta.astype(np.float64) for delta in deltas], axis=0)

    def trial(number: int, there: bool) -> Known:
        released, _ = one.release(
            answers[0 if there else 1 :],
            contract,
            number,
            D,
            [permit(one.event(contract), 1, number)],
        )
        return Known(released.mean.astype(np.float64) * N, whole - deltas[0], whole, SIGMA * CLIP)

    return trial


def by_shared_sum(entropy: Entropy) -> Callable[[int, bool], Known]:
    """The opened sum of two clients that share the noise."""
    own = bench()
    without, with_it = sums(own)
    rule = SharedNoise(most=(4.0 * CLIP,) * 2, dimension=D, honest=2, rounds=TRIALS)
    grid = rule.grid(CLIP, SIGMA)

    def client(index: int, there: bool) -> SummedClient:
        part = Part(client=index, rule=rule, weight=1.0, entropy=entropy)
        return SummedClient(
            index=index, unit="client:0", examples=examples(there), part=part, sampling_rate=1.0,
            mechanism=Gaussian(clip=CLIP, noise_multiplier=SIGMA), kernels=own, entropy=entropy,
        )  # fmt: skip

    clients = {(i, there): client(i, there) for i in range(2) for there in (False, True)}

    def trial(number: int, there: bool) -> Known:
        task = Train(round=number, steps=1, weights=np.zeros(D, np.float32))
        total = np.zeros(D, np.uint64)
        for one in (clients[0, there], clients[1, False]):
            said = one.answer(task, permits(one.price(task), number))
            total = added(total, unpacked(said.values, D, rule.bits), rule.bits)
        return Known(grid.opened(total), 2.0 * without, without + with_it, SIGMA * CLIP)

    return trial


def by_embedding(entropy: Entropy) -> Callable[[int, bool], Known]:
    """A party's embedding of one row."""
    rng = np.random.default_rng(5)
    row = torch.from_numpy(rng.standard_normal(D).astype(np.float32)).div_(2.0 * math.sqrt(D))
    noise = Single(clip=CLIP / 2.0, noise_multiplier=SIGMA)
    draws = entropy.stream("embedding")

    def trial(number: int, there: bool) -> Known:
        sent = noise.release_rows((row if there else torch.zeros(D)).unsqueeze(0), draws.at(number))
        return Known(
            sent[0].numpy().astype(np.float64),
            np.zeros(D),
            noise.bounded(row.unsqueeze(0))[0].numpy().astype(np.float64),
            SIGMA,
        )

    return trial


def by_coefficients(entropy: Entropy) -> Callable[[int, bool], Known]:
    """A sum with noise on its wavelet coefficients, seen in these."""
    basis = Basis.flat(D)
    noise = HaarGaussian.weighted(
        clip=CLIP, noise_multiplier=SIGMA, basis=basis, weights=[1.0] * basis.groups
    )
    rng = np.random.default_rng(6)
    record = torch.from_numpy(rng.standard_normal(D) / math.sqrt(D))

    def trial(number: int, there: bool) -> Known:
        noisy, _ = noise.release_counted(
            record if there else torch.zeros(D, dtype=torch.float64),
            0.0,
            entropy.at("haar", number),
        )
        seen = basis.forward(noisy.double())[:D]
        return Known(seen.numpy(), np.zeros(D), basis.forward(record)[:D].numpy(), SIGMA * CLIP)

    return trial


def lattice(residual: Vector, deviation: float) -> float:
    """How far exp(-r^2/2) of short pairs is from multiples of 2^-24: what Box and Muller's numbers
    with 24 bits are made of.
    """
    half = (len(residual) + 1) // 2
    square = np.square(residual[: len(residual) - half] / deviation) + np.square(
        residual[half:] / deviation
    )
    steps = np.exp(-square[square < 0.05] / 2.0) * 2.0**24
    return float(np.abs(steps - np.round(steps)).sum())


def digits(residual: Vector, deviation: float) -> float:
    """How far residuals are from multiples of small powers of two, of all sizes together."""
    found = 0.0
    for power in (14, 17, 20, 23):
        steps = residual * 2.0 ** (power - round(math.log2(deviation)))
        found += float(np.abs(steps - np.round(steps)).mean())
    return found


def repeats(residual: Vector, deviation: float) -> float:
    """How many sizes occur twice: samplers of few bits repeat themselves."""
    return float(len(np.unique(np.abs(residual).astype(np.float32))))


LOOKS = {"lattice": lattice, "digits": digits, "repeats": repeats}
WAYS = {
    "weights": by_weights,
    "gradient": by_gradient,
    "aggregate": by_aggregate,
    "shared sum": by_shared_sum,
    "embedding": by_embedding,
    "coefficients": by_coefficients,
}


@pytest.mark.parametrize(
    ("way", "entropy"),
    [
        pytest.param(way, entropy, marks=[pytest.mark.nightly] if (at + nth) % 2 else [])
        for at, way in enumerate(WAYS)
        for nth, entropy in enumerate([Seeded(11), System(bytes(range(32)))])
    ],
)
def test_no_digit_tells_whether_a_record_is_there(way: str, entropy: Entropy) -> None:
    """By day each way once, by one kind of randomness or the other."""
    trial, coin = WAYS[way](entropy), np.random.default_rng(9)
    right, trials = dict.fromkeys(LOOKS, 0), TRIALS if isinstance(entropy, Seeded) else TRIALS // 4
    for number in range(1, trials + 1):
        there = bool(coin.integers(2))
        known = trial(number, there)
        for name, look in LOOKS.items():
            without, with_it = (
                look(known.released - hidden, known.deviation)
                for hidden in (known.without, known.with_it)
            )
            guess = with_it < without if with_it != without else bool(coin.integers(2))
            right[name] += guess == there
    for name, count in right.items():
        # a coin is right in half of them, give or take 4.9 deviations once in a million; being told
        # by size adds less than one
        assert abs(count - trials / 2) < 6.0 * math.sqrt(trials / 4), name


def test_the_distinguisher_sees_numbers_of_24_bits() -> None:
    """The same looks at noise as it was made before: right in nearly all trials."""
    rng, right, half = np.random.default_rng(0), 0, D // 2
    record = rng.standard_normal(D) / math.sqrt(D)
    for number in range(200):
        u = (rng.integers(1, 2**32, half) * 2.0**-32).astype(np.float32).astype(np.float64)
        v = rng.random(half)
        u = np.round(u * 2**24) / 2**24  # what float32 holds of u near 1
        radius = np.sqrt(-2.0 * np.log(np.maximum(u, 2.0**-24)))
        noise = np.concatenate([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)])
        there = bool(number % 2)
        released = (
            (noise * SIGMA + (record if there else 0.0)).astype(np.float32).astype(np.float64)
        )
        right += (lattice(released - record, SIGMA) < lattice(released, SIGMA)) == there
    assert right > 180
