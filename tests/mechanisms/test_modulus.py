"""Sums modulo 2^bits: they wrap exactly, none of a run overflows, and a modulus that is too small
is refused.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from shared_noise import noise, opened
from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.base.residues import added, lifted, packed, reduced, unpacked
from sordino.mechanisms.shared import SharedNoise


@given(st.integers(16, 63), st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=9))
def test_sums_modulo_two_to_the_bits_wrap_exactly(bits: int, numbers: list[int]) -> None:
    total = np.zeros(1, np.uint64)
    for each in numbers:
        total = added(total, reduced(np.array([each], np.int64), bits), bits)
    whole, half = sum(numbers), 2 ** (bits - 1)
    assert int(lifted(total, bits)[0]) == (whole + half) % 2**bits - half
    again = unpacked(packed(total, bits), 1, bits)
    assert again.tolist() == total.tolist()


@pytest.mark.parametrize("bits", [20, 24, 32, 48, 63])
def test_no_sum_of_a_run_overflows(bits: int) -> None:
    """Everybody at the edge, with noise of nine deviations: it still fits, and a grid twice as fine
    would not, where the modulus is what limits it.
    """
    rule = noise(bits=bits, dimension=40_000, rounds=1000)
    grid = rule.grid(1.0, 2.0)
    n, half = len(rule.most), 2.0 ** (bits - 1)
    most = sum(grid.reach) + 1.5 * n
    tail = stats.norm.logsf((half - 1.0 - most) / (math.sqrt(n) * grid.deviation))
    chance = (tail + math.log(2.0 * rule.dimension * rule.rounds)) / math.log(2.0)
    assert chance <= max(grid.overflow, -1000.0) <= -40.0
    assert grid.deviation <= 2.0**20
    if bits < 32:
        assert 2.0 * most + 2.0 * 9.0 * math.sqrt(n) * grid.deviation > half
    edge = opened(grid, [np.full(9000, 1e9)] * n, Seeded(0))
    assert np.abs(edge - sum(rule.most)).max() < 9.0 * 2.0 * math.sqrt(n)


def test_a_modulus_that_is_too_small_says_how_many_bits_are_enough() -> None:
    rule = noise(most=(1000.0,) * 50, dimension=40_000, honest=50, bits=16)
    with pytest.raises(StudyError, match=r"bits = 16: the modulus is too small.*; (\d+) bits") as e:
        rule.grid(1.0, 2.0)
    enough = int(str(e.value).split("; ")[1].split()[0])
    assert noise(**{**told(rule), "bits": enough}).grid(1.0, 2.0).deviation >= 4.0
    with pytest.raises(StudyError, match="modulus is too small"):
        noise(**{**told(rule), "bits": enough - 1}).grid(1.0, 2.0)
    with pytest.raises(StudyError, match="fit no modulus"):
        noise().grid(1.0, 1e-9)


def told(rule: SharedNoise) -> dict[str, Any]:
    return {name: getattr(rule, name) for name in ("most", "dimension", "honest", "rounds")}


@pytest.mark.parametrize("clip", [1e-12, 1.0, 1e12])
def test_a_finer_grid_adds_next_to_nothing(clip: float) -> None:
    grid = noise(dimension=40_000, bits=40).grid(clip, 2.0)
    assert grid.rounding == "stochastic"
    assert 1.0 < grid.growth < 1.0001
    assert grid.deviation * grid.step * math.sqrt(5) == pytest.approx(2.0 * clip, rel=1e-4)
