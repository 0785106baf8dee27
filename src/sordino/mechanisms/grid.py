r"""Gaussian noise in whole numbers on a public grid: floating-point digits reveal nothing.

**Why.** A float sampler can make only some of the numbers near its result, and which ones depends
on the value that was hidden (Mironov 2012). Noise of 24-bit uniforms, for example, shows it in the
last digits, after any sum, mean or learning rate.

**What is released.** Of a vector S that one record moves by at most C (L2), with a step g that is a
power of two:

    ( round(S / g) + N ) g,        N_i = round(s Z_i),   Z_i standard normal and independent.

**Its price is that of a Gaussian with noise multiplier sigma, exactly.** Proof. Rounding moves a
number by at most 1/2, so
|round(a) - round(b)| <= |a - b| + 1, and over d numbers one record moves round(S / g) by at most

    C / g + sqrt(d)

(Minkowski). s is sigma times that. round(S / g) is whole, so round(S / g) + round(s Z) =
round(round(S / g) + s Z): it is the continuous Gaussian mechanism with multiplier sigma on round(S
/ g), rounded afterwards, and rounding is post-processing. This holds for the vector as a whole, so
subsampling and adaptive composition are priced as for the continuous Gaussian. No tail is cut off,
and no smoothing argument is needed, as it would be for a discrete Gaussian (Canonne, Kamath,
Steinke 2020).

**What the sampler adds to delta.** :mod:`.draws` draws N_i exactly but for 2^-95
(statistical distance), so d numbers in T releases add at most d T 2^-95 (1 + e^epsilon) to delta:
2^-50 for a billion numbers in a billion releases at epsilon = 8. It is below the last digit of
every delta and is not booked. Words from a generator that is not truly random are an assumption of
their own: see docs/threats.md.

**The step** is at most sigma C 2^-20 (for sigma above 2^-12), and so small that sqrt(d) adds no
more than 1/2048 to the noise.

Shapes: vectors (d,), float32 or float64; results are float32. C in units of the vector, sigma
dimensionless.

>>> grid = Grid.of(clip=1.0, noise_multiplier=1.0, dimension=10_000)
>>> grid.step == 2.0**-20, round(grid.deviation * grid.step, 6)
(True, 1.000095)

References:
    Mironov 2012, On Significance of the Least Significant Bits for Differential Privacy.
    Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, appendix A.
    Canonne, Kamath, Steinke 2020, The Discrete Gaussian for Differential Privacy.

**Random words** (:func:`random_words`) have 64 bits each and come many at once. A generator of a
simulation hands out one word in two nanoseconds, which is as long as the noise itself takes. So its
words seed 32 generators of the same kind (SFC64, Doty-Humphrey 2018) that run side by side in the
processor's vectors: half a nanosecond a word. Each of the 32 has a state of 192 bits of its own.

A cryptographic generator (``base.entropy.KeyStream``) hands out its own words, in bulk:
they are used as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from sordino.base.arrays import Floats, Ints
from sordino.base.errors import StudyError

FINE = 2.0**-20
_SHARE = 2.0**-11  # what sqrt(d) may add to the noise
# with next to no noise the grid stays so wide that sums of half a million contributions are exact
_FINEST = 2.0**-32
_WIDEST = 2.0**36  # s beyond it would leave too many numbers to the slow way


@dataclass(frozen=True, slots=True)
class Grid:
    """A public grid and the noise on it.

    Attributes:
        step: g, a power of two (units of the vector).
        deviation: s, of the noise in steps.
    """

    step: float
    deviation: float

    @classmethod
    def of(cls, *, clip: float, noise_multiplier: float, dimension: int) -> Grid:
        """The grid for a vector of which one record moves ``dimension`` numbers, by up to ``clip``.

        Raises:
            StudyError: for a clip or noise that no grid of float64 numbers can carry.
        """
        root = math.sqrt(max(dimension, 1))
        most = max(min(noise_multiplier * clip * FINE, clip * _SHARE / root), clip * _FINEST)
        if not 2.0**-1000 < most < 2.0**900:
            raise StudyError(
                f"clip = {clip:g} and noise_multiplier = {noise_multiplier:g} are beyond "
                "what float64 can hold"
            )
        step = 2.0 ** math.floor(math.log2(most))
        # a few units in the last place more, so that rounding here never makes the noise too small
        deviation = noise_multiplier * (clip / step + root) * (1.0 + 2.0**-48)
        if deviation > _WIDEST:
            raise StudyError(
                f"noise_multiplier = {noise_multiplier:g} is too large for {dimension} numbers:"
                f" the largest is about {_WIDEST * _SHARE / root:.3g}"
            )
        return cls(step, deviation)

    def release(self, total: Tensor, rng: Generator) -> Tensor:
        """The noisy vector (d,), float32, on the device of ``total`` (d,), which stays."""
        whole = total.detach().to(device="cpu", dtype=torch.float64).contiguous().numpy()
        out = np.empty(whole.size, np.float32)
        self._fill(whole, out, rng)
        return torch.from_numpy(out).to(total.device)

    def drawn(self, total: Floats, rng: Generator) -> Floats:
        """The noisy vector (d,), not rounded to float32; every number of it is exact."""
        out = np.empty(total.size, np.float64)
        self._fill(total, out, rng)
        return out

    def _fill(self, total: Floats, out: NDArray[np.float32] | Floats, rng: Generator) -> None:
        """Write the noisy vector into ``out`` (d,), rounded to its type."""
        if not total.size:
            return
        from sordino.mechanisms import draws  # the compiler takes a while to load

        words = random_words(total.size + total.size % 2, rng)
        stretches = np.zeros(-(-words.size // 2 // draws.STRETCH), np.int64)
        if draws.noisy(words, total, out, self.step, self.deviation, stretches):
            self._settle(words, total, out, stretches, rng)

    def _settle(
        self,
        words: Words,
        total: Floats,
        out: NDArray[np.float32] | Floats,
        stretches: Ints,
        rng: Generator,
    ) -> None:
        """Compute the doubtful pairs again, to 250 bits, from more digits."""
        from sordino.mechanisms import draws

        half = words.size // 2
        places = draws.doubtful_pairs(words, self.deviation, stretches)
        more = rng.bit_generator.random_raw(2 * len(places))
        for number, i in enumerate(places):
            u, v = int(words[i]), int(words[half + i])
            pair = draws.exact_pair(
                u, v, int(more[2 * number]), int(more[2 * number + 1]), self.deviation
            )
            for place, noise in zip((i, half + i), pair, strict=True):
                if place < out.size:
                    steps = float(total[place]) / self.step
                    steps = 0.0 if math.isnan(steps) else steps
                    whole = np.rint(min(max(steps, -draws.REACH), draws.REACH))
                    out[place] = (float(whole) + noise) * self.step


def add_gaussian(
    total: Tensor,
    rng: Generator,
    *,
    clip: float,
    noise_multiplier: float,
    dimension: int | None = None,
) -> Tensor:
    """Release ``total`` (d,), float32, of which one record moves numbers by at most ``clip``.

    It moves ``dimension`` numbers, all unless given.
    """
    return _grid(clip, noise_multiplier, total.numel() if dimension is None else dimension).release(
        total, rng
    )


@lru_cache(maxsize=1024)  # schedules and adaptive clips ask for many
def _grid(clip: float, noise_multiplier: float, dimension: int) -> Grid:
    return Grid.of(clip=clip, noise_multiplier=noise_multiplier, dimension=dimension)


Words = NDArray[np.uint64]

_FEW = 128  # fewer words than this cost less than seeding
_MIXING = 12  # rounds of SFC64 between seeding and use, as its author has it


def random_words(count: int, rng: Generator) -> Words:
    """Independent uniform words (count,) from this generator."""
    bits: Any = rng.bit_generator
    if count < _FEW or hasattr(bits, "key_stream"):
        raw: Words = bits.random_raw(count)
        return raw
    from sordino.mechanisms.draws import LANES, sfc64  # loads numba

    state = np.empty((4, LANES), np.uint64)
    state[:3] = bits.random_raw(3 * LANES).reshape(3, LANES)
    state[3] = 1
    blocks = -(-count // LANES) + _MIXING
    out = np.empty(blocks * LANES, np.uint64)
    sfc64(state, out)
    return out[_MIXING * LANES :][:count]
