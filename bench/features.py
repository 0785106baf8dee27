"""Scattering coefficients of images of 28 x 28 pixels, beside kymatio's torch front end."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch

from bench.timing import in_turns
from sordino.data.scatter import Scattering2d

IMAGES, BATCH = 1024, 256
WHOLE = 60_000


def measure() -> list[dict[str, Any]]:
    """One row: CPU seconds for the training images of Fashion-MNIST."""
    x = np.random.default_rng(1).uniform(-1, 1, (IMAGES, 28, 28)).astype(np.float32)
    # its 2-D torch front end alone: the package's own import needs a SciPy of long ago
    front = importlib.import_module("kymatio.scattering2d.frontend.torch_frontend")
    theirs, ours = front.ScatteringTorch2D(2, (28, 28), L=8), Scattering2d(28, 28, 2, 8)
    given = torch.from_numpy(x)

    def kymatio() -> None:
        for start in range(0, IMAGES, BATCH):
            theirs(given[start : start + BATCH])

    taken = in_turns({"kymatio": kymatio, "ours": lambda: ours(x)}, rounds=5, repeat=1)
    seconds = {name: value * 1e-3 * WHOLE / IMAGES for name, value in taken.items()}
    return [
        {
            "what": "CPU seconds of scattering (J 2, L 8) of 60 000 images of 28 x 28 pixels",
            "peer": seconds["kymatio"],
            "ours": seconds["ours"],
            "reach": "<= 0.5 x peer",
            "met": seconds["ours"] <= 0.5 * seconds["kymatio"],
            "detail": {name: round(value, 2) for name, value in seconds.items()},
        }
    ]
