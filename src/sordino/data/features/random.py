"""``data.features`` kind "random": convolutions with random filters, rectified and pooled."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from sordino.base.entropy import Seeded
from sordino.base.errors import StudyError
from sordino.data.dataset import scaled
from sordino.data.features.front import FRONT_ENDS, Examples, FrontEnd, Shape
from sordino.data.features.scattering import in_bytes

if TYPE_CHECKING:
    from torch import Tensor


@FRONT_ENDS.register
class RandomConvolutions(FrontEnd):
    """Moduli of convolutions with random filters, averaged over squares and normalised.

    Filters are Gaussian with mean 0 and length 1, drawn from a public seed (Saxe et al. 2011 on why
    random filters serve). Each example's features are normalised over all its channels.

    Attributes:
        filters: how many.
        size: pixels of a filter's side.
        pool: side of the squares that are averaged; what is left at the edges is left out.
        seed: of the filters; public.
    """

    kind: Literal["random"] = "random"
    filters: int = Field(96, ge=1, le=4096)
    size: int = Field(7, ge=1, le=63)
    pool: int = Field(4, ge=1, le=64)
    seed: int = Field(0, ge=0)

    def shape(self, shape: Shape) -> Shape:
        """(filters, h', w')."""
        if len(shape) != 3 or min(shape[1:]) < self.size + self.pool - 1:
            raise StudyError(
                f"data.features kind 'random' with size = {self.size} and pool = {self.pool} takes "
                f"images of at least {self.size + self.pool - 1} pixels a side; examples have "
                f"shape {shape}"
            )
        height, width = ((side - self.size + 1) // self.pool for side in shape[1:])
        return self.filters, height, width

    def features(self, x: Examples) -> Examples:
        """Bytes (n, filters, h', w') of images (n, colours, height, width)."""
        import torch

        filters = _filters(self.filters, x.shape[1], self.size, self.seed)
        waves = torch.nn.functional.conv2d(torch.from_numpy(scaled(x)), filters).abs_()
        return in_bytes(torch.nn.functional.avg_pool2d(waves, self.pool).numpy(), 1)


@functools.lru_cache(maxsize=4)
def _filters(count: int, colours: int, size: int, seed: int) -> Tensor:
    """Filters (count, colours, size, size)."""
    import torch

    rng = Seeded(seed).at("random convolutions")
    drawn = torch.from_numpy(rng.standard_normal((count, colours, size, size)))
    if size > 1:
        drawn -= drawn.mean((2, 3), keepdim=True)
    found: Tensor = drawn / drawn.flatten(1).norm(dim=1)[:, None, None, None]
    return found.to(torch.float32)
