"""Register tiles against float64 convolutions and the library's pools, on shapes nobody chose,
inside guarded buffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sordino.training.jit import conv, pool, tile, turn, weighted

GUARD = 64


def guarded(*shape: int, fill: float = math.nan) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """An array, and the buffer in the middle of which it lies."""
    whole = np.full(2 * GUARD + math.prod(shape), fill, np.float32)
    return whole[GUARD : GUARD + math.prod(shape)].reshape(shape), whole


def untouched(whole: NDArray[Any]) -> bool:
    """Whether nothing was written beside the array."""
    return bool(np.isnan(whole[:GUARD]).all() and np.isnan(whole[-GUARD:]).all())


@pytest.fixture(params=["as this machine is", "few registers"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tiles of this machine, and those of one with half as many, half as wide registers."""
    if request.param == "few registers":
        monkeypatch.setattr(tile, "_wide", lambda: False)
    return iter(())


def double(images: NDArray[np.float32]) -> torch.Tensor:
    return torch.from_numpy(np.moveaxis(images, 3, 1).astype(np.float64)).requires_grad_()


def compare(shape: conv.Shape, padding: tuple[int, int], n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    (high, wide), (top, left) = shape.image, padding
    inside = slice(None), slice(top, high - top), slice(left, wide - left)
    x, x_whole = guarded(n, high, wide, shape.channels)
    x[:] = 0
    x[inside] = rng.standard_normal(x[inside].shape, np.float32)
    weight = rng.standard_normal((shape.outputs, *shape.kernel, shape.channels), np.float32)
    bias = rng.standard_normal(shape.outputs, np.float32)
    g, g_whole = guarded(n, *shape.positions, shape.outputs)
    g[:] = rng.standard_normal(g.shape, np.float32)

    images, weights = double(x[inside].copy()), double(weight)
    scores = torch.conv2d(images, weights, torch.from_numpy(bias).double(), shape.stride, padding)
    slopes = double(g).detach()
    by_input, by_weight = torch.autograd.grad(scores, (images, weights), slopes, retain_graph=True)
    kernel = conv.Convolution(shape)

    out, out_whole = guarded(*g.shape)
    kernel.forward(x, weight, bias, out)
    near(out, scores.detach().permute(0, 2, 3, 1), shape.patch)

    grads, grads_whole = guarded(n, shape.patch, shape.outputs)
    whole = np.full(2 * GUARD + n, math.nan)
    squared, squared_whole = whole[GUARD : GUARD + n], whole
    kernel.by_example(x, g, grads, squared)
    positions = math.prod(shape.positions)
    for i in range(n):
        (alone,) = torch.autograd.grad(scores[i], weights, slopes[i], retain_graph=True)
        near(grads[i], alone.permute(2, 3, 1, 0).reshape(shape.patch, shape.outputs), positions)
        assert squared[i] == pytest.approx(float(alone.square().sum()), rel=1e-5)

    total, total_whole = guarded(shape.patch, shape.outputs)
    kernel.by_weights(x, g, total)
    near(total, by_weight.permute(2, 3, 1, 0).reshape(shape.patch, shape.outputs), positions * n)
    assert all(
        untouched(whole)
        for whole in (x_whole, g_whole, out_whole, grads_whole, squared_whole, total_whole)
    )

    if conv.fits(shape.kernel[1] * shape.channels):
        slope, slope_whole = guarded(n, high - 2 * top, wide - 2 * left, shape.channels)
        conv.InputGradient(shape, padding)(g, weight, slope)
        near(slope, by_input.permute(0, 2, 3, 1), shape.outputs * shape.kernel[0] * shape.kernel[1])
        assert untouched(slope_whole)


def near(seen: NDArray[np.float32], wanted: torch.Tensor, terms: int) -> None:
    """Within what float32 may do to a sum of this many products of standard normals."""
    assert np.allclose(seen, wanted.numpy(), rtol=1e-5, atol=2e-6 * math.sqrt(terms))


@st.composite
def shapes(draw: st.DrawFn) -> tuple[conv.Shape, tuple[int, int]]:
    kernel, stride, padding = (
        draw(st.tuples(st.integers(low, high), st.integers(low, high)))
        for low, high in ((1, 4), (1, 3), (0, 2))
    )
    image = tuple(
        k + draw(st.integers(0, 9)) + (2 * p if k <= 2 * p else 0)
        for k, p in zip(kernel, padding, strict=True)
    )
    channels = draw(st.sampled_from([1, 3, 8, 16]))
    outputs = draw(st.sampled_from([8, 16, 24, 32, 64]))
    return conv.Shape((image[0], image[1]), channels, outputs, kernel, stride), padding


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("shape", "padding"),
    [
        (conv.Shape((34, 34), 1, 16, (8, 8), (2, 2)), (3, 3)),
        (conv.Shape((13, 13), 16, 32, (4, 4), (2, 2)), (0, 0)),
        (conv.Shape((18, 18), 32, 64, (3, 3), (1, 1)), (1, 1)),
        (conv.Shape((11, 9), 8, 24, (3, 2), (1, 3)), (1, 0)),
        (conv.Shape((6, 6), 8, 8, (1, 1), (2, 2)), (0, 0)),  # a stride that leaves inputs out
        (conv.Shape((5, 40), 8, 16, (5, 5), (1, 1)), (0, 0)),  # rows longer than a tile
    ],
)
def test_convolutions_equal_float64(shape: conv.Shape, padding: tuple[int, int]) -> None:
    compare(shape, padding, 3, 0)


