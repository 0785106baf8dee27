"""What wavelets cost beside a DP-SGD step of the CNN: the transform and back, and clipping in a
weighted norm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bench.step import BATCH, CLIP, SIGMA, build
from bench.timing import in_turns
from sordino.base.entropy import Seeded
from sordino.mechanisms.gaussian import Gaussian
from sordino.mechanisms.haar.basis import Basis
from sordino.mechanisms.haar.gaussian import HaarGaussian, paper
from sordino.training.flat import Flat
from sordino.training.loss import cross_entropy
from sordino.training.perexample.clipping import Measured
from sordino.training.perexample.sums import ClippedSum


def measure() -> list[dict[str, Any]]:
    """Both rows, as shares of a whole step (clipped sum and noise)."""
    generator = np.random.default_rng(1)
    x = torch.from_numpy(
        generator.standard_normal((BATCH, 1, 28, 28)).astype(np.float32)
    ).contiguous(memory_format=torch.channels_last)
    y = torch.from_numpy(generator.integers(0, 10, BATCH))
    flat = Flat(build("cnn"))
    kernel, total = ClippedSum(flat, cross_entropy), torch.empty(flat.dim, dtype=torch.float64)
    rng = Seeded(0).at("bench")
    plain, basis = Gaussian(clip=CLIP, noise_multiplier=SIGMA), Basis.flat(flat.dim)
    haar = HaarGaussian.weighted(
        clip=CLIP, noise_multiplier=SIGMA, basis=basis, weights=paper(basis)
    )
    vector = torch.randn(flat.dim)

    def step() -> None:
        kernel(x, y, CLIP, total)
        plain.release_counted(total, 0.0, rng)

    def weighted() -> None:
        kernel(x, y, Measured.by(haar, CLIP), total)
        haar.release_counted(total, 0.0, rng)

    def transform() -> None:
        basis.inverse(basis.forward(vector))

    taken = in_turns({"step": step, "weighted": weighted, "transform": transform})
    detail = {name: round(value, 3) for name, value in taken.items()}
    rows = []
    for what, share, reach in (
        (
            "the Haar transform of 26 010 numbers and its inverse, over a DP-SGD step",
            taken["transform"] / taken["step"],
            0.10,
        ),
        (
            "clip and noise in weighted wavelets, over what a DP-SGD step costs without",
            taken["weighted"] / taken["step"] - 1.0,
            0.25,
        ),
    ):
        rows.append(
            {
                "what": what,
                "peer": None,
                "ours": share,
                "reach": f"<= {reach}",
                "met": share <= reach,
                "detail": detail,
            }
        )
    return rows
