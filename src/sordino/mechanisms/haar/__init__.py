"""Gaussian noise on Haar wavelet coefficients: the sound form, and the printed one.

Ranaweera et al. 2024; the printed form stands at its true price.

    transform   a vector to orthonormal coefficients and back; the paper's averages
    basis       a vector in blocks, its groups of coefficients
    weights     how much of the bound each group may take: public, or learned from noisy releases
    gaussian    the mechanism, contributions clipped as a whole
    levels      the mechanism, every level clipped by itself

At equal privacy no weights have been found that train better than the plain
:class:`~sordino.mechanisms.gaussian.Gaussian`: it remains the default.
"""

from sordino.mechanisms.haar.basis import Basis, Groups
from sordino.mechanisms.haar.gaussian import HaarGaussian, LevelGaussian
from sordino.mechanisms.haar.transform import averages, forward, inverse
from sordino.mechanisms.haar.weights import Observed, learned, optimal, paper, uniform

__all__ = [
    "Basis",
    "Groups",
    "HaarGaussian",
    "LevelGaussian",
    "Observed",
    "averages",
    "forward",
    "inverse",
    "learned",
    "optimal",
    "paper",
    "uniform",
]
