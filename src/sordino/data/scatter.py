r"""The scattering transform of images: two layers of wavelets and moduli, smoothed.

With psi_{j, theta} and phi of :mod:`.scattering`, and * a convolution of padded images,

    S_0 x = x * phi,  S_1 x = |x * psi_1| * phi,  S_2 x = ||x * psi_1| * psi_2| * phi  (j_2 > j_1),

each kept at every 2^J-th place: 1 + J L + L^2 J (J - 1) / 2 channels (Bruna and Mallat 2013;
Oyallon and Mallat 2015). It is a fixed function of one image.

Theory of operation
-------------------
Convolutions are products in Fourier space. Smoothing is a product of two small matrices, since the
window is a Gaussian: that saves the way to Fourier space and back for four fifths of all signals.

Images go through one by one, and what is done takes the same steps for every image. So an image's
channels are the same to the last bit beside any others. The angles of one image are transformed
side by side: they are the last axis, the lanes, so that the innermost loops run over long stretches
of memory, which compilers turn into vectors.

Transforms are those of Cooley and Tukey (1965), along the first axis of an array (n, s),

    X_p = sum_k x_k exp(-2 pi i p k / n),

with n split into factors of 4, 3, 2 and other primes. With the first factors multiplied to m and r
the next one, a stage takes x (m, r, s') to y (r, m, s'):

    y_{j, p} = sum_k x_{p, k} exp(-2 pi i k (j m + p) / (r m)),

and at m r = n all is done, in order. The second axis is brought to the front, and transformed the
same way; so a field (height, width) has a spectrum (width, height). There is no inverse transform:
with real and imaginary parts exchanged before and after it, a transform is its inverse times n, and
a modulus does not change when they are exchanged.

Shapes: images (n, height, width), float32; channels (n, K, height // 2^J, width // 2^J); fields
(h, w, lanes); spectra (2, w, h, lanes), real parts and imaginary ones.

References:
    Bruna and Mallat 2013, Invariant Scattering Convolution Networks.
    Oyallon and Mallat 2015, Deep Roto-Translation Scattering for Object Classification.
    Andreux et al. 2020, Kymatio: Scattering Transforms in Python, whose numbers these are.
    Cooley and Tukey 1965, An Algorithm for the Machine Calculation of Complex Fourier Series.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from sordino.base.compiled import compiled
from sordino.data.dataset import Single
from sordino.data.scattering import channels, filters, padded

_FUSED = {"contract"}
_HALF, _ROOT = np.float32(0.5), np.float32(math.sqrt(0.75))


class Scattering2d:
    """The transform of images of one size."""

    def __init__(self, height: int, width: int, scales: int, angles: int) -> None:
        self._scales, self._angles = scales, angles
        sides = [(length, padded(length, scales)) for length in (height, width)]
        self._margins = [((whole - n) // 2, whole - n - (whole - n) // 2) for n, whole in sides]
        wavelets, self._low = filters(sides[0][1], sides[1][1], scales, angles)
        self._small = len(self._low[0][0]), len(self._low[0][1])
        # divided by what the transforms to Fourier space and back multiply by
        self._psi = [
            [psi.transpose(2, 1, 0).copy() / np.float32(psi[0].size) for psi in levels]
            for levels in wavelets
        ]

    def __call__(self, images: Single) -> Single:
        """Return the channels (n, K, h, w) of images (n, height, width)."""
        count = channels(self._scales, self._angles)
        found = np.empty((len(images), count, *self._small), np.float32)
        whole = np.pad(images, ((0, 0), *self._margins), mode="reflect")
        for image, out in zip(np.ascontiguousarray(whole)[..., None], found, strict=True):
            self._transform(image, out)
        return found

    def _transform(self, image: Single, out: Single) -> None:
        """Write the channels (K, rows, columns) of an image (h, w, 1) to ``out``."""
        angles, scales = self._angles, self._scales
        smooth(image, *self._low[0], out, 0, 1, 0)
        whole, second = _spectrum(image), 1 + scales * angles
        for j in range(scales):
            once = self._waves(whole, j, 0)
            smooth(once, *self._low[j], out, 1 + j * angles, angles, 0)
            if j + 1 < scales:
                again, pitch = _spectrum(once), (scales - 1 - j) * angles
                for k in range(j + 1, scales):
                    first = second + (k - j - 1) * angles
                    smooth(self._waves(again, k, j), *self._low[k], out, first, angles, pitch)
                second += angles * pitch

    def _waves(self, spectrum: Single, j: int, at: int) -> Single:
        """Return moduli (h, w, lanes x angles) of convolutions with the wavelets of scale j.

        ``at`` is the scale of the moduli that the spectrum is of; 0 for an image's.
        """
        psi = self._psi[j][at]
        width, height = (side >> (j - at) for side in psi.shape[:2])
        moduli: Single = waves(spectrum, psi, turns(width), turns(height))
        return moduli


def _spectrum(field: Single) -> Single:
    found: Single = spectrum(field, turns(field.shape[0]), turns(field.shape[1]))
    return found


@cache
def turns(n: int) -> Single:
    """Return cosines and sines (2, n) of 2 pi k / n."""
    angles = 2.0 * np.pi * np.arange(n) / n
    return np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)


@compiled(fastmath=_FUSED)
def spectrum(field: Any, down: Any, across: Any) -> Any:
    """Return the Fourier transform of a real field; ``down`` and ``across`` as :func:`turns`."""
    h, w, lanes = field.shape
    x, spare = np.empty((2, field.size), np.float32), np.empty((2, field.size), np.float32)
    real, imaginary, numbers = x[0], x[1], field.reshape(field.size)
    for k in range(numbers.size):
        real[k], imaginary[k] = numbers[k], np.float32(0)
    return _transform(x, spare, down, across).reshape(2, w, h, lanes)


@compiled(fastmath=_FUSED)
def waves(spectrum: Any, psi: Any, across: Any, down: Any) -> Any:
    """Return moduli of convolutions of each lane with each filter, (h, w, lanes x angles).

    Args:
        spectrum: (2, W, H, lanes).
        psi: real filters in Fourier space (W, H, angles).
        across: :func:`turns` of w, which is W over a power of two.
        down: those of h, H over the same power.
    """
    w, h, lanes, angles = across.shape[1], down.shape[1], spectrum.shape[3], psi.shape[2]
    size = w * h * lanes * angles
    x, spare = np.empty((2, size), np.float32), np.empty((2, size), np.float32)
    _product(spectrum, psi, x.reshape(2, w, h, lanes, angles))
    found = _transform(x, spare, across, down)
    real, imaginary, moduli = found[0], found[1], np.empty(size, np.float32)
    for k in range(size):
        moduli[k] = math.sqrt(real[k] * real[k] + imaginary[k] * imaginary[k])
    return moduli.reshape(h, w, lanes * angles)


@compiled(fastmath=_FUSED)
def smooth(
    field: Any, left: Any, right: Any, out: Any, first: int, angles: int, pitch: int
) -> None:
    """Write left @ u @ right^T to ``out`` for each lane u of a field.

    Args:
        field: (h, w, lanes).
        left: (rows, h).
        right: (columns, w).
        out: channels (K, rows, columns).
        first: the channel of the first lane; the others follow.
        angles: lanes that follow one another.
        pitch: channels from such lanes to the next ones.
    """
    h, w, lanes = field.shape
    rows, columns = len(left), len(right)
    down = _times(left, field.reshape(h, w * lanes)).reshape(rows, w, lanes)
    turned = np.empty((w, rows, lanes), np.float32)
    _turn(down, turned)
    found = _times(right, turned.reshape(w, rows * lanes)).reshape(columns, rows, lanes)
    for lane in range(lanes):
        channel = out[first + lane // angles * pitch + lane % angles]
        for r in range(rows):
            for c in range(columns):
                channel[r, c] = found[c, r, lane]


@compiled(fastmath=_FUSED)
def _product(spectrum: Any, psi: Any, out: Any) -> None:
    """Multiply a spectrum (2, W, H, lanes) with filters (W, H, angles), parts exchanged.

    What lies w columns or h rows apart is added up: ``out`` is (2, w, h, lanes, angles).
    """
    _, w, h, lanes, angles = out.shape
    if len(psi) == w:
        for a in range(w):
            for b in range(h):
                for part in range(2):
                    for lane in range(lanes):
                        x = spectrum[part, a, b, lane]
                        for t in range(angles):
                            out[1 - part, a, b, lane, t] = x * psi[a, b, t]
        return
    out[:] = 0
    for i in range(0, len(psi), 2 * w):  # four parts at once, since each is read and written
        for k in range(0, psi.shape[1], 2 * h):
            for a in range(i, i + w):
                for b in range(k, k + h):
                    one, two = psi[a, b], psi[a, b + h]
                    three, four = psi[a + w, b], psi[a + w, b + h]
                    for part in range(2):
                        x = spectrum[part]
                        for lane in range(lanes):
                            p, q = x[a, b, lane], x[a, b + h, lane]
                            r, s = x[a + w, b, lane], x[a + w, b + h, lane]
                            sums = out[1 - part, a - i, b - k, lane]
                            for t in range(angles):
                                sums[t] += p * one[t] + q * two[t] + r * three[t] + s * four[t]


@compiled(fastmath=_FUSED)
def _times(matrix: Any, x: Any) -> Any:
    """Return matrix @ x for x (n, s), n even."""
    m, n = matrix.shape
    out = np.zeros((m, x.shape[1]), np.float32)
    for i in range(m):
        total = out[i]
        for k in range(0, n, 2):
            a, b, first, second = matrix[i, k], matrix[i, k + 1], x[k], x[k + 1]
            for q in range(total.size):
                total[q] += a * first[q] + b * second[q]
    return out


@compiled(fastmath=_FUSED)
def _transform(x: Any, spare: Any, first: Any, second: Any) -> Any:
    """Transform x (2, n m s) along both axes, in x and ``spare``; return it as (2, m n s)."""
    n, m = first.shape[1], second.shape[1]
    x, spare = _along(x, spare, first)
    lanes = x.shape[1] // (n * m)
    for part in range(2):
        _turn(x[part].reshape(n, m, lanes), spare[part].reshape(m, n, lanes))
    return _along(spare, x, second)[0]


@compiled()
def _turn(x: Any, out: Any) -> None:
    """Exchange the first two axes."""
    n, m, lanes = x.shape
    for i in range(n):
        for k in range(m):
            for lane in range(lanes):
                out[k, i, lane] = x[i, k, lane]


@compiled(fastmath=_FUSED)
def _along(x: Any, spare: Any, turns: Any) -> tuple[Any, Any]:
    """Transform x (2, n s) along the first axis; return the array it is in, and the other one."""
    n = turns.shape[1]
    m, s = 1, x.shape[1] // n
    while m < n:
        r = 4 if n // m % 4 == 0 else 2
        while n // m % r:
            r += 1
        step = n // (m * r)
        given, made = x.reshape(2, m, r, step * s), spare.reshape(2, r, m, step * s)
        if r == 4:
            _four(given, turns, step, made)
        elif r == 3:
            _three(given, turns, step, made)
        elif r == 2:
            _two(given, turns, step, made)
        else:
            _prime(given, turns, step, made)
        x, spare, m = spare, x, m * r
    return x, spare


# A stage: x (2, m, r, s) times exp(-2 pi i k p / (r m)), then a transform of r numbers, for small r
# written out. Names: a, b, c, d for the r numbers, ending in i for imaginary parts.


@compiled(fastmath=_FUSED)
def _turned(real: Any, imaginary: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    return cos * real + sin * imaginary, cos * imaginary - sin * real


@compiled(fastmath=_FUSED)
def _two(x: Any, turns: Any, step: int, y: Any) -> None:
    for p in range(y.shape[2]):
        cos, sin = turns[0, p * step], turns[1, p * step]
        for q in range(y.shape[3]):
            a, ai = x[0, p, 0, q], x[1, p, 0, q]
            b, bi = _turned(x[0, p, 1, q], x[1, p, 1, q], cos, sin)
            y[0, 0, p, q], y[1, 0, p, q] = a + b, ai + bi
            y[0, 1, p, q], y[1, 1, p, q] = a - b, ai - bi


@compiled(fastmath=_FUSED)
def _three(x: Any, turns: Any, step: int, y: Any) -> None:
    for p in range(y.shape[2]):
        cos1, sin1 = turns[0, p * step], turns[1, p * step]
        cos2, sin2 = turns[0, 2 * p * step], turns[1, 2 * p * step]
        for q in range(y.shape[3]):
            a, ai = x[0, p, 0, q], x[1, p, 0, q]
            b, bi = _turned(x[0, p, 1, q], x[1, p, 1, q], cos1, sin1)
            c, ci = _turned(x[0, p, 2, q], x[1, p, 2, q], cos2, sin2)
            plus, plus_i = b + c, bi + ci
            minus, minus_i = _ROOT * (b - c), _ROOT * (bi - ci)
            rest, rest_i = a - _HALF * plus, ai - _HALF * plus_i
            y[0, 0, p, q], y[1, 0, p, q] = a + plus, ai + plus_i
            y[0, 1, p, q], y[1, 1, p, q] = rest + minus_i, rest_i - minus
            y[0, 2, p, q], y[1, 2, p, q] = rest - minus_i, rest_i + minus


@compiled(fastmath=_FUSED)
def _four(x: Any, turns: Any, step: int, y: Any) -> None:
    for p in range(y.shape[2]):
        cos1, sin1 = turns[0, p * step], turns[1, p * step]
        cos2, sin2 = turns[0, 2 * p * step], turns[1, 2 * p * step]
        cos3, sin3 = turns[0, 3 * p * step], turns[1, 3 * p * step]
        for q in range(y.shape[3]):
            a, ai = x[0, p, 0, q], x[1, p, 0, q]
            b, bi = _turned(x[0, p, 1, q], x[1, p, 1, q], cos1, sin1)
            c, ci = _turned(x[0, p, 2, q], x[1, p, 2, q], cos2, sin2)
            d, di = _turned(x[0, p, 3, q], x[1, p, 3, q], cos3, sin3)
            even, even_i, odd, odd_i = a + c, ai + ci, b + d, bi + di
            left, left_i, right, right_i = a - c, ai - ci, b - d, bi - di
            y[0, 0, p, q], y[1, 0, p, q] = even + odd, even_i + odd_i
            y[0, 1, p, q], y[1, 1, p, q] = left + right_i, left_i - right
            y[0, 2, p, q], y[1, 2, p, q] = even - odd, even_i - odd_i
            y[0, 3, p, q], y[1, 3, p, q] = left - right_i, left_i + right


@compiled(fastmath=_FUSED)
def _prime(x: Any, turns: Any, step: int, y: Any) -> None:
    _, r, m, s = y.shape
    for j in range(r):
        for p in range(m):
            for q in range(s):
                y[0, j, p, q], y[1, j, p, q] = x[0, p, 0, q], x[1, p, 0, q]
            for k in range(1, r):
                turn = k * (j * m + p) * step % turns.shape[1]
                cos, sin = turns[0, turn], turns[1, turn]
                for q in range(s):
                    y[0, j, p, q] += cos * x[0, p, k, q] + sin * x[1, p, k, q]
                    y[1, j, p, q] += cos * x[1, p, k, q] - sin * x[0, p, k, q]
