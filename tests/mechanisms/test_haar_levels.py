"""Levels of Haar coefficients clipped one by one: sensitivity by brute force and by search, noise,
and the price of the printed form.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.mechanisms.contract import ContractBroken, check_noise
from sordino.mechanisms.gaussian import Shortening, Tailed
from sordino.mechanisms.haar.basis import Basis
from sordino.mechanisms.haar.gaussian import HaarGaussian, LevelGaussian, paper
from sordino.mechanisms.kinds import HaarNoise, NoiseRequest
from sordino.privacy.event import Gaussian

sizes = st.lists(st.integers(1, 70), min_size=1, max_size=4)
seeds = st.integers(0, 2**32 - 1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def random_weights(basis: Basis, seed: int, spread: float = 30.0) -> tuple[float, ...]:
    return tuple(np.random.default_rng(seed).uniform(1.0, spread, basis.groups).tolist())


def levels(
    mechanism: HaarGaussian, rows: Tensor
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """||u_g|| w_g / C of rows (n, d), (n, groups), level by level from the coefficients."""
    basis = mechanism.basis
    u = basis.forward(rows.double()).numpy()
    parts = np.split(u, np.cumsum(basis.lengths)[:-1], axis=1)
    norms = np.stack([np.linalg.norm(part, axis=1) for part in parts], axis=1)
    weighted: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = (
        norms * np.array(mechanism.clip_weights) / mechanism.clip
    )
    return weighted


def moved(
    mechanism: HaarGaussian, rows: Tensor
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """How far contributions (n, d) move a release whose noise is brought to N(0, I), (n,)."""
    deviations = np.repeat(mechanism.deviations, mechanism.basis.lengths)
    whitened: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.linalg.norm(
        mechanism.basis.forward(rows.double()).numpy() / deviations, axis=1
    )
    return whitened


def forms(basis: Basis, seed: int = 3) -> list[LevelGaussian]:
    made = {"clip": 0.7, "noise_multiplier": 1.3, "basis": basis}
    return [
        LevelGaussian.weighted(**made, weights=random_weights(basis, seed)),  # type: ignore[arg-type]
        LevelGaussian.weighted(**made, weights=(1.0,) * basis.groups),  # type: ignore[arg-type]
        LevelGaussian.weighted(**made, weights=paper(basis)),  # type: ignore[arg-type]
        LevelGaussian.literal(**made),  # type: ignore[arg-type]
        LevelGaussian.literal(**made, weighted=True, discount=False),  # type: ignore[arg-type]
    ]


def full(mechanism: LevelGaussian) -> Tensor:
    """A row (1, d) with much energy in one coefficient of every level, the first."""
    basis = mechanism.basis
    u = torch.zeros(basis.coefficients, dtype=torch.float64)
    starts = [0, *np.cumsum(basis.lengths)[:-1].tolist()]
    u[torch.tensor(starts)] = 1e6
    return basis.inverse(u).unsqueeze(0)


# --- sensitivity


@pytest.mark.parametrize("blocks", [[1], [2], [32], [16, 8], [3], [21], [7, 30, 1], [33, 16]])
@pytest.mark.parametrize("number", range(5))
def test_no_contribution_moves_a_release_further_than_is_booked(
    blocks: list[int], number: int
) -> None:
    basis = Basis.of(blocks)
    mechanism = forms(basis)[number]
    booked = 1.0 / mechanism.event().noise_multiplier
    adversaries = torch.cat(
        [
            1e3 * normal(300, basis.dimension, seed=number),
            torch.ones(1, basis.dimension, dtype=torch.float64) * 1e4,
            1e4 * torch.eye(basis.dimension, dtype=torch.float64),
            full(mechanism),
        ]
    )
    bounded, _ = mechanism.shortened_rows(adversaries)
    assert levels(mechanism, bounded).max() <= 1.0
    reached = moved(mechanism, bounded)
    assert reached.max() <= booked
    if all(size in (1, 2, 8, 16, 32) for size in blocks):  # every level can be full at once
        assert moved(mechanism, bounded)[-1] == pytest.approx(booked, rel=1e-3)


@pytest.mark.parametrize("blocks", [[21], [13, 6], [32]])
def test_a_search_for_the_worst_contribution_finds_none_beyond_the_bound(blocks: list[int]) -> None:
    """Ascent on what is released, through the clipping itself, from many starts."""
    basis, rng = Basis.of(blocks), np.random.default_rng(5)
    for mechanism in forms(basis):
        booked = 1.0 / mechanism.event().noise_multiplier
        deviations = torch.from_numpy(np.repeat(mechanism.deviations, basis.lengths))
        rows = torch.from_numpy(rng.standard_normal((20, basis.dimension))) * 1e3
        best = 0.0
        for step in range(150):
            bounded, _ = mechanism.shortened_rows(rows)
            found = moved(mechanism, bounded)
            best = max(best, float(found.max()))
            # the gradient of the squared whitened length, in directions that are long enough
            slope = basis.inverse(basis.forward(bounded) / deviations.square())
            slope /= slope.norm(dim=1, keepdim=True)
            size = bounded.norm(dim=1, keepdim=True) * (1.0 if step % 3 else 30.0)
            noise = torch.from_numpy(rng.standard_normal(tuple(rows.shape)))
            rows = bounded + size * (slope + 0.3 / math.sqrt(basis.dimension) * noise)
        assert best <= booked
        assert best > 0.5 * booked  # a search that comes nowhere near could not see it broken


@given(
    blocks=sizes,
    seed=seeds,
    scale=st.floats(1e-6, 1e12),
    spread=st.floats(1.0, 500.0),
    kind=st.sampled_from(["normal", "constant", "single"]),
)
def test_bounded_contributions_keep_every_level_rounding_included(
    blocks: list[int], seed: int, scale: float, spread: float, kind: str
) -> None:
    basis = Basis.of(blocks)
    mechanism = LevelGaussian.weighted(
        clip=0.7, noise_multiplier=1.0, basis=basis, weights=random_weights(basis, seed, spread)
    )
    one = torch.zeros(basis.coefficients, dtype=torch.float64)
    one[seed % basis.coefficients] = 1.0
    row = {
        "normal": normal(basis.dimension, seed=seed),
        "constant": torch.ones(basis.dimension, dtype=torch.float64),
        "single": basis.inverse(one),
    }[kind]
    v = (scale * row).float()
    bounded, inside = mechanism.bounded(v)  # in float32, as it is sent
    before, after = (levels(mechanism, x.unsqueeze(0))[0] for x in (v, bounded))
    assert after.max() <= 1.0
    assert float(mechanism.norms(v.unsqueeze(0))) >= 0.7 * before.max() * (1 - 2.0**-23)
    assert inside == (float(mechanism.norms(v.unsqueeze(0))) <= 0.7)
    if before.max() < 0.98:
        assert torch.equal(bounded, v)


def test_levels_within_their_bounds_stay_and_the_others_are_brought_to_them() -> None:
    basis = Basis.flat(64)
    mechanism = forms(basis)[0]
    row = 0.03 * full(mechanism) / 1e6 + 0.001 * normal(1, 64)
    before = levels(mechanism, row)[0]
    (short,), _ = mechanism.shortened_rows(row)
    after = levels(mechanism, short.unsqueeze(0))[0]
    assert (before > 1).any()
    assert (before < 1).any()
    assert after == pytest.approx(np.minimum(before, 1.0), rel=1e-3)


def test_where_blocks_are_padded_the_vector_that_is_cut_is_measured_again() -> None:
    """Without that, a level may be longer than its bound again."""
    basis = Basis.flat(21)
    mechanism = LevelGaussian.weighted(
        clip=1.0, noise_multiplier=1.0, basis=basis, weights=random_weights(basis, 8)
    )
    rows = 1e3 * normal(400, 21, seed=1)
    cut = levels(mechanism, mechanism._cut(rows)).max(1)
    assert (cut > 1.0 + 1e-6).any()
    assert (levels(mechanism, mechanism.shortened_rows(rows)[0]).max(1) <= 1.0).all()


def test_what_is_not_finite_contributes_nothing() -> None:
    mechanism = forms(Basis.of([5, 3]))[0]
    rows = torch.ones(4, 8)
    rows[0, 3], rows[1, 7], rows[2] = math.nan, math.inf, 0.0
    short, norms = mechanism.shortened_rows(rows)
    assert torch.equal(short[:3], torch.zeros(3, 8, dtype=torch.float64))
    assert bool(torch.isinf(norms[:2]).all())
    assert norms[2] < 1e-15
    assert float(short[3].norm()) > 0.0
    assert torch.equal(mechanism.bounded(rows[0])[0], torch.zeros(8))


# --- noise and price


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("blocks", [[2**14], [2**13, 2**13]])
def test_releases_keep_the_contract(number: int, blocks: list[int]) -> None:
    basis = Basis.of(blocks)
    mechanism = forms(basis)[number]
    s = torch.from_numpy(np.repeat(mechanism.noise, basis.lengths))
    # the sensitivity of coefficients over s, from a contribution with every level full; not taken
    # from event()
    (worst,), _ = mechanism.shortened_rows(full(mechanism))
    sensitivity = float((basis.forward(worst) / s).norm()) / mechanism.margin

    def draw(rng: np.random.Generator) -> Tensor:
        zeros = torch.zeros(basis.dimension)
        return basis.forward(mechanism.release_counted(zeros, 0.0, rng)[0]).double() / s

    booked = mechanism.event().noise_multiplier
    check_noise(draw, booked, sensitivity)
    for wrong in (2.0 / 3.0, 0.9, 1.1, 1.5):
        with pytest.raises(ContractBroken):
            check_noise(draw, booked * wrong, sensitivity)


def test_multipliers_are_those_of_the_analysis() -> None:
    basis = Basis.flat(2**15)
    m, f = 2**15, math.sqrt(17 / 2)

    def printed(weighted: bool, discount: bool) -> float:
        return (
            LevelGaussian.literal(
                clip=1.0, noise_multiplier=1.0, basis=basis, weighted=weighted, discount=discount
            )
            .event()
            .noise_multiplier
        )

    each = math.sqrt(m**2 + sum(4.0**level for level in range(1, 16)))
    assert printed(False, True) == pytest.approx(1 / (f * each), rel=1e-12)
    assert printed(True, True) == pytest.approx(1 / (4 * f), rel=1e-12)
    assert printed(True, False) == pytest.approx(0.25, rel=1e-12)
    for weights in ((1.0,) * basis.groups, paper(basis), random_weights(basis, 1)):
        made = LevelGaussian.weighted(clip=2.0, noise_multiplier=1.7, basis=basis, weights=weights)
        assert made.event() == Gaussian(noise_multiplier=1.7)  # to the last bit: one kind of step
        assert made.scaled(9.0, 1.1).event() == Gaussian(noise_multiplier=1.1)


def test_contributions_and_noise_are_as_long_as_it_says() -> None:
    mechanism = forms(Basis.of([64, 32]))[0]
    assert isinstance(mechanism, Tailed)
    assert isinstance(mechanism, Shortening)
    (worst,), _ = mechanism.shortened_rows(full(mechanism))
    assert float(worst.norm()) <= mechanism.longest
    assert float(worst.norm()) == pytest.approx(mechanism.longest, rel=2e-3)
    rng, zeros = np.random.default_rng(0), torch.zeros(96, dtype=torch.float64)
    found = [float(mechanism.release_counted(zeros, 0.0, rng)[0].norm()) for _ in range(300)]
    within = mechanism.noise_within(96, 1, 0.01)
    assert np.mean(np.array(found) > within) < 0.03
    assert float(np.median(found)) * 2 > within


def test_learned_weights_keep_the_price_and_the_kind_of_clipping() -> None:
    asked = NoiseRequest(unit="sample", clip=1.0, noise_multiplier=1.1, parameters=(40, 8))
    made = HaarNoise(weights="learned", clipping="per-level", blocks="layers").made(asked)
    assert isinstance(made, LevelGaussian)
    seen = made.observed((), normal(48).float(), 0.1)
    shaped = made.shaped(seen)
    assert isinstance(shaped, LevelGaussian)
    assert shaped.clip_weights != made.clip_weights
    assert shaped.event() == made.event() == Gaussian(noise_multiplier=1.1)
    assert shaped.learns == made.learns
    assert made.shaped(()) is made


def test_the_table_of_a_study_says_which_clipping() -> None:
    asked = NoiseRequest(unit="sample", clip=1.0, noise_multiplier=1.0, parameters=(2**10,))
    f, groups = math.sqrt(6.0), 11

    def multiplier(noise: HaarNoise) -> float:
        made = noise.made(asked)
        assert isinstance(made, LevelGaussian) == (noise.clipping is not None)
        return made.event().noise_multiplier  # type: ignore[union-attr]

    assert multiplier(HaarNoise(clipping="per-level", weights="paper")) == 1.0
    assert multiplier(HaarNoise(form="paper")) == pytest.approx(1 / (1024 * f))
    each = multiplier(HaarNoise(form="paper", clipping="per-level"))
    assert each == pytest.approx(1 / (f * math.sqrt(2**20 + (4**11 - 4) / 3)))
    weighted = HaarNoise(form="paper", clipping="per-level", weights="paper")
    assert multiplier(weighted) == pytest.approx(1 / (f * math.sqrt(groups)))


def test_the_papers_form_for_clients_is_its_algorithm_2() -> None:
    asked = NoiseRequest(
        unit="client",
        clip=1.0,
        noise_multiplier=1.0,
        parameters=(12,),
        update_bound=0.5,
        largest=3.0,
    )
    assert HaarNoise(form="paper").make(asked) == HaarGaussian.literal_server(
        clip=1.0,
        noise_multiplier=1.0,
        basis=Basis.flat(12),
        bound=0.5,
        weight=3.0,
        expected=3.0,
        discount=True,
    )


def test_refuses_what_is_no_mechanism() -> None:
    made = {"clip": 1.0, "noise_multiplier": 1.0, "basis": Basis.flat(4)}
    with pytest.raises(StudyError, match="one weight for each of 3"):
        LevelGaussian.weighted(**made, weights=(1.0,))  # type: ignore[arg-type]
    with pytest.raises(StudyError, match="differ by a factor"):
        LevelGaussian.weighted(**made, weights=(1.0, 6e4, 1.0))  # type: ignore[arg-type]
    learning = HaarGaussian.weighted(**made, weights=(1.0, 1.0, 10.0))  # type: ignore[arg-type]
    with pytest.raises(StudyError, match=r"privacy\.clip / a clip weight of"):
        replace(learning, clip=5e-12)
    for clip in (1e-9, 1e9):
        with pytest.raises(StudyError, match="for learned weights,"):
            replace(learning, clip=clip, learns=0.5)


def test_the_same_randomness_gives_the_same_release() -> None:
    mechanism, total = forms(Basis.of([30, 11]))[1], normal(41)
    one, two = (mechanism.release_counted(total, 0.0, Seeded(0).at("x"))[0] for _ in range(2))
    assert torch.equal(one, two)
