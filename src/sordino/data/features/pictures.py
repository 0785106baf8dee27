"""Made-up pictures: nobody's, and drawn from a public seed.

Each shows a few shapes in front of black: ellipses and rounded rectangles, upright or turned, with
a texture of clouds or stripes, half of them the same left and right. They stand for photographs of
single things, of which they share what all such photographs share: edges, symmetry, surfaces that
vary slowly, and nothing in the corners. No data set was looked at for them, and none is needed.

What is learned from them costs no privacy (:mod:`.components`).

References:
    Lee, Mumford and Huang 2001, Occlusion Models for Natural Images: "dead leaves", on how far such
    pictures share the statistics of photographs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sordino.base.entropy import Seeded

FINER = 2
"""They are drawn at this many times their size, so that edges are smooth."""

Grid = NDArray[np.float64]


def pictures(count: int, colours: int, height: int, width: int) -> NDArray[np.uint8]:
    """Made-up pictures (count, colours, height, width)."""
    rng = Seeded(0).at("made-up pictures")
    down, across = FINER * height, FINER * width
    y, x = np.mgrid[:down, :across] / FINER
    waves = _lengths(down, across)
    found = np.empty((count, colours, height, width), np.uint8)
    for picture in found:
        shade, inside = _shapes(rng, y, x, height, width)
        shade += _texture(rng, y, x, waves)
        shade[~inside] = 0.0
        if rng.random() < 0.5:
            shade[:, across - across // 2 :] = shade[:, : across // 2][:, ::-1]
        small = shade.reshape(height, FINER, width, FINER).mean((1, 3))
        tint = np.ones(1) if colours == 1 else rng.uniform(0.4, 1.0, colours)
        picture[:] = np.clip(tint[:, None, None] * small, 0.0, 255.0)
    return found


def _lengths(down: int, across: int) -> Grid:
    """Length of each wave's vector (down, across), in cycles a pixel; 1 for the constant."""
    found: Grid = np.hypot(np.fft.fftfreq(down)[:, None], np.fft.fftfreq(across)[None, :])
    found[0, 0] = 1.0
    return found


def _shapes(
    rng: np.random.Generator, y: Grid, x: Grid, height: int, width: int
) -> tuple[Grid, NDArray[np.bool_]]:
    """Shades (down, across) of up to five shapes on one another, and where any of them is."""
    shade, inside = np.zeros_like(x), np.zeros(x.shape, np.bool_)
    base = 255.0 * rng.random() ** 0.7
    for number in range(int(rng.integers(1, 6))):
        mask = _shape(rng, y, x, height, width)
        if number and rng.random() < 0.2:  # a hole
            inside &= ~mask
            continue
        inside |= mask
        own = rng.random() < 0.2
        shade[mask] = 255.0 * rng.random() if own else np.clip(base + rng.normal(0, 40), 20, 255)
    return shade, inside


def _shape(
    rng: np.random.Generator, y: Grid, x: Grid, height: int, width: int
) -> NDArray[np.bool_]:
    """Where an ellipse or a rectangle with round corners is: |u|^p + |v|^p < 1."""
    centre_y, centre_x = rng.normal(height / 2, height / 6), rng.normal(width / 2, width / 6)
    long, short = rng.uniform(width / 14, width / 2), rng.uniform(height / 18, height / 2)
    turn = (0.0, np.pi / 2, np.pi * rng.random())[int(rng.integers(3))]
    cos, sin = np.cos(turn), np.sin(turn)
    u = np.abs((x - centre_x) * cos + (y - centre_y) * sin) / long
    v = np.abs((y - centre_y) * cos - (x - centre_x) * sin) / short
    power = (1, 2, 4, 8)[int(rng.integers(4))]
    found: NDArray[np.bool_] = u**power + v**power < 1.0
    return found


def _texture(rng: np.random.Generator, y: Grid, x: Grid, waves: Grid) -> Grid:
    """Clouds whose amplitude falls with a power of frequency, or stripes, of some strength."""
    noise = np.fft.fft2(rng.standard_normal(waves.shape))
    clouds = np.real(np.fft.ifft2(noise / waves ** rng.uniform(0.8, 2.0)))
    found: Grid = clouds / clouds.std()
    if rng.random() < 0.25:
        along = y if rng.random() < 0.5 else x
        stripes = np.sign(np.sin(2.0 * np.pi * along / rng.uniform(1.5, 6.0)))
        found = 0.3 * found + stripes
    found *= rng.uniform(0.0, 50.0)
    return found
