r"""The scattering transform of images: two layers of wavelets and moduli, smoothed.

With psi_{j, theta} and phi of :mod:`.wavelets`, and * a convolution of padded images,

    S_0 x = x * phi,  S_1 x = |x * psi_1| * phi,  S_2 x = ||x * psi_1| * psi_2| * phi  (j_2 > j_1),

each kept at every 2^J-th place: 1 + J L + L^2 J (J - 1) / 2 channels (Bruna and Mallat 2013;
Oyallon and Mallat 2015). It is a fixed function of one image.

Convolutions are products in Fourier space. Smoothing is a product of two small matrices, since the
window is a Gaussian: that saves the way to Fourier space and back for four fifths of all signals.

Sixteen images go through side by side, one in each lane of a vector (:mod:`.fourier`). An image's
channels are the same to the last bit in any lane and beside any others.

Shapes: images (n, height, width), float32; channels (n, K, height // 2^J, width // 2^J).

References:
    Bruna and Mallat 2013, Invariant Scattering Convolution Networks.
    Oyallon and Mallat 2015, Deep Roto-Translation Scattering for Object Classification.
    Andreux et al. 2020, Kymatio: Scattering Transforms in Python, whose numbers these are.
"""

from __future__ import annotations

import numpy as np

from sordino.data.features.fourier import LANES
from sordino.data.features.lanes import smoothed, spectrum, waves
from sordino.data.features.wavelets import Real, channels, filters, padded


class Scattering2d:
    """The transform of images of one size."""

    def __init__(self, height: int, width: int, scales: int, angles: int) -> None:
        self._scales, self._angles = scales, angles
        sides = [(length, padded(length, scales)) for length in (height, width)]
        self._margins = [((whole - n) // 2, whole - n - (whole - n) // 2) for n, whole in sides]
        found = filters(sides[0][1], sides[1][1], scales, angles)
        self._low = found.low
        # divided by what the transforms to Fourier space and back multiply by
        self._psi = [[psi / np.float32(psi[0].size) for psi in levels] for levels in found.psi]
        self._sides = found.psi[0][0].shape[1:]
        self._small = (len(found.low[0][0]), len(found.low[0][1]))

    def __call__(self, images: Real) -> Real:
        """Channels (n, K, h, w) of images (n, height, width)."""
        count = channels(self._scales, self._angles)
        found = np.empty((len(images), count, *self._small), np.float32)
        for start in range(0, len(images), LANES):
            some = images[start : start + LANES]
            beside = self._beside(some)
            found[start : start + len(some)] = np.moveaxis(beside, 3, 0)[: len(some)]
        return found

    def _beside(self, images: Real) -> Real:
        """Channels (K, h, w, 16) of up to sixteen images, and of dark ones in other lanes."""
        height, width = self._sides
        padding = np.pad(images, ((0, 0), *self._margins), mode="reflect")
        image = np.zeros((1, height, width, LANES), np.float32)
        image[0, :, :, : len(images)] = np.moveaxis(padding, 0, 2)
        angles, scales = self._angles, self._scales
        out = np.empty((channels(scales, angles), *self._small, LANES), np.float32)
        room = np.empty(2 * image.size, np.float32)
        smoothed(height, width, *self._small)(image, *self._low[0], room, out)
        spectra, second = _spectra(image), 1 + scales * angles
        for j in range(scales):
            once = self._waves(spectra, j, 0, room, out, 1 + j * angles, 0)
            if j + 1 < scales:
                again, pitch = _spectra(once), (scales - 1 - j) * angles
                for k in range(j + 1, scales):
                    self._waves(again, k, j, room, out, second + (k - j - 1) * angles, pitch)
                second += angles * pitch
        return out

    def _waves(
        self, spectra: Real, j: int, at: int, room: Real, out: Real, first: int, pitch: int
    ) -> Real:
        """Moduli (angles, h, w, 16) at resolution j of the last of the spectra at resolution
        ``at``; all of them smoothed are channels, from ``first`` on, ``pitch`` apart by spectrum.
        """
        height, width = spectra.shape[1:3]
        parts = 1 << (j - at)
        moduli = np.empty((self._angles, height // parts, width // parts, LANES), np.float32)
        run = waves(height, width, parts, *self._small)
        run(spectra, self._psi[j][at], *self._low[j], room, moduli, out, first, pitch)
        return moduli


def _spectra(fields: Real) -> Real:
    """Fourier transforms (n, h, w, 2, 16) of real fields (n, h, w, 16)."""
    n, height, width, _ = fields.shape
    found = np.empty((n, height, width, 2, LANES), np.float32)
    spectrum(height, width)(fields, found)
    return found
