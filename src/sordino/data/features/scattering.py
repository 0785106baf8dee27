"""``data.features`` kind "scattering": two layers of fixed wavelets (:mod:`.scatter`)."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sordino.base.errors import DataError, StudyError
from sordino.data.dataset import scaled
from sordino.data.features.front import FRONT_ENDS, Examples, FrontEnd, Shape
from sordino.data.features.kept import keep, kept, place_of
from sordino.data.features.pictures import pictures
from sordino.data.features.progress import tell
from sordino.data.features.wavelets import channels

if TYPE_CHECKING:
    from sordino.data.features.components import Components
    from sordino.data.features.scatter import Scattering2d

LIMIT = 4.0
"""Deviations beyond which a normalised feature is cut off, to fit into a byte."""

FLOOR = 1e-5
"""Added to a group's variance."""

MOST = 8192
"""Coefficients whose covariance is still quick to take apart."""

PICTURES = 10_000
"""Made-up ones that components are learned from."""

TOGETHER = 16
"""Images of a call: the channels of more take more memory and no less time."""

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
        components: if given, a model sees so many whitened principal components of made-up
            pictures' features in the place of the features (:mod:`.components`).
    """

    kind: Literal["scattering"] = "scattering"
    J: int = Field(2, ge=1, le=6)
    L: int = Field(8, ge=1, le=32)
    groups: int | None = Field(None, ge=1)
    components: int | None = Field(None, ge=1)

    @property
    def together(self) -> int:
        """Images are transformed one by one, and components are products of whole numbers."""
        return TOGETHER if self.components is None else 512

    def shape(self, shape: Shape) -> Shape:
        """(channels K, height // 2^J, width // 2^J), K for each colour; or (components,)."""
        whole = self._coefficients(shape)
        if self.components is None:
            return whole
        d = math.prod(whole)
        if d > MOST or self.components > d:
            raise StudyError(
                f"data.features.components = {self.components} of {d:,} scattering coefficients: "
                f"at most {min(d, MOST):,} of at most {MOST:,} can be made. Raise J, or leave "
                "components out"
            )
        return (self.components,)

    def features(self, x: Examples) -> Examples:
        """Bytes (n, K, h, w), or (n, components), of images (n, colours, height, width)."""
        if self.components is None:
            return self._bytes(x)
        return _components(self, x.shape[1:])(self._bytes(x).reshape(len(x), -1))

    def _coefficients(self, shape: Shape) -> Shape:
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

    def _bytes(self, x: Examples) -> Examples:
        """Coefficients (n, K, h, w) of images (n, colours, height, width)."""
        n, colours, height, width = x.shape
        images = scaled(x).reshape(n * colours, height, width)
        found = _transform(height, width, self.J, self.L)(images)
        wanted = (n, *self._coefficients(x.shape[1:]))
        return in_bytes(found.reshape(wanted), self._grouped(wanted[1]))

    def _grouped(self, count: int) -> int:
        return self.groups or (count // 3 if count % 3 == 0 else count)


def in_bytes(channels: NDArray[np.float32], groups: int) -> Examples:
    """Channels (n, K, h, w), normalised in each example over groups of them, as bytes.

    Raises:
        DataError: if they are too large: their squares would overflow, and NaN has no byte.
    """
    if not float(np.abs(channels).max(initial=0.0)) < LARGEST:
        raise DataError(f"its features are {LARGEST:.0e} or larger, or not finite")
    from sordino.data.features.scatter import normalise  # loads numba

    found = np.empty(channels.shape, np.uint8)
    whole = (len(channels) * groups, -1)
    normalise(channels.reshape(whole), LIMIT, FLOOR, found.reshape(whole))
    return found


@functools.lru_cache(maxsize=4)
def _transform(height: int, width: int, scales: int, angles: int) -> Scattering2d:
    from sordino.data.features.scatter import Scattering2d

    return Scattering2d(height, width, scales, angles)


@functools.lru_cache(maxsize=2)
def _components(front: Scattering, shape: Shape) -> Components:
    """The map for images of a shape, from the user's cache; else it is learned, and kept there."""
    from sordino.data.features.components import Components, learned

    assert front.components is not None
    plain = front.model_copy(update={"components": None})
    d, count = math.prod(plain.shape(shape)), front.components
    place = place_of(f"components {front.model_dump_json(exclude_none=True)} {shape}")
    found = kept(place, (Components.size(d, count),))
    if found is not None:
        return Components.unpacked(found, d, count)
    made_up = pictures(PICTURES, *shape)
    features = np.empty((PICTURES, d), np.uint8)
    for start in range(0, PICTURES, TOGETHER):
        some = slice(start, min(start + TOGETHER, PICTURES))
        features[some] = plain.features(made_up[some]).reshape(-1, d)
        tell("made-up pictures", some.stop, PICTURES)
    components = learned(features, count)
    keep(place, components.packed())
    return components
