"""``data.features`` kind "scattering": two layers of fixed wavelets (:mod:`.scatter`)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from sordino.data.dataset import scaled
from sordino.data.features.front import FRONT_ENDS, Examples, FrontEnd, Shape
from sordino.data.features.wavelets import channels
from sordino.errors import DataError, StudyError

if TYPE_CHECKING:
    from torch import Tensor

    from sordino.data.features.scatter import Scattering2d

LIMIT = 4.0
"""Deviations beyond which a normalised feature is cut off, to fit into a byte."""


LARGEST = 1e15
"""Features whose squares can be added up in 32 bits."""


@FRONT_ENDS.register
class Scattering(FrontEnd):
    """Scattering coefficients of images, normalised in each example over groups of channels.

    Each group of channels of an example gets mean 0 and deviation 1 (Wu and He 2018; for scattering
    and DP-SGD, Tramer and Boneh 2021); nothing is looked at but this example. Features are cut off
    at 4 deviations and kept as bytes.

    Attributes:
        J: scales; images shrink by 2^J.
        L: angles.
        groups: of channels; by default a third of their number, or as many as there are.
    """

    kind: Literal["scattering"] = "scattering"
    J: int = Field(2, ge=1, le=6)
    L: int = Field(8, ge=1, le=32)
    groups: int | None = Field(None, ge=1)

    def shape(self, shape: Shape) -> Shape:
        """(channels K, height // 2^J, width // 2^J), K for each colour."""
        if len(shape) != 3 or min(shape[1:]) < 2 << self.J:
            raise StudyError(
                f"data.features kind 'scattering' with J = {self.J} takes images of at least "
                f"{2 << self.J} pixels a side; examples have shape {shape}. Lower J, or leave "
                "data.features out"
            )
        colours, height, width = shape
        count = colours * channels(self.J, self.L)
        if count % self._grouped(count):
            raise StudyError(
                f"data.features.groups = {self.groups}: {count} channels cannot be parted into so "
                "many groups"
            )
        return count, height >> self.J, width >> self.J

    def features(self, x: Examples) -> Examples:
        """Bytes (n, K, h, w) of images (n, colours, height, width)."""
        import torch

        n, colours, height, width = x.shape
        images = torch.from_numpy(scaled(x)).reshape(n * colours, height, width)
        found = _transform(height, width, self.J, self.L)(images)
        wanted = (n, *self.shape(x.shape[1:]))
        return in_bytes(found.reshape(wanted), self._grouped(wanted[1]))

    def _grouped(self, count: int) -> int:
        return self.groups or (count // 3 if count % 3 == 0 else count)


def in_bytes(channels: Tensor, groups: int) -> Examples:
    """Channels (n, K, h, w), normalised in each example over groups of them, as bytes.

    Raises:
        DataError: if they are too large: their squares would overflow, and NaN has no byte.
    """
    import torch

    if not float(channels.abs().max()) < LARGEST:
        raise DataError(f"its features are {LARGEST:.0e} or larger, or not finite")
    normal = torch.nn.functional.group_norm(channels, groups)
    cut = normal.mul_(127.5 / LIMIT).add_(127.5).round_().clamp_(0.0, 255.0)
    found: Examples = cut.to(torch.uint8).numpy()
    return found


@functools.lru_cache(maxsize=4)
def _transform(height: int, width: int, scales: int, angles: int) -> Scattering2d:
    from sordino.data.features.scatter import Scattering2d

    return Scattering2d(height, width, scales, angles)
