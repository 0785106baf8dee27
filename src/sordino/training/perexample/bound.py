r"""What a per-example gradient is bounded in.

    FlatBound  |G_i| <= C, the plain norm over all parameters
    Layers     |G_i^l| <= C_l for each layer l with parameters, sum_l C_l^2 = C^2
    Measured   a norm of one's own over whole gradients, as of weighted wavelet coefficients
    Shortened  bounds of one's own on parts of gradients, as on each level of a wavelet transform

The sum then moves by at most C when an example comes or goes, in the norm that was chosen.

Shapes: gradients of examples as rows (n, d).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from sordino.mechanisms import Measuring
from sordino.training.perexample.clipping import MARGIN


@dataclass(frozen=True, slots=True)
class FlatBound:
    """min(1, C / |G_i|) times each gradient."""

    clip: float

    @property
    def margin(self) -> float:
        """Room for rounding; see :mod:`.clipping`."""
        return MARGIN


@dataclass(frozen=True, slots=True)
class Layers:
    """min(1, C_l / |G_i^l|) times each layer's gradient, all C_l equal (McMahan et al.

    2018, per-layer clipping).
    """

    clip: float

    @property
    def margin(self) -> float:
        """Room for rounding; see :mod:`.clipping`."""
        return MARGIN

    def each(self, layers: int) -> float:
        """C_l = C / sqrt(layers)."""
        return self.clip / math.sqrt(layers)


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """min(1, s C / norm(G_i)) times each gradient, summed in float64.

    In a norm that weighs directions, errors weigh more, too.

    Attributes:
        clip: C.
        norms: (n, d) -> (n,), infinite where a row is not finite.
        margin: s, the room for rounding in this norm.
    """

    clip: float
    norms: Callable[[Tensor], Tensor]
    margin: float

    @classmethod
    def by(cls, mechanism: Measuring, clip: float) -> Measured:
        """The norm of a mechanism."""
        return cls(clip, mechanism.norms, mechanism.margin)


@dataclass(frozen=True, slots=True, eq=False)
class Shortened:
    """Gradients as a mechanism shortens them, summed in float64.

    Attributes:
        clip: C.
        rows: (n, d) -> (n, d) in float64 within the bound, and norms (n,) before, which are
            infinite where a row is not finite.
    """

    clip: float
    rows: Callable[[Tensor], tuple[Tensor, Tensor]]


Bound = FlatBound | Layers | Measured | Shortened
