r"""Whitened principal components of features, learned from made-up pictures alone.

Scattering coefficients of neighbouring places and angles say almost the same: most of their
variance lies in a few directions, and a linear model learns along the others slowly. Under a budget
of rounds and privacy, slowly means not at all. With mu and S the mean and covariance of the
features of made-up pictures, S = U diag(lambda) U^T, an example's features x become

    a_k = u_k . (x - mu) / sqrt(lambda_k + rho),    k = 1 .. K,    rho = lambda_1 / 64,

normalised to the same length for each example. This is a fixed linear map: no statistic of
anybody's data is used, so it costs no privacy. rho keeps those directions small that are rare in
made-up pictures: true pictures are only like them.

Libraries for linear algebra may disagree on single directions of nearly equal variance. Sites that
learn the map by themselves then see such components a little differently; the leading ones, which
matter, lie far apart.

**The same bytes in any company.** An example's features must not depend on those beside it, not
even in their last digit (:mod:`.front`). The map is therefore computed in whole numbers: features
are bytes, less 128; U is rounded to seven bits and a sign; a sum of 1024 such products is below
2^24, where ``float32`` holds every whole number. So each order of additions gives the same number,
and blocks of examples can go through one matrix product. What follows is a function of single
numbers, and the length is a sum of whole numbers again.

Shapes: features of examples (n, d), ``uint8``; components (n, K), ``uint8``.

**Made-up pictures** are nobody's, and drawn from a public seed. Each shows a few shapes in front of
black: ellipses and rounded rectangles, upright or turned, with a texture of clouds or stripes, half
of them the same left and right. They stand for photographs of single things, of which they share
what all such photographs share: edges, symmetry, surfaces that vary slowly, and nothing in the
corners. No data set was looked at for them, and none is needed.

References:
    Amid et al. 2022, Public Data-Assisted Mirror Descent for Private Model Training.
    Li et al. 2022, Private Adaptive Optimization with Side Information.
    Lee, Mumford and Huang 2001, Occlusion Models for Natural Images: "dead leaves", on how far such
    pictures share the statistics of photographs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.base.entropy import Seeded

MIDDLE = 128
"""The byte that stands for zero."""
BLOCK = 1024
"""Products of 128 and 127 that add up to less than 2^24."""
FINEST = 2.0**16
"""Whole numbers to a unit of a component, when its length is measured."""
LIMIT = 4.0
"""Deviations beyond which a component is cut off, to fit into a byte."""
RIDGE = 1.0 / 64.0
"""rho, of the largest variance."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Components:
    """The map.

    Attributes:
        directions: U in whole numbers from -127 to 127, (d, K), ``float32``.
        centre: mu^T U in the same units, (K,).
        scale: what a whole number is worth in each component, (K,).
    """

    directions: NDArray[np.float32]
    centre: NDArray[np.float64]
    scale: NDArray[np.float64]

    def __call__(self, features: Bytes) -> Bytes:
        """Components (n, K) of features (n, d), each row a function of its own row alone."""
        x = features.astype(np.float32)
        x -= np.float32(MIDDLE)
        found = np.zeros((len(x), len(self.scale)))
        for start in range(0, x.shape[1], BLOCK):
            found += x[:, start : start + BLOCK] @ self.directions[start : start + BLOCK]
        found -= self.centre
        found *= self.scale
        whole = np.rint(found * FINEST).astype(np.int64)
        length = np.sqrt(np.square(whole).sum(1).astype(np.float64)) / FINEST
        wanted = np.sqrt(float(len(self.scale)))
        found *= (wanted / np.maximum(length, 1.0 / FINEST))[:, None]
        return np.clip(np.rint(found * (127.5 / LIMIT) + 127.5), 0.0, 255.0).astype(np.uint8)

    def packed(self) -> Bytes:
        """All of it as bytes; :meth:`unpacked` is the way back."""
        parts = (self.directions.astype(np.int8), self.centre, self.scale)
        return np.frombuffer(b"".join(part.tobytes() for part in parts), np.uint8)

    @classmethod
    def unpacked(cls, data: Bytes, d: int, count: int) -> Components:
        """The map of :meth:`packed` bytes, of ``count`` components of ``d`` features."""
        numbers = np.frombuffer(data[d * count :].tobytes(), np.float64)
        directions = data[: d * count].view(np.int8).reshape(d, count).astype(np.float32)
        return cls(directions, numbers[:count], numbers[count:])

    @staticmethod
    def size(d: int, count: int) -> int:
        """Of :meth:`packed`, in bytes."""
        return d * count + 16 * count


def learned(features: Bytes, count: int) -> Components:
    """The first ``count`` components of features (n, d), which must be nobody's."""
    n, d = features.shape
    second, total = np.zeros((d, d)), np.zeros(d)
    for start in range(0, n, BLOCK):  # whole numbers below 2^24, as above
        x = features[start : start + BLOCK].astype(np.float32)
        x -= np.float32(MIDDLE)
        second += x.T @ x
        total += x.sum(0, dtype=np.float64)
    second -= np.outer(total, total) / n
    second /= n
    values, vectors = np.linalg.eigh(second)
    values = np.maximum(values[::-1][:count], 0.0)
    # a library may give either sign: take the one that a fixed direction agrees with
    u = vectors[:, ::-1][:, :count]
    u = u * np.where(Seeded(0).at("signs").standard_normal(d) @ u < 0.0, -1.0, 1.0)
    largest = np.maximum(np.abs(u).max(0), 1e-300)
    directions = np.rint(u * (127.0 / largest))
    scale = largest / 127.0 / np.sqrt(values + max(RIDGE * float(values[0]), 1e-12))
    return Components(directions.astype(np.float32), (total / n) @ directions, scale)


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
    """Return the mask of an ellipse or a rectangle with round corners: |u|^p + |v|^p < 1."""
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
