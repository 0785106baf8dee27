"""Mechanisms: the only ways for anything about raw data to leave a client. Registered here."""

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
