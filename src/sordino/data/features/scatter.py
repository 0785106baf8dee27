r"""The scattering transform of images: two layers of wavelets and moduli, smoothed.

With psi_{j, theta} and phi of :mod:`.wavelets`, and * a convolution of padded images,

    S_0 x = x * phi,  S_1 x = |x * psi_1| * phi,  S_2 x = ||x * psi_1| * psi_2| * phi  (j_2 > j_1),

each kept at every 2^J-th place: 1 + J L + L^2 J (J - 1) / 2 channels (Bruna and Mallat 2013;
Oyallon and Mallat 2015). It is a fixed function of one image.

Convolutions are products in Fourier space. Smoothing is a product of two small matrices, since the
window is a Gaussian: that saves the way to Fourier space and back for four fifths of all signals.

Shapes: images (n, height, width), float32; channels (n, K, height // 2^J, width // 2^J).

References:
    Bruna and Mallat 2013, Invariant Scattering Convolution Networks.
    Oyallon and Mallat 2015, Deep Roto-Translation Scattering for Object Classification.
    Andreux et al. 2020, Kymatio: Scattering Transforms in Python, whose numbers these are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.data.features.wavelets import filters, padded
from sordino.native import compiled


class Scattering2d:
    """The transform of images of one size."""

    def __init__(self, height: int, width: int, scales: int, angles: int) -> None:
        self._scales, self._angles = scales, angles
        sides = [(length, padded(length, scales)) for length in (height, width)]
        self._margins = [((whole - length) // 2, whole - length) for length, whole in sides]
        found = filters(sides[0][1], sides[1][1], scales, angles)
        self._low = [(torch.from_numpy(rows), torch.from_numpy(side)) for rows, side in found.low]
        # a filter as its products need it: for real and imaginary parts side by side, and divided
        # by what is folded onto one place
        self._psi = [
            [
                np.repeat(psi, 2, axis=2) / np.float32(1 << 2 * (j - at))
                for at, psi in enumerate(levels)
            ]
            for j, levels in enumerate(found.psi)
        ]

    def __call__(self, images: Tensor) -> Tensor:
        """Channels (n, K, h, w) of images (n, height, width), float32."""
        u = torch.nn.functional.pad(images.unsqueeze(1), self._sides(), mode="reflect").squeeze(1)
        n = len(u)
        first: list[Tensor] = []
        second: list[Tensor] = []
        found = torch.fft.fft2(u)
        for j in range(self._scales):
            one = self._wave(found, j, 0)  # (n, L, h, w)
            first.append(self._smooth(one, j))
            paths: list[Tensor] = []
            if j + 1 < self._scales:
                again = torch.fft.fft2(one).flatten(0, 1)
                for k in range(j + 1, self._scales):
                    two = self._wave(again, k, j)  # (n L, L, h, w)
                    smooth = self._smooth(two, k)
                    paths.append(smooth.view(n, self._angles, self._angles, *smooth.shape[-2:]))
                # (n, L, scales after j, L, h, w): for each first wavelet all second ones
                second.append(torch.stack(paths, 2).flatten(1, 3))
        return torch.cat([self._smooth(u.unsqueeze(1), 0), *first, *second], 1)

    def _sides(self) -> tuple[int, int, int, int]:
        (top, down), (left, across) = self._margins
        return left, across - left, top, down - top

    def _wave(self, fourier: Tensor, j: int, at: int) -> Tensor:
        """|x * psi_j| at resolution j (n, L, h, w), of Fourier transforms at resolution ``at``."""
        parts = 1 << (j - at)
        n, h, w = fourier.shape
        out = torch.empty((n, self._angles, h // parts, w // parts), dtype=torch.complex64)
        _products(
            torch.view_as_real(fourier).flatten(2).numpy(),
            self._psi[j][at],
            torch.view_as_real(out).flatten(3).numpy(),
            parts,
        )
        waves = torch.fft.ifft2(out)
        modulus = torch.empty(waves.shape)
        _moduli(torch.view_as_real(waves).flatten().numpy(), modulus.view(-1).numpy())
        return modulus

    def _smooth(self, u: Tensor, level: int) -> Tensor:
        """Smoothed, at every 2^J-th place (n, paths, h', w')."""
        rows, columns = self._low[level]
        return rows @ (u @ columns.T)


@compiled(fastmath={"contract"})
def _products(x: Any, psi: Any, out: Any, parts: int) -> None:
    """Products of spectra x (n, h, 2 w) with filters (L, h, 2 w), folded ``parts`` times a side."""
    h, w = out.shape[2], out.shape[3]
    for image in range(x.shape[0]):
        for angle in range(psi.shape[0]):
            for r in range(h):
                row = out[image, angle, r]
                for c in range(w):
                    row[c] = x[image, r, c] * psi[angle, r, c]
                for part in range(1, parts * parts):
                    down, right = r + (part // parts) * h, (part % parts) * w
                    for c in range(w):
                        row[c] += x[image, down, right + c] * psi[angle, down, right + c]


@compiled(fastmath={"contract"})
def _moduli(z: Any, out: Any) -> None:
    for i in range(len(out)):
        out[i] = np.sqrt(z[2 * i] * z[2 * i] + z[2 * i + 1] * z[2 * i + 1])
