r"""``data.features`` kind "scattering": two layers of fixed wavelets (:mod:`.scatter`).

**The filters** are Morlet wavelets and a Gaussian window in Fourier space. With angle theta, scale
2^j and n angles in [0, pi),

    g(u)      =  exp(-u^T R D R^T u / (2 s^2)) / (2 pi s^2 / slant),      s = 0.8 2^j,
    psi(u)    =  g(u) (exp(i xi theta^T u) - beta),    xi = 3 pi / (4 2^j),   slant = 4 / n,

with beta such that psi has mean zero, and the window phi = g with s = 0.8 2^(J-1), slant 1. All
are made periodic on the padded image; their Fourier transforms are real. These are the filters of
kymatio 0.3 (Andreux et al. 2020), whose constants they have, its 2 * 3.1415 among them.

**Components** are whitened principal components of features, learned from made-up pictures alone.
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
even in their last digit (:mod:`.features`). The map is therefore computed in whole numbers:
features are bytes, less 128; U is rounded to seven bits and a sign; a sum of 1024 such products is
below 2^24, where ``float32`` holds every whole number. So each order of additions gives the same
number, and blocks of examples can go through one matrix product. What follows is a function of
single numbers, and the length is a sum of whole numbers again.

**Made-up pictures** are nobody's, and drawn from a public seed. Each shows a few shapes in front of
black: ellipses and rounded rectangles, upright or turned, with a texture of clouds or stripes, half
of them the same left and right. They stand for photographs of single things, of which they share
what all such photographs share: edges, symmetry, surfaces that vary slowly, and nothing in the
corners. No data set was looked at for them, and none is needed.

Shapes: a padded image is (height, width), both multiples of 2^J; features of examples (n, d),
``uint8``; components (n, K), ``uint8``.

References:
    Amid et al. 2022, Public Data-Assisted Mirror Descent for Private Model Training.
    Li et al. 2022, Private Adaptive Optimization with Side Information.
    Lee, Mumford and Huang 2001, Occlusion Models for Natural Images: "dead leaves", on how far such
    pictures share the statistics of photographs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field

from sordino.base.entropy import Seeded
from sordino.base.errors import DataError, StudyError
from sordino.base.registry import AtLeastOne
from sordino.data.dataset import Bytes, Double, Shape, Single, scaled
from sordino.data.features import FRONT_ENDS, Examples, FrontEnd, keep, kept, place_of
from sordino.data.notices import tell

if TYPE_CHECKING:
    from torch import Tensor

    from sordino.data.scatter import Scattering2d

LIMIT = 4.0
"""Deviations beyond which a normalised feature, or a component, is cut off, to fit into a byte."""

FLOOR = 1e-5
"""Added to a group's variance."""

MOST = 8192
"""Coefficients whose covariance is still quick to take apart."""

PICTURES = 10_000
"""Made-up ones that components are learned from."""

TOGETHER = 16
"""Images of a call: the channels of more take more memory and no less time."""

LARGEST = 1e15
"""Features whose squares can be added up in 32 bits."""


