r"""Whitened principal components of features, learned from made-up pictures alone.

Scattering coefficients of neighbouring places and angles say almost the same: most of their
variance lies in a few directions, and a linear model learns along the others slowly. Under a budget
of rounds and privacy, slowly means not at all. With mu and S the mean and covariance of the
features of :mod:`.pictures`, S = U diag(lambda) U^T, an example's features x become

    a_k = u_k . (x - mu) / sqrt(lambda_k + rho),    k = 1 .. K,    rho = lambda_1 / 64,

normalised to the same length for each example. This is a fixed linear map: no statistic of
anybody's data is used, so it costs no privacy. rho keeps those directions small that are rare in
made-up pictures: true pictures are only like them.

Libraries for linear algebra may disagree on single directions of nearly equal variance. Sites that
learn the map by themselves then see such components a little differently; the leading ones, which
matter, lie far apart.

**The same bytes in any company.** An example's features must not depend on those beside it, not
even in their last digit (:mod:`.front`). The map is therefore computed in whole numbers: features
are bytes, less 128; U is rounded to seven bits and a sign; a sum of 1024 such products is below
2^24, where ``float32`` holds every whole number. So each order of additions gives the same number,
and blocks of examples can go through one matrix product. What follows is a function of single
numbers, and the length is a sum of whole numbers again.

Shapes: features of examples (n, d), ``uint8``; components (n, K), ``uint8``.

References:
    Amid et al. 2022, Public Data-Assisted Mirror Descent for Private Model Training.
    Li et al. 2022, Private Adaptive Optimization with Side Information.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.base.entropy import Seeded

MIDDLE = 128
"""What a byte stands for zero at, in whole numbers."""
BLOCK = 1024
"""Products of 128 and 127 that add up to less than 2^24."""
FINEST = 2.0**16
"""Whole numbers to a unit of a component, when its length is measured."""
LIMIT = 4.0
"""Deviations beyond which a component is cut off, to fit into a byte."""
RIDGE = 1.0 / 64.0
"""rho, of the largest variance."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Components:
    """The map.

    Attributes:
        directions: U in whole numbers from -127 to 127, (d, K), ``float32``.
        centre: mu^T U in the same units, (K,).
        scale: what a whole number is worth in each component, (K,).
    """

    directions: NDArray[np.float32]
    centre: NDArray[np.float64]
    scale: NDArray[np.float64]

    def __call__(self, features: Bytes) -> Bytes:
        """Components (n, K) of features (n, d), each row a function of its own row alone."""
        x = features.astype(np.float32)
        x -= np.float32(MIDDLE)
        found = np.zeros((len(x), len(self.scale)))
        for start in range(0, x.shape[1], BLOCK):
            found += x[:, start : start + BLOCK] @ self.directions[start : start + BLOCK]
        found -= self.centre
        found *= self.scale
        whole = np.rint(found * FINEST).astype(np.int64)
        length = np.sqrt(np.square(whole).sum(1).astype(np.float64)) / FINEST
        wanted = np.sqrt(float(len(self.scale)))
        found *= (wanted / np.maximum(length, 1.0 / FINEST))[:, None]
        return np.clip(np.rint(found * (127.5 / LIMIT) + 127.5), 0.0, 255.0).astype(np.uint8)

    def packed(self) -> Bytes:
        """All of it as bytes; :meth:`unpacked` is the way back."""
        parts = (self.directions.astype(np.int8), self.centre, self.scale)
        return np.frombuffer(b"".join(part.tobytes() for part in parts), np.uint8)

    @classmethod
    def unpacked(cls, data: Bytes, d: int, count: int) -> Components:
        """The map of :meth:`packed` bytes, of ``count`` components of ``d`` features."""
        numbers = np.frombuffer(data[d * count :].tobytes(), np.float64)
        directions = data[: d * count].view(np.int8).reshape(d, count).astype(np.float32)
        return cls(directions, numbers[:count], numbers[count:])

    @staticmethod
    def size(d: int, count: int) -> int:
        """Of :meth:`packed`, in bytes."""
        return d * count + 16 * count


def learned(features: Bytes, count: int) -> Components:
    """The first ``count`` components of features (n, d), which must be nobody's."""
    n, d = features.shape
    second, total = np.zeros((d, d)), np.zeros(d)
    for start in range(0, n, BLOCK):  # whole numbers below 2^24, as above
        x = features[start : start + BLOCK].astype(np.float32)
        x -= np.float32(MIDDLE)
        second += x.T @ x
        total += x.sum(0, dtype=np.float64)
    second -= np.outer(total, total) / n
    second /= n
    values, vectors = np.linalg.eigh(second)
    values = np.maximum(values[::-1][:count], 0.0)
    # a library may give either sign: take the one that a fixed direction agrees with
    u = vectors[:, ::-1][:, :count]
    u = u * np.where(Seeded(0).at("signs").standard_normal(d) @ u < 0.0, -1.0, 1.0)
    largest = np.maximum(np.abs(u).max(0), 1e-300)
    directions = np.rint(u * (127.0 / largest))
    scale = largest / 127.0 / np.sqrt(values + max(RIDGE * float(values[0]), 1e-12))
    return Components(directions.astype(np.float32), (total / n) @ directions, scale)
