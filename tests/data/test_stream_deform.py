"""Deformed images: the compiled sampler against a slow one, and what is drawn for a sample."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.base.errors import DataError, StudyError
from sordino.data import Dataset, load, scaled
from sordino.data.stream import Deformed
from sordino.data.stream.opening import Strength, smooth_fields
from sordino.data.stream.opening import grid as grid_of
from sordino.data.stream.warp import render

RNG = np.random.default_rng(2)
NONE = Strength(elastic=0, rotate=0, stretch=0, shear=0, shift=0, fields=1)


def images(
    count: int = 6, channels: int = 2, height: int = 5, width: int = 7, floats: bool = False
) -> Dataset:
    x = RNG.integers(0, 256, (count, channels, height, width), dtype=np.uint8)
    return Dataset(
        "images",
        (x / 255).astype(np.float32) if floats else x,
        np.arange(count) % 3,
        ("a", "b", "c"),
    )


def value(plane: np.ndarray, row: float, column: float) -> float:
    """The bilinear picture at a point, black (-1) outside; in float64, pixel by pixel."""
    i, j = math.floor(row), math.floor(column)
    total = 0.0
    for a in (i, i + 1):
        for b in (j, j + 1):
            inside = 0 <= a < plane.shape[0] and 0 <= b < plane.shape[1]
            total += (
                (1 - abs(row - a))
                * (1 - abs(column - b))
                * (float(plane[a, b]) if inside else -1.0)
            )
    return total


@settings(max_examples=25)
@given(
    st.integers(1, 3), st.integers(1, 8), st.integers(1, 8), st.integers(1, 9), st.integers(1, 9),
    st.floats(0, 6), st.booleans(), st.integers(0, 10**6),
)  # fmt: skip
def test_sampler_agrees_with_a_slow_one(
    channels: int,
    height: int,
    width: int,
    tall: int,
    broad: int,
    strong: float,
    floats: bool,
    seed: int,
) -> None:
    rng, n = np.random.default_rng(seed), 3
    data = images(4, channels, height, width, floats)
    grid = grid_of((height, width), (tall, broad))
    fields = rng.normal(size=(3, 2, tall * broad)).astype(np.float32)
    pair, rows = rng.integers(3, size=(n, 2)), rng.integers(4, size=n)
    affine = (rng.normal(size=(n, 6)) * strong / 3 + [1, 0, 0, 1, 0, 0]).astype(np.float32)
    mix = (rng.normal(size=(n, 2)) * strong).astype(np.float32)
    gain, shift = (
        (np.float32(2), np.float32(-1)) if floats else (np.float32(2 / 255), np.float32(-1))
    )
    out = np.empty((n, channels * tall * broad), np.float32)
    render(data.x, rows, gain, shift, np.float32(-1), grid, fields, pair, affine, mix, out)
    for k in range(n):
        for p in range(tall * broad):
            q = np.array(
                [
                    (p // broad + 0.5) * height / tall - height / 2,
                    (p % broad + 0.5) * width / broad - width / 2,
                ]
            )
            own = affine[k].astype(float)
            at = own[:4].reshape(2, 2) @ q + own[4:] + [(height - 1) / 2, (width - 1) / 2]
            at = (
                at
                + float(mix[k, 0]) * fields[pair[k, 0], :, p]
                + float(mix[k, 1]) * fields[pair[k, 1], :, p]
            )
            for c in range(channels):
                plane = data.x[rows[k], c].astype(float) * float(gain) - 1
                assert out[k, c * tall * broad + p] == pytest.approx(value(plane, *at), abs=2e-4)


def test_no_deformation_returns_the_images() -> None:
    data = images()
    stream = Deformed(data, 5, strength=NONE)
    piece, rows = stream.read(0, 200), set[int]()
    flat = scaled(data.x).reshape(6, -1)
    for x, y in zip(piece.x, piece.y, strict=True):
        row = int(np.abs(flat - x).max(axis=1).argmin())
        assert np.allclose(x, flat[row], atol=3e-7)
        assert y == data.y[row]
        rows.add(row)
    assert rows == set(range(6))
    # Floats in [0, 1] are pixels / 255 here.
    same = Dataset("images", (data.x / 255).astype(np.float32), data.y, data.classes)
    assert np.allclose(Deformed(same, 5, strength=NONE).read(0, 50).x, piece.x[:50], atol=1e-6)


def test_rendering_on_another_grid() -> None:
    data = images(1, 1, 4, 4)
    plain = scaled(data.x)[0, 0]
    # Four times as many pixels each way: the mean of the 16 around a pixel's centre is near it, the
    # corner is exact by formula.
    large = Deformed(data, 0, (16, 16), strength=NONE).read(0, 1).x.reshape(16, 16)
    rows = (np.arange(16) + 0.5) / 4 - 0.5
    wanted = [[value(plain, r, c) for c in rows] for r in rows]
    assert np.allclose(large, wanted, atol=1e-5)
    # Half as many: each is the mean of the four below it.
    half = Deformed(data, 0, (2, 2), strength=NONE).read(0, 1).x.reshape(2, 2)
    assert np.allclose(half, plain.reshape(2, 2, 2, 2).mean(axis=(1, 3)), atol=1e-5)
    # A margin of a quarter: the picture is in the middle half, black around it.
    framed = Deformed(data, 0, (8, 8), strength=NONE, margin=0.25).read(0, 1).x.reshape(8, 8)
    assert np.allclose(framed[2:6, 2:6], plain, atol=1e-5)
    assert (framed[:2] == -1).all()
    assert (framed[:, 6:] == -1).all()
    digits = Deformed(load("digits").train, 0, size=(28, 28), margin=0.1)
    assert digits.shape == (1, 28, 28)
    assert digits.read(0, 3).x.shape == (3, 784)


def test_no_two_samples_are_equal() -> None:
    data = load("digits").train.take([3])
    x = Deformed(data, 0, (12, 12)).read(500, 3000).x
    assert len(np.unique(x.round(4), axis=0)) == 3000
    assert x.min() >= -1
    assert x.max() <= 1


@pytest.mark.parametrize("fields", [1, 2, 5])
def test_fields_are_smooth_and_of_unit_size(fields: int) -> None:
    made = smooth_fields(np.random.default_rng(0), 50, (20, 30), (3.0, 4.0)).reshape(50, 2, 20, 30)
    assert np.allclose((made.astype(float) ** 2).mean(axis=(1, 2, 3)), 1, atol=1e-5)
    # White noise smoothed by a Gaussian of sigma has a correlation exp(-d^2 / (4 sigma^2)) at
    # distance d.
    for axis, sigma in ((2, 3.0), (3, 4.0)):
        a, b = np.delete(made, -1, axis), np.delete(made, 0, axis)
        a, b = np.delete(a, -1, axis), np.delete(b, 0, axis)
        assert (a * b).mean() / np.sqrt((a * a).mean() * (b * b).mean()) == pytest.approx(
            np.exp(-(2**2) / (4 * sigma**2)), abs=0.02
        )
    # The edges move as much as the middle.
    size = (made.astype(float) ** 2).mean(axis=(0, 1))
    assert 0.6 < size[[0, -1]].mean() / size[8:12].mean() < 1.6
    stream = Deformed(images(), 0, strength=Strength(fields=fields))
    assert len(stream.read(0, 10)) == 10


def test_samples_move_by_what_the_strengths_say() -> None:
    """A picture whose values are its columns (or rows) shows where each pixel came from."""
    side, count = 40, 4000
    ramp = np.tile(np.arange(side, dtype=np.float32), (side, 1))
    strength = Strength(elastic=0.02, rotate=0, stretch=0, shear=0, shift=0)
    middle = np.s_[:, 12:28, 12:28]
    moved = []
    for picture in (ramp, ramp.T):
        data = Dataset(
            "ramp", picture[None, None] / np.float32(side), np.zeros(1, np.int64), ("only",)
        )
        x = Deformed(data, 1, strength=strength).read(0, count).x.reshape(count, side, side)
        moved.append(((x + 1) / 2 * side - picture)[middle] / side)
    assert np.sqrt(np.mean([np.square(m).mean() for m in moved])) == pytest.approx(0.02, rel=0.08)
    # Shift alone: uniform within its bound, the same for all pixels of a sample.
    data = Dataset("ramp", ramp[None, None] / np.float32(side), np.zeros(1, np.int64), ("only",))
    strength = Strength(elastic=0, rotate=0, stretch=0, shear=0, shift=0.1)
    x = Deformed(data, 1, strength=strength).read(0, count).x.reshape(count, side, side)
    by = ((x + 1) / 2 * side - ramp)[middle].reshape(count, -1) / side
    assert np.ptp(by, axis=1).max() < 1e-5
    assert np.abs(by).max() <= 0.1 + 1e-5
    assert by.std() == pytest.approx(0.1 / np.sqrt(3), rel=0.05)


def test_faults_are_named() -> None:
    flat = Dataset("table", np.zeros((3, 4), np.float32), np.zeros(3, np.int64), ("a",))
    with pytest.raises(DataError, match=r"table: only images .* examples have shape \(4,\)"):
        Deformed(flat, 0)
    with pytest.raises(StudyError, match=r"size must be \(height, width\)"):
        Deformed(images(), 0, (0, 5))
