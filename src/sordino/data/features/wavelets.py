r"""Morlet wavelets and a Gaussian window in Fourier space, for a scattering transform of images.

With angle theta, scale 2^j and n angles in [0, pi),

    g(u)      =  exp(-u^T R D R^T u / (2 s^2)) / (2 pi s^2 / slant),      s = 0.8 2^j,
    psi(u)    =  g(u) (exp(i xi theta^T u) - beta),    xi = 3 pi / (4 2^j),   slant = 4 / n,

with beta such that psi has mean zero, and the window phi = g with s = 0.8 2^(J-1), slant 1. All
are made periodic on the padded image; their Fourier transforms are real. These are the filters of
kymatio 0.3 (Andreux et al. 2020), whose constants they have, its 2 * 3.1415 among them.

Shapes: a padded image is (height, width), both multiples of 2^J.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float32]

_PERIODS = range(-2, 3)


@dataclass(frozen=True, slots=True, eq=False)
class Filters:
    """The filters of one padded size.

    Attributes:
        psi: by scale j, at every resolution that they are needed at, 0..j, (angles, h, w).
        low: by resolution r = 0..J, linear maps (rows (h', h / 2^r), columns (w', w / 2^r)) that
            smooth, keep every 2^(J-r)th number, and cut the padding off.
    """

    psi: tuple[tuple[Real, ...], ...]
    low: tuple[tuple[Real, Real], ...]


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
def filters(height: int, width: int, scales: int, angles: int) -> Filters:
    """All filters for padded images (height, width)."""
    psi = []
    for j in range(scales):
        turned = [
            np.fft.fft2(
                _morlet(
                    height,
                    width,
                    0.8 * 2**j,
                    (int(angles / 2 - 1) - number) * math.pi / angles,
                    0.75 * math.pi / 2**j,
                    4.0 / angles,
                )
            ).real
            for number in range(angles)
        ]
        psi.append(
            tuple(
                np.stack([_periodised(each, r) for each in turned]).astype(np.float32)
                for r in range(min(j + 1, max(scales - 1, 1)))
            )
        )
    window = np.fft.fft2(_gabor(height, width, 0.8 * 2 ** (scales - 1), 0.0, 0.0, 1.0)).real
    low = tuple(_smoothing(_periodised(window, r), scales - r) for r in range(scales))
    return Filters(tuple(psi), low)


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


def _periodised(fourier: NDArray[np.float64], level: int) -> NDArray[np.float64]:
    """The Fourier transform of every 2^level-th number of a filter, high frequencies left out."""
    if not level:
        return fourier
    kept = fourier.copy()
    for axis, length in enumerate(fourier.shape):
        start = int(length * 2.0 ** (-level - 1))
        stop = start + int(length * (1 - 2.0**-level))
        kept[(slice(None),) * axis + (slice(start, stop),)] = 0.0
    parts, (h, w) = 1 << level, fourier.shape
    found: NDArray[np.float64] = kept.reshape(parts, h // parts, parts, w // parts).sum((0, 2))
    return found


def _smoothing(window: NDArray[np.float64], left: int) -> tuple[Real, Real]:
    """The window, which is a product of one for rows and one for columns, as two linear maps."""
    root = math.sqrt(window[0, 0])
    rows, columns = window[:, 0] / root, window[0, :] / root
    return _smoothed(rows, left), _smoothed(columns, left)


def _smoothed(window: NDArray[np.float64], left: int) -> Real:
    """Smooth, keep every 2^left-th number, cut one off at both ends: (length / 2^left - 2, length).

    What lies beyond an image of 2^J times as many numbers is padding.
    """
    length, parts = len(window), 1 << left
    through = np.fft.fft(np.eye(length), axis=0) * window[:, None]
    folded = through.reshape(parts, length // parts, length).mean(0)
    found: Real = np.fft.ifft(folded, axis=0).real[1:-1].astype(np.float32)
    return np.ascontiguousarray(found)
