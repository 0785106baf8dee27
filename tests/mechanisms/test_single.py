"""A Gaussian release of one vector: no row moves it further than is booked, and its noise is what
is booked.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accountants import gaussian_delta
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.mechanisms.contract import ContractBroken, check_noise
from sordino.mechanisms.gaussian import Gaussian as OfSums
from sordino.mechanisms.gaussian import Single
from sordino.privacy import Gaussian, Repeated, accountant

D = 20_000


@pytest.mark.parametrize(("clip", "z"), [(0.7, 1.3), (1e-12, 3.0), (1e6, 0.01)])
def test_it_keeps_its_contract(clip: float, z: float) -> None:
    """Which rejects 2/3 and 3/2 of the scale."""
    mechanism = Single(clip=clip, noise_multiplier=z)
    booked = mechanism.event()
    assert booked == Gaussian(noise_multiplier=z)
    check_noise(
        lambda rng: mechanism.release(torch.zeros(D), rng), booked.noise_multiplier, 2 * clip
    )
    check_noise(
        lambda rng: mechanism.release_rows(torch.zeros(200, 101), rng).flatten(),
        booked.noise_multiplier,
        2 * clip,
    )


@pytest.mark.parametrize("factor", [1 / 2, 2 / 3, 0.9, 1.1, 3 / 2])
def test_the_contract_sees_another_scale(factor: float) -> None:
    """One half is a release of sensitivity C: right for add-or-remove-one, not for replace-one."""
    mechanism = Single(clip=0.7, noise_multiplier=1.3)
    with pytest.raises(ContractBroken, match="the noise is not"):
        check_noise(lambda rng: factor * mechanism.release(torch.zeros(D), rng), 1.3, 1.4)


def test_every_row_has_noise_of_its_own() -> None:
    noise = (
        Single(clip=0.5, noise_multiplier=1.0)
        .release_rows(torch.zeros(40, 5001), Seeded(1).at("rows"))
        .double()
        .numpy()
    )
    correlation = np.corrcoef(noise) - np.eye(40)
    assert np.abs(correlation).max() < 6.9 / math.sqrt(5001)  # the largest of 780
    # equal rows would be seen
    assert np.abs(np.corrcoef(np.vstack([noise[:3], noise[:1]])) - np.eye(4)).max() > 0.99


numbers = (
    st.floats(width=32, allow_nan=False)
    | st.floats(-100.0, 100.0, width=32)
    | st.sampled_from([0.0, math.nan, math.inf, 1e-45, 3e38])
)
vectors = st.lists(numbers, min_size=5, max_size=5)


@given(
    v=vectors,
    w=vectors,
    stretch=st.booleans(),
    clip=st.sampled_from([1e-12, 1e-3, 0.1, 1.0, 33.0, 1e12]),
    z=st.floats(1e-3, 1e3),
)
@example(
    v=[3e37] + 4 * [0.0], w=[-3e37] + 4 * [0.0], stretch=True, clip=1e-6, z=1.0
)  # where a factor would be denormal
@example(v=[9.9e18] + 4 * [0.0], w=[-9.9e18] + 4 * [0.0], stretch=True, clip=1e-12, z=1.0)
@example(v=[math.nan] * 5, w=[1.0] * 5, stretch=False, clip=1.0, z=1.0)
def test_no_replacement_moves_the_whitened_vector_further_than_is_booked(
    v: list[float], w: list[float], stretch: bool, clip: float, z: float
) -> None:
    """Over neighbouring rows, opposite ones among them: float32 vectors, and the noise's scale as
    float32 has it, exactly.
    """
    mechanism = Single(clip=clip, noise_multiplier=z)
    here = torch.tensor(v, dtype=torch.float32)
    there = -here if stretch else torch.tensor(w, dtype=torch.float32)
    pair = mechanism.bounded(torch.stack([here, there])).double()
    assert torch.isfinite(pair).all()
    assert float(torch.linalg.vector_norm(pair, dim=1).max()) < clip
    distance = float(torch.linalg.vector_norm(pair[0] - pair[1]))
    assert distance <= mechanism.sensitivity
    assert (
        distance / float(np.float32(mechanism.deviation))
        <= 1.0 / mechanism.event().noise_multiplier
    )
    length = float(torch.linalg.vector_norm(here.double()))
    if stretch and clip < length < 1e18:
        assert distance > 2 * clip * (1 - 1e-5)  # tight: nothing is wasted


@pytest.mark.parametrize("dimension", [1, 3, 64, 4097, 100_000])
def test_long_and_short_rows_stay_in_the_ball_and_keep_their_direction(dimension: int) -> None:
    mechanism = Single(clip=0.3, noise_multiplier=1.0)
    rows = torch.from_numpy(Seeded(2).at(dimension).standard_normal((7, dimension), np.float32))
    rows *= torch.tensor([1e-6, 1e-3, 0.1, 1.0, 10.0, 1e6, 1e15]).unsqueeze(1)
    found = mechanism.bounded(rows)
    lengths = torch.linalg.vector_norm(rows.double(), dim=1)
    expected = rows.double() * (0.3 / lengths).clamp(max=1.0).unsqueeze(1)
    assert torch.allclose(found.double(), expected, rtol=1e-5, atol=0.0)
    assert float(torch.linalg.vector_norm(found.double(), dim=1).max()) < 0.3
    short = lengths < 0.29
    assert torch.equal(found[short], rows[short])  # exactly
    for row, one in zip(rows, found, strict=True):
        # the ball of the other mechanisms
        assert torch.equal(OfSums(clip=0.3, noise_multiplier=1.0).bounded(row)[0], one)


def test_rows_that_are_not_finite_become_zero_before_noise() -> None:
    mechanism = Single(clip=1.0, noise_multiplier=1.0)
    rows = torch.tensor(
        [
            [math.nan, 1.0],
            [math.inf, 0.0],
            [-math.inf, math.nan],
            [2e19, 0.0],
            [0.0, 0.0],
            [0.5, 0.0],
        ]
    )
    noisy = mechanism.release_rows(rows, Seeded(3).at("x"))
    noise = mechanism.release_rows(torch.zeros(6, 2), Seeded(3).at("x"))
    assert torch.equal(noisy[:5], noise[:5])
    assert torch.allclose(noisy[5] - noise[5], torch.tensor([0.5, 0.0]), atol=1e-6)


def test_a_release_adds_to_its_input_and_leaves_it_alone() -> None:
    v = torch.arange(5, dtype=torch.float32, requires_grad=True)
    mechanism = Single(clip=100.0, noise_multiplier=0.25)
    noisy = mechanism.release(v, Seeded(0).at("x"))
    noise = mechanism.release(torch.zeros(5), Seeded(0).at("x"))
    assert torch.equal(v, torch.arange(5, dtype=torch.float32))
    assert torch.allclose(noisy, v.detach() + noise)
    assert not noisy.requires_grad
    assert torch.equal(mechanism.release_rows(v.unsqueeze(0), Seeded(0).at("x"))[0], noisy)
    assert mechanism.release_rows(torch.empty(0, 3), Seeded(0).at("x")).shape == (0, 3)


@pytest.mark.parametrize(("z", "count"), [(2.0, 1), (8.0, 30), (40.0, 10_000)])
def test_many_releases_are_priced_as_one_gaussian(z: float, count: int) -> None:
    """Closed form (Balle and Wang 2018) and dp-accounting's distribution, replace-one."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    mechanism, price = Single(clip=0.2, noise_multiplier=z), accountant("pld")
    spent = [(Repeated(event=mechanism.event(), count=count), 1)]
    whole = z / math.sqrt(count)
    for x in (0.1, 0.5, 2.0):
        assert price.delta(spent, x) == pytest.approx(gaussian_delta(whole, x), rel=1e-9)
    epsilon = price.epsilon(spent, 1e-5)
    assert gaussian_delta(whole, epsilon) == pytest.approx(1e-5, rel=1e-6)
    theirs = pld.from_gaussian_mechanism(  # which moves by 2C where the row is replaced
        2 * mechanism.deviation,
        sensitivity=mechanism.sensitivity,
        value_discretization_interval=1e-3,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )
    assert price.epsilon([(mechanism.event(), 1)], 1e-5) == pytest.approx(
        theirs.get_epsilon_for_delta(1e-5), rel=2e-3
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip": 0.0},
        {"clip": math.inf},
        {"clip": 1e-30},
        {"noise_multiplier": math.nan},
        {"noise_multiplier": -1.0},
    ],
)
def test_refuses_what_is_no_mechanism(wrong: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match=f"{next(iter(wrong))} must be a number from 1e-12 to 1e"):
        Single(**{"clip": 1.0, "noise_multiplier": 1.0, **wrong})
