r"""The noise behind MAPA's figure 4, at the price it has.

Li, Yang, Ren and Zhao (MAPA, Eq. 6) give noise of density exp(-eps_0 |eta| / Delta S), up to a factor, and
call each release eps_0-differentially private. Their factor eps_0 / (2 Delta S) is that of one dimension. Read in d
dimensions as "uniform direction, norm exponential with mean Delta S / eps_0", which is what leaves images to be
seen at eps_0 = 1, the density goes with

    |eta|^{1-d} exp(-|eta| eps_0 / Delta S),

which has a pole at 0: its ratio between neighbours has no bound, and for d > 1 pure epsilon is infinite. It is drawn
here to show that figure, and nowhere else.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sordino.mechanism.noise import fill_normal


def exponential_norm(dimension: int, mean: float, rng: np.random.Generator) -> Tensor:
    """A vector (d,) of uniform direction and a norm from Exp(mean), in the units of ``mean``."""
    norm = float(rng.exponential(mean))
    direction = fill_normal(torch.empty(dimension), rng)
    return direction.mul_(norm / float(torch.linalg.vector_norm(direction)))
