"""Box-Muller normals: distribution, independence of the two halves, odd lengths, dtypes."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sordino.entropy import Seeded
from sordino.mechanism.contract import looks_standard_normal
from sordino.mechanism.noise import by_torch, fill_normal
from sordino.mechanism.normal import fill


@pytest.mark.parametrize("length", [1, 2, 3, 7, 100])
def test_fills_every_place_of_odd_and_even_lengths(length: int) -> None:
    out = torch.full((length,), torch.nan)
    fill_normal(out, Seeded(1).at("x"))
    assert torch.isfinite(out).all()
    assert len(set(out.tolist())) == length


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_standard_normal_and_the_test_would_see_a_wrong_scale(dtype: torch.dtype) -> None:
    sample = fill_normal(torch.empty(100_001, dtype=dtype), Seeded(2).at("x"))
    assert sample.dtype == dtype
    assert looks_standard_normal(sample)
    for wrong in (2 / 3, 0.97, 1.03, 1.5):
        assert not looks_standard_normal(sample * wrong)


def test_cosine_and_sine_halves_are_uncorrelated() -> None:
    n = 50_000
    sample = fill_normal(torch.empty(2 * n), Seeded(3).at("x")).double()
    a, b = sample[:n], sample[n:]
    # correlations have standard error 1/sqrt(n); 6.1 of them: one false alarm in 1e9
    for left, right in ((a, b), (a**2, b**2), (a, b**2), (a[1:], a[:-1])):
        assert abs(np.corrcoef(left, right)[0, 1]) < 6.1 / n**0.5


def test_no_draw_is_ever_infinite_at_the_edges_of_the_bits() -> None:
    class Edge:
        class bit_generator:  # noqa: N801
            @staticmethod
            def random_raw(n: int) -> np.ndarray:
                edges = np.array([0x8000000080000000, 0x7FFFFFFF7FFFFFFF, 0, 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
                return np.resize(edges, n)

    out = fill_normal(torch.empty(16), Edge())  # type: ignore[arg-type]
    assert torch.isfinite(out).all()
    assert out.abs().max() < 6.8


def words(n: int) -> NDArray[np.int32]:
    """2 n random words, of which the first n reach all sizes of u alike, from 2^-33 to 1 and to 1 - 2^-33."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(-(2**31), 2**31, 2 * n, dtype=np.int64)
    far = np.exp2(rng.uniform(0, 31, n // 4)).astype(np.int64)
    drawn[: n // 4], drawn[n // 4 : n // 2] = -(2**31) + far - 1, 2**31 - far
    drawn[n : n + 17] = np.arange(-8, 9) * 2**28  # eighths of a turn
    return np.clip(drawn, -(2**31), 2**31 - 1).astype(np.int32)


def test_compiled_numbers_are_those_of_torch_and_nearer_to_the_truth() -> None:
    n = 1 << 18
    bits = words(n)
    seen, twin = np.empty(2 * n, np.float32), by_torch(torch.empty(2 * n), bits).numpy()
    fill(bits, seen)
    u = np.maximum((bits[:n].astype(np.float64) + 2.0**31).astype(np.float32) * np.float32(2.0**-32), 2.0**-33).astype(np.float64)
    radius, angle = np.sqrt(-2 * np.log(u)), 2 * np.pi * bits[n:] * 2.0**-32
    exact = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    assert np.abs(seen - twin).max() < 3e-6
    assert np.abs(seen - exact).max() < 1.2e-6  # two units in the last place at 6
    assert np.abs(seen - exact).mean() < 7e-8
    assert np.abs(seen - exact).max() < np.abs(twin - exact).max()


@pytest.mark.parametrize("length", [0, 1, 2, 5, 33, 7850])
def test_compiled_code_writes_its_numbers_and_nothing_beside_them(length: int) -> None:
    whole = torch.full((length + 32,), torch.nan)
    fill_normal(whole[16 : 16 + length], Seeded(1).at("x"))
    bits = Seeded(1).at("x").bit_generator.random_raw((length + 1) // 2).view(np.int32)
    assert torch.allclose(whole[16 : 16 + length], by_torch(torch.empty(length), bits), rtol=0, atol=3e-6)
    assert torch.isnan(whole[:16]).all()
    assert torch.isnan(whole[16 + length :]).all()


def test_other_places_and_types_get_the_same_numbers() -> None:
    wanted = fill_normal(torch.empty(101), Seeded(1).at("x"))
    strided = fill_normal(torch.zeros(202)[::2], Seeded(1).at("x"))
    double = fill_normal(torch.empty(101, dtype=torch.float64), Seeded(1).at("x"))
    assert torch.allclose(strided, wanted, rtol=0, atol=3e-6)
    assert torch.allclose(double, wanted.double(), rtol=0, atol=3e-6)


def test_the_compiler_is_not_loaded_before_there_is_noise_to_make() -> None:
    code = "import sys, sordino.mechanism; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_tails_are_as_fine_as_the_words() -> None:
    """u = k 2^-32 for every k: near one half, float32 has steps of 2^-25, which would leave an atom of 1.5e-8 at the end of the tail."""
    k = np.arange(1, 200)
    words = np.concatenate([(k - 2**31).astype(np.int32), np.zeros(len(k), np.int32)])  # v = 0: the cosine is 1
    expected = np.sqrt(-2.0 * np.log(k * 2.0**-32))
    compiled = np.empty(2 * len(k), np.float32)
    fill(words, compiled)
    for found in (by_torch(torch.empty(2 * len(k)), words).numpy(), compiled):
        assert found[: len(k)] == pytest.approx(expected, abs=3e-6)
        assert len(set(found[: len(k)].tolist())) == len(k)