@FRONT_ENDS.register
class Scattering(FrontEnd):
    """Scattering coefficients of images, normalised in each example over groups of channels.

    Each group of channels of an example gets mean 0 and deviation 1 (Wu and He 2018; for scattering
    and DP-SGD, Tramer and Boneh 2021); nothing is looked at but this example. Features are cut off
    at 4 deviations and kept as bytes.

    Attributes:
        J: scales; images shrink by 2^J.
        L: angles.
        groups: of channels; by default a third of their number, or as many as there are.
        components: if given, a model sees so many whitened principal components of made-up
            pictures' features in the place of the features (the module's docstring).
    """

    kind: Literal["scattering"] = "scattering"
    J: int = Field(2, ge=1, le=6)
    L: int = Field(8, ge=1, le=32)
    groups: AtLeastOne | None = None
    components: AtLeastOne | None = None

    @property
    def together(self) -> int:
        """Images are transformed one by one, and components are products of whole numbers."""
        return TOGETHER if self.components is None else 512

    def shape(self, shape: Shape) -> Shape:
        """(channels K, height // 2^J, width // 2^J), K for each colour; or (components,)."""
        whole = self._coefficients(shape)
        if self.components is None:
            return whole
        d = math.prod(whole)
        if d > MOST or self.components > d:
            raise StudyError(
                f"data.features.components = {self.components} of {d:,} scattering coefficients: "
                f"at most {min(d, MOST):,} of at most {MOST:,} can be made. Raise J, or leave "
                "components out"
            )
        return (self.components,)

    def features(self, x: Examples) -> Examples:
        """Bytes (n, K, h, w), or (n, components), of images (n, colours, height, width)."""
        if self.components is None:
            return self._bytes(x)
        return _components(self, x.shape[1:])(self._bytes(x).reshape(len(x), -1))

    def _coefficients(self, shape: Shape) -> Shape:
        if len(shape) != 3 or min(shape[1:]) < 2 << self.J:
            raise StudyError(
                f"data.features kind 'scattering' with J = {self.J} takes images of at least "
                f"{2 << self.J} pixels a side; examples have shape {shape}. Lower J, or leave "
                "data.features out"
            )
        colours, height, width = shape
        count = colours * channels(self.J, self.L)
        if count % self._grouped(count):
            raise StudyError(
                f"data.features.groups = {self.groups}: {count} channels cannot be parted into so "
                "many groups"
            )
        return count, height >> self.J, width >> self.J

    def _bytes(self, x: Examples) -> Examples:
        """Coefficients (n, K, h, w) of images (n, colours, height, width)."""
        n, colours, height, width = x.shape
        images = scaled(x).reshape(n * colours, height, width)
        found = _transform(height, width, self.J, self.L)(images)
        wanted = (n, *self._coefficients(x.shape[1:]))
        return in_bytes(found.reshape(wanted), self._grouped(wanted[1]))

    def _grouped(self, count: int) -> int:
        return self.groups or (count // 3 if count % 3 == 0 else count)


def in_bytes(channels: Single, groups: int) -> Examples:
    """Channels (n, K, h, w), normalised in each example over groups of them, as bytes.

    Raises:
        DataError: if they are too large: their squares would overflow, and NaN has no byte.
    """
    if not float(np.abs(channels).max(initial=0.0)) < LARGEST:
        raise DataError(f"its features are {LARGEST:.0e} or larger, or not finite")
    # each row is added up by itself, in double precision
    rows = channels.reshape(len(channels) * groups, -1).astype(np.float64)
    rows -= rows.mean(1, keepdims=True)
    rows *= 127.5 / (LIMIT * np.sqrt(np.square(rows).mean(1, keepdims=True) + FLOOR))
    return np.rint(np.clip(rows + 127.5, 0.0, 255.0)).astype(np.uint8).reshape(channels.shape)


@functools.lru_cache(maxsize=4)
def _transform(height: int, width: int, scales: int, angles: int) -> Scattering2d:
    from sordino.data.scatter import Scattering2d

    return Scattering2d(height, width, scales, angles)


@functools.lru_cache(maxsize=2)
def _components(front: Scattering, shape: Shape) -> Components:
    """The map for images of a shape, from the user's cache; else it is learned, and kept there."""
    assert front.components is not None
    plain = front.model_copy(update={"components": None})
    d, count = math.prod(plain.shape(shape)), front.components
    place = place_of(f"components {front.model_dump_json(exclude_none=True)} {shape}")
    found = kept(place, (d + 2, 8 * count))
    if found is not None:
        return Components(found.view(np.float64))
    made_up = pictures(PICTURES, *shape)
    features = np.empty((PICTURES, d), np.uint8)
    for start in range(0, PICTURES, TOGETHER):
        some = slice(start, min(start + TOGETHER, PICTURES))
        features[some] = plain.features(made_up[some]).reshape(-1, d)
        tell("made-up pictures", some.stop, PICTURES)
    components = learned(features, count)
    keep(place, components.table.view(np.uint8))
    return components


_PERIODS = range(-2, 3)


def channels(scales: int, angles: int) -> int:
    """K, channels of a scattering transform with two layers.

    >>> channels(2, 8)
    81
    """
    return 1 + scales * angles + angles * angles * scales * (scales - 1) // 2


def padded(length: int, scales: int) -> int:
    """The length of a side with its padding: a multiple of 2^J with at least half of it each side.

    >>> padded(28, 2), padded(32, 2)
    (36, 40)
    """
    step = 1 << scales
    return ((length + step) // step + 1) * step


@lru_cache(maxsize=8)
def filters(
    height: int, width: int, scales: int, angles: int
) -> tuple[Sequence[Sequence[Single]], Sequence[tuple[Single, Single]]]:
    """Return all filters for padded images (height, width).

    Returns:
        wavelets by scale j, at every resolution that they are needed at, 0..j, (angles, h, w); and
        windows by resolution r = 0..J, linear maps (rows (h', h / 2^r), columns (w', w / 2^r)) that
        smooth, keep every 2^(J-r)th number, and cut the padding off.
    """
    psi = []
    for j in range(scales):
        turned = []
        for number in range(angles):
            theta = (int(angles / 2 - 1) - number) * math.pi / angles
            wave = _morlet(height, width, 0.8 * 2**j, theta, 0.75 * math.pi / 2**j, 4.0 / angles)
            turned.append(np.fft.fft2(wave).real)
        psi.append(
            [
                np.stack([_periodised(each, r) for each in turned]).astype(np.float32)
                for r in range(min(j + 1, max(scales - 1, 1)))
            ]
        )
    window = np.fft.fft2(_gabor(height, width, 0.8 * 2 ** (scales - 1), 0.0, 0.0, 1.0)).real
    low = []
    for r in range(scales):
        whole = _periodised(window, r)  # a product of a window for rows and one for columns
        rows, columns = (side / math.sqrt(whole[0, 0]) for side in (whole[:, 0], whole[0, :]))
        low.append((_smoothed(rows, scales - r), _smoothed(columns, scales - r)))
    return psi, low


def _gabor(
    height: int, width: int, sigma: float, theta: float, xi: float, slant: float
) -> NDArray[np.complex128]:
    cosine, sine = math.cos(theta), math.sin(theta)
    turn = np.array([[cosine, -sine], [sine, cosine]])
    curve = turn @ np.diag([1.0, slant * slant]) @ turn.T / (2 * sigma * sigma)
    total = np.zeros((height, width), np.complex128)
    for p in _PERIODS:
        for q in _PERIODS:
            y, x = np.mgrid[p * height : (p + 1) * height, q * width : (q + 1) * width]
            square = curve[0, 0] * y * y + (curve[0, 1] + curve[1, 0]) * y * x + curve[1, 1] * x * x
            total += np.exp(-square + 1j * xi * (y * cosine + x * sine))
    return total / (2 * 3.1415 * sigma * sigma / slant)


def _morlet(
    height: int, width: int, sigma: float, theta: float, xi: float, slant: float
) -> NDArray[np.complex128]:
    wave = _gabor(height, width, sigma, theta, xi, slant)
    envelope = _gabor(height, width, sigma, theta, 0.0, slant)
    found: NDArray[np.complex128] = wave - wave.sum() / envelope.sum() * envelope
    return found


def _periodised(fourier: Double, level: int) -> Double:
    """The Fourier transform of every 2^level-th number of a filter, high frequencies left out."""
    if not level:
        return fourier
    kept = fourier.copy()
    for axis, length in enumerate(fourier.shape):
        start = int(length * 2.0 ** (-level - 1))
        stop = start + int(length * (1 - 2.0**-level))
        kept[(slice(None),) * axis + (slice(start, stop),)] = 0.0
    parts, (h, w) = 1 << level, fourier.shape
    found: Double = kept.reshape(parts, h // parts, parts, w // parts).sum((0, 2))
    return found


def _smoothed(window: Double, left: int) -> Single:
    """Smooth, keep every 2^left-th number, cut one off at both ends: (length / 2^left - 2, length).

    What lies beyond an image of 2^J times as many numbers is padding.
    """
    length, parts = len(window), 1 << left
    through = np.fft.fft(np.eye(length), axis=0) * window[:, None]
    folded = through.reshape(parts, length // parts, length).mean(0)
    found: Single = np.fft.ifft(folded, axis=0).real[1:-1].astype(np.float32)
    return np.ascontiguousarray(found)


@FRONT_ENDS.register
class RandomConvolutions(FrontEnd):
    """Moduli of convolutions with random filters, averaged over squares and normalised.

    Filters are Gaussian with mean 0 and length 1, drawn from a public seed (Saxe et al. 2011 on why
    random filters serve). Each example's features are normalised over all its channels.

    Attributes:
        filters: how many.
        size: pixels of a filter's side.
        pool: side of the squares that are averaged; what is left at the edges is left out.
        seed: of the filters; public.
    """

    kind: Literal["random"] = "random"
    filters: int = Field(96, ge=1, le=4096)
    size: int = Field(7, ge=1, le=63)
    pool: int = Field(4, ge=1, le=64)
    seed: int = Field(0, ge=0)

    def shape(self, shape: Shape) -> Shape:
        """(filters, h', w')."""
        if len(shape) != 3 or min(shape[1:]) < self.size + self.pool - 1:
            raise StudyError(
                f"data.features kind 'random' with size = {self.size} and pool = {self.pool} takes "
                f"images of at least {self.size + self.pool - 1} pixels a side; examples have "
                f"shape {shape}"
            )
        height, width = ((side - self.size + 1) // self.pool for side in shape[1:])
        return self.filters, height, width

    def features(self, x: Examples) -> Examples:
        """Bytes (n, filters, h', w') of images (n, colours, height, width)."""
        import torch

        filters = _filters(self.filters, x.shape[1], self.size, self.seed)
        waves = torch.nn.functional.conv2d(torch.from_numpy(scaled(x)), filters).abs_()
        return in_bytes(torch.nn.functional.avg_pool2d(waves, self.pool).numpy(), 1)


@functools.lru_cache(maxsize=4)
def _filters(count: int, colours: int, size: int, seed: int) -> Tensor:
    """Filters (count, colours, size, size)."""
    import torch

    rng = Seeded(seed).at("random convolutions")
    drawn = torch.from_numpy(rng.standard_normal((count, colours, size, size)))
    if size > 1:
        drawn -= drawn.mean((2, 3), keepdim=True)
    found: Tensor = drawn / drawn.flatten(1).norm(dim=1)[:, None, None, None]
    return found.to(torch.float32)


MIDDLE = 128
"""The byte that stands for zero."""
BLOCK = 1024
"""Products of 128 and 127 that add up to less than 2^24."""
FINEST = 2.0**16
"""Whole numbers to a unit of a component, when its length is measured."""
RIDGE = 1.0 / 64.0
"""rho, of the largest variance."""


class Components:
    """The map.

    Attributes:
        table: all of it, (d + 2, K): the following three, one below the other.
        directions: U in whole numbers from -127 to 127, (d, K), ``float32``.
        centre: mu^T U in the same units, (K,).
        scale: what a whole number is worth in each component, (K,).
    """

    def __init__(self, table: Double) -> None:
        self.table, self.directions = table, table[:-2].astype(np.float32)
        self.centre, self.scale = table[-2:]

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
    return Components(np.vstack([directions, (total / n) @ directions, scale]))


FINER = 2
"""They are drawn at this many times their size, so that edges are smooth."""


def pictures(count: int, colours: int, height: int, width: int) -> Bytes:
    """Made-up pictures (count, colours, height, width)."""
    rng = Seeded(0).at("made-up pictures")
    down, across = FINER * height, FINER * width
    y, x = np.mgrid[:down, :across] / FINER
    # lengths of waves' vectors, in cycles a pixel; 1 for the constant
    waves: Double = np.hypot(np.fft.fftfreq(down)[:, None], np.fft.fftfreq(across)[None, :])
    waves[0, 0] = 1.0
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


def _shapes(
    rng: Generator, y: Double, x: Double, height: int, width: int
) -> tuple[Double, NDArray[np.bool_]]:
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


def _shape(rng: Generator, y: Double, x: Double, height: int, width: int) -> NDArray[np.bool_]:
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


def _texture(rng: Generator, y: Double, x: Double, waves: Double) -> Double:
    """Clouds whose amplitude falls with a power of frequency, or stripes, of some strength."""
    noise = np.fft.fft2(rng.standard_normal(waves.shape))
    clouds = np.real(np.fft.ifft2(noise / waves ** rng.uniform(0.8, 2.0)))
    found: Double = clouds / clouds.std()
    if rng.random() < 0.25:
        along = y if rng.random() < 0.5 else x
        stripes = np.sign(np.sin(2.0 * np.pi * along / rng.uniform(1.5, 6.0)))
        found = 0.3 * found + stripes
    found *= rng.uniform(0.0, 50.0)
    return found
