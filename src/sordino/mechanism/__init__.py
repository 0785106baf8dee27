"""Mechanisms: the only ways in which something about raw data may leave a client."""

from sordino.mechanism.gaussian import CountedGaussian, Gaussian

__all__ = ["CountedGaussian", "Gaussian"]
