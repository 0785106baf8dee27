"""Sums and dot products of listed rows against NumPy, with vectors of both lengths and registers of
both kinds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sordino.regimes.vertical.compiled.deferred import strips
from sordino.training.jit import tile

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


def at(values: Floats | Numbers) -> Any:
    kind: Any = ctypes.c_float if values.dtype == np.float32 else ctypes.c_int64
    return values.ctypes.data_as(ctypes.POINTER(kind))


@pytest.fixture(params=[16, 8])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """L; half of it goes with a machine that has fewer registers."""
    if request.param == 8:
        monkeypatch.setattr(tile, "_wide", lambda: False)
    return int(request.param)


def numbers(seed: int, count: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def call(leaf: Callable[[int], strips.Leaf], size: int, *arguments: Any) -> None:
    leaf(size).call(*(at(value) if isinstance(value, np.ndarray) else value for value in arguments))


def rows_of(m: Floats, start: int, pitch: int, width: int, chosen: Numbers) -> NDArray[np.float64]:
    return np.stack([m[start + i * pitch : start + i * pitch + width] for i in chosen]).astype(
        np.float64
    )


@pytest.mark.parametrize("vectors", [1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 49])
def test_weighed_sums(size: int, vectors: int) -> None:
    rng, width = np.random.default_rng(vectors), vectors * size
    pitch, out = width + size, 64 * (width + size)
    for n in (0, 1, 2, 3, 4, 7, 18):
        m, f = numbers(n, out + width + 1), numbers(n + 1, n + 3)
        chosen = rng.integers(0, 60, max(n, 1))
        wanted = m[out : out + width].astype(np.float64)
        if n:
            wanted = wanted + f[3:].astype(np.float64) @ rows_of(m, size, pitch, width, chosen)
        kept = m.copy()
        call(strips.add_rows, size, m, size, pitch, vectors, chosen, n, f, 3, out)
        assert np.allclose(m[out : out + width], wanted, atol=1e-5)
        assert np.array_equal(m[:out], kept[:out])
        assert m[-1] == kept[-1]


@pytest.mark.parametrize("vectors", [1, 4, 17])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 26])
def test_dots(size: int, vectors: int, n: int) -> None:
    width, out = vectors * size, 70 * vectors * size
    m, chosen = numbers(n, out + 64), np.random.default_rng(n).integers(0, 60, n + 8)
    b = m[61 * width : 62 * width].astype(np.float64)
    wanted = rows_of(m, 0, width, width, chosen) @ b
    call(strips.dot_rows, size, m, 0, width, chosen, n, 61 * width, vectors, out)
    assert np.allclose(m[out : out + n], wanted[:n], atol=2e-5 * vectors)


@pytest.mark.parametrize("vectors", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("rows", [1, 3, 4, 6, 8, 13])
def test_products(size: int, vectors: int, rows: int) -> None:
    width, n = vectors * size, 11
    out = 40 * width
    chosen = np.random.default_rng(rows).integers(0, 40, n)
    # factors with the list along a row, or along a column
    for step, row in ((1, n + 2), (rows + 1, 1)):
        m, f = numbers(rows, out + rows * (width + size)), numbers(1, 400)
        factors = np.array(
            [[f[5 + r * row + i * step] for i in range(n)] for r in range(rows)], np.float64
        )
        there = out + (width + size) * np.arange(rows)[:, None] + np.arange(width)
        wanted = m[there] + factors @ rows_of(m, 0, width, width, chosen)
        call(
            strips.product,
            size,
            m,
            0,
            width,
            vectors,
            chosen,
            n,
            f,
            5,
            step,
            row,
            out,
            width + size,
            rows,
        )
        assert np.allclose(m[there], wanted, atol=2e-5)


def test_pairs(size: int) -> None:
    width, out = 3 * size, 4000
    m = numbers(0, out + 8 * 20)
    left, right = (np.random.default_rng(k).integers(0, 50, 16) for k in (1, 2))
    wanted = rows_of(m, 0, width, width, left) @ rows_of(m, 0, width, width, right).T
    call(strips.all_pairs, size, m, 0, width, 3, left, 6, right, 13, out, 20)
    assert np.allclose(m[out : out + 160].reshape(8, 20)[:6, :13], wanted[:6, :13], atol=5e-5)
