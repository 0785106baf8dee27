"""Gaussian noise on Haar wavelet coefficients: the sound form, and the printed one.

Ranaweera et al. 2024; the printed form stands at its true price.

    basis       a vector to orthonormal coefficients and back, in blocks; groups of coefficients
    gaussian    the mechanism, contributions clipped as a whole or by levels; weights
    loops       the transform, compiled

At equal privacy no weights have been found that train better than the plain
:class:`~sordino.mechanisms.gaussian.Gaussian`: it remains the default.
"""
