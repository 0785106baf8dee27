r"""What a layer must be able to do so that its per-example gradients never meet in memory.

Let layer l have input a_i and output gradient g_i for example i, and let G_i^l be its
parameters' gradient of example i alone. Clipping needs |G_i|^2 = sum_l |G_i^l|^2 of every
example first, then the factors c_i = min(1, C/|G_i|), then sum_i c_i G_i^l. So a kernel
has five moves:

    collect(a, g)   remembers what it needs and returns |G_i^l|^2, shape (n,)
    form(part, rows)  writes G_i^l out, for norms other than this one
    leave(keep)     forgets the examples that cannot contribute
    write(c, out)   adds sum_i c_i G_i^l into its stretch of the total
    plain(a, g)     adds sum_i G_i^l without any norms, for training without privacy

Images are (n, height, width, channels) here, channels last, everywhere.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Gradients(Protocol):
    """The gradients of one layer's parameters, of every example of a piece."""

    def leave(self, keep: Tensor) -> None:
        """Zeros for all that was collected of examples outside of ``keep`` (n,); shapes stay."""
        ...

    def write(self, factor: Tensor, out: Tensor, fresh: bool) -> None:
        """sum_i factor_i G_i of the batch into ``out`` (d,), float64: overwritten if ``fresh``.

        The factors are of the layer's own type, in which the piece is added up.
        """
        ...

    def form(self, part: slice, rows: Tensor) -> None:
        """G_i of this part of the collected piece into this layer's columns of ``rows`` (k, d)."""
        ...


class Kernel(Gradients, Protocol):
    """The gradient arithmetic of one layer that owns parameters."""

    def collect(self, a: Tensor, g: Tensor) -> Tensor:
        """Squared gradient norms (n,) in float64 of ``a`` and ``g``, kept until :meth:`write`."""
        ...

    def plain(self, a: Tensor, g: Tensor, out: Tensor, fresh: bool) -> None:
        """sum_i G_i into ``out`` (d,), with no norms and nothing kept."""
        ...


def add_or_set(place: Tensor, value: Tensor, fresh: bool) -> None:
    """``value`` into ``place``, which is overwritten if ``fresh``, else added to."""
    if fresh:
        place.copy_(value)
    else:
        place.add_(value)
