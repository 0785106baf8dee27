"""Front ends: what a model sees in the place of an example.

========== ===============================================================================
scattering two layers of fixed wavelets (Bruna and Mallat 2013), for images
random     convolutions with random filters from a public seed
========== ===============================================================================
"""

from sordino.data.features.front import FRONT_ENDS, FrontEnd, featured
from sordino.data.features.scattering import RandomConvolutions, Scattering

__all__ = [
    "FRONT_ENDS",
    "FrontEnd",
    "RandomConvolutions",
    "Scattering",
    "featured",
]
