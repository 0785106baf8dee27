r"""Sums of clipped per-example gradients: the heart of differentially private training.

DP-SGD releases, for a batch of examples i with gradients g_i in R^d,

    sum_i g_i min(1, C/|g_i|)  +  noise,

and needs every norm |g_i| but no single g_i. :class:`ClippedSum` writes that sum. It
takes the fastest path that is right for the module, by its structure alone (:func:`path_of` tells
which):

1. a plan for sequences of layers that are known to keep examples apart (:mod:`.plan`), one forward
   and one backward pass;
2. every example by itself for all others (:mod:`.general`), by ``vmap`` or one after another.

Where the examples lie in a store, :meth:`ClippedSum.of` takes the store and the indices of the
batch. A module of one linear layer (:mod:`.single`) then reads them in place; for all others the
batch is copied out, as model input.

How far one example can move the sum, rounding included, is proven in :mod:`.clipping`.

A kernel keeps buffers between calls, so one object serves one thread.

Shapes: x (n, ...), y (n,), out (d,) in float64, in the order of
:class:`~sordino.training.flat.Flat`.

>>> import torch
>>> from sordino.training.flat import Flat
>>> from sordino.training.loss import cross_entropy
>>> flat = Flat(torch.nn.Sequential(torch.nn.Linear(3, 2))).load(torch.zeros(8))
>>> x, y = torch.tensor([[3.0, 0.0, 4.0], [0.1, 0.0, 0.0]]), torch.tensor([0, 1])
>>> out = torch.empty(8, dtype=torch.float64)
>>> raw = ClippedSum(flat, cross_entropy)(x, y, 1.0, out)
>>> [round(float(norm), 4) for norm in raw.norms], raw.clipped
([3.6056, 0.7106], 1)

References:
    Abadi et al. 2016, Deep Learning with Differential Privacy.
    Goodfellow 2015, Efficient Per-Example Gradient Computations.
    Bu, Wang, Zha, Karypis 2023, Differentially Private Optimization on Large Model at Small Cost
    (book-keeping).
"""

from sordino.training.outline import Path
from sordino.training.perexample.bound import Bound, FlatBound, Layers, Measured, Shortened
from sordino.training.perexample.clipping import Clipped
from sordino.training.perexample.paths import Store, path_of
from sordino.training.perexample.sums import ClippedSum, MeanGradient

__all__ = [
    "Bound",
    "Clipped",
    "ClippedSum",
    "FlatBound",
    "Layers",
    "MeanGradient",
    "Measured",
    "Path",
    "Shortened",
    "Store",
    "path_of",
]
