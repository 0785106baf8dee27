"""Noise in whole numbers: exact, of the scale that is booked, and without digits that betray what
was hidden.
"""

import math
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import mpmath
import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sordino.base.entropy import Entropy, Seeded, System
from sordino.base.errors import StudyError
from sordino.mechanisms.contract import ContractBroken, check_noise, looks_standard_normal
from sordino.mechanisms.draws import (
    ERROR,
    LANES,
    LONGEST,
    SHORTEST,
    _length,
    _turned,
    doubtful_pairs,
    exact_pair,
    noisy,
)
from sordino.mechanisms.gaussian import CountedGaussian, Gaussian, Overclaimed, Single
from sordino.mechanisms.grid import FINE, Grid, add_gaussian, random_words
from sordino.mechanisms.haar.basis import Basis
from sordino.mechanisms.haar.gaussian import HaarGaussian, paper
from sordino.mechanisms.kinds import GaussianNoise, NoiseRequest
from sordino.mechanisms.knorm import KNorm

ENTROPIES = [Seeded(3), System(bytes(range(32)))]
Words = NDArray[np.uint64]


def edges(count: int) -> Words:
    """Words for u of all sizes, from 2^-64 to 1 - 2^-64, and for v at eighths of a turn; the rest
    at random.
    """
    rng = np.random.default_rng(0)
    u, v = (rng.integers(0, 2**64, count, dtype=np.uint64) for _ in range(2))
    far = np.exp2(rng.uniform(0, 63, count // 4)).astype(np.uint64)
    u[: count // 4], u[count // 4 : count // 2] = far, ~far
    for eighth in range(8):
        for off in range(5):
            v[8 * off + eighth] = (eighth << 61) + off - 2 if eighth or off > 1 else off
    u[:4] = 0, 1, 2**64 - 1, 2**64 - 2
    return np.concatenate([u, v])


@numba.njit(error_model="numpy")
def normal_pairs(words: Any, out: Any) -> None:
    """Compute z (2 h,) into ``out``, to be held against the bound E."""
    half = words.size // 2
    for i in range(half):
        cosine, sine = _turned(words[half + i])
        radius = math.sqrt(_length(words[i]))
        out[i], out[half + i] = radius * cosine, radius * sine


def true_pair(u: int, v: int) -> tuple[Any, Any]:
    radius = mpmath.sqrt(-2 * mpmath.log((mpmath.mpf(u) + 0.5) / mpmath.mpf(2) ** 64))
    angle = 2 * mpmath.pi * (mpmath.mpf(v) + 0.5) / mpmath.mpf(2) ** 64
    return radius * mpmath.cos(angle), radius * mpmath.sin(angle)


def test_computed_numbers_are_within_half_the_bound_that_is_relied_on() -> None:
    words = edges(6000)
    half = words.size // 2
    found = np.empty(words.size)
    normal_pairs(words, found)
    worst, checked = 0.0, 0
    with mpmath.workdps(40):
        for i in range(half):
            x, y = true_pair(int(words[i]), int(words[half + i]))
            if SHORTEST <= x * x + y * y <= LONGEST:
                worst = max(worst, float(abs(x - found[i])), float(abs(y - found[half + i])))
                checked = checked + 1
    assert checked > 0.6 * half
    assert 0.0 < worst < ERROR / 2.0


@pytest.mark.parametrize("deviation", [0.7, 900.0, 2.0**20 * 1.1, 2.0**31])
def test_every_number_is_the_true_one_rounded(deviation: float) -> None:
    """Against 250 bits, at all sizes of u and also where the product lies next to the middle
    between two whole numbers.
    """
    words = edges(2000)
    half = words.size // 2
    out, counts = np.empty(words.size, np.float32), np.zeros(-(-half // 1024), np.int64)
    found = noisy(words, np.zeros(words.size), out, 2.0**-40, deviation, counts)
    unsure = set(doubtful_pairs(words, deviation, counts))
    assert found == counts.sum() <= len(unsure)
    for i in range(half):
        wanted = exact_pair(int(words[i]), int(words[half + i]), 2**63, 2**63, deviation)
        if i not in unsure:
            assert (out[i], out[half + i]) == tuple(np.float32(n * 2.0**-40) for n in wanted)
    assert len(unsure) < half  # most are sure
    odd = np.empty(words.size - 1, np.float32)
    noisy(words, np.zeros(odd.size), odd, 2.0**-40, deviation, counts)
    assert np.array_equal(odd, out[:-1])


def test_doubtful_pairs_are_drawn_with_more_digits_and_none_is_left_out() -> None:
    """With a deviation so large that one pair in sixteen is doubtful, each number still is the true
    one.
    """
    grid, taken = Grid(2.0**-60, 2.0**36), []

    class Source:
        class bit_generator:  # noqa: N801
            words = iter(np.random.default_rng(1).integers(0, 2**64, 100_000, dtype=np.uint64))

            @classmethod
            def random_raw(cls, count: int) -> Words:
                taken.append(np.array([next(cls.words) for _ in range(count)], np.uint64))
                return taken[-1]

    total = torch.arange(100, dtype=torch.float64) * 2.0**37 * grid.step
    released = grid.release(total, Source()).double().numpy()  # type: ignore[arg-type]
    words, more = taken
    counts = np.zeros(1, np.int64)
    noisy(words, np.zeros(100), np.empty(100, np.float32), grid.step, grid.deviation, counts)
    unsure = doubtful_pairs(words, grid.deviation, counts)
    assert more.size == 2 * len(unsure) > 0
    digits = dict(zip(unsure, more.reshape(-1, 2).tolist(), strict=True))
    for i in range(50):
        first, second = digits.get(i, (2**63, 2**63))
        wanted = exact_pair(int(words[i]), int(words[50 + i]), first, second, grid.deviation)
        assert (released[i], released[50 + i]) == tuple(
            float(np.float32(n * grid.step + float(total[place])))
            for place, n in zip((i, 50 + i), wanted, strict=True)
        )
    for i in range(50):
        with mpmath.workdps(40):
            scaled = [z * grid.deviation for z in true_pair(int(words[i]), int(words[50 + i]))]
            near = min(abs(x - mpmath.floor(x) - 0.5) for x in scaled)
        assert i in unsure or near > grid.deviation * ERROR / 2.0


def test_the_logarithm_is_as_close_as_the_proof_says() -> None:
    """Next to sqrt(1/2), where the series leaves most."""
    for off in range(-200, 200):
        word = int(2**64 * (math.sqrt(0.5) / 8 + off * 1e-5))
        with mpmath.workdps(40):
            exact = -2 * mpmath.log((mpmath.mpf(word) + 0.5) / mpmath.mpf(2) ** 64)
            assert abs(exact - float(_length(np.uint64(word)))) < 2.0**-46


@pytest.mark.parametrize("entropy", ENTROPIES, ids=["seed", "system"])
def test_noise_is_whole_and_of_the_right_scale(entropy: Entropy) -> None:
    grid = Grid.of(clip=0.7, noise_multiplier=1.3, dimension=50_001)
    noise = grid.release(torch.zeros(50_001), entropy.at("x")).double()
    assert bool((noise / grid.step == (noise / grid.step).round()).all())
    assert looks_standard_normal(noise / (grid.step * grid.deviation))
    assert grid.step * grid.deviation == pytest.approx(0.7 * 1.3, rel=2e-3)
    for wrong in (2 / 3, 0.95, 1.05, 1.5):
        assert not looks_standard_normal(noise / (grid.step * grid.deviation * wrong))


@pytest.mark.parametrize("entropy", ENTROPIES, ids=["seed", "system"])
def test_pairs_and_neighbours_are_uncorrelated(entropy: Entropy) -> None:
    n = 40_000
    sample = (
        Gaussian(clip=1.0, noise_multiplier=1.0)
        .release_counted(torch.zeros(2 * n), 0.0, entropy.at("y"))[0]
        .double()
    )
    a, b = sample[:n], sample[n:]
    for left, right in ((a, b), (a**2, b**2), (a, b**2), (a[1:], a[:-1]), (a[32:], a[:-32])):
        assert abs(np.corrcoef(left, right)[0, 1]) < 6.1 / n**0.5


def test_tails_are_those_of_a_normal_number_and_nothing_is_cut_off() -> None:
    n = 4_000_000
    sample = (
        Gaussian(clip=1.0, noise_multiplier=1.0)
        .release_counted(torch.zeros(n), 0.0, Seeded(7).at("tails"))[0]
        .abs()
        .numpy()
    )
    for far in (1.0, 2.0, 3.0, 4.0, 4.7):
        expected = n * math.erfc(far / math.sqrt(2.0))
        assert (
            abs(int((sample > far * (1.0 + 2e-3)).sum()) - expected)
            < 6.1 * math.sqrt(expected) + 0.02 * expected
        )
    # sqrt(2 log 2^129): sizes of 13 standard deviations happen
    assert exact_pair(0, 0, 0, 0, 1.0)[0] == 13
    # and the smallest v is half of 2^-128 of a turn: 2^130 sqrt(2 log 2) sin(2 pi 2^-129)
    assert exact_pair(2**63, 0, 0, 0, 2.0**130)[1] == 15


def test_pairs_of_two_threads_are_computed_to_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One process may serve several studies, and the precision of mpmath is the process's."""
    mp: Any = mpmath.mp
    true, first, ended, seen = mp.sin, threading.Event(), threading.Event(), []

    def sine(angle: Any) -> Any:
        seen.append(mp.prec)
        if not first.is_set():  # the other thread comes in here, and is still there at our end
            first.set()
            ended.wait(0.3)
        return true(angle)

    def later() -> None:
        first.wait(5.0)
        exact_pair(1, 2, 3, 4, 1.0)
        ended.set()

    monkeypatch.setattr(mp, "sin", sine)
    other = threading.Thread(target=later)
    other.start()
    exact_pair(1, 2, 3, 4, 1.0)
    assert not ended.is_set()
    other.join()
    assert seen == [250, 250]


@given(
    clip=st.floats(1e-12, 1e12),
    sigma=st.floats(1e-3, 1e3),
    d=st.integers(1, 10**8),
    a=st.floats(-1, 1),
    b=st.floats(-1, 1),
)
def test_a_grid_is_fine_and_its_noise_covers_what_rounding_adds(
    clip: float, sigma: float, d: int, a: float, b: float
) -> None:
    grid = Grid.of(clip=clip, noise_multiplier=sigma, dimension=d)
    assert math.log2(grid.step) == int(math.log2(grid.step))
    assert grid.step <= sigma * clip * FINE * (1.0 + 1e-12)
    moved = mpmath.mpf(clip) / mpmath.mpf(grid.step) + mpmath.sqrt(d)
    assert grid.deviation >= sigma * moved  # never less noise than is booked
    assert grid.deviation * grid.step <= sigma * clip * (1.0 + 2.0**-10)
    x, y = a * clip / grid.step, b * clip / grid.step
    assert abs(round(x) - round(y)) <= abs(x - y) + 1.0


def test_rounded_sums_of_neighbours_are_no_farther_apart_than_is_booked() -> None:
    """Adversarial: every number of the neighbour lies just on the other side of a rounding
    boundary.
    """
    d = 4096
    grid = Grid.of(clip=1.0, noise_multiplier=0.8, dimension=d)
    here = (torch.arange(d, dtype=torch.float64) + 0.499999) * grid.step
    there = here + 2e-6 * grid.step
    far = torch.linalg.vector_norm((here / grid.step).round() - (there / grid.step).round())
    assert float(far) == math.sqrt(d)
    assert float(far) <= grid.deviation / 0.8 - 1.0 / grid.step + 1e-3


def test_the_same_noise_whatever_is_hidden_and_sums_are_rounded_to_the_grid() -> None:
    grid = Grid.of(clip=1.0, noise_multiplier=1.0, dimension=5)
    total = torch.tensor([0.3, -2.0, 1e-9, 1e300, math.nan], dtype=torch.float64)
    noisy_, noise = (grid.release(v, Seeded(0).at("x")).double() for v in (total, torch.zeros(5)))
    assert noisy_[:3].tolist() == pytest.approx(
        (noise[:3] + (total[:3] / grid.step).round() * grid.step).tolist(), abs=1e-6
    )
    # held at the end of what float64 counts exactly
    assert float(noisy_[3]) == pytest.approx(2.0**51 * grid.step)
    assert noisy_[4] == noise[4]  # what is no number adds nothing
    assert torch.equal(total[:3], torch.tensor([0.3, -2.0, 1e-9], dtype=torch.float64))


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 2047, 2048, 2049, 7850])
@pytest.mark.parametrize("entropy", ENTROPIES, ids=["seed", "system"])
def test_every_place_is_filled_and_draws_differ(length: int, entropy: Entropy) -> None:
    out = add_gaussian(torch.zeros(length), entropy.at("x"), clip=1.0, noise_multiplier=1.0)
    assert out.shape == (length,)
    assert torch.isfinite(out).all()
    # on a grid a few of thousands may meet
    assert len(set(out.tolist())) >= length - max(2, length // 500)


@pytest.mark.parametrize(
    ("clip", "sigma", "d"), [(1e-320, 1.0, 5), (1.0, 1e12, 10**6), (1e300, 1e300, 3)]
)
def test_what_no_grid_can_carry_is_refused(clip: float, sigma: float, d: int) -> None:
    with pytest.raises(StudyError, match=r"beyond what float64 can hold|is too large for"):
        Grid.of(clip=clip, noise_multiplier=sigma, dimension=d)


def test_words_side_by_side_are_uniform_and_independent() -> None:
    words = random_words(64_000, Seeded(1).at("w"))
    assert len(set(words.tolist())) == 64_000
    share = (words >> np.uint64(11)) * 2.0**-53
    lanes = share.reshape(-1, 32)
    assert abs(share.mean() - 0.5) < 6.1 / math.sqrt(12 * share.size)
    for bit in range(64):
        assert abs(((words >> np.uint64(bit)) & np.uint64(1)).mean() - 0.5) < 6.1 / (
            2 * math.sqrt(words.size)
        )
    correlation = np.corrcoef(lanes.T) - np.eye(32)
    assert np.abs(correlation).max() < 7.0 / math.sqrt(len(lanes))


def test_the_compiler_is_not_loaded_before_there_is_noise_to_make() -> None:
    code = (
        "import sys, sordino.mechanisms.kinds\n"
        "assert sordino.mechanisms.kinds.known()\n"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def lattice(released: NDArray[np.float64], deviation: float) -> float:
    """How near exp(-r^2/2) of short pairs lies to multiples of 2^-24, of what is hidden taken off:
    1/4 if anywhere, 0 if on them.

    This is the attack on Box and Muller's numbers with 24 bits of u: pairs (i, i + h) of a right
    guess lie on that lattice.
    """
    half = (len(released) + 1) // 2
    x, y = released[: len(released) - half] / deviation, released[half:] / deviation
    square = x**2 + y**2
    steps = np.exp(-square[square < 0.02] / 2.0) * 2.0**24
    return float(np.abs(steps - np.round(steps)).mean())


Release = Callable[[torch.Tensor, np.random.Generator], torch.Tensor]
D = 200_001


def released_by() -> list[tuple[str, Release, float]]:
    """Each mechanism with the deviation of its noise."""
    return [
        (
            "gaussian",
            lambda v, rng: Gaussian(clip=1.0, noise_multiplier=1.1).release_counted(v, 0.0, rng)[0],
            1.1,
        ),
        (
            "counted",
            lambda v, rng: CountedGaussian(clip=1.0, noise_multiplier=1.1).release_counted(
                v, 0.0, rng
            )[0],
            1.1013904,
        ),
        (
            "single",
            lambda v, rng: Single(clip=0.5, noise_multiplier=1.1).release(v * 1e-3, rng),
            1.1,
        ),
        (
            "misjudged",
            lambda v, rng: Overclaimed(claimed=1.0, noise_multiplier=1.1, excess=7.0).release(
                v, rng
            ),
            1.1,
        ),
        (
            "k-norm",
            lambda v, rng: KNorm(clip=1.0, noise_multiplier=1.1, dimension=len(v)).release_counted(
                v, 0.0, rng
            )[0],
            1.1,
        ),
    ]


@pytest.mark.parametrize(
    ("release", "deviation"),
    [row[1:] for row in released_by()],
    ids=[row[0] for row in released_by()],
)
def test_the_lattice_of_released_floats_is_gone(release: Release, deviation: float) -> None:
    noise = release(torch.zeros(D), Seeded(5).at("x")).double().numpy()
    n = int(
        (np.square(noise[: D // 2]) + np.square(noise[D - D // 2 :]) < 0.02 * deviation**2).sum()
    )
    assert n > 300
    # a uniform distance in [0, 1/2]
    assert abs(lattice(noise, deviation) - 0.25) < 6.1 / math.sqrt(48 * n)


def test_the_lattice_would_be_seen_where_there_is_one() -> None:
    rng = np.random.default_rng(0)
    u, v = rng.integers(1, 2**24, D) * 2.0**-24, rng.random(D)
    radius = np.sqrt(-2 * np.log(u))
    noise = (
        np.concatenate([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)])
        .astype(np.float32)
        .astype(np.float64)
    )
    assert lattice(noise, 1.0) < 0.05
    assert lattice(noise + 0.1, 1.0) > 0.2  # a wrong guess is not on it


@pytest.mark.parametrize("entropy", ENTROPIES, ids=["seed", "system"])
def test_the_last_digits_of_a_release_do_not_depend_on_what_is_hidden(entropy: Entropy) -> None:
    """The parity of released whole numbers, with and without a canary, over 4000 releases: as a
    coin's.
    """
    canary = torch.full((64,), 0.125) + torch.arange(64) * 2.0**-22
    grid = Grid.of(clip=1.0, noise_multiplier=1.0, dimension=64)
    for hidden in (torch.zeros(64), canary):
        whole = np.concatenate(
            [
                (grid.release(hidden, entropy.at("p", i)).double() / grid.step).numpy()
                for i in range(500)
            ]
        )
        for digit in (2, 4, 8, 1024):
            share = (
                np.bincount(np.mod(whole, digit).astype(int) * 2 // digit, minlength=2)[0]
                / whole.size
            )
            assert abs(share - 0.5) < 6.1 / (2.0 * math.sqrt(whole.size))


def test_a_whitened_release_of_wavelet_coefficients_is_whole_and_of_one_size() -> None:
    basis = Basis.flat(1 << 14)
    mechanism = HaarGaussian.weighted(
        clip=0.5,
        noise_multiplier=1.2,
        basis=basis,
        weights=[w / max(paper(basis)) for w in paper(basis)],
    )
    check_noise(
        lambda rng: basis.forward(
            mechanism.release_counted(torch.zeros(1 << 14), 0.0, rng)[0].double(),
            [1 / s for s in mechanism.noise],
        ).float(),
        mechanism.event().noise_multiplier,
        0.5,
    )
    with pytest.raises(ContractBroken):
        check_noise(
            lambda rng: basis.forward(mechanism.release_counted(torch.zeros(1 << 14), 0.0, rng)[0]),
            1.2,
            0.5,
        )


def test_many_words_are_those_of_sfc64_as_its_author_seeds_it() -> None:
    """Each lane against numpy's: three words of state, a counter at 1, twelve rounds of mixing."""
    words = random_words(10 * LANES, Seeded(2).at("w"))
    states = Seeded(2).at("w").bit_generator.random_raw(3 * LANES).reshape(3, LANES)
    for lane in (0, LANES - 1):
        bits = np.random.SFC64(0)
        state: Any = bits.state
        state["state"]["state"][:] = (*states[:, lane], 1)
        bits.state = state
        bits.random_raw(12, output=False)
        assert words[lane::LANES].tolist() == bits.random_raw(10).tolist()


def test_the_count_has_the_deviation_that_is_asked_for() -> None:
    asked = NoiseRequest(
        unit="client", clip=1.0, noise_multiplier=3.0, parameters=(4,), counted=True,
        count_deviation=2.5,
    )  # fmt: skip
    made = GaussianNoise(form="sound").make(asked)
    assert isinstance(made, CountedGaussian)
    assert made.count_deviation == pytest.approx(2.5)
