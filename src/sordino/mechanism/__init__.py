"""Mechanisms: the only ways in which something about raw data may leave a client. Importing this
package registers them.
"""

from sordino.mechanism.gaussian import (
    SHRINK,
    Bounded,
    CountedGaussian,
    Gaussian,
    Learning,
    Measuring,
    length,
    shortened,
)
from sordino.mechanism.knorm import ExponentialNorm, KNorm
from sordino.mechanism.plain import GaussianNoise
from sordino.mechanism.pure import KNormNoise
from sordino.mechanism.registry import Noise, NoiseRequest, imported, known, register
from sordino.mechanism.response import RandomisedResponse
from sordino.mechanism.single import Single

__all__ = [
    "SHRINK",
    "Bounded",
    "CountedGaussian",
    "ExponentialNorm",
    "Gaussian",
    "GaussianNoise",
    "KNorm",
    "KNormNoise",
    "Learning",
    "Measuring",
    "Noise",
    "NoiseRequest",
    "RandomisedResponse",
    "Single",
    "imported",
    "known",
    "length",
    "register",
    "shortened",
]
