"""Box-Muller normals: distribution, independence of the two halves, odd lengths, dtypes."""

import numpy as np
import pytest
import torch

from sordino.entropy import Seeded
from sordino.mechanism.contract import looks_standard_normal
from sordino.mechanism.noise import fill_normal


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