@settings(max_examples=25, deadline=None)
@given(what=shapes(), n=st.integers(1, 3), seed=st.integers(0, 1000))
@pytest.mark.nightly
def test_convolutions_of_any_shape_equal_float64(
    what: tuple[conv.Shape, tuple[int, int]], n: int, seed: int
) -> None:
    compare(*what, n, seed)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize(
    ("image", "window", "stride"),
    [((14, 14, 16), (2, 2), (1, 1)), ((9, 7, 8), (3, 2), (2, 3)), ((8, 8, 48), (4, 4), (4, 4))],
)
def test_pools_equal_the_library_ties_and_nan_included(
    image: tuple[int, int, int], window: tuple[int, int], stride: tuple[int, int], rectified: bool
) -> None:
    rng = np.random.default_rng(0)
    x, x_whole = guarded(3, *image)
    x[:] = rng.standard_normal(x.shape, np.float32).round(1)  # rounded, so that windows have ties
    x[1, 4, 3, 2] = math.nan
    inputs = torch.from_numpy(x.copy()).permute(0, 3, 1, 2).contiguous().requires_grad_()
    wanted = torch.max_pool2d(inputs, window, stride)
    wanted = torch.relu(wanted) if rectified else wanted
    positions = wanted.shape[2:]
    out, out_whole = guarded(3, *positions, image[2])
    places = np.empty(out.shape, np.uint8)
    kernel = pool.MaxPool(image[2], window, stride, rectified)
    kernel.forward(x, out, places)
    assert np.array_equal(out, wanted.detach().permute(0, 2, 3, 1).numpy(), equal_nan=True)
    g, g_whole = guarded(*out.shape)
    g[:] = rng.standard_normal(g.shape, np.float32)
    (by_input,) = torch.autograd.grad(wanted, inputs, torch.from_numpy(g).permute(0, 3, 1, 2))
    back, back_whole = guarded(*x.shape)
    kernel.backward(g, places, back)
    assert np.allclose(back, by_input.permute(0, 2, 3, 1).numpy(), rtol=1e-6, atol=1e-6)
    assert all(untouched(whole) for whole in (x_whole, out_whole, g_whole, back_whole))


@given(length=st.integers(1, 200), cap=st.integers(1, 20))
def test_blocks_cover_a_length_and_one_less(length: int, cap: int) -> None:
    size = conv.block(length, cap)
    assert 1 <= size <= cap
    larger, smaller = conv.cover(length, size)
    assert larger >= 0
    assert smaller >= 0
    assert larger * size + smaller * (size - 1) == length
    assert not smaller or size > 1


def test_channels_that_no_vector_divides_are_refused() -> None:
    assert not conv.fits(6)
    with pytest.raises(ValueError, match="6 channels are no multiple of 8"):
        conv.Convolution(conv.Shape((5, 5), 1, 6, (3, 3), (1, 1)))
    with pytest.raises(ValueError, match="6 channels are no multiple of 8"):
        pool.MaxPool(6, (2, 2), (2, 2), False)


@pytest.mark.parametrize("shape", [(3, 64, 16), (2, 24, 8), (1, 16, 48), (1, 8, 8)])
@pytest.mark.parametrize("wide", [True, False])
def test_matrices_are_transposed_inside_their_stretch_of_a_row(
    shape: tuple[int, int, int], wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not wide:
        monkeypatch.setattr(tile, "_wide", lambda: False)
    n, height, width = shape
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    rows = np.full((n, height * width + 9), np.nan, np.float32)
    assert turn.turn(x, rows[:, 4:-5])
    assert np.array_equal(
        rows[:, 4:-5].reshape(n, width, height), x.transpose(0, 2, 1), equal_nan=False
    )
    assert np.isnan(rows[:, :4]).all()
    assert np.isnan(rows[:, -5:]).all()


def test_matrices_that_cannot_be_cut_into_blocks_are_left_alone() -> None:
    out = np.full((2, 30), np.nan, np.float32)
    assert not turn.turn(np.zeros((2, 5, 6), np.float32), out)
    assert np.isnan(out).all()


@pytest.mark.parametrize("n", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("d", [1, 7, 2048, 5000])
def test_weighted_rows_are_added_up_in_float64(n: int, d: int) -> None:
    generator = np.random.default_rng(n + d)
    rows = generator.standard_normal((n, d)).astype(np.float32)
    weights, total = generator.random(n), generator.standard_normal(d)
    wanted = total + weights @ rows.astype(np.float64)
    weighted.add(rows, weights, total)
    assert np.allclose(total, wanted, rtol=0, atol=1e-13)
    total[:] = 0.0
    for row, weight in zip(rows, weights, strict=True):  # a few rows at a time give the same bits
        weighted.add(row[None], np.array([weight]), total)
    whole = np.zeros(d)
    weighted.add(rows, weights, whole)
    assert np.array_equal(whole, total)
