r"""Releases made for an attack, at several noise levels, and what came out of them.

A release here is what a client lets out of itself in one local step
(:mod:`sordino.training.dpsgd`): per-example clipping in the mechanism's own norm, the sum over a
batch, the mechanism's noise, the expected batch as divisor. Without noise (sigma = 0) clipping
stays. With MAPA's noise it is the vector of :func:`sordino.mechanisms.knorm.exponential_norm` with
mean norm Delta S / eps_0 on the average, Delta S = 2 C / b (Li et al., section 5.1), which is 2 C /
eps_0 on the sum.

The same image meets the same random numbers at every level: what differs is how large the noise is.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sordino.extend.runs import Bounded, ClippedSum, bound_of, exponential_norm
from sordino_papers.inversion.gradient import FirstLayer, Matrix, recovered


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Noise level and its price.

    Attributes:
        sigma: noise multiplier of the study's mechanism; 0 for none; None for MAPA's noise.
        claimed: eps_0 of MAPA's noise; None for the study's mechanism.
        own: whether this is the study's own noise.
        once: epsilon of one release, on a Poisson sample as the ledger books it.
        whole: epsilon of as many releases as the study plans.
    """

    sigma: float | None
    claimed: float | None = None
    own: bool = False
    once: float
    whole: float


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A batch in which the first example is the one to recover.

    Attributes:
        x: the batch as model input (n, ...). Raw.
        y: its labels (n,).
        divisor: expected batch of the client whose data it is, in examples.
    """

    x: Tensor
    y: Tensor
    divisor: float


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """Outcome at one noise level.

    Attributes:
        level: the noise.
        images: (targets, pixels), each up to brightness and contrast.
        correlations: with the originals.
        psnr: in dB, at the best brightness and contrast.
    """

    level: Level
    images: Matrix
    correlations: tuple[float, ...]
    psnr: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """One model attacked through one kind of batch.

    Attributes:
        model: its name.
        alone: whether every target was alone in its batch; else it lay in a Poisson sample of its
            client's data.
        batch: mean size of the batches.
        shape: of an image.
        labels: names of the targets' labels.
        originals: (targets, pixels). Raw.
        guesses: (targets, pixels), what the label alone gives: the mean public image of it.
        guessed: their correlations with the originals.
        attempts: from the least noise to the most.
    """

    model: str
    alone: bool
    batch: float
    shape: tuple[int, ...]
    labels: tuple[str, ...]
    originals: Matrix
    guesses: Matrix
    guessed: tuple[float, ...]
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Attack:
    """Target of an attacker, and what he knows.

    Attributes:
        clipped: the kernel, over the model's present weights.
        noise: the study's mechanism, which says what a gradient is clipped in.
        layer: where the pixels go in.
        slopes: of every label, (classes, classes); see
            :func:`~sordino_papers.inversion.gradient.mean_slopes`.
        dimension: d.
    """

    clipped: ClippedSum
    noise: Bounded
    layer: FirstLayer
    slopes: Matrix
    dimension: int

    def release(self, target: Target, level: Level, rng: np.random.Generator) -> Tensor:
        """The gradient (d,) that a client lets out for this batch at this level."""
        exact = torch.empty(self.dimension, dtype=torch.float64)
        self.clipped(target.x, target.y, bound_of(self.noise), exact)
        total = exact.to(torch.float32)
        if level.claimed is not None:
            total += exponential_norm(self.dimension, 2.0 * self.noise.clip / level.claimed, rng)
        elif level.sigma:
            total, _ = self.noise.scaled(self.noise.clip, level.sigma).release_counted(
                total, 0.0, rng
            )
        return total / target.divisor

    def attempt(
        self,
        targets: Sequence[Target],
        level: Level,
        randomness: Callable[[int], np.random.Generator],
    ) -> Attempt:
        """Release every target at one level and recover it; ``randomness`` is each one's noise."""
        images, correlations, lost = [], [], []
        for number, target in enumerate(targets):
            seen = self.release(target, level, randomness(number))
            image = recovered(seen, self.layer, self.slopes, target.y, int(target.y[0]))
            truth = target.x[0].flatten().numpy().astype(np.float64)
            images.append(image)
            correlations.append(correlation(image, truth))
            lost.append(psnr(image, truth))
        return Attempt(level, np.stack(images), tuple(correlations), tuple(lost))


def correlation(guess: Matrix, truth: Matrix) -> float:
    """r in [-1, 1] of two images (pixels,); 0 where one of them is flat."""
    a, b = guess - guess.mean(), truth - truth.mean()
    # squares must not overflow
    a, b = a / max(float(np.abs(a).max()), 1e-300), b / max(float(np.abs(b).max()), 1e-300)
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return min(max(float(a @ b) / scale, -1.0), 1.0) if scale > 0.0 else 0.0


def psnr(guess: Matrix, truth: Matrix) -> float:
    """Peak signal to noise in dB at the best brightness and contrast; infinite without loss."""
    spread = float(np.ptp(truth))
    lost = float(truth.var()) * (1.0 - max(correlation(guess, truth), 0.0) ** 2)
    return 10.0 * math.log10(spread * spread / lost) if lost > 1e-12 * spread * spread else math.inf
