"""Rounding to 16-bit floats by bits: what NumPy's conversion does, for every float16, all
neighbours of them, and any float32.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sordino.native import compiled
from sordino.regimes.vertical.compiled.half_precision import rounded

Bits = NDArray[np.uint32]


@compiled
def _all(values: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    for i in range(values.size):
        out[i] = rounded(values[i])


def agree(bits: Bits) -> None:
    values = bits.view(np.float32)
    out = np.empty_like(values)
    _all(values, out)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        wanted = values.astype(np.float16).astype(np.float32)
    nan = np.isnan(values)
    assert np.isnan(out[nan]).all()
    # signs of zeros included
    assert np.array_equal(out[~nan].view(np.uint32), wanted[~nan].view(np.uint32))


def test_every_half_and_the_floats_between() -> None:
    """Each float16 is kept; just below, on and just above each middle of two, the right one of them
    is taken.
    """
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = np.sort(halves[np.isfinite(halves)].astype(np.float32))
    agree(halves.astype(np.float32).view(np.uint32))
    middles = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    for shift in (-1, 0, 1):
        agree((middles.view(np.int32) + shift).view(np.uint32))


@pytest.mark.parametrize("exponent", range(256))
def test_every_exponent(exponent: int) -> None:
    """All leading bits of a fraction, with the last bits none, few and all: zeros, subnormals of
    both, infinity and NaN among them.
    """
    leading = np.arange(1 << 12, dtype=np.uint32) << np.uint32(11)
    ends = np.array([0, 1, 1023, 1024, 1025, 2047], np.uint32)
    fractions = (leading[:, None] | ends).ravel()
    for sign in (0, 1 << 31):
        agree(np.uint32(sign | exponent << 23) | fractions)


@pytest.mark.parametrize(
    "value",
    [
        0.0,
        -0.0,
        65504.0,
        65519.996,
        65520.0,
        -65520.0,
        2.0**-24,
        2.0**-25,
        1.5 * 2.0**-25,
        np.inf,
        -np.inf,
        np.nan,
    ],
)
def test_edges(value: float) -> None:
    agree(np.array([value], np.float32).view(np.uint32))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_any_bits(bits: list[int]) -> None:
    agree(np.array(bits, np.uint32))
