"""The Gaussian mechanisms: what they book is what they do."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm  # type: ignore[import-untyped]

from sordino.base.errors import StudyError
from sordino.mechanisms.contract import ContractBroken, check_noise, looks_standard_normal
from sordino.mechanisms.gaussian import COUNT_SHARE, CountedGaussian, Gaussian
from sordino.mechanisms.kinds import GaussianNoise, NoiseRequest

D = 20_000


def test_gaussian_keeps_its_contract() -> None:
    mechanism = Gaussian(clip=0.7, noise_multiplier=1.3)
    check_noise(
        lambda rng: mechanism.release_counted(torch.zeros(D), 0.0, rng)[0],
        mechanism.event().noise_multiplier,
        mechanism.clip,
    )


@pytest.mark.parametrize("factor", [2 / 3, 0.9, 1.1, 3 / 2])
def test_the_contract_sees_a_mechanism_that_books_another_scale(factor: float) -> None:
    mechanism = Gaussian(clip=0.7, noise_multiplier=1.3)
    with pytest.raises(ContractBroken):
        check_noise(
            lambda rng: mechanism.release_counted(torch.zeros(D), 0.0, rng)[0] * factor, 1.3, 0.7
        )


def test_counted_vector_has_the_scale_it_names() -> None:
    mechanism = CountedGaussian(clip=2.0, noise_multiplier=1.1)
    check_noise(
        lambda rng: mechanism.release_counted(torch.zeros(D), 0.0, rng)[0],
        mechanism.vector_multiplier,
        mechanism.clip,
    )


def test_counted_count_has_the_scale_it_names() -> None:
    mechanism = CountedGaussian(clip=2.0, noise_multiplier=1.1)

    def draw(rng: np.random.Generator) -> torch.Tensor:
        return torch.tensor(
            [mechanism.release_counted(torch.zeros(1), 0.0, rng)[1] for _ in range(4_000)]
        )

    check_noise(draw, mechanism.count_deviation, 1.0)


@pytest.mark.parametrize("deviation", [0.8, 3.0])
def test_a_count_has_the_noise_that_a_study_asks_for(deviation: float) -> None:
    request = NoiseRequest(
        unit="client",
        clip=0.7,
        noise_multiplier=1.2,
        parameters=(4,),
        counted=True,
        count_deviation=deviation,
    )
    made = GaussianNoise().make(request)
    assert isinstance(made, CountedGaussian)
    assert (made.clip, made.noise_multiplier, made.measure) == (0.7, 1.2, "flat")
    assert made.count_deviation == pytest.approx(deviation)
    layers = GaussianNoise(clipping="per-layer").make(replace(request, count_deviation=None))
    assert isinstance(layers, CountedGaussian)
    assert (layers.measure, layers.share) == ("layers", COUNT_SHARE)
    # all of the noise: 1.2 / 2
    with pytest.raises(StudyError, match=r"leaves nothing .* it must be above 0\.6"):
        GaussianNoise().make(replace(request, count_deviation=0.6))
    assert type(GaussianNoise().make(replace(request, counted=False))) is Gaussian


@given(
    sigma=st.floats(0.05, 50),
    share=st.floats(1e-4, 0.9),
    clip=st.floats(1e-3, 1e3),
    norm=st.floats(0, 1),
    clipped=st.booleans(),
)
def test_no_example_moves_the_whitened_pair_further_than_is_booked(
    sigma: float, share: float, clip: float, norm: float, clipped: bool
) -> None:
    """Brute force over one example's contribution: (v, b - 1/2) with ||v|| <= C, b in {0, 1}."""
    mechanism = CountedGaussian(clip=clip, noise_multiplier=sigma, share=share)
    vector = norm * clip / (mechanism.vector_multiplier * clip)
    count = (float(clipped) - 0.5) / mechanism.count_deviation
    booked = 1.0 / mechanism.event().noise_multiplier
    assert math.hypot(vector, count) <= booked * (1 + 1e-12)
    if norm == 1.0:
        assert math.hypot(vector, count) == pytest.approx(booked)  # tight: nothing is wasted


def test_release_leaves_its_input_alone_and_adds_to_it() -> None:
    from sordino.base.entropy import Seeded

    total = torch.arange(5, dtype=torch.float32)
    mechanism = Gaussian(clip=1.0, noise_multiplier=1.0)
    noisy, _ = mechanism.release_counted(total, 0.0, Seeded(0).at("x"))
    noise, _ = mechanism.release_counted(torch.zeros(5), 0.0, Seeded(0).at("x"))
    assert torch.equal(total, torch.arange(5, dtype=torch.float32))
    assert torch.allclose(noisy, total + noise)


@pytest.mark.parametrize(
    ("clip", "sigma"),
    [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, -2.0), (math.inf, 1.0), (1.0, math.nan)],
)
def test_refuses_what_is_no_mechanism(clip: float, sigma: float) -> None:
    for kind in (Gaussian, CountedGaussian):
        with pytest.raises(StudyError, match=r"must be a (positive )?number"):
            kind(clip=clip, noise_multiplier=sigma)


def quantiles(n: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A sample (n,) as even as one of N(0, 1) can be."""
    found: np.ndarray[Any, np.dtype[np.float64]] = norm.ppf((np.arange(n) + 0.5) / n)
    return found


@pytest.mark.parametrize("n", [2_000, 20_000])
def test_each_tolerance_of_the_contract_is_that_of_so_many_numbers(n: int) -> None:
    """A mean or a variance that is off by 5 standard errors passes, and by 7 it does not, though
    the distribution as a whole is still near enough; and another shape does not, though mean and
    variance are right.
    """

    def accepted(sample: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
        return looks_standard_normal(torch.from_numpy(sample))

    exact = quantiles(n)
    for errors, right in ((0.0, True), (5.0, True), (7.0, False)):
        for sign in (-1.0, 1.0):
            assert accepted(exact + sign * errors / math.sqrt(n)) == right
            scale = math.sqrt(1.0 + sign * errors * math.sqrt(2.0 / n))
            assert accepted(exact / exact.std() * scale) == right
    limit = math.sqrt(math.log(2e9) / (2.0 * n))
    for part, right in ((0.9, True), (1.2, False)):
        middle = np.abs(exact) < norm.ppf(0.5 + part * limit)
        moved = np.where(middle, 0.0, exact)  # a jump of the distribution at 0, so high
        assert accepted(moved / moved.std()) == right
