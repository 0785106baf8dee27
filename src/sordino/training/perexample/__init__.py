r"""Sums of clipped per-example gradients: the heart of differentially private training.

DP-SGD releases, for a batch of examples i with gradients g_i in R^d,

    sum_i g_i min(1, C/|g_i|)  +  noise,

and needs every norm |g_i| but no single g_i. :class:`ClippedSum` writes that sum.

Theory of operation
-------------------
**A path for each module.** It follows from the module's structure and from shapes and types, never
from data: one example that could move a batch to another path would change how all others are
rounded. :func:`path_of` tells which.

=========== ========================================= ==============================================
linear      a flattening and one linear layer         :class:`.sums.Single`: a compiled loop
                                                      reads examples where the store has them
layers      a plain sequence of layers that are known :mod:`.plan`: one forward and one backward
            to keep examples apart (:mod:`.plan`) pass over a piece, written out
vmap        any other module whose recorded           :mod:`.general`: the graph of one example,
            operations are all on a list              for all of a piece side by side
one by one  any other module                          :mod:`.general`: that graph, for one example
                                                      after another
=========== ========================================= ==============================================

**From a batch to a sum.** The batch, indices into a client's store, is cut by these indices into
leaves of at most 96 examples, which are added up in float32; sums of leaves are float64. A leaf is
worked off in pieces of one number of rows, which follows from the *expected* batch and so is
public; copies of an example fill up the last piece, and count for nothing. For each piece:

1. losses and their slopes by the scores; backwards through the layers, and for each layer with
   parameters its :class:`~.layers.Gradients` with their squared norms (k,). A linear layer needs
   vectors alone for both; others form the gradients, or multiply Gram matrices, as is cheaper.
2. the norms over all layers, and from them the factors c_i = min(1, s C / |g_i|) in float64, where
   s < 1 leaves room for every rounding. An example whose norm is not finite gets zeros in its
   place. A bound of a mechanism's own (:class:`Measured`, :class:`Shortened`) needs whole
   gradients: they are formed some at a time, in the cache.
3. sum_i c_i g_i, layer by layer, into the vector.

**What must hold.** The sum may move by at most C when one example comes or goes, bit for bit. So
nothing that is computed of an example may depend on the others, on how many they are, or on its
place: layers keep examples apart, or a module never sees two of them; no branch looks at more than
one example; libraries are called on one shape (and threads do not cut vectors); only places are
used in which equal examples have equal bits, which is tried before, on made-up numbers; compiled
loops take one example after another. The proof of the bound, rounding included, is at the head of
:mod:`.clipping`. Nothing that examples hold raises an error, which would tell of them.

A :class:`ClippedSum` keeps what its layers have seen, so one object serves one thread.

Shapes: x (n, ...), y (n,), out (d,) in float64, in the order of
:class:`~sordino.training.flat.Flat`.

>>> import torch
>>> from sordino.training.perexample.sums import ClippedSum
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
