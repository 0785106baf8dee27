"""Mechanisms: the only ways in which something about raw data may leave a client."""

from sordino.mechanism.gaussian import SHRINK, Bounded, CountedGaussian, Gaussian

__all__ = ["SHRINK", "Bounded", "CountedGaussian", "Gaussian"]
