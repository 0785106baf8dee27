r"""How much of an image is in another.

Released gradients fix an image only up to brightness and contrast once noise has drowned their
scale, so both measures forgive these:

    r     Pearson's correlation over the pixels
    PSNR  10 log10( range(x)^2 / min_{a >= 0, b} mean (a x^ + b - x)^2 ),   in dB

The least mean square is var(x) (1 - max(r, 0)^2), so PSNR grows with r; a flat guess has r = 0.

>>> import numpy as np
>>> x = np.array([0.0, 1.0, 2.0, 1.0])
>>> round(correlation(3.0 * x + 5.0, x), 6), correlation(np.zeros(4), x)
(1.0, 0.0)
>>> round(psnr(np.zeros(4), x), 2), psnr(x, x)
(9.03, inf)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Image = np.ndarray[Any, np.dtype[np.float64]]


def correlation(guess: Image, truth: Image) -> float:
    """r in [-1, 1] of two images (pixels,); 0 where one of them is flat."""
    a, b = guess - guess.mean(), truth - truth.mean()
    # squares must not overflow
    a, b = a / max(float(np.abs(a).max()), 1e-300), b / max(float(np.abs(b).max()), 1e-300)
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return min(max(float(a @ b) / scale, -1.0), 1.0) if scale > 0.0 else 0.0


def psnr(guess: Image, truth: Image) -> float:
    """Peak signal to noise in dB at the best brightness and contrast; infinite without loss."""
    spread = float(np.ptp(truth))
    lost = float(truth.var()) * (1.0 - max(correlation(guess, truth), 0.0) ** 2)
    return 10.0 * math.log10(spread * spread / lost) if lost > 1e-12 * spread * spread else math.inf
